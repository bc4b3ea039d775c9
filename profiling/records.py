"""Every record that crosses a process, a disk or a wire. Pure: pydantic and numpy, neither torch nor Triton.

All are frozen, strict, closed to unknown fields, with finite numbers, units in the names, and None with a reason (in
`missing`) where a reading could not be had.
"""

from __future__ import annotations

import base64
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError, model_validator

from kernels.problem import AttentionProblem, Frozen, Precision, TileConfig
from kernels.registry import VERSIONS
from profiling.foreign_text import Moment

INTERPRETER = "interpreter"

Provenance = Literal["measured", "interpreted", "compiled", "modelled"]
Probe = Literal["accuracy", "latency", "memory", "compile"]
PROBES: tuple[Probe, ...] = ("accuracy", "latency", "memory", "compile")
Severity = Literal["ok", "info", "caution", "bad"]
ErrorKind = Literal["refused", "compile", "launch", "out_of_memory", "timeout", "crashed", "cancelled"]
Phase = Literal["starting", "compile", "inputs", "check", "latency", "memory", "observe"]


def first_sentence(error: ValidationError) -> str:
    """What a person should read of a pydantic error: the first problem, with its value, without pydantic's prefix."""
    problem = error.errors(include_url=False)[0]
    message = problem["msg"].removeprefix("Value error, ")
    where = ".".join(str(part) for part in problem["loc"])
    return message if problem["type"] == "value_error" else f"{where} = {problem['input']!r} is not possible: {message}."


class Array(Frozen):
    """A numeric array as base64 of its little-endian bytes, with dtype ('<f4', '<f8', '<i8') and shape."""

    dtype: Literal["<f4", "<f8", "<i4", "<i8", "|u1"]
    shape: tuple[int, ...]
    data: str

    @model_validator(mode="after")
    def _whole(self) -> Array:
        expected = int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize
        try:
            found = len(base64.b64decode(self.data, validate=True))
        except ValueError as error:
            raise ValueError(f"an array's data is not base64: {error}") from None
        if min(self.shape, default=0) < 0 or found != expected:
            raise ValueError(f"an array of shape {self.shape} and dtype {self.dtype} needs {expected} bytes, it has {found}.")
        return self

    @staticmethod
    def of(values: object, dtype: str = "<f8") -> Array:
        """The record of anything numpy can turn into an array."""
        array = np.ascontiguousarray(values, dtype=dtype)
        return Array(dtype=dtype, shape=array.shape, data=base64.b64encode(array.tobytes()).decode())

    def numpy(self) -> np.ndarray:
        """The array, read-only."""
        return np.frombuffer(base64.b64decode(self.data), dtype=self.dtype).reshape(self.shape)


class RunRequest(Frozen):
    """One kernel on one problem: everything needed to repeat it.

    device is 'interpreter' or a GPU's UUID; compile_for a compute capability (90 for sm_90) for the compile report,
    None for the device's own. tiles None means the version's default there, which the Measurement then names.
    """

    kernel: str
    problem: AttentionProblem
    precision: Precision = Precision()
    tiles: TileConfig | None = None
    direction: Literal["forward"] = "forward"
    device: str = INTERPRETER
    compile_for: int | None = None
    probes: tuple[Probe, ...] = PROBES
    seed: int = 0


class Job(Frozen):
    """What the queue hands a worker: requests on the same problem and device, timed in interleaved rounds."""

    job_id: str
    requests: Annotated[tuple[RunRequest, ...], Field(min_length=1, max_length=16)]

    @model_validator(mode="after")
    def _one_problem(self) -> Job:
        first = self.requests[0]
        for request in self.requests[1:]:
            if (request.problem, request.device, request.seed) != (first.problem, first.device, first.seed):
                raise ValueError("a job's requests must share problem, device and seed.")
        return self


