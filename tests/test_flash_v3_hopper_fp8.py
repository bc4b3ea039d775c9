"""The Hopper kernel in FP8 without a GPU: what ptxas made of the loop; and the order in which columns, weights and V lie."""

import re
from collections import Counter
from functools import cache

import pytest
import torch

from kernels import flash_v3_hopper
from kernels.architecture import ARCHITECTURES
from kernels.default_tiles import HOPPER_FP8_STAGES, HOPPER_FP8_TILES
from kernels.flash_v3_hopper_fp8 import FORMS
from kernels.kernel import Operands
from kernels.launch import CompileOnly
from kernels.problem import AttentionProblem, Precision, TileConfig
from kernels.quantize import ROW_GROUP, tokens_of_rows
from kernels.registry import Refused, default_tiles, precision_for, refuse
from tests.sass import instructions, loops

HOPPER = ARCHITECTURES[90]
FP8 = Precision(fp8=True, fp8_scale="block")


@cache
def compiled(
    head_dim: int, causal: bool, seq_len: int, dtype: torch.dtype = torch.bfloat16, blocks: tuple[int, int] | None = None
):
    """The kernel, its instructions and the tiles."""
    problem = AttentionProblem(batch=8, seq_len_q=seq_len, seq_len_kv=seq_len, head_dim=head_dim, causal=causal)
    tiles = default_tiles("v3-hopper", problem, FP8, HOPPER)
    if blocks:
        block_m, block_n = blocks
        stages = HOPPER_FP8_STAGES[max(64, problem.padded_head_dim)]
        tiles = TileConfig(block_m=block_m, block_n=block_n, num_warps=block_m // 16, num_stages=stages)
    stored_len = -(-seq_len // ROW_GROUP) * ROW_GROUP

    def codes(rows: int, columns: int) -> torch.Tensor:
        return torch.empty((8, 16, rows, columns), dtype=torch.float8_e4m3fn, device="meta")

    def scales(count: int) -> torch.Tensor:
        return torch.empty((8, 16, count), dtype=torch.float32, device="meta")

    operands = Operands(
        codes(seq_len, head_dim), codes(stored_len, head_dim), codes(head_dim, stored_len), dtype=dtype,
        q_scale=scales(seq_len), k_scale=scales(stored_len), v_scale=scales(head_dim), lse_shift=scales(seq_len),
    )  # fmt: skip
    launch = CompileOnly(90)
    flash_v3_hopper.forward(operands, problem, tiles, launch)
    kernel = launch.compiled["flash_v3_hopper_fp8_forward"]
    return kernel, instructions(kernel.asm["cubin"]), tiles


def unmasked_loops(code: list[tuple[int, str]], tiles: TileConfig) -> list[list[str]]:
    """The innermost loops with products and a tile's exponentials: one a warpgroup, the tiles without a mask."""
    found = [
        loop
        for loop in loops(code)
        if any(text.startswith("QGMMA") for text in loop) and len(places_of("MUFU.EX2", loop)) >= tiles.block_n // 2
    ]
    return [loop for loop in found if len(loop) < 1.1 * len(found[0])]


def places_of(mnemonic: str, code: list[str]) -> list[int]:
    return [place for place, text in enumerate(code) if text.startswith(mnemonic)]


CASES = (
    (128, True, 4096),
    pytest.param((64, False, 4096), marks=pytest.mark.long),
    pytest.param((64, True, 1000), marks=pytest.mark.long),
    pytest.param((128, False, 1000), marks=pytest.mark.long),
    pytest.param((256, True, 1000), marks=pytest.mark.long),
    pytest.param((256, False, 4096), marks=pytest.mark.long),
)


@pytest.mark.parametrize("case", CASES)
def test_its_loop_has_what_the_mathematics_need_and_little_else(case):
    kernel, code, tiles = compiled(*case)
    assert kernel.metadata.shared <= HOPPER.shared_memory_per_block_bytes
    unmasked = unmasked_loops(code, tiles)
    assert len(unmasked) == tiles.block_m // 64
    for loop in unmasked:
        counts = Counter(re.split(r"[ .]", text)[0] + (".EX2" if "EX2" in text else "") for text in loop)
        scores, outputs = tiles.block_n // 2, max(64, case[0]) // 2  # a thread's, of 64 rows
        assert counts["MUFU.EX2"] == scores + 2
        # One multiply-add a score, and one for every number of O: rescaling it and adding a tile's P V in float32.
        assert scores + outputs <= counts["FFMA"] <= scores + outputs + 8
        assert scores <= counts["FMNMX"] <= scores + 8
        # Two weights a conversion, four a register, and none changes place on its way into the second product.
        assert counts["F2FP"] == scores // 2
        assert counts["PRMT"] == 0
        assert counts["SHFL"] == 4
        # Three warpgroups have 160 registers a thread: a few numbers that live longer than the loop leave them.
        assert counts["LDL"] + counts["STL"] <= (10 if tiles.block_m == 192 else 0)
        # ptxas adds a wait a product where it serialises them (its warnings C7510 to C7514).
        expected = 5 if case[0] == 256 else 3 if FORMS[case[:2]].p_v_first else 2
        assert len(places_of("WARPGROUP.DEPBAR", loop)) == expected


@pytest.mark.parametrize("case", [case for case in CASES if not (hasattr(case, "values") and case.values[0][0] == 256)])
def test_its_loop_is_in_the_order_of_its_form(case):
    _, code, tiles = compiled(*case)
    form, half = FORMS[case[:2]], tiles.block_n // 4  # of a thread's exponentials, which are block_n / 2
    for loop in unmasked_loops(code, tiles):
        waits = places_of("WARPGROUP.DEPBAR", loop)
        assert loop[waits[0]].endswith("0x2" if form.s_alone else "0x1")
        under_p_v = loop[waits[0] : waits[1]]
        # The turn goes on before the exponentials, but for alpha's two.
        turn = places_of("BAR.ARV", under_p_v)[0]
        assert len(places_of("MUFU.EX2", under_p_v[:turn])) <= 2
        if form.p_v_first:
            # The additions of P V to O are among the exponentials of the first half.
            after = loop[waits[1] : waits[2]]
            exponentials = places_of("MUFU.EX2", after)
            assert len(exponentials) >= half
            between = after[exponentials[0] : exponentials[-1]]
            assert len(places_of("FFMA", between)) >= half // 2
        else:
            assert len(places_of("MUFU.EX2", under_p_v)) >= half
        (stage,) = places_of("SYNCS.PHASECHK", loop)
        assert (stage > waits[0] + turn) == form.ahead


@pytest.mark.long
@pytest.mark.parametrize("head_dim", [32, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_all_its_tiles_fit(head_dim, causal, dtype):
    padded = max(64, AttentionProblem(seq_len_q=1, seq_len_kv=1, head_dim=head_dim).padded_head_dim)
    for blocks in HOPPER_FP8_TILES[padded]:
        kernel, code, tiles = compiled(head_dim, causal, 1000, dtype, blocks)
        assert kernel.metadata.shared <= HOPPER.shared_memory_per_block_bytes
        for loop in unmasked_loops(code, tiles):
            assert sum(text.startswith(("STL", "LDL")) for text in loop) <= (10 if tiles.block_m == 192 else 0), blocks


def test_a_threads_columns_differ_from_a_constant_by_four_times_its_lane():
    """What the mask rests on: a thread of lane t of four holds the columns 8i + 2t + e."""
    columns = torch.arange(128)
    constants = (columns & -16) + ((columns >> 2) & 2) + (columns & 1)
    lanes = columns % 8 // 2
    assert torch.equal(constants + 4 * lanes, tokens_of_rows(columns))
    assert torch.equal((columns & 6) * 2, 4 * lanes)
    for lane in range(4):
        assert torch.equal(constants[lanes == lane], constants[lanes == 0])


def test_defaults_are_possible_and_scales_are_of_64_tokens():
    asked = Precision(fp8=True, fp8_scale="token", hadamard=True)
    assert precision_for("v3-hopper", asked) == Precision(fp8=True, fp8_scale="block", hadamard=True)
    for head_dim in (32, 64, 80, 96, 128, 256):
        for batch in (1, 64):
            problem = AttentionProblem(batch=batch, seq_len_q=1000, seq_len_kv=1000, head_dim=head_dim)
            refuse("v3-hopper", problem, FP8, default_tiles("v3-hopper", problem, FP8, HOPPER), HOPPER)
    tiles = default_tiles("v3-hopper", problem, FP8, HOPPER)
    with pytest.raises(Refused, match="fp8_scale = token is not possible with v3-hopper: it can be block"):
        refuse("v3-hopper", problem, Precision(fp8=True), tiles, HOPPER)
    with pytest.raises(Refused, match="128 × 64 is not possible with v3-hopper at head_dim 256 in FP8: it can be 128 × 128"):
        refuse("v3-hopper", problem, FP8, tiles.model_copy(update={"block_n": 64}), HOPPER)
    narrow = problem.model_copy(update={"head_dim": 80})
    with pytest.raises(Refused, match="hadamard is not possible at head_dim = 80"):
        refuse(
            "v3-hopper",
            narrow,
            asked.model_copy(update={"fp8_scale": "block"}),
            default_tiles("v3-hopper", narrow, FP8, HOPPER),
            HOPPER,
        )
