"""Who won: shared ranks, the finals above the screening, what the best wins over the default and over the article."""

from __future__ import annotations

import csv
import io
import json
import time

import numpy as np
import pytest

from profiling.record_types import Array
from profiling.records import Flag
from profiling.sweep_export import csv_of, json_of
from profiling.sweep_ranking import finalists_of, ranking, rankings
from profiling.sweep_record import CellOutcome, Sweep, SweepCell, problems_of
from tests import fake_sweep_worker as fake
from tests import records_for_tests as records
from tests.sweeps_for_tests import measured, plan, sweep, with_finals


def words(found: Sweep, rows) -> list[str]:
    return [fake.words_of(found.by_key[row.key][0].tiles) for row in rows]


def test_equal_configurations_share_the_rank_and_the_next_one_has_its_place() -> None:
    found = sweep(plan(finalists=0))
    rows = ranking(found, found.plan.series[0]).rows
    assert sorted(words(found, rows[:2])) == ["128x64x8x3", "128x64x8x4"]
    assert [row.rank for row in rows[:3]] == [1, 1, 3]
    for row in rows:
        group = [other for other in rows if other.rank == row.rank]
        assert rows.index(group[0]) == row.rank - 1
        times = [fake.invented_ms(found.by_key[other.key][0].request) for other in group]
        assert max(times) / min(times) < 1.01, "what differs by more than 1 % is told apart here, where noise is a thousandth"
    assert [row.behind_best for row in rows] == sorted(row.behind_best for row in rows)
    assert rows[0].behind_best == 1.0
    assert rows[0].why == ""
    assert all(row.why for row in rows[1:] if row.rank == 1)


def test_finalists_are_the_fastest_the_default_and_the_article_s_best() -> None:
    found = sweep(plan(finalists=3))
    chosen = finalists_of(found, found.plan.series[0])
    fastest = sorted(found.outcomes, key=lambda one: one.median_ms)[:3]
    assert {one.key for one in fastest} <= {one.key for one in chosen}
    assert {"default", "article"} <= {role for one in chosen for role in one.roles}
    assert len(chosen) == 5
    assert finalists_of(sweep(plan(finalists=0)), found.plan.series[0]) == ()


def test_a_final_is_not_held_against_a_screening_that_a_cooler_gpu_made_faster() -> None:
    found = with_finals(sweep(plan(finalists=1)), finalists_of)  # the screening's times are 3 % shorter
    rows = ranking(found, found.plan.series[0]).rows
    assert rows[0].is_final
    assert words(found, rows[:1]) in (["128x64x8x3"], ["128x64x8x4"])
    twin = rows[1]
    assert not twin.is_final
    assert twin.rank == 1
    assert twin.behind_best == pytest.approx(1.0, abs=0.005)
    assert twin.median_ms < rows[0].median_ms, "the number itself is what was measured"


def test_what_the_best_wins_is_said_with_its_interval() -> None:
    found = with_finals(sweep(plan(finalists=2)), finalists_of)
    result = ranking(found, found.plan.series[0])
    article = result.over_article
    assert article.word == "FASTER"
    assert article.low <= article.ratio <= article.high
    expected = fake.invented_ms(found.by_key[article.key][0].request) / fake.invented_ms(
        found.by_key[result.best.key][0].request
    )
    assert article.ratio == pytest.approx(expected, rel=0.005)
    assert "the article's 64 × 256" in article.sentence


def test_without_the_article_s_pair_its_reason_stands_in_the_place_of_a_ratio() -> None:
    def outcome(cell: SweepCell) -> CellOutcome:
        if "article" not in cell.roles:
            return measured(cell)
        return CellOutcome(key=cell.key, status="infeasible", reason="shared memory", sentence="It needs 296 KiB; it has 227.")

    result = rankings(sweep(plan(), outcome))[0]
    assert (result.over_article.ratio, result.over_article.key) == (None, None)
    assert result.over_article.sentence.endswith("It needs 296 KiB; it has 227.")
    assert "The article's 64 × 256 has no time here" in result.over_article.sentence


def test_the_default_that_is_the_best_wins_nothing_over_itself() -> None:
    asked = plan(block_m=(64,), block_n=(32,), num_stages=(2,))
    gain = rankings(sweep(asked))[0].over_default
    if gain.key == rankings(sweep(asked))[0].best.key:
        assert (gain.ratio, gain.sentence) == (1.0, "The best is the default itself.")
    else:
        assert gain.word in ("FASTER", "SAME", "UNCLEAR")


