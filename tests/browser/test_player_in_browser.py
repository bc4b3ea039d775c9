"""The tile player in a real Chromium: in the app, and in the file that is sent to somebody without a server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.conftest import JOB_PATIENCE_MS, NEXT_FRAME, Server, open_page, serious_violations, settle

pytestmark = pytest.mark.browser
COLORS = f"""async canvas => {{
    await ({NEXT_FRAME})();
    const pixels = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
    return new Set(pixels).size;
}}"""


def open_player(page: Page, server: Server, address: str = "") -> Locator:
    open_page(page, f"{server.url}/softmax{address}")
    player = page.locator(".fs-player")
    expect(player).to_be_visible()
    settle(page)
    return player


def trace_it(page: Page) -> None:
    """Press until it is answered, as a person would.

    On a busy machine a press right after the page has come to rest is lost about once in thirty: the browser sends it, and no
    run of the script is told. It is not known why.
    """
    button = page.get_by_role("button", name="Trace it")
    for _ in range(4):
        button.click()
        try:
            expect(button).to_be_hidden(timeout=15_000)
        except AssertionError:
            continue
        return
    raise AssertionError("four presses of Trace it were not answered")


def where(player: Locator) -> Locator:
    return player.locator("output[data-name=where]")


def numbers_of(player: Locator) -> dict[str, str]:
    """The followed row's m, l and alpha, as they are written."""
    return {name: player.locator(f"output[data-name={name}]").inner_text() for name in ("m", "l", "alpha")}


def assert_painted(player: Locator) -> None:
    for panel, fewest in (("map", 3), ("tile", 20), ("m", 2), ("alpha", 2), ("l", 2), ("out", 20)):
        found = player.locator(f"canvas[data-panel={panel}]").first.evaluate(COLORS)
        assert found >= fewest, f"panel {panel} shows {found} colours"


def test_it_steps_by_key_and_button_and_plays_to_the_end(page: Page, server: Server) -> None:
    player = open_player(page, server, "?tile=0&row=3&speed=16")
    expect(where(player)).to_have_text("tile 1 of 8 · key block 0")
    player.focus()
    page.keyboard.press("ArrowRight")
    expect(where(player)).to_have_text("tile 2 of 8 · key block 1")
    assert_painted(player)
    expect(player.get_by_role("slider")).to_have_attribute("aria-valuetext", "tile 2 of 8, key block 1")
    page.keyboard.press("ArrowDown")
    expect(player.locator(".sum .row")).to_have_text("row 228")
    player.get_by_role("button", name="Tile before").click()
    expect(where(player)).to_have_text("tile 1 of 8 · key block 0")
    expect(player.locator(".said")).to_contain_text("m and l begin here")
    player.focus()
    page.keyboard.press("Space")
    expect(where(player)).to_have_text("tile 8 of 8 · key block 7")
    expect(player.locator(".said")).to_contain_text("O is divided by l now, once")
    expect(player.get_by_role("button", name="Play")).to_be_visible()
    page.keyboard.press("Home")
    page.keyboard.press("]")
    expect(player.locator("select").first).to_have_value("30")
    expect(page).to_have_url(re.compile("tile=0&row=4&speed=30"))


def test_the_numbers_of_a_row_add_up(page: Page, server: Server) -> None:
    player = open_player(page, server, "?tile=1&row=3")
    expect(where(player)).to_have_text("tile 2 of 8 · key block 1")
    words = player.locator(".sum .l").inner_text()
    alpha, before, added, result = (float(word) for word in re.findall(r"\d+(?:\.\d+)?", words))
    assert result == pytest.approx(alpha * before + added, abs=2e-3)
    assert numbers_of(player)["l"] == f"{result:.3f}"


def test_a_link_restores_version_tile_and_row(page: Page, server: Server) -> None:
    player = open_player(page, server, "?version=v3+FP8&beside=v1&tile=4&row=9&speed=8")
    expect(where(player)).to_have_text("tile 5 of 8 · key block 4")
    expect(player.locator("header strong")).to_have_text(["v3 FP8", "v1"])
    expect(player.locator(".sum .row")).to_have_text(["row 233", "row 233"])
    player.locator("select").nth(1).select_option("beside")
    expect(player.locator(".tile figcaption b")).to_have_text(["2 S in FP8 | exact", "2 Scores S"])
    player.locator("canvas[data-panel=m]").first.click(position={"x": 5, "y": 2})
    expect(page).to_have_url(re.compile("tile=4&row=0&speed=8"))


def test_a_click_on_the_map_goes_there_and_another_block_is_traced(page: Page, server: Server) -> None:
    player = open_player(page, server)
    chart = player.locator("canvas[data-panel=map]")
    size = chart.bounding_box()
    chart.click(position={"x": size["width"] * 5.5 / 8, "y": size["height"] * 7.5 / 8})
    expect(where(player)).to_have_text("tile 6 of 8 · key block 5")
    chart.click(position={"x": size["width"] * 0.5 / 8, "y": size["height"] * 3.5 / 8})
    expect(player.locator("header .about")).to_contain_text("query block 3 of 8", timeout=JOB_PATIENCE_MS)
    expect(where(player)).to_contain_text("of 4")
    expect(page).to_have_url(re.compile("query_block=3"))
    settle(page)
    expect(page.get_by_text("agrees with its NumPy replay")).to_have_count(1)
    page.reload()
    settle(page)
    expect(player.locator("header .about")).to_contain_text("query block 3 of 8")


