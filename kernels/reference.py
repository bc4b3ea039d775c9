"""The oracle: attention in float64, a block of queries at a time, so that long sequences fit in memory."""

from __future__ import annotations

import torch

from kernels.problem import AttentionProblem

_BLOCK_BYTES = 1 << 30


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: AttentionProblem, rows: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of softmax(q kᵀ · sm_scale) v in float64 on q's device, lse in natural log.

    q (batch, num_heads, seq_len_q, head_dim), k and v (batch, num_kv_heads, seq_len_kv, head_dim). rows, int64, names the
    query rows to compute (the same for every head); without it all. A row that sees no key has out 0 and lse −inf.
    """
    rows = torch.arange(problem.seq_len_q, device=q.device) if rows is None else rows
    group = problem.num_heads // problem.num_kv_heads
    out = torch.empty((*q.shape[:2], rows.numel(), q.shape[3]), dtype=torch.float64, device=q.device)
    lse = torch.empty(out.shape[:-1], dtype=torch.float64, device=q.device)
    step = max(1, _BLOCK_BYTES // (8 * problem.seq_len_kv))
    for batch in range(problem.batch):
        for kv_head in range(problem.num_kv_heads):
            keys, values = k[batch, kv_head].double(), v[batch, kv_head].double()
            for head in range(kv_head * group, (kv_head + 1) * group):
                for start in range(0, rows.numel(), step):
                    part = slice(start, start + step)
                    out[batch, head, part], lse[batch, head, part] = _rows(q[batch, head], keys, values, rows[part], problem)
    return out, lse


def _rows(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rows: torch.Tensor, problem: AttentionProblem
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = (q[rows].double() @ keys.T) * problem.sm_scale
    if problem.causal:
        last_seen = rows + (problem.seq_len_kv - problem.seq_len_q)
        hidden = torch.arange(problem.seq_len_kv, device=q.device)[None, :] > last_seen[:, None]
        scores.masked_fill_(hidden, float("-inf"))
    lse = torch.logsumexp(scores, dim=1)
    seen = lse > float("-inf")
    weights = torch.where(seen[:, None], (scores - lse[:, None]).exp_(), 0.0)
    return weights @ values, lse
