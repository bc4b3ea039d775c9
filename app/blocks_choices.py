"""What can be asked of the Blocks page: from its fields to a grid of tiles, or to one sentence. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from app import form_check
from kernels.architecture import ARCHITECTURES
from kernels.problem import DTYPES, HEAD_DIMS, LOOP_ORDERS, NUM_STAGES, WARP_COUNTS, Precision
from kernels.registry import OUR_VERSIONS, VERSIONS, precision_for
from profiling.feasibility import Grid, Place
from profiling.record_types import first_sentence
from profiling.records import RunRequest

GPUS = {f"sm_{number} · {arch.example.split(', ')[-1]}": number for number, arch in ARCHITECTURES.items()}
"""GPUs to compile for by how a field and the address name them, and their compute capability."""
KERNELS = tuple(name for name in OUR_VERSIONS if VERSIONS[name].has_tiles)
ALL = "all"
DEFAULTS: dict[str, str | bool | list[str]] = {
    "b_kernel": "v2",
    "b_gpu": "sm_90 · H200",
    "b_tokens": "4096",
    "b_head_dim": "128",
    "b_causal": False,
    "b_fp8": False,
    "b_warps": [],
    "b_stages": [],
    "b_rows": ALL,
    "b_columns": ALL,
    "b_heads": "16",
    "b_dtype": "bf16",
    "b_loop": "query",
}
OPTIONS: dict[str, tuple[str, ...]] = {
    "b_kernel": KERNELS,
    "b_gpu": tuple(GPUS),
    "b_head_dim": tuple(map(str, HEAD_DIMS)),
    "b_warps": tuple(map(str, WARP_COUNTS)),
    "b_stages": tuple(map(str, NUM_STAGES)),
    "b_dtype": DTYPES,
    "b_loop": LOOP_ORDERS,
}
"""What a field can hold; those that are not here take any text, and check() says what is wrong with it."""
MORE = ("b_rows", "b_columns", "b_heads", "b_dtype", "b_loop")
"""The fields that stand behind the button."""


@dataclass(frozen=True)
class Checked:
    """The fields, judged: a grid to compile, or the sentence that says why there is none."""

    grid: Grid | None = None
    sentence: str = ""


def check(values: dict[str, str | bool | list[str]]) -> Checked:
    """Judge the page's fields."""
    kernel = str(values["b_kernel"])
    fp8 = bool(values["b_fp8"]) and why_no_fp8(kernel) is None  # out of reach, the switch keeps its place and does nothing
    try:
        problem = form_check.problem_of(
            {
                "seq_len": str(values["b_tokens"]),
                "seq_len_kv": "same",
                "head_dim": str(values["b_head_dim"]),
                "num_heads": str(values["b_heads"]),
                "num_kv_heads": str(values["b_heads"]),
                "batch": "1",
                "causal": bool(values["b_causal"]),
            }
        )
        return Checked(
            Grid(
                kernel=kernel,
                problem=problem,
                precision=precision_for(kernel, Precision(dtype=values["b_dtype"], fp8=fp8)),
                capability=GPUS[str(values["b_gpu"])],
                block_m=_sizes("BLOCK_M", str(values["b_rows"])),
                block_n=_sizes("BLOCK_N", str(values["b_columns"])),
                num_warps=tuple(sorted(map(int, values["b_warps"]))),
                num_stages=tuple(sorted(map(int, values["b_stages"]))),
                loop_order=values["b_loop"] if VERSIONS[kernel].has_loop_order else "query",
            )
        )
    except ValidationError as error:
        return Checked(sentence=first_sentence(error))
    except ValueError as error:
        return Checked(sentence=str(error))


def why_no_fp8(kernel: str) -> str | None:
    """Why FP8 is out of reach for a version, or None where it has it."""
    if VERSIONS[kernel].has_fp8:
        return None
    having = [name for name in OUR_VERSIONS if VERSIONS[name].has_fp8]
    return f"{kernel} has no FP8: only {' and '.join(having)} have it."


def _sizes(name: str, text: str) -> tuple[int, ...]:
    """Whole numbers between spaces or commas, each once, in order; none for 'all'."""
    if text.strip().lower() in ("", ALL):
        return ()
    found = text.replace(",", " ").split()
    wrong = next((one for one in found if not (one.isascii() and one.isdigit() and len(one) < 6)), None)
    if wrong is not None:
        raise ValueError(f"{name} = {wrong[:40]} is not possible: it must be all, or whole numbers such as 32 64 128.")
    return tuple(sorted(set(map(int, found))))


def like(request: RunRequest, capability: int) -> dict[str, str | bool | list[str]]:
    """The page's fields for what a request ran, its tiles' warps and stages chosen."""
    problem, tiles = request.problem, request.tiles
    return DEFAULTS | {
        "b_kernel": request.kernel,
        "b_gpu": next(name for name, number in GPUS.items() if number == capability),
        "b_tokens": str(problem.seq_len_q),
        "b_head_dim": str(problem.head_dim),
        "b_causal": problem.causal,
        "b_fp8": request.precision.fp8,
        "b_heads": str(problem.num_heads),
        "b_dtype": request.precision.dtype,
        "b_warps": [] if tiles is None or VERSIONS[request.kernel].deals_blocks else [str(tiles.num_warps)],
        "b_stages": [] if tiles is None else [str(tiles.num_stages)],
        "b_loop": tiles.loop_order if tiles is not None else "query",
    }


def run_form(grid: Grid, place: Place) -> dict[str, str | bool]:
    """The Run page's form for a cell, as far as the page here decides it."""
    problem = grid.problem
    return {
        "kernel": grid.kernel,
        "seq_len": str(problem.seq_len_q),
        "seq_len_kv": "same",
        "head_dim": str(problem.head_dim),
        "num_heads": str(problem.num_heads),
        "num_kv_heads": str(problem.num_kv_heads),
        "batch": "1",
        "causal": problem.causal,
        "dtype": grid.precision.dtype,
        "fp8": grid.precision.fp8,
        "loop_order": grid.loop_order,
        "block_m": str(place.block_m),
        "block_n": str(place.block_n),
        "num_warps": str(place.num_warps),
        "num_stages": str(place.num_stages),
    }
