"""Compiles a grid's cells, each in a process of its own, so that one that crashes or hangs costs only itself.

`python -m profiling.feasibility_process` reads one JSON line, a Question, and answers with a line a cell as they are found.
torch and Triton are imported once; a cell's process is a fork of that one. Nothing is launched, and no GPU is asked.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from kernels.problem import Frozen
from profiling.failures import job_error
from profiling.feasibility import (
    CELL_LIMIT_S,
    Cell,
    Grid,
    Place,
    cell,
    compiled,
    sorted_out,
    too_much_shared_memory,
)
from profiling.feasibility_cache import FeasibilityCache, triton_version
from profiling.leash import end_with_parent
from profiling.stdout import claim_stdout

_WALL_PER_CPU = 4.0
"""A cell may take so many times its CPU limit by the clock: other work may share the machine, but a hang uses no CPU."""
_LOOK_S = 0.2
_KILLED_FIRST = b"1000"
_NICE = 10
_TIME_IS_UP = "error code -24"  # SIGXCPU: ptxas was ended by the limit that it inherited


class Question(Frozen):
    """A grid to compile. limit_s: CPU seconds a cell's compiler may take; jobs: processes at once, None as many as CPUs.

    again: cells that ran out of time or crashed are tried once more.
    """

    grid: Grid
    limit_s: float = CELL_LIMIT_S
    jobs: int | None = None
    again: bool = False


class _TooLarge(Exception):
    """Raised between two stages of Triton's compiler: the rest would take a minute for what cannot run."""

    def __init__(self, needs_bytes: int) -> None:
        super().__init__(f"{needs_bytes} bytes of shared memory")
        self.needs_bytes = needs_bytes


@dataclass
class Compiling:
    """A cell that is being compiled: its process, its answer so far, and when it is ended."""

    place: Place
    pid: int
    pipe: int
    ends_at: float
    answer: bytes = b""


def answers(question: Question, cache: FeasibilityCache | None = None) -> Iterator[Cell]:
    """Every cell of the grid, in the order in which they are known: refused, kept, then compiled."""
    cache = cache or FeasibilityCache(question.grid)
    known, unknown = sorted_out(question.grid)
    yield from known.values()
    held = cache.held(unknown, question.again)
    yield from held.values()
    for found in _compiled(question, [place for place in unknown if place not in held]):
        cache.put(found)
        yield found


def processes() -> int:
    """How many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _compiled(question: Question, places: list[Place]) -> Iterator[Cell]:
    if not places:
        return
    if triton_version() is None:
        yield from (cell(place, "crashed", "Triton is not installed here: nothing can be compiled.") for place in places)
        return
    # A folder of its own: what Triton kept from before would be read in no time, and not tell what compiling takes.
    with tempfile.TemporaryDirectory(prefix="flashscope-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        make_ready((question.grid.kernel,))
        yield from _forked(question, places)


def make_ready(kernels: Iterable[str]) -> None:
    """Do once, before the forks, what each of them would do: import, and hash Triton itself for its cache's keys."""
    import profiling.compile_report  # noqa: F401
    from kernels.registry import load

    for name in kernels:
        load(name)
    with contextlib.suppress(ImportError):  # where another Triton has it elsewhere, each fork does it
        from triton.runtime.cache import triton_key

        triton_key()


def _forked(question: Question, places: list[Place]) -> Iterator[Cell]:
    waiting, running = list(places), list[Compiling]()
    try:
        while waiting or running:
            while waiting and len(running) < (question.jobs or processes()):
                running.append(start_cell(question, waiting.pop(0)))
            for one in finished_cells(running):
                running.remove(one)
                yield answer_of(question, one)
    finally:
        for one in running:
            end_cell(one)


def start_cell(question: Question, place: Place) -> Compiling:
    """Fork a process that compiles one cell. torch, Triton and the version must have been imported."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _be_the_cell(question, place, writing)
    os.close(writing)
    return Compiling(place, pid, reading, time.monotonic() + _WALL_PER_CPU * question.limit_s)


def _be_the_cell(question: Question, place: Place, pipe: int) -> NoReturn:
    """The fork's whole life: compile, answer, end. It never returns into its parent's code."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        end_with_parent()
        os.setsid()
        limit_s = max(1, round(question.limit_s))
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb") as score:
            score.write(_KILLED_FIRST)
        # Triton prints the whole program where ptxas fails.
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        answer = compile_cell(question.grid, place, question.limit_s).model_dump_json().encode()
        while answer:
            answer = answer[os.write(pipe, answer) :]
    finally:
        os._exit(0)


