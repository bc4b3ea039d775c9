"""Schedules of a kernel that deals its blocks out itself: as its warpgroups stamped, as modelled, as an H200 ran one."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from app import schedule_choices, schedule_shown
from app.lanes.payload import pack
from app.schedule_shown import Shown
from kernels import hopper
from kernels.block_order import num_query_blocks, order_of
from kernels.problem import AttentionProblem, TileConfig
from kernels.registry import stamping_lanes
from kernels.stamps import FIRST_LANE, StampBuffers, lane_fields
from profiling import snapshot, what_if
from profiling.launched_work import Work
from profiling.list_scheduling import Machine
from profiling.record_types import Array
from profiling.schedule_facts import facts_of, warpgroups_of
from profiling.schedule_record import Schedule
from profiling.timetable import Timetable
from tests.conftest import ROOT
from tests.test_lanes_payload import unpacked

TILES = TileConfig(block_m=128, block_n=64, num_warps=8, num_stages=2)
PROBLEMS = (
    AttentionProblem(batch=2, num_heads=4, num_kv_heads=2, seq_len_q=1000, seq_len_kv=1000, causal=True),
    AttentionProblem(num_heads=3, num_kv_heads=3, seq_len_q=900, seq_len_kv=300, causal=True),
    AttentionProblem(num_heads=3, num_kv_heads=1, seq_len_q=500, seq_len_kv=700),
    # 128 key-value heads of 512 KiB, of which 64 are a section.
    AttentionProblem(num_heads=256, num_kv_heads=128, seq_len_q=256, seq_len_kv=1024, causal=True),
)


# As written down


def stamps_of(entries: list[list[int]], problem: AttentionProblem, tiles: TileConfig) -> StampBuffers:
    return StampBuffers(problem, tiles, torch.tensor(entries, dtype=torch.int64), stamping_lanes("v3-hopper", tiles))


def test_an_entry_lasts_from_its_first_consumer_to_its_last() -> None:
    problem = AttentionProblem(num_heads=1, num_kv_heads=1, seq_len_q=256, seq_len_kv=128)
    assert stamping_lanes("v3-hopper", TILES) == 3
    assert stamping_lanes("v2", TILES) == 1
    # SM, program, key tiles, then start and end of two consumers and the producer.
    buffers = stamps_of(
        [[7, 0, 2, 1000, 1900, 1100, 2000, 900, 1500], [7, 0, 2, 1910, 2900, 2010, 2800, 1510, 2500]], problem, TILES
    )
    assert buffers.stamps.shape[1] == lane_fields(3) == FIRST_LANE + 6
    found = buffers.read()
    assert found.start_ns.tolist() == [100, 1010]
    assert found.end_ns.tolist() == [1100, 2000]
    assert found.group_start_ns.tolist() == [[100, 200, 0], [1010, 1110, 610]]
    assert (found.sm.tolist(), found.block.tolist(), found.tiles.tolist()) == ([7, 7], [0, 1], [2, 2])


def schedule(**changes: object) -> Schedule:
    """Two blocks of one program; its second consumer is still at the first when its first one goes on."""
    fields = {
        "sm": [0, 0], "program": [0, 0], "start_ns": [100, 1010], "end_ns": [1100, 2000], "head": [0, 0], "block": [0, 1],
        "tiles": [2, 2], "group_start_ns": [[100, 200, 0], [1010, 1110, 610]],
        "group_end_ns": [[1000, 1100, 600], [2000, 1900, 1600]],
    } | changes  # fmt: skip
    arrays = {name: None if value is None else Array.of(value, "<i4") for name, value in fields.items()}
    return Schedule(tick_ns=1, plain_ms=Array.of([1.0]), stamped_ms=Array.of([1.01]), programs_per_sm=1, **arrays)


def test_a_program_is_at_one_entry_at_a_time() -> None:
    table = Timetable.of(schedule(), 1)
    assert table.start_ns.tolist() == [100, 1100]
    assert facts_of(table, 1).balanced_ns == 2000 - 100
    without = Timetable.of(schedule(group_start_ns=None, group_end_ns=None), 1)
    assert without.start_ns.tolist() == [100, 1010]


def test_how_warpgroups_keep_step() -> None:
    found = warpgroups_of(schedule())
    assert (found.consumers, found.apart_ns, found.ahead_ns) == (2, 100.0, 450.0)
    assert warpgroups_of(schedule(group_start_ns=None, group_end_ns=None)) is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"group_end_ns": None}, "not possible without their ends"),
        ({"group_end_ns": [[1000, 1100], [2000, 1900]]}, "warpgroups' times of shapes"),
        ({"group_start_ns": [[100, 200, -1], [1010, 1110, 610]]}, "starts before the first stamp"),
        ({"group_start_ns": [[100, 1200, 0], [1010, 1110, 610]]}, "ends before it starts"),
        ({"start_ns": [150, 1010]}, "starts with the first of its consumers"),
        ({"group_start_ns": [[100], [1010]], "group_end_ns": [[1100], [2000]]}, "1 warpgroups of 2 entries"),
    ],
)
def test_warpgroups_that_cannot_be_are_refused(changes, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        schedule(**changes)


# As modelled


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.title)
def test_the_model_deals_what_the_kernel_deals(problem: AttentionProblem) -> None:
    order = order_of(problem, TILES, "v3-hopper")
    queue = hopper.queue_of(problem, TILES)
    assert order.tolist() == torch.stack([queue[:, 0], queue[:, 2] // TILES.block_m], dim=1).tolist()
    work = Work(problem, "v3-hopper", TILES)
    assert work.tile_counts[order[:, 0], order[:, 1]].tolist() == queue[:, 3].tolist()
    by_kernel = hopper.work_of(problem, TILES, 10, torch.device("cpu"))
    dealt = [[tuple(order[entry]) for entry in entries] for entries in work.dealt(10)]
    found = [
        [(int(row[0]), int(row[2]) // TILES.block_m) for row in program[1 : 1 + int(program[0, 0])]] for program in by_kernel
    ]
    assert dealt == found


def test_a_dealt_timetable_is_a_program_an_sm() -> None:
    problem = PROBLEMS[0]
    table = what_if.from_tile_counts(Work(problem, "v3-hopper", TILES), Machine(10), 100.0)
    assert table.sm.size == 8 * num_query_blocks(problem, TILES)
    assert (table.sm == table.program).all()
    assert facts_of(table, 1).most_at_once == 1
    assert (table.duration_ns == 100.0 * table.tiles).all()
    few = what_if.from_tile_counts(
        Work(problem.model_copy(update={"batch": 1, "seq_len_q": 100}), "v3-hopper", TILES), Machine(10)
    )
    assert few.sm.size == np.unique(few.sm).size == 4


def test_neither_order_nor_grid_can_be_chosen() -> None:
    assert schedule_choices.why_no_orders("v3-hopper").startswith("v3-hopper deals its blocks out itself")
    for changes, name in (({"block_order": "natural"}, "block_order"), ({"num_programs": 132}, "num_programs")):
        with pytest.raises(ValueError, match=f"{name} = .* is not possible with v3-hopper"):
            Work(PROBLEMS[0], "v3-hopper", TILES.model_copy(update=changes))


# As an H200 ran one


@cache
def shown() -> Shown:
    recorded = snapshot.read((ROOT / "app" / "gallery" / "19-hopper-schedule.json").read_bytes())
    return Shown.of(recorded.measurements[0], "gallery")


def test_on_an_h200_every_sm_has_one_program_that_goes_from_block_to_block() -> None:
    facts, stamped = shown().facts, shown().measurement.schedule
    assert (facts.programs, facts.sms_used, facts.most_at_once) == (132, 132, 1)
    assert facts.busy_share > 0.99
    assert facts.over_balanced < 1.02
    # Its entries are the kernel's own dealing, in its order.
    work = schedule_choices.work_of(shown().request)
    order, table = work.order, shown().table
    for program, entries in enumerate(work.dealt(132)):
        mine = np.flatnonzero(table.program == program)
        ran = mine[np.argsort(table.start_ns[mine])]
        assert list(zip(table.head[ran], table.block[ran], strict=True)) == [tuple(order[entry]) for entry in entries]
    found = warpgroups_of(stamped)
    assert found.consumers == 2
    assert 0 < found.apart_ns < found.ahead_ns < 10_000


def test_on_an_h200_the_model_replays_what_ran() -> None:
    work = schedule_choices.work_of(shown().request)
    found = what_if.predict(shown().table, work, work, shown().machine, shown().machine)
    assert abs(found.own_error_share) < 0.005
    assert found.because.startswith("Its own dealing of 2,048 stamped durations")


def test_the_page_says_who_stamped_and_when_each_warpgroup_was_there() -> None:
    assert "every warpgroup wrote down its SM" in schedule_shown.caption(shown())
    row = schedule_shown.rows(shown(), 1)[0]
    assert list(row)[-3:] == ["warpgroup 0", "warpgroup 1", "producer"]
    assert "Warpgroups apart" in [name for name, *_ in schedule_shown.metrics(shown())]
    _, (arrays,) = unpacked(pack([("v3-hopper", shown().table)], shown().lane_facts(False)))
    assert arrays["groupStart"].size == 3 * arrays["sm"].size
    assert (arrays["groupEnd"].reshape(-1, 3)[:, :-1].max(axis=1) == arrays["end"]).all()
