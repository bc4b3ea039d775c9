"""What an exception means for the person who asked: JobError in one sentence; and which errors a process does not survive."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from pydantic import ValidationError

from kernels.problem import BLOCK_SIZES
from kernels.registry import Refused
from profiling.record_types import first_sentence
from profiling.records import CompileReport, ErrorKind, JobError, Phase, RunRequest

# After one of these every later CUDA call of the process fails: only a new process helps (pytorch#95542).
_STICKY = (
    "illegal memory access",
    "misaligned address",
    "unspecified launch failure",
    "illegal instruction",
    "device-side assert",
    "hardware stack error",
    "invalid program counter",
    "invalid address space",
    "uncorrectable ecc",
    "launch timed out",
)
_HINT = "Compile with `TORCH_USE_CUDA_DSA`"
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
_NO_KERNEL = ("no available kernel", "no valid execution plans", "attention build does not support")
_COMPILER_ERRORS = {"CompilationError", "PTXASError", "CompileTimeAssertionFailure", "UnsupportedLanguageConstruct"}
_COMPILER_WORDS = ("passmanager::run failed", "ptxas")
_RAW_CHARACTERS, _SENTENCE_CHARACTERS = 20_000, 2_000

Compile = Callable[[RunRequest, int], tuple[CompileReport, ...]]


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        current = current.__cause__
    return found


def _says(error: BaseException, words: tuple[str, ...]) -> bool:
    return any(word in _without_hints(str(link)).lower() for link in _chain(error) for word in words)


def _without_hints(text: str) -> str:
    """torch ends every CUDA error with advice on how to build it so that it finds device-side asserts."""
    return "\n".join(line for line in text.splitlines() if not line.startswith(_HINT))


def is_sticky(error: BaseException) -> bool:
    """Whether the CUDA context is lost with this error, and the process must be replaced."""
    return isinstance(error, RuntimeError) and _says(error, _STICKY)


def job_error(error: BaseException, kernel: str, phase: Phase) -> JobError:
    """The record of an exception that a kernel or its surroundings raised in a phase of the job."""
    raw = "".join(traceback.format_exception(error))[-_RAW_CHARACTERS:]
    if isinstance(error, Refused):
        return JobError(
            kind="refused",
            sentence=error.sentence,
            needs=None if error.needs is None else float(error.needs),
            has=None if error.has is None else float(error.has),
            unit=error.unit,
            cure=error.cure,
            raw=raw,
        )
    names = {type(link).__name__ for link in _chain(error)}
    if "OutOfResources" in names:
        return _out_of_resources(next(link for link in _chain(error) if type(link).__name__ == "OutOfResources"), kernel, raw)
    kind, sentence = _kind_and_sentence(error, names, kernel, phase)
    return JobError(kind=kind, sentence=sentence, raw=raw)


def _out_of_resources(error: BaseException, kernel: str, raw: str) -> JobError:
    what, needs, has = error.name, float(error.required), float(error.limit)
    unit = "bytes" if what == "shared memory" else what
    if unit == "bytes":
        sentence = f"{kernel} needs {needs / 1024:.0f} KiB of {what} a program; this GPU has {has / 1024:.0f} KiB."
    else:
        sentence = f"{kernel} needs {needs:,.0f} of {what} a program; this GPU has {has:,.0f}."
    return JobError(kind="refused", sentence=sentence, needs=needs, has=has, unit=unit, raw=raw)


def _kind_and_sentence(error: BaseException, names: set[str], kernel: str, phase: Phase) -> tuple[ErrorKind, str]:
    first_line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    detail = first_line[:300].rstrip(".")
    if is_sticky(error):
        return "launch", f"{kernel} broke the GPU's context ({detail}). The worker is replaced."
    if isinstance(error, MemoryError) or "OutOfMemoryError" in names or _says(error, _OUT_OF_MEMORY):
        return "out_of_memory", f"{kernel} ran out of memory while in phase '{phase}': {detail}."
    if names & _COMPILER_ERRORS or _says(error, _COMPILER_WORDS):
        return "compile", f"{kernel} could not be compiled: {detail}."
    if isinstance(error, ImportError) and (error.name or "").split(".")[0] == "triton":
        return "refused", f"{kernel} needs Triton, which is not installed here. native works without it."
    if "LockBusy" in names:
        return "timeout", first_line
    if isinstance(error, ImportError):
        return "refused", f"{kernel} cannot run here: {detail}."
    if _says(error, _NO_KERNEL):
        return "refused", f"{kernel} has no kernel for this problem on this device ({detail})."
    if isinstance(error, ValidationError):
        return "launch", f"{kernel} gave what is no result: {first_sentence(error)}"
    if isinstance(error, ValueError):
        return "refused", first_line[:_SENTENCE_CHARACTERS]
    return "launch", f"{kernel} failed in phase '{phase}' ({type(error).__name__}: {detail})."


def with_cure(error: JobError, request: RunRequest, capability: int, compile_for: Compile) -> JobError:
    """The error of tiles that need too much shared memory, with the largest BLOCK_N that fits, found by compiling.

    fits lists what was compiled on the way, widest first. Errors of another kind, or with a cure already, come back as
    they are. request must name its tiles. Raises what the compiler raises.
    """
    tiles = request.tiles
    if error.kind != "refused" or error.unit != "bytes" or error.needs is None or error.cure is not None or tiles is None:
        return error
    fits = [(tiles, int(error.needs))]
    for block_n in sorted((size for size in BLOCK_SIZES if size < tiles.block_n), reverse=True):
        narrower = tiles.model_copy(update={"block_n": block_n})
        try:
            shared = compile_for(request.model_copy(update={"tiles": narrower}), capability)[-1].shared_memory_bytes
        except Refused as refused:
            if refused.unit == "bytes" and refused.needs is not None:
                fits.append((narrower, int(refused.needs)))
            continue
        fits.append((narrower, shared))
        sentence = f"{error.sentence} The largest BLOCK_N that fits is {block_n}."
        return error.model_copy(update={"sentence": sentence, "cure": narrower, "fits": tuple(fits)})
    sentence = f"{error.sentence} No BLOCK_N fits: take fewer stages or a smaller BLOCK_M."
    return error.model_copy(update={"sentence": sentence, "fits": tuple(fits)})
