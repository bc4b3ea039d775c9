"""The peers: FlexAttention's mask and heads against float64, FA3's FP8 operands and what is asked of its output."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from kernels import peers
from kernels.kernel import Operands
from kernels.problem import AttentionProblem, Precision
from kernels.reference import reference
from kernels.registry import Refused, precision_for, refuse
from profiling.accuracy import UNIT_ROUNDOFF, allowed, check
from profiling.failures import job_error

FP8 = precision_for("fa3", Precision(fp8=True))
GROUPED = AttentionProblem(batch=2, num_heads=4, num_kv_heads=2, seq_len_q=96, seq_len_kv=96, head_dim=64)


def drawn(problem: AttentionProblem, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    query = (problem.batch, problem.num_heads, problem.seq_len_q, problem.head_dim)
    key = (problem.batch, problem.num_kv_heads, problem.seq_len_kv, problem.head_dim)
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in (query, key, key))


# FlexAttention, as it stands: what torch.compile makes of it needs a GPU


@pytest.mark.parametrize(
    ("seq_len_q", "seq_len_kv", "causal"), [(64, 64, True), (40, 90, True), (70, 30, True), (40, 90, False)]
)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_has_the_causal_mask_bottom_right_and_shares_keys(seq_len_q, seq_len_kv, causal):
    from torch.nn.attention.flex_attention import flex_attention

    problem = AttentionProblem(
        num_heads=2, num_kv_heads=1, seq_len_q=seq_len_q, seq_len_kv=seq_len_kv, head_dim=32, causal=causal
    )
    q, k, v = drawn(problem)
    kernel = peers._Flex(flex_attention)
    output = kernel.forward(kernel.prepare(q, k, v, Precision(), None), problem, None, None)
    assert output.lse is None
    assert check(output.out, None, q, k, v, problem, Precision(), "interpreted", kernel="flex").passed
    moved = problem.model_copy(update={"causal": True, "seq_len_kv": seq_len_kv - 1})
    other = reference(q, k[:, :, 1:].contiguous(), v[:, :, 1:].contiguous(), moved)[0]
    assert not torch.allclose(output.out.double(), other, atol=1e-2), "a mask that is off by one is another output"


def test_what_torch_compile_cannot_do_is_refused_in_one_sentence():
    from torch._dynamo.exc import Unsupported

    def cannot(*_tensors: torch.Tensor, **_options: object) -> torch.Tensor:
        raise Unsupported("no C compiler was found\nand a stack that nobody reads")

    operands = Operands(*drawn(GROUPED), dtype=torch.bfloat16)
    with pytest.raises(Refused) as refusal:
        peers._Flex(cannot).forward(operands, GROUPED, None, None)
    assert refusal.value.sentence == (
        "flex is not possible here: torch.compile could not compile it (no C compiler was found)."
    )  # fmt: skip
    assert job_error(refusal.value, "flex", "compile").kind == "refused"


def test_an_error_of_the_gpu_stays_one():
    def breaks(*_tensors: torch.Tensor, **_options: object) -> torch.Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        peers._Flex(breaks).forward(Operands(*drawn(GROUPED), dtype=torch.bfloat16), GROUPED, None, None)


# FA3


def e4m3(x: torch.Tensor) -> torch.Tensor:
    return x.float().to(torch.float8_e4m3fn)


def answering(problem: AttentionProblem, wrong: float = 1.0) -> SimpleNamespace:
    """An interface like FA3's, as it is documented: descale factors (batch, num_kv_heads), P in e4m3, out in bf16."""

    def flash_attn_func(q, k, v, causal, q_descale=None, k_descale=None, v_descale=None):
        assert q.shape == (problem.batch, problem.seq_len_q, problem.num_heads, problem.head_dim)
        assert k.shape == v.shape == (problem.batch, problem.seq_len_kv, problem.num_kv_heads, problem.head_dim)
        assert all(x.is_contiguous() for x in (q, k, v))
        group = problem.num_heads // problem.num_kv_heads
        scores = torch.einsum("bihd,bjhd->bhij", q.double(), k.double().repeat_interleave(group, 2)) * problem.sm_scale
        values = v.double().repeat_interleave(group, 2)
        if q_descale is not None:
            assert q_descale.shape == k_descale.shape == v_descale.shape == (problem.batch, problem.num_kv_heads)
            scores *= (q_descale * k_descale).double().repeat_interleave(group, 1)[:, :, None, None] * wrong
        if causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool)
            scores.masked_fill_(hidden.triu(1 + problem.seq_len_kv - problem.seq_len_q), -math.inf)
        p = (scores - scores.amax(-1, keepdim=True)).exp()
        total = p.sum(-1, keepdim=True)
        if q_descale is not None:
            p = e4m3(p * 256).double() / 256
            values = values * v_descale.double().repeat_interleave(group, 1)[:, None, :, None]
        out = torch.einsum("bhij,bjhd->bihd", p / total, values)
        return out.to(torch.bfloat16)

    return SimpleNamespace(flash_attn_func=flash_attn_func)


def test_fa3_in_bf16_reads_its_own_layout():
    q, k, v = drawn(GROUPED)
    kernel = peers._Fa3(answering(GROUPED))
    operands = kernel.prepare(q, k, v, Precision(), None)
    assert operands.q_scale is None
    out = kernel.forward(operands, GROUPED, None, None).out
    assert check(out, None, q, k, v, GROUPED, Precision(), "interpreted", kernel="fa3", operands=operands).passed


