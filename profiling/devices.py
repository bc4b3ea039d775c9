"""The devices that kernels can run on: this machine's GPUs, and always Triton's interpreter.

discover() and all at the top of this file need neither torch nor Triton: the app uses them. What follows
"worker's side" imports torch when called.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from profiling.ceilings import MEASURED, ceilings_of
from profiling.gpu_list import GpuList, ListedGpu
from profiling.gpu_models import GPU_MODELS, GpuModel, model_of
from profiling.records import INTERPRETER, DeviceFacts

if TYPE_CHECKING:
    import torch

__all__ = ["GPU_MODELS", "GpuModel", "cuda_device_of", "device_facts", "discover", "interpreter_facts"]

ROOT = Path(__file__).resolve().parent.parent
_NOT_MEASURED = "the worker measures it when it starts"
_MOST_GPUS, _MOST_CRASHES = 16, 2
_gpu_list: TypeAdapter[GpuList] = TypeAdapter(GpuList)


def discover(timeout_s: float = 10.0) -> tuple[DeviceFacts, ...]:
    """Every GPU that NVML lists, then the interpreter, whose missing["gpu"] says why when there is no GPU.

    Asked in a child process: NVML can crash on a GPU that is lost, or hang. After a crash each GPU is asked for in a child
    of its own, so that one GPU costs only itself.
    """
    try:
        return facts_of_listed(_ask_child(timeout_s))
    except subprocess.CalledProcessError as error:
        return _one_by_one(timeout_s, f"asking NVIDIA's management library ended with exit code {error.returncode}")
    except subprocess.TimeoutExpired:
        reason = f"NVIDIA's management library did not answer within {timeout_s:g} s"
    except (OSError, ValidationError) as error:
        reason = f"the process that asks for them failed ({type(error).__name__})"
    return (interpreter_facts(f"No GPU was found: {reason}."),)


def _ask_child(timeout_s: float, index: int | None = None) -> GpuList:
    command = [sys.executable, "-m", "profiling.gpu_list", "all" if index is None else str(index)]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=timeout_s, check=True)
    return _gpu_list.validate_json(child.stdout)


def _one_by_one(timeout_s: float, all_failed_because: str) -> tuple[DeviceFacts, ...]:
    gpus: list[ListedGpu] = []
    skipped: list[str] = []
    crashes = 0
    for index in range(_MOST_GPUS):
        try:
            found = _ask_child(timeout_s, index)
        except (subprocess.SubprocessError, OSError, ValidationError):
            crashes += 1
            skipped.append(f"GPU {index} was left out: NVIDIA's management library crashed on it, or did not answer.")
            if crashes > _MOST_CRASHES:
                break
            continue
        if not found.gpus and not found.skipped:
            break
        gpus += found.gpus
        skipped += found.skipped
    return facts_of_listed(GpuList(tuple(gpus), tuple(skipped) if gpus else (f"No GPU was found: {all_failed_because}.",)))


def interpreter_facts(no_gpu_because: str | None = None, tile_ms: float | None = None) -> DeviceFacts:
    """The interpreter as a device like any other; it has no peaks."""
    missing = {} if no_gpu_because is None else {"gpu": no_gpu_because}
    if tile_ms is None:
        missing["interpreter_tile_ms"] = _NOT_MEASURED
    return DeviceFacts(
        id=INTERPRETER, kind="interpreter", name="Interpreter (CPU)", interpreter_tile_ms=tile_ms, missing=missing
    )


def facts_of_listed(found: GpuList) -> tuple[DeviceFacts, ...]:
    """The facts of NVML's list, with the data sheets' peaks, and the interpreter last."""
    gpus = tuple(_listed_facts(gpu) for gpu in found.gpus)
    return (*gpus, interpreter_facts(" ".join(found.skipped) or None))


def _listed_facts(gpu: ListedGpu) -> DeviceFacts:
    unknown = dict.fromkeys(
        ("sm_count", "l2_bytes", "shared_memory_per_block_bytes", *MEASURED, "ceilings_measured_at"),
        _NOT_MEASURED,
    )
    peaks, no_peaks = _peaks(gpu.name)
    return DeviceFacts(
        id=gpu.uuid,
        kind="gpu",
        name=gpu.name,
        capability=gpu.capability,
        memory_bytes=gpu.memory_bytes,
        missing=unknown | gpu.missing | no_peaks,
        **peaks,
    )


def _peaks(name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The peak fields of a model, and why those that are None are."""
    model = model_of(name)
    if model is None:
        reason = f"{name} is not in the table of data sheets"
        return {}, dict.fromkeys(("peak_bf16_tflops", "peak_fp8_tflops", "peak_bandwidth_bytes_per_s"), reason)
    peaks = {
        "peak_bf16_tflops": model.bf16_tflops,
        "peak_fp8_tflops": model.fp8_tflops,
        "peak_bandwidth_bytes_per_s": model.bandwidth_gb_per_s * 1e9,
        "peak_source": model.source,
    }
    return peaks, {} if model.fp8_tflops else {"peak_fp8_tflops": "its matrix units have no FP8"}


