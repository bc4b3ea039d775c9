"""Bytes that a forward moves, counted from the tiles that its version loads and stores. Pure: arithmetic, numpy.

Three counts, from what no cache can save to what every tile asks for. Nothing here was measured: `modelled`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.problem import AttentionProblem, Precision, TileConfig
from kernels.registry import version

_STATISTIC_BYTES = 4  # m, l, lse and scales are float32
_OUT_BYTES = 2
_SCORE_BYTES = 2  # S and P in native's bf16 or fp16
_ROW_GROUP = 16  # kernels.quantize: K's and V's stored tokens come in sixteens


@dataclass(frozen=True)
class Traffic:
    """What one forward moves (modelled).

    once_bytes: every operand read once, every result written once. hbm_bytes: besides, the least that must go to memory
    and back because the version keeps more between two of its steps than the L2 cache holds (S and P of native; O, m and l
    of v1 key-outer). asked_bytes: every load and store of every program, whichever cache or copy engine serves it; for
    native every operand and result of PyTorch's calls; None where the tiles are not known. multiplied_flops: operations of
    the products as the tiles have them, masked and padded elements too; None where the tiles are not known.
    """

    once_bytes: int
    hbm_bytes: int
    asked_bytes: int | None
    multiplied_flops: float | None


def traffic(
    kernel: str,
    problem: AttentionProblem,
    tiles: TileConfig | None,
    precision: Precision,
    l2_bytes: int | None = None,
    has_tma: bool = False,
) -> Traffic:
    """The bytes of a forward as it is timed (the FP8 pre-pass is not in it).

    l2_bytes: the device's L2 cache; None counts no round trip of what lies between steps. has_tma: whether v3's tiles come
    through the copy engine, which reads past a head's last row into the next head. Raises ValueError for an unknown version,
    and for one of ours without tiles.
    """
    entry = version(kernel)
    once = _operand_bytes(problem, precision) + _result_bytes(problem, entry.has_tiles)
    if entry.is_peer:
        return Traffic(once, once, None, None)
    if not entry.has_tiles:
        return Traffic(once, once + _beyond(_native_passes(problem), l2_bytes), _native_asked(problem), _native_flops(problem))
    if tiles is None:
        raise ValueError(f"the bytes of {kernel} cannot be counted without its tiles.")
    between = _key_outer_passes(problem, tiles) if tiles.loop_order == "key" else []
    asked = _asked(kernel, problem, tiles, precision, has_tma)
    return Traffic(once, once + _beyond(between, l2_bytes), asked, _multiplied_flops(kernel, problem, tiles))


def key_tiles(kernel: str, problem: AttentionProblem, tiles: TileConfig) -> np.ndarray:
    """(query blocks,) int64: the key tiles that a version goes through for each query block of a head."""
    ends = _seen_ends(problem, tiles, version(kernel).visits_hidden)
    if kernel == "v3-hopper":
        ends = np.maximum(ends, 1)
    return -(-ends // tiles.block_n)


def _seen_ends(problem: AttentionProblem, tiles: TileConfig, all_of_them: bool) -> np.ndarray:
    """(query blocks,) int64: one past the last key that a row of the block sees; all_of_them: as if there were no mask."""
    last_rows = np.minimum(_first_rows(problem, tiles) + tiles.block_m, problem.seq_len_q) - 1
    if all_of_them or not problem.causal:
        return np.full(last_rows.size, problem.seq_len_kv, np.int64)
    return np.clip(last_rows + problem.seq_len_kv - problem.seq_len_q + 1, 0, problem.seq_len_kv)


def _first_rows(problem: AttentionProblem, tiles: TileConfig) -> np.ndarray:
    return np.arange(0, problem.seq_len_q, tiles.block_m, dtype=np.int64)


def _heads(problem: AttentionProblem) -> tuple[int, int]:
    """batch · query heads, batch · key-value heads."""
    return problem.batch * problem.num_heads, problem.batch * problem.num_kv_heads


def _stored(problem: AttentionProblem, fp8: bool) -> int:
    """K's and V's rows as they are stored."""
    return -(-problem.seq_len_kv // _ROW_GROUP) * _ROW_GROUP if fp8 else problem.seq_len_kv


# What no cache can save


def _operand_bytes(problem: AttentionProblem, precision: Precision) -> int:
    heads, kv_heads = _heads(problem)
    rows, dim = heads * problem.seq_len_q, problem.head_dim
    if not precision.fp8:
        return _OUT_BYTES * dim * (rows + 2 * kv_heads * problem.seq_len_kv)
    if precision.fp8_scale == "head":  # FA3's own
        return dim * (rows + 2 * kv_heads * problem.seq_len_kv) + 3 * _STATISTIC_BYTES * kv_heads
    keys = kv_heads * _stored(problem, True)
    scales = rows * (2 if precision.smooth_k else 1) + keys + kv_heads * dim
    return dim * (rows + 2 * keys) + _STATISTIC_BYTES * scales


def _result_bytes(problem: AttentionProblem, with_lse: bool) -> int:
    rows = _heads(problem)[0] * problem.seq_len_q
    return rows * (_OUT_BYTES * problem.head_dim + (_STATISTIC_BYTES if with_lse else 0))


def _beyond(passes: list[int], l2_bytes: int | None) -> int:
    """Of each pass over something that was kept, what cannot have stayed in the L2 cache."""
    return 0 if l2_bytes is None else sum(max(0, size - l2_bytes) for size in passes)


def _key_outer_passes(problem: AttentionProblem, tiles: TileConfig) -> list[int]:
    """O, m and l: written after every key tile but the last, and read before the next."""
    state = _heads(problem)[0] * problem.seq_len_q * (problem.head_dim + 2) * _STATISTIC_BYTES
    return [state] * (2 * (-(-problem.seq_len_kv // tiles.block_n) - 1))


# native: PyTorch's calls, one after the other


def _native_rows(problem: AttentionProblem) -> int:
    """Query rows of a head that see something: native leaves the others out."""
    return min(problem.seq_len_q, problem.seq_len_kv) if problem.causal else problem.seq_len_q


def _native_sizes(problem: AttentionProblem) -> tuple[int, int, int, int]:
    """Bytes of S (and of P), of K (and of V) repeated for every head, of the mask, of out where rows are left out of it."""
    heads, rows = _heads(problem)[0], _native_rows(problem)
    pairs = rows * problem.seq_len_kv
    repeated = heads * problem.seq_len_kv * problem.head_dim * _OUT_BYTES
    padded = heads * problem.seq_len_q * problem.head_dim * _OUT_BYTES if rows < problem.seq_len_q else 0
    return heads * pairs * _SCORE_BYTES, repeated, pairs if problem.causal else 0, padded


def _native_passes(problem: AttentionProblem) -> list[int]:
    """K and V repeated, written and read; S written, masked (read and written), read; P written and read; the mask."""
    scores, repeated, mask, padded = _native_sizes(problem)
    on_scores = 4 if problem.causal else 2
    return [repeated] * 4 + [scores] * (on_scores + 2) + ([mask] * 4 + [padded] if problem.causal else [])


def _native_asked(problem: AttentionProblem) -> int:
    """Every call's operands and result once; masking reads the mask for every head."""
    scores, repeated, mask, padded = _native_sizes(problem)
    heads, rows = _heads(problem)[0], _native_rows(problem)
    of_rows = heads * rows * problem.head_dim * _OUT_BYTES
    repeating = 4 * repeated  # index_select reads what it writes
    products = (of_rows + repeated + scores) + (scores + repeated + of_rows)
    masking = mask + 2 * mask + (heads * mask + 2 * scores) if problem.causal else 0
    padding = padded + 2 * of_rows if padded else 0  # filled with zeros, then the rows copied into it
    return repeating + products + masking + 2 * scores + padding


