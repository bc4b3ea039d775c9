"""Records with plausible made-up numbers, for tests alone: nothing here was measured, nothing here is shipped."""

from __future__ import annotations

import heapq
import math

import numpy as np

from kernels.block_order import WHOLE_HEAD
from kernels.problem import AttentionProblem, BackwardTiles, Precision, TileConfig
from kernels.registry import VERSIONS
from profiling.backward_record import GradientAccuracy, GradientError, Parts
from profiling.record_types import Array
from profiling.records import (
    INTERPRETER,
    Accuracy,
    CompileReport,
    DeviceFacts,
    Direction,
    Environment,
    Flag,
    JobError,
    Latency,
    Measurement,
    Memory,
    PhaseSpan,
    RunRequest,
    Timeline,
)
from profiling.schedule_record import Schedule
from profiling.snapshot import Snapshot

TINY = AttentionProblem(batch=1, num_heads=2, num_kv_heads=2, seq_len_q=256, seq_len_kv=256, head_dim=64, causal=True)
LONG = AttentionProblem(seq_len_q=16384, seq_len_kv=16384, head_dim=128, causal=True)
TILES = TileConfig(block_m=128, block_n=128, num_warps=8, num_stages=3)
GPU_ID = "GPU-487a0000-0000-0000-0000-000000000000"
INVENTED_MS = {
    "native": 12.1,
    "v1": 5.14,
    "v2": 2.21,
    "v3": 2.02,
    "v3-hopper": 1.7,
    "sdpa-cudnn": 1.95,
    "sdpa-flash": 3.4,
    "fa3": 1.68,
}


def gpu() -> DeviceFacts:
    """An H200-like device."""
    return DeviceFacts(
        id=GPU_ID,
        kind="gpu",
        name="NVIDIA H200",
        capability=90,
        sm_count=132,
        memory_bytes=150_000_000_000,
        l2_bytes=50 << 20,
        shared_memory_per_block_bytes=227 << 10,
        peak_bf16_tflops=989.0,
        peak_fp8_tflops=1979.0,
        peak_bandwidth_bytes_per_s=4.8e12,
        peak_source="NVIDIA H200 data sheet",
        measured_bf16_tflops=790.0,
    )


def interpreter(tile_ms: float | None = 12.0) -> DeviceFacts:
    """The interpreter as a device."""
    return DeviceFacts(id=INTERPRETER, kind="interpreter", name="Interpreter (CPU)", interpreter_tile_ms=tile_ms)


def environment(device: DeviceFacts) -> Environment:
    """Where the made-up measurement was made."""
    return Environment(
        device=device,
        python_version="3.11.2",
        torch_version="2.13.0",
        triton_version="3.7.1",
        cuda_version="13.0" if device.kind == "gpu" else None,
        driver_version="580.159" if device.kind == "gpu" else None,
        commit=None,
        missing={}
        if device.kind == "gpu"
        else {"cuda_version": "there is no GPU here", "driver_version": "there is no GPU here"},
    )


def accuracy(interpreted: bool = False, passed: bool = True) -> Accuracy:
    """A checked output, right or wrong."""
    return Accuracy(
        provenance="interpreted" if interpreted else "measured",
        relative_error=2.1e-3 if passed else 0.41,
        max_abs_error=3e-3 if passed else 1.7,
        allowed_relative_error=4e-3,
        allowed_because="bf16 rounds to 8 bits",
        lse_max_abs_error=1e-5,
        allowed_lse_error=1e-3,
        non_finite=0,
        rows_checked=512,
        rows_total=512,
        passed=passed,
    )


