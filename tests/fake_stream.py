"""A device's stream as arithmetic: what is queued takes its time on a device that runs beside the host, in milliseconds."""

from __future__ import annotations

import math


class FakeEvent:
    """See profiling.stream_timer.Event."""

    def __init__(self, stream: FakeStream) -> None:
        self._stream, self.at = stream, math.nan

    def record(self) -> None:
        self._stream.host += self._stream.queueing
        self.at = max(self._stream.device, self._stream.host)

    def query(self) -> bool:
        return self._stream.host >= self.at

    def synchronize(self) -> None:
        self._stream.host = max(self._stream.host, self.at)


class FakeStream:
    """See profiling.stream_timer.Stream. host, device: what each one's clock shows; beside: another stream's.

    queueing: what it takes the host to queue anything; flush_ms: what a flush takes the device. With `others` the device
    belongs to somebody else for so many milliseconds of every one.
    """

    def __init__(self, queueing: float = 0.004, flush_ms: float = 0.08, can_hold: bool = True, others: float = 0.0) -> None:
        self.host = self.device = self.beside = 0.0
        self.queueing, self.flush_ms, self.can_hold, self.others = queueing, flush_ms, can_hold, others
        self.holds: list[float] = []
        self._mine = 0.0

    def now_ms(self) -> float:
        return self.host

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def elapsed_ms(self, start: FakeEvent, end: FakeEvent) -> float:
        return end.at - start.at

    def hold(self, ms: float) -> None:
        self.holds.append(ms)
        if self.can_hold:
            self.launch(ms)

    def flush(self) -> None:
        self.launch(self.flush_ms)

    def launch(self, ms: float, host_ms: float | None = None) -> None:
        """Queue work of so long, which takes the host so long to queue."""
        self.host += self.queueing if host_ms is None else host_ms
        slices = math.floor(self._mine + ms) - math.floor(self._mine)
        self._mine += ms
        self.device = max(self.device, self.host) + ms + slices * self.others

    def launch_beside(self, ms: float) -> None:
        """Queue work on another stream, which begins when this one gets here, but which this one does not wait for."""
        self.host += self.queueing
        self.beside = max(self.beside, self.device, self.host) + ms

    def wait(self) -> None:
        self.host = max(self.host, self.device, self.beside)
