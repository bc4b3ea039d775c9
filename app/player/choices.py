"""What can be watched: from the page's fields to the request that traces it, and whether a measurement is that. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from app import form_check
from kernels.problem import DTYPES, FP8_SCALES, HEAD_DIMS, AttentionProblem, Precision, TileConfig
from kernels.registry import VERSIONS as REGISTRY
from profiling.own_inputs import problem_of
from profiling.record_types import first_sentence
from profiling.records import INTERPRETER, InputKind, Measurement, OwnInputs, RunRequest
from profiling.trace_record import TraceChoice

VERSIONS = ("v1", "v1 key-outer", "v2", "v3", "v3 FP8", "v3-hopper")
ALONE, LAST, SAME, OWN = "nothing", "last", "same", "own"
TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
HEAD_COUNTS, BATCHES = (1, 2, 4, 8, 16), (1, 2, 4)
MOST = {"seq_len_q": 16_384, "seq_len_kv": 16_384, "num_heads": 64, "batch": 16}
TILE_SIZES = (32, 64, 128)
WHAT_TO_LOOK_FOR: dict[InputKind, str] = {
    "normal": "every number is N(0, 1). Rows find most of their maximum early: α is small in the first tiles, later mostly 1.",
    "peaked": "each query is a copy of one key. Follow a row to that key’s tile: m leaps, α drops to almost 0, l starts anew.",
    "sliding": "the nearer a key, the higher its score. Near the query’s own place, all that was summed before is scaled away.",
    "outliers": "one number in a thousand is ten times larger. With v3 FP8 it makes its whole row or column of S coarse.",
    "steady": "the first key has the highest score of every row. After the first tile α stays 1: nothing is ever rescaled.",
    "ramp": "scores rise from key to key. Every whole tile brings every row a new maximum: α below 1 each time.",
    "own": "your own numbers, rounded to the number format. A link comes without them; a saved snapshot carries them.",
}
DEFAULTS: dict[str, str | bool] = {
    "version": "v2",
    "beside": ALONE,
    "inputs": "normal",
    "tokens": "256",
    "tile_m": "32",
    "tile_n": "32",
    "head": "0",
    "query_block": LAST,
    "is_causal": True,
    "key_tokens": SAME,
    "dim": "64",
    "query_heads": "2",
    "key_heads": SAME,
    "batches": "1",
    "entry": "0",
    "number_format": "bf16",
    "fp8_scales": "token",
    "smooth": True,
}
OPTIONS: dict[str, tuple[str, ...]] = {
    "version": VERSIONS,
    "beside": (ALONE, *VERSIONS),
    "inputs": tuple(WHAT_TO_LOOK_FOR),
    "tile_m": tuple(map(str, TILE_SIZES)),
    "tile_n": tuple(map(str, TILE_SIZES)),
    "dim": tuple(map(str, HEAD_DIMS)),
    "number_format": DTYPES,
    "fp8_scales": FP8_SCALES,
}
"""What a field can hold; the numbers that are not here can be typed, and Choices.of says what is wrong with them."""


@dataclass(frozen=True)
class Choices:
    """What the page's fields ask for. beside None: one version alone."""

    version: str
    beside: str | None
    problem: AttentionProblem
    precision: Precision
    tile_m: int
    tile_n: int
    inputs: InputKind
    own: OwnInputs | None
    trace: TraceChoice

    @staticmethod
    def of(values: dict[str, str | bool], own: OwnInputs | None = None) -> Choices:
        """The fields as the page has them; what there is no more of is the first head, the first entry, the last block.

        Raises ValueError, in one sentence, for a problem that is not possible, and for own inputs that are not there.
        """
        inputs, beside, tile_m = str(values["inputs"]), str(values["beside"]), int(values["tile_m"])
        own = own if inputs == OWN else None
        problem = _problem(values) if inputs != OWN else _own_problem(values, own)
        blocks = math.ceil(problem.seq_len_q / tile_m)
        block = _place(values["query_block"], blocks)
        return Choices(
            version=str(values["version"]),
            beside=None if beside in (ALONE, values["version"]) else beside,
            problem=problem,
            precision=Precision(
                dtype=values["number_format"], fp8=True, fp8_scale=values["fp8_scales"], smooth_k=bool(values["smooth"])
            ),
            tile_m=tile_m,
            tile_n=int(values["tile_n"]),
            inputs=inputs,
            own=own,
            trace=TraceChoice(
                batch_index=_place(values["entry"], problem.batch) or 0,
                head=_place(values["head"], problem.num_heads) or 0,
                query_block=block if block != blocks - 1 else None,
            ),
        )

    @property
    def places(self) -> dict[str, tuple[str, ...]]:
        """What the fields can hold that choose whose tiles are watched."""
        blocks = math.ceil(self.problem.seq_len_q / self.tile_m)
        return {
            "head": tuple(map(str, range(self.problem.num_heads))),
            "entry": tuple(map(str, range(self.problem.batch))),
            "query_block": (LAST, *map(str, range(blocks))),
        }

    def requests(self, device: str = INTERPRETER) -> tuple[RunRequest, ...]:
        """One request for each version to be watched."""
        return tuple(self._request(version, device) for version in (self.version, self.beside) if version is not None)

    def _request(self, version: str, device: str) -> RunRequest:
        kernel, _, variant = version.partition(" ")
        # v3-hopper has four warps for each 64 queries.
        num_warps = max(4, self.tile_m // 16) if REGISTRY[kernel].deals_blocks else 4
        tiles = TileConfig(
            block_m=self.tile_m, block_n=self.tile_n, num_warps=num_warps, num_stages=2,
            loop_order="key" if variant == "key-outer" else "query",
        )  # fmt: skip
        return RunRequest(
            kernel=kernel, problem=self.problem,
            precision=self.precision if variant == "FP8" else Precision(dtype=self.precision.dtype),
            tiles=tiles, device=device, probes=("accuracy", "tiles"), inputs=self.inputs, own=self.own, trace=self.trace,
        )  # fmt: skip


def _problem(values: dict[str, str | bool]) -> AttentionProblem:
    """Raises ValueError, in one sentence; also for what is possible, but more than can be watched."""
    same = str(values["key_heads"]).strip().lower() in (SAME, "")
    form = {
        "seq_len": values["tokens"],
        "seq_len_kv": values["key_tokens"],
        "head_dim": values["dim"],
        "num_heads": values["query_heads"],
        "num_kv_heads": values["query_heads" if same else "key_heads"],
        "batch": values["batches"],
        "causal": bool(values["is_causal"]),
    }
    try:
        problem = form_check.problem_of(form)
    except ValidationError as error:
        raise ValueError(first_sentence(error)) from None
    for name, most in MOST.items():
        if getattr(problem, name) > most:
            raise ValueError(f"{name} = {getattr(problem, name):,} is not possible here: up to {most:,} can be watched.")
    return problem


def _own_problem(values: dict[str, str | bool], own: OwnInputs | None) -> AttentionProblem:
    if own is None:
        raise ValueError("inputs = own is not possible yet: Q, K and V are not there.")
    return problem_of(own, causal=bool(values["is_causal"]))


def _place(value: str | bool, count: int) -> int | None:
    """A place among so many; None for anything else."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 and int(text) < count else None


def fields_of(own: OwnInputs) -> dict[str, str]:
    """The fields that say the shapes of these inputs."""
    problem = problem_of(own, causal=False)
    return {
        "tokens": str(problem.seq_len_q),
        "key_tokens": SAME if problem.seq_len_kv == problem.seq_len_q else str(problem.seq_len_kv),
        "dim": str(problem.head_dim),
        "query_heads": str(problem.num_heads),
        "key_heads": SAME if problem.num_kv_heads == problem.num_heads else str(problem.num_kv_heads),
        "batches": str(problem.batch),
    }


def traced(request: RunRequest, measurements: Iterable[Measurement]) -> Measurement | None:
    """The first of the measurements that holds the trace a request asks for, on whichever device it was made."""
    wanted = _without_device(request)
    return next((one for one in measurements if one.tiles_trace is not None and _without_device(one.request) == wanted), None)


def _without_device(request: RunRequest) -> RunRequest:
    """The request, with the last query block by its number, as far as it decides what is traced."""
    blocks = math.ceil(request.problem.seq_len_q / request.tiles.block_m) if request.tiles else 1
    block = request.trace.query_block
    trace = request.trace.model_copy(update={"query_block": blocks - 1 if block is None else block})
    return request.model_copy(update={"device": INTERPRETER, "compile_for": None, "trace": trace, "probes": ("tiles",)})


def like(measurement: Measurement, longest: int) -> dict[str, str | bool]:
    """The fields that come nearest to a result: its version, tiles and head_dim, at most `longest` tokens and eight tiles."""
    request, tiles, version = measurement.request, measurement.tiles, measurement.label
    tile_m, tile_n = (_nearest(size, TILE_SIZES) for size in ((tiles.block_m, tiles.block_n) if tiles else TILE_SIZES[:2]))
    lengths = [length for length in TOKENS if length <= min(longest, request.problem.seq_len_q, 8 * max(tile_m, tile_n))]
    return {
        **DEFAULTS,
        "version": version if version in VERSIONS else str(DEFAULTS["version"]),
        "inputs": request.inputs if request.inputs != OWN else DEFAULTS["inputs"],
        "tokens": str(max(lengths, default=TOKENS[0])),
        "dim": str(request.problem.head_dim),
        "tile_m": str(tile_m),
        "tile_n": str(tile_n),
        "is_causal": request.problem.causal,
        "number_format": request.precision.dtype,
        "fp8_scales": request.precision.fp8_scale,
        "smooth": request.precision.smooth_k,
    }


def asking_for(measurement: Measurement) -> dict[str, str | bool] | None:
    """The fields that ask for just this trace; None where it has none, or in tiles that the page does not offer."""
    request, tiles, trace = measurement.request, measurement.tiles, measurement.tiles_trace
    if trace is None or tiles is None or measurement.label not in VERSIONS or request.own is not None:
        return None
    problem = request.problem
    fields = {
        **like(measurement, max(TOKENS)),
        "tokens": str(problem.seq_len_q),
        "key_tokens": SAME if problem.seq_len_kv == problem.seq_len_q else str(problem.seq_len_kv),
        "query_heads": str(problem.num_heads),
        "key_heads": SAME if problem.num_kv_heads == problem.num_heads else str(problem.num_kv_heads),
        "batches": str(problem.batch),
        "head": str(trace.head),
        "entry": str(trace.batch_index),
        "query_block": LAST if request.trace.query_block is None else str(trace.query_block),
    }
    try:
        asked = Choices.of(fields).requests()[0]
    except ValueError:
        return None
    return fields if traced(asked, [measurement]) is not None else None


def can_be_watched(measurement: Measurement) -> bool:
    """Whether its version is one of those that can be traced."""
    return measurement.error is None and measurement.label in VERSIONS


def _nearest(value: int, allowed: tuple[int, ...]) -> int:
    return min(allowed, key=lambda one: abs(one - value))
