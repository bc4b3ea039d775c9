"""The record of a stamped launch: who ran where and when. Pure: pydantic and numpy."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from kernels.block_order import WHOLE_HEAD, num_query_blocks
from kernels.problem import AttentionProblem, Frozen, TileConfig
from profiling.record_types import Array

MOST_ENTRIES = 65_536
MOST_SAMPLES = 1000
# Several times what any GPU has, so that a file cannot ask for lanes without end.
MOST_SMS = 1024
MOST_PROGRAMS_PER_SM = 64
# 16 warpgroups are as many as a program can have; the last is its producer.
MOST_GROUPS = 17


class Schedule(Frozen):
    """Who ran where and when, as every program of a stamped variant of the kernel wrote it down itself.

    An entry is one query block of one head; a program has one, a persistent one several, and one of v1's key-outer order a
    whole head (block WHOLE_HEAD). The P entries are sorted by head, then block. sm: %smid. program: its place in the grid.
    start_ns, end_ns: %globaltimer, from the earliest start; it moves in steps of tick_ns, which is their error. head: batch ·
    head. tiles: key tiles that the entry computed. plain_ms, stamped_ms: the kernel as it is timed and the stamped variant,
    launched in turn, pair by pair; the stamps are those of a launch of about median time. programs_per_sm: the most that fit
    on an SM at once by what the compiler says of the stamped variant.
    group_start_ns, group_end_ns (P, G): where a program's warpgroups stamp for themselves, from when to when each was at the
    entry; the last one is the producer, which only loads. start_ns and end_ns are then those of the first and the last of the
    others, so that an entry may begin while the program's one before it is not quite done; and the earliest stamp may be a
    producer's.
    """

    provenance: Literal["measured"] = "measured"
    tick_ns: Annotated[int, Field(ge=1, le=100_000_000)]
    sm: Array
    program: Array
    start_ns: Array
    end_ns: Array
    head: Array
    block: Array
    tiles: Array
    plain_ms: Array
    stamped_ms: Array
    programs_per_sm: Annotated[int, Field(ge=1, le=MOST_PROGRAMS_PER_SM)]
    group_start_ns: Array | None = None
    group_end_ns: Array | None = None

    @model_validator(mode="after")
    def _whole(self) -> Schedule:
        entries = self.sm.series("sm")
        if not 1 <= entries <= MOST_ENTRIES:
            raise ValueError(f"a schedule of {entries:,} entries is not possible: it can have 1 to {MOST_ENTRIES:,}.")
        for name in ("sm", "program", "start_ns", "end_ns", "head", "block", "tiles"):
            array = getattr(self, name)
            if array.series(name) != entries or array.dtype != "<i4":
                raise ValueError(f"{name} of shape {array.shape} and {array.dtype} is not possible beside {entries:,} entries.")
            if array.numpy().min() < (WHOLE_HEAD if name == "block" else 0):
                raise ValueError(f"{name} = {array.numpy().min()} is not possible in a schedule.")
        if self.sm.numpy().max() >= MOST_SMS:
            raise ValueError(f"sm = {self.sm.numpy().max():,} is not possible in a schedule: it can be 0 to {MOST_SMS - 1:,}.")
        if (self.end_ns.numpy() < self.start_ns.numpy()).any():
            raise ValueError("an entry that ends before it starts is not possible.")
        self._require_groups(entries)
        for name in ("plain_ms", "stamped_ms"):
            samples = getattr(self, name)
            if (
                not 1 <= samples.series(name) <= MOST_SAMPLES
                or not 1e-12 <= samples.numpy().min() <= samples.numpy().max() <= 1e9
            ):
                raise ValueError(f"{name} of {samples.shape} launches, or of such times, is not possible.")
        if self.plain_ms.shape != self.stamped_ms.shape:
            plain, stamped = self.plain_ms.shape[0], self.stamped_ms.shape[0]
            raise ValueError(f"{plain:,} plain launches are not possible beside {stamped:,} stamped ones: they come in pairs.")
        return self

    def _require_groups(self, entries: int) -> None:
        """Raises ValueError unless there are no warpgroups' times, or both ends of all, which agree with the entries'."""
        both = (self.group_start_ns, self.group_end_ns)
        if both == (None, None):
            return
        if None in both:
            raise ValueError("warpgroups' starts are not possible without their ends, nor ends without starts.")
        start, end = self.group_start_ns.numpy(), self.group_end_ns.numpy()
        if {array.dtype for array in both} != {"<i4"} or start.shape != end.shape or start.ndim != 2:
            raise ValueError(f"warpgroups' times of shapes {start.shape} and {end.shape} are not possible.")
        if start.shape[0] != entries or not 2 <= start.shape[1] <= MOST_GROUPS:
            raise ValueError(f"{start.shape[1]} warpgroups of {start.shape[0]:,} entries are not possible beside {entries:,}.")
        if start.min() < 0 or (end < start).any():
            raise ValueError("a warpgroup that starts before the first stamp, or ends before it starts, is not possible.")
        first, last = start[:, :-1].min(axis=1), end[:, :-1].max(axis=1)
        if (first != self.start_ns.numpy()).any() or (last != self.end_ns.numpy()).any():
            raise ValueError("an entry starts with the first of its consumers and ends with the last: these do not.")

    def fits(self, problem: AttentionProblem, tiles: TileConfig) -> bool:
        """Whether every piece of this problem's work in these tiles is in it once."""
        if self.sm.shape[0] != num_entries(problem, tiles):
            return False
        heads = problem.batch * problem.num_heads
        blocks = np.arange(num_query_blocks(problem, tiles)) if tiles.loop_order == "query" else np.array([WHOLE_HEAD])
        return bool(
            (self.head.numpy() == np.repeat(np.arange(heads), len(blocks))).all()
            and (self.block.numpy() == np.tile(blocks, heads)).all()
        )


def num_entries(problem: AttentionProblem, tiles: TileConfig) -> int:
    """How many entries a launch's schedule has."""
    return problem.batch * problem.num_heads * (num_query_blocks(problem, tiles) if tiles.loop_order == "query" else 1)


def require_possible(problem: AttentionProblem, tiles: TileConfig) -> None:
    """Raise ValueError, in one sentence, where a launch has more entries than a schedule can hold."""
    entries = num_entries(problem, tiles)
    if entries > MOST_ENTRIES:
        raise ValueError(
            f"a schedule of {entries:,} pieces of work is not possible: it can have {MOST_ENTRIES:,}; larger tiles, or fewer "
            "heads or tokens, make fewer."
        )
