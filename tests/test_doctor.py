"""What the doctor says of the driver, NVML, the GPUs and the places: each line ok, or with what to do."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

from profiling import doctor, doctor_gpu
from profiling.doctor_gpu import examine_gpus, findings
from profiling.finding import Finding
from profiling.gpu_list import everything
from tests import records_for_tests as records
from tests.fake_nvml import FakeNvml
from tests.nvml_failures import EVERYTHING, FAILURES

NO_DEVICE_FILES = Path("/nowhere")


@pytest.fixture
def library(tmp_path, monkeypatch) -> FakeNvml:
    monkeypatch.setattr(doctor_gpu, "DEVICE_FILES", NO_DEVICE_FILES)
    return FakeNvml(tmp_path).load(monkeypatch)


@pytest.fixture
def child(tmp_path, monkeypatch) -> FakeNvml:
    """The library, in child processes."""
    fake = FakeNvml(tmp_path)
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(doctor_gpu, "DEVICE_FILES", NO_DEVICE_FILES)
    return fake


def seen() -> list[Finding]:
    return list(findings(everything()))


def test_a_gpu_that_is_well(child):
    assert [str(finding) for finding in examine_gpus()] == [
        "ok  NVIDIA driver 580.159.03, CUDA up to 13.0; NVML answers",
        "ok  H200 · GPU-0: NVML lists it, 3.25 MiB in use and 645 MiB kept by the driver of 140 GiB, 72 W of 700 W, "
        "SM clock 1,980 MHz of 1,980 MHz, 41 °C, 3 % busy, clocks held down by power cap, 1 process on it",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [("crash nvmlDeviceGetName", "NVML crashed (exit code -11)"), ("hang nvmlDeviceGetName", "did not answer")],
)
def test_a_library_that_crashes_or_hangs_is_a_finding(child, line, said):
    child.answer(line)
    (finding,) = examine_gpus(timeout_s=1.0 if "hang" in line else 30.0)
    assert said in finding.what
    assert "nvidia-smi --gpu-reset" in finding.cure


@pytest.mark.parametrize("name", FAILURES)
def test_every_failure_is_ok_with_what_is_missing_or_names_a_cure(library, name):
    failure = FAILURES[name]
    library.answer(*failure.lines)
    found = seen()
    assert found
    for finding in found:
        assert finding.works == (finding.cure == "")
        assert " 0 W" not in finding.what
        assert " 0 MHz" not in finding.what
    if set(failure.gone) == set(EVERYTHING) and failure.uuid == "GPU-0":
        assert not any(finding.works for finding in found)
    elif failure.uuid == "GPU-0":
        said = " ".join(finding.what for finding in found)
        for reason in {text for reading, text in failure.gone.items() if "process" not in reading and "version" not in reading}:
            assert reason in said


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("driver and library differ", "reboot"),
        ("stub of the library", "ldconfig -p"),
        ("no driver", "install NVIDIA's driver"),
        ("driver not loaded", "modprobe nvidia"),
        ("container that has lost its GPU", "start the container anew"),
        ("no permission", "ask an administrator"),
        ("lost GPU", "reset the GPU"),
    ],
)
def test_the_cure_fits_the_failure(library, name, cure):
    library.answer(*FAILURES[name].lines)
    assert cure in next(finding for finding in seen() if not finding.works).cure


def test_one_lost_gpu_leaves_the_other_well(library):
    library.answer("count 2", "0:all 15")
    found = seen()
    assert [finding.works for finding in found] == [True, True, False]
    assert "GPU-1" in found[1].what
    assert "GPU 0 was left out: the GPU is lost" in found[2].what


def test_a_wrong_package_in_the_place_of_nvidia_ml_py(monkeypatch):
    monkeypatch.setattr(doctor, "_version_of", lambda name: "11.5.0" if name == "pynvml" else None)
    finding = doctor._nvidia_ml_py()
    assert not finding.works
    assert "pip uninstall pynvml" in finding.cure


def test_device_files_that_this_user_may_not_open(tmp_path, monkeypatch):
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-caps", "nvidia-modeset"):
        (tmp_path / name).touch()
    assert [str(one) for one in doctor_gpu._device_files(tmp_path)] == ["ok  this user may open nvidia-uvm, nvidia0, nvidiactl"]
    monkeypatch.setattr(doctor_gpu.os, "access", lambda path, _mode: path.name != "nvidia0")
    (finding,) = doctor_gpu._device_files(tmp_path)
    assert (finding.works, finding.what) == (False, f"this user may not open {tmp_path / 'nvidia0'}")
    assert list(doctor_gpu._device_files(NO_DEVICE_FILES)) == []


def test_a_lock_that_cannot_be_held(tmp_path, monkeypatch):
    monkeypatch.setattr("profiling.gpu_lock.tempfile.gettempdir", lambda: str(tmp_path))
    assert doctor._lock(records.gpu()).works
    doctor.lock_path(records.GPU_ID).touch()
    assert doctor._lock(records.gpu()).works
    monkeypatch.setattr("profiling.gpu_lock.tempfile.gettempdir", lambda: str(tmp_path / "file"))
    (tmp_path / "file").touch()
    finding = doctor._lock(records.gpu())
    assert not finding.works
    assert "at the same time" in finding.what


def test_places_without_room_or_permission(tmp_path, monkeypatch):
    cache = tmp_path / "triton" / "cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    assert doctor._triton_cache() == cache
    assert doctor._compiler_cache(cache).works
    assert not cache.exists(), "looking makes nothing"
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _place: SimpleNamespace(free=5 << 20))
    full = doctor._compiler_cache(cache)
    assert (full.works, full.what) == (False, f"Triton's cache {cache}, writable, 5.00 MiB free")
    assert "TRITON_CACHE_DIR" in full.cure
    monkeypatch.setattr(doctor.os, "access", lambda _place, _mode: False)
    assert "cannot be written" in doctor._compiler_cache(cache).what
    monkeypatch.delenv("TRITON_CACHE_DIR")
    monkeypatch.setenv("TRITON_HOME", str(tmp_path))
    assert doctor._triton_cache() == tmp_path / ".triton" / "cache"


def test_the_compiler_that_triton_needs(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "_version_of", lambda name: "3.7.1")
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    monkeypatch.setattr(sysconfig, "get_paths", lambda **_scheme: {"include": str(tmp_path)})
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/bin/{name}" if os.environ.get("CC", "gcc") == "gcc" else None)
    monkeypatch.delenv("CC", raising=False)
    (no_header,) = doctor._compiler()
    assert "python3-dev" in no_header.cure
    (tmp_path / "Python.h").touch()
    (well,) = doctor._compiler()
    assert well.works
    monkeypatch.setenv("CC", "none")
    (none,) = doctor._compiler()
    assert "install gcc" in none.cure
    monkeypatch.setattr(doctor, "_version_of", lambda name: None)
    assert list(doctor._compiler()) == []
