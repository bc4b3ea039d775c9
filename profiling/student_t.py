"""Student's t distribution, as far as an interval on a handful of rounds needs it. Pure; there is no SciPy here."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

_MOST_DEGREES = 1000


@lru_cache(maxsize=2 * _MOST_DEGREES)
def t_quantile(probability: float, degrees: int) -> float:
    """Student's t: the value that a variable of so many degrees of freedom stays below with this probability, above 0.5.

    Exact to rounding, from the finite sums for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4). Above
    1,000 degrees the quantile of 1,000 stands in, which is larger by less than 0.2 %.
    """
    if not 0.5 <= probability < 1.0 or degrees < 1:
        raise ValueError(f"t_quantile({probability}, {degrees}) is not possible: it needs 0.5 to 1, and 1 degree or more.")
    degrees = min(degrees, _MOST_DEGREES)
    inside, low, high = 2.0 * probability - 1.0, 0.0, math.pi / 2
    while high - low > 1e-15 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _within(middle, degrees) < inside else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def _within(angle: float, degrees: int) -> float:
    """The probability that |t| is at most sqrt(degrees) · tan(angle)."""
    cosine, sine, odd = math.cos(angle), math.sin(angle), degrees % 2
    k = np.arange(2, degrees - odd, 2)
    series = 1.0 + float(np.cumprod(cosine**2 * (k / (k + 1.0) if odd else (k - 1.0) / k)).sum())
    if not odd:
        return sine * series
    return 2.0 / math.pi * (angle + (sine * cosine * series if degrees > 1 else 0.0))
