"""What NVML says about one GPU. Every reading is a number or None, and None has a reason in `missing`; nothing here raises.

Over nvidia-ml-py, which is imported on first use: without it, or without NVIDIA's driver, all readings are None. NVML
itself may crash or hang on a GPU that is lost, so that only child processes of the app use it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeVar

from profiling.words import bytes_

T = TypeVar("T")

# Field ids and flags of nvml.h, by number: older nvidia-ml-py lacks some of the names.
_POWER_INSTANT_FIELD = 186
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_NO_PID = 0xFFFFFFFF
_THROTTLE_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
# Idle, clocks that somebody chose, a synchronised group, a display: the clock is where it was asked to be.
_NOT_THROTTLED = 0x1 | 0x2 | 0x10 | 0x100
_FIELD_VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

NO_PACKAGE = "the Python package nvidia-ml-py is not installed"
WRONG_PACKAGE = "the installed pynvml lacks it: install nvidia-ml-py and remove the package called pynvml"
NO_DRIVER = "NVIDIA's driver is not installed here (libnvidia-ml was not found)"
LOST = "the GPU is lost: it fell off the bus, and needs a reset or a reboot"
MISMATCH = "driver and library have different versions: reboot, or reload the driver"
NOT_LOADED = "NVIDIA's kernel driver is not loaded, or this is a stub of the library"
_LOST_BY_CONTAINER = "a container that has lost its GPU, as when systemd reloads, must be started anew"
NO_PERMISSION = "reading it is not allowed for this user"
_PLAIN_WORDS = {
    "LibraryNotFound": NO_DRIVER,
    "DriverNotLoaded": NOT_LOADED,
    "NotSupported": "this device does not give it",
    "NoPermission": NO_PERMISSION,
    "GpuIsLost": LOST,
    "LibRmVersionMismatch": MISMATCH,
    "FunctionNotFound": "this driver is too old for it",
    "NotFound": "NVML has no such device",
    "Uninitialized": "NVML was shut down",
    "NVMLLibraryMismatchError": "this driver is too old for it",
}
_NO_CONNECTION = ("Uninitialized", "Unknown", "DriverNotLoaded")
_NEVER_HERE = (
    "NotSupported", "FunctionNotFound", "InvalidArgument", "ArgumentVersionMismatch", "NVMLLibraryMismatchError",
    "AttributeError", "no reading",
)  # fmt: skip
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0


class _Unavailable(Exception):
    """A reading that NVML answered with something that is no reading; its text is the reason."""


@dataclass(frozen=True)
class _Failure:
    """Why a call gave nothing: kind is NVML's own name for it, sentence is for people."""

    kind: str
    sentence: str

    @property
    def of_everything(self) -> str:
        """The sentence where it is NVML as a whole that fails."""
        return f"{self.sentence}; {_LOST_BY_CONTAINER}" if self.kind == "Unknown" else self.sentence


def _import_pynvml() -> ModuleType:
    import pynvml

    return pynvml


def initialised() -> ModuleType:
    """nvidia-ml-py, with NVML begun. Raises what it raises; see attempt()."""
    pynvml = _import_pynvml()
    pynvml.nvmlInit()
    return pynvml


def attempt(query: Callable[[], T]) -> tuple[T | None, _Failure | None]:
    """(value, None), or (None, why) when NVML, its Python package or its text fails."""
    try:
        return query(), None
    except _Unavailable as unavailable:
        return None, _Failure("no reading", str(unavailable))
    except ImportError:
        return None, _Failure("ImportError", NO_PACKAGE)
    except AttributeError:
        return None, _Failure("AttributeError", WRONG_PACKAGE)
    except UnicodeDecodeError:
        return None, _Failure("UnicodeDecodeError", "NVML's text is not valid UTF-8")
    except Exception as error:  # pynvml's own classes: they cannot be named before it is imported
        kind = type(error).__name__
        if not kind.startswith("NVML"):
            raise
        kind = kind.removeprefix("NVMLError_")
        return None, _Failure(kind, _PLAIN_WORDS.get(kind, f"NVML: {error}"))


