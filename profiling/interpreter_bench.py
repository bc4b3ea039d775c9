"""Triton's interpreter as a device: every kernel runs once, on the CPU, while its compile report is made beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from kernels.kernel import AttentionOutput, Gradients
from kernels.registry import Refused
from profiling import flags, memory
from profiling.backward_record import Parts
from profiling.bench import Say
from profiling.case import DEFAULT_CAPABILITY, Case, Inputs
from profiling.compiler_process import CompilerProcess, Question
from profiling.measure import wall_latency
from profiling.records import Environment, Flag, JobError, PhaseSpan
from profiling.tile_trace import Subject


class InterpreterBench:
    """See profiling.bench.Bench."""

    provenance = "interpreted"
    arch = None

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.device = torch.device("cpu")
        self._compiler = CompilerProcess()
        self._asked: list[int] = []

    def begin_job(self) -> None:
        """Nothing to look at."""
        self._asked.clear()

    def end_job(self) -> None:
        """Forget reports that nobody waits for."""
        self._compiler.forget()

    def tidy(self) -> None:
        """The CPU's allocator needs no help."""

    def refuse_if_too_large(self, case: Case) -> None:
        """Against the host memory that is free."""
        free = memory.free_host_bytes()
        if free is not None:
            memory.refuse_if_too_large(case.request, case.tiles, free, self.environment.device.name)

    def begin_case(self, case: Case) -> None:
        """Have the compile report made meanwhile, in a process without the interpreter."""
        if case.wants_report:
            capability = case.request.compile_for or DEFAULT_CAPABILITY
            request = case.request.model_copy(update={"tiles": case.tiles})
            self._compiler.ask(Question(request=request, capability=capability))
            self._asked.append(case.index)

    def first_run(self, case: Case, say: Say) -> AttentionOutput:
        """Interpret the kernel, once; with FP8 the pre-pass has been interpreted before."""
        verb = "interpreting" if case.entry.has_tiles else "running"
        say("latency", f"{verb} {case.request.kernel} on the CPU", 0, 0)
        begin = time.perf_counter()
        output = case.forward()
        if case.wants("latency"):
            case.latency = wall_latency(time.perf_counter() - begin)
            case.flags.append(flags.interpreter_flag(case.entry.has_tiles))
        return output

    def first_backward(self, case: Case, say: Say) -> Gradients:
        """Interpret the backward, once; of a step what it begins with is interpreted once more, for its time."""
        verb = "interpreting" if case.entry.has_tiles else "running"
        say("latency", f"{verb} the backward of {case.request.kernel} on the CPU", 0, 0)
        begin = time.perf_counter()
        gradients = case.differentiate()
        took = wall_latency(time.perf_counter() - begin)
        if not case.wants("latency"):
            return gradients
        if case.request.direction == "both":
            begin = time.perf_counter()
            delta = case.preprocess()
            preprocess = None if delta is None else wall_latency(time.perf_counter() - begin)
            missing = {} if preprocess else {"preprocess": no_preprocess(case)}
            case.parts = Parts(forward=case.latency, backward=took, preprocess=preprocess, missing=missing)
            took = wall_latency((case.latency.median_ms + took.median_ms) / 1000.0)
        case.latency = took
        return gradients

    def time(self, cases: Sequence[Case], inputs_of: Callable[[Case], Inputs], say: Say) -> None:
        """The first run was the one."""

    def take_memory(self, case: Case) -> None:
        """Sizes by arithmetic."""
        case.memory = memory.on_cpu(memory.estimate(case.request, case.tiles), case.has_backward)

    def observe(self, case: Case) -> None:
        """There is nothing to see."""

    def take_energy(self, case: Case, say: Say) -> None:
        """No energy counter here."""
        raise Refused("energy is not possible in the interpreter: only a GPU has a counter of it.")

    def take_schedule(self, case: Case, subject: Subject, say: Say) -> None:
        """There are no SMs here."""
        raise Refused("a schedule is not possible in the interpreter: only a GPU has SMs and a clock that kernels can read.")

    def report_compiler(self, case: Case) -> None:
        """Take the report that was made meanwhile; where there is none a flag says why."""
        if case.index not in self._asked:
            return
        self._asked.remove(case.index)
        answer = self._compiler.answer()
        case.compiled = answer.reports
        if answer.error is not None:
            capability = case.request.compile_for or DEFAULT_CAPABILITY
            case.flags.append(no_report_flag(answer.error, capability))

    def sample(self, on: bool) -> None:
        """No NVML here."""

    def timeline(self, start: float, spans: tuple[PhaseSpan, ...]) -> None:
        """No NVML here."""


def no_preprocess(case: Case) -> str:
    """Why a step has no pre-process pass."""
    return f"the backward of {case.request.kernel} has no pass of its own for delta = rowsum(dO ∘ O)"


def no_report_flag(error: JobError, capability: int) -> Flag:
    """Why there is no compile report: the tiles do not fit that GPU, or the compiler failed."""
    if error.kind == "refused" and error.needs is not None:
        return Flag(name="does not fit", severity="caution", short=f"does not fit sm_{capability}", sentence=error.sentence)
    return Flag(name="no compile report", severity="info", short="no compile report", sentence=error.sentence)
