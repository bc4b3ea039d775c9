"""A job from its line to its results: what is done in which order, and what one failure takes with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import torch

from profiling import accuracy, flags, gradient_check, tile_trace
from profiling.bench import Bench, draw_d_out, draw_inputs
from profiling.case import Case, Inputs
from profiling.failures import is_sticky, job_error
from profiling.records import Done, Flag, Job, JobError, Phase, PhaseSpan, Progress, Result

Message = Progress | Result | Done
_INPUTS = {"normal": "drawing N(0, 1)", "own": "taking one's own"}


class _Broken(Exception):
    """The process can launch nothing more."""


class JobRun:
    """One job on one bench. run() sends its progress, a Result a request, and Done."""

    def __init__(self, job: Job, bench: Bench, send: Callable[[Message], None]) -> None:
        self._job, self._bench, self._send = job, bench, send
        self._cases = [Case(index, request, job.effort) for index, request in enumerate(job.requests)]
        self._inputs: dict[str, Inputs] = {}
        self._d_out: dict[str, torch.Tensor] = {}
        self._exact: dict[str, accuracy.Reference] = {}
        self._exact_gradients: dict[str, tuple[gradient_check.GradientReference, gradient_check.Sampled]] = {}
        self._spans: list[PhaseSpan] = []
        self._phase: Phase = "inputs"
        self._start = time.perf_counter()
        self._started_at = datetime.now(UTC).isoformat(timespec="milliseconds")

    def run(self) -> bool:
        """Do the job; False when the process should be replaced."""
        healthy = True
        self._bench.begin_job()
        try:
            try:
                self._steps()
            except _Broken:
                healthy = False
            self._results()
        finally:
            self._bench.end_job()
        self._send(Done(job_id=self._job.job_id, healthy=healthy))
        return healthy

    def _steps(self) -> None:
        with self._span("inputs"):
            for case in self._cases:
                self._attempt(case, self._admit)
        for case in self._living():
            if case.is_launched:
                self._attempt(case, self._launch_and_check)
        self._exact.clear()
        self._exact_gradients.clear()
        self._bench.tidy()
        self._time()
        for case in self._living():
            self._attempt(case, self._take_memory)
            self._attempt(case, self._take_energy)
            self._attempt(case, self._trace_tiles)
            self._attempt(case, self._stamp)
            case.forget_tensors()
        for case in self._cases:
            admitted = case.error is None or case.kernel is not None
            if admitted and case.wants_report:
                self._attempt(case, self._report_compiler)

    def _living(self) -> list[Case]:
        return [case for case in self._cases if case.error is None]

    def _attempt(self, case: Case, step: Callable[[Case], None]) -> None:
        """Do a step; what it raises becomes the case's error. Raises _Broken when the process will not survive it."""
        try:
            step(case)
        except Exception as error:  # the job boundary: kernels may raise anything, and the worker must live
            case.error = case.error or job_error(error, case.request.kernel, self._phase)
            case.forget_tensors()
            if is_sticky(error):
                self._give_up(case)
                raise _Broken from None

    def _give_up(self, culprit: Case) -> None:
        for case in self._cases:
            if case.error is None and case.latency is None:
                sentence = f"{case.request.kernel} was not run: {culprit.request.kernel} broke the GPU's context before."
                case.error = JobError(kind="launch", sentence=sentence)

    # The steps

    def _admit(self, case: Case) -> None:
        device_id = self._bench.environment.device.id
        if case.request.device != device_id:
            raise ValueError(f"device = {case.request.device} is not possible here: this worker serves {device_id}.")
        case.admit(self._bench.arch)
        self._bench.refuse_if_too_large(case)
        if case.is_launched:
            case.load()
        self._bench.begin_case(case)

    def _launch_and_check(self, case: Case) -> None:
        inputs, name = self._inputs_of(case), case.request.kernel
        with self._span("compile"):
            self._say("compile", f"preparing {name}")
            case.prepare(inputs, self._d_out_of(case) if case.has_backward else None)
            output = self._bench.first_run(case, self._say)
        if case.wants_trace:
            case.keep_traced_rows(output)
        if not case.wants("accuracy", "latency", "warm", "energy") and not case.wants_schedule:
            return
        with self._span("check"):
            self._say("check", f"checking {name} against float64")
            dtype = case.precision.dtype
            if dtype not in self._exact:
                self._exact[dtype] = accuracy.reference_of(*inputs, case.problem, case.request.seed)
            case.accuracy = accuracy.check(
                output.out.detach(), output.lse, *inputs, case.problem, case.precision, self._bench.provenance,
                kernel=name, operands=case.operands, exact=self._exact[dtype],
            )  # fmt: skip
        if not case.accuracy.passed:
            case.flags.append(_wrong_flag(case))
        elif case.has_backward:
            case.output = output
            self._differentiate_and_check(case, inputs)
        del output
        self._bench.tidy()

    def _differentiate_and_check(self, case: Case, inputs: Inputs) -> None:
        """The backward of a forward that is right. With FP8 its gradients are those of the FP8 forward's own output, too."""
        name, dtype, d_out = case.request.kernel, case.precision.dtype, self._d_out_of(case)
        with self._span("compile"):
            self._say("compile", f"preparing the backward of {name}")
            gradients = self._bench.first_backward(case, self._say)
        with self._span("check"):
            self._say("check", f"checking the gradients of {name} against float64")
            if dtype not in self._exact_gradients:
                exact = gradient_check.reference_of(*inputs, d_out, case.problem, case.request.seed)
                sampled = gradient_check.sample_terms(exact, *inputs, d_out, case.problem)
                self._exact_gradients[dtype] = exact, sampled
            exact, sampled = self._exact_gradients[dtype]
            own = None
            if case.precision.fp8:
                own = gradient_check.reference_of(*inputs, d_out, case.problem, case.request.seed, case.output)
            case.gradients = gradient_check.check(
                gradients, exact, sampled, case.problem, case.precision, self._bench.provenance, name, own
            )
        if not case.gradients.passed:
            case.flags.append(_wrong_gradients_flag(case))

    def _time(self) -> None:
        cases = [case for case in self._living() if case.is_right and case.wants("latency", "warm")]
        if not cases:
            return
        try:
            with self._span("latency", sampled=False):
                self._bench.time(cases, self._inputs_of, self._say)
        except Exception as error:  # the job boundary, for what no single case is to blame for
            for case in cases:
                case.error = case.error or job_error(error, case.request.kernel, "latency")
            if is_sticky(error):
                self._give_up(next(case for case in cases if case.error))
                raise _Broken from None

    def _take_memory(self, case: Case) -> None:
        if not case.wants("memory"):
            return
        name = case.request.kernel
        with self._span("memory"):
            self._say("memory", f"reading the memory of {name}")
            self._bench.take_memory(case)
        if case.latency is not None and not case.wants("energy"):
            with self._span("observe"):
                self._say("observe", f"watching the device under {name}")
                self._bench.observe(case)

    def _take_energy(self, case: Case) -> None:
        """After everything that is timed; an energy that fails must not take the result away."""
        if not case.wants("energy") or not case.is_right or case.error is not None:
            return
        name = case.request.kernel
        with self._span("energy"):
            self._say("energy", f"launching {name} for a second beside the energy counter")
            try:
                self._bench.take_energy(case, self._say)
            except Exception as error:
                if is_sticky(error):
                    raise
                failed = job_error(error, name, "energy")
                case.missing["energy"] = failed.sentence
                case.flags.append(_no_energy_flag(failed))

    def _trace_tiles(self, case: Case) -> None:
        """After everything that is timed; a trace that fails must not take the result away."""
        if case.traced_rows is None or case.error is not None:
            return
        name = case.request.kernel
        with self._span("trace"):
            self._say("trace", f"tracing the tiles of {name}")
            try:
                subject = case.subject(self._inputs_of(case))
                case.tiles_trace = tile_trace.take(subject, case.traced_rows, self._bench.provenance)
            except Exception as error:
                if is_sticky(error):
                    raise
                case.flags.append(_no_trace_flag(job_error(error, name, "trace")))
                return
        if not case.tiles_trace.replay.passed:
            case.flags.append(_wrong_trace_flag(name))

    def _stamp(self, case: Case) -> None:
        """After everything else that is timed; a schedule that fails must not take the result away."""
        if not case.wants_schedule or not case.is_right or case.error is not None:
            return
        name = case.request.kernel
        with self._span("schedule", sampled=False):
            self._say("schedule", f"stamping where and when the programs of {name} run")
            try:
                self._bench.take_schedule(case, case.subject(self._inputs_of(case)), self._say)
            except Exception as error:
                if is_sticky(error):
                    raise
                case.flags.append(flags.no_schedule_flag(job_error(error, name, "schedule")))
                return
        case.flags += flags.schedule_flags(case.schedule)

    def _report_compiler(self, case: Case) -> None:
        self._say("compile", f"reading what the compiler made of {case.request.kernel}")
        self._bench.report_compiler(case)

    # Around the steps

    def _inputs_of(self, case: Case) -> Inputs:
        dtype = case.precision.dtype
        if dtype not in self._inputs:
            with self._span("inputs"):
                self._say("inputs", f"{_INPUTS.get(case.request.inputs, f'drawing {case.request.inputs}')} inputs in {dtype}")
                self._inputs[dtype] = draw_inputs(case, self._bench.device)
        return self._inputs[dtype]

    def _d_out_of(self, case: Case) -> torch.Tensor:
        dtype = case.precision.dtype
        if dtype not in self._d_out:
            self._d_out[dtype] = draw_d_out(case, self._bench.device)
        return self._d_out[dtype]

    @contextmanager
    def _span(self, phase: Phase, sampled: bool = True) -> Iterator[None]:
        self._bench.sample(sampled)
        begin = time.perf_counter() - self._start
        try:
            yield
        finally:
            end = time.perf_counter() - self._start
            if not sampled:
                self._bench.sample(True)
            self._spans.append(PhaseSpan(phase=phase, start_s=begin, end_s=end, sampled=sampled))

    def _say(self, phase: Phase, text: str, done: int = 0, total: int = 0) -> None:
        self._phase = phase
        self._send(Progress(job_id=self._job.job_id, phase=phase, text=text, done=done, total=total))

    def _results(self) -> None:
        self._bench.sample(False)
        spans = tuple(sorted(self._spans, key=lambda span: span.start_s))
        timeline = self._bench.timeline(self._start, spans)
        environment, seconds = self._bench.environment, time.perf_counter() - self._start
        for case in self._cases:
            measurement = case.measurement(environment, self._started_at, seconds, timeline)
            self._send(Result(job_id=self._job.job_id, index=case.index, measurement=measurement))


