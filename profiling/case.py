"""One request on its way through a job: what is launched for it, and the measurement that comes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from kernels.architecture import Architecture, architecture
from kernels.kernel import AttentionOutput, Backward, Gradients, Kernel, Launcher, Operands, require_layout
from kernels.problem import AttentionProblem, BackwardTiles, Precision, TileConfig
from kernels.registry import (
    Version,
    backward_of,
    can_be_watched,
    default_backward_tiles,
    default_tiles,
    load,
    load_backward,
    refuse,
    refuse_backward,
    version,
)
from profiling import flags
from profiling.backward_record import NAMES, GradientAccuracy, Parts
from profiling.records import (
    Accuracy,
    CompileReport,
    Effort,
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


@dataclass(frozen=True)
class Step:
    """What a launch of the forward, the backward or both has returned: what is not computed is None."""

    output: AttentionOutput | None = None
    gradients: Gradients | None = None


@dataclass(frozen=True)
class Tensors:
    """What is on the device for a request. operands: what the forward reads; of_backward: what the backward does."""

    operands: Operands
    of_backward: Operands | None = None
    d_out: torch.Tensor | None = None


@dataclass
class Case:
    """A request and what is known of it so far. error set: it is given up, and the job's other cases go on.

    seen: what the output that was checked holds in a few places, for the launches that are timed to be held against;
    is_contradicted: something about those launches cannot be true. traced_rows: the first launch's output where the trace
    will look, kept because the output itself is not. With a backward: output is the first forward's, which is kept for it,
    seen_gradients what dq, dk and dv hold in a few places, seen_delta the same of delta where the backward computes it first.
    """

    index: int
    request: RunRequest
    effort: Effort = "full"
    tiles: TileConfig | None = None
    entry: Version | None = None
    kernel: Kernel | None = None
    launch: Launcher | None = None
    backward: Backward | None = None
    backward_tiles: BackwardTiles | None = None
    tensors: Tensors | None = None
    output: AttentionOutput | None = None
    first_launch_ms: float | None = None
    accuracy: Accuracy | None = None
    gradients: GradientAccuracy | None = None
    latency: Latency | None = None
    parts: Parts | None = None
    with_prepass: Latency | None = None
    warm: Latency | None = None
    is_contradicted: bool = False
    seen: Seen | None = None
    seen_gradients: dict[str, Seen] = field(default_factory=dict)
    seen_delta: Seen | None = None
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
        """Whether all that is computed was checked and passed, and no timing has been contradicted: only then has it a time."""
        checked = (self.accuracy, self.gradients) if self.has_backward else (self.accuracy,)
        return all(found is not None and found.passed for found in checked) and not self.is_contradicted

    @property
    def has_backward(self) -> bool:
        """Whether gradients are computed."""
        return self.request.direction != "forward"

    @property
    def is_autograd(self) -> bool:
        """Whether torch's autograd makes the backward, which then needs the graph of its own forward."""
        return self.has_backward and not self.entry.has_tiles

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

    @property
    def wants_report(self) -> bool:
        """Whether the request asks for the compile report, which is of the forward's kernels, and its version has them."""
        return self.wants("compile") and self.entry.has_tiles and self.request.direction != "backward"

    def admit(self, arch: Architecture | None) -> None:
        """Settle the tiles; arch None is the interpreter. Raises ValueError, or Refused, for what cannot work."""
        self.entry = version(self.request.kernel)
        shown_for = arch or architecture(self.request.compile_for or DEFAULT_CAPABILITY)
        if self.entry.has_tiles:
            self.tiles = self.request.tiles or default_tiles(self.entry.name, self.problem, self.precision, shown_for)
        refuse(self.entry.name, self.problem, self.precision, self.tiles, arch)
        if self.has_backward:
            self.backward_tiles = self.request.backward_tiles or default_backward_tiles(
                self.entry.name, self.problem, self.precision, shown_for
            )
            refuse_backward(self.entry.name, self.problem, self.precision, self.backward_tiles, arch)
            owner = backward_of(self.entry.name, self.problem).owner
            if owner not in (None, self.entry.name):
                self.flags.append(flags.other_backward_flag(self.entry.name, owner))
        if self.wants_trace:
            require_choice(self.request.trace, self.problem, self.tiles)
        if self.request.direction == "backward" and self.wants("compile"):
            self.missing["compiled"] = "the compile report is of the forward's kernels: direction forward or both has it"

    def load(self) -> None:
        """Import the kernel. Raises ImportError where it needs what is not installed."""
        self.kernel = load(self.request.kernel)
        if self.entry.has_tiles:
            # kernels.launch imports Triton, which native and the peers do without.
            from kernels.launch import Launch

            self.launch = Launch()
        if self.has_backward:
            self.backward = load_backward(self.request.kernel, self.problem)

    @property
    def operands(self) -> Operands | None:
        """What the forward reads; None before there is any."""
        return None if self.tensors is None else self.tensors.operands

    def prepare(self, inputs: Inputs, d_out: torch.Tensor | None = None) -> None:
        """The pre-pass: the FP8 operands, or the inputs as they are; and what a backward reads."""
        require_layout(self.problem, *inputs)
        self.tensors = self.prepared(inputs, d_out)

    def prepared(self, inputs: Inputs, d_out: torch.Tensor | None = None) -> Tensors:
        """Operands of these inputs."""
        if not self.has_backward:
            return Tensors(self.kernel.prepare(*inputs, self.precision, self.launch))
        of_backward = self.backward.prepare(*inputs)
        if not self.precision.fp8:
            return Tensors(of_backward, of_backward, d_out)
        return Tensors(self.kernel.prepare(*inputs, self.precision, self.launch), of_backward, d_out)

    def forward(self, tensors: Tensors | None = None, problem: AttentionProblem | None = None) -> AttentionOutput:
        """The attention, as it is checked and timed. native gives lse only in a pass of its own, which is left out.

        tensors and problem are the case's, unless others are given, as below.
        """
        operands = (tensors or self.tensors).operands
        return self.kernel.forward(operands, problem or self.problem, self.tiles, self.launch, with_lse=self.entry.has_tiles)

    def preprocess(self) -> torch.Tensor | None:
        """What the backward begins with, of the output that is kept; None where it is no step of its own."""
        return self.backward.preprocess(self.tensors.of_backward, self.output, self.tensors.d_out, self.problem, self.launch)

    def delta_in(self, preprocessed: torch.Tensor) -> torch.Tensor:
        """The row sums of dO ∘ O in what preprocess() returned: (batch, num_heads, seq_len_q)."""
        return self.backward.row_sums_in(preprocessed, self.problem)

    def differentiate(
        self, output: AttentionOutput | None = None, tensors: Tensors | None = None, problem: AttentionProblem | None = None
    ) -> Gradients:
        """The whole backward of a forward's output, which is the one that is kept unless another is given."""
        found = tensors or self.tensors
        return self.backward.backward(
            found.of_backward, output or self.output, found.d_out, problem or self.problem, self.backward_tiles, self.launch
        )

    def step(self, tensors: Tensors | None = None, problem: AttentionProblem | None = None) -> Step:
        """The forward and its backward after it: a training step's attention."""
        output = self.forward(tensors, problem)
        return Step(output, self.differentiate(output, tensors, problem))

    def see_gradients(self, gradients: Gradients) -> None:
        """Remember what the first backward's results hold in a few places; of delta, torch's own sums do."""
        self.seen_gradients = {name: Seen.of(getattr(gradients, name)) for name in NAMES}
        if self.preprocess() is not None:
            self.seen_delta = Seen.of((self.tensors.d_out.float() * self.output.out.float()).sum(-1))

    def run_on(
        self, tensors: Tensors, problem: AttentionProblem | None = None, output: AttentionOutput | None = None
    ) -> Callable[[], Step]:
        """What is timed, by the request's direction, on these tensors; output is what a backward alone starts from."""
        if self.request.direction == "forward":
            return lambda: Step(self.forward(tensors, problem))
        if self.request.direction == "both":
            return lambda: self.step(tensors, problem)
        return lambda: Step(None, self.differentiate(output, tensors, problem))

    @property
    def run(self) -> Callable[[], Step]:
        """What is timed, by the request's direction."""
        if self.request.direction == "forward":
            return lambda: Step(self.forward())
        return self.run_on(self.tensors, None, self.output)

    def prepare_and_run(self, inputs: Inputs) -> Callable[[], Step]:
        """What is timed with its pre-pass before it, on operands of its own."""
        return lambda: self.run_on(self.prepared(inputs, self.tensors.d_out))()

    def forget_tensors(self) -> None:
        """Let go of all that is on the device."""
        self.tensors = self.output = None

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
            backward_tiles=self.backward_tiles,
            environment=environment,
            started_at=started_at,
            duration_s=duration_s,
            first_launch_ms=self.first_launch_ms,
            accuracy=self.accuracy,
            gradients=self.gradients,
            latency=self.latency if self.is_right else None,
            parts=self.parts if self.is_right and self.latency is not None else None,
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
