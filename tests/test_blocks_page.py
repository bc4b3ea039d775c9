"""The Blocks page without a browser: its fields, the map as it is drawn, a cell's report, the ways on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app import blocks_choices, state
from app.figures import cells as cells_drawn
from app.figures import feasibility as figure
from app.figures.style import DARK, LIGHT, Palette
from kernels.problem import TileConfig
from profiling.feasibility import REASONS, Cell, Grid, Place, cell, compiled, refusal, too_much_shared_memory
from profiling.feasibility_cache import FeasibilityCache
from profiling.feasibility_map import FeasibilityMaps
from profiling.records import RunRequest
from tests import records_for_tests as records
from tests.fake_queue import FakeQueue

SMALL = {"b_rows": "48 64 128", "b_columns": "64,128", "b_causal": "true"}


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = FeasibilityMaps()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(state, "feasibility_maps", lambda: maps)
    monkeypatch.setattr(state, "job_queue", lambda: FakeQueue((records.interpreter(),)))


def blocks_page(**address: str) -> AppTest:
    page = AppTest.from_function(_script, default_timeout=120)
    for name, value in address.items():
        page.query_params[name] = value
    page.run()
    assert not page.exception
    return page


def _script() -> None:
    import streamlit as st

    from app import state
    from app.views import blocks, run

    pages = {name: st.Page(view.page, title=name, url_path=name, default=name == "blocks")
             for name, view in {"blocks": blocks, "run": run}.items()}  # fmt: skip
    st.navigation(state.register_pages(pages), position="hidden").run()


def small_grid() -> Grid:
    return blocks_choices.check(blocks_choices.DEFAULTS | SMALL | {"b_causal": True}).grid


def kept(grid: Grid) -> dict[Place, Cell]:
    """The grid's cells as if they had been compiled: one that fits, one that spills, the rest too large."""
    found = {}
    for place in grid.places:
        size = place.block_m, place.block_n
        known = refusal(grid, place)
        if known is None and size in ((64, 64), (128, 64)):
            known = compiled(grid, place, records.report(spill_bytes=0 if size == (64, 64) else 96))
        found[place] = known or too_much_shared_memory(grid, place, 300 << 10)
        FeasibilityCache(grid).put(found[place])
    return found


def said(page: AppTest) -> str:
    return " ".join(one.proto.body for one in page.get("html"))


def drawn(page: AppTest) -> dict[str, Any]:
    return json.loads(page.get("plotly_chart")[0].proto.spec)


def test_before_anything_is_compiled_the_page_offers_to_and_says_what_needs_no_compiler() -> None:
    page = blocks_page(**SMALL)
    assert page.button(key="blocks_start").label == "Compile 4 cells"
    assert "Which tiles can run: v2 · 4,096 tokens · head_dim 128 · causal · bf16 · sm_90" in said(page)
    notes = [one["text"] for one in drawn(page)["layout"]["annotations"]]
    assert sorted(notes) == ["<b>no power of 2</b>"] * 2 + ["…"] * 4


def test_a_kept_map_is_there_at_once_with_the_default_the_article_s_pair_and_a_cell_s_report() -> None:
    kept(small_grid())
    page = blocks_page(**SMALL)
    assert "1 of 6 fit, 1 spill, 4 cannot run" in said(page)
    assert not [one for one in page.button if one.key == "blocks_start"]
    assert page.selectbox(key=state.BLOCKS_CELL_KEY).value == Place(block_m=64, block_n=64, num_warps=4, num_stages=3)
    assert len(page.get("plotly_chart")) == 2
    assert "128 × 128, below 1,024 tokens:</strong> It needs 300 KiB of shared memory; a program on sm_90 has 227 KiB." in said(
        page
    )
    assert "64 × 256, 1,024 to 8,192 tokens:</strong> not among these sizes" in said(page)
    dashes = [one["line"]["dash"] for one in drawn(page)["layout"]["shapes"]]
    assert sorted(dashes) == ["dot", "solid", "solid"]  # the article's, the default, what is looked at


