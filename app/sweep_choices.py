"""What can be asked of the Sweep page: from its fields to a plan, or to one sentence. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from app import form_check
from kernels.problem import BLOCK_M_SIZES, BLOCK_SIZES, HEAD_DIMS, NUM_STAGES, WARP_COUNTS, Precision, listed
from kernels.registry import OUR_VERSIONS, VERSIONS
from profiling import words
from profiling.record_types import first_sentence
from profiling.records import DeviceFacts
from profiling.sweep_record import SweepCell, SweepPlan, problems_of

Value = str | list[str]

KERNELS = tuple(name for name in OUR_VERSIONS if VERSIONS[name].has_tiles)
MASKS = {"full": (False,), "causal": (True,), "both": (False, True)}
FORMATS = ("bf16", "fp16", "FP8")
GRID, BUDGET = "every combination", "a budgeted search"
DEFAULTS: dict[str, Value] = {
    "s_kernels": ["v2"],
    "s_head_dim": "128",
    "s_tokens": "4096 16384",
    "s_mask": "full",
    "s_formats": ["bf16"],
    "s_rows": ["64", "128"],
    "s_columns": ["32", "64", "128"],
    "s_warps": ["4", "8"],
    "s_stages": ["2", "3", "4"],
    "s_search": GRID,
    "s_budget": "30",
    "s_finalists": "5",
    "s_heads": "16",
    "s_kv_heads": "same",
    "s_batch": "1",
}
TINY: dict[str, Value] = {
    "s_head_dim": "32",
    "s_tokens": "64",
    "s_heads": "1",
    "s_rows": ["16", "32"],
    "s_columns": ["16", "32"],
    "s_warps": ["4"],
    "s_stages": ["2"],
}
"""What the interpreter sweeps within a minute; the other fields as usual."""
OPTIONS: dict[str, tuple[str, ...]] = {
    "s_kernels": KERNELS,
    "s_head_dim": tuple(map(str, HEAD_DIMS)),
    "s_mask": tuple(MASKS),
    "s_formats": FORMATS,
    "s_rows": tuple(map(str, BLOCK_M_SIZES)),
    "s_columns": tuple(map(str, BLOCK_SIZES)),
    "s_warps": tuple(map(str, WARP_COUNTS)),
    "s_stages": tuple(map(str, NUM_STAGES)),
    "s_search": (GRID, BUDGET),
}
"""What a field can hold; those that are not here take any text, and check() says what is wrong with it."""
MORE = ("s_heads", "s_kv_heads", "s_batch", "s_finalists")
"""The fields that stand behind the button."""
_NAMES = {
    "s_kernels": "version", "s_formats": "format", "s_rows": "BLOCK_M", "s_columns": "BLOCK_N", "s_warps": "num_warps",
    "s_stages": "num_stages",
}  # fmt: skip


@dataclass(frozen=True)
class Checked:
    """The fields, judged: a plan that can be swept, or the sentence that says why there is none."""

    plan: SweepPlan | None = None
    sentence: str = ""


def check(values: dict[str, Value], devices: Sequence[DeviceFacts]) -> Checked:
    """Judge the page's fields for the devices that are to share the cells: all of one model, or the interpreter."""
    try:
        return Checked(_plan(values, devices))
    except ValidationError as error:
        return Checked(sentence=first_sentence(error))
    except ValueError as error:
        return Checked(sentence=str(error))


def _plan(values: dict[str, Value], devices: Sequence[DeviceFacts]) -> SweepPlan:
    for name, said in _NAMES.items():
        if not values[name]:
            raise ValueError(f"{said}: none is chosen. It can be {listed(OPTIONS[name])}, or several.")
    heads = _whole("num_heads", values["s_heads"])
    is_same = str(values["s_kv_heads"]).strip().lower() in ("same", "")
    kv_heads = heads if is_same else _whole("num_kv_heads", values["s_kv_heads"])
    is_searched = values["s_search"] == BUDGET
    if is_searched and any(device.kind == "interpreter" for device in devices):
        raise ValueError("A budgeted search is not possible in the interpreter: it has no times to go by.")
    return SweepPlan(
        kernels=tuple(values["s_kernels"]),
        problems=problems_of(
            lengths(str(values["s_tokens"])), MASKS[str(values["s_mask"])], (int(str(values["s_head_dim"])),), heads, kv_heads,
            _whole("batch", values["s_batch"]),
        ),
        precisions=tuple(_precision(name, values["s_kernels"]) for name in FORMATS if name in values["s_formats"]),
        block_m=_numbers(values["s_rows"]),
        block_n=_numbers(values["s_columns"]),
        num_warps=_numbers(values["s_warps"]),
        num_stages=_numbers(values["s_stages"]),
        budget=_whole("budget", values["s_budget"]) if is_searched else None,
        finalists=_whole("finalists", values["s_finalists"]),
        devices=tuple(device.id for device in devices),
    )  # fmt: skip


