"""The Blocks page in a real Chromium: a map fills, a cell is clicked, its tiles go to the Run page."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from app import blocks_choices
from profiling.feasibility import Grid, compiled
from profiling.feasibility_cache import FeasibilityCache
from tests import records_for_tests as records
from tests.browser.conftest import Server, open_page, settle
from tests.browser.test_run_page_in_browser import serious_violations
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
    expect(page.locator("h1")).to_have_text("Which tiles can run: v2 · 4,096 tokens · head_dim 32 · bf16 · sm_90")
    cells = page.locator(".st-key-blocks_map .annotation-text")
    expect(cells.filter(has_text="…")).to_have_count(1)
    expect(button(page, "blocks_start")).to_contain_text("Compile 1 cell")
    button(page, "blocks_start").click()
    expect(page.locator("h1")).to_contain_text("1 of 4 fit, 3 spill, 0 cannot run", timeout=120_000)
    settle(page)
    expect(cells.filter(has_text="per SM")).to_have_count(4)
    expect(cells.filter(has_text="spills 64 B")).to_have_count(3)
    page.locator(".st-key-blocks_map .bars .point").last.click(force=True)  # Plotly takes clicks on a layer above its bars
    expect(page.get_by_role("combobox", name="Cell")).to_have_value("32 × 32, 4 warps, 2 stages · spills")
    expect(page.locator(".st-key-blocks_report .annotation-text").filter(has_text="64 bytes")).to_have_count(1)
    settle(page)
    assert serious_violations(page) == []
    button(page, "blocks_use").click()
    expect(page).to_have_url(re.compile(r"block_m=32&block_n=32"))
    expect(page.get_by_role("combobox", name="BLOCK_N")).to_have_value("32")
