"""The lanes in a real Chromium: in the file that is sent to somebody without a server, and on their page.

What is drawn and said is held against the timetable itself: real stamps of an H200.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from app.lanes.export import page_of_lanes
from app.lanes.payload import LaneFacts, Selection, slots_of
from profiling.timetable import Timetable
from tests.browser.conftest import NEXT_FRAME, Server, open_page, serious_violations, settle
from tests.recorded_stamps import recorded

pytestmark = pytest.mark.browser
GUTTER, ABOVE, BELOW, MAP_GUTTER = 46, 20, 22, 38
FACTS = LaneFacts(title="16 heads, 4,096 tokens", device="H200", num_heads=16, block_m=128, seq_len_q=4096)
# Read from a copy: a canvas that is read again and again is slow from then on, and the browser says so.
PIXEL = """async (canvas, [x, y]) => {
    await (NEXT_FRAME)();
    const ratio = canvas.width / canvas.clientWidth;
    const copy = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    copy.drawImage(canvas, -Math.floor(x * ratio), -Math.floor(y * ratio));
    return [...copy.getImageData(0, 0, 1, 1).data];
}""".replace("NEXT_FRAME", NEXT_FRAME)
SHARE = """async (canvas, color) => {
    await (NEXT_FRAME)();
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let at = 0; at < data.length; at += 4) if (color.every((value, channel) => data[at + channel] === value)) count++;
    return count / (data.length / 4);
}""".replace("NEXT_FRAME", NEXT_FRAME)
PICTURE = f"async canvas => {{ await ({NEXT_FRAME})(); return canvas.toDataURL(); }}"
LIGHT, HERE = [255, 255, 255], [194, 116, 0]
Opened = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Opened]:
    """Opens timetables from disk; nothing may be asked of anyone, nothing may fail."""
    contexts, said, asked = [], [], []
    path = tmp_path / "lanes.html"

    def open_file(*tables: tuple[str, Timetable], facts: LaneFacts = FACTS, **options: Any) -> Page:
        path.write_bytes(page_of_lanes(tables, facts, options.pop("selection", None)))
        contexts.append(browser.new_context(**{"viewport": {"width": 1280, "height": 1400}, **options}))
        tab = contexts[-1].new_page()
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("console", lambda message: said.append(message.text))
        tab.on("request", lambda one: asked.append(one.url))
        tab.goto(path.as_uri())
        expect(tab.locator(".fs-lanes")).to_be_visible()
        return tab

    yield open_file
    for context in contexts:
        context.close()
    assert said == []
    assert set(asked) <= {path.as_uri()}


class Drawn:
    """A timetable and where its bars and cells must be on the page, all of it shown."""

    def __init__(self, page: Page, table: Timetable, index: int = 0) -> None:
        self.table, self.slots = table, slots_of(table)
        self.lanes = page.locator("canvas[data-panel=lanes]").nth(index)
        self.map = page.locator("canvas[data-panel=map]").nth(index)
        last = np.zeros(table.sm_count)
        np.maximum.at(last, table.sm, table.end_ns)
        self.order = np.lexsort((np.arange(table.sm_count), last))
        self.lane_of = np.argsort(self.order)

    def bar(self, entry: int, at: float = 0.5) -> dict[str, float]:
        """The middle of a bar, or another part of its length."""
        box = self.lanes.bounding_box()
        table = self.table
        time = table.start_ns[entry] + at * (table.end_ns[entry] - table.start_ns[entry])
        lane = self.lane_of[table.sm[entry]] + (self.slots[entry] + 0.4) / (self.slots.max() + 1)
        return {
            "x": GUTTER + time / table.span_ns * (box["width"] - GUTTER - 2),
            "y": ABOVE + lane / table.sm_count * (box["height"] - ABOVE - BELOW),
        }

    def cell(self, entry: int) -> dict[str, float]:
        """The middle of a cell of the map."""
        box = self.map.bounding_box()
        heads, blocks = self.table.head.max() + 1, self.table.block.max() + 1
        return {
            "x": MAP_GUTTER + (self.table.head[entry] + 0.4) / heads * (box["width"] - MAP_GUTTER - 2),
            "y": ABOVE + (self.table.block[entry] + 0.4) / blocks * (box["height"] - ABOVE - 2),
        }

    def words(self, entry: int) -> re.Pattern[str]:
        """What must be said of an entry, exactly as it was stamped."""
        table = self.table
        start_us, duration_us = table.start_ns[entry] / 1e3, table.duration_ns[entry] / 1e3
        return re.compile(
            rf"head {table.head[entry]} · query block {table.block[entry]} .*SM {table.sm[entry]} · "
            rf"program {table.program[entry]:,}, .*starts at {start_us:,.2f} µs · takes {duration_us:,.2f} µs .*"
            rf"{table.tiles[entry]} key tile"
        )


def color_at(canvas: Locator, place: dict[str, float]) -> list[int]:
    return canvas.evaluate(PIXEL, [place["x"], place["y"]])[:3]


def said(page: Page, name: str) -> Locator:
    return page.locator(f".fs-lanes [data-name={name}]")


def choice(page: Page, label: str) -> Locator:
    return page.locator(".fs-lanes label", has=page.get_by_text(label, exact=True)).locator("select")


def wide_entries(table: Timetable, count: int = 12) -> np.ndarray:
    """Entries long enough to be hit in their middle, spread over the run."""
    wide = np.flatnonzero(table.duration_ns > table.span_ns / 50)
    return wide[:: max(1, len(wide) // count)]


def test_every_bar_is_where_and_when_it_ran_in_its_cells_colour(opened: Opened) -> None:
    table = recorded("sketch_4096_causal_natural").table
    page = opened(("v2", table))
    drawn = Drawn(page, table)
    for entry in wide_entries(table):
        color = color_at(drawn.lanes, drawn.bar(entry))
        assert color == color_at(drawn.map, drawn.cell(entry)) != LIGHT, f"entry {entry}"
    choice(page, "Bars").select_option("head")
    expect(page.locator("figcaption")).to_contain_text("coloured by head")
    first, second = (int(np.flatnonzero(table.head == head)[-1]) for head in (0, 1))
    assert color_at(drawn.lanes, drawn.bar(first)) == color_at(drawn.map, drawn.cell(first))
    assert color_at(drawn.map, drawn.cell(first)) != color_at(drawn.map, drawn.cell(second))
    choice(page, "Map").select_option("sm")
    expect(page.locator("figcaption")).to_contain_text("coloured by SM")
    same = np.flatnonzero(table.sm == table.sm[first])
    assert len({tuple(color_at(drawn.map, drawn.cell(entry))) for entry in same}) == 1


def test_a_bar_and_its_cell_light_each_other_and_say_the_same(opened: Opened) -> None:
    table = recorded("sketch_4096_causal_heaviest").table
    page = opened(("v2", table))
    drawn = Drawn(page, table)
    entry, other = (int(one) for one in wide_entries(table)[[3, 7]])
    over = page.locator(".map canvas.over")
    before = over.evaluate(PICTURE)
    drawn.lanes.hover(position=drawn.bar(entry))
    expect(said(page, "pointed")).to_have_text(drawn.words(entry))
    assert over.evaluate(PICTURE) != before, "the map must light what is pointed at in the lanes"
    over = page.locator(".time .holder canvas.over").nth(1)
    before = over.evaluate(PICTURE)
    drawn.map.hover(position=drawn.cell(other))
    expect(said(page, "pointed")).to_have_text(drawn.words(other))
    assert over.evaluate(PICTURE) != before, "the lanes must light what is pointed at in the map"
    plain = color_at(drawn.map, drawn.cell(entry))
    drawn.lanes.click(position=drawn.bar(entry))
    expect(said(page, "selected")).to_have_text(drawn.words(entry))
    assert color_at(drawn.map, drawn.cell(entry)) != plain, "the selected one's head is tinted"
    drawn.map.click(position=drawn.cell(other))
    expect(said(page, "selected")).to_have_text(drawn.words(other))
    sisters = table.head == table.head[other]
    expect(said(page, "selected")).to_contain_text(f"{sisters.sum()} blocks (tinted) ran on {len(set(table.sm[sisters]))} SMs")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator(".fs-lanes .selected")).to_be_hidden()
    expect(page.get_by_role("button", name="Watch its tiles")).to_have_count(0)


def test_keys_go_along_a_lane_and_across_lanes_and_select(opened: Opened) -> None:
    table = recorded("sketch_4096_causal_natural").table
    page = opened(("v2", table))
    drawn = Drawn(page, table)
    page.locator(".fs-lanes").focus()

    def on(sm: int) -> np.ndarray:
        found = np.flatnonzero(table.sm == sm)
        return found[np.argsort(table.start_ns[found])]

    page.keyboard.press("ArrowRight")
    first = int(np.lexsort((np.arange(len(table.sm)), table.start_ns))[0])
    expect(said(page, "pointed")).to_have_text(drawn.words(first))
    lane = on(table.sm[first])
    for key, entry in (("ArrowRight", lane[1]), ("End", lane[-1]), ("ArrowLeft", lane[-2]), ("Home", lane[0])):
        page.keyboard.press(key)
        expect(said(page, "pointed")).to_have_text(drawn.words(entry))
    by = 1 if drawn.lane_of[table.sm[first]] < table.sm_count - 1 else -1
    page.keyboard.press("ArrowDown" if by == 1 else "ArrowUp")
    neighbour = drawn.order[drawn.lane_of[table.sm[first]] + by]
    expect(said(page, "pointed")).to_contain_text(f"SM {neighbour} ·")
    page.keyboard.press("Enter")
    expect(said(page, "selected")).to_contain_text(f"SM {neighbour} ·")
    page.keyboard.press("Escape")
    expect(page.locator(".fs-lanes .selected")).to_be_hidden()


def test_zoom_keeps_what_is_under_the_hand_and_dragging_moves_it(opened: Opened) -> None:
    table = recorded("sketch_4096_causal_natural").table
    page = opened(("v2", table))
    drawn = Drawn(page, table)
    entry = int(wide_entries(table)[5])
    place = drawn.bar(entry)
    drawn.lanes.hover(position=place)
    page.keyboard.down("Control")
    for _ in range(3):
        page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    expect(said(page, "view")).to_contain_text("shown:")
    drawn.lanes.hover(position={"x": place["x"] + 1, "y": place["y"]})
    expect(said(page, "pointed")).to_have_text(drawn.words(entry))
    box = drawn.lanes.bounding_box()
    page.mouse.move(box["x"] + place["x"], box["y"] + place["y"])
    page.mouse.down()
    page.mouse.move(box["x"] + place["x"] - 60, box["y"] + place["y"], steps=4)
    page.mouse.up()
    drawn.lanes.hover(position={"x": place["x"] - 60, "y": place["y"]})
    expect(said(page, "pointed")).to_have_text(drawn.words(entry))
    expect(page.locator(".fs-lanes .selected")).to_be_hidden()
    page.locator(".fs-lanes").focus()
    page.keyboard.press("Shift+ArrowUp")
    expect(said(page, "view")).to_contain_text(", lanes ")
    page.keyboard.press("0")
    expect(said(page, "view")).to_have_text("")
    page.get_by_role("button", name="Tail").click()
    expect(said(page, "view")).to_have_text(re.compile(rf"to {table.span_ns / 1e3:,.0f} µs"))
    page.get_by_role("button", name="Whole run").click()
    expect(said(page, "view")).to_have_text("")


def test_time_plays_steps_and_is_scrubbed(opened: Opened) -> None:
    table = recorded("sketch_4096_causal_natural").table
    page = opened(("v2", table))
    drawn = Drawn(page, table)
    box = page.locator(".fs-lanes")
    box.focus()
    starts = np.unique(table.start_ns)
    for key, time in ((".", 0.0), (".", starts[1]), (".", starts[2]), (",", starts[1])):
        page.keyboard.press(key)
        expect(said(page, "where")).to_contain_text(f"{time / 1e3:,.2f} µs of")
    time = table.span_ns / 2
    page.get_by_role("slider").evaluate("slider => { slider.value = 500; slider.dispatchEvent(new Event('input')); }")
    running = (table.start_ns <= time) & (time < table.end_ns)
    done = int((table.end_ns <= time).sum())
    expect(said(page, "state")).to_have_text(f"{running.sum()} SMs busy · {done} of {len(table.sm)} blocks done")
    expect(page.get_by_role("slider")).to_have_attribute("aria-valuetext", re.compile(rf"{running.sum()} SMs busy"))
    entry = int(np.flatnonzero(running)[0])
    assert color_at(drawn.map, drawn.cell(entry)) == HERE
    assert color_at(drawn.lanes, drawn.bar(entry)) == HERE
    choice(page, "Speed").select_option(index=4)
    box.focus()
    page.keyboard.press("Space")
    expect(said(page, "where")).to_contain_text("all done")
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    assert color_at(drawn.map, drawn.cell(entry)) != HERE


def test_two_share_one_time_and_what_is_modelled_is_hollow(opened: Opened) -> None:
    stamped = recorded("sketch_4096_causal_natural").table
    modelled = replace(stamped, provenance="modelled", tick_ns=0)
    page = opened(("v2, natural order", stamped), ("replayed", modelled))
    drawn, hollow = Drawn(page, stamped), Drawn(page, modelled, 1)
    expect(page.locator(".badge")).to_have_text(["measured · H200", "modelled · H200"])
    entry = int(wide_entries(stamped)[4])
    page.locator(".fs-lanes").focus()
    for _ in range(8):
        page.keyboard.press("Shift+ArrowUp")  # lanes of several pixels: an edge and something inside it
    expect(said(page, "view")).to_contain_text(", lanes ")
    white = [canvas.lanes.evaluate(SHARE, LIGHT) for canvas in (drawn, hollow)]
    assert len(set(map(round, white))) == 1
    block_0 = color_at(drawn.map, drawn.cell(int(np.flatnonzero(stamped.block == 31)[0])))
    solid, edges = (canvas.lanes.evaluate(SHARE, block_0) for canvas in (drawn, hollow))
    assert 0 < edges < solid / 2
    drawn.map.click(position=drawn.cell(entry))
    lines = said(page, "selected").locator("p")
    expect(lines).to_have_count(2)
    expect(lines.nth(0)).to_have_text(re.compile("^v2, natural order: .*±"))
    expect(lines.nth(1)).to_have_text(re.compile(r"^replayed: .*\(modelled\)"))


def test_sms_that_never_worked_are_there_and_said(opened: Opened) -> None:
    table = recorded("v1_4096_causal_default").table
    worked = len(set(table.sm.tolist()))
    assert worked < table.sm_count == 132
    page = opened(("v1 key-outer", table), selection=Selection(3, -1))
    about = f"{worked} of 132 SMs worked, {132 - worked} SMs idle · {len(table.sm)} programs, a whole head each"
    expect(page.locator("header .about")).to_contain_text(about)
    expect(said(page, "selected")).to_contain_text("head 3, all its query blocks")
    expect(page.locator("figcaption")).to_contain_text("coloured by head")
    page.locator("summary").click()
    rows = page.locator(".table tbody tr")
    expect(rows).to_have_count(132)
    expect(rows.filter(has_text="never worked")).to_have_count(132 - worked)


def test_programs_that_share_an_sm_lie_beside_each_other(opened: Opened) -> None:
    table = recorded("v2_4096_causal_natural_x264").table
    assert slots_of(table).max() == 1
    page = opened(("v2, 264 persistent programs", table), viewport={"width": 1920, "height": 1400})
    expect(page.locator("header .about")).to_contain_text(f"264 programs for {len(table.sm):,} query blocks")
    drawn = Drawn(page, table)
    busiest = table.sm[np.argmax(table.duration_ns)]
    here = np.flatnonzero((table.sm == busiest) & (table.duration_ns > table.span_ns / 50))
    for entry in (here[slots_of(table)[here] == slot][0] for slot in (0, 1)):
        drawn.lanes.hover(position=drawn.bar(entry))
        expect(said(page, "pointed")).to_have_text(drawn.words(entry))


@pytest.mark.parametrize("options", [{"color_scheme": "dark"}, {"reduced_motion": "reduce"}], ids=["dark", "calm"])
def test_a_narrow_screen_a_finger_and_a_calm_one(opened: Opened, options: dict[str, str]) -> None:
    table = recorded("sketch_16384_causal_natural").table
    options = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "device_scale_factor": 2, **options}
    page = opened(("v2, natural order", table), ("v2, modelled", replace(table, provenance="modelled")), **options)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it must not scroll sideways"
    drawn = Drawn(page, table)
    entry = int(np.argmax(table.duration_ns))
    drawn.lanes.tap(position=drawn.bar(entry))
    expect(said(page, "selected").locator("p").first).to_contain_text(f"SM {table.sm[entry]} ·")
    play = page.get_by_role("button", name="Play")
    if options.get("reduced_motion"):
        expect(play).to_be_disabled()
        page.locator(".fs-lanes").focus()
        page.keyboard.press("Space")
        expect(said(page, "where")).to_contain_text("0.00 µs of")
    else:
        expect(page.locator(".fs-lanes")).to_have_attribute("data-theme", "dark")
        pinch_apart(page, drawn)
        expect(said(page, "view")).to_contain_text("shown:")
    assert serious_violations(page) == []


def pinch_apart(page: Page, drawn: Drawn) -> None:
    """Two fingers beside each other on the lanes, drawn apart."""
    drawn.lanes.scroll_into_view_if_needed()
    box = drawn.lanes.bounding_box()
    x, y = box["x"] + 200, box["y"] + 150
    touches = page.context.new_cdp_session(page)
    for number in range(8):
        points = [{"x": x - 20 - 8 * number, "y": y, "id": 0}, {"x": x + 20 + 8 * number, "y": y, "id": 1}]
        touches.send("Input.dispatchTouchEvent", {"type": "touchMove" if number else "touchStart", "touchPoints": points})
    touches.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def test_the_page_shows_them_and_learns_what_is_selected(page: Page, server: Server) -> None:
    open_page(page, f"{server.url}/schedule")
    lanes = page.locator(".fs-lanes")
    expect(lanes).to_be_visible()
    settle(page)
    lanes.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(lanes.locator("[data-name=selected]")).to_contain_text("query block")
    chosen = re.search(r"head (\d+) · query block (\d+)", lanes.locator("[data-name=selected]").inner_text())
    expect(page).to_have_url(re.compile(rf"=\s*{chosen[1]}\.{chosen[2]}"))
    settle(page)
    expect(lanes.locator("[data-name=selected]")).to_contain_text(chosen[0])
    assert serious_violations(page) == []
