"""What a job finds out about a backward: how far off its gradients are, where a training step's time goes. Pure: pydantic."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from kernels.problem import Frozen
from profiling.latency_record import Latency
from profiling.record_types import Count, Error, Missing, Text

NAMES = ("dq", "dk", "dv")
PART_NAMES = ("forward", "backward", "preprocess")


class GradientError(Frozen):
    """How far one gradient is from a float64 reference: ‖found − ref‖ / ‖ref‖ over the heads checked, and its largest distance.

    None where it is not finite, or has no reference to be measured by. allowed_because derives the tolerance.
    end_to_end_relative_error: with FP8, against the gradient of a forward that quantises nothing; it is told, not judged.
    """

    relative_error: Error | None
    max_abs_error: Error | None
    allowed_relative_error: Error
    allowed_because: Text
    non_finite: Count
    end_to_end_relative_error: Error | None = None

    @property
    def passed(self) -> bool:
        """Whether it is finite and its error allowed."""
        return self.non_finite == 0 and self.relative_error is not None and self.relative_error <= self.allowed_relative_error


class GradientAccuracy(Frozen):
    """dq, dk and dv of the loss sum(out ∘ d_out), d_out N(0, 1), against a float64 reference computed in the same job.

    The reference reads the forward's own output and log-sum-exp with FP8, so that this is the backward's own error.
    heads_checked: key-value heads, over all batch entries, with all their query heads, rows and keys.
    """

    provenance: Literal["measured", "interpreted"]
    dq: GradientError
    dk: GradientError
    dv: GradientError
    heads_checked: Count
    heads_total: Count
    passed: bool
    missing: Missing = {}

    @model_validator(mode="after")
    def _passed_by_its_own_numbers(self) -> GradientAccuracy:
        if self.heads_checked > self.heads_total:
            raise ValueError(f"{self.heads_checked:,} heads checked of {self.heads_total:,} is not possible.")
        if self.passed and not (self.heads_checked and all(found.passed for _, found in self.named)):
            raise ValueError("gradients that passed with an error that is not allowed are not possible.")
        return self

    @property
    def named(self) -> tuple[tuple[str, GradientError], ...]:
        """All three, with their names."""
        return tuple((name, getattr(self, name)) for name in NAMES)

    @property
    def worst(self) -> tuple[str, GradientError]:
        """The one that uses most of what it is allowed, with its name."""
        return max(self.named, key=lambda one: _share(one[1]))


def _share(found: GradientError) -> float:
    if found.relative_error is None or found.non_finite:
        return float("inf")
    return found.relative_error / max(found.allowed_relative_error, 1e-300)


class Parts(Frozen):
    """A training step's parts, each timed alone in the rounds of the step: the L2 cache is flushed before each, as before it.

    backward is the whole backward; preprocess what it begins with, delta = rowsum(dO ∘ O), None where it is no step of its own.
    missing: why one of them is None. The parts' sum is not the step's time: between parts the cache keeps nothing for them.
    """

    forward: Latency | None = None
    backward: Latency | None = None
    preprocess: Latency | None = None
    missing: Missing = {}

    @model_validator(mode="after")
    def _timed_alike(self) -> Parts:
        modes = {latency.mode for latency in self.timed}
        if len(modes) > 1 or "warm" in modes:
            raise ValueError(
                f"parts of a step timed {' and '.join(sorted(modes))} are not possible: all are cold, or by the wall."
            )
        return self

    @property
    def timed(self) -> tuple[Latency, ...]:
        """Those that there are."""
        return tuple(latency for name in PART_NAMES if (latency := getattr(self, name)) is not None)
