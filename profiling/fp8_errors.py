"""What FP8 costs a query block: the error of its O taken apart by what was rounded, in float64. Pure.

O is summed over the keys four times, each time with one more of the things that the kernel did: the inputs as they are; Q
and K quantised; P and V quantised too; the kernel. Each differs from the one before by one part, so the parts add up to
the error, element by element, in all and tile by tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiling.record_types import Array
from profiling.replay import NO_NUMBER, Arithmetic, Block, Stored, rounded_to
from profiling.trace_record import ErrorPart, Fp8Errors, LimitCount

E4M3_MAX = 448.0
CLIPPED_ABOVE = 464.0
"""The midpoint to what would be e4m3's next value: below it, 448 is the nearest."""


@dataclass(frozen=True)
class Scales:
    """What the rounded operands were divided by, float64: q (rows,), k (seq_len_kv,) in the order of tokens, v (head_dim,)."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray


@dataclass(frozen=True)
class Sums:
    """What each stored tile, with those left out before it, adds to O: (T, rows, head_dim) each, divided by the last l.

    exact: of the inputs; rounded_qk: of P from quantised Q and K; rounded: of P and V quantised too, with exact sums; kernel:
    what the frames hold. at_limit, clipped (3, T): of K, V and P. pairs: of a query and a key that it sees.
    """

    exact: np.ndarray
    rounded_qk: np.ndarray
    rounded: np.ndarray
    kernel: np.ndarray
    at_limit: np.ndarray
    clipped: np.ndarray
    pairs: int

    @property
    def parts(self) -> dict[str, np.ndarray]:
        """The parts of the error by their name in the record."""
        return {
            "qk": self.rounded_qk - self.exact,
            "pv": self.rounded - self.rounded_qk,
            "accumulation": self.kernel - self.rounded,
        }


def fp8_errors(
    inputs: Block, rounded: Block, scales: Scales, arithmetic: Arithmetic, stored: Stored, block_m: int, visited: int
) -> Fp8Errors:
    """The record. inputs: unrounded, K's mean off where the operands' is; rounded: the operands that the kernel read.

    stored: the rows inside the problem alone; block_m: how many the record has.
    """
    sums = sums_by_tile(inputs, rounded, scales, arithmetic, stored, visited)
    exact, parts = sums.exact.sum(0), sums.parts
    parts["whole"] = sums.kernel - sums.exact
    whole = parts["whole"].sum(0)
    (k, v, p), clipped = sums.at_limit, sums.clipped.sum(1)
    seen = min(visited * stored.scores.shape[2], inputs.problem.seq_len_kv) * inputs.problem.head_dim
    return Fp8Errors(
        **{name: _part(part, whole, exact, block_m) for name, part in parts.items()},
        output_error=_relative(stored.output - sums.kernel.sum(0), exact),
        q=_limit_count(*_at_limit(inputs.q / scales.q[:, None], rounded.q / scales.q[:, None]), inputs.q.size, None),
        k=_limit_count(int(k.sum()), int(clipped[0]), seen, k),
        v=_limit_count(int(v.sum()), int(clipped[1]), seen, v),
        p=_limit_count(int(p.sum()), int(clipped[2]), sums.pairs, p),
    )


def sums_by_tile(inputs: Block, rounded: Block, scales: Scales, arithmetic: Arithmetic, stored: Stored, visited: int) -> Sums:
    """The four sums of each stored tile. Shapes as Sums has them."""
    block_n, tiles, rows = stored.scores.shape[2], stored.key_blocks.size, inputs.q.shape[0]
    order = np.array(arithmetic.order(visited), int)
    exact_m, m = (_maxima(block, block_n, order) for block in (inputs, rounded))
    products, l = np.zeros((3, tiles, rows, inputs.problem.head_dim)), np.zeros((2, rows))  # noqa: E741
    counts, pairs = np.zeros((2, 3, tiles), np.int64), 0
    at_stored = np.flatnonzero(np.isin(order, stored.key_blocks))
    for place, slot in enumerate(np.searchsorted(at_stored, np.arange(visited))):
        key_block = order[place]
        keys = slice(key_block * block_n, min((key_block + 1) * block_n, inputs.problem.seq_len_kv))
        tile = _tile(inputs, rounded, scales, arithmetic.shift, keys, (exact_m[-1], m[place], m[-1]))
        products[:, slot] += tile.products
        counts[:, :, slot] += tile.counts
        l, pairs = l + tile.l, pairs + tile.pairs  # noqa: E741
    exact_l, rounded_l = _safe(l)[:, :, None]
    exact, rounded_qk, both = products
    return Sums(exact / exact_l, rounded_qk / rounded_l, both / rounded_l, _of_frames(stored), *counts, pairs)


@dataclass(frozen=True)
class _Tile:
    """What one tile adds: to the exact sum, that of rounded Q and K, that of all rounded (3, rows, head_dim); to the exact
    and the rounded l (2, rows); values at the limit and clipped ones of K, V and P (2, 3); pairs of a query and a key."""

    products: np.ndarray
    l: np.ndarray  # noqa: E741
    counts: np.ndarray
    pairs: int


def _tile(
    inputs: Block, rounded: Block, scales: Scales, shift: float, keys: slice, maxima: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> _Tile:
    """maxima (rows,) each: the last of the exact scores; of the rounded ones after this tile; and the last of those."""
    exact_m, m, last_m = maxima
    (k, v), (k_rounded, v_rounded) = (block.keys(keys.start, keys.stop) for block in (inputs, rounded))
    scores = tile_scores(rounded, keys.start, k_rounded)
    exact_p, p = _weights(tile_scores(inputs, keys.start, k), exact_m), _weights(scores, last_m)
    # The kernel rounds P beside the maximum so far, and shrinks the product afterwards.
    p_shifted = _weights(scores, m) * shift
    p_rounded = rounded_to("e4m3", p_shifted)
    shrunk = p_rounded * _weights(m[:, None], last_m) / shift
    k_scale = scales.k[keys, None]
    codes = ((k / k_scale, k_rounded / k_scale), (v / scales.v, v_rounded / scales.v), (p_shifted, p_rounded))
    return _Tile(
        np.stack([exact_p @ v, p @ v, shrunk @ v_rounded]), np.stack([exact_p.sum(1), p.sum(1)]),
        np.transpose([_at_limit(before, after) for before, after in codes]), int(np.isfinite(scores).sum()),
    )  # fmt: skip


def tile_scores(block: Block, first_key: int, k: np.ndarray) -> np.ndarray:
    """S (rows, keys) of the keys from first_key on, float64, natural units, -inf where causality hides."""
    problem, rows = block.problem, block.q.shape[0]
    scores = block.q @ k.T * problem.sm_scale
    if not problem.causal:
        return scores
    last_seen = block.first_row + np.arange(rows) + problem.seq_len_kv - problem.seq_len_q
    return np.where(first_key + np.arange(k.shape[0]) > last_seen[:, None], -np.inf, scores)


def _maxima(block: Block, block_n: int, order: np.ndarray) -> np.ndarray:
    """(visited, rows): the running maximum after each tile, in the order visited."""
    found = np.full((order.size, block.q.shape[0]), -np.inf)
    for place, first_key in enumerate(order * block_n):
        k, _ = block.keys(first_key, min(first_key + block_n, block.problem.seq_len_kv))
        found[place] = tile_scores(block, first_key, k).max(1)
    return np.maximum.accumulate(found, axis=0)


def _weights(scores: np.ndarray, base: np.ndarray) -> np.ndarray:
    """exp(scores - base), a base a row; 0 for -inf, also where the base is."""
    return np.exp(scores - np.where(base == -np.inf, 0.0, base)[:, None])


def _safe(l: np.ndarray) -> np.ndarray:  # noqa: E741
    return np.where(l == 0.0, 1.0, l)


def _of_frames(stored: Stored) -> np.ndarray:
    """What each stored tile put into the kernel's O: the frame, as it counts at the end, less the frame before."""
    acc, m = stored.acc.astype(np.float64), stored.m.astype(np.float64)
    if not len(acc):
        return acc
    counts = _weights(m.T, m[-1]).T / _safe(stored.l[-1].astype(np.float64))
    return np.diff(acc * counts[:, :, None], axis=0, prepend=0.0)


