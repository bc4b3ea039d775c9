"""The record of a traced launch: what a kernel did tile by tile, and the proof of it. Pure: pydantic and numpy."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from pydantic import model_validator

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


_IN_FRAMES = ("<f2", "|u1")
_KINDS = {"scores": _IN_FRAMES, "acc": _IN_FRAMES, "exact_scores": _IN_FRAMES}


class TileTrace(Frozen):
    """What a kernel did for one query block of one head, tile by tile, as a traced variant of the same kernel stored it.

    T tiles are stored, in the order visited; every: 1 when all visited ones are, n when each n-th is, counted back from the
    last. key_blocks (T,). A row past seq_len_q is as one that sees nothing: S and m -inf, l, alpha and acc 0.
    scores (T, BLOCK_M, BLOCK_N): S after sm_scale, -inf where hidden; float16, or where that is too much bytes 0 to 254
    for -scores_limit to scores_limit, 255 hidden. m, l, alpha (T, BLOCK_M), float32, after the tile, in natural units:
    alpha = exp(m before - m after), 0 while nothing was seen before. It is what the tile multiplies the accumulator by,
    except that v1's, being normalised, is multiplied by alpha · l before / l after. acc (T, BLOCK_M, head_dim): O as the
    version holds it after the tile, normalised or not; float16 or bytes likewise with acc_limit.
    rescaled_rows (query blocks, key blocks) of the traced head: rows whose maximum rose at that tile, the first from -inf
    included, -1 where the kernel never went; (0, 0) where it would be too large. With FP8: exact_scores like scores, from
    the inputs before they were quantised, K's mean off where the kernel's is; q_scale (BLOCK_M,), k_scale (T, BLOCK_N).
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
        for name, shape in expected.items():
            array = getattr(self, name)
            if array is not None and (array.shape != shape or array.dtype not in _KINDS.get(name, ("<f4",))):
                raise ValueError(f"{name} of shape {array.shape} and {array.dtype} is not possible in this trace.")
        if not all(np.isfinite(array.numpy()).all() for array in (self.l, self.alpha, self.acc)):
            raise ValueError("a trace's l, alpha and acc are finite: only S and m can be -inf.")
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
