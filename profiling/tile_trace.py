"""The probe `tiles`: a traced launch of a version, its proof by replay, and the record of both, within bounds set before.

The plan is arithmetic and needs no torch, so that the app can say beforehand what a trace will hold; take() imports torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kernels.problem import AttentionProblem, Precision, TileConfig
from kernels.registry import version
from profiling.fp8_errors import Scales, fp8_errors, tile_scores
from profiling.record_types import Array, Frames, Provenance
from profiling.records import RunRequest
from profiling.replay import Arithmetic, Block, Stored, prove
from profiling.trace_record import Fp8Errors, TileTrace, TraceChoice

if TYPE_CHECKING:
    import torch

    from kernels.kernel import Kernel, Launcher, Operands
    from kernels.trace import TraceBuffers

MOST_TILES = 1024
# Two traces, to be watched in step, fit in one snapshot file.
RECORD_BYTES = 2_200_000
MAP_BYTES = 500_000
_LARGEST_FLOAT16 = 65504.0
_HIDDEN = 255
_ERRORS_A_ROW, _COUNTS_A_TILE = 4, 3  # of profiling.trace_record.Fp8Errors


@dataclass(frozen=True)
class TracePlan:
    """What a trace will hold (modelled). Tiles whose key block is `first` modulo `every` are stored, the last one always.

    visited: key blocks that the query block goes through. element_bytes: 2 for float16, 1 for bytes with a scale.
    with_map: whether the rows that rose fit in the record, for all query blocks. The device holds float32, so that
    device_bytes is at most about seven times RECORD_BYTES; where m may lag, also 12 bytes a row and key block.
    last_first: whether the version goes through the key blocks from the last one down.
    """

    query_block: int
    visited: int
    every: int
    stored: int
    element_bytes: int
    record_bytes: int
    device_bytes: int
    with_map: bool
    last_first: bool = False

    @property
    def first(self) -> int:
        """The lowest key block that is stored."""
        return (self.visited - 1) % self.every if self.visited and not self.last_first else 0

    @property
    def key_blocks(self) -> np.ndarray:
        """(stored,) those that are stored, in the order visited."""
        ascending = self.first + self.every * np.arange(self.stored)
        return ascending[::-1] if self.last_first else ascending


def require_choice(choice: TraceChoice, problem: AttentionProblem, tiles: TileConfig) -> None:
    """Raise ValueError, in one sentence, unless there are such a batch entry, head and query block."""
    sizes = {"batch_index": problem.batch, "head": problem.num_heads, "query_block": _blocks(problem.seq_len_q, tiles.block_m)}
    for name, size in sizes.items():
        value = getattr(choice, name)
        if value is not None and not 0 <= value < size:
            allowed = "0" if size == 1 else f"0 to {size - 1}"
            raise ValueError(f"{name} = {value} is not possible: it can be {allowed} on this problem.")


def plan(request: RunRequest, tiles: TileConfig) -> TracePlan:
    """What the trace of a request will hold, and the bytes it takes. Raises ValueError for a choice that there is not."""
    problem, precision, entry = request.problem, request.precision, version(request.kernel)
    require_choice(request.trace, problem, tiles)
    query_blocks, key_blocks = _blocks(problem.seq_len_q, tiles.block_m), _blocks(problem.seq_len_kv, tiles.block_n)
    query_block = query_blocks - 1 if request.trace.query_block is None else request.trace.query_block
    visited = visited_tiles(request.kernel, problem, tiles, query_block)
    map_bytes = 4 * query_blocks * key_blocks
    with_map = map_bytes <= MAP_BYTES
    map_bytes = map_bytes if with_map else 0
    frame_bytes = 4 * tiles.block_m * (tiles.block_n + 3 + problem.padded_head_dim)
    budget = RECORD_BYTES - map_bytes - _own_bytes(request)
    tile_bytes = {size: _tile_bytes(problem, precision, tiles, size) + _lag_bytes(request, tiles) for size in (2, 1)}
    fit = {size: min(MOST_TILES, budget // tile_bytes[size]) for size in (2, 1)}
    every_nth = {size: max(1, math.ceil(visited / max(1, count))) for size, count in fit.items()}
    element_bytes = 1 if every_nth[1] < every_nth[2] else 2
    every = every_nth[element_bytes]
    stored = math.ceil(visited / every)
    maxima_bytes = 4 * 3 * tiles.block_m * key_blocks if _may_lag(request) else 0
    return TracePlan(
        query_block=query_block, visited=visited, every=every, stored=stored, element_bytes=element_bytes,
        record_bytes=map_bytes + stored * tile_bytes[element_bytes],
        device_bytes=map_bytes + stored * frame_bytes + maxima_bytes, with_map=with_map, last_first=entry.last_first,
    )  # fmt: skip


def visited_tiles(kernel: str, problem: AttentionProblem, tiles: TileConfig, query_block: int) -> int:
    """How many key blocks a version goes through for a query block: all, or those of which a row sees something."""
    end = problem.seq_len_kv
    if problem.causal and not version(kernel).visits_hidden:
        last_row = min((query_block + 1) * tiles.block_m, problem.seq_len_q) - 1
        end = min(end, max(last_row + problem.seq_len_kv - problem.seq_len_q + 1, 1 if version(kernel).visits_one else 0))
    return _blocks(end, tiles.block_n)


def _may_lag(request: RunRequest) -> bool:
    return version(request.kernel).lag_log2 > 0 and not request.precision.fp8


def _lag_bytes(request: RunRequest, tiles: TileConfig) -> int:
    """What of a tile is kept only where m may lag: its rows' own maxima, and which were multiplied."""
    return 5 * tiles.block_m if _may_lag(request) else 0


