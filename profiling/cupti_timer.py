"""A timer whose samples are NVIDIA's own: what CUPTI, through torch.profiler, records of the launches of one kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from profiling.cuda_stream import CudaStream
from profiling.measure import Batch, Run
from profiling.stream_timer import Stream, StreamTimer

KERNEL = "flash_v2_forward"


def _recording() -> AbstractContextManager[Any]:
    return profile(activities=[ProfilerActivity.CUDA])


class CuptiTimer(StreamTimer):
    """StreamTimer; launches of the runs that is_traced picks have CUPTI's kernel times, all others those of events as ever."""

    def __init__(
        self,
        stream: Stream,
        is_traced: Callable[[Run], bool],
        recording: Callable[[], AbstractContextManager[Any]] = _recording,
    ) -> None:
        super().__init__(stream)
        self._is_traced, self._recording = is_traced, recording

    def batch(self, run: Run, count: int) -> Batch:
        """See profiling.measure.Timer. Raises RuntimeError where CUPTI records nothing."""
        if not self._is_traced(run):
            return super().batch(run, count)
        with self._recording() as recorded:
            batch = super().batch(run, count)
        return replace(batch, samples_ms=kernel_times_ms(recorded.events(), count))


def kernel_times_ms(events: Iterable[Any], count: int) -> list[float]:
    """What each of count launches took on the GPU, milliseconds, in order.

    events: those of torch.profiler, with name, device_type and time_range in microseconds; the flushes and whatever else ran
    between the launches are among them. Raises RuntimeError, in one sentence, when CUPTI did not record every launch.
    """
    launches = [event for event in events if event.device_type.name == "CUDA" and KERNEL in event.name]
    if len(launches) != count:
        raise RuntimeError(f"CUPTI recorded {len(launches)} of {count} launches: its kernel times cannot be had here.")
    launches.sort(key=lambda event: event.time_range.start)
    return [event.time_range.elapsed_us() / 1000.0 for event in launches]


def cupti_timer(device: torch.device, is_traced: Callable[[Run], bool]) -> CuptiTimer:
    """The timer of a CUDA device's current stream."""
    return CuptiTimer(CudaStream(device), is_traced)
