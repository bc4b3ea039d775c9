"""One device's lane: its waiting jobs, its worker, and what happens when that worker dies, hangs or speaks nonsense."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from profiling.queued_job import QueuedJob, environment_of_unready_worker
from profiling.records import DeviceFacts, Done, Environment, ErrorKind, Progress, Ready, Result
from profiling.worker_process import Ended, Event, Garbled, WorkerProcess

SECONDS_TO_DIE = 10.0
NEVER_READY = "before it was ready."
"""How the sentence of a job ends whose worker did not come so far as to be given it."""


@dataclass(frozen=True)
class Limits:
    """Seconds until a worker counts as hung and is killed.

    ready_s: from its start to its `ready` line, which is not job time. compile_s and phase_s: within a job, from
    one line of the worker to the next, in the phase that it named last. job_s: the whole job.
    """

    ready_s: float = 120.0
    compile_s: float = 120.0
    phase_s: float = 60.0
    job_s: float = 300.0

    def of_phase(self, phase: str) -> float:
        """Seconds that a worker may be silent in a phase."""
        return self.compile_s if phase == "compile" else self.phase_s


@dataclass(frozen=True)
class _Wake:
    """Something was added: look again."""


@dataclass(frozen=True)
class _Cancel:
    job_id: str


@dataclass(frozen=True)
class _Close:
    """A lane's last event."""


