"""NVML read every 20 ms from a thread, and never while launches are timed."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np

from profiling.nvml import Nvml
from profiling.record_types import Array
from profiling.records import PhaseSpan, Timeline

PERIOD_S = 0.02
SERIES = ("power_w", "sm_clock_mhz", "memory_used_bytes", "temperature_c")


@dataclass(frozen=True)
class Sample:
    """One round of readings; at is time.perf_counter's. A reading that failed is None."""

    at: float
    power_w: float | None
    sm_clock_mhz: float | None
    memory_used_bytes: float | None
    temperature_c: float | None


class Sampler:
    """A thread that reads one GPU. Made paused; resume() and pause() may be called any number of times, stop() ends it.

    Once pause() has returned no read is under way, and none begins before resume().
    """

    def __init__(self, nvml: Nvml, period_s: float = PERIOD_S) -> None:
        self._nvml, self._period_s = nvml, period_s
        self._samples: list[Sample] = []
        self._may_read = threading.Event()
        self._stopping = threading.Event()
        self._reading = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="NVML sampler", daemon=True)

    def start(self) -> None:
        """Start the thread, paused."""
        self._thread.start()

    def resume(self) -> None:
        """Read from now on."""
        self._may_read.set()

    def pause(self) -> None:
        """Stop reading; returns once a read that was under way has ended."""
        self._may_read.clear()
        with self._reading:
            pass

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._may_read.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def samples(self) -> tuple[Sample, ...]:
        """What was read so far, in order."""
        with self._reading:
            return tuple(self._samples)

    def peak_memory_bytes(self, since: float) -> int | None:
        """The most memory seen in use since a time.perf_counter(); None when nothing was read."""
        seen = [sample.memory_used_bytes for sample in self.samples if sample.at >= since]
        return max((int(value) for value in seen if value is not None), default=None)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._may_read.wait()
            with self._reading:
                if self._may_read.is_set() and not self._stopping.is_set():
                    self._samples.append(self._read())
            self._stopping.wait(self._period_s)

    def _read(self) -> Sample:
        return Sample(
            at=time.perf_counter(),
            power_w=self._nvml.power_w(),
            sm_clock_mhz=self._nvml.sm_clock_mhz(),
            memory_used_bytes=self._nvml.memory_used_bytes(),
            temperature_c=self._nvml.temperature_c(),
        )


def timeline(nvml: Nvml, samples: tuple[Sample, ...], start: float, spans: tuple[PhaseSpan, ...]) -> Timeline:
    """The record of what was sampled since start (time.perf_counter's).

    A series that was never read is None with NVML's reason; a moment at which another series failed is left out whole.
    """
    limit_w, max_mhz = nvml.power_limit_w(), nvml.max_sm_clock_mhz()
    present = [name for name in SERIES if any(getattr(sample, name) is not None for sample in samples)]
    whole = [sample for sample in samples if all(getattr(sample, name) is not None for name in present)]
    missing = {name: _why_missing(nvml, name, samples) for name in SERIES if name not in present}
    if len(whole) < len(samples):
        missing["t_s"] = f"{len(samples) - len(whole)} of {len(samples)} moments are left out: a reading failed there"
    for name, value in (("power_limit_w", limit_w), ("max_sm_clock_mhz", max_mhz)):
        if value is None:
            missing[name] = nvml.missing[name]
    series = {name: Array.of(_column(whole, name), _dtype(name)) if name in present else None for name in SERIES}
    return Timeline(
        spans=spans,
        t_s=Array.of([sample.at - start for sample in whole], "<f4"),
        power_limit_w=limit_w,
        max_sm_clock_mhz=None if max_mhz is None else float(max_mhz),
        missing=missing,
        **series,
    )


def _column(samples: list[Sample], name: str) -> np.ndarray:
    return np.array([getattr(sample, name) for sample in samples], dtype=float)


def _dtype(name: str) -> str:
    """Readings have three or four digits; bytes are counted exactly."""
    return "<i8" if name.endswith("_bytes") else "<f4"


def _why_missing(nvml: Nvml, name: str, samples: tuple[Sample, ...]) -> str:
    if not samples:
        return nvml.missing.get("nvml", "the job ended before NVML was read once")
    return nvml.missing.get("memory" if name == "memory_used_bytes" else name, "NVML gave no reading")
