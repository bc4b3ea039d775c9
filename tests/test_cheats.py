"""Six ways to a false time, each told from an honest kernel by what the product does on every run; the device is arithmetic.

What runs on the GPU is TimedCases over a StreamTimer, as here; here the stream is tests.fake_stream's and the attention is
PyTorch's, on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from kernels import native
from kernels.kernel import AttentionOutput, as_given
from kernels.problem import AttentionProblem
from profiling import accuracy, cuda_stream
from profiling.case import Case, Tensors
from profiling.records import DeviceFacts, Environment, RunRequest
from profiling.stop_rule import StopRule
from profiling.stream_timer import StreamTimer
from profiling.timed_cases import TimedCases
from profiling.witness import Seen
from tests.fake_stream import FakeEvent, FakeStream

PROBLEM = AttentionProblem(num_heads=2, num_kv_heads=1, seq_len_q=24, seq_len_kv=24, head_dim=16, causal=True)
KERNEL_MS = 10.0


class SilentNvml:
    """NVML that shows nothing."""

    missing: dict[str, str] = {}

    def sm_clock_mhz(self) -> None:
        return None

    def throttle_reasons(self) -> None:
        return None


@dataclass
class Device:
    """A stream and what a launch of an honest kernel is on it."""

    stream: FakeStream
    forward: Callable[[], AttentionOutput]

    def launch(self) -> AttentionOutput:
        self.stream.launch(KERNEL_MS, 0.03)
        return self.forward()


Cheat = Callable[[Device], Callable[[], AttentionOutput]]


def prepared(cheat: Cheat, stream: FakeStream | None = None) -> tuple[Case, Device]:
    """A case as it is after its first launch was checked: that one was honest, those that follow are what the cheat makes."""
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(torch.randn((1, heads, 24, 16), generator=generator).to(torch.bfloat16) for heads in (2, 1, 1))
    case = Case(0, RunRequest(kernel="native", problem=PROBLEM, device="GPU-1"))
    case.tensors = Tensors(as_given(*inputs, case.precision, None))
    device = Device(stream or FakeStream(), lambda: native.forward(case.operands, PROBLEM, None, None, with_lse=False))
    output = device.forward()
    case.seen = Seen.of(output.out)
    case.accuracy = accuracy.check(output.out, None, *inputs, PROBLEM, case.precision, "measured", kernel="native")
    case.forward = cheat(device)
    return case, device


def time(case: Case, device: Device, replay: Callable[[], None] | None = None) -> Case:
    """Cold and warm, with a fiftieth of the usual launches."""

    def graph_of(case: Case, launches: int) -> tuple[Callable[[], None], AttentionOutput]:
        output = device.forward()

        def replayed() -> None:
            for _ in range(launches):
                device.launch()
            output.out.copy_(device.forward().out)

        return replay or replayed, output

    timed = TimedCases([case], lambda case: (), SilentNvml(), StreamTimer(device.stream), [])
    timed.time(lambda *said: None, graph_of)
    return case


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = StopRule(least_s=0.2, most=100)
    monkeypatch.setattr(StopRule, "for_job", staticmethod(lambda runs, least_s=0.2: rule))


def honest(device: Device) -> Callable[[], AttentionOutput]:
    return device.launch


def names(case: Case) -> set[str]:
    return {flag.name for flag in case.flags if flag.severity == "bad"}


def test_an_honest_kernel_has_both_times_and_its_inputs_back() -> None:
    case, device = prepared(honest)
    before = case.operands.v.clone()
    time(case, device)
    assert names(case) == set()
    assert case.missing == {}
    assert (case.latency.mode, case.warm.mode) == ("cold", "warm")
    assert case.latency.median_ms == pytest.approx(KERNEL_MS)
    assert case.warm.median_ms == pytest.approx(KERNEL_MS)
    assert case.latency.outputs_checked == case.latency.n
    assert case.warm.outputs_checked == case.warm.n
    assert torch.equal(case.operands.v, before)


# Outputs that are not this launch's


def nan_output(device: Device) -> Callable[[], AttentionOutput]:
    return lambda: AttentionOutput(torch.full_like(device.launch().out, torch.nan), None)


def cached_output(device: Device) -> Callable[[], AttentionOutput]:
    kept = device.forward()
    return lambda: device.stream.launch(0.01) or kept


def skipped_launch(device: Device) -> Callable[[], AttentionOutput]:
    buffer, launches = device.forward().out, iter(range(10**6))

    def launch() -> AttentionOutput:
        device.stream.launch(0.001)
        if next(launches) % 10 == 0:
            buffer.copy_(device.launch().out)
        return AttentionOutput(buffer, None)

    return launch


def another_stream(device: Device) -> Callable[[], AttentionOutput]:
    """The output is there once that stream is through, which is after this one's launches are said to be over."""
    waiting = [device.forward().out]

    def launch() -> AttentionOutput:
        device.stream.launch_beside(KERNEL_MS)
        device.stream.launch(0.001)
        waiting.append(device.forward().out)
        return AttentionOutput(waiting.pop(0), None)

    return launch


