"""The process that compiles for profiling.assembly: a JSON line a question, a JSON line an answer, in order."""

from __future__ import annotations

import contextlib
import re
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernels.architecture import Architecture, architecture
from kernels.registry import Refused
from profiling.assembly import ROOT, STAGES, Assembly, CompiledKernel
from profiling.compile_request import require_possible
from profiling.compiler_process import Question
from profiling.failures import job_error
from profiling.kernel_parts import OF_GRADIENTS, backward_parts, forward_parts, tiles_of, title
from profiling.leash import end_with_parent
from profiling.records import RunRequest
from profiling.stdout import claim_stdout

_DEBUG_SECTION = re.compile(r"^\t\.section\t\.debug_\w+.*?^\t\}\n", re.MULTILINE | re.DOTALL)
_NAMED_FILE = re.compile(r"\bkernels/\w+\.py\b")


def answer_to(question: Question) -> Assembly:
    """Compile, here and now; a failure becomes the answer's error."""
    try:
        return _assembled(question)
    except Exception as error:  # this process's job boundary: whatever the compiler throws is the answer
        return Assembly(question=question, error=job_error(error, _name(question), "compile"))


def _name(question: Question) -> str:
    kernel = question.request.kernel
    return kernel if question.request.direction == "forward" else f"The backward of {kernel}"


def _assembled(question: Question) -> Assembly:
    request, arch = question.request, architecture(question.capability)
    require_possible(request, arch)
    with _compiled_anew():
        kernels = _forward(request, arch) if request.direction == "forward" else _backward(request, arch)
    refused = _too_large(kernels, request, arch)
    error = job_error(refused, _name(question), "compile").model_copy(update={"raw": ""}) if refused else None
    return Assembly(question=question, kernels=kernels, sources=_sources(kernels), error=error)


def _forward(request: RunRequest, arch: Architecture) -> tuple[CompiledKernel, ...]:
    from profiling.compile_report import compiled_kernels

    compiled, compile_ms = compiled_kernels(request, arch)
    return _told(compiled, forward_parts(list(compiled)), arch, compile_ms)


def _backward(request: RunRequest, arch: Architecture) -> tuple[CompiledKernel, ...]:
    """The kernel for dK and dV last; where there is no such, the one with most products."""
    from profiling.compile_report import compiled_backward

    before, own, compile_ms = compiled_backward(request, arch)
    found = _told(before | own, backward_parts(list(before), list(own)), arch, compile_ms)
    main = max(found, key=lambda one: (one.part == OF_GRADIENTS[0], one.report.counts.get("matrix products", 0)))
    return (*(one for one in found if one is not main), main)


def _told(compiled: dict[str, Any], parts: dict[str, str], arch: Architecture, compile_ms: float) -> tuple[CompiledKernel, ...]:
    from profiling.compile_report import report_of

    return tuple(
        CompiledKernel(part=parts[name], report=report_of(name, one, arch, compile_ms), texts=_texts(one))
        for name, one in compiled.items()
    )


def _too_large(kernels: tuple[CompiledKernel, ...], request: RunRequest, arch: Architecture) -> Refused | None:
    """Why a kernel of these does not fit, the one that is shown first before others.

    Without a cure: finding one means compiling every narrower tile, and these texts are what was asked for.
    """
    from profiling.compile_report import too_large

    several = request.backward_tiles is not None and request.backward_tiles.dq is not None
    for one in reversed(kernels):
        tiles = tiles_of(request, one.part)
        if tiles is not None and (refused := too_large(one.report, tiles, arch, title(one.part) if several else "")):
            return refused
    return None


@contextlib.contextmanager
def _compiled_anew() -> Iterator[None]:
    """Nothing from Triton's own cache: it knows kernels by their text, and may have compiled the same one in another folder,
    whose name every line would bear."""
    from triton import knobs

    with tempfile.TemporaryDirectory(prefix="flashscope-") as folder, knobs.cache.scope():
        knobs.cache.dir = folder
        yield


def _texts(compiled: Any) -> dict[str, str]:
    """The text of every stage, with files as the project names them and without PTX's debug sections, which hold no code."""
    found = {stage: compiled.asm[stage] for stage in STAGES if stage in compiled.asm}
    found["ptx"] = _DEBUG_SECTION.sub("", found["ptx"])
    return {stage: _without_folders(text) for stage, text in (found | {"sass": _sass(compiled.asm["cubin"])}).items()}


def _sass(cubin: bytes) -> str:
    from profiling.compile_report import nvidia_tool

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return nvidia_tool("nvdisasm", "--print-code", "--print-line-info", file.name)


def _without_folders(text: str) -> str:
    """No name of a folder of this machine."""
    for folder in (sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"], str(ROOT)):
        text = text.replace(f"{folder}/", "").replace(f'"{folder}"', '"."')
    return text


def _sources(kernels: tuple[CompiledKernel, ...]) -> dict[str, str]:
    """The project's files that the kernels' lines are of, the one that has most of them first."""
    named: dict[str, int] = {}
    for kernel in kernels:
        for name in _NAMED_FILE.findall(kernel.texts["sass"]):
            named[name] = named.get(name, 0) + 1
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in sorted(named) if Path(ROOT / name).is_file()}


def main() -> None:
    """Answer until the end of the input."""
    end_with_parent()
    out = claim_stdout()
    for line in sys.stdin:
        out.write(answer_to(Question.model_validate_json(line)).model_dump_json() + "\n")
        out.flush()


if __name__ == "__main__":
    main()
