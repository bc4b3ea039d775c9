"""A snapshot's requests as this machine can repeat them: what runs, what is left out and why, what the form then says. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from app import form_check
from kernels.architecture import ARCHITECTURES
from kernels.problem import TileConfig
from kernels.registry import OUR_VERSIONS, VERSIONS
from profiling.records import DeviceFacts, Measurement, RunRequest

_DEFAULT_TARGET = 90


@dataclass(frozen=True)
class Plan:
    """requests: what this machine can run, as one job. form: the form's values for one of ours, whether it can run or not.

    left_out: a sentence for each reason why versions cannot run here.
    """

    requests: tuple[RunRequest, ...] = ()
    form: dict[str, str | bool] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Cannot:
    """Why a version cannot run here; of those of one kind the sentence of the one that would take longest is told."""

    kind: str
    sentence: str
    seconds: float = 0.0


def plan(measurements: Sequence[Measurement], focus: str, device: DeviceFacts, tile_ms: float | None) -> Plan:
    """What repeating these measurements on a device means; focus is the label of the one that the form should show."""
    requests: list[RunRequest] = []
    cannot: dict[str, dict[str, _Cannot]] = {}
    for measurement in measurements:
        found = _repeated(measurement, device, tile_ms)
        if isinstance(found, _Cannot):
            cannot.setdefault(found.kind, {})[measurement.label] = found
        else:
            requests.append(found)
    ours = {one.label: form_values(one) for one in measurements if one.request.kernel in OUR_VERSIONS}
    form = ours.get(focus) or next(reversed(ours.values()), {})
    return Plan(tuple(requests), form, tuple(_told(found, len(measurements)) for found in cannot.values()))


def _told(found: dict[str, _Cannot], measured: int) -> str:
    worst = max(found.values(), key=lambda one: one.seconds).sentence
    return worst if measured == 1 else f"{', '.join(found)}: {worst}"


def form_values(measurement: Measurement) -> dict[str, str | bool]:
    """The form's fields for what a measurement ran, with the tiles that it really had."""
    return form_of(measurement.request, measurement.tiles or measurement.request.tiles)


def form_of(request: RunRequest, tiles: TileConfig | None) -> dict[str, str | bool]:
    """The form's fields for a request; tiles None: the version's own."""
    problem = request.problem
    chosen = ("auto",) * 4 if tiles is None else (tiles.block_m, tiles.block_n, tiles.num_warps, tiles.num_stages)
    return {
        "kernel": request.kernel,
        "direction": request.direction,
        "seq_len": str(problem.seq_len_q),
        "seq_len_kv": "same" if problem.seq_len_kv == problem.seq_len_q else str(problem.seq_len_kv),
        "head_dim": str(problem.head_dim),
        "num_heads": str(problem.num_heads),
        "num_kv_heads": str(problem.num_kv_heads),
        "batch": str(problem.batch),
        "causal": problem.causal,
        "dtype": request.precision.dtype,
        "fp8": request.precision.fp8,
        "fp8_scale": request.precision.fp8_scale,
        "smooth_k": request.precision.smooth_k,
        "hadamard": request.precision.hadamard,
        "energy": "energy" in request.probes,
        "loop_order": tiles.loop_order if tiles is not None else "query",
        **dict(zip(("block_m", "block_n", "num_warps", "num_stages"), map(str, chosen), strict=True)),
    }


def _repeated(measurement: Measurement, device: DeviceFacts, tile_ms: float | None) -> RunRequest | _Cannot:
    """The request for this device, or why it cannot run here."""
    request = measurement.request
    if request.kernel not in VERSIONS:
        known = ", ".join(VERSIONS)
        return _Cannot(request.kernel, f"kernel = {request.kernel} is not known to this FlashScope, which has {known}.")
    if device.kind == "interpreter" and not VERSIONS[request.kernel].interpretable:
        return _Cannot("library", "not possible in the interpreter, as a library for the GPU: a machine with one runs it.")
    if request.precision.fp8 and (reason := form_check.fp8_reason(request.kernel, device)) is not None:
        return _Cannot("fp8", reason)
    checked = form_check.check(form_values(measurement), device, _target(measurement), tile_ms)
    if checked.request is None:
        name, sentence = next(iter(checked.errors.items()))
        return _Cannot(name, sentence, checked.expected_s or 0.0)
    carried = {name: getattr(request, name) for name in ("seed", "probes", "inputs", "own", "trace")}
    if request.direction != "forward" and measurement.backward_tiles is not None:
        carried["backward_tiles"] = measurement.backward_tiles
    return checked.request.model_copy(update=carried)


def _target(measurement: Measurement) -> int:
    """The capability to compile for where there is no GPU: the one it was measured on, or compiled for."""
    found = measurement.environment.device.capability or measurement.request.compile_for
    return found if found in ARCHITECTURES else _DEFAULT_TARGET
