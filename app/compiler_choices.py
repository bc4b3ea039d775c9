"""What can be asked of the Compiler page: from its fields to a question, or to one sentence with a cure. Pure.

A side's fields are its letter and a name: c_kernel is the first configuration's version, d_kernel the second's.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from kernels.architecture import ARCHITECTURES, architecture
from kernels.problem import (
    BLOCK_M_SIZES,
    BLOCK_SIZES,
    HEAD_DIMS,
    NUM_STAGES,
    WARP_COUNTS,
    AttentionProblem,
    Precision,
    TileConfig,
)
from kernels.registry import OUR_VERSIONS, VERSIONS, Refused, backward_of, default_backward_tiles, precision_for
from profiling.compile_request import DIRECTIONS, backward_request, forward_request
from profiling.compiler_process import Question
from profiling.kernel_parts import OF_GRADIENTS
from profiling.record_types import first_sentence
from profiling.records import Measurement, RunRequest

SIDES = ("c_", "d_")
AUTO = "auto"
TOKENS, HEADS = 4096, 16
TILE_FIELDS = ("block_m", "block_n", "num_warps", "num_stages")
BACKWARD_TILE_FIELDS = {part: {name: f"{part}_{name}" for name in TILE_FIELDS} for part in OF_GRADIENTS}
"""By a backward's kernel, the field of each size of its tiles: dkdv_block_m, …, dq_num_stages."""
_TILE_OPTIONS = {
    "block_m": (AUTO, *map(str, BLOCK_M_SIZES)),
    "block_n": (AUTO, *map(str, BLOCK_SIZES)),
    "num_warps": (AUTO, *map(str, WARP_COUNTS)),
    "num_stages": (AUTO, *map(str, NUM_STAGES)),
}
FIELDS: dict[str, str | bool] = {
    "kernel": "v2",
    "direction": DIRECTIONS[0],
    "gpu": "sm_90",
    "head_dim": "128",
    "causal": True,
    "format": "bf16",
    **dict.fromkeys(TILE_FIELDS, AUTO),
    "loop_order": "query",
    **{field: AUTO for fields in BACKWARD_TILE_FIELDS.values() for field in fields.values()},
}
OPTIONS: dict[str, tuple[str, ...]] = {
    "kernel": tuple(name for name in OUR_VERSIONS if VERSIONS[name].has_tiles),
    "direction": DIRECTIONS,
    "gpu": tuple(f"sm_{capability}" for capability in ARCHITECTURES),
    "head_dim": tuple(map(str, HEAD_DIMS)),
    "format": ("bf16", "fp16", "FP8"),
    **_TILE_OPTIONS,
    "loop_order": ("query", "key"),
    **{field: _TILE_OPTIONS[name] for fields in BACKWARD_TILE_FIELDS.values() for name, field in fields.items()},
}
GPU_HELP = "; ".join(f"sm_{one.capability}: {one.name} ({one.example})" for one in ARCHITECTURES.values())


@dataclass(frozen=True)
class Checked:
    """One side's fields, judged: the question, or why there is none; cure: tiles that would be possible."""

    question: Question | None = None
    sentence: str = ""
    cure: TileConfig | None = None


def check(values: dict[str, str | bool]) -> Checked:
    """Judge one side's fields, by their names without a letter."""
    try:
        return Checked(_question(values))
    except ValidationError as error:
        return Checked(sentence=first_sentence(error))
    except Refused as error:
        # Of a backward it would not say for which kernel it is.
        return Checked(sentence=error.sentence, cure=error.cure if values["direction"] == "forward" else None)


def _question(values: dict[str, str | bool]) -> Question:
    kernel, arch = str(values["kernel"]), architecture(int(str(values["gpu"]).removeprefix("sm_")))
    problem = _problem(values)
    is_fp8 = values["format"] == "FP8"
    precision = Precision(dtype="bf16" if is_fp8 else values["format"], fp8=is_fp8)
    if VERSIONS[kernel].has_fp8:
        precision = precision_for(kernel, precision)
    if values["direction"] == "backward":
        chosen = [_chosen(values, fields) for fields in BACKWARD_TILE_FIELDS.values()]
        request = backward_request(kernel, problem, precision, arch, None, *chosen)
    else:
        order = values["loop_order"] if VERSIONS[kernel].has_loop_order else "query"
        chosen = _chosen(values, {name: name for name in TILE_FIELDS})
        request = forward_request(kernel, problem, precision, arch, chosen, order)
    return Question(request=request, capability=arch.capability)


