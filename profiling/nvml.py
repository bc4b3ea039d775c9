"""What NVML says about one GPU. Every reading is a number or None, and None has a reason in `missing`; nothing here raises.

Over nvidia-ml-py, which is imported on first use: without it, or without NVIDIA's driver, all readings are None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")

# Field ids and flags of nvml.h, by number: older nvidia-ml-py lacks some of the names.
_POWER_INSTANT_FIELD = 186
_NO_PID = 0xFFFFFFFF
_THROTTLE_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
_FIELD_VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

_NO_PACKAGE = "the Python package nvidia-ml-py is not installed"
_WRONG_PACKAGE = "the installed pynvml lacks it: install nvidia-ml-py and remove the package called pynvml"
_PLAIN_WORDS = {
    "LibraryNotFound": "NVIDIA's driver is not installed here (libnvidia-ml was not found)",
    "DriverNotLoaded": "NVIDIA's kernel driver is not loaded",
    "NotSupported": "this device does not give it",
    "NoPermission": "reading it is not allowed for this user",
    "GpuIsLost": "the GPU is lost: it fell off the bus, and needs a reset or a reboot",
    "LibRmVersionMismatch": "driver and library have different versions: reboot, or reload the driver",
    "FunctionNotFound": "this driver is too old for it",
    "NotFound": "NVML has no such device",
}


class _Unavailable(Exception):
    """A reading that NVML answered with something that is no reading; its text is the reason."""


def _import_pynvml() -> ModuleType:
    import pynvml

    return pynvml


def _reason(error: BaseException) -> str:
    if isinstance(error, ImportError):
        return _NO_PACKAGE
    if isinstance(error, AttributeError):
        return _WRONG_PACKAGE
    if isinstance(error, UnicodeDecodeError):
        return "NVML's text is not valid UTF-8"
    kind = type(error).__name__.removeprefix("NVMLError_")
    return _PLAIN_WORDS.get(kind, f"NVML: {error}")


def _attempt(query: Callable[[], T]) -> tuple[T | None, str | None]:
    """(value, None), or (None, the reason) when NVML, its Python package or its text fails."""
    try:
        return query(), None
    except (ImportError, AttributeError, UnicodeDecodeError, OSError, _Unavailable) as error:
        return None, str(error) if isinstance(error, _Unavailable) else _reason(error)
    except Exception as error:  # pynvml's own classes: they cannot be named before it is imported
        if type(error).__name__.startswith("NVML"):
            return None, _reason(error)
        raise


def _text(raw: str | bytes) -> str:
    return raw.decode("utf-8", errors="replace") if isinstance(raw, bytes) else raw


@dataclass(frozen=True)
class MemoryReading:
    """Bytes of a whole GPU; reserved is what the driver keeps, None where only the old struct exists and counts it as used."""

    total_bytes: int
    used_bytes: int
    reserved_bytes: int | None


@dataclass
class Nvml:
    """One GPU, as NVML sees it; a context manager. missing: for each reading that last failed, why."""

    uuid: str
    missing: dict[str, str] = field(default_factory=dict)
    _pynvml: ModuleType | None = None
    _handle: Any = None
    _closed_because: str = "NVML is closed"
    _unsupported: set[str] = field(default_factory=set)

    @staticmethod
    def open(uuid: str) -> Nvml:
        """The GPU of that UUID. Where there is none, or no NVML, an object whose readings are all None."""
        nvml = Nvml(uuid)
        pynvml, reason = _attempt(_initialised)
        if pynvml is not None:
            handle, reason = _attempt(lambda: pynvml.nvmlDeviceGetHandleByUUID(uuid))
            nvml._pynvml, nvml._handle = pynvml, handle
        if reason is not None:
            nvml.missing["nvml"] = nvml._closed_because = reason
        return nvml

    def close(self) -> None:
        """Let go of the library. Readings after it are None."""
        if self._pynvml is not None:
            _attempt(self._pynvml.nvmlShutdown)
        self._pynvml = self._handle = None

    def __enter__(self) -> Nvml:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _read(self, name: str, query: Callable[[ModuleType, Any], T]) -> T | None:
        if self._pynvml is None or self._handle is None:
            self.missing[name] = self._closed_because
            return None
        value, reason = _attempt(lambda: query(self._pynvml, self._handle))
        if reason is None:
            self.missing.pop(name, None)
        else:
            self.missing[name] = reason
        return value

    def memory(self) -> MemoryReading | None:
        """Memory of the whole GPU, all processes. With a driver older than R510 `missing` notes that used counts reserved."""
        reading = self._read("memory", _memory_v2)
        if reading is None and self._handle is not None:
            v2_reason = self.missing["memory"]
            reading = self._read("memory", _memory_v1)
            if reading is not None:
                self.missing["memory_reserved"] = f"used counts the driver's reserved memory too: {v2_reason}"
        return reading

    def memory_used_bytes(self) -> int | None:
        """Bytes in use on the whole GPU."""
        reading = self.memory()
        return None if reading is None else reading.used_bytes

    def power_w(self) -> float | None:
        """Watts of the whole card: the instant reading where there is one, else NVML's average over a second."""
        if "power_instant" not in self._unsupported:
            watts = self._read("power_instant", _power_instant)
            if watts is not None:
                self.missing.pop("power_w", None)
                return watts
            self._unsupported.add("power_instant")
        return self._read("power_w", lambda pynvml, handle: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000.0)

    def power_limit_w(self) -> float | None:
        """Watts above which the GPU lowers its clocks."""
        return self._read("power_limit_w", lambda pynvml, handle: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000.0)

    def sm_clock_mhz(self) -> int | None:
        """The SM clock now."""
        return self._read("sm_clock_mhz", lambda pynvml, handle: pynvml.nvmlDeviceGetClockInfo(handle, _sm(pynvml)))

    def max_sm_clock_mhz(self) -> int | None:
        """The highest SM clock of this model."""
        return self._read("max_sm_clock_mhz", lambda pynvml, handle: pynvml.nvmlDeviceGetMaxClockInfo(handle, _sm(pynvml)))

    def temperature_c(self) -> int | None:
        """Degrees Celsius of the die."""
        return self._read("temperature_c", lambda pynvml, handle: pynvml.nvmlDeviceGetTemperature(handle, 0))

    def utilisation_percent(self) -> int | None:
        """Share of the last sampling period in which some kernel, of any process, ran."""
        return self._read("utilisation", lambda pynvml, handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)

    def throttle_reasons(self) -> tuple[str, ...] | None:
        """Why the clocks are held down, in words; empty when they are not."""
        bits = self._read("throttle_reasons", _clocks_event_bits)
        return None if bits is None else tuple(words for bit, words in _THROTTLE_REASONS.items() if bits & bit)

    def process_ids(self) -> tuple[int, ...] | None:
        """Ids of the processes that hold this GPU, in the numbering of the host: a container's own ids differ."""
        return self._read("processes", _process_ids)

    def other_processes(self) -> int | None:
        """How many processes besides this one, which must itself hold the GPU; None where NVML does not show that."""
        ids = self.process_ids()
        if ids is None:
            return None
        if not ids:
            self.missing["processes"] = "NVML shows no process here, not even this one, as in a container"
            return None
        # In a container the ids are the host's, so this process's own cannot be found: but it is one of them.
        return len(ids) - 1

    def driver_version(self) -> str | None:
        """NVIDIA's driver version, such as '580.159.03'."""
        return self._read("driver_version", lambda pynvml, _handle: _text(_raw(pynvml.nvmlSystemGetDriverVersion)()))


