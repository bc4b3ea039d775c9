"""Every record that crosses a process, a disk or a wire. Pure: pydantic and numpy, neither torch nor Triton.

All are frozen, strict, closed to unknown fields, with finite numbers, units in the names, and None with a reason (in
`missing`) where a reading could not be had. A file from anywhere may hold them, so what cannot have been measured is
refused here, once: whoever reads a record may divide by its times, draw its series and trust its lengths.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Literal, Self, get_args

import numpy as np
from pydantic import AfterValidator, FailFast, Field, TypeAdapter, model_validator

from kernels.problem import MAX_SEQ_LEN, AttentionProblem, BackwardTiles, Frozen, Precision, TileConfig
from kernels.registry import VERSIONS
from profiling.backward_record import GradientAccuracy, Parts
from profiling.foreign_text import Moment, printable
from profiling.latency_record import LONGEST_SERIES, Latency
from profiling.record_types import Array, Count, Error, Limit, Missing, Ms, Text, Words
from profiling.schedule_record import Schedule
from profiling.trace_record import TileTrace, TraceChoice

INTERPRETER = "interpreter"

Effort = Literal["full", "screening"]
"""How long a job times: until the stop rule has enough, or as briefly as a first look among many needs."""
Probe = Literal["accuracy", "latency", "warm", "memory", "compile", "tiles", "schedule", "energy"]
PROBES: tuple[Probe, ...] = ("accuracy", "latency", "warm", "memory", "compile")
Direction = Literal["forward", "backward", "both"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
InputKind = Literal["normal", "peaked", "sliding", "outliers", "steady", "ramp", "own"]
Severity = Literal["ok", "info", "caution", "bad"]
ErrorKind = Literal["refused", "compile", "launch", "out_of_memory", "timeout", "crashed", "cancelled"]
Phase = Literal["starting", "compile", "inputs", "check", "latency", "memory", "observe", "trace", "schedule", "energy"]

_SERIES = ("power_w", "sm_clock_mhz", "memory_used_bytes", "temperature_c", "memory_clock_mhz", "utilisation_percent")
MAX_OWN_NUMBERS = 65_536
_LONGEST_JOB_S = 1e6

FLOPS_OF_FORWARD: dict[Direction, float] = {"forward": 1.0, "backward": 2.5, "both": 3.5}
DIRECTION_WORDS: dict[Direction, str] = {"forward": "forward", "backward": "backward", "both": "forward and backward"}
_LABELS: dict[Direction, str] = {"forward": "", "backward": " bwd", "both": " fwd+bwd"}

KernelName = Annotated[str, Field(min_length=1, max_length=40), AfterValidator(printable)]
Capability = Annotated[int, Field(ge=10, le=9999)]
Seconds = Annotated[float, Field(ge=0, le=_LONGEST_JOB_S)]
Tflops = Annotated[float, Field(ge=1e-3, le=1e6)]
Amount = Annotated[float, Field(ge=0, le=1e30)]
Reading = Annotated[float, Field(ge=0, le=1e9)]
BytesPerS = Annotated[float, Field(ge=1e3, le=1e18)]
Length = Annotated[int, Field(ge=1, le=MAX_SEQ_LEN)]


class OwnInputs(Frozen):
    """A user's own Q, K and V, for the inputs `own`: float32, shapes as AttentionProblem says, MAX_OWN_NUMBERS each at most."""

    q: Array
    k: Array
    v: Array

    @model_validator(mode="after")
    def _small(self) -> OwnInputs:
        for name, array in (("q", self.q), ("k", self.k), ("v", self.v)):
            if len(array.shape) != 4 or array.dtype != "<f4" or not 1 <= math.prod(array.shape) <= MAX_OWN_NUMBERS:
                raise ValueError(
                    f"{name} of shape {array.shape} and {array.dtype} is not possible: it is (batch, heads, seq_len, "
                    f"head_dim), float32, {MAX_OWN_NUMBERS:,} numbers at most."
                )
        return self


