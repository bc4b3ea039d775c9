"""A backward and a training step, timed on a stream in memory: every launch's gradients are looked at, cheats have no time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kernels import backward_autograd, native
from kernels.kernel import AttentionOutput, Gradients, as_given
from kernels.problem import AttentionProblem
from kernels.registry import VERSIONS
from profiling import accuracy, gradient_check
from profiling.case import Case, Step, Tensors
from profiling.records import Direction, RunRequest
from profiling.stop_rule import StopRule
from profiling.stream_timer import StreamTimer
from profiling.timed_cases import TimedCases
from profiling.witness import Seen
from tests.fake_stream import FakeStream
from tests.test_cheats import SilentNvml

PROBLEM = AttentionProblem(num_heads=2, num_kv_heads=1, seq_len_q=24, seq_len_kv=24, head_dim=16, causal=True)
FORWARD_MS, DELTA_MS, BACKWARD_MS = 1.0, 0.25, 2.5


class OnStream:
    """A backward in float32 whose delta is a step of its own; each launch is on the stream in memory."""

    def __init__(self, stream: FakeStream) -> None:
        self.stream = stream

    def prepare(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor):
        return as_given(q, k, v, None, None)

    def preprocess(self, operands, output: AttentionOutput, d_out: torch.Tensor, problem, launch) -> torch.Tensor:
        self.stream.launch(DELTA_MS)
        return (d_out.float() * output.out.float()).sum(-1)

    def row_sums_in(self, delta: torch.Tensor, problem) -> torch.Tensor:
        return delta

    def backward(self, operands, output, d_out, problem, tiles, launch, delta=None) -> Gradients:
        delta = self.preprocess(operands, output, d_out, problem, launch) if delta is None else delta
        self.stream.launch(BACKWARD_MS - DELTA_MS)
        q, k, v = (tensor.float() for tensor in (operands.q, operands.k, operands.v))
        scores = (q @ k.mT) * problem.sm_scale
        scores.masked_fill_(torch.ones(24, 24, dtype=torch.bool).triu_(1), -torch.inf)
        weights = (scores - output.lse[..., None]).exp()
        d_scores = weights * (d_out.float() @ v.mT - delta[..., None]) * problem.sm_scale
        found = (d_scores @ k, (d_scores.mT @ q).sum(1, True), (weights.mT @ d_out.float()).sum(1, True))
        return Gradients(*(tensor.to(d_out.dtype) for tensor in found))


class BesideLse(OnStream):
    """Its pre-process returns the lse, which follows no sign, beside delta."""

    def preprocess(self, operands, output: AttentionOutput, d_out: torch.Tensor, problem, launch) -> torch.Tensor:
        return torch.stack([output.lse, super().preprocess(operands, output, d_out, problem, launch)])

    def row_sums_in(self, delta: torch.Tensor, problem) -> torch.Tensor:
        return delta[1]

    def backward(self, operands, output, d_out, problem, tiles, launch, delta=None) -> Gradients:
        delta = self.preprocess(operands, output, d_out, problem, launch) if delta is None else delta
        return super().backward(operands, output, d_out, problem, tiles, launch, delta[1])


Cheat = Callable[[Case], None]


def prepared(
    direction: Direction, cheat: Cheat | None = None, autograd: bool = False, backward: type[OnStream] = OnStream
) -> tuple[Case, FakeStream]:
    """A case as it is after forward and backward were checked: those were honest, what follows is what a cheat makes."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn((1, heads, 24, 16), generator=generator).to(torch.bfloat16) for heads in (2, 1, 1, 2)]
    *inputs, d_out = drawn
    stream, request = FakeStream(), RunRequest(kernel="native", problem=PROBLEM, device="GPU-1", direction=direction)
    case = Case(0, request, entry=VERSIONS["native" if autograd else "v2"])
    case.backward = backward_autograd if autograd else backward(stream)
    operands = case.backward.prepare(*inputs)
    case.tensors = Tensors(operands, operands, d_out)

    def forward(tensors: Tensors | None = None, problem: AttentionProblem | None = None) -> AttentionOutput:
        stream.launch(FORWARD_MS)
        return native.forward((tensors or case.tensors).operands, PROBLEM, None, None, with_lse=True)

    case.forward = forward
    case.output = forward()
    case.seen = Seen.of(case.output.out.detach())
    case.accuracy = accuracy.check(
        case.output.out.detach(), None, *inputs, PROBLEM, case.precision, "measured", kernel="native"
    )
    gradients = case.differentiate()
    case.see_gradients(gradients)
    exact = gradient_check.reference_of(*inputs, d_out, PROBLEM)
    sampled = gradient_check.sample_terms(exact, *inputs, d_out, PROBLEM)
    case.gradients = gradient_check.check(gradients, exact, sampled, PROBLEM, case.precision, "measured", "native")
    assert case.is_right
    if cheat is not None:
        cheat(case)
    return case, stream


