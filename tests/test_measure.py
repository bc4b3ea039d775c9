"""How many launches, in which order, under which lock; and the words that go with the number."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading

import numpy as np
import pytest

from profiling import flags
from profiling.gpu_lock import LockBusy, gpu_lock
from profiling.measure import Batch, Run, RunFailed, time_rounds, wall_latency
from profiling.record_types import Array
from profiling.records import Latency


class EventTimer:
    """Stands for CUDA events: a run's time is what it returns; everything that happens is logged."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def estimate_ms(self, run):
        self.log.append("estimate")
        return run()

    def batch(self, run, count):
        return Batch([self._one(run) for _ in range(count)])

    def _one(self, run):
        self.log.append("flush")
        return run()


def run_named(name: str, ms: float, log: list[str]) -> Run:
    def run():
        log.append(name)
        return ms

    return Run(run)


def test_rounds_are_interleaved_and_the_first_launch_is_in_no_sample():
    log: list[str] = []
    batches: list[int] = []
    rounds: list[int] = []
    runs = [run_named("a", 50.0, log), run_named("b", 25.0, log)]
    a, b = time_rounds(runs, EventTimer(log), 5, after_batch=batches.append, after_round=rounds.append)
    assert log[:4] == ["estimate", "a", "estimate", "b"]
    of_a, of_b = ["flush", "a"] * 3, ["flush", "b"] * 5
    assert log[4:] == (of_a + of_b + of_b + of_a) * 2 + of_a + of_b
    assert batches == [0, 1, 1, 0, 0, 1, 1, 0, 0, 1]
    assert rounds == [1, 2, 3, 4, 5]
    assert a.samples_ms == [50.0] * 15
    latency = b.latency()
    assert latency.round_of.numpy().tolist() == [number for number in range(5) for _ in range(5)]
    assert (latency.mode, latency.provenance, latency.stopped) == ("cold", "measured", "quiet")


def test_every_sample_is_kept_in_launch_order():
    times = iter(range(10_000))
    (found,) = time_rounds([Run(lambda: next(times))], EventTimer([]))
    samples = found.latency().samples_ms.numpy().tolist()
    assert samples == list(range(1, len(samples) + 1))
    assert found.latency().round_of.shape[0] == len(samples)


def test_a_slow_kernel_gets_fewer_rounds_beside_a_fast_one():
    clock = iter(range(0, 100_000, 9))
    log: list[str] = []
    slow, fast = time_rounds(
        [run_named("s", 9000.0, log), run_named("f", 100.0, log)], EventTimer(log), 5, clock=lambda: next(clock)
    )
    assert (len(slow.samples_ms), slow.round_of, slow.stopped) == (2, [0, 1], "time")
    assert fast.samples_ms == [100.0] * 4
    assert fast.stopped == "time"


def test_those_that_are_noisy_go_on_alone_after_the_shared_rounds():
    log: list[str] = []
    rng = np.random.default_rng(3)
    noisy = Run(lambda: log.append("n") or 20.0 * float(rng.choice([1.0, 1.3])))
    quiet, wild = time_rounds([run_named("q", 20.0, log), noisy], EventTimer(log), 5)
    assert (quiet.stopped, wild.stopped) == ("quiet", "settled")
    assert quiet.round_of == sorted(list(range(5)) * 6)
    assert set(quiet.round_of) < set(wild.round_of)
    assert len(wild.samples_ms) >= 65 + 4
    assert log[-1] == "n"


def test_what_never_settles_ends_with_its_time():
    seconds = iter(np.arange(0, 1e6, 0.25))
    grows = itertools.count(30.0, 7.0)
    run = Run(lambda: next(grows))
    (found,) = time_rounds([run], EventTimer([]), clock=lambda: next(seconds))
    assert found.stopped == "time"
    assert found.elapsed_s == 15.0


def test_a_run_that_raises_is_named():
    log: list[str] = []

    def fail():
        if log.count("b") > 3:
            raise RuntimeError("out of luck")
        log.append("b")
        return 50.0

    with pytest.raises(RunFailed) as caught:
        time_rounds([run_named("a", 50.0, log), Run(fail)], EventTimer(log))
    assert caught.value.index == 1
    assert str(caught.value.__cause__) == "out of luck"


def test_the_interpreters_time_is_one_wall_sample():
    latency = wall_latency(1.5)
    assert (latency.provenance, latency.mode, latency.n, latency.median_ms) == ("interpreted", "wall", 1, 1500.0)


