"""Who ran where and when, written down by the kernel itself: the STAMP variant of a version, and its buffers.

As with TRACE only `if STAMP:` blocks are added. A program stores for every entry of its work (a query block of one head; in
v1's key-outer order a head) the SM that it runs on and the global clock before its first load and after its last store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer, smid

from kernels.block_order import WHOLE_HEAD, num_query_blocks
from kernels.problem import AttentionProblem, TileConfig
from kernels.registry import Refused
from kernels.tiles import INTERPRETED
from kernels.trace import TraceBuffers

_FIELDS = tl.constexpr(5)
# Where several warpgroups of a program stamp for themselves: SM, program, tiles, then start and end of each lane.
FIRST_LANE = 3
_NEVER = -1
_MOST_READS = 1 << 20
_STEPS_TO_SEE = 64


@triton.jit
def stamp_start():
    """The global clock, in ns; to be read before an entry's first load."""
    return globaltimer()


@triton.jit
def store_stamp(stamps_ptr, entry, started_ns, tiles):
    """Store who computed an entry, where, from when to now; to be called after the entry's last store.

    The barrier holds the clock back: every warp has issued its stores when it opens, and neither LLVM nor ptxas moves a
    store or the volatile read of a special register across it.
    """
    tl.debug_barrier()
    ended_ns = globaltimer()
    place = stamps_ptr + entry.to(tl.int64) * _FIELDS
    tl.store(place, smid().to(tl.int64))
    tl.store(place + 1, tl.program_id(0).to(tl.int64))
    tl.store(place + 2, started_ns)
    tl.store(place + 3, ended_ns)
    tl.store(place + 4, tiles)


@dataclass(frozen=True)
class Stamps:
    """What a stamped launch wrote: P entries, sorted by head, then block, each array (P,).

    sm: %smid. program: its place in the grid. start_ns, end_ns: %globaltimer, from the earliest start, int64; it moves in
    steps of measure_tick_ns(). head: batch · head. block: the query block, or WHOLE_HEAD. tiles: key tiles it computed.
    group_start_ns, group_end_ns (P, G), where a program's warpgroups stamp for themselves: the last is the producer, an entry
    starts with the first of the others and ends with the last of them, and the earliest stamp may be a producer's.
    """

    sm: np.ndarray
    program: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    head: np.ndarray
    block: np.ndarray
    tiles: np.ndarray
    group_start_ns: np.ndarray | None = None
    group_end_ns: np.ndarray | None = None


def lane_fields(lanes: int) -> int:
    """How many numbers an entry takes of which so many lanes stamp."""
    return FIRST_LANE + 2 * lanes


@dataclass(frozen=True)
class StampBuffers:
    """Where a stamped launch writes; forward() takes it as `stamps`. Allocate with on().

    lanes: the warpgroups of a program, its producer among them, where each stamps for itself; else 1.
    """

    problem: AttentionProblem
    tiles: TileConfig
    stamps: torch.Tensor
    lanes: int = 1

    @staticmethod
    def on(device: torch.device | str, problem: AttentionProblem, tiles: TileConfig, lanes: int = 1) -> StampBuffers:
        """Buffers for every entry of a launch of the problem in these tiles. Raises Refused in the interpreter."""
        _require_clock()
        whole = tiles.loop_order == "key"
        entries = problem.batch * problem.num_heads * (1 if whole else num_query_blocks(problem, tiles))
        fields = _FIELDS.value if lanes == 1 else lane_fields(lanes)
        stamps = torch.full((entries, fields), _NEVER, dtype=torch.int64, device=device)
        return StampBuffers(problem, tiles, stamps, lanes)

    @property
    def arguments(self) -> torch.Tensor:
        """What a kernel takes as `stamps`."""
        return self.stamps

    def read(self) -> Stamps:
        """The stamps of the last launch; waits for it. Raises RuntimeError where an entry was not stamped."""
        found = self.stamps.cpu().numpy()
        missing = int((found == _NEVER).any(axis=1).sum())
        if missing:
            raise RuntimeError(f"{missing:,} of {len(found):,} entries were not stamped: was this launched?")
        groups = {}
        if self.lanes == 1:
            sm, program, start_ns, end_ns, tiles = found.T
            first_ns = start_ns.min()
        else:
            sm, program, tiles = found.T[:FIRST_LANE]
            starts, ends = found[:, FIRST_LANE::2], found[:, FIRST_LANE + 1 :: 2]
            start_ns, end_ns, first_ns = starts[:, :-1].min(axis=1), ends[:, :-1].max(axis=1), starts.min()
            groups = {"group_start_ns": starts - first_ns, "group_end_ns": ends - first_ns}
        heads = self.problem.batch * self.problem.num_heads
        whole = self.tiles.loop_order == "key"
        blocks = np.array([WHOLE_HEAD]) if whole else np.arange(num_query_blocks(self.problem, self.tiles))
        return Stamps(
            sm=sm.astype(np.int32), program=program.astype(np.int32), start_ns=start_ns - first_ns,
            end_ns=end_ns - first_ns, head=np.repeat(np.arange(heads, dtype=np.int32), len(blocks)),
            block=np.tile(blocks.astype(np.int32), heads), tiles=tiles.astype(np.int32), **groups,
        )  # fmt: skip


def watched(trace: TraceBuffers | None, stamps: StampBuffers | None) -> dict[str, Any]:
    """The arguments by which a kernel is launched traced, stamped or, without either, as it is timed.

    Raises ValueError for both at once, as a trace's stores would be in the stamped times.
    """
    if trace is not None and stamps is not None:
        raise ValueError("trace and stamps in one launch are not possible: launch one after the other.")
    return {
        "trace": None if trace is None else trace.arguments, "TRACE": trace is not None,
        "stamps": None if stamps is None else stamps.arguments, "STAMP": stamps is not None,
    }  # fmt: skip


@triton.jit
def _smallest_step(step_ptr, STEPS: tl.constexpr, MOST_READS: tl.constexpr):
    before_ns = globaltimer()
    smallest_ns = before_ns * 0
    steps = 0
    reads = 0
    while (steps < STEPS) & (reads < MOST_READS):
        now_ns = globaltimer()
        step_ns = now_ns - before_ns
        if step_ns > 0:
            smallest_ns = tl.where((steps == 0) | (step_ns < smallest_ns), step_ns, smallest_ns)
            steps += 1
        before_ns = now_ns
        reads += 1
    tl.store(step_ptr, smallest_ns)


def measure_tick_ns(device: torch.device | str) -> int:
    """The smallest step, not 0, in which %globaltimer was seen to move: 32 on an H200.

    Raises Refused in the interpreter, RuntimeError if the clock stands still.
    """
    _require_clock()
    step_ns = torch.zeros(1, dtype=torch.int64, device=device)
    _smallest_step[(1,)](step_ns, _STEPS_TO_SEE, _MOST_READS, num_warps=1)
    if not int(step_ns):
        raise RuntimeError(f"%globaltimer did not move in {_MOST_READS:,} reads.")
    return int(step_ns)


def _require_clock() -> None:
    if INTERPRETED:
        raise Refused("stamps are not possible in the interpreter: only a GPU has SMs and a clock to read.")
