"""Verdicts: the words against simulated jobs whose truth is known, what is refused, what weakens, and t against its tables."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.problem import AttentionProblem, Precision
from profiling.record_types import Array
from profiling.records import Flag, Latency, Measurement
from profiling.snapshot import read
from profiling.student_t import t_quantile
from profiling.verdict import Band, Verdict, verdict, warm_verdict
from tests import records_for_tests as records

GALLERY = Path(__file__).parents[1] / "app" / "gallery"
OPPOSITE = {"FASTER": "SLOWER", "SLOWER": "FASTER", "SAME": "SAME", "UNCLEAR": "UNCLEAR", None: None}
LATER = "2026-11-29T14:00:00+00:00"
PLAIN = records.on_gpu("v2", flags=())


def timed(samples: object, rounds: object, like: Measurement = PLAIN, **changes: object) -> Measurement:
    """A measurement with these samples, unlike every other one by its duration."""
    latency = Latency(provenance="measured", mode="cold", samples_ms=Array.of(samples), round_of=Array.of(rounds, "<i4"))
    return like.model_copy(update={"latency": latency, "duration_s": float(np.sum(samples)), **changes})


def of_rounds(medians: list[float], a_round: int = 3, **changes: object) -> Measurement:
    """A measurement whose rounds have these medians exactly."""
    return timed(np.repeat(medians, a_round), np.repeat(np.arange(len(medians)), a_round), **changes)


def both_ways(before: Measurement, after: Measurement, same_job: bool = True) -> Verdict:
    """The verdict, once it was seen that swapping the two turns it round and changes nothing else."""
    found, turned = verdict(before, after, same_job), verdict(after, before, same_job)
    assert turned.word == OPPOSITE[found.word]
    if found.ratio is not None:
        assert turned.ratio == pytest.approx(1 / found.ratio, rel=1e-12)
    if found.low is not None:
        assert (turned.low, turned.high) == (pytest.approx(1 / found.high, rel=1e-12), pytest.approx(1 / found.low, rel=1e-12))
        assert found.low <= found.ratio <= found.high
    return found


# Jobs whose truth is known: launches scatter, the clock drifts slowly (AR(1)), a round and a job each have an effect.


def drift(rng: np.random.Generator, count: int, stay: float = 0.98) -> np.ndarray:
    """A stationary AR(1) series of unit variance."""
    steps = rng.standard_normal(count) * math.sqrt(1 - stay**2)
    series = np.empty(count)
    level = rng.standard_normal()
    for place in range(count):
        level = stay * level + steps[place]
        series[place] = level
    return series


def one_job(rng: np.random.Generator, effect: float, run_sd: float, rounds: int = 5, a_round: int = 60) -> list[Measurement]:
    """Two kernels timed in interleaved rounds, the second slower by effect; 80 % of a round's variance is shared by both."""
    moved = 0.003 * drift(rng, rounds * 2 * a_round) + rng.normal(0, run_sd)
    shared = np.repeat(rng.normal(0, run_sd * math.sqrt(0.8), rounds), 2 * a_round)
    own = np.repeat(rng.normal(0, run_sd * math.sqrt(0.2), 2 * rounds), a_round)
    noise = 0.004 * np.abs(rng.standard_normal(len(moved)))
    levels = (2.0 * (1 + moved + shared + own + noise)).reshape(rounds, 2, a_round)
    turns = np.repeat(np.arange(rounds), a_round)
    return [timed(levels[:, which].ravel() * (1 + effect * which), turns) for which in (0, 1)]


def two_jobs(rng: np.random.Generator, effect: float, run_sd: float) -> list[Measurement]:
    """Each kernel timed in a job of its own: nothing is shared."""
    return [one_job(rng, 0.0, run_sd)[0], one_job(rng, effect, run_sd)[1]]


