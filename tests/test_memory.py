"""Memory by arithmetic: sizes, and what is refused before anything is allocated."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kernels.problem import AttentionProblem, Precision, TileConfig
from kernels.registry import Refused
from profiling import memory
from profiling.memory import estimate, refuse_if_too_large
from profiling.records import RunRequest

GIB = 1 << 30
H200_BYTES = 150_754_820_096


def request(kernel: str, seq_len: int, device: str = "GPU-1", fp8: bool = False, **sizes) -> RunRequest:
    problem = AttentionProblem(seq_len_q=seq_len, seq_len_kv=seq_len, **sizes)
    return RunRequest(kernel=kernel, problem=problem, device=device, precision=Precision(fp8=fp8))


def test_sizes_of_the_tensors():
    need = estimate(request("v2", 4096, batch=2, num_heads=8, num_kv_heads=2, head_dim=64))
    query, key = 2 * 8 * 4096 * 64 * 2, 2 * 2 * 4096 * 64 * 2
    assert need.inputs_bytes == query + 2 * key
    assert need.outputs_bytes == query + 2 * 8 * 4096 * 4
    assert need.scores_bytes == 2 * (2 * 8 * 4096 * 4096) * 2
    assert need.quantised_bytes == 0
    assert not need.writes_scores


def test_fp8_adds_a_byte_an_element_and_its_scales():
    need = estimate(request("v3", 1024, fp8=True, num_heads=2, num_kv_heads=1, head_dim=128))
    elements = (2 + 1 + 1) * 1024 * 128
    assert need.quantised_bytes == elements + 4 * (2 * 2 * 1024 + 1024)


def test_native_counts_s_and_p_and_nothing_else_does():
    flash, native = estimate(request("v2", 16384)), estimate(request("native", 16384))
    assert native.scores_bytes == flash.scores_bytes == 16 * GIB
    assert native.total_bytes >= flash.total_bytes + 12 * GIB


def test_key_outer_keeps_its_output_in_float32_between_tiles():
    tiles = TileConfig(block_m=64, block_n=64, num_warps=4, num_stages=2, loop_order="key")
    assert estimate(request("v1", 1024), tiles).copies_bytes == 16 * 1024 * (128 + 2) * 4


def test_native_at_64k_is_refused_with_what_it_needs_and_what_fits():
    with pytest.raises(Refused) as caught:
        refuse_if_too_large(request("native", 65536), None, H200_BYTES, "NVIDIA H200", 90)
    error = caught.value
    assert error.sentence == (
        "native at 65,536 tokens needs 256 GiB for S and P; this H200 has 140 GiB free. "
        "The longest power of two that fits is 32,768 tokens."
    )
    assert (error.needs, error.has, error.unit) == (256.0 * GIB, float(H200_BYTES), "bytes")


@pytest.mark.parametrize("seq_len", [1, 1000, 16384, 32768])
def test_what_fits_is_not_refused(seq_len):
    refuse_if_too_large(request("native", seq_len), None, H200_BYTES, "NVIDIA H200", 90)


def test_the_length_named_fits_and_the_next_does_not():
    has = 3 * GIB
    with pytest.raises(Refused) as caught:
        refuse_if_too_large(request("native", 50_000, "interpreter"), None, has, "Interpreter (CPU)")
    assert "this machine has 3.00 GiB free" in caught.value.sentence
    length = int(caught.value.sentence.split("fits is ")[1].split(" ")[0].replace(",", ""))
    refuse_if_too_large(request("native", length, "interpreter"), None, has, "Interpreter (CPU)")
    with pytest.raises(Refused):
        refuse_if_too_large(request("native", 2 * length, "interpreter"), None, has, "Interpreter (CPU)")


def test_flash_that_does_not_fit_names_the_whole():
    with pytest.raises(Refused, match=r"v2 at 1,048,576 tokens needs [\d.]+ GiB in all; this L4 has 20.0 GiB free"):
        refuse_if_too_large(request("v2", 1 << 20, batch=4), None, 20 * GIB, "NVIDIA L4", 89)


def test_nothing_fits():
    with pytest.raises(Refused, match="Nothing shorter fits"):
        refuse_if_too_large(request("v2", 16), None, 1000, "NVIDIA L4", 89)


def test_the_interpreter_needs_no_flush_buffer():
    assert estimate(request("v2", 128, "interpreter")).flush_bytes == 0
    assert estimate(request("v2", 128)).flush_bytes == 256 << 20


def test_free_host_bytes_is_no_more_than_a_containers_limit(monkeypatch):
    monkeypatch.setattr(memory, "_free_by_kernel", lambda: 8 * GIB)
    monkeypatch.setattr(memory, "_free_by_cgroup", lambda: 2 * GIB)
    assert memory.free_host_bytes() == 2 * GIB
    monkeypatch.setattr(memory, "_free_by_cgroup", lambda: None)
    assert memory.free_host_bytes() == 8 * GIB
    monkeypatch.setattr(memory, "_free_by_kernel", lambda: None)
    assert memory.free_host_bytes() is None


def test_free_host_bytes_of_this_machine():
    assert (1 << 26) < memory.free_host_bytes() < (1 << 50)


def test_an_interpreted_run_has_no_readings_and_says_why():
    record = memory.on_cpu(estimate(request("v2", 128, "interpreter")))
    assert record.provenance == "interpreted"
    empty = [name for name, value in record.model_dump().items() if value is None]
    assert set(empty) == {*record.missing, "gradients_bytes", "operands_bytes"}, "a forward has no gradients, bf16 no pre-pass"
    assert len(empty) == 13
    step = memory.on_cpu(estimate(request("v2", 128, "interpreter")), has_backward=True)
    assert set(step.missing) == {*record.missing, "gradients_bytes"}


def test_the_estimate_needs_no_torch():
    code = "import sys, profiling.memory; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_what_an_fp8_pre_pass_made_is_counted_with_its_scales_and_inputs_are_none_of_it():
    import torch

    from kernels.kernel import Operands
    from profiling.memory import operands_bytes

    codes = torch.zeros(2, 3, 128, 32, dtype=torch.uint8).view(torch.float8_e4m3fn)
    rows, channels = torch.zeros(2, 3, 128), torch.zeros(2, 3, 32)
    operands = Operands(
        codes, codes.clone(), codes.clone(), dtype=torch.bfloat16, q_scale=rows, k_scale=rows.clone(), v_scale=channels,
        lse_shift=rows.clone(),
    )  # fmt: skip
    assert operands_bytes(operands) == 3 * 2 * 3 * 128 * 32 + 4 * (3 * 2 * 3 * 128 + 2 * 3 * 32)
    inputs = torch.zeros(1, 1, 16, 16, dtype=torch.bfloat16)
    assert operands_bytes(Operands(inputs, inputs, inputs, dtype=torch.bfloat16)) is None
