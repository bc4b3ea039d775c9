"""Sixty hostile names and notes in a real Chromium, in the app and in the exported page: no dialog, no request leaves.

The short tests show all sixty, many on a page; the long ones each by itself.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Route, expect

from app.figures.style import shortened
from app.html_page import page_of
from profiling.foreign_text import cleaned
from profiling.snapshot import Snapshot, file_of
from profiling.store import Store
from tests.browser.conftest import IGNORED, ROOT, Server, open_page, serving, settle, wait_until
from tests.hostile_text import PAYLOADS, hostile_snapshot, joined_snapshot, small_snapshot

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("hostile text")]
A_SNAPSHOT = 15
DRAWN = """(() => {
    const plots = [...document.querySelectorAll("section:not([hidden]) .plot")];
    return plots.length > 0 && plots.every(one => one.querySelector(".main-svg"));
})()"""

# What a payload can have done, whoever let it: a script ran, an element listens, or one points outside or at a script.
HARM = """() => {
    const found = window.hostile === undefined ? [] : ['a script ran'];
    for (const one of document.querySelectorAll('*')) {
        for (const {name, value} of one.attributes) {
            const points = ['href', 'xlink:href', 'src', 'srcset', 'data', 'action', 'formaction', 'ping', 'poster', 'srcdoc',
                'background', 'content', 'style'].includes(name);
            const outside = /hostile|javascript:|data:text.html/i.test(value) && !/^[?/]|^http:..127.0.0.1/.test(value);
            if (name.startsWith('on') || (points && outside) || (name === 'id' && value === 'hostile')) {
                found.push(`<${one.localName} ${name}="${value.slice(0, 80)}">`);
            }
        }
        if (['base', 'embed', 'object', 'applet', 'marquee', 'math', 'iframe', 'video', 'sup'].includes(one.localName)) {
            found.push(`<${one.localName}>`);
        }
    }
    return found;
}"""


class Watch:
    """Everything that a payload did in a tab: dialogs, requests elsewhere, elements, complaints of the page."""

    def __init__(self, page: Page, home: str) -> None:
        self.page, self.home = page, home
        self.seen: list[str] = []
        page.route(re.compile("hostile"), self._hold)
        page.on("request", self._request)
        page.on("dialog", lambda dialog: (self.seen.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("popup", lambda popup: self.seen.append(f"popup: {popup.url}"))
        page.on("pageerror", lambda error: self.seen.append(f"error: {error}"))
        page.on("console", self._console)

    def _hold(self, route: Route) -> None:
        if route.request.url.startswith(self.home):
            route.continue_()
        else:
            route.abort()

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.home, self.home.replace("http:", "ws:"), "data:", "blob:")):
            self.seen.append(f"request: {request.url[:200]}")

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith(IGNORED):
            self.seen.append(f"console: {message.text[:300]}")

    def assert_harmless(self, what: str = "") -> None:
        """Nothing has happened since the tab was opened, and nothing is in the page."""
        found = self.seen + self.page.evaluate(HARM)
        assert not found, f"{what}: {found}"


@pytest.fixture
def watched(browser: Browser) -> Iterator[Callable[[str], Watch]]:
    """watched(home) opens a tab that may ask nobody but home."""
    context = browser.new_context(viewport={"width": 1280, "height": 1600})
    yield lambda home: Watch(context.new_page(), home)
    context.close()


def chunks() -> list[tuple[str, ...]]:
    return [PAYLOADS[start : start + A_SNAPSHOT] for start in range(0, len(PAYLOADS), A_SNAPSHOT)]


def assert_names_in_charts(page: Page, snapshot: Snapshot) -> None:
    """The versions' chart names each as it is written: nothing of it was taken for markup or TeX."""
    ticks = [plain(text) for text in page.locator(".ytick text").all_text_contents()]
    names = [plain(shortened(one.label)) for one in snapshot.measurements]
    assert [name for name in names if name not in ticks] == []


def plain(text: str) -> str:
    """Text as HTML shows it, white space run together."""
    return re.sub(r"\s+", " ", text).strip()


# The exported page


