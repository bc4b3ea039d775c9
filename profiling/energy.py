"""Energy per launch: launches in a row for over a second, while the GPU's energy counter is read beside them.

Not part of timing: it is a probe of its own. The counter moves in steps (of 100 ms on an H200), so that its difference over
a second of launches could be a tenth off: the average power is taken between two of its steps, as they are seen, and that
times the time of a launch in a row is the energy of a launch.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from kernels.registry import Refused
from profiling.nvml import Nvml
from profiling.records import Energy, Flag
from profiling.sampler import Sample
from profiling.words import milliseconds, percent

WINDOW_S = 1.0
LONGEST_LAUNCH_MS = 5_000.0
_WARM_UP_S = 0.2
_LONGEST_S = 6.0
_BATCH_MS = 20.0
_BATCHES_AHEAD = 2
GRAPH_BELOW_MS = 0.2
"""Shorter launches than this are replayed as a CUDA graph where that can be: the host could not queue them fast enough."""
LAUNCHES_A_GRAPH = 20
_DRY = 0.1


class Stream(Protocol):
    """Launches in a row on one device; CudaLaunches on a GPU."""

    def begin(self) -> None:
        """What is queued from now on counts."""

    def queue(self, least: int) -> tuple[object, int]:
        """Queue so many launches or a few more: (what tells is_done() when they are over, how many they are)."""

    def is_done(self, batch: object) -> bool:
        """Whether a batch is over."""

    def wait(self) -> None:
        """Until all that is queued is over."""

    def busy_s(self) -> float:
        """Seconds that what was queued since begin() took, by the device's clock. All must be over."""


@dataclass(frozen=True)
class Tick:
    """A change of the counter: when it was seen, and the millijoules that it showed."""

    at: float
    energy_mj: int


def take(
    stream: Stream,
    launch_ms: float,
    nvml: Nvml,
    samples: Callable[[], Sequence[Sample]],
    now: Callable[[], float] = time.perf_counter,
) -> tuple[Energy, float]:
    """Keep the device busy for a little over a second and see what it takes: that, and how often the queue ran dry (0 to 1).

    launch_ms: about how long a launch takes.

    samples() gives what a sampler reads meanwhile, for the check by the instant power. Raises Refused where a launch is too
    long for it.
    """
    if launch_ms > LONGEST_LAUNCH_MS:
        longest = milliseconds(LONGEST_LAUNCH_MS)
        raise Refused(f"a launch takes {milliseconds(launch_ms)}; energy is taken of launches up to {longest}.")
    run = _Run(stream, max(1, int(_BATCH_MS / launch_ms)), nvml, now)
    ticks = run.ticks()
    window_s, energy_mj, reason = _between(ticks, nvml.missing.get("energy_mj"))
    missing = {} if reason is None else {"energy_mj": reason}
    sampled_mj = None
    if energy_mj is not None:
        sampled_mj, why = integral_mj(samples(), ticks[0].at, ticks[-1].at)
        missing |= {} if why is None else {"sampled_mj": why}
    found = Energy(
        launches=run.launches,
        busy_s=stream.busy_s(),
        window_s=window_s,
        energy_mj=energy_mj,
        sampled_mj=sampled_mj,
        missing=missing,
    )
    return found, run.dry / max(1, run.queued)