class DeviceFacts(Frozen):
    """A device that kernels can run on. id: 'interpreter' or the UUID that CUDA and NVML agree on ('GPU-…').

    peak_*_tflops are the data sheet's dense rates, peak_source where they were read; measured_* what this worker's own
    large matrix product and copy reached. interpreter_tile_ms: what one 64 × 64 × head_dim 64 tile costs there.
    """

    id: str
    kind: Literal["gpu", "interpreter"]
    name: str
    capability: int | None = None
    sm_count: int | None = None
    memory_bytes: int | None = None
    l2_bytes: int | None = None
    shared_memory_per_block_bytes: int | None = None
    peak_bf16_tflops: float | None = None
    peak_fp8_tflops: float | None = None
    peak_bandwidth_bytes_per_s: float | None = None
    peak_source: str | None = None
    measured_bf16_tflops: float | None = None
    measured_bandwidth_bytes_per_s: float | None = None
    interpreter_tile_ms: float | None = None
    missing: dict[str, str] = {}

    @property
    def short_name(self) -> str:
        """'H200 · GPU-487a' or 'Interpreter (CPU)'."""
        if self.kind == "interpreter":
            return self.name
        return f"{self.name.removeprefix('NVIDIA ').removeprefix('GeForce ')} · {self.id[:8]}"


class Environment(Frozen):
    """Where and with what a measurement was made."""

    device: DeviceFacts
    python_version: str
    torch_version: str
    triton_version: str | None
    cuda_version: str | None
    driver_version: str | None
    commit: str | None
    missing: dict[str, str] = {}


class Accuracy(Frozen):
    """How far the output is from a float64 reference computed tile by tile in the same job.

    relative_error = ‖out − ref‖ / ‖ref‖ over the rows checked (all of them unless the problem is too large for the
    reference). allowed_because derives the tolerance. passed needs every element finite and all errors allowed.
    With FP8 the reference reads the same e4m3 operands as the kernel, so that this is the kernel's own error;
    end_to_end_relative_error is the one against the inputs before they were quantised, None without FP8.
    """

    provenance: Literal["measured", "interpreted"]
    relative_error: float | None
    max_abs_error: float | None
    allowed_relative_error: float
    allowed_because: str
    lse_max_abs_error: float | None
    allowed_lse_error: float | None
    non_finite: int
    rows_checked: int
    rows_total: int
    passed: bool
    end_to_end_relative_error: float | None = None
    allowed_end_to_end_error: float | None = None
    missing: dict[str, str] = {}


class Latency(Frozen):
    """Every launch that was timed, in order. round_of says for each sample in which interleaved round it was taken.

    mode 'cold': the L2 cache was flushed before each launch, CUDA events around it; 'wall': a clock around the
    interpreter, which is no GPU time. The first launch is never among them.
    """

    provenance: Literal["measured", "interpreted"]
    mode: Literal["cold", "wall"]
    samples_ms: Array
    round_of: Array

    @property
    def n(self) -> int:
        """How many launches were timed."""
        return self.samples_ms.shape[0]

    def quantile_ms(self, q: float) -> float:
        """The q-quantile of the samples; 0.5 is the median."""
        return float(np.quantile(self.samples_ms.numpy(), q))

    @property
    def median_ms(self) -> float:
        """The number to quote."""
        return self.quantile_ms(0.5)


class Memory(Frozen):
    """What one call allocates, as torch counts it, and what the whole GPU had in use, as NVML counts it.

    added: peak of torch's allocated bytes during the call, less what was allocated before it (the inputs).
    reserved: what torch's allocator holds from the driver at the peak. nvml_used_*: whole GPU, all processes, v2 struct,
    sampled from a thread. scores: bytes that S and P would take if they were written out (modelled).
    """

    provenance: Literal["measured", "interpreted"]
    inputs_bytes: int
    outputs_bytes: int
    scores_bytes: int
    torch_added_bytes: int | None
    torch_peak_allocated_bytes: int | None
    torch_peak_reserved_bytes: int | None
    nvml_used_before_bytes: int | None
    nvml_used_peak_bytes: int | None
    nvml_used_after_bytes: int | None
    missing: dict[str, str] = {}


class PhaseSpan(Frozen):
    """A stretch of the job on the timeline. sampled: whether NVML was read meanwhile (never while launches are timed)."""

    phase: Phase
    start_s: float
    end_s: float
    sampled: bool


class Timeline(Frozen):
    """NVML readings over the job, seconds from its start; a series that the device does not give is None, with a reason."""

    provenance: Literal["measured"] = "measured"
    spans: tuple[PhaseSpan, ...]
    t_s: Array
    power_w: Array | None
    sm_clock_mhz: Array | None
    memory_used_bytes: Array | None
    temperature_c: Array | None
    power_limit_w: float | None = None
    max_sm_clock_mhz: float | None = None
    missing: dict[str, str] = {}


