"""The Hopper backward without a GPU: what ptxas made of its loops, and its pre-pass compiled."""

import re
from collections import Counter
from functools import cache

import pytest
import torch

from kernels import backward_v3_hopper
from kernels.architecture import ARCHITECTURES
from kernels.kernel import TORCH_DTYPES, AttentionOutput
from kernels.launch import CompileOnly
from kernels.problem import AttentionProblem, BackwardTiles, TileConfig
from tests.sass import instructions, loops

HOPPER = ARCHITECTURES[90]
# BLOCK_M, BLOCK_N, warps, stages: of the kernel for dk and dv, and of that for dq.
DEFAULT = {64: ((64, 128, 8, 4), (128, 128, 8, 3)), 128: ((64, 128, 8, 3), (128, 128, 8, 2))}


def tiles_of(block_m: int, block_n: int, num_warps: int, num_stages: int) -> TileConfig:
    return TileConfig(block_m=block_m, block_n=block_n, num_warps=num_warps, num_stages=num_stages)


@cache
def compiled(head_dim: int, causal: bool, dtype: str = "bf16", sharing: int = 1):
    """By kernel: what the compiler made, and its instructions as (address, text)."""
    problem = AttentionProblem(
        batch=2, num_heads=16, num_kv_heads=16 // sharing, seq_len_q=1000, seq_len_kv=1000, head_dim=head_dim, causal=causal
    )
    dkdv, dq = DEFAULT[max(64, problem.padded_head_dim)]
    q = torch.empty((2, 16, 1000, head_dim), dtype=TORCH_DTYPES[dtype], device="meta")
    k = torch.empty((2, 16 // sharing, 1000, head_dim), dtype=TORCH_DTYPES[dtype], device="meta")
    output = AttentionOutput(q, torch.empty(q.shape[:-1], dtype=torch.float32, device="meta"))
    launch = CompileOnly(90)
    tiles = BackwardTiles(dkdv=tiles_of(*dkdv), dq=tiles_of(*dq))
    backward_v3_hopper.backward(backward_v3_hopper.prepare(q, k, k), output, q, problem, tiles, launch)
    return {name: (kernel, instructions(kernel.asm["cubin"])) for name, kernel in launch.compiled.items()}


def of_two(kernels: dict, name: str):
    return kernels[f"backward_v3_hopper_{name}"]


def unmasked_loops(code: list[tuple[int, str]]) -> list[list[str]]:
    """The innermost loops that wait for a product while another is in flight, without the mask: one a warpgroup."""
    overlapping = [loop for loop in loops(code) if any(text.startswith("WARPGROUP.DEPBAR.LE gsb0, 0x1") for text in loop)]
    return [loop for loop in overlapping if len(loop) < 1.15 * len(overlapping[0])][:2]


CASES = (
    (128, True),
    pytest.param((64, True), marks=pytest.mark.long),
    pytest.param((64, False), marks=pytest.mark.long),
    pytest.param((128, False), marks=pytest.mark.long),
    pytest.param((80, True, "fp16", 4), marks=pytest.mark.long),
)


@pytest.mark.parametrize("case", CASES)
def test_they_fit_and_no_product_is_serialised(case):
    kernels = compiled(*case)
    masked = 2 if case[1] or 1000 % 128 else 1
    for name, variants in (("dkdv", 2 if case[1] else 1), ("dq", masked)):
        kernel, code = of_two(kernels, name)
        counts = Counter(text.split()[0] for _, text in code)
        assert kernel.metadata.shared <= HOPPER.shared_memory_per_block_bytes
        # Three waits a loop, two warpgroups; one more before dk and dv or dq would be ptxas's own, one a product where it
        # serialises them (its warnings C7510 to C7517).
        assert counts["WARPGROUP.DEPBAR.LE"] == 2 * 3 * variants
        assert counts["SHFL.BFLY"] == 0


@pytest.mark.parametrize("case", CASES)
def test_nothing_of_a_tile_goes_through_memory(case):
    kernels = compiled(*case)
    for name in ("dkdv", "dq"):
        for loop in unmasked_loops(of_two(kernels, name)[1]):
            counts = Counter(re.split(r"[ .]", text)[0] for text in loop)
            # A number of this warpgroup's work list may be read again; P, dS and the sums never.
            assert counts["STL"] + counts["LDL"] <= 2
            assert counts["STS"] + counts["STSM"] + counts["LDS"] + counts["LDSM"] + counts["PRMT"] == 0


@pytest.mark.parametrize("case", CASES)
def test_exponentials_run_under_dp_and_ds_under_dv(case):
    kernels = compiled(*case)
    for name, scores in (("dkdv", 32), ("dq", 64)):
        for loop in unmasked_loops(of_two(kernels, name)[1]):
            waits = [place for place, text in enumerate(loop) if text.startswith("WARPGROUP.DEPBAR")]
            under_dp = sum(text.startswith("MUFU.EX2") for text in loop[waits[0] : waits[1]])
            assert under_dp == scores
            counts = Counter(re.split(r"[ .]", text)[0] for text in loop)
            # A score costs one multiply-add, one exponential, one subtraction, one product.
            assert (counts["FFMA"], counts["MUFU"], counts["FADD"], counts["FMUL"]) == (scores,) * 4
            # dv's product is issued before dPᵀ is waited for, and runs under dS.
            assert any(text.startswith("HGMMA") for text in loop[waits[0] : waits[1]]) == (name == "dkdv")


def test_its_pre_pass_compiles_without_spills():
    kernel, code = of_two(compiled(128, True), "rows")
    assert not any(text.startswith(("STL", "LDL")) for _, text in code)
    assert kernel.metadata.shared <= 2048
