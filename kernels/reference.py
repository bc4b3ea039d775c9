"""The oracle: attention and its gradients in float64, a block of queries at a time, so that long sequences fit in memory."""

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


def reference_gradients(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, d_out: torch.Tensor, problem: AttentionProblem,
    heads: torch.Tensor | None = None, given: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """(dq, dk, dv) of sum(out ∘ d_out), in float64 on q's device, with the shapes of q, k and v; d_out has that of q.

    heads, int64, names the key-value heads to compute, as batch · num_kv_heads + kv_head; dq is then (heads, num_heads /
    num_kv_heads, seq_len_q, head_dim), dk and dv (heads, seq_len_kv, head_dim). given, (out, lse) as a forward left them,
    replaces the exact ones: the gradients that exact arithmetic makes of those. A row that sees no key gives none.
    """
    group = problem.num_heads // problem.num_kv_heads
    chosen = range(problem.batch * problem.num_kv_heads) if heads is None else heads.tolist()
    dq = torch.empty((len(chosen), group, problem.seq_len_q, problem.head_dim), dtype=torch.float64, device=q.device)
    dk = torch.empty((len(chosen), problem.seq_len_kv, problem.head_dim), dtype=torch.float64, device=q.device)
    dv = torch.empty_like(dk)
    for place, index in enumerate(chosen):
        batch, kv_head = divmod(index, problem.num_kv_heads)
        mine = slice(kv_head * group, (kv_head + 1) * group)
        left = None if given is None else tuple(x[batch, mine] for x in given)
        dq[place], dk[place], dv[place] = _gradients_of_head(
            q[batch, mine], k[batch, kv_head].double(), v[batch, kv_head].double(), d_out[batch, mine], problem, left
        )
    if heads is not None:
        return dq, dk, dv
    return dq.reshape(q.shape), dk.reshape(k.shape), dv.reshape(v.shape)


def _gradients_of_head(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, d_out: torch.Tensor, problem: AttentionProblem,
    given: tuple[torch.Tensor, torch.Tensor] | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Of one key-value head and the query heads that read it."""
    dq = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    dk, dv = torch.zeros_like(keys), torch.zeros_like(values)
    step = max(1, _BLOCK_BYTES // (8 * problem.seq_len_kv))
    for head in range(q.shape[0]):
        for start in range(0, problem.seq_len_q, step):
            rows = torch.arange(start, min(start + step, problem.seq_len_q), device=q.device)
            queries, d_rows = q[head, rows].double(), d_out[head, rows].double()
            scores, lse = _scores(queries, keys, rows, problem)
            if given is not None:
                lse = given[1][head, rows].double()
            weights = _weights(scores, lse)
            out = weights @ values if given is None else given[0][head, rows].double()
            d_scores = weights * (d_rows @ values.T - (d_rows * out).sum(1, keepdim=True)) * problem.sm_scale
            dq[head, rows] = d_scores @ keys
            dk += d_scores.T @ queries
            dv += weights.T @ d_rows
    return dq, dk, dv


def _rows(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rows: torch.Tensor, problem: AttentionProblem
) -> tuple[torch.Tensor, torch.Tensor]:
    scores, lse = _scores(q[rows].double(), keys, rows, problem)
    return _weights(scores, lse) @ values, lse


def _scores(
    queries: torch.Tensor, keys: torch.Tensor, rows: torch.Tensor, problem: AttentionProblem
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled and masked, and their log-sum-exp."""
    scores = (queries @ keys.T) * problem.sm_scale
    if problem.causal:
        last_seen = rows + (problem.seq_len_kv - problem.seq_len_q)
        hidden = torch.arange(problem.seq_len_kv, device=queries.device)[None, :] > last_seen[:, None]
        scores.masked_fill_(hidden, float("-inf"))
    return scores, torch.logsumexp(scores, dim=1)


def _weights(scores: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """P; overwrites the scores."""
    seen = lse > float("-inf")
    return torch.where(seen[:, None], scores.sub_(lse[:, None]).exp_(), 0.0)
