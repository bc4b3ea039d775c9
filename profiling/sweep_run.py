"""One sweep on its way: compile, screen, time the finalists again. Every finished cell is handed on before the next is begun.

Cells of one problem share a job, and with it inputs, oracle and rounds. Where a job loses its worker, its cells run again one
by one, so that a crash or a hang costs only itself. A cell that crashes alone gets two more tries, since what killed its worker
may have been no fault of its own; one that hangs gets none.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from profiling.job_queue import JobView
from profiling.lane import NEVER_READY
from profiling.ray_runner import RayRunner
from profiling.records import INTERPRETER, Effort, JobError, Measurement
from profiling.runner import Runner
from profiling.store import StoreProblem
from profiling.sweep_cells import can_be_compiled_for, outcome_of
from profiling.sweep_compiler import SweepCompiler
from profiling.sweep_ranking import finalists_of
from profiling.sweep_record import CellOutcome, Series, Status, Sweep, SweepCell, SweepPhase, SweepState, knowledge
from profiling.sweep_search import choose, left_of

CELLS_A_JOB = 8
MOST_IN_A_JOB = 16
"""On a cluster each job starts a worker of its own, so that a grid's jobs there are as large as may be."""
MOST_CRASHES = 3
PAUSED = "Paused."
_MOST_UNREADY = 5
_LOOK_S, _BEAT_S, _PATIENCE_S = 0.25, 5.0, 20.0
_TAKES_OTHERS_WITH_IT = ("crashed", "timeout", "launch")
_FULL_TO_SCREENING = 5.0
"""The full rule takes half a second of launches, the screening a tenth."""

Keep = Callable[[Sequence[CellOutcome], SweepState], None]
"""keep(outcomes, state): make durable what came of cells, and where the sweep stands. Raises StoreProblem."""