class RunRequest(Frozen):
    """One kernel on one problem: everything needed to repeat it.

    device is 'interpreter' or a GPU's UUID; compile_for a compute capability (90 for sm_90) for the compile report,
    None for the device's own. tiles None means the version's default there, which the Measurement then names. inputs is
    what Q, K and V are drawn from, seeded: see profiling.teaching_inputs; with `own` they are in own.
    direction is what is timed: the forward, the backward after one forward that is not timed, or both in a row, a training
    step. backward_tiles None means the version's default. With FP8 only the forward is FP8: the backward reads the inputs as
    they were before they were quantised, in dtype.
    """

    kernel: KernelName
    problem: AttentionProblem
    precision: Precision = Precision()
    tiles: TileConfig | None = None
    direction: Direction = "forward"
    backward_tiles: BackwardTiles | None = None
    device: Words = INTERPRETER
    compile_for: Capability | None = None
    probes: Annotated[tuple[Probe, ...], Field(max_length=8), FailFast()] = PROBES
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    inputs: InputKind = "normal"
    own: OwnInputs | None = None
    trace: TraceChoice = TraceChoice()

    @model_validator(mode="after")
    def _own_with_own(self) -> RunRequest:
        if (self.inputs == "own") != (self.own is not None):
            raise ValueError("inputs = own is possible only with a Q, K and V of one's own, and these only with it.")
        if self.own is not None:
            _require_shapes(self.own, self.problem)
        return self

    @model_validator(mode="after")
    def _watched_forward(self) -> RunRequest:
        if self.direction == "forward":
            if self.backward_tiles is not None:
                raise ValueError("tiles of a backward are not possible with direction = forward: it has none.")
            return self
        watched = next((probe for probe in ("tiles", "schedule") if probe in self.probes), None)
        if watched is not None:
            raise ValueError(
                f"direction = {self.direction} is not possible with the probe {watched}: only a forward is watched "
                "tile by tile, or stamped."
            )
        return self

    @property
    def flops(self) -> float:
        """Operations of what is timed: a backward's five products count 2.5 times the forward's two (FA2 paper, section 4)."""
        return FLOPS_OF_FORWARD[self.direction] * self.problem.flops


def _require_shapes(own: OwnInputs, problem: AttentionProblem) -> None:
    query = (problem.batch, problem.num_heads, problem.seq_len_q, problem.head_dim)
    key = (problem.batch, problem.num_kv_heads, problem.seq_len_kv, problem.head_dim)
    for name, array, expected in (("q", own.q, query), ("k", own.k, key), ("v", own.v, key)):
        if array.shape != expected:
            raise ValueError(f"{name} of shape {array.shape} is not possible: this problem has {expected}.")


def _shared(request: RunRequest) -> tuple[object, ...]:
    return request.problem, request.device, request.seed, request.inputs, request.own, request.direction


class Job(Frozen):
    """What the queue hands a worker: requests on the same problem and device, timed in interleaved rounds."""

    job_id: str
    requests: Annotated[tuple[RunRequest, ...], Field(min_length=1, max_length=16)]
    effort: Effort = "full"

    @model_validator(mode="after")
    def _one_problem(self) -> Job:
        first = self.requests[0]
        for request in self.requests[1:]:
            if _shared(request) != _shared(first):
                raise ValueError("a job's requests must share problem, device, seed, inputs and direction.")
        return self


