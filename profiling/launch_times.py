"""What is asked again and again of a latency's launches, computed once: their band, the median of each round. Pure: numpy."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass

import numpy as np

from profiling.latency_record import Latency


@dataclass(frozen=True)
class Band:
    """nvbench's interval of a job's launches, from the fastest to the third quartile, with what the rule needs beside it."""

    low_ms: float
    median_ms: float
    high_ms: float
    scatter: float

    @staticmethod
    def of(latency: Latency) -> Band:
        """The band of all its launches; scatter is the interquartile range as a share of the median."""
        return launch_times(latency).band


@dataclass(frozen=True, eq=False)
class LaunchTimes:
    """A latency's band, and of each of its rounds, in ascending order, the number, the median and the median's logarithm."""

    band: Band
    rounds: np.ndarray
    medians_ms: np.ndarray
    logs: np.ndarray


_KNOWN: dict[int, tuple[weakref.ref[Latency], LaunchTimes]] = {}


def launch_times(latency: Latency) -> LaunchTimes:
    """Those of a latency, remembered as long as it lives: to know it by its contents would take as long as to read them."""
    found = _KNOWN.get(key := id(latency))
    if found is not None and found[0]() is latency:
        return found[1]
    times = _read(latency)
    _KNOWN[key] = weakref.ref(latency, lambda _: _KNOWN.pop(key, None)), times
    return times


def _read(latency: Latency) -> LaunchTimes:
    samples, turns = latency.samples_ms.numpy(), latency.round_of.numpy()
    q1, median, q3 = (float(value) for value in np.quantile(samples, (0.25, 0.5, 0.75)))
    rounds, medians = _median_of_each(samples, turns)
    logs = np.array([math.log(one) for one in medians.tolist()])
    return LaunchTimes(Band(float(samples.min()), median, q3, (q3 - q1) / median), rounds, medians, logs)


def _median_of_each(samples: np.ndarray, turns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rounds there are and the median of each: all at once, as there may be as many rounds as launches."""
    order = np.lexsort((samples, turns))
    samples, turns = samples[order], turns[order]
    starts = np.flatnonzero(np.r_[True, turns[1:] != turns[:-1]])
    counts = np.diff(np.r_[starts, len(turns)])
    medians = (samples[starts + (counts - 1) // 2] + samples[starts + counts // 2]) / 2
    return turns[starts], medians
