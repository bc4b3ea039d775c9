"""What the runner, its child in the cluster, and a job on a host say to each other: JSON, a line each. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from kernels.problem import Frozen
from profiling.records import DeviceFacts, Job, Progress, Ready, Result


class HostDevice(Frozen):
    """A device and where it is. place: its number in NVML's list of that host. at_once: jobs that it runs side by side."""

    host: str
    node_id: str
    device: DeviceFacts
    place: int = 0
    at_once: int = 1

    @property
    def model(self) -> tuple[object, ...]:
        """What devices share that a job may be moved between: they are never mixed with any other."""
        return self.device.kind, self.device.name, self.device.capability, self.device.memory_bytes


class Devices(Frozen):
    """All devices of the cluster as they are now, and a sentence for each host that is left out."""

    type: Literal["devices"] = "devices"
    devices: tuple[HostDevice, ...]
    left_out: tuple[str, ...] = ()


class Place(Frozen):
    """Run a job on whichever of these devices is free; they are all of one model."""

    type: Literal["place"] = "place"
    job: Job
    devices: Annotated[tuple[HostDevice, ...], Field(min_length=1)]


class Stop(Frozen):
    """Take a job back, whether it runs or still waits for a device."""

    type: Literal["stop"] = "stop"
    job_id: str


class Began(Frozen):
    """A job has its device, and its worker starts there."""

    type: Literal["began"] = "began"
    job_id: str
    host: str
    node_id: str
    device_id: str


class JobEnded(Frozen):
    """Nothing more comes of a job.

    sentence: why it was lost with its host or process, or failed before it had a worker. lost_node_id: the node that is gone.
    """

    type: Literal["job_ended"] = "job_ended"
    job_id: str
    how: Literal["done", "cancelled", "lost", "failed"]
    sentence: str = ""
    lost_node_id: str = ""


class Unreachable(Frozen):
    """There is no cluster to be had."""

    type: Literal["unreachable"] = "unreachable"
    sentence: str


Order = Annotated[Place | Stop, Field(discriminator="type")]
FromCluster = Annotated[Devices | Began | JobEnded | Unreachable | Ready | Progress | Result, Field(discriminator="type")]
order: TypeAdapter[Order] = TypeAdapter(Order)
from_cluster: TypeAdapter[FromCluster] = TypeAdapter(FromCluster)