class DeviceFacts(Frozen):
    """A device that kernels can run on. id: 'interpreter' or the UUID that CUDA and NVML agree on ('GPU-…').

    peak_*_tflops are the data sheet's dense rates, peak_source where they were read; measured_* what this worker's own
    large matrix product and copy reached; measured_l2_*: one buffer that stays in the L2 cache, read again and again.
    ceilings_measured_at: when the measured_* were taken; they are kept for 30 days. interpreter_tile_ms: what one
    64 × 64 × head_dim 64 tile costs there.
    """

    id: Words
    kind: Literal["gpu", "interpreter"]
    name: Words
    capability: Capability | None = None
    sm_count: Limit | None = None
    memory_bytes: Count | None = None
    l2_bytes: Count | None = None
    shared_memory_per_block_bytes: Count | None = None
    peak_bf16_tflops: Tflops | None = None
    peak_fp8_tflops: Tflops | None = None
    peak_bandwidth_bytes_per_s: BytesPerS | None = None
    peak_source: Text | None = None
    measured_bf16_tflops: Tflops | None = None
    measured_bandwidth_bytes_per_s: BytesPerS | None = None
    measured_fp8_tflops: Tflops | None = None
    measured_l2_bytes_per_s: BytesPerS | None = None
    ceilings_measured_at: Moment | None = None
    interpreter_tile_ms: Ms | None = None
    missing: Missing = {}

    @model_validator(mode="after")
    def _interpreter_by_id_and_kind(self) -> DeviceFacts:
        if (self.id == INTERPRETER) != (self.kind == "interpreter"):
            raise ValueError(f"a device of kind {self.kind} with the id {self.id!r} is not possible.")
        return self

    @property
    def short_name(self) -> str:
        """'H200 · GPU-487a' or 'Interpreter (CPU)'."""
        if self.kind == "interpreter":
            return self.name
        return f"{self.name.removeprefix('NVIDIA ').removeprefix('GeForce ')} · {self.id[:8]}"


class Environment(Frozen):
    """Where and with what a measurement was made."""

    device: DeviceFacts
    python_version: Words
    torch_version: Words
    triton_version: Words | None
    cuda_version: Words | None
    driver_version: Words | None
    commit: Words | None
    missing: Missing = {}


class Accuracy(Frozen):
    """How far the output is from a float64 reference computed tile by tile in the same job.

    relative_error = ‖out − ref‖ / ‖ref‖ over the rows checked (all of them unless the problem is too large for the
    reference). allowed_because derives the tolerance. passed needs every element finite and all errors allowed.
    With FP8 the reference reads the same e4m3 operands as the kernel, so that this is the kernel's own error;
    end_to_end_relative_error is the one against the inputs before they were quantised, None without FP8.
    """

    provenance: Literal["measured", "interpreted"]
    relative_error: Error | None
    max_abs_error: Error | None
    allowed_relative_error: Error
    allowed_because: Text
    lse_max_abs_error: Error | None
    allowed_lse_error: Error | None
    non_finite: Count
    rows_checked: Count
    rows_total: Count
    passed: bool
    end_to_end_relative_error: Error | None = None
    allowed_end_to_end_error: Error | None = None
    missing: Missing = {}

    @model_validator(mode="after")
    def _passed_by_its_own_numbers(self) -> Accuracy:
        if self.rows_checked > self.rows_total:
            raise ValueError(f"{self.rows_checked:,} rows checked of {self.rows_total:,} is not possible.")
        pairs = (
            (self.relative_error, self.allowed_relative_error),
            (self.lse_max_abs_error, self.allowed_lse_error),
            (self.end_to_end_relative_error, self.allowed_end_to_end_error),
        )
        over = any(error is not None and allowed is not None and error > allowed for error, allowed in pairs)
        if self.passed and (self.relative_error is None or self.non_finite or not self.rows_checked or over):
            raise ValueError("an accuracy that passed with an error that is not allowed is not possible.")
        return self


class MemoryPoint(Frozen):
    """One launch of the memory curve: torch's peak during it, less what was allocated before it (its inputs)."""

    seq_len_q: Length
    seq_len_kv: Length
    added_bytes: Count


