"""From what stands in the form to a request, or to one sentence per field that is wrong. Pure: nothing is launched."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import ValidationError

from app import programs
from kernels.architecture import Architecture, architecture
from kernels.problem import FP8_SCALES, AttentionProblem, BackwardTiles, LoopOrder, Precision, TileConfig
from kernels.registry import (
    OUR_VERSIONS,
    PEERS,
    VERSIONS,
    Refused,
    default_backward_tiles,
    default_tiles,
    ours_on,
    precision_for,
    refuse,
    refuse_backward,
)
from profiling import memory, words
from profiling.record_types import first_sentence
from profiling.records import PROBES, DeviceFacts, Direction, Probe, RunRequest

INTERPRETER_LIMIT_S = 20.0
CAUTIOUS_TILE_MS = 15.0
CPU_FLOP_PER_S = 1e10
FIRST_RUN_S = 1.5  # a kernel's first tiles are slower, and the compile report is made beside them
SEQ_LENS = tuple(2**power for power in range(6, 18))
_COUNTS = {
    "seq_len": "seq_len",
    "head_dim": "head_dim",
    "num_heads": "num_heads",
    "num_kv_heads": "num_kv_heads",
    "batch": "batch",
}
_FIELD_OF = {
    "seq_len_q": "seq_len",
    "BLOCK_M": "block_m",
    "BLOCK_N": "block_n",
    "FP8": "fp8",
}


@dataclass(frozen=True)
class Checked:
    """The form, judged. requests is empty when a field is wrong; errors maps a field to its sentence.

    run_all: the same problem by every version the device can run. beside_default: the request with its version's own tiles,
    then as it is, where they differ: one job, so that they can be judged. needed_bytes: what the run will allocate, modelled.
    expected_s: how long the interpreter will take, None on a GPU.
    """

    request: RunRequest | None = None
    run_all: tuple[RunRequest, ...] = ()
    beside_default: tuple[RunRequest, ...] = ()
    errors: dict[str, str] = field(default_factory=dict)
    cure: TileConfig | None = None
    needed_bytes: int | None = None
    expected_s: float | None = None


def check(values: dict[str, str | bool], device: DeviceFacts, compile_for: int, tile_ms: float | None = None) -> Checked:
    """Judge the form's values for a device; tile_ms is what a 64 × 64 × 64 tile takes in the interpreter, if known."""
    try:
        problem = problem_of(values)
        precision = _precision(values, device)
        arch = target(device, compile_for)
        tiles = _tiles(values, problem, precision, arch)
        request = _request(str(values["kernel"]), problem, precision, tiles, device, compile_for)
        request = request.model_copy(update={"probes": _probes(values, device)})
        refuse(request.kernel, problem, precision, tiles, arch if device.kind == "gpu" else None)
        request = _with_direction(request, values.get("direction", "forward"), arch, device)
    except _FieldError as wrong:
        return Checked(errors={wrong.field: wrong.sentence})
    except ValidationError as error:
        return _refused(first_sentence(error))
    except Refused as error:
        return _refused(error.sentence, error.cure)
    except ValueError as error:
        return Checked(errors={"device": str(error)})
    return _within_limits(request, device, arch, tile_ms or CAUTIOUS_TILE_MS)


def target(device: DeviceFacts, compile_for: int) -> Architecture:
    """The architecture that default tiles and the compile report are for. Raises ValueError for a GPU before Ampere."""
    return architecture(device.capability or compile_for)


def problem_of(values: dict[str, str | bool]) -> AttentionProblem:
    """The problem that a form's fields say. Raises ValueError: pydantic's, or in one sentence for what is no number."""
    counts = {name: _count(values, name) for name in _COUNTS}
    seq_len = counts.pop("seq_len")
    same = str(values["seq_len_kv"]).strip().lower() in ("same", "")
    return AttentionProblem(
        seq_len_q=seq_len, seq_len_kv=seq_len if same else _count(values, "seq_len_kv"), causal=bool(values["causal"]), **counts
    )


def fp8_reason(kernel: str, device: DeviceFacts) -> str | None:
    """Why FP8 cannot be chosen, or None where it can."""
    if not VERSIONS[kernel].has_fp8:
        having = [name for name in OUR_VERSIONS if VERSIONS[name].has_fp8]
        return f"{kernel} has no FP8: only {' and '.join(having)} {'has' if len(having) == 1 else 'have'} it."
    if device.capability is not None and device.capability < 89:
        return f"sm_{device.capability} has no e4m3 matrix units: they begin with sm_89 (Ada)."
    return None


def hadamard_reason(kernel: str) -> str | None:
    """Why Q and K cannot be turned before they are rounded to FP8, or None where they can."""
    having = [name for name in OUR_VERSIONS if VERSIONS[name].has_hadamard]
    return None if kernel in having else f"{kernel} does not turn Q and K: only {' and '.join(having)} can."


