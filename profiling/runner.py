"""Where jobs run: what the local queue and a cluster have in common, and which of the two is asked for.

Imports neither torch nor Triton, and Ray never: a cluster is spoken to by a child process.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from profiling.job_queue import JobQueue, JobView
from profiling.ray_runner import RayRunner
from profiling.records import DeviceFacts, Effort, Environment, RunRequest
from profiling.terminal import BadInput

CLUSTER_VARIABLE = "FLASHSCOPE_CLUSTER"


@runtime_checkable
class Runner(Protocol):
    """Jobs of all sessions on all devices that it reaches: JobQueue on this machine, RayRunner on a cluster.

    Every method may be called from any thread, and only wait(), devices() and close() take time. A device is named by its id
    everywhere: 'interpreter', or a GPU's UUID, which no other host has. On a cluster a job runs on any free device of the
    model asked for, never on another model: the view's `device` and `requests`, and with them each result's request, then
    name the device that it was given. So find results by job id and place, not by the request that was submitted. Jobs of one
    device wait for each other; keep two a device under way, so that none is idle between them.
    """

    @property
    def devices_ready(self) -> bool:
        """Whether devices() would answer at once."""

    def devices(self) -> tuple[DeviceFacts, ...]:
        """The devices that can be had now, GPUs first; waits until they are found, at most once."""

    def environment(self, device_id: str) -> Environment | None:
        """What the device's worker said of itself when it last became ready; None while none has."""

    def warm(self, device_id: str) -> None:
        """Make ready for the device's first job; returns at once. Raises ValueError for an unknown device."""

    def submit(self, requests: Sequence[RunRequest], owner: str, effort: Effort = "full") -> str:
        """Queue one job (requests on the same problem, device and seed), timed fully or briefly, and return its id.

        Raises ValueError, in one sentence, when the requests do not fit together or there is no such device.
        """

    def view(self, job_id: str) -> JobView:
        """The job as it is now. Raises KeyError when there is no such job, or it was forgotten."""

    def jobs(self, owner: str | None = None) -> tuple[JobView, ...]:
        """All jobs that are remembered, or one owner's, oldest first."""

    def wait(self, job_id: str, timeout_s: float | None = None) -> JobView:
        """Block until the job is finished, or timeout_s have passed, and return its view. Raises KeyError as view does."""

    def cancel(self, job_id: str) -> bool:
        """Take a waiting job out, or stop a running one; False when it was finished already. Raises KeyError as view does.

        Results that had arrived are kept; the others say `cancelled`.
        """

    def close(self) -> None:
        """Stop every worker; unfinished jobs become cancelled. Idempotent."""


def runner_at(cluster: str | None = None) -> Runner:
    """The runner on the Ray cluster of an address, or of FLASHSCOPE_CLUSTER; without either, this machine's queue."""
    address = cluster or os.environ.get(CLUSTER_VARIABLE)
    return RayRunner(address) if address else JobQueue()


def add_cluster_option(parser: argparse.ArgumentParser) -> None:
    """Give a parser the option that runner_from reads."""
    parser.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help=f"run on a Ray cluster that this machine is a node of: its head's HOST:PORT, or auto; {CLUSTER_VARIABLE} names "
        "one too (this machine alone)",
    )


@contextmanager
def runner_from(options: argparse.Namespace) -> Iterator[Runner]:
    """The runner that a command's options ask for, closed at the end. Raises BadInput when its cluster cannot be had."""
    runner = runner_at(options.cluster)
    try:
        if isinstance(runner, RayRunner):
            runner.devices()
            if runner.problem is not None:
                raise BadInput(runner.problem)
        yield runner
    finally:
        runner.close()
