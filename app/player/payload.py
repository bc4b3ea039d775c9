"""Traces as one blob of bytes for the player, see app.canvas.blob. Pure.

Scores and O are bytes, 0 to 254 for -limit to limit of their own tile and 255 for hidden; m, l and alpha stay float32, since
the player writes them out; the map is int32. The same records give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from app.canvas.blob import blob_of
from kernels.registry import VERSIONS
from profiling.records import Measurement
from profiling.trace_record import TileTrace

MOST_BYTES = 10_000_000
LONGEST_MAP = 256
HIDDEN = 255
_STEPS = 127


@dataclass(frozen=True)
class Position:
    """Where the player stands: the tile's place among those stored, the row of the query block, tiles a second."""

    tile: int = 0
    row: int = 0
    speed: int = 4


def pack(measurements: Sequence[Measurement], start: Position | None = None) -> bytes:
    """One blob for one player, of one trace or of two to step together; start None is `first`, a place worth a look.

    Raises ValueError, in one sentence, for a measurement without a trace or without a tile in it.
    """
    traces = [_packed(measurement) for measurement in measurements]
    first = first_rescale(_trace(measurements[0]))
    return blob_of("traces", traces, start=asdict(start or first), first=asdict(first))


def can_step_together(measurements: Sequence[Measurement]) -> bool:
    """Whether the traces are of one query block of one problem, in tiles of one size."""
    kinds = {
        (one.request.problem, one.tiles_trace.scores.shape[1:], one.tiles_trace.query_block, one.tiles_trace.head)
        for one in measurements
    }
    return len(kinds) == 1


def first_rescale(trace: TileTrace) -> Position:
    """The first tile that shrinks what a row had, and the row that it shrinks most; the beginning where none does."""
    alpha = np.where(_rescaled(trace), trace.alpha.numpy(), 1.0)
    shrinking = np.flatnonzero((alpha < 1).any(axis=1))
    if not len(shrinking):
        return Position()
    tile = int(shrinking[0])
    return Position(tile=tile, row=int(np.argmin(alpha[tile])))


def is_last_first(trace: TileTrace) -> bool:
    """Whether it goes through the key blocks from the last one down."""
    blocks = trace.key_blocks.numpy()
    return bool(blocks.size > 1 and blocks[0] > blocks[-1])


def _most_ahead(trace: TileTrace) -> float:
    """The most by which a score exceeded the m that it was measured against, in natural units; 0 where none did."""
    m, row_max = trace.m.numpy(), trace.row_max.numpy()
    seen = np.isfinite(row_max) & np.isfinite(m)
    return float(np.where(seen, np.where(seen, row_max, 0) - np.where(seen, m, 0), 0.0).max(initial=0.0))


def _trace(measurement: Measurement) -> TileTrace:
    if measurement.tiles_trace is None:
        raise ValueError(f"{measurement.label} has no trace of its tiles.")
    if not measurement.tiles_trace.key_blocks.shape[0]:
        raise ValueError(f"{measurement.label} visits no tile here: causality hides every key from this query block.")
    return measurement.tiles_trace


def _rescaled(trace: TileTrace) -> np.ndarray:
    """(T, BLOCK_M): where a tile multiplied something by less than 1; a row that had nothing has nothing to rescale."""
    had_something = np.zeros(trace.m.shape, bool)
    had_something[1:] = np.isfinite(trace.m.numpy()[:-1])
    return (trace.alpha.numpy() < 1) & had_something


