"""What rescaling costs, read off a trace, and what rescaling only when it is worth it would save and cost. Pure.

The lazy rule is FlashAttention-4's (github.com/Dao-AILab/flash-attention, flash_attn/cute): the maximum that O and l refer
to stays while the true one is less than tau above it, in log2 units; weights then reach up to 2^tau instead of 1. Where a
kernel does so itself (v3-hopper), the account says what it really did: m moved, or was kept though a larger score came.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.problem import Precision
from profiling.replay import Arithmetic, rounded_to
from profiling.tile_trace import decoded_scores
from profiling.trace_record import TileTrace

DEFAULT_TAU_LOG2 = 8.0
_LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class LazyRescaling:
    """The same tiles with a maximum that may be stale. Row by row; FA4 decides for a warp's rows together, which saves less.

    rescaled_rows (T,): rows that a tile still rescales. saved_multiplications: of the accumulator, by those not needed
    more. *_error: ‖w − exact‖ / ‖exact‖ of the softmax's weights, P rounded to its format; for values that are
    independent with mean 0 this is the error that O gets from it. eager_error is that of rescaling at every new maximum.
    """

    tau_log2: float
    rescaled_rows: np.ndarray
    saved_multiplications: int
    lazy_error: float
    eager_error: float


@dataclass(frozen=True)
class Lagging:
    """What a kernel did whose m may lag, tile by tile; all (T,).

    kept_rows: rows that had a score above the m it was measured against. eager_rows: rows whose true maximum rose, which an m
    that never lags would have rescaled; the first tile 0. multiplied_rows: rows whose O was multiplied, needed or not.
    most_ahead_log2: the most by which a score exceeded its m, so that the largest weight was 2^this; 0 where none did.
    """

    kept_rows: np.ndarray
    eager_rows: np.ndarray
    multiplied_rows: np.ndarray
    most_ahead_log2: float


@dataclass(frozen=True)
class RescaleLedger:
    """One query block's account. The first tile is left out: there is nothing yet to rescale.

    rescaled_rows (visited,): rows whose m rose at each tile. needed_multiplications: those rows' accumulators,
    head_dim each. done_multiplications: what the version does, all BLOCK_M rows at every tile whether needed or not, the
    first included; v1 twice, as it also scales each tile's product before it is added to an O that is normalised. Where m may
    lag it is what the kernel stored of it, None where tiles are missing.
    head_*: the same over all query blocks of the head, None where the map is not kept. lazy: None where tiles are missing.
    lagging: None where m is always the maximum, and where tiles are missing.
    """

    rescaled_rows: np.ndarray | None
    needed_multiplications: int | None
    done_multiplications: int | None
    head_needed_multiplications: int | None
    head_done_multiplications: int | None
    lazy: LazyRescaling | None
    missing: dict[str, str]
    lagging: Lagging | None = None


def rescale_ledger(trace: TileTrace, kernel: str, precision: Precision, tau_log2: float = DEFAULT_TAU_LOG2) -> RescaleLedger:
    """The account of a trace. Raises ValueError unless tau_log2 is 0 or more and finite."""
    if not 0.0 <= tau_log2 < np.inf:
        raise ValueError(f"tau = {tau_log2} is not possible: it can be 0 or more.")
    block_m, head_dim = trace.acc.shape[1:]
    a_tile = block_m * head_dim * (2 if trace.normalised else 1)
    arithmetic = Arithmetic.of(kernel, precision, trace.provenance)
    rises, whole, missing = trace.rescaled_rows.numpy(), trace.every == 1, {}
    if not rises.size:
        missing["head"] = trace.missing.get("rescaled_rows", "the map of the head's query blocks is not kept")
    if not whole:
        missing["lazy"] = "a stale maximum can only be followed where every tile is stored."
    rescaled = _risen(trace.m.numpy()) if whole else _of_map(rises, trace, arithmetic)
    if rescaled is None:
        missing["rescaled_rows"] = "neither every tile nor the map is stored."
    lagging = _lagging(trace) if trace.lag_log2 and whole else None
    done, head_done = trace.visited * a_tile, int((rises >= 0).sum()) * a_tile if rises.size else None
    if trace.lag_log2:
        done, head_done = None if lagging is None else int(lagging.multiplied_rows.sum()) * head_dim, None
    return RescaleLedger(
        rescaled_rows=rescaled,
        needed_multiplications=None if rescaled is None else int(rescaled.sum()) * head_dim,
        done_multiplications=done,
        head_needed_multiplications=_after_the_first(rises, arithmetic) * head_dim if rises.size else None,
        head_done_multiplications=head_done,
        lazy=_lazy(trace, arithmetic, tau_log2) if whole else None,
        missing=missing,
        lagging=lagging,
    )


def _lagging(trace: TileTrace) -> Lagging:
    m, row_max = trace.m.numpy(), trace.row_max.numpy()
    ahead = np.where(np.isfinite(row_max), row_max - np.where(np.isfinite(m), m, 0.0), -np.inf)
    return Lagging(
        kept_rows=(ahead > 0).sum(1),
        eager_rows=_risen(_true_maxima(trace)),
        multiplied_rows=trace.multiplied.numpy().sum(1, dtype=np.int64),
        most_ahead_log2=max(0.0, float(ahead.max(initial=0.0)) * _LOG2_E),
    )


def _true_maxima(trace: TileTrace) -> np.ndarray:
    """(T, rows): the largest score so far, which m is unless it may lag."""
    return trace.m.numpy() if trace.row_max is None else np.maximum.accumulate(trace.row_max.numpy(), axis=0)


def _risen(m: np.ndarray) -> np.ndarray:
    """(T,): rows whose maximum rose from one tile to the next; the first tile 0."""
    return np.concatenate([np.zeros(min(1, len(m)), int), (m[1:] > m[:-1]).sum(1)])


def _of_map(rises: np.ndarray, trace: TileTrace, arithmetic: Arithmetic) -> np.ndarray | None:
    if not rises.size:
        return None
    row = rises[trace.query_block, list(arithmetic.order(trace.visited))].astype(int)
    row[:1] = 0
    return row


def _after_the_first(rises: np.ndarray, arithmetic: Arithmetic) -> int:
    """Rows that rose at other tiles than their query block's first."""
    visited = (rises >= 0).sum(1)
    first = np.where(arithmetic.last_first, visited - 1, 0).clip(min=0)
    return int(rises.clip(min=0).sum() - np.take_along_axis(rises.clip(min=0), first[:, None], axis=1).sum())