def compile_cell(grid: Grid, place: Place, limit_s: float = CELL_LIMIT_S) -> Cell:
    """Compile one cell here and now; whatever the compiler throws becomes the cell's reason."""
    from profiling.compile_report import compiled_kernels, report_of

    with _watched(grid.arch.shared_memory_per_block_bytes) as times_ms:
        try:
            made, _ = compiled_kernels(grid.request(place), grid.arch)
        except _TooLarge as error:
            return too_much_shared_memory(grid, place, error.needs_bytes)
        except Exception as error:  # this cell's boundary: whatever the compiler throws is its answer
            if _TIME_IS_UP in str(error):
                return _out_of_time(place, limit_s)
            return cell(place, "does not compile", job_error(error, grid.kernel, "compile").sentence)
    name, attention = next(reversed(made.items()))
    return compiled(grid, place, report_of(name, attention, grid.arch, times_ms[name]))


@contextlib.contextmanager
def _watched(limit_bytes: int) -> Iterator[dict[str, float]]:
    """While compiling: stop where shared memory is over the limit, and note what each kernel takes, in ms by its name."""
    from triton import knobs
    from triton.backends import backends

    times_ms: dict[str, float] = {}
    backend = backends["nvidia"].compiler
    add_stages = backend.add_stages

    # Not through Triton's own hook for it: that one is in the cache's keys, and a launch would not find what is made here.
    def add_watched_stages(self: Any, stages: dict[str, Any], *rest: Any) -> None:
        add_stages(self, stages, *rest)
        make = stages["ptx"]

        def checked(source: Any, metadata: dict[str, Any]) -> Any:
            if metadata["shared"] > limit_bytes:
                raise _TooLarge(metadata["shared"])
            return make(source, metadata)

        stages["ptx"] = checked

    def note(src: Any, metadata: dict[str, Any], metadata_group: Any, times: Any, cache_hit: bool) -> None:
        times_ms[src.name] = (times.ir_initialization + sum(taken for _, taken in times.lowering_stages)) / 1e3

    with knobs.compilation.scope():
        knobs.compilation.listener = note
        backend.add_stages = add_watched_stages
        try:
            yield times_ms
        finally:
            backend.add_stages = add_stages


def finished_cells(running: list[Compiling]) -> list[Compiling]:
    """Those that answered, ended or are out of time, after a short wait."""
    ready, _, _ = select.select([one.pipe for one in running], [], [], _LOOK_S)
    found = []
    for one in running:
        if one.pipe in ready:
            some = os.read(one.pipe, 65536)
            one.answer += some
            if not some:
                found.append(one)
        elif time.monotonic() > one.ends_at:
            found.append(one)
    return found


def answer_of(question: Question, one: Compiling) -> Cell:
    """What a cell's process said, or why it said nothing."""
    is_late = time.monotonic() > one.ends_at and not one.answer
    status = end_cell(one)
    if one.answer:
        try:
            return Cell.model_validate_json(one.answer)
        except ValueError:
            return cell(one.place, "crashed", "The compiler's answer broke off.")
    killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if is_late or killed_by == signal.SIGXCPU:
        return _out_of_time(one.place, question.limit_s)
    if killed_by:
        cause = ", as it does where memory runs out" if killed_by == signal.SIGKILL else ""
        return cell(one.place, "crashed", f"The compiler crashed ({signal.Signals(killed_by).name}{cause}).")
    return cell(one.place, "crashed", "The compiler's process ended without an answer.")


def _out_of_time(place: Place, limit_s: float) -> Cell:
    return cell(place, "time limit", f"Its compiler was ended after {limit_s:g} s of CPU time: it may or may not compile.")


def end_cell(one: Compiling) -> int:
    """End a cell's process with all that it started, ptxas too, and return its wait status."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(one.pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(one.pid, signal.SIGKILL)
    os.close(one.pipe)
    return os.waitpid(one.pid, 0)[1]


def _stop(*_: object) -> NoReturn:
    raise SystemExit(0)


def main() -> None:
    """Answer one question; SIGTERM and SIGINT end the cells first."""
    end_with_parent()
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, _stop)
    out = claim_stdout()
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    question = Question.model_validate_json(sys.stdin.readline())
    cache = FeasibilityCache(question.grid)
    cache.forget_old()
    for found in answers(question, cache):
        out.write(found.model_dump_json() + "\n")
        out.flush()


if __name__ == "__main__":
    main()
