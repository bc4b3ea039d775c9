"""What can be asked of the Schedule page: from its fields to a request, or to one sentence with a cure. Pure.

The fields are the Run page's form under names of their own, as two pages must not share a widget's key, with the order of
blocks and the size of a persistent grid beside them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic import ValidationError

from app import form_check
from app.lanes.payload import Selection
from app.player import choices as watching
from app.player.choices import VERSIONS
from kernels.architecture import architecture
from kernels.block_order import chosen_order, num_query_blocks
from kernels.problem import (
    BLOCK_M_SIZES,
    BLOCK_ORDERS,
    BLOCK_SIZES,
    DTYPES,
    FP8_SCALES,
    HEAD_DIMS,
    NUM_STAGES,
    WARP_COUNTS,
    TileConfig,
)
from kernels.registry import VERSIONS as REGISTRY
from kernels.registry import Refused, refuse
from profiling.record_types import first_sentence
from profiling.records import DeviceFacts, Measurement, RunRequest
from profiling.schedule_record import WHOLE_HEAD
from profiling.what_if import SM_COUNTS, Work

AUTO, SAME, ONE_A_BLOCK, AS_IT_RAN = "auto", "same", "one a block", "as it ran"
FORM_FIELDS = {
    "length": "seq_len",
    "length_kv": "seq_len_kv",
    "width": "head_dim",
    "heads": "num_heads",
    "kv_heads": "num_kv_heads",
    "sequences": "batch",
    "masked": "causal",
    "number": "dtype",
    "scale": "fp8_scale",
    "smoothed": "smooth_k",
    "rows": "block_m",
    "columns": "block_n",
    "warps": "num_warps",
    "stages": "num_stages",
}
"""The page's fields that are fields of the Run page's form, by the name that they have there."""
DEFAULTS: dict[str, str | bool] = {
    "of": "v2",
    "length": "16384",
    "length_kv": SAME,
    "width": "128",
    "heads": "16",
    "kv_heads": SAME,
    "sequences": "1",
    "masked": True,
    "number": "bf16",
    "scale": "token",
    "smoothed": True,
    "rows": AUTO,
    "columns": AUTO,
    "warps": AUTO,
    "stages": AUTO,
    "block_order": "default",
    "num_programs": ONE_A_BLOCK,
    "as_on": "H200 · 132 SMs",
    "at_once": "1",
}
IF_DEFAULTS = dict.fromkeys(("if_order", "if_programs", "if_gpu", "if_rows", "if_columns"), AS_IT_RAN)
GPUS = {
    "H200": 90,
    "H100 PCIe": 90,
    "B200": 100,
    "A100-SXM4-80GB": 80,
    "A10": 86,
    "L4": 89,
    "L40S": 89,
    "RTX A6000": 86,
    "GeForce RTX 3090": 86,
    "GeForce RTX 4090": 89,
    "GeForce RTX 5090": 120,
}
"""GPUs to imagine by name and capability: one for each count of SMs, as more a timetable does not ask of a GPU."""


def gpu_words(gpu: str) -> str:
    """How a field and the address name one of GPUS: a selectbox has its words in the address."""
    return f"{gpu} · {SM_COUNTS[gpu]} SMs"


def gpu_of(words: str) -> str:
    """The name of one of GPUS from its words."""
    return words.partition(" · ")[0]


_SIZES = tuple(map(str, BLOCK_SIZES))
OPTIONS: dict[str, tuple[str, ...]] = {
    "of": VERSIONS,
    "width": tuple(map(str, HEAD_DIMS)),
    "number": DTYPES,
    "scale": FP8_SCALES,
    "rows": (AUTO, *map(str, BLOCK_M_SIZES)),
    "columns": (AUTO, *_SIZES),
    "warps": (AUTO, *map(str, WARP_COUNTS)),
    "stages": (AUTO, *map(str, NUM_STAGES)),
    "block_order": BLOCK_ORDERS,
    "as_on": tuple(map(gpu_words, GPUS)),
    "at_once": ("1", "2", "3", "4"),
    "if_order": (AS_IT_RAN, *(order for order in BLOCK_ORDERS if order != "default")),
    "if_gpu": (AS_IT_RAN, *map(gpu_words, GPUS)),
    "if_rows": (AS_IT_RAN, *map(str, BLOCK_M_SIZES)),
    "if_columns": (AS_IT_RAN, *_SIZES),
}
"""What a field can hold; those that are not here take any text, and check() says what is wrong with it."""


@dataclass(frozen=True)
class Checked:
    """The fields, judged. request None: errors says why, by the field that has to change; cure: tiles that would work."""

    request: RunRequest | None = None
    errors: tuple[tuple[str, str], ...] = ()
    cure: TileConfig | None = None

    @property
    def sentence(self) -> str:
        """The first reason why it cannot be."""
        return self.errors[0][1] if self.errors else ""


def check(values: dict[str, str | bool], device: DeviceFacts) -> Checked:
    """Judge the page's fields for a GPU, which may be one that is only imagined."""
    form = form_values(values)
    without_fp8 = form_check.fp8_reason(str(form["kernel"]), device) if form["fp8"] else None
    if without_fp8 is not None:
        return Checked(errors=(("of", f"{values['of']} is not possible here: {without_fp8}"),))
    found = form_check.check(form, device, device.capability or 90)
    if found.request is None or found.request.tiles is None:
        return Checked(errors=tuple((_field_of(name), sentence) for name, sentence in found.errors.items()), cure=found.cure)
    request = found.request
    try:
        tiles = TileConfig(**{**request.tiles.model_dump(), **_grid(values)})
        refuse(request.kernel, request.problem, request.precision, tiles, architecture(device.capability or 90))
        found = request.model_copy(update={"tiles": tiles, "probes": ("accuracy", "schedule")})
        work_of(found)
    except ValidationError as error:
        return Checked(errors=(("num_programs", first_sentence(error)),))
    except Refused as error:
        return Checked(errors=(("num_programs", error.sentence),), cure=error.cure)
    except ValueError as error:
        return Checked(errors=(("num_programs", str(error)),))
    return Checked(found)


