"""Gradients in torch against each other, and what a backward refuses; the kernels themselves have test_backward_interpreted."""

import pytest
import torch

from kernels import backward_autograd, native
from kernels.architecture import ARCHITECTURES
from kernels.backward import DIFFERENTIABLE, attention
from kernels.kernel import AttentionOutput
from kernels.peers import peer
from kernels.problem import AttentionProblem, BackwardTiles, Precision, TileConfig
from kernels.reference import reference, reference_gradients
from kernels.registry import (
    VERSIONS,
    Refused,
    default_backward_tiles,
    load_backward,
    refuse_backward,
)

SHAPES = [(1, 1, True), (33, 33, True), (20, 70, True), (70, 20, True), (70, 20, False)]
TILES = TileConfig(block_m=64, block_n=64, num_warps=4, num_stages=2)


def problem(seq_len_q: int, seq_len_kv: int, causal: bool, **fields: int) -> AttentionProblem:
    sizes = {"batch": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, **fields}
    return AttentionProblem(seq_len_q=seq_len_q, seq_len_kv=seq_len_kv, causal=causal, **sizes)


def drawn(asked: AttentionProblem, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    query = (asked.batch, asked.num_heads, asked.seq_len_q, asked.head_dim)
    key = (asked.batch, asked.num_kv_heads, asked.seq_len_kv, asked.head_dim)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in (query, key, key, query)]