def look_at_exported(watch: Watch, snapshot: Snapshot, file: Path) -> None:
    """Open it from disk, draw every version, show the tables, unfold the messages."""
    file.write_bytes(page_of(snapshot))
    page = watch.page
    page.goto(file.as_uri())
    wait_until(page, DRAWN)
    page.evaluate("""() => {
        for (const choice of document.querySelectorAll('input[name=version]')) choice.click();
        document.getElementById('tables').click();
        for (const folded of document.querySelectorAll('details')) folded.open = true;
        for (const one of document.querySelectorAll('.plot, [title], summary')) {
            one.dispatchEvent(new MouseEvent('mouseover', {bubbles: true}));
        }
    }""")
    wait_until(page, DRAWN)
    watch.assert_harmless(snapshot.title)
    letters = page.evaluate("document.body.textContent")
    assert snapshot.title in letters
    assert snapshot.note in letters
    assert_names_in_charts(page, snapshot)
    for one in snapshot.measurements:
        assert one.request.kernel in letters
        assert one.environment.device.name in letters or one.error is not None


def test_the_exported_page_shows_all_sixty_as_letters(watched: Callable[[str], Watch], tmp_path: Path) -> None:
    watch = watched("file:")
    for place, texts in enumerate(chunks()):
        look_at_exported(watch, joined_snapshot(texts), tmp_path / f"{place}.html")


@pytest.mark.long
@pytest.mark.parametrize("payload", PAYLOADS)
def test_the_exported_page_shows_each_as_letters(payload: str, watched: Callable[[str], Watch], tmp_path: Path) -> None:
    look_at_exported(watched("file:"), hostile_snapshot(payload, (payload,)), tmp_path / "page.html")


# The app


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with a gallery of strangers."""
    root = tmp_path_factory.mktemp("hostile") / "house"
    skipped = shutil.ignore_patterns("__pycache__", "gallery")
    for folder in ("app", "profiling", "kernels", ".streamlit"):
        shutil.copytree(ROOT / folder, root / folder, ignore=skipped)
    (root / "app/gallery").mkdir()
    for place, texts in enumerate(chunks()):
        (root / f"app/gallery/{place}.json").write_bytes(joined_snapshot(texts).document)
    return root


@pytest.fixture(scope="module")
def together(house: Path) -> list[Snapshot]:
    return [joined_snapshot(texts) for texts in chunks()]


@pytest.fixture(scope="module")
def hostile_store(house: Path, together: list[Snapshot]) -> Store:
    """Every payload as a title, author, tag and note of its own, then many in one; the log names them too."""
    store = Store(f"sqlite:///{house.parent}/store.db")
    for payload in PAYLOADS:
        store.save(small_snapshot(payload), payload)
    for snapshot, who in zip(together, PAYLOADS, strict=False):
        store.save(snapshot, who, "imported")
    return store


@pytest.fixture(scope="module")
def hostile_server(house: Path, hostile_store: Store) -> Iterator[Server]:
    with serving(house, house.parent / "log", FLASHSCOPE_STORE=hostile_store.url) as found:
        yield found


@pytest.fixture(scope="module")
def one_tab(browser: Browser, hostile_server: Server) -> Iterator[Watch]:
    context = browser.new_context(viewport={"width": 1280, "height": 1600})
    yield Watch(context.new_page(), hostile_server.url)
    context.close()


@pytest.fixture
def watch(one_tab: Watch) -> Iterator[Watch]:
    """The tab in which every test asks the app: it has compiled the app's scripts already."""
    yield one_tab
    one_tab.seen.clear()


def visit(watch: Watch, server: Server, path: str, **query: str) -> Page:
    """Open a page of the app, wait until all of it stands, and look for harm."""
    open_page(watch.page, f"{server.url}/{path}?{urlencode(query)}")
    wait_for_charts(watch.page)
    watch.assert_harmless(f"{path} {query}")
    return watch.page


def wait_for_charts(page: Page) -> None:
    charts = "[...document.querySelectorAll('[data-testid=stPlotlyChart]')]"
    wait_until(page, f"{charts}.every(one => one.querySelector('.main-svg'))")


def letters_of(page: Page) -> str:
    return plain(page.evaluate("document.body.textContent"))


def test_the_list_shows_all_sixty_as_letters(watch: Watch, hostile_server: Server) -> None:
    letters = ""
    for number in range(1, 5):
        page = visit(watch, hostile_server, "snapshots", list=str(number))
        letters += " ".join(page.locator(".fs-excerpt strong").all_inner_texts())
    missing = [payload for payload in PAYLOADS if plain(cleaned(payload)[:120]) not in plain(letters)]
    assert missing == []


