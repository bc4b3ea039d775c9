"""What can be watched: from the page's fields to the request that traces it, and whether a measurement is that. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from kernels.problem import AttentionProblem, Precision, TileConfig
from profiling.records import INTERPRETER, Measurement, RunRequest
from profiling.trace_record import TraceChoice

VERSIONS = ("v1", "v1 key-outer", "v2", "v3", "v3 FP8")
ALONE = "nothing"
LAST = "last"
TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
HEAD_DIMS = (32, 64, 128)
TILE_SIZES = (32, 64, 128)
HEADS = 2
DEFAULTS: dict[str, str | bool] = {
    "version": "v2",
    "beside": ALONE,
    "tokens": "256",
    "dim": "64",
    "tile_m": "32",
    "tile_n": "32",
    "is_causal": True,
    "head": "0",
    "query_block": LAST,
}
OPTIONS: dict[str, tuple[str, ...]] = {
    "version": VERSIONS,
    "beside": (ALONE, *VERSIONS),
    "tokens": tuple(map(str, TOKENS)),
    "dim": tuple(map(str, HEAD_DIMS)),
    "tile_m": tuple(map(str, TILE_SIZES)),
    "tile_n": tuple(map(str, TILE_SIZES)),
    "head": tuple(map(str, range(HEADS))),
}


@dataclass(frozen=True)
class Choices:
    """The page's fields, as numbers. beside None: one version alone; query_block None: the last one."""

    version: str
    beside: str | None
    tokens: int
    dim: int
    tile_m: int
    tile_n: int
    causal: bool
    head: int
    query_block: int | None

    @staticmethod
    def of(values: dict[str, str | bool]) -> Choices:
        """The fields as the page has them; a query block past the end is the last one."""
        tokens, tile_m = int(values["tokens"]), int(values["tile_m"])
        block = str(values["query_block"])
        chosen = int(block) if block.isdigit() and len(block) < 9 else None
        beside = str(values["beside"])
        return Choices(
            version=str(values["version"]),
            beside=None if beside in (ALONE, values["version"]) else beside,
            tokens=tokens,
            dim=int(values["dim"]),
            tile_m=tile_m,
            tile_n=int(values["tile_n"]),
            causal=bool(values["is_causal"]),
            head=int(values["head"]),
            query_block=chosen if chosen is not None and chosen < math.ceil(tokens / tile_m) - 1 else None,
        )

    @property
    def query_blocks(self) -> int:
        """How many query blocks a head has."""
        return math.ceil(self.tokens / self.tile_m)

    def requests(self, device: str = INTERPRETER) -> tuple[RunRequest, ...]:
        """One request for each version to be watched."""
        return tuple(self._request(version, device) for version in (self.version, self.beside) if version is not None)

    def _request(self, version: str, device: str) -> RunRequest:
        problem = AttentionProblem(
            num_heads=HEADS, num_kv_heads=HEADS, seq_len_q=self.tokens, seq_len_kv=self.tokens, head_dim=self.dim,
            causal=self.causal,
        )  # fmt: skip
        kernel, _, variant = version.partition(" ")
        tiles = TileConfig(
            block_m=self.tile_m, block_n=self.tile_n, num_warps=4, num_stages=2,
            loop_order="key" if variant == "key-outer" else "query",
        )  # fmt: skip
        return RunRequest(
            kernel=kernel, problem=problem, precision=Precision(fp8=variant == "FP8"), tiles=tiles, device=device,
            probes=("accuracy", "tiles"), trace=TraceChoice(head=self.head, query_block=self.query_block),
        )  # fmt: skip


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
    problem, tiles, version = measurement.request.problem, measurement.tiles, measurement.label
    tile_m, tile_n = (_nearest(size, TILE_SIZES) for size in ((tiles.block_m, tiles.block_n) if tiles else TILE_SIZES[:2]))
    lengths = [length for length in TOKENS if length <= min(longest, problem.seq_len_q, 8 * max(tile_m, tile_n))]
    return {
        **DEFAULTS,
        "version": version if version in VERSIONS else str(DEFAULTS["version"]),
        "tokens": str(max(lengths, default=TOKENS[0])),
        "dim": str(_nearest(problem.head_dim, HEAD_DIMS)),
        "tile_m": str(tile_m),
        "tile_n": str(tile_n),
        "is_causal": problem.causal,
    }


def can_be_watched(measurement: Measurement) -> bool:
    """Whether its version is one of those that can be traced."""
    return measurement.error is None and measurement.label in VERSIONS


def _nearest(value: int, allowed: tuple[int, ...]) -> int:
    return min(allowed, key=lambda one: abs(one - value))
