"""Pieces of the exported page as HTML. Every text is foreign here and escaped; pure functions."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence

from app import metric
from app.figures.style import Absent, Chart, Palette
from app.metric import Chip
from app.table_html import table_of, title_of
from profiling.words import escaped

_ICONS = {
    "ok": '<path d="M3.5 8.5l3 3 6-7"/>',
    "info": '<circle cx="8" cy="8" r="5.8"/><path d="M8 7.4v3.4M8 5.1v.2"/>',
    "caution": '<path d="M8 2.4L14.2 13.3H1.8zM8 6.4v3.2M8 11.4v.2"/>',
    "bad": '<circle cx="8" cy="8" r="5.8"/><path d="M8 4.9v3.7M8 10.7v.2"/>',
    "wait": '<circle cx="8" cy="8" r="5.8"/><path d="M8 4.6V8l2.2 1.6"/>',
    "correct": '<circle cx="8" cy="8" r="6.2"/><path d="M5 8.2l2.2 2.2L11.2 6"/>',
    "refused": '<circle cx="8" cy="8" r="6.2"/><path d="M5.6 5.6l4.8 4.8M10.4 5.6l-4.8 4.8"/>',
    "measured": '<circle cx="8" cy="8" r="5.4"/><circle cx="8" cy="8" r="2.2" fill="currentColor"/>',
    "interpreted": '<circle cx="8" cy="8" r="5.4"/><path d="M8 2.6a5.4 5.4 0 0 1 0 10.8z" fill="currentColor"/>',
    "modelled": '<circle cx="8" cy="8" r="5.4"/>',
    "compiled": '<rect x="4" y="4" width="8" height="8" rx="1"/>'
    '<path d="M6.5 4V2m3 2V2m-3 12v-2m3 2v-2M4 6.5H2m2 3H2m12-3h-2m2 3h-2"/>',
}


def icon(name: str) -> str:
    """A line drawing in the text's colour; the word beside it says what it means."""
    return (
        '<svg class="icon" viewBox="0 0 16 16" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="1.4" '
        f'stroke-linecap="round" stroke-linejoin="round">{_ICONS[name]}</svg>'
    )


def logo() -> str:
    """The mark, a causal tile grid, in the theme's colours."""
    cells = "".join(
        f'<rect class="{_cell(row, column)}" x="{column * 6}" y="{row * 6}" width="5" height="5" rx="1"/>'
        for row in range(4)
        for column in range(4)
    )
    return f'<svg class="logo" viewBox="0 0 23 23" aria-hidden="true">{cells}</svg>'


def _cell(row: int, column: int) -> str:
    if (row, column) == (3, 2):
        return "here"
    if row == 3 and column < 2:
        return "progress"
    return "v2" if column <= row < 3 else "line"


def favicon(palette: Palette) -> str:
    """Four tiles of the mark as a data URL."""
    tiles = ((0, 0, palette.v2), (0, 8, palette.progress), (8, 8, palette.here))
    rects = "".join(f"<rect x='{x}' y='{y}' width='7' height='7' rx='1' fill='{color}'/>" for x, y, color in tiles)
    drawing = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 15 15'>{rects}</svg>"
    return f"data:image/svg+xml;base64,{base64.b64encode(drawing.encode()).decode()}"


def sentence(text: str, strong: str = "", kind: str = "") -> str:
    """A paragraph, after an optional bold beginning; line breaks of the text stay."""
    start = f"<strong>{escaped(strong)}</strong> " if strong else ""
    return f'<p class="fs-sentence {kind}">{start}{escaped(text)}</p>'


def heading(title: str, provenance: str | None = None) -> str:
    """A section's title with its provenance, shape and word, at the right."""
    badge = f'<span class="badge">{icon(provenance)} {escaped(provenance)}</span>' if provenance else ""
    return f'<div class="heading"><h2>{escaped(title)}</h2>{badge}</div>'


def chips(items: Iterable[Chip]) -> str:
    """Grey when well, amber a caution, red a refusal; the sentence is the tooltip."""
    found = "".join(
        f'<li class="fs-chip fs-{kind}" title="{escaped(said)}">{icon(kind)} {escaped(short)}</li>'
        for kind, short, said in items
    )
    return f'<ul class="fs-chips">{found}</ul>'


def metrics(items: Iterable[Sequence[object]]) -> str:
    """Label with its provenance, value, notes, flags, and how the numbers were taken behind the provenance."""
    return metric.html_of(items, icon)


def table(rows: Sequence[dict[str, str]], label: str, kind: str = "", explained: Mapping[str, str] | None = None) -> str:
    """Rows of words; kind 'behind' waits for the switch."""
    return table_of(rows, label, explained or {}, kind) if rows else ""


def chart(found: Chart, key: str, least_px: int = 0) -> str:
    """Title and provenance, the place where the script draws the figure called key, its caption, the table behind it.

    least_px: what the figure needs to be legible; on a narrower screen it scrolls.
    """
    height = int(found.figure.layout.height)
    return (
        f'<figure class="chart">{heading(found.title, found.provenance)}'
        f'<div class="plot" data-figure="{escaped(key)}" data-least="{least_px}" style="height:{height}px" role="img" '
        f'aria-label="{escaped(found.alt)}"></div>'
        f'<figcaption class="fs-caption">{escaped(found.caption)}</figcaption>'
        f"{table(found.table, f'Table: {found.title}', 'behind', found.explained)}</figure>"
    )


def absences(found: Iterable[Absent]) -> str:
    """A line for each chart that has no data, with the reason."""
    return "".join(f'<p class="fs-caption"><strong>{escaped(one.title)}:</strong> {escaped(one.reason)}</p>' for one in found)


def facts(rows: Sequence[dict[str, str]], explained: Mapping[str, str]) -> str:
    """What and its value, in columns where there is room; explained: how a fact was taken, by what it is."""
    cells = "".join(
        f"<div><dt{title_of(row['what'], explained)}>{escaped(row['what'])}</dt><dd>{escaped(row['value'])}</dd></div>"
        for row in rows
    )
    return f'<dl class="facts">{cells}</dl>'


def folded(summary: str, text: str) -> str:
    """An original message, behind its summary."""
    return f'<details><summary>{escaped(summary)}</summary><pre tabindex="0">{escaped(text)}</pre></details>'