@pytest.fixture
def exported(page: Page, server: Server, tmp_path: Path) -> Path:
    open_player(page, server, "?version=v1&beside=v2&tile=3")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download the animation").click()
    download.value.save_as(tmp_path / "softmax.html")
    return tmp_path / "softmax.html"


@contextmanager
def from_disk(browser: Browser, exported: Path, **options: str) -> Iterator[Page]:
    """The exported file in a browser that has never seen the app; nothing may be asked of anyone, nothing may fail."""
    context = browser.new_context(viewport={"width": 420, "height": 900}, **options)
    tab = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("console", lambda message: said.append(message.text))
    tab.on("request", lambda one: asked.append(one.url))
    tab.goto(exported.as_uri())
    yield tab
    context.close()
    assert said == []
    assert asked == [exported.as_uri()]


def test_the_export_opens_from_disk(browser: Browser, exported: Path) -> None:
    with from_disk(browser, exported, color_scheme="dark") as dark:
        player = begins_where_the_app_was(dark)
        expect(player).to_have_attribute("data-theme", "dark")
        player.locator("select").first.select_option("60")
        player.get_by_role("button", name="Play").click()
        expect(where(player)).to_have_text("tile 8 of 8 · key block 7")
        assert serious_violations(dark) == []
    with from_disk(browser, exported, reduced_motion="reduce") as calm:
        player = begins_where_the_app_was(calm)
        expect(player.get_by_role("button", name="Play")).to_be_disabled()
        player.focus()
        calm.keyboard.press("Space")
        expect(where(player)).to_have_text("tile 5 of 8 · key block 4")
        assert serious_violations(calm) == []


def begins_where_the_app_was(tab: Page) -> Locator:
    player = tab.locator(".fs-player")
    expect(where(player)).to_have_text("tile 4 of 8 · key block 3")
    assert_painted(player)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it must not scroll sideways"
    return player


@pytest.mark.parametrize("page", ["light", "dark"], indirect=True)
def test_no_serious_accessibility_violation(page: Page, server: Server) -> None:
    open_player(page, server, "?beside=v1")
    assert serious_violations(page) == []


def test_a_kind_of_inputs_is_traced_with_shared_kv_heads(page: Page, server: Server) -> None:
    player = open_player(page, server, "?inputs=ramp&tokens=40&dim=16&query_heads=2&key_heads=1&head=1")
    expect(page.get_by_text("Every whole tile brings every row a new maximum")).to_be_visible()
    trace_it(page)
    about = player.locator("header .about")
    expect(about).to_have_text(
        "head 1, reads KV head 0 · query block 1 of 2 · tiles of 32 × 32 · ramp inputs", timeout=JOB_PATIENCE_MS
    )
    expect(where(player)).to_have_text("tile 2 of 2 · key block 1")
    expect(player.locator(".said")).to_contain_text("New maximum")
    settle(page)
    page.get_by_role("button", name="More").click()
    batch = page.get_by_role("combobox", name="Batch", exact=True)
    batch.click()
    page.get_by_role("option", name="2", exact=True).click()
    expect(page).to_have_url(re.compile("batches=2"))
    expect(page.get_by_text("Still shown:")).to_be_visible()


def test_own_files_are_traced_and_saved(page: Page, server: Server, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, length in (("Q", 20), ("K", 40), ("V", 40)):  # the last keys are the longest, and bring new maxima
        np.save(tmp_path / f"{name}.npy", rng.normal(size=(length, 16)) * np.linspace(0.1, 3, length)[:, None])
    np.save(tmp_path / "wrong.npy", rng.integers(0, 9, (40, 16)))
    player = open_player(page, server, "?inputs=own")
    files = page.locator("[data-testid=stFileUploaderDropzoneInput]")
    for place, name in enumerate(("Q", "K", "wrong")):
        files.nth(place).set_input_files(tmp_path / f"{name}.npy")
        # As a person would see it: a file that is chosen while the page answers to the one before may be lost.
        expect(page.get_by_role("button", name=f"Remove {name}.npy")).to_be_visible()
        settle(page)
    expect(page.get_by_text("V of type <i8 is not possible: its numbers are float16, float32 or float64.")).to_be_visible()
    files.nth(2).set_input_files(tmp_path / "V.npy")
    expect(page.get_by_text("Taken: Q (1, 1, 20, 16), K (1, 1, 40, 16), V (1, 1, 40, 16)")).to_be_visible()
    settle(page)
    trace_it(page)
    expect(player.locator("header .about")).to_contain_text("own inputs", timeout=JOB_PATIENCE_MS)
    expect(where(player)).to_have_text("tile 2 of 2 · key block 1")
    assert_painted(player)
    settle(page)
    assert "own" not in page.url.replace("inputs=own", "")
    page.get_by_role("button", name="Save snapshot").click()
    page.locator(".st-key-open-saved button").click()
    expect(page.locator(".fs-player header .about")).to_contain_text("own inputs")


def test_the_example_numbers_can_be_traced(page: Page, server: Server) -> None:
    open_player(page, server, "?inputs=own&version=v3+FP8")
    page.get_by_text("Numbers", exact=True).click()
    page.get_by_role("button", name="Fill in an example").click()
    expect(page.get_by_text("Taken: Q (1, 1, 128, 32)")).to_be_visible()
    assert serious_violations(page) == []
