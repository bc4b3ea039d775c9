"""The one process that speaks with a Ray cluster: `python -m profiling.ray_process --cluster ADDRESS`, JSON lines both ways.

Ray ends the process that it lives in when its cluster goes, and imports much; so this is a child of the runner, as a worker is.
It knows no queue: it tells which devices there are, puts a job on one of those named, and passes on what the job says.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kernels.problem import Frozen
from profiling.lane import Limits
from profiling.ray_messages import Devices, HostDevice, JobEnded, Place, Unreachable, order
from profiling.records import INTERPRETER
from profiling.stdout import claim_stdout

SECONDS_TO_CONNECT = 5.0
SECONDS_TO_FIND = 60.0
SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_TO_STOP = 15.0
INSTALL = ".venv/bin/pip install -r requirements-cluster.txt"

# What Ray carries to a host: these functions by value, so they name everything that they need.


def _enter(root: str) -> None:
    """Make a host's own FlashScope importable. Raises FileNotFoundError where there is none."""
    for folder in (os.getcwd(), root):
        if os.path.exists(os.path.join(folder, "profiling", "ray_job.py")):
            os.chdir(folder)
            sys.path.insert(0, folder)
            return
    raise FileNotFoundError(f"there is no FlashScope in {os.getcwd()}, where Ray was started, nor in {root}")


