"""The facts of a timetable against counting every nanosecond, against H200 stamps, and in words."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.block_order import WHOLE_HEAD
from kernels.problem import AttentionProblem, TileConfig
from profiling import schedule_facts
from profiling.schedule_facts import by_block, by_head, facts_of, overhead_share, residency, sentences, time_of, utilisation
from profiling.timetable import Timetable
from tests import records_for_tests as records
from tests.recorded_stamps import NAMES, SMS, recorded

KEY_OUTER = TileConfig(block_m=64, block_n=32, num_warps=8, num_stages=1, loop_order="key")


def table_of(sm, program, start, end, sm_count: int = 3, head=None, block=None, tiles=None) -> Timetable:
    count = len(sm)
    numbers = {"head": head, "block": block, "tiles": tiles}
    rest = [np.zeros(count, np.int32) if found is None else np.asarray(found) for found in numbers.values()]
    start, end = (np.asarray(times, np.float64) for times in (start, end))
    return Timetable("measured", sm_count, 1, np.asarray(sm), np.asarray(program), start, end, *rest)


@st.composite
def tables(draw: st.DrawFn) -> Timetable:
    """Entries on up to four SMs of five, whole nanoseconds, some of no length, programs with one entry or several."""
    count = draw(st.integers(1, 14))
    whole = st.integers(0, 30)
    start = np.array(draw(st.lists(whole, min_size=count, max_size=count)))
    length = np.array(draw(st.lists(st.integers(0, 12), min_size=count, max_size=count)))
    sm = np.array(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)))
    # A program's entries are on one SM.
    program = 4 * np.array(draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))) + sm
    start -= start.min()
    return table_of(sm, program, start, start + length, 5, head=sm % 2, block=np.arange(count) % 3, tiles=length)


def residents_by_nanosecond(table: Timetable) -> np.ndarray:
    """(sm_count, ns): how many programs each SM holds in each nanosecond, counted one by one."""
    found = np.zeros((table.sm_count, int(table.end_ns.max()) + 1), int)
    for sm, program in {(int(sm), int(program)) for sm, program in zip(table.sm, table.program, strict=True)}:
        its = (table.sm == sm) & (table.program == program)
        found[sm, int(table.start_ns[its].min()) : int(table.end_ns[its].max())] += 1
    return found


@settings(max_examples=80, deadline=None)
@given(table=tables())
def test_facts_are_those_of_counting_every_nanosecond(table: Timetable) -> None:
    held = residents_by_nanosecond(table)[:, : int(table.span_ns)]
    facts = facts_of(table, programs_per_sm=2)
    assert (residency(table) == np.maximum(held.max(axis=1, initial=0), np.isin(np.arange(5), table.sm))).all()
    idle = facts.idle
    if table.span_ns:
        busy = (held > 0).sum(axis=1)
        assert facts.busy_share == pytest.approx((held > 0).mean())
        assert idle.unused + idle.start + idle.between + idle.tail == pytest.approx(1 - facts.busy_share)
        if busy.any():
            assert facts.imbalance == pytest.approx(busy.max() / busy.mean())
        last = [table.end_ns[table.sm == sm].max() for sm in np.unique(table.sm)]
        assert facts.tail_ns == facts.span_ns - min(last)
    assert facts.programs == len(set(table.program.tolist()))
    assert facts.sms_used == len(set(table.sm.tolist()))
    assert sentences(facts)


@settings(max_examples=60, deadline=None)
@given(table=tables(), bins=st.integers(1, 9))
def test_utilisation_holds_what_counting_gives(table: Timetable, bins: int) -> None:
    found = utilisation(table, bins)
    if not table.span_ns:
        return
    held = residents_by_nanosecond(table)[:, : int(table.span_ns)]
    moments = np.arange(held.shape[1])
    for first, last, busy_sms, programs in zip(
        found.edges_ns, found.edges_ns[1:], found.busy_sms, found.programs, strict=False
    ):
        inside = np.clip(np.minimum(moments + 1, last) - np.maximum(moments, first), 0, 1)
        assert busy_sms * (last - first) == pytest.approx(((held > 0) * inside).sum(), abs=1e-6)
        assert programs * (last - first) == pytest.approx((held * inside).sum(), abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(table=tables())
def test_groups_hold_each_entry_once(table: Timetable) -> None:
    for groups, of in ((by_head(table), table.head), (by_block(table), table.block)):
        assert groups.entries.sum() == table.sm.size
        for place, key in enumerate(groups.keys):
            its = of == key
            assert groups.entries[place] == its.sum()
            assert groups.total_ns[place] == table.duration_ns[its].sum()
            assert groups.longest_ns[place] == table.duration_ns[its].max()
            assert (groups.first_start_ns[place], groups.last_end_ns[place]) == (
                table.start_ns[its].min(), table.end_ns[its].max(),
            )  # fmt: skip
            assert groups.tiles[place] == table.tiles[its].sum()
            assert np.isnan(groups.ns_per_tile[place]) == (groups.tiles[place] == 0)


@pytest.mark.parametrize("name", NAMES)
def test_on_an_h200_no_sm_held_more_than_fit_and_idle_time_adds_up(name: str) -> None:
    launch = recorded(name)
    table = launch.table
    facts = facts_of(table, launch.machine.programs_per_sm)
    assert facts.most_at_once <= launch.machine.programs_per_sm
    assert facts.sms_used == (16 if name.startswith("v1") else SMS)
    assert facts.waves == launch.work.programs / (SMS * launch.machine.programs_per_sm)
    assert facts.balanced_ns <= facts.span_ns
    if launch.machine.programs_per_sm == 1 and launch.work.tiles.num_programs is None:
        busy = table.duration_ns.sum()
        assert facts.busy_share * SMS * table.span_ns == pytest.approx(busy)
        idle = facts.idle
        assert (idle.unused + idle.start + idle.between + idle.tail) * SMS * table.span_ns == pytest.approx(
            SMS * table.span_ns - busy
        )


def test_the_tail_is_what_is_told_of_a_natural_order() -> None:
    facts = facts_of(recorded("sketch_16384_causal_natural").table, 1)
    assert sentences(facts)[0] == ("The first SM was out of work 259 µs before the end: the tail took 6.87 % of the SMs' time.")
    assert "Perfect balance would have taken 2.06 ms; this took 2.22 ms, 7.56 % more." in sentences(facts)


def test_an_even_schedule_is_told_so() -> None:
    first, *_ = sentences(facts_of(recorded("sketch_16384_causal_heaviest").table, 1))
    assert first == "All 132 SMs worked, 99.3 % of the time."


def test_key_outer_leaves_most_sms_without_work() -> None:
    schedule = records.schedule_of(records.LONG, KEY_OUTER)
    facts = facts_of(Timetable.of(schedule, SMS), 1)
    assert (facts.sms_used, facts.programs, facts.whole_heads) == (16, 16, True)
    assert sentences(facts)[0] == "16 of 132 SMs worked: there were 16 programs, one a head, with all its query blocks."
    assert set(by_block(Timetable.of(schedule, SMS)).keys.tolist()) == {WHOLE_HEAD}


def test_few_programs_and_a_persistent_grid_in_words() -> None:
    small = AttentionProblem(num_heads=1, num_kv_heads=1, seq_len_q=128, seq_len_kv=128)
    alone = facts_of(Timetable.of(records.schedule_of(small), SMS), 1)
    assert sentences(alone)[0] == "1 of 132 SMs worked: there was 1 program, fewer than SMs."
    persistent = records.schedule_of(records.LONG, records.TILES.model_copy(update={"num_programs": SMS}))
    facts = facts_of(Timetable.of(persistent, SMS), 1)
    assert (facts.programs, facts.entries, facts.waves) == (132, 2048, 1.0)
    assert facts.most_at_once == 1
    assert facts.balanced_ns < facts.longest_ns, "an entry can go to another program"


def test_other_words_for_time() -> None:
    facts = facts_of(recorded("sketch_16384_causal_natural").table, 1)
    assert "before the end: the tail" in sentences(facts, lambda ns: f"{ns:.0f} tiles")[0]
    assert "259104 tiles" in sentences(facts, lambda ns: f"{ns:.0f} tiles")[0]


@pytest.mark.parametrize(
    ("ns", "text"), [(32, "32.0 ns"), (999, "999 ns"), (1000, "1.00 µs"), (131_000, "131 µs"), (2_120_000, "2.12 ms")]
)
def test_times_in_words(ns: float, text: str) -> None:
    assert time_of(ns) == text


def test_programs_that_only_touch_are_not_together() -> None:
    table = table_of([0, 0, 0], [0, 1, 2], [0, 10, 15], [10, 20, 30])
    assert residency(table).tolist() == [2, 0, 0]
    assert facts_of(dataclasses.replace(table, start_ns=np.array([0.0, 10, 20])), 1).most_at_once == 1


def test_what_stamping_costs() -> None:
    assert overhead_share(records.schedule_of(overhead_share=0.25)) == pytest.approx(0.25, abs=0.005)
    assert schedule_facts.is_distorted(records.schedule_of(overhead_share=0.12))
    assert not schedule_facts.is_distorted(records.schedule_of(overhead_share=0.08))
