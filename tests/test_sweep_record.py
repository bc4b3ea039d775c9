"""A sweep's plan, its cells and what is known of them at once: without a compiler, a worker or a store."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from kernels.problem import Precision, TileConfig
from profiling.feasibility import cell as feasibility_cell
from profiling.feasibility_cache import FeasibilityCache
from profiling.record_types import first_sentence
from profiling.records import INTERPRETER
from profiling.sweep_cells import advice_for, cells_of, default_of, grid_of, known_of, outlook, place_of
from profiling.sweep_record import CellOutcome, Sweep, SweepPlan, key_of, problems_of, snippet
from tests.sweeps_for_tests import measured, plan, sweep


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kernels": ("native",)}, "kernel = native is not possible in a sweep: it has no tiles to choose."),
        ({"kernels": ("v9",)}, "kernel = v9 is not known: it can be"),
        ({"block_m": (48,)}, "BLOCK_M = 48 is not possible: it can be 16, 32, 64, 128, 192, 256 or 512."),
        ({"num_warps": (3,)}, "num_warps = 3 is not possible: it can be 1, 2, 4, 8, 12 or 16."),
        ({"num_stages": (2, 2)}, "num_stages with the same value twice is not possible."),
        ({"budget": 2}, "budget = 2 is not possible: a search needs 5 cells a series at least."),
        ({"finalists": 13}, "finalists = 13 is not possible: it can be 0 to 12."),
        ({"precisions": (Precision(fp8=True),)}, "FP8 is not possible with v2."),
        ({"problems": problems_of(range(1, 65), (True,), (128,), 1), "num_stages": (1, 2, 3, 4, 5, 6),
          "block_n": (16, 32, 64, 128, 256, 512), "num_warps": (4, 8)}, "9,216 cells are too many"),
    ],
)  # fmt: skip
def test_a_plan_that_is_not_possible_is_refused_in_one_sentence(changes, sentence) -> None:
    with pytest.raises(ValidationError) as refused:
        plan(**changes)
    assert first_sentence(refused.value).startswith(sentence)


def test_a_plan_is_every_combination_and_says_so() -> None:
    asked = plan(problems=problems_of((4096, 16384), (False, True), (128,), 16))
    assert (asked.configurations, asked.size, len(asked.series), asked.method) == (12, 48, 4, "grid")
    assert asked.title == "v2 · 4k, 16k tokens · head_dim 128 · causal and not · 12 configurations"
    assert plan(budget=8).method == "budget"
    assert SweepPlan.model_validate_json(asked.model_dump_json()) == asked


def test_fp8_is_of_the_versions_that_have_it_with_the_scales_that_they_have() -> None:
    asked = plan(kernels=("v2", "v3", "v3-hopper"), precisions=(Precision(), Precision(fp8=True)))
    found = [(one.kernel, one.precision.fp8, one.precision.fp8_scale) for one in asked.series]
    assert found == [
        ("v2", False, "token"), ("v3", False, "token"), ("v3-hopper", False, "token"), ("v3", True, "token"),
        ("v3-hopper", True, "block"),
    ]  # fmt: skip


def test_each_cell_is_there_once_with_a_key_that_no_device_changes() -> None:
    asked = plan(problems=problems_of((512, 4096, 16384), (True,), (128,), 16), kernels=("v2", "v3"))
    cells = cells_of(asked, 90)
    assert len({one.key for one in cells}) == len(cells)
    assert len({(one.series, one.tiles) for one in cells}) == len(cells)
    elsewhere = cells_of(asked.model_copy(update={"devices": ("GPU-another",)}), 90)
    assert [one.key for one in elsewhere] == [one.key for one in cells]
    assert sum("grid" in one.roles for one in cells) == asked.size
    assert key_of(cells[0].request.model_copy(update={"seed": 1})) != cells[0].key


@pytest.mark.parametrize(
    ("seq_len", "pair"), [(1, (128, 128)), (1023, (128, 128)), (1024, (64, 256)), (8192, (64, 256)), (8193, (32, 512))]
)
def test_the_article_s_pair_is_that_of_the_length_with_every_count_of_warps_and_stages(seq_len, pair) -> None:
    assert (advice_for(seq_len).block_m, advice_for(seq_len).block_n) == pair
    asked = plan(problems=problems_of((seq_len,), (False,), (128,), 16))
    held = [one.tiles for one in cells_of(asked, 90) if "article" in one.roles]
    assert {(one.block_m, one.block_n) for one in held} == {pair}
    default = default_of(asked.series[0], 90)
    assert {(one.num_warps, one.num_stages) for one in held} == {
        (warps, stages) for warps in {8, default.num_warps} for stages in {2, 3, 4, default.num_stages}
    }


def test_the_default_is_one_of_the_cells() -> None:
    for capability in (90, 89, None, 103):
        (default,) = [one for one in cells_of(plan(), capability) if "default" in one.roles]
        assert default.tiles == default_of(plan().series[0], capability)


def test_what_the_version_cannot_have_is_known_at_once() -> None:
    asked = plan(kernels=("v3-hopper",), num_warps=(4, 8))
    found = {cell.tiles: outcome for cell, outcome in outlook(asked, 90)}
    fits = found[TileConfig(block_m=128, block_n=64, num_warps=8, num_stages=2)]
    assert fits.status == "pending"
    refused = found[TileConfig(block_m=128, block_n=64, num_warps=4, num_stages=2)]
    assert (refused.status, refused.provenance) == ("refused", None)
    assert refused.sentence.startswith("num_warps = 4 is not possible with v3-hopper")
    assert all(one.status == "refused" for _, one in outlook(asked, 89))
    interpreted = outlook(plan(kernels=("v3-hopper",), devices=(INTERPRETER,)), None)
    assert "not possible in the interpreter" in interpreted[0][1].sentence


def test_what_the_feasibility_map_found_is_known_at_once() -> None:
    asked = plan()
    cells = cells_of(asked, 90)
    cache = FeasibilityCache(grid_of(asked.series[0], 90))
    cache.put(feasibility_cell(place_of(cells[0].tiles), "shared memory", "Too much.", needs_bytes=9, has_bytes=8))
    found = known_of(asked, cells, 90)
    assert (found[0].status, found[0].reason, found[0].sentence) == ("infeasible", "shared memory", "Too much.")
    assert (found[0].needs_bytes, found[0].has_bytes, found[0].provenance) == (9, 8, "compiled")
    assert {one.status for one in found[1:]} == {"pending"}
    assert {one.status for one in known_of(asked, cells, 103)} == {"pending"}  # a GPU of which no limits are known
    assert {one.status for one in known_of(asked, cells, None)} == {"pending"}  # the interpreter has none


def test_an_outcome_that_contradicts_itself_is_not_possible() -> None:
    right = measured(cells_of(plan(), 90)[0])
    fields = {name: getattr(right, name) for name in CellOutcome.model_fields}
    for wrong, sentence in (
        ({"status": "wrong", "sentence": "x"}, "with a time"),
        ({"measurement": None}, "without a time"),
        ({"status": "failed", "measurement": None, "sentence": "x"}, "without an error"),
        ({"status": "refused", "measurement": None}, "without a sentence"),
        ({"status": "pending", "measurement": None, "final": right.measurement}, "a finalist without a time"),
    ):
        with pytest.raises(ValidationError, match=sentence):
            CellOutcome(**fields | wrong)


def test_a_sweep_is_the_same_through_json() -> None:
    whole = sweep(plan())
    assert whole.by_key[whole.cells[0].key] == (whole.cells[0], whole.outcomes[0])
    assert Sweep.model_validate_json(whole.model_dump_json()) == whole
    with pytest.raises(ValidationError, match="not those of its cells"):
        Sweep(**{name: getattr(whole, name) for name in Sweep.model_fields} | {"outcomes": whole.outcomes[1:]})


def test_the_snippet_is_python_that_makes_the_tiles() -> None:
    for tiles in (
        TileConfig(block_m=128, block_n=64, num_warps=8, num_stages=3),
        TileConfig(block_m=128, block_n=64, num_warps=8, num_stages=3, block_order="zigzag"),
    ):
        assert eval(snippet(tiles), {"TileConfig": TileConfig}) == tiles
    assert snippet(TileConfig(block_m=128, block_n=64, num_warps=8, num_stages=3)) == (
        "TileConfig(block_m=128, block_n=64, num_warps=8, num_stages=3)"
    )
