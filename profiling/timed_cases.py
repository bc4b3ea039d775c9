"""The cases of a job that are timed together: what is launched for each, cold and warm, and what is kept of it."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from kernels.kernel import AttentionOutput
from profiling import flags, launch_proof
from profiling.bench import Say
from profiling.case import Case, Inputs
from profiling.cuda_stream import tampered
from profiling.failures import is_sticky, job_error
from profiling.measure import ROUNDS, Run, RunFailed, Timed, Timer, time_rounds
from profiling.nvml import Nvml
from profiling.records import Flag, LaunchSpan, Phase
from profiling.stop_rule import WARM_S, StopRule
from profiling.witness import Turned, WitnessedGraph, WitnessedRun

# A replay takes a quarter of a millisecond, where that does not need so many launches that a stream has no room to queue them.
_REPLAY_MS = 0.25
_MOST_IN_A_GRAPH = 20

GraphOf = Callable[[Case, int], tuple[Callable[[], None], AttentionOutput]]
"""graph_of(case, launches): what replays so many launches in a row, and the last one's output. Raises where it cannot be."""


@dataclass(frozen=True)
class Launched:
    """When launches of one kernel ran; begin and end are time.perf_counter's."""

    label: str
    phase: Phase
    begin: float
    end: float
    launches: int | None = None

    def span(self, start: float) -> LaunchSpan:
        """The record, seconds from the job's start."""
        begin, end = max(0.0, self.begin - start), max(0.0, self.end - start)
        return LaunchSpan(label=self.label, phase=self.phase, start_s=begin, end_s=end, launches=self.launches or None)


