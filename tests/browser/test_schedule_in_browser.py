"""The Schedule page in a real Chromium: a model without a GPU, what if, the way to the tiles and back, stamps from a file.

The lanes themselves are held against timetables in test_lanes_in_browser.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from kernels.problem import TileConfig
from profiling.records import RunRequest
from profiling.snapshot import Snapshot, file_of
from tests import records_for_tests as records
from tests.browser.conftest import JOB_PATIENCE_MS, NEXT_FRAME, Server, open_page, serious_violations, settle, title
from tests.browser.test_snapshots_in_browser import button, open_file

pytestmark = pytest.mark.browser
SMALL = "length=256&heads=2&width=64&rows=64&columns=64"
COLORS = f"""async canvas => {{
    await ({NEXT_FRAME})();
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {{ willReadFrequently: true }});
    copy.drawImage(canvas, 0, 0);
    return new Set(new Uint32Array(copy.getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size;
}}"""


def open_lanes(page: Page, server: Server, address: str) -> Locator:
    open_page(page, f"{server.url}/schedule?{address}")
    lanes = page.locator(".fs-lanes")
    expect(lanes).to_be_visible()
    settle(page)
    return lanes


def click_cell(lanes: Locator, head: float, block: float) -> None:
    """Select by a click on the map; head and block as shares of its width and height."""
    chart = lanes.locator("canvas[data-panel=map]").first
    box = chart.bounding_box()
    chart.click(position={"x": 30 + head * (box["width"] - 32), "y": 20 + block * (box["height"] - 22)})


def snapshot_of(*orders: str) -> Snapshot:
    """v2 as an H200 might have stamped it in these orders."""
    made = []
    for order in orders:
        tiles = TileConfig(block_m=128, block_n=128, num_warps=8, num_stages=3, block_order=order)
        request = RunRequest(kernel="v2", problem=records.LONG, tiles=tiles, device=records.GPU_ID)
        stamps = records.schedule_of(records.LONG, tiles, heaviest=order == "heaviest")
        made.append(records.on_gpu("v2", tiles=tiles, request=request, schedule=stamps))
    return Snapshot(title="Two orders", created_at="2026-11-29T13:10:00+00:00", measurements=tuple(made))


def test_without_a_gpu_a_model_is_drawn_for_the_gpu_that_is_chosen_and_for_what_if(page: Page, server: Server) -> None:
    lanes = open_lanes(page, server, "length=8192&block_order=natural")
    expect(lanes.locator("header .badge")).to_have_text(["modelled · H200"])
    expect(title(page)).to_contain_text("v2: the first SM was out of work")
    assert lanes.locator("canvas[data-panel=lanes]").first.evaluate(COLORS) > 10
    page.locator(".st-key-what_if").get_by_text(re.compile("^heaviest first −")).click()
    expect(lanes.locator("header .badge")).to_have_count(2)
    expect(page).to_have_url(re.compile("if_order=heaviest"))
    expect(page.get_by_text(re.compile("would take .* less than the"))).to_be_visible()
    settle(page)
    page.reload()
    settle(page)
    expect(lanes.locator("header strong")).to_have_text(
        ["v2 · 128 × 128, 8 warps, 3 stages, natural order", "heaviest first, modelled"]
    )
    page.locator(".st-key-as_on input").click()
    page.get_by_role("option", name="A100-SXM4-80GB · 108 SMs").click()
    expect(lanes.locator("header .about").first).to_contain_text("108 SMs worked")
    expect(page).to_have_url(re.compile("as_on=A100"))


def test_a_block_leads_to_its_tiles_and_its_tiles_lead_back(page: Page, server: Server) -> None:
    lanes = open_lanes(page, server, SMALL)
    click_cell(lanes, head=0.75, block=0.6)
    selected = lanes.locator("[data-name=selected]")
    expect(selected).to_contain_text("head 1 · query block 2")
    expect(page).to_have_url(re.compile(r"at=1\.2"))
    settle(page)
    page.get_by_role("button", name="Watch its tiles").click()
    for part in ("/softmax", "head=1", "query_block=2", "tile_m=64"):
        expect(page).to_have_url(re.compile(part))
    settle(page)
    button(page, "trace_it").click()
    expect(page.locator(".fs-player header .about")).to_contain_text("query block 2 of 4", timeout=JOB_PATIENCE_MS)
    settle(page)
    page.get_by_role("link", name="See where this block would run").click()
    expect(page).to_have_url(re.compile(r"/schedule.*at=1\.2"))
    expect(lanes.locator("header strong")).to_contain_text("v2 · 64 × 64")
    expect(selected).to_contain_text("head 1 · query block 2")


def test_going_back_keeps_what_was_asked(page: Page, server: Server) -> None:
    lanes = open_lanes(page, server, SMALL)
    page.get_by_role("link", name="Gallery", exact=True).click()
    expect(title(page)).to_contain_text("Recordings")
    settle(page)
    page.go_back()
    expect(lanes.locator("header strong")).to_contain_text("v2 · 64 × 64")
    settle(page)
    expect(page.locator(".st-key-length input")).to_have_value("256")


def test_stamps_from_a_file_are_shown_and_the_lanes_can_be_sent_on(page: Page, server: Server, tmp_path: Path) -> None:
    open_file(page, server, "two.flashscope.json.gz", file_of(snapshot_of("natural", "heaviest")), tmp_path)
    button(page, "keep").click()
    lanes = page.locator(".fs-lanes")
    expect(lanes.locator("header .badge")).to_have_text("measured · H200 · GPU-487a")
    expect(lanes.locator("header strong")).to_contain_text("natural order")
    settle(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download the lanes").click()
    download.value.save_as(tmp_path / "lanes.html")
    elsewhere = page.context.new_page()
    asked: list[str] = []
    elsewhere.on("request", lambda one: asked.append(one.url))
    elsewhere.goto((tmp_path / "lanes.html").as_uri())
    expect(elsewhere.locator(".fs-lanes header strong")).to_contain_text("natural order")
    assert elsewhere.locator("canvas[data-panel=lanes]").evaluate(COLORS) > 10
    assert asked == [(tmp_path / "lanes.html").as_uri()]


def test_the_exported_page_draws_every_schedule_from_disk(page: Page, tmp_path: Path) -> None:
    from app.html_page import page_of

    path = tmp_path / "page.html"
    path.write_bytes(page_of(snapshot_of("natural", "heaviest")))
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url))
    page.goto(path.as_uri())
    expect(page.locator(".fs-lanes")).to_have_count(2)
    for canvas in page.locator("canvas[data-panel=lanes]").all():
        canvas.scroll_into_view_if_needed()
        assert canvas.evaluate(COLORS) > 10
    expect(page.get_by_role("button", name="Watch its tiles")).to_have_count(0)
    assert asked == [path.as_uri()]


@pytest.mark.parametrize("page", ["light", "dark"], indirect=True)
def test_no_serious_accessibility_violation(page: Page, server: Server) -> None:
    open_lanes(page, server, "block_order=natural&if_order=heaviest")
    assert serious_violations(page) == []