class MemoryCurve(Frozen):
    """What launches at other lengths allocated, shortest first; both lengths scaled together. ended_by: why none is longer."""

    provenance: Literal["measured"] = "measured"
    points: Annotated[tuple[MemoryPoint, ...], Field(max_length=24), FailFast()]
    ended_by: Text

    @model_validator(mode="after")
    def _rising(self) -> MemoryCurve:
        lengths = [max(point.seq_len_q, point.seq_len_kv) for point in self.points]
        if any(longer <= shorter for shorter, longer in pairwise(lengths)):
            raise ValueError("a memory curve whose lengths do not rise is not possible.")
        return self


class Memory(Frozen):
    """What one call allocates, as torch counts it, and what the whole GPU had in use, as NVML counts it.

    added: peak of torch's allocated bytes during the call, less what was allocated before it (the inputs).
    reserved: what torch's allocator holds from the driver at the peak. nvml_used_*: whole GPU, all processes, v2 struct,
    sampled from a thread. scores: bytes that S and P would take if they were written out (modelled).
    out, lse: what the returned tensors hold (lse 0 where the version returns none). workspace: the rest of added, given back
    before the call ends. kept: what stays allocated when the output is gone (a version's own cache). curve: other lengths.
    A call is what the direction says: of a backward, out and lse were there before it, and outputs are dq, dk and dv; of a
    training step they are all five. gradients: what the returned dq, dk and dv hold, None of a forward. operands: what the FP8
    pre-pass made of Q, K and V, codes, scales and the lse's shift, before the call; None where there is none.
    """

    provenance: Literal["measured", "interpreted"]
    inputs_bytes: Count
    outputs_bytes: Count
    scores_bytes: Count
    torch_added_bytes: Count | None
    torch_peak_allocated_bytes: Count | None
    torch_peak_reserved_bytes: Count | None
    nvml_used_before_bytes: Count | None
    nvml_used_peak_bytes: Count | None
    nvml_used_after_bytes: Count | None
    out_bytes: Count | None = None
    lse_bytes: Count | None = None
    gradients_bytes: Count | None = None
    workspace_bytes: Count | None = None
    kept_bytes: Count | None = None
    operands_bytes: Count | None = None
    curve: MemoryCurve | None = None
    missing: Missing = {}


class Energy(Frozen):
    """What launches in a row (L2 not flushed) took from the supply: the whole card's, by NVML's energy counter.

    launches filled busy_s seconds of GPU time. Within them, between two changes of the counter window_s seconds apart (one
    second at least), it went up by energy_mj; both None, with a reason, where it cannot be had. sampled_mj: the instant power
    read meanwhile, integrated over the same window, as a check of the counter.
    """

    provenance: Literal["measured"] = "measured"
    launches: Limit
    busy_s: Annotated[float, Field(ge=1e-9, le=_LONGEST_JOB_S)]
    window_s: Annotated[float, Field(ge=1, le=_LONGEST_JOB_S)] | None
    energy_mj: Annotated[float, Field(ge=1e-3, le=1e15)] | None
    sampled_mj: Annotated[float, Field(ge=1e-3, le=1e15)] | None = None
    missing: Missing = {}

    @model_validator(mode="after")
    def _energy_of_a_window(self) -> Energy:
        if (self.window_s is None) != (self.energy_mj is None):
            raise ValueError("an energy without the time it was taken in is not possible, nor the time without it.")
        return self

    @property
    def launch_ms(self) -> float:
        """Mean time of a launch in a row."""
        return 1000.0 * self.busy_s / self.launches

    @property
    def mean_w(self) -> float | None:
        """Average watts of the card over the window."""
        return None if self.energy_mj is None else self.energy_mj / 1000.0 / self.window_s

    @property
    def per_launch_mj(self) -> float | None:
        """Millijoules of one launch: the average power over the time of a launch."""
        return None if self.mean_w is None else self.mean_w * self.launch_ms


class Span(Frozen):
    """A stretch of the job, seconds from its start."""

    start_s: Seconds
    end_s: Seconds

    @model_validator(mode="after")
    def _forwards(self) -> Self:
        if self.end_s < self.start_s:
            raise ValueError(f"a stretch from {self.start_s:g} to {self.end_s:g} s is not possible: it ends before it starts.")
        return self


