"""When enough launches were timed: the rule of NVIDIA's nvbench, asked after every interleaved round. Pure: numpy.

As nvbench/detail/stdrel_criterion.cxx has it, with its numbers: a version needs 10 samples and 0.5 s of its own time. Then it
is done as soon as its noise (standard deviation over mean of all its samples) is below 0.5 %; or has settled: the noise after
each of the last 512 samples, at least 65 of them, lies within 5 % of the noise now, as a standard deviation. It is given up
after 15 s by the host's clock. Three things differ. nvbench asks after each sample (for the second rule, each 16th), here a
round is whole. No version has more than 5,000 samples, since every one is in the record: one of less than 0.1 ms a launch may
end before its 0.5 s. And the versions of a job share 30 s, once each has its 10 samples: at its power cap a GPU's noise may go
on growing with its temperature, and nobody wants to wait 15 s for each of eight versions. Of the warm time, which nvbench takes
without any such rule, 0.2 s are enough. A screening of many configurations, of which the best are timed again by the rule, has
0.1 s of each, and at most 0.3 s with what is around the launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profiling.latency_record import FEWEST_FOR_NOISE, StopReason

STOP_WORDS: dict[StopReason | None, str] = {
    "quiet": "the noise is below 0.5 %",
    "settled": "the noise has settled",
    "time": "its time was up",
    "count": "5,000 samples are kept at most",
}
_REMEMBERED = 512
_FEWEST_REMEMBERED = 65
_SETTLED = 0.05
_SHARED_S = 30.0
WARM_S = 0.2
_SCREENING_S, _SCREENING_PATIENCE_S, _SCREENING_CAP_S = 0.1, 0.3, 3.0


@dataclass(frozen=True)
class StopRule:
    """fewest samples and least_s of launches before it may stop; quiet: the noise that is enough; cap_s and most end it.

    patience_s: when it ends once it has the fewest samples.
    """

    fewest: int = 10
    least_s: float = 0.5
    quiet: float = 0.005
    cap_s: float = 15.0
    most: int = 5_000
    patience_s: float = cap_s

    @staticmethod
    def for_job(runs: int, least_s: float = least_s) -> StopRule:
        """The rule for each of so many runs of one job."""
        return StopRule(least_s=least_s, patience_s=min(StopRule.cap_s, _SHARED_S / max(1, runs)))

    @staticmethod
    def for_screening() -> StopRule:
        """The rule for each run of a first look among many."""
        return StopRule(least_s=_SCREENING_S, patience_s=_SCREENING_PATIENCE_S, cap_s=_SCREENING_CAP_S)

    def reason(self, samples_ms: Sequence[float], elapsed_s: float, launches_per_sample: int = 1) -> StopReason | None:
        """Why there need be no more samples, or None. elapsed_s: by the host's clock, with the flushes and the queueing."""
        samples = np.asarray(samples_ms, dtype=float)
        if len(samples) >= self.fewest and samples.sum() * launches_per_sample / 1000.0 >= self.least_s:
            noise = noise_after_each(samples)
            if len(noise) and noise[-1] < self.quiet:
                return "quiet"
            if _has_settled(noise[-_REMEMBERED:]):
                return "settled"
        if len(samples) >= self.most:
            return "count"
        is_enough = len(samples) >= self.fewest and elapsed_s >= self.patience_s
        return "time" if is_enough or elapsed_s >= self.cap_s else None


def noise_after_each(samples: np.ndarray) -> np.ndarray:
    """The noise of the first 5, 6, … samples: their standard deviation, by n − 1, over their mean."""
    counts = np.arange(1, len(samples) + 1)
    centred = samples - samples.mean()
    sums, squares = np.cumsum(centred), np.cumsum(centred**2)
    variance = np.maximum(squares - sums**2 / counts, 0.0)[FEWEST_FOR_NOISE - 1 :] / (counts[FEWEST_FOR_NOISE - 1 :] - 1)
    means = (samples.mean() + sums / counts)[FEWEST_FOR_NOISE - 1 :]
    return np.sqrt(variance) / means


def _has_settled(noise: np.ndarray) -> bool:
    if len(noise) < _FEWEST_REMEMBERED or noise[-1] <= 0.0:
        return False
    around = np.sqrt(np.sum((noise - noise[-1]) ** 2) / (len(noise) - 1))
    return bool(around / noise[-1] < _SETTLED)
