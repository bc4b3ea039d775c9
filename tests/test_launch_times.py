"""Bands and medians of rounds against numpy one by one, a verdict against one that reads its latencies anew; what is kept."""

from __future__ import annotations

import gc
import math

import numpy as np
import pytest

from profiling import launch_times as module
from profiling.latency_record import Latency
from profiling.launch_times import Band, launch_times
from profiling.record_types import Array
from profiling.student_t import t_quantile
from profiling.verdict import CONFIDENCE, FEWEST_ROUNDS, verdict
from tests import records_for_tests as records


def latency(samples: np.ndarray, turns: np.ndarray) -> Latency:
    return Latency(provenance="measured", mode="cold", samples_ms=Array.of(samples), round_of=Array.of(turns, "<i4"))


def random_latency(rng: np.random.Generator) -> Latency:
    """Few launches or many, in rounds of one or of many, with gaps and ties."""
    n = int(rng.integers(1, 400))
    turns = np.sort(rng.integers(0, int(rng.integers(1, 2 * n + 1)), n))
    samples = np.abs(1.0 + rng.choice([1e-4, 0.005, 0.2]) * rng.standard_normal(n)) + 1e-6
    return latency(np.round(samples, 3) + 1e-3 if rng.random() < 0.3 else samples, turns)


@pytest.fixture
def pairs() -> list[tuple[Latency, Latency]]:
    rng = np.random.default_rng(7)
    return [(random_latency(rng), random_latency(rng)) for _ in range(300)]


def medians(one: Latency) -> dict[int, float]:
    samples, turns = one.samples_ms.numpy(), one.round_of.numpy()
    return {int(number): float(np.median(samples[turns == number])) for number in np.unique(turns)}


def test_every_round_has_its_median_bit_for_bit(pairs):
    for one in (one for pair in pairs for one in pair):
        found = launch_times(one)
        assert dict(zip(found.rounds.tolist(), found.medians_ms.tolist(), strict=True)) == medians(one)
        assert list(found.rounds) == sorted(found.rounds)
        assert found.logs.tolist() == [math.log(median) for median in found.medians_ms.tolist()]


def test_a_band_is_that_of_its_quantiles(pairs):
    for one, _ in pairs:
        samples = one.samples_ms.numpy()
        q1, median, q3 = (float(np.quantile(samples, q)) for q in (0.25, 0.5, 0.75))
        assert Band.of(one) == Band(float(samples.min()), median, q3, (q3 - q1) / median)
        assert launch_times(one).band.median_ms == one.median_ms


def test_a_verdict_by_rounds_is_that_of_the_rounds_one_by_one(pairs):
    judged = 0
    for before, after in pairs:
        ours, theirs = medians(before), medians(after)
        rounds = tuple((ours[number], theirs[number]) for number in sorted(ours.keys() & theirs.keys()))
        found = verdict(*(records.on_gpu("v2", latency=one) for one in (before, after)), same_job=True)
        if before == after:
            continue
        assert found.rounds == rounds
        if len(rounds) < FEWEST_ROUNDS:
            assert (found.word, found.low) == ("UNCLEAR", None)
            continue
        logs = np.array([math.log(a) - math.log(b) for a, b in rounds])
        half = t_quantile(0.5 + CONFIDENCE / 2, len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
        mean = float(logs.mean())
        assert (found.ratio, found.low, found.high) == (math.exp(mean), math.exp(mean - half), math.exp(mean + half))
        judged += 1
    assert judged > 100


def test_what_is_remembered_is_of_this_latency_and_goes_with_it():
    samples = np.array([1.0, 2.0, 3.0])
    one = latency(samples, np.zeros(3))
    assert launch_times(one) is launch_times(one)
    other = one.model_copy(update={"samples_ms": Array.of(2 * samples)})
    assert launch_times(other).band.median_ms == 2 * launch_times(one).band.median_ms
    known = {id(one), id(other)}
    assert known <= set(module._KNOWN)
    del one, other
    gc.collect()
    assert not known & set(module._KNOWN)
