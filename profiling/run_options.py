"""The command line's options for a run: one per field of the request's records, and from them to requests."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

from kernels.architecture import architecture
from kernels.problem import AttentionProblem, BackwardTiles, Precision, TileConfig
from kernels.registry import (
    PEERS,
    VERSIONS,
    Refused,
    can_be_watched,
    default_backward_tiles,
    default_tiles,
    ours_on,
    precision_for,
    refuse,
    refuse_backward,
    version,
)
from profiling.kernel_choice import KernelChoice, kernel_choices
from profiling.own_inputs import MAX_FILE_BYTES, NAMES, from_npy, own_inputs, problem_of
from profiling.record_types import first_sentence
from profiling.records import PROBES, DeviceFacts, Direction, InputKind, OwnInputs, RunRequest
from profiling.schedule_record import require_possible
from profiling.tile_trace import require_choice
from profiling.trace_record import TraceChoice

ON_GPU = {"num_heads": 16, "seq_len": 4096, "head_dim": 128}
ON_INTERPRETER = {"num_heads": 2, "seq_len": 256, "head_dim": 64}
COMPILE_FOR_WITHOUT_GPU = 90

EXPLAINED = {
    "batch": "sequences",
    "num_heads": "query heads (16; in the interpreter 2)",
    "num_kv_heads": "key-value heads, each shared by num_heads / num_kv_heads query heads (as many as num_heads)",
    "seq_len_q": "queries (as --seq-len)",
    "seq_len_kv": "keys and values (as --seq-len)",
    "head_dim": "numbers a head has (128; in the interpreter 64)",
    "causal": "a query sees no later key (no)",
    "dtype": "format of the inputs and the output (bf16)",
    "fp8": "e4m3 operands with scales, for the versions that have it (no)",
    "fp8_scale": "with --fp8: a scale a token, or a block of 64 tokens (token); fa3 has one a head",
    "smooth_k": "with --fp8: subtract K's mean before it is quantised (yes)",
    "hadamard": "with --fp8: turn Q and K by one Hadamard matrix before they are quantised (no)",
    "block_m": "queries a tile (the version's default)",
    "block_n": "keys a tile (the version's default)",
    "num_warps": "warps a program (the version's default)",
    "num_stages": "loads in flight (the version's default)",
    "loop_order": "v1 alone: a program a query tile, or the paper's Algorithm 1 (query)",
    "block_order": "v2 and v3: in which order query blocks start; default is heaviest first when causal (default)",
    "num_programs": "v2 and v3: a persistent grid of so many programs (one program a block)",
    "direction": "what is timed: the forward; the backward, after a forward that is not timed; or both in a row, a training "
    "step, and each of its parts (forward)",
    "backward_tiles": "with a backward: tiles of the kernel for dK and dV, then, but for v1, of the one for dQ (the version's)",
    "compile_for": "compute capability of the compile report, 90 for sm_90 (the GPU's own; in the interpreter 90)",
    "seed": "of the inputs (0)",
    "inputs": "what Q, K and V are drawn from; normal is N(0, 1), the others are for watching, own is read with --own (normal)",
    "own": "three .npy files, float16 to float64, (batch, heads, seq_len, head_dim) or fewer dimensions; the problem is theirs",
    "trace_batch_index": "with the probe tiles: whose tiles are stored, the batch entry (0)",
    "trace_head": "with the probe tiles: the query head (0)",
    "trace_query_block": "with the probe tiles: the block of BLOCK_M queries (the last)",
}
GROUPS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("problem", AttentionProblem),
    ("precision", Precision),
    ("tiles", TileConfig),
)


@dataclass(frozen=True)
class Plan:
    """What a command line asks for: requests on one device; left_out says of `all` which versions it is without, and why."""

    requests: tuple[RunRequest, ...]
    left_out: tuple[str, ...] = ()


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Give a parser an option for every field of RunRequest. None means: not given."""
    parser.add_argument(
        "--kernel",
        required=True,
        help=f"{', '.join(VERSIONS)}; several with commas, or all (native to v3, and on a GPU the peers); with settings of "
        "its own after @, so that one job compares a version with itself: v2,v2@block_m=64,block_n=64",
    )
    for title, record in GROUPS:
        group = parser.add_argument_group(title)
        if record is AttentionProblem:
            group.add_argument(
                "--seq-len", type=whole, metavar="N", help="tokens, queries and keys alike (4096; in the interpreter 256)"
            )
        for name, field in record.model_fields.items():
            _add_field(group, name, field.annotation)
    group = parser.add_argument_group("run")
    group.add_argument(
        "--device", help="interpreter, or a GPU's UUID or its beginning (the first GPU; without one the interpreter)"
    )
    group.add_argument(
        "--probes", help=f"what to take, with commas; tiles, schedule and energy are three more ({','.join(PROBES)})"
    )
    for name in ("compile_for", "seed", *(f"trace_{field}" for field in TraceChoice.model_fields)):
        _add_field(group, name, int)
    _add_field(group, "direction", Direction)
    group.add_argument("--backward-tiles", nargs="+", metavar="BLOCK_M,BLOCK_N,WARPS,STAGES", help=EXPLAINED["backward_tiles"])
    _add_field(group, "inputs", InputKind)
    group.add_argument("--own", nargs=3, metavar=("Q.npy", "K.npy", "V.npy"), help=EXPLAINED["own"])


