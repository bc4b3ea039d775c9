"""The oracle against torch's own float64 attention, which shares no code with it."""

import math

import pytest
import torch

from kernels.problem import AttentionProblem
from kernels.reference import reference


def tensors(problem: AttentionProblem):
    generator = torch.Generator().manual_seed(1)
    shapes = [(problem.num_heads, problem.seq_len_q)] + [(problem.num_kv_heads, problem.seq_len_kv)] * 2
    return [torch.randn((problem.batch, *shape, problem.head_dim), generator=generator).double() for shape in shapes]


def torch_attention(q, k, v, problem):
    mask = None
    if problem.causal:
        mask = torch.ones(problem.seq_len_q, problem.seq_len_kv, dtype=torch.bool).tril(problem.seq_len_kv - problem.seq_len_q)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


@pytest.mark.parametrize(("seq_len_q", "seq_len_kv", "causal"), [(1, 1, True), (33, 33, True), (20, 70, True), (70, 20, False)])
def test_equals_torch(seq_len_q, seq_len_kv, causal):
    problem = AttentionProblem(
        batch=2, num_heads=4, num_kv_heads=2, seq_len_q=seq_len_q, seq_len_kv=seq_len_kv, head_dim=16, causal=causal
    )
    q, k, v = tensors(problem)
    out, _ = reference(q, k, v, problem)
    torch.testing.assert_close(out, torch_attention(q, k, v, problem), rtol=1e-12, atol=1e-12)


def test_chosen_rows_equal_the_same_rows_of_all():
    problem = AttentionProblem(batch=1, num_heads=2, num_kv_heads=1, seq_len_q=40, seq_len_kv=50, head_dim=16, causal=True)
    rows = torch.tensor([0, 7, 39])
    tensors_ = tensors(problem)
    for some, everything in zip(reference(*tensors_, problem, rows), reference(*tensors_, problem), strict=True):
        torch.testing.assert_close(some, everything[:, :, rows], rtol=1e-13, atol=1e-13)


def test_a_row_that_sees_nothing_is_zero_and_its_lse_minus_infinity():
    problem = AttentionProblem(batch=1, num_heads=1, num_kv_heads=1, seq_len_q=5, seq_len_kv=2, head_dim=16, causal=True)
    out, lse = reference(*tensors(problem), problem)
    assert torch.all(out[0, 0, :3] == 0)
    assert torch.all(lse[0, 0, :3] == -math.inf)
    assert torch.all(torch.isfinite(lse[0, 0, 3:]))


def test_lse_is_the_natural_log_of_the_sum():
    problem = AttentionProblem(batch=1, num_heads=1, num_kv_heads=1, seq_len_q=3, seq_len_kv=4, head_dim=16)
    q, k, v = tensors(problem)
    _, lse = reference(q, k, v, problem)
    assert torch.allclose(lse[0, 0], (q[0, 0] @ k[0, 0].T * 0.25).exp().sum(1).log())
