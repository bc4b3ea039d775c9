"""List scheduling against a simulation that goes from one end to the next with everybody's remaining work."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.list_scheduling import Machine, Pace, Placed, _by_shared_sms, _by_slots, replay


def step_by_step(work: list[float], programs: int, machine: Machine, pace: Pace) -> dict[int, tuple[int, float, float]]:
    """entry → (SM, start, end). Everybody who is there goes on until the next end or arrival, whichever comes first."""
    here: list[list[int]] = [[] for _ in range(machine.sm_count)]
    left: dict[int, float] = {}
    found: dict[int, list[float]] = {}
    arrivals = [
        (0.0, slot, slot % machine.sm_count) for slot in range(min(programs, machine.sm_count * machine.programs_per_sm))
    ]
    now, following = 0.0, 0
    while arrivals or left:
        ends = [
            (now + left[entry] * len(residents) ** pace.sharing, sm, entry)
            for sm, residents in enumerate(here)
            for entry in residents
        ]
        next_end, next_arrival = min(ends, default=None), min(arrivals, default=None)
        arrives = next_arrival is not None and (next_end is None or next_arrival[0] <= next_end[0])
        then = next_arrival[0] if arrives else next_end[0]
        for residents in here:
            for entry in residents:
                left[entry] -= (then - now) * len(residents) ** -pace.sharing
        now = then
        if arrives:
            arrivals.remove(next_arrival)
            if following < programs:
                sm, entry, wait = next_arrival[2], following, 0.0
                following += 1
            else:
                continue
        else:
            _, sm, done = next_end
            here[sm].remove(done)
            del left[done]
            found[done][2] = now
            entry, wait = done + programs, pace.gap_ns
            if entry >= len(work):
                if following < programs:
                    arrivals.append((now + pace.gap_ns, len(found), sm))
                continue
        found[entry] = [sm, now + wait, 0.0]
        left[entry] = work[entry] + wait
        here[sm].append(entry)
    return {entry: tuple(values) for entry, values in found.items()}


machines = st.builds(Machine, st.integers(1, 4), st.integers(1, 3))
paces = st.builds(Pace, st.sampled_from([0.0, 3.0]), st.sampled_from([0.0, 0.4, 1.0]))
# Distinct irrational parts, so that no two ends fall together and their order is not a matter of rounding.
works = st.integers(1, 25).flatmap(
    lambda count: st.lists(st.integers(1, 40), min_size=count, max_size=count).map(
        lambda values: [value + np.sqrt(place + 2) / 7 for place, value in enumerate(values)]
    )
)


@settings(max_examples=80, deadline=None)
@given(work=works, machine=machines, pace=paces, share=st.floats(0.1, 1.0))
def test_it_is_what_going_step_by_step_gives(work: list[float], machine: Machine, pace: Pace, share: float) -> None:
    programs = max(1, int(share * len(work)))
    placed, expected = replay(work, programs, machine, pace), step_by_step(work, programs, machine, pace)
    for entry in range(len(work)):
        sm, start, end = expected[entry]
        assert placed.sm[entry] == sm
        assert placed.start_ns[entry] == pytest.approx(start)
        assert placed.end_ns[entry] == pytest.approx(end)
        assert placed.program[entry] == entry % programs


@settings(max_examples=60, deadline=None)
@given(work=works, machine=machines, gap=st.sampled_from([0.0, 2.0]))
def test_where_programs_do_not_slow_each_other_both_ways_agree(work: list[float], machine: Machine, gap: float) -> None:
    pace = Pace(gap, 0.0)
    one, other = (np.array(way(work, len(work), machine, pace)) for way in (_by_slots, _by_shared_sms))
    # Which of an SM's places it is does not matter; which SM does.
    np.testing.assert_allclose(one, other)


@settings(max_examples=60, deadline=None)
@given(work=works, machine=machines)
def test_grahams_bounds(work: list[float], machine: Machine) -> None:
    """Between perfect balance and 2 − 1 / slots of it (Graham 1969, theorem 1)."""
    slots = machine.sm_count * machine.programs_per_sm
    span = replay(work, len(work), machine, Pace(sharing=0.0)).end_ns.max()
    least = max(sum(work) / slots, max(work))
    assert least - 1e-9 <= span <= (2 - 1 / slots) * least + 1e-9


@settings(max_examples=60, deadline=None)
@given(work=works, machine=machines, sharing=st.sampled_from([0.3, 1.0]))
def test_there_is_never_more_than_room_and_no_work_is_lost(work: list[float], machine: Machine, sharing: float) -> None:
    placed = replay(work, len(work), machine, Pace(sharing=sharing))
    rates = Pace(sharing=sharing).rates(machine.programs_per_sm)
    for sm in range(machine.sm_count):
        its = placed.sm == sm
        moments = np.unique(np.concatenate([placed.start_ns[its], placed.end_ns[its]]))
        done = 0.0
        for begin, end in pairwise(moments):
            middle = (begin + end) / 2
            held = int(((placed.start_ns < middle) & (placed.end_ns > middle) & its).sum())
            assert held <= machine.programs_per_sm
            done += (end - begin) * held * rates[held]
        assert done == pytest.approx(sum(ns for ns, here in zip(work, its, strict=True) if here))


def test_a_persistent_program_takes_every_nth_entry() -> None:
    placed: Placed = replay([5.0, 1.0, 1.0, 5.0, 1.0], 2, Machine(2), Pace(gap_ns=1.0))
    assert placed.program.tolist() == [0, 1, 0, 1, 0]
    assert placed.sm.tolist() == [0, 1, 0, 1, 0]
    assert placed.start_ns.tolist() == [0, 0, 6, 2, 8]
    assert placed.end_ns.tolist() == [5, 1, 7, 7, 9]


def test_sms_are_filled_evenly_and_two_share_one() -> None:
    placed = replay([4.0, 4.0, 4.0], 3, Machine(2, 2), Pace(sharing=1.0))
    assert placed.sm.tolist() == [0, 1, 0]
    assert placed.end_ns.tolist() == [8, 4, 8]


def test_nothing_takes_no_time() -> None:
    placed = replay([0.0] * 5, 5, Machine(2, 2), Pace(sharing=1.0))
    assert placed.end_ns.tolist() == [0.0] * 5
