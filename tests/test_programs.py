"""Programs, tiles and waves, against counting them one by one."""

from __future__ import annotations

import itertools

import pytest

from app import programs
from kernels.problem import AttentionProblem, TileConfig
from tests import records_for_tests as records


def _tiles(block_m: int, block_n: int, loop_order: str = "query") -> TileConfig:
    return TileConfig(block_m=block_m, block_n=block_n, num_warps=4, num_stages=2, loop_order=loop_order)


def _visible_tiles(problem: AttentionProblem, tiles: TileConfig) -> int:
    """Tiles of one head with at least one (query, key) pair that is not masked, counted pair by pair."""
    offset = problem.seq_len_kv - problem.seq_len_q
    pairs = itertools.product(range(problem.seq_len_q), range(problem.seq_len_kv))
    return len({(i // tiles.block_m, j // tiles.block_n) for i, j in pairs if not problem.causal or j <= i + offset})


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("seq_len_q", "seq_len_kv"), [(1, 1), (64, 64), (65, 65), (100, 37), (37, 100), (96, 17)])
@pytest.mark.parametrize(("block_m", "block_n"), [(16, 16), (32, 16), (16, 64)])
def test_visited_tiles_are_those_that_see_something(
    causal: bool, seq_len_q: int, seq_len_kv: int, block_m: int, block_n: int
) -> None:
    problem = AttentionProblem(
        batch=2, num_heads=3, num_kv_heads=1, seq_len_q=seq_len_q, seq_len_kv=seq_len_kv, head_dim=64, causal=causal
    )
    tiles = _tiles(block_m, block_n)
    assert programs.visited_tiles("v2", problem, tiles) == 6 * _visible_tiles(problem, tiles)


def test_v1_visits_every_tile() -> None:
    assert programs.visited_tiles("v1", records.TINY, _tiles(64, 64)) == 2 * 4 * 4


def test_programs_a_launch() -> None:
    assert programs.count(records.LONG, _tiles(128, 128)) == 16 * 128
    assert programs.count(records.LONG, _tiles(128, 128, "key")) == 16


def test_waves_need_the_occupancy_of_the_same_gpu() -> None:
    assert programs.of(records.on_gpu()).waves == pytest.approx(2048 / 132)
    other = records.on_gpu(compiled=(records.report(capability=80),))
    assert programs.of(other).waves is None
    assert programs.of(records.on_gpu("native")) is None


def test_key_outer_is_explained_by_the_sms_it_leaves_idle() -> None:
    keyed = records.on_gpu("v1", tiles=records.TILES.model_copy(update={"loop_order": "key"}))
    (sentence, *_) = programs.why_slow(keyed)
    assert "16 programs" in sentence
    assert "of 132 SMs 116 have nothing to do" in sentence
    assert programs.why_slow(records.in_interpreter("v1")) == []


def test_causal_v1_is_explained_by_the_tiles_that_no_query_sees() -> None:
    # 16 heads of 128 × 128 tiles, of which each row of v2 visits one more than the row above.
    (sentence,) = programs.why_slow(records.on_gpu("v1", tiles=_tiles(128, 128)))
    assert f"all {16 * 128 * 128:,} tiles" in sentence
    assert f"{16 * 128 * 127 // 2:,} of them no query sees" in sentence
    assert programs.why_slow(records.on_gpu("v2", tiles=_tiles(128, 128))) == []
