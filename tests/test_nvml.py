"""NVML's readings and its failures, over a pynvml in memory; and the sampler's pause."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from profiling import nvml as nvml_module
from profiling.nvml import Nvml, list_gpus
from profiling.sampler import Sampler, timeline
from tests.fake_pynvml import (
    FakePynvml,
    NVMLError,
    NVMLError_GpuIsLost,
    NVMLError_LibraryNotFound,
    NVMLError_NotFound,
    NVMLError_NotSupported,
    field_value,
)

READINGS = {
    "memory": "memory",
    "memory_used_bytes": "memory",
    "power_w": "power_w",
    "power_limit_w": "power_limit_w",
    "sm_clock_mhz": "sm_clock_mhz",
    "max_sm_clock_mhz": "max_sm_clock_mhz",
    "temperature_c": "temperature_c",
    "utilisation_percent": "utilisation",
    "throttle_reasons": "throttle_reasons",
    "process_ids": "processes",
    "other_processes": "processes",
    "driver_version": "driver_version",
}


@pytest.fixture
def install(monkeypatch):
    def put(fake: object) -> object:
        def import_fake():
            if isinstance(fake, Exception):
                raise fake
            return fake

        monkeypatch.setattr(nvml_module, "_import_pynvml", import_fake)
        return fake

    return put


def test_reads_what_nvml_gives(install):
    install(FakePynvml())
    with Nvml.open("GPU-1") as gpu:
        assert gpu.memory().used_bytes == 100
        assert gpu.memory().reserved_bytes == 50
        assert gpu.power_w() == 71.5
        assert gpu.power_limit_w() == 700.0
        assert gpu.sm_clock_mhz() == gpu.max_sm_clock_mhz() == 1980
        assert gpu.temperature_c() == 41
        assert gpu.utilisation_percent() == 3
        assert gpu.throttle_reasons() == ("power cap",)
        assert gpu.process_ids() == (77,)
        assert gpu.driver_version() == "580.159.03"
        assert gpu.missing == {}


def test_closing_shuts_the_library_down_and_ends_readings(install):
    fake = install(FakePynvml())
    with Nvml.open("GPU-1") as gpu:
        pass
    assert fake.calls[-1] == "nvmlShutdown"
    assert gpu.power_w() is None
    assert gpu.missing["power_w"] == "NVML is closed"


@pytest.mark.parametrize(
    ("fake", "reason"),
    [
        (ImportError("No module named 'pynvml'"), "nvidia-ml-py is not installed"),
        (FakePynvml(nvmlInit=NVMLError_LibraryNotFound(12)), "driver is not installed here"),
        (FakePynvml(nvmlInit=NVMLError(18)), "code 18"),
        (FakePynvml(nvmlDeviceGetHandleByUUID=NVMLError_NotFound(6)), "no such device"),
        (SimpleNamespace(), "install nvidia-ml-py"),
    ],
)
def test_without_nvml_every_reading_is_none_with_the_reason(install, fake, reason):
    install(fake)
    with Nvml.open("GPU-1") as gpu:
        for reading, key in READINGS.items():
            assert getattr(gpu, reading)() is None
            assert reason in gpu.missing[key]


def test_the_real_package_without_a_driver_gives_a_reason():
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        gpu = Nvml.open("GPU-1")
        assert gpu.power_w() is None
        assert gpu.missing["power_w"]
    else:
        pynvml.nvmlShutdown()
        pytest.skip("this machine has a driver")


@pytest.mark.parametrize("error", [NVMLError_NotSupported(3), NVMLError_GpuIsLost(15), NVMLError(12345)])
@pytest.mark.parametrize("reading", sorted(READINGS))
def test_one_failing_function_costs_one_reading_and_is_never_zero(install, reading, error):
    functions = {
        "memory": ["nvmlDeviceGetMemoryInfo"],
        "memory_used_bytes": ["nvmlDeviceGetMemoryInfo"],
        "power_w": ["nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage"],
        "power_limit_w": ["nvmlDeviceGetEnforcedPowerLimit"],
        "sm_clock_mhz": ["nvmlDeviceGetClockInfo"],
        "max_sm_clock_mhz": ["nvmlDeviceGetMaxClockInfo"],
        "temperature_c": ["nvmlDeviceGetTemperature"],
        "utilisation_percent": ["nvmlDeviceGetUtilizationRates"],
        "throttle_reasons": ["nvmlDeviceGetCurrentClocksEventReasons"],
        "process_ids": ["nvmlDeviceGetComputeRunningProcesses"],
        "other_processes": ["nvmlDeviceGetComputeRunningProcesses"],
        "driver_version": ["nvmlSystemGetDriverVersion"],
    }[reading]
    install(FakePynvml(**dict.fromkeys(functions, error)))
    gpu = Nvml.open("GPU-1")
    assert getattr(gpu, reading)() is None
    assert gpu.missing[READINGS[reading]]
    unharmed = [name for name in READINGS if READINGS[name] != READINGS[reading]]
    assert all(getattr(gpu, name)() is not None for name in unharmed)


def test_a_reading_that_works_again_loses_its_reason(install):
    fake = install(FakePynvml(nvmlDeviceGetTemperature=NVMLError(999)))
    gpu = Nvml.open("GPU-1")
    assert gpu.temperature_c() is None
    fake.answers["nvmlDeviceGetTemperature"] = 50
    assert gpu.temperature_c() == 50
    assert "temperature_c" not in gpu.missing


def test_instant_power_falls_back_to_the_average(install):
    install(FakePynvml(nvmlDeviceGetFieldValues=[field_value(0, code=3)]))
    gpu = Nvml.open("GPU-1")
    assert gpu.power_w() == 70.0
    assert gpu.missing["power_instant"]


def test_instant_power_of_an_unknown_type_is_not_guessed(install):
    install(FakePynvml(nvmlDeviceGetFieldValues=[field_value(71_500, value_type=99)]))
    assert Nvml.open("GPU-1").power_w() == 70.0


def test_an_old_driver_counts_reserved_memory_as_used_and_says_so(install):
    def v1_only(_handle, version=None):
        if version is not None:
            raise NVMLError_NotSupported(3)
        return SimpleNamespace(total=1000, used=150)

    install(FakePynvml(nvmlDeviceGetMemoryInfo=v1_only))
    gpu = Nvml.open("GPU-1")
    assert gpu.memory().used_bytes == 150
    assert gpu.memory().reserved_bytes is None
    assert "reserved" in gpu.missing["memory_reserved"]


def test_unified_memory_is_no_zero(install):
    install(FakePynvml(nvmlDeviceGetMemoryInfo=lambda *_: SimpleNamespace(total=0, used=0, reserved=0)))
    gpu = Nvml.open("GPU-1")
    assert gpu.memory() is None
    assert "unified memory" in gpu.missing["memory"]


@pytest.mark.parametrize(("pids", "others"), [([77], 0), ([77, 78], 1), ([77, 77, 0xFFFFFFFF], 0), ([], None)])
def test_other_processes(install, pids, others):
    install(FakePynvml(nvmlDeviceGetComputeRunningProcesses=[SimpleNamespace(pid=pid) for pid in pids]))
    gpu = Nvml.open("GPU-1")
    assert gpu.other_processes() == others
    assert (others is None) == ("processes" in gpu.missing)


def test_throttle_reasons_under_their_old_name(install):
    fake = FakePynvml(nvmlDeviceGetCurrentClocksThrottleReasons=0x40)
    del fake.answers["nvmlDeviceGetCurrentClocksEventReasons"]
    install(fake)
    assert Nvml.open("GPU-1").throttle_reasons() == ("hardware thermal slowdown",)


def test_list_gpus(install):
    install(FakePynvml(nvmlDeviceGetCount=2, nvmlDeviceGetName=b"NVIDIA \xff200"))
    found = list_gpus()
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-0", "GPU-1"]
    assert found.gpus[0].name == "NVIDIA \N{REPLACEMENT CHARACTER}200"
    assert found.gpus[0].capability == 90
    assert found.gpus[0].memory_bytes == 1000
    assert found.skipped == ()


def test_list_gpus_skips_a_lost_one(install):
    def handle(index):
        if index == 0:
            raise NVMLError_GpuIsLost(15)
        return index

    install(FakePynvml(nvmlDeviceGetCount=2, nvmlDeviceGetHandleByIndex=handle))
    found = list_gpus()
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-1"]
    assert "GPU 0" in found.skipped[0]
    assert "lost" in found.skipped[0]


def test_list_gpus_keeps_one_without_memory_or_capability(install):
    install(
        FakePynvml(
            nvmlDeviceGetMemoryInfo=NVMLError_NotSupported(3), nvmlDeviceGetCudaComputeCapability=NVMLError_NotSupported(3)
        )
    )
    (gpu,) = list_gpus().gpus
    assert gpu.memory_bytes is None
    assert gpu.capability is None
    assert set(gpu.missing) == {"memory_bytes", "capability"}


def test_list_gpus_without_nvml_says_why(install):
    install(FakePynvml(nvmlInit=NVMLError_LibraryNotFound(12)))
    found = list_gpus()
    assert found.gpus == ()
    assert "driver is not installed" in found.skipped[0]


class SlowNvml(Nvml):
    """Notes when a read is under way."""

    reading = False

    def power_w(self):
        self.reading = True
        time.sleep(0.01)
        self.reading = False
        return 100.0

    def sm_clock_mhz(self):
        return 1000

    def memory_used_bytes(self):
        return 10

    def temperature_c(self):
        return None


def wait_for(condition):
    deadline = time.monotonic() + 5.0
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within 5 s"
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


def test_timeline_of_series_that_are_there_and_one_that_is_not(install):
    install(FakePynvml(nvmlDeviceGetTemperature=NVMLError_NotSupported(3)))
    gpu = Nvml.open("GPU-1")
    start = time.perf_counter()
    sampler = Sampler(gpu, period_s=0.001)
    sampler.start()
    sampler.resume()
    wait_for(lambda: len(sampler.samples) >= 3)
    sampler.stop()
    record = timeline(gpu, sampler.samples, start, ())
    assert record.power_w.numpy().tolist() == [71.5] * len(sampler.samples)
    assert (record.t_s.numpy() >= 0).all()
    assert record.temperature_c is None
    assert record.missing["temperature_c"] == "this device does not give it"
    assert sampler.peak_memory_bytes(start) == 100


def test_timeline_leaves_out_moments_with_a_hole(install):
    readings = iter([41, NVMLError(999), 42])

    def temperature(*_):
        value = next(readings)
        if isinstance(value, Exception):
            raise value
        return value

    install(FakePynvml(nvmlDeviceGetTemperature=temperature))
    gpu = Nvml.open("GPU-1")
    sampler = Sampler(gpu)
    samples = tuple(sampler._read() for _ in range(3))
    record = timeline(gpu, samples, samples[0].at, ())
    assert record.temperature_c.numpy().tolist() == [41, 42]
    assert record.power_w.shape == (2,)
    assert "1 of 3" in record.missing["t_s"]


def test_timeline_without_nvml(install):
    install(ImportError("pynvml"))
    gpu = Nvml.open("GPU-1")
    record = timeline(gpu, (), 0.0, ())
    assert record.power_w is None
    assert "not installed" in record.missing["power_w"]
    assert "not installed" in record.missing["power_limit_w"]