def scales_of(kernel: str) -> tuple[str, ...]:
    """Which of FP8_SCALES a version can have; where it is one, there is nothing to choose."""
    if not VERSIONS[kernel].has_fp8:
        return FP8_SCALES
    return tuple(one for one in FP8_SCALES if precision_for(kernel, Precision(fp8=True, fp8_scale=one)).fp8_scale == one)


def suggested_tiles(values: dict[str, str | bool], device: DeviceFacts, compile_for: int) -> TileConfig | None:
    """The version's default tiles for the form's problem, None while the problem itself is not possible."""
    try:
        problem, precision = problem_of(values), _precision(values, device)
        arch = target(device, compile_for)
    except ValueError:
        return None
    return default_tiles(str(values["kernel"]), problem, precision, arch, _loop_order(values))


def suggested_backward_tiles(values: dict[str, str | bool], device: DeviceFacts, compile_for: int) -> BackwardTiles | None:
    """The tiles that the form's backward runs with; None where it asks for none, or has none to choose."""
    if values.get("direction", "forward") == "forward":
        return None
    try:
        kernel, problem, precision = str(values["kernel"]), problem_of(values), _precision(values, device)
        return default_backward_tiles(kernel, problem, precision, target(device, compile_for))
    except ValueError:
        return None


def seq_len_choices(
    values: dict[str, str | bool], device: DeviceFacts, compile_for: int, tile_ms: float | None
) -> tuple[int, ...]:
    """The lengths to offer: all on a GPU, in the interpreter those that stay under its limit."""
    if device.kind == "gpu":
        return SEQ_LENS
    return tuple(
        length for length in SEQ_LENS if _length_is_quick({**values, "seq_len": str(length)}, device, compile_for, tile_ms)
    )


def interpreter_seconds(request: RunRequest, tile_ms: float) -> float:
    """How long the interpreter will take: the tiles to visit, and the reference, which is dense arithmetic on the CPU.

    A tile never counts less than one of 64 × 64 × 64: most of its time is the interpreter's own.
    """
    problem, tiles = request.problem, request.tiles
    dense_s = (
        4.0 * problem.batch * problem.num_heads * problem.seq_len_q * problem.seq_len_kv * problem.head_dim / CPU_FLOP_PER_S
    )
    if tiles is None:
        return 2 * dense_s
    visited_ms = _tiles_ms(request.kernel, problem, tiles, tile_ms)
    if request.direction == "forward":
        return FIRST_RUN_S + dense_s + visited_ms / 1000
    return FIRST_RUN_S + 3.5 * dense_s + (visited_ms + _backward_ms(request, tile_ms)) / 1000


def _tiles_ms(kernel: str, problem: AttentionProblem, tiles: TileConfig, tile_ms: float) -> float:
    size = max(1.0, tiles.block_m * tiles.block_n * problem.padded_head_dim / 64**3)
    return programs.visited_tiles(kernel, problem, tiles) * tile_ms * size


def _backward_ms(request: RunRequest, tile_ms: float) -> float:
    """A tile of the kernel for dK and dV has four products, one of that for dQ three; of a forward it has two."""
    tiles = request.backward_tiles
    if tiles is None:
        return 0.0
    found = 2.0 * _tiles_ms(request.kernel, request.problem, tiles.dkdv, tile_ms)
    return found if tiles.dq is None else found + 1.5 * _tiles_ms(request.kernel, request.problem, tiles.dq, tile_ms)


class _FieldError(ValueError):
    def __init__(self, field_name: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field, self.sentence = field_name, sentence


def _count(values: dict[str, str | bool], name: str) -> int:
    """A number as people type it: '3000', '3,000', '16k'."""
    text = str(values[name]).strip().lower().replace(",", "").replace("_", "").replace(" ", "")
    factor = 1024 if text.endswith("k") else 1
    digits = text.removesuffix("k")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 12):
        raise _FieldError(
            name, f"{name} = {str(values[name])[:40]} is not possible: it must be a whole number, such as 4096 or 4k."
        )
    return int(digits) * factor


def _precision(values: dict[str, str | bool], device: DeviceFacts) -> Precision:
    """FP8 counts only where it can be chosen: a switch that is out of reach keeps its place, and does nothing."""
    kernel = str(values["kernel"])
    fp8 = bool(values["fp8"]) and fp8_reason(kernel, device) is None
    asked = Precision(
        dtype=values["dtype"],
        fp8=fp8,
        fp8_scale=values["fp8_scale"],
        smooth_k=bool(values["smooth_k"]),
        hadamard=fp8 and bool(values.get("hadamard", False)) and hadamard_reason(kernel) is None,
    )
    return precision_for(kernel, asked)


def _probes(values: dict[str, str | bool], device: DeviceFacts) -> tuple[Probe, ...]:
    """What every run is asked, and energy where the form asks for it and a GPU has a counter."""
    return (*PROBES, "energy") if device.kind == "gpu" and values.get("energy", False) else PROBES


