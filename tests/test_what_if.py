"""The scheduler's model against what an H200 did, and against worlds of which the truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import block_order
from kernels.block_order import WHOLE_HEAD
from kernels.problem import AttentionProblem, Precision, TileConfig
from profiling.launched_work import Work
from profiling.list_scheduling import Machine, Pace, replay
from profiling.schedule_facts import facts_of, residency
from profiling.stamped_durations import durations_in
from profiling.timetable import Timetable
from profiling.what_if import SM_COUNTS, Prediction, from_tile_counts, predict
from tests import records_for_tests as records
from tests.recorded_stamps import NAMES, SKETCHES, SMS, TICK_NS, recorded

H200 = Machine(SMS)
TILES = TileConfig(block_m=64, block_n=64, num_warps=4, num_stages=3)
CAUSAL = AttentionProblem(num_heads=8, num_kv_heads=2, seq_len_q=1000, seq_len_kv=1500, head_dim=64, causal=True)


@pytest.fixture
def head_after_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sketch's kernel had no sections: one head's blocks follow the other's."""
    monkeypatch.setattr(block_order, "_SECTION_BYTES", 1)


# Against the H200


def foreseen(before: str, after: str) -> Prediction:
    """What the stamps of one launch say of another one; both on the same GPU."""
    was, now = recorded(before), recorded(after)
    return predict(was.table, was.work, now.work, was.machine, was.machine)


def error(found: Prediction, name: str) -> float:
    """What a prediction was off by, of the span that was measured."""
    return found.span_ns / recorded(name).table.span_ns - 1


@pytest.mark.parametrize("name", [name for name in NAMES if name not in SKETCHES])
def test_a_recorded_launch_replayed_in_its_own_order(name: str) -> None:
    found = foreseen(name, name)
    assert abs(found.own_error_share) < 0.02
    assert error(found, name) == found.own_error_share
    assert found.table.provenance == "modelled"
    if recorded(name).machine.programs_per_sm == 1:
        assert abs(found.own_error_share) < 0.001, "the gap between two programs is all that the stamps do not hold"
        np.testing.assert_allclose(found.table.duration_ns, recorded(name).table.duration_ns)


@pytest.mark.parametrize("name", SKETCHES)
@pytest.mark.usefixtures("head_after_head")
def test_a_sketch_replayed_in_its_own_order(name: str) -> None:
    assert abs(foreseen(name, name).own_error_share) < 0.001


@pytest.mark.parametrize("tokens", ["4096", "16384"])
@pytest.mark.parametrize(("was", "now"), [("natural", "heaviest"), ("heaviest", "natural")])
@pytest.mark.usefixtures("head_after_head")
def test_a_sketchs_other_order_is_foreseen_within_the_bar(tokens: str, was: str, now: str) -> None:
    after = f"sketch_{tokens}_causal_{now}"
    assert abs(error(foreseen(f"sketch_{tokens}_causal_{was}", after), after)) < 0.04


@pytest.mark.parametrize(
    ("launch", "was", "now"),
    [
        ("v2_16384", "natural", "heaviest"), ("v2_16384", "heaviest", "natural"), ("v2_16384", "natural", "zigzag"),
        ("v2_16384", "heaviest", "zigzag"), ("v2_4096", "natural", "heaviest"), ("v2_4096", "heaviest", "natural"),
        ("v2_4096", "natural", "zigzag"), ("v2_4096", "heaviest", "zigzag"), ("v3_16384", "natural", "heaviest"),
        ("v3_16384", "heaviest", "natural"),
    ],
)  # fmt: skip
def test_other_orders_are_foreseen_within_the_bar(launch: str, was: str, now: str) -> None:
    """One program an SM (v2 at 16k) and two."""
    after = f"{launch}_causal_{now}"
    found = foreseen(f"{launch}_causal_{was}", after)
    assert abs(error(found, after)) < 0.04
    assert found.low_ns <= found.span_ns <= found.high_ns
    assert "44 predictions of another order" in found.because


@pytest.mark.parametrize("grid", ["v2_16384_causal_natural_x132", "v2_4096_causal_natural_x132", "v2_4096_causal_natural_x264"])
def test_persistent_grids_are_foreseen_within_the_bar(grid: str) -> None:
    found = foreseen(grid.rpartition("_")[0], grid)
    assert abs(error(found, grid)) < 0.10
    assert "113 predictions of a persistent grid" in found.because


def test_two_programs_share_an_sm_alike_in_every_order() -> None:
    """What sharing costs is the kernel's and the GPU's: launches in three orders and a grid agree about it to one step."""
    launches = [recorded(name) for name in NAMES if name.startswith("v2_4096") and not name.endswith("x132")]
    found = [durations_in(launch.table, launch.work).best.pace.sharing for launch in launches]
    assert len(found) == 4
    assert max(found) - min(found) < 0.11
    assert min(found) > 0.45
    assert max(found) < 0.65