def test_a_time_that_cannot_be_true_is_not_ranked_and_is_no_finalist() -> None:
    flag = Flag(name="implausible", severity="bad", short="implausible", sentence="Faster than the data sheet allows.")

    def outcome(cell: SweepCell) -> CellOutcome:
        right = measured(cell)
        return right.model_copy(update={"measurement": right.measurement.model_copy(update={"flags": (flag,)})})

    found = sweep(plan(), outcome)
    assert rankings(found)[0].rows == ()
    assert finalists_of(found, found.plan.series[0]) == ()


def test_the_interpreter_is_not_ranked() -> None:
    def outcome(cell: SweepCell) -> CellOutcome:
        measurement = measured(cell).measurement
        interpreted = {
            "environment": records.environment(records.interpreter()), "latency": records.latency(5.0, interpreted=True),
            "accuracy": records.accuracy(interpreted=True),
        }  # fmt: skip
        return CellOutcome(key=cell.key, status="measured", measurement=measurement.model_copy(update=interpreted))

    result = rankings(sweep(plan(), outcome))[0]
    assert result.rows == ()
    assert result.over_default.sentence == "Interpreted: there is no GPU time to rank."


def test_many_launches_in_few_rounds_are_told_apart_by_a_clear_gap() -> None:
    """Of a kernel of microseconds a screening has a thousand launches in two rounds: too few for a word by rounds."""
    rng = np.random.default_rng(3)

    def outcome(cell: SweepCell) -> CellOutcome:
        one = measured(cell)
        times = {"samples_ms": Array.of(one.median_ms * (1 + 0.002 * rng.standard_normal(1000))),
                 "round_of": Array.of(np.repeat([0, 1], 500), "<i4")}  # fmt: skip
        latency = one.measurement.latency.model_copy(update=times)
        return one.model_copy(update={"measurement": one.measurement.model_copy(update={"latency": latency})})

    found = sweep(plan(finalists=0), outcome)
    rows = ranking(found, found.plan.series[0]).rows
    assert words(found, [row for row in rows if row.rank == 1]) == words(found, rows[:2])
    assert len({row.rank for row in rows}) > len(rows) / 2
    gain = ranking(found, found.plan.series[0]).over_article
    assert gain.word == "FASTER"


def test_thousands_of_cells_with_a_launch_a_round_are_ranked_at_once() -> None:
    """Once a page asked for it, it took half a minute. Each cell has a number of rounds of its own, as a screening has."""
    rng = np.random.default_rng(0)

    def outcome(cell: SweepCell) -> CellOutcome:
        one, launches = measured(cell), int(rng.integers(20, 600))
        samples = Array.of(one.median_ms * (1 + 0.004 * rng.standard_normal(launches)))
        latency = one.measurement.latency.model_copy(
            update={"samples_ms": samples, "round_of": Array.of(np.arange(launches), "<i4")}
        )
        return one.model_copy(update={"measurement": one.measurement.model_copy(update={"latency": latency})})

    wide = plan(
        problems=problems_of((1024, 4096, 16384), (True,), (128,), 16), block_m=(16, 32, 64, 128, 256),
        block_n=(16, 32, 64, 128, 256, 512), num_warps=(1, 2, 4, 8, 16), num_stages=(1, 2, 3, 4, 5), finalists=12,
    )  # fmt: skip
    found = sweep(wide, outcome)
    started = time.process_time()
    rows = [row for one in rankings(found) for row in one.rows]
    spent_s = time.process_time() - started
    assert len(rows) == len(found.cells) > 2080
    assert spent_s < 8.0, "a second, where nothing else wants the processor; it took fifty"


def test_the_files_hold_every_cell_best_first() -> None:
    found = with_finals(sweep(plan(finalists=2)), finalists_of)
    lines = list(csv.DictReader(io.StringIO(csv_of(found).decode("utf-8-sig"))))
    assert len(lines) == len(found.cells)
    ranks = [int(line["rank"]) for line in lines]
    assert ranks == sorted(ranks)
    rows = ranking(found, found.plan.series[0]).rows
    assert [float(line["median_ms"]) for line in lines] == [row.median_ms for row in rows]
    document = json.loads(json_of(found))
    assert Sweep.model_validate_json(json.dumps(document["sweep"])) == found.model_copy(update={"owner": ""})
    assert document["rankings"][0]["snippet"].startswith("TileConfig(block_m=128, block_n=64, num_warps=8")
