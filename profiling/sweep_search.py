"""Which cells of a series a search with a budget times next: Optuna's tree-structured Parzen estimator. Imports no torch.

What it says depends on the plan, the cells and their outcomes alone, not on how the sweep came there: a search that was
interrupted goes on as it would have. Cells that cannot run are told to Optuna as such, with the constraint that they break,
before it is asked anything; it is then asked until it names a cell that was not tried.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from profiling.sweep_record import SIDES, CellOutcome, SweepCell, SweepPlan

_FIRST_AT_RANDOM = 8
_MOST_ASKED = 100
_CONSTRAINT = "cannot run"
_AXES = (*SIDES, "block_order")

Pair = tuple[SweepCell, CellOutcome]


def left_of(plan: SweepPlan, pairs: Sequence[Pair], under_way: frozenset[str]) -> int:
    """How many cells of a series' budget have not been timed, nor are being timed."""
    spent = sum(1 for cell, outcome in _of_grid(pairs) if _was_run(outcome) or cell.key in under_way)
    return max(0, plan.budget - spent)


def choose(plan: SweepPlan, pairs: Sequence[Pair], under_way: frozenset[str], count: int) -> tuple[SweepCell, ...]:
    """At most count cells of a series to time next: none where the budget is spent or nothing is left to try."""
    open_ = {cell.key: cell for cell, outcome in _of_grid(pairs) if outcome.status == "pending" and cell.key not in under_way}
    wanted = min(count, len(open_), left_of(plan, pairs, under_way))
    if wanted <= 0:
        return ()
    tried = sum(_was_run(outcome) for _, outcome in pairs) + len(under_way)
    named = _named(plan, pairs, under_way, open_, wanted, plan.seed + tried)
    return tuple(open_[key] for key in named)


def _of_grid(pairs: Sequence[Pair]) -> list[Pair]:
    return [pair for pair in pairs if "grid" in pair[0].roles]


def _was_run(outcome: CellOutcome) -> bool:
    return outcome.status in ("measured", "wrong", "failed")


def _named(
    plan: SweepPlan, pairs: Sequence[Pair], under_way: frozenset[str], open_: dict[str, SweepCell], wanted: int, seed: int
) -> list[str]:
    import optuna  # a second to import, and only a search needs it

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(n_startup_trials=_FIRST_AT_RANDOM, seed=seed, multivariate=True, constant_liar=True)
    study = optuna.create_study(direction="minimize", sampler=sampler)
    axes = {name: optuna.distributions.IntDistribution(0, len(_values(plan, name)) - 1) for name in _AXES}
    worst_ms = max((outcome.median_ms for _, outcome in pairs if outcome.median_ms is not None), default=1.0)
    for cell, outcome in pairs:
        if "grid" in cell.roles:
            study.add_trials(_trial(plan, axes, cell, outcome, under_way, worst_ms))
    keys = {tuple(_place(plan, cell).values()): key for key, cell in open_.items()}
    named: list[str] = []
    for _ in range(_MOST_ASKED):
        if len(named) == wanted:
            break
        asked = study.ask(axes)
        key = keys.pop(tuple(asked.params[name] for name in _AXES), None)
        if key is None:  # known already: that it has nothing new is told as what cannot run is
            asked.set_constraint(_CONSTRAINT, 1.0)
            study.tell(asked, worst_ms)
        else:
            named.append(key)
    rest = sorted(keys.values())
    return named + random.Random(seed).sample(rest, wanted - len(named))


def _trial(
    plan: SweepPlan, axes: dict, cell: SweepCell, outcome: CellOutcome, under_way: frozenset[str], worst_ms: float
) -> list:
    """What is known of a cell, as Optuna has it: nothing of one that was neither tried nor found unable to run."""
    from optuna.trial import TrialState, create_trial

    place = _place(plan, cell)
    if cell.key in under_way:
        return [create_trial(params=place, distributions=axes, state=TrialState.RUNNING)]
    if outcome.status == "pending":
        return []
    is_broken = outcome.median_ms is None
    value, constraints = worst_ms if is_broken else outcome.median_ms, {_CONSTRAINT: float(is_broken)}
    return [create_trial(params=place, distributions=axes, value=value, constraints=constraints)]


def _values(plan: SweepPlan, name: str) -> tuple:
    """An axis's values in order: neighbours in it are alike, whatever the order they were named in."""
    return plan.block_orders if name == "block_order" else tuple(sorted(getattr(plan, name)))


def _place(plan: SweepPlan, cell: SweepCell) -> dict[str, int]:
    return {name: _values(plan, name).index(getattr(cell.tiles, name)) for name in _AXES}
