"""A child process with TRITON_INTERPRET set: one JSON line a question on stdin, one answer on stdout. Gradients this time."""

from __future__ import annotations

import json
import math
import sys
from typing import Literal

import torch

from kernels.kernel import TORCH_DTYPES, AttentionOutput, Launcher
from kernels.problem import AttentionProblem, BackwardTiles, Frozen, TileConfig
from kernels.reference import reference, reference_gradients
from kernels.registry import load, load_backward, version

DTYPES = {**TORCH_DTYPES, "fp32": torch.float32}
# What a kernel may be off by, in units of what its roundings alone come to.
FACTOR = 1.5
# What sums and exponents in float32 may be off by, relative to the sum of what they add up: some roundings of 2^-24.
FLOAT32_NOISE = 2.0**-22


class Question(Frozen):
    """A backward on a problem. nan_elsewhere: all heads but those of the first key-value head hold NaN, and it alone counts.

    dtype fp32, which only the interpreter takes, leaves no rounding for an error to hide behind. fault: what is spoilt before
    the backward reads it, 'lse', 'delta' or 'out'; '' for nothing. by_autograd: the first gradients are those that
    kernels.backward.attention leaves in q, k and v, the second ones the module's own.
    """

    kernel: str
    problem: AttentionProblem
    tiles: TileConfig | None
    backward_tiles: BackwardTiles | None
    dtype: Literal["bf16", "fp16", "fp32"] = "bf16"
    has_tma: bool = True
    nan_elsewhere: bool = False
    fault: str = ""
    by_autograd: bool = False


class Answer(Frozen):
    """Norms of the errors of dq, dk and dv over those allowed, right up to 1; whether a second launch gave the same bits."""

    shares: tuple[float, float, float]
    non_finite: int
    repeats: bool


def drawn(problem: AttentionProblem, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """q, k, v and dO, N(0, 1)."""
    generator = torch.Generator().manual_seed(0)
    query = (problem.batch, problem.num_heads, problem.seq_len_q, problem.head_dim)
    key = (problem.batch, problem.num_kv_heads, problem.seq_len_kv, problem.head_dim)
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in (query, key, key, query))


def rounded_gradients(q, k, v, d_out, problem: AttentionProblem) -> tuple[tuple[torch.Tensor, ...], tuple[float, ...]]:
    """Exact arithmetic but for the roundings that every fused backward makes: of O, P, dS and the gradients to the dtype.

    Beside them the norms of what float32 sums may be off by, which counts where dP and delta are the same (a single key).
    """
    group, dtype = problem.num_heads // problem.num_kv_heads, q.dtype
    keys, values = (x.double().repeat_interleave(group, 1) for x in (k, v))
    lse = reference(q, k, v, problem)[1][..., None]
    scores = q.double() @ keys.mT * problem.sm_scale
    if problem.causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + problem.seq_len_kv - problem.seq_len_q)
        scores.masked_fill_(hidden, float("-inf"))
    p = torch.where(lse > float("-inf"), (scores - lse).exp(), 0.0)
    out = (p @ values).to(dtype).double()
    ds = p * (d_out.double() @ values.mT - (d_out.double() * out).sum(-1, keepdim=True))
    noise = p * (d_out.double().abs() @ values.abs().mT) * problem.sm_scale
    sums = (noise @ keys.abs(), noise.mT @ q.double().abs(), p.mT @ d_out.double().abs())
    noises = tuple(FLOAT32_NOISE * float(x.norm()) for x in sums)
    p, ds = p.to(dtype).double(), ds.to(dtype).double()
    dq, dk, dv = ds @ keys * problem.sm_scale, ds.mT @ q.double() * problem.sm_scale, p.mT @ d_out.double()
    dk, dv = (x.unflatten(1, (-1, group)).sum(2) for x in (dk, dv))
    return (dq.to(dtype), dk.to(dtype), dv.to(dtype)), noises


def autograd_gradients(
    question: Question, inputs: tuple[torch.Tensor, ...], d_out: torch.Tensor, launch: Launcher
) -> tuple[torch.Tensor, ...]:
    """What attention() leaves in its inputs; d_out goes in through a transpose, as from a layer that reads (seq_len, heads)."""
    from kernels.backward import attention

    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    out = attention(
        *leaves, version=question.kernel, causal=question.problem.causal, tiles=question.tiles,
        backward_tiles=question.backward_tiles, launch=launch,
    )  # fmt: skip
    out.transpose(1, 2).backward(d_out.transpose(1, 2).contiguous())
    return tuple(leaf.grad for leaf in leaves)


def of_first_head(problem: AttentionProblem, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """What belongs to the first key-value head of each."""
    group = problem.num_heads // problem.num_kv_heads
    return tuple(x[:1, : group if x.shape[1] == problem.num_heads else 1].contiguous() for x in tensors)


def answer(question: Question) -> Answer:
    """The kernel's gradients held against float64."""
    from kernels.launch import Launch

    problem, dtype = question.problem, DTYPES[question.dtype]
    q, k, v, d_out = drawn(problem, dtype)
    if question.nan_elsewhere:
        group = problem.num_heads // problem.num_kv_heads
        for tensor in (q, k, v, d_out):
            tensor.flatten(0, 1)[group if tensor.shape[1] == problem.num_heads else 1 :] = float("nan")
    kernel, backward, launch = load(question.kernel), load_backward(question.kernel, problem), Launch(has_tma=question.has_tma)
    operands = backward.prepare(q, k, v)
    output = kernel.forward(operands, problem, question.tiles, launch)
    delta = None
    match question.fault:
        case "lse":
            output = AttentionOutput(output.out, output.lse + 0.02)
        case "out":
            output = AttentionOutput((output.out * 1.05).to(dtype), output.lse)
        case "delta":
            delta = backward.preprocess(operands, output, d_out, problem, launch) * 1.05
    runs = [backward.backward(operands, output, d_out, problem, question.backward_tiles, launch, delta) for _ in range(2)]
    first, second = ((run.dq, run.dk, run.dv) for run in runs)
    if question.by_autograd:
        first = autograd_gradients(question, (q, k, v), d_out, launch)
    if question.nan_elsewhere:
        group = problem.num_heads // problem.num_kv_heads
        (q, d_out), (k, v) = of_first_head(problem, (q, d_out)), of_first_head(problem, (k, v))
        first, second = of_first_head(problem, first), of_first_head(problem, second)
        problem = problem.model_copy(update={"batch": 1, "num_heads": group, "num_kv_heads": 1})
    exact = reference_gradients(q, k, v, d_out, problem)
    shares = []
    for ours, right, rounded, noise in zip(first, exact, *rounded_gradients(q, k, v, d_out, problem), strict=True):
        allowed = FACTOR * float((rounded.double() - right).norm()) + noise
        shares.append(float((ours.double() - right).norm()) / allowed)
    return Answer(
        shares=tuple(share if math.isfinite(share) else 1e30 for share in shares),
        non_finite=sum(int((~torch.isfinite(x)).sum()) for x in first),
        repeats=all(torch.equal(a, b) for a, b in zip(first, second, strict=True)),
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in sys.stdin:
        question = Question.model_validate_json(line)
        assert version(question.kernel).backwards
        print(json.dumps(answer(question).model_dump()), flush=True)