def time(case: Case, stream: FakeStream) -> Case:
    before = [tensor.detach().clone() for tensor in of(case)]

    def graph_of(case: Case, launches: int) -> tuple[Callable[[], None], Step]:
        returned = case.run()

        def replayed() -> None:
            for _ in range(launches):
                fresh = case.run()
            for name in ("dq", "dk", "dv"):
                getattr(returned.gradients, name).data.copy_(getattr(fresh.gradients, name))
            if returned.output is not None:
                returned.output.out.data.copy_(fresh.output.out)

        return replayed, returned

    timed = TimedCases([case], lambda case: of(case)[:3], SilentNvml(), StreamTimer(stream), [])
    timed.time(lambda *said: None, graph_of)
    assert all(torch.equal(tensor, old) for tensor, old in zip(of(case), before, strict=True)), "signs are put back"
    return case


def of(case: Case) -> tuple[torch.Tensor, ...]:
    operands = case.tensors.of_backward
    return operands.q, operands.k, operands.v, case.tensors.d_out


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = StopRule(least_s=0.2, most=30)
    monkeypatch.setattr(StopRule, "for_job", staticmethod(lambda runs, least_s=0.2: rule))


def bad(case: Case) -> set[str]:
    return {flag.name for flag in case.flags if flag.severity == "bad"}


def test_a_step_is_timed_whole_and_in_its_parts_and_every_launch_is_looked_at() -> None:
    case = time(*prepared("both"))
    assert bad(case) == set()
    assert case.missing == {}
    assert case.latency.median_ms == pytest.approx(FORWARD_MS + BACKWARD_MS)
    assert case.parts.forward.median_ms == pytest.approx(FORWARD_MS)
    assert case.parts.backward.median_ms == pytest.approx(BACKWARD_MS)
    assert case.parts.preprocess.median_ms == pytest.approx(DELTA_MS)
    assert case.warm.median_ms == pytest.approx(FORWARD_MS + BACKWARD_MS)
    for latency in (case.latency, *case.parts.timed, case.warm):
        assert latency.outputs_checked == latency.n
    rounds = [set(latency.round_of.numpy().tolist()) for latency in (case.latency, *case.parts.timed)]
    assert all(one == rounds[0] for one in rounds), "in the same interleaved rounds"


def test_a_backward_alone_is_timed_with_its_pre_process_and_without_its_forward() -> None:
    case = time(*prepared("backward"))
    assert bad(case) == set()
    assert case.latency.median_ms == pytest.approx(BACKWARD_MS)
    assert case.warm.median_ms == pytest.approx(BACKWARD_MS)
    assert case.parts is None
    assert case.latency.outputs_checked == case.latency.n


def test_a_pre_process_may_return_more_than_delta() -> None:
    case = time(*prepared("both", backward=BesideLse))
    assert bad(case) == set()
    assert case.parts.preprocess.median_ms == pytest.approx(DELTA_MS)


@pytest.mark.parametrize("direction", ["backward", "both"])
def test_autograd_s_backward_turns_with_its_inputs_too(direction: Direction) -> None:
    """Its graph was built once, or anew each step; signs are turned under it, and neither notices."""
    case, stream = prepared(direction, autograd=True)
    launched = case.backward.backward

    class Launching:
        prepare, preprocess = backward_autograd.prepare, backward_autograd.preprocess

        @staticmethod
        def backward(*args) -> Gradients:
            stream.launch(BACKWARD_MS)
            return launched(*args)

    case.backward = Launching
    time(case, stream)
    assert bad(case) == set()
    assert case.latency.outputs_checked == case.latency.n
    if direction == "both":
        assert case.parts.preprocess is None
        assert "no pass of its own" in case.parts.missing["preprocess"]


# Cheats


def all_kept(case: Case) -> None:
    """The first gradients again, in the time that they take."""
    kept, honest = case.differentiate(), case.differentiate
    case.differentiate = lambda *args: honest(*args) and kept


def one_kept(name: str) -> Cheat:
    def cheat(case: Case) -> None:
        honest, kept = case.differentiate, getattr(case.differentiate(), name)
        case.differentiate = lambda *args: replace(honest(*args), **{name: kept})

    return cheat


def output_kept(case: Case) -> None:
    kept, honest = case.forward(), case.forward

    def forward(*args) -> AttentionOutput:
        return AttentionOutput(kept.out, honest(*args).lse)

    case.forward = forward


def delta_kept(case: Case) -> None:
    kept, honest = case.preprocess(), case.preprocess
    case.preprocess = lambda: (honest(), kept)[1]


@pytest.mark.parametrize("direction", ["backward", "both"])
@pytest.mark.parametrize("cheat", [all_kept, one_kept("dq"), one_kept("dk"), one_kept("dv")], ids=("all", "dq", "dk", "dv"))
def test_a_gradient_that_is_kept_from_before_is_no_time(direction: Direction, cheat: Cheat) -> None:
    case = time(*prepared(direction, cheat))
    assert bad(case) == {"stale output"}
    assert not case.is_right
    assert "did not follow" in case.missing["latency"]


@pytest.mark.parametrize("cheat", [output_kept, delta_kept])
def test_so_is_an_output_or_a_delta(cheat: Cheat) -> None:
    case = time(*prepared("both", cheat))
    assert bad(case) == {"stale output"}
    assert not case.is_right