# Sizes and counts


def _part(part: np.ndarray, whole: np.ndarray, exact: np.ndarray, block_m: int) -> ErrorPart:
    """The record of one part (T, rows, head_dim), rows past the last query as zeros."""
    unit, norm = _rms(exact), float((whole**2).sum())
    by_tile = np.zeros((part.shape[0], block_m))
    by_tile[:, : part.shape[1]] = np.minimum(np.sqrt((part**2).mean(2)) / (unit or 1.0), NO_NUMBER)
    total = part.sum(0)
    return ErrorPart(
        error=_relative(total, exact), share=float((total * whole).sum()) / norm if norm else 0.0,
        by_tile=Array.of(by_tile, "<f4"),
    )  # fmt: skip


def _relative(difference: np.ndarray, exact: np.ndarray) -> float:
    return min(_rms(difference) / (_rms(exact) or 1.0), NO_NUMBER)


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt((values.astype(np.float64) ** 2).mean())) if values.size else 0.0


def _at_limit(before: np.ndarray, after: np.ndarray) -> tuple[int, int]:
    """Of values in e4m3's units, before and after they were rounded: how many stand at the limit, and how many were clipped."""
    # Half of e4m3's last step is far more than dividing by a scale again can be off.
    at_limit = np.abs(after) > E4M3_MAX - 8.0
    return int(at_limit.sum()), int((at_limit & (np.abs(before) > CLIPPED_ABOVE)).sum())


def _limit_count(at_limit: int, clipped: int, values: int, by_tile: np.ndarray | None) -> LimitCount:
    return LimitCount(
        values=values, at_limit=at_limit, clipped=clipped, by_tile=None if by_tile is None else Array.of(by_tile, "<i4")
    )
