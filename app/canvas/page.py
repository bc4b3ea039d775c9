"""A canvas as one HTML page that works anywhere: from disk, without a server, without a request to anyone."""

from __future__ import annotations

import base64
import hashlib

from app.figures.style import DARK, LIGHT
from profiling.words import escaped

_STYLE = f"""
body {{ margin: 0 auto; padding: 20px 28px; max-width: 1864px; background: {LIGHT.background}; color: {LIGHT.text};
  font: 14px/1.5 "Source Sans", "Source Sans 3", system-ui, sans-serif }}
h1 {{ margin: 0 0 4px; font-size: 19px; line-height: 1.3 }} p {{ margin: 0 0 18px; max-width: 75em }}
@media (max-width: 600px) {{ body {{ padding: 14px }} }}
@media (prefers-color-scheme: dark) {{ body {{ background: {DARK.background}; color: {DARK.text} }} }}
"""


def script_that_mounts(script: str, name: str) -> str:
    """A module that draws every blob of elements_of(name, …) as soon as the page is there; `script` has a function mount."""
    return f"""{script}
for (const data of document.querySelectorAll("script[data-of={name}]")) {{
  mount(data.previousElementSibling, Uint8Array.from(atob(data.textContent), (letter) => letter.charCodeAt(0)));
}}
"""


def elements_of(name: str, blob: bytes) -> str:
    """Where a canvas is drawn, and what is drawn there."""
    return f'<div></div><script type="text/plain" data-of="{name}">{base64.b64encode(blob).decode()}</script>'


def page_of(title: str, heading: str, about: str, elements: str, script: str, style: str) -> bytes:
    """The same bytes every time. The page's policy lets its one script run, known by its hash, and nothing be fetched."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; base-uri 'none'"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escaped(title)}</title>
<style>{_STYLE}{style}</style>
</head>
<body>
<h1>{escaped(heading)}</h1>
<p>{escaped(about)}</p>
<main>{elements}</main>
<script type="module">{script}</script>
</body>
</html>
""".encode()
