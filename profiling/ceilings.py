"""What this very GPU reaches: matrix products, a copy, reads from its L2 cache. Measured once, kept for 30 days.

Rates are the best of several short batches, as a ceiling is what can be reached, not what is usual. They are kept in a file
by the GPU's UUID, with driver and torch; what was measured while something else used the GPU is used, but not kept.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from kernels.problem import Frozen
from profiling.foreign_text import Moment
from profiling.record_types import Missing, Words
from profiling.records import BytesPerS, Tflops
from profiling.whole_file import write_whole

if TYPE_CHECKING:
    import torch

    from profiling.nvml import Nvml

KEPT_FOR = timedelta(days=30)
METHOD = 2
"""Raised when the way of measuring changes: kept ceilings of another method are measured again."""
_SIDE = 8192
_COPY_BYTES = 512 << 20
_L2_BYTES = 16 << 20
# Short batches with rests between them: a long one runs into the power cap, and FP8 products then lose a tenth.
_BATCHES, _BATCH_S, _PAUSE_S = 5, 0.03, 0.2
_BUSY_PERCENT = 10
_NO_MEMORY = "too little GPU memory was free for it"
MEASURED = ("measured_bf16_tflops", "measured_fp8_tflops", "measured_bandwidth_bytes_per_s", "measured_l2_bytes_per_s")
"""The fields of DeviceFacts that ceilings_of() finds."""


class Ceilings(Frozen):
    """The fields of DeviceFacts that are measured, under the same names, and with what they were taken. missing: why not."""

    uuid: Words
    method: int
    driver_version: Words | None
    torch_version: Words
    ceilings_measured_at: Moment
    measured_bf16_tflops: Tflops | None = None
    measured_fp8_tflops: Tflops | None = None
    measured_bandwidth_bytes_per_s: BytesPerS | None = None
    measured_l2_bytes_per_s: BytesPerS | None = None
    missing: Missing = {}

    @property
    def facts(self) -> dict[str, object]:
        """What DeviceFacts takes of it."""
        return {name: getattr(self, name) for name in (*MEASURED, "ceilings_measured_at")}

    def holds(self, uuid: str, driver: str | None, torch_version: str, now: datetime) -> bool:
        """Whether it is of this device, these versions and this method, and not older than KEPT_FOR (nor from the future)."""
        same = (self.uuid, self.method, self.driver_version, self.torch_version) == (uuid, METHOD, driver, torch_version)
        return same and timedelta(0) <= now - datetime.fromisoformat(self.ceilings_measured_at) <= KEPT_FOR


def kept_file(uuid: str, folder: Path | None = None) -> Path:
    """Where the ceilings of a GPU are kept: in the user's cache folder, unless a folder is given."""
    if folder is None:
        # As freedesktop.org's base directories have it; GPUs that Triton knows are Linux's.
        folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "flashscope"
    name = "".join(mark for mark in uuid if mark.isalnum() or mark == "-")
    return folder / f"ceilings-{name}.json"


def kept(file: Path, uuid: str, driver: str | None, torch_version: str, now: datetime) -> Ceilings | None:
    """What the file holds, if it holds; whatever is wrong with it, it is measured anew."""
    try:
        found = Ceilings.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None
    return found if found.holds(uuid, driver, torch_version, now) else None


def keep(file: Path, found: Ceilings) -> None:
    """Write it, if the folder can be written to: only time is lost without."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, found.model_dump_json().encode())


# The worker's side: torch is imported inside.


def ceilings_of(device: torch.device, uuid: str, nvml: Nvml, folder: Path | None = None, anew: bool = False) -> Ceilings:
    """The ceilings of a GPU: kept ones, or measured now (about six seconds). anew: measured in any case."""
    import torch

    file, driver, now = kept_file(uuid, folder), nvml.driver_version(), datetime.now(UTC)
    found = None if anew else kept(file, uuid, driver, torch.__version__, now)
    if found is not None:
        return found
    busy = (nvml.utilisation_percent() or 0) >= _BUSY_PERCENT
    rates, missing = _measured(device)
    busy = busy or bool(nvml.other_processes())  # which counts right only when this process holds the GPU
    found = Ceilings(
        uuid=uuid, method=METHOD, driver_version=driver, torch_version=torch.__version__,
        ceilings_measured_at=now.isoformat(timespec="seconds"), missing=missing, **rates,
    )  # fmt: skip
    if not busy and _NO_MEMORY not in missing.values():
        keep(file, found)
    return found


def _measured(device: torch.device) -> tuple[dict[str, float], dict[str, str]]:
    import torch

    rates: dict[str, float] = {}
    missing: dict[str, str] = {}
    for name, measure in zip(MEASURED, (_bf16_tflops, _fp8_tflops, _copied_bytes_per_s, _l2_bytes_per_s), strict=True):
        try:
            rates[name] = measure(device)
        except torch.cuda.OutOfMemoryError:
            missing[name] = _NO_MEMORY
        except Exception as error:  # a worker without a ceiling is of use all the same
            missing[name] = f"it could not be measured here ({(str(error) or type(error).__name__).splitlines()[0][:200]})"
        torch.cuda.empty_cache()
    return rates, missing


def _bf16_tflops(device: torch.device) -> float:
    """A bf16 product of two 8192 × 8192 matrices of N(0, 1), float32 sums."""
    import torch

    a, b = (torch.randn(_SIDE, _SIDE, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(a)
    return 2 * _SIDE**3 / _best_s(lambda: torch.matmul(a, b, out=product), device) / 1e12


def _fp8_tflops(device: torch.device) -> float:
    """The same in e4m3 with one scale a matrix and bf16 results; fast sums, as attention in FP8 has them inside a tile."""
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    if major * 10 + minor < 89:
        raise ValueError("its matrix units have no FP8")
    a, b = (torch.randn(_SIDE, _SIDE, device=device).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device=device)

    def run() -> object:
        return torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)

    return 2 * _SIDE**3 / _best_s(run, device) / 1e12


def _copied_bytes_per_s(device: torch.device) -> float:
    """A copy of 512 MiB, its bytes read and written."""
    import torch

    source = torch.zeros(_COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * _COPY_BYTES / _best_s(lambda: target.copy_(source), device)


def _l2_bytes_per_s(device: torch.device) -> float:
    """Reads of 16 MiB (a third of the cache at most) by all SMs, again and again, each SM elsewhere, past the L1 cache."""
    import torch

    from kernels.l2_read import L2Reading

    properties = torch.cuda.get_device_properties(device)
    reading = L2Reading(device, properties.multi_processor_count, min(_L2_BYTES, properties.L2_cache_size // 3))
    took_s = _best_s(reading, device)
    if not reading.is_whole:
        raise ValueError("the reads did not add up")
    return reading.bytes_per_launch / took_s


def _best_s(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of a launch by CUDA events: the best of several batches' medians, after as many untimed ones as warm clocks."""
    import torch

    with torch.cuda.device(device):
        run()
        torch.cuda.synchronize()
        medians = []
        for _ in range(_BATCHES):
            _batch(run)
            medians.append(statistics.median(_batch(run)))
            time.sleep(_PAUSE_S)
    return min(medians)


def _batch(run: Callable[[], object]) -> list[float]:
    """Seconds of each launch of about _BATCH_S of them, at least five."""
    import torch

    samples: list[float] = []
    while len(samples) < 5 or sum(samples) < _BATCH_S:
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        run()
        after.record()
        after.synchronize()
        samples.append(before.elapsed_time(after) / 1000.0)
    return samples
