"""Bytes from tiles, against what kernels really load and store: counted in the interpreter, at PyTorch's calls, by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.problem import AttentionProblem, Precision, TileConfig
from profiling.tile_traffic import key_tiles, traffic
from tests.interpreted_attention import Question

ROOT = Path(__file__).resolve().parent.parent
BF16, FP8, BLOCKS = Precision(), Precision(fp8=True), Precision(fp8=True, fp8_scale="block", smooth_k=False)


def problem(seq_len_q: int, seq_len_kv: int, **more) -> AttentionProblem:
    sizes = {"batch": 2, "num_heads": 2, "num_kv_heads": 1, "head_dim": 16, "causal": True} | more
    return AttentionProblem(seq_len_q=seq_len_q, seq_len_kv=seq_len_kv, **sizes)


def tiles(block_m: int, block_n: int, **more) -> TileConfig:
    return TileConfig(block_m=block_m, block_n=block_n, num_warps=4, num_stages=1, **more)


SQUARE, RAGGED, LONG_KEYS = problem(64, 64), problem(40, 40, head_dim=80), problem(17, 50, causal=False)
UNSEEING, ONE_KEY = problem(50, 20), problem(20, 1, batch=1)
CASES = [
    *((kernel, each, BF16, tiles(32, 16), True) for kernel in ("v1", "v2", "v3") for each in (RAGGED, LONG_KEYS, UNSEEING)),
    *(("v1", each, BF16, tiles(32, 16, loop_order="key"), True) for each in (RAGGED, ONE_KEY)),
    *(("v3", each, BF16, tiles(16, 64), has_tma) for each, has_tma in ((RAGGED, False), (LONG_KEYS, True), (ONE_KEY, True))),
    ("v2", SQUARE, BF16, tiles(16, 16, block_order="zigzag", num_programs=3), True),
    *(("v3", each.model_copy(update={"head_dim": 80}), precision, tiles(32, 32), has_tma)
      for each, precision, has_tma in ((RAGGED, FP8, True), (RAGGED, BLOCKS, False), (LONG_KEYS, BLOCKS, True))),
]  # fmt: skip


@pytest.fixture(scope="module")
def counted() -> list:
    """What the interpreter counts for every case, in one child process, and at last for kernels.l2_read."""
    questions = [
        Question(kernel=kernel, problem=each, precision=precision, tiles=cut, has_tma=has_tma).model_dump_json()
        for kernel, each, precision, cut, has_tma in CASES
    ]
    child = subprocess.run(
        [sys.executable, "-m", "tests.counted_bytes"],
        cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True,
        input="\n".join([*questions, "L2"]),
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    return [json.loads(line) for line in child.stdout.splitlines()]


@pytest.mark.parametrize("index", range(len(CASES)))
def test_what_tiles_ask_for_is_what_the_kernel_loads_and_stores(counted, index):
    kernel, each, precision, cut, has_tma = CASES[index]
    assert traffic(kernel, each, cut, precision, has_tma=has_tma).asked_bytes == counted[index]


def test_the_l2_cache_s_ceiling_reads_the_bytes_that_it_is_credited_with(counted):
    found, said = counted[-1]
    assert found == said


def moved_by_the_hopper_kernels(each: AttentionProblem, cut: TileConfig, fp8: bool) -> int:
    """Their own list of work, gone through as they do: boxes are cut at the edges of their head's matrix."""
    torch = pytest.importorskip("torch")
    hopper = pytest.importorskip("kernels.hopper")
    element, dim, groups = (1 if fp8 else 2), each.head_dim, cut.block_m // 64
    stored = -(-each.seq_len_kv // 16) * 16 if fp8 else each.seq_len_kv
    total = 0
    for program in hopper.work_of(each, cut, 7, torch.device("cpu")).tolist():
        for _head, _kv_head, first_row, num_key_tiles, _unmasked in program[1 : 1 + program[0][0]]:
            for first_key in range(0, num_key_tiles * cut.block_n, cut.block_n):
                total += 2 * element * dim * len(range(first_key, min(first_key + cut.block_n, stored)))
                if fp8:  # a scale for each half of the tile, in every group
                    total += groups * 4 * sum(first_key + half < stored for half in (0, cut.block_n // 2))
            for first in range(first_row, first_row + cut.block_m, 64):
                rows = len(range(first, min(first + 64, each.seq_len_q)))
                total += rows * (element * dim + 2 * dim + 4)  # Q in, O out, lse out
                total += (rows * 4 * 2 + 4 * dim) if fp8 else 0  # Q's scale, what smoothing took off the lse, V's scales
    return total


@pytest.mark.parametrize("each", [SQUARE, RAGGED, LONG_KEYS, UNSEEING, ONE_KEY, problem(600, 700, head_dim=128)])
@pytest.mark.parametrize("fp8", [False, True])
def test_the_hopper_kernels_ask_for_what_their_work_lists_say(each, fp8):
    cut = tiles(128, 128)
    precision = Precision(fp8=True, fp8_scale="block") if fp8 else BF16
    assert traffic("v3-hopper", each, cut, precision, has_tma=True).asked_bytes == moved_by_the_hopper_kernels(each, cut, fp8)


@pytest.mark.parametrize("each", [SQUARE, RAGGED, LONG_KEYS, UNSEEING, problem(48, 48, num_kv_heads=2)])
def test_native_asks_for_the_operands_and_results_of_its_calls(each):
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    from kernels.kernel import as_given
    from kernels.native import forward

    moved: list[tuple[str, int]] = []

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found = function(*args, **(kwargs or {}))
            name, tensors = function.__name__.split(".")[0], [one for one in args if isinstance(one, torch.Tensor)]
            if not function.is_view and name not in ("new_empty", "_unsafe_view"):
                # A product reads its factors as they are (beta is 0, so not what it adds to); all else element by element.
                factors = [one.nbytes for one in tensors[-2:]]
                each_element = [found.numel() * one.itemsize for one in tensors]
                # Padding fills what it returns, then copies its operand into it.
                copied = [2 * tensors[0].nbytes] if tensors else []
                read = {"baddbmm": factors, "bmm": factors, "ones": [], "constant_pad_nd": copied}.get(name, each_element)
                moved.append((name, sum(read) + found.nbytes))
            return found

    q = torch.randn(each.batch, each.num_heads, each.seq_len_q, each.head_dim).bfloat16()
    k, v = (torch.randn(each.batch, each.num_kv_heads, each.seq_len_kv, each.head_dim).bfloat16() for _ in "kv")
    with Counting():
        forward(as_given(q, k, v, BF16, None), each, None, None, with_lse=False)
    assert traffic("native", each, None, BF16).asked_bytes == sum(size for _, size in moved), moved


def test_once_is_the_size_of_the_operands_and_results():
    each = problem(100, 50, batch=3, head_dim=64)
    rows, keys = 3 * 2 * 100, 3 * 50
    found = traffic("v2", each, tiles(64, 64), BF16, l2_bytes=1)
    assert found.once_bytes == found.hbm_bytes == 2 * 64 * (rows + 2 * keys) + rows * (2 * 64 + 4)
    stored = 3 * 64
    quantised = 64 * (rows + 2 * stored) + 4 * (2 * rows + stored + 3 * 64)
    assert traffic("v3", each, tiles(64, 64), FP8).once_bytes == quantised + rows * (2 * 64 + 4)


def test_only_what_the_cache_cannot_hold_goes_to_memory():
    each = problem(1024, 1024, head_dim=64, causal=False, batch=1)
    scores, repeated = 2 * 1024 * 1024 * 2, 2 * 1024 * 64 * 2
    once = traffic("native", each, None, BF16).once_bytes
    assert traffic("native", each, None, BF16, l2_bytes=scores).hbm_bytes == once
    assert traffic("native", each, None, BF16, l2_bytes=scores - 1000).hbm_bytes == once + 4 * 1000
    assert traffic("native", each, None, BF16, l2_bytes=0).hbm_bytes == once + 4 * scores + 4 * repeated
    key_outer = traffic("v1", each, tiles(64, 256, loop_order="key"), BF16, l2_bytes=1 << 18)
    state = 2 * 1024 * (64 + 2) * 4
    assert key_outer.hbm_bytes == key_outer.once_bytes + 2 * 3 * (state - (1 << 18))


def test_multiplied_operations_count_masked_and_padded_elements():
    each = problem(128, 128, head_dim=80, batch=1)
    assert key_tiles("v1", each, tiles(64, 32)).tolist() == [4, 4]
    assert key_tiles("v2", each, tiles(64, 32)).tolist() == [2, 4]
    assert traffic("v2", each, tiles(64, 32), BF16).multiplied_flops == 4 * 2 * (2 + 4) * 64 * 32 * 128
    assert traffic("native", each, None, BF16).multiplied_flops == 4 * 2 * 128 * 128 * 80


def test_of_a_peer_only_what_nothing_can_save_is_known():
    found = traffic("sdpa-cudnn", SQUARE, None, BF16, l2_bytes=1)
    assert found.asked_bytes is None
    assert found.multiplied_flops is None
    assert found.hbm_bytes == found.once_bytes


def test_a_version_without_its_tiles_is_refused():
    with pytest.raises(ValueError, match="the bytes of v2 cannot be counted without its tiles"):
        traffic("v2", SQUARE, None, BF16)