def _add_field(group: argparse._ArgumentGroup, name: str, kind: Any) -> None:
    option = f"--{name.replace('_', '-')}"
    if kind is bool:
        group.add_argument(option, action=argparse.BooleanOptionalAction, help=EXPLAINED[name])
    elif get_origin(kind) is Literal:
        group.add_argument(option, metavar=f"{{{','.join(get_args(kind))}}}", help=EXPLAINED[name])
    else:
        group.add_argument(option, type=whole, metavar="N", help=EXPLAINED[name])


def whole(text: str) -> int:
    try:
        return int(text.replace("_", ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def plan(options: argparse.Namespace, devices: tuple[DeviceFacts, ...]) -> Plan:
    """From parsed options to requests. Raises ValueError, in one sentence, for what is not possible."""
    device = device_of(options.device, devices)
    try:
        own = _own(options)
        problem = _problem(options, device, own)
        return _requests(options, problem, device, own)
    except ValidationError as error:
        raise ValueError(first_sentence(error)) from None


def device_of(asked: str | None, devices: tuple[DeviceFacts, ...]) -> DeviceFacts:
    """The device of an id, or of a GPU's UUID's beginning; None is the first. Raises ValueError for none, and for several."""
    if asked is None:
        return devices[0]
    found = [device for device in devices if device.id == asked or (device.kind == "gpu" and device.id.startswith(asked))]
    if len(found) != 1:
        raise ValueError(f"device = {asked} is not possible: it can be {' or '.join(device.id for device in devices)}.")
    return found[0]


def gpu_of(asked: str | None, devices: tuple[DeviceFacts, ...], command: str, otherwise: str = "") -> DeviceFacts:
    """The GPU of an id or its beginning; None is the first. Raises ValueError where there is none: command needs one."""
    gpus = tuple(device for device in devices if device.kind == "gpu")
    if not gpus:
        reason = next((device.missing["gpu"] for device in devices if "gpu" in device.missing), "no GPU was found")
        raise ValueError(f"{command} needs a GPU ({reason.rstrip('.')}){otherwise}.")
    return device_of(asked, gpus)


def _given(options: argparse.Namespace, record: type[BaseModel]) -> dict[str, Any]:
    return {name: getattr(options, name) for name in record.model_fields if getattr(options, name, None) is not None}


def _own(options: argparse.Namespace) -> OwnInputs | None:
    """The files of --own, read. Raises ValueError for a file that cannot be read, and for one option without the other."""
    if options.own is None:
        if options.inputs == "own":
            raise ValueError("--inputs own is not possible without --own Q.npy K.npy V.npy.")
        return None
    if options.inputs not in (None, "own"):
        raise ValueError(f"--own is not possible with --inputs {options.inputs}: it is the inputs own.")
    return own_inputs(*(from_npy(name, _content(Path(path))) for name, path in zip(NAMES, options.own, strict=True)))


def _content(path: Path) -> bytes:
    """A file's bytes, as many as can be right."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from None


def _problem(options: argparse.Namespace, device: DeviceFacts, own: OwnInputs | None) -> AttentionProblem:
    """What the options say, or with one's own inputs their problem, which the options may repeat but not contradict."""
    if own is not None:
        return _same_problem(options, problem_of(own, causal=bool(options.causal)))
    usual = dict(ON_INTERPRETER if device.kind == "interpreter" else ON_GPU)
    usual_seq_len = usual.pop("seq_len")
    seq_len = usual_seq_len if options.seq_len is None else options.seq_len
    values = {"seq_len_q": seq_len, "seq_len_kv": seq_len, **usual, **_given(options, AttentionProblem)}
    return AttentionProblem(**{"num_kv_heads": values["num_heads"], **values})


def _same_problem(options: argparse.Namespace, problem: AttentionProblem) -> AttentionProblem:
    both = {} if options.seq_len is None else {"seq_len_q": options.seq_len, "seq_len_kv": options.seq_len}
    for name, value in {**both, **_given(options, AttentionProblem)}.items():
        if value != getattr(problem, name):
            raise ValueError(f"{name} = {value} is not possible: the files of --own have {getattr(problem, name)}.")
    return problem


def _requests(options: argparse.Namespace, problem: AttentionProblem, device: DeviceFacts, own: OwnInputs | None) -> Plan:
    choices, every = _choices(options.kernel, device), options.kernel == "all"
    names = tuple(dict.fromkeys(choice.name for choice in choices))
    _require_someone_has("fp8", options.fp8, [name for name in names if version(name).has_fp8], names)
    _require_someone_has(
        "loop_order", options.loop_order == "key", [name for name in names if version(name).has_loop_order], names
    )
    for choice in ("block_order", "num_programs"):
        asked = getattr(options, choice) not in (None, "default")
        _require_someone_has(choice, asked, [name for name in names if version(name).has_block_order], names)
    tile_option = next(iter(_given(options, TileConfig)), None)
    _require_probe_of(options)
    probes = _probes(options)
    watched = [name for name in names if can_be_watched(name, options.fp8)]
    _require_someone_has("probes tiles", "tiles" in probes, watched, names)
    _require_someone_has("probes schedule", "schedule" in probes, watched, names)
    if "schedule" in probes and device.kind == "interpreter":
        raise ValueError("--probes schedule is not possible in the interpreter: only a GPU has SMs and a clock to read.")
    if "energy" in probes and device.kind == "interpreter":
        raise ValueError("--probes energy is not possible in the interpreter: only a GPU has a counter of it.")
    _require_someone_has(tile_option, tile_option is not None, [name for name in names if version(name).has_tiles], names)
    requests, left_out = [], []
    for choice in choices:
        try:
            requests.append(_request(choice, options, problem, device, own))
        except Refused as refused:
            if not every:
                raise
            left_out.append(refused.sentence)
    if not requests:
        raise ValueError(left_out[0])
    return Plan(tuple(requests), tuple(left_out))


def _probes(options: argparse.Namespace) -> tuple[str, ...]:
    return PROBES if options.probes is None else tuple(probe.strip() for probe in options.probes.split(","))


def _trace(options: argparse.Namespace) -> TraceChoice:
    given = {name: getattr(options, f"trace_{name}") for name in TraceChoice.model_fields}
    return TraceChoice(**{name: value for name, value in given.items() if value is not None})


def _require_probe_of(options: argparse.Namespace) -> None:
    """A choice of tiles without the probe that stores them is a mistake."""
    if _trace(options) != TraceChoice() and "tiles" not in _probes(options):
        given = next(name for name in TraceChoice.model_fields if getattr(options, f"trace_{name}") is not None)
        raise ValueError(f"--trace-{given.replace('_', '-')} is not possible without --probes tiles.")


def backward_tiles_of(option: str, given: Sequence[str] | None) -> BackwardTiles | None:
    """Of ['64,64,4,2', '128,64,8,3'], which an option was given; None without. Raises ValueError, in one sentence."""
    if given is None:
        return None
    found = []
    for text in given:
        numbers = text.replace("_", "").split(",")
        if len(numbers) != 4 or not all(number.isascii() and number.isdigit() for number in numbers):
            raise ValueError(f"{option} {text} is not possible: it is BLOCK_M, BLOCK_N, warps and stages, as in 64,64,4,2.")
        block_m, block_n, num_warps, num_stages = map(int, numbers)
        found.append(TileConfig(block_m=block_m, block_n=block_n, num_warps=num_warps, num_stages=num_stages))
    if len(found) > 2:
        raise ValueError(f"{option} with {len(found)} tiles is not possible: it is those of dK and dV, and of dQ.")
    return BackwardTiles(dkdv=found[0], dq=found[1] if len(found) == 2 else None)


def _choices(asked: str, device: DeviceFacts) -> tuple[KernelChoice, ...]:
    if asked != "all":
        return kernel_choices(asked)
    names = ours_on(architecture(device.capability)) + PEERS if device.kind == "gpu" else ours_on(None)
    return tuple(map(KernelChoice, names))


def _require_someone_has(option: str | None, asked: bool | None, having: list[str], names: tuple[str, ...]) -> None:
    """An option applies to the versions that have it; that none has it is a mistake."""
    if asked and not having:
        raise ValueError(f"--{option.replace('_', '-')} is not possible with {', '.join(names)}: it has no such choice.")


def _request(
    choice: KernelChoice, options: argparse.Namespace, problem: AttentionProblem, device: DeviceFacts, own: OwnInputs | None
) -> RunRequest:
    name = choice.name
    asked = Precision(**{**_given(options, Precision), **choice.precision})
    # What is asked of this version alone is refused where it cannot be; what is asked of all reaches those that have it.
    precision = asked if choice.precision.get("fp8") and not version(name).has_fp8 else precision_for(name, asked)
    compile_for = options.compile_for
    if device.kind == "interpreter" and compile_for is None:
        compile_for = COMPILE_FOR_WITHOUT_GPU
    capability = device.capability if device.kind == "gpu" else compile_for
    arch = architecture(capability) if capability is not None else None
    given = _given(options, TileConfig)
    if not version(name).has_loop_order:
        given.pop("loop_order", None)
    if not version(name).has_block_order:
        given = {key: value for key, value in given.items() if key not in ("block_order", "num_programs")}
    given = {**given, **choice.tiles}
    tiles = default_tiles(name, problem, precision, arch, given.get("loop_order", "query")) if arch is not None else None
    if tiles is not None:
        tiles = TileConfig(**{**tiles.model_dump(), **given})
    refuse(name, problem, precision, tiles, arch if device.kind == "gpu" else None)
    direction, backward_tiles = options.direction or "forward", backward_tiles_of("--backward-tiles", options.backward_tiles)
    if direction in ("backward", "both"):
        if backward_tiles is None and arch is not None:
            backward_tiles = default_backward_tiles(name, problem, precision, arch)
        refuse_backward(name, problem, precision, backward_tiles, arch if device.kind == "gpu" else None)
    probes, trace = _probes(options), _trace(options)
    is_watched = can_be_watched(name, precision.fp8) and tiles is not None
    if "tiles" in probes and is_watched:
        require_choice(trace, problem, tiles)
    if "schedule" in probes and is_watched:
        require_possible(problem, tiles)
    return RunRequest(
        kernel=name,
        problem=problem,
        precision=precision,
        tiles=tiles,
        direction=direction,
        backward_tiles=backward_tiles,
        device=device.id,
        compile_for=compile_for,
        probes=probes,
        seed=options.seed or 0,
        inputs="own" if own is not None else options.inputs or "normal",
        own=own,
        trace=trace,
    )