@dataclass(frozen=True)
class MemoryReading:
    """Bytes of a whole GPU; reserved is what the driver keeps, None where only the old struct exists and counts it as used."""

    total_bytes: int
    used_bytes: int
    reserved_bytes: int | None


@dataclass
class Nvml:
    """One GPU, as NVML sees it; a context manager. missing: for each reading that last failed, why.

    Any thread may read. Where NVML stops answering, as in a container that loses its GPU, it is begun anew: after one
    second, two, four, up to a minute. A GPU that is lost is not asked again: NVML is known to crash on it.
    """

    uuid: str
    missing: dict[str, str] = field(default_factory=dict)
    now: Callable[[], float] = time.monotonic
    _pynvml: ModuleType | None = None
    _handle: Any = None
    _card: Any = None
    _closed_because: str = "NVML is closed"
    _closed_for_good: bool = True
    _wait_s: float = _FIRST_WAIT_S
    _retry_at: float = 0.0
    _unsupported: set[str] = field(default_factory=set)
    _lock: Any = field(default_factory=threading.RLock)

    @staticmethod
    def open(uuid: str) -> Nvml:
        """The GPU, or MIG device, of that UUID. Where there is none, or no NVML, an object whose readings are all None."""
        nvml = Nvml(uuid)
        nvml._open()
        return nvml

    def close(self) -> None:
        """Let go of the library. Readings after it are None."""
        with self._lock:
            self._let_go(_Failure("closed", "NVML is closed"), for_good=True)

    def __enter__(self) -> Nvml:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _open(self) -> None:
        pynvml, failure = attempt(initialised)
        if failure is None:
            self._pynvml = pynvml
            self._handle, failure = attempt(lambda: _handle_of(pynvml, self.uuid))
        if failure is not None:
            self._let_go(failure, for_good=failure.kind in ("ImportError", "AttributeError", "GpuIsLost"))
            self.missing["nvml"] = self._closed_because
            return
        self._card = self._handle
        if self.is_mig:
            card, _unknown = attempt(lambda: pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self._handle))
            self._card = card or self._handle
        self.missing.pop("nvml", None)

    def _let_go(self, failure: _Failure, for_good: bool) -> None:
        if self._pynvml is not None:
            attempt(lambda: self._pynvml.nvmlShutdown())
        self._pynvml = self._handle = self._card = None
        self._closed_because, self._closed_for_good = failure.of_everything, for_good

    def _begin_anew(self) -> None:
        """Open the library again, unless that was tried just before."""
        if self.now() < self._retry_at:
            return
        self._retry_at = self.now() + self._wait_s
        self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)
        if self._pynvml is not None:
            attempt(lambda: self._pynvml.nvmlShutdown())
            self._pynvml = self._handle = self._card = None
        self._open()

    def _read(self, name: str, query: Callable[[ModuleType, Any], T], of_card: bool = False) -> T | None:
        """A query's answer; of_card: for a MIG device the card's, as only the whole card has it."""
        with self._lock:
            value, failure = self._ask(query, of_card)
            waiting = self._handle is None and not self._closed_for_good
            if waiting or (failure is not None and failure.kind in _NO_CONNECTION):
                self._begin_anew()
                value, failure = self._ask(query, of_card)
                self._wait_s = _FIRST_WAIT_S if failure is None else self._wait_s
            if failure is None:
                self.missing.pop(name, None)
                return value
            if failure.kind == "GpuIsLost":
                self._let_go(failure, for_good=True)
            if failure.kind in _NEVER_HERE:
                self._unsupported.add(name)
            self.missing[name] = failure.sentence
            return None

    def _ask(self, query: Callable[[ModuleType, Any], T], of_card: bool) -> tuple[T | None, _Failure | None]:
        if self._handle is None:
            return None, _Failure("closed", self._closed_because)
        return attempt(lambda: query(self._pynvml, self._card if of_card else self._handle))

    @property
    def is_mig(self) -> bool:
        """Whether this is a slice of a card: power, clocks, temperature and energy are then the whole card's."""
        return self.uuid.startswith("MIG-")

    def memory(self) -> MemoryReading | None:
        """Memory of the whole GPU, all processes. With a driver older than R510 `missing` notes that used counts reserved."""
        with self._lock:
            reading = self._read("memory", _memory_v2)
            self.missing.pop("memory_reserved", None)
            if reading is None and self._handle is not None and "memory" in self._unsupported:
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
        with self._lock:
            watts = None
            if "power_instant" not in self._unsupported:
                watts = self._read("power_instant", _power_instant, of_card=True)
            if "power_instant" in self._unsupported:
                return self._read("power_w", lambda pynvml, card: _watts(pynvml.nvmlDeviceGetPowerUsage(card)), of_card=True)
            self.missing.pop("power_w", None)
            if watts is None:
                self.missing["power_w"] = self.missing["power_instant"]
            return watts

    def power_limit_w(self) -> float | None:
        """Watts above which the GPU lowers its clocks."""
        return self._read(
            "power_limit_w", lambda pynvml, card: _watts(pynvml.nvmlDeviceGetEnforcedPowerLimit(card)), of_card=True
        )

    def energy_mj(self) -> int | None:
        """Millijoules that the whole card has taken since the driver was loaded."""
        return self._read(
            "energy_mj",
            lambda pynvml, card: _possible(pynvml.nvmlDeviceGetTotalEnergyConsumption(card), 2**63 - 1),
            of_card=True,
        )

    def _clock(self, name: str, function: str, kind: int) -> int | None:
        return self._read(name, lambda pynvml, card: _possible(getattr(pynvml, function)(card, kind), 20_000), of_card=True)

    def sm_clock_mhz(self) -> int | None:
        """The SM clock now."""
        return self._clock("sm_clock_mhz", "nvmlDeviceGetClockInfo", _SM_CLOCK)

    def max_sm_clock_mhz(self) -> int | None:
        """The highest SM clock of this model."""
        return self._clock("max_sm_clock_mhz", "nvmlDeviceGetMaxClockInfo", _SM_CLOCK)

    def default_sm_clock_mhz(self) -> int | None:
        """The SM clock that is asked for when nobody chooses one."""
        return self._clock("default_sm_clock_mhz", "nvmlDeviceGetDefaultApplicationsClock", _SM_CLOCK)

    def memory_clock_mhz(self) -> int | None:
        """The memory's clock now."""
        return self._clock("memory_clock_mhz", "nvmlDeviceGetClockInfo", _MEMORY_CLOCK)

    def max_memory_clock_mhz(self) -> int | None:
        """The highest memory clock of this model."""
        return self._clock("max_memory_clock_mhz", "nvmlDeviceGetMaxClockInfo", _MEMORY_CLOCK)

    def temperature_c(self) -> int | None:
        """Degrees Celsius of the die."""
        return self._read(
            "temperature_c", lambda pynvml, card: _possible(pynvml.nvmlDeviceGetTemperature(card, 0), 200), of_card=True
        )

    def utilisation_percent(self) -> int | None:
        """Share of the last sampling period (a sixth of a second to a second) in which some kernel, of any process, ran."""
        return self._read("utilisation", _utilisation, of_card=True)

    def throttle_reasons(self) -> tuple[str, ...] | None:
        """Why the clocks are held down, in words; empty when they are not."""
        bits = self._read("throttle_reasons", _clocks_event_bits, of_card=True)
        return None if bits is None else _throttle_words(bits)

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
        return self._read("driver_version", lambda pynvml, _handle: text_of(pynvml.nvmlSystemGetDriverVersion))

    def cuda_version(self) -> str | None:
        """The highest CUDA version of the driver, such as '13.0'."""
        return self._read("cuda_version", _cuda_version)


