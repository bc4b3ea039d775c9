"""The FP8 pre-pass: interpreted against float64; and what ptxas makes of it, on every GPU that has e4m3."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton

from kernels.architecture import ARCHITECTURES
from kernels.launch import CompileOnly
from kernels.problem import Precision
from kernels.quantize import quantize
from tests.conftest import ROOT
from tests.interpreted_quantize import CASES
from tests.sass import instructions

FP8_GPUS = [capability for capability, gpu in ARCHITECTURES.items() if gpu.fp8]


@pytest.fixture(scope="module")
def interpreted_prepass() -> dict:
    child = subprocess.run(
        [sys.executable, "-m", "tests.interpreted_quantize"], cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr[-3000:]
    return json.loads(child.stdout)


@pytest.mark.parametrize("case", CASES)
def test_every_code_is_the_nearest_one_and_scales_are_of_the_largest(interpreted_prepass, case):
    found = interpreted_prepass["cases"][case]
    for name in "qkv":
        # Half a step, and float32's error of a number on the way to it.
        assert found[name] <= 1.0 + 1e-4, found
    assert found["past the end"] == 0.0
    for name in ("q_scale", "k_scale", "v_scale"):
        assert found[name] <= 1e-5, found
    assert found.get("shift", 0.0) <= 2e-5


def test_the_order_of_programs_changes_nothing(interpreted_prepass):
    assert interpreted_prepass["in_other_orders"] == [True] * 3


def resources(cubin_path: Path, kernel) -> tuple[int, int]:
    """(registers a thread, bytes of local memory)."""
    cubin_path.write_bytes(kernel.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    usage = subprocess.run([tool, "-res-usage", cubin_path], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()))


QUICK = {(90, 64, True), (90, 128, True), (90, 256, True), (89, 128, True), (120, 128, False)}


@pytest.mark.parametrize(
    ("capability", "head_dim", "hadamard"),
    [
        pytest.param(*which, marks=() if which in QUICK else pytest.mark.long)
        for which in ((gpu, d, hadamard) for gpu in FP8_GPUS for d in (16, 32, 64, 80, 128, 256) for hadamard in (False, True))
        if which[1:] != (80, True)
    ],
)
def test_it_compiles_without_spills(tmp_path, capability, head_dim, hadamard):
    for seq_len in (1000, 4096):
        q = torch.empty((2, 8, seq_len, head_dim), dtype=torch.bfloat16, device="meta")
        launch = CompileOnly(capability)
        quantize(q, q, q, Precision(fp8=True, fp8_scale="block", smooth_k=True, hadamard=hadamard), launch)
        for kernel in launch.compiled.values():
            registers, local_bytes = resources(tmp_path / "cubin", kernel)
            assert local_bytes == 0, f"{local_bytes} bytes spilled at seq_len {seq_len}, {registers} registers"
            assert kernel.metadata.shared <= ARCHITECTURES[capability].shared_memory_per_block_bytes


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_rows_are_turned_by_the_threads_that_loaded_them(head_dim):
    q = torch.empty((2, 8, 4096, head_dim), dtype=torch.bfloat16, device="meta")
    launch = CompileOnly(90)
    quantize(q, q, q, Precision(fp8=True, fp8_scale="block", smooth_k=True, hadamard=True), launch)
    opcodes = [text.split(".")[0].split()[0] for _, text in instructions(launch.compiled["quantize_all"].asm["cubin"])]
    # K's and Q's 64 numbers a thread: 16 instructions of 16 x 8 x 16 each; none that waits for a warpgroup.
    assert opcodes.count("HMMA") == 32
    assert "HGMMA" not in opcodes
    # V's codes, scales, means, signs and maxima pass through shared memory in about 40 stores; K or Q would take eight more
    # while in 16 bits, 16 in float32. Sums and maxima of the four threads of a row are two shuffles each, for up to four rows.
    assert opcodes.count("STS") < 48
    assert opcodes.count("SHFL") < 64
