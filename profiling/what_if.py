"""What another order, grid, GPU or block size would do: the GPU's own scheduling replayed on a CPU. Pure: numpy.

A GPU hands programs out in the order of their numbers: each SM has room for so many at once, and whoever ends makes room
for the next (list scheduling; Graham 1969). So a timetable follows from how long each piece of work takes and from where
it stands in the order. The durations come from a stamped launch, or, where there is no GPU, from how many tiles each has.
Everything that comes out is `modelled`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiling.gpu_models import GPU_MODELS
from profiling.launched_work import Work
from profiling.list_scheduling import Machine, Pace, replay, replay_dealt
from profiling.schedule_facts import time_of
from profiling.stamped_durations import Durations, Found, durations_in
from profiling.timetable import Timetable

SM_COUNTS: dict[str, int] = {model.name: model.sm_count for model in GPU_MODELS}
"""GPU models by name and their SMs."""
# Measured on an H200 with Triton 3.6, from natural and heaviest-first launches of v2, v3 and v3 FP8 at head_dim 128, 16 heads,
# 4k and 16k tokens, causal and not, one to three programs an SM. Launches of one and the same order differed by up to 9.1 %.
_OTHER_ORDERS = "On an H200, 44 predictions of another order were off by 1.2 % in the median, 5.0 % at most."
_OTHER_GRIDS = (
    "On an H200, 113 predictions of a persistent grid were off by 2.7 % in the median, 24 % at most: it is compiled anew."
)
_NOT_HELD = "Such a prediction has not been held against a measurement."
_MOST_REPLAYED_ENTRIES = 32_768
_MOST_REPLAYS = 8


@dataclass(frozen=True)
class Prediction:
    """A modelled timetable and how far to trust it.

    own_error_share: what the model is off by when it replays the measured run in its own order (span modelled ÷ measured
    − 1). low_ns, high_ns: least and most span when each piece of work takes what the same block of another head took, and,
    where programs shared an SM, when that cost as little or as much as the stamps allow; other causes of error are not in it.
    because: what the prediction stands on, what it takes to stay as it was, and what such predictions were off by.
    """

    table: Timetable
    own_error_share: float
    low_ns: float
    high_ns: float
    because: str

    @property
    def span_ns(self) -> float:
        """From the first start to the last end, modelled."""
        return self.table.span_ns


def predict(measured: Timetable, was: Work, now: Work, measured_on: Machine, machine: Machine) -> Prediction:
    """The timetable of `now` on `machine`, from what the stamps of `was` on `measured_on` took.

    now may differ from was in its tiles alone: block_order, num_programs, block_m and block_n (durations then scale with the
    tiles' area); warps and stages are not looked at. Raises ValueError, in one sentence, for anything else.
    """
    _require_alike(measured, was, now)
    found = durations_in(measured, was)
    table = _table_of(found.best, now, machine)
    own = _table_of(found.best, was, measured_on)
    spans = [table.span_ns, *_scattered_spans(found.best, now, machine)]
    spans += [_table_of(other, now, machine).span_ns for other in found.others]
    return Prediction(
        table=table,
        own_error_share=own.span_ns / measured.span_ns - 1 if measured.span_ns else 0.0,
        low_ns=min(spans),
        high_ns=max(spans),
        because=f"{_because(found, now, machine, measured_on)} {_seen(found.best, now, machine, measured_on)}",
    )


def from_tile_counts(work: Work, machine: Machine, ns_per_tile: float = 1000.0) -> Timetable:
    """A timetable without a GPU: a tile takes ns_per_tile on an SM of its own, nothing else takes any time.

    Where programs share an SM, it does no more with many than with one.
    """
    return _table(work, work.tile_counts * ns_per_tile, machine, Pace())


def _table(work: Work, alone_ns: np.ndarray, machine: Machine, pace: Pace) -> Timetable:
    order = work.order
    head, place = order[:, 0], np.maximum(order[:, 1], 0)
    if work.is_dealt:
        placed = replay_dealt(alone_ns[head, place], work.dealt(machine.sm_count), pace)
    else:
        placed = replay(alone_ns[head, place], work.programs, machine, pace)
    back = np.lexsort((order[:, 1], head))
    return Timetable(
        "modelled", machine.sm_count, 0, placed.sm[back], placed.program[back], placed.start_ns[back], placed.end_ns[back],
        head[back], order[back, 1], work.tile_counts[head, place][back],
    )  # fmt: skip


def _table_of(found: Durations, work: Work, machine: Machine) -> Timetable:
    return _table(work, found.of_work(work), machine, found.pace)


def _scattered_spans(found: Durations, now: Work, machine: Machine) -> list[float]:
    """Spans when durations scatter among the heads as they were seen to."""
    rng = np.random.default_rng(0)
    alone_ns = found.of_work(now)
    replays = int(np.clip(_MOST_REPLAYED_ENTRIES // now.num_entries, 1, _MOST_REPLAYS))
    spans = []
    for _ in range(replays):
        if found.has_blocks_of(now):
            scattered = rng.permuted(alone_ns, axis=0)
        else:
            scattered = alone_ns * rng.choice(found.apart.ravel(), alone_ns.shape)
        spans.append(_table(now, scattered, machine, found.pace).span_ns)
    return spans


def _require_alike(measured: Timetable, was: Work, now: Work) -> None:
    if (was.problem, was.version, was.precision) != (now.problem, now.version, now.precision):
        raise ValueError(
            "a prediction for another problem, version or precision is not possible: its durations were not measured."
        )
    if was.tiles.loop_order != now.tiles.loop_order:
        raise ValueError(f"loop_order = {now.tiles.loop_order} is not possible here: {was.tiles.loop_order} was measured.")
    if measured.sm.size != was.num_entries:
        raise ValueError(
            f"a timetable of {measured.sm.size:,} entries is not possible here: this work has {was.num_entries:,}."
        )


def _seen(found: Durations, now: Work, machine: Machine, measured_on: Machine) -> str:
    """What predictions of this kind turned out to be off by."""
    if now.is_dealt or machine != measured_on or not found.has_blocks_of(now):
        return _NOT_HELD
    return _OTHER_ORDERS if now.tiles.num_programs == found.was.tiles.num_programs else _OTHER_GRIDS


def _because(found: Found, now: Work, machine: Machine, measured_on: Machine) -> str:
    count, gap = found.best.alone_ns.size, time_of(found.best.pace.gap_ns)
    room = f"{machine.sm_count} SMs with room for {machine.programs_per_sm} each"
    how = "Its own dealing" if now.is_dealt else "List scheduling"
    parts = [f"{how} of {count:,} stamped durations over {room}, {gap} between two"]
    if not found.best.has_blocks_of(now):
        parts.append("durations scaled with the tiles' area, as if every tile size fed the matrix units alike")
    if found.is_shared:
        parts.append(f"k programs on an SM go at k^−{found.best.pace.sharing:.1f} of one's pace alone, as the stamps have it")
    elif machine.programs_per_sm > 1:
        parts.append("an SM does no more with several programs than with one")
    if machine.sm_count != measured_on.sm_count:
        parts.append("its SMs are as fast as the measured ones, and its memory keeps up")
    return f"{'; '.join(parts)}. Clocks and caches are taken to stay as they were."
