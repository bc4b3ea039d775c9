"""Which devices there are, what the data sheets say of them, and what discovery survives."""

from __future__ import annotations

import subprocess
import sys

import pytest

from profiling import devices
from profiling.gpu_list import GpuList, ListedGpu
from profiling.gpu_models import GPU_MODELS, model_of
from profiling.records import INTERPRETER


@pytest.mark.parametrize(
    ("name", "bf16", "fp8", "bandwidth"),
    [
        ("NVIDIA H200", 989.5, 1979.0, 4800.0),
        ("NVIDIA H200 NVL", 835.5, 1671.0, 4800.0),
        ("NVIDIA H100 80GB HBM3", 989.5, 1979.0, 3350.0),
        ("NVIDIA H100 PCIe", 756.0, 1513.0, 2000.0),
        ("NVIDIA A100-SXM4-80GB", 312.0, None, 2039.0),
        ("A100-SXM4-40GB", 312.0, None, 1555.0),
        ("NVIDIA A10", 125.0, None, 600.0),
        ("NVIDIA L4", 121.0, 242.5, 300.0),
        ("NVIDIA L40", 181.0, 362.0, 864.0),
        ("NVIDIA L40S", 362.0, 733.0, 864.0),
        ("NVIDIA GeForce RTX 4090", 165.2, 330.3, 1008.0),
        ("NVIDIA GH200 480GB", 989.5, 1979.0, 4000.0),
    ],
)
def test_model_by_nvml_name(name, bf16, fp8, bandwidth):
    model = model_of(name)
    assert (model.bf16_tflops, model.fp8_tflops, model.bandwidth_gb_per_s) == (bf16, fp8, bandwidth)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A10G",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA H100 64GB HBM2",
        "NVIDIA GB10",
        "",
    ],
)
def test_a_model_that_only_looks_like_one_of_the_table_is_unknown(name):
    assert model_of(name) is None


def test_the_table_is_dense_and_sourced():
    assert len({model.name for model in GPU_MODELS}) == len(GPU_MODELS)
    for model in GPU_MODELS:
        assert model.source
        # FP8 doubles bf16 on every one of them; a sparse figure slipped in would break the ratio.
        assert model.fp8_tflops is None or model.fp8_tflops / model.bf16_tflops == pytest.approx(2.0, rel=0.02)


def test_facts_of_gpus_and_the_interpreter_last():
    listed = ListedGpu("GPU-1", "NVIDIA H200", 90, 150 << 30, {})
    strange = ListedGpu("GPU-2", "NVIDIA GB10", 121, None, {"memory_bytes": "unified memory"})
    h200, gb10, interpreter = devices.facts_of_listed(GpuList((listed, strange), ("GPU 2 was left out: lost.",)))
    assert h200.peak_bf16_tflops == 989.5
    assert h200.peak_bandwidth_bytes_per_s == 4.8e12
    assert h200.short_name == "H200 · GPU-1"
    assert "peak_bf16_tflops" not in h200.missing
    assert gb10.peak_bf16_tflops is None
    assert "GB10" in gb10.missing["peak_bf16_tflops"]
    assert gb10.missing["memory_bytes"] == "unified memory"
    assert interpreter.id == INTERPRETER
    assert interpreter.name == "Interpreter (CPU)"
    assert interpreter.missing["gpu"] == "GPU 2 was left out: lost."


def test_a_gpu_without_fp8_says_so():
    (a100, _interpreter) = devices.facts_of_listed(GpuList((ListedGpu("GPU-1", "NVIDIA A100-SXM4-80GB", 80, 1, {}),), ()))
    assert a100.peak_fp8_tflops is None
    assert "FP8" in a100.missing["peak_fp8_tflops"]


def test_every_none_has_a_reason():
    listed = ListedGpu("GPU-1", "NVIDIA GB10", None, None, {"memory_bytes": "unified", "capability": "old driver"})
    gpu, _interpreter = devices.facts_of_listed(GpuList((listed,), ()))
    exempt = {"peak_source", "interpreter_tile_ms"}
    unexplained = [
        name for name, value in gpu.model_dump().items() if value is None and name not in gpu.missing and name not in exempt
    ]
    assert unexplained == []


def test_discover_always_ends_with_the_interpreter():
    found = devices.discover(timeout_s=60.0)
    assert found[-1].id == INTERPRETER
    if len(found) == 1:
        assert "No GPU was found" in found[-1].missing["gpu"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os.kill(os.getpid(), 11)", "exit code -11"),
        ("print('nonsense')", "ValidationError"),
        ("import time; time.sleep(60)", "did not answer within 0.5 s"),
    ],
)
def test_discover_survives_its_child(monkeypatch, code, said):
    run = subprocess.run

    def run_other(command, **options):
        assert "profiling.gpu_list" in command
        return run([sys.executable, "-c", code], **options)

    monkeypatch.setattr(devices.subprocess, "run", run_other)
    (interpreter,) = devices.discover(timeout_s=0.5 if "sleep" in code else 30.0)
    assert said in interpreter.missing["gpu"]


def test_devices_needs_no_torch():
    code = "import sys, profiling.devices; sys.exit(any(name in sys.modules for name in ('torch', 'triton', 'pynvml')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=devices.ROOT).returncode == 0


def test_a_gpu_that_cuda_does_not_see_is_named(monkeypatch):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(ValueError, match=r"device = GPU-dead is not a GPU that CUDA can use here.*CUDA_VISIBLE_DEVICES = '7'"):
        devices.cuda_device_of("GPU-dead")


def test_cuda_and_nvml_meet_by_uuid(monkeypatch):
    torch = pytest.importorskip("torch")
    uuids = ["aaaa", "bbbb"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: type("P", (), {"uuid": uuids[index]}))
    assert devices.cuda_device_of("GPU-bbbb") == torch.device("cuda", 1)
    assert devices.cuda_device_of("MIG-aaaa") == torch.device("cuda", 0), "CUDA gives a MIG device's UUID without its kind"
    with pytest.raises(ValueError, match="it sees GPU-aaaa, GPU-bbbb"):
        devices.cuda_device_of("GPU-cccc")