def _ask_host(root: str, discover: str, host: str, node_id: str, resources: dict[str, float]) -> tuple[str, str | None]:
    """(the Devices of a host as JSON, how Ray asks for authentication there)."""
    _enter(root)
    import importlib

    from profiling.ray_job import devices_here

    module, _, function = discover.partition(":")
    found = getattr(importlib.import_module(module), function)()
    devices = devices_here(found, host, node_id, resources, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return devices.model_dump_json(), os.environ.get("RAY_AUTH_MODE")


def _run_job(root: str, job: str, candidates: str, worker: Sequence[str], limits: Sequence[float]) -> Iterator[str]:
    _enter(root)
    import ray

    from profiling.ray_job import job_lines

    yield from job_lines(job, candidates, ray.get_runtime_context().get_node_id(), worker, limits)


# Here


class CannotConnect(Exception):
    """There is no cluster to be had; the text is a sentence for a person."""


class Cluster:
    """A connection to a cluster. say(message) is called from several threads, a message at a time.

    Raises CannotConnect.
    """

    def __init__(
        self, address: str, discover: str, worker: Sequence[str], limits: Limits, say: Callable[[Frozen | str], None]
    ) -> None:
        self._ray = ray = _connected(address)
        self._discover, self._worker, self._say = discover, tuple(worker), say
        self._limits = (limits.ready_s, limits.compile_s, limits.phase_s, limits.job_s)
        self._root = os.getcwd()
        # Nothing is repeated silently, and no process serves twice: each job gets a fresh one.
        task = ray.remote(num_cpus=0, max_retries=0, max_calls=1, num_returns="streaming")
        self._job_task = task(_run_job)
        self._ask_task = ray.remote(num_cpus=0, max_retries=0)(_ask_host)
        self._lock = threading.Lock()
        self._streams: dict[str, Any] = {}
        self._stopped: set[str] = set()
        self._lost_nodes: set[str] = set()
        self._closing = threading.Event()

    # Devices

    def watch(self) -> None:
        """Say which devices there are, first when every host has been asked, and again whenever that changes. Ends on close."""
        try:
            self._watch()
        except Exception as error:  # the cluster's end may show in any call
            if not self._closing.is_set():
                self._say(Unreachable(sentence=f"The cluster no longer answers ({_first_line(error)})."))

    def _watch(self) -> None:
        asked: dict[Any, tuple[str, str]] = {}  # Ray's reference -> (host, node_id)
        known: dict[str, Devices] = {}
        said: Devices | None = None
        begun = time.monotonic()
        while not self._closing.is_set():
            alive = self._nodes()
            for node_id, node in alive.items():
                if node_id not in known and all(node_id != one for _host, one in asked.values()):
                    asked[self._ask(node_id, node)] = (_host_of(node), node_id)
            ready = self._ray.wait(list(asked), num_returns=len(asked), timeout=SECONDS_BETWEEN_LOOKS)[0] if asked else ()
            for reference in ready:
                host, node_id = asked.pop(reference)
                known[node_id] = self._answer(reference, host)
            known = {node_id: devices for node_id, devices in known.items() if node_id in alive}
            now = _together(known.values())
            if now != said and (not asked or said is not None or time.monotonic() - begun > SECONDS_TO_FIND):
                self._say(now)
                said = now
            if not asked:
                self._closing.wait(SECONDS_BETWEEN_LOOKS)

    def _nodes(self) -> dict[str, dict[str, Any]]:
        nodes = {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"]}
        with self._lock:
            return {node_id: node for node_id, node in nodes.items() if node_id not in self._lost_nodes}

    def _ask(self, node_id: str, node: dict[str, Any]) -> Any:
        task = self._ask_task.options(label_selector={"ray.io/node-id": node_id})
        return task.remote(self._root, self._discover, _host_of(node), node_id, dict(node["Resources"]))

    def _answer(self, reference: Any, host: str) -> Devices:
        try:
            devices, authentication = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return Devices(devices=(), left_out=(f"{host} is left out: {_cause(error)}.",))
        if os.environ.get("RAY_AUTH_MODE") == "token" != authentication:
            why = "Ray was started there without RAY_AUTH_MODE=token, so whoever reaches it may run code"
            return Devices(devices=(), left_out=(f"{host} is left out: {why}.",))
        return Devices.model_validate_json(devices)

    # Jobs

    def place(self, place: Place) -> None:
        """Have Ray run a job on one of the devices named, and say what comes of it; returns at once."""
        on_gpu = place.devices[0].device.kind == "gpu"
        nodes = ",".join(sorted({one.node_id for one in place.devices}))
        task = self._job_task.options(
            num_gpus=1 if on_gpu else 0,
            resources={} if on_gpu else {INTERPRETER: 1},
            label_selector={"ray.io/node-id": f"in({nodes})"},
        )
        candidates = f"[{','.join(one.model_dump_json() for one in place.devices)}]"
        job_id = place.job.job_id
        stream = task.remote(self._root, place.job.model_dump_json(), candidates, self._worker, self._limits)
        with self._lock:
            self._streams[job_id] = stream
        threading.Thread(target=self._follow, args=(job_id, stream), name=f"job {job_id}", daemon=True).start()

    def _follow(self, job_id: str, stream: Any) -> None:
        node_id = lost = ""
        try:
            for reference in stream:
                line = self._ray.get(reference)
                node_id = node_id or _node_of(line)
                self._say(line)
            how, sentence = "done", ""
        except (self._ray.exceptions.NodeDiedError, self._ray.exceptions.LocalRayletDiedError) as error:
            how, sentence = "lost", "The host that ran it was lost"
            named = re.search(r"node ID: (\w+)", str(error))
            lost = node_id or (named[1] if named else "")
        except self._ray.exceptions.RayTaskError as error:
            how, sentence = "failed", f"The job cannot be run there: {_cause(error)}."
        except Exception as error:  # whatever else Ray raises: a job whose end is not told would wait for ever
            how, sentence = "lost", f"Ray's process that ran it was lost ({_cause(error)})"
        with self._lock:
            self._lost_nodes |= {lost} - {""}  # the cluster itself may notice ten seconds later
            del self._streams[job_id]
            if job_id in self._stopped:
                self._stopped.discard(job_id)
                how = "done" if how == "done" else "cancelled"
        self._say(JobEnded(job_id=job_id, how=how, sentence=sentence, lost_node_id=lost))

    def stop(self, job_id: str) -> None:
        """Interrupt a job, which then takes its worker along; one that does not end in 15 s is killed by Ray."""
        with self._lock:
            stream = self._streams.get(job_id)
            if stream is None:
                return
            self._stopped.add(job_id)
        self._ray.cancel(stream)
        forced = threading.Timer(SECONDS_TO_STOP, self._kill, (job_id,))
        forced.daemon = True
        forced.start()

    def _kill(self, job_id: str) -> None:
        with self._lock:
            stream = self._streams.get(job_id)
        if stream is not None:
            self._ray.cancel(stream, force=True)

    def close(self) -> None:
        """Interrupt every job, wait until each has ended, and leave the cluster."""
        self._closing.set()
        with self._lock:
            unfinished = list(self._streams)
        for job_id in unfinished:
            self.stop(job_id)
        deadline = time.monotonic() + SECONDS_TO_STOP
        while self._streams and time.monotonic() < deadline:
            time.sleep(0.05)
        self._ray.shutdown()


def _connected(address: str) -> Any:
    """The module ray, connected. Raises CannotConnect."""
    try:
        import ray
    except ImportError:
        raise CannotConnect(f"Ray is not installed: {INSTALL} installs it.") from None
    host, _, port = address.rpartition(":")
    if address != "auto":
        try:
            socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_CONNECT).close()
        except (OSError, ValueError, OverflowError) as error:
            usage = "it is a host and a port, as 10.0.0.1:6379, or auto"
            reason = str(error.strerror or error).lower() if isinstance(error, OSError) else usage
            raise CannotConnect(f"cluster = {address} cannot be reached: {reason}.") from None
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False, namespace="flashscope")
    except ray.exceptions.AuthenticationError:
        raise CannotConnect(
            "There is no token for the cluster: put the head's ~/.ray/auth_token there on this machine, or set RAY_AUTH_TOKEN."
        ) from None
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise CannotConnect(
            f"cluster = {address} does not let this machine in ({_first_line(error)}): it has to be a node of it, with the "
            "same token, Python and Ray."
        ) from None
    return ray


