"""Timetable: which piece of work ran on which SM from when to when, as stamped by a kernel or as modelled. Pure: numpy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from profiling.schedule_record import MOST_SMS, Schedule


@dataclass(frozen=True)
class Timetable:
    """P entries, sorted by head, then block; see profiling.schedule_record.Schedule, which is one that was measured.

    sm, program, head, block, tiles (P,) int32; start_ns, end_ns (P,) float64, the earliest start is 0. sm_count: the device's,
    used or not. tick_ns: the step of the clock, 0 where it is modelled. group_start_ns, group_end_ns (P, G) float64: a
    program's warpgroups, the producer last, where they stamped for themselves.
    """

    provenance: Literal["measured", "modelled"]
    sm_count: int
    tick_ns: int
    sm: np.ndarray
    program: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    head: np.ndarray
    block: np.ndarray
    tiles: np.ndarray
    group_start_ns: np.ndarray | None = None
    group_end_ns: np.ndarray | None = None

    @staticmethod
    def of(schedule: Schedule, sm_count: int) -> Timetable:
        """What was stamped on a device of sm_count SMs, MOST_SMS at most; more where an SM of a higher number was seen.

        Where warpgroups stamp for themselves, some of a program's already begin an entry while others are at the one before:
        here it counts from that one's end, so that a program is at one entry at a time.
        """
        sm, program, head, block, tiles, start_ns, end_ns = (
            getattr(schedule, name).numpy() for name in ("sm", "program", "head", "block", "tiles", "start_ns", "end_ns")
        )
        groups = {}
        if schedule.group_end_ns is not None:
            start_ns = _one_at_a_time(sm, program, start_ns, end_ns)
            groups = {name: getattr(schedule, name).numpy().astype(np.float64) for name in ("group_start_ns", "group_end_ns")}
        return Timetable(
            "measured", max(min(sm_count, MOST_SMS), int(sm.max()) + 1), schedule.tick_ns, sm, program,
            start_ns.astype(np.float64), end_ns.astype(np.float64), head, block, tiles, **groups,
        )  # fmt: skip

    @property
    def span_ns(self) -> float:
        """From the first start to the last end."""
        return float(self.end_ns.max() - self.start_ns.min())

    @property
    def duration_ns(self) -> np.ndarray:
        """(P,) how long each entry took."""
        return self.end_ns - self.start_ns

    @cached_property
    def stays(self) -> Stays:
        """The programs; one that a file has on two SMs counts on both."""
        keys, of = np.unique(self.sm.astype(np.int64) << 32 | self.program, return_inverse=True)
        start_ns, end_ns = np.full(keys.size, np.inf), np.full(keys.size, -np.inf)
        np.minimum.at(start_ns, of, self.start_ns)
        np.maximum.at(end_ns, of, self.end_ns)
        return Stays(keys >> 32, keys & 0xFFFFFFFF, start_ns, end_ns)


def _one_at_a_time(sm: np.ndarray, program: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """(P,) starts, none before the end of the same program's entry before; at most the entry's own end."""
    order = np.lexsort((end_ns, start_ns, program, sm))
    same = (np.diff(program[order]) == 0) & (np.diff(sm[order]) == 0)
    starts = start_ns.copy()
    starts[order[1:]] = np.where(same, np.maximum(start_ns[order[1:]], end_ns[order[:-1]]), start_ns[order[1:]])
    return np.minimum(starts, end_ns)


@dataclass(frozen=True)
class Stays:
    """When each program was on its SM: (n,) arrays, sorted by SM. A persistent one stays from its first entry to its last."""

    sm: np.ndarray
    program: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray

    @cached_property
    def levels(self) -> Levels:
        """How many programs each SM held, from moment to moment."""
        sm = np.concatenate([self.sm, self.sm])
        at_ns = np.concatenate([self.end_ns, self.start_ns])
        step = np.repeat([-1, 1], self.sm.size)
        # Where one ends at the very tick at which the next starts, they were not there together.
        order = np.lexsort((step, at_ns, sm))
        return Levels(sm[order], at_ns[order], np.cumsum(step[order]))


@dataclass(frozen=True)
class Levels:
    """SM sm held `programs` programs from at_ns to the next moment of the same SM; (m,) arrays, by SM, then time."""

    sm: np.ndarray
    at_ns: np.ndarray
    programs: np.ndarray

    @property
    def for_ns(self) -> np.ndarray:
        """(m,) how long each held; 0 after an SM's last moment."""
        same = self.sm[1:] == self.sm[:-1]
        return np.append(np.where(same, np.diff(self.at_ns), 0.0), 0.0)
