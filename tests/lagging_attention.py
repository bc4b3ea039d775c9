"""v3-hopper's arithmetic in NumPy, for tests alone: key tiles from the last down, m a warp at a time and only when it must.

Written from the rule as the paper trail has it (m moves in a warp when a row of its 16 exceeds it by more than 8 in log2), in
float32 and in log2 as the kernel holds them, and stored as its traced variant stores it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch

from kernels.kernel import Operands
from kernels.problem import AttentionProblem, Precision, TileConfig
from kernels.trace import MAXIMA
from profiling import tile_trace
from profiling.records import Measurement, RunRequest
from profiling.replay import ROWS_A_WARP, Arithmetic, Block, Stored, rounded_to
from profiling.trace_record import TileTrace, TraceChoice
from tests import records_for_tests as records

PROBLEM = AttentionProblem(num_heads=1, num_kv_heads=1, seq_len_q=200, seq_len_kv=230, head_dim=64, causal=True)
ALL_SEEN = PROBLEM.model_copy(update={"causal": False})
BLOCK_M, BLOCK_N = 128, 32
TILES = TileConfig(block_m=BLOCK_M, block_n=BLOCK_N, num_warps=8, num_stages=2)
LAG_LOG2 = 8.0


@dataclass(frozen=True)
class Faults:
    """What a broken kernel does at the tile with this place in the order visited, to the rows of its first warp."""

    place: int = -1
    moves_without_cause: bool = False
    keeps_though_exceeded: bool = False
    skips_rescale: bool = False


class LaggingKernel:
    """One query block of one head. spread: how far apart scores lie; ramp: what a key adds to the score of each before it."""

    def __init__(
        self,
        problem: AttentionProblem = PROBLEM,
        query_block: int = 1,
        spread: float = 1.0,
        ramp: float = 0.0,
        dtype: str = "bf16",
    ) -> None:
        self.problem, self.query_block = problem, query_block
        self.arithmetic = Arithmetic.of("v3-hopper", Precision(dtype=dtype), "measured")
        rng = np.random.default_rng(11)
        q, k, v = (rng.standard_normal((n, problem.head_dim)) for n in (problem.seq_len_q, *[problem.seq_len_kv] * 2))
        q[:, 0], k[:, 0] = problem.head_dim**0.5, -ramp * np.arange(problem.seq_len_kv)
        self.q, self.k, self.v = (rounded_to(dtype, x) for x in (q * spread, k, v))
        self.first = query_block * BLOCK_M
        self.rows = slice(self.first, min(self.first + BLOCK_M, problem.seq_len_q))
        self.block = Block(problem, self.first, self.q[self.rows], lambda a, b: (self.k[a:b], self.v[a:b]))
        end = problem.seq_len_kv
        if problem.causal:
            end = min(end, max(self.rows.stop + problem.seq_len_kv - problem.seq_len_q, 1))
        self.visited = math.ceil(end / BLOCK_N)

    def scores(self, key_block: int) -> np.ndarray:
        """S without sm_scale, float32; a row past the last query is zeros, as the copy engine pads it."""
        rows, keys = self.first + np.arange(BLOCK_M), key_block * BLOCK_N + np.arange(BLOCK_N)
        q = np.where((rows < self.problem.seq_len_q)[:, None], self.q[np.minimum(rows, self.problem.seq_len_q - 1)], 0.0)
        s = (q @ self.k[np.minimum(keys, self.problem.seq_len_kv - 1)].T).astype(np.float32)
        seen = np.broadcast_to(keys < self.problem.seq_len_kv, s.shape)
        if self.problem.causal:
            seen = seen & (keys <= rows[:, None] + self.problem.seq_len_kv - self.problem.seq_len_q)
        return np.where(seen, s, np.float32(-np.inf))

    def run(self, faults: Faults | None = None, eager: bool = False) -> Stored:
        """What the traced variant stores; eager: of one that moves m at every new maximum."""
        f32, faults = np.float32, faults or Faults()
        scale = f32(self.problem.sm_scale * 1.4426950408889634)
        m, l = np.full(BLOCK_M, -np.inf, f32), np.zeros(BLOCK_M, f32)  # noqa: E741
        acc = np.zeros((BLOCK_M, self.problem.head_dim), f32)
        frames, maxima = [], np.zeros((self.visited, MAXIMA, BLOCK_M), f32)
        rises = np.full(math.ceil(self.problem.seq_len_kv / BLOCK_N), -1)
        first_warp = np.arange(BLOCK_M) < ROWS_A_WARP
        order = range(self.visited - 1, -1, -1)
        for place, key_block in enumerate(order):
            s = self.scores(key_block)
            row_max = s.max(1) * scale
            with np.errstate(invalid="ignore"):
                ahead = row_max - m > f32(0.0 if eager else LAG_LOG2)
            moves = np.repeat(ahead.reshape(-1, ROWS_A_WARP).any(1), ROWS_A_WARP)
            here = first_warp & (place == faults.place)
            moves = (moves | (here & faults.moves_without_cause)) & ~(here & faults.keeps_though_exceeded)
            m_new = np.where(moves, np.maximum(m, row_max), m)
            safe = np.where(m_new == -np.inf, f32(0), m_new)
            alpha = np.exp2(m - safe)
            p = np.exp2(s * scale - safe[:, None])
            l = l * alpha + p.sum(1)  # noqa: E741
            keys = slice(key_block * BLOCK_N, min((key_block + 1) * BLOCK_N, self.problem.seq_len_kv))
            weights = rounded_to(self.arithmetic.weights, p.astype(np.float64))[:, : keys.stop - keys.start]
            kept_by_fault = here & faults.skips_rescale
            acc = acc * np.where(kept_by_fault, f32(1), alpha)[:, None] + (weights @ self.v[keys]).astype(f32)
            inside = self.first + np.arange(BLOCK_M) < self.problem.seq_len_q
            rises[key_block] = int(((m_new > m) & inside).sum())
            maxima[place] = m_new, row_max, moves & ~kept_by_fault
            m = m_new
            frames.append((s * f32(self.problem.sm_scale), m * f32(np.log(2.0)), l, alpha, acc))
        return self._stored(order, frames, maxima, rises)

    def _stored(self, order: range, frames: list[tuple[np.ndarray, ...]], maxima: np.ndarray, rises: np.ndarray) -> Stored:
        count = self.rows.stop - self.first
        scores, m, l, alpha, acc = (np.stack(one).astype(np.float32)[:, :count] for one in zip(*frames, strict=True))  # noqa: E741
        out = rounded_to(self.arithmetic.output, acc[-1].astype(float) / np.where(l[-1] == 0, 1, l[-1])[:, None])
        return Stored(np.array(order), scores, m, l, alpha, acc, rises=rises, output=out.astype(np.float32), maxima=maxima)

    def operands(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k, v (1, 1, seq_len, head_dim) as the kernel would be given them."""
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[self.arithmetic.output]
        return tuple(torch.from_numpy(x).to(dtype)[None, None] for x in (self.q, self.k, self.v))