def _together(known: Any) -> Devices:
    answers = list(known)
    devices = sorted((one for answer in answers for one in answer.devices), key=_order)
    return Devices(devices=tuple(devices), left_out=tuple(dict.fromkeys(why for answer in answers for why in answer.left_out)))


def _order(one: HostDevice) -> tuple[object, ...]:
    return one.device.kind != "gpu", one.device.name, one.host, one.node_id, one.place


def _host_of(node: dict[str, Any]) -> str:
    return node["NodeManagerHostname"] or node["NodeManagerAddress"]


def _node_of(line: str) -> str:
    """The node that a job's first line names."""
    return json.loads(line).get("node_id", "")


def _cause(error: Exception) -> str:
    """Why, without Ray's trace of where: the last line of a task's error, the first of Ray's own."""
    cause = getattr(error, "cause", None)
    if cause is not None:
        return f"{type(cause).__name__}: {cause}".rstrip(".")
    return _first_line(error)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def main(arguments: list[str] | None = None) -> int:
    """Serve until the end of the input."""
    parser = argparse.ArgumentParser(prog="python -m profiling.ray_process", description=__doc__.splitlines()[0])
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--discover", required=True, help="MODULE:FUNCTION that finds a host's devices")
    parser.add_argument("--limits", required=True, help="the seconds of profiling.lane.Limits, with commas")
    parser.add_argument("--worker", required=True, nargs=argparse.REMAINDER, help="what comes between Python and a device's id")
    options = parser.parse_args(arguments)
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    out, lock = claim_stdout(), threading.Lock()

    def say(message: Frozen | str) -> None:
        line = message if isinstance(message, str) else message.model_dump_json()
        with lock:
            out.write(line + "\n")
            out.flush()

    limits = Limits(*map(float, options.limits.split(",")))
    try:
        cluster = Cluster(options.cluster, options.discover, options.worker, limits, say)
    except CannotConnect as error:
        say(Unreachable(sentence=str(error)))
        return 0
    threading.Thread(target=cluster.watch, name="devices", daemon=True).start()
    try:
        for line in sys.stdin:
            asked = order.validate_json(line)
            cluster.place(asked) if isinstance(asked, Place) else cluster.stop(asked.job_id)
    finally:
        cluster.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
