"""Whether one measurement is faster than another: four words, with the interval they rest on, or why none can be said. Pure.

Launches of one job are not independent, so the unit is the round: two measurements of one job are compared round by round.
Two jobs have no common rounds: they get a word only where their [min, q3] intervals are clear of each other (nvbench's rule).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from profiling.records import Measurement

Word = Literal["FASTER", "SLOWER", "SAME", "UNCLEAR"]


@dataclass(frozen=True)
class Verdict:
    """What can be said of `after` against `before`. word None: nothing can, for the reason in refused.

    ratio: time of before ÷ time of after, above 1 when after is faster; low, high: the interval it lies in. ratio may be
    there without a word (two GPU models, say). basis: what the word rests on. sentence: one plain sentence that says it
    all. cautions: what weakens it, a sentence each. rounds: the medians (before_ms, after_ms) of each shared round, else ().
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
    """Judge two measurements. same_job: both are of one snapshot, and so were timed in interleaved rounds."""
    raise NotImplementedError