@dataclass(frozen=True)
class ListedGpu:
    """A GPU that NVML lists; missing says why a field is None."""

    uuid: str
    name: str
    capability: int | None
    memory_bytes: int | None
    missing: dict[str, str]


@dataclass(frozen=True)
class GpuList:
    """The GPUs that answer, and a sentence for each that does not, or for there being none."""

    gpus: tuple[ListedGpu, ...]
    skipped: tuple[str, ...]


def list_gpus() -> GpuList:
    """Every GPU of this machine, by NVML alone. A lost one is skipped; call it in a child process, as NVML may crash on it."""
    pynvml, reason = _attempt(_initialised)
    if pynvml is None:
        return GpuList((), (f"No GPU was found: {reason}.",))
    try:
        count, reason = _attempt(pynvml.nvmlDeviceGetCount)
        if count is None:
            return GpuList((), (f"No GPU was found: {reason}.",))
        gpus, skipped = [], []
        for index in range(count):
            gpu, reason = _attempt(lambda index=index: _listed(pynvml, index))
            if gpu is None:
                skipped.append(f"GPU {index} was left out: {reason}.")
            else:
                gpus.append(gpu)
        return GpuList(tuple(gpus), tuple(skipped) if count else ("NVIDIA's driver is here, but it sees no GPU.",))
    finally:
        _attempt(pynvml.nvmlShutdown)


