"""nvbench's stop rule against nvbench's own arithmetic, sample by sample; and how many samples a round takes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from profiling.measure import ROUNDS, samples_per_round
from profiling.stop_rule import STOP_WORDS, StopRule, noise_after_each

RULE = StopRule()


def by_nvbench(samples: list[float]) -> str | None:
    """stdrel_criterion.cxx, one measurement after the other; what it says after the last, without its every 16th sample."""
    tracker: list[float] = []
    for count in range(5, len(samples) + 1):
        first = samples[:count]
        mean = math.fsum(first) / count
        tracker.append(math.sqrt(math.fsum((ms - mean) ** 2 for ms in first) / (count - 1)) / mean)
    if len(samples) < 10 or math.fsum(samples) < 500.0:
        return None
    if tracker[-1] < 0.005:
        return "quiet"
    recent = tracker[-512:]
    if len(recent) > 64:
        around = math.sqrt(sum((noise - tracker[-1]) ** 2 for noise in recent) / (len(recent) - 1))
        if around / tracker[-1] < 0.05:
            return "settled"
    return None


@pytest.mark.parametrize("seed", range(12))
def test_it_says_what_nvbench_would(seed: int) -> None:
    rng = np.random.default_rng(seed)
    noise, drift, ms = rng.choice([1e-4, 0.004, 0.02, 0.3]), rng.choice([0.0, 0.2]), rng.choice([3.0, 9.0])
    samples = ms * (1 + noise * np.abs(rng.standard_normal(260)) + drift * np.arange(260) / 260)
    for count in (4, 9, 10, 50, 70, 200, 260):
        assert RULE.reason(samples[:count].tolist(), 1.0) == by_nvbench(samples[:count].tolist()), count


def test_the_noise_is_the_standard_deviation_over_the_mean() -> None:
    samples = np.random.default_rng(1).uniform(1.0, 2.0, 40)
    expected = [samples[:count].std(ddof=1) / samples[:count].mean() for count in range(5, 41)]
    assert noise_after_each(samples) == pytest.approx(expected, rel=1e-12)
    assert len(noise_after_each(samples[:4])) == 0
    assert noise_after_each(np.full(10, 3.0)).tolist() == [0.0] * 6


def test_time_and_count_end_what_does_not_settle() -> None:
    wild = [1.0, 30.0] * 4
    assert RULE.reason(wild, 14.9) is None
    assert RULE.reason(wild, 15.0) == "time"
    assert RULE.reason([0.01] * 4999, 3.0) is None
    assert RULE.reason([0.01] * 5000, 3.0) == "count"
    assert RULE.reason([0.01] * 1000, 1.0, launches_per_sample=50) == "quiet"
    assert StopRule.for_job(2) == RULE
    crowded = StopRule.for_job(8)
    assert crowded.reason([1.0, 30.0] * 5, 3.7) is None
    assert crowded.reason([1.0, 30.0] * 5, 3.8) == "time"
    assert crowded.reason([1.0, 30.0] * 4, 14.9) is None, "a slow kernel gets its ten samples all the same"
    assert {"quiet", "settled", "time", "count"} == set(STOP_WORDS)


@pytest.mark.parametrize(
    ("sample_ms", "expected"),
    [
        (0.001, (1000,) * 5),
        (0.25, (420,) * 5),
        (1.0, (105,) * 5),
        (10.0, (11,) * 5),
        (100.0, (2,) * 5),
        (1500.0, (2,) * 5),
        (2000.0, (2, 2, 1, 1, 1)),
        (4000.0, (1, 1, 1, 0, 0)),
        (60_000.0, (1, 1, 1, 0, 0)),
    ],
)
def test_samples_per_round(sample_ms: float, expected: tuple[int, ...]) -> None:
    assert samples_per_round(sample_ms, RULE, rounds=5) == expected


@pytest.mark.parametrize("sample_ms", [0.0, 1e-9, 0.1, 0.5, 7.0, 99.0, 1499.0])
def test_the_shared_rounds_are_enough_by_themselves_where_a_launch_takes_tenths_of_a_millisecond(sample_ms: float) -> None:
    counts = samples_per_round(sample_ms, RULE)
    assert len(counts) == ROUNDS
    assert 10 <= sum(counts) <= RULE.most
    assert sum(counts) * sample_ms >= 500.0 or sum(counts) == RULE.most
