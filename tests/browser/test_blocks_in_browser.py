"""The Blocks page in a real Chromium: a map fills, a cell is clicked, its tiles go to the Run page."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from app import blocks_choices
from profiling.feasibility import Grid, compiled
from profiling.feasibility_cache import FeasibilityCache
from tests import records_for_tests as records
from tests.browser.conftest import JOB_PATIENCE_MS, Server, open_page, serious_violations, settle, title
from tests.browser.test_snapshots_in_browser import button

pytestmark = pytest.mark.browser
ADDRESS = "b_head_dim=32&b_rows=16+32&b_columns=16+32&b_warps=4&b_stages=2"


def grid() -> Grid:
    values = {"b_head_dim": "32", "b_rows": "16 32", "b_columns": "16 32", "b_warps": ["4"], "b_stages": ["2"]}
    return blocks_choices.check(blocks_choices.DEFAULTS | values).grid


def test_a_map_fills_and_a_click_leads_to_a_report_and_on_to_the_run_page(page: Page, server: Server) -> None:
    asked = grid()
    for place in asked.places[1:]:  # one is left to be compiled for real
        FeasibilityCache(asked, server.feasibility).put(compiled(asked, place, records.report(spill_bytes=64)))
    open_page(page, f"{server.url}/blocks?{ADDRESS}")
    expect(title(page)).to_have_text("Which tiles can run: v2 · 4,096 tokens · head_dim 32 · bf16 · sm_90")
    cells = page.locator(".st-key-blocks_map .annotation-text")
    expect(cells.filter(has_text="…")).to_have_count(1)
    expect(button(page, "blocks_start")).to_contain_text("Compile 1 cell")
    button(page, "blocks_start").click()
    expect(title(page)).to_contain_text("1 of 4 fit, 3 spill, 0 cannot run", timeout=JOB_PATIENCE_MS)
    settle(page)
    expect(cells.filter(has_text="per SM")).to_have_count(4)
    expect(cells.filter(has_text="spills 64 B")).to_have_count(3)
    bar = page.locator(".st-key-blocks_map .bars .point").last
    bar.hover(force=True)  # Plotly takes the pointer on a layer above its bars, and a click means what it points at
    expect(page.locator(".st-key-blocks_map .hoverlayer .hovertext")).to_be_visible()
    bar.click(force=True)
    expect(page.get_by_role("combobox", name="Cell")).to_have_value("32 × 32, 4 warps, 2 stages · spills")
    expect(page.locator(".st-key-blocks_report .annotation-text").filter(has_text="64 bytes")).to_have_count(1)
    settle(page)
    assert serious_violations(page) == []
    button(page, "blocks_use").click()
    expect(page).to_have_url(re.compile(r"/\?.*block_m=32&block_n=32"))
    expect(page.get_by_role("combobox", name="BLOCK_N")).to_have_value("32")
    settle(page)
    page.go_back()  # once, and not first to the same form
    expect(title(page)).to_contain_text("1 of 4 fit, 3 spill, 0 cannot run")


def test_going_back_and_forward_keeps_what_was_asked(page: Page, server: Server) -> None:
    open_page(page, f"{server.url}/blocks?{ADDRESS}&b_kernel=v3&b_tokens=1024")
    page.get_by_role("combobox", name="head_dim").click()
    page.get_by_role("option", name="64", exact=True).click()
    asked = "Which tiles can run: v3 · 1,024 tokens · head_dim 64 · bf16 · sm_90"
    expect(title(page)).to_have_text(asked)
    settle(page)
    page.get_by_role("link", name="Gallery", exact=True).click()
    shows_the_gallery(page)
    page.go_back()
    shows(page, asked, tokens="1024", head_dim="64")
    page.go_forward()
    shows_the_gallery(page)
    page.go_back()
    shows(page, asked, tokens="1024", head_dim="64")


def shows_the_gallery(page: Page) -> None:
    expect(title(page)).to_have_text("Recordings from a real GPU")
    settle(page)


def shows(page: Page, asked: str, tokens: str, head_dim: str) -> None:
    """The title and the fields say the same."""
    expect(title(page)).to_have_text(asked)
    expect(page.get_by_role("combobox", name="Tokens")).to_have_value(tokens)
    expect(page.get_by_role("combobox", name="head_dim")).to_have_value(head_dim)
    expect(page.locator(".st-key-b_warps").get_by_role("button", pressed=True)).to_have_text(["4"])
    settle(page)
