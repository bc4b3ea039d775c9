"""Stamps of an H200, to hold the facts and the scheduler's model against.

tests/stamps_h200.npz has an int32 array a launch, (3, entries): SM, start and duration in steps of 32 ns of %globaltimer, by
head, then query block. 132 SMs, bf16, batch 1, 16 heads, head_dim 128, Triton 3.6.0, torch 2.11. Those named sketch_ were
written by a plain forward whose heads follow each other, the others by this project's versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernels.block_order import order_of
from kernels.problem import AttentionProblem, TileConfig
from profiling.launched_work import Work
from profiling.list_scheduling import Machine
from profiling.timetable import Timetable

SMS = 132
TICK_NS = 32
_LARGE = TileConfig(block_m=128, block_n=128, num_warps=8, num_stages=3)
_SMALL = TileConfig(block_m=64, block_n=64, num_warps=4, num_stages=3)
_KEY_OUTER = TileConfig(block_m=64, block_n=32, num_warps=8, num_stages=1, loop_order="key")

SKETCHES = (
    "sketch_4096_causal_natural", "sketch_4096_causal_heaviest", "sketch_4096_full_natural", "sketch_16384_causal_natural",
    "sketch_16384_causal_heaviest",
)  # fmt: skip
NAMES = (
    *SKETCHES,
    "v2_16384_causal_natural", "v2_16384_causal_heaviest", "v2_16384_causal_zigzag", "v2_16384_causal_natural_x132",
    "v2_4096_causal_natural", "v2_4096_causal_heaviest", "v2_4096_causal_zigzag", "v2_4096_causal_natural_x132",
    "v2_4096_causal_natural_x264", "v3_16384_causal_natural", "v3_16384_causal_heaviest", "v1_4096_causal_default",
)  # fmt: skip


@dataclass(frozen=True)
class Recorded:
    """A launch: what it computed, on what, and its stamps. programs_per_sm: by the compiler's figures."""

    work: Work
    machine: Machine
    table: Timetable


def recorded(name: str) -> Recorded:
    """A launch by its name: version, tokens, mask, order of blocks, and x with how many persistent programs there were."""
    version, tokens, mask, order, *grid = name.split("_")
    problem = AttentionProblem(seq_len_q=int(tokens), seq_len_kv=int(tokens), causal=mask == "causal")
    small = version == "v3" or tokens == "4096"
    tiles = _LARGE if version == "sketch" else _KEY_OUTER if version == "v1" else _SMALL if small else _LARGE
    tiles = tiles.model_copy(update={"block_order": order, "num_programs": int(grid[0][1:]) if grid else None})
    work = Work(problem, "v2" if version == "sketch" else version, tiles)
    machine = Machine(SMS, 2 if tiles.block_m == 64 and version != "v1" else 1)
    with np.load(Path(__file__).with_name("stamps_h200.npz"), allow_pickle=False) as file:
        sm, start, duration = file[name]
    return Recorded(work, machine, _table(work, version == "sketch", sm, start * float(TICK_NS), duration * float(TICK_NS)))


def _table(work: Work, head_after_head: bool, sm: np.ndarray, start_ns: np.ndarray, duration_ns: np.ndarray) -> Timetable:
    order = order_of(work.problem, work.tiles, work.version)
    if head_after_head:
        order = order[np.argsort(order[:, 0], kind="stable")]
    back = np.lexsort((order[:, 1], order[:, 0]))
    program = (np.arange(len(order)) % work.programs)[back]
    return Timetable(
        "measured", SMS, TICK_NS, sm, program, start_ns, start_ns + duration_ns, order[back, 0], order[back, 1],
        work.tile_counts.ravel(),
    )  # fmt: skip
