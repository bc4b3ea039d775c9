"""The cases of a job that are timed together: what is launched for each, cold and warm, and what is kept of it."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from profiling import flags, launch_proof
from profiling.backward_record import Parts
from profiling.bench import Say
from profiling.case import Case, Inputs, Step
from profiling.cuda_stream import tampered
from profiling.failures import is_sticky, job_error
from profiling.interpreter_bench import no_preprocess
from profiling.measure import ROUNDS, Run, RunFailed, Timed, Timer, time_rounds
from profiling.nvml import Nvml
from profiling.records import Flag, LaunchSpan, Phase
from profiling.stop_rule import WARM_S, StopRule
from profiling.witness import Turned, Witness, WitnessedGraph, WitnessedRun

# A replay takes a quarter of a millisecond, where that does not need so many launches that a stream has no room to queue them.
_REPLAY_MS = 0.25
_MOST_IN_A_GRAPH = 20

GraphOf = Callable[[Case, int], tuple[Callable[[], None], Step]]
"""graph_of(case, launches): what replays so many in a row, and what the last one returned. Raises where it cannot be."""


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


@dataclass(frozen=True)
class _Part:
    """Something that is timed for a case: 'whole', 'with_prepass', or a part of a training step."""

    name: str
    case: Case
    run: Run


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
        parts = self._runs()
        try:
            runs, owners = [part.run for part in parts], [part.case for part in parts]
            found = self._rounds(runs, owners, say, "", self._rule(len(runs)))
        except RunFailed as failure:
            case, error = parts[failure.index].case, failure.__cause__
            case.error = job_error(error, case.request.kernel, "latency")
            if is_sticky(error):
                raise error from None
            self.cases.remove(case)
            _empty_cache()
            return False
        for timed, part in zip(found, parts, strict=True):
            self._keep(timed, part)
        return True

    def _rule(self, runs: int) -> StopRule:
        return StopRule.for_screening() if self.cases[0].effort == "screening" else StopRule.for_job(runs)

    def _runs(self) -> list[_Part]:
        """What to launch for each: what the request times, the same with the FP8 pre-pass, and the parts of a training step."""
        found = []
        for case in self.cases:
            found.append(_Part("whole", case, self._run(case, "whole", case.run)))
            if case.precision.fp8 and case.request.direction != "backward":
                inputs = self._inputs_of(case)
                found.append(_Part("with_prepass", case, self._run(case, "with_prepass", case.prepare_and_run(inputs))))
            if case.request.direction == "both":
                found.append(_Part("forward", case, self._run(case, "forward", lambda case=case: Step(case.forward()))))
                differentiate = lambda case=case: Step(None, case.differentiate())  # noqa: E731
                found.append(_Part("backward", case, self._run(case, "backward", differentiate)))
                if case.seen_delta is not None:
                    found.append(_Part("preprocess", case, self._run(case, "preprocess", case.preprocess)))
        return found

    def _run(self, case: Case, part: str, launch: Callable[[], object]) -> Run:
        """Witnessed, where the results that were checked were looked at."""
        found = self._witness(case, part)
        return Run(launch) if found is None else WitnessedRun(launch, found.watched, found.turned, found.at_rest)

    def _witness(self, case: Case, part: str) -> Witness | None:
        """What is watched of a part, whose signs are turned for it, and who must not be; None where nothing was looked at."""
        if case.seen is None or case.tensors is None or case.operands is None:
            return None
        inputs = self._inputs_of(case) if part == "with_prepass" or case.has_backward else ()
        reads_inputs = part == "with_prepass" and inputs
        v = self._turned_of(inputs[2] if reads_inputs else case.operands.v)
        whole = part in ("whole", "with_prepass")
        if part == "forward" or (whole and case.request.direction == "forward"):
            return Witness.of_forward(v, case.seen)
        q, k, inputs_v = (self._turned_of(tensor) for tensor in inputs)
        d_out = self._turned_of(case.tensors.d_out)
        if whole and case.request.direction == "both":
            return Witness.of_step(q, k, (v, inputs_v), d_out, case.seen, case.seen_gradients)
        if part == "preprocess":
            return Witness.of_delta(d_out, case.seen_delta, case.delta_in)
        return Witness.of_backward((q, k, inputs_v), d_out, case.seen_gradients)

    def _turned_of(self, v: torch.Tensor) -> Turned:
        """Cases of one dtype share their V, and so its sign."""
        return self._turned.setdefault(v.data_ptr(), Turned(v))

    def _keep(self, timed: Timed, part: _Part) -> None:
        """What is contradicted is no time, and takes the case's others with it."""
        case, run = part.case, part.run
        contradicted = self._contradictions(timed, run, case, "cold")
        if contradicted:
            case.flags += [flag for flag in contradicted if flag not in case.flags]
            case.is_contradicted = True
            case.missing.setdefault("latency", contradicted[0].sentence)
            return
        if isinstance(run, WitnessedRun) and not run.can_tell:
            unproved = launch_proof.unproved(case.request.kernel)
            case.flags += [unproved] if unproved not in case.flags else []
        latency = timed.latency("cold", _checked(run, timed))
        if part.name == "whole":
            case.latency = latency
            self.interrupted[case.index] = launch_proof.interruption(timed.ledgers)
        elif part.name == "with_prepass":
            case.with_prepass = latency
        else:
            missing = {} if case.seen_delta is not None else {"preprocess": no_preprocess(case)}
            case.parts = (case.parts or Parts(missing=missing)).model_copy(update={part.name: latency})

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
                witness = self._witness(case, "whole")
                graphs[case.index] = WitnessedGraph(replay, output, launches, witness.watched, witness.turned, witness.at_rest)
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
