"""The Sweep page in a real Chromium: one of the interpreter is begun, paused, found again, ended; a recorded one is opened."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from profiling.sweep_file import read
from tests.browser.conftest import JOB_PATIENCE_MS, ROOT, Server, open_page, serious_violations, settle, title
from tests.browser.test_snapshots_in_browser import button

pytestmark = pytest.mark.browser
PROBLEM = "s_tokens=128&s_heads=1&s_head_dim=32"
SIZES = "s_rows=16&s_rows=32&s_columns=16&s_columns=32"
ADDRESS = f"{PROBLEM}&{SIZES}&s_warps=1&s_warps=2&s_warps=4&s_warps=8&s_stages=1&s_stages=2&s_stages=3&s_stages=4"
RECORDED = min((ROOT / "app" / "gallery").glob("*.sweep.json.gz"))
CELLS = 2 * 2 * 4 * 4 + 1 + 4 * 4  # the default, and the article's pair in all warps and stages; too many to end meanwhile


def places(page: Page) -> Locator:
    """What stands in the map's cells."""
    return page.locator(".st-key-sweep_map .annotation-text")


def chip(page: Page) -> Locator:
    """How far it is: '3 of 81 cells, 12 s'."""
    return page.locator(".st-key-sweep-bar .fs-chip").nth(1)


def test_a_sweep_fills_is_paused_found_again_resumed_and_cancelled(page: Page, server: Server) -> None:
    open_page(page, f"{server.url}/sweep?{ADDRESS}")
    expect(title(page)).to_have_text("Which tiles are fastest, and which cannot run")
    expect(page.locator(".st-key-sweep-start")).to_contain_text(
        f"{CELLS} run in the interpreter, about", timeout=JOB_PATIENCE_MS
    )
    expect(page.locator(".st-key-s_rows").get_by_role("button", pressed=True)).to_have_text(["16", "32"])
    settle(page)
    button(page, "sweep_start").click()
    expect(title(page)).to_have_text("Sweeping v2 · 128 tokens · head_dim 32 · 64 configurations")
    expect(page).to_have_url(re.compile(r"sweep=[0-9a-f]{12}"))
    expect(places(page).filter(has_text="correct").first).to_be_visible(timeout=JOB_PATIENCE_MS)
    button(page, "sweep_pause").click()
    expect(button(page, "sweep_resume")).to_be_visible(timeout=JOB_PATIENCE_MS)
    expect(chip(page)).to_have_text(re.compile(rf"paused · \d+ of {CELLS} cells"))
    settle(page)
    before = chip(page).inner_text()
    bar = page.locator(".st-key-sweep_map .bars .point").first
    bar.hover(force=True)  # Plotly takes the pointer on a layer above its bars, and a click means what it points at
    expect(page.locator(".st-key-sweep_map .hoverlayer .hovertext")).to_contain_text("stages: CPU")
    bar.click(force=True)
    expect(page.get_by_role("combobox", name="Cell")).to_have_value(re.compile(r"^16 × 16, \d warps, \d stages$"))
    expect(page.locator(".st-key-sweep_report")).to_have_count(0)
    settle(page)
    assert serious_violations(page) == []
    page.reload()
    expect(button(page, "sweep_resume")).to_be_visible()
    expect(chip(page)).to_have_text(before)
    settle(page)
    button(page, "sweep_resume").click()
    expect(button(page, "sweep_pause")).to_be_visible()
    more = "|".join(map(str, range(_done(before) + 1, CELLS)))
    expect(chip(page)).to_contain_text(re.compile(rf"\b(?:{more}) of {CELLS}"), timeout=JOB_PATIENCE_MS)
    button(page, "sweep_cancel").click()
    expect(chip(page)).to_have_text(re.compile(rf"cancelled · \d+ of {CELLS} cells"), timeout=JOB_PATIENCE_MS)
    expect(title(page)).to_contain_text("outputs that were computed are correct")
    settle(page)
    assert _done(chip(page).inner_text()) > _done(before)


def _done(text: str) -> int:
    return int(re.search(r"(\d+) of", text)[1])


def test_going_back_keeps_the_sweep_and_the_fields(page: Page, server: Server) -> None:
    open_page(page, f"{server.url}/sweep?{ADDRESS}&s_mask=causal")
    expect(page.locator(".st-key-sweep-start")).to_contain_text("cells, the default", timeout=JOB_PATIENCE_MS)
    page.get_by_role("textbox", name="seq_len").fill("64 96")
    page.get_by_role("textbox", name="seq_len").press("Enter")
    expect(page.locator(".st-key-sweep-start")).to_contain_text("in 2 series")
    settle(page)
    page.get_by_role("link", name="Gallery", exact=True).click()
    expect(title(page)).to_have_text("Recordings from a real GPU")
    settle(page)
    page.go_back()
    expect(title(page)).to_have_text("Which tiles are fastest, and which cannot run")
    expect(page.get_by_role("textbox", name="seq_len")).to_have_value("64 96")
    expect(page.get_by_role("radio", name="causal", exact=True)).to_be_checked()
    settle(page)


@pytest.mark.parametrize("page", ["light", "dark"], indirect=True)
def test_a_recorded_sweep_is_opened_looked_through_and_taken_away(page: Page, server: Server, tmp_path: Path) -> None:
    sweep = read(RECORDED.read_bytes())
    open_page(page, f"{server.url}/sweep")
    page.locator(f".st-key-recorded-{sweep.sweep_id}").get_by_role("button", name="Open").click()
    expect(page).to_have_url(re.compile(f"sweep={sweep.sweep_id}"))
    expect(page.locator(".st-key-sweep-bar .fs-chip").filter(has_text="recording · ")).to_be_visible()
    expect(button(page, "sweep_pause")).to_have_count(0)
    expect(places(page).filter(has_text="over 227").first).to_be_visible()
    settle(page)
    assert serious_violations(page) == []
    page.get_by_role("radio", name="causal", exact=True).click()
    expect(title(page)).to_contain_text("tokens, causal: ")
    settle(page)
    with page.expect_download() as taken:
        button(page, "sweep_json").click()
    file = tmp_path / "taken.json"
    taken.value.save_as(file)
    assert read(file.read_bytes()) == sweep
    page.get_by_role("button", name="Open a file").click()
    page.locator("input[type=file]").set_input_files(file)
    expect(page.locator(".st-key-sweep-bar .fs-chip").filter(has_text="file · ")).to_be_visible()
    settle(page)
