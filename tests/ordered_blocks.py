"""A child process with TRITON_INTERPRET set: what query_block_at says, for a JSON list of (blocks, heads, section, order)."""

import json
import sys

import torch
import triton
import triton.language as tl

from kernels.tiles import query_block_at


@triton.jit
def list_blocks(found_ptr, num_blocks, heads, section, COUNT: tl.constexpr, ORDER: tl.constexpr):
    index = tl.arange(0, COUNT)
    block, head = query_block_at(index, num_blocks, heads, section, ORDER)
    tl.store(found_ptr + 2 * index, head)
    tl.store(found_ptr + 2 * index + 1, block)


def answer(blocks: int, heads: int, section: int, order: str) -> list[list[int]]:
    """(head, block) of every index."""
    count = triton.next_power_of_2(blocks * heads)
    found = torch.full((count, 2), -1, dtype=torch.int32)
    list_blocks[(1,)](found, blocks, heads, section, count, order)
    return found[: blocks * heads].tolist()


if __name__ == "__main__":
    torch.set_num_threads(1)
    json.dump([answer(*question) for question in json.load(sys.stdin)], sys.stdout)