# The worker's side: torch is imported inside.


def cuda_device_of(uuid: str) -> torch.device:
    """The CUDA device whose UUID NVML gave: their indices may differ. Raises ValueError naming what CUDA sees."""
    import torch

    seen = {_uuid_of(index): index for index in range(torch.cuda.device_count())} if torch.cuda.is_available() else {}
    index = next((index for known, index in seen.items() if _bare(known) == _bare(uuid)), None)
    if index is None:
        listed = f"it sees {', '.join(seen)}" if seen else "it sees no GPU"
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = f" (CUDA_VISIBLE_DEVICES = {hidden!r})" if hidden is not None else ""
        raise ValueError(f"device = {uuid} is not a GPU that CUDA can use here: {listed}{hint}.")
    return torch.device("cuda", index)


def _uuid_of(index: int) -> str:
    import torch

    uuid = str(torch.cuda.get_device_properties(index).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def _bare(uuid: str) -> str:
    """CUDA gives a MIG device's UUID without saying that it is one."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-")


def device_facts(device_id: str) -> DeviceFacts:
    """All facts of a device, measured ones too (seconds, once in 30 days). Raises ValueError when CUDA has no such GPU."""
    if device_id == INTERPRETER:
        tile_ms, reason = interpreter_tile_ms()
        facts = interpreter_facts(tile_ms=tile_ms)
        return facts if reason is None else facts.model_copy(update={"missing": {"interpreter_tile_ms": reason}})
    import torch

    from profiling.nvml import Nvml

    device = cuda_device_of(device_id)
    properties = torch.cuda.get_device_properties(device)
    peaks, missing = _peaks(properties.name)
    shared = getattr(properties, "shared_memory_per_block_optin", None)
    if shared is None:
        missing["shared_memory_per_block_bytes"] = "this torch does not tell"
    with Nvml.open(device_id) as nvml:
        ceilings = ceilings_of(device, device_id, nvml)
    return DeviceFacts(
        id=device_id,
        kind="gpu",
        name=properties.name,
        capability=properties.major * 10 + properties.minor,
        sm_count=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        l2_bytes=properties.L2_cache_size,
        shared_memory_per_block_bytes=shared,
        missing=missing | ceilings.missing,
        **peaks,
        **ceilings.facts,
    )


def interpreter_tile_ms() -> tuple[float | None, str | None]:
    """(milliseconds that Triton's interpreter takes for one 64 × 64 tile at head_dim 64, None), or (None, the reason)."""
    import torch

    from kernels.problem import AttentionProblem, Precision, TileConfig
    from kernels.registry import load

    problem = AttentionProblem(num_heads=2, num_kv_heads=2, seq_len_q=128, seq_len_kv=128, head_dim=64)
    tiles = TileConfig(block_m=64, block_n=64, num_warps=4, num_stages=1)
    q, k, v = (torch.randn(1, 2, 128, 64, dtype=torch.bfloat16) for _ in range(3))
    try:
        from kernels.launch import Launch

        kernel, launch = load("v2"), Launch()
    except ImportError as error:
        return None, f"Triton is not installed here ({error})"
    operands = kernel.prepare(q, k, v, Precision(), launch)
    kernel.forward(operands, problem, tiles, launch)
    # The quickest of three: what else the machine was doing at start-up should not shorten the problems offered all day.
    return min(_seconds(lambda: kernel.forward(operands, problem, tiles, launch)) for _ in range(3)) * 1000.0 / (
        2 * 2 * 2
    ), None


def _seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin
