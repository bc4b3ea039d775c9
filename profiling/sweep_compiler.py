"""Compiles a sweep's cells before any is launched, as many at once as there are CPUs; what is made stays in Triton's cache.

`python -m profiling.sweep_compiler` reads one JSON line, a Question, and answers with a line a cell as they are found. Each
cell is a fork of that process, as on the feasibility map. A launch of the same cell then finds its kernel in Triton's cache,
by the same key, so that on the GPU nothing waits for a compiler. Cells that cannot run are kept on the disk for every map.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernels.problem import Frozen, TileConfig
from profiling.feasibility import CELL_LIMIT_S, Cell, Grid, Place, cell
from profiling.feasibility_cache import FeasibilityCache, triton_version
from profiling.leash import end_with_parent
from profiling.stdout import claim_stdout
from profiling.sweep_cells import grid_of, place_of
from profiling.sweep_record import Key, SweepCell

ROOT = Path(__file__).resolve().parent.parent
_GRACE_S = 5.0
_NICE = 10


class Question(Frozen):
    """Cells to compile for a compute capability. jobs: processes at once, None as many as CPUs."""

    cells: tuple[SweepCell, ...]
    capability: int
    jobs: int | None = None
    limit_s: float = CELL_LIMIT_S


class Answer(Frozen):
    """What the compiler said of a cell."""

    key: Key
    found: Cell


class _OneCell(Grid):
    """A grid of one cell, with everything that its tiles say."""

    exact: TileConfig

    def tiles(self, place: Place) -> TileConfig:
        return self.exact


# In the child


def answers(question: Question) -> Iterator[Answer]:
    """Every cell, in the order in which they are known."""
    if triton_version() is None:
        for one in question.cells:
            said = "Triton is not installed here: nothing can be compiled."
            yield Answer(key=one.key, found=cell(place_of(one.tiles), "crashed", said))
        return
    from profiling.feasibility_process import make_ready

    make_ready({one.request.kernel for one in question.cells})
    yield from _forked(question)


def _forked(question: Question) -> Iterator[Answer]:
    from profiling import feasibility_process as process

    waiting, running = list(question.cells), dict[int, tuple[SweepCell, process.Question, process.Compiling]]()
    try:
        while waiting or running:
            while waiting and len(running) < (question.jobs or process.processes()):
                one = waiting.pop(0)
                asked = process.Question(grid=_grid(question, one), limit_s=question.limit_s)
                compiling = process.start_cell(asked, place_of(one.tiles))
                running[compiling.pid] = one, asked, compiling
            for ended in process.finished_cells([compiling for _, _, compiling in running.values()]):
                one, asked, compiling = running.pop(ended.pid)
                yield Answer(key=one.key, found=process.answer_of(asked, compiling))
    finally:
        for _, _, compiling in running.values():
            process.end_cell(compiling)


def _grid(question: Question, one: SweepCell) -> _OneCell:
    plain = grid_of(one.series, question.capability, one.tiles)
    return _OneCell(**dict(plain), exact=one.tiles)


def main() -> None:
    """Answer one question; SIGTERM and SIGINT end the cells first."""
    end_with_parent()
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, _stop)
    out = claim_stdout()
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    for found in answers(Question.model_validate_json(sys.stdin.readline())):
        out.write(found.model_dump_json() + "\n")
        out.flush()


def _stop(*_: object) -> None:
    raise SystemExit(0)


# From outside


class SweepCompiler:
    """The child from outside: started when made. take() gives what it said so far; over says that nothing more will come.

    Cells without an answer, where the child was killed, are no cells that cannot run: who launches them compiles them.
    """

    def __init__(self, cells: Sequence[SweepCell], capability: int, jobs: int | None = None) -> None:
        self._cells = {one.key: one for one in cells}
        self._caches: dict[object, FeasibilityCache] = {}
        self._capability = capability
        self._question = Question(cells=tuple(cells), capability=capability, jobs=jobs)
        self._said: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        self._missing = set(self._cells)
        self._child: subprocess.Popen[str] | None = None
        self._is_cancelled, self.over = False, not cells
        if cells:
            # The child ends with the thread that started it, so this one must outlive it.
            threading.Thread(target=self._follow, name="sweep compiler", daemon=True).start()

    def take(self, timeout_s: float) -> tuple[Answer, ...]:
        """What was found since the last call, after at most so long."""
        found: list[Answer] = []
        with contextlib.suppress(queue.Empty):
            while not self.over:
                answer = self._said.get(timeout=0.0 if found else timeout_s)
                if answer is None:
                    self.over = True
                elif answer.key in self._missing:
                    self._missing.remove(answer.key)
                    self._keep(answer)
                    found.append(answer)
        return tuple(found)

    def cancel(self) -> None:
        """Stop compiling."""
        self._is_cancelled = True
        if self._child is not None:
            self._child.terminate()

    def _follow(self) -> None:
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "profiling.sweep_compiler"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=_variables(), text=True,
                start_new_session=True,  # Ctrl-C is for the sweep, which then ends this one
            )  # fmt: skip
            if self._is_cancelled:
                self._child.terminate()
            self._child.stdin.write(self._question.model_dump_json() + "\n")
            self._child.stdin.close()
            for line in self._child.stdout:
                self._said.put(Answer.model_validate_json(line))
        except (OSError, ValueError):
            pass
        finally:
            self._end()
            self._said.put(None)

    def _end(self) -> None:
        if self._child is None:
            return
        try:
            self._child.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _keep(self, answer: Answer) -> None:
        """Only what cannot run: of the rest the map should know what compiling took, which Triton's cache hides here."""
        if not answer.found.can_run and answer.found.reason not in ("time limit", "crashed"):
            series = self._cells[answer.key].series
            self._caches.setdefault(series, FeasibilityCache(grid_of(series, self._capability))).put(answer.found)


def _variables() -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return found | dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")  # only one thread survives a fork


if __name__ == "__main__":
    main()