class PhaseSpan(Span):
    """A stretch of the job on the timeline. sampled: whether NVML was read meanwhile (never while launches are timed)."""

    phase: Phase
    sampled: bool


class NotedSpan(Span):
    """A stretch of the job and what is to be said of it, in words."""

    words: Text


class LaunchSpan(Span):
    """A stretch of launches of one kernel, from the first queued to the last ended; label is Measurement.label's."""

    label: Words
    phase: Phase
    launches: Limit | None = None


class Timeline(Frozen):
    """NVML readings over the job, seconds from its start; a series that the device does not give is None, with a reason.

    throttled None: it was not read; empty: it was read, and nothing held the clocks down. gaps: NVML was asked and did not
    answer. launched: when which kernel was launched. The memory that NVML reserves and the total are of the whole GPU.
    """

    provenance: Literal["measured"] = "measured"
    spans: Annotated[tuple[PhaseSpan, ...], Field(max_length=500), FailFast()]
    t_s: Array
    power_w: Array | None
    sm_clock_mhz: Array | None
    memory_used_bytes: Array | None
    temperature_c: Array | None
    power_limit_w: Reading | None = None
    max_sm_clock_mhz: Reading | None = None
    memory_clock_mhz: Array | None = None
    utilisation_percent: Array | None = None
    max_memory_clock_mhz: Reading | None = None
    memory_reserved_bytes: Count | None = None
    memory_total_bytes: Count | None = None
    throttled: Annotated[tuple[NotedSpan, ...], Field(max_length=500)] | None = None
    gaps: Annotated[tuple[NotedSpan, ...], Field(max_length=500), FailFast()] = ()
    launched: Annotated[tuple[LaunchSpan, ...], Field(max_length=2000), FailFast()] = ()
    missing: Missing = {}

    @model_validator(mode="after")
    def _series_of_one_length(self) -> Timeline:
        n = self.t_s.series("t_s")
        readings = {name: getattr(self, name) for name in _SERIES if getattr(self, name) is not None}
        for name, reading in readings.items():
            if n > LONGEST_SERIES or reading.series(name) != n:
                raise ValueError(f"{name} of shape {reading.shape} is not possible beside {n:,} moments.")
            if n and not -300 <= reading.numpy().min() <= reading.numpy().max() <= 1e18:
                raise ValueError(f"{name} from {reading.numpy().min():.3g} to {reading.numpy().max():.3g} is not possible.")
        shares = readings.get("utilisation_percent")
        if shares is not None and n and not 0 <= shares.numpy().min() <= shares.numpy().max() <= 100:
            raise ValueError(f"a utilisation of {shares.numpy().max():.3g} % is not possible: it is 0 to 100 %.")
        moments = self.t_s.numpy()
        if n and (moments[0] < 0 or moments[-1] > _LONGEST_JOB_S or (np.diff(moments) < 0).any()):
            raise ValueError("moments that are not seconds from the job's start, in order, are not possible.")
        return self


class CompileReport(Frozen):
    """What the compiler made of one Triton kernel for one capability: ptxas's figures and the occupancy they allow.

    limited_by: what keeps one more program off the SM. counts: instructions of the SASS worth counting.
    """

    provenance: Literal["compiled"] = "compiled"
    kernel: Words
    capability: Annotated[int, Field(ge=80, le=9999)]
    triton_version: Words
    compile_ms: Ms
    registers_per_thread: Count
    max_registers_per_thread: Limit
    spill_bytes: Count
    shared_memory_bytes: Count
    shared_memory_limit_bytes: Limit
    warps_per_program: Count
    programs_per_sm: Count
    warps_per_sm: Count
    max_warps_per_sm: Limit
    limited_by: Literal["registers", "shared memory", "warps", "blocks", "does not fit"]
    counts: Annotated[dict[Words, Count], Field(max_length=100)] = {}