class _Run:
    """Launches that never run out while the counter is read."""

    def __init__(self, stream: Stream, batch: int, nvml: Nvml, now: Callable[[], float]) -> None:
        self._stream, self._batch, self._nvml, self._now = stream, batch, nvml, now
        self._ahead: deque[object] = deque()
        self.launches = self.queued = self.dry = 0

    def ticks(self) -> list[Tick]:
        """Every change of the counter, from the first once the clocks are up to one a second later; all launches are over."""
        start = self._now()
        while self._now() - start < _WARM_UP_S:
            self._top_up()
            if self._nvml.energy_mj() is None:  # else read for the pace that the loop below will have
                break
        self._stream.begin()
        self.launches = self.queued = self.dry = 0
        self._queue()
        ticks: list[Tick] = []
        last: int | None = None
        while self._now() - start < _LONGEST_S and not (ticks and ticks[-1].at - ticks[0].at >= WINDOW_S):
            self._top_up()
            before = self._now()
            reading = self._nvml.energy_mj()
            at = (before + self._now()) / 2
            if reading is None:
                break
            if last is not None and reading != last:
                ticks.append(Tick(at, reading))
            last = reading
        self._stream.wait()
        return ticks

    def _top_up(self) -> None:
        while self._ahead and self._stream.is_done(self._ahead[0]):
            self._ahead.popleft()
        self.dry += not self._ahead
        self.queued += len(self._ahead) < _BATCHES_AHEAD
        while len(self._ahead) < _BATCHES_AHEAD:
            self._queue()

    def _queue(self) -> None:
        batch, launches = self._stream.queue(self._batch)
        self._ahead.append(batch)
        self.launches += launches


def _between(ticks: Sequence[Tick], no_counter: str | None) -> tuple[float | None, float | None, str | None]:
    """(seconds, millijoules, None) between the first and the last change, or (None, None, the reason)."""
    if no_counter is not None:
        return None, None, no_counter
    if not ticks or ticks[-1].at - ticks[0].at < WINDOW_S:
        changes = "did not change twice, a second or more apart"
        return None, None, f"too short for power: within {_LONGEST_S:g} s the energy counter {changes}"
    used_mj = ticks[-1].energy_mj - ticks[0].energy_mj
    if used_mj <= 0:
        return None, None, "the energy counter went backwards"
    return ticks[-1].at - ticks[0].at, float(used_mj), None


def flags_of(dry_share: float) -> list[Flag]:
    """What takes from an energy's worth: a GPU that waited for the host between launches."""
    if dry_share <= _DRY:
        return []
    return [
        Flag(
            name="energy launch-bound",
            severity="caution",
            short="energy: GPU waited",
            sentence=f"{percent(dry_share)} of the times that launches were queued, all before them were over: the GPU waited "
            "for the host, and the energy of a launch holds that waiting.",
        )
    ]


def integral_mj(samples: Sequence[Sample], begin: float, end: float) -> tuple[float | None, str | None]:
    """(millijoules by the instant power between two moments, None), or (None, the reason). Straight lines between samples."""
    read = [(sample.at, sample.power_w) for sample in samples if sample.power_w is not None and begin <= sample.at <= end]
    if len(read) < 10:
        return None, f"power was read {len(read)} times meanwhile"
    inside = sum((t1 - t0) * (w0 + w1) / 2 for (t0, w0), (t1, w1) in itertools.pairwise(read))
    covered = read[-1][0] - read[0][0]
    return 1000.0 * inside * (end - begin) / covered, None


class CudaLaunches:
    """Calls on the current stream, without a flush between them; each makes so many launches in a row."""

    def __init__(self, call: Callable[[], Any], launches: int, device: torch.device) -> None:
        self._call, self._launches, self._device = call, launches, device
        self._first = self._last = torch.cuda.Event(enable_timing=True)

    def begin(self) -> None:
        """See Stream."""
        self._first = torch.cuda.Event(enable_timing=True)
        self._first.record()

    def queue(self, least: int) -> tuple[torch.cuda.Event, int]:
        """See Stream."""
        calls = math.ceil(least / self._launches)
        for _ in range(calls):
            self._call()
        self._last = torch.cuda.Event(enable_timing=True)
        self._last.record()
        return self._last, calls * self._launches

    def is_done(self, batch: torch.cuda.Event) -> bool:
        """See Stream."""
        return batch.query()

    def wait(self) -> None:
        """See Stream."""
        torch.cuda.synchronize(self._device)

    def busy_s(self) -> float:
        """See Stream."""
        return self._first.elapsed_time(self._last) / 1000.0
