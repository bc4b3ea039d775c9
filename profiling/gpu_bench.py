"""A GPU as a device: launches timed cold and interleaved, memory by torch and NVML, readings from a thread."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

import torch

from kernels.architecture import architecture
from kernels.kernel import AttentionOutput
from profiling import flags, memory, schedule
from profiling.bench import Say
from profiling.case import Case, Inputs
from profiling.failures import is_sticky, job_error, with_cure
from profiling.gpu_lock import gpu_lock
from profiling.interpreter_bench import no_report_flag
from profiling.measure import ROUNDS, CudaTimer, Run, RunFailed, time_rounds
from profiling.nvml import Nvml
from profiling.records import Environment, Flag, Latency, PhaseSpan, Timeline
from profiling.sampler import Sampler, timeline
from profiling.tile_trace import Subject

_OBSERVE_S = 0.5
_BATCH_MS = 20.0
_OWN_LOAD_FADES_S = 1.5


class GpuBench:
    """See profiling.bench.Bench. device is CUDA's, which environment.device.id names by UUID."""

    provenance = "measured"

    def __init__(self, environment: Environment, device: torch.device) -> None:
        self.environment, self.device = environment, device
        self.capability = environment.device.capability
        self.arch = architecture(self.capability)
        self._nvml = Nvml.open(environment.device.id)
        self._timer: CudaTimer | None = None
        self._sampler: Sampler | None = None
        self._utilisation_before: int | None = None
        self._ended_at = time.monotonic()  # the worker has just measured its ceilings

    def begin_job(self) -> None:
        """Note how busy the GPU is while nothing of this job runs, and start the sampler."""
        own_load_faded = time.monotonic() - self._ended_at > _OWN_LOAD_FADES_S
        self._utilisation_before = self._nvml.utilisation_percent() if own_load_faded else None
        self._sampler = Sampler(self._nvml)
        self._sampler.start()

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
        return output

    def tidy(self) -> None:
        """Empty torch's cache of blocks."""
        torch.cuda.empty_cache()

    def time(self, cases: Sequence[Case], inputs_of: Callable[[Case], Inputs], say: Say) -> None:
        """Five rounds over all cases, under the GPU's lock; a case that fails is given up and the rounds begin again."""
        self._timer = self._timer or CudaTimer(self.device)
        others_before = self._nvml.other_processes()
        with gpu_lock(self.environment.device.id, lambda: say("latency", _waiting_text(), 0, 0)) as no_lock:
            timed = _Timed(list(cases), inputs_of, self._nvml)
            while timed.cases and not self._rounds(timed, say):
                pass
        others_after = self._nvml.other_processes()
        others = None if others_before is None or others_after is None else max(others_before, others_after)
        busy = flags.busy_flag(others, self._utilisation_before, self._nvml.missing.get("processes", "NVML did not say"))
        for case in timed.cases:
            case.flags += [busy, *filter(None, [flags.lock_flag(no_lock)]), *self._flags_of(case, timed)]

    def _rounds(self, timed: _Timed, say: Say) -> bool:
        """Time what is left; False when a case failed and was taken out."""
        runs, owners = timed.runs()

        def after_batch(index: int) -> None:
            timed.note(owners[index])

        def after_round(done: int) -> None:
            say("latency", f"timed round {done} of {ROUNDS}", done, ROUNDS)

        say("latency", f"timing {ROUNDS} interleaved rounds", 0, ROUNDS)
        try:
            found = time_rounds(runs, self._timer, ROUNDS, after_batch, after_round)
        except RunFailed as failure:
            case, error = owners[failure.index], failure.__cause__
            case.error = job_error(error, case.request.kernel, "latency")
            if is_sticky(error):
                raise error from None
            timed.cases.remove(case)
            torch.cuda.empty_cache()
            return False
        timed.keep(found, owners)
        return True

    def _flags_of(self, case: Case, timed: _Timed) -> list[Flag]:
        device, problem = self.environment.device, case.problem
        peak = device.peak_fp8_tflops if case.precision.fp8 else device.peak_bf16_tflops
        measured = device.measured_bf16_tflops
        if measured is not None and case.precision.fp8:
            measured *= 2
        need = memory.estimate(case.request, case.tiles, self.capability)
        read_bytes = need.quantised_bytes if case.precision.fp8 else need.inputs_bytes
        max_mhz = self._nvml.max_sm_clock_mhz()
        found = [
            flags.clock_flag(timed.clocks[case.index], max_mhz, self._nvml.missing.get("sm_clock_mhz", "NVML did not say")),
            flags.throttle_flag(timed.throttles[case.index]),
            flags.flush_flag(),
            flags.peak_flag(problem.flops, read_bytes, case.latency, peak, device.peak_bandwidth_bytes_per_s, measured),
            flags.samples_flag(case.latency),
        ]
        return [flag for flag in found if flag is not None]

    def take_memory(self, case: Case) -> None:
        """One launch between two looks."""
        need = memory.estimate(case.request, case.tiles, self.capability)
        case.memory = memory.take(case.forward, need, self.device, self._nvml, self._sampler)

    def observe(self, case: Case) -> None:
        """Half a second of launches without a flush, so that power and clock under load are seen."""
        launch_ms = case.latency.median_ms if case.latency else 1.0
        count = max(1, int(_BATCH_MS / launch_ms))
        end = time.perf_counter() + _OBSERVE_S
        while time.perf_counter() < end:
            for _ in range(count):
                case.forward()
            torch.cuda.synchronize(self.device)

    def take_schedule(self, case: Case, subject: Subject, say: Say) -> None:
        """Under the GPU's lock, as launches are timed."""
        self._timer = self._timer or CudaTimer(self.device)
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
        return timeline(self._nvml, self._sampler.samples, start, spans)


class _Timed:
    """The cases that are being timed, what is launched for each, and the clocks after each batch."""

    def __init__(self, cases: list[Case], inputs_of: Callable[[Case], Inputs], nvml: Nvml) -> None:
        self.cases, self._inputs_of, self._nvml = cases, inputs_of, nvml
        self.clocks: dict[int, list[float | None]] = {case.index: [] for case in cases}
        self.throttles: dict[int, list[tuple[str, ...] | None]] = {case.index: [] for case in cases}

    def runs(self) -> tuple[list[Run], list[Case]]:
        """What to launch, and whose each is: the kernel alone, and with FP8 the pre-pass and the kernel."""
        runs, owners = [], []
        for case in self.cases:
            runs.append(case.forward)
            owners.append(case)
            if case.precision.fp8:
                runs.append(case.prepare_and_forward(self._inputs_of(case)))
                owners.append(case)
        return runs, owners

    def note(self, case: Case) -> None:
        """Read the clock and what holds it down, right after a batch."""
        self.clocks[case.index].append(self._nvml.sm_clock_mhz())
        self.throttles[case.index].append(self._nvml.throttle_reasons())

    def keep(self, found: tuple[Latency, ...], owners: list[Case]) -> None:
        """Hand the latencies out: a case's first is the kernel's, its second has the pre-pass."""
        for latency, case in zip(found, owners, strict=True):
            if case.latency is None:
                case.latency = latency
            else:
                case.with_prepass = latency


def _waiting_text() -> str:
    return f"waiting for another FlashScope process to finish timing ({time.strftime('%H:%M:%S')})"
