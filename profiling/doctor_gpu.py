"""What NVIDIA's driver and its library NVML say here, each failure with its cure. NVML is asked in a child process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from profiling import nvml
from profiling.devices import ROOT
from profiling.finding import Finding
from profiling.words import bytes_

DEVICE_FILES = Path("/dev")
INSTALL = (
    "install NVIDIA's driver until nvidia-smi lists the GPU (in a container: start it with --gpus all), or use the interpreter"
)
_ASK_YOURSELF = "see what python -m profiling.gpu_list says"
_RESET = "reset the GPU with nvidia-smi --gpu-reset, or reboot"
_CURES = {
    nvml.NO_PACKAGE: "call ./run, which installs what requirements.txt asks for",
    nvml.WRONG_PACKAGE: "pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py",
    nvml.MISMATCH: "reboot, or unload and load the kernel modules (nvidia_uvm, nvidia)",
    nvml.NOT_LOADED: "load it (modprobe nvidia); ldconfig -p must show the driver's libnvidia-ml.so.1, not CUDA's stub",
    nvml.LOST: _RESET,
    nvml.NO_PERMISSION: "ask an administrator: the driver keeps this from users",
    "a container that has lost its GPU": "start the container anew; where it happens again, use the cgroupfs driver, or CDI",
}
_OPENED_BY_CUDA = ("nvidiactl", "nvidia-uvm")
_NAMES = {
    "memory": "memory",
    "power_w": "power",
    "power_instant": "instant power",
    "power_limit_w": "power limit",
    "energy_mj": "energy counter",
    "sm_clock_mhz": "SM clock",
    "max_sm_clock_mhz": "highest SM clock",
    "default_sm_clock_mhz": "default SM clock",
    "memory_clock_mhz": "memory clock",
    "max_memory_clock_mhz": "highest memory clock",
    "temperature_c": "temperature",
    "utilisation": "utilisation",
    "throttle_reasons": "throttle reasons",
    "processes": "processes",
    "memory_reserved": "reserved memory",
    "capability": "compute capability",
    "name": "name",
}


def examine_gpus(timeout_s: float = 20.0) -> Iterator[Finding]:
    """The driver and NVML, then each GPU that answers, each that does not, and whether this user may open the device files."""
    try:
        child = subprocess.run(
            [sys.executable, "-m", "profiling.gpu_list"], cwd=ROOT, capture_output=True, timeout=timeout_s, check=True
        )
        seen = json.loads(child.stdout)
    except subprocess.TimeoutExpired:
        yield Finding(False, f"NVML did not answer within {timeout_s:g} s: a GPU or its driver hangs", _RESET)
        return
    except subprocess.CalledProcessError as error:
        yield Finding(False, f"NVML crashed (exit code {error.returncode}): a GPU is probably lost", _RESET)
        return
    except (OSError, ValueError) as error:
        yield Finding(False, f"the process that asks NVML failed ({type(error).__name__})", _ASK_YOURSELF)
        return
    yield from findings(seen)


def findings(seen: dict[str, Any]) -> Iterator[Finding]:
    """A finding for all that profiling.gpu_list.everything() gives."""
    gpus, skipped = seen["gpus"], seen["skipped"]
    if gpus:
        yield _driver(gpus[0])
        yield from map(_gpu, gpus)
    for sentence in skipped:
        yield Finding(False, sentence.rstrip("."), cure_of(sentence))
    if gpus:
        yield from _device_files(DEVICE_FILES)


def cure_of(reason: str) -> str:
    """What to do about a reason of NVML's."""
    return next((cure for known, cure in _CURES.items() if known in reason), INSTALL)


def _driver(gpu: dict[str, Any]) -> Finding:
    readings, missing = gpu["readings"], gpu["missing"]
    version = readings["driver_version"]
    if version is None:
        return Finding(False, f"NVIDIA's driver: {missing['driver_version']}", cure_of(missing["driver_version"]))
    cuda = readings["cuda_version"]
    up_to = f"CUDA up to {cuda}" if cuda else f"CUDA n/a: {missing['cuda_version']}"
    return Finding(True, f"NVIDIA driver {version}, {up_to}; NVML answers")


def _gpu(gpu: dict[str, Any]) -> Finding:
    """A GPU with all that it says, and what it does not say, with the reason."""
    readings, missing = gpu["readings"], gpu["missing"]
    name = f"{gpu['name'].removeprefix('NVIDIA ')} · {gpu['uuid'][:8]}"
    unknown = dict.fromkeys(
        f"{_NAMES[key]} ({reason})" for key, reason in missing.items() if key in _NAMES and key != "processes"
    )
    said = ", ".join([f"{name}: NVML lists it", *_said(readings)])
    if unknown:
        said += f"; n/a: {', '.join(unknown)}"
    forbidden = any(nvml.NO_PERMISSION in reason for reason in missing.values())
    return Finding(not forbidden, said, cure_of(nvml.NO_PERMISSION) if forbidden else "")


def _said(readings: dict[str, Any]) -> Iterator[str]:
    memory, power, limit = readings["memory"], readings["power_w"], readings["power_limit_w"]
    if memory is not None:
        reserved = memory["reserved_bytes"]
        kept = "" if reserved is None else f" and {bytes_(reserved)} kept by the driver"
        yield f"{bytes_(memory['used_bytes'])} in use{kept} of {bytes_(memory['total_bytes'])}"
    if power is not None:
        yield f"{power:,.0f} W" + ("" if limit is None else f" of {limit:,.0f} W")
    clock, most = readings["sm_clock_mhz"], readings["max_sm_clock_mhz"]
    if clock is not None:
        yield f"SM clock {clock:,} MHz" + ("" if most is None else f" of {most:,} MHz")
    if readings["temperature_c"] is not None:
        yield f"{readings['temperature_c']} °C"
    if readings["utilisation_percent"] is not None:
        yield f"{readings['utilisation_percent']} % busy"
    if readings["throttle_reasons"]:
        yield f"clocks held down by {' and '.join(readings['throttle_reasons'])}"
    ids = readings["process_ids"]
    if ids is None or not ids:
        yield "no process on it is visible"
    else:
        yield "1 process on it" if len(ids) == 1 else f"{len(ids)} processes on it"


def _device_files(folder: Path) -> Iterator[Finding]:
    """Whether this user may open what CUDA opens; nothing where there are no such files, as in WSL."""
    files = [path for path in sorted(folder.glob("nvidia*")) if path.name[6:].isdigit() or path.name in _OPENED_BY_CUDA]
    closed = [path for path in files if not os.access(path, os.R_OK | os.W_OK)]
    if closed:
        names = ", ".join(map(str, closed))
        yield Finding(
            False, f"this user may not open {names}", "add this user to the group that owns them (ls -l), and log in anew"
        )
    elif files:
        yield Finding(True, f"this user may open {', '.join(path.name for path in files)}")
