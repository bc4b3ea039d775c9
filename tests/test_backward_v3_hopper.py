"""The Hopper backward without a GPU: what ptxas made of its loops, and its pre-pass compiled."""

import re
from collections import Counter
from functools import cache

import pytest
import torch

from kernels import backward_v3_hopper
from kernels.architecture import ARCHITECTURES
from kernels.default_backward_tiles import backward_tiles_to_start_with
from kernels.kernel import TORCH_DTYPES, AttentionOutput
from kernels.launch import CompileOnly
from kernels.problem import AttentionProblem, BackwardTiles
from tests.sass import instructions, loops

HOPPER = ARCHITECTURES[90]


@cache
def compiled(head_dim: int, causal: bool, dtype: str = "bf16", sharing: int = 1, seq_len: int = 1000, num_stages: int = 0):
    """By kernel: what the compiler made, and its instructions as (address, text); num_stages 0: the default's."""
    problem = AttentionProblem(
        batch=2, num_heads=16, num_kv_heads=16 // sharing, seq_len_q=seq_len, seq_len_kv=seq_len, head_dim=head_dim,
        causal=causal,
    )  # fmt: skip
    q = torch.empty((2, 16, seq_len, head_dim), dtype=TORCH_DTYPES[dtype], device="meta")
    k = torch.empty((2, 16 // sharing, seq_len, head_dim), dtype=TORCH_DTYPES[dtype], device="meta")
    output = AttentionOutput(q, torch.empty(q.shape[:-1], dtype=torch.float32, device="meta"))
    launch = CompileOnly(90)
    tiles = backward_tiles_to_start_with("kernels.backward_v3_hopper", problem, HOPPER)
    if num_stages:
        stages = {"num_stages": num_stages}
        tiles = BackwardTiles(dkdv=tiles.dkdv.model_copy(update=stages), dq=tiles.dq.model_copy(update=stages))
    backward_v3_hopper.backward(backward_v3_hopper.prepare(q, k, k), output, q, problem, tiles, launch)
    return {name: (kernel, instructions(kernel.asm["cubin"])) for name, kernel in launch.compiled.items()}


def of_kernel(kernels: dict, name: str):
    return kernels[f"backward_v3_hopper_{name}"]


def counts_of(loop: list[str]) -> Counter:
    return Counter(re.split(r"[ .]", text)[0] for text in loop)


def places(loop: list[str], operation: str) -> list[int]:
    return [place for place, text in enumerate(loop) if text.startswith(operation)]


def tile_loops(code: list[tuple[int, str]]) -> list[list[str]]:
    """The loops whose body is one tile: with products that wait for each other, and nothing stored at their end."""
    return [
        loop
        for loop in loops(code)
        if any(text.startswith("WARPGROUP.DEPBAR.LE gsb0, 0x1") for text in loop)
        and not any(text.startswith("UTMASTG") for text in loop)
        and len(places(loop, "MUFU.EX2")) == SCORES
    ]


def is_masked(loop: list[str]) -> bool:
    return counts_of(loop)["FSEL"] > 0


# A tile of 64 × 64 scores is 32 of each thread of a warpgroup.
SCORES = 32
WARPGROUPS = {"dkdv": 1, "dq": 3}
CASES = (
    (128, True),
    (64, True),
    pytest.param((64, False), marks=pytest.mark.long),
    pytest.param((128, False), marks=pytest.mark.long),
    pytest.param((128, False, "bf16", 1, 1024), marks=pytest.mark.long),
    pytest.param((64, True, "bf16", 4), marks=pytest.mark.long),
    pytest.param((80, True, "fp16", 4), marks=pytest.mark.long),
    pytest.param((32, True, "bf16", 4), marks=pytest.mark.long),
)


def padded(case: tuple) -> int:
    return 1 << (case[0] - 1).bit_length()


def variants(case: tuple, name: str) -> int:
    """How many loops over tiles a warpgroup has: one with the mask where some tile needs it, one without."""
    ragged = (case[4] if len(case) > 4 else 1000) % 64 != 0
    return 2 if case[1] or (name == "dq" and ragged) else 1


@pytest.mark.parametrize("case", CASES)
def test_they_fit_and_no_product_is_serialised(case):
    kernels = compiled(*case)
    for name, groups in WARPGROUPS.items():
        kernel, code = of_kernel(kernels, name)
        counts = Counter(text.split()[0] for _, text in code)
        assert kernel.metadata.shared <= HOPPER.shared_memory_per_block_bytes
        # Three waits a tile, and in dkdv one for the first scores; one more would be ptxas's own, as one a product is where it
        # serialises them (its warnings C7510 to C7517).
        assert counts["WARPGROUP.DEPBAR.LE"] == groups * 3 * variants(case, name) + (name == "dkdv")
        assert counts["SHFL.BFLY"] == 0


@pytest.mark.parametrize("case", CASES)
def test_as_many_programs_share_an_sm_as_it_says(case):
    """Two for dk and dv, three where head_dim is at most 64: by shared memory, of which each program takes 1 KiB more, and by
    registers, 65,536 of an SM."""
    kernel, _ = of_kernel(compiled(*case), "dkdv")
    programs = 3 if padded(case) <= 64 else 2
    assert programs * (kernel.metadata.shared + 1024) <= HOPPER.shared_memory_per_block_bytes + 1024
    most = re.findall(r"\.maxnreg (\d+)", kernel.asm["ptx"])
    assert 128 * programs * int(most[0] if most else 255) <= 65536


@pytest.mark.parametrize("case", CASES)
def test_nothing_of_a_tile_goes_through_memory(case):
    kernels = compiled(*case)
    for name, groups in WARPGROUPS.items():
        found = tile_loops(of_kernel(kernels, name)[1])
        assert len(found) == groups * variants(case, name)
        for loop in found:
            counts = counts_of(loop)
            # With the mask some addresses may be: P, dS and the sums, of which a thread has dozens, never.
            assert counts["STL"] + counts["LDL"] <= (8 if is_masked(loop) else 0)
            assert counts["STS"] + counts["STSM"] + counts["LDSM"] + counts["PRMT"] + counts["LDG"] == 0
            # The numbers of the rows: two at a time of 16 queries in dkdv, one at a time of 2 in dq.
            assert counts["LDS"] == {"dkdv": 2 * 8, "dq": 2 * 2}[name]
            # A score costs one multiply-add, one exponential, one subtraction, one product.
            assert (counts["FFMA"], counts["FADD"], counts["FMUL"]) == (SCORES,) * 3


@pytest.mark.parametrize("case", CASES)
def test_dk_and_dv_s_exponentials_run_under_dp_and_the_next_scores_begin_behind_dk(case):
    of_scores, of_gradient = padded(case) // 16, 4
    found = tile_loops(of_kernel(compiled(*case), "dkdv")[1])
    assert found
    for loop in found:
        products, exponentials = places(loop, "HGMMA"), places(loop, "MUFU.EX2")
        waits = places(loop, "WARPGROUP.DEPBAR")
        # Registers for P and dS at a time are only where two programs share an SM.
        assert [loop[wait].split(", ")[1] for wait in waits] == ["0x0" if padded(case) <= 64 else "0x1", "0x1", "0x0"]
        # dPᵀ is issued whole before the exponentials, Pᵀ dO when they are done and before dPᵀ is waited for.
        assert [place for place in products if place < exponentials[0]] == products[:of_scores]
        assert [place for place in products if exponentials[-1] < place < waits[0]] == products[of_scores:][:of_gradient]
        # dSᵀ Q and, behind it, the next tile's scores are in flight together.
        assert len([place for place in products if waits[0] < place < waits[1]]) == of_gradient + of_scores
        # The buffer is asked to be filled again before those scores are waited for.
        assert all(waits[1] < place < waits[2] for place in places(loop, "UTMALDG"))
        assert len(places(loop, "UTMALDG")) == 4


@pytest.mark.parametrize("case", CASES)
def test_dq_s_exponentials_run_under_dp(case):
    of_scores = padded(case) // 16
    found = tile_loops(of_kernel(compiled(*case), "dq")[1])
    assert found
    for loop in found:
        products, exponentials = places(loop, "HGMMA"), places(loop, "MUFU.EX2")
        waits = places(loop, "WARPGROUP.DEPBAR")
        assert [loop[wait].split(", ")[1] for wait in waits] == ["0x1", "0x0", "0x0"]
        # S and dP are issued, S is waited for, and the exponentials end before dP is waited for; then comes dS K.
        assert len([place for place in products if place < waits[0]]) == 2 * of_scores
        assert waits[0] < exponentials[0]
        assert exponentials[-1] < waits[1]
        assert len([place for place in products if waits[1] < place < waits[2]]) == 4
        assert len(products) == 2 * of_scores + 4


@pytest.mark.long
@pytest.mark.parametrize("num_stages", [2, 3, 4])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_every_number_of_stages_that_can_be_asked_for_fits(head_dim, num_stages):
    kernels = compiled(head_dim, True, num_stages=num_stages)
    for name, groups in WARPGROUPS.items():
        kernel, code = of_kernel(kernels, name)
        assert kernel.metadata.shared <= HOPPER.shared_memory_per_block_bytes
        counts = Counter(text.split()[0] for _, text in code)
        assert counts["WARPGROUP.DEPBAR.LE"] == groups * 3 * 2 + (name == "dkdv")


def test_its_pre_pass_compiles_without_spills():
    kernel, code = of_kernel(compiled(128, True), "rows")
    assert not any(text.startswith(("STL", "LDL")) for _, text in code)
    assert kernel.metadata.shared <= 2048
