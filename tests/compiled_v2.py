"""A small forward and its backward, compiled for sm_90 once a test process: the compiler's process's answers, and cubins."""

from __future__ import annotations

from functools import cache
from typing import Any

from kernels.architecture import architecture
from kernels.problem import AttentionProblem, BackwardTiles, TileConfig
from profiling import assembly_process
from profiling.assembly import Assembly
from profiling.compile_report import compiled_backward, compiled_kernels
from profiling.compiler_process import Question
from profiling.records import RunRequest

QUESTION = Question(
    request=RunRequest(
        kernel="v2",
        problem=AttentionProblem(seq_len_q=4096, seq_len_kv=4096, head_dim=64),
        tiles=TileConfig(block_m=64, block_n=64, num_warps=4, num_stages=2),
    ),
    capability=90,
)
BACKWARD = Question(
    request=RunRequest(
        kernel="v2",
        problem=QUESTION.request.problem,
        direction="backward",
        backward_tiles=BackwardTiles(
            dkdv=TileConfig(block_m=32, block_n=64, num_warps=4, num_stages=2),
            dq=TileConfig(block_m=64, block_n=64, num_warps=4, num_stages=2),
        ),
    ),
    capability=90,
)


@cache
def answer() -> Assembly:
    """What the compiler's process answers."""
    return assembly_process.answer_to(QUESTION)


@cache
def cubin() -> bytes:
    """The machine code that the answer's SASS is of."""
    compiled, _ = compiled_kernels(QUESTION.request, architecture(QUESTION.capability))
    found: dict[str, Any] = next(iter(compiled.values())).asm
    return found["cubin"]


@cache
def backward() -> Assembly:
    """What the compiler's process answers to the backward."""
    return assembly_process.answer_to(BACKWARD)


@cache
def backward_cubins() -> dict[str, bytes]:
    """By kernel the machine code that the backward's SASS is of."""
    before, own, _ = compiled_backward(BACKWARD.request, architecture(BACKWARD.capability))
    return {name: one.asm["cubin"] for name, one in (before | own).items()}