def _lazy(trace: TileTrace, arithmetic: Arithmetic, tau_log2: float) -> LazyRescaling:
    scores, m, head_dim = decoded_scores(trace), _true_maxima(trace), trace.acc.shape[2]
    base = _stale(m, tau_log2)
    rescaled = _risen(base)
    exact = _weights(scores, m, None)
    return LazyRescaling(
        tau_log2=tau_log2,
        rescaled_rows=rescaled,
        saved_multiplications=int(_risen(m).sum() - rescaled.sum()) * head_dim,
        lazy_error=_relative(_weights(scores, base, arithmetic), exact),
        eager_error=_relative(_weights(scores, m, arithmetic), exact),
    )


def _stale(m: np.ndarray, tau_log2: float) -> np.ndarray:
    """(T, rows): the maximum that each tile's weights refer to; it moves only to get away from more than tau below."""
    base = m.copy()
    for tile in range(1, len(base)):
        before = base[tile - 1]
        started = before > -np.inf
        ahead = (m[tile] - np.where(started, before, 0.0)) * _LOG2_E
        base[tile] = np.where(started & (ahead <= tau_log2), before, m[tile])
    return base


def _weights(scores: np.ndarray, base: np.ndarray, arithmetic: Arithmetic | None) -> np.ndarray:
    """The softmax's weights (T, rows, BLOCK_N): exact in float64, or as P and l give them with an arithmetic.

    base (T, rows): what each tile's exponents are relative to; the last tile's is what l and O end with.
    """
    kind = np.float64 if arithmetic is None else np.float32
    finite_base = np.where(np.isfinite(base), base, 0.0).astype(kind)
    p = np.exp(scores.astype(kind) - finite_base[:, :, None])
    to_last = np.exp(finite_base - finite_base[-1:]) if len(base) else finite_base
    to_last = np.where(np.isfinite(base), to_last, kind(0.0))
    total = (p.sum(2) * to_last).sum(0)
    if arithmetic is not None:
        p = rounded_to(arithmetic.weights, p.astype(np.float64) * arithmetic.shift) / arithmetic.shift
    return p * to_last[:, :, None] / np.where(total > 0, total, 1.0)[None, :, None]


def _relative(found: np.ndarray, exact: np.ndarray) -> float:
    norm = float(np.linalg.norm(exact))
    return float(np.linalg.norm(found - exact)) / norm if norm else 0.0
