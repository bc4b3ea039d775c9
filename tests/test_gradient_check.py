"""The check of gradients: what rounding explains passes, for any inputs; what it does not, does not."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from kernels import backward_autograd, native
from kernels.kernel import TORCH_DTYPES, AttentionOutput, Gradients
from kernels.problem import AttentionProblem, Precision
from kernels.reference import reference
from kernels.registry import Refused
from profiling import gradient_check
from profiling.backward_record import NAMES, GradientAccuracy
from profiling.gradient_check import reference_of, sample_terms
from profiling.oracle_budget import heads_within, reference_budget, refuse_gradients
from profiling.teaching_inputs import shaped

PROBLEMS = (
    AttentionProblem(num_heads=2, num_kv_heads=2, seq_len_q=128, seq_len_kv=128, head_dim=64, causal=True),
    AttentionProblem(num_heads=4, num_kv_heads=1, seq_len_q=60, seq_len_kv=133, head_dim=32),
    AttentionProblem(num_heads=4, num_kv_heads=2, seq_len_q=150, seq_len_kv=90, head_dim=80, causal=True),
    AttentionProblem(num_heads=2, num_kv_heads=1, seq_len_q=200, seq_len_kv=1, head_dim=64),
    AttentionProblem(batch=2, num_heads=2, num_kv_heads=1, seq_len_q=1, seq_len_kv=70, head_dim=16),
)


def drawn(problem: AttentionProblem, dtype: str = "bf16", kind: str = "normal") -> tuple[torch.Tensor, ...]:
    """q, k, v and d_out."""
    generator = torch.Generator().manual_seed(3)
    query = (problem.batch, problem.num_heads, problem.seq_len_q, problem.head_dim)
    key = (problem.batch, problem.num_kv_heads, problem.seq_len_kv, problem.head_dim)
    q, k, v, d_out = (torch.randn(shape, generator=generator) for shape in (query, key, key, query))
    q, k, v = shaped(kind, q, k, v, problem, generator, TORCH_DTYPES[dtype])
    return tuple(tensor.to(TORCH_DTYPES[dtype]).contiguous() for tensor in (q, k, v, d_out))


def rounded_as_ours(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, d_out: torch.Tensor, problem: AttentionProblem, output: AttentionOutput
) -> Gradients:
    """Float32, with P and dS rounded before their products as a fused kernel does, and out read as it was rounded."""
    group = problem.num_heads // problem.num_kv_heads
    keys, values = (tensor.repeat_interleave(group, 1).float() for tensor in (k, v))
    scores = (q.float() @ keys.mT) * problem.sm_scale
    if problem.causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu_(1 + problem.seq_len_kv - problem.seq_len_q)
        scores.masked_fill_(hidden, -torch.inf)
    weights = torch.where(output.lse.isfinite()[..., None], (scores - output.lse.float()[..., None]).exp(), 0.0)
    delta = (d_out.float() * output.out.float()).sum(-1, keepdim=True)
    d_scores = (weights * (d_out.float() @ values.mT - delta)).to(q.dtype).float()
    dq = (d_scores @ keys * problem.sm_scale).to(q.dtype)
    of_heads = (d_scores.mT @ q.float() * problem.sm_scale, weights.to(q.dtype).float().mT @ d_out.float())
    return Gradients(dq, *(part.unflatten(1, (-1, group)).sum(2).to(q.dtype) for part in of_heads))


def checked(
    found: Gradients, tensors: tuple[torch.Tensor, ...], problem: AttentionProblem, dtype: str = "bf16", kernel: str = "v2"
) -> GradientAccuracy:
    exact = reference_of(*tensors, problem)
    sampled = sample_terms(exact, *tensors, problem)
    return gradient_check.check(found, exact, sampled, problem, Precision(dtype=dtype), "interpreted", kernel)


def ours(tensors: tuple[torch.Tensor, ...], problem: AttentionProblem) -> Gradients:
    out, lse = reference(*tensors[:3], problem)
    return rounded_as_ours(*tensors, problem, AttentionOutput(out.to(tensors[0].dtype), lse))


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda one: one.title)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_what_rounding_explains_passes(problem: AttentionProblem, dtype: str) -> None:
    tensors = drawn(problem, dtype)
    fused = checked(ours(tensors, problem), tensors, problem, dtype)
    assert fused.passed
    assert (fused.heads_checked, fused.heads_total) == (problem.batch * problem.num_kv_heads,) * 2
    operands = backward_autograd.prepare(*tensors[:3])
    output = native.forward(operands, problem, None, None, with_lse=False)
    by_autograd = backward_autograd.backward(operands, output, tensors[3], problem, None, None)
    assert checked(by_autograd, tensors, problem, dtype, "native").passed


@pytest.mark.parametrize("kind", ["peaked", "outliers", "steady", "ramp"])
def test_the_tolerance_knows_the_inputs(kind: str) -> None:
    tensors = drawn(PROBLEMS[0], kind=kind)
    found = checked(ours(tensors, PROBLEMS[0]), tensors, PROBLEMS[0])
    assert found.passed
    # Not so wide that it would let everything pass: a tenth of a percent to a few percent.
    for _, one in found.named:
        assert one.relative_error > 0.1 * one.allowed_relative_error
        assert one.allowed_relative_error < 0.05


def test_a_tolerance_is_near_what_rounding_does_with_normal_inputs() -> None:
    tensors = drawn(PROBLEMS[0])
    for _, one in checked(ours(tensors, PROBLEMS[0]), tensors, PROBLEMS[0]).named:
        assert 0.4 < one.relative_error / one.allowed_relative_error < 0.9
        assert 2e-3 < one.allowed_relative_error < 4.5e-3


@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_that_is_one_percent_off_does_not_pass(name: str) -> None:
    tensors = drawn(PROBLEMS[0])
    right = ours(tensors, PROBLEMS[0])
    wrong = dataclasses.replace(right, **{name: (getattr(right, name).float() * 1.01).to(torch.bfloat16)})
    found = checked(wrong, tensors, PROBLEMS[0])
    assert not found.passed
    assert found.worst[0] == name
    assert [other for other, one in found.named if not one.passed] == [name]


@pytest.mark.parametrize("name", NAMES)
def test_one_number_that_is_none_and_another_shape_do_not_pass(name: str) -> None:
    tensors = drawn(PROBLEMS[1])
    right = ours(tensors, PROBLEMS[1])
    holed = getattr(right, name).clone()
    holed[0, 0, 0, 0] = torch.nan
    found = checked(dataclasses.replace(right, **{name: holed}), tensors, PROBLEMS[1])
    assert not found.passed
    assert getattr(found, name).non_finite == 1
    assert found.missing == {name: f"{name} holds NaN or infinity"}
    cut = checked(dataclasses.replace(right, **{name: getattr(right, name)[..., :-1]}), tensors, PROBLEMS[1])
    assert not cut.passed
    assert "has shape" in cut.missing[name]


def test_a_delta_that_was_left_out_is_found() -> None:
    """dS = P ∘ dP without what delta takes off: wrong in dq and dk, right in dv."""
    tensors = drawn(PROBLEMS[0])
    out, lse = reference(*tensors[:3], PROBLEMS[0])
    found = checked(rounded_as_ours(*tensors, PROBLEMS[0], AttentionOutput(torch.zeros_like(out), lse)), tensors, PROBLEMS[0])
    assert [name for name, one in found.named if one.passed] == ["dv"]


def test_with_fp8_the_backward_answers_for_the_forward_s_output_and_tells_the_rest() -> None:
    """Another out and lse than the exact ones: right for what was given, and the distance to the exact one beside it."""
    problem, tensors = PROBLEMS[0], drawn(PROBLEMS[0])
    out, lse = reference(*tensors[:3], problem)
    noise = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).double()
    given = AttentionOutput((out * (1 + 0.05 * noise)).to(torch.bfloat16), (lse + 0.01).float())
    exact = reference_of(*tensors, problem)
    own = reference_of(*tensors, problem, output=given)
    found = gradient_check.check(
        rounded_as_ours(*tensors, problem, given), exact, sample_terms(exact, *tensors, problem), problem,
        Precision(fp8=True), "interpreted", "v3", own,
    )  # fmt: skip
    assert found.passed
    for _, one in found.named:
        assert one.end_to_end_relative_error > one.allowed_relative_error > one.relative_error


def test_a_gpu_checks_as_many_heads_as_its_budget_and_refuses_what_none_could() -> None:
    long = AttentionProblem(seq_len_q=16384, seq_len_kv=16384)
    assert heads_within(long, reference_budget(None)) == 16
    assert heads_within(long, reference_budget(90)) == 12
    assert heads_within(long, reference_budget(89)) == 1
    refuse_gradients(long, reference_budget(89))
    endless = AttentionProblem(seq_len_q=1 << 20, seq_len_kv=1 << 20)
    refuse_gradients(endless, reference_budget(None))
    with pytest.raises(Refused, match=r"A backward at 1,048,576 tokens is not possible here: .* 1.7e\+15 operations"):
        refuse_gradients(endless, reference_budget(90))


def test_the_heads_that_are_checked_are_drawn_by_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = AttentionProblem(num_heads=8, num_kv_heads=8, seq_len_q=20, seq_len_kv=20, head_dim=16)
    monkeypatch.setattr(gradient_check, "reference_budget", lambda capability: 3.5 * 12 * 20 * 20 * 16)
    tensors = drawn(problem)
    exact, again = reference_of(*tensors, problem, 1), reference_of(*tensors, problem, 1)
    assert exact.heads.tolist() == again.heads.tolist() == sorted(set(exact.heads.tolist()))
    assert exact.dq.shape == (3, 1, 20, 16)
    assert {tuple(reference_of(*tensors, problem, seed).heads.tolist()) for seed in range(5)} != {tuple(exact.heads.tolist())}
    found = gradient_check.check(
        ours(tensors, problem), exact, sample_terms(exact, *tensors, problem), problem, Precision(), "measured", "v2"
    )
    assert (found.passed, found.heads_checked, found.heads_total) == (True, 3, 8)
