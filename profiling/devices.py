"""The devices that kernels can run on: this machine's GPUs, and always Triton's interpreter.

discover() and all at the top of this file need neither torch nor Triton: the app uses them. What follows
"worker's side" imports torch when called.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from profiling.gpu_models import GPU_MODELS, GpuModel, model_of
from profiling.nvml import GpuList, ListedGpu, list_gpus
from profiling.records import INTERPRETER, DeviceFacts

if TYPE_CHECKING:
    import torch

__all__ = ["GPU_MODELS", "GpuModel", "cuda_device_of", "device_facts", "discover", "interpreter_facts", "measured_ceilings"]

ROOT = Path(__file__).resolve().parent.parent
_NOT_MEASURED = "the worker measures it when it starts"
_facts_list: TypeAdapter[tuple[DeviceFacts, ...]] = TypeAdapter(tuple[DeviceFacts, ...])


def discover(timeout_s: float = 10.0) -> tuple[DeviceFacts, ...]:
    """Every GPU that NVML lists, then the interpreter, whose missing["gpu"] says why when there is no GPU.

    Asked in a child process: NVML can crash on a GPU that is lost, or hang.
    """
    try:
        child = subprocess.run(
            [sys.executable, "-m", "profiling.devices"], cwd=ROOT, capture_output=True, timeout=timeout_s, check=True
        )
        return _facts_list.validate_json(child.stdout)
    except subprocess.TimeoutExpired:
        reason = f"No GPU was found: NVIDIA's management library did not answer within {timeout_s:g} s."
    except subprocess.CalledProcessError as error:
        reason = f"No GPU was found: asking NVIDIA's management library ended with exit code {error.returncode}."
    except (OSError, ValidationError) as error:
        reason = f"No GPU was found: the process that asks for them failed ({type(error).__name__})."
    return (interpreter_facts(reason),)


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
        ("sm_count", "l2_bytes", "shared_memory_per_block_bytes", "measured_bf16_tflops", "measured_bandwidth_bytes_per_s"),
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
    if uuid not in seen:
        listed = f"it sees {', '.join(seen)}" if seen else "it sees no GPU"
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = f" (CUDA_VISIBLE_DEVICES = {hidden!r})" if hidden is not None else ""
        raise ValueError(f"device = {uuid} is not a GPU that CUDA can use here: {listed}{hint}.")
    return torch.device("cuda", seen[uuid])


def _uuid_of(index: int) -> str:
    import torch

    uuid = str(torch.cuda.get_device_properties(index).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def device_facts(device_id: str) -> DeviceFacts:
    """All facts of a device, measured ones too (about half a second). Raises ValueError when CUDA has no such GPU."""
    if device_id == INTERPRETER:
        tile_ms, reason = interpreter_tile_ms()
        facts = interpreter_facts(tile_ms=tile_ms)
        return facts if reason is None else facts.model_copy(update={"missing": {"interpreter_tile_ms": reason}})
    import torch

    device = cuda_device_of(device_id)
    properties = torch.cuda.get_device_properties(device)
    peaks, missing = _peaks(properties.name)
    shared = getattr(properties, "shared_memory_per_block_optin", None)
    if shared is None:
        missing["shared_memory_per_block_bytes"] = "this torch does not tell"
    ceilings, not_measured = measured_ceilings(device)
    return DeviceFacts(
        id=device_id,
        kind="gpu",
        name=properties.name,
        capability=properties.major * 10 + properties.minor,
        sm_count=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        l2_bytes=properties.L2_cache_size,
        shared_memory_per_block_bytes=shared,
        missing=missing | not_measured,
        **peaks,
        **ceilings,
    )


def measured_ceilings(device: torch.device) -> tuple[dict[str, float], dict[str, str]]:
    """What this GPU reaches: a bf16 8192³ matrix product, and a copy (bytes read and written). Medians, about 0.3 s."""
    import torch

    ceilings, missing = {}, {}
    try:
        a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
        product = torch.empty_like(a)
        ceilings["measured_bf16_tflops"] = 2 * 8192**3 / _median_s(lambda: torch.matmul(a, b, out=product), device) / 1e12
        source = torch.zeros(512 << 20, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        seconds = _median_s(lambda: target.copy_(source), device)
        ceilings["measured_bandwidth_bytes_per_s"] = 2 * source.numel() / seconds
    except torch.cuda.OutOfMemoryError:
        reason = "too little GPU memory was free for it"
        missing = {name: reason for name in ("measured_bf16_tflops", "measured_bandwidth_bytes_per_s") if name not in ceilings}
    a = b = product = source = target = None
    torch.cuda.empty_cache()
    return ceilings, missing


def _median_s(run: Any, device: torch.device, budget_s: float = 0.1) -> float:
    """Median seconds of a launch by CUDA events, after as many untimed ones as warm the clocks up."""
    import torch

    with torch.cuda.device(device):
        begin = time.perf_counter()
        while time.perf_counter() - begin < budget_s / 2:
            run()
            torch.cuda.synchronize()
        samples: list[float] = []
        while len(samples) < 5 or sum(samples) < budget_s:
            before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            before.record()
            run()
            after.record()
            after.synchronize()
            samples.append(before.elapsed_time(after) / 1000.0)
    return statistics.median(samples)


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


if __name__ == "__main__":
    print(json.dumps([facts.model_dump() for facts in facts_of_listed(list_gpus())]))