def _precision(name: str, kernels: Sequence[str]) -> Precision:
    """FP8's scales are those that all chosen versions have: v3-hopper has one for a block of 64 tokens alone."""
    if name != "FP8":
        return Precision(dtype=name)
    return Precision(fp8=True, fp8_scale="block" if "v3-hopper" in kernels else "token")


def _numbers(chosen: Value) -> tuple[int, ...]:
    return tuple(sorted(map(int, chosen)))


def lengths(text: str) -> tuple[int, ...]:
    """Sequence lengths between spaces or commas, each once, in order; '16k' is 16,384. Raises ValueError for what is none."""
    found = text.replace(",", " ").split()
    if not found:
        raise ValueError("seq_len: none is given. It can be whole numbers such as 4096 16k.")
    return tuple(sorted({_length(one) for one in found}))


def _length(text: str) -> int:
    digits, factor = (text[:-1], 1024) if text[-1:].lower() == "k" else (text, 1)
    if not (digits.isascii() and digits.isdigit() and len(digits) < 9):
        raise ValueError(f"seq_len = {text[:40]} is not possible: it must be whole numbers such as 4096 16k.")
    return int(digits) * factor


def _whole(name: str, value: Value) -> int:
    text = str(value).strip()
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise ValueError(f"{name} = {text[:40] or 'nothing'} is not possible: it must be a whole number.")
    return int(text)


def chosen_devices(name: str | None, devices: Sequence[DeviceFacts]) -> tuple[DeviceFacts, ...]:
    """Those of a name among device_names, the first one's where it is none of them."""
    names = device_names(devices)
    return names.get(name or "") or next(iter(names.values()), ())


def device_names(devices: Sequence[DeviceFacts]) -> dict[str, tuple[DeviceFacts, ...]]:
    """What cells can be shared out to: each device, and first all GPUs of a model where there are several."""
    found: dict[str, tuple[DeviceFacts, ...]] = {}
    for model in dict.fromkeys(device.name for device in devices if device.kind == "gpu"):
        alike = tuple(device for device in devices if device.name == model)
        if len(alike) > 1:
            found[f"{len(alike)} × {alike[0].short_name.split(' · ')[0]}"] = alike
    return found | {device.short_name: (device,) for device in devices}


def interpreter_seconds(cells: Sequence[SweepCell], tile_ms: float | None) -> float:
    """How long the interpreter will take for these cells, one after the other; see form_check.interpreter_seconds."""
    each = tile_ms or form_check.CAUTIOUS_TILE_MS
    return sum(form_check.interpreter_seconds(cell.request, each) for cell in cells)


def too_long(cells: Sequence[SweepCell], tile_ms: float | None) -> str:
    """Why these cells are too much for the interpreter, or nothing: none may take longer there than a run may."""
    each = tile_ms or form_check.CAUTIOUS_TILE_MS
    longest = max(cells, key=lambda cell: form_check.interpreter_seconds(cell.request, each), default=None)
    if longest is None:
        return ""
    took, length = form_check.interpreter_seconds(longest.request, each), longest.request.problem.seq_len_q
    if took <= form_check.INTERPRETER_LIMIT_S:
        return ""
    return (
        f"seq_len = {length:,} would take about {words.seconds(took)} a cell in the interpreter: shorten the problem to stay "
        f"under {form_check.INTERPRETER_LIMIT_S:.0f} s, or sweep on a GPU."
    )


def like(plan: SweepPlan) -> dict[str, Value]:
    """The page's fields for a plan, as far as they can say it."""
    problem, precisions = plan.problems[0], plan.precisions
    masks = tuple(sorted({one.causal for one in plan.problems}))
    formats = ["FP8" if one.fp8 else one.dtype for one in precisions]
    return DEFAULTS | {
        "s_kernels": list(plan.kernels),
        "s_head_dim": str(problem.head_dim),
        "s_tokens": " ".join(str(one) for one in sorted({problem.seq_len_q for problem in plan.problems})),
        "s_mask": next(name for name, found in MASKS.items() if found == masks),
        "s_formats": [name for name in FORMATS if name in formats],
        "s_rows": list(map(str, plan.block_m)),
        "s_columns": list(map(str, plan.block_n)),
        "s_warps": list(map(str, plan.num_warps)),
        "s_stages": list(map(str, plan.num_stages)),
        "s_search": GRID if plan.budget is None else BUDGET,
        "s_budget": str(plan.budget or DEFAULTS["s_budget"]),
        "s_finalists": str(plan.finalists),
        "s_heads": str(problem.num_heads),
        "s_kv_heads": "same" if problem.num_kv_heads == problem.num_heads else str(problem.num_kv_heads),
        "s_batch": str(problem.batch),
    }
