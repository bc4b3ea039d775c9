"""What the compiler made of a configuration, as texts: asked of a process of its own, kept on disk. Neither torch nor Triton.

Nothing but the texts is kept: what is counted or shown of them is derived from them each time (assembly_text, assembly_loops).
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from kernels.problem import Frozen
from profiling.compiler_process import Question
from profiling.kernel_parts import GRADIENTS, OF_GRADIENTS
from profiling.records import CompileReport, JobError
from profiling.whole_file import read_at_most, write_whole

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 240.0
STAGES = {"sass": "SASS", "ptx": "PTX", "llir": "LLVM IR", "ttgir": "TTGIR", "ttir": "TTIR"}
"""The compiler's stages, from what the GPU runs back to what is nearest to the source."""
_FORMAT = 1
_KEPT_FILES, _KEPT_BYTES = 200, 64 << 20


class CompiledKernel(Frozen):
    """One Triton kernel: what it does (profiling.kernel_parts), its report, and each of STAGES (a Gluon kernel has no TTIR)."""

    part: str
    report: CompileReport
    texts: dict[str, str]


class Assembly(Frozen):
    """The answer to a Question: the kernels that it launches, and the project's sources they came from.

    The last kernel is the one that is shown first: the attention, or of a backward the one for dK and dV.
    error: why there are none; or, beside them, that they do not fit in the GPU's shared memory.
    """

    question: Question
    kernels: tuple[CompiledKernel, ...] = ()
    sources: dict[str, str] = {}
    error: JobError | None = None


class Assembler:
    """Compiles in a child process, one question after another, and keeps the answers on disk; may be shared by threads."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or cache_folder()
        self._child: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def kept(self, question: Question) -> Assembly | None:
        """The answer if it is on disk, and made by this Triton of these sources."""
        try:
            data = read_at_most(self._file(question), _KEPT_BYTES)
            return Assembly.model_validate_json(gzip.decompress(data))
        except (OSError, EOFError, ValidationError, gzip.BadGzipFile):
            return None

    def answer(self, question: Question) -> Assembly:
        """The answer, from disk or compiled now; waits for others' questions."""
        with self._lock:
            found = self.kept(question)
            if found is None:
                found = self._compiled(question)
                if found.kernels:
                    self._keep(found)
        return found

    def stop(self) -> None:
        """Give up what is being compiled, if anything is; may be called by another thread."""
        self._stopped = True
        if self._lock.locked() and self._child is not None:
            self._child.kill()

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        self._child = None

    def _compiled(self, question: Question) -> Assembly:
        if self._child is None or self._child.poll() is not None:
            self._child = _started()
        child, late, self._stopped = self._child, threading.Event(), False

        def stop() -> None:
            late.set()
            child.kill()

        timer = threading.Timer(LIMIT_S, stop)
        timer.start()
        try:
            child.stdin.write(question.model_dump_json() + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
        except OSError:
            line = ""
        finally:
            timer.cancel()
        if line:
            return Assembly.model_validate_json(line)
        self.close()
        if self._stopped:
            return failed(question, "cancelled", "Stopped before it was compiled.")
        if late.is_set():
            return failed(question, "timeout", f"The compiler did not answer within {LIMIT_S:g} s.")
        return failed(question, "crashed", "The compiler's process ended without an answer.")

    def _keep(self, found: Assembly) -> None:
        """A cache: where the disk is full or read-only, the next one compiles again."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._file(found.question), gzip.compress(found.model_dump_json().encode(), 5))
            files = sorted(self._folder.glob("*.json.gz"), key=lambda file: file.stat().st_mtime)
            for old in files[:-_KEPT_FILES]:
                old.unlink(missing_ok=True)
        except OSError:
            pass

    def _file(self, question: Question) -> Path:
        asked = json.dumps([_FORMAT, question.model_dump(mode="json"), *_what_compiles()], sort_keys=True)
        return self._folder / f"{hashlib.sha256(asked.encode()).hexdigest()[:40]}.json.gz"


def cache_folder() -> Path:
    """In the user's cache folder, as freedesktop.org's base directories have it."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return base / "flashscope" / "assembly"


def _what_compiles() -> tuple[str, ...]:
    """Triton's version and the kernels' sources: what else decides the answer."""
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    files = sorted((*(ROOT / "kernels").glob("*.py"), *(ROOT / "profiling").glob("assembly_process.py")))
    return version, _digest(tuple((str(file), file.stat().st_mtime_ns) for file in files))


@lru_cache(maxsize=4)
def _digest(files: tuple[tuple[str, int], ...]) -> str:
    """Of the files' contents; their times are there so that a change is seen."""
    found = hashlib.sha256()
    for name, _ in files:
        found.update(Path(name).read_bytes() + b"\0")
    return found.hexdigest()


def _started() -> subprocess.Popen[str]:
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "profiling.assembly_process"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=variables, text=True)


def kernel_of(kernels: Sequence[CompiledKernel], name: str | None) -> CompiledKernel | None:
    """The kernel that is named, by what it does or by its own name; None: it has none such. Without a name the last.

    Where one kernel makes all gradients, it is the one for dK and dV, and for dQ, too.
    """
    if name is None:
        return kernels[-1]
    asked = (name, GRADIENTS) if name in OF_GRADIENTS else (name,)
    return next((one for part in asked for one in kernels if part in (one.part, one.report.kernel)), None)


def failed(question: Question, kind: str, sentence: str) -> Assembly:
    """An answer without kernels."""
    return Assembly(question=question, error=JobError(kind=kind, sentence=sentence))