def form_values(values: dict[str, str | bool]) -> dict[str, str | bool]:
    """The Run page's form for the same problem and tiles."""
    version, _, variant = str(values["of"]).partition(" ")
    found = {form: values[name] for name, form in FORM_FIELDS.items()}
    if str(values["kv_heads"]).strip().lower() in (SAME, ""):
        found["num_kv_heads"] = values["heads"]
    return {
        **found,
        "kernel": version,
        "fp8": variant == "FP8",
        "loop_order": "key" if variant == "key-outer" else "query",
    }


def like(request: RunRequest, tiles: TileConfig | None, label: str) -> dict[str, str | bool]:
    """The fields that ask for what a request ran, in the tiles that it had; label: which of VERSIONS it was."""
    problem, precision = request.problem, request.precision
    fields = {
        **DEFAULTS,
        "of": label,
        "length": str(problem.seq_len_q),
        "length_kv": SAME if problem.seq_len_kv == problem.seq_len_q else str(problem.seq_len_kv),
        "width": str(problem.head_dim),
        "heads": str(problem.num_heads),
        "kv_heads": SAME if problem.num_kv_heads == problem.num_heads else str(problem.num_kv_heads),
        "sequences": str(problem.batch),
        "masked": problem.causal,
        "number": precision.dtype,
        "scale": precision.fp8_scale,
        "smoothed": precision.smooth_k,
    }
    if tiles is None:
        return fields
    return fields | {
        "rows": str(tiles.block_m),
        "columns": str(tiles.block_n),
        "warps": str(tiles.num_warps),
        "stages": str(tiles.num_stages),
        "block_order": tiles.block_order,
        "num_programs": ONE_A_BLOCK if tiles.num_programs is None else str(tiles.num_programs),
    }