def _problem(values: dict[str, str | bool]) -> AttentionProblem:
    return AttentionProblem(
        num_heads=HEADS, num_kv_heads=HEADS, seq_len_q=TOKENS, seq_len_kv=TOKENS, head_dim=int(str(values["head_dim"])),
        causal=bool(values["causal"]),
    )  # fmt: skip


def _chosen(values: dict[str, str | bool], fields: dict[str, str]) -> dict[str, int]:
    """What is not left to the version."""
    return {name: int(str(values[field])) for name, field in fields.items() if values[field] != AUTO}


def has_dq_apart(values: dict[str, str | bool]) -> bool:
    """Whether the backward that is asked for has tiles of its own for dQ."""
    return backward_of(str(values["kernel"]), _problem(values)).dq_apart


def whose_backward(request: RunRequest) -> str | None:
    """The version whose backward another has, for want of one of its own; None: it is its own, or none is asked for."""
    owner = backward_of(request.kernel, request.problem).owner if request.direction == "backward" else None
    return owner if owner != request.kernel else None


def fields_of(request: RunRequest, capability: int) -> dict[str, str | bool]:
    """A side's fields that ask for what a request launches, on a capability; the request names its tiles.

    Of a training step, that is both, they ask for the forward, and have the backward's tiles ready.
    """
    known = max(have for have in ARCHITECTURES if have <= capability)
    is_backward = request.direction == "backward"
    return FIELDS | {
        "kernel": request.kernel,
        "direction": "backward" if is_backward else "forward",
        "gpu": f"sm_{known}",
        "head_dim": str(request.problem.head_dim),
        "causal": request.problem.causal,
        "format": "FP8" if request.precision.fp8 and not is_backward else request.precision.dtype,
        "loop_order": request.tiles.loop_order if request.tiles is not None else "query",
        **_sizes(request.tiles, {name: name for name in TILE_FIELDS}),
        **{
            field: size
            for part, fields in BACKWARD_TILE_FIELDS.items()
            for field, size in _sizes(getattr(request.backward_tiles, part, None), fields).items()
        },
    }


def _sizes(tiles: TileConfig | None, fields: dict[str, str]) -> dict[str, str]:
    return {field: str(getattr(tiles, name)) for name, field in fields.items()} if tiles is not None else {}


def question_of(measurement: Measurement) -> Question | None:
    """What a run launched, of a training step its forward; None where the page has no field for something that it launched."""
    capability, request = _capability(measurement), _launched(measurement)
    if capability is None or capability < min(ARCHITECTURES) or request.kernel not in OPTIONS["kernel"]:
        return None
    asked = check(fields_of(request, capability)).question
    if asked is None:
        return None
    if request.direction == "backward":
        same = asked.request.backward_tiles == request.backward_tiles
    else:
        same = (asked.request.tiles, asked.request.precision) == (request.tiles, request.precision)
    return asked if same else None


def address_of(measurement: Measurement) -> dict[str, str] | None:
    """The page's address for what a run launched; None where it cannot ask for that."""
    asked = question_of(measurement)
    return None if asked is None else address(_launched(measurement), asked.capability)


def _launched(measurement: Measurement) -> RunRequest:
    tiles = {"tiles": measurement.tiles, "backward_tiles": measurement.backward_tiles}
    return measurement.request.model_copy(update=tiles)


def _capability(measurement: Measurement) -> int | None:
    """Of the GPU it ran on; without one, of the GPU that its report is for."""
    return measurement.environment.device.capability or measurement.request.compile_for


def run_form(question: Question) -> dict[str, str | bool]:
    """The Run page's fields for a question, as far as the page here decides them."""
    request, tiles = question.request, question.request.tiles
    return {
        "kernel": request.kernel,
        "direction": request.direction,
        "head_dim": str(request.problem.head_dim),
        "causal": request.problem.causal,
        "dtype": request.precision.dtype,
        "fp8": request.precision.fp8,
        "loop_order": tiles.loop_order if tiles is not None else "query",
        **{name: str(getattr(tiles, name, AUTO)) for name in TILE_FIELDS},
    }


def why_not_run(question: Question) -> str | None:
    """Why the Run page's form cannot ask for this; None where it can."""
    request = question.request
    usual = default_backward_tiles(request.kernel, request.problem, request.precision, architecture(question.capability))
    if request.direction == "forward" or request.backward_tiles == usual:
        return None
    return "The Run page’s backward has its version’s own tiles; on the command line --backward-tiles takes others."


def address(request: RunRequest, capability: int, side: str = SIDES[0]) -> dict[str, str]:
    """The query parameters that make the page's first side, or another, ask for this."""
    changed = {name: value for name, value in fields_of(request, capability).items() if value != FIELDS[name]}
    return {f"{side}{name}": str(value).lower() if isinstance(value, bool) else value for name, value in changed.items()}