class Flag(Frozen):
    """A word that stands beside the number: short for a chip, sentence for its explanation."""

    name: Words
    severity: Severity
    short: Words
    sentence: Text


class JobError(Frozen):
    """Why there is no result. needs and has share a unit; cure is a tile configuration that works; raw the original text.

    fits: (tiles tried, shared memory in bytes) when shared memory was the reason, compiled for this device.
    """

    kind: ErrorKind
    sentence: Text
    needs: Amount | None = None
    has: Amount | None = None
    unit: Words = ""
    cure: TileConfig | None = None
    fits: Annotated[tuple[tuple[TileConfig, Count], ...], Field(max_length=40), FailFast()] = ()
    raw: Text = ""


def label_of(request: RunRequest, tiles: TileConfig | None) -> str:
    """A name that tells a measurement from others: 'v2', 'v1 key-outer', 'v3 FP8', 'cuDNN (SDPA) bwd', 'v2 fwd+bwd'."""
    kernel = request.kernel
    name = VERSIONS[kernel].title if kernel in VERSIONS and VERSIONS[kernel].is_peer else kernel
    order = " key-outer" if tiles is not None and tiles.loop_order == "key" else ""
    return name + order + (" FP8" if request.precision.fp8 else "") + _LABELS[request.direction]


def rate_of(request: RunRequest, bf16: float | None, fp8: float | None) -> float | None:
    """The rate at which a device can do a request's operations, from its own: with FP8 a step's forward has the higher one."""
    if not request.precision.fp8 or request.direction == "backward":
        return bf16
    if request.direction == "forward" or fp8 is None or bf16 is None:
        return fp8 if request.direction == "forward" else None
    forward, both = FLOPS_OF_FORWARD["forward"], FLOPS_OF_FORWARD["both"]
    return both / (forward / fp8 + (both - forward) / bf16)


def _require_direction(found: Measurement, has_numbers: bool) -> None:
    """A backward's numbers are of a backward, and its gradients are right. Raises ValueError."""
    direction = found.request.direction
    of_backward = (found.gradients, found.parts, found.backward_tiles)
    if direction == "forward" and any(one is not None for one in of_backward):
        raise ValueError("gradients, parts of a step or tiles of a backward are not possible with direction = forward.")
    if direction == "forward":
        return
    if has_numbers and (found.gradients is None or not found.gradients.passed):
        raise ValueError("a latency of a backward without gradients that passed their check is not a result.")
    if found.parts is not None and (direction != "both" or found.latency is None):
        raise ValueError("parts of a step are possible only with direction = both, beside the time of the whole.")
    if found.tiles_trace is not None or found.schedule is not None:
        raise ValueError(f"a trace or a schedule is not possible with direction = {direction}.")