def _native_flops(problem: AttentionProblem) -> float:
    return 4.0 * _heads(problem)[0] * _native_rows(problem) * problem.seq_len_kv * problem.head_dim


# Ours: what the programs ask for


def _multiplied_flops(kernel: str, problem: AttentionProblem, tiles: TileConfig) -> float:
    of_head = float(key_tiles(kernel, problem, tiles).sum()) * tiles.block_m * tiles.block_n
    return 4.0 * _heads(problem)[0] * of_head * problem.padded_head_dim


def _asked(kernel: str, problem: AttentionProblem, tiles: TileConfig, precision: Precision, has_tma: bool) -> int:
    if tiles.loop_order == "key":
        return _asked_key_outer(problem, tiles)
    results = _result_bytes(problem, with_lse=True)
    if precision.fp8:
        return results + _asked_fp8(kernel, problem, tiles, precision, has_tma)
    heads, _ = _heads(problem)
    reached = key_tiles(kernel, problem, tiles) * tiles.block_n
    element = _OUT_BYTES * problem.head_dim
    if kernel == "v3" and has_tma:
        queries = _rows_of_stacked(_first_rows(problem, tiles), tiles.block_m, heads, problem.seq_len_q)
        return results + element * (queries + 2 * _keys_of_stacked(problem, reached, problem.seq_len_kv))
    keys = heads * int(np.minimum(reached, problem.seq_len_kv).sum())
    return results + element * (heads * problem.seq_len_q + 2 * keys)


