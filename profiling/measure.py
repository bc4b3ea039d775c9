"""Time launches: cold, in interleaved rounds, every sample kept."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from profiling.memory import FLUSH_BYTES
from profiling.record_types import Array
from profiling.records import Latency

ROUNDS = 5
_MS_A_ROUND = 100.0
_FEWEST_A_ROUND, _MOST_A_ROUND = 3, 60
_FEWEST_IN_ALL = 10
_LONG_MS = 2000.0
_LONG_BUDGET_MS = 20_000.0
_HOLD_CYCLES = 60_000_000

Run = Callable[[], object]
"""One launch (or a few in a row) on the current stream; returns without waiting."""


class RunFailed(Exception):
    """A run raised while it was timed: index says which, __cause__ is what it raised."""

    def __init__(self, index: int) -> None:
        super().__init__(f"run {index} failed")
        self.index = index


class Timer(Protocol):
    """How launches are timed; CudaTimer on a GPU."""

    def estimate_ms(self, run: Run) -> float:
        """About how long a launch takes, after one that is not timed."""

    def sample_ms(self, run: Run, count: int) -> list[float]:
        """count launches, each after a flush of the L2 cache, in order."""

    def in_turn_ms(self, runs: Sequence[Run], count: int, after: Callable[[int], object]) -> list[list[float]]:
        """count launches of each run, one of each in turn, beginning with the next one every time; each after a flush.

        after(index) is called when run index has been queued once more, for what is to follow it untimed.
        """


def launches_per_round(estimate_ms: float, rounds: int = ROUNDS) -> tuple[int, ...]:
    """How many launches to time in each round: about 0.1 s of kernel time, 3 to 60 a round, at least 10 in all.

    A kernel of more than 2 s gets what fits 20 s in all, at least 3, spread over the rounds.
    """
    if estimate_ms > _LONG_MS:
        total = min(_FEWEST_IN_ALL, max(_FEWEST_A_ROUND, int(_LONG_BUDGET_MS / estimate_ms)))
        return tuple(total // rounds + (index < total % rounds) for index in range(rounds))
    count = math.ceil(_MS_A_ROUND / max(estimate_ms, 1e-6))
    count = min(_MOST_A_ROUND, max(_FEWEST_A_ROUND, math.ceil(_FEWEST_IN_ALL / rounds), count))
    return (count,) * rounds


def time_rounds(
    runs: Sequence[Run],
    timer: Timer,
    rounds: int = ROUNDS,
    after_batch: Callable[[int], None] = lambda index: None,
    after_round: Callable[[int], None] = lambda done: None,
) -> tuple[Latency, ...]:
    """Time runs interleaved: in every round each one in turn, so that drift meets all alike. A Latency a run.

    Each round begins with the next one: a place in the round (the first after a pause, say) would favour whoever has it.
    after_batch(index) is called right after a run's launches of a round have ended, after_round(done) after each round.
    Raises RunFailed when a run raises.
    """
    plans = [
        launches_per_round(_attributed(index, lambda run=run: timer.estimate_ms(run)), rounds) for index, run in enumerate(runs)
    ]
    samples: list[list[float]] = [[] for _ in runs]
    round_of: list[list[int]] = [[] for _ in runs]
    for number in range(rounds):
        for place in range(len(runs)):
            index = (number + place) % len(runs)
            count = plans[index][number]
            if count:
                samples[index] += _attributed(index, lambda run=runs[index], count=count: timer.sample_ms(run, count))
                round_of[index] += [number] * count
                after_batch(index)
        after_round(number + 1)
    return tuple(
        Latency(provenance="measured", mode="cold", samples_ms=Array.of(ms), round_of=Array.of(numbers, "<i4"))
        for ms, numbers in zip(samples, round_of, strict=True)
    )


def _attributed(index: int, action: Callable[[], object]) -> object:
    try:
        return action()
    except Exception as error:
        raise RunFailed(index) from error


def wall_latency(seconds: float) -> Latency:
    """The one run of the interpreter, by a clock on the wall: no GPU time."""
    return Latency(
        provenance="interpreted", mode="wall", samples_ms=Array.of([seconds * 1000.0]), round_of=Array.of([0], "<i4")
    )


class CudaTimer:
    """CUDA events around the launch alone; before each the L2 cache is overwritten with zeros.

    The stream is held by a spinning kernel while the launches are queued, so that the host's work is in no sample.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        self._flush = torch.empty(max(FLUSH_BYTES, 2 * l2_bytes), dtype=torch.uint8, device=device)
        self._hold = getattr(torch.cuda, "_sleep", None)

    def estimate_ms(self, run: Run) -> float:
        """Median of five launches, or one where one takes more than 20 ms."""
        run()
        torch.cuda.synchronize(self._device)
        (first,) = self.sample_ms(run, 1)
        return first if first > 20.0 else statistics.median(self.sample_ms(run, 5))

    def sample_ms(self, run: Run, count: int) -> list[float]:
        """See Timer."""
        return self._timed([run] * count)

    def in_turn_ms(self, runs: Sequence[Run], count: int, after: Callable[[int], object]) -> list[list[float]]:
        """See Timer."""
        order = [(turn + place) % len(runs) for turn in range(count) for place in range(len(runs))]
        times = self._timed([runs[index] for index in order], lambda place: after(order[place]))
        return [[ms for ms, of in zip(times, order, strict=True) if of == index] for index in range(len(runs))]

    def _timed(self, runs: Sequence[Run], queued: Callable[[int], object] = lambda place: None) -> list[float]:
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in runs]
        if self._hold is not None:
            self._hold(_HOLD_CYCLES)
        for place, (run, (before, after)) in enumerate(zip(runs, events, strict=True)):
            self._flush.zero_()
            before.record()
            run()
            after.record()
            queued(place)
        torch.cuda.synchronize(self._device)
        return [before.elapsed_time(after) for before, after in events]
