"""From stamps to what each piece of work takes on an SM of its own. Pure: numpy.

Where an SM holds several programs at once, each is slower than it would be alone, and the stamps do not say by how much. But
pieces of as many tiles take as long alone. So of all ways in which sharing may cost, that one holds under which these agree
best: some of them shared their SM all the time, some, near the end, hardly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiling.launched_work import Work
from profiling.list_scheduling import Pace
from profiling.schedule_facts import residency
from profiling.timetable import Timetable

_SHARINGS = np.linspace(0.0, 1.0, 11)
# The square of a normal variable is below this 95 times in a hundred: the likelihood-ratio interval of one parameter.
_LIKELY = 3.84


@dataclass(frozen=True)
class Durations:
    """alone_ns (heads, blocks): each piece of work's time on an SM of its own, if programs there go at this pace.

    A piece takes about base_ns + ns_per_tile · tiles.
    """

    was: Work
    alone_ns: np.ndarray
    base_ns: float
    ns_per_tile: float
    pace: Pace

    @property
    def apart(self) -> np.ndarray:
        """(heads, blocks) alone_ns ÷ what the line over the tiles gives."""
        return self.alone_ns / np.maximum(self.base_ns + self.ns_per_tile * self.was.tile_counts, 1e-9)

    def of_work(self, now: Work) -> np.ndarray:
        """(heads, blocks) of other work, alone: as measured where its blocks are the same, else along the line, by area."""
        if self.has_blocks_of(now):
            return self.alone_ns
        was, tiles = self.was.tiles, now.tiles
        taller = tiles.block_m / was.block_m
        return self.base_ns * taller + self.ns_per_tile * taller * (tiles.block_n / was.block_n) * now.tile_counts

    def has_blocks_of(self, now: Work) -> bool:
        """Whether the pieces of work are the same, in whatever order."""
        return (now.tiles.block_m, now.tiles.block_n) == (self.was.tiles.block_m, self.was.tiles.block_n)


@dataclass(frozen=True)
class Found:
    """best: the durations that explain the stamps; others: the outermost of those that explain them hardly worse."""

    best: Durations
    others: tuple[Durations, ...]
    is_shared: bool


def durations_in(measured: Timetable, was: Work) -> Found:
    """What the stamps of `was` say; with at most one program an SM at a time simply how long each took."""
    is_shared, gap_ns = bool(residency(measured).max() > 1), _gap_ns(measured)
    every = [_durations(measured, was, Pace(gap_ns, float(sharing))) for sharing in (_SHARINGS if is_shared else (1.0,))]
    disagreements = [_disagreement(one) for one in every]
    # Pieces of a kind agree about their mean by themselves.
    free = max(1, measured.sm.size - np.unique(was.tile_counts).size)
    # Two stamps, each off by half a step at most in either direction.
    clock = measured.tick_ns**2 / 6 / max(measured.duration_ns.mean(), 1e-9) ** 2
    most = (min(disagreements) + clock) * (1 + _LIKELY / free)
    likely = [one for one, disagreement in zip(every, disagreements, strict=True) if disagreement <= most]
    return Found(likely[len(likely) // 2], tuple(likely[:: max(1, len(likely) - 1)]), is_shared)


def _disagreement(found: Durations) -> float:
    """The mean square by which alone_ns ÷ the mean of all pieces of as many tiles is off 1."""
    _, kind = np.unique(found.was.tile_counts, return_inverse=True)
    alone_ns, kind = found.alone_ns.ravel(), kind.ravel()
    means = np.bincount(kind, alone_ns) / np.bincount(kind)
    return float(np.mean((alone_ns / np.maximum(means, 1e-9)[kind] - 1) ** 2))


def _durations(measured: Timetable, was: Work, pace: Pace) -> Durations:
    counts = was.tile_counts
    alone_ns = _alone_ns(measured, pace).reshape(counts.shape)
    return Durations(was, alone_ns, *_line(counts.ravel(), alone_ns.ravel()), pace)


def _alone_ns(measured: Timetable, pace: Pace) -> np.ndarray:
    """(P,) what each entry would have taken alone: its time, at the rate of so many on its SM at each moment."""
    levels = measured.stays.levels
    rates = np.array(pace.rates(max(1, int(levels.programs.max()))))
    passed = np.concatenate([[0.0], np.cumsum(levels.for_ns * rates[np.maximum(levels.programs, 0)])])[:-1]
    # All SMs' moments on one axis, one SM after the other.
    width_ns = measured.end_ns.max() + 1.0
    axis = levels.sm * width_ns + levels.at_ns
    start, end = (np.interp(measured.sm * width_ns + at, axis, passed) for at in (measured.start_ns, measured.end_ns))
    return end - start


def _line(counts: np.ndarray, alone_ns: np.ndarray) -> tuple[float, float]:
    """base and time a tile, by least squares; no base where all have as many tiles, or where it would be less than nothing."""
    if np.ptp(counts) > 0:
        ns_per_tile, base_ns = np.polyfit(counts, alone_ns, 1)
        if base_ns >= 0 and ns_per_tile > 0:
            return float(base_ns), float(ns_per_tile)
    return 0.0, float(alone_ns @ counts / max(counts @ counts, 1))


def _gap_ns(measured: Timetable) -> float:
    """The median time from an end to the next start in its place, 0 where no place was used twice.

    Where an SM has room for R, the i-th to start takes the room of the (i − R)-th to end.
    """
    room = residency(measured)
    gaps = []
    for sm in np.unique(measured.sm):
        here = measured.sm == sm
        starts, ends = np.sort(measured.start_ns[here]), np.sort(measured.end_ns[here])
        gaps.append(starts[room[sm] :] - ends[: max(0, ends.size - room[sm])])
    every = np.concatenate(gaps)
    return max(0.0, float(np.median(every))) if every.size else 0.0
