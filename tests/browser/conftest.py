"""A real server, started as a user starts it, and a real Chromium; a test fails on any error either of them reports."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect, sync_playwright

ROOT = Path(__file__).parents[2]
CHROMIUM = "/usr/bin/chromium"
IGNORED = ("Failed to load resource",)  # Streamlit probes a subpage's own folder for its health route first
VIEWPORT = {"width": 1280, "height": 1600}
# A busy machine is slow, and no test here is about that: each waits for what it means, and as long as that takes.
PATIENCE_S = 120
JOB_PATIENCE_MS = 300_000  # a worker starts, imports torch, interprets
expect.set_options(timeout=1000 * PATIENCE_S)
RESTS = """async () => {
    const rests = () => document.querySelector("[data-testid=stApp][data-test-script-state=notRunning]")
        && !document.querySelector("[data-testid=stSkeleton], [data-testid=stElementContainer][data-stale=true]")
        && document.fonts.status === "loaded";
    const places = () => [...document.querySelectorAll("button, input, canvas, svg.main-svg")].map((one) => {
        const { x, y, width } = one.getBoundingClientRect();
        return `${x} ${y} ${width}`;
    }).join();
    if (!rests()) return false;
    const before = places();
    // Streamlit holds what it was sent back for 10 ms, and React and the canvases draw it with the next frame.
    await new Promise((drawn) => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(drawn)), 20));
    return Boolean(rests()) && places() === before;
}"""
NEXT_FRAME = "() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"
STILL = """() => document.getAnimations().every(
    (one) => one.playState !== "running" || one.effect.getComputedTiming().endTime === Infinity
)"""


@dataclass(frozen=True)
class Server:
    """A running server: where it answers, its process, its log."""

    url: str
    process: subprocess.Popen
    log: Path

    @property
    def feasibility(self) -> Path:
        """Where it keeps what was compiled for its maps."""
        return self.log.parent / "flashscope" / "feasibility"

    def workers(self) -> list[int]:
        """The process ids of its measuring workers."""
        return [pid for pid in _descendants(self.process.pid) if b"profiling.worker" in _command_line(pid)]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    kept = {"FLASHSCOPE_STORE": f"sqlite:///{folder}/store.db", "XDG_CACHE_HOME": str(folder)}
    with serving(ROOT, folder / "log", **kept) as found:
        yield found


@contextmanager
def serving(root: Path, log: Path, **environment: str) -> Iterator[Server]:
    """A server of the project in `root` on a free port; at the end nothing of it runs and its log holds no traceback."""
    found = _start(root, log, environment)
    try:
        while not _is_healthy(found):  # somebody else took the port first
            found = _start(root, log, environment)
        yield found
    finally:
        _stop(found.process)
    assert "Traceback" not in log.read_text(), log.read_text()


def _start(root: Path, log: Path, environment: dict[str, str]) -> Server:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("streamlit")), "run", "app/main.py", "--server.port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=root, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=os.environ | environment
        )
    return Server(f"http://127.0.0.1:{port}", process, log)


def _stop(process: subprocess.Popen) -> None:
    children = _descendants(process.pid)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    process.wait(PATIENCE_S)
    for child in children:  # a worker leads a process group of its own
        if b"profiling" in _command_line(child):
            os.kill(child, signal.SIGKILL)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not Path(CHROMIUM).exists():
        pytest.skip(f"there is no {CHROMIUM} here")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        chromium.on("context", lambda context: context.set_default_timeout(1000 * PATIENCE_S))
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def tab(browser: Browser) -> Iterator[Page]:
    """The tab that all tests share: one that has compiled the app's scripts opens a page in a third of the time."""
    context = browser.new_context(viewport=VIEWPORT)
    yield context.new_page()
    context.close()


@pytest.fixture(params=["light"])
def page(request: pytest.FixtureRequest, tab: Page, server: Server) -> Iterator[Page]:
    """The tab, with nothing of another test in it, tall enough that nothing is hidden from the accessibility checks."""
    tab.set_viewport_size(VIEWPORT)
    tab.emulate_media(color_scheme=request.param)
    errors: list[str] = []
    listeners = {
        "pageerror": lambda error: errors.append(f"pageerror: {error}"),
        "console": lambda message: errors.append(message.text) if _is_error(message) else None,
    }
    for event, listener in listeners.items():
        tab.on(event, listener)
    log_before = len(server.log.read_text())
    yield tab
    _forget(tab)
    for event, listener in listeners.items():
        tab.remove_listener(event, listener)
    assert errors == []
    assert "Traceback" not in server.log.read_text()[log_before:], server.log.read_text()[log_before:]


def _forget(tab: Page) -> None:
    """Leave the page, and with it its session; keep nothing that it stored or was allowed, and no other tab."""
    for other in tab.context.pages:
        if other is not tab:
            other.close()
    if tab.url.startswith("http"):
        tab.evaluate("localStorage.clear(); sessionStorage.clear()")
    tab.goto("about:blank")
    tab.context.clear_cookies()
    tab.context.clear_permissions()


def open_page(page: Page, url: str) -> None:
    """Go to an address and wait until the script has run."""
    page.goto(url)
    settle(page)


def settle(page: Page) -> None:
    """Wait until the script rests, and what it drew stands in its place: no skeleton, nothing that an earlier run left behind.

    What moves between press and release loses its click, for a person, too.

    A click is answered a moment later, until when the script still rests: first expect what the click brings, then settle.
    """
    wait_until(page, RESTS)


def fresh(page: Page, css: str) -> Locator:
    """What the script's current run drew. What an earlier one left behind stays in the page, faint, until this one ends."""
    return page.locator(f"[data-testid=stElementContainer][data-stale=false] {css}")


def title(page: Page) -> Locator:
    """The page's one h1."""
    return fresh(page, "h1")


def serious_violations(page: Page) -> list[str]:
    """What axe finds in a page at rest: what fades in or out has less contrast than it will have."""
    if page.locator("[data-testid=stApp]").count():
        settle(page)
    wait_until(page, STILL)
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {node['html'][:160]} {node['failureSummary'][:200]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def wait_until(page: Page, expression: str, arg: object = None) -> None:
    """Wait until JavaScript is true, or a function of it with arg is.

    wait_for_function looks again from inside the page by eval, which the policy of an exported page forbids; evaluate goes
    through the browser's own protocol every time.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not page.evaluate(expression, arg):
        assert time.monotonic() < deadline, f"not true within {PATIENCE_S} s: {expression}"
        page.wait_for_timeout(50)


def _is_error(message: ConsoleMessage) -> bool:
    failed = message.type == "error" and not message.text.startswith(IGNORED)
    return failed or "BidiComponent Error" in message.text


def _is_healthy(server: Server) -> bool:
    """Wait until it answers; False where its port is somebody else's by now."""
    deadline = time.monotonic() + 2 * PATIENCE_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            assert "is not available" in server.log.read_text(), server.log.read_text()
            return False
        try:
            with urllib.request.urlopen(f"{server.url}/_stcore/health", timeout=2) as answer:
                if answer.status == 200:
                    return True
        except (URLError, OSError):
            time.sleep(0.2)
    raise AssertionError(f"the server did not answer within {2 * PATIENCE_S} s:\n{server.log.read_text()}")


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *_descendants(child)]
    return found
