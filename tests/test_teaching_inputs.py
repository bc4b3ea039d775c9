"""Each kind of input does what its docstring says, and rounding still explains every version's error on it."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch

from kernels.problem import AttentionProblem, Precision
from kernels.registry import load
from profiling import accuracy
from profiling.bench import draw_inputs
from profiling.case import Case
from profiling.records import InputKind, Job, RunRequest

KINDS = tuple(kind for kind in get_args(InputKind) if kind != "own")
PROBLEM = AttentionProblem(num_heads=4, num_kv_heads=2, seq_len_q=200, seq_len_kv=320, head_dim=64, causal=True)
TILE = 64


def request(kind: str, problem: AttentionProblem = PROBLEM, dtype: str = "bf16") -> RunRequest:
    return RunRequest(kernel="native", problem=problem, inputs=kind, precision=Precision(dtype=dtype), seed=3)


def drawn(kind: str, **fields) -> tuple[torch.Tensor, ...]:
    problem = PROBLEM.model_copy(update=fields)
    return draw_inputs(Case(0, request(kind, problem)), torch.device("cpu"))


def scores(kind: str, **fields) -> torch.Tensor:
    """(batch, heads, queries, keys), float64, -inf where hidden."""
    problem = PROBLEM.model_copy(update=fields)
    q, k, _ = (x.double() for x in drawn(kind, **fields))
    s = q @ k.repeat_interleave(problem.num_heads // problem.num_kv_heads, dim=1).transpose(2, 3) * problem.sm_scale
    if problem.causal:
        seen = torch.ones_like(s).tril(problem.seq_len_kv - problem.seq_len_q).bool()
        s = s.masked_fill(~seen, -math.inf)
    return s


def maxima(kind: str, **fields) -> torch.Tensor:
    """The running maximum after each tile of 64 keys."""
    tiles = [part.amax(3) for part in scores(kind, **fields).split(TILE, dim=3)]
    return torch.stack(tiles, dim=3).cummax(3).values


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_as_asked_and_again_the_same(kind):
    q, k, v = drawn(kind)
    assert q.shape == (1, 4, 200, 64)
    assert k.shape == v.shape == (1, 2, 320, 64)
    assert all(x.dtype == torch.bfloat16 and x.is_contiguous() and x.isfinite().all() for x in (q, k, v))
    assert all(torch.equal(a, b) for a, b in zip((q, k, v), drawn(kind), strict=True))


def test_normal_is_what_it_was():
    generator = torch.Generator().manual_seed(3)
    for tensor in drawn("normal"):
        assert torch.equal(tensor, torch.randn(tensor.shape, generator=generator).bfloat16())


def test_peaked_gives_one_key_most_of_the_weight():
    weights = torch.softmax(scores("peaked"), dim=3).amax(3)
    assert weights.median() > 0.7
    assert torch.softmax(scores("normal"), dim=3).amax(3).median() < 0.2


def test_sliding_puts_the_weight_near_the_query():
    weights = torch.softmax(scores("sliding", causal=False), dim=3)
    position = torch.arange(PROBLEM.seq_len_q) + PROBLEM.seq_len_kv - PROBLEM.seq_len_q
    distance = (torch.arange(PROBLEM.seq_len_kv)[None, :] - position[:, None]).abs()
    near = (weights * (distance <= 32)).sum(3)
    assert near.min() > 0.8


def test_outliers_are_as_rare_and_as_large_as_said():
    x = torch.cat([tensor.double().flatten() for tensor in drawn("outliers", seq_len_q=4000, seq_len_kv=4000)])
    # Of N(0, 1) + N(0, 100) a share 2 (1 - Φ(6 / √101)) = 0.55 is beyond 6, of N(0, 1) none; 2 million elements.
    assert float((x.abs() > 6).double().mean()) == pytest.approx(0.001 * 0.55, rel=0.1)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("head_dim", [32, 128])
def test_steady_never_changes_its_maximum(causal, head_dim):
    running = maxima("steady", causal=causal, head_dim=head_dim)
    assert torch.equal(running, running[..., :1].expand_as(running))


@pytest.mark.parametrize("length", [320, 16384])
def test_ramp_brings_every_tile_a_new_maximum(length):
    running = maxima("ramp", causal=False, seq_len_q=20, seq_len_kv=length, num_heads=2, num_kv_heads=1)
    assert (running[..., 1:] > running[..., :-1]).all()
    assert running[..., -1].max() < length / 64 + 1


def test_a_job_has_one_kind_of_inputs():
    with pytest.raises(ValueError, match="problem, device, seed, inputs and direction"):
        Job(job_id="1", requests=(request("normal"), request("ramp")))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [pytest.param(kind, "bf16") for kind in KINDS]
    + [pytest.param(kind, "fp16", marks=() if kind == "peaked" else pytest.mark.long) for kind in KINDS],
)
def test_rounding_explains_native_s_error(kind, dtype):
    for causal in (True, False):
        problem = PROBLEM.model_copy(update={"causal": causal})
        asked = request(kind, problem, dtype)
        inputs = draw_inputs(Case(0, asked), torch.device("cpu"))
        native = load("native")
        out = native.forward(native.prepare(*inputs, asked.precision, None), problem, None, None)
        found = accuracy.check(out.out, out.lse, *inputs, problem, asked.precision, "interpreted", "native")
        assert found.passed, found
        # A bound that allows five times what is found explains nothing.
        assert found.relative_error > found.allowed_relative_error / 5


def test_score_squares_of_normal_inputs_are_those_of_the_derivation():
    problem = AttentionProblem(num_heads=8, num_kv_heads=8, seq_len_q=1024, seq_len_kv=4096, head_dim=128)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn((1, 8, 1024, 128), generator=generator)
    k = torch.randn((1, 8, 4096, 128), generator=generator)
    found = accuracy.score_squares(q, k, problem)
    # σ² = |q|² / head_dim differs from row to row, and rows count with e^{σ²}; 4,096 keys cut the tail that e^{2s} asks for.
    assert found.scores == pytest.approx(5.0, rel=0.3)
    assert found.products == pytest.approx(1.0, rel=0.2)


@pytest.mark.parametrize("lengths", [(1500, 1500), (700, 1500), (1500, 700)])
def test_score_squares_of_some_causal_rows_are_those_of_all(monkeypatch, lengths):
    """A few rows, which see little, have most of ‖out‖²: counted like the others, they would allow native too little."""
    problem = AttentionProblem(
        num_heads=4, num_kv_heads=4, seq_len_q=lengths[0], seq_len_kv=lengths[1], head_dim=64, causal=True
    )
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn((1, 4, n, 64), generator=generator) for n in lengths)
    some = accuracy.score_squares(q, k, problem)
    monkeypatch.setattr(
        accuracy, "sampled_rows", lambda problem, _: (torch.arange(lengths[0]), torch.ones(lengths[0]).double())
    )
    every = accuracy.score_squares(q, k, problem)
    assert some.scores == pytest.approx(every.scores, rel=0.1)
    assert some.products == pytest.approx(every.products, rel=0.1)


def test_score_squares_against_a_sum_over_every_pair_of_scores():
    problem = AttentionProblem(num_heads=1, num_kv_heads=1, seq_len_q=3, seq_len_kv=5, head_dim=16)
    generator = torch.Generator().manual_seed(1)
    q, k = (2.0 * torch.randn((1, 1, n, 16), generator=generator, dtype=torch.float64) for n in (3, 5))
    s = q[0, 0] @ k[0, 0].T * problem.sm_scale
    weights = torch.softmax(s, dim=1)
    moved = total = 0.0
    for row in range(3):
        # d out_j / d s_i = w_j (δ_ij - w_i), for the coefficient of v_j.
        jacobian = torch.diag(weights[row]) - torch.outer(weights[row], weights[row])
        moved += float((jacobian.square() @ s[row].square()).sum())
        total += float(weights[row].square().sum())
    assert accuracy.score_squares(q, k, problem).scores == pytest.approx(moved / total, rel=1e-9)
