"""Latency: every launch that was timed, one by one. Pure: pydantic and numpy."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from kernels.problem import Frozen
from profiling.record_types import Array, Count

StopReason = Literal["quiet", "settled", "time", "count"]
FEWEST_FOR_NOISE = 5
LONGEST_SERIES = 50_000
_MOST_IN_A_GRAPH = 10_000


class Latency(Frozen):
    """Every launch that was timed, in order. round_of says for each sample in which interleaved round it was taken.

    mode 'cold': the L2 cache was flushed before each launch, CUDA events around it; 'warm': a CUDA graph of
    launches_per_sample launches was replayed, the cache as the last one left it, CUDA events around the replay: a sample is
    the time of one of its launches; 'wall': a clock around the interpreter, which is no GPU time. Cold and warm are two
    quantities. The first launch is never among them.
    stopped: why there are no more, by profiling.stop_rule; None where no rule was asked. exposed: how many samples the GPU
    began before the host had queued them whole, so that launch overhead may be in them. outputs_checked: of how many samples
    the output was looked at and was as fresh as it should be. None: not known, of schema 3 and older.
    """

    provenance: Literal["measured", "interpreted"]
    mode: Literal["cold", "warm", "wall"]
    samples_ms: Array
    round_of: Array
    stopped: StopReason | None = None
    launches_per_sample: Annotated[int, Field(ge=1, le=_MOST_IN_A_GRAPH)] = 1
    exposed: Count | None = None
    outputs_checked: Count | None = None

    @model_validator(mode="after")
    def _launches(self) -> Latency:
        if (self.provenance == "measured") != (self.mode != "wall"):
            raise ValueError(f"a latency that is {self.provenance}, in mode {self.mode}, is not possible.")
        if self.launches_per_sample != 1 and self.mode != "warm":
            raise ValueError(f"{self.launches_per_sample:,} launches a sample are not possible in mode {self.mode}.")
        n = self.samples_ms.series("samples_ms")
        if not 1 <= n <= LONGEST_SERIES or self.round_of.series("round_of") != n:
            raise ValueError(f"{n:,} launches in {self.round_of.shape} rounds are not possible: a launch is of one round.")
        samples, rounds = self.samples_ms.numpy(), self.round_of.numpy()
        if not 1e-12 <= samples.min() <= samples.max() <= 1e9:
            raise ValueError(f"a launch of {samples.min():.3g} to {samples.max():.3g} ms is not possible.")
        if self.round_of.dtype not in ("<i4", "<i8") or rounds[0] < 0 or (np.diff(rounds) < 0).any():
            raise ValueError("rounds that are not whole numbers from 0 upwards, in order, are not possible.")
        for name in ("exposed", "outputs_checked"):
            if (getattr(self, name) or 0) > n:
                raise ValueError(f"{name} = {getattr(self, name):,} is not possible with {n:,} samples.")
        return self

    @property
    def n(self) -> int:
        """How many samples there are, which is how many launches unless launches_per_sample says otherwise."""
        return self.samples_ms.shape[0]

    @property
    def noise(self) -> float | None:
        """Standard deviation of the samples over their mean, as nvbench has it; None of fewer than five."""
        samples = self.samples_ms.numpy().astype(float)
        return float(samples.std(ddof=1) / samples.mean()) if len(samples) >= FEWEST_FOR_NOISE else None

    def quantile_ms(self, q: float) -> float:
        """The q-quantile of the samples; 0.5 is the median."""
        return float(np.quantile(self.samples_ms.numpy(), q))

    @property
    def median_ms(self) -> float:
        """The number to quote."""
        return self.quantile_ms(0.5)