def test_an_opened_one_shows_them_as_letters(watch: Watch, hostile_server: Server, together: list[Snapshot]) -> None:
    for snapshot in together[::2]:
        page = visit(watch, hostile_server, "snapshots", snapshot=snapshot.id, tables="true")
        assert page.locator("h1").inner_text() == plain(snapshot.title)
        assert plain(snapshot.note) in letters_of(page)
        assert_names_in_charts(page, snapshot)
        page.locator(".st-key-more button").first.click()
        expect(page.get_by_role("region", name="Table: history")).to_be_visible()
        watch.assert_harmless("history")


def test_comparing_them_shows_letters(watch: Watch, hostile_server: Server, together: list[Snapshot]) -> None:
    a, b = together[1], together[3]
    versions = {"va": a.measurements[2].label, "vb": b.measurements[2].label}
    page = visit(watch, hostile_server, "compare", a=a.id, b=b.id, tables="true", **versions)
    assert plain(a.title) in letters_of(page)
    assert plain(b.measurements[2].environment.device.name) in letters_of(page)


def test_a_gallery_of_strangers_and_what_the_run_page_says_of_it(watch: Watch, hostile_server: Server) -> None:
    page = visit(watch, hostile_server, "gallery")
    assert plain(PAYLOADS[0]) in letters_of(page)
    visit(watch, hostile_server, "gallery", recording="2", tables="true")


def test_an_uploaded_file_and_its_name(watch: Watch, hostile_server: Server, together: list[Snapshot], tmp_path: Path) -> None:
    page = visit(watch, hostile_server, "snapshots")
    page.get_by_role("button", name="Open a file").click()
    file = {"name": "<img src=x onerror=window.hostile=1>.json.gz", "mimeType": "text/html", "buffer": file_of(together[0])}
    page.locator("input[type=file]").set_input_files(files=[file])
    expect(page.locator(".st-key-preview")).to_contain_text("<img src=x onerror=window.hostile=1>.json.gz")
    settle(page)
    wait_for_charts(page)
    watch.assert_harmless("preview")


QUERIES = ("list", "snapshot", "a", "b", "va", "vb", "more", "find", "by", "recording", "job", "kernel", "seq_len", "device")


def visit_with_parameters(watch: Watch, server: Server, payload: str) -> None:
    """A link that somebody was sent: the payload in every parameter of each page."""
    for path in ("", "snapshots", "compare", "gallery"):
        visit(watch, server, path, **dict.fromkeys(QUERIES, payload))


def test_links_that_strangers_made(watch: Watch, hostile_server: Server) -> None:
    visit_with_parameters(watch, hostile_server, PAYLOADS[13] + PAYLOADS[35] + PAYLOADS[40])


@pytest.mark.long
@pytest.mark.parametrize("payload", PAYLOADS)
def test_the_app_shows_each_as_letters(payload: str, watch: Watch, hostile_server: Server, hostile_store: Store) -> None:
    """Each alone: opened, in every version's details, compared, in the address."""
    snapshot = hostile_snapshot(payload, (payload,))
    other = hostile_snapshot(f"other {payload}"[:120], (payload, payload))
    for one in (snapshot, other):
        hostile_store.save(one, payload)
    page = visit(watch, hostile_server, "snapshots", snapshot=snapshot.id, tables="true")
    assert page.locator("h1").inner_text() == plain(snapshot.title)
    visit(watch, hostile_server, "snapshots", snapshot=other.id)
    visit(watch, hostile_server, "compare", a=snapshot.id, b=other.id, tables="true")
    visit_with_parameters(watch, hostile_server, payload)


def test_the_watch_sees_harm(watched: Callable[[str], Watch], tmp_path: Path) -> None:
    """The oracle itself: payloads left as markup are noticed, each kind of harm by its own name."""
    for payload, seen in (
        (PAYLOADS[0], "a script ran"),
        (PAYLOADS[14], "request: https://hostile.invalid/a.png"),
        (PAYLOADS[26], "<a href="),
        ("<script>alert(1)</script>", "dialog: 1"),
        ("<script>throw 1</script>", "error: 1"),
    ):
        file = tmp_path / "harmed.html"
        file.write_text(f"<!doctype html><title>harmed</title>{payload}")
        watch = watched("file:")
        watch.page.goto(file.as_uri())
        with pytest.raises(AssertionError, match=re.escape(seen)):
            watch.assert_harmless()
