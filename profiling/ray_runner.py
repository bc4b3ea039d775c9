"""Jobs on a Ray cluster: placed by GPU model, a fresh worker each, and never repeated without saying so. Imports no Ray.

A job runs on any free device of the model that was asked for: Ray gives GPUs out by number, not by UUID. It then names the
one that it was given, and two models are never mixed. Each GPU has one job at a time, the others wait here, first come
first served. What a lost host leaves unanswered goes back to the front of the queue, and its results say so.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

from pydantic import ValidationError

from profiling.devices import interpreter_facts
from profiling.job_queue import JobQueue, JobView, forget_old
from profiling.lane import Limits
from profiling.queued_job import QueuedJob, environment_of_unready_worker
from profiling.ray_messages import Began, Devices, HostDevice, JobEnded, Place, Stop, Unreachable, from_cluster
from profiling.record_types import first_sentence
from profiling.records import (
    INTERPRETER,
    DeviceFacts,
    Effort,
    Environment,
    ErrorKind,
    Flag,
    Job,
    Progress,
    Ready,
    Result,
    RunRequest,
)
from profiling.worker_process import Ended, Garbled, WorkerProcess

MOST_LOSSES = 2
SECONDS_BETWEEN_ATTEMPTS = 30.0
SECONDS_TO_LEAVE = 20.0
REAL_WORKER = ("-m", "profiling.worker", "--device")


class RayRunner:
    """A Runner on the cluster at an address, which this machine is a node of; 'auto' is the one that was started here.

    The interpreter is that of the nodes that offer one (the custom resource `interpreter`), side by side, or this machine's
    own where none does. limits, discover, worker: a worker's time limits, which MODULE:FUNCTION finds a host's devices, and
    the words between Python and a device's id that start a worker. Safe to call from any thread.
    """

    def __init__(
        self,
        address: str,
        limits: Limits | None = None,
        discover: str = "profiling.devices:discover",
        worker: Sequence[str] = REAL_WORKER,
    ) -> None:
        self.address = address
        self._limits = limits = limits or Limits()
        seconds = ",".join(str(value) for value in (limits.ready_s, limits.compile_s, limits.phase_s, limits.job_s))
        self._command = (sys.executable, "-m", "profiling.ray_process", "--cluster", address, "--discover", discover,
                         "--limits", seconds, "--worker", *worker)  # fmt: skip
        self._changed = threading.Condition()
        self._problem: str | None = None
        self._jobs: OrderedDict[str, QueuedJob] = OrderedDict()
        self._waiting: list[QueuedJob] = []
        self._under_way: dict[str, tuple[HostDevice, ...]] = {}
        self._losses: dict[str, list[str]] = {}
        self._stopping: set[str] = set()
        self._devices: tuple[HostDevice, ...] = ()
        self._left_out: tuple[str, ...] = ()
        self._seen: dict[str, HostDevice] = {}
        self._environments: dict[str, Environment] = {}
        self._found = threading.Event()
        self._closed = False
        self._here: JobQueue | None = None
        self._process: WorkerProcess | None = None
        self._connect()
        atexit.register(self.close)

    @property
    def problem(self) -> str | None:
        """Why there is no cluster, in a sentence; None while there is one, or it is not yet known."""
        with self._changed:
            return self._problem

    @property
    def devices_ready(self) -> bool:
        """Whether devices() would answer at once."""
        return self._found.is_set()

    def devices(self) -> tuple[DeviceFacts, ...]:
        """The cluster's GPUs as they are now, then the interpreter, whose missing["gpu"] says why where there is no GPU."""
        self._found.wait()
        with self._changed:
            self._connect_again()
            devices = {one.device.id: one.device for one in self._devices}
            offered = devices.pop(INTERPRETER, None)
            if offered is None:
                return (*devices.values(), *self._own_queue().devices())
            missing = offered.missing if devices else {**offered.missing, "gpu": self._no_gpu()}
            return (*devices.values(), offered.model_copy(update={"missing": missing}))

    def environment(self, device_id: str) -> Environment | None:
        """What the device's worker said of itself when it last became ready; None while none has."""
        with self._changed:
            here = self._here
            if device_id in self._environments or here is None:
                return self._environments.get(device_id)
        return here.environment(device_id)

    def warm(self, device_id: str) -> None:
        """Nothing to make ready: every job starts a worker of its own. Raises ValueError for an unknown device."""
        self._require(device_id)

    def submit(self, requests: Sequence[RunRequest], owner: str, effort: Effort = "full") -> str:
        """Queue one job (requests on the same problem, device and seed) and return its id.

        Raises ValueError, in one sentence, when the requests do not fit together or there is no such device.
        """
        try:
            job = Job(job_id=uuid.uuid4().hex, requests=tuple(requests), effort=effort)
        except ValidationError as error:
            raise ValueError(first_sentence(error)) from None
        device_id = job.requests[0].device
        self._require(device_id)
        with self._changed:
            if self._closed:
                raise ValueError("The queue is closed: no more jobs are taken.")
            if all(one.device.id != device_id for one in self._devices):
                return self._own_queue().submit(requests, owner, effort)
            queued = QueuedJob(job, owner)
            self._jobs[job.job_id] = queued
            self._waiting.append(queued)
            forget_old(self._jobs)
            self._advance()
        return job.job_id

    def view(self, job_id: str) -> JobView:
        """The job as it is now. Raises KeyError when there is no such job, or it was forgotten."""
        with self._changed:
            if job_id in self._jobs or self._here is None:
                return self._view(self._jobs[job_id])
            here = self._here
        return here.view(job_id)

    def jobs(self, owner: str | None = None) -> tuple[JobView, ...]:
        """All jobs that are remembered, or one owner's, oldest first."""
        with self._changed:
            views = [self._view(job) for job in self._jobs.values() if owner in (None, job.owner)]
            views += self._here.jobs(owner) if self._here is not None else ()
        return tuple(sorted(views, key=lambda view: view.submitted_at))

    def wait(self, job_id: str, timeout_s: float | None = None) -> JobView:
        """Block until the job is finished, or timeout_s have passed, and return its view. Raises KeyError as view does."""
        with self._changed:
            if job_id in self._jobs or self._here is None:
                job = self._jobs[job_id]
                self._changed.wait_for(lambda: job.finished, timeout_s)
                return self._view(job)
            here = self._here
        return here.wait(job_id, timeout_s)

    def cancel(self, job_id: str) -> bool:
        """Take a waiting job out, or interrupt a running one; False when it was finished already.

        Results that had arrived are kept; the others say `cancelled`. Raises KeyError as view does.
        """
        with self._changed:
            if job_id not in self._jobs and self._here is not None:
                here = self._here
            else:
                job = self._jobs[job_id]
                if job.finished:
                    return False
                self._stop(job)
                return True
        return here.cancel(job_id)

    def close(self) -> None:
        """Interrupt every job and leave the cluster; unfinished jobs become cancelled. Idempotent."""
        with self._changed:
            self._closed = True
            process, here = self._process, self._here
            for job in tuple(self._waiting):
                self._stop(job)
            self._stopping |= set(self._under_way)
        if process is not None:
            process.end_input()
            process.join(SECONDS_TO_LEAVE)
            process.kill()
        with self._changed:
            self._process = None
            for job in self._jobs.values():
                if not job.finished:
                    self._finish_cancelled(job)
            self._found.set()
        if here is not None:
            here.close()
        atexit.unregister(self.close)

    # What follows is called with the lock.

    def _connect(self) -> None:
        self._attempted_at = time.monotonic()
        self._process = WorkerProcess("cluster", self._command, self._hear, from_cluster)

    def _connect_again(self) -> None:
        """A cluster that is away may come back: look for it now and then."""
        if self._process is None and not self._closed and time.monotonic() - self._attempted_at > SECONDS_BETWEEN_ATTEMPTS:
            self._connect()

    def _hear(self, process: WorkerProcess, event: object) -> None:
        """Called from a thread of the child's, without the lock."""
        with self._changed:
            if process is not self._process or (self._closed and not isinstance(event, JobEnded | Result)):
                return
            match event:
                case Devices():
                    self._take_devices(event)
                case Began() if event.job_id in self._under_way:
                    self._jobs[event.job_id].move_to(event.device_id, event.host)
                    self._jobs[event.job_id].start()
                case Ready():
                    self._environments[event.environment.device.id] = event.environment
                case Progress() if event.job_id in self._under_way:
                    self._jobs[event.job_id].progress = event
                case Result() if event.job_id in self._under_way:
                    self._take_result(event)
                case JobEnded() if event.job_id in self._under_way:
                    self._take_end(event)
                case Unreachable():
                    self._lose_cluster(self._without_token(process) or event.sentence)
                case Ended() | Garbled():
                    how = f"{event.sentence[0].lower()}{event.sentence[1:]}"
                    lost = f"The connection to the cluster {self.address} was lost: {how}."
                    self._lose_cluster(self._without_token(process) or lost, event.raw)
            self._advance()

    def _take_devices(self, event: Devices) -> None:
        self._problem, self._devices, self._left_out = None, event.devices, event.left_out
        self._seen |= {one.device.id: one for one in event.devices}
        self._forget_own_devices()
        for job_id, candidates in tuple(self._under_way.items()):
            job = self._jobs[job_id]
            gone = {one.node_id for one in candidates} - {one.node_id for one in self._devices}
            if job.state == "queued" and job_id not in self._stopping and {one.node_id for one in candidates} <= gone:
                self._send(Stop(job_id=job_id))  # Ray would keep it for a host that never comes back
        self._found.set()

    def _take_result(self, event: Result) -> None:
        job, measurement = self._jobs[event.job_id], event.measurement
        if not 0 <= event.index < len(job.requests) or measurement.request != job.requests[event.index]:
            return  # fail_rest will say that there is no result
        losses = self._losses.get(job.job_id)
        if losses:
            measurement = measurement.model_copy(update={"flags": (*measurement.flags, _run_again(losses))})
        job.results[event.index] = measurement

    def _take_end(self, event: JobEnded) -> None:
        job = self._jobs[event.job_id]
        del self._under_way[job.job_id]
        self._devices = tuple(one for one in self._devices if one.node_id != event.lost_node_id)
        if job.job_id in self._stopping and event.how != "done":
            self._finish_cancelled(job)
        elif event.how == "done" or all(result is not None for result in job.results):
            self._fail_rest(job, "crashed", "The worker ended the job without a result for this request.")
            self._finish(job, "done")
        elif event.how == "failed":
            self._fail_rest(job, "crashed", event.sentence)
            self._finish(job, "done")
        elif job.state == "queued" and event.how == "cancelled":  # its hosts had gone before it began: nothing was lost
            self._wait_again(job)
        else:
            losses = self._losses.setdefault(job.job_id, [])
            losses.append(event.sentence or "The host that ran it was lost")
            if len(losses) <= MOST_LOSSES:
                self._wait_again(job)
            else:
                times = f"{losses[-1]}, as at each of the {len(losses)} times that it was tried; it is not tried again."
                self._fail_rest(job, "crashed", times)
                self._finish(job, "done")

    def _wait_again(self, job: QueuedJob) -> None:
        job.wait_again()
        self._waiting.insert(0, job)

    def _lose_cluster(self, sentence: str, raw: str = "") -> None:
        if self._process is not None:
            self._process.kill()
        self._problem, self._process, self._devices, self._left_out = sentence, None, (), ()
        self._attempted_at = time.monotonic()
        self._forget_own_devices()
        self._under_way.clear()
        self._waiting.clear()
        for job in self._jobs.values():
            if not job.finished:
                self._fail_rest(job, "crashed", sentence, raw)
                self._finish(job, "done")
        self._found.set()

    def _without_token(self, process: WorkerProcess) -> str | None:
        """A sentence when the cluster refused the token, which Ray itself tells only its log."""
        if "InvalidAuthToken" not in process.stderr_tail():
            return None
        return f"cluster = {self.address} does not take this machine's token: it has to be the head's ~/.ray/auth_token."

    def _advance(self) -> None:
        """Place waiting jobs, the oldest first, while a device of their model is free; fail those that have none left."""
        for job in () if self._closed else tuple(self._waiting):
            model = self._seen[job.device].model
            devices = tuple(one for one in self._devices if one.model == model)
            if not devices:
                self._waiting.remove(job)
                name = self._seen[job.device].device.name
                why = f" {losses[-1]}." if (losses := self._losses.get(job.job_id)) else ""
                self._fail_rest(job, "crashed", f"No {name} is left in the cluster.{why}")
                self._finish(job, "done")
            elif self._busy(model) < sum(one.at_once for one in devices):
                self._waiting.remove(job)
                self._under_way[job.job_id] = devices
                self._send(Place(job=job.job, devices=devices))

    def _busy(self, model: tuple[object, ...]) -> int:
        return sum(devices[0].model == model for devices in self._under_way.values())

    def _send(self, message: Place | Stop) -> None:
        if self._process is not None:
            self._process.write(message.model_dump_json())

    def _stop(self, job: QueuedJob) -> None:
        if job in self._waiting:
            self._waiting.remove(job)
            self._finish_cancelled(job)
        else:
            self._stopping.add(job.job_id)
            self._send(Stop(job_id=job.job_id))

    def _finish_cancelled(self, job: QueuedJob) -> None:
        where = "ran" if job.state == "running" else "waited"
        self._fail_rest(job, "cancelled", f"Cancelled while it {where}.")
        self._finish(job, "cancelled")

    def _finish(self, job: QueuedJob, state: Literal["done", "cancelled"]) -> None:
        job.finish(state)
        self._losses.pop(job.job_id, None)
        self._stopping.discard(job.job_id)
        self._changed.notify_all()

    def _fail_rest(self, job: QueuedJob, kind: ErrorKind, sentence: str, raw: str = "") -> None:
        environment = self._environments.get(job.device) or environment_of_unready_worker(self._seen[job.device].device)
        job.fail_rest(environment, kind, sentence, raw)

    def _require(self, device_id: str) -> None:
        """Raises ValueError for a device that is not there; called without the lock."""
        ids = [device.id for device in self.devices()]
        if device_id not in ids:
            raise ValueError(f"device = {device_id} is not here: it can be {', '.join(ids)}.")

    def _own_queue(self) -> JobQueue:
        """This machine's interpreter, for when the cluster offers none."""
        if self._here is None:
            facts = interpreter_facts(None if any(one.device.kind == "gpu" for one in self._devices) else self._no_gpu())
            self._here = JobQueue(lambda: (facts,), limits=self._limits)
        return self._here

    def _no_gpu(self) -> str:
        return self._problem or " ".join(self._left_out) or f"The cluster {self.address} has no GPU."

    def _forget_own_devices(self) -> None:
        """The reason why there is no GPU may be another one now; a queue that was used stays, with its jobs."""
        if self._here is not None and not self._here.jobs():
            self._here.close()
            self._here = None

    def _view(self, job: QueuedJob) -> JobView:
        model = self._seen[job.device].model
        running = [self._jobs[job_id] for job_id, devices in self._under_way.items() if devices[0].model == model]
        same = [one for one in self._waiting if self._seen[one.device].model == model]
        ahead = same.index(job) + bool(running) if job in same else 0
        front = job if job in running else next(iter(running), None)
        return JobView(
            job_id=job.job_id,
            owner=job.owner,
            device=job.device,
            title=job.title,
            state=job.state,
            position=None if job.finished else ahead + 1,
            jobs_ahead=ahead,
            running_title=front.title if front and not job.finished else None,
            running_owner=front.owner if front and not job.finished else None,
            progress=job.progress,
            elapsed_s=job.elapsed_s,
            estimated_wait_s=0.0 if job.state == "running" else None,  # others may use the cluster too
            requests=job.requests,
            results=tuple(job.results),
            submitted_at=job.submitted_at,
            finished_at=job.finished_at,
            host=job.host,
        )


def _run_again(losses: Sequence[str]) -> Flag:
    times = "once" if len(losses) == 1 else f"{len(losses)} times"
    return Flag(
        name="run again",
        severity="info",
        short=f"run again {times}",
        sentence=f"{losses[-1]}; nothing of that run was kept, and the whole job was run again ({times}).",
    )
