"""The ways in which NVML fails that others have met, as lines for the fake library, and what must then be missing and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

GIB = 2**30
FUNCTIONS = {
    "memory": ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"),
    "power_w": ("nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage"),
    "power_limit_w": ("nvmlDeviceGetEnforcedPowerLimit",),
    "energy_mj": ("nvmlDeviceGetTotalEnergyConsumption",),
    "clocks": ("nvmlDeviceGetClockInfo",),
    "max_clocks": ("nvmlDeviceGetMaxClockInfo",),
    "default_clocks": ("nvmlDeviceGetDefaultApplicationsClock",),
    "temperature_c": ("nvmlDeviceGetTemperature",),
    "utilisation_percent": ("nvmlDeviceGetUtilizationRates",),
    "throttle_reasons": ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
    "processes": ("nvmlDeviceGetComputeRunningProcesses_v3",),
    "driver_version": ("nvmlSystemGetDriverVersion",),
    "cuda_version": ("nvmlSystemGetCudaDriverVersion_v2",),
}
"""The functions of NVML behind a reading, or behind several."""
OF_FUNCTIONS = {
    "memory": ("memory", "memory_used_bytes"),
    "clocks": ("sm_clock_mhz", "memory_clock_mhz"),
    "max_clocks": ("max_sm_clock_mhz", "max_memory_clock_mhz"),
    "default_clocks": ("default_sm_clock_mhz",),
    "processes": ("process_ids", "other_processes"),
}
"""The readings behind those names that are no reading's."""
NORMAL: dict[str, Any] = {
    "memory_used_bytes": 3407872,
    "power_w": 71.5,
    "power_limit_w": 700.0,
    "energy_mj": 123456789,
    "sm_clock_mhz": 1980,
    "max_sm_clock_mhz": 1980,
    "default_sm_clock_mhz": 1830,
    "memory_clock_mhz": 3201,
    "max_memory_clock_mhz": 3201,
    "temperature_c": 41,
    "utilisation_percent": 3,
    "throttle_reasons": ("power cap",),
    "process_ids": (77,),
    "other_processes": 0,
    "driver_version": "580.159.03",
    "cuda_version": "13.0",
}
"""What the fake library gives when no line says otherwise."""


def readings_of(*names: str) -> tuple[str, ...]:
    """The readings that these functions stand behind."""
    return tuple(reading for name in names for reading in OF_FUNCTIONS.get(name, (name,)))


def returning(code: int, *names: str, gpu: str = "") -> tuple[str, ...]:
    """Lines that make these functions return a code."""
    return tuple(f"{gpu}{function} {code}" for name in names for function in FUNCTIONS[name])


@dataclass(frozen=True)
class Failure:
    """gone: for each reading that must be None, words of its reason; given: readings that differ from NORMAL."""

    lines: tuple[str, ...]
    gone: dict[str, str] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)
    uuid: str = "GPU-0"


_CARD = ("power_w", "power_limit_w", "energy_mj", "clocks", "max_clocks", "default_clocks", "temperature_c", "throttle_reasons")
EVERYTHING = (*NORMAL, "memory")

FAILURES: dict[str, Failure] = {
    "nothing": Failure(()),
    "unified memory, not supported": Failure(
        returning(3, "memory"), dict.fromkeys(readings_of("memory"), "share the system's memory")
    ),
    "unified memory, zeros": Failure(
        ("memory_total 0", "memory_used 0", "memory_reserved 0"), dict.fromkeys(readings_of("memory"), "unified memory")
    ),
    "lost GPU": Failure(("all 15",), dict.fromkeys(EVERYTHING, "the GPU is lost")),
    "lost while it is read": Failure(
        ("nvmlDeviceGetTemperature 15",), {}, {}
    ),  # what comes before it answers, what comes after does not: test_nvml says which
    "indices that differ from CUDA's": Failure(
        ("count 2", "0:uuid_hex 4f54484552", "1:uuid_hex 4750552d30", "0:temperature_c 99", "1:temperature_c 55"),
        given={"temperature_c": 55},
    ),
    "a UUID that NVML does not have": Failure((), dict.fromkeys(EVERYTHING, "no such device"), uuid="GPU-elsewhere"),
    "container without processes": Failure(
        ("compute_pids ,",), {"other_processes": "NVML shows no process here"}, {"process_ids": ()}
    ),
    "container that has lost its GPU": Failure(
        ("nvmlInitWithFlags 999",), dict.fromkeys(EVERYTHING, "a container that has lost its GPU")
    ),
    "driver and library differ": Failure(("nvmlInitWithFlags 18",), dict.fromkeys(EVERYTHING, "reboot, or reload the driver")),
    "WSL without processes": Failure(
        returning(3, "processes"), dict.fromkeys(readings_of("processes"), "this device does not give it")
    ),
    "MIG": Failure(
        (
            "mig_devices 1", "0:memory_used 9000000000", "100:memory_used 5000000", "100:memory_total 18000000000",
            *returning(3, *_CARD, "utilisation_percent", gpu="100:"), *returning(3, "utilisation_percent", gpu="0:"),
        ),
        {"utilisation_percent": "this device does not give it"},
        {"memory_used_bytes": 5000000},
        uuid="MIG-0-0",
    ),
    "vGPU": Failure(
        returning(3, "power_w", "power_limit_w", "energy_mj", "default_clocks", "throttle_reasons"),
        dict.fromkeys(
            ("power_w", "power_limit_w", "energy_mj", "default_sm_clock_mhz", "throttle_reasons"), "device does not give it"
        ),
    ),
    "stub of the library": Failure(("stub 1",), dict.fromkeys(EVERYTHING, "a stub of the library")),
    "no driver": Failure(("nvmlInitWithFlags 12",), dict.fromkeys(EVERYTHING, "driver is not installed here")),
    "driver not loaded": Failure(("nvmlInitWithFlags 9",), dict.fromkeys(EVERYTHING, "kernel driver is not loaded")),
    "text that is not UTF-8": Failure(("driver_hex 353830ff",), given={"driver_version": "580\N{REPLACEMENT CHARACTER}"}),
    "old memory struct": Failure(("nvmlDeviceGetMemoryInfo_v2 13",), given={"memory_used_bytes": 3407872 + 676331520}),
    "no permission": Failure(returning(4, "energy_mj", "clocks"), dict.fromkeys(
        ("energy_mj", *readings_of("clocks")), "not allowed for this user"
    )),
    "numbers that cannot be": Failure(
        (
            "memory_used 0xffffffffffffffff", "memory_reserved 0", "power_instant_mw 0", "power_mw 0", "energy_mj 0",
            "power_limit_mw 0xffffffff",
            "clock_sm_mhz 0", "clock_memory_mhz 0xffffffff", "max_clock_sm_mhz 0", "max_clock_memory_mhz 0",
            "default_clock_sm_mhz 0", "temperature_c 0", "utilisation 4294967295", "cuda_version 0",
        ),
        dict.fromkeys(
            (
                *readings_of("memory", "clocks", "max_clocks", "default_clocks"), "power_w", "power_limit_w", "energy_mj",
                "temperature_c", "utilisation_percent", "cuda_version",
            ),
            "no possible reading",
        ),
    ),
}  # fmt: skip