class Measurement(Frozen):
    """The answer to one RunRequest; what is stored, shared, compared and drawn.

    latency is what the request's direction says, alone, cold; with_prepass the FP8 quantisation and the same in a row, timed
    the same way; warm the same in a CUDA graph with the cache warm, another quantity that is compared with nothing but itself.
    parts: of a training step, where its time goes. missing: why one of them is None. accuracy is the forward's, gradients the
    backward's. A speed is impossible without a passed accuracy, and with a backward without right gradients: the validator
    refuses it.
    """

    request: RunRequest
    tiles: TileConfig | None
    backward_tiles: BackwardTiles | None = None
    environment: Environment
    started_at: Moment
    duration_s: Seconds
    first_launch_ms: Ms | None = None
    accuracy: Accuracy | None = None
    gradients: GradientAccuracy | None = None
    latency: Latency | None = None
    parts: Parts | None = None
    with_prepass: Latency | None = None
    warm: Latency | None = None
    memory: Memory | None = None
    timeline: Timeline | None = None
    compiled: Annotated[tuple[CompileReport, ...], Field(max_length=40), FailFast()] = ()
    tiles_trace: TileTrace | None = None
    schedule: Schedule | None = None
    energy: Energy | None = None
    flags: Annotated[tuple[Flag, ...], Field(max_length=100), FailFast()] = ()
    error: JobError | None = None
    missing: Missing = {}

    @model_validator(mode="after")
    def _no_number_without_a_proof(self) -> Measurement:
        parts = () if self.parts is None else self.parts.timed
        timed = [latency for latency in (self.latency, self.with_prepass, self.warm, *parts) if latency is not None]
        proved = self.accuracy is not None and self.accuracy.passed
        if (timed or self.schedule is not None or self.energy is not None) and not proved:
            raise ValueError("a latency without a passed accuracy check is not a result.")
        _require_direction(self, bool(timed) or self.energy is not None)
        if any((latency.mode == "warm") != (latency is self.warm) for latency in timed):
            raise ValueError("a warm time in the place of a cold one, or a cold one in its place, is not possible.")
        trace = self.tiles_trace
        if trace is not None and (self.tiles is None or not trace.fits(self.request.problem, self.tiles)):
            raise ValueError("a trace that does not fit the problem and the tiles is not of this run.")
        if self.schedule is not None and (self.tiles is None or not self.schedule.fits(self.request.problem, self.tiles)):
            raise ValueError("a schedule that does not fit the problem and the tiles is not of this run.")
        kind = self.environment.device.kind
        if any((latency.provenance == "measured") != (kind == "gpu") for latency in timed):
            raise ValueError(f"a latency that is {timed[0].provenance} on a device of kind {kind} is not possible.")
        if self.schedule is not None and kind != "gpu":
            raise ValueError(f"a schedule on a device of kind {kind} is not possible: stamps are a GPU's.")
        if self.energy is not None and kind != "gpu":
            raise ValueError(f"an energy on a device of kind {kind} is not possible: NVML's counter is a GPU's.")
        return self

    @property
    def wrong(self) -> Literal["output", "gradients"] | None:
        """What was checked and is not right; None where all of it is, or nothing was checked."""
        if self.accuracy is not None and not self.accuracy.passed:
            return "output"
        return "gradients" if self.gradients is not None and not self.gradients.passed else None

    @property
    def label(self) -> str:
        """A name that tells it from others: 'v2', 'v1 key-outer', 'v3 FP8', 'cuDNN (SDPA) bwd', 'v2 fwd+bwd'."""
        return label_of(self.request, self.tiles)

    @property
    def tflop_per_joule(self) -> float | None:
        """Floating-point operations a joule, in units of 1e12; None without an energy."""
        if self.energy is None or self.energy.per_launch_mj is None:
            return None
        return self.request.flops / self.energy.per_launch_mj / 1e9

    @property
    def tflops(self) -> float | None:
        """Achieved TFLOP/s of the kernel alone; None without a GPU time."""
        if self.latency is None or self.latency.provenance != "measured":
            return None
        return self.request.flops / self.latency.median_ms / 1e9

    @property
    def tflops_with_prepass(self) -> float | None:
        """Achieved TFLOP/s when the FP8 pre-pass counts; None without one."""
        if self.with_prepass is None or self.with_prepass.provenance != "measured":
            return None
        return self.request.flops / self.with_prepass.median_ms / 1e9

    @property
    def peak_tflops(self) -> float | None:
        """The device's data-sheet rate for the number format of this run."""
        device = self.environment.device
        return rate_of(self.request, device.peak_bf16_tflops, device.peak_fp8_tflops)


class Ready(Frozen):
    """A worker's first line: it lives, and this is its device."""

    type: Literal["ready"] = "ready"
    environment: Environment


class Progress(Frozen):
    """Where a job is. done of total count within the phase; total 0 when it cannot be counted."""

    type: Literal["progress"] = "progress"
    job_id: str
    phase: Phase
    text: Text
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
