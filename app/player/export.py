"""A trace as one HTML page that plays anywhere: from disk, without a server, without a request to anyone."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

from app.figures.style import DARK, LIGHT
from app.player.files import SCRIPT, STYLE
from app.player.payload import Position, pack
from profiling.records import Measurement
from profiling.words import escaped

PLAYER_SCRIPT = (
    SCRIPT
    + """
const text = document.getElementById("trace").textContent;
const root = document.getElementById("player");
mount(root, Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)));
"""
)
_PAGE_STYLE = f"""
body {{ margin: 0 auto; padding: 20px 28px; max-width: 1864px; background: {LIGHT.background}; color: {LIGHT.text};
  font: 14px/1.5 "Source Sans", "Source Sans 3", system-ui, sans-serif }}
h1 {{ margin: 0 0 4px; font-size: 19px; line-height: 1.3 }} p {{ margin: 0 0 18px; max-width: 75em }}
@media (max-width: 600px) {{ body {{ padding: 14px }} }}
@media (prefers-color-scheme: dark) {{ body {{ background: {DARK.background}; color: {DARK.text} }} }}
"""


def page_of_trace(measurement: Measurement) -> bytes:
    """One measurement's trace as a page."""
    return page_of_traces([measurement])


def page_of_traces(measurements: Sequence[Measurement], start: Position | None = None) -> bytes:
    """One trace, or two that step together, as a page; the same bytes every time.

    The policy in it lets the page's own script run, known by its hash, and nothing be fetched. Raises ValueError like pack.
    """
    elements = player_of(measurements, start)
    policy = f"default-src 'none'; script-src 'sha256-{_hash(PLAYER_SCRIPT)}'; style-src 'unsafe-inline'; base-uri 'none'"
    first = measurements[0]
    title = f"{' and '.join(one.label for one in measurements)} · {first.request.problem.title}"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escaped(title)}</title>
<style>{_PAGE_STYLE}{STYLE}</style>
</head>
<body>
<h1>The online softmax, tile by tile: {escaped(title)}</h1>
<p>{escaped(_about(measurements))}</p>
<main>{elements}</main>
<script type="module">{PLAYER_SCRIPT}</script>
</body>
</html>
""".encode()


def player_of(measurements: Sequence[Measurement], start: Position | None = None) -> str:
    """The elements of the player in a page that has PLAYER_SCRIPT as a module and STYLE. Raises ValueError like pack."""
    blob = base64.b64encode(pack(measurements, start)).decode()
    return f'<div id="player"></div><script type="text/plain" id="trace">{blob}</script>'


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _about(measurements: Sequence[Measurement]) -> str:
    """Where the numbers come from, and whether the replay agreed with them."""
    first = measurements[0]
    how = "in Triton's interpreter on a CPU" if first.tiles_trace.provenance == "interpreted" else "on the GPU"
    agrees = all(one.tiles_trace.replay.passed for one in measurements)
    proof = (
        "A NumPy replay of the same tiles agrees with it."
        if agrees
        else "A NumPy replay of the same tiles does NOT agree with it."
    )
    return f"Every number here was stored by the kernel itself while it ran {how} ({first.environment.device.name}). {proof}"