def _handle_of(pynvml: ModuleType, uuid: str) -> Any:
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except TypeError:  # as packages before nvidia-ml-py want it
        return pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())


def text_of(function: Callable[..., Any], *arguments: Any) -> str:
    """A text that NVML gives, without nvidia-ml-py's strict decoding: some names are not UTF-8."""
    raw = getattr(function, "__wrapped__", function)(*arguments)
    return raw.decode("utf-8", errors="replace") if isinstance(raw, bytes) else raw


def _possible(value: int, most: int, least: int = 1) -> int:
    """A reading as it is; what no GPU can have, as the all-ones and zeros of readings that are not there, is none."""
    if not least <= value <= most:
        raise _Unavailable(f"NVML gave {value:,}, which is no possible reading")
    return value


def _watts(milliwatts: int) -> float:
    return _possible(milliwatts, 100_000_000) / 1000.0


def _named(pynvml: ModuleType, *kinds: str) -> tuple[type[Exception], ...]:
    """nvidia-ml-py's exceptions of these names, for an `except`; a package without them raises none."""
    return tuple(getattr(pynvml, f"NVMLError_{kind}") for kind in kinds if hasattr(pynvml, f"NVMLError_{kind}"))


def _unified() -> _Unavailable:
    try:
        has = bytes_(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError, AttributeError):
        has = "memory"
    return _Unavailable(
        f"NVML gives none, as where GPU and CPU share the system's memory: unified memory, {has} in this system"
    )