@pytest.mark.parametrize("causal", [False, True])
def test_fa3_in_fp8_answers_for_codes_with_a_scale_a_head(causal):
    problem = GROUPED.model_copy(update={"causal": causal})
    q, k, v = drawn(problem)
    q[1, 2:] *= 30.0  # another key-value head's group: its scale is its own
    kernel = peers._Fa3(answering(problem))
    operands = kernel.prepare(q, k, v, FP8, None)
    for x, codes, scale in ((k, operands.k, operands.k_scale), (v, operands.v, operands.v_scale)):
        assert codes.dtype == torch.float8_e4m3fn
        assert torch.equal(scale, x.float().abs().amax((2, 3)) / 448)
    assert torch.equal(operands.q_scale, q.float().abs().amax((2, 3)).unflatten(1, (2, 2)).amax(2) / 448)
    for given, read in zip((q, k, v), operands.dequantized(), strict=True):
        normal = given.float().abs() > given.float().abs().max() / 2**14
        assert ((read - given).abs() <= UNIT_ROUNDOFF["fp8"] * given.float().abs())[normal].all()
    out = kernel.forward(operands, problem, None, None).out
    found = check(out, None, q, k, v, problem, FP8, "interpreted", kernel="fa3", operands=operands)
    assert found.passed, found
    assert found.relative_error < found.end_to_end_relative_error


@pytest.mark.parametrize("spoil", ["scores", "values"])
def test_fa3_in_fp8_with_a_wrong_scale_does_not_pass(spoil):
    q, k, v = drawn(GROUPED)
    kernel = peers._Fa3(answering(GROUPED, wrong=1.2 if spoil == "scores" else 1.0))
    operands = kernel.prepare(q, k, v, FP8, None)
    out = kernel.forward(operands, GROUPED, None, None).out * (1.0 if spoil == "scores" else 1.1)
    assert not check(out, None, q, k, v, GROUPED, FP8, "interpreted", kernel="fa3", operands=operands).passed


def test_a_head_of_zeros_has_a_scale():
    q, k, v = drawn(GROUPED)
    v[0, 1] = 0.0
    operands = peers._Fa3(answering(GROUPED)).prepare(q, k, v, FP8, None)
    assert float(operands.v_scale[0, 1]) == 1.0
    assert not operands.dequantized()[2][0, 1].any()


def cut_sum(products: torch.Tensor) -> torch.Tensor:
    """The sum over the last axis, 32 products at a time, each cut to 13 bits below the largest magnitude: the matrix units."""
    total = torch.zeros(products.shape[:-1], dtype=torch.float64)
    for part in products.split(32, -1):
        parts = torch.cat([part, total[..., None]], -1)
        unit = 2.0 ** (torch.floor(torch.log2(parts.abs().amax(-1, keepdim=True))) - 13)
        total = (torch.trunc(parts / unit) * unit).sum(-1)
    return total


@pytest.mark.parametrize("seq_len", [1024, 4096])
def test_a_sum_in_the_matrix_units_is_off_by_no_more_than_its_share_of_the_tolerance(seq_len):
    """The term for FA3's one sum over all keys, against those cuts simulated; it is no more than four times too wide."""
    generator = torch.Generator().manual_seed(1)
    p = torch.randn((64, seq_len), generator=generator, dtype=torch.float64).exp()
    products = p / p.sum(-1, keepdim=True) * torch.randn((64, seq_len), generator=generator, dtype=torch.float64)
    error = float((cut_sum(products) - products.sum(-1)).norm() / products.sum(-1).norm())
    problem = AttentionProblem(num_heads=1, num_kv_heads=1, seq_len_q=seq_len, seq_len_kv=seq_len)
    with_cut, without = (allowed(problem, FP8, kernel).relative_error for kernel in ("fa3", "v3"))
    share = math.sqrt(with_cut**2 - without**2)
    assert share / 4 < error < share


# What is refused


@pytest.mark.parametrize(
    ("name", "precision", "capability", "sentence"),
    [
        ("fa3", FP8, 100, "FP8 is not possible with fa3 on sm_100 (Blackwell): its FP8 kernels are Hopper's, sm_90."),
        (
            "fa3", FP8.model_copy(update={"dtype": "fp16"}), 90,
            "dtype = fp16 is not possible with fa3 in FP8: its output is bf16.",
        ),
        (
            "fa3", Precision(fp8=True), 90,
            "fp8_scale = token is not possible with fa3: it has one scale a head, of Q, K and V as they are.",
        ),
        (
            "fa3", FP8.model_copy(update={"smooth_k": True}), 90,
            "smooth_k is not possible with fa3: it has one scale a head, of Q, K and V as they are.",
        ),
        ("flex", Precision(), None, "flex is not possible in the interpreter: it is a library for the GPU."),
    ],
)  # fmt: skip
def test_what_a_peer_cannot_do_is_one_sentence(name, precision, capability, sentence):
    from kernels.architecture import ARCHITECTURES

    with pytest.raises(Refused) as refusal:
        refuse(name, GROUPED, precision, None, None if capability is None else ARCHITECTURES[capability])
    assert refusal.value.sentence == sentence


def test_a_build_of_fa3_without_fp16_is_refused_not_failed():
    error = job_error(RuntimeError("This flash attention build does not support FP16."), "fa3", "compile")
    assert (error.kind, "FP16" in error.sentence) == ("refused", True)


def test_each_version_gets_the_precision_it_has():
    asked = Precision(fp8=True, fp8_scale="block")
    assert precision_for("v3", asked) == asked
    assert not precision_for("flex", asked).fp8
    assert precision_for("fa3", asked) == Precision(fp8=True, fp8_scale="head", smooth_k=False)
    assert precision_for("fa3", Precision()) == Precision()
