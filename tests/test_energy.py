"""Energy of a launch by a counter that moves in steps, on a clock of our own: against the power that was put in."""

from __future__ import annotations

import time

import pytest

from kernels.registry import Refused
from profiling import energy
from profiling.nvml import MemoryReading, Nvml
from profiling.records import Measurement
from profiling.sampler import Sample
from profiling.text_report import table
from profiling.words import three_digits
from tests import records_for_tests as records
from tests.fake_nvml import FakeNvml
from tests.test_schedule import ListedTimer, stamped  # noqa: F401  (a fixture)

READ_S = 0.0065  # what reading the counter takes on an H200


class Gpu:
    """A stream, a clock and a counter: launches of launch_s, host_s to queue one, watts while it runs, a step every step_s."""

    def __init__(self, launch_s: float = 0.002, watts: float = 600.0, step_s: float = 0.02, host_s: float = 5e-6) -> None:
        self.launch_s, self.watts, self.step_s, self.host_s = launch_s, watts, step_s, host_s
        self.s = self.free_at = 0.0
        self.reads = 0
        self.last_end = self.first_begin = 0.0

    def now(self) -> float:
        self.s += 1e-7
        return self.s

    def begin(self) -> None:
        self.first_begin = max(self.s, self.free_at)

    def queue(self, least: int) -> tuple[float, int]:
        for _ in range(least):
            self.s += self.host_s
            self.free_at = max(self.s, self.free_at) + self.launch_s
        return self.free_at, least

    def is_done(self, batch: float) -> bool:
        return batch <= self.s

    def wait(self) -> None:
        self.s = max(self.s, self.free_at)

    def busy_s(self) -> float:
        return self.free_at - self.first_begin

    def energy_mj(self) -> int | None:
        self.reads += 1
        self.s += READ_S / 2
        shown = 1_000_000 + int(1000 * self.watts * self.step_s * int(self.s / self.step_s))
        self.s += READ_S / 2
        return shown

    def samples(self) -> tuple[Sample, ...]:
        return tuple(Sample(at=k * 0.03, power_w=self.watts) for k in range(int(self.s / 0.03)))


