"""The listing in a real Chromium, held against the compiler's text itself: found, folded, mapped both ways; foreign text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from app.compiler_shown import Shown
from app.listing import payload
from app.listing.files import SCRIPT, STYLE
from profiling.assembly_text import Place, Row
from tests import compiled_v2
from tests.browser.conftest import serious_violations

pytestmark = pytest.mark.browser


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Any]:
    contexts, said = [], []

    def open_listing(data: dict[str, Any], **options: Any) -> Page:
        text = json.dumps(data).replace("<", "\\u003c")
        path = tmp_path / "listing.html"
        path.write_text(
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Listing</title><style>{STYLE}</style><main>'
            f'<div class="fs-listing-root"></div></main><script type="module">{SCRIPT}\n'
            f'window.listing = mountListing(document.querySelector(".fs-listing-root"), {text});</script></html>',
            encoding="utf-8",
        )
        contexts.append(browser.new_context(viewport={"width": 1400, "height": 1000}, **options))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("console", lambda message: said.append(message.text))
        page.goto(path.as_uri())
        expect(page.locator(".fs-listing")).to_be_visible()
        return page

    yield open_listing
    for context in contexts:
        context.close()
    assert said == []


def here(page: Page, of: str) -> Locator:
    """The row that is looked at; rows are painted a frame after what is said of them."""
    return page.locator(f".of-{of} .row.here")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_finds_folds_and_goes_both_ways(opened, theme):
    kernel = Shown(compiled_v2.answer()).kernel(None)
    rows = kernel.rows("sass")
    page = opened(payload.pack(rows, kernel.sources, kernel.code), color_scheme=theme)
    visible = [row for row in rows if not row.is_noise]
    expect(page.locator(".of-text .pane-head")).to_have_text(f"{len(visible):,} lines, {len(rows) - len(visible):,} folded")

    powers = [one for one in kernel.code.instructions if one.kind == "exp2"]
    find, hits = page.get_by_role("searchbox", name="Find in the text"), page.locator("output.hits")
    find.fill("/mufu\\.ex2/")
    expect(hits).to_have_text(f"1 of {len(powers)}")
    find.press("Enter")
    expect(hits).to_have_text(f"2 of {len(powers)}")
    find.press("Shift+Enter")
    find.press("Shift+Enter")
    expect(hits).to_have_text(f"{len(powers)} of {len(powers)}")
    expect(here(page, "text")).to_contain_text(f"{powers[-1].address:04x}")
    expect(here(page, "source")).to_contain_text("exp2")
    find.fill("/(/")
    expect(hits).to_have_text("no regular expression")
    find.fill("nowhere to be found")
    expect(hits).to_have_text("no hit")

    source = compiled_v2.answer().sources["kernels/flash_v2.py"].splitlines()
    line = next(number for number, text in enumerate(source, 1) if "tl.math.exp2(scores" in text)
    page.locator(f".of-source .row[data-at='{line}']").click()
    of_line = [row for row in visible if Place("kernels/flash_v2.py", line) in row.chain]
    expect(hits).to_have_text(re.compile(rf"^line {line}: \d+ of {len(of_line)}$"))
    expect(here(page, "source")).to_contain_text(str(len(of_line)))
    expect(page.locator(".said")).to_contain_text(f"flash_v2.py:{line}")

    page.get_by_label("Go to").select_option(label=f"wgmma ({sum(one.kind == 'wgmma' for one in kernel.code.instructions)})")
    expect(page.locator(".of-text .row.here .product")).to_contain_text("HGMMA")
    page.get_by_label("Loop").select_option("1")
    expect(here(page, "text")).to_contain_text(f"{kernel.code.loops[1].begins:04x}")
    page.get_by_label("Fold noise").uncheck()
    expect(page.locator(".of-text .pane-head")).to_have_text(f"{len(rows):,} lines")
    assert 0 < page.locator(".of-text .row").count() < 200  # only what is on screen
    assert serious_violations(page) == []


def test_a_row_that_is_painted_again_under_the_pointer_keeps_its_click(opened):
    kernel = Shown(compiled_v2.answer()).kernel(None)
    page = opened(payload.pack(kernel.rows("sass"), kernel.sources, kernel.code))
    row = page.locator(".of-source .row", has_text="tl.math.exp2(scores").first
    row.scroll_into_view_if_needed()
    line, box = row.get_attribute("data-at"), row.bounding_box()
    page.mouse.move(box["x"] + 40, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.evaluate("""() => new Promise((painted) => {
        document.querySelector(".of-source .scroller").dispatchEvent(new Event("scroll"));
        requestAnimationFrame(() => requestAnimationFrame(painted));
    })""")
    page.mouse.up()
    expect(page.locator("output.hits")).to_contain_text(f"line {line}:")


def test_foreign_text_stays_text(opened):
    row = Row('<img src=x onerror="window.hacked = 1"><b>bold</b>', 0, 50, (Place("kernels/<i>a</i>.py", 1),))
    page = opened(payload.pack([row, row], {"kernels/<i>a</i>.py": "<script>window.hacked = 1</script>"}))
    expect(page.locator(".of-text .row").first).to_contain_text("<b>bold</b>")
    expect(page.locator(".of-source .row").first).to_contain_text("<script>")
    page.locator(".of-text .row").first.click()
    expect(page.locator(".said")).to_have_text(re.compile(r"<i>a</i>\.py:1"))
    assert page.evaluate("window.hacked") is None