class TimedCases:
    """Cases that are right, to be timed in common rounds; a case that fails is given up and the rounds begin again."""

    def __init__(
        self, cases: Iterable[Case], inputs_of: Callable[[Case], Inputs], nvml: Nvml, timer: Timer, launched: list[Launched]
    ) -> None:
        self.cases = list(cases)
        self._inputs_of, self._nvml, self._timer, self._launched = inputs_of, nvml, timer, launched
        self._since = time.perf_counter()
        self._turned: dict[int, Turned] = {}
        self.clocks: dict[int, list[float | None]] = {case.index: [] for case in self.cases}
        self.throttles: dict[int, list[tuple[str, ...] | None]] = {case.index: [] for case in self.cases}
        self.interrupted: dict[int, float | None] = {}

    def time(self, say: Say, graph_of: GraphOf) -> None:
        """Time all of them cold, then in graphs, warm; V of each is left as it was. Raises what breaks the GPU's context."""
        try:
            while self.cases and not self._cold(say):
                pass
            graphs = self._graphs(graph_of)
            while graphs and not self._warm(graphs, say):
                pass
        finally:
            with contextlib.suppress(RuntimeError):  # a broken context: what broke it is said already
                for turned in self._turned.values():
                    turned.restore()

    # Cold

    def _cold(self, say: Say) -> bool:
        """Time what is left; False when a case failed and was taken out."""
        runs, owners = self._runs()
        try:
            found = self._rounds(runs, owners, say, "", StopRule.for_job(len(runs)))
        except RunFailed as failure:
            case, error = owners[failure.index], failure.__cause__
            case.error = job_error(error, case.request.kernel, "latency")
            if is_sticky(error):
                raise error from None
            self.cases.remove(case)
            _empty_cache()
            return False
        for timed, run, case in zip(found, runs, owners, strict=True):
            self._keep(timed, run, case)
        return True

    def _runs(self) -> tuple[list[Run], list[Case]]:
        """What to launch, and whose each is: the kernel alone, and with FP8 the pre-pass and the kernel."""
        runs, owners = [], []
        for case in self.cases:
            runs.append(self._run(case, case.forward, None if case.operands is None else case.operands.v))
            owners.append(case)
            if case.precision.fp8:
                inputs = self._inputs_of(case)
                runs.append(self._run(case, case.prepare_and_forward(inputs), inputs[2] if inputs else None))
                owners.append(case)
        return runs, owners

    def _run(self, case: Case, launch: Callable[[], AttentionOutput], v: torch.Tensor | None) -> Run:
        """Witnessed, where the output that was checked was looked at."""
        return Run(launch) if case.seen is None or v is None else WitnessedRun(launch, self._turned_of(v), case.seen)

    def _turned_of(self, v: torch.Tensor) -> Turned:
        """Cases of one dtype share their V, and so its sign."""
        return self._turned.setdefault(v.data_ptr(), Turned(v))

    def _keep(self, timed: Timed, run: Run, case: Case) -> None:
        """A case's first run is the kernel alone, its second has the pre-pass. What is contradicted is no time."""
        contradicted = self._contradictions(timed, run, case, "cold")
        if contradicted:
            case.flags += [flag for flag in contradicted if flag not in case.flags]
            case.is_contradicted = True
            case.missing["latency"] = contradicted[0].sentence
            return
        if isinstance(run, WitnessedRun) and not run.can_tell:
            case.flags.append(launch_proof.unproved(case.request.kernel))
        latency = timed.latency("cold", _checked(run, timed))
        if case.latency is None:
            case.latency = latency
            self.interrupted[case.index] = launch_proof.interruption(timed.ledgers)
        else:
            case.with_prepass = latency

    # Warm

    def _graphs(self, graph_of: GraphOf) -> dict[int, WitnessedGraph]:
        """A graph for each case that has a cold time and wants a warm one; a case without one says why."""
        graphs = {}
        for case in (case for case in self.cases if case.wants("warm") and case.latency is not None and case.is_right):
            if case.seen is None:
                case.missing["warm"] = "its first output was not looked at, so that a replay could not be proved"
                continue
            launches = min(_MOST_IN_A_GRAPH, max(1, math.ceil(_REPLAY_MS / case.latency.median_ms)))
            try:
                replay, output = graph_of(case, launches)
                graphs[case.index] = WitnessedGraph(replay, output, launches, self._turned_of(case.operands.v), case.seen)
            except Exception as error:  # any library may refuse to be captured: the cold time stands
                self._without_warm(case, error)
        return graphs

    def _warm(self, graphs: dict[int, WitnessedGraph], say: Say) -> bool:
        """Time the graphs; False when one failed and was taken out."""
        owners = [case for case in self.cases if case.index in graphs]
        runs = [graphs[case.index] for case in owners]
        try:
            found = self._rounds(runs, owners, say, ", cache warm", StopRule.for_job(len(runs), WARM_S))
        except RunFailed as failure:
            case = owners[failure.index]
            del graphs[case.index]
            self._without_warm(case, failure.__cause__)
            return False
        for timed, run, case in zip(found, runs, owners, strict=True):
            contradicted = self._contradictions(timed, run, case, "warm")
            if contradicted:
                case.missing["warm"] = contradicted[0].sentence
            else:
                case.warm = timed.latency("warm", _checked(run, timed))
        return True

    def _without_warm(self, case: Case, error: BaseException) -> None:
        if is_sticky(error):
            raise error from None
        case.missing["warm"] = job_error(error, case.request.kernel, "latency").sentence
        _empty_cache()

    # Both

    def _rounds(self, runs: Sequence[Run], owners: Sequence[Case], say: Say, how: str, rule: StopRule) -> tuple[Timed, ...]:
        def after_batch(index: int) -> None:
            self._note(owners[index])

        def after_round(done: int) -> None:
            say("latency", f"timed round {done}{'' if done > ROUNDS else f' of {ROUNDS}'}{how}", min(done, ROUNDS), ROUNDS)

        say("latency", f"timing {ROUNDS} interleaved rounds{how}", 0, ROUNDS)
        return time_rounds(runs, self._timer, ROUNDS, after_batch, after_round, rule)

    def _contradictions(self, timed: Timed, run: Run, case: Case, mode: str) -> tuple[Flag, ...]:
        looked, stale = (run.looked, run.stale) if isinstance(run, WitnessedRun) else (0, 0)
        return launch_proof.contradictions(case.request.kernel, timed, looked, stale, tampered(), mode)

    def _note(self, case: Case) -> None:
        """Read the clock and what holds it down, right after a batch, and note when the batch ran."""
        self._launched.append(Launched(case.label, "latency", self._since, time.perf_counter()))
        self.clocks[case.index].append(self._nvml.sm_clock_mhz())
        self.throttles[case.index].append(self._nvml.throttle_reasons())
        self._since = time.perf_counter()

    def clock_flags(self, case: Case, default_mhz: float | None) -> list[Flag]:
        """How the clock stood after each of a case's batches, and what held it down."""
        clocks, reason = self.clocks[case.index], self._nvml.missing.get("sm_clock_mhz", "NVML did not say")
        return [flags.clock_flag(clocks, default_mhz, reason), *flags.throttle_flags(self.throttles[case.index])]


def _checked(run: Run, timed: Timed) -> int | None:
    """All samples, of a timing that is not contradicted: the run has also looked at those it was estimated by."""
    return len(timed.samples_ms) if isinstance(run, WitnessedRun) and run.can_tell else None


def _empty_cache() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
