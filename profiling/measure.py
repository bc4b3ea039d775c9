"""Time launches in interleaved rounds until nvbench's rule has enough, every sample kept. Pure: numpy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from profiling.latency_record import Latency, StopReason
from profiling.record_types import Array
from profiling.stop_rule import StopRule

# A verdict needs five. Ten of half the length make its interval half as wide, as the t distribution has it.
ROUNDS = 10
_FEWEST_LONG = 3
# An estimate of a few launches is a little off: so that the shared rounds make half a second all the same.
_MARGIN = 1.05


class Run:
    """What is timed: a launch on the current stream that returns without waiting, and what is done around it, untimed.

    launch: what is called for it. launches: how many are in it (a graph has some); flushes: whether the L2 cache is flushed
    before it.
    """

    launches = 1
    flushes = True

    def __init__(self, launch: Callable[[], object]) -> None:
        self.launch = launch

    def __call__(self) -> object:
        """Launch."""
        return self.launch()

    def begin(self) -> None:
        """Queued before a stretch of launches."""

    def turn(self) -> None:
        """Queued before each launch."""

    def look(self, output: object) -> None:
        """Queued after each launch, with what it returned."""

    def settle(self) -> None:
        """Called when all that was queued has ended."""


class RunFailed(Exception):
    """A run raised while it was timed: index says which, __cause__ is what it raised."""

    def __init__(self, index: int) -> None:
        super().__init__(f"run {index} failed")
        self.index = index


@dataclass(frozen=True)
class Ledger:
    """Where the time of one stretch of launches went: launches and the pauses around them, by events and by the host's clock.

    launches_ms and pauses_ms lie end to end and make up span_ms. wall_ms: the same stretch by the host, None where it is not
    known when the GPU began it.
    """

    launches_ms: tuple[float, ...]
    pauses_ms: tuple[float, ...]
    span_ms: float
    wall_ms: float | None


@dataclass(frozen=True)
class Batch:
    """samples_ms in order, of one launch each; exposed: how many of them the GPU began before they were queued whole."""

    samples_ms: list[float]
    exposed: int = 0
    ledgers: tuple[Ledger, ...] = ()


class Timer(Protocol):
    """How launches are timed; profiling.stream_timer on a GPU."""

    def estimate_ms(self, run: Run | Callable[[], object]) -> float:
        """About how long a launch takes, after one that is not timed."""

    def batch(self, run: Run, count: int) -> Batch:
        """count samples of a run, in order."""

    def in_turn_ms(self, runs: Sequence[Callable[[], object]], count: int, after: Callable[[int], object]) -> list[list[float]]:
        """count launches of each run, one of each in turn, beginning with the next one every time; each after a flush.

        after(index) is called when run index has been queued once more, for what is to follow it untimed.
        """


@dataclass
class Timed:
    """What is known of a run's time so far; latency() is the record of it."""

    launches_per_sample: int = 1
    samples_ms: list[float] = field(default_factory=list)
    round_of: list[int] = field(default_factory=list)
    exposed: int = 0
    ledgers: list[Ledger] = field(default_factory=list)
    elapsed_s: float = 0.0
    stopped: StopReason | None = None

    def add(self, batch: Batch, number: int, elapsed_s: float) -> None:
        """A round's batch."""
        self.samples_ms += batch.samples_ms
        self.round_of += [number] * len(batch.samples_ms)
        self.exposed += batch.exposed
        self.ledgers += batch.ledgers
        self.elapsed_s += elapsed_s

    def latency(self, mode: str = "cold", outputs_checked: int | None = None) -> Latency:
        """The record. CUDA's events count in float32, and so does it."""
        return Latency(
            provenance="measured",
            mode=mode,
            samples_ms=Array.of(self.samples_ms, "<f4"),
            round_of=Array.of(self.round_of, "<i4"),
            stopped=self.stopped,
            launches_per_sample=self.launches_per_sample,
            exposed=self.exposed,
            outputs_checked=outputs_checked,
        )


def samples_per_round(sample_ms: float, rule: StopRule, rounds: int = ROUNDS) -> tuple[int, ...]:
    """How many samples to take in each of the rounds that all runs share, so that by time and count they are enough.

    Of one that takes so long that the rule's fewest do not fit its cap: what fits, at least 3, spread over the rounds.
    """
    fits = int(rule.cap_s * 1000.0 / max(sample_ms, 1e-6))
    if fits < rule.fewest:
        total = max(_FEWEST_LONG, fits)
        return tuple(total // rounds + (index < total % rounds) for index in range(rounds))
    wanted = max(rule.fewest, math.ceil(_MARGIN * rule.least_s * 1000.0 / max(sample_ms, 1e-6)))
    return (min(math.ceil(wanted / rounds), rule.most // rounds),) * rounds


def time_rounds(
    runs: Sequence[Run],
    timer: Timer,
    rounds: int = ROUNDS,
    after_batch: Callable[[int], None] = lambda index: None,
    after_round: Callable[[int], None] = lambda done: None,
    rule: StopRule | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Timed, ...]:
    """Time runs interleaved: in every round each one in turn, so that drift meets all alike.

    All runs share `rounds` rounds, which suffice for most; those that need more go on until the rule stops each. Each round
    begins with the next one: a place in the round (the first after a pause, say) would favour whoever has it.
    after_batch(index) is called right after a run's launches of a round have ended, after_round(done) after each round.
    Raises RunFailed when a run raises.
    """
    rule = rule or StopRule.for_job(len(runs))
    plans = []
    for index, run in enumerate(runs):
        sample_ms = run.launches * _attributed(index, lambda run=run: timer.estimate_ms(run))
        plans.append(samples_per_round(sample_ms, rule, rounds))
    found = [Timed(run.launches) for run in runs]
    number = 0
    while number < rounds or any(one.stopped is None for one in found):
        for place in range(len(runs)):
            index = (number + place) % len(runs)
            one, count = found[index], plans[index][number] if number < rounds else max(1, plans[index][0])
            if one.stopped is not None or not count:
                continue
            begin = clock()
            batch = _attributed(index, lambda run=runs[index], count=count: timer.batch(run, count))
            one.add(batch, number, clock() - begin)
            after_batch(index)
        number += 1
        for one in found:
            one.stopped = one.stopped or _reason(one, rule, number >= rounds)
        after_round(number)
    return tuple(found)


def _reason(one: Timed, rule: StopRule, shared_rounds_are_over: bool) -> StopReason | None:
    """A verdict needs the rounds that all share: within them only the cap ends a run."""
    reason = rule.reason(one.samples_ms, one.elapsed_s, one.launches_per_sample)
    return reason if shared_rounds_are_over or reason == "time" else None


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
