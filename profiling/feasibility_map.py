"""A feasibility map that fills while one looks: the compiling process from outside, and the maps of one server."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from profiling.feasibility import CELL_LIMIT_S, Cell, Grid, Place, cell, sorted_out
from profiling.feasibility_cache import FeasibilityCache
from profiling.feasibility_process import Question

ROOT = Path(__file__).resolve().parent.parent
_GRACE_S = 5.0
_MOST_MAPS = 32


def known_of(grid: Grid, again: bool = False) -> dict[Place, Cell]:
    """What can be said of a grid at once: what needs no compiler, and what is kept; again: without what may change."""
    known, unknown = sorted_out(grid)
    return known | FeasibilityCache(grid).held(unknown, again)


class FeasibilityMap:
    """One grid being compiled, from when it is made. What needs no compiling is there at once, without a process.

    turn: held while compiling, so that maps that share one compile one after the other. Its methods may be called from any
    thread.
    """

    def __init__(
        self,
        grid: Grid,
        limit_s: float = CELL_LIMIT_S,
        jobs: int | None = None,
        again: bool = False,
        turn: threading.Lock | None = None,
    ) -> None:
        self.grid = grid
        self._question = Question(grid=grid, limit_s=limit_s, jobs=jobs, again=again)
        self._turn = turn or threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._is_cancelled, self._done = threading.Event(), threading.Event()
        self._started = time.monotonic()
        self._elapsed_s: float | None = None
        self._cells = known_of(grid, again)
        if len(self._cells) == len(grid.places):
            self._finish()
        else:
            # The child ends with the thread that started it, so this one must outlive it.
            threading.Thread(target=self._follow, daemon=True).start()

    @property
    def cells(self) -> dict[Place, Cell]:
        """What is known so far."""
        return dict(self._cells)

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self._done.is_set()

    @property
    def is_cancelled(self) -> bool:
        """Whether it was told to stop."""
        return self._is_cancelled.is_set()

    @property
    def is_waiting(self) -> bool:
        """Whether another map is being compiled first."""
        return self._child is None and not self.finished

    @property
    def elapsed_s(self) -> float:
        """Since it was asked for; of a finished map, what it took."""
        return time.monotonic() - self._started if self._elapsed_s is None else self._elapsed_s

    def cancel(self) -> None:
        """Stop compiling; what is known stays."""
        self._is_cancelled.set()
        if self._child is not None:
            self._child.terminate()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is finished, at most so long; whether it is."""
        return self._done.wait(timeout_s)

    def _finish(self) -> None:
        self._elapsed_s = time.monotonic() - self._started
        self._done.set()

    def _follow(self) -> None:
        try:
            with self._turn:
                if not self.is_cancelled:
                    self._compile()
        finally:
            self._finish()

    def _compile(self) -> None:
        variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        variables |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")  # only one thread survives a fork
        self._child = subprocess.Popen(
            [sys.executable, "-m", "profiling.feasibility_process"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=variables, text=True,
        )  # fmt: skip
        if self.is_cancelled:
            self._child.terminate()
        try:
            self._child.stdin.write(self._question.model_dump_json() + "\n")
            self._child.stdin.close()
            for line in self._child.stdout:
                found = Cell.model_validate_json(line)
                self._cells[Place(**{name: getattr(found, name) for name in Place.model_fields})] = found
        except (OSError, ValueError):
            pass  # the cells without an answer say so
        finally:
            self._end()
        if not self.is_cancelled:
            self._say_what_is_missing()

    def _end(self) -> None:
        try:
            self._child.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _say_what_is_missing(self) -> None:
        for place in self.grid.places:
            if place not in self._cells:
                said = f"The compiling process ended with code {self._child.returncode} before it came to this cell."
                self._cells[place] = cell(place, "crashed", said)


class FeasibilityMaps:
    """The maps of one server: a grid that several tabs ask for is compiled once, and only one grid at a time."""

    def __init__(self) -> None:
        self._maps: dict[str, FeasibilityMap] = {}
        self._lock, self._turn = threading.Lock(), threading.Lock()

    def of(self, grid: Grid) -> FeasibilityMap | None:
        """The map of a grid, if it was asked for."""
        with self._lock:
            return self._maps.get(grid.model_dump_json())

    def start(self, grid: Grid, again: bool = False) -> FeasibilityMap:
        """The map of a grid, made where there is none, or where the one there is was stopped or is to be tried again."""
        with self._lock:
            name = grid.model_dump_json()
            found = self._maps.pop(name, None)
            if found is None or found.is_cancelled or (again and found.finished):
                found = FeasibilityMap(grid, again=again, turn=self._turn)
            self._maps[name] = found
            for old in [one for one, held in self._maps.items() if held.finished][: max(0, len(self._maps) - _MOST_MAPS)]:
                del self._maps[old]
            return found
