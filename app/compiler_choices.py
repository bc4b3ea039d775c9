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
from kernels.registry import OUR_VERSIONS, VERSIONS, Refused, default_tiles, precision_for, refuse
from profiling.compiler_process import Question
from profiling.record_types import first_sentence
from profiling.records import Measurement, RunRequest

SIDES = ("c_", "d_")
AUTO = "auto"
TOKENS, HEADS = 4096, 16
FIELDS: dict[str, str | bool] = {
    "kernel": "v2",
    "gpu": "sm_90",
    "head_dim": "128",
    "causal": True,
    "format": "bf16",
    "block_m": AUTO,
    "block_n": AUTO,
    "num_warps": AUTO,
    "num_stages": AUTO,
    "loop_order": "query",
}
OPTIONS: dict[str, tuple[str, ...]] = {
    "kernel": tuple(name for name in OUR_VERSIONS if VERSIONS[name].has_tiles),
    "gpu": tuple(f"sm_{capability}" for capability in ARCHITECTURES),
    "head_dim": tuple(map(str, HEAD_DIMS)),
    "format": ("bf16", "fp16", "FP8"),
    "block_m": (AUTO, *map(str, BLOCK_M_SIZES)),
    "block_n": (AUTO, *map(str, BLOCK_SIZES)),
    "num_warps": (AUTO, *map(str, WARP_COUNTS)),
    "num_stages": (AUTO, *map(str, NUM_STAGES)),
    "loop_order": ("query", "key"),
}
TILE_FIELDS = ("block_m", "block_n", "num_warps", "num_stages")
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
        return Checked(sentence=error.sentence, cure=error.cure)


def _question(values: dict[str, str | bool]) -> Question:
    kernel, arch = str(values["kernel"]), architecture(int(str(values["gpu"]).removeprefix("sm_")))
    problem = AttentionProblem(
        num_heads=HEADS, num_kv_heads=HEADS, seq_len_q=TOKENS, seq_len_kv=TOKENS, head_dim=int(str(values["head_dim"])),
        causal=bool(values["causal"]),
    )  # fmt: skip
    is_fp8 = values["format"] == "FP8"
    precision = Precision(dtype="bf16" if is_fp8 else values["format"], fp8=is_fp8)
    if VERSIONS[kernel].has_fp8:
        precision = precision_for(kernel, precision)
    order = values["loop_order"] if VERSIONS[kernel].has_loop_order else "query"
    suggested = default_tiles(kernel, problem, precision, arch, order)
    chosen = {name: int(str(values[name])) for name in TILE_FIELDS if values[name] != AUTO}
    tiles = TileConfig(**{**suggested.model_dump(), **chosen})
    refuse(kernel, problem, precision, tiles, arch)
    return Question(
        request=RunRequest(kernel=kernel, problem=problem, precision=precision, tiles=tiles), capability=arch.capability
    )


def fields_of(request: RunRequest, capability: int) -> dict[str, str | bool]:
    """A side's fields that ask for what a request launches, on a capability; the request names its tiles."""
    tiles = request.tiles
    shown = {name: str(getattr(tiles, name)) for name in TILE_FIELDS} if tiles is not None else {}
    known = max(have for have in ARCHITECTURES if have <= capability)
    return FIELDS | {
        "kernel": request.kernel,
        "gpu": f"sm_{known}",
        "head_dim": str(request.problem.head_dim),
        "causal": request.problem.causal,
        "format": "FP8" if request.precision.fp8 else request.precision.dtype,
        "loop_order": tiles.loop_order if tiles is not None else "query",
        **shown,
    }


def question_of(measurement: Measurement) -> Question | None:
    """What a forward launched, as the page can ask for it; None where a field is missing for something that it launched."""
    capability = _capability(measurement)
    if measurement.request.direction != "forward" or measurement.tiles is None or capability is None:
        return None
    request = measurement.request.model_copy(update={"tiles": measurement.tiles})
    if request.kernel not in OPTIONS["kernel"] or capability < min(ARCHITECTURES):
        return None
    asked = check(fields_of(request, capability)).question
    same = asked is not None and (asked.request.tiles, asked.request.precision) == (request.tiles, request.precision)
    return asked if same else None


def _capability(measurement: Measurement) -> int | None:
    """Of the GPU it ran on; without one, of the GPU that its report is for."""
    return measurement.environment.device.capability or measurement.request.compile_for


def run_form(question: Question) -> dict[str, str | bool]:
    """The Run page's fields for a question, as far as the page here decides them."""
    request = question.request
    return {
        "kernel": request.kernel,
        "head_dim": str(request.problem.head_dim),
        "causal": request.problem.causal,
        "dtype": request.precision.dtype,
        "fp8": request.precision.fp8,
        "loop_order": request.tiles.loop_order,
        **{name: str(getattr(request.tiles, name)) for name in TILE_FIELDS},
    }


def address(request: RunRequest, capability: int, side: str = SIDES[0]) -> dict[str, str]:
    """The query parameters that make the page's first side, or another, ask for this."""
    changed = {name: value for name, value in fields_of(request, capability).items() if value != FIELDS[name]}
    return {f"{side}{name}": str(value).lower() if isinstance(value, bool) else value for name, value in changed.items()}
