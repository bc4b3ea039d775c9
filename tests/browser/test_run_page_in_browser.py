"""The Run page from end to end on a machine with no GPU: the real server, the real worker, the interpreter."""

from __future__ import annotations

import os
import re
import signal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Server, open_page, settle

pytestmark = pytest.mark.browser
JOB_TIMEOUT_MS = 120_000
# 32 tiles a head and 4 heads: seconds, long enough to be interrupted, and on a busy machine still under the page's limit.
SLOW = "/?kernel=v1&num_heads=4&num_kv_heads=4&seq_len=512&causal=false"


def run_button(page: Page):
    return page.locator(".st-key-run button")


def wait_for_result(page: Page) -> None:
    expect(page.locator(".fs-metrics")).to_be_visible(timeout=JOB_TIMEOUT_MS)
    settle(page)


def serious_violations(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {node['html'][:160]} {node['failureSummary'][:200]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def test_the_default_problem_runs_and_is_proved(page: Page, server: Server) -> None:
    open_page(page, server.url)
    expect(page.get_by_text("No NVIDIA GPU here.")).to_be_visible(timeout=20_000)
    settle(page)
    run_button(page).click()
    wait_for_result(page)
    expect(page.locator(".fs-value").first).to_have_text(re.compile("correct"))
    expect(page.get_by_text("interpreter, not GPU time")).to_be_visible()
    expect(page.locator(".js-plotly-plot").first).to_be_visible(timeout=20_000)
    expect(page.locator("h1")).to_have_count(1)
    assert re.search(r"[?&]job=\w+", page.url)
    explained = page.locator(".fs-how").first
    expect(explained).to_be_hidden()
    page.locator(".fs-provenance").first.focus()
    expect(explained).to_be_visible()
    expect(explained).to_contain_text("float64, computed tile by tile")


def test_ctrl_enter_runs(page: Page, server: Server) -> None:
    open_page(page, f"{server.url}/?seq_len=64")
    expect(run_button(page)).to_be_enabled(timeout=20_000)
    page.keyboard.press("Control+Enter")
    wait_for_result(page)
    expect(page.locator("h1")).to_contain_text("64 tokens")


def test_all_versions_are_one_job(page: Page, server: Server) -> None:
    open_page(page, f"{server.url}/?seq_len=128")
    expect(run_button(page)).to_be_enabled(timeout=20_000)
    page.locator(".st-key-run_all button").click()
    wait_for_result(page)
    expect(page.get_by_role("cell", name="correct", exact=True)).to_have_count(4)


def test_a_reload_finds_the_job_again(page: Page, server: Server) -> None:
    open_page(page, server.url + SLOW)
    expect(run_button(page)).to_be_enabled(timeout=20_000)
    run_button(page).click()
    expect(page.locator(".st-key-live")).to_be_visible(timeout=20_000)
    page.reload()
    settle(page)
    expect(page.locator(".st-key-live")).to_be_visible(timeout=10_000)
    page.locator(".st-key-cancel button").click()
    expect(page.locator(".fs-chip", has_text="cancelled")).to_be_visible(timeout=20_000)


def test_a_killed_worker_is_said_and_the_next_job_runs(page: Page, server: Server) -> None:
    open_page(page, server.url + SLOW)
    expect(run_button(page)).to_be_enabled(timeout=20_000)
    run_button(page).click()
    expect(page.locator(".st-key-live")).to_contain_text(re.compile("Checking|Running|Interpret|check", re.I), timeout=60_000)
    for pid in server.workers():
        os.kill(pid, signal.SIGKILL)
    expect(page.locator(".st-key-failed")).to_be_visible(timeout=30_000)
    open_page(page, f"{server.url}/?seq_len=64")
    expect(run_button(page)).to_be_enabled(timeout=20_000)
    run_button(page).click()
    wait_for_result(page)
    expect(page.locator(".fs-value").first).to_have_text(re.compile("correct"))


def test_a_typed_value_that_is_not_possible_is_said_at_its_field(page: Page, server: Server) -> None:
    open_page(page, server.url)
    expect(run_button(page)).to_be_enabled(timeout=20_000)
    length = page.locator(".st-key-seq_len input")
    length.fill("<b>lots</b>")
    length.press("Enter")
    expect(page.locator(".fs-field-error")).to_contain_text("seq_len = <b>lots</b> is not possible")
    expect(run_button(page)).to_be_disabled()
    length.fill("100")
    length.press("Enter")
    expect(run_button(page)).to_be_enabled()
    expect(page).to_have_url(re.compile("seq_len=100"))


def test_the_form_is_in_the_address_and_comes_back_after_the_gallery(page: Page, server: Server) -> None:
    open_page(page, f"{server.url}/?seq_len=300&kernel=v2&block_m=32")
    expect(run_button(page)).to_be_enabled(timeout=20_000)
    page.get_by_role("link", name="Gallery").click()
    expect(page.locator("h1")).to_have_text("Recordings from a real GPU")
    page.get_by_role("link", name="Run").click()
    expect(page.locator(".st-key-seq_len input")).to_have_value("300", timeout=10_000)
    expect(page.locator(".st-key-block_m input")).to_have_value("32")


@pytest.mark.parametrize("page", ["light", "dark"], indirect=True)
def test_no_serious_accessibility_violation(page: Page, server: Server) -> None:
    open_page(page, f"{server.url}/?seq_len=64&tables=true")
    expect(page.get_by_text("No NVIDIA GPU here.")).to_be_visible(timeout=20_000)
    settle(page)
    assert serious_violations(page) == []
    run_button(page).click()
    wait_for_result(page)
    assert serious_violations(page) == []


def test_the_first_paint_comes_soon(browser: Browser, server: Server) -> None:
    """In a browser that has never been here; one of five times, as other tests have the cores too."""
    assert any(first_paint_ms(browser, server.url) < 3000 for _ in range(5))


def first_paint_ms(browser: Browser, url: str) -> float:
    context = browser.new_context()
    page = context.new_page()
    open_page(page, url)
    paint_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    context.close()
    return paint_ms