HOLDER = """
import sys
from profiling.gpu_lock import gpu_lock
with gpu_lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def lock_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("profiling.gpu_lock.tempfile.gettempdir", lambda: str(tmp_path))
    return tmp_path


def holder() -> subprocess.Popen:
    """A process that has the lock of GPU-1 until its input ends."""
    command = [sys.executable, "-c", HOLDER, "GPU-1"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "held\n"
    return child


@pytest.mark.usefixtures("lock_folder")
def test_the_lock_keeps_another_process_out_until_it_is_free():
    child = holder()
    with gpu_lock("GPU-2"):
        assert child.poll() is None
    threading.Timer(0.3, child.stdin.close).start()
    with gpu_lock("GPU-1", timeout_s=60.0) as reason:
        assert child.stdin.closed
        assert child.wait(60) == 0
        assert reason is None


@pytest.mark.usefixtures("lock_folder")
def test_the_lock_gives_up_with_a_sentence():
    child = holder()
    try:
        with pytest.raises(LockBusy, match=r"kept this GPU's lock for 0.2 s"), gpu_lock("GPU-1", timeout_s=0.2):
            pass
    finally:
        child.kill()
        child.wait()


@pytest.mark.usefixtures("lock_folder")
def test_a_killed_holder_leaves_the_lock_free():
    child = holder()
    child.kill()
    child.wait()
    with gpu_lock("GPU-1", timeout_s=0.0) as reason:
        assert reason is None


def test_a_lock_that_cannot_be_had_is_a_reason_not_an_error(lock_folder, monkeypatch):
    (lock_folder / "file").write_text("no folder")
    monkeypatch.setattr("profiling.gpu_lock.tempfile.gettempdir", lambda: str(lock_folder / "file"))
    with gpu_lock("GPU-1") as reason:
        assert "cannot be used" in reason


def latency_of(*ms: float) -> Latency:
    return Latency(provenance="measured", mode="cold", samples_ms=Array.of(ms), round_of=Array.of([0] * len(ms), dtype="<i4"))


def test_samples_flag():
    assert flags.samples_flag(latency_of(*[1.0] * 10)) is None
    assert flags.samples_flag(latency_of(*[1.0] * 9)).severity == "caution"


@pytest.mark.parametrize(
    ("ms", "name", "severity"),
    [(2.0, "below peak", "ok"), (1.0, "below peak", "ok"), (0.9, "implausible", "bad")],
)
def test_peak_flag_by_operations(ms, name, severity):
    flag = flags.peak_flag(1e12, 1, latency_of(5.0, ms), 1000.0, None)
    assert (flag.name, flag.severity) == (name, severity)


def test_peak_flag_by_bytes_and_without_a_data_sheet():
    assert flags.peak_flag(1.0, 10**9, latency_of(0.1), 1000.0, 4.8e12).name == "implausible"
    assert flags.peak_flag(1.0, 10**9, latency_of(1.0), 1000.0, 4.8e12).name == "below peak"
    assert flags.peak_flag(1e12, 1, latency_of(1.0), None, None).name == "peak unknown"
    assert flags.peak_flag(1e12, 1, latency_of(1.0), None, None, measured_tflops=700.0).name == "below peak"
    assert flags.peak_flag(1e12, 1, latency_of(0.9), None, None, measured_tflops=700.0).name == "implausible"


@pytest.mark.parametrize(
    ("clocks", "maximum", "name", "short"),
    [
        ([1980, 1980, 1980], 1980, "clock steady", "clock steady 1,980 MHz"),
        ([1950, 1980], 1980, "clock steady", "clock steady 1,980 MHz"),
        ([1700, 1980], 1980, "clock moved", "clock 1,700 to 1,980 MHz"),
        ([1200, 1980], 1980, "low clock", "low clock 1,200 MHz"),
        ([1980, None], None, "clock steady", "clock steady 1,980 MHz"),
        ([None, None], 1980, "clock unknown", "clock unknown"),
        ([], 1980, "clock unknown", "clock unknown"),
    ],
)
def test_clock_flag(clocks, maximum, name, short):
    flag = flags.clock_flag(clocks, maximum, "not supported")
    assert (flag.name, flag.short) == (name, short)


def test_what_held_the_clocks_down_is_a_flag_by_its_cause():
    assert flags.throttle_flags([(), None, ()]) == []
    reasons = [(), ("power cap",), ("power cap", "software thermal slowdown"), ("hardware slowdown",)]
    found = {flag.name: flag for flag in flags.throttle_flags(reasons)}
    assert {name: flag.short for name, flag in found.items()} == {
        "power cap": "power cap", "thermal": "software thermal slowdown", "slowed": "hardware slowdown",
    }  # fmt: skip
    assert {flag.severity for flag in found.values()} == {"caution"}
    assert found.keys() <= set(flags.HELD_DOWN)


@pytest.mark.parametrize(
    ("others", "before", "interrupted", "name", "severity"),
    [
        (0, 3, None, "alone", "ok"),
        (1, 0, None, "contended", "caution"),
        (3, None, None, "contended", "caution"),
        (0, 90, None, "alone", "ok"),
        (None, 50, None, "contended", "caution"),
        (None, None, 2.1, "contended", "caution"),
        (0, 0, 2.1, "contended", "caution"),
        (None, 0, None, "contention unknown", "info"),
        (None, None, None, "contention unknown", "info"),
    ],
)
def test_busy_flag(others, before, interrupted, name, severity):
    flag = flags.busy_flag(others, before, "NVML shows no process here", interrupted)
    assert (flag.name, flag.severity) == (name, severity)


def test_lock_flag():
    assert flags.lock_flag(None) is None
    assert flags.lock_flag("read-only").severity == "caution"