class Lane:
    """Runs a device's jobs one after the other, in a thread that does nothing but react to events.

    changed is the queue's lock: hold it while reading `running` and `environment` and when calling anything but close();
    it is notified when a job finishes. measured(job, seconds) is called, with the lock, for each job without an error.
    """

    def __init__(
        self,
        device: DeviceFacts,
        command: Sequence[str],
        limits: Limits,
        changed: threading.Condition,
        measured: Callable[[QueuedJob, float], None],
    ) -> None:
        self.environment: Environment | None = None
        self.running: QueuedJob | None = None
        self._device, self._command, self._limits, self._changed, self._measured = device, command, limits, changed, measured
        self._waiting: deque[QueuedJob] = deque()
        self._events: queue.SimpleQueue[tuple[WorkerProcess | None, Event | _Wake | _Cancel | _Close]] = queue.SimpleQueue()
        self._wanted = False
        # what follows belongs to the lane's thread alone
        self._worker: WorkerProcess | None = None
        self._worker_since = 0.0
        self._ready = self._sent = False
        self._sent_at = self._moved_at = 0.0
        self._thread = threading.Thread(target=self._react, name=f"lane {device.id}", daemon=True)
        self._thread.start()

    def add(self, job: QueuedJob) -> None:
        """Put a job at the end."""
        self._waiting.append(job)
        self._events.put((None, _Wake()))

    def warm(self) -> None:
        """Start the worker now, so that the first job need not wait for it."""
        self._wanted = True
        self._events.put((None, _Wake()))

    def cancel(self, job: QueuedJob) -> None:
        """Take a waiting job out now, or have the running one's worker killed soon."""
        if job in self._waiting:
            self._waiting.remove(job)
            self._finish_cancelled(job)
        else:
            self._events.put((None, _Cancel(job.job_id)))

    def ahead_of(self, job: QueuedJob) -> tuple[QueuedJob, ...]:
        """The jobs that must finish before this one starts, the running one first."""
        if job not in self._waiting:
            return ()
        before = tuple(self._waiting)[: self._waiting.index(job)]
        return (self.running, *before) if self.running else before

    def close(self) -> None:
        """Kill the worker, cancel what is unfinished, end the thread. Call it without the lock."""
        self._events.put((None, _Close()))
        self._thread.join(2 * SECONDS_TO_DIE)

    def _react(self) -> None:
        while True:
            try:
                source, event = self._events.get(timeout=self._seconds_left())
            except queue.Empty:
                self._stop_hung_worker()
            else:
                if isinstance(event, _Close):
                    break
                if source is None or source is self._worker:  # a replaced worker's last words are nobody's
                    self._handle(event)
            self._advance()
        self._kill_worker()
        with self._changed:
            for job in (self.running, *self._waiting):
                if job is not None:
                    self._finish_cancelled(job)
            self.running = None
            self._waiting.clear()

    def _handle(self, event: Event | _Wake | _Cancel) -> None:
        match event:
            case Ready():
                self._take_ready(event)
            case Progress() | Result() | Done() if not self._sent or event.job_id != self.running.job_id:
                self._fail("crashed", "The worker answered for a job that it was not given, and was replaced.", event.job_id)
            case Progress():
                self._take_progress(event)
            case Result():
                self._take_result(event)
            case Done():
                self._take_done(event)
            case Garbled():
                self._fail("crashed", f"{event.sentence}, and was replaced.", event.raw)
            case Ended():
                when = "in the middle of the job." if self._ready else NEVER_READY
                self._fail("crashed", f"{event.sentence} {when}", event.raw)
            case _Cancel() if self.running is not None and event.job_id == self.running.job_id:
                self._fail("cancelled", "Cancelled while it ran.")

    def _advance(self) -> None:
        """Take the next job when none runs; start the worker when one is wanted; send the job when it is ready."""
        with self._changed:
            if self.running is None and self._waiting:
                self.running = self._waiting.popleft()
                self.running.start()
            wanted, self._wanted = self._wanted, False
        if self._worker is None and (self.running is not None or wanted):
            self._start_worker()
        if self._ready and self.running is not None and not self._sent:
            self._sent, self._sent_at = True, time.monotonic()
            self._moved_at = self._sent_at
            self._worker.write(self.running.job.model_dump_json())

    def _start_worker(self) -> None:
        self._worker_since, self._ready = time.monotonic(), False
        try:
            self._worker = WorkerProcess(
                self._device.id, self._command, lambda worker, event: self._events.put((worker, event))
            )
        except OSError as error:
            self._fail("crashed", f"The worker could not be started: {error}.")

    def _kill_worker(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker.join(SECONDS_TO_DIE)  # its memory on the device must be free before the next one starts
        self._worker, self._ready, self._sent = None, False, False

    def _take_ready(self, event: Ready) -> None:
        if event.environment.device.id != self._device.id:
            self._fail(
                "crashed", f"The worker runs on {event.environment.device.id}, not on {self._device.id}, and was stopped."
            )
            return
        self._ready = True
        with self._changed:
            self.environment = event.environment

    def _take_progress(self, event: Progress) -> None:
        self._moved_at = time.monotonic()
        with self._changed:
            self.running.progress = event
        if time.monotonic() - self._sent_at > self._limits.job_s:
            self._stop_hung_worker()

    def _take_result(self, event: Result) -> None:
        job = self.running
        if not 0 <= event.index < len(job.requests) or event.measurement.request != job.requests[event.index]:
            self._fail(
                "crashed", f"The worker answered a request that it was not given (number {event.index}), and was replaced."
            )
            return
        self._moved_at = time.monotonic()
        with self._changed:
            job.results[event.index] = event.measurement

    def _take_done(self, event: Done) -> None:
        with self._changed:
            job, self.running, self._sent = self.running, None, False
            job.fail_rest(self._environment(), "crashed", "The worker ended the job without a result for this request.")
            job.finish("done")
            if all(result.error is None for result in job.results):
                self._measured(job, time.monotonic() - self._sent_at)
            self._wanted = self._wanted or not event.healthy
            self._changed.notify_all()
        if not event.healthy:
            self._kill_worker()

    def _seconds_left(self) -> float | None:
        now = time.monotonic()
        if self._worker is not None and not self._ready:
            return max(0.0, self._worker_since + self._limits.ready_s - now)
        if not self._sent:
            return None
        phase_end = self._moved_at + self._limits.of_phase(self.running.progress.phase)
        return max(0.0, min(phase_end, self._sent_at + self._limits.job_s) - now)

    def _stop_hung_worker(self) -> None:
        if not self._ready:
            limit = self._limits.ready_s
            self._fail("timeout", f"The worker was not ready within {limit:g} s, its limit, and was stopped.")
            return
        phase = self.running.progress.phase
        if time.monotonic() - self._sent_at >= self._limits.job_s:
            sentence = f"The job took more than {self._limits.job_s:g} s, its limit; it was stopped in the {phase} phase."
        else:
            sentence = f"The {phase} phase did not move on for {self._limits.of_phase(phase):g} s, its limit, and was stopped."
        self._fail("timeout", sentence)

    def _fail(self, kind: ErrorKind, sentence: str, raw: str = "") -> None:
        """Kill the worker, give the running job this error, and start another if this one had been ready for it."""
        raw = raw or (self._worker.stderr_tail() if self._worker else "")
        replace = self._ready
        self._kill_worker()
        with self._changed:
            job, self.running = self.running, None
            self._wanted = self._wanted or (replace and job is not None)
            if job is not None:
                job.fail_rest(self._environment(), kind, sentence, raw)
                job.finish("cancelled" if kind == "cancelled" else "done")
                self._changed.notify_all()
        self._events.put((None, _Wake()))

    def _finish_cancelled(self, job: QueuedJob) -> None:
        where = "ran" if job.state == "running" else "waited"
        job.fail_rest(self._environment(), "cancelled", f"Cancelled while it {where}.")
        job.finish("cancelled")
        self._changed.notify_all()

    def _environment(self) -> Environment:
        return self.environment or environment_of_unready_worker(self._device)