def words(make: Callable[..., list[Measurement]], effect: float, run_sd: float, trials: int, seed: int) -> Counter:
    rng = np.random.default_rng(seed)
    same_job = make is one_job
    return Counter(verdict(*make(rng, effect, run_sd), same_job).word for _ in range(trials))


@pytest.mark.parametrize("run_sd", [0.002, 0.008])
def test_equal_kernels_of_one_job_are_hardly_ever_told_apart(run_sd: float) -> None:
    found = words(one_job, 0.0, run_sd, 200, seed=1)
    assert found["FASTER"] + found["SLOWER"] <= 0.02 * 200, found
    assert found["SAME"] >= 150 or run_sd > 0.002, found


@pytest.mark.parametrize("run_sd", [0.002, 0.008])
def test_five_percent_more_work_is_found(run_sd: float) -> None:
    assert words(one_job, 0.05, run_sd, 100, seed=2)["SLOWER"] >= 95


def test_equal_kernels_of_two_jobs_with_locked_clocks_are_not_told_apart() -> None:
    found = words(two_jobs, 0.0, 0.002, 150, seed=3)
    assert found["FASTER"] + found["SLOWER"] == 0, found


@pytest.mark.long
@pytest.mark.parametrize(("make", "run_sd", "most"), [(one_job, 0.002, 0.02), (one_job, 0.008, 0.02), (two_jobs, 0.002, 0.02)])
def test_equal_kernels_many_times(make: Callable[..., list[Measurement]], run_sd: float, most: float) -> None:
    found = words(make, 0.0, run_sd, 4000, seed=4)
    assert found["FASTER"] + found["SLOWER"] <= most * 4000, found


@pytest.mark.long
def test_two_jobs_with_free_clocks_are_what_their_caution_says() -> None:
    """Nothing within a job shows what the whole job shares: nvbench's rule is wrong now and then, and a caution says why."""
    found = words(two_jobs, 0.0, 0.008, 4000, seed=5)
    assert found["FASTER"] + found["SLOWER"] <= 0.08 * 4000, found


@pytest.mark.parametrize("scatter", [0.003, 0.015, 0.05])
def test_equal_kernels_stay_equal_however_much_rounds_scatter(scatter: float) -> None:
    """The rounds of a GPU at its power cap scatter by percents: the interval alone must keep the promise."""
    rng = np.random.default_rng(6)
    trials = 400
    found = Counter(
        verdict(of_rounds(list(2 * np.exp(rng.normal(0, scatter, 5)))), of_rounds([2.0] * 5), True).word for _ in range(trials)
    )
    assert found["FASTER"] + found["SLOWER"] <= 0.03 * trials, found  # 2 % expected at most, and 400 trials scatter


# The rule of one job


def test_five_rounds_that_agree_are_faster_with_their_interval() -> None:
    before, after = [2.21, 2.20, 2.22, 2.21, 2.21], [1.77, 1.77, 1.78, 1.76, 1.77]
    found = both_ways(of_rounds(before), of_rounds(after))
    logs = [math.log(a / b) for a, b in zip(before, after, strict=True)]
    half = 3.746947387979197 * statistics.stdev(logs) / math.sqrt(5)
    assert found.word == "FASTER"
    assert found.basis == "interleaved rounds"
    assert found.ratio == pytest.approx(math.exp(statistics.mean(logs)))
    assert (found.low, found.high) == (
        pytest.approx(math.exp(statistics.mean(logs) - half)),
        pytest.approx(math.exp(statistics.mean(logs) + half)),
    )
    assert found.rounds == tuple(zip(before, after, strict=True))
    assert found.sentence == "B takes 1.77 ms where A takes 2.21 ms; all 5 rounds agree."
    assert found.cautions == ()


def test_a_difference_below_one_percent_is_same_when_the_rounds_agree() -> None:
    found = both_ways(of_rounds([2.0, 2.001, 2.0, 1.999, 2.0]), of_rounds([2.01, 2.011, 2.01, 2.009, 2.01]))
    assert found.word == "SAME"
    assert "over 5 rounds they lie within 1 % of each other" in found.sentence


