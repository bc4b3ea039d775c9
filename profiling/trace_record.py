"""The record of a traced launch: what a kernel did tile by tile, and the proof of it. Pure: pydantic and numpy."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from kernels.problem import AttentionProblem, Frozen, TileConfig
from profiling.record_types import Array, Count, Error, Frames, Limit, Missing, Text


class TraceChoice(Frozen):
    """Whose tiles the probe `tiles` watches: one query block of one head. query_block None: the last one."""

    batch_index: Count = 0
    head: Count = 0
    query_block: Count | None = None


class Replay(Frozen):
    """The proof of a trace: the same tiles computed again in NumPy, and the kernel's own output beside the last frame.

    *_error: largest absolute difference over all stored tiles, each divided by the largest magnitude of its quantity, 1e30
    where one side is no finite number. allowed_*: the largest bound anywhere, derived from the formats the kernel rounds to;
    passed asks that every element is within its own. output_error: the last frame's O against the output of a launch
    without the trace.
    """

    scores_error: Error
    allowed_scores_error: Error
    m_error: Error
    l_error: Error
    alpha_error: Error
    acc_error: Error
    allowed_error: Error
    output_error: Error
    allowed_output_error: Error
    allowed_because: Text
    passed: bool


class LimitCount(Frozen):
    """How many of a tensor's e4m3 values stand at ±448, the format's end, and how many of those were clipped.

    clipped: larger than 464 before they were rounded, so that more than rounding was lost. by_tile (T,): at_limit by stored
    tile, with those left out before it; None for Q, which every tile reads.
    """

    values: Count
    at_limit: Count
    clipped: Count
    by_tile: Array | None = None

    @model_validator(mode="after")
    def _whole(self) -> LimitCount:
        if not self.clipped <= self.at_limit <= self.values:
            raise ValueError(f"{self.clipped} clipped of {self.at_limit} at the limit of {self.values} is not possible.")
        if self.by_tile is None:
            return self
        self.by_tile.series("by_tile")
        counts = self.by_tile.numpy()
        if self.by_tile.dtype != "<i4" or counts.min(initial=0) < 0 or int(counts.sum(dtype=np.int64)) != self.at_limit:
            raise ValueError("the values at the limit by tile are whole numbers of 32 bits that add up to all of them.")
        return self


class ErrorPart(Frozen):
    """A part of the error of O, beside the exact O: error is ‖part‖ / ‖O‖ over the block.

    share: ⟨part, whole error⟩ / ‖whole error‖², so that the shares of all parts add up to 1. by_tile (T, BLOCK_M): what each
    stored tile, with those left out before it, puts of it into a row: its root mean square over head_dim, divided by that of
    the block's O.
    """

    error: Error
    share: Annotated[float, Field(ge=-1e30, le=1e30)]
    by_tile: Array

    @model_validator(mode="after")
    def _whole(self) -> ErrorPart:
        if len(self.by_tile.shape) != 2 or self.by_tile.dtype != "<f4" or self.by_tile.numpy().min(initial=0.0) < 0:
            raise ValueError("an error by tile and row has two dimensions and is 0 or more, in float32.")
        return self


class Fp8Errors(Frozen):
    """What FP8 costs a query block: the error of its O against float64 of the unrounded inputs, taken apart.

    whole = qk + pv + accumulation, element by element. qk: from quantising Q and K; pv: from quantising P and V;
    accumulation: what the kernel's arithmetic adds to exact sums of the same rounded operands. output_error: what rounding O
    to the output's format adds after that, ‖difference‖ / ‖O‖. q, k, v, p: of this block's rows, and of the keys they see.
    """

    whole: ErrorPart
    qk: ErrorPart
    pv: ErrorPart
    accumulation: ErrorPart
    output_error: Error
    q: LimitCount
    k: LimitCount
    v: LimitCount
    p: LimitCount

    @property
    def parts(self) -> tuple[ErrorPart, ErrorPart, ErrorPart]:
        """Those that add up to the whole."""
        return self.qk, self.pv, self.accumulation

    @model_validator(mode="after")
    def _adds_up(self) -> Fp8Errors:
        shares = [part.share for part in self.parts]
        if not abs(math.fsum(shares) - self.whole.share) <= 1e-6 * (1.0 + sum(map(abs, shares))):
            raise ValueError(f"shares of {shares} do not add up to {self.whole.share}.")
        if {part.by_tile.shape for part in self.parts} != {self.whole.by_tile.shape}:
            raise ValueError("the parts of an error have the shape of the whole.")
        return self

    def fits(self, stored: int, rows: int) -> bool:
        """Whether it can be of so many stored tiles of BLOCK_M rows."""
        counts = [count.by_tile for count in (self.k, self.v, self.p)]
        return (
            self.whole.by_tile.shape == (stored, rows)
            and self.q.by_tile is None
            and all(count is not None and count.shape == (stored,) for count in counts)
        )


_IN_FRAMES = ("<f2", "|u1")
_KINDS = {"scores": _IN_FRAMES, "acc": _IN_FRAMES, "exact_scores": _IN_FRAMES, "multiplied": ("|u1",)}


class TileTrace(Frozen):
    """What a kernel did for one query block of one head, tile by tile, as a traced variant of the same kernel stored it.

    T tiles are stored, in the order visited, which may be from the last key block down; every: 1 when all visited ones are,
    n when each n-th is, counted back from the last. key_blocks (T,). A row past seq_len_q is as one that sees nothing: S and
    m -inf, l, alpha and acc 0.
    scores (T, BLOCK_M, BLOCK_N): S after sm_scale, -inf where hidden; float16, or where that is too much bytes 0 to 254
    for -scores_limit to scores_limit, 255 hidden. m, l, alpha (T, BLOCK_M), float32, after the tile, in natural units:
    alpha = exp(m before - m after), 0 while nothing was seen before. It is what the tile multiplies the accumulator by,
    except that v1's, being normalised, is multiplied by alpha · l before / l after. acc (T, BLOCK_M, head_dim): O as the
    version holds it after the tile, normalised or not; float16 or bytes likewise with acc_limit.
    rescaled_rows (query blocks, key blocks) of the traced head: rows whose maximum rose at that tile, the first from -inf
    included, -1 where the kernel never went; (0, 0) where it would be too large. With FP8: exact_scores like scores, from
    the inputs before they were quantised, K's mean off where the kernel's is; q_scale (BLOCK_M,), k_scale (T, BLOCK_N);
    fp8_errors: what that rounding costs O, None where it was not taken.
    lag_log2: by how much, in log2, a row's scores may exceed its m before m moves; 0: m is the maximum. Only with a lag:
    row_max (T, BLOCK_M), float32, in natural units: the largest score of the tile itself, -inf where it shows a row nothing;
    multiplied (T, BLOCK_M), bytes: 1 where the kernel multiplied a row's O by alpha. Without one, every row is at every tile.
    """

    provenance: Literal["measured", "interpreted"]
    batch_index: Count
    head: Count
    query_block: Count
    visited: Count
    every: Limit
    key_blocks: Array
    scores: Frames
    scores_limit: Error
    m: Frames
    l: Frames  # noqa: E741  the field's name
    alpha: Frames
    acc: Frames
    acc_limit: Error
    normalised: bool
    rescaled_rows: Array
    replay: Replay
    exact_scores: Frames | None = None
    q_scale: Array | None = None
    k_scale: Array | None = None
    fp8_errors: Fp8Errors | None = None
    lag_log2: Annotated[float, Field(ge=0, le=64)] = 0.0
    row_max: Frames | None = None
    multiplied: Frames | None = None
    missing: Missing = {}

    @model_validator(mode="after")
    def _whole(self) -> TileTrace:
        stored = self.key_blocks.series("key_blocks")
        if not stored <= self.visited:
            raise ValueError(f"{stored} stored tiles of {self.visited} visited ones are not possible.")
        if len(self.scores.shape) != 3 or len(self.acc.shape) != 3 or len(self.rescaled_rows.shape) != 2:
            raise ValueError("a trace's scores and acc have three dimensions, its rescaled_rows two.")
        rows, keys = self.scores.shape[1:]
        expected = {"scores": (stored, rows, keys), "acc": (stored, rows, self.acc.shape[2])}
        expected |= dict.fromkeys(("m", "l", "alpha"), (stored, rows))
        expected |= {"exact_scores": (stored, rows, keys), "q_scale": (rows,), "k_scale": (stored, keys)}
        expected |= {"row_max": (stored, rows), "multiplied": (stored, rows)}
        for name, shape in expected.items():
            array = getattr(self, name)
            if array is not None and (array.shape != shape or array.dtype not in _KINDS.get(name, ("<f4",))):
                raise ValueError(f"{name} of shape {array.shape} and {array.dtype} is not possible in this trace.")
        if not all(np.isfinite(array.numpy()).all() for array in (self.l, self.alpha, self.acc)):
            raise ValueError("a trace's l, alpha and acc are finite: only S and m can be -inf.")
        if self.fp8_errors is not None and not self.fp8_errors.fits(stored, rows):
            raise ValueError(f"what FP8 costs is not of this trace's {stored} tiles of {rows} rows.")
        if {self.lag_log2 > 0} != {self.row_max is not None, self.multiplied is not None}:
            raise ValueError("a trace's row_max and multiplied are there where its m may lag, and only there.")
        if self.multiplied is not None and self.multiplied.numpy().max(initial=0) > 1:
            raise ValueError("a trace's multiplied is 0 or 1.")
        if self.key_blocks.dtype != "<i4" or self.rescaled_rows.dtype != "<i4":
            raise ValueError("a trace's key_blocks and rescaled_rows are whole numbers of 32 bits.")
        return self

    def fits(self, problem: AttentionProblem, tiles: TileConfig) -> bool:
        """Whether it can be of this problem in these tiles."""
        blocks = (math.ceil(problem.seq_len_q / tiles.block_m), math.ceil(problem.seq_len_kv / tiles.block_n))
        keys = self.key_blocks.numpy()
        return (
            self.scores.shape[1:] == (tiles.block_m, tiles.block_n)
            and self.acc.shape[2] == problem.head_dim
            and self.rescaled_rows.shape in ((0, 0), blocks)
            and self.query_block < blocks[0]
            and (not keys.size or (keys.min() >= 0 and keys.max() < blocks[1]))
            and self.head < problem.num_heads
            and self.batch_index < problem.batch
        )
