"""Whether one measurement is faster than another: four words, with the interval they rest on, or why none can be said. Pure.

Launches of one job are not independent (they drift together), so no test is made on single launches.

One job: its measurements were timed in interleaved rounds, so they are compared round by round. The ratios of the rounds'
medians, as logarithms, give a t interval. FASTER or SLOWER needs 5 rounds, an interval clear of 1 and a difference of 1 %;
SAME an interval that lies within 1 %. The interval is one of 98 %, so that of two equal kernels at most 2 in 100 pairs get
FASTER or SLOWER, however much the rounds scatter; with 95 % the 1 % would have to be relied on for that.

Two jobs: they have no common rounds. The rule is NVIDIA nvbench's (python/scripts/nvbench_compare_robust.py, default
preset), on the interval from the fastest launch to the third quartile: FASTER or SLOWER where the two intervals are 0.5 %
clear of each other; SAME where they share half of the narrower one, the medians are close and neither scatters (third less
first quartile) by more than 2 % of its median. Two things differ: what counts as close is 1 % here, and FASTER and SLOWER
need it too, so that 1 % means the same in both rules; and nvbench confirms a gap in clock cycles, which needs a clock
reading a launch. What a whole job shares (temperature, clocks, other users) is in the ratio: a caution says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from profiling import words
from profiling.comparable import another_device, cautions, not_comparable, ratio_of_medians
from profiling.flags import HELD_DOWN
from profiling.launch_times import Band, LaunchTimes, launch_times
from profiling.records import Measurement
from profiling.student_t import t_quantile

Word = Literal["FASTER", "SLOWER", "SAME", "UNCLEAR"]

FEWEST_ROUNDS = 5
CONFIDENCE = 0.98
LEAST_EFFECT = 0.01
CLEAR_GAP = 0.005
LEAST_OVERLAP = 0.5
MOST_SCATTER = 0.02
_TWO_JOBS = "Two jobs share no rounds: what differed between them (temperature, clocks, other users) is in the ratio."
_PARTED = f"The file calls them one job, but they started at different moments. {_TWO_JOBS}"


@dataclass(frozen=True)
class Verdict:
    """What can be said of `after` against `before`. word None: nothing can, for the reason in refused.

    ratio: time of before ÷ time of after, above 1 when after is faster; low, high: the interval it lies in. ratio may be
    there without a word (two GPU models, say). basis: what the word rests on. sentence: one plain sentence that says it
    all. cautions: what weakens it, a sentence each. rounds: the medians (before_ms, after_ms) of each shared round, else ().
    In every sentence A is before and B is after.
    """

    word: Word | None
    ratio: float | None
    low: float | None
    high: float | None
    basis: Literal["interleaved rounds", "clear gap", "none"]
    sentence: str
    refused: str = ""
    cautions: tuple[str, ...] = ()
    rounds: tuple[tuple[float, float], ...] = ()


def verdict(before: Measurement, after: Measurement, same_job: bool) -> Verdict:
    """Judge two measurements. same_job: both are of one snapshot, and so were timed in interleaved rounds.

    Measurements that a file calls one job's but that started at different moments are judged as two jobs.
    """
    if refused := not_comparable(before, after):
        return Verdict(None, None, None, None, "none", refused, refused=refused)
    if refused := another_device(before, after):
        ratio = ratio_of_medians(before, after)
        sentence = f"{refused} {_takes(before, after)}."
        return Verdict(None, ratio, None, None, "none", sentence, refused, cautions(before, after, interleaved=False))
    interleaved = same_job and before.started_at == after.started_at
    weakened_by = cautions(before, after, interleaved)
    if interleaved:
        return _by_rounds(before, after, weakened_by)
    return _by_bands(before, after, (_PARTED if same_job else _TWO_JOBS, *weakened_by))


def warm_verdict(before: Measurement, after: Measurement, same_job: bool) -> Verdict | None:
    """Judge the warm times by the same rules; None unless both have one. Of cold against warm no word is ever given."""
    if before.warm is None or after.warm is None:
        return None
    return verdict(*(one.model_copy(update={"latency": one.warm, "with_prepass": None}) for one in (before, after)), same_job)


# The two rules


def _by_rounds(before: Measurement, after: Measurement, weakened_by: tuple[str, ...]) -> Verdict:
    """One job: a t interval on the logarithms of the ratios of the rounds' medians."""
    ours, theirs = launch_times(before.latency), launch_times(after.latency)
    at_ours, at_theirs = _shared_rounds(ours, theirs)
    rounds = tuple(zip(ours.medians_ms[at_ours].tolist(), theirs.medians_ms[at_theirs].tolist(), strict=True))
    if len(rounds) < FEWEST_ROUNDS:
        ratio = ratio_of_medians(before, after)
        count = f"{len(rounds)} {'round' if len(rounds) == 1 else 'rounds'}"
        sentence = (
            f"{_takes(before, after)}, but they share {count}, and a word needs {FEWEST_ROUNDS}: "
            "run it again on a shorter problem, which leaves time for more."
        )
        return Verdict("UNCLEAR", ratio, None, None, "none", sentence, cautions=weakened_by, rounds=rounds)
    # log a − log b, not log(a / b): swapping A and B then changes signs and nothing else.
    logs = ours.logs[at_ours] - theirs.logs[at_theirs]
    mean = float(logs.mean())
    half = t_quantile(0.5 + CONFIDENCE / 2, len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    word = _word_of_rounds(mean, half)
    ratio, low, high = math.exp(mean), math.exp(mean - half), math.exp(mean + half)
    sentence = f"{_takes(before, after)}{_of_rounds(word, logs, low, high)}{_what_to_do(word, before, after)}"
    found = (*weakened_by, *_unlike_medians(ratio, before, after))
    return Verdict(word, ratio, low, high, "interleaved rounds", sentence, cautions=found, rounds=rounds)


def _word_of_rounds(mean: float, half: float) -> Word:
    least = math.log1p(LEAST_EFFECT)
    if abs(mean) > half and abs(mean) >= least:
        return "FASTER" if mean > 0 else "SLOWER"
    return "SAME" if abs(mean) + half <= least else "UNCLEAR"


def _shared_rounds(ours: LaunchTimes, theirs: LaunchTimes) -> tuple[np.ndarray | slice, np.ndarray | slice]:
    """Where the rounds that both have stand in each, in ascending order."""
    if np.array_equal(ours.rounds, theirs.rounds):
        return slice(None), slice(None)
    _, at_ours, at_theirs = np.intersect1d(ours.rounds, theirs.rounds, assume_unique=True, return_indices=True)
    return at_ours, at_theirs


def _by_bands(before: Measurement, after: Measurement, weakened_by: tuple[str, ...]) -> Verdict:
    """Two jobs: nvbench's rule on the intervals from the fastest launch to the third quartile."""
    ours, theirs = Band.of(before.latency), Band.of(after.latency)
    word = _word_of_bands(ours, theirs)
    sentence = f"{_takes(before, after)}{_of_bands(word, ours, theirs)}{_what_to_do(word, before, after, two_jobs=True)}"
    return Verdict(
        word,
        ours.median_ms / theirs.median_ms,
        ours.low_ms / theirs.high_ms,
        ours.high_ms / theirs.low_ms,
        "clear gap" if word in ("FASTER", "SLOWER") else "none",
        sentence,
        cautions=weakened_by,
    )


def _word_of_bands(ours: Band, theirs: Band) -> Word:
    quicker, slower = sorted((ours, theirs), key=lambda band: band.median_ms)
    apart = slower.median_ms / quicker.median_ms - 1.0
    if slower.low_ms / quicker.high_ms - 1.0 >= CLEAR_GAP and apart >= LEAST_EFFECT:
        return "FASTER" if quicker is theirs else "SLOWER"
    steady = max(ours.scatter, theirs.scatter) <= MOST_SCATTER
    close = apart <= LEAST_EFFECT and _overlap(ours, theirs) >= LEAST_OVERLAP
    return "SAME" if steady and close else "UNCLEAR"


def _overlap(ours: Band, theirs: Band) -> float:
    """How much of the narrower band lies within the other; a band of no width is in it or not."""
    shared = min(ours.high_ms, theirs.high_ms) - max(ours.low_ms, theirs.low_ms)
    narrower = min(ours.high_ms - ours.low_ms, theirs.high_ms - theirs.low_ms)
    if narrower > 0.0:
        return shared / narrower
    return 1.0 if shared >= 0.0 else 0.0


# What is said


def _takes(before: Measurement, after: Measurement) -> str:
    ours, theirs = (words.milliseconds(launch_times(one.latency).band.median_ms) for one in (before, after))
    return f"{'Warm, ' if after.latency.mode == 'warm' else ''}B takes {theirs} where A takes {ours}"


def _of_rounds(word: Word, logs: np.ndarray, low: float, high: float) -> str:
    count = len(logs)
    if word in ("FASTER", "SLOWER"):
        agree = int(np.sum(logs > 0 if word == "FASTER" else logs < 0))
        return f"; all {count} rounds agree." if agree == count else f"; {agree} of {count} rounds agree."
    if word == "SAME":
        return f"; over {count} rounds they lie within {100 * LEAST_EFFECT:.0f} % of each other."
    span = f"between {words.ratio(low)} and {words.ratio(high)}"
    if low > 1.0 or high < 1.0:
        apart = 100 * math.expm1(abs(float(logs.mean())))
        return f"; the {count} rounds agree on {apart:.1f} %, less than the {100 * LEAST_EFFECT:.0f} % that a word needs."
    return f"; the {count} rounds put the ratio {span}, so either may be faster."


def _of_bands(word: Word, ours: Band, theirs: Band) -> str:
    if word in ("FASTER", "SLOWER"):
        gap = max(ours.low_ms / theirs.high_ms, theirs.low_ms / ours.high_ms) - 1.0
        slower = "A" if word == "FASTER" else "B"
        return f"; the fastest launch of {slower} is {100 * gap:.1f} % above the other's third quartile."
    if word == "SAME":
        return f"; the medians lie within {100 * LEAST_EFFECT:.0f} % and the launches overlap."
    if max(ours.scatter, theirs.scatter) > MOST_SCATTER and _overlap(ours, theirs) > 0.0:
        side, scatter = max((("A", ours.scatter), ("B", theirs.scatter)), key=lambda one: one[1])
        return f"; the launches overlap, and the middle half of {side}'s spreads over {100 * scatter:.1f} % of its median."
    if _overlap(ours, theirs) <= 0.0:
        return f"; they are clear of each other, but not by the {100 * LEAST_EFFECT:.0f} % that a word needs."
    return "; the launches overlap, and are not alike."


def _what_to_do(word: Word, before: Measurement, after: Measurement, two_jobs: bool = False) -> str:
    if word != "UNCLEAR":
        return ""
    if two_jobs and _distinct(before) != _distinct(after):
        return " Time both in one job, where they meet the same clocks round by round."
    held = any(flag.name in HELD_DOWN for one in (before, after) for flag in one.flags)
    if held:
        return " Run it again with the clocks locked below the limit that held them down (nvidia-smi --lock-gpu-clocks)."
    return " Run it again with the clocks locked (nvidia-smi --lock-gpu-clocks) and nothing else on the GPU."


def _distinct(one: Measurement) -> tuple[object, ...]:
    """What tells two requests of one job from each other."""
    return one.request.kernel, one.request.precision, one.tiles


def _unlike_medians(ratio: float, before: Measurement, after: Measurement) -> Iterable[str]:
    """The round is the unit; where it makes a difference, that is said."""
    plain = ratio_of_medians(before, after)
    if abs(math.log(plain) - math.log(ratio)) >= math.log1p(LEAST_EFFECT):
        yield f"The medians of all launches give {words.ratio(plain)}; the verdict goes round by round."