def _own_bytes(request: RunRequest) -> int:
    """What a user's own Q, K and V take in the record, beside the trace."""
    own = request.own
    return 0 if own is None else 4 * sum(math.prod(array.shape) for array in (own.q, own.k, own.v))


def _blocks(length: int, block: int) -> int:
    return -(-length // block)


def _tile_bytes(problem: AttentionProblem, precision: Precision, tiles: TileConfig, element_bytes: int) -> int:
    score_arrays = 2 if precision.fp8 else 1
    elements = tiles.block_m * (score_arrays * tiles.block_n + problem.head_dim)
    fp8_bytes = 4 * (tiles.block_n + _ERRORS_A_ROW * tiles.block_m + _COUNTS_A_TILE) if precision.fp8 else 0
    return element_bytes * elements + 4 * 3 * tiles.block_m + 4 + fp8_bytes


# The launch and the record


@dataclass(frozen=True)
class Subject:
    """What is traced: a loaded version with the operands it reads, and the inputs they were made of."""

    request: RunRequest
    tiles: TileConfig
    kernel: Kernel
    launch: Launcher
    operands: Operands
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def output_rows(out: torch.Tensor, request: RunRequest, tiles: TileConfig) -> np.ndarray:
    """The chosen block's rows of an output, float32: what the last frame will be compared with."""
    query_block = plan(request, tiles).query_block
    first = query_block * tiles.block_m
    rows = out[request.trace.batch_index, request.trace.head, first : first + tiles.block_m]
    return rows.float().cpu().numpy()


def take(subject: Subject, output: np.ndarray, provenance: Provenance) -> TileTrace:
    """Launch the traced variant once, replay its tiles, and make the record. output is output_rows() of a plain launch."""
    from kernels.trace import TraceBuffers

    request, tiles, choice = subject.request, subject.tiles, subject.request.trace
    planned = plan(request, tiles)
    buffers = TraceBuffers.on(
        subject.operands.q.device, request.problem, tiles, batch_index=choice.batch_index, head=choice.head,
        query_block=planned.query_block, stored=planned.stored, every=planned.every, first=planned.first,
        with_rises=planned.with_map, with_maxima=_may_lag(request),
    )  # fmt: skip
    num_stages = launch_traced(subject, buffers)
    record = _record(subject, planned, buffers, output, provenance)
    if num_stages == tiles.num_stages:
        return record
    why = f"the traced variant has {num_stages} instead of {tiles.num_stages}: storing takes the shared memory of the others."
    return record.model_copy(update={"missing": {**record.missing, "num_stages": why}})


def launch_traced(subject: Subject, buffers: TraceBuffers) -> int:
    """Launch the traced variant; the stages it ran with.

    Storing takes shared memory, which large tiles do not leave. Then fewer loads are in flight; what is computed is the same.
    Raises Triton's OutOfResources where it does not fit with one stage either.
    """
    from triton.runtime.errors import OutOfResources

    for num_stages in range(subject.tiles.num_stages, 1, -1):
        tiles = subject.tiles.model_copy(update={"num_stages": num_stages})
        try:
            subject.kernel.forward(subject.operands, subject.request.problem, tiles, subject.launch, trace=buffers)
        except OutOfResources:
            continue
        return num_stages
    tiles = subject.tiles.model_copy(update={"num_stages": 1})
    subject.kernel.forward(subject.operands, subject.request.problem, tiles, subject.launch, trace=buffers)
    return 1


def _record(
    subject: Subject, planned: TracePlan, buffers: TraceBuffers, output: np.ndarray, provenance: Provenance
) -> TileTrace:
    request, problem = subject.request, subject.request.problem
    frames = subject.kernel.frames(buffers, subject.operands, problem)
    key_blocks = planned.key_blocks
    scores, m, l, alpha, acc = (getattr(frames, name).numpy() for name in ("scores", "m", "l", "alpha", "acc"))  # noqa: E741
    rises = None if frames.rises is None else frames.rises.numpy()
    block = _block(buffers, subject.operands)
    rows = block.q.shape[0]
    stored = Stored(
        key_blocks, scores[:, :rows], m[:, :rows], l[:, :rows], alpha[:, :rows], acc[:, :rows],
        rises=None if rises is None else rises[planned.query_block], output=output,
        maxima=None if frames.maxima is None else frames.maxima.numpy(),
    )  # fmt: skip
    arithmetic = Arithmetic.of(request.kernel, request.precision, provenance)
    fp8 = _Fp8.of(subject, buffers, block, arithmetic, stored, planned.visited) if request.precision.fp8 else None
    limit = _largest(scores) if fp8 is None else max(_largest(scores), _largest(fp8.exact_scores))
    missing = {}
    if rises is None:
        missing["rescaled_rows"] = f"the map of all query blocks would take more than {MAP_BYTES / 1e6:.0f} MB"
    if planned.every > 1:
        missing["tiles"] = (
            f"{planned.visited:,} tiles were visited; within {RECORD_BYTES / 1e6:.0f} MB and {MOST_TILES:,} tiles fit "
            f"{planned.stored:,}: one in {planned.every}, counted back from the last."
        )
    return TileTrace(
        provenance=provenance, batch_index=buffers.batch_index, head=buffers.head, query_block=planned.query_block,
        visited=planned.visited, every=planned.every, key_blocks=Array.of(key_blocks, "<i4"),
        scores=_coded(scores, limit, planned), scores_limit=limit,
        m=Frames.of(m, "<f4"), l=Frames.of(l, "<f4"), alpha=Frames.of(alpha, "<f4"),
        acc=_coded(acc, _largest(acc), planned), acc_limit=_largest(acc), normalised=arithmetic.normalised,
        rescaled_rows=Array.of(np.zeros((0, 0)) if rises is None else rises, "<i4"),
        replay=prove(stored, block, arithmetic, planned.visited),
        exact_scores=None if fp8 is None else _coded(fp8.exact_scores, limit, planned),
        q_scale=None if fp8 is None else Array.of(fp8.q_scale, "<f4"),
        k_scale=None if fp8 is None else Array.of(fp8.k_scale, "<f4"),
        fp8_errors=None if fp8 is None else fp8.errors,
        missing=missing, **_lag(planned, stored, arithmetic),
    )  # fmt: skip


def _lag(planned: TracePlan, stored: Stored, arithmetic: Arithmetic) -> dict[str, object]:
    """What the record says of an m that may lag, at the stored tiles; rows past the last query as those that see nothing."""
    if stored.maxima is None:
        return {}
    if len(stored.maxima) != planned.visited:
        raise RuntimeError(f"the kernel went through {len(stored.maxima):,} key blocks of this block, not {planned.visited:,}")
    places = np.flatnonzero(np.isin(np.array(arithmetic.order(planned.visited)), stored.key_blocks))
    inside = np.arange(stored.maxima.shape[2]) < stored.m.shape[1]
    row_max, multiplied = (stored.maxima[places, part] for part in (1, 2))
    return {
        "lag_log2": arithmetic.lag_log2,
        "row_max": Frames.of(np.where(inside, row_max * np.float32(np.log(2.0)), -np.inf), "<f4"),
        "multiplied": Frames.of(np.where(inside, multiplied, 0), "|u1"),
    }


def _largest(values: np.ndarray) -> float:
    """The largest finite magnitude; 0 where there is none."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def _coded(values: np.ndarray, limit: float, planned: TracePlan) -> Array:
    """float16 where planned and in its range, else bytes: 0 to 254 for -limit to limit, 255 for what has no finite value."""
    if planned.element_bytes == 2 and limit <= _LARGEST_FLOAT16:
        return Frames.of(values, "<f2")
    finite = np.isfinite(values)
    codes = np.round((np.where(finite, values, 0.0) / (limit or 1.0) + 1.0) * 127.0)
    return Frames.of(np.where(finite, codes, _HIDDEN), "|u1")


def _block(buffers: TraceBuffers, operands: Operands) -> Block:
    """The chosen block's operands with their scales, float64, keys in the order of the tokens."""
    q = _float64(operands.q[buffers.batch_index, buffers.head, buffers.rows])
    k = operands.k[buffers.batch_index, buffers.kv_head].cpu()
    v = operands.v[buffers.batch_index, buffers.kv_head].cpu()
    if operands.q_scale is None:
        return Block(
            buffers.problem, buffers.rows.start, q, lambda first, end: (_float64(k[first:end]), _float64(v[first:end]))
        )
    scales, stored_row = _scales(operands, buffers), _stored_rows(k.shape[0])

    def keys(first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        return _float64(k[stored_row[first:end]]) * scales.k[first:end, None], _float64(v[:, first:end]).T * scales.v

    return Block(buffers.problem, buffers.rows.start, q * scales.q[:, None], keys)


def _float64(tensor: torch.Tensor) -> np.ndarray:
    # e4m3 and bf16 become float32 first: NumPy knows neither.
    return tensor.cpu().float().numpy().astype(np.float64)


def _stored_rows(stored_len: int) -> torch.Tensor:
    """In which row of a stored K each token stands."""
    import torch

    from kernels.quantize import tokens_of_rows

    return torch.argsort(tokens_of_rows(torch.arange(stored_len)))


@dataclass(frozen=True)
class _Fp8:
    """What is shown beside quantised scores: the exact ones, as the unquantised inputs give them, the scales, the cost."""

    exact_scores: np.ndarray
    q_scale: np.ndarray
    k_scale: np.ndarray
    errors: Fp8Errors

    @staticmethod
    def of(
        subject: Subject, buffers: TraceBuffers, rounded: Block, arithmetic: Arithmetic, stored: Stored, visited: int
    ) -> _Fp8:
        problem, tiles = buffers.problem, buffers.tiles
        inputs, scales = _inputs(subject, buffers), _scales(subject.operands, buffers)
        rows = inputs.q.shape[0]
        exact = np.full((stored.key_blocks.size, tiles.block_m, tiles.block_n), -np.inf)
        k_scale, q_scale = np.zeros((stored.key_blocks.size, tiles.block_n), np.float32), np.zeros(tiles.block_m, np.float32)
        q_scale[:rows] = scales.q
        for slot, key_block in enumerate(stored.key_blocks):
            first, end = key_block * tiles.block_n, min((key_block + 1) * tiles.block_n, problem.seq_len_kv)
            exact[slot, :rows, : end - first] = tile_scores(inputs, first, inputs.keys(first, end)[0])
            k_scale[slot, : end - first] = scales.k[first:end]
        return _Fp8(exact, q_scale, k_scale, fp8_errors(inputs, rounded, scales, arithmetic, stored, tiles.block_m, visited))


def _inputs(subject: Subject, buffers: TraceBuffers) -> Block:
    """The chosen block before it was quantised, K's mean off where the operands' is: the softmax does not notice."""
    q = _float64(subject.inputs[0][buffers.batch_index, buffers.head, buffers.rows])
    k, v = (tensor[buffers.batch_index, buffers.kv_head].cpu() for tensor in subject.inputs[1:])
    mean = 0.0 if subject.operands.lse_shift is None else k.double().mean(0).numpy()
    return Block(
        buffers.problem, buffers.rows.start, q, lambda first, end: (_float64(k[first:end]) - mean, _float64(v[first:end]))
    )


def _scales(operands: Operands, buffers: TraceBuffers) -> Scales:
    k_scale = operands.k_scale[buffers.batch_index, buffers.kv_head].cpu()[_stored_rows(operands.k.shape[2])]
    return Scales(
        q=_float64(operands.q_scale[buffers.batch_index, buffers.head, buffers.rows]),
        k=_float64(k_scale[: buffers.problem.seq_len_kv]),
        v=_float64(operands.v_scale[buffers.batch_index, buffers.kv_head]),
    )


# Reading a record


def decoded_scores(trace: TileTrace) -> np.ndarray:
    """S of the stored tiles, float32, -inf where hidden, as exactly as the record holds it."""
    stored = trace.scores.numpy()
    if trace.scores.dtype == "<f2":
        return stored.astype(np.float32)
    values = (stored.astype(np.float32) / 127.0 - 1.0) * np.float32(trace.scores_limit)
    return np.where(stored == _HIDDEN, np.float32(-np.inf), values)
