"""PyTorch native: three calls, with the whole score matrix S and the weights P in memory. The baseline."""

from __future__ import annotations

import torch

from kernels.kernel import AttentionOutput, Launcher, Operands, as_given
from kernels.problem import AttentionProblem, TileConfig

prepare = as_given


def forward(
    operands: Operands, problem: AttentionProblem, tiles: TileConfig | None, launch: Launcher | None, with_lse: bool = True
) -> AttentionOutput:
    """Attention as most people first write it; see kernels.kernel.Kernel. O(seq_len²) memory.

    torch.softmax gives no lse; with_lse computes it from S in a pass of its own, so leave it out where time counts.
    Queries that see nothing, the first ones, are left out: softmax would make NaN of them, and of every gradient.
    """
    q, k, v = operands.q, operands.k, operands.v
    group = problem.num_heads // problem.num_kv_heads
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    blind = max(0, problem.seq_len_q - problem.seq_len_kv) if problem.causal else 0
    scores = _scaled_product(q[:, :, blind:], k.transpose(2, 3), problem.sm_scale)
    if problem.causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
        hidden = hidden.triu_(1 + problem.seq_len_kv - scores.shape[-2])
        scores.masked_fill_(hidden, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    out = torch.matmul(weights, v)
    lse = torch.logsumexp(scores.float(), dim=-1) if with_lse else None
    if blind:
        out = torch.nn.functional.pad(out, (0, 0, blind, 0))
        lse = None if lse is None else torch.nn.functional.pad(lse, (blind, 0), value=float("-inf"))
    return AttentionOutput(out, lse)


def _scaled_product(a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
    """scale · a b, rounded once: a product rounded before it is scaled would be rounded twice."""
    batched_a, batched_b = a.flatten(0, 1), b.flatten(0, 1)
    unused = a.new_empty(1).expand(batched_a.shape[0], a.shape[-2], b.shape[-1])
    return torch.baddbmm(unused, batched_a, batched_b, beta=0.0, alpha=scale).unflatten(0, a.shape[:2])
