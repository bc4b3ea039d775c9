"""The queue in front of the workers: one lane a device, shared by all sessions. Imports neither torch nor Triton."""

from __future__ import annotations

import atexit
import statistics
import threading
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pydantic import ValidationError

from profiling.devices import discover
from profiling.lane import Lane, Limits
from profiling.queued_job import JobState, QueuedJob
from profiling.record_types import first_sentence
from profiling.records import DeviceFacts, Effort, Environment, Job, Measurement, Progress, RunRequest
from profiling.worker_process import worker_command

REMEMBERED_FINISHED_JOBS = 200
REMEMBERED_SCREENINGS = 100
REMEMBERED_DURATIONS = 5
REMEMBERED_KINDS = 500


@dataclass(frozen=True)
class JobView:
    """A job at one moment. A failed job is `done` too: each of its results then says why, in `error`.

    position: 1 is the job in front, which may be running; None once finished. running_title, running_owner: the job in
    front of this one, or this one itself while it runs; None when nothing runs. progress: the worker's last word while
    running; its phase is `starting` until the worker is ready. elapsed_s: since the job left the queue, 0 before.
    estimated_wait_s: until this job starts, from measured durations of jobs of the same kind; None when one is unknown.
    results: one place a request, in order, filled as they arrive; none is None once the job is finished.
    submitted_at, finished_at: ISO 8601, UTC. host: the machine that it runs or ran on, of a cluster; None on this one.
    """

    job_id: str
    owner: str
    device: str
    title: str
    state: JobState
    position: int | None
    jobs_ahead: int
    running_title: str | None
    running_owner: str | None
    progress: Progress | None
    elapsed_s: float
    estimated_wait_s: float | None
    requests: tuple[RunRequest, ...]
    results: tuple[Measurement | None, ...]
    submitted_at: str
    finished_at: str | None
    host: str | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing more will come: done or cancelled."""
        return self.state in ("done", "cancelled")


class JobQueue:
    """Jobs of all sessions, first come first served on each device, devices in parallel; a worker process a device.

    devices: finds the devices; called once, in a background thread. command: the worker's command line for a device id
    (over ssh, say). limits: when a worker counts as hung. Safe to call from any thread; only wait() waits for a job.
    """

    def __init__(
        self,
        devices: Callable[[], tuple[DeviceFacts, ...]] = discover,
        command: Callable[[str], Sequence[str]] = worker_command,
        limits: Limits | None = None,
    ) -> None:
        self._command = command
        self._limits = limits or Limits()
        self._changed = threading.Condition()
        self._jobs: OrderedDict[str, QueuedJob] = OrderedDict()
        self._lanes: dict[str, Lane] = {}
        self._durations: OrderedDict[tuple, deque[float]] = OrderedDict()
        self._closed = False
        discovery = ThreadPoolExecutor(1, "discovery")
        self._found = discovery.submit(devices)
        discovery.shutdown(wait=False)
        atexit.register(self.close)

    @property
    def devices_ready(self) -> bool:
        """Whether devices() would answer at once."""
        return self._found.done()

    def devices(self) -> tuple[DeviceFacts, ...]:
        """The devices here, GPUs first, the interpreter last; waits for the discovery, at most once."""
        return self._found.result()

    def environment(self, device_id: str) -> Environment | None:
        """What the device's worker said of itself when it became ready; None while none has."""
        with self._changed:
            lane = self._lanes.get(device_id)
            return lane.environment if lane else None

    def warm(self, device_id: str) -> None:
        """Start the device's worker ahead of its first job; returns at once. Raises ValueError for an unknown device."""
        device = self._device(device_id)
        with self._changed:
            if not self._closed:
                self._lane(device).warm()

    def submit(self, requests: Sequence[RunRequest], owner: str, effort: Effort = "full") -> str:
        """Queue one job (requests on the same problem, device and seed), timed fully or briefly, and return its id.

        Raises ValueError, in one sentence, when the requests do not fit together or the device is not here.
        """
        try:
            job = Job(job_id=uuid.uuid4().hex, requests=tuple(requests), effort=effort)
        except ValidationError as error:
            raise ValueError(first_sentence(error)) from None
        device = self._device(job.requests[0].device)
        with self._changed:
            if self._closed:
                raise ValueError("The queue is closed: no more jobs are taken.")
            queued = QueuedJob(job, owner)
            self._jobs[job.job_id] = queued
            self._lane(device).add(queued)
            forget_old(self._jobs)
        return job.job_id

    def view(self, job_id: str) -> JobView:
        """The job as it is now. Raises KeyError when there is no such job, or it was forgotten."""
        with self._changed:
            return self._view(self._jobs[job_id])

    def jobs(self, owner: str | None = None) -> tuple[JobView, ...]:
        """All jobs that are remembered, or one owner's, oldest first."""
        with self._changed:
            return tuple(self._view(job) for job in self._jobs.values() if owner in (None, job.owner))

    def wait(self, job_id: str, timeout_s: float | None = None) -> JobView:
        """Block until the job is finished, or timeout_s have passed, and return its view. Raises KeyError as view does."""
        with self._changed:
            job = self._jobs[job_id]
            self._changed.wait_for(lambda: job.finished, timeout_s)
            return self._view(job)

    def cancel(self, job_id: str) -> bool:
        """Take a queued job out, or kill the worker of a running one; False when it was finished already.

        Results that had arrived are kept; the others say `cancelled`. Raises KeyError as view does.
        """
        with self._changed:
            job = self._jobs[job_id]
            if job.finished:
                return False
            self._lanes[job.device].cancel(job)
            return True

    def close(self) -> None:
        """Kill every worker with its process group and end the lanes; unfinished jobs become cancelled. Idempotent."""
        with self._changed:
            self._closed = True
            lanes = tuple(self._lanes.values())
        for lane in lanes:
            lane.close()
        atexit.unregister(self.close)

    def _device(self, device_id: str) -> DeviceFacts:
        for device in self.devices():
            if device.id == device_id:
                return device
        raise ValueError(f"device = {device_id} is not here: it can be {', '.join(device.id for device in self.devices())}.")

    def _lane(self, device: DeviceFacts) -> Lane:
        if device.id not in self._lanes:
            command = tuple(self._command(device.id))
            self._lanes[device.id] = Lane(device, command, self._limits, self._changed, self._remember_duration)
        return self._lanes[device.id]

    def _remember_duration(self, job: QueuedJob, seconds: float) -> None:
        self._durations.setdefault(job.kind, deque(maxlen=REMEMBERED_DURATIONS)).append(seconds)
        self._durations.move_to_end(job.kind)
        if len(self._durations) > REMEMBERED_KINDS:
            self._durations.popitem(last=False)

    def _view(self, job: QueuedJob) -> JobView:
        ahead = self._lanes[job.device].ahead_of(job)
        running = self._lanes[job.device].running
        return JobView(
            job_id=job.job_id,
            owner=job.owner,
            device=job.device,
            title=job.title,
            state=job.state,
            position=None if job.finished else len(ahead) + 1,
            jobs_ahead=len(ahead),
            running_title=running.title if running and not job.finished else None,
            running_owner=running.owner if running and not job.finished else None,
            progress=job.progress,
            elapsed_s=job.elapsed_s,
            estimated_wait_s=self._estimated_wait_s(ahead),
            requests=job.requests,
            results=tuple(job.results),
            submitted_at=job.submitted_at,
            finished_at=job.finished_at,
        )

    def _estimated_wait_s(self, ahead: Sequence[QueuedJob]) -> float | None:
        total = 0.0
        for job in ahead:
            if job.kind not in self._durations:
                return None
            total += max(0.0, statistics.median(self._durations[job.kind]) - job.elapsed_s)
        return total


def forget_old(jobs: OrderedDict[str, QueuedJob]) -> None:
    """Drop the oldest finished jobs. A sweep has hundreds of brief ones: they must not push out what somebody may look at."""
    for effort, most in (("full", REMEMBERED_FINISHED_JOBS), ("screening", REMEMBERED_SCREENINGS)):
        finished = [job_id for job_id, job in jobs.items() if job.finished and job.job.effort == effort]
        for job_id in finished[:-most]:
            del jobs[job_id]
