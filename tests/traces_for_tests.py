"""Tile traces that NumPy computes, for tests alone: an online softmax in float64, recorded as a kernel would record it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kernels.problem import AttentionProblem, Precision, TileConfig
from profiling.fp8_errors import Scales, fp8_errors
from profiling.record_types import Array, Frames
from profiling.records import Measurement, RunRequest
from profiling.replay import Arithmetic, Block, Stored
from profiling.trace_record import Fp8Errors, Replay, TileTrace, TraceChoice
from tests import records_for_tests as records

SMALL = AttentionProblem(num_heads=2, num_kv_heads=2, seq_len_q=256, seq_len_kv=256, head_dim=64, causal=True)


@dataclass(frozen=True)
class Inputs:
    """One head's Q, K and V, with neighbours alike, so that the scores have a shape to look at."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray

    @staticmethod
    def of(problem: AttentionProblem, seed: int = 0) -> Inputs:
        rng = np.random.default_rng(seed)
        waves = rng.standard_normal((4, problem.head_dim))
        return Inputs(
            _wavy(problem.seq_len_q, waves, rng), _wavy(problem.seq_len_kv, waves, rng),
            rng.standard_normal((problem.seq_len_kv, problem.head_dim)),
        )  # fmt: skip


def _wavy(length: int, waves: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    at = np.arange(length)
    base = np.stack([np.sin(at / 11), np.cos(at / 11), np.sin(at / 41), np.cos(at / 41)], 1) @ waves
    return 0.55 * (base + 0.9 * rng.standard_normal((length, waves.shape[1])))


@dataclass(frozen=True)
class Walk:
    """What one query block saw: one row an entry and tile visited."""

    key_blocks: list[int]
    scores: np.ndarray
    m: np.ndarray
    l: np.ndarray  # noqa: E741
    alpha: np.ndarray
    acc: np.ndarray


def scores_of(problem: AttentionProblem, inputs: Inputs, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """A tile of scores, -inf where hidden; rows past the last query are zeros, as a kernel pads them."""
    q = np.where((rows < problem.seq_len_q)[:, None], inputs.q[np.minimum(rows, problem.seq_len_q - 1)], 0.0)
    k = inputs.k[np.minimum(keys, problem.seq_len_kv - 1)]
    seen = (keys < problem.seq_len_kv)[None, :] & np.ones((len(rows), 1), bool)
    if problem.causal:
        seen = seen & (keys[None, :] <= rows[:, None] + problem.seq_len_kv - problem.seq_len_q)
    return np.where(seen, q @ k.T * problem.sm_scale, -np.inf)


def visited(problem: AttentionProblem, block: int, block_m: int, block_n: int, every_tile: bool) -> range:
    """The key blocks that a query block visits; v1 visits them all."""
    count = math.ceil(problem.seq_len_kv / block_n)
    if problem.causal and not every_tile:
        seen = min((block + 1) * block_m, problem.seq_len_q) + problem.seq_len_kv - problem.seq_len_q
        count = min(count, max(0, math.ceil(seen / block_n)))
    return range(count)


def walk(problem: AttentionProblem, inputs: Inputs, block: int, tiles: TileConfig, normalised: bool) -> Walk:
    """The online softmax of one query block."""
    rows = block * tiles.block_m + np.arange(tiles.block_m)
    m, total = np.full(tiles.block_m, -np.inf), np.zeros(tiles.block_m)
    acc = np.zeros((tiles.block_m, problem.head_dim))
    key_blocks = list(visited(problem, block, tiles.block_m, tiles.block_n, normalised))
    frames: list[tuple[np.ndarray, ...]] = []
    for key_block in key_blocks:
        keys = key_block * tiles.block_n + np.arange(tiles.block_n)
        scores = scores_of(problem, inputs, rows, keys)
        risen = np.maximum(m, scores.max(1))
        safe = np.where(np.isneginf(risen), 0.0, risen)
        alpha, weights = np.exp(m - safe), np.exp(scores - safe[:, None])
        acc = alpha[:, None] * acc + weights @ inputs.v[np.minimum(keys, problem.seq_len_kv - 1)]
        total, m = alpha * total + weights.sum(1), risen
        held = acc / np.where(total == 0, 1.0, total)[:, None] if normalised else acc
        frames.append((scores, m, total, alpha, held))
    rows_of = [(tiles.block_m, width) for width in (tiles.block_n, problem.head_dim)]
    shapes = [rows_of[0], (tiles.block_m,), (tiles.block_m,), (tiles.block_m,), rows_of[1]]
    stacked = (np.reshape([frame[i] for frame in frames], (len(frames), *shape)) for i, shape in enumerate(shapes))
    return Walk(key_blocks, *stacked)


def risen_rows(problem: AttentionProblem, inputs: Inputs, tiles: TileConfig, normalised: bool, only: int | None) -> np.ndarray:
    """Rows whose maximum rose, by query and key block; only: the one query block to fill in, None for all."""
    query_blocks = math.ceil(problem.seq_len_q / tiles.block_m)
    found = np.full((query_blocks, math.ceil(problem.seq_len_kv / tiles.block_n)), -1)
    for block in range(query_blocks) if only is None else [only]:
        steps = walk(problem, inputs, block, tiles, normalised)
        before = np.concatenate([np.full_like(steps.m[:1], -np.inf), steps.m[:-1]])
        found[block, steps.key_blocks] = (steps.m > before).sum(1)
    return found


def bytes_of(values: np.ndarray, limit: float) -> np.ndarray:
    """0 to 254 for -limit to limit, 255 hidden: how a trace stores what is too much for float16."""
    seen = np.isfinite(values)
    return np.where(seen, np.rint((np.where(seen, values, 0.0) / limit + 1) * 127), 255).astype("u1")


def traced(
    kernel: str = "v2",
    problem: AttentionProblem = SMALL,
    block: int = 32,
    *,
    query_block: int | None = None,
    fp8: bool = False,
    loop_order: str = "query",
    as_bytes: bool = False,
    every: int = 1,
    whole_map: bool = True,
) -> Measurement:
    """A measurement in the interpreter with the probe `tiles`, its numbers from NumPy."""
    tiles = TileConfig(block_m=block, block_n=block, num_warps=4, num_stages=2, loop_order=loop_order)
    chosen = math.ceil(problem.seq_len_q / block) - 1 if query_block is None else query_block
    inputs, normalised = Inputs.of(problem), kernel == "v1"
    used = Inputs(_coarse(inputs.q), _coarse(inputs.k), inputs.v) if fp8 else inputs
    steps = walk(problem, used, chosen, tiles, normalised)
    exact = walk(problem, inputs, chosen, tiles, normalised).scores if fp8 else None
    kept = slice((len(steps.key_blocks) - 1) % every, None, every)
    trace = TileTrace(
        provenance="interpreted", batch_index=0, head=0, query_block=chosen, visited=len(steps.key_blocks), every=every,
        key_blocks=Array.of(steps.key_blocks[kept], "<i4"), normalised=normalised,
        **_array("scores", steps.scores[kept], as_bytes), **_array("acc", steps.acc[kept], as_bytes),
        m=Frames.of(steps.m[kept], "<f4"), l=Frames.of(steps.l[kept], "<f4"), alpha=Frames.of(steps.alpha[kept], "<f4"),
        rescaled_rows=Array.of(risen_rows(problem, used, tiles, normalised, None if whole_map else chosen), "<i4"),
        replay=replay(),
        exact_scores=None if exact is None else Frames.of(exact[kept], "<f2"),
        q_scale=Array.of(np.linspace(0.005, 0.01, block), "<f4") if fp8 else None,
        k_scale=Array.of(np.linspace(0.01, 0.02, steps.m[kept].size).reshape(-1, block), "<f4") if fp8 else None,
        fp8_errors=_errors(problem, inputs, used, steps, kept, chosen * block, block) if fp8 else None,
    )  # fmt: skip
    request = RunRequest(
        kernel=kernel, problem=problem, precision=Precision(fp8=fp8), tiles=tiles, probes=("accuracy", "tiles"),
        trace=TraceChoice(query_block=chosen),
    )  # fmt: skip
    return records.in_interpreter(
        kernel, request=request, tiles=tiles, tiles_trace=trace, latency=None, memory=None, compiled=()
    )


def _errors(
    problem: AttentionProblem, inputs: Inputs, used: Inputs, steps: Walk, kept: slice, first_row: int, block_m: int
) -> Fp8Errors:
    """What rounding cost that walk; its P is not rounded, and no operand has a scale."""
    inside = slice(first_row, min(first_row + block_m, problem.seq_len_q))
    of_inputs, rounded = (
        Block(problem, first_row, one.q[inside], lambda first, end, one=one: (one.k[first:end], one.v[first:end]))
        for one in (inputs, used)
    )
    frames = [values[kept, : inside.stop - first_row] for values in (steps.scores, steps.m, steps.l, steps.alpha, steps.acc)]
    output = frames[4][-1] / frames[2][-1][:, None] if len(frames[2]) else np.zeros_like(used.q[inside])
    stored = Stored(np.array(steps.key_blocks[kept], int), *frames, rises=None, output=output)
    ones = Scales(np.ones(problem.seq_len_q)[inside], np.ones(problem.seq_len_kv), np.ones(problem.head_dim))
    arithmetic = Arithmetic.of("v3", Precision(fp8=True), "interpreted")
    return fp8_errors(of_inputs, rounded, ones, arithmetic, stored, block_m, len(steps.key_blocks))


def _array(name: str, values: np.ndarray, as_bytes: bool) -> dict[str, object]:
    limit = float(np.abs(values[np.isfinite(values)]).max(initial=0.0)) or 1.0
    stored = Frames.of(bytes_of(values, limit), "|u1") if as_bytes else Frames.of(values, "<f2")
    return {name: stored, f"{name}_limit": limit}


def _coarse(values: np.ndarray) -> np.ndarray:
    """To four significant bits, as e4m3 has them, without its range."""
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.rint(fraction * 16) / 16, exponent)


def replay(passed: bool = True) -> Replay:
    """A proof's figures, made up."""
    return Replay(
        scores_error=2e-4, allowed_scores_error=1e-3, m_error=1e-7, l_error=3e-7, alpha_error=2e-7, acc_error=4e-4,
        allowed_error=2e-3, output_error=1.1e-3 if passed else 0.4, allowed_output_error=4e-3,
        allowed_because="bf16 rounds to 8 bits", passed=passed,
    )  # fmt: skip
