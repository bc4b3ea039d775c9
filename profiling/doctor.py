"""What works on this machine, tried out, with one cure for each thing that does not. Imports neither torch nor Triton."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kernels.problem import AttentionProblem, TileConfig
from profiling.doctor_gpu import examine_gpus
from profiling.finding import Finding
from profiling.gpu_lock import lock_path
from profiling.job_queue import JobQueue
from profiling.records import DeviceFacts, RunRequest
from profiling.store import Query, Store, StoreProblem
from profiling.words import bytes_

SMALL = AttentionProblem(num_heads=1, num_kv_heads=1, seq_len_q=128, seq_len_kv=128, head_dim=64, causal=True)
SMALL_TILES = TileConfig(block_m=64, block_n=64, num_warps=4, num_stages=1)
LEAST_FREE_BYTES = 1 << 30
CALL_RUN = "call ./run, which installs what requirements.txt asks for"


def examine(queue: JobQueue) -> Iterator[Finding]:
    """Python, the packages, where files are kept, the driver, the GPUs, and a small checked run on every device; seconds."""
    yield _python()
    yield _package("torch")
    yield _triton()
    yield _nvidia_ml_py()
    yield from _compiler()
    yield _store()
    yield _compiler_cache(_triton_cache())
    yield from examine_gpus()
    for device in queue.devices():
        if device.kind == "gpu":
            yield _lock(device)
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


def _nvidia_ml_py() -> Finding:
    """The package, and that no other of the same module name lies over it."""
    if _version_of("pynvml") is not None and _version_of("nvidia-ml-py") is None:
        return Finding(False, "pynvml is installed where nvidia-ml-py should be", f"pip uninstall pynvml, then {CALL_RUN}")
    return _package("nvidia-ml-py")


def _compiler() -> Iterator[Finding]:
    """Triton builds what launches its kernels on a GPU with the system's C compiler and Python's headers."""
    if sys.platform != "linux" or _version_of("triton") is None:
        return
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    header = Path(sysconfig.get_paths(scheme="posix_prefix")["include"]) / "Python.h"
    if compiler is None or shutil.which(compiler) is None:
        yield Finding(False, "no C compiler: Triton needs one on a GPU", "install gcc, or name a compiler in CC")
    elif not header.exists():
        yield Finding(False, f"no {header}: Triton needs it on a GPU", "install Python's headers, such as python3-dev")
    else:
        yield Finding(True, f"C compiler {compiler}, and Python's headers")


def _store() -> Finding:
    """Where snapshots are kept, whether this user may write there, how many there are, and the room that is left."""
    try:
        store = Store()
        try:
            count = store.search(Query(), 1).total
        finally:
            store.close()
    except StoreProblem as problem:
        return Finding(False, str(problem).rstrip("."), "mend that, or set FLASHSCOPE_STORE to another path or server")
    said = f"store {store.place}: {count:,} {'snapshot' if count == 1 else 'snapshots'}"
    if "://" in store.place:
        return Finding(True, said)
    if not os.access(store.place, os.W_OK):
        return Finding(False, f"{said}, read-only", "give this user write permission, or set FLASHSCOPE_STORE to another")
    return _with_room(f"{said}, writable", Path(store.place), "FLASHSCOPE_STORE")


def _with_room(said: str, place: Path, variable: str) -> Finding:
    """A place that can be written to, and whether its disk has room."""
    free = shutil.disk_usage(_existing(place)).free
    said += f", {bytes_(free)} free"
    if free < LEAST_FREE_BYTES:
        return Finding(False, said, f"free {bytes_(LEAST_FREE_BYTES)} of this disk, or set {variable} to a place on another")
    return Finding(True, said)


def _existing(place: Path) -> Path:
    return next(folder for folder in (place, *place.absolute().parents) if folder.exists())


def _triton_cache() -> Path:
    """Where Triton keeps what it compiled."""
    given = os.environ.get("TRITON_CACHE_DIR")
    return Path(given) if given else Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"


def _compiler_cache(folder: Path) -> Finding:
    """Whether what Triton compiles can be kept: without that each start of a worker compiles anew."""
    said = f"Triton's cache {folder}"
    there = _existing(folder)
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return Finding(
            False, f"{said} cannot be written", "give this user write permission, or set TRITON_CACHE_DIR to another"
        )
    return _with_room(f"{said}, writable", folder, "TRITON_CACHE_DIR")


def _lock(device: DeviceFacts) -> Finding:
    """Whether this user can hold the lock under which a GPU is timed."""
    path = lock_path(device.id)
    try:
        if path.exists():
            with path.open("r+b"):
                pass
        else:
            with tempfile.TemporaryFile(dir=path.parent):
                pass
    except OSError as error:
        return Finding(
            False,
            f"lock {path}: {error.strerror}: another FlashScope may time on the GPU at the same time",
            "give this user write permission on that file and its folder",
        )
    return Finding(True, f"lock {path}: can be held")


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
