"""NVML read every 20 ms from a thread, and never while launches are timed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from profiling.nvml import MemoryReading, Nvml
from profiling.record_types import Array
from profiling.records import LaunchSpan, NotedSpan, PhaseSpan, Timeline

PERIOD_S = 0.02
SERIES = ("power_w", "sm_clock_mhz", "memory_clock_mhz", "temperature_c", "utilisation_percent", "memory_used_bytes")
_REASON_KEYS = {"memory_used_bytes": "memory", "utilisation_percent": "utilisation", "throttled": "throttle_reasons"}
_MOST_SPANS = 500


@dataclass(frozen=True)
class Sample:
    """One round of readings; at is time.perf_counter's. A reading that failed is None, and missing has its reason."""

    at: float
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    utilisation_percent: float | None = None
    memory: MemoryReading | None = None
    throttled: tuple[str, ...] | None = None
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def memory_used_bytes(self) -> int | None:
        """Bytes in use on the whole GPU."""
        return None if self.memory is None else self.memory.used_bytes

    @property
    def answered(self) -> bool:
        """Whether NVML gave anything."""
        return any(getattr(self, name) is not None for name in SERIES)


def read(nvml: Nvml) -> Sample:
    """All series once. Raises nothing."""
    at = time.perf_counter()
    readings = {
        "power_w": nvml.power_w(),
        "sm_clock_mhz": nvml.sm_clock_mhz(),
        "memory_clock_mhz": nvml.memory_clock_mhz(),
        "temperature_c": nvml.temperature_c(),
        "utilisation_percent": nvml.utilisation_percent(),
        "memory": nvml.memory(),
        "throttled": nvml.throttle_reasons(),
    }
    why = {name: nvml.missing.get(_REASON_KEYS.get(name, name), "") for name, value in readings.items() if value is None}
    return Sample(at=at, missing=why, **readings)


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
                    self._samples.append(read(self._nvml))
            self._stopping.wait(self._period_s)


def timeline(
    nvml: Nvml,
    samples: Sequence[Sample],
    start: float,
    spans: tuple[PhaseSpan, ...],
    launched: tuple[LaunchSpan, ...] = (),
) -> Timeline:
    """The record of what was sampled since start (time.perf_counter's).

    A series is there when it answered in half of the moments at least in which NVML gave anything; else it is None with the
    reason. A moment at which one of these failed is left out whole, and stands in gaps with the reason.
    """
    limits = {
        "power_limit_w": nvml.power_limit_w(),
        "max_sm_clock_mhz": nvml.max_sm_clock_mhz(),
        "max_memory_clock_mhz": nvml.max_memory_clock_mhz(),
    }
    missing = {name: nvml.missing.get(name, "NVML gave no reading") for name, value in limits.items() if value is None}
    alive = [sample for sample in samples if sample.answered]
    present = [name for name in SERIES if _answers(alive, name)]
    missing |= {name: _why_missing(nvml, name, samples) for name in SERIES if name not in present}
    whole = [sample for sample in alive if all(getattr(sample, name) is not None for name in present)]
    if not whole:
        present = []
    watched = any(sample.throttled is not None for sample in samples)
    if not watched:
        missing["throttled"] = _why_missing(nvml, "throttled", samples)
    memory = [sample.memory for sample in whole if sample.memory is not None]
    missing |= _notes(nvml, memory, present)
    series = {name: Array.of(_column(whole, name), _dtype(name)) if name in present else None for name in SERIES}
    return Timeline(
        spans=spans,
        launched=launched,
        t_s=Array.of([sample.at - start for sample in whole], "<f4"),
        memory_reserved_bytes=max((one.reserved_bytes for one in memory if one.reserved_bytes is not None), default=None),
        memory_total_bytes=memory[-1].total_bytes if memory else None,
        throttled=tuple(_throttled(samples, spans, start)) if watched else None,
        gaps=tuple(_gaps(samples, present, start)),
        missing=missing,
        **{name: None if value is None else float(value) for name, value in limits.items()},
        **series,
    )