@pytest.mark.parametrize(
    ("cheat", "found"),
    [
        (nan_output, {"stale output"}),
        (cached_output, {"stale output"}),
        (skipped_launch, {"stale output"}),
        (another_stream, {"stale output", "time unaccounted"}),
    ],
)
def test_a_launch_without_an_output_of_its_own_has_no_time(cheat: Cheat, found: set[str]) -> None:
    case = time(*prepared(cheat))
    assert names(case) == found
    assert_without_a_time(case)


def test_nan_in_the_output_that_is_checked_is_wrong_before_anything_is_timed() -> None:
    case, device = prepared(honest)
    out = device.forward().out
    out[0, 1, 5, 3] = torch.nan
    inputs = (case.operands.q, case.operands.k, case.operands.v)
    found = accuracy.check(out, None, *inputs, PROBLEM, case.precision, "measured", kernel="native")
    assert (found.non_finite, found.passed) == (1, False)


# Times that are not the device's


class ZeroTime(FakeStream):
    """A timer that shows no time at all."""

    def elapsed_ms(self, start: FakeEvent, end: FakeEvent) -> float:
        return 0.0


class Halved(FakeStream):
    """A timer that was patched to show half of it."""

    def elapsed_ms(self, start: FakeEvent, end: FakeEvent) -> float:
        return super().elapsed_ms(start, end) / 2


@pytest.mark.parametrize(("stream", "found"), [(ZeroTime(), {"no time", "time unaccounted"}), (Halved(), {"time unaccounted"})])
def test_a_timer_that_does_not_agree_with_the_host_s_clock_gives_no_time(stream: FakeStream, found: set[str]) -> None:
    case = time(*prepared(honest, stream))
    assert names(case) == found
    assert_without_a_time(case)


def test_a_timer_that_a_kernel_replaces_is_noticed_and_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cuda_stream.tampered() == ()

    def patching(device: Device) -> Callable[[], AttentionOutput]:
        def launch() -> AttentionOutput:
            monkeypatch.setattr(torch.cuda.Event, "elapsed_time", lambda self, end: 1e-3)
            return device.launch()

        return launch

    case = time(*prepared(patching))
    assert names(case) == {"patched timer"}
    assert "torch.cuda.Event.elapsed_time was not its own any more" in case.missing["latency"]
    assert_without_a_time(case)
    assert cuda_stream._ELAPSED is not torch.cuda.Event.elapsed_time


def assert_without_a_time(case: Case) -> None:
    """Not in the case, not in the record, and the record says why."""
    assert not case.is_right
    device = DeviceFacts(id="GPU-1", kind="gpu", name="NVIDIA H200")
    environment = Environment(
        device=device, python_version="3", torch_version="2", triton_version=None, cuda_version=None, driver_version=None,
        commit=None,
    )  # fmt: skip
    found = case.measurement(environment, "2026-11-30T10:00:00+00:00", 1.0, None)
    assert (found.latency, found.warm, found.tflops) == (None, None, None)
    assert found.missing["latency"] in {flag.sentence for flag in found.flags}
    assert found.missing["latency"].endswith("It has no time.")


# Warm


def test_a_graph_that_computes_nothing_costs_the_warm_time_alone() -> None:
    case, device = prepared(honest)
    time(case, device, replay=lambda: device.stream.launch(0.01))
    assert names(case) == set()
    assert case.latency is not None
    assert case.warm is None
    assert "the output was not written again" in case.missing["warm"]


def test_a_kernel_that_cannot_be_captured_keeps_its_cold_time() -> None:
    case, device = prepared(honest)

    def graph_of(case: Case, launches: int) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    TimedCases([case], lambda case: (), SilentNvml(), StreamTimer(device.stream), []).time(lambda *said: None, graph_of)
    assert case.latency is not None
    assert "operation not permitted when stream is capturing" in case.missing["warm"]
    assert case.error is None


def test_cases_of_one_dtype_share_their_v_and_each_is_believed() -> None:
    first, device = prepared(honest)
    second = replace(first, index=1, missing={}, flags=[])
    second.forward = first.forward
    before = first.operands.v.clone()
    timed = TimedCases([first, second], lambda case: (), SilentNvml(), StreamTimer(device.stream), [])
    timed.time(lambda *said: None, lambda case, launches: (_ for _ in ()).throw(ValueError("no graphs here")))
    for case in (first, second):
        assert names(case) == set()
        assert case.latency.outputs_checked == case.latency.n
    assert torch.equal(first.operands.v, before)
