"""The exported page opened from disk in a real Chromium: it draws, switches, prints, gives its files, never calls out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from app.csv_text import csv_of
from app.figures import launches
from app.figures.style import LIGHT
from app.html_page import page_of
from profiling.snapshot import Snapshot, file_name, file_of, read
from tests import records_for_tests as records
from tests.browser.conftest import serious_violations, wait_until

pytestmark = pytest.mark.browser
KERNELS = ("native", "v1", "v3", "fa3")
BARS = ".barlayer .point path"
BAR_COLORS = {"light": "rgb(0, 114, 178)", "dark": "rgb(86, 180, 233)"}
SNAPSHOT = Snapshot(
    title="Made-up recording",
    note="For tests.",
    author="Ada",
    tags=("h200",),
    created_at="2026-11-29T13:10:00+00:00",
    measurements=(*(records.on_gpu(kernel) for kernel in KERNELS), records.failed("v2")),
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "page.html"
    path.write_bytes(page_of(SNAPSHOT))
    return path


@pytest.fixture(scope="module")
def opened(browser: Browser, file: Path) -> Iterator[Page]:
    """The page from disk, drawn, in one tab for all; at the end nothing has left it and nothing was complained about."""
    context = browser.new_context(color_scheme="light")
    page = context.new_page()
    errors: list[str] = []
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    open_drawn(page, file)
    yield page
    context.close()
    assert errors == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert file.as_uri() in asked


@pytest.fixture
def tab(opened: Page) -> Page:
    """The tab as it was when the page had just been opened."""
    opened.set_viewport_size({"width": 1280, "height": 1600})
    opened.get_by_role("radio", name="v3", exact=True).check(force=True)
    opened.get_by_role("switch", name="Tables").uncheck(force=True)
    wait_until_drawn(opened)
    switch_theme(opened, "light")
    return opened


def open_drawn(page: Page, file: Path) -> None:
    page.goto(file.as_uri())
    wait_until_drawn(page)


def wait_until_drawn(page: Page) -> None:
    wait_until(page, "[...document.querySelectorAll('section:not([hidden]) .plot')].every(p => p.querySelector('svg'))")


def plots(page: Page):
    return page.locator("section:not([hidden]) .plot")


def colors_of(page: Page, of: str) -> set[str]:
    """The fills of what a chart drew."""
    return set(page.eval_on_selector_all(f"section:not([hidden]) {of}", "found => found.map(one => one.style.fill)"))


def switch_theme(page: Page, theme: Literal["light", "dark"]) -> None:
    """As the system would; wait until every chart is drawn in it: they follow one after the other."""
    page.emulate_media(color_scheme=theme)
    wait_until(
        page,
        "([of, color, other]) => { const fills = [...document.querySelectorAll(of)].map(one => one.style.fill);"
        " return fills.includes(color) && !fills.includes(other); }",
        [f"section:not([hidden]) {BARS}", BAR_COLORS[theme], BAR_COLORS["dark" if theme == "light" else "light"]],
    )


def test_every_chart_is_drawn_and_not_blank(tab: Page) -> None:
    assert plots(tab).count() == 7  # versions, launches, roofline, memory, timeline, compiled; and what did not fit
    for plot in plots(tab).all():
        assert plot.locator("svg.main-svg").count() >= 1
        box = plot.bounding_box()
        assert box["width"] > 300
        assert box["height"] > 60
        assert plot.locator("svg path[d], svg text").count() > 5
    dots = tab.locator("section:not([hidden]) .plot .scatterlayer .points path")
    timed = SNAPSHOT.measurements[2].latency.n
    assert dots.count() >= timed
    assert tab.locator("#said").inner_text() == ""


def test_another_version_shows_its_own_numbers_by_mouse_and_by_keyboard(tab: Page) -> None:
    value = tab.locator("section:not([hidden]) .fs-value").nth(1)
    expect(value).to_have_text("2.02 ms")
    tab.get_by_role("radio", name="v1", exact=True).check(force=True)
    expect(value).to_have_text("5.14 ms")
    wait_until_drawn(tab)
    expect(tab.get_by_text("Every launch of v1")).to_be_visible()
    expect(tab.get_by_text("Every launch of v3")).to_be_hidden()
    tab.keyboard.press("ArrowLeft")
    expect(value).to_have_text("12.1 ms")
    wait_until_drawn(tab)


def test_the_theme_switches_while_the_page_is_open(tab: Page) -> None:
    assert BAR_COLORS["light"] in colors_of(tab, BARS)
    switch_theme(tab, "dark")
    expect(tab.locator("body")).to_have_css("background-color", "rgb(14, 20, 32)")
    switch_theme(tab, "light")
    expect(tab.locator("body")).to_have_css("background-color", "rgb(255, 255, 255)")


def test_tables_come_with_their_switch(tab: Page) -> None:
    table = tab.get_by_role("region", name="Table: Every launch of v3")
    expect(table).to_be_hidden()
    tab.get_by_role("switch", name="Tables").press("Space")
    expect(table).to_be_visible()
    chart = launches.chart(SNAPSHOT.measurements[2], LIGHT)
    assert table.locator("tbody td").all_inner_texts() == [cell for row in chart.table for cell in row.values()]


def test_its_files_can_be_taken_out(tab: Page, tmp_path: Path) -> None:
    with tab.expect_download() as csv:
        tab.get_by_role("link", name="Every launch as CSV").click()
    csv.value.save_as(tmp_path / "launches.csv")
    assert (tmp_path / "launches.csv").read_bytes() == csv_of(SNAPSHOT)
    with tab.expect_download() as packed:
        tab.get_by_role("button", name="Snapshot file").click()
    assert packed.value.suggested_filename == file_name(SNAPSHOT)
    packed.value.save_as(tmp_path / "own")
    assert (tmp_path / "own").read_bytes() == file_of(SNAPSHOT)
    assert read((tmp_path / "own").read_bytes()).id == SNAPSHOT.id


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_serious_accessibility_violation(tab: Page, theme: Literal["light", "dark"]) -> None:
    switch_theme(tab, theme)
    tab.get_by_role("switch", name="Tables").press("Space")
    # axe runs in the page's world through the browser's own protocol: the policy does not bind it.
    assert serious_violations(tab) == []


def test_nothing_is_cut_off_on_a_narrow_screen(tab: Page) -> None:
    tab.set_viewport_size({"width": 400, "height": 860})
    wait_until(tab, "document.querySelectorAll('section:not([hidden]) .plot')[1].querySelector('svg').clientWidth < 400")
    wait_until(tab, "document.documentElement.scrollWidth <= 400")
    first = plots(tab).first
    expect(first).to_have_js_property("scrollWidth", 500)
    expect(first).to_have_attribute("tabindex", "0")


def test_it_prints_light_and_as_wide_as_the_paper(tab: Page) -> None:
    switch_theme(tab, "dark")
    widths, fills = tab.evaluate("""() => {
        dispatchEvent(new Event('beforeprint'));
        const drawn = (of) => [...document.querySelectorAll(`section:not([hidden]) ${of}`)];
        const widths = drawn('.plot svg.main-svg').map((one) => one.clientWidth);
        const fills = drawn('.barlayer .point path').map((one) => one.style.fill);
        dispatchEvent(new Event('afterprint'));
        return [widths, fills];
    }""")
    assert BAR_COLORS["light"] in fills
    assert BAR_COLORS["dark"] not in fills
    assert all(0 < width <= 680 for width in widths)
    switch_theme(tab, "dark")


def test_a_page_that_calls_out_is_held_by_its_policy(browser: Browser, tmp_path: Path) -> None:
    """The same policy with mistakes added to the page: nothing leaves, no script runs."""
    mistakes = (
        "<script>window.ran=1</script><img src=https://hostile.invalid/a.png onerror=window.ran=1>"
        "<link rel=stylesheet href=https://hostile.invalid/a.css><iframe src=https://hostile.invalid></iframe>"
        "<style>body { background: url(https://hostile.invalid/b.png) }</style>"
    )
    file = tmp_path / "page.html"
    file.write_bytes(page_of(SNAPSHOT).replace(b"<main>", b"<main>" + mistakes.encode()))
    page = browser.new_page()
    asked: list[str] = []
    page.on("requestfinished", lambda one: asked.append(one.url))
    open_drawn(page, file)
    assert page.evaluate("window.ran") is None
    assert [url for url in asked if "hostile" in url] == []
    page.close()


def test_without_a_script_the_numbers_are_there(browser: Browser, file: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    expect(page.locator("noscript p")).to_have_text("Charts need JavaScript.")
    expect(page.locator("noscript p")).to_be_visible()
    for kernel in ("v1", "v3"):
        expect(page.get_by_role("region", name=f"Table: Every launch of {kernel}")).to_be_visible()
    context.close()
