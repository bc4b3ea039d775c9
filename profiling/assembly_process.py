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

from profiling.assembly import ROOT, STAGES, Assembly, CompiledKernel
from profiling.compiler_process import Question
from profiling.failures import job_error
from profiling.leash import end_with_parent
from profiling.stdout import claim_stdout

_DEBUG_SECTION = re.compile(r"^\t\.section\t\.debug_\w+.*?^\t\}\n", re.MULTILINE | re.DOTALL)
_NAMED_FILE = re.compile(r"\bkernels/\w+\.py\b")


def answer_to(question: Question) -> Assembly:
    """Compile, here and now; a failure becomes the answer's error."""
    try:
        return _assembled(question)
    except Exception as error:  # this process's job boundary: whatever the compiler throws is the answer
        return Assembly(question=question, error=job_error(error, question.request.kernel, "compile"))


def _assembled(question: Question) -> Assembly:
    from kernels.architecture import architecture
    from kernels.registry import refuse
    from profiling.compile_report import compiled_kernels, report_of, too_large

    request, arch = question.request, architecture(question.capability)
    refuse(request.kernel, request.problem, request.precision, request.tiles, arch)
    with _compiled_anew():
        compiled, compile_ms = compiled_kernels(request, arch)
    kernels = tuple(
        CompiledKernel(report=report_of(name, one, arch, compile_ms), texts=_texts(one)) for name, one in compiled.items()
    )
    # Without a cure: finding one means compiling every narrower tile, and these texts are what was asked for.
    refused = too_large(kernels[-1].report, request.tiles, arch)
    error = job_error(refused, request.kernel, "compile").model_copy(update={"raw": ""}) if refused else None
    return Assembly(question=question, kernels=kernels, sources=_sources(kernels), error=error)


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