class _Stopped(Exception):
    """Told to stop, or cannot go on; sentence says which."""

    def __init__(self, status: Status, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


@dataclass(frozen=True)
class _Flight:
    """A job under way. device: that it was submitted for."""

    cells: tuple[SweepCell, ...]
    effort: Effort
    device: str

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(cell.key for cell in self.cells)


class SweepRun:
    """A sweep being run. run() blocks until it is over, paused or cannot go on; the rest may be called from any thread.

    keep: see Keep. owner: whose jobs these are, on the queue. jobs: how many are under way at once, None for two a device.
    cells_a_job: None for 8, for 16 of a grid on a cluster, for 1 in the interpreter, where nothing is timed in rounds; never
    more than a device's share of all.
    """

    def __init__(
        self,
        sweep: Sweep,
        runner: Runner,
        keep: Keep,
        jobs: int | None = None,
        cells_a_job: int | None = None,
    ) -> None:
        self._sweep, self._runner, self._keep = sweep, runner, keep
        self._plan, self._cells = sweep.plan, {cell.key: cell for cell in sweep.cells}
        self._is_interpreted = sweep.plan.devices[0] == INTERPRETER
        self._jobs = jobs or 2 * len(self._plan.devices)
        is_costly = isinstance(runner, RayRunner) and sweep.plan.budget is None  # a search learns from each job
        self._cells_a_job = cells_a_job or (1 if self._is_interpreted else MOST_IN_A_JOB if is_costly else CELLS_A_JOB)
        self._outcomes = {one.key: one for one in sweep.outcomes}
        self._series = {series: [cell for cell, _ in sweep.of(series)] for series in self._plan.series}
        self._lock = threading.Lock()
        self._status: Status = "running"
        self._phase: SweepPhase = "compiling"
        self._sentence = ""
        self._asked: tuple[Literal["paused", "cancelled"], bool] | None = None
        self._began, self._before_s = time.monotonic(), sweep.state.elapsed_s
        self._ended_s: float | None = None
        # what follows belongs to the thread that runs it
        self._flights: dict[str, _Flight] = {}
        self._alone: deque[SweepCell] = deque()
        self._crashes, self._unready = Counter[str](), 0
        self._groups_tried = Counter[tuple[str, ...]]()
        self._beaten = time.monotonic()
        self._seconds: dict[tuple[object, Effort], list[float]] = {}

    # From any thread

    def view(self) -> Sweep:
        """The sweep as it is now."""
        with self._lock:
            outcomes = tuple(self._outcomes.values())
            kept = {name: getattr(self._sweep, name) for name in Sweep.model_fields}
            found = kept | {"outcomes": outcomes, "state": self._state(), "change": knowledge(outcomes)}
        return Sweep(**found)

    def pause(self, now: bool = False) -> None:
        """Stop after the job that runs; now: at once, and its cells are run again when the sweep is resumed."""
        with self._lock:
            if self._asked is None or now:
                self._asked = self._asked if self._asked and self._asked[0] == "cancelled" else ("paused", now)

    def cancel(self) -> None:
        """Stop at once and for ever; what is finished stays."""
        with self._lock:
            self._asked = ("cancelled", True)

    @property
    def has_ended(self) -> bool:
        """Whether run() has nothing more to do."""
        return self._ended_s is not None

    # The run

    def run(self) -> Sweep:
        """Do all that is missing, and return the sweep. Nothing is raised but what is a mistake of this program."""
        status, sentence = "finished", ""
        try:
            self._compile()
            self._screen()
            self._time_finalists()
            self._leave_untried()
        except _Stopped as stopped:
            status, sentence = stopped.status, stopped.sentence
        except (StoreProblem, ValueError) as problem:
            status, sentence = "paused", str(problem)
        finally:
            self._call_back()
        with self._lock:
            self._status, self._sentence = status, sentence
            self._phase = "over" if status in ("finished", "cancelled") else self._phase
            self._ended_s = time.monotonic() - self._began
            state = self._state()
        try:
            self._keep((), state)
        except StoreProblem as problem:
            with self._lock:
                self._status, self._sentence = "paused", str(problem)
        return self.view()

    def _compile(self) -> None:
        """Before anything is launched; what cannot run is known then, and what can is in Triton's cache."""
        self._enter("compiling")
        for device in self._plan.devices:
            self._runner.warm(device)  # it starts while the compilers work
        pending = [cell for cell in self._cells.values() if self._outcomes[cell.key].status == "pending"]
        if self._is_interpreted or not can_be_compiled_for(self._sweep.capability):
            return
        compiler = SweepCompiler(pending, self._sweep.capability)
        try:
            while not compiler.over:
                self._stop_if_asked()
                found = compiler.take(_LOOK_S)
                self._record([self._compiled(answer.key, answer.found) for answer in found])
                self._beat()
        finally:
            compiler.cancel()

    def _compiled(self, key: str, found) -> CellOutcome:
        """What was known of the cell before says what compiling took, which Triton's cache may hide here."""
        known = self._outcomes[key]
        return known if known.report is not None and found.can_run else _stamped(outcome_of(self._cells[key], found))

    def _screen(self) -> None:
        self._enter("screening")
        share = math.ceil(self._cells_left() / len(self._plan.devices))
        self._cells_a_job = max(1, min(self._cells_a_job, share))
        while True:
            while len(self._flights) < self._jobs and not self._is_asked() and (batch := self._next_batch()):
                self._submit(batch, "screening")
            if not self._flights:
                self._stop_if_asked()
                return
            self._collect(self._take_screened)

    def _time_finalists(self) -> None:
        self._enter("finals")
        while True:
            groups = [group for group in self._final_groups() if not self._is_timed(group)]
            for group in groups:
                if len(self._flights) < self._jobs and not self._is_asked() and not self._is_under_way(group):
                    self._submit(group, "full")
            if not self._flights:
                self._stop_if_asked()
                return
            self._collect(self._take_finals)

    def _leave_untried(self) -> None:
        said = f"The search of {self._plan.budget} cells did not choose it."
        left = [one for one in self._outcomes.values() if one.status == "pending"]
        self._record([one.model_copy(update={"status": "untried", "sentence": said}) for one in left])

    # What is next

    def _next_batch(self) -> tuple[SweepCell, ...]:
        if self._alone:
            return (self._alone.popleft(),)
        under_way = self._under_way()
        for problem in self._plan.problems:
            found: list[SweepCell] = []
            for series in (series for series in self._plan.series if series.problem == problem):
                found += self._next_of(series, under_way, self._cells_a_job - len(found))
            if found:
                return tuple(found)
        return ()

    def _next_of(self, series: Series, under_way: frozenset[str], count: int) -> list[SweepCell]:
        """The next cells of a series: all in order, or of a search those that it asks for, after those that it need not."""
        cells = self._series[series]
        free = [cell for cell in cells if cell.key not in under_way and self._outcomes[cell.key].status == "pending"]
        if self._plan.budget is None:
            return free[:count]
        given = [cell for cell in free if set(cell.roles) & {"default", "article"}][:count]
        if given or count <= 0:
            return given
        pairs = [(cell, self._outcomes[cell.key]) for cell in cells]
        return list(choose(self._plan, pairs, under_way, count))

    def _under_way(self) -> frozenset[str]:
        return frozenset(key for flight in self._flights.values() for key in flight.keys) | {one.key for one in self._alone}

    def _final_groups(self) -> list[tuple[SweepCell, ...]]:
        """The finalists of a problem's series, as many series a job as fit: then also versions meet the same rounds."""
        view, groups = self.view(), list[tuple[SweepCell, ...]]()
        for problem in self._plan.problems:
            group: tuple[SweepCell, ...] = ()
            for series in (series for series in self._plan.series if series.problem == problem):
                finalists = finalists_of(view, series)
                if len(group) + len(finalists) > MOST_IN_A_JOB:
                    groups.append(group)
                    group = ()
                group += finalists
            groups.append(group)
        return [group for group in groups if group]

    def _is_timed(self, group: tuple[SweepCell, ...]) -> bool:
        return all(self._outcomes[cell.key].final is not None for cell in group)

    def _is_under_way(self, group: tuple[SweepCell, ...]) -> bool:
        return any(flight.cells == group for flight in self._flights.values())

    # Jobs

    def _submit(self, cells: tuple[SweepCell, ...], effort: Effort) -> None:
        # In turn would leave a fast device idle: in the end all that is under way would wait for the slow one.
        busy = Counter(flight.device for flight in self._flights.values())
        device = min(self._plan.devices, key=lambda one: busy[one])
        requests = [cell.request.model_copy(update={"device": device}) for cell in cells]
        job_id = self._runner.submit(requests, self._sweep.owner, effort)
        with self._lock:
            self._flights[job_id] = _Flight(cells, effort, device)

    def _collect(self, take: Callable[[_Flight, JobView], list[CellOutcome]]) -> None:
        """Wait a moment, then take what is finished, oldest job first; where the sweep is to stop, call back the rest."""
        with contextlib.suppress(KeyError):
            self._runner.wait(next(iter(self._flights)), _LOOK_S)
        for job_id, flight in tuple(self._flights.items()):
            view = self._view(job_id)
            if view is not None and view.finished:
                with self._lock:
                    del self._flights[job_id]
                self._remember(flight, view)
                self._record(take(flight, view))
        self._beat()
        self._hold_back()

    def _view(self, job_id: str) -> JobView | None:
        """The job; None where it was forgotten: its cells are then run again."""
        try:
            return self._runner.view(job_id)
        except KeyError:
            with self._lock:
                del self._flights[job_id]
            return None

    def _hold_back(self) -> None:
        """Asked to stop: what waits is taken out of the queue, and what runs too where it is to stop at once."""
        asked = self._is_asked()
        if asked is None:
            return
        if asked[1]:
            self._stop_if_asked()
        for job_id in tuple(self._flights):
            view = self._view(job_id)
            if view is not None and view.state == "queued":
                self._runner.cancel(job_id)

    def _call_back(self) -> None:
        """Cancel what is under way: its cells are run again when the sweep is resumed."""
        for job_id in tuple(self._flights):
            try:
                self._runner.cancel(job_id)
                self._runner.wait(job_id, _PATIENCE_S)
            except KeyError:
                pass
        with self._lock:
            self._flights.clear()

    def _remember(self, flight: _Flight, view: JobView) -> None:
        if all(result is not None and result.error is None for result in view.results):
            kind = flight.cells[0].request.problem, flight.effort
            # by the worker's clock: its start is no part of what a cell takes
            taken_s = max(result.duration_s for result in view.results)
            with self._lock:
                self._seconds.setdefault(kind, []).append(taken_s / len(flight.cells))

    # What came of them

    def _take_screened(self, flight: _Flight, view: JobView) -> list[CellOutcome]:
        found = [self._screened(flight, cell, result) for cell, result in zip(flight.cells, view.results, strict=True)]
        return [one for one in found if one is not None]

    def _screened(self, flight: _Flight, cell: SweepCell, result: Measurement) -> CellOutcome | None:
        """What came of a cell; None where it is to be run again."""
        error = result.error
        if error is None:
            self._unready = 0
            return self._told(cell, result)
        if error.kind == "cancelled":
            if self._is_asked() is None:
                raise _Stopped("paused", "A job of this sweep was cancelled: the sweep is paused.")
            return None
        if error.kind == "crashed" and error.sentence.endswith(NEVER_READY):
            self._unready += 1
            if self._unready > _MOST_UNREADY:
                raise _Stopped("paused", f"The sweep is paused, since the worker cannot be started: {error.sentence}")
            self._alone.append(cell)
            return None
        if error.kind in _TAKES_OTHERS_WITH_IT and len(flight.cells) > 1:
            self._alone.append(cell)
            return None
        if error.kind == "crashed":
            self._crashes[cell.key] += 1
            if self._crashes[cell.key] < MOST_CRASHES:
                self._alone.append(cell)
                return None
        return self._changed(cell, status="failed", sentence=error.sentence, error=error)

    def _told(self, cell: SweepCell, result: Measurement) -> CellOutcome:
        """Of a job that went well: right, wrong, or right with a time that cannot be true."""
        result = result.model_copy(update={"timeline": None})
        if result.latency is not None:
            return self._changed(cell, status="measured", measurement=result)
        if result.accuracy is not None and not result.accuracy.passed:
            flags = [flag.sentence for flag in result.flags if flag.name == "wrong output"]
            said = flags[0] if flags else f"The output of {cell.request.kernel} is wrong. It was not timed."
            return self._changed(cell, status="wrong", sentence=said, measurement=result)
        said = result.missing.get("latency", "The worker gave it no time.")
        return self._changed(cell, status="failed", sentence=said, error=JobError(kind="refused", sentence=said))

    def _take_finals(self, flight: _Flight, view: JobView) -> list[CellOutcome]:
        """All of a group at once, since their rounds are common; again, twice at most, where the worker was lost."""
        errors = [result.error for result in view.results if result.error is not None]
        if any(error.kind == "cancelled" for error in errors):
            if self._is_asked() is None:
                raise _Stopped("paused", "A job of this sweep was cancelled: the sweep is paused.")
            return []
        self._groups_tried[flight.keys] += 1
        lost = any(error.kind in _TAKES_OTHERS_WITH_IT for error in errors)
        if lost and self._groups_tried[flight.keys] < MOST_CRASHES:
            return []
        return [self._changed(cell, final=result) for cell, result in zip(flight.cells, view.results, strict=True)]

    def _changed(self, cell: SweepCell, **found: object) -> CellOutcome:
        return _stamped(CellOutcome(**{**dict(self._outcomes[cell.key]), **found}))

    def _record(self, found: Sequence[CellOutcome]) -> None:
        """Keep it, then show it: what is shown is never lost."""
        if not found:
            return
        with self._lock:
            before = self._outcomes
            self._outcomes = {**before, **{one.key: one for one in found}}
            state = self._state()
        durable = [one for one in found if one.is_over]
        if durable:
            try:
                self._keep(durable, state)
            except BaseException:
                with self._lock:
                    self._outcomes = before
                raise
            self._beaten = time.monotonic()

    # Where it stands

    def _enter(self, phase: SweepPhase) -> None:
        self._stop_if_asked()
        with self._lock:
            self._phase = phase
            state = self._state()
        self._keep((), state)

    def _beat(self) -> None:
        """Say now and then that somebody runs this sweep."""
        if time.monotonic() - self._beaten > _BEAT_S:
            self._beaten = time.monotonic()
            with self._lock:
                state = self._state()
            self._keep((), state)

    def _is_asked(self) -> tuple[str, bool] | None:
        with self._lock:
            return self._asked

    def _stop_if_asked(self) -> None:
        asked = self._is_asked()
        if asked is not None:
            raise _Stopped(asked[0], PAUSED if asked[0] == "paused" else "Cancelled.")

    def _state(self) -> SweepState:
        """With the lock."""
        done = sum(one.is_over for one in self._outcomes.values())
        elapsed_s = self._before_s + (time.monotonic() - self._began if self._ended_s is None else self._ended_s)
        is_running = self._status == "running"
        return SweepState(
            status=self._status, phase=self._phase, done=done, total=done + self._cells_left(), elapsed_s=elapsed_s,
            seconds_left=self._seconds_left() if is_running else None, sentence=self._sentence,
            running=tuple(key for flight in self._flights.values() for key in flight.keys) if is_running else (),
        )  # fmt: skip

    def _cells_left(self) -> int:
        return sum(self._left_of(series) for series in self._plan.series)

    def _left_of(self, series: Series) -> int:
        cells = self._series[series]
        pending = [cell for cell in cells if self._outcomes[cell.key].status == "pending"]
        if self._plan.budget is None:
            return len(pending)
        if self._status == "finished":
            return 0
        pairs = [(cell, self._outcomes[cell.key]) for cell in cells]
        given = sum("grid" not in cell.roles for cell in pending)
        return given + min(len(pending) - given, left_of(self._plan, pairs, frozenset()))

    def _seconds_left(self) -> float | None:
        """From what jobs of the same problem took a cell, of others where there was none; None until one is finished."""
        if not self._seconds:
            return None
        total = 0.0
        for series in self._plan.series:
            total += self._left_of(series) * self._seconds_a_cell(series.problem, "screening")
            if not self._is_interpreted:
                untimed = sum(self._outcomes[cell.key].final is not None for cell in self._series[series])
                finalists = max(0, self._plan.finalists + 2 * (self._plan.finalists > 0) - untimed)
                total += finalists * self._seconds_a_cell(series.problem, "full")
        return total / len(self._plan.devices)

    def _seconds_a_cell(self, problem: object, effort: Effort) -> float:
        found = self._seconds.get((problem, effort)) or [
            one for (_, other), some in self._seconds.items() if other == effort for one in some
        ]
        if found:
            return statistics.median(found)
        return _FULL_TO_SCREENING * self._seconds_a_cell(problem, "screening") if effort == "full" else 0.0


def _stamped(outcome: CellOutcome) -> CellOutcome:
    if not outcome.is_over:
        return outcome
    return outcome.model_copy(update={"finished_at": datetime.now(UTC).isoformat(timespec="milliseconds")})