def _loop_order(values: dict[str, str | bool]) -> LoopOrder:
    """The order counts only for the versions that have a choice."""
    return values["loop_order"] if VERSIONS[str(values["kernel"])].has_loop_order else "query"


def _tiles(
    values: dict[str, str | bool], problem: AttentionProblem, precision: Precision, arch: Architecture
) -> TileConfig | None:
    kernel = str(values["kernel"])
    suggested = default_tiles(kernel, problem, precision, arch, _loop_order(values))
    if suggested is None:
        return None
    chosen = {
        name: _count(values, name) for name in ("block_m", "block_n", "num_warps", "num_stages") if values[name] != "auto"
    }
    return TileConfig(**{**suggested.model_dump(), **chosen})


def _request(
    kernel: str,
    problem: AttentionProblem,
    precision: Precision,
    tiles: TileConfig | None,
    device: DeviceFacts,
    compile_for: int,
) -> RunRequest:
    return RunRequest(
        kernel=kernel,
        problem=problem,
        precision=precision,
        tiles=tiles,
        device=device.id,
        compile_for=None if device.kind == "gpu" else compile_for,
    )


def _with_direction(request: RunRequest, direction: Direction, arch: Architecture, device: DeviceFacts) -> RunRequest:
    """The request with a direction, and the version's own tiles of a backward. Raises Refused for a version without one."""
    if direction == "forward":
        return request
    tiles = default_backward_tiles(request.kernel, request.problem, request.precision, arch)
    refuse_backward(request.kernel, request.problem, request.precision, tiles, arch if device.kind == "gpu" else None)
    return request.model_copy(update={"direction": direction, "backward_tiles": tiles})


def _refused(sentence: str, cure: TileConfig | None = None) -> Checked:
    name = sentence.split(" ", 1)[0]
    return Checked(errors={_FIELD_OF.get(name, name): sentence}, cure=cure)


def _within_limits(request: RunRequest, device: DeviceFacts, arch: Architecture, tile_ms: float) -> Checked:
    """Refuse what would fill the memory there is, or keep the interpreter busy for too long."""
    needed = memory.estimate(request, request.tiles, device.capability).total_bytes
    has = device.memory_bytes if device.kind == "gpu" else memory.free_host_bytes()
    try:
        if has is not None:
            memory.refuse_if_too_large(request, request.tiles, has, device.name, device.capability)
    except Refused as error:
        return Checked(errors={"memory": error.sentence}, needed_bytes=needed)
    if device.kind == "gpu":
        both = _beside_default(request, arch)
        return Checked(request, _every_version(request, device, arch), both, needed_bytes=needed)
    expected_s = interpreter_seconds(request, tile_ms)
    if expected_s > INTERPRETER_LIMIT_S:
        sentence = (
            f"seq_len = {request.problem.seq_len_q:,} would take about {words.seconds(expected_s)} in the interpreter: "
            f"shorten the problem to stay under {INTERPRETER_LIMIT_S:.0f} s."
        )
        return Checked(errors={"seq_len": sentence}, needed_bytes=needed, expected_s=expected_s)
    return Checked(request, _every_version(request, device, arch), needed_bytes=needed, expected_s=expected_s)


def _beside_default(request: RunRequest, arch: Architecture) -> tuple[RunRequest, ...]:
    """The version's own tiles first: they are what the others are judged against. The loop order is part of them."""
    suggested = default_tiles(request.kernel, request.problem, request.precision, arch)
    if suggested is None or request.tiles == suggested:
        return ()
    return request.model_copy(update={"tiles": suggested}), request


def _every_version(request: RunRequest, device: DeviceFacts, arch: Architecture) -> tuple[RunRequest, ...]:
    """Ours that the device can run, and its peers on a GPU: the form's version with its own tiles, the others with theirs."""
    names = ours_on(arch) + PEERS if device.kind == "gpu" else ours_on(None)
    requests = []
    for name in names:
        if request.direction != "forward" and not VERSIONS[name].backwards:
            continue
        precision = precision_for(name, request.precision)
        tiles = request.tiles if name == request.kernel else default_tiles(name, request.problem, precision, arch)
        changed = {"kernel": name, "precision": precision, "tiles": tiles}
        if request.direction != "forward":
            changed["backward_tiles"] = default_backward_tiles(name, request.problem, precision, arch)
        requests.append(request.model_copy(update=changed))
    return tuple(requests)


def _length_is_quick(values: dict[str, str | bool], device: DeviceFacts, compile_for: int, tile_ms: float | None) -> bool:
    try:
        problem, precision = problem_of(values), _precision(values, device)
        tiles = _tiles(values, problem, precision, target(device, compile_for))
    except ValueError:
        return True
    request = _request(str(values["kernel"]), problem, precision, tiles, device, compile_for)
    try:
        request = _with_direction(request, values.get("direction", "forward"), target(device, compile_for), device)
    except Refused:
        return True
    return interpreter_seconds(request, tile_ms or CAUTIOUS_TILE_MS) <= INTERPRETER_LIMIT_S
