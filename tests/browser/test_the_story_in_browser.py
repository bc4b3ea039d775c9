"""The whole story of a snapshot: run, save, copy the link, open it elsewhere, send the file, keep it, compare, export."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from profiling.snapshot import AnySnapshot, Snapshot, read
from profiling.store import Store
from tests import records_for_tests as records
from tests.browser.conftest import ROOT, Server, fresh, open_page, serving, settle, title, wait_until
from tests.browser.test_snapshots_in_browser import button, open_file, save_a_run

pytestmark = pytest.mark.browser


@pytest.fixture
def teammate(tmp_path: Path) -> Iterator[Server]:
    """A second server with an empty store of its own."""
    with serving(ROOT, tmp_path / "log", FLASHSCOPE_STORE=teammates_store(tmp_path)) as found:
        yield found


def teammates_store(folder: Path) -> str:
    return f"sqlite:///{folder}/empty.db"


def copied_link(page: Page) -> str:
    """What the copy button beside the link puts on the clipboard."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator(".st-key-receipt [data-testid=stCode]").hover()
    page.locator(".st-key-receipt").get_by_role("button", name="Copy to clipboard").click()
    wait_until(page, "async () => (await navigator.clipboard.readText()).includes('snapshot=')")
    return page.evaluate("navigator.clipboard.readText()").strip()


def downloaded(page: Page, mime: str) -> bytes:
    """A file from the Share menu, which is open."""
    with page.expect_download() as download:
        button(page, f"download-{mime}").click()
    return Path(download.value.path()).read_bytes()


def test_from_one_machine_to_another(page: Page, server: Server, teammate: Server, browser: Browser, tmp_path: Path) -> None:
    written = save_a_run(page, server, 96)
    link = copied_link(page)
    assert link == written
    with closing(browser.new_context()) as elsewhere:
        second = elsewhere.new_page()
        open_page(second, link)
        expect(title(second)).to_contain_text("96 tokens")
        settle(second)
        button(second, "share").click()
        file, exported = (downloaded(second, mime) for mime in ("application-gzip", "text-html"))
    snapshot = read(file)
    assert read(exported).id == snapshot.id == link[-64:]
    uploaded(page, teammate, snapshot, file, tmp_path)
    compared(page, teammate, snapshot, own_run(tmp_path))
    opened_from_disk(browser, exported, tmp_path)


def uploaded(page: Page, teammate: Server, snapshot: AnySnapshot, file: bytes, folder: Path) -> None:
    """The teammate's store is empty; the file is looked at and kept under the same id."""
    open_page(page, f"{teammate.url}/snapshots?snapshot={snapshot.id}")
    expect(page.locator("[data-testid=stMain]")).to_contain_text(snapshot.id[:12])
    open_file(page, teammate, "from-a-friend.flashscope.json.gz", file, folder)
    expect(page.locator(".st-key-preview")).to_contain_text("not in the store yet")
    button(page, "keep").click()
    expect(fresh(page, ".fs-chip").filter(has_text="not measured here")).to_be_visible()
    open_page(page, f"{teammate.url}/snapshots?snapshot={snapshot.id[:12]}")
    expect(title(page)).to_contain_text("96 tokens")


def own_run(folder: Path) -> str:
    """The id of a run of 80 tokens that the teammate made."""
    problem = records.TINY.model_copy(update={"seq_len_q": 80, "seq_len_kv": 80})
    one = records.in_interpreter("v2")
    measurement = one.model_copy(update={"request": one.request.model_copy(update={"problem": problem})})
    store = Store(teammates_store(folder))
    own = Snapshot(title="The teammate's own", created_at="2026-11-29T13:10:00+00:00", measurements=(measurement,))
    store.save(own, "teammate")
    store.close()
    return own.id


def compared(page: Page, teammate: Server, snapshot: AnySnapshot, own: str) -> None:
    """Beside a run of the teammate's own; the interpreter's times are refused, the differences shown."""
    open_page(page, f"{teammate.url}/compare?a={snapshot.id}&b={own}")
    expect(page.locator("[data-testid=stMain]")).to_contain_text("What differs")
    expect(page.locator("[data-testid=stMain]")).to_contain_text("96")
    expect(page.locator("[data-testid=stMain]")).to_contain_text("80")
    page.reload()
    settle(page)
    expect(page.locator("[data-testid=stMain]")).to_contain_text("What differs")
    assert f"a={snapshot.id[:8]}" in page.url
    assert f"b={own[:8]}" in page.url
    page.goto("about:blank")  # before that server stops


def opened_from_disk(browser: Browser, exported: bytes, folder: Path) -> None:
    """Without a server: the page shows the proof and the charts, and asks nobody for anything."""
    path = folder / "exported.html"
    path.write_bytes(exported)
    with closing(browser.new_context(offline=True)) as alone:
        tab, asked = alone.new_page(), []
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(path.as_uri())
        expect(tab.locator("h1")).to_contain_text("96 tokens")
        expect(tab.get_by_text("correct").first).to_be_visible()
        expect(tab.locator(".main-svg").first).to_be_visible()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
