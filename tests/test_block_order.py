"""Orders of query blocks: the arithmetic that kernels and scheduler share, against lists made the plain way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque

import pytest

from kernels import block_order
from kernels.block_order import WHOLE_HEAD, chosen_order, grid_of, heads_per_section, order_of
from kernels.problem import AttentionProblem, TileConfig
from tests.conftest import ROOT

ORDERS = ("natural", "heaviest", "zigzag")
SIZES = [
    (blocks, heads, section) for blocks in (1, 2, 3, 4, 7, 16) for heads in (1, 2, 3, 5) for section in range(1, heads + 1)
]
TILES = TileConfig(block_m=16, block_n=16, num_warps=4, num_stages=1)


def in_turn(blocks: int, order: str) -> list[int]:
    """The blocks of one head by weight, the last being the heaviest."""
    left = deque(range(blocks))
    if order == "heaviest":
        return list(reversed(left))
    found = []
    while left:
        found.append(left.pop())
        if left:
            found.append(left.popleft())
    return found


def listed(blocks: int, heads: int, section: int, order: str) -> list[tuple[int, int]]:
    """(head, block) of every entry, by loops."""
    if order == "natural":
        return [(head, block) for head in range(heads) for block in range(blocks)]
    found = []
    for first in range(0, heads, section):
        for block in in_turn(blocks, order):
            found += [(head, block) for head in range(first, min(first + section, heads))]
    return found


def problem_of(blocks: int, heads: int, **fields) -> AttentionProblem:
    return AttentionProblem(
        **{"num_heads": heads, "num_kv_heads": 1, "seq_len_q": 16 * blocks - 3, "seq_len_kv": 64, "head_dim": 32, **fields}
    )


def pairs(found) -> list[tuple[int, int]]:
    return [tuple(pair) for pair in found.tolist()]


@pytest.mark.parametrize("order", ORDERS)
def test_the_order_is_the_list_made_by_loops(monkeypatch, order):
    for blocks, heads, section in SIZES:
        problem = problem_of(blocks, heads)
        monkeypatch.setattr(block_order, "_SECTION_BYTES", section * 2 * 64 * 32 * 2)
        found = pairs(order_of(problem, TILES.model_copy(update={"block_order": order}), "v2"))
        assert found == listed(blocks, heads, section, order), (blocks, heads, section)
        assert len(set(found)) == len(found) == blocks * heads


@pytest.fixture(scope="module")
def of_kernels() -> list[list[tuple[int, int]]]:
    """What kernels.tiles.query_block_at gives for every index of every size in every order."""
    questions = [(*size, order) for size in SIZES for order in ORDERS]
    child = subprocess.run(
        [sys.executable, "-m", "tests.ordered_blocks"], cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1"},
        input=json.dumps(questions), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    return [[tuple(pair) for pair in found] for found in json.loads(child.stdout)]


def test_the_kernels_go_in_that_order(of_kernels):
    questions = [(*size, order) for size in SIZES for order in ORDERS]
    assert len(of_kernels) == len(questions)
    for question, found in zip(questions, of_kernels, strict=True):
        assert found == listed(*question), question


def test_sections_hold_what_the_l2_cache_does():
    problem = AttentionProblem(seq_len_q=16384, seq_len_kv=16384, causal=True)
    assert heads_per_section(problem, 2) == 4  # K and V of a head are 8 MiB
    assert heads_per_section(problem, 1) == 8
    assert heads_per_section(problem.model_copy(update={"seq_len_kv": 1 << 20}), 2) == 1
    assert heads_per_section(problem.model_copy(update={"seq_len_kv": 64}), 2) == 16
    tiles = TILES.model_copy(update={"block_m": 128})
    for fp8, section in ((False, 4), (True, 8)):
        assert pairs(order_of(problem, tiles, "v3", fp8)) == listed(128, 16, section, "heaviest")


def test_default_is_the_version_s_own_order():
    for causal, own in ((True, "heaviest"), (False, "natural")):
        problem = problem_of(5, 3, causal=causal)
        assert chosen_order(problem, TILES) == own
        assert pairs(order_of(problem, TILES, "v2")) == listed(5, 3, 3, own)
        assert pairs(order_of(problem, TILES, "v1")) == listed(5, 3, 3, "natural")


def test_a_key_outer_program_has_a_head():
    tiles = TILES.model_copy(update={"loop_order": "key"})
    assert pairs(order_of(problem_of(5, 3, batch=2), tiles, "v1")) == [(head, WHOLE_HEAD) for head in range(6)]


@pytest.mark.parametrize(("num_programs", "launched"), [(None, 15), (1, 1), (4, 4), (15, 15), (16, 15), (65536, 15)])
def test_no_more_programs_than_blocks_are_launched(num_programs, launched):
    assert grid_of(problem_of(5, 3), TILES.model_copy(update={"num_programs": num_programs})) == (launched,)