def _packed(measurement: Measurement) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A trace's facts for the header, and its arrays."""
    trace = _trace(measurement)
    scores, acc = _values(trace.scores, trace.scores_limit), _values(trace.acc, trace.acc_limit)
    returned = _returned(trace, acc)
    blocks = _blocks(measurement)
    whole, own = _whole_map(trace, blocks)
    grouped, group = _map(whole)
    arrays: dict[str, np.ndarray] = {"keyBlocks": trace.key_blocks.numpy(), "map": grouped}
    arrays |= {name: getattr(trace, name).numpy() for name in ("m", "l", "alpha")}
    ahead = 0.0
    if trace.row_max is not None and trace.multiplied is not None:
        arrays |= {"rowMax": trace.row_max.numpy(), "multiplied": trace.multiplied.numpy()}
        ahead = _most_ahead(trace)
    limits = {"out": _limit(returned), "weight": math.exp(ahead)}
    for name, values in (("scores", scores), ("acc", acc)):
        arrays[name], arrays[f"{name}Limits"] = _tile_bytes(values)
        limits[name] = _limit(values)
    if trace.q_scale is not None and trace.k_scale is not None:
        keys = trace.k_scale.numpy()
        arrays |= {"qScale": trace.q_scale.numpy(), "kScales": np.stack([keys.min(axis=1), keys.max(axis=1)], axis=1)}
    errors, why_not = _errors(trace, scores, sum(array.nbytes for array in arrays.values()))
    if errors is not None:
        arrays["errors"], arrays["errorsLimits"] = _tile_bytes(errors)
        limits["errors"] = _limit(errors)
    facts = _facts(measurement, trace) | {
        "limits": limits,
        "range": {"m": _range(np.maximum(trace.m.numpy(), arrays.get("rowMax", -np.inf))), "l": _range(trace.l.numpy())},
        "map": {"rows": grouped.shape[0], "columns": grouped.shape[1], "group": group, "own": own // group},
        "whyNoErrors": why_not,
    }
    facts |= {"queryBlocks": blocks[0], "keyBlocksInAll": blocks[1], "onlyOwn": not trace.rescaled_rows.shape[0]}
    return facts, arrays


def _facts(measurement: Measurement, trace: TileTrace) -> dict[str, Any]:
    problem = measurement.request.problem
    _, block_m, block_n = trace.scores.shape
    kernel = measurement.request.kernel
    return {
        "label": measurement.label,
        "title": VERSIONS[kernel].title if kernel in VERSIONS else kernel,
        "provenance": trace.provenance,
        "device": measurement.environment.device.short_name,
        "agrees": trace.replay.passed,
        "tiles": len(trace.key_blocks.numpy()),
        "visited": trace.visited,
        "every": trace.every,
        "normalised": trace.normalised,
        "lagLog2": trace.lag_log2,
        "lastFirst": is_last_first(trace),
        "causal": problem.causal,
        "seqLenQ": problem.seq_len_q,
        "seqLenKv": problem.seq_len_kv,
        "blockM": block_m,
        "blockN": block_n,
        "headDim": trace.acc.shape[2],
        "head": trace.head,
        "kvHead": None if problem.num_kv_heads == problem.num_heads else trace.head * problem.num_kv_heads // problem.num_heads,
        "batch": trace.batch_index,
        "batches": problem.batch,
        "inputs": measurement.request.inputs,
        "queryBlock": trace.query_block,
    }


def _values(array: Any, limit: float) -> np.ndarray:
    """A trace's tiles as float32, -inf where hidden, whichever way they are stored."""
    found = array.numpy()
    if found.dtype != np.uint8:
        return found.astype(np.float32)
    return np.where(found == HIDDEN, -np.inf, (found.astype(np.float32) / _STEPS - 1) * limit).astype(np.float32)


def _returned(trace: TileTrace, acc: np.ndarray) -> np.ndarray:
    """O as it would be returned after each tile: divided by l where the version has not done so yet."""
    if trace.normalised:
        return acc
    total = trace.l.numpy()
    return acc / np.where(total == 0, 1.0, total)[:, :, None]


def _errors(trace: TileTrace, scores: np.ndarray, bytes_so_far: int) -> tuple[np.ndarray | None, str]:
    """What quantising Q and K did to the scores; or None and the reason, which is empty without FP8."""
    if trace.exact_scores is None:
        return None, trace.missing.get("exact_scores", "")
    if bytes_so_far + scores.size > MOST_BYTES:
        return None, "The exact scores are left out: with them the trace would be too large for the browser."
    exact = _values(trace.exact_scores, trace.scores_limit)
    seen = np.isfinite(exact) & np.isfinite(scores)
    return np.where(seen, np.where(seen, scores, 0) - np.where(seen, exact, 0), -np.inf), ""


def _tile_bytes(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(T, …) as bytes, and the limit of each tile."""
    seen = np.isfinite(values)
    finite = np.where(seen, values, np.float32(0))
    limits = np.abs(finite).max(axis=(1, 2)).astype(np.float32)
    limits[limits == 0] = 1
    steps = np.rint((finite / limits[:, None, None] + 1) * _STEPS)
    return np.where(seen, steps, HIDDEN).astype(np.uint8), limits


def _limit(values: np.ndarray) -> float:
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max(initial=0.0)) or 1.0


def _range(values: np.ndarray) -> list[float]:
    finite = values[np.isfinite(values)]
    return [float(finite.min()), float(finite.max())] if finite.size else [0.0, 1.0]


def _blocks(measurement: Measurement) -> tuple[int, int]:
    """Query and key blocks of a head."""
    problem = measurement.request.problem
    _, block_m, block_n = measurement.tiles_trace.scores.shape
    return math.ceil(problem.seq_len_q / block_m), math.ceil(problem.seq_len_kv / block_n)


def _whole_map(trace: TileTrace, blocks: tuple[int, int]) -> tuple[np.ndarray, int]:
    """Rows that rose by query and key block, and which row is the traced block's; that row alone where the trace has no map."""
    if trace.rescaled_rows.shape[0]:
        return trace.rescaled_rows.numpy(), trace.query_block
    went = np.arange(blocks[1]) <= trace.key_blocks.numpy().max()
    return np.where(went, 0, -1)[None, :], 0


def _map(rows: np.ndarray) -> tuple[np.ndarray, int]:
    """Rescaled rows by query and key block, in groups of group × group blocks where there are more than fit a screen.

    A group is the mean of the blocks visited in it, -1 where there are none.
    """
    group = math.ceil(max(rows.shape) / LONGEST_MAP)
    if group == 1:
        return rows.astype(np.int32), 1
    padding = [(0, -size % group) for size in rows.shape]
    blocks = np.pad(rows, padding, constant_values=-1)
    blocks = blocks.reshape(blocks.shape[0] // group, group, blocks.shape[1] // group, group)
    went = (blocks >= 0).sum(axis=(1, 3))
    mean = np.rint(np.where(blocks >= 0, blocks, 0).sum(axis=(1, 3)) / np.maximum(went, 1))
    return np.where(went > 0, mean, -1).astype(np.int32), group