def _memory_v2(pynvml: ModuleType, handle: Any) -> MemoryReading:
    info = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    return _memory_reading(info, info.reserved)


def _memory_v1(pynvml: ModuleType, handle: Any) -> MemoryReading:
    try:
        return _memory_reading(pynvml.nvmlDeviceGetMemoryInfo(handle), None)
    except _named(pynvml, "NotSupported"):
        raise _unified() from None


def _memory_reading(info: Any, reserved: int | None) -> MemoryReading:
    if info.total == 0:
        raise _unified()
    total = _possible(info.total, 2**60)
    return MemoryReading(total, _possible(info.used, total, least=0), reserved)


def _power_instant(pynvml: ModuleType, handle: Any) -> float:
    value = pynvml.nvmlDeviceGetFieldValues(handle, [_POWER_INSTANT_FIELD])[0]
    if value.nvmlReturn != 0:
        raise pynvml.NVMLError(value.nvmlReturn)
    if not 0 <= value.valueType < len(_FIELD_VALUE_MEMBERS):
        raise _Unavailable(f"NVML gave it as an unknown type ({value.valueType})")
    return _watts(getattr(value.value, _FIELD_VALUE_MEMBERS[value.valueType]))


def _utilisation(pynvml: ModuleType, card: Any) -> int:
    return _possible(pynvml.nvmlDeviceGetUtilizationRates(card).gpu, 100, least=0)


def _clocks_event_bits(pynvml: ModuleType, card: Any) -> int:
    newer = getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    if newer is not None:
        try:
            return newer(card)
        except _named(pynvml, "FunctionNotFound"):
            pass
    return pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(card)


def _throttle_words(bits: int) -> tuple[str, ...]:
    known = tuple(words for bit, words in _THROTTLE_REASONS.items() if bits & bit)
    unknown = bits & ~_NOT_THROTTLED & ~sum(_THROTTLE_REASONS)
    return (*known, f"a reason without a name here ({unknown:#x})") if unknown else known


def _process_ids(pynvml: ModuleType, handle: Any) -> tuple[int, ...]:
    processes = list(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    with contextlib.suppress(*_named(pynvml, "NotSupported", "FunctionNotFound")):  # a GPU without graphics
        processes += pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)
    return tuple(sorted({process.pid for process in processes if process.pid not in (0, _NO_PID)}))


def _cuda_version(pynvml: ModuleType, _handle: Any) -> str:
    version = _possible(pynvml.nvmlSystemGetCudaDriverVersion_v2(), 1_000_000)
    return f"{version // 1000}.{version % 1000 // 10}"