def latency(median_ms: float, interpreted: bool = False, rounds: int = 5, a_round: int = 60) -> Latency:
    """Launches scattered about a median, a few of them slow."""
    rng = np.random.default_rng(7)
    n = rounds * a_round
    samples = median_ms * (1 + 0.004 * rng.standard_normal(n))
    samples[rng.choice(n, max(1, n // 60), replace=False)] *= 1.02
    return Latency(
        provenance="interpreted" if interpreted else "measured",
        mode="wall" if interpreted else "cold",
        samples_ms=Array.of(samples),
        round_of=Array.of(np.repeat(np.arange(rounds), a_round), "<i4"),
    )


def memory(problem: AttentionProblem, measured_bytes: int | None) -> Memory:
    """Tensor sizes by arithmetic, the measured ones as given."""
    queries = problem.batch * problem.num_heads * problem.seq_len_q
    why = {} if measured_bytes is not None else {"torch_added_bytes": "the interpreter allocates on the CPU"}
    return Memory(
        provenance="measured" if measured_bytes is not None else "interpreted",
        inputs_bytes=3 * queries * problem.head_dim * 2,
        outputs_bytes=queries * (problem.head_dim * 2 + 4),
        scores_bytes=2 * queries * problem.seq_len_kv * 2,
        torch_added_bytes=measured_bytes,
        torch_peak_allocated_bytes=measured_bytes,
        torch_peak_reserved_bytes=measured_bytes,
        nvml_used_before_bytes=None,
        nvml_used_peak_bytes=None,
        nvml_used_after_bytes=None,
        missing=why,
    )


def timeline() -> Timeline:
    """A job of eight seconds, not sampled while launches are timed."""
    spans = [
        PhaseSpan(phase="compile", start_s=0.0, end_s=1.2, sampled=True),
        PhaseSpan(phase="check", start_s=1.2, end_s=2.3, sampled=True),
    ]
    spans += [PhaseSpan(phase="latency", start_s=2.3 + 0.7 * k, end_s=2.9 + 0.7 * k, sampled=False) for k in range(5)]
    spans += [PhaseSpan(phase="observe", start_s=6.0, end_s=8.0, sampled=True)]
    t_s = np.array(
        [t for t in np.arange(0, 8, 0.02) if all(span.sampled or not span.start_s <= t <= span.end_s for span in spans)]
    )
    busy = (t_s > 1.2) & (t_s < 7.4)
    rng = np.random.default_rng(3)
    return Timeline(
        spans=tuple(spans),
        t_s=Array.of(t_s),
        power_w=Array.of(80 + 560 * busy + rng.normal(0, 6, len(t_s))),
        sm_clock_mhz=Array.of(np.where(busy, 1980.0, 345.0)),
        memory_used_bytes=Array.of((0.3 + 0.8 * busy) * 2**30),
        temperature_c=None,
        power_limit_w=700.0,
        max_sm_clock_mhz=1980.0,
        missing={"temperature_c": "not supported"},
    )


def report(capability: int = 90, spill_bytes: int = 0) -> CompileReport:
    """A compile report limited by shared memory."""
    return CompileReport(
        kernel="_forward",
        capability=capability,
        triton_version="3.7.1",
        compile_ms=3400.0,
        registers_per_thread=168,
        max_registers_per_thread=255,
        spill_bytes=spill_bytes,
        shared_memory_bytes=160 << 10,
        shared_memory_limit_bytes=227 << 10,
        warps_per_program=8,
        programs_per_sm=1,
        warps_per_sm=8,
        max_warps_per_sm=64,
        limited_by="shared memory",
        counts={"HGMMA": 64},
    )


def schedule_of(
    problem: AttentionProblem = LONG,
    tiles: TileConfig = TILES,
    *,
    sm_count: int = 132,
    programs_per_sm: int = 1,
    heaviest: bool | None = None,
    overhead_share: float = 0.004,
) -> Schedule:
    """Stamps like an H200's: a program takes 3.4 µs and 2.06 µs a tile, the next one starts 0.2 µs after it.

    heaviest None: heaviest first when causal. With tiles.loop_order = 'key' a program a head; with tiles.num_programs as many
    programs, each of which takes block after block.
    """
    rng = np.random.default_rng(11)
    heads, whole = problem.batch * problem.num_heads, tiles.loop_order == "key"
    blocks = np.array([WHOLE_HEAD]) if whole else np.arange(math.ceil(problem.seq_len_q / tiles.block_m))
    head, block = np.repeat(np.arange(heads), len(blocks)), np.tile(blocks, heads)
    key_blocks = math.ceil(problem.seq_len_kv / tiles.block_n)
    if whole:
        visited = np.full(heads, key_blocks * math.ceil(problem.seq_len_q / tiles.block_m))
    elif problem.causal:
        seen = np.minimum((block + 1) * tiles.block_m, problem.seq_len_q) + problem.seq_len_kv - problem.seq_len_q
        visited = np.clip(-(-seen // tiles.block_n), 0, key_blocks)
    else:
        visited = np.full(len(head), key_blocks)
    duration = (3400 + 2060 * programs_per_sm * visited) * (1 + 0.01 * rng.standard_normal(len(head)))
    first = problem.causal if heaviest is None else heaviest
    order = np.lexsort((head, -block)) if first else np.arange(len(head))
    programs = tiles.num_programs or len(order)
    sm, program, start, end = (np.zeros(len(head), np.int64) for _ in range(4))
    slots = [(0.0, slot) for slot in range(sm_count * programs_per_sm)]
    for number in range(programs):
        now, slot = heapq.heappop(slots)
        for entry in order[number::programs]:
            sm[entry], program[entry], start[entry] = slot % sm_count, number, now // 32 * 32
            now += duration[entry]
            end[entry] = now // 32 * 32
        heapq.heappush(slots, (now + 200, slot))
    plain_ms = float(end.max()) / 1e6 * (1.01 + 0.002 * rng.standard_normal(20))
    entries = {"sm": sm, "program": program, "start_ns": start, "end_ns": end, "head": head, "block": block, "tiles": visited}
    return Schedule(
        tick_ns=32,
        **{name: Array.of(values, "<i4") for name, values in entries.items()},
        plain_ms=Array.of(plain_ms),
        stamped_ms=Array.of(plain_ms * (1 + overhead_share)),
        programs_per_sm=programs_per_sm,
    )


def on_gpu(
    kernel: str = "v3", *, passed: bool = True, fp8: bool = False, tiles: TileConfig = TILES, **changes: object
) -> Measurement:
    """A whole measurement on the GPU."""
    has_tiles = VERSIONS[kernel].has_tiles
    median_ms = INVENTED_MS[kernel]
    request = RunRequest(
        kernel=kernel, problem=LONG, precision=Precision(fp8=fp8), tiles=tiles if has_tiles else None, device=GPU_ID
    )
    found = {
        "request": request,
        "tiles": tiles if has_tiles else None,
        "environment": environment(gpu()),
        "started_at": "2026-11-29T13:06:00+00:00",
        "duration_s": 8.0,
        "accuracy": accuracy(passed=passed),
        "latency": latency(median_ms) if passed else None,
        "with_prepass": latency(median_ms * 1.1) if fp8 and passed else None,
        "memory": memory(LONG, (16 << 30) if kernel == "native" else 65 << 20),
        "timeline": timeline(),
        "compiled": (report(),) if has_tiles else (),
        "flags": (
            Flag(name="alone", severity="ok", short="alone on the GPU", sentence="No other process used the GPU."),
            Flag(name="flushed", severity="ok", short="L2 flushed", sentence="The L2 cache was flushed before each launch."),
            Flag(
                name="low-clock", severity="caution", short="clock fell to 1,410 MHz", sentence="The SM clock fell below 75 %."
            ),
        ),
    }
    return Measurement(**{**found, **changes})


def in_interpreter(kernel: str = "v3", *, passed: bool = True, **changes: object) -> Measurement:
    """A whole measurement in the interpreter."""
    tiles = TileConfig(block_m=64, block_n=64, num_warps=4, num_stages=3) if VERSIONS[kernel].has_tiles else None
    found = {
        "request": RunRequest(kernel=kernel, problem=TINY, compile_for=90),
        "tiles": tiles,
        "environment": environment(interpreter()),
        "started_at": "2026-11-29T13:06:00+00:00",
        "duration_s": 2.0,
        "accuracy": accuracy(interpreted=True, passed=passed),
        "latency": latency(240.0, interpreted=True, rounds=1, a_round=1) if passed else None,
        "memory": memory(TINY, None),
        "compiled": (report(),) if tiles else (),
        "flags": (
            Flag(name="interpreter", severity="info", short="CPU interpreter: not GPU time", sentence="It ran on the CPU."),
        ),
    }
    return Measurement(**{**found, **changes})


def gradients(interpreted: bool = False, passed: bool = True, **changes: object) -> GradientAccuracy:
    """Three checked gradients; dk is the worst, and wrong unless they passed."""

    def error(relative: float) -> GradientError:
        return GradientError(
            relative_error=relative,
            max_abs_error=1e-2,
            allowed_relative_error=3.6e-3,
            allowed_because="bf16 rounds to 8 bits",
            non_finite=0,
        )

    found = {"dq": error(2.4e-3), "dk": error(2.5e-3 if passed else 0.38), "dv": error(2.3e-3)}
    provenance = "interpreted" if interpreted else "measured"
    return GradientAccuracy(
        **{"provenance": provenance, **found, "heads_checked": 16, "heads_total": 16, "passed": passed, **changes}
    )


def with_backward(
    kernel: str = "v2", direction: Direction = "both", *, interpreted: bool = False, passed: bool = True, **changes: object
) -> Measurement:
    """A measurement of a backward, or of a training step: 3.2 times a forward, 2.3 of it the backward."""
    start = in_interpreter(kernel) if interpreted else on_gpu(kernel)
    ms = 240.0 if interpreted else INVENTED_MS[kernel]
    tiles = BackwardTiles(dkdv=TILES, dq=TILES) if VERSIONS[kernel].has_tiles else None

    def time(factor: float) -> Latency:
        return latency(factor * ms, interpreted, *((1, 1) if interpreted else ()))

    parts = Parts(
        forward=time(1.0),
        backward=time(2.3),
        preprocess=time(0.05) if tiles else None,
        missing={} if tiles else {"preprocess": "it has none of its own"},
    )
    found = {
        "request": start.request.model_copy(update={"direction": direction, "backward_tiles": tiles}),
        "backward_tiles": tiles,
        "gradients": gradients(interpreted, passed),
        "latency": time(3.2 if direction == "both" else 2.3) if passed else None,
        "parts": parts if direction == "both" and passed else None,
    }
    if not interpreted:
        sizes = {"gradients_bytes": 201 << 20, "out_bytes": 67 << 20, "lse_bytes": 1 << 20, "workspace_bytes": 1 << 20}
        found["memory"] = start.memory.model_copy(update=sizes)
    fields = {name: getattr(start, name) for name in Measurement.model_fields}
    return Measurement(**{**fields, **found, **changes})


def failed(kernel: str = "v3", error: JobError | None = None) -> Measurement:
    """A measurement that ended before the launch for want of shared memory."""
    tiles = TILES.model_copy(update={"block_n": 512})
    smaller = [
        (TILES.model_copy(update={"block_n": n}), size << 10) for n, size in ((512, 544), (256, 288), (128, 160), (64, 96))
    ]
    error = error or JobError(
        kind="compile",
        sentence="BLOCK_N = 512 does not fit: it needs 544 KiB of shared memory, one program on this H200 gets 227 KiB.",
        needs=544 << 10,
        has=227 << 10,
        unit="bytes",
        cure=TILES,
        fits=tuple(smaller),
        raw="OutOfResources: shared memory, Required: 557056, Hardware limit: 232448",
    )
    request = RunRequest(kernel=kernel, problem=LONG, tiles=tiles, device=GPU_ID)
    return Measurement(
        request=request,
        tiles=tiles,
        environment=environment(gpu()),
        started_at="2026-11-29T13:20:00+00:00",
        duration_s=3.0,
        error=error,
    )


def recording(
    title: str = "Made-up recording", note: str = "For tests.", kernels: tuple[str, ...] = tuple(INVENTED_MS)
) -> Snapshot:
    """Several versions on one problem, as the gallery keeps them."""
    return Snapshot(
        title=title, note=note, created_at="2026-11-29T13:10:00+00:00", measurements=tuple(on_gpu(kernel) for kernel in kernels)
    )