def test_the_tiles_of_a_cell_go_into_the_run_page_s_form() -> None:
    kept(small_grid())
    page = blocks_page(**SMALL)
    cells = page.selectbox(key=state.BLOCKS_CELL_KEY)
    cells.set_value(Place(block_m=128, block_n=128, num_warps=4, num_stages=3)).run()
    assert page.button(key="blocks_use").disabled
    cells = page.selectbox(key=state.BLOCKS_CELL_KEY)
    cells.set_value(Place(block_m=128, block_n=64, num_warps=4, num_stages=3)).run()
    page.button(key="blocks_use").click().run()
    assert not page.exception
    form = {name: page.session_state[name] for name in ("kernel", "seq_len", "head_dim", "causal", "block_m", "block_n")}
    assert form == {
        "kernel": "v2", "seq_len": "4096", "head_dim": "128", "causal": True, "block_m": "128", "block_n": "64",
    }  # fmt: skip
    assert (page.session_state["num_warps"], page.session_state["num_stages"]) == ("4", "3")


def test_what_is_not_possible_is_said_and_the_last_map_stays() -> None:
    kept(small_grid())
    page = blocks_page(**SMALL)
    page.text_input(key="b_rows").set_value("64 wide").run()
    assert "BLOCK_M = wide is not possible: it must be all, or whole numbers such as 32 64 128." in said(page)
    assert "Still shown:" in said(page)
    assert "1 of 6 fit" in said(page)


def test_warps_and_stages_that_are_chosen_make_a_layer_each() -> None:
    page = blocks_page(**SMALL)
    page.button_group(key="b_warps").set_value(["4", "8"]).run()
    assert not page.exception
    layers = page.button_group(key=state.BLOCKS_LAYER_KEY)
    assert list(layers.options) == ["4 warps · 3 stages", "8 warps · 3 stages"]
    assert page.button(key="blocks_start").label == "Compile 8 cells"


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_every_reason_has_words_and_what_cannot_run_a_hatching_of_its_own(palette: Palette) -> None:
    grid = Grid(
        kernel="v2", problem=records.LONG, capability=90, block_m=(16,), block_n=(16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    )
    cells = {place: _of(grid, place, reason) for place, reason in zip(grid.places, REASONS, strict=True)}
    chart = figure.chart(grid, grid.places, cells, None, palette)
    bars = chart.figure.data[0]
    hatching = dict(zip(REASONS, bars.marker.pattern.shape, strict=True))
    assert [reason for reason in REASONS if not hatching[reason]] == ["fits", "spills"]
    assert len({hatching[reason] for reason in REASONS[2:]}) == len(REASONS) - 2
    assert len({one.text for one in chart.figure.layout.annotations}) == len(REASONS)
    assert [data[2].split("</b>: ")[1].split("<br>")[0] for data in bars.customdata] == list(REASONS)
    for fill, words in zip(bars.marker.color, (one.font.color for one in chart.figure.layout.annotations), strict=True):
        assert cells_drawn.contrast(fill, words) >= 4.5


def _of(grid: Grid, place: Place, reason: str) -> Cell:
    if reason in ("fits", "spills"):
        return compiled(grid, place, records.report(spill_bytes=0 if reason == "fits" else 8))
    return too_much_shared_memory(grid, place, 300 << 10) if reason == "shared memory" else cell(place, reason, "Why.")


@pytest.mark.parametrize("warps_share", [0.05, 0.2, 0.35, 0.5, 1.0])
@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_words_can_be_read_on_every_shade(warps_share: float, palette: Palette) -> None:
    grid = small_grid()
    report = records.report().model_copy(update={"warps_per_sm": round(64 * warps_share)})
    fill, _, words = figure._drawn(compiled(grid, grid.places[-1], report), palette)
    assert cells_drawn.contrast(fill, words) >= 4.5


def test_fp8_counts_only_where_the_version_has_it() -> None:
    asked = blocks_choices.DEFAULTS | {"b_fp8": True}
    grids = [blocks_choices.check(asked | {"b_kernel": kernel}).grid for kernel in blocks_choices.KERNELS]
    assert {grid.kernel: grid.precision.fp8 for grid in grids} == {"v1": False, "v2": False, "v3": True, "v3-hopper": True}


@pytest.mark.parametrize("kernel", blocks_choices.KERNELS)
def test_a_configuration_s_address_leads_back_to_its_grid(kernel: str) -> None:
    tiles = TileConfig(block_m=128, block_n=64, num_warps=8, num_stages=2, loop_order="key" if kernel == "v1" else "query")
    request = RunRequest(kernel=kernel, problem=records.LONG, tiles=tiles)
    grid = blocks_choices.check(blocks_choices.like(request, 90)).grid
    place = next(one for one in grid.places if grid.tiles(one) == tiles)
    assert grid.request(place).model_copy(update={"compile_for": None}) == request
