"""A Ray cluster of several nodes on this machine, for tests: `python -m tests.ray_nodes FOLDER`, a JSON line an order.

{"add": {resource: amount}, "variables": {name: value}} starts a node in such an environment, {"kill": node_id} takes its
raylet away as a power cut would. Each is answered by {"address": …, "node_id": …}. At the end of the input the cluster is
shut down; whoever started this kills its group then.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STORE_BYTES = 80 << 20  # little more than the least that Ray takes


class LocalCluster:
    """The test's hold on it. address: for a runner; environment: what a process needs to be let in."""

    def __init__(self, process: subprocess.Popen, environment: dict[str, str]) -> None:
        self._process, self.environment = process, environment
        self.address: str = ""

    def add(self, variables: Mapping[str, str] | None = None, **resources: float) -> str:
        """Start a node, the head first, and return its id."""
        answer = self._ask({"add": resources, "variables": dict(variables or {})})
        self.address = answer["address"]
        return answer["node_id"]

    def kill(self, node_id: str) -> None:
        """A node is gone from one moment to the next."""
        self._ask({"kill": node_id})

    def _ask(self, order: dict[str, Any]) -> dict[str, str]:
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the cluster's process died on {order}"
        return json.loads(line)


@contextlib.contextmanager
def local_cluster(**variables: str) -> Iterator[LocalCluster]:
    """A cluster without a node yet, with a token of its own; whatever becomes of it, none of its processes is left."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"}
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:  # short: a socket's path is
        # Ray notes the address of what was started last in its folder, where a user's own cluster is noted too.
        Path(folder, "ray").mkdir()
        environment = {**os.environ, **token, **quiet, "RAY_TMPDIR": folder, **variables}
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.ray_nodes", folder],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield LocalCluster(process, token)
        finally:
            with contextlib.suppress(OSError):
                process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()


def main(folder: str) -> None:
    """Serve orders until the end of the input."""
    from profiling.stdout import claim_stdout

    out = claim_stdout()
    from ray.cluster_utils import Cluster

    cluster, nodes = Cluster(), {}
    for line in sys.stdin:
        order = json.loads(line)
        if "kill" in order:
            nodes[order["kill"]].kill_raylet()
            answer = order["kill"]
        else:
            resources = dict(order["add"])
            os.environ.update(order["variables"])
            node = cluster.add_node(
                wait=False,
                num_cpus=0,
                num_gpus=int(resources.pop("GPU", 0)),
                resources=resources,
                object_store_memory=STORE_BYTES,
                include_log_monitor=False,
                include_dashboard=False,
                no_monitor=True,
                **({} if nodes else {"temp_dir": folder}),
            )
            for name in order["variables"]:
                del os.environ[name]
            answer = node.node_id
            nodes[answer] = node
        out.write(json.dumps({"address": cluster.address, "node_id": answer}) + "\n")
        out.flush()
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