def _wrong_flag(case: Case) -> Flag:
    found = case.accuracy
    if found.non_finite:
        what = f"{found.non_finite:,} of its elements are NaN or infinite"
    elif found.relative_error is None:
        what = found.missing.get("relative_error", "its error cannot be computed")
    elif found.relative_error > found.allowed_relative_error:
        what = f"it is {found.relative_error:.2g} off, and rounding explains at most {found.allowed_relative_error:.2g}"
    elif found.lse_max_abs_error is None:
        what = found.missing.get("lse_max_abs_error", "its log-sum-exp is not right")
    else:
        what = "its log-sum-exp or its quantisation is further off than rounding explains"
    return Flag(
        name="wrong output",
        severity="bad",
        short="wrong output",
        sentence=f"The output of {case.request.kernel} is wrong: {what}. It was not timed.",
    )


def _wrong_gradients_flag(case: Case) -> Flag:
    name, worst = case.gradients.worst
    if worst.non_finite:
        what = f"{worst.non_finite:,} of the elements of {name} are NaN or infinite"
    elif worst.relative_error is None:
        what = case.gradients.missing.get(name, f"the error of {name} cannot be computed")
    else:
        what = f"{name} is {worst.relative_error:.2g} off, and rounding explains at most {worst.allowed_relative_error:.2g}"
    return Flag(
        name="wrong gradients",
        severity="bad",
        short=f"wrong {name}",
        sentence=f"The backward of {case.request.kernel} is wrong: {what}. It was not timed.",
    )


def _no_energy_flag(error: JobError) -> Flag:
    return Flag(name="no energy", severity="caution", short="no energy", sentence=f"The energy is not there: {error.sentence}")


def _no_trace_flag(error: JobError) -> Flag:
    return Flag(name="no trace", severity="caution", short="no trace", sentence=f"The tiles are not there: {error.sentence}")


def _wrong_trace_flag(name: str) -> Flag:
    return Flag(
        name="trace does not agree",
        severity="bad",
        short="trace does not agree",
        sentence=f"The tiles of {name} are not what a replay of the same tiles gives, or do not end in its output.",
    )
