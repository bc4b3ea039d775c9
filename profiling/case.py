"""One request on its way through a job, and the measurement that comes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from kernels.architecture import Architecture, architecture
from kernels.kernel import AttentionOutput, Kernel, Launcher, Operands, require_layout
from kernels.problem import AttentionProblem, Precision, TileConfig
from kernels.registry import Version, can_be_watched, default_tiles, load, refuse, version
from profiling.records import (
    Accuracy,
    CompileReport,
    Energy,
    Environment,
    Flag,
    JobError,
    Latency,
    Measurement,
    Memory,
    RunRequest,
    Timeline,
    label_of,
)
from profiling.schedule_record import Schedule
from profiling.tile_trace import Subject, output_rows, require_choice
from profiling.trace_record import TileTrace
from profiling.witness import Seen

DEFAULT_CAPABILITY = 90
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass
class Case:
    """A request and what is known of it so far. error set: it is given up, and the job's other cases go on.

    seen: what the output that was checked holds in a few places, for the launches that are timed to be held against;
    is_contradicted: something about those launches cannot be true. traced_rows: the first launch's output where the trace
    will look, kept because the output itself is not.
    """

    index: int
    request: RunRequest
    tiles: TileConfig | None = None
    entry: Version | None = None
    kernel: Kernel | None = None
    launch: Launcher | None = None
    operands: Operands | None = None
    first_launch_ms: float | None = None
    accuracy: Accuracy | None = None
    latency: Latency | None = None
    with_prepass: Latency | None = None
    warm: Latency | None = None
    is_contradicted: bool = False
    seen: Seen | None = None
    memory: Memory | None = None
    compiled: tuple[CompileReport, ...] = ()
    traced_rows: np.ndarray | None = None
    tiles_trace: TileTrace | None = None
    schedule: Schedule | None = None
    energy: Energy | None = None
    flags: list[Flag] = field(default_factory=list)
    error: JobError | None = None
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def problem(self) -> AttentionProblem:
        """The request's."""
        return self.request.problem

    @property
    def precision(self) -> Precision:
        """The request's."""
        return self.request.precision

    @property
    def label(self) -> str:
        """The measurement's, before there is one."""
        return label_of(self.request, self.tiles)

    @property
    def is_right(self) -> bool:
        """Whether the output was checked and passed, and its timing has not been contradicted: only then has it a time."""
        return self.accuracy is not None and self.accuracy.passed and not self.is_contradicted

    def wants(self, *probes: str) -> bool:
        """Whether the request asks for one of these."""
        return any(probe in self.request.probes for probe in probes)

    @property
    def wants_trace(self) -> bool:
        """Whether the request asks for its tiles, and its version can store them."""
        return self.wants("tiles") and can_be_watched(self.entry.name, self.precision.fp8)

    @property
    def is_launched(self) -> bool:
        """Whether anything that is asked for needs a launch."""
        return self.wants("accuracy", "latency", "warm", "memory", "energy") or self.wants_trace or self.wants_schedule

    @property
    def wants_schedule(self) -> bool:
        """Whether the request asks who ran where and when, and its version can stamp it."""
        return self.wants("schedule") and can_be_watched(self.entry.name, self.precision.fp8)

    def admit(self, arch: Architecture | None) -> None:
        """Settle the tiles; arch None is the interpreter. Raises ValueError, or Refused, for what cannot work."""
        self.entry = version(self.request.kernel)
        shown_for = arch or architecture(self.request.compile_for or DEFAULT_CAPABILITY)
        if self.entry.has_tiles:
            self.tiles = self.request.tiles or default_tiles(self.entry.name, self.problem, self.precision, shown_for)
        refuse(self.entry.name, self.problem, self.precision, self.tiles, arch)
        if self.wants_trace:
            require_choice(self.request.trace, self.problem, self.tiles)

    def load(self) -> None:
        """Import the kernel. Raises ImportError where it needs what is not installed."""
        self.kernel = load(self.request.kernel)
        if self.entry.has_tiles:
            # kernels.launch imports Triton, which native and the peers do without.
            from kernels.launch import Launch

            self.launch = Launch()

    def prepare(self, inputs: Inputs) -> None:
        """The pre-pass: the FP8 operands, or the inputs as they are."""
        require_layout(self.problem, *inputs)
        self.operands = self.kernel.prepare(*inputs, self.precision, self.launch)

    def forward(self) -> AttentionOutput:
        """The attention, as it is checked and timed. native gives lse only in a pass of its own, which is left out."""
        return self.kernel.forward(self.operands, self.problem, self.tiles, self.launch, with_lse=self.entry.has_tiles)

    def prepare_and_forward(self, inputs: Inputs) -> Callable[[], AttentionOutput]:
        """A run of both, on operands of its own."""

        def run() -> AttentionOutput:
            operands = self.kernel.prepare(*inputs, self.precision, self.launch)
            return self.kernel.forward(operands, self.problem, self.tiles, self.launch, with_lse=self.entry.has_tiles)

        return run

    def keep_traced_rows(self, output: AttentionOutput) -> None:
        """Remember what a trace's last frame must equal."""
        self.traced_rows = output_rows(output.out, self.request, self.tiles)

    def subject(self, inputs: Inputs) -> Subject:
        """What a traced launch needs."""
        return Subject(self.request, self.tiles, self.kernel, self.launch, self.operands, inputs)

    def measurement(
        self, environment: Environment, started_at: str, duration_s: float, timeline: Timeline | None
    ) -> Measurement:
        """The record. A speed without a passed check is left out, whatever was timed."""
        return Measurement(
            request=self.request,
            tiles=self.tiles,
            environment=environment,
            started_at=started_at,
            duration_s=duration_s,
            first_launch_ms=self.first_launch_ms,
            accuracy=self.accuracy,
            latency=self.latency if self.is_right else None,
            with_prepass=self.with_prepass if self.is_right else None,
            warm=self.warm if self.is_right else None,
            memory=self.memory,
            timeline=timeline,
            compiled=self.compiled,
            tiles_trace=self.tiles_trace,
            schedule=self.schedule if self.is_right else None,
            energy=self.energy if self.is_right else None,
            flags=tuple(self.flags),
            error=self.error,
            missing=self.missing,
        )
