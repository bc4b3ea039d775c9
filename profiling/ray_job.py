"""What runs on a host of the cluster: its devices are asked for, and one job runs in a worker process of its own.

Called in Ray's process there, from a function that Ray carries over. A job's worker is our own, held by the lane that holds
it on one machine: what hangs, crashes or breaks its CUDA context is stopped by the same limits and said in the same words.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence

from pydantic import TypeAdapter

from profiling.lane import Lane, Limits
from profiling.queued_job import QueuedJob
from profiling.ray_messages import Began, Devices, HostDevice
from profiling.records import INTERPRETER, DeviceFacts, Job, Progress, Ready, Result

SECONDS_BETWEEN_LOOKS = 0.1
_host_devices: TypeAdapter[tuple[HostDevice, ...]] = TypeAdapter(tuple[HostDevice, ...])


def devices_here(
    found: Sequence[DeviceFacts], host: str, node_id: str, resources: dict[str, float], visible: str | None
) -> Devices:
    """The devices that a node of the cluster offers, of those found on its host.

    resources: Ray's, by name; GPU says how many it gives out, interpreter how many interpreters run side by side. visible:
    CUDA_VISIBLE_DEVICES as the node was started with, None where it was not set.
    """
    offered = [
        HostDevice(host=host, node_id=node_id, device=device, place=place)
        for place, device in enumerate(one for one in found if one.kind == "gpu")
        if visible is None or {device.id, str(place)} & set(visible.split(","))
    ][: int(resources.get("GPU", 0))]
    left_out = ()
    if len({one.model for one in offered}) > 1:
        names = ", ".join(dict.fromkeys(one.device.name for one in offered))
        left_out = (
            f"The GPUs of {host} are left out: they are of several models ({names}), and Ray gives out any of them. Start a "
            "Ray node for each model there, with CUDA_VISIBLE_DEVICES.",
        )
        offered = []
    interpreters = int(resources.get(INTERPRETER, 0))
    if interpreters:
        (facts,) = (one for one in found if one.kind == "interpreter")
        facts = facts.model_copy(update={"missing": {key: why for key, why in facts.missing.items() if key != "gpu"}})
        offered.append(HostDevice(host=host, node_id=node_id, device=facts, at_once=interpreters))
    return Devices(devices=tuple(offered), left_out=left_out)


def device_given(candidates: Sequence[HostDevice], node_id: str, visible: str | None) -> HostDevice:
    """Which of the candidates Ray gave to this task, by its CUDA_VISIBLE_DEVICES. Raises ValueError when it is none of them."""
    here = [one for one in candidates if one.node_id == node_id]
    for one in here:
        if one.device.kind == "interpreter" or visible in (one.device.id, str(one.place)):
            return one
    raise ValueError(f"Ray gave the GPU {visible}, which is none of {', '.join(one.device.id for one in here)}.")


def job_lines(
    job_json: str, candidates_json: str, node_id: str, worker: Sequence[str], limits: Sequence[float]
) -> Iterator[str]:
    """Run a job on the device given and yield its messages as they come: Began, Ready, Progress, and a Result a request.

    worker: the words after Python's own that start one, before the device's id. limits: those of Limits, in its order.
    However the generator ends, the worker is gone.
    """
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the order in which NVML counts, and so place
    given = device_given(_host_devices.validate_json(candidates_json), node_id, os.environ.get("CUDA_VISIBLE_DEVICES"))
    queued = QueuedJob(Job.model_validate_json(job_json), owner=given.host)
    queued.move_to(given.device.id)
    yield Began(job_id=queued.job_id, host=given.host, node_id=node_id, device_id=given.device.id).model_dump_json()
    changed = threading.Condition()
    command = (sys.executable, *worker, given.device.id)
    lane = Lane(given.device, command, Limits(*limits), changed, lambda *_: None)
    try:
        with changed:
            lane.add(queued)
        for message in _followed(queued, lane, changed):
            yield message.model_dump_json()
    finally:
        lane.close()


def _followed(queued: QueuedJob, lane: Lane, changed: threading.Condition) -> Iterator[Ready | Progress | Result]:
    told: set[int] = set()
    environment, progress, finished = None, None, False
    while not finished:
        with changed:
            changed.wait_for(lambda: queued.finished, SECONDS_BETWEEN_LOOKS)
            finished, latest, results, ready = queued.finished, queued.progress, list(queued.results), lane.environment
        if ready is not None and ready != environment:
            environment = ready
            yield Ready(environment=ready)
        if latest is not None and latest != progress:
            progress = latest
            yield latest
        for index, result in enumerate(results):
            if result is not None and index not in told:
                told.add(index)
                yield Result(job_id=queued.job_id, index=index, measurement=result)
