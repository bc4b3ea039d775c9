"""How many query rows, and for gradients how many heads, the float64 reference may compute on a device. Pure."""

from __future__ import annotations

import math

from kernels.problem import AttentionProblem
from kernels.registry import Refused

DATACENTRE_CAPABILITIES = (80, 90, 100)
FEWEST_ROWS = 64
_MOST_BUDGETS_A_HEAD = 20


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


def heads_within(problem: AttentionProblem, budget: float) -> int:
    """How many of a problem's key-value heads' gradients cost no more than the budget: all of them, or at least one.

    dk and dv of a key need all queries, so that rows cannot be chosen.
    """
    total = problem.batch * problem.num_kv_heads
    return min(total, max(1, int(min(budget / _operations_a_head(problem), total))))


def refuse_gradients(problem: AttentionProblem, budget: float) -> None:
    """Raise Refused, in one sentence, where the float64 gradients of one head alone cost 20 budgets."""
    needs, has = _operations_a_head(problem), _MOST_BUDGETS_A_HEAD * budget
    if needs > has:
        length = max(problem.seq_len_q, problem.seq_len_kv)
        raise Refused(
            f"A backward at {length:,} tokens is not possible here: float64 gradients of one head take {needs:.2g} operations, "
            f"and the check may spend {has:.2g} on this device.",
            needs=needs, has=has, unit="operations",
        )  # fmt: skip


def _operations_a_head(problem: AttentionProblem) -> float:
    """Six products of float64: S, out, dP, dq, dk, dv."""
    group = problem.num_heads // problem.num_kv_heads
    return 12.0 * group * problem.seq_len_q * problem.seq_len_kv * problem.head_dim
