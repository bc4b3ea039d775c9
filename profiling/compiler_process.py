"""Compile reports from a process of their own: the interpreter's worker cannot compile, as TRITON_INTERPRET is set in it.

`python -m profiling.compiler_process` reads a JSON line a question and answers each with one line, in order.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

from kernels.problem import Frozen
from kernels.registry import Refused
from profiling.failures import job_error, with_cure
from profiling.leash import end_with_parent
from profiling.records import CompileReport, JobError, RunRequest
from profiling.stdout import claim_stdout

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 120.0


class Question(Frozen):
    """Compile what a request launches, for a compute capability."""

    request: RunRequest
    capability: int


class Answer(Frozen):
    """The reports, the kernel that does the attention last; or why there are none."""

    reports: tuple[CompileReport, ...] = ()
    error: JobError | None = None


class CompilerProcess:
    """The child, started when first asked and kept. Ask first, go on with other work, then take the answers in order."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._child: subprocess.Popen[str] | None = None
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._asked_at: list[float] = []

    def ask(self, question: Question) -> None:
        """Send a question; returns at once."""
        if self._child is None or self._child.poll() is not None:
            self._start()
        self._asked_at.append(time.monotonic())
        try:
            self._child.stdin.write(question.model_dump_json() + "\n")
            self._child.stdin.flush()
        except OSError:
            pass  # it died: the answer says so

    def answer(self) -> Answer:
        """Wait for the oldest question's answer, at most the limit from when it was asked or the last answer came."""
        asked_at = self._asked_at.pop(0)
        if self._child is None:
            return _no_answer("crashed", "The compiler's process was ended before it came to this question.")
        try:
            line = self._answers.get(timeout=max(0.1, asked_at + self._limit_s - time.monotonic()))
        except queue.Empty:
            self.close()
            return _no_answer("timeout", f"The compiler did not answer within {self._limit_s:g} s.")
        if line is None:
            self.close()
            return _no_answer("crashed", "The compiler's process ended without an answer.")
        self._asked_at = [time.monotonic()] * len(self._asked_at)
        return Answer.model_validate_json(line)

    def forget(self) -> None:
        """Give up the questions that have no answer yet, and the child with them, as its answers would come late."""
        if self._asked_at:
            self._asked_at.clear()
            self.close()

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        self._child = None

    def _start(self) -> None:
        variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        command = [sys.executable, "-m", "profiling.compiler_process"]
        self._answers = queue.SimpleQueue()
        # No new session: whoever kills the worker's process group kills the compiler too.
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=variables, text=True, bufsize=1
        )
        threading.Thread(target=_hear, args=(self._child, self._answers), daemon=True).start()


def _hear(child: subprocess.Popen[str], answers: queue.SimpleQueue[str | None]) -> None:
    for line in child.stdout:
        answers.put(line)
    answers.put(None)


def _no_answer(kind: str, sentence: str) -> Answer:
    return Answer(error=JobError(kind=kind, sentence=sentence))


def answer_to(question: Question) -> Answer:
    """Compile, here and now; a failure becomes the answer's error, with a cure where one is found."""
    request, capability = question.request, question.capability
    try:
        from profiling.compile_report import compile_reports

        try:
            return Answer(reports=compile_reports(request, capability))
        except Refused as refused:
            return Answer(error=with_cure(job_error(refused, request.kernel, "compile"), request, capability, compile_reports))
    except Exception as error:  # this process's job boundary: whatever the compiler throws is the answer
        return Answer(error=job_error(error, request.kernel, "compile"))


def main() -> None:
    """Answer until the end of the input."""
    end_with_parent()
    out = claim_stdout()
    for line in sys.stdin:
        out.write(answer_to(Question.model_validate_json(line)).model_dump_json() + "\n")
        out.flush()


if __name__ == "__main__":
    main()