def test_the_gap_between_two_programs_is_found_in_the_stamps() -> None:
    found = foreseen("v2_16384_causal_natural", "v2_16384_causal_heaviest")
    gap_ns = durations_in(recorded("v2_16384_causal_natural").table, recorded("v2_16384_causal_natural").work).best.pace.gap_ns
    assert 5 * TICK_NS <= gap_ns <= 20 * TICK_NS
    assert f"2,048 stamped durations over 132 SMs with room for 1 each, {gap_ns:.0f} ns between two" in found.because


# Against worlds that follow the model's own rules, so that what was put in must come out


def world(work: Work, machine: Machine, pace: Pace, scatter: float = 0.0) -> Timetable:
    """Stamps of a GPU on which a piece takes 700 ns and 90 ns a tile alone, and sharing costs what pace says."""
    rng = np.random.default_rng(5)
    order, counts = work.order, work.tile_counts
    place = np.maximum(order[:, 1], 0)
    alone_ns = (700 + 90 * counts[order[:, 0], place]) * (1 + scatter * rng.standard_normal(len(order)))
    placed = replay(alone_ns, work.programs, machine, pace)
    back = np.lexsort((order[:, 1], order[:, 0]))
    return Timetable(
        "measured", machine.sm_count, 1, placed.sm[back], placed.program[back], placed.start_ns[back], placed.end_ns[back],
        order[back, 0], order[back, 1], counts[order[:, 0], place][back],
    )  # fmt: skip


def reordered(work: Work, **changes: object) -> Work:
    return Work(work.problem, work.version, work.tiles.model_copy(update=changes), work.precision)


@pytest.mark.parametrize("order", ["natural", "heaviest", "zigzag"])
@pytest.mark.parametrize("programs", [None, 7, 40])
def test_orders_and_persistent_grids_of_a_known_world(order: str, programs: int | None) -> None:
    machine, pace = Machine(10), Pace(gap_ns=50.0)
    was = Work(CAUSAL, "v2", TILES)
    now = reordered(was, block_order=order, num_programs=programs)
    found = predict(world(was, machine, pace), was, now, machine, machine)
    truth = world(now, machine, pace)
    for name in ("sm", "program", "head", "block", "tiles"):
        assert (getattr(found.table, name) == getattr(truth, name)).all(), name
    np.testing.assert_allclose(found.table.start_ns, truth.start_ns, atol=1e-6)
    assert found.own_error_share == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("sharing", [0.0, 0.5, 1.0])
def test_what_sharing_an_sm_costs_is_found_and_undone(sharing: float) -> None:
    """From stamps of programs side by side: the other order on the same GPU, and one program an SM."""
    machine, pace = Machine(6, 2), Pace(40.0, sharing)
    was = Work(CAUSAL, "v2", reordered(Work(CAUSAL, "v2", TILES), block_order="natural").tiles)
    measured = world(was, machine, pace, scatter=0.003)
    assert residency(measured).max() == 2
    heaviest = reordered(was, block_order="heaviest")
    there = predict(measured, was, heaviest, machine, machine)
    assert f"k^−{sharing:.1f} of one's pace alone" in there.because
    assert there.low_ns <= there.span_ns <= there.high_ns
    assert there.span_ns == pytest.approx(world(heaviest, machine, pace).span_ns, rel=0.01)
    alone = predict(measured, was, was, machine, Machine(6))
    assert alone.span_ns == pytest.approx(world(was, Machine(6), pace).span_ns, rel=0.01)


def test_what_stamps_do_not_say_of_sharing_widens_the_range() -> None:
    """Where all pieces are alike and all SMs hold two from beginning to end, any cost of sharing explains the stamps."""
    problem = AttentionProblem(num_heads=4, num_kv_heads=4, seq_len_q=512, seq_len_kv=512, head_dim=64)
    was = Work(problem, "v2", TILES)
    machine, pace = Machine(4, 2), Pace(0.0, 0.7)
    measured = world(was, machine, pace)
    assert [one.pace.sharing for one in durations_in(measured, was).others][-1] == 1.0
    alone = predict(measured, was, was, machine, Machine(4))
    assert alone.low_ns == pytest.approx(measured.span_ns), "an SM did no more with two than with one"
    assert alone.high_ns == pytest.approx(2 * measured.span_ns), "two did not notice each other"
    assert alone.low_ns < world(was, Machine(4), pace).span_ns < alone.high_ns


def test_other_tile_sizes_have_the_same_work_in_all() -> None:
    """Without a mask the tiles cover all of S, whatever their size: time a tile goes with its area, the rest with BLOCK_M."""
    problem = AttentionProblem(num_heads=4, num_kv_heads=4, seq_len_q=1024, seq_len_kv=2048, head_dim=64)
    was = Work(problem, "v2", TILES)
    measured = world(was, Machine(5), Pace())
    for block_m, block_n in ((128, 64), (32, 128), (64, 256)):
        found = predict(measured, was, reordered(was, block_m=block_m, block_n=block_n), Machine(5), Machine(5))
        assert found.table.sm.size == 4 * 1024 // block_m
        assert found.table.duration_ns.sum() == pytest.approx(measured.duration_ns.sum())
        assert "scaled with the tiles' area" in found.because