def _listed(pynvml: ModuleType, index: int) -> ListedGpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    uuid = _text(_raw(pynvml.nvmlDeviceGetUUID)(handle))
    one = Nvml(uuid, _pynvml=pynvml, _handle=handle)
    name = one._read("name", lambda *_: _text(_raw(pynvml.nvmlDeviceGetName)(handle)))
    capability = one._read("capability", lambda *_: pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    memory = one.memory()
    missing = {key: one.missing[key] for key in ("name", "capability") if key in one.missing}
    if memory is None:
        missing["memory_bytes"] = one.missing["memory"]
    return ListedGpu(
        uuid=uuid,
        name=name or "GPU without a name",
        capability=None if capability is None else capability[0] * 10 + capability[1],
        memory_bytes=None if memory is None else memory.total_bytes,
        missing=missing,
    )


def _initialised() -> ModuleType:
    pynvml = _import_pynvml()
    pynvml.nvmlInit()
    return pynvml


def _raw(function: Callable[..., Any]) -> Callable[..., Any]:
    """nvidia-ml-py's function without its strict decoding of text: some names are not UTF-8."""
    return getattr(function, "__wrapped__", function)


def _sm(pynvml: ModuleType) -> int:
    return pynvml.NVML_CLOCK_SM


def _memory_v2(pynvml: ModuleType, handle: Any) -> MemoryReading:
    info = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    return _memory_reading(info, info.reserved)


def _memory_v1(pynvml: ModuleType, handle: Any) -> MemoryReading:
    return _memory_reading(pynvml.nvmlDeviceGetMemoryInfo(handle), None)


def _memory_reading(info: Any, reserved: int | None) -> MemoryReading:
    if info.total == 0:
        raise _Unavailable("this GPU has no memory of its own: it shares the system's (unified memory)")
    return MemoryReading(info.total, info.used, reserved)


def _power_instant(pynvml: ModuleType, handle: Any) -> float:
    value = pynvml.nvmlDeviceGetFieldValues(handle, [_POWER_INSTANT_FIELD])[0]
    if value.nvmlReturn != 0:
        raise pynvml.NVMLError(value.nvmlReturn)
    if not 0 <= value.valueType < len(_FIELD_VALUE_MEMBERS):
        raise _Unavailable(f"NVML gave it as an unknown type ({value.valueType})")
    return getattr(value.value, _FIELD_VALUE_MEMBERS[value.valueType]) / 1000.0


def _clocks_event_bits(pynvml: ModuleType, handle: Any) -> int:
    newer = getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    bits, _reason_unused = _attempt(lambda: newer(handle)) if newer else (None, None)
    return pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) if bits is None else bits


def _process_ids(pynvml: ModuleType, handle: Any) -> tuple[int, ...]:
    processes = list(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    graphics, _reason_unused = _attempt(lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle))
    processes += graphics or []
    return tuple(sorted({process.pid for process in processes if process.pid not in (0, _NO_PID)}))