class CompileReport(Frozen):
    """What the compiler made of one Triton kernel for one capability: ptxas's figures and the occupancy they allow.

    limited_by: what keeps one more program off the SM. counts: instructions of the SASS worth counting.
    """

    provenance: Literal["compiled"] = "compiled"
    kernel: str
    capability: int
    triton_version: str
    compile_ms: float
    registers_per_thread: int
    max_registers_per_thread: int
    spill_bytes: int
    shared_memory_bytes: int
    shared_memory_limit_bytes: int
    warps_per_program: int
    programs_per_sm: int
    warps_per_sm: int
    max_warps_per_sm: int
    limited_by: Literal["registers", "shared memory", "warps", "blocks", "does not fit"]
    counts: dict[str, int] = {}


class Flag(Frozen):
    """A word that stands beside the number: short for a chip, sentence for its explanation."""

    name: str
    severity: Severity
    short: str
    sentence: str


class JobError(Frozen):
    """Why there is no result. needs and has share a unit; cure is a tile configuration that works; raw the original text.

    fits: (tiles tried, shared memory in bytes) when shared memory was the reason, compiled for this device.
    """

    kind: ErrorKind
    sentence: str
    needs: float | None = None
    has: float | None = None
    unit: str = ""
    cure: TileConfig | None = None
    fits: tuple[tuple[TileConfig, int], ...] = ()
    raw: str = ""


class Measurement(Frozen):
    """The answer to one RunRequest; what is stored, shared, compared and drawn.

    latency is the kernel alone; prepass the FP8 quantisation alone, timed the same way, and with_prepass both in a row.
    A speed without a passed accuracy is impossible: the validator refuses it.
    """

    request: RunRequest
    tiles: TileConfig | None
    environment: Environment
    started_at: Moment
    duration_s: float
    first_launch_ms: float | None = None
    accuracy: Accuracy | None = None
    latency: Latency | None = None
    with_prepass: Latency | None = None
    memory: Memory | None = None
    timeline: Timeline | None = None
    compiled: tuple[CompileReport, ...] = ()
    flags: tuple[Flag, ...] = ()
    error: JobError | None = None

    @model_validator(mode="after")
    def _no_number_without_a_proof(self) -> Measurement:
        if self.latency is not None and not (self.accuracy is not None and self.accuracy.passed):
            raise ValueError("a latency without a passed accuracy check is not a result.")
        return self

    @property
    def label(self) -> str:
        """A name that tells it from the others of its job: 'v2', 'v1 key-outer', 'v3 FP8', 'cuDNN (SDPA)'."""
        kernel = self.request.kernel
        name = VERSIONS[kernel].title if kernel in VERSIONS and VERSIONS[kernel].is_peer else kernel
        order = " key-outer" if self.tiles is not None and self.tiles.loop_order == "key" else ""
        return name + order + (" FP8" if self.request.precision.fp8 else "")

    @property
    def tflops(self) -> float | None:
        """Achieved TFLOP/s of the kernel alone; None without a GPU time."""
        if self.latency is None or self.latency.provenance != "measured":
            return None
        return self.request.problem.flops / self.latency.median_ms / 1e9

    @property
    def tflops_with_prepass(self) -> float | None:
        """Achieved TFLOP/s when the FP8 pre-pass counts; None without one."""
        if self.with_prepass is None or self.with_prepass.provenance != "measured":
            return None
        return self.request.problem.flops / self.with_prepass.median_ms / 1e9

    @property
    def peak_tflops(self) -> float | None:
        """The device's data-sheet rate for the number format of this run."""
        device = self.environment.device
        return device.peak_fp8_tflops if self.request.precision.fp8 else device.peak_bf16_tflops


class Ready(Frozen):
    """A worker's first line: it lives, and this is its device."""

    type: Literal["ready"] = "ready"
    environment: Environment


class Progress(Frozen):
    """Where a job is. done of total count within the phase; total 0 when it cannot be counted."""

    type: Literal["progress"] = "progress"
    job_id: str
    phase: Phase
    text: str
    done: int = 0
    total: int = 0


class Result(Frozen):
    """One measurement of a job; index is the request's place in it."""

    type: Literal["result"] = "result"
    job_id: str
    index: int
    measurement: Measurement


class Done(Frozen):
    """A job's last line. healthy False: the worker met an error that outlives the job, and wants to be replaced."""

    type: Literal["done"] = "done"
    job_id: str
    healthy: bool = True


WorkerMessage = Annotated[Ready | Progress | Result | Done, Field(discriminator="type")]
worker_message: TypeAdapter[WorkerMessage] = TypeAdapter(WorkerMessage)
