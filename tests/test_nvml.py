"""NVML's readings and its failures: the real nvidia-ml-py over a library without a GPU (fake_nvml.c)."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from profiling import nvml as nvml_module
from profiling.devices import ROOT, discover
from profiling.gpu_list import READINGS, everything, list_gpus
from profiling.nvml import Nvml
from tests.fake_nvml import FakeNvml, hexadecimal
from tests.nvml_failures import EVERYTHING, FAILURES, FUNCTIONS, NORMAL, readings_of, returning

CODES = (*range(1, 31), 47, 999, 12345, -1)


@pytest.fixture
def library(tmp_path, monkeypatch) -> FakeNvml:
    return FakeNvml(tmp_path).load(monkeypatch)


def test_reads_what_nvml_gives(library):
    with Nvml.open("GPU-0") as gpu:
        assert {name: getattr(gpu, name)() for name in NORMAL} == NORMAL
        assert gpu.memory().reserved_bytes == 676331520
        assert gpu.memory().total_bytes == 150754820096
        assert gpu.missing == {}
    assert gpu.power_w() is None
    assert gpu.missing["power_w"] == "NVML is closed"
    assert set(READINGS) == set(EVERYTHING)


@pytest.mark.parametrize("name", [name for name in FAILURES if name != "lost while it is read"])
def test_a_failure_costs_its_own_readings_and_is_never_zero(library, name):
    failure = FAILURES[name]
    library.answer(*failure.lines)
    with Nvml.open(failure.uuid) as gpu:
        for reading in EVERYTHING:
            value = getattr(gpu, reading)()
            if reading in failure.gone:
                assert value is None, reading
                assert failure.gone[reading] in gpu.missing[READINGS[reading]]
            elif reading != "memory":
                assert value == {**NORMAL, **failure.given}[reading], reading


def test_a_gpu_that_is_lost_is_not_asked_again(library):
    library.answer("nvmlDeviceGetTemperature 15")
    gpu = Nvml.open("GPU-0")
    assert gpu.power_w() == 71.5
    assert gpu.temperature_c() is None
    library.answer("crash nvmlDeviceGetTemperature")
    for reading in EVERYTHING:
        assert getattr(gpu, reading)() is None
        assert "the GPU is lost" in gpu.missing[READINGS[reading]]


@pytest.mark.parametrize("code", CODES)
def test_any_return_code_of_one_function_costs_what_stands_on_it_alone(library, code):
    check_return_code(library, code, tuple(FUNCTIONS))


@pytest.mark.long
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_thousand_return_codes_a_field(library, name):
    draw = random.Random(name)
    for _ in range(1000):
        check_return_code(library, draw.choice((*CODES, draw.randrange(-(2**31), 2**31))) or 1, (name,))


def check_return_code(library: FakeNvml, code: int, names: tuple[str, ...]) -> None:
    for name in names:
        library.answer(*returning(code, name))
        gpu = Nvml.open("GPU-0")
        lost = readings_of(name)
        for reading in lost:
            assert getattr(gpu, reading)() is None, (reading, code)
            assert gpu.missing[READINGS[reading]]
        for reading in NORMAL:
            if reading not in lost and code != 15:  # a lost GPU is lost to all
                assert getattr(gpu, reading)() == NORMAL[reading], (name, reading, code)
        gpu.close()


@pytest.mark.parametrize("seed", range(8))
def test_codes_drawn_anew_at_every_call_leave_true_numbers_or_none(library, seed):
    library.answer(f"seed {seed}")
    with Nvml.open("GPU-0") as gpu:
        allowed = {**NORMAL, "power_w": (71.5, 70.0), "memory_used_bytes": (3407872, 679739392)}
        for _ in range(5):
            for reading in NORMAL:
                value = getattr(gpu, reading)()
                expected = allowed[reading]
                assert value is None or value == expected or (isinstance(expected, tuple) and value in expected)
                assert (value is None) <= bool(gpu.missing.get(READINGS[reading]))


def test_a_container_gets_its_gpu_back_after_waits_that_double(library):
    clock = SimpleNamespace(s=0.0)
    gpu = Nvml.open("GPU-0")
    gpu.now = lambda: clock.s
    library.answer("all 999", "nvmlInitWithFlags 999")
    tries = []
    for _ in range(1300):
        before = gpu._retry_at
        assert gpu.temperature_c() is None
        assert "a container that has lost its GPU" in gpu.missing["temperature_c"]
        if gpu._retry_at != before:
            tries.append(clock.s)
        clock.s += 0.1
    assert [round(b - a) for a, b in itertools.pairwise(tries)] == [1, 2, 4, 8, 16, 32, 60]
    library.answer()
    clock.s += 60.0
    assert gpu.temperature_c() == 41
    assert gpu.missing == {}


def test_a_field_that_always_fails_does_not_begin_nvml_anew_again_and_again(library, monkeypatch):
    library.answer("nvmlDeviceGetTemperature 999")
    begun = []
    monkeypatch.setattr(nvml_module, "initialised", lambda begin=nvml_module.initialised: begun.append(1) or begin())
    gpu = Nvml.open("GPU-0")
    for _ in range(100):
        assert gpu.temperature_c() is None
        assert gpu.power_w() == 71.5
    assert len(begun) == 2


def test_a_reading_that_works_again_loses_its_reason(library):
    library.answer("nvmlDeviceGetTemperature 19", "nvmlDeviceGetMemoryInfo_v2 19")
    gpu = Nvml.open("GPU-0")
    assert gpu.temperature_c() is gpu.memory() is None
    library.answer()
    assert gpu.temperature_c() == 41
    assert gpu.memory().reserved_bytes == 676331520
    assert gpu.missing == {}


def test_instant_power_falls_back_to_the_average_only_where_there_is_none(library):
    for lines in (("field_return 3",), ("field_type 99",)):
        library.answer(*lines)
        gpu = Nvml.open("GPU-0")
        assert gpu.power_w() == 70.0
        assert gpu.missing["power_instant"]
    library.answer("field_return 19")
    gpu = Nvml.open("GPU-0")
    assert gpu.power_w() is None
    assert gpu.missing["power_w"]


def test_an_old_driver_counts_reserved_memory_as_used_and_says_so(library):
    library.answer("nvmlDeviceGetMemoryInfo_v2 13")
    gpu = Nvml.open("GPU-0")
    assert gpu.memory().reserved_bytes is None
    assert "used counts the driver's reserved memory too" in gpu.missing["memory_reserved"]


def test_throttle_reasons(library):
    for lines, words in (
        (("nvmlDeviceGetCurrentClocksEventReasons 13", "clock_events 0x40"), ("hardware thermal slowdown",)),
        (("clock_events 0x1",), ()),
        (("clock_events 0x1002",), ("a reason without a name here (0x1000)",)),
    ):
        library.answer(*lines)
        assert Nvml.open("GPU-0").throttle_reasons() == words


@pytest.mark.parametrize(("pids", "others"), [("77", 0), ("77,78", 1), ("77,77,0xffffffff", 0), ("77,0", 0)])
def test_other_processes(library, pids, others):
    library.answer(f"compute_pids {pids}")
    assert Nvml.open("GPU-0").other_processes() == others
    library.answer(f"compute_pids {pids}", "nvmlDeviceGetGraphicsRunningProcesses_v3 3")
    assert Nvml.open("GPU-0").other_processes() == others


# Another pynvml, or none


@pytest.mark.parametrize("found", [ModuleType("pynvml"), ImportError("No module named 'pynvml'")])
def test_without_nvidia_ml_py_every_reading_is_none_with_the_reason(monkeypatch, found):
    def import_other() -> ModuleType:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(nvml_module, "_import_pynvml", import_other)
    reason = "not installed" if isinstance(found, Exception) else "install nvidia-ml-py"
    with Nvml.open("GPU-0") as gpu:
        for reading in EVERYTHING:
            assert getattr(gpu, reading)() is None
            assert reason in gpu.missing[READINGS[reading]]
    assert reason in list_gpus().skipped[0]


def test_an_old_pynvml_that_speaks_bytes(library, monkeypatch):
    """As the package called pynvml once was: bytes in, bytes out, and half of the functions not there."""
    import pynvml

    kept = {name: getattr(value, "__wrapped__", value) for name, value in vars(pynvml).items()}
    for name in ("nvmlDeviceGetFieldValues", "nvmlMemory_v2", "nvmlDeviceGetCurrentClocksEventReasons"):
        del kept[name]
    kept["nvmlDeviceGetMemoryInfo"] = lambda handle: pynvml.nvmlDeviceGetMemoryInfo(handle)
    kept["nvmlDeviceGetComputeRunningProcesses"] = pynvml.nvmlDeviceGetComputeRunningProcesses_v3
    kept["nvmlDeviceGetGraphicsRunningProcesses"] = pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3
    monkeypatch.setattr(nvml_module, "_import_pynvml", lambda: SimpleNamespace(**kept))
    changed = {"power_w": 70.0, "memory_used_bytes": 3407872 + 676331520}
    with Nvml.open("GPU-0") as gpu:
        assert {name: getattr(gpu, name)() for name in NORMAL} == {**NORMAL, **changed}
    assert list_gpus().gpus[0].name == "NVIDIA H200"


# The list of GPUs


def test_list_gpus(library):
    library.answer("count 2", f"name_hex {hexadecimal(b'NVIDIA ' + bytes([255]) + b'200')}", "1:capability 89")
    found = list_gpus()
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-0", "GPU-1"]
    assert found.gpus[0].name == "NVIDIA \N{REPLACEMENT CHARACTER}200"
    assert [gpu.capability for gpu in found.gpus] == [90, 89]
    assert found.gpus[0].memory_bytes == 150754820096
    assert found.skipped == ()
    assert [gpu.uuid for gpu in list_gpus(1).gpus] == ["GPU-1"]
    assert list_gpus(2) == type(found)((), ())


def test_list_gpus_skips_a_lost_one_and_keeps_one_without_memory_or_capability(library):
    library.answer("count 2", "0:all 15", *returning(3, "memory"), "nvmlDeviceGetCudaComputeCapability 3")
    found = list_gpus()
    (gpu,) = found.gpus
    assert (gpu.uuid, gpu.memory_bytes, gpu.capability) == ("GPU-1", None, None)
    assert set(gpu.missing) == {"memory_bytes", "capability"}
    assert "GPU 0 was left out: the GPU is lost" in found.skipped[0]


def test_list_gpus_lists_the_slices_of_a_card_that_is_split(library):
    library.answer("count 2", "0:mig_devices 2")
    assert [gpu.uuid for gpu in list_gpus().gpus] == ["MIG-0-0", "MIG-0-1", "GPU-1"]


def test_everything_that_can_be_read(library):
    found = everything()
    assert {name: found["gpus"][0]["readings"][name] for name in NORMAL} == NORMAL
    library.answer("nvmlInitWithFlags 18")
    assert everything()["gpus"] == []


# In a child process, where NVML may crash


def test_discover_loses_only_the_gpu_on_which_nvml_crashes(tmp_path, monkeypatch):
    library = FakeNvml(tmp_path, "count 3", "1:crash nvmlDeviceGetName")
    for name, value in library.environment.items():
        monkeypatch.setenv(name, value)
    *gpus, interpreter = discover(60.0)
    assert [gpu.id for gpu in gpus] == ["GPU-0", "GPU-2"]
    assert "GPU 1 was left out: NVIDIA's management library crashed on it" in interpreter.missing["gpu"]


def test_discover_without_a_driver_behind_the_library(tmp_path, monkeypatch):
    library = FakeNvml(tmp_path, "stub 1")  # it prints on stdout, where the list is expected
    for name, value in library.environment.items():
        monkeypatch.setenv(name, value)
    (interpreter,) = discover(60.0)
    assert "No GPU was found: NVIDIA's kernel driver is not loaded, or this is a stub" in interpreter.missing["gpu"]
    library.answer("crash nvmlInitWithFlags")
    (interpreter,) = discover(60.0)
    assert "ended with exit code -11" in interpreter.missing["gpu"]


def test_a_worker_in_which_nvml_crashes_says_where(tmp_path):
    """The process is lost with its job, as with any crash; its last words, which the job's error shows, name NVML's call."""
    code = (
        "from profiling.nvml import Nvml; from profiling.worker import main\n"
        "main(['--device', 'GPU-0'], lambda uuid: Nvml.open(uuid).temperature_c())"
    )
    library = FakeNvml(tmp_path, "crash nvmlDeviceGetTemperature")
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=library.environment, input="", capture_output=True, text=True
    )
    assert child.returncode == -11
    assert "Segmentation fault" in child.stderr
    assert "in temperature_c" in child.stderr


def test_no_library_at_all(tmp_path):
    (tmp_path / "libnvidia-ml.so.1").write_text("this is no library\n")
    code = "from profiling.nvml import Nvml; gpu = Nvml.open('GPU-0'); print(gpu.power_w(), gpu.missing['power_w'])"
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={"LD_LIBRARY_PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert child.stdout.startswith("None NVIDIA's driver is not installed here"), child.stderr
