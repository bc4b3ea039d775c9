"""What works on this machine, tried out, with one cure for each thing that does not. Imports neither torch nor Triton."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from kernels.problem import AttentionProblem, TileConfig
from profiling.job_queue import JobQueue
from profiling.records import DeviceFacts, RunRequest
from profiling.store import Query, Store, StoreProblem

SMALL = AttentionProblem(num_heads=1, num_kv_heads=1, seq_len_q=128, seq_len_kv=128, head_dim=64, causal=True)
SMALL_TILES = TileConfig(block_m=64, block_n=64, num_warps=4, num_stages=1)
CALL_RUN = "call ./run, which installs what requirements.txt asks for"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. cure is empty when it works; runs_kernels: a kernel ran there, and was right."""

    works: bool
    what: str
    cure: str = ""
    runs_kernels: bool = False

    def __str__(self) -> str:
        return f"{'ok' if self.works else 'no'}  {self.what}" + (f"\n    Cure: {self.cure}." if self.cure else "")


def examine(queue: JobQueue) -> Iterator[Finding]:
    """Python, the packages, the store, the GPUs, and a small checked run on every device; takes seconds."""
    yield _python()
    yield _package("torch")
    yield _triton()
    yield _package("nvidia-ml-py")
    yield _store()
    devices = queue.devices()
    if not any(device.kind == "gpu" for device in devices):
        reason = next((device.missing["gpu"] for device in devices if "gpu" in device.missing), "no GPU was found")
        yield Finding(False, f"GPU: {reason}", "install NVIDIA's driver until nvidia-smi lists the GPU, or use the interpreter")
    for device in devices:
        yield _small_run(queue, device)


def _python() -> Finding:
    supported = (3, 11) <= sys.version_info[:2] <= (3, 14)
    cure = "" if supported else "install Python 3.11 to 3.14, delete .venv and call ./run"
    return Finding(supported, f"Python {platform.python_version()}", cure)


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _package(name: str) -> Finding:
    version = _version_of(name)
    return Finding(True, f"{name} {version}") if version else Finding(False, f"{name} is not installed", CALL_RUN)


def _triton() -> Finding:
    if _version_of("triton") is None and sys.platform != "linux":
        return Finding(False, f"Triton has no package for {platform.system()}", "use Linux for v1 to v3; native runs here")
    return _package("triton")


def _store() -> Finding:
    """Where snapshots are kept, whether this user may write there, and how many there are."""
    try:
        store = Store()
        try:
            count = store.search(Query(), 1).total
        finally:
            store.close()
    except StoreProblem as problem:
        return Finding(False, str(problem).rstrip("."), "mend that, or set FLASHSCOPE_STORE to another path or server")
    said = f"store {store.place}: {count:,} {'snapshot' if count == 1 else 'snapshots'}"
    if "://" not in store.place and not os.access(store.place, os.W_OK):
        return Finding(False, f"{said}, read-only", "give this user write permission, or set FLASHSCOPE_STORE to another")
    return Finding(True, said if "://" in store.place else f"{said}, writable")


def _small_run(queue: JobQueue, device: DeviceFacts) -> Finding:
    kernel = "v2" if _version_of("triton") else "native"
    tiles = SMALL_TILES if kernel == "v2" else None
    request = RunRequest(kernel=kernel, problem=SMALL, tiles=tiles, device=device.id, probes=("accuracy",))
    measurement = queue.wait(queue.submit((request,), "doctor")).results[0]
    if measurement.error is not None:
        return Finding(False, f"{device.short_name}: {measurement.error.sentence}", _cure(device, measurement.error.raw))
    accuracy = measurement.accuracy
    error = "not a number" if accuracy.relative_error is None else f"{accuracy.relative_error:.1e}"
    said = f"{device.short_name}: {kernel} ran, relative error {error}, allowed {accuracy.allowed_relative_error:.1e}"
    if not accuracy.passed:
        return Finding(False, said, "do not trust this device's results: report it with this line and the versions above")
    return Finding(True, said, runs_kernels=True)


def _cure(device: DeviceFacts, raw: str) -> str:
    if device.kind == "gpu" and (_version_of("torch") or "").endswith("+cpu"):
        return "this torch was built without CUDA: delete .venv and call ./run with pip's default index"
    last_line = (raw.splitlines() or ["nothing was written on stderr"])[-1]
    return f"see its last words ({last_line}), all of them with python -m profiling.worker --device {device.id}"
