"""The GPUs of this machine by NVML alone, and all that it says of them.

NVML may crash or hang on a GPU that is lost, so this is asked in a child process: `python -m profiling.gpu_list` prints
everything() as JSON, with `all` or an index list_gpus().
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

from profiling.nvml import Nvml, attempt, initialised, text_of
from profiling.stdout import claim_stdout


@dataclass(frozen=True)
class ListedGpu:
    """A GPU, or a MIG device, that NVML lists; missing says why a field is None."""

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


def list_gpus(only: int | None = None) -> GpuList:
    """Every GPU of this machine by NVML alone, or the one of an index. A lost one is skipped; a split one is its MIG devices.

    Call it in a child process: NVML may crash on a lost GPU.
    """
    pynvml, failure = attempt(initialised)
    if failure is not None:
        return GpuList((), (f"No GPU was found: {failure.of_everything}.",))
    try:
        count, failure = attempt(lambda: pynvml.nvmlDeviceGetCount())
        if failure is not None:
            return GpuList((), (f"No GPU was found: {failure.sentence}.",))
        gpus, skipped = [], []
        for index in range(count) if only is None else range(only, min(only + 1, count)):
            found, failure = attempt(lambda index=index: _listed(pynvml, index))
            if failure is None:
                gpus += found
            else:
                skipped.append(f"GPU {index} was left out: {failure.sentence}.")
        return GpuList(tuple(gpus), tuple(skipped) if count else ("NVIDIA's driver is here, but it sees no GPU.",))
    finally:
        attempt(lambda: pynvml.nvmlShutdown())


def _listed(pynvml: ModuleType, index: int) -> list[ListedGpu]:
    card = pynvml.nvmlDeviceGetHandleByIndex(index)
    slices = _mig_devices(pynvml, card)
    return [_listed_one(pynvml, handle) for handle in (slices or [card])]


def _mig_devices(pynvml: ModuleType, card: Any) -> list[Any]:
    """The MIG devices of a card that is split; where MIG is off, unknown, or has no device yet, none."""
    mode, _unknown = attempt(lambda: pynvml.nvmlDeviceGetMigMode(card)[0])
    most, _unknown = attempt(lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(card)) if mode else (0, None)
    found = [attempt(lambda k=k: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, k))[0] for k in range(most or 0)]
    return [handle for handle in found if handle is not None]


def _listed_one(pynvml: ModuleType, handle: Any) -> ListedGpu:
    uuid = text_of(pynvml.nvmlDeviceGetUUID, handle)
    one = Nvml(uuid, _pynvml=pynvml, _handle=handle, _card=handle, _retry_at=math.inf)
    name = one._read("name", lambda *_: text_of(pynvml.nvmlDeviceGetName, handle))
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


READINGS: dict[str, str] = {
    "memory": "memory",
    "memory_used_bytes": "memory",
    "power_w": "power_w",
    "power_limit_w": "power_limit_w",
    "energy_mj": "energy_mj",
    "sm_clock_mhz": "sm_clock_mhz",
    "max_sm_clock_mhz": "max_sm_clock_mhz",
    "default_sm_clock_mhz": "default_sm_clock_mhz",
    "memory_clock_mhz": "memory_clock_mhz",
    "max_memory_clock_mhz": "max_memory_clock_mhz",
    "temperature_c": "temperature_c",
    "utilisation_percent": "utilisation",
    "throttle_reasons": "throttle_reasons",
    "process_ids": "processes",
    "other_processes": "processes",
    "driver_version": "driver_version",
    "cuda_version": "cuda_version",
}
"""Every reading of Nvml by its method's name, and the key of `missing` that holds its reason."""


def everything() -> dict[str, Any]:
    """All GPUs with all their readings and the reasons of those that are missing, as what JSON can hold."""
    found = list_gpus()
    gpus = []
    for listed in found.gpus:
        with Nvml.open(listed.uuid) as one:
            readings = {name: getattr(one, name)() for name in READINGS}
            if readings["memory"] is not None:
                readings["memory"] = asdict(readings["memory"])
            gpus.append({**asdict(listed), "readings": readings, "missing": {**listed.missing, **one.missing}})
    return {"gpus": gpus, "skipped": list(found.skipped)}


def main(arguments: list[str]) -> None:
    """Print what is asked for."""
    out = claim_stdout()  # a stub of the library prints on it
    index = None if arguments in ([], ["all"]) else int(arguments[0])
    out.write(json.dumps(asdict(list_gpus(index)) if arguments else everything()))
    out.close()


if __name__ == "__main__":
    main(sys.argv[1:])