def relative_errors(gradients: object, exact: tuple[torch.Tensor, ...]) -> list[float]:
    """Of dq, dk and dv, by norms."""
    found = (gradients.dq, gradients.dk, gradients.dv)
    return [
        float((ours.double() - right).norm() / right.norm().clamp_min(1.0)) for ours, right in zip(found, exact, strict=True)
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_native_s_gradients_are_the_reference_s_in_float64(shape):
    """Two derivations: autograd through three calls of torch, and the formulas with delta."""
    asked = problem(*shape)
    q, k, v, d_out = drawn(asked)
    operands = backward_autograd.prepare(q, k, v)
    output = native.forward(operands, asked, None, None)
    gradients = backward_autograd.backward(operands, output, d_out, asked, None, None)
    assert max(relative_errors(gradients, reference_gradients(q, k, v, d_out, asked))) < 1e-13
    again = backward_autograd.backward(operands, output, d_out, asked, None, None)
    assert torch.equal(gradients.dq, again.dq), "the graph is kept for the next call"


def test_rows_that_see_nothing_have_no_gradient():
    asked = problem(7, 3, True)
    dq, dk, dv = reference_gradients(*drawn(asked), asked)
    assert not dq[:, :, :4].any()
    assert dq[:, :, 4:].any()
    assert torch.isfinite(dk).all()
    assert torch.isfinite(dv).all()


def test_chosen_heads_equal_the_same_heads_of_all():
    asked = problem(9, 11, True)
    tensors = drawn(asked)
    dq, dk, dv = reference_gradients(*tensors, asked)
    some = reference_gradients(*tensors, asked, heads=torch.tensor([3, 0]))
    for place, (batch, kv_head) in enumerate([(1, 1), (0, 0)]):
        assert torch.equal(some[0][place], dq[batch, 2 * kv_head : 2 * kv_head + 2])
        assert torch.equal(some[1][place], dk[batch, kv_head])
        assert torch.equal(some[2][place], dv[batch, kv_head])


def test_a_given_out_and_lse_replace_the_exact_ones():
    asked = problem(9, 11, False)
    tensors = drawn(asked)
    out, lse = reference(*tensors[:3], asked)
    exact = reference_gradients(*tensors, asked)
    for found, right in zip(reference_gradients(*tensors, asked, given=(out, lse)), exact, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-14)
    # A larger lse makes all weights smaller by one factor, and dV with them.
    dv = reference_gradients(*tensors, asked, given=(out, lse + 0.5))[2]
    torch.testing.assert_close(dv, exact[2] * torch.tensor(-0.5).double().exp(), rtol=1e-12, atol=1e-14)


def test_a_library_s_backward_goes_through_autograd():
    asked = problem(64, 64, True, num_kv_heads=4, head_dim=64)
    q, k, v, d_out = drawn(asked, torch.bfloat16)
    operands = load_backward("sdpa-flash", asked).prepare(q, k, v)
    output = peer("sdpa-flash").forward(operands, asked, None, None)
    gradients = load_backward("sdpa-flash", asked).backward(operands, output, d_out, asked, None, None)
    # bf16 rounds to 2^-9 at most; P, dS and the gradients are rounded.
    assert max(relative_errors(gradients, reference_gradients(q, k, v, d_out, asked))) < 3 * 2.0**-9


def test_an_output_without_a_graph_is_refused():
    asked = problem(4, 4, False)
    q, k, v, d_out = drawn(asked)
    output = AttentionOutput(reference(q, k, v, asked)[0], None)
    with pytest.raises(ValueError, match="a tensor without a graph is not possible"):
        backward_autograd.backward(backward_autograd.prepare(q, k, v), output, d_out, asked, None, None)


# What is refused


def half(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("inputs", "version", "sentence"),
    [
        ((half(1, 2, 4, 16),) * 3, "native", "version = native is not possible: it can be v1, v2, v3 or v3-hopper."),
        ((half(1, 2, 4, 16).float(),) * 3, "v2", "dtype = torch.float32, torch.float32, torch.float32 is not possible"),
        ((half(2, 4, 16),) * 3, "v2", r"q has shape \(2, 4, 16\): it must be \(batch, heads, seq_len, head_dim\)."),
        ((half(1, 2, 4, 16), half(1, 2, 5, 16), half(1, 2, 4, 16)), "v2", "v has shape"),
        ((half(1, 4, 2, 16).transpose(1, 2), half(1, 2, 4, 16), half(1, 2, 4, 16)), "v2", "q is not contiguous"),
        ((half(1, 2, 4, 16),) * 3, "v2", "device = cpu is not possible"),
        ((half(1, 2, 4, 24),) * 3, "v2", "head_dim = 24 is not possible"),
    ],
)
def test_attention_says_what_it_cannot_do(inputs, version, sentence):
    with pytest.raises(ValueError, match=sentence):
        attention(*inputs, version=version)


def test_every_version_of_ours_with_tiles_is_differentiable():
    assert DIFFERENTIABLE == ("v1", "v2", "v3", "v3-hopper")


def refusal(name: str, tiles: BackwardTiles | None) -> str:
    with pytest.raises(Refused) as refused:
        refuse_backward(name, problem(64, 64, False), Precision(), tiles, ARCHITECTURES[90])
    return refused.value.sentence


def test_what_a_backward_cannot_be_is_one_sentence():
    both, one = BackwardTiles(dkdv=TILES, dq=TILES), BackwardTiles(dkdv=TILES)
    assert refusal("fa3", None).startswith("direction = backward is not possible with fa3: only native, v1, v2")
    assert refusal("native", one) == "Tiles of the backward are not possible with native: it has none to choose."
    assert refusal("v2", None) == "The backward of v2 needs block_m, block_n, num_warps and num_stages."
    assert refusal("v2", one) == "The backward of v2 needs tiles for dQ, too."
    assert refusal("v1", both) == "The backward of v1 has one kernel: tiles for dQ alone are not possible."
    wide = TILES.model_copy(update={"block_m": 192})
    assert refusal("v3", BackwardTiles(dkdv=TILES, dq=wide)).startswith("BLOCK_M = 192 is not possible with the backward of v3")
    dealt = TILES.model_copy(update={"num_programs": 4})
    assert refusal("v3", BackwardTiles(dkdv=dealt, dq=TILES)).startswith("num_programs = 4 is not possible with the backward")
    with pytest.raises(Refused, match="backward is not possible with fa3"):
        load_backward("fa3", problem(64, 64, False))


HOPPER_DKDV = TileConfig(block_m=64, block_n=64, num_warps=4, num_stages=2)
HOPPER_DQ = TileConfig(block_m=192, block_n=64, num_warps=12, num_stages=3)


@pytest.mark.parametrize(
    ("part", "changed", "sentence", "numbers"),
    [
        (
            "dkdv",
            {"block_n": 128},
            "BLOCK_M × BLOCK_N = 64 × 128 is not possible with the backward of v3-hopper: its kernel for dK and dV has tiles "
            "of 64 × 64.",
            (None, None, ""),
        ),
        (
            "dq",
            {"block_n": 128, "num_stages": 2},
            "BLOCK_M × BLOCK_N = 192 × 128 is not possible with the backward of v3-hopper: its kernel for dQ has tiles of "
            "192 × 64.",
            (None, None, ""),
        ),
        (
            "dq",
            {"block_m": 128, "num_warps": 8},
            "BLOCK_M × BLOCK_N = 128 × 64 is not possible with the backward of v3-hopper: its kernel for dQ has tiles of "
            "192 × 64.",
            (None, None, ""),
        ),
        (
            "dkdv",
            {"num_warps": 8},
            "num_warps = 8 is not possible with the backward of v3-hopper: its kernel for dK and dV has 4, four for each 64 "
            "queries or keys that a program keeps.",
            (4, 8, "warps"),
        ),
        (
            "dq",
            {"num_warps": 4},
            "num_warps = 4 is not possible with the backward of v3-hopper: its kernel for dQ has 12, four for each 64 queries "
            "or keys that a program keeps.",
            (12, 4, "warps"),
        ),
        (
            "dkdv",
            {"num_stages": 1},
            "num_stages = 1 is not possible with the backward of v3-hopper: its kernel for dK and dV can have 2, 3 or 4.",
            (2, 1, "stages"),
        ),
        (
            "dq",
            {"num_stages": 5},
            "num_stages = 5 is not possible with the backward of v3-hopper: its kernel for dQ can have 2, 3 or 4.",
            (4, 5, "stages"),
        ),
    ],
)
def test_hopper_s_backward_says_which_tiles_it_has(part, changed, sentence, numbers):
    asked, arch = problem(64, 64, False, head_dim=128), ARCHITECTURES[90]
    possible = BackwardTiles(dkdv=HOPPER_DKDV, dq=HOPPER_DQ)
    tiles = possible.model_copy(update={part: getattr(possible, part).model_copy(update=changed)})
    with pytest.raises(Refused) as refused:
        refuse_backward("v3-hopper", asked, Precision(), tiles, arch)
    assert refused.value.sentence == sentence
    assert (refused.value.needs, refused.value.has, refused.value.unit) == numbers
    cured = tiles.model_copy(update={part: refused.value.cure})
    refuse_backward("v3-hopper", asked, Precision(), cured, arch)
    # A cure changes no more than it must.
    kept = set(TileConfig.model_fields) - set(changed)
    assert all(getattr(refused.value.cure, field) == getattr(getattr(possible, part), field) for field in kept)


def test_hopper_s_backward_takes_two_to_four_stages():
    asked = problem(64, 64, False, head_dim=64)
    for num_stages in (2, 3, 4):
        stages = {"num_stages": num_stages}
        tiles = BackwardTiles(dkdv=HOPPER_DKDV.model_copy(update=stages), dq=HOPPER_DQ.model_copy(update=stages))
        refuse_backward("v3-hopper", asked, Precision(), tiles, ARCHITECTURES[90])


def test_past_head_dim_128_v3_hopper_s_backward_has_v3_s_tiles():
    """There v3-hopper's is v3's, whose BLOCK_M are powers of two."""
    asked = problem(64, 64, False, head_dim=256)
    refuse_backward("v3-hopper", asked, Precision(), BackwardTiles(dkdv=TILES, dq=TILES), ARCHITECTURES[90])
    with pytest.raises(Refused, match="BLOCK_M = 192 is not possible with the backward of v3-hopper: it can be 16, 32, 64"):
        refuse_backward("v3-hopper", asked, Precision(), BackwardTiles(dkdv=TILES, dq=HOPPER_DQ), ARCHITECTURES[90])


@pytest.mark.parametrize("capability", ARCHITECTURES)
@pytest.mark.parametrize("name", VERSIONS)
def test_the_tiles_that_a_backward_starts_with_are_not_refused(name, capability):
    for head_dim in (16, 64, 80, 256):
        asked = problem(64, 64, True, head_dim=head_dim)
        tiles = default_backward_tiles(name, asked, Precision(), ARCHITECTURES[capability])
        assert (tiles is not None) == (name in DIFFERENTIABLE)
        if VERSIONS[name].backwards:
            refuse_backward(name, asked, Precision(), tiles, ARCHITECTURES[capability])
