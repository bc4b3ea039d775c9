"""A search with a budget: within it, never a cell that cannot run, the same for the same outcomes, better than chance."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

import pytest

from profiling.sweep_cells import cells_of
from profiling.sweep_record import CellOutcome, SweepCell, SweepPlan
from profiling.sweep_search import choose, left_of
from tests import fake_sweep_worker as fake
from tests.sweeps_for_tests import measured, plan

WIDE = {"block_m": (16, 32, 64, 128, 256), "block_n": (16, 32, 64, 128, 256), "num_warps": (4, 8), "num_stages": (2, 3, 4)}


def too_large(cell: SweepCell) -> bool:
    return cell.tiles.block_m * cell.tiles.block_n * cell.tiles.num_stages > 3 * 128 * 128


def begun(asked: SweepPlan, cannot: Callable[[SweepCell], bool] = too_large) -> dict[SweepCell, CellOutcome]:
    """Every cell, with what the compiler said of it."""

    def outcome(cell: SweepCell) -> CellOutcome:
        if not cannot(cell):
            return CellOutcome(key=cell.key, status="pending")
        return CellOutcome(key=cell.key, status="infeasible", reason="shared memory", sentence="Too much.")

    return {cell: outcome(cell) for cell in cells_of(asked, fake.CAPABILITY)}


def searched(asked: SweepPlan, at_once: int = 8) -> dict[str, float]:
    """What a whole search times, by the cells' keys."""
    outcomes, found = {cell.key: (cell, outcome) for cell, outcome in begun(asked).items()}, {}
    while chosen := choose(asked, list(outcomes.values()), frozenset(), at_once):
        for cell in chosen:
            assert not too_large(cell)
            assert cell.key not in found
            outcomes[cell.key] = cell, measured(cell)
            found[cell.key] = fake.invented_ms(cell.request)
    return found


def test_it_keeps_to_its_budget_and_beats_chance() -> None:
    pool = [cell for cell in begun(plan(**WIDE)) if "grid" in cell.roles and not too_large(cell)]
    times = [fake.invented_ms(cell.request) for cell in pool]
    best, by_search, by_chance = min(times), [], []
    for seed in range(2):
        found = searched(plan(**WIDE, budget=30, seed=seed))
        assert len(found) == 30
        assert set(found.values()) <= set(times)
        by_search.append(min(found.values()) / best)
        sampled = random.Random(seed)
        by_chance += [min(sampled.sample(times, 30)) / best for _ in range(100)]
    assert statistics.mean(by_search) < statistics.mean(by_chance)
    assert max(by_search) < 1.1


def test_it_is_the_same_for_the_same_outcomes_however_it_came_there() -> None:
    asked = plan(**WIDE, budget=16)
    assert searched(asked) == searched(asked)
    assert searched(asked).keys() != searched(asked.model_copy(update={"seed": 7})).keys()


@pytest.mark.parametrize("budget", [5, 11, 200])
def test_a_budget_of_all_or_more_names_every_cell_once(budget) -> None:
    found = searched(plan(budget=budget))
    assert len(found) == min(budget, 12)


def test_what_is_under_way_is_neither_named_again_nor_forgotten() -> None:
    asked = plan(budget=12)
    pairs = list(begun(asked).items())
    first = choose(asked, pairs, frozenset(), 5)
    under_way = frozenset(cell.key for cell in first)
    assert left_of(asked, pairs, under_way) == 7
    second = choose(asked, pairs, under_way, 20)
    assert len(second) == 7
    assert not under_way & {cell.key for cell in second}