def to_watch(request: RunRequest, label: str, selected: Selection, longest: int) -> dict[str, str | bool]:
    """The Softmax page's fields for a piece of work; of a problem longer than that, the like of it in a shorter one."""
    problem, tiles, precision = request.problem, request.tiles, request.precision
    tile_m, tile_n = (_nearest(size, watching.TILE_SIZES) for size in (tiles.block_m, tiles.block_n))
    fields = {
        **watching.DEFAULTS,
        "version": label,
        "tile_m": str(tile_m),
        "tile_n": str(tile_n),
        "dim": str(problem.head_dim),
        "is_causal": problem.causal,
        "number_format": precision.dtype,
        "fp8_scales": precision.fp8_scale,
        "smooth": precision.smooth_k,
    }
    blocks = num_query_blocks(problem, tiles)
    if max(problem.seq_len_q, problem.seq_len_kv) > longest:
        tokens = min(longest, max(problem.seq_len_q, problem.seq_len_kv))
        place = math.floor(max(selected.block, 0) / blocks * math.ceil(tokens / tile_m))
        return fields | {"tokens": str(tokens), "query_block": _block_field(selected, place)}
    return fields | {
        "tokens": str(problem.seq_len_q),
        "key_tokens": SAME if problem.seq_len_kv == problem.seq_len_q else str(problem.seq_len_kv),
        "query_heads": str(problem.num_heads),
        "key_heads": SAME if problem.num_kv_heads == problem.num_heads else str(problem.num_kv_heads),
        "batches": str(problem.batch),
        "head": str(selected.head % problem.num_heads),
        "entry": str(selected.head // problem.num_heads),
        "query_block": _block_field(selected, min(selected.block, blocks - 1)),
    }


def _nearest(size: int, sizes: tuple[int, ...]) -> int:
    return min(sizes, key=lambda one: abs(one - size))


def _block_field(selected: Selection, place: int) -> str:
    return watching.LAST if selected.block == WHOLE_HEAD else str(place)


def is_where_it_ran(schedule: RunRequest, trace: RunRequest) -> bool:
    """Whether a schedule is of the problem, the version and the tiles of a trace; warps and the order may differ."""
    same = same_problem(schedule, trace)
    sizes = [(one.tiles.block_m, one.tiles.block_n, one.tiles.loop_order) for one in (schedule, trace) if one.tiles is not None]
    return same and len(sizes) == 2 and sizes[0] == sizes[1]


def can_be_stamped(measurement: Measurement) -> bool:
    """Whether its version is one whose programs can say where they ran."""
    return measurement.error is None and measurement.label in VERSIONS


def has_orders(version: str) -> bool:
    """Whether the order of blocks and a persistent grid can be chosen for a version of this page."""
    return REGISTRY[version.partition(" ")[0]].has_block_order


def why_no_orders(version: str) -> str | None:
    """Why neither can be chosen, None where both can."""
    if has_orders(version):
        return None
    if REGISTRY[version.partition(" ")[0]].deals_blocks:
        return f"{version} deals its blocks out itself, to one program an SM: only v2 and v3 let that be chosen."
    return "v1 starts its programs in natural order: only v2 and v3 choose."


def is_same_launch(one: RunRequest, other: RunRequest) -> bool:
    """Whether two requests come to the same launch, on whichever GPU; a version's own order is one of the others."""
    return same_problem(one, other) and _settled(one) == _settled(other)


def _settled(request: RunRequest) -> TileConfig | None:
    """The tiles, with the order that `default` stands for."""
    if request.tiles is None or not REGISTRY[request.kernel].has_block_order:
        return request.tiles
    return request.tiles.model_copy(update={"block_order": chosen_order(request.problem, request.tiles)})


def same_problem(one: RunRequest, other: RunRequest) -> bool:
    """Whether a version computes the same in both, in whatever tiles."""
    return _what_is_computed(one) == _what_is_computed(other)


def _what_is_computed(request: RunRequest) -> tuple[object, ...]:
    precision = request.precision if request.precision.fp8 else request.precision.dtype
    return request.kernel, request.problem, precision, request.inputs, request.own


def imagined(words: str) -> DeviceFacts:
    """A GPU that is not here, for a model of it, by its words."""
    gpu = gpu_of(words)
    return DeviceFacts(id=f"as if {gpu}", kind="gpu", name=f"NVIDIA {gpu}", capability=GPUS[gpu], sm_count=SM_COUNTS[gpu])


def changed(request: RunRequest, values: dict[str, str]) -> RunRequest:
    """A request as the what-if fields want its tiles. Raises ValueError, in one sentence, for what is not possible."""
    tiles = request.tiles.model_dump()
    if values["if_order"] != AS_IT_RAN:
        tiles["block_order"] = values["if_order"]
    if values["if_programs"] != AS_IT_RAN:
        tiles["num_programs"] = _programs(values["if_programs"])
    for name, field in (("if_rows", "block_m"), ("if_columns", "block_n")):
        if values[name] != AS_IT_RAN:
            tiles[field] = int(values[name])
    try:
        found = request.model_copy(update={"tiles": TileConfig(**tiles)})
    except ValidationError as error:
        raise ValueError(first_sentence(error)) from None
    work_of(found)
    return found


def work_of(request: RunRequest) -> Work:
    """A request as the scheduler's model takes it. Raises ValueError, in one sentence, for what the version cannot do."""
    return Work(request.problem, request.kernel, request.tiles, request.precision)


def _grid(values: dict[str, str | bool]) -> dict[str, object]:
    """The order and the persistent grid, for the versions that have them; a choice out of reach does nothing."""
    if not has_orders(str(values["of"])):
        return {}
    return {"block_order": values["block_order"], "num_programs": _programs(str(values["num_programs"]))}


def _programs(text: str) -> int | None:
    words = text.strip().lower().replace(",", "")
    if words in (ONE_A_BLOCK, ""):
        return None
    if not (words.isascii() and words.isdigit() and len(words) < 9):
        raise ValueError(f"num_programs = {text[:40]} is not possible: it is a whole number, such as 132, or {ONE_A_BLOCK}.")
    return int(words)


def _field_of(form_field: str) -> str:
    return next((name for name, form in FORM_FIELDS.items() if form == form_field), form_field)