def test_rounds_that_disagree_are_unclear_with_what_to_do() -> None:
    found = both_ways(of_rounds([2.0, 2.1, 1.9, 2.2, 2.0]), of_rounds([2.0] * 5))
    assert found.word == "UNCLEAR"
    assert "so either may be faster. Run it again with the clocks locked" in found.sentence


def test_a_clear_difference_below_one_percent_is_not_faster() -> None:
    found = both_ways(
        of_rounds([2.0 * 1.008 * (1 + jitter) for jitter in (0.003, -0.003, 0.0, 0.002, -0.002)]), of_rounds([2.0] * 5)
    )
    assert found.word == "UNCLEAR"
    assert found.low > 1.0
    assert "the 5 rounds agree on 0.8 %, less than the 1 % that a word needs" in found.sentence


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_fewer_than_five_rounds_have_no_other_word_than_unclear(count: int) -> None:
    found = both_ways(of_rounds([2.0] * count), of_rounds([1.0] * count))
    assert found.word == "UNCLEAR"
    assert found.ratio == 2.0
    assert found.low is None
    assert f"they share {count} round" in found.sentence
    assert "shorter problem" in found.sentence


def test_only_rounds_that_both_have_are_paired() -> None:
    early = timed([2.0] * 7, range(7))
    late = timed([1.0] * 7, range(3, 10))
    assert verdict(early, late, True).rounds == ((2.0, 1.0),) * 4
    uneven = timed([1.0, 1.0, 2.0, 3.0, 4.0, 4.0, 5.0], [0, 0, 1, 2, 3, 3, 4])
    assert verdict(of_rounds([1.0, 2.0, 3.0, 4.0, 5.0]), uneven, True).rounds == tuple(
        (x, x) for x in (1.0, 2.0, 3.0, 4.0, 5.0)
    )


def test_where_the_medians_of_all_launches_say_something_else_it_is_said() -> None:
    before = timed(np.repeat([3.0, 1.0, 1.0, 1.0, 1.0], [1, 60, 1, 1, 1]), np.repeat(np.arange(5), [1, 60, 1, 1, 1]))
    assert any("The medians of all launches give 1.000×" in one for one in verdict(before, of_rounds([1.0] * 5), True).cautions)


def test_measurements_that_started_apart_are_no_job_whatever_the_file_says() -> None:
    later = of_rounds([1.0] * 5, started_at=LATER)
    found = both_ways(of_rounds([2.0] * 5), later, same_job=True)
    assert found.basis == "clear gap"
    assert "started at different moments. Two jobs share no rounds" in found.cautions[0]


# The rule of two jobs: nvbench's


def spread_over(low: float, high: float, count: int = 101, **changes: object) -> Measurement:
    return timed(np.linspace(low, high, count), np.repeat(0, count), **changes)


def test_bands_are_from_the_fastest_launch_to_the_third_quartile() -> None:
    band = Band.of(timed([4.0, 1.0, 2.0, 5.0, 3.0], [0] * 5).latency)
    assert (band.low_ms, band.median_ms, band.high_ms) == (1.0, 3.0, 4.0)
    assert band.scatter == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [
        ((2.0, 2.1), (1.0, 1.1), "FASTER"),
        ((2.0, 2.01), (2.0, 2.01), "SAME"),
        ((2.0, 2.01), (2.003, 2.013), "SAME"),
        ((2.0, 2.2), (2.0, 2.2), "UNCLEAR"),  # alike, but either scatters by 5 %
        ((2.0, 2.02), (1.98, 2.01), "UNCLEAR"),  # they share less than half of the narrower one
        ((2.0, 2.001), (1.995, 1.996), "UNCLEAR"),  # clear of each other by less than a word needs
        ((2.0, 2.001), (1.985, 1.986), "UNCLEAR"),  # clear by 0.7 %, the medians by less than 1 %
        ((2.0, 2.001), (1.97, 1.971), "FASTER"),
    ],
)  # fmt: skip
def test_two_jobs_get_nvbenchs_words(before: tuple[float, float], after: tuple[float, float], word: str) -> None:
    found = both_ways(spread_over(*before), spread_over(*after, started_at=LATER), same_job=False)
    assert found.word == word
    assert "Two jobs share no rounds" in found.cautions[0]
    assert found.rounds == ()


