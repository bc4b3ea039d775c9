"""Launches are held until they are queued, and that they were is seen; the timer's books balance, or it is said."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from profiling import flags
from profiling.launch_proof import contradictions, interruption
from profiling.measure import ROUNDS, Run, Timed, time_rounds
from profiling.stop_rule import StopRule
from profiling.stream_timer import STRETCH, StreamTimer
from tests.fake_stream import FakeEvent, FakeStream


def launching(stream: FakeStream, ms: float, host_ms: float = 0.03) -> Run:
    return Run(lambda: stream.launch(ms, host_ms))


def timed(stream: FakeStream, run: Run, timer: StreamTimer | None = None, count: int = 200) -> Timed:
    found = Timed(run.launches)
    found.add((timer or StreamTimer(stream)).batch(run, count), 0, 1.0)
    return found


@pytest.mark.parametrize(("kernel_ms", "host_ms"), [(0.005, 0.03), (0.02, 0.1), (0.25, 0.06), (30.0, 0.06)])
def test_a_held_stream_shows_nothing_of_the_host(kernel_ms: float, host_ms: float) -> None:
    stream = FakeStream()
    timer, run = StreamTimer(stream), launching(stream, kernel_ms, host_ms)
    assert timer.estimate_ms(run) == pytest.approx(kernel_ms)
    found = timed(stream, run, timer)
    assert len(found.samples_ms) == 200
    assert found.samples_ms == pytest.approx([kernel_ms] * 200)
    assert found.exposed == 0
    assert len(found.ledgers) == 200 / STRETCH
    assert contradictions("v2", found, 0, 0) == ()
    assert flags.launch_flag(found.latency()).name == "held"


def test_without_a_hold_the_host_s_part_is_seen_and_said() -> None:
    stream = FakeStream(can_hold=False, flush_ms=0.001)
    found = timed(stream, launching(stream, 0.005, 0.05))
    assert min(found.samples_ms) > 0.05
    assert found.exposed == 200
    flag = flags.launch_flag(found.latency())
    assert (flag.name, flag.severity) == ("launch-bound", "caution")
    assert "began 200 of 200 launches before the host had queued them" in flag.sentence


def test_a_kernel_that_outlasts_the_host_needs_no_hold_and_is_not_exposed() -> None:
    stream = FakeStream(can_hold=False, flush_ms=0.001)
    found = timed(stream, launching(stream, 1.0, 0.05))
    # The first launch of each stretch finds the device idle.
    assert found.exposed == len(found.ledgers)
    assert flags.launch_flag(found.latency()).name == "held"
    assert all(ledger.wall_ms is None for ledger in found.ledgers)


def test_the_hold_follows_what_queueing_takes() -> None:
    stream = FakeStream()
    timer, slow = StreamTimer(stream), launching(stream, 0.005, 2.0)
    first = timed(stream, slow, timer, STRETCH)
    assert first.exposed > 0
    last = timed(stream, slow, timer, STRETCH)
    assert last.exposed == 0
    assert 120.0 < stream.holds[-1] < 200.0
    assert last.ledgers[0].wall_ms is not None
    quick = launching(stream, 0.005, 0.01)
    timed(stream, quick, timer, 4 * STRETCH)
    assert stream.holds[-1] < 5.0, "each run's own queueing counts"


@pytest.mark.parametrize(("kernel_ms", "host_ms"), [(0.15, 0.05), (0.1, 0.25), (5.0, 0.06)])
def test_only_the_first_stretch_of_a_batch_is_held_to_its_end(kernel_ms: float, host_ms: float) -> None:
    stream = FakeStream()
    timer, run = StreamTimer(stream), launching(stream, kernel_ms, host_ms)
    timer.estimate_ms(run)
    found = timed(stream, run, timer, 500)
    assert found.exposed == 0
    assert found.ledgers[0].wall_ms is not None
    assert max(stream.holds[-9:]) < 0.7 * stream.holds[-10]
    assert found.samples_ms == pytest.approx([kernel_ms] * 500)


def test_a_host_that_the_queue_keeps_waiting_is_not_taken_for_a_slow_one() -> None:
    class Full(FakeStream):
        """No more than 200 things can be queued: the next one waits until the hold is over."""

        waiting = 0

        def hold(self, ms: float) -> None:
            self.waiting = 0
            super().hold(ms)
            self.until = self.device

        def launch(self, ms: float, host_ms: float | None = None) -> None:
            self.waiting += 1
            if self.waiting == 60:
                self.host = max(self.host, self.until)
            super().launch(ms, host_ms)

    stream = Full()
    timer, run = StreamTimer(stream), launching(stream, 0.3)
    found = timed(stream, run, timer, 1000)
    assert found.exposed == 0
    assert max(stream.holds[1:]) < 10.0


def test_launches_in_turn_come_back_by_run_and_after_each_something_may_follow() -> None:
    stream, followed = FakeStream(), []
    first, second = StreamTimer(stream).in_turn_ms(
        (lambda: stream.launch(1.0), lambda: stream.launch(2.0)), 40, followed.append
    )
    assert first == pytest.approx([1.0] * 40)
    assert second == pytest.approx([2.0] * 40)
    assert followed[:6] == [0, 1, 1, 0, 0, 1]


def test_a_graph_s_sample_is_one_of_its_launches() -> None:
    stream = FakeStream()
    graph = launching(stream, 1.0)
    graph.launches, graph.flushes = 50, False
    found = timed(stream, graph)
    assert found.samples_ms == pytest.approx([0.02] * 200)
    assert found.latency("warm").launches_per_sample == 50
    assert stream.device < 200 * 1.0 + sum(stream.holds) + 10.0, "the cache is not flushed"


# The books


class Lying(FakeStream):
    """A stream whose elapsed_ms is made smaller."""

    def __init__(self, of_launches: float, of_all: float = 1.0) -> None:
        super().__init__()
        self.of_launches, self.of_all = of_launches, of_all
        self.launched: set[tuple[int, int]] = set()

    def elapsed_ms(self, start: FakeEvent, end: FakeEvent) -> float:
        true = super().elapsed_ms(start, end)
        is_launch = abs(true - 0.25) < 1e-6
        return true * (self.of_launches if is_launch else self.of_all)


@pytest.mark.parametrize(
    ("stream", "names"),
    [
        (Lying(of_launches=0.0), {"no time", "time unaccounted"}),
        (Lying(of_launches=0.5), {"time unaccounted"}),
        (Lying(of_launches=0.98), {"time unaccounted"}),
        (Lying(of_launches=0.7, of_all=0.7), {"time unaccounted"}),
        (Lying(of_launches=1.0), set()),
    ],
)
def test_a_timer_that_lies_contradicts_itself_or_the_host_s_clock(stream: Lying, names: set[str]) -> None:
    found = contradictions("v2", timed(stream, launching(stream, 0.25)), 0, 0)
    assert {flag.name for flag in found} == names
    assert all(flag.severity == "bad" and flag.sentence.endswith("It has no time.") for flag in found)


def test_work_on_another_stream_is_time_that_the_events_do_not_see() -> None:
    stream = FakeStream()

    def launch() -> None:
        stream.launch_beside(0.25)
        stream.launch(0.001)

    run = Run(launch)
    (flag,) = contradictions("v2", timed(stream, run), 0, 0)
    assert flag.short == "time unaccounted for"
    assert "work ran on another stream, or the timer is not right" in flag.sentence


def test_what_was_replaced_is_named() -> None:
    stream = FakeStream()
    honest = timed(stream, launching(stream, 0.25))
    (flag,) = contradictions("v2", honest, 0, 0, ("torch.cuda.Event.elapsed_time",))
    assert (flag.name, "torch.cuda.Event.elapsed_time was not its own" in flag.sentence) == ("patched timer", True)


def test_a_host_that_is_late_now_and_then_is_no_liar() -> None:
    stream, rng = FakeStream(), random.Random(1)

    found = Timed()
    for number in range(5):
        batch = StreamTimer(stream).batch(launching(stream, 0.01), 200)
        late = rng.choice([0.02, 1.0, 40.0])
        ledgers = [replace(one, wall_ms=one.wall_ms and one.wall_ms + late) for one in batch.ledgers]
        found.add(replace(batch, ledgers=tuple(ledgers)), number, 1.0)
    assert contradictions("v2", found, 0, 0) == ()


def test_a_gpu_that_others_use_is_told_by_the_pauses_and_not_called_a_liar() -> None:
    quiet, shared = FakeStream(), FakeStream(others=1.0)
    for stream, is_shared in ((quiet, False), (shared, True)):
        found = timed(stream, launching(stream, 0.25), count=400)
        assert contradictions("v2", found, 0, 0) == ()
        assert (interruption(found.ledgers) is not None) == is_shared
    flag = flags.busy_flag(None, 0, "not shown", interruption(found.ledgers))
    assert (flag.name, flag.severity) == ("contended", "caution")
    assert "times longer on average than usual" in flag.sentence


def test_honest_timings_are_not_contradicted() -> None:
    """Kernels from 2 µs to 80 ms, hosts quick and slow, noise: no flag on any of them."""
    rng = np.random.default_rng(5)
    for _ in range(200):
        stream = FakeStream(queueing=float(rng.uniform(0.001, 0.01)), flush_ms=float(rng.uniform(0.02, 0.2)))
        ms = float(10 ** rng.uniform(-2.7, 1.9))
        run = Run(lambda stream=stream, ms=ms: stream.launch(ms * float(rng.uniform(0.97, 1.2)), 0.02))
        assert contradictions("v2", timed(stream, run, count=int(rng.integers(2, 60))), 0, 0) == ()


def test_rounds_on_a_stream_end_with_half_a_second_of_launches() -> None:
    stream, rng = FakeStream(), np.random.default_rng(2)

    def run_of(ms: float, noise: float) -> Run:
        return Run(lambda: stream.launch(ms * (1 + noise * float(rng.standard_normal())), 0.03))

    quiet, noisy, slow = time_rounds(
        [run_of(0.5, 0.001), run_of(0.5, 0.02), run_of(400.0, 0.001)], StreamTimer(stream), clock=lambda: stream.host / 1000
    )
    for found in (quiet, noisy):
        assert 1000 <= len(found.samples_ms) < 1300
        assert sorted(set(found.round_of)) == list(range(ROUNDS))
    assert (quiet.stopped, noisy.stopped, slow.stopped) == ("quiet", "settled", "quiet")
    assert len(slow.samples_ms) == StopRule().fewest
