"""The current CUDA stream as profiling.stream_timer sees it, and launches as a CUDA graph. Thin: all decisions are elsewhere.

What times a launch is taken from torch and from time when this module is imported, before any kernel is: who replaces it later
changes nothing here, and tampered() says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from profiling.memory import FLUSH_BYTES
from profiling.stream_timer import StreamTimer

# An SM's clock is about 2 GHz under load; where it is slower the spinning takes longer.
_CYCLES_A_MS = 2_000_000

_CLOCK, _EVENT, _WAIT = time.perf_counter, torch.cuda.Event, torch.cuda.synchronize
_RECORD, _QUERY, _ELAPSED = _EVENT.record, _EVENT.query, _EVENT.elapsed_time
_KEPT: tuple[tuple[str, Callable[[], object], object], ...] = (
    ("time.perf_counter", lambda: time.perf_counter, _CLOCK),
    ("torch.cuda.Event", lambda: torch.cuda.Event, _EVENT),
    ("torch.cuda.Event.record", lambda: _EVENT.record, _RECORD),
    ("torch.cuda.Event.query", lambda: _EVENT.query, _QUERY),
    ("torch.cuda.Event.elapsed_time", lambda: _EVENT.elapsed_time, _ELAPSED),
    ("torch.cuda.synchronize", lambda: torch.cuda.synchronize, _WAIT),
)


def tampered() -> tuple[str, ...]:
    """Which of what times a launch somebody in this process has replaced."""
    return tuple(name for name, now, kept in _KEPT if now() is not kept)


class CudaEvent:
    """See profiling.stream_timer.Event."""

    def __init__(self) -> None:
        self.event = _EVENT(enable_timing=True)

    def record(self) -> None:
        _RECORD(self.event)

    def query(self) -> bool:
        return _QUERY(self.event)

    def synchronize(self) -> None:
        _EVENT.synchronize(self.event)


class CudaStream:
    """See profiling.stream_timer.Stream. Before a launch the L2 cache is overwritten with zeros, twice its size at least."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        self._flush = torch.empty(max(FLUSH_BYTES, 2 * l2_bytes), dtype=torch.uint8, device=device)
        self._spin = getattr(torch.cuda, "_sleep", None)

    def now_ms(self) -> float:
        return _CLOCK() * 1000.0

    def event(self) -> CudaEvent:
        return CudaEvent()

    def elapsed_ms(self, start: CudaEvent, end: CudaEvent) -> float:
        return _ELAPSED(start.event, end.event)

    def hold(self, ms: float) -> None:
        if self._spin is not None:
            self._spin(int(ms * _CYCLES_A_MS))

    def flush(self) -> None:
        self._flush.zero_()

    def wait(self) -> None:
        _WAIT(self._device)


def cuda_timer(device: torch.device) -> StreamTimer:
    """The timer of a CUDA device's current stream."""
    return StreamTimer(CudaStream(device))


def as_graph(launch: Callable[[], object], launches: int) -> tuple[Callable[[], None], object]:
    """(what replays so many launches in a row, the output of the last). Raises what cannot be captured.

    The launch must have run before: what it compiles or allocates once is no part of a graph.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            output = launch()
    return graph.replay, output
