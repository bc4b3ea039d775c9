"""A timer on a stream: launches are held back until the host is ahead, timed by events, and the events checked. Pure.

A stretch of up to 50 launches is queued behind a kernel that spins, so that what the host takes to launch is in no sample. That
it did is not assumed: after each launch is queued, the event before it is asked; had the GPU reached it, the sample counts
as exposed. The first stretch of a batch is held until all of it is queued, the others until the host is so far ahead that
the device will not catch up with it, by what queueing and launches took before.

The events are not trusted either: launches and pauses must make up the stretch, and a stretch that was held to its end what the
host's clock shows from the moment the spinning ends to the moment the whole device is idle. Each stretch's Ledger says both.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol
from weakref import WeakKeyDictionary

from profiling.measure import Batch, Ledger, Run

STRETCH = 50
_LONG_MS = 20.0
_LEAD = 8
_LEAST_HOLD_MS, _MOST_HOLD_MS = 0.2, 200.0
_MOST_EXPOSED = 0.05
_MARGIN, _MORE, _MOST_MARGIN = 1.2, 1.5, 4.0


class Event(Protocol):
    """A mark in a stream."""

    def record(self) -> None:
        """Put it behind what was queued so far."""

    def query(self) -> bool:
        """Whether the device has reached it."""

    def synchronize(self) -> None:
        """Wait until it has."""


class Stream(Protocol):
    """A device's stream as a timer sees it; profiling.cuda_stream on a GPU."""

    def now_ms(self) -> float:
        """The host's clock."""

    def event(self) -> Event:
        """A new mark."""

    def elapsed_ms(self, start: Event, end: Event) -> float:
        """Between two marks that were reached, by the device's clock."""

    def hold(self, ms: float) -> None:
        """Queue a kernel that does nothing for about so long, where there is one."""

    def flush(self) -> None:
        """Queue what evicts the L2 cache."""

    def wait(self) -> None:
        """Until the whole device is idle, whatever stream its work is on."""


@dataclass
class _Pace:
    """What a run takes the host to queue and the device to do, a launch; margin: how much longer it is held than that needs."""

    queueing_ms: float = 0.3
    device_ms: float = 0.0
    margin: float = _MARGIN


class StreamTimer:
    """See profiling.measure.Timer."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._events: list[Event] = []
        self._paces: WeakKeyDictionary[Run, _Pace] = WeakKeyDictionary()

    def estimate_ms(self, run: Run | Callable[[], object]) -> float:
        """Median of five samples, or one where one takes more than 20 ms; a launch's, of a run of several."""
        run = _as_run(run)
        run()
        self._stream.wait()
        (first,) = self.batch(run, 1).samples_ms
        return first if first * run.launches > _LONG_MS else statistics.median(self.batch(run, 5).samples_ms)

    def batch(self, run: Run, count: int) -> Batch:
        """See profiling.measure.Timer."""
        stretches = [self._stretch([run] * min(STRETCH, count - done), whole=not done) for done in range(0, count, STRETCH)]
        ledgers = tuple(ledger for ledger, _ in stretches)
        samples = [ms / run.launches for ledger in ledgers for ms in ledger.launches_ms]
        return Batch(samples, sum(exposed for _, exposed in stretches), ledgers)

    def in_turn_ms(self, runs: Sequence[Callable[[], object]], count: int, after: Callable[[int], object]) -> list[list[float]]:
        """See profiling.measure.Timer."""
        turns = [_as_run(run) for run in runs]
        order = [(turn + place) % len(runs) for turn in range(count) for place in range(len(runs))]
        times: list[float] = []
        for start in range(0, len(order), STRETCH):
            part = order[start : start + STRETCH]
            ledger, _ = self._stretch([turns[index] for index in part], lambda place, part=part: after(part[place]))
            times += ledger.launches_ms
        return [[ms for ms, of in zip(times, order, strict=True) if of == index] for index in range(len(runs))]

    def _stretch(
        self, runs: Sequence[Run], queued: Callable[[int], object] = lambda place: None, whole: bool = True
    ) -> tuple[Ledger, int]:
        """Queue the runs behind a hold, wait for them; and how many of them the device began before they were queued."""
        stream, (released, *marks, ended) = self._stream, self._marks(2 * len(runs) + 2)
        for run in dict.fromkeys(runs):
            run.begin()
        stream.hold(self._hold_ms(runs, whole))
        released.record()
        moments, exposed = [stream.now_ms()], 0
        for place, run in enumerate(runs):
            before, after = marks[2 * place : 2 * place + 2]
            run.turn()
            if run.flushes:
                stream.flush()
            before.record()
            output = run()
            after.record()
            exposed += before.query()
            run.look(output)
            queued(place)
            del output
            moments.append(stream.now_ms())
        ended.record()
        was_held = not released.query()
        if was_held:
            released.synchronize()
        start_ms = stream.now_ms()
        stream.wait()
        wall_ms = stream.now_ms() - start_ms if was_held else None
        for run in dict.fromkeys(runs):
            run.settle()
        ledger = self._ledger([released, *marks, ended], wall_ms)
        too_short = exposed > _MOST_EXPOSED * len(runs) or (whole and not was_held)
        self._note(runs, [end - start for start, end in pairwise(moments)], ledger, too_short)
        return ledger, exposed

    def _ledger(self, marks: Sequence[Event], wall_ms: float | None) -> Ledger:
        parts = [self._stream.elapsed_ms(*pair) for pair in pairwise(marks)]
        return Ledger(tuple(parts[1::2]), tuple(parts[::2]), self._stream.elapsed_ms(marks[0], marks[-1]), wall_ms)

    def _marks(self, count: int) -> list[Event]:
        self._events += [self._stream.event() for _ in range(count - len(self._events))]
        return self._events[:count]

    def _hold_ms(self, runs: Sequence[Run], whole: bool) -> float:
        """Until all is queued; or until the host is a few launches ahead, and as many more as it will fall back."""
        paces = [self._paces.get(run) or _Pace() for run in runs]
        queueing_ms = sum(pace.margin * pace.queueing_ms for pace in paces)
        wanted = queueing_ms
        if not whole:
            falls_back_ms = max(0.0, queueing_ms - sum(pace.device_ms for pace in paces))
            wanted = falls_back_ms + queueing_ms * min(1.0, _LEAD / len(runs))
        return min(_MOST_HOLD_MS, max(_LEAST_HOLD_MS, wanted))

    def _note(self, runs: Sequence[Run], queueing_ms: Sequence[float], ledger: Ledger, too_short: bool) -> None:
        """Remember the usual pace: neither a host that was kept waiting once nor a device that was counts."""
        for run in dict.fromkeys(runs):
            places = [place for place, one in enumerate(runs) if one is run]
            device_ms = [ledger.launches_ms[place] + ledger.pauses_ms[place] for place in places[1:]]
            pace = self._paces.setdefault(run, _Pace())
            pace.queueing_ms = statistics.median(queueing_ms[place] for place in places)
            pace.device_ms = statistics.median(device_ms) if device_ms else pace.device_ms
            pace.margin = min(_MOST_MARGIN, pace.margin * _MORE) if too_short else pace.margin


def _as_run(run: Run | Callable[[], object]) -> Run:
    return run if isinstance(run, Run) else Run(run)
