"""In which order a launch goes through the query blocks of all heads, said without launching it. Pure: numpy.

The kernels compute the same in kernels.tiles.query_block_at; sections, and how many programs there are, come from here.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import numpy as np

from kernels.problem import AttentionProblem, BlockOrder, TileConfig

WHOLE_HEAD = -1
"""The block of a program that goes through all query blocks of its head (v1's key-outer order)."""
DEALT_OVERHEAD_KEYS = 150
"""What starting and ending a block costs, in keys, where a version deals its blocks out itself (v3-hopper)."""
_SECTION_BYTES = 32 << 20


def num_query_blocks(problem: AttentionProblem, tiles: TileConfig) -> int:
    """Query blocks of one head, the last of which may be ragged."""
    return -(-problem.seq_len_q // tiles.block_m)


def heads_per_section(problem: AttentionProblem, element_bytes: int) -> int:
    """How many heads (batch · head) run beside each other: those whose K and V lie in the L2 cache together; at least 1.

    element_bytes: of K and V as the kernel reads them, 1 when quantised to FP8.
    """
    bytes_a_head = 2 * problem.seq_len_kv * problem.head_dim * element_bytes
    return max(1, min(problem.batch * problem.num_heads, _SECTION_BYTES // bytes_a_head))


def chosen_order(problem: AttentionProblem, tiles: TileConfig) -> BlockOrder:
    """natural, heaviest or zigzag: what tiles.block_order means where 'default' is the order that v2 and v3 have alone."""
    if tiles.block_order == "default":
        return "heaviest" if problem.causal else "natural"
    return tiles.block_order


def grid_of(problem: AttentionProblem, tiles: TileConfig) -> tuple[int]:
    """How many programs a version that takes one query block at a time is launched with; never more than there are blocks."""
    blocks = num_query_blocks(problem, tiles) * problem.batch * problem.num_heads
    return (blocks if tiles.num_programs is None else min(tiles.num_programs, blocks),)


def order_of(problem: AttentionProblem, tiles: TileConfig, version: str, fp8: bool = False) -> np.ndarray:
    """(entries, 2) int64: batch · head and query block of every piece of work, in the order in which they are numbered.

    Without num_programs entry i is program i, and programs start in that order as room gets free. In a persistent grid of G
    programs (grid_of) entry i is the (i // G)-th of program i % G. v1 key-outer has one entry a head, of block WHOLE_HEAD.
    fp8: whether K and V are quantised, as the section's heads are then twice as many. v3-hopper deals its entries out in this
    order, with deal(); its sections are counted by key-value heads.
    """
    heads = problem.batch * problem.num_heads
    if version == "v1" and tiles.loop_order == "key":
        return np.stack([np.arange(heads), np.full(heads, WHOLE_HEAD)], axis=1)
    blocks = num_query_blocks(problem, tiles)
    order: BlockOrder = "natural" if version == "v1" else chosen_order(problem, tiles)
    if order == "natural":
        return np.stack([np.repeat(np.arange(heads), blocks), np.tile(np.arange(blocks), heads)], axis=1)
    in_turn = _heaviest_first(blocks) if order == "heaviest" else _zigzag(blocks)
    size = heads_per_section(problem, 1 if fp8 and version != "v3-hopper" else 2)
    if version == "v3-hopper":
        size *= problem.num_heads // problem.num_kv_heads
    sections = [np.arange(first, min(first + size, heads)) for first in range(0, heads, size)]
    return np.concatenate(
        [np.stack([np.tile(section, blocks), np.repeat(in_turn, len(section))], axis=1) for section in sections]
    )


def deal(costs: Iterable[float], programs: int) -> list[list[int]]:
    """Each program's entries: entry after entry goes to whichever program would be done first, as a GPU would hand them out."""
    free = [(0.0, program) for program in range(programs)]
    mine: list[list[int]] = [[] for _ in range(programs)]
    for entry, cost in enumerate(costs):
        busy, program = free[0]
        mine[program].append(entry)
        heapq.heapreplace(free, (busy + cost, program))
    return mine


def _heaviest_first(blocks: int) -> np.ndarray:
    """When causal a later block sees more keys, and never fewer."""
    return np.arange(blocks)[::-1]


def _zigzag(blocks: int) -> np.ndarray:
    """Heaviest, lightest, second heaviest, second lightest, and so on."""
    in_turn = np.empty(blocks, np.int64)
    in_turn[0::2] = _heaviest_first(blocks)[: (blocks + 1) // 2]
    in_turn[1::2] = np.arange(blocks // 2)
    return in_turn
