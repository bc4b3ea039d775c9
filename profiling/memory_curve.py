"""Memory over the sequence length: launches of one version at other lengths, each one's peak read.

Which lengths, and when to stop, needs no torch; launcher() imports it when called.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels.problem import MAX_SEQ_LEN, AttentionProblem
from profiling.failures import is_sticky, job_error
from profiling.memory import estimate, free_gpu_bytes
from profiling.records import MemoryCurve, MemoryPoint
from profiling.words import bytes_, seconds

if TYPE_CHECKING:
    import torch

    from profiling.case import Case

SHORTEST = 512
LAUNCHES_S, CAP_S = 1.0, 4.0
# The driver's own needs, and the allocator's rounding.
_USABLE = 0.9
_COMPILES_EVERY_LENGTH = ("flex",)


@dataclass(frozen=True)
class Launched:
    """One launch: the peak it added to what was allocated before, and how long it took."""

    added_bytes: int
    took_s: float


def lengths(problem: AttentionProblem) -> Iterator[AttentionProblem]:
    """The problem at powers of two of its longer side, the other in proportion and at least 1."""
    longer = max(problem.seq_len_q, problem.seq_len_kv)
    length = SHORTEST
    while length <= MAX_SEQ_LEN:
        q, kv = (max(1, round(side * length / longer)) for side in (problem.seq_len_q, problem.seq_len_kv))
        yield problem.model_copy(update={"seq_len_q": q, "seq_len_kv": kv})
        length *= 2


def take_curve(
    kernel: str,
    problem: AttentionProblem,
    launch: Callable[[AttentionProblem], Launched],
    fits: Callable[[AttentionProblem], str],
    expected_s: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> MemoryCurve:
    """Launch at every length that fits, the shortest first and twice, as the first compiles.

    It goes on while the launches take LAUNCHES_S together, as far as that can be foretold, and until CAP_S are over with
    all that is compiled: a kernel may be, at some lengths. fits: '', or the sentence that says why a length does not fit.
    expected_s: how long `problem` itself takes. An error of a launch ends the curve; one after which the process can launch
    nothing more is raised.
    """
    end, left_s, points, before = clock() + CAP_S, LAUNCHES_S, [], None
    for each in lengths(problem):
        ended_by = fits(each)
        if not ended_by and before is not None:
            guesses = [before[1] * each.flops / before[0].flops]
            guesses += [] if expected_s is None else [expected_s * each.flops / problem.flops]
            left_s -= min(guesses)
            if left_s < 0:
                ended_by = f"{_tokens(each)} tokens would have taken longer than the {seconds(LAUNCHES_S)} for these launches"
            elif clock() > end:
                ended_by = f"compiling took the {seconds(CAP_S)} there are before {_tokens(each)} tokens"
        if ended_by:
            return MemoryCurve(points=tuple(points), ended_by=ended_by)
        try:
            if before is None:
                launch(each)
            found = launch(each)
        except Exception as error:  # the launch may raise anything, and what was measured stays
            if is_sticky(error):
                raise
            why = job_error(error, kernel, "memory").sentence.rstrip(".")
            return MemoryCurve(points=tuple(points), ended_by=f"{_tokens(each)} tokens failed: {why}")
        points.append(MemoryPoint(seq_len_q=each.seq_len_q, seq_len_kv=each.seq_len_kv, added_bytes=found.added_bytes))
        before = each, found.took_s
    return MemoryCurve(points=tuple(points), ended_by=f"{_tokens(each)} tokens are the longest that the kernels take")


def _tokens(problem: AttentionProblem) -> str:
    return f"{max(problem.seq_len_q, problem.seq_len_kv):,}"


# The worker's side: torch is imported inside.


def curve_of(case: Case, device: torch.device) -> MemoryCurve:
    """The curve of a case's version, with its own tiles at every length."""
    if case.request.kernel in _COMPILES_EVERY_LENGTH:
        return MemoryCurve(points=(), ended_by=f"{case.request.kernel} compiles anew for every length, so it was not launched")
    expected_s = None if case.latency is None else case.latency.median_ms / 1e3
    free_bytes = _USABLE * free_gpu_bytes(device)

    def fits(problem: AttentionProblem) -> str:
        need = estimate(case.request.model_copy(update={"problem": problem, "inputs": "normal", "own": None}), case.tiles)
        if need.launch_bytes <= free_bytes:
            return ""
        return f"{_tokens(problem)} tokens need {bytes_(need.launch_bytes)}; {bytes_(free_bytes)} could be had"

    return take_curve(case.request.kernel, case.problem, launcher(case, device), fits, expected_s)


def launcher(case: Case, device: torch.device) -> Callable[[AttentionProblem], Launched]:
    """Launches of a case's version at other lengths, on zeros: what is allocated does not depend on the numbers."""
    import torch

    from kernels.kernel import TORCH_DTYPES

    def launch(problem: AttentionProblem) -> Launched:
        shapes = ((problem.num_heads, problem.seq_len_q), *2 * [(problem.num_kv_heads, problem.seq_len_kv)])
        inputs = [
            torch.zeros(problem.batch, heads, length, problem.head_dim, dtype=TORCH_DTYPES[case.precision.dtype], device=device)
            for heads, length in shapes
        ]
        d_out = torch.zeros_like(inputs[0]) if case.has_backward else None
        tensors = case.prepared(inputs, d_out)
        output = case.forward(tensors, problem) if case.request.direction == "backward" else None
        run = case.run_on(tensors, problem, output)
        torch.cuda.synchronize(device)
        # A block that is reused whole would count with all its bytes.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        allocated, begin = torch.cuda.memory_allocated(device), time.perf_counter()
        returned = run()
        torch.cuda.synchronize(device)
        took_s = time.perf_counter() - begin
        added = torch.cuda.max_memory_allocated(device) - allocated
        del returned
        return Launched(added, took_s)

    return launch