class Counter(Nvml):
    """An NVML whose counter is a Gpu's."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__("GPU-0")
        self._gpu = gpu

    def energy_mj(self) -> int | None:
        return self._gpu.energy_mj()


def take(gpu: Gpu, nvml: Nvml | None = None) -> energy.Energy:
    found, gpu.dry_share = energy.take(gpu, 1000 * gpu.launch_s, nvml or Counter(gpu), gpu.samples, gpu.now)
    return found


@pytest.mark.parametrize("step_s", [0.001, 0.02, 0.1])
@pytest.mark.parametrize("launch_s", [50e-6, 2e-3, 0.3])
def test_energy_is_power_times_the_time_of_a_launch(launch_s, step_s):
    gpu = Gpu(launch_s, 600.0, step_s)
    found = take(gpu)
    # Both ends of the window are known to a reading of the counter, or two where launches are queued in between.
    allowed = 2 * (READ_S + 20e-3 * gpu.host_s / min(launch_s, 20e-3)) / energy.WINDOW_S
    assert found.window_s >= energy.WINDOW_S
    assert found.mean_w == pytest.approx(600.0, rel=allowed)
    assert found.launch_ms == pytest.approx(1000 * launch_s, rel=1e-3)
    assert found.per_launch_mj == pytest.approx(600.0 * 1000 * launch_s, rel=allowed)
    assert found.sampled_mj == pytest.approx(found.energy_mj, rel=allowed)
    assert found.missing == {}
    assert gpu.s < 2.0 + 3 * launch_s


def test_the_gpu_never_waits_for_the_counter():
    gpu = Gpu(launch_s=1e-3)
    found = take(gpu)
    assert found.busy_s == pytest.approx(found.launches * 1e-3)


def test_a_counter_that_stands_still_is_too_short_for_power():
    found = take(Gpu(step_s=100.0))
    assert found.energy_mj is found.window_s is found.per_launch_mj is found.mean_w is None
    assert found.missing["energy_mj"].startswith("too short for power")
    assert found.launches > 0


@pytest.mark.parametrize("line", ["nvmlDeviceGetTotalEnergyConsumption 3", "energy_mj 0", "all 15"])
def test_without_a_counter_there_is_no_energy_but_a_reason(tmp_path, monkeypatch, line):
    FakeNvml(tmp_path, line).load(monkeypatch)
    with Nvml.open("GPU-0") as nvml:
        found = take(Gpu(), nvml=nvml)
    assert found.energy_mj is None
    assert found.missing["energy_mj"]


def test_few_readings_of_the_power_are_no_check():
    samples = [Sample(at=k / 10, power_w=600.0 if k % 2 else None, memory=MemoryReading(2, 1, None)) for k in range(20)]
    assert energy.integral_mj(samples, 0.0, 1.0) == (None, "power was read 5 times meanwhile")
    every = [Sample(at=k / 10, power_w=100.0 + 10 * k) for k in range(11)]
    assert energy.integral_mj(every, 0.0, 1.0) == (pytest.approx(150_000.0), None)


def test_a_launch_that_takes_longer_than_the_limit_is_refused():
    with pytest.raises(Refused, match=r"a launch takes 7.5 s; energy is taken of launches up to 5 s"):
        take(Gpu(launch_s=7.5))


def test_a_gpu_that_waits_for_the_host_is_flagged():
    slow_host, slow_clock = Gpu(launch_s=10e-6, host_s=30e-6), Gpu(launch_s=10e-6, host_s=3e-6)
    assert take(slow_host).launch_ms == pytest.approx(0.03, rel=0.05)
    (flag,) = energy.flags_of(slow_host.dry_share)
    assert "the GPU waited for the host" in flag.sentence
    take(slow_clock)
    assert slow_clock.dry_share == 0.0
    assert energy.flags_of(0.0) == []


# In a job


@pytest.fixture
def asked(stamped, monkeypatch):  # noqa: F811
    """asked(answer) runs a job with the probes energy and schedule, in which energy.take does what is given."""

    def run(answer: energy.Energy | Refused) -> Measurement:
        def take(*_arguments: object) -> tuple[energy.Energy, float]:
            if isinstance(answer, Refused):
                raise answer
            time.sleep(0.03)
            return answer, 0.5

        monkeypatch.setattr(energy, "CudaLaunches", lambda *_arguments: None)
        monkeypatch.setattr(energy, "take", take)
        monkeypatch.setattr("profiling.gpu_bench.GpuBench.make_timer", lambda *_arguments: ListedTimer([5.0]))
        monkeypatch.setattr("profiling.sampler.Sampler.__init__.__defaults__", (0.0005,))
        return stamped([5.0], probes=("energy", "schedule"))

    return run


def test_a_job_keeps_the_energy_and_marks_its_launches(asked):
    given = energy.Energy(launches=600, busy_s=1.2, window_s=1.0, energy_mj=600_000.0)
    found = asked(given)
    assert found.energy == given
    assert "energy: GPU waited" in {flag.short for flag in found.flags}
    assert found.tflop_per_joule == pytest.approx(found.request.problem.flops / 1.2 / 1e12)
    (mark,) = [span for span in found.timeline.launched if span.phase == "energy"]
    assert (mark.label, mark.launches) == ("stamped", 600)
    assert [span.sampled for span in found.timeline.spans if span.phase == "energy"] == [True]


def test_nvml_is_never_read_while_launches_are_timed(asked):
    timeline = asked(energy.Energy(launches=1, busy_s=1.2, window_s=1.0, energy_mj=1.0)).timeline
    unread = [span for span in timeline.spans if not span.sampled]
    assert unread
    assert timeline.t_s.shape[0] > 5
    assert not any(span.start_s <= at <= span.end_s for span in unread for at in timeline.t_s.numpy())


def test_energy_that_fails_leaves_the_rest(asked):
    found = asked(Refused("a launch takes 7.5 s; energy is taken of launches up to 5 s."))
    assert found.error is None
    assert found.energy is None
    assert "a launch takes 7.5 s" in found.missing["energy"]
    (flag,) = [flag for flag in found.flags if flag.name == "no energy"]
    assert "a launch takes 7.5 s" in flag.sentence
    assert found.schedule is not None


def test_the_command_lines_table_has_the_energy_or_says_why_not():
    given = energy.Energy(launches=600, busy_s=1.2, window_s=1.0, energy_mj=600_000.0)
    said = table((records.on_gpu(energy=given),))
    rows = {row.split("  ")[0]: row for row in said.splitlines()}
    assert "1.20 J" in rows["energy a launch"]
    assert "600 W" in rows["average power"]
    assert f"{three_digits(records.LONG.flops / 1.2 / 1e12)} TFLOP/J" in rows["work for energy"]
    without = energy.Energy(launches=1, busy_s=1.2, window_s=None, energy_mj=None, missing={"energy_mj": "too short for power"})
    said = table((records.on_gpu(energy=without),))
    assert "the energy is n/a: too short for power." in said
    assert "energy a launch" not in said
