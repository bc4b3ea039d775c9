"""What a launch computes, as a scheduler sees it: pieces of work, their order, their tiles. Pure: numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.architecture import architecture
from kernels.block_order import DEALT_OVERHEAD_KEYS, deal, grid_of, num_query_blocks, order_of
from kernels.problem import AttentionProblem, Precision, TileConfig
from kernels.registry import refuse, version
from profiling.schedule_record import num_entries, require_possible
from profiling.tile_trace import visited_tiles

_PLAIN = Precision()
_HOPPER = 90


@dataclass(frozen=True)
class Work:
    """What is computed: the problem, the version's name, its tiles with their block_order and num_programs, the precision.

    Raises ValueError, in one sentence, for what the version cannot do, and for more entries than a schedule has.
    """

    problem: AttentionProblem
    version: str
    tiles: TileConfig
    precision: Precision = _PLAIN

    def __post_init__(self) -> None:
        if not version(self.version).has_tiles:
            raise ValueError(f"a schedule of {self.version} is not possible: only our kernels' order of blocks is known.")
        # Any GPU will do: what is asked here is whether the version has such an order.
        refuse(self.version, self.problem, self.precision, self.tiles, architecture(_HOPPER))
        require_possible(self.problem, self.tiles)

    @property
    def num_entries(self) -> int:
        """How many pieces of work there are."""
        return num_entries(self.problem, self.tiles)

    @property
    def order(self) -> np.ndarray:
        """(P, 2): batch · head and query block of each entry, in the order in which they are launched."""
        return order_of(self.problem, self.tiles, self.version, self.precision.fp8)

    @property
    def is_dealt(self) -> bool:
        """Whether the version deals its blocks out itself, to one program an SM."""
        return version(self.version).deals_blocks

    @property
    def programs(self) -> int:
        """How many programs are launched, of a version that does not deal its blocks out."""
        return self.num_entries if self.tiles.loop_order == "key" else grid_of(self.problem, self.tiles)[0]

    def dealt(self, sm_count: int) -> list[list[int]]:
        """Each program's entries, by their place in `order`, of a version that deals its blocks out on so many SMs."""
        order = self.order
        keys = self.tile_counts[order[:, 0], order[:, 1]] * self.tiles.block_n
        return deal((keys + DEALT_OVERHEAD_KEYS).tolist(), min(sm_count, self.num_entries))

    @property
    def tile_counts(self) -> np.ndarray:
        """(heads, blocks) key tiles of each piece of work; (heads, 1), all tiles of a head, where a program takes it whole."""
        blocks = num_query_blocks(self.problem, self.tiles)
        counts = np.array([visited_tiles(self.version, self.problem, self.tiles, block) for block in range(blocks)])
        if self.tiles.loop_order == "key":
            counts = counts.sum(keepdims=True)
        return np.broadcast_to(counts, (self.problem.batch * self.problem.num_heads, counts.size))
