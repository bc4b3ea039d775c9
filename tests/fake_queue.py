"""A queue for tests of the page: it holds jobs in whatever state a test puts them, and runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from profiling.job_queue import JobView
from profiling.records import DeviceFacts, Environment, JobError, Measurement, Progress, RunRequest


class FakeQueue:
    """The part of JobQueue that the app calls, with every answer settable."""

    def __init__(self, devices: tuple[DeviceFacts, ...], ready: bool = True) -> None:
        self._devices, self.devices_ready = devices, ready
        self.views: dict[str, JobView] = {}
        self.submitted: list[tuple[RunRequest, ...]] = []
        self.warmed: list[str] = []

    def devices(self) -> tuple[DeviceFacts, ...]:
        return self._devices

    def environment(self, device_id: str) -> Environment | None:
        return None

    def warm(self, device_id: str) -> None:
        self.warmed.append(device_id)

    def submit(self, requests: Sequence[RunRequest], owner: str) -> str:
        self.submitted.append(tuple(requests))
        return self.put(f"job{len(self.submitted)}", requests, owner=owner).job_id

    def put(self, job_id: str, requests: Sequence[RunRequest], owner: str = "me", **changes: object) -> JobView:
        """Place a job, queued unless `changes` say otherwise."""
        view = JobView(
            job_id=job_id,
            owner=owner,
            device=requests[0].device,
            title=f"{requests[0].kernel} · {requests[0].problem.title}",
            state="queued",
            position=1,
            jobs_ahead=0,
            running_title=None,
            running_owner=None,
            progress=None,
            elapsed_s=0.0,
            estimated_wait_s=None,
            requests=tuple(requests),
            results=(None,) * len(requests),
            submitted_at="2026-11-29T13:05:00+00:00",
            finished_at=None,
        )
        self.views[job_id] = replace(view, **changes)
        return self.views[job_id]

    def finish(self, job_id: str, *results: Measurement) -> None:
        """End a job with these results."""
        self.views[job_id] = replace(
            self.views[job_id], state="done", position=None, results=results, finished_at="2026-11-29T13:06:00+00:00"
        )

    def run(self, job_id: str, progress: Progress | None, elapsed_s: float = 3.0) -> None:
        """Let a job run."""
        self.views[job_id] = replace(self.views[job_id], state="running", position=1, progress=progress, elapsed_s=elapsed_s)

    def view(self, job_id: str) -> JobView:
        return self.views[job_id]

    def jobs(self, owner: str | None = None) -> tuple[JobView, ...]:
        return tuple(view for view in self.views.values() if owner is None or view.owner == owner)

    def cancel(self, job_id: str) -> bool:
        error = JobError(kind="cancelled", sentence="The job was cancelled.")
        view = self.views[job_id]
        results = tuple(result_of(request, self._devices[-1], error) for request in view.requests)
        self.views[job_id] = replace(view, state="cancelled", position=None, results=results, finished_at=view.submitted_at)
        return True


def result_of(request: RunRequest, device: DeviceFacts, error: JobError) -> Measurement:
    """A measurement that is only an error."""
    from tests.records_for_tests import environment

    return Measurement(
        request=request,
        tiles=request.tiles,
        environment=environment(device),
        started_at="2026-11-29T13:05:00+00:00",
        duration_s=0.0,
        error=error,
    )
