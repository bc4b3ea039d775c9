"""A job on its way through the queue: its state, its results, and the answers written for it when no worker can."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Literal

from profiling.direction import title_part
from profiling.records import DeviceFacts, Environment, ErrorKind, Job, JobError, Measurement, Progress

JobState = Literal["queued", "running", "done", "cancelled"]


class QueuedJob:
    """A job and where it stands; not locked by itself. kind: what jobs share that should take equally long."""

    def __init__(self, job: Job, owner: str) -> None:
        self.job, self.owner = job, owner
        self.job_id, self.requests, self.device = job.job_id, job.requests, job.requests[0].device
        first, names = job.requests[0], ", ".join(request.kernel for request in job.requests)
        self.title = " · ".join((names, *title_part(first), first.problem.title))
        alike = ((r.kernel, r.problem, r.precision, r.probes, r.direction) for r in job.requests)
        self.kind = (self.device, *alike, job.effort)
        self.state: JobState = "queued"
        self.progress: Progress | None = None
        self.results: list[Measurement | None] = [None] * len(job.requests)
        self.submitted_at = _now()
        self.started_at: str | None = None
        self.finished_at: str | None = None
        self.host: str | None = None
        self._started = self._ended = 0.0

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self.state in ("done", "cancelled")

    @property
    def elapsed_s(self) -> float:
        """Seconds since it left the queue, until it finished; 0 before."""
        if self.started_at is None:
            return 0.0
        return (self._ended if self.finished else time.monotonic()) - self._started

    def start(self) -> None:
        """It leaves the queue."""
        self.state, self.started_at, self._started = "running", _now(), time.monotonic()
        self.progress = Progress(job_id=self.job_id, phase="starting", text="Starting the worker")

    def move_to(self, device_id: str, host: str | None = None) -> None:
        """It runs on this device, whichever was asked for; its requests, and so its results, name this one."""
        requests = tuple(request.model_copy(update={"device": device_id}) for request in self.requests)
        self.job = self.job.model_copy(update={"requests": requests})
        self.requests, self.device, self.host = requests, device_id, host

    def wait_again(self) -> None:
        """It is back in the queue, to be run from its beginning: results of a run that was cut short are not kept."""
        self.state, self.started_at, self.progress, self.host = "queued", None, None, None
        self.results = [None] * len(self.requests)

    def finish(self, state: Literal["done", "cancelled"]) -> None:
        """Nothing more will come."""
        self.state, self.finished_at, self._ended, self.progress = state, _now(), time.monotonic(), None

    def fail_rest(self, environment: Environment, kind: ErrorKind, sentence: str, raw: str = "") -> None:
        """Answer every request that has no result yet with this error; results that had arrived stay."""
        for index, request in enumerate(self.requests):
            if self.results[index] is None:
                self.results[index] = Measurement(
                    request=request,
                    tiles=request.tiles,
                    environment=environment,
                    started_at=self.started_at or self.submitted_at,
                    duration_s=self.elapsed_s,
                    error=JobError(kind=kind, sentence=sentence, raw=raw),
                )


def environment_of_unready_worker(device: DeviceFacts) -> Environment:
    """What is known of a device whose worker never became ready."""
    reason = "the worker never became ready to tell"
    unknown = ("python_version", "torch_version", "triton_version", "cuda_version", "driver_version", "commit")
    return Environment(
        device=device,
        python_version="unknown",
        torch_version="unknown",
        triton_version=None,
        cuda_version=None,
        driver_version=None,
        commit=None,
        missing=dict.fromkeys(unknown, reason),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