def _asked_fp8(kernel: str, problem: AttentionProblem, tiles: TileConfig, precision: Precision, has_tma: bool) -> int:
    """Q, K by rows with their scales, V by columns, a scale a channel; V's columns end where they are stored.

    Only v3's matrices are all heads on top of each other; v3-hopper's copies end with their head.
    """
    heads, kv_heads = _heads(problem)
    stored, dim = _stored(problem, True), problem.head_dim
    rows = heads * problem.seq_len_q
    reached = key_tiles(kernel, problem, tiles) * tiles.block_n
    columns = np.minimum(reached, stored)
    blocks, seen = columns.size, heads * int(columns.sum())
    if kernel == "v3-hopper":
        scales = heads * (tiles.block_m // 64) * (_key_scales_of_hopper(reached, tiles, stored) + blocks * dim)
    else:
        scales = seen + heads * blocks * dim
    scales = _STATISTIC_BYTES * (scales + rows * (2 if precision.smooth_k else 1))
    if kernel != "v3" or not has_tma:
        return scales + dim * (rows + 2 * seen)
    queries = _rows_of_stacked(_first_rows(problem, tiles), tiles.block_m, heads, problem.seq_len_q)
    channels = _rows_of_stacked(np.zeros(1, np.int64), problem.padded_head_dim, kv_heads, dim)
    of_v = (heads // kv_heads) * channels * int(columns.sum())
    return scales + dim * (queries + _keys_of_stacked(problem, reached, stored)) + of_v


def _key_scales_of_hopper(reached: np.ndarray, tiles: TileConfig, stored: int) -> int:
    """A warpgroup's for all query blocks of a head: one for each half of a key tile, if the half begins where keys are."""
    halves = 2 * (reached // tiles.block_n) - (reached - tiles.block_n // 2 >= stored)
    return int(halves.sum())


def _keys_of_stacked(problem: AttentionProblem, reached: np.ndarray, stored: int) -> int:
    """Rows of K that all query heads read through the copy engine."""
    heads, kv_heads = _heads(problem)
    return (heads // kv_heads) * _rows_of_stacked(np.zeros_like(reached), reached, kv_heads, stored)


def _rows_of_stacked(first: np.ndarray, count: np.ndarray | int, matrices: int, rows: int) -> int:
    """Rows that tiles get of matrices of `rows` rows stacked on each other, from row `first` of each, `count` rows a tile.

    The copy engine knows the stack as one matrix: a tile reaches into the next one, and is cut only at the stack's end.
    """
    ends = first + count
    most = -(-int(ends.max(initial=0)) // rows)
    cut = min(matrices, most)
    found = (matrices - cut) * int((ends - first).sum())
    return found + sum(int((np.minimum(ends, left * rows) - first).sum()) for left in range(1, cut + 1))


def _asked_key_outer(problem: AttentionProblem, tiles: TileConfig) -> int:
    """K and V once a head; Q at every key tile; O, m and l between two of them; out and lse at the last."""
    heads, _ = _heads(problem)
    rows, turns = heads * problem.seq_len_q, -(-problem.seq_len_kv // tiles.block_n)
    keys = 2 * heads * problem.seq_len_kv
    state = 2 * (turns - 1) * rows * (problem.head_dim + 2) * _STATISTIC_BYTES
    operands = _OUT_BYTES * problem.head_dim * (keys + turns * rows)
    return operands + state + _result_bytes(problem, with_lse=True)