def test_two_jobs_that_are_unclear_belong_in_one_job_where_that_is_possible() -> None:
    wide, wider = spread_over(2.0, 2.2), spread_over(2.0, 2.3)
    other = wider.model_copy(update={"request": records.on_gpu("v3").request})
    assert "Time both in one job" in verdict(wide, other, False).sentence
    assert "Run it again with the clocks locked" in verdict(wide, wider, False).sentence


# What is refused


def test_the_same_measurement_is_not_compared_with_itself() -> None:
    assert verdict(PLAIN, PLAIN.model_copy(), True).refused == "A and B are the same measurement."


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("batch", 4, "batch is 4 in A and 1 in B"),
        ("num_heads", 32, "num_heads is 32 in A and 16 in B"),
        ("seq_len_q", 4096, "seq_len_q is 4,096 in A and 16,384 in B"),
        ("seq_len_kv", 4096, "seq_len_kv is 4,096 in A and 16,384 in B"),
        ("head_dim", 64, "head_dim is 64 in A and 128 in B"),
        ("num_kv_heads", 4, "num_kv_heads is 4 in A and 16 in B"),
        ("causal", False, "causal is no in A and yes in B"),
    ],
)
def test_different_problems_are_refused_with_both_values(field: str, value: object, said: str) -> None:
    problem = AttentionProblem(**{**records.LONG.model_dump(), field: value})
    other = PLAIN.model_copy(update={"request": PLAIN.request.model_copy(update={"problem": problem})})
    found = both_ways(other, PLAIN, same_job=False)
    assert (found.word, found.ratio) == (None, None)
    assert found.refused == f"A and B compute different problems: {said}."


def with_device(one: Measurement, **changes: object) -> Measurement:
    environment = one.environment
    device = environment.device.model_copy(update=changes)
    return one.model_copy(update={"environment": environment.model_copy(update={"device": device})})


def test_another_gpu_model_gets_a_ratio_and_no_word() -> None:
    found = both_ways(of_rounds([2.0] * 5), with_device(of_rounds([1.0] * 5), name="NVIDIA H100"), same_job=False)
    assert (found.word, found.ratio, found.low, found.basis) == (None, 2.0, None, "none")
    assert found.refused == "A ran on NVIDIA H200, B on NVIDIA H100: no word is given across GPU models."


def test_an_interpreters_time_is_no_gpu_time() -> None:
    interpreted = records.in_interpreter("v2")
    other = interpreted.model_copy(update={"duration_s": 9.0})
    assert "A was interpreted, B was measured" in verdict(interpreted, PLAIN, False).refused
    assert "An interpreter's time says nothing" in verdict(interpreted, other, False).refused


def test_another_way_of_timing_is_another_quantity() -> None:
    warm = PLAIN.model_copy(update={"latency": PLAIN.latency.model_copy(update={"mode": "wall"})})
    assert verdict(PLAIN, warm, False).refused == "A was timed cold, B wall: these are two quantities."