def test_a_line_through_causal_blocks_is_found_and_scaled() -> None:
    was = Work(CAUSAL, "v2", TILES)
    found = predict(world(was, Machine(5), Pace()), was, reordered(was, block_m=128), Machine(5), Machine(5))
    counts = Work(CAUSAL, "v2", reordered(was, block_m=128).tiles).tile_counts.ravel()
    np.testing.assert_allclose(found.table.duration_ns, 2 * 700 + 2 * 90 * counts)


def test_another_gpu_is_taken_to_have_such_sms() -> None:
    was = Work(CAUSAL, "v2", TILES)
    measured = world(was, Machine(10), Pace())
    spans = [predict(measured, was, was, Machine(10), Machine(count)).span_ns for count in (1, 5, 10, 20)]
    assert spans[0] == pytest.approx(measured.duration_ns.sum())
    assert spans == sorted(spans, reverse=True)
    because = predict(measured, was, was, Machine(10), Machine(5)).because
    assert "as fast as the measured ones" in because
    assert because.endswith("Such a prediction has not been held against a measurement.")
    assert SM_COUNTS["H200"] == SM_COUNTS["H100 80GB HBM3"] == SMS
    assert SM_COUNTS["A100 80GB PCIe"] == 108


# Without a GPU


def test_tile_counts_alone() -> None:
    """Two heads of four causal blocks on two SMs: 4 + 4, 3 + 3, 2 + 2 and 1 + 1 tiles, heaviest first."""
    problem = AttentionProblem(num_heads=2, num_kv_heads=2, seq_len_q=256, seq_len_kv=256, head_dim=64, causal=True)
    table = from_tile_counts(Work(problem, "v2", TILES), Machine(2), ns_per_tile=10.0)
    assert table.provenance == "modelled"
    assert table.tick_ns == 0
    assert (table.head * 4 + table.block).tolist() == list(range(8))
    assert table.tiles.tolist() == [1, 2, 3, 4] * 2
    assert table.duration_ns.tolist() == [10, 20, 30, 40] * 2
    assert table.sm.tolist() == [0] * 4 + [1] * 4
    assert table.start_ns.tolist() == [90, 70, 40, 0] * 2


def test_versions_without_a_gpu() -> None:
    key = TileConfig(block_m=64, block_n=32, num_warps=8, num_stages=1, loop_order="key")
    v1 = from_tile_counts(Work(records.LONG, "v1", key), H200)
    assert facts_of(v1, 1).sms_used == 16
    assert set(v1.block.tolist()) == {WHOLE_HEAD}
    assert v1.tiles[0] == (16384 // 64) * (16384 // 32)
    assert from_tile_counts(Work(records.LONG, "v1", TILES), H200).tiles.min() == 256, "v1 computes what nobody sees"
    v2 = from_tile_counts(Work(records.LONG, "v2", TILES), H200)
    assert facts_of(v2, 1).sms_used == SMS
    assert v2.tiles.min() == 1
    two = from_tile_counts(Work(records.LONG, "v2", TILES), Machine(SMS, 2))
    assert two.span_ns == pytest.approx(v2.span_ns, rel=0.02), "an SM does no more with two programs than with one"


def test_order_of_fp8_is_the_launchs_own() -> None:
    work = Work(records.LONG, "v3", TILES, Precision(fp8=True))
    assert (work.order == block_order.order_of(records.LONG, TILES, "v3", fp8=True)).all()


# What is not possible


@pytest.mark.parametrize(
    ("version", "tiles", "precision", "says"),
    [
        ("native", TILES, Precision(), "native"),
        ("v1", TILES.model_copy(update={"block_order": "zigzag"}), Precision(), "block_order = zigzag is not possible with v1"),
        ("v1", TILES.model_copy(update={"num_programs": 8}), Precision(), "num_programs = 8 is not possible with v1"),
        ("v2", TILES, Precision(fp8=True), "FP8 is not possible with v2"),
        ("v4", TILES, Precision(), "kernel = v4 is not known"),
    ],
)
def test_work_that_there_is_not(version: str, tiles: TileConfig, precision: Precision, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Work(CAUSAL, version, tiles, precision)


def test_more_pieces_than_a_schedule_holds() -> None:
    endless = AttentionProblem(seq_len_q=1 << 20, seq_len_kv=1 << 20, num_heads=16)
    with pytest.raises(ValueError, match=r"a schedule of 262,144 pieces of work is not possible: it can have 65,536"):
        Work(endless, "v2", TILES)


def test_predictions_from_other_work_are_refused() -> None:
    was = Work(CAUSAL, "v2", TILES)
    measured = world(was, Machine(4), Pace())
    with pytest.raises(ValueError, match="another problem, version or precision"):
        predict(measured, was, Work(CAUSAL, "v3", TILES), Machine(4), Machine(4))
    with pytest.raises(ValueError, match="a timetable of 128 entries is not possible here: this work has 64"):
        predict(measured, reordered(was, block_m=128), was, Machine(4), Machine(4))
    v1 = Work(CAUSAL, "v1", TILES)
    with pytest.raises(ValueError, match="loop_order = key is not possible here: query was measured"):
        predict(world(v1, Machine(4), Pace()), v1, reordered(v1, loop_order="key"), Machine(4), Machine(4))
