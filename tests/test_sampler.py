"""The sampler's pause, and the timeline that is made of what it read: gaps where NVML did not answer, never zeros."""

from __future__ import annotations

import threading
import time

import pytest

from profiling.nvml import Nvml
from profiling.records import PhaseSpan
from profiling.sampler import SERIES, Sample, Sampler, read, timeline
from tests.fake_nvml import FakeNvml
from tests.nvml_failures import FAILURES, NORMAL

FIELDS = {"throttle_reasons": "throttled"}


@pytest.fixture
def library(tmp_path, monkeypatch) -> FakeNvml:
    return FakeNvml(tmp_path).load(monkeypatch)


class SlowNvml(Nvml):
    """Notes when a read is under way."""

    reading = False

    def power_w(self):
        self.reading = True
        time.sleep(0.01)
        self.reading = False
        return 100.0


def wait_for(condition):
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within 60 s"
        time.sleep(0.001)


def test_sampler_reads_only_between_resume_and_pause():
    gpu = SlowNvml("GPU-1")
    sampler = Sampler(gpu, period_s=0.001)
    sampler.start()
    time.sleep(0.05)
    assert sampler.samples == ()
    for _ in range(20):
        sampler.resume()
        wait_for(lambda: gpu.reading)
        sampler.pause()
        assert not gpu.reading
        count = len(sampler.samples)
        time.sleep(0.005)
        assert len(sampler.samples) == count
        assert not gpu.reading
    sampler.stop()
    assert count >= 20
    assert not any(thread.name == "NVML sampler" for thread in threading.enumerate())


def test_sampler_stops_while_paused_or_never_started():
    sampler = Sampler(SlowNvml("GPU-1"))
    sampler.start()
    sampler.stop()
    Sampler(SlowNvml("GPU-1")).stop()


def test_a_thread_reads_the_timeline(library):
    gpu, start = Nvml.open("GPU-0"), time.perf_counter()
    sampler = Sampler(gpu, period_s=0.001)
    sampler.start()
    sampler.resume()
    wait_for(lambda: len(sampler.samples) >= 3)
    sampler.stop()
    record = timeline(gpu, sampler.samples, start, ())
    assert {name: set(getattr(record, name).numpy().tolist()) for name in SERIES} == {name: {NORMAL[name]} for name in SERIES}
    assert (record.t_s.numpy() >= 0).all()
    assert (record.power_limit_w, record.max_sm_clock_mhz, record.max_memory_clock_mhz) == (700.0, 1980.0, 3201.0)
    assert (record.memory_reserved_bytes, record.memory_total_bytes) == (676331520, 150754820096)
    assert {span.words for span in record.throttled} == {"power cap"}
    assert record.gaps == ()
    assert record.missing == {}
    assert sampler.peak_memory_bytes(start) == NORMAL["memory_used_bytes"]


@pytest.mark.parametrize("name", FAILURES)
def test_every_failure_is_a_reason_in_the_timeline_and_never_a_zero(library, name):
    failure = FAILURES[name]
    library.answer(*failure.lines)
    gpu = Nvml.open(failure.uuid)
    record = timeline(gpu, [read(gpu) for _ in range(3)], 0.0, ())
    expected = {**NORMAL, **failure.given}
    for reading in (*SERIES, "throttle_reasons", "power_limit_w", "max_sm_clock_mhz", "max_memory_clock_mhz"):
        name = FIELDS.get(reading, reading)
        found = getattr(record, name)
        if name in record.missing:
            assert found is None
            assert failure.gone.get(reading, "the GPU is lost") in record.missing[name]
        elif reading in SERIES:
            assert set(found.numpy().tolist()) == {expected[reading]}
        else:
            assert found == expected[reading] or {span.words for span in found} == set(expected[reading])
    assert set(failure.gone) & {*SERIES, "power_limit_w"} <= set(record.missing)


def test_moments_without_an_answer_are_gaps_with_the_reason(library):
    gpu, samples = Nvml.open("GPU-0"), []
    for code in (0, 0, 19, 19, 0, 0):
        library.answer(f"nvmlDeviceGetTemperature {code}" if code else "temperature_c 50")
        samples.append(read(gpu))
    record = timeline(gpu, samples, samples[0].at, ())
    assert record.t_s.shape == (4,)
    assert record.temperature_c.numpy().tolist() == [50] * 4
    (gap,) = record.gaps
    assert gap.words == "NVML: fake words for 19"
    assert gap.start_s == samples[2].at - samples[0].at
    assert gap.end_s == samples[3].at - samples[0].at


def test_a_series_that_fails_more_often_than_not_does_not_take_the_others_with_it():
    samples = [
        Sample(at=float(k), power_w=70.0, temperature_c=41.0 if k == 3 else None, missing={"temperature_c": "why"})
        for k in range(6)
    ]
    record = timeline(Nvml("GPU-0"), samples, 0.0, ())
    assert record.power_w.shape == (6,)
    assert record.temperature_c is None
    assert record.missing["temperature_c"] == "why"


def test_what_held_the_clocks_down_is_cut_where_nvml_was_not_read():
    held = {0: (), 1: ("power cap",), 2: ("power cap", "hardware slowdown"), 5: ("power cap",), 6: ()}
    samples = [Sample(at=float(k), power_w=1.0, throttled=words) for k, words in held.items()]
    unread = PhaseSpan(phase="latency", start_s=2.5, end_s=4.5, sampled=False)
    found = timeline(Nvml("GPU-0"), samples, 0.0, (unread,)).throttled
    assert [(span.words, span.start_s, span.end_s) for span in found] == [
        ("power cap", 1.0, 2.0), ("hardware slowdown", 2.0, 2.0), ("power cap", 5.0, 5.0),
    ]  # fmt: skip
    assert timeline(Nvml("GPU-0"), samples[:1], 0.0, ()).throttled == ()


def test_no_more_spans_than_a_record_holds():
    samples = [Sample(at=k / 10, power_w=1.0, throttled=("power cap",) if k % 2 else ()) for k in range(2000)]
    assert len(timeline(Nvml("GPU-0"), samples, 0.0, ()).throttled) == 500


def test_a_mig_device_says_whose_power_it_is(library):
    failure = FAILURES["MIG"]
    library.answer(*failure.lines)
    gpu = Nvml.open(failure.uuid)
    assert "whole card" in timeline(gpu, [read(gpu)], 0.0, ()).missing["mig"]