def test_warm_times_are_judged_by_the_same_rules_and_never_against_cold_ones() -> None:
    """A kernel may be faster from memory and slower from the cache: two quantities, a word each."""

    def with_warm(cold: list[float], warm: list[float], **changes: object) -> Measurement:
        times = of_rounds(warm).latency.model_copy(update={"mode": "warm", "launches_per_sample": 20})
        return of_rounds(cold, **changes).model_copy(update={"warm": times})

    before, after = with_warm([2.0] * 5, [1.0] * 5), with_warm([1.0] * 5, [1.5] * 5)
    cold, warm = verdict(before, after, True), warm_verdict(before, after, True)
    assert (cold.word, warm.word) == ("FASTER", "SLOWER")
    assert warm.ratio == pytest.approx(1 / 1.5)
    assert warm.sentence.startswith("Warm, B takes 1.50 ms where A takes 1.00 ms")
    assert warm_verdict(before, after, False).basis == "clear gap"
    assert warm_verdict(before, of_rounds([1.0] * 5), True) is None
    mixed = verdict(before, after.model_copy(update={"latency": after.warm}), True)
    assert (mixed.word, mixed.ratio, mixed.refused) == (None, None, "A was timed cold, B warm: these are two quantities.")


@pytest.mark.parametrize(
    ("without", "said"),
    [
        (records.failed("v3"), "it failed (compile)"),
        (records.on_gpu("v3", passed=False), "a wrong output has no speed"),
        (records.on_gpu("v3", latency=None), "it was not timed"),
    ],
)
def test_what_has_no_time_is_not_compared(without: Measurement, said: str) -> None:
    assert said in verdict(PLAIN, without, True).refused
    assert verdict(PLAIN, without, True).refused.startswith("B has no time")
    assert verdict(without, PLAIN, True).refused.startswith("A has no time")


def test_an_implausible_time_is_not_compared() -> None:
    flag = Flag(name="implausible", severity="bad", short="implausible", sentence="A launch took no time at all.")
    found = verdict(PLAIN, of_rounds([1.0] * 5, flags=(flag,)), False)
    assert (found.word, found.ratio) == (None, None)
    assert found.refused == "The time of B cannot be right. A launch took no time at all."


# What is allowed, and what weakens it


@pytest.mark.parametrize("changes", [{"kernel": "v3"}, {"precision": Precision(dtype="fp16")}, {"tiles": None}, {"seed": 7}])
def test_kernels_formats_and_tiles_are_what_is_compared(changes: dict[str, object]) -> None:
    after = of_rounds([1.0] * 5)
    after = after.model_copy(update={"request": after.request.model_copy(update=changes)})
    assert verdict(of_rounds([2.0] * 5), after, True).word == "FASTER"


def test_two_gpus_of_one_model_and_other_software_are_cautions() -> None:
    after = with_device(of_rounds([1.0] * 5), id="GPU-99990000-0000-0000-0000-000000000000")
    after = after.model_copy(update={"environment": after.environment.model_copy(update={"triton_version": "3.6.0"})})
    found = verdict(of_rounds([2.0] * 5), after, False)
    assert found.word == "FASTER"
    assert "Two GPUs of one model: A ran on GPU-487a, B on GPU-9999." in found.cautions
    assert "The Triton versions differ: 3.7.1 in A, 3.6.0 in B." in found.cautions


def test_flags_that_ask_for_caution_are_said_once_with_their_side() -> None:
    held = Flag(name="throttled", severity="caution", short="power cap", sentence="The clocks were held down.")
    shared = Flag(name="busy", severity="caution", short="GPU shared", sentence="1 other process held this GPU.")
    found = verdict(of_rounds([2.0] * 5, flags=(held,)), of_rounds([1.0] * 5, flags=(held, shared)), True)
    assert found.cautions == ("A and B: The clocks were held down.", "B: 1 other process held this GPU.")


def test_few_samples_are_a_caution_once() -> None:
    few = Flag(name="too few samples", severity="caution", short="5 samples", sentence="Only 5 launches were timed.")
    found = verdict(of_rounds([2.0] * 5, a_round=1, flags=(few,)), of_rounds([1.0] * 5), True)
    assert found.cautions == ("A: only 5 launches timed; a median of fewer than 10 can be far off.",)


