"""List scheduling: who runs where and when if a GPU hands out given programs in turn. Pure: numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

import numpy as np


@dataclass(frozen=True)
class Machine:
    """SMs, and programs that fit on one of them at once."""

    sm_count: int
    programs_per_sm: int = 1


@dataclass(frozen=True)
class Pace:
    """How an SM goes through its programs.

    gap_ns: from the end of a piece of work to the start of the next in its place. sharing: with k programs on an SM each goes
    at k^−sharing of its pace alone: 0, they do not notice each other; 1, the SM does no more with many than with one.
    """

    gap_ns: float = 0.0
    sharing: float = 1.0

    def rates(self, residents: int) -> list[float]:
        """The pace of each of 0, 1, … so many programs on an SM; 1 for one alone."""
        return [0.0, *(float(count) ** -self.sharing for count in range(1, residents + 1))]


@dataclass(frozen=True)
class Placed:
    """Where and when each entry ran: (P,) arrays in the order in which the entries were given, the first start 0."""

    sm: np.ndarray
    program: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray


def replay(alone_ns: Sequence[float], programs: int, machine: Machine, pace: Pace) -> Placed:
    """Entries in launch order, each with what it takes alone on an SM; program p of G has entries p, p + G, p + 2 G, …

    SMs are filled evenly, one program each before any gets a second; then whoever ends makes room for the next program.
    """
    durations = [float(ns) for ns in alone_ns]
    on_their_own = machine.programs_per_sm == 1 or pace.sharing == 0
    sm, start_ns, end_ns = (_by_slots if on_their_own else _by_shared_sms)(durations, programs, machine, pace)
    return Placed(np.array(sm), np.arange(len(durations)) % programs, np.array(start_ns), np.array(end_ns))


_Found = tuple[list[int], list[float], list[float]]


def replay_dealt(alone_ns: Sequence[float], mine: Sequence[Sequence[int]], pace: Pace) -> Placed:
    """Entries of which each program has its own, known beforehand, and an SM to itself: mine (programs) in their order."""
    sm, start_ns, end_ns = _nothing(len(alone_ns))
    for program, entries in enumerate(mine):
        now_ns = 0.0
        for entry in entries:
            sm[entry], start_ns[entry], end_ns[entry] = program, now_ns, now_ns + float(alone_ns[entry])
            now_ns = end_ns[entry] + pace.gap_ns
    return Placed(np.array(sm), np.array(sm), np.array(start_ns), np.array(end_ns))


def _by_slots(durations: list[float], programs: int, machine: Machine, pace: Pace) -> _Found:
    """Where programs do not slow each other: each takes the slot that is free first."""
    sm, start_ns, end_ns = _nothing(len(durations))
    slots = [(0.0, slot) for slot in range(min(programs, machine.sm_count * machine.programs_per_sm))]
    for program in range(programs):
        now_ns, slot = slots[0]
        heappop(slots)
        for entry in range(program, len(durations), programs):
            sm[entry], start_ns[entry] = slot % machine.sm_count, now_ns
            end_ns[entry] = now_ns + durations[entry]
            now_ns = end_ns[entry] + pace.gap_ns
        heappush(slots, (now_ns, slot))
    return sm, start_ns, end_ns


_ARRIVAL = -1


def _by_shared_sms(durations: list[float], programs: int, machine: Machine, pace: Pace) -> _Found:
    """Where k programs on an SM go at rates[k]. An SM's `done` is how far one has come that was there from the beginning.

    A resident ends when done reaches its goal. An event is (when, its number, SM, turn): an arrival, or the end that was
    foreseen in this turn of the SM, and holds if nothing has changed there since.
    """
    sm, start_ns, end_ns = _nothing(len(durations))
    sms, gap_ns, rates = machine.sm_count, pace.gap_ns, pace.rates(machine.programs_per_sm)
    at_ns, done_ns, turns = [0.0] * sms, [0.0] * sms, [0] * sms
    goals: list[list[tuple[float, int]]] = [[] for _ in range(sms)]
    events = [(0.0, number, number % sms, _ARRIVAL) for number in range(min(programs, sms * machine.programs_per_sm))]
    number, arrived = count(len(events)), 0
    while events:
        now_ns, _, here, turn = heappop(events)
        if turn not in (_ARRIVAL, turns[here]) or (turn == _ARRIVAL and arrived == programs):
            continue
        residents = goals[here]
        done_ns[here] += (now_ns - at_ns[here]) * rates[len(residents)]
        at_ns[here] = now_ns
        begins, wait_ns = len(durations), gap_ns
        if turn == _ARRIVAL:
            begins, wait_ns, arrived = arrived, 0.0, arrived + 1
        else:
            _, entry = heappop(residents)
            end_ns[entry], begins = now_ns, entry + programs
            if begins >= len(durations) and arrived < programs:
                heappush(events, (now_ns + gap_ns, next(number), here, _ARRIVAL))
        if begins < len(durations):
            sm[begins], start_ns[begins] = here, now_ns + wait_ns
            heappush(residents, (done_ns[here] + wait_ns + durations[begins], begins))
        turns[here] += 1
        if residents:
            left_ns = max(0.0, residents[0][0] - done_ns[here])
            heappush(events, (now_ns + left_ns / rates[len(residents)], next(number), here, turns[here]))
    return sm, start_ns, end_ns


def _nothing(entries: int) -> _Found:
    return [0] * entries, [0.0] * entries, [0.0] * entries
