"""How many query rows the float64 reference may compute on a device. Pure."""

from __future__ import annotations

import math

from kernels.problem import AttentionProblem

DATACENTRE_CAPABILITIES = (80, 90, 100)
FEWEST_ROWS = 64


def reference_budget(capability: int | None) -> float:
    """Float64 operations that a check may spend, by compute capability; None is the CPU, which checks everything.

    Datacentre GPUs have float64 matrix units, others a 64th of their float32 rate.
    """
    if capability is None:
        return math.inf
    return 5e12 if capability in DATACENTRE_CAPABILITIES else 3e11


def rows_within(problem: AttentionProblem, budget: float) -> int:
    """How many of a problem's query rows cost no more than the budget: all of them, or at least 64."""
    per_row = 4.0 * problem.batch * problem.num_heads * problem.seq_len_kv * problem.head_dim
    return min(problem.seq_len_q, max(FEWEST_ROWS, int(min(budget / per_row, problem.seq_len_q))))
