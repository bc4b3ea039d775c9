"""Inputs whose softmax does something worth watching: each shapes Q and K drawn N(0, 1); V stays, but for the outliers.

Scores are given in natural units, after sm_scale. A query's own position is counted from the last key back, as causal
masks are aligned.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from kernels.problem import AttentionProblem
from profiling.records import InputKind

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

_WINDOW = 16.0  # tokens, the standard deviation of the sliding pattern
_STEADY_SCORE = 6.0  # of the first key; N(0, 1/4) scores of the longest sequences stay below 4
_QUERY_SHARE = 4.0  # what every query has in the channels that steer it
_RAMP_A_KEY = 1.0 / 64.0
_RAMP_TOP = 4096.0
_RAMP_NOISE = 0.05


def shaped(kind: InputKind, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: AttentionProblem,
           generator: torch.Generator, dtype: torch.dtype) -> Tensors:  # fmt: skip
    """q, k, v (N(0, 1), float32) made into the kind asked for; what else is random comes from the generator.

    dtype is what they will be rounded to: the ramp splits its scores into what that can hold.
    """
    return _SHAPES[kind](q, k, v, problem, generator, dtype)


def _normal(q, k, v, _problem, _generator, _dtype) -> Tensors:
    """N(0, 1): scores are N(0, 1) too, nobody stands out, and later tiles bring ever fewer new maxima."""
    return q, k, v


def _peaked(q, k, v, problem, generator, _dtype) -> Tensors:
    """Each query is a copy of one key that it sees, whose score is then about sqrt(head_dim): one weight is nearly all."""
    count = torch.arange(problem.seq_len_q, device=q.device) + 1 + problem.seq_len_kv - problem.seq_len_q
    seen = count.clamp(1, problem.seq_len_kv) if problem.causal else torch.full_like(count, problem.seq_len_kv)
    share = torch.rand(q.shape[:3], generator=generator, device=q.device)
    target = (share * seen).long().clamp(max=problem.seq_len_kv - 1)
    keys = k.repeat_interleave(problem.num_heads // problem.num_kv_heads, dim=1)
    return keys.gather(2, target[..., None].expand(-1, -1, -1, problem.head_dim)), k, v


def _sliding(q, k, v, problem, generator, _dtype) -> Tensors:
    """Scores fall off with the distance, sqrt(head_dim) · exp(-distance² / 2 · 16²): the maximum walks along with the query.

    Random Fourier features of the positions (Rahimi and Recht 2007): their products depend on the distance alone.
    """
    frequency = torch.randn(problem.head_dim // 2, generator=generator, device=q.device) / _WINDOW
    offset = problem.seq_len_kv - problem.seq_len_q

    def features(length: int, first: int) -> torch.Tensor:
        angle = (torch.arange(length, device=q.device) + first)[:, None] * frequency
        return math.sqrt(2.0) * torch.cat([angle.cos(), angle.sin()], dim=1)

    return features(problem.seq_len_q, offset).expand_as(q), features(problem.seq_len_kv, 0).expand_as(k), v


def _outliers(q, k, v, _problem, generator, _dtype) -> Tensors:
    """N(0, 1) + N(0, 100) · Bernoulli(0.001) in each element, as the FlashAttention-3 paper tests FP8 (section 4.3)."""

    def with_outliers(x: torch.Tensor) -> torch.Tensor:
        large = 10.0 * torch.randn(x.shape, generator=generator, device=x.device)
        return x + large * (torch.rand(x.shape, generator=generator, device=x.device) < 0.001)

    return with_outliers(q), with_outliers(k), with_outliers(v)


def _steady(q, k, v, problem, _generator, _dtype) -> Tensors:
    """The first key has the score 6 with every query, the others N(0, 1/4): no maximum changes after the first tile."""
    q, k = q.clone(), 0.5 * k
    q[..., 0] = _QUERY_SHARE
    k[..., 0] = 0.0
    k[..., 0, :] = 0.0
    k[..., 0, 0] = _STEADY_SCORE / problem.sm_scale / _QUERY_SHARE
    return q, k, v


def _ramp(q, k, v, problem, _generator, dtype) -> Tensors:
    """Scores rise by 1/64 from key to key (to 4,096 at most): every tile brings every row a new maximum.

    Two channels carry the rise, one what the format can hold of it, the other the rest; e4m3 holds neither finely, and
    with FP8 the ramp has steps.
    """
    q, k = q.clone(), _RAMP_NOISE * k
    rise = min(_RAMP_A_KEY, _RAMP_TOP / problem.seq_len_kv)
    wanted = torch.arange(problem.seq_len_kv, device=k.device, dtype=torch.float32) * (rise / problem.sm_scale / _QUERY_SHARE)
    coarse = wanted.to(dtype).float()
    q[..., :2] = _QUERY_SHARE
    k[..., 0], k[..., 1] = coarse, wanted - coarse
    return q, k, v


_SHAPES: dict[InputKind, Callable[..., Tensors]] = {
    "normal": _normal,
    "peaked": _peaked,
    "sliding": _sliding,
    "outliers": _outliers,
    "steady": _steady,
    "ramp": _ramp,
}