def _answers(alive: Sequence[Sample], name: str) -> bool:
    known = sum(getattr(sample, name) is not None for sample in alive)
    return known > 0 and 2 * known >= len(alive)


def _notes(nvml: Nvml, memory: Sequence[MemoryReading], present: Sequence[str]) -> dict[str, str]:
    """What must be said beside series that are there."""
    notes = {}
    if memory and all(one.reserved_bytes is None for one in memory):
        notes["memory_reserved_bytes"] = nvml.missing.get("memory_reserved", "the driver does not tell it")
    if "power_w" in present and "power_instant" in nvml.missing:
        notes["power_instant"] = (
            f"power is NVML's average over a second, not the instant reading: {nvml.missing['power_instant']}"
        )
    if nvml.is_mig and present:
        notes["mig"] = "this is a MIG device: power, clocks, temperature and energy are those of the whole card"
    return notes


def _throttled(samples: Sequence[Sample], spans: Sequence[PhaseSpan], start: float) -> Iterator[NotedSpan]:
    """For each reason the stretches from the first moment that showed it to the last before one that did not."""
    stretches: list[NotedSpan] = []
    for reason in dict.fromkeys(words for sample in samples for words in sample.throttled or ()):
        for stretch in _stretches(samples, lambda sample, reason=reason: reason in (sample.throttled or ()), spans, start):
            stretches.append(_noted(reason, stretch, start))
    yield from sorted(_fewer(stretches), key=lambda span: span.start_s)


def _gaps(samples: Sequence[Sample], present: Sequence[str], start: float) -> Iterator[NotedSpan]:
    """The stretches in which something that is there at other times was asked for in vain."""
    names = present or SERIES

    def fails(sample: Sample) -> bool:
        return any(getattr(sample, name) is None for name in names)

    found = [_noted(_reasons(stretch, names), stretch, start) for stretch in _stretches(samples, fails, (), start)]
    yield from sorted(_fewer(found), key=lambda span: span.start_s)


def _reasons(samples: Sequence[Sample], names: Sequence[str]) -> str:
    keys = ["memory" if name == "memory_used_bytes" else name for name in names]
    return "; ".join(dict.fromkeys(sample.missing[key] for sample in samples for key in keys if key in sample.missing))


def _stretches(
    samples: Sequence[Sample], holds: Callable[[Sample], bool], spans: Sequence[PhaseSpan], start: float
) -> Iterator[list[Sample]]:
    """Samples in a row of which something holds, cut where a stretch lies between them that was not sampled."""
    unread = [span.start_s + start for span in spans if not span.sampled]
    for held, group in groupby(samples, key=lambda sample: (holds(sample), sum(sample.at > moment for moment in unread))):
        if held[0]:
            yield list(group)


def _noted(words: str, stretch: Sequence[Sample], start: float) -> NotedSpan:
    return NotedSpan(words=words, start_s=max(0.0, stretch[0].at - start), end_s=max(0.0, stretch[-1].at - start))


def _fewer(spans: list[NotedSpan]) -> list[NotedSpan]:
    """At most as many as a record holds: the longest, where there are more."""
    return sorted(spans, key=lambda span: span.start_s - span.end_s)[:_MOST_SPANS]


def _column(samples: Sequence[Sample], name: str) -> np.ndarray:
    return np.array([getattr(sample, name) for sample in samples], dtype=float)


def _dtype(name: str) -> str:
    """Readings have three or four digits; bytes are counted exactly."""
    return "<i8" if name.endswith("_bytes") else "<f4"


def _why_missing(nvml: Nvml, name: str, samples: Sequence[Sample]) -> str:
    if not samples:
        return nvml.missing.get("nvml", "the job ended before NVML was read once")
    key = "memory" if name == "memory_used_bytes" else name
    reasons = dict.fromkeys(sample.missing[key] for sample in samples if sample.missing.get(key))
    return "; ".join(reasons) or nvml.missing.get(_REASON_KEYS.get(name, name), "NVML gave no reading")
