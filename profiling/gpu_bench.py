"""A GPU as a device: launches timed cold and interleaved, memory by torch and NVML, readings from a thread."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from kernels.architecture import architecture
from kernels.kernel import AttentionOutput, Gradients
from kernels.registry import Refused
from profiling import energy, flags, memory, schedule
from profiling.bench import Say
from profiling.case import Case, Inputs, Step
from profiling.cuda_stream import as_graph, cuda_timer
from profiling.failures import job_error, with_cure
from profiling.gpu_lock import gpu_lock
from profiling.interpreter_bench import no_report_flag
from profiling.measure import Timer
from profiling.memory_curve import curve_of
from profiling.nvml import Nvml
from profiling.records import Environment, Flag, Latency, Phase, PhaseSpan, Timeline, rate_of
from profiling.sampler import Sampler, timeline
from profiling.tile_trace import Subject
from profiling.timed_cases import Launched, TimedCases
from profiling.witness import Seen
from profiling.words import bytes_

_OBSERVE_S = 0.5
_BATCH_MS = 20.0
_OWN_LOAD_FADES_S, _BETWEEN_LOOKS_S = 1.5, 0.05
_MOST_MARKS = 2000


class GpuBench:
    """See profiling.bench.Bench. device is CUDA's, which environment.device.id names by UUID."""

    provenance = "measured"
    make_timer = staticmethod(cuda_timer)

    def __init__(self, environment: Environment, device: torch.device, utilisation_at_start: int | None = None) -> None:
        self.environment, self.device = environment, device
        self.capability = environment.device.capability
        self.arch = architecture(self.capability)
        self._nvml = Nvml.open(environment.device.id)
        self._timer: Timer | None = None
        self._sampler: Sampler | None = None
        self._utilisation_at_start = utilisation_at_start
        self._utilisation_before: int | None = None
        self._launched: list[Launched] = []
        self._ended_at = time.monotonic()  # the worker has just measured its ceilings

    def begin_job(self) -> None:
        """Note how busy the GPU is while nothing of this job runs, and start the sampler."""
        self._utilisation_before, self._utilisation_at_start = self._utilisation_at_rest(), None
        self._launched.clear()
        self._sampler = Sampler(self._nvml)
        self._sampler.start()

    def _utilisation_at_rest(self) -> int | None:
        """Before the first job, what was read before the worker's own ceilings; later once this process's load has faded."""
        if self._utilisation_at_start is not None:
            return self._utilisation_at_start
        faded_at = self._ended_at + _OWN_LOAD_FADES_S
        if time.monotonic() < faded_at and self._nvml.other_processes() is not None:
            return None  # NVML's list of processes will answer: a series of jobs need not wait each time
        while (percent := self._nvml.utilisation_percent()) is not None:
            if percent < flags.BUSY_PERCENT or time.monotonic() >= faded_at:
                break
            time.sleep(_BETWEEN_LOOKS_S)
        return percent

    def end_job(self) -> None:
        """Stop the sampler, give cached memory back."""
        self._sampler.stop()
        self._timer = None
        self._ended_at = time.monotonic()
        with contextlib.suppress(RuntimeError):  # a broken context: the job has said so already
            torch.cuda.empty_cache()

    def refuse_if_too_large(self, case: Case) -> None:
        """Against the GPU memory that is free."""
        free = memory.free_gpu_bytes(self.device)
        memory.refuse_if_too_large(case.request, case.tiles, free, self.environment.device.name, self.capability)

    def begin_case(self, case: Case) -> None:
        """Compile reports are made in this process, when the GPU has nothing to do."""

    def first_run(self, case: Case, say: Say) -> AttentionOutput:
        """The first launch, with what it compiles; where the tiles do not fit, the error carries a cure."""
        say("compile", f"compiling and launching {case.request.kernel}", 0, 0)
        begin = time.perf_counter()
        output = case.forward()
        torch.cuda.synchronize(self.device)
        case.first_launch_ms = (time.perf_counter() - begin) * 1000.0
        case.seen = Seen.of(output.out.detach())
        return output

    def first_backward(self, case: Case, say: Say) -> Gradients:
        """The first launch of the backward, with what it compiles; and what its results hold, for those that are timed."""
        say("compile", f"compiling and launching the backward of {case.request.kernel}", 0, 0)
        begin = time.perf_counter()
        gradients = case.differentiate()
        torch.cuda.synchronize(self.device)
        took_ms = (time.perf_counter() - begin) * 1000.0
        case.first_launch_ms = took_ms if case.request.direction == "backward" else case.first_launch_ms + took_ms
        case.see_gradients(gradients)
        return gradients

    def tidy(self) -> None:
        """Empty torch's cache of blocks."""
        torch.cuda.empty_cache()

    def time(self, cases: Sequence[Case], inputs_of: Callable[[Case], Inputs], say: Say) -> None:
        """Rounds over all cases, cold and then warm, under the GPU's lock."""
        self._timer = self._timer or self.make_timer(self.device)
        others_before = self._nvml.other_processes()
        with gpu_lock(self.environment.device.id, lambda: say("latency", _waiting_text(), 0, 0)) as no_lock:
            timed = TimedCases(cases, inputs_of, self._nvml, self._timer, self._launched)
            timed.time(say, self._graph_of)
        others_after = self._nvml.other_processes()
        others = None if others_before is None or others_after is None else max(others_before, others_after)
        unseen = self._nvml.missing.get("processes", "NVML did not say")
        for case in (case for case in timed.cases if not case.is_contradicted):
            shared = flags.busy_flag(others, self._utilisation_before, unseen, timed.interrupted.get(case.index))
            case.flags += [shared, *filter(None, [flags.lock_flag(no_lock)]), *self._flags_of(case, timed)]

    def _graph_of(self, case: Case, launches: int) -> tuple[Callable[[], None], Step]:
        """A graph keeps what its launches allocate, beside what torch's cache holds: it must fit twice."""
        if case.is_autograd:
            raise Refused(
                f"a graph of the backward of {case.request.kernel} is not possible: autograd runs it on its own stream."
            )
        need = memory.estimate(case.request, case.tiles, self.capability)
        torch.cuda.empty_cache()
        free = memory.free_gpu_bytes(self.device)
        if free < 2 * need.total_bytes:
            raise Refused(f"a graph of {case.request.kernel} may need {bytes_(2 * need.total_bytes)}; {bytes_(free)} are free.")
        return as_graph(case.run, launches)

    def _flags_of(self, case: Case, timed: TimedCases) -> list[Flag]:
        default_mhz = self._nvml.default_sm_clock_mhz() or self._nvml.max_sm_clock_mhz()
        found = [
            *timed.clock_flags(case, default_mhz),
            flags.flush_flag(),
            flags.launch_flag(case.latency),
            self._peak_flag(case, case.latency),
            flags.samples_flag(case.latency),
        ]
        others = [self._peak_flag(case, other) for other in (case.with_prepass, case.warm) if other is not None]
        return [flag for flag in found if flag is not None] + [flag for flag in others if flag.severity == "bad"]

    def _peak_flag(self, case: Case, latency: Latency) -> Flag:
        """With a warm cache memory need not be read at all; the pre-pass reads what it quantises."""
        device = self.environment.device
        need = memory.estimate(case.request, case.tiles, self.capability)
        quantised = case.precision.fp8 and latency is not case.with_prepass
        read_bytes = 0 if latency.mode == "warm" else need.quantised_bytes if quantised else need.inputs_bytes
        measured = device.measured_bf16_tflops
        measured = None if measured is None else rate_of(case.request, measured, 2 * measured)
        peak = rate_of(case.request, device.peak_bf16_tflops, device.peak_fp8_tflops)
        return flags.peak_flag(case.request.flops, read_bytes, latency, peak, device.peak_bandwidth_bytes_per_s, measured)

    def take_memory(self, case: Case) -> None:
        """One launch between two looks, then launches at other lengths."""
        need = memory.estimate(case.request, case.tiles, self.capability)
        if case.request.direction == "both":
            case.output = None  # a step's memory is its own: the parts are timed
        with self._marked(case, "memory") as counted:
            found = memory.take(case.run, need, self.device, self._nvml, self._sampler)
            counted.append(1)
        held = None if case.operands is None else memory.operands_bytes(case.operands)
        case.memory = found.model_copy(update={"curve": curve_of(case, self.device), "operands_bytes": held})

    def observe(self, case: Case) -> None:
        """Half a second of launches without a flush, so that power and clock under load are seen."""
        launch_ms = case.latency.median_ms if case.latency else 1.0
        count, run = max(1, int(_BATCH_MS / launch_ms)), case.run
        end = time.perf_counter() + _OBSERVE_S
        with self._marked(case, "observe") as counted:
            while time.perf_counter() < end:
                for _ in range(count):
                    run()
                torch.cuda.synchronize(self.device)
                counted.append(count)

    def take_energy(self, case: Case, say: Say) -> None:
        """Under the GPU's lock, as launches are timed. The counter is read past the sampler's lock; the sampler reads on."""
        self._timer = self._timer or self.make_timer(self.device)
        launch_ms = case.latency.median_ms if case.latency else self._timer.estimate_ms(case.run)
        call, launches = case.run, 1
        if launch_ms < energy.GRAPH_BELOW_MS:
            with contextlib.suppress(Exception):  # any library may refuse to be captured: launches one by one then
                call, _output = self._graph_of(case, energy.LAUNCHES_A_GRAPH)
                launches = energy.LAUNCHES_A_GRAPH
        stream = energy.CudaLaunches(call, launches, self.device)
        with (
            gpu_lock(self.environment.device.id, lambda: say("energy", _waiting_text(), 0, 0)),
            Nvml.open(self.environment.device.id) as nvml,
            self._marked(case, "energy") as counted,
        ):
            case.energy, dry_share = energy.take(stream, launch_ms, nvml, lambda: self._sampler.samples)
            counted.append(case.energy.launches)
        case.flags += energy.flags_of(dry_share)

    @contextlib.contextmanager
    def _marked(self, case: Case, phase: Phase) -> Iterator[list[int]]:
        """Note when these launches ran, for the timeline; the block counts them into the list."""
        begin, counted = time.perf_counter(), []
        yield counted
        self._launched.append(Launched(case.label, phase, begin, time.perf_counter(), sum(counted)))

    def take_schedule(self, case: Case, subject: Subject, say: Say) -> None:
        """Under the GPU's lock, as launches are timed."""
        self._timer = self._timer or self.make_timer(self.device)
        with gpu_lock(self.environment.device.id, lambda: say("schedule", _waiting_text(), 0, 0)) as no_lock:
            case.schedule = schedule.take(subject, self._timer, case.accuracy.allowed_relative_error, self.capability)
        unlocked = flags.lock_flag(no_lock)
        if unlocked is not None and unlocked not in case.flags:
            case.flags.append(unlocked)

    def report_compiler(self, case: Case) -> None:
        """Compile for the GPU that the request names, or this one; and look for the cure of tiles that do not fit."""
        if not case.entry.has_tiles:
            return
        from profiling.compile_report import compile_reports

        request = case.request.model_copy(update={"tiles": case.tiles})
        if case.error is not None and case.has_backward and case.accuracy is not None:
            return  # the forward ran: other tiles of it are no cure
        if case.error is not None:
            case.error = with_cure(case.error, request, self.capability, compile_reports)
            return
        capability = case.request.compile_for or self.capability
        try:
            case.compiled = compile_reports(request, capability)
        except Exception as error:  # the kernel ran: a report that fails must not take its result away
            case.flags.append(no_report_flag(job_error(error, case.request.kernel, "compile"), capability))

    def sample(self, on: bool) -> None:
        """Let the sampler read, or wait until it does not."""
        if on:
            self._sampler.resume()
        else:
            self._sampler.pause()

    def timeline(self, start: float, spans: tuple[PhaseSpan, ...]) -> Timeline:
        """NVML over the job so far."""
        launched = tuple(one.span(start) for one in self._launched[:_MOST_MARKS])
        return timeline(self._nvml, self._sampler.samples, start, spans, launched)


def _waiting_text() -> str:
    return f"waiting for another FlashScope process to finish timing ({time.strftime('%H:%M:%S')})"
