"""What an exception becomes: its kind, one sentence, and whether the process survives it."""

from __future__ import annotations

import pytest
import torch

from kernels.problem import AttentionProblem, TileConfig
from kernels.registry import Refused
from profiling.failures import is_sticky, job_error, with_cure
from profiling.gpu_lock import LockBusy
from profiling.records import CompileReport, JobError, RunRequest

TILES = TileConfig(block_m=128, block_n=512, num_warps=8, num_stages=2)
REQUEST = RunRequest(kernel="v2", problem=AttentionProblem(seq_len_q=128, seq_len_kv=128), tiles=TILES)


class CompilationError(Exception):
    """As Triton's, which is known by its name."""


class PTXASError(Exception):
    """As Triton's."""


class OutOfResources(Exception):
    """As Triton's."""

    def __init__(self, required: int, limit: int, name: str) -> None:
        super().__init__(f"out of resource: {name}")
        self.required, self.limit, self.name = required, limit, name


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (Refused("No FP8 here.", needs=89, has=80, unit="sm"), "refused", "No FP8 here."),
        (
            OutOfResources(300_000, 232_448, "shared memory"),
            "refused",
            "v2 needs 293 KiB of shared memory a program; this GPU has 227 KiB.",
        ),
        (OutOfResources(600, 512, "tensor memory"), "refused", "v2 needs 600 of tensor memory a program; this GPU has 512."),
        (torch.OutOfMemoryError("CUDA out of memory. Tried 1 GiB."), "out_of_memory", "v2 ran out of memory"),
        (MemoryError(), "out_of_memory", "v2 ran out of memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "out_of_memory", "ran out of memory"),
        (CompilationError("at 3:4: no such op"), "compile", "v2 could not be compiled: at 3:4"),
        (PTXASError("syntax"), "compile", "could not be compiled"),
        (RuntimeError("PassManager::run failed"), "compile", "could not be compiled"),
        (ModuleNotFoundError("No module named 'triton'", name="triton"), "refused", "v2 needs Triton, which is not installed"),
        (ImportError("FA3 is not installed here."), "refused", "v2 cannot run here: FA3 is not installed here."),
        (ValueError("kernel = x is not known."), "refused", "kernel = x is not known."),
        (RuntimeError("No available kernel. Aborting execution."), "refused", "v2 has no kernel for this problem"),
        (LockBusy("Another FlashScope process has it."), "timeout", "Another FlashScope process has it."),
        (RuntimeError("CUDA error: unspecified launch failure"), "launch", "broke the GPU's context"),
        (KeyError("x"), "launch", "v2 failed in phase 'check' (KeyError: 'x')"),
    ],
)
def test_kind_and_sentence(error, kind, said):
    found = job_error(error, "v2", "check")
    assert found.kind == kind
    assert said in found.sentence
    assert found.sentence.count("\n") == 0
    assert type(error).__name__ in found.raw


def test_needs_and_has_are_kept():
    found = job_error(OutOfResources(300_000, 232_448, "shared memory"), "v2", "compile")
    assert (found.needs, found.has, found.unit) == (300_000.0, 232_448.0, "bytes")


TORCH_HINTS = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
)


@pytest.mark.parametrize(
    ("text", "sticky"),
    [
        ("Triton Error [CUDA]: an illegal memory access was encountered", True),
        ("CUDA error: misaligned address", True),
        ("CUDA error: unspecified launch failure", True),
        ("CUDA error: an illegal instruction was encountered", True),
        ("CUDA error: device-side assert triggered", True),
        ("Triton Error [CUDA]: invalid argument", False),
        ("CUDA out of memory", False),
        ("PassManager::run failed", False),
        (f"CUDA error: operation failed due to a previous error during capture\n{TORCH_HINTS}", False),
        (f"CUDA error: device-side assert triggered\n{TORCH_HINTS}", True),
    ],
)
def test_sticky_errors(text, sticky):
    assert is_sticky(RuntimeError(text)) == sticky
    wrapped = RuntimeError("while launching")
    wrapped.__cause__ = RuntimeError(text)
    assert is_sticky(wrapped) == sticky


def test_a_long_traceback_keeps_its_end():
    error = RuntimeError("x" * 100_000 + " the end")
    found = job_error(error, "v2", "check")
    assert len(found.raw) == 20_000
    assert found.raw.rstrip().endswith("the end")
    assert len(found.sentence) < 400


def too_big() -> JobError:
    return job_error(OutOfResources(300_000, 232_448, "shared memory"), "v2", "compile")


def report(shared_bytes: int) -> CompileReport:
    return CompileReport(
        kernel="k", capability=90, triton_version="3", compile_ms=1.0, registers_per_thread=1,
        max_registers_per_thread=255, spill_bytes=0, shared_memory_bytes=shared_bytes, shared_memory_limit_bytes=232_448,
        warps_per_program=4, programs_per_sm=1, warps_per_sm=4, max_warps_per_sm=64, limited_by="shared memory",
    )  # fmt: skip


def compiler_with_room_for(bytes_a_key: int):
    """What compiling says when every key of a tile takes that much shared memory."""

    def compile_for(request, capability):
        assert capability == 90
        needs = request.tiles.block_n * bytes_a_key
        if request.tiles.block_n < 32:
            raise Refused("An 8-bit product needs 32 keys.", needs=32, has=16, unit="keys")
        if needs > 232_448:
            raise Refused("It does not fit.", needs=needs, has=232_448, unit="bytes")
        return report(1), report(needs)

    return compile_for


def test_the_cure_is_the_largest_block_n_that_compiles_small_enough():
    found = with_cure(too_big(), REQUEST, 90, compiler_with_room_for(1500))
    assert found.cure == TILES.model_copy(update={"block_n": 128})
    assert [(tiles.block_n, shared) for tiles, shared in found.fits] == [(512, 300_000), (256, 384_000), (128, 192_000)]
    assert found.sentence.endswith("this GPU has 227 KiB. The largest BLOCK_N that fits is 128.")
    assert found.needs == 300_000.0


def test_where_nothing_fits_there_is_no_cure():
    found = with_cure(too_big(), REQUEST, 90, compiler_with_room_for(10**6))
    assert found.cure is None
    assert [tiles.block_n for tiles, _shared in found.fits] == [512, 256, 128, 64, 32]
    assert found.sentence.endswith("No BLOCK_N fits: take fewer stages or a smaller BLOCK_M.")


def test_other_errors_stay_as_they_are():
    for error in (ValueError("no"), Refused("no", needs=89, has=80, unit="sm"), RuntimeError("no")):
        found = job_error(error, "v2", "inputs")
        assert with_cure(found, REQUEST, 90, compiler_with_room_for(1)) == found