class TracedModel:
    """The model in a version's place (kernels.kernel.Kernel), for profiling.tile_trace.take: it fills a trace's buffers."""

    def __init__(self, kernel: LaggingKernel) -> None:
        self._kernel = kernel

    def forward(self, operands, problem, tiles, launch, with_lse=True, trace=None, stamps=None) -> None:
        """Store the chosen block's tiles as the kernel does: by key block, in log2, S without sm_scale."""
        stored = self._kernel.run()
        _, every, first = trace.choice[1:].tolist()
        trace.maxima[: self._kernel.visited] = torch.from_numpy(stored.maxima[::-1].copy())
        trace.rises[trace.query_block] = torch.from_numpy(stored.rises)
        for place, key_block in enumerate(stored.key_blocks):
            if key_block % every == first:
                parts = [
                    self._kernel.scores(key_block),
                    stored.maxima[place, 0],
                    stored.l[place],
                    stored.alpha[place],
                    stored.acc[place],
                ]
                rows = [np.pad(x, ((0, BLOCK_M - len(x)), *[(0, 0)] * (x.ndim - 1))).ravel() for x in parts]
                trace.frames[key_block // every] = torch.from_numpy(np.concatenate(rows))

    def frames(self, trace, operands, problem):
        """The kernel's own reading of what was stored."""
        from kernels.flash_v3_hopper import frames

        return frames(trace, operands, problem)


def request_of(kernel: LaggingKernel) -> RunRequest:
    """What asks for a trace of the model's query block."""
    return RunRequest(
        kernel="v3-hopper", problem=kernel.problem, tiles=TILES, device=records.GPU_ID, probes=("accuracy", "tiles"),
        trace=TraceChoice(query_block=kernel.query_block),
    )  # fmt: skip


@cache
def taken(ramp: float, every: int = 1, causal: bool = True) -> tuple[TileTrace, LaggingKernel]:
    """The record that profiling.tile_trace makes of the model in a kernel's place, and the model."""
    kernel = LaggingKernel(PROBLEM if causal else ALL_SEEN, ramp=ramp)
    q, k, v = kernel.operands()
    subject = tile_trace.Subject(
        request_of(kernel), TILES, TracedModel(kernel), None, Operands(q, k, v, dtype=q.dtype), (q, k, v)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile_trace, "MOST_TILES", -(-kernel.visited // every))
        return tile_trace.take(subject, kernel.run().output, "measured"), kernel


def measured(ramp: float = 0.05, causal: bool = True) -> Measurement:
    """A measurement on a GPU with that trace."""
    trace, kernel = taken(ramp, causal=causal)
    return records.on_gpu(
        "v3-hopper", request=request_of(kernel), tiles=TILES, tiles_trace=trace, latency=None, memory=None, compiled=()
    )
