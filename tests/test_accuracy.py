"""The check: right outputs pass, wrong ones do not, and the tolerance follows from the number formats."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from kernels.kernel import Operands
from kernels.native import forward as native_forward
from kernels.problem import AttentionProblem, Precision
from kernels.reference import reference
from profiling.accuracy import MOST_ALLOWED, allowed, check, reference_of, rows_to_check
from profiling.oracle_budget import reference_budget, rows_within

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def drawn(problem: AttentionProblem, dtype: torch.dtype, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    query = (problem.batch, problem.num_heads, problem.seq_len_q, problem.head_dim)
    key = (problem.batch, problem.num_kv_heads, problem.seq_len_kv, problem.head_dim)
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in (query, key, key))


def fused(q, k, v, problem, dtype, weights=lambda p: None):
    """What a fused kernel computes, in float64 but for its two roundings: P before P V, and the output."""
    group = problem.num_heads // problem.num_kv_heads
    k, v = k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = q.double() @ k.transpose(2, 3) * problem.sm_scale
    if problem.causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + problem.seq_len_kv - problem.seq_len_q)
        scores.masked_fill_(hidden, -math.inf)
    largest = scores.amax(-1, keepdim=True)
    p = (scores - largest.clamp_min(-1e300)).exp()
    total = p.sum(-1, keepdim=True)
    p = weights(p) if weights(p) is not None else p.to(dtype).double()
    out = (p @ v / total.clamp_min(1e-300)).to(dtype)
    return out, (largest + total.log()).squeeze(-1).float()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(("seq_len", "causal"), list(itertools.product((1, 2, 17, 128), (False, True))))
def test_a_right_output_passes(dtype, seq_len, causal):
    problem = AttentionProblem(
        batch=2, num_heads=4, num_kv_heads=2, seq_len_q=seq_len, seq_len_kv=seq_len, head_dim=64, causal=causal
    )
    q, k, v = drawn(problem, DTYPES[dtype])
    out, lse = fused(q, k, v, problem, DTYPES[dtype])
    found = check(out, lse, q, k, v, problem, Precision(dtype=dtype), "interpreted")
    assert found.passed, found
    assert found.relative_error <= found.allowed_relative_error <= MOST_ALLOWED[dtype]
    assert found.lse_max_abs_error <= found.allowed_lse_error
    assert found.rows_checked == found.rows_total == seq_len
    assert found.non_finite == 0


def test_the_error_is_the_norm_ratio():
    problem = AttentionProblem(num_heads=1, num_kv_heads=1, seq_len_q=32, seq_len_kv=32, head_dim=16)
    q, k, v = drawn(problem, torch.bfloat16)
    expected, expected_lse = reference(q, k, v, problem)
    out = expected + 0.25
    found = check(out, expected_lse, q, k, v, problem, Precision(), "interpreted")
    assert found.relative_error == pytest.approx(0.25 * math.sqrt(32 * 16) / float(expected.norm()))
    assert found.max_abs_error == pytest.approx(0.25)
    assert not found.passed


def spoil_last_row(out, lse):
    out[..., -1, :] *= 1.5


def spoil_one_head(out, lse):
    out[:, 1] = out[:, 0]


def spoil_nan(out, lse):
    out[0, 0, 3, 5] = float("nan")


def spoil_inf(out, lse):
    out[0, 0, 0, 0] = float("inf")


def spoil_lse(out, lse):
    lse[0, 0, 7] += 0.01


def spoil_lse_nan(out, lse):
    lse[0, 0, 7] = float("nan")


def spoil_lse_base(out, lse):
    lse /= math.log(2.0)


def spoil_lse_minus_infinity(out, lse):
    lse[0, 0, 0] = -math.inf


def spoil_zero(out, lse):
    out.zero_()


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_last_row,
        spoil_one_head,
        spoil_nan,
        spoil_inf,
        spoil_lse,
        spoil_lse_nan,
        spoil_lse_base,
        spoil_lse_minus_infinity,
        spoil_zero,
    ],
)
def test_a_wrong_output_does_not_pass(spoil):
    problem = AttentionProblem(num_heads=2, num_kv_heads=1, seq_len_q=128, seq_len_kv=128, head_dim=32, causal=True)
    q, k, v = drawn(problem, torch.bfloat16)
    out, lse = fused(q, k, v, problem, torch.bfloat16)
    assert check(out, lse, q, k, v, problem, Precision(), "interpreted").passed
    spoil(out, lse)
    found = check(out, lse, q, k, v, problem, Precision(), "interpreted")
    assert not found.passed
    assert found.relative_error is not None or "relative_error" in found.missing


@pytest.mark.parametrize("shape", [(1, 2, 64, 32), (1, 2, 128, 16), (2, 128, 32), (1, 1, 128, 32)])
def test_a_wrong_shape_does_not_pass_and_is_named(shape):
    problem = AttentionProblem(num_heads=2, num_kv_heads=2, seq_len_q=128, seq_len_kv=128, head_dim=32)
    found = check(torch.zeros(shape), None, *drawn(problem, torch.bfloat16), problem, Precision(), "interpreted")
    assert not found.passed
    assert str(tuple(shape)) in found.missing["relative_error"]


def test_queries_that_see_nothing_must_be_exactly_zero():
    problem = AttentionProblem(num_heads=1, num_kv_heads=1, seq_len_q=8, seq_len_kv=2, head_dim=16, causal=True)
    q, k, v = drawn(problem, torch.bfloat16)
    out, lse = fused(q, k, v, problem, torch.bfloat16)
    assert torch.isneginf(lse[0, 0, :6]).all()
    assert check(out, lse, q, k, v, problem, Precision(), "interpreted").passed
    out[0, 0, 0, 0] = 0.5
    assert not check(out, lse, q, k, v, problem, Precision(), "interpreted").passed


def test_a_reference_of_zeros():
    problem = AttentionProblem(num_heads=1, num_kv_heads=1, seq_len_q=4, seq_len_kv=4, head_dim=16)
    q, k, _v = drawn(problem, torch.bfloat16)
    v = torch.zeros_like(q)
    _out, lse = reference(q, k, v, problem)
    exact = check(torch.zeros_like(q), lse, q, k, v, problem, Precision(), "interpreted")
    assert exact.relative_error == 0.0
    assert exact.passed
    off = check(torch.full_like(q, 1e-6), lse, q, k, v, problem, Precision(), "interpreted")
    assert off.relative_error is None
    assert "0 everywhere" in off.missing["relative_error"]
    assert not off.passed


def test_no_lse_is_noted_and_does_not_fail():
    problem = AttentionProblem(num_heads=1, num_kv_heads=1, seq_len_q=64, seq_len_kv=64, head_dim=16)
    q, k, v = drawn(problem, torch.bfloat16)
    found = check(fused(q, k, v, problem, torch.bfloat16)[0], None, q, k, v, problem, Precision(), "interpreted")
    assert found.passed
    assert found.allowed_lse_error is None
    assert found.missing["lse_max_abs_error"]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_native_rounds_its_scores_and_is_allowed_that(dtype):
    problem = AttentionProblem(num_heads=2, num_kv_heads=2, seq_len_q=256, seq_len_kv=256, head_dim=64)
    q, k, v = drawn(problem, DTYPES[dtype])
    output = native_forward(Operands(q, k, v, dtype=q.dtype), problem, None, None)
    found = check(output.out, output.lse, q, k, v, problem, Precision(dtype=dtype), "interpreted", kernel="native")
    assert found.passed, found
    assert found.relative_error > allowed(problem, Precision(dtype=dtype)).relative_error
    assert "S, P and the output" in found.allowed_because


def e4m3(x: torch.Tensor) -> torch.Tensor:
    return x.float().to(torch.float8_e4m3fn)


def largest(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.float().abs().amax(dim=dim, keepdim=True)


def quantised(q, k, v) -> Operands:
    scales = [largest(x, dim) / 448 for x, dim in ((q, -1), (k, -1), (v, -2))]
    codes = [e4m3(x.float() / scale) for x, scale in zip((q, k, v), scales, strict=True)]
    # Row 16a + 8b + 2t + e of a stored K holds token 16a + 4t + 2b + e.
    stored = [16 * a + 4 * t + 2 * b + e for a in range(k.shape[2] // 16) for b in (0, 1) for t in range(4) for e in (0, 1)]
    return Operands(
        codes[0], codes[1][:, :, stored], codes[2].transpose(2, 3).contiguous(), dtype=q.dtype,
        q_scale=scales[0].squeeze(-1), k_scale=scales[1].squeeze(-1)[:, :, stored], v_scale=scales[2].squeeze(-2),
    )  # fmt: skip


def test_fp8_answers_for_its_operands_and_for_its_inputs():
    problem = AttentionProblem(num_heads=2, num_kv_heads=2, seq_len_q=128, seq_len_kv=128, head_dim=64)
    q, k, v = drawn(problem, torch.bfloat16)
    operands = quantised(q, k, v)
    read = [
        e4m3(x / scale).float() * scale
        for x, scale in ((x.float(), largest(x, dim) / 448) for x, dim in ((q, -1), (k, -1), (v, -2)))
    ]
    out, lse = fused(*read, problem, torch.bfloat16, weights=lambda p: e4m3(p * 256).double() / 256)
    precision = Precision(fp8=True)
    found = check(out, lse, q, k, v, problem, precision, "interpreted", operands=operands)
    assert found.passed, found
    assert found.relative_error < found.allowed_relative_error <= 4e-2
    assert found.relative_error < found.end_to_end_relative_error < found.allowed_end_to_end_error
    right_of_wrong_operands = check(out, lse, q, k, torch.roll(v, 1, 2), problem, precision, "interpreted", operands=operands)
    assert right_of_wrong_operands.relative_error == found.relative_error
    assert not right_of_wrong_operands.passed


@pytest.mark.parametrize(("dtype", "bound"), [("bf16", 4e-3), ("fp16", 5e-4)])
def test_tolerance_is_below_the_projects_bar_at_every_size(dtype, bound):
    for batch, heads, seq_len in itertools.product((1, 2), (1, 4), (1, 2, 127, 16384)):
        problem = AttentionProblem(
            batch=batch, num_heads=heads, num_kv_heads=heads, seq_len_q=seq_len, seq_len_kv=seq_len, head_dim=64
        )
        assert allowed(problem, Precision(dtype=dtype)).relative_error <= bound
        assert allowed(problem, Precision(dtype=dtype, fp8=True)).relative_error <= 4e-2


def test_tolerance_is_near_the_error_of_a_right_kernel():
    """A bound ten times too wide would prove nothing: the errors that rounding makes reach half of it."""
    problem = AttentionProblem(num_heads=4, num_kv_heads=4, seq_len_q=512, seq_len_kv=512, head_dim=64)
    for dtype in DTYPES:
        q, k, v = drawn(problem, DTYPES[dtype])
        out, lse = fused(q, k, v, problem, DTYPES[dtype])
        found = check(out, lse, q, k, v, problem, Precision(dtype=dtype), "interpreted")
        assert 0.5 < found.relative_error / found.allowed_relative_error < 1.0


def test_every_row_where_the_budget_allows():
    small = AttentionProblem(num_heads=16, num_kv_heads=16, seq_len_q=16384, seq_len_kv=16384)
    assert rows_to_check(small, reference_budget(90), 0) is None
    assert rows_to_check(small, reference_budget(None), 0) is None
    assert rows_within(small, reference_budget(89)) < 16384


def test_rows_of_a_large_problem_hold_the_edges_and_repeat_with_the_seed():
    large = AttentionProblem(num_heads=16, num_kv_heads=16, seq_len_q=65536, seq_len_kv=65536)
    rows = rows_to_check(large, reference_budget(90), 7)
    assert rows.numel() == rows_within(large, reference_budget(90)) == 9313
    assert rows.unique().equal(rows)
    found = set(rows.tolist())
    assert {0, 65535} <= found
    assert any(row % 128 == 127 and row + 1 in found for row in found)
    assert rows.equal(rows_to_check(large, reference_budget(90), 7))
    assert not rows.equal(rows_to_check(large, reference_budget(90), 8))


def test_a_part_of_the_rows_is_compared_and_counted(monkeypatch):
    problem = AttentionProblem(num_heads=2, num_kv_heads=2, seq_len_q=512, seq_len_kv=512, head_dim=16)
    q, k, v = drawn(problem, torch.bfloat16)
    out, lse = fused(q, k, v, problem, torch.bfloat16)
    monkeypatch.setattr("profiling.accuracy.reference_budget", lambda capability: 1.0)
    exact = reference_of(q, k, v, problem)
    found = check(out, lse, q, k, v, problem, Precision(), "interpreted", exact=exact)
    assert found.passed
    assert (found.rows_checked, found.rows_total) == (64, 512)
    out[0, 1, int(exact.rows[10])] += 1.0
    assert not check(out, lse, q, k, v, problem, Precision(), "interpreted", exact=exact).passed
