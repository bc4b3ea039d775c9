"""Snapshots from end to end: run, save, open the link elsewhere, edit, delete, download, open a file, run it again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from profiling.snapshot import read
from tests import records_for_tests as records
from tests.browser.conftest import JOB_PATIENCE_MS, Server, fresh, open_page, serious_violations, settle, title
from tests.browser.test_run_page_in_browser import run_button, wait_for_result, wait_until_ready

pytestmark = pytest.mark.browser


def button(page: Page, key: str) -> Locator:
    """A button by its key; the second of the two that one with a tooltip has is never shown."""
    return page.locator(f".st-key-{key} button").first


def open_file(page: Page, server: Server, name: str, data: bytes, folder: Path) -> None:
    path = folder / name
    path.write_bytes(data)
    open_page(page, f"{server.url}/snapshots")
    button(page, "open-a-file").click()
    page.locator("input[type=file]").set_input_files(path)
    settle(page)


def save_a_run(page: Page, server: Server, seq_len: int) -> str:
    """Run the tiny problem with this length, save it with one click, return its link."""
    open_page(page, f"{server.url}/?seq_len={seq_len}")
    wait_until_ready(page)
    run_button(page).click()
    wait_for_result(page)
    button(page, "save").click()
    link = page.locator(".st-key-receipt code")
    expect(link).to_contain_text("snapshot=")
    return link.inner_text().strip()


@pytest.fixture(scope="module")
def links() -> list[str]:
    """The link of the run that tests which change nothing share."""
    return []


@pytest.fixture
def saved(page: Page, server: Server, links: list[str]) -> str:
    """The link of a saved run of 72 tokens."""
    if not links:
        links.append(save_a_run(page, server, 72))
    return links[0]


def test_a_run_is_saved_and_its_link_opens_it_elsewhere(server: Server, browser: Browser, saved: str) -> None:
    link = saved
    assert re.fullmatch(rf"{server.url}/snapshots\?snapshot=[0-9a-f]{{64}}", link)
    elsewhere = browser.new_context().new_page()
    for address in (link, link.replace("/snapshots?", "/?")):
        open_page(elsewhere, address)
        expect(title(elsewhere)).to_contain_text("72 tokens")
        expect(elsewhere.locator(".fs-value").first).to_have_text(re.compile("correct"))
        expect(elsewhere.locator(".js-plotly-plot").first).to_be_visible()
    elsewhere.context.close()


def test_edit_delete_undo(page: Page, server: Server) -> None:
    link = save_a_run(page, server, 73)
    open_page(page, link)
    button(page, "more").click()
    button(page, "edit").click()
    page.get_by_role("textbox", name="Title").fill("Seventy-three")
    page.get_by_role("textbox", name="Title").press("Enter")
    button(page, "save-words").click()
    expect(title(page)).to_have_text("Seventy-three")
    expect(page).not_to_have_url(link)
    open_page(page, link)
    button(page, "open-newer").click()
    expect(title(page)).to_have_text("Seventy-three")
    open_page(page, f"{server.url}/snapshots?find=seventy")
    rows = page.locator(".fs-excerpt", has_text="Seventy-three")
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Delete", exact=True).first.press("Enter")
    expect(rows).to_have_count(0)
    settle(page)
    button(page, "undo-delete").press("Enter")
    expect(rows).to_have_count(1)


def test_the_files_are_what_was_measured(page: Page, saved: str) -> None:
    open_page(page, saved)
    found = {}
    button(page, "share").click()
    for mime in ("application-gzip", "text-html", "text-csv"):
        with page.expect_download() as download:
            button(page, f"download-{mime}").click()
        found[mime] = Path(download.value.path()).read_bytes()
    snapshot = read(found["application-gzip"])
    assert saved.endswith(snapshot.id)
    assert snapshot.measurements[0].request.problem.seq_len_q == 72
    assert read(found["text-html"]).id == snapshot.id
    assert found["text-csv"].count(b"\n") > 1


def test_a_file_is_looked_at_then_kept(page: Page, server: Server, tmp_path: Path) -> None:
    sent = records.recording("Sent by a teammate", kernels=("v2", "v3"))
    open_file(page, server, "sent.json", sent.document, tmp_path)
    expect(page.locator(".st-key-preview")).to_contain_text("not in the store yet")
    expect(page.locator(".st-key-preview")).to_contain_text(sent.id)
    button(page, "keep").click()
    expect(fresh(page, ".fs-chip").filter(has_text="not measured here")).to_be_visible()
    expect(page).to_have_url(re.compile(f"snapshot={sent.id}"))
    page.get_by_role("radio", name="v2").click()
    expect(page).to_have_url(re.compile("details=v2"))
    page.reload()
    settle(page)
    expect(page.get_by_role("radio", name="v2")).to_be_checked()


def test_it_runs_again_here_and_is_compared(page: Page, saved: str) -> None:
    open_page(page, saved)
    button(page, "run-here").click()
    comparison = page.get_by_role("link", name="Compare with the snapshot")
    expect(comparison).to_be_visible(timeout=JOB_PATIENCE_MS)
    comparison.click()
    expect(page).to_have_url(re.compile(r"/compare\?.*b=job-"))
    settle(page)


@pytest.mark.parametrize("page", ["light", "dark"], indirect=True)
def test_no_serious_accessibility_violation(page: Page, server: Server, tmp_path: Path) -> None:
    sent = records.recording("Accessible", note="A note", kernels=("v2", "v3"))
    open_file(page, server, "sent.json", sent.document, tmp_path)
    expect(page.locator(".st-key-preview")).to_be_visible()
    expect(page.locator(".st-key-filters")).to_have_count(0)  # what the list left behind is faint until it goes
    settle(page)
    assert serious_violations(page) == []
    button(page, "keep").click()
    expect(page.locator(".st-key-receipt")).to_be_visible()
    settle(page)
    assert serious_violations(page) == []
    button(page, "more").click()
    button(page, "edit").click()
    expect(page.get_by_role("dialog", name="Edit title, note and tags")).to_be_visible()
    settle(page)
    assert serious_violations(page) == []
    open_page(page, f"{server.url}/snapshots")
    assert serious_violations(page) == []