def test_the_fp8_pre_pass_is_said_with_the_ratio_that_includes_it() -> None:
    after = of_rounds([1.0] * 5, like=records.on_gpu("v3", fp8=True, flags=()), with_prepass=of_rounds([1.6] * 5).latency)
    found = verdict(of_rounds([2.0] * 5), after, True)
    assert (found.word, found.ratio) == ("FASTER", 2.0)
    assert found.cautions == ("The verdict is on the kernels alone; B needs an FP8 pre-pass, with which the ratio is 1.25×.",)


# Both ways, whatever the samples


TIMES = st.lists(st.floats(1e-3, 1e4), min_size=1, max_size=30)


@settings(max_examples=150, deadline=None)
@given(TIMES, TIMES, st.integers(1, 8), st.booleans())
def test_swapping_turns_the_word_round(before: list[float], after: list[float], rounds: int, same_job: bool) -> None:
    both_ways(
        timed(before, np.sort(np.arange(len(before)) % rounds), duration_s=1.0),
        timed(after, np.sort(np.arange(len(after)) % rounds), duration_s=2.0),
        same_job,
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(st.floats(-0.02, 0.02), min_size=5, max_size=8), st.floats(-0.03, 0.03))
def test_words_near_their_borders_turn_round_too(jitter: list[float], shift: float) -> None:
    before, after = [2.0 * (1 + shift + one) for one in jitter], [2.0] * len(jitter)
    found = both_ways(of_rounds(before), of_rounds(after))
    if found.word == "FASTER":
        assert found.low > 1.0
        assert found.ratio >= 1.01
    if found.word == "SAME":
        assert 1 / 1.01 <= found.low <= found.high <= 1.01


# Real jobs


def test_two_real_jobs_of_the_same_kernel_are_never_told_apart() -> None:
    """Recordings 1 and 3, and 2 and 4, hold native, v1 and v2 on one problem each, timed in two jobs on one H200."""
    found = {path.name[:2]: read(path.read_bytes()).measurements for path in GALLERY.glob("0[1-4]-*.json")}
    pairs = [(found[a][place], found[b][place]) for a, b in (("01", "03"), ("02", "04")) for place in range(3)]
    assert {both_ways(before, after, same_job=False).word for before, after in pairs} <= {"SAME", "UNCLEAR"}


def test_the_two_rules_never_contradict_each_other_on_real_jobs() -> None:
    for path in GALLERY.glob("*.json"):
        measurements = read(path.read_bytes()).measurements
        for place, before in enumerate(measurements):
            for after in measurements[place + 1 :]:
                one, two = both_ways(before, after), both_ways(before, after, same_job=False)
                assert {one.word, two.word} != {"FASTER", "SLOWER"}


# Student's t


@pytest.mark.parametrize(
    ("probability", "degrees", "value"),
    [
        (0.975, 1, 12.706204736432095),
        (0.975, 2, 4.302652729911275),
        (0.975, 3, 3.182446305284263),
        (0.975, 4, 2.7764451051977987),
        (0.99, 4, 3.746947387979197),
        (0.99, 5, 3.3649299989072756),
        (0.995, 9, 3.2498355440153697),
        (0.9, 3, 1.6377443536962102),
        (0.975, 30, 2.0422724563012373),
        (0.975, 120, 1.9799304050824402),
        (0.5, 7, 0.0),
    ],
)
def test_quantiles_are_those_of_the_tables(probability: float, degrees: int, value: float) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(value, rel=1e-9, abs=1e-12)


def test_quantiles_fall_towards_the_normals() -> None:
    values = [t_quantile(0.99, degrees) for degrees in (1, 2, 3, 4, 5, 10, 50, 200, 1000, 10**9)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(statistics.NormalDist().inv_cdf(0.99), rel=0.002)


@pytest.mark.parametrize(("probability", "degrees"), [(0.4, 3), (1.0, 3), (0.9, 0)])
def test_impossible_quantiles_are_refused(probability: float, degrees: int) -> None:
    with pytest.raises(ValueError, match="is not possible"):
        t_quantile(probability, degrees)
