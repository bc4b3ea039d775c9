"""A pynvml in memory: what each function gives, or the error it raises, is set by the test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As nvidia-ml-py: subclasses are named after the return code."""

    def __init__(self, value: int = 999) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return f"code {self.value}"


class NVMLError_NotSupported(NVMLError):
    pass


class NVMLError_GpuIsLost(NVMLError):
    pass


class NVMLError_LibraryNotFound(NVMLError):
    pass


class NVMLError_NotFound(NVMLError):
    pass


def field_value(milliwatts: int, value_type: int = 1, code: int = 0) -> SimpleNamespace:
    return SimpleNamespace(nvmlReturn=code, valueType=value_type, value=SimpleNamespace(uiVal=milliwatts, dVal=-1.0))


class FakePynvml:
    """answers: function name -> a value, an exception, or a callable of the function's arguments."""

    NVML_CLOCK_SM = 1
    nvmlMemory_v2 = 33554472
    NVMLError = NVMLError

    def __init__(self, **answers: Any) -> None:
        self.answers = {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlSystemGetDriverVersion": b"580.159.03",
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetHandleByUUID": "handle",
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
            "nvmlDeviceGetName": b"NVIDIA H200",
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
            "nvmlDeviceGetMemoryInfo": lambda _handle, version=None: SimpleNamespace(
                total=1000, used=100 if version else 150, reserved=50
            ),
            "nvmlDeviceGetFieldValues": [field_value(71_500)],
            "nvmlDeviceGetPowerUsage": 70_000,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetTemperature": 41,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=3),
            "nvmlDeviceGetCurrentClocksEventReasons": 0x4 | 0x1,
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=77)],
            "nvmlDeviceGetGraphicsRunningProcesses": [],
        } | answers
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__.get("answers", {}):
            raise AttributeError(name)
        answer = self.answers[name]

        def function(*arguments: Any) -> Any:
            self.calls.append(name)
            if isinstance(answer, Exception):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return function
