"""Timetable: which piece of work ran on which SM from when to when, as stamped by a kernel or as modelled. Pure: numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from profiling.schedule_record import Schedule


@dataclass(frozen=True)
class Timetable:
    """P entries, sorted by head, then block; see profiling.schedule_record.Schedule, which is one that was measured.

    sm, program, head, block, tiles (P,) int32; start_ns, end_ns (P,) float64, the earliest start is 0. sm_count: the device's,
    used or not. tick_ns: the step of the clock, 0 where it is modelled.
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

    @staticmethod
    def of(schedule: Schedule, sm_count: int) -> Timetable:
        """What a kernel stamped on a device of sm_count SMs (more, where an SM of a higher number was seen)."""
        sm, program, head, block, tiles, start_ns, end_ns = (
            getattr(schedule, name).numpy() for name in ("sm", "program", "head", "block", "tiles", "start_ns", "end_ns")
        )
        return Timetable(
            "measured", max(sm_count, int(sm.max()) + 1), schedule.tick_ns, sm, program,
            start_ns.astype(np.float64), end_ns.astype(np.float64), head, block, tiles,
        )  # fmt: skip

    @property
    def span_ns(self) -> float:
        """From the first start to the last end."""
        return float(self.end_ns.max() - self.start_ns.min())

    @property
    def duration_ns(self) -> np.ndarray:
        """(P,) how long each entry took."""
        return self.end_ns - self.start_ns
