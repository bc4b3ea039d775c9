"""The look in Streamlit: the palette of the active theme, the few lines of CSS, chips, badges, tables, the chart's frame.

Text that comes out of records goes through st.html, escaped: st.markdown would read it as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import streamlit as st

from app import metric
from app.figures.style import DARK, LIGHT, Absent, Chart, Palette, css_variables
from app.table_html import table_of
from profiling.words import escaped

FORM_WIDTH = 292
BADGES = {
    "measured": ":material/radio_button_checked: measured",
    "interpreted": ":material/contrast: interpreted",
    "modelled": ":material/radio_button_unchecked: modelled",
    "compiled": ":material/memory: compiled",
}
_CHIP_ICONS = {
    "ok": "check",
    "info": "info",
    "caution": "warning",
    "bad": "error",
    "wait": "hourglass_top",
    "tag": "sell",
    "person": "person",
    "pinned": "push_pin",
    "time": "schedule",
}
_SIGNS = _CHIP_ICONS | {name: badge.split(":")[1].split("/")[1] for name, badge in BADGES.items()}
_SIGNS |= {"correct": "check_circle", "refused": "cancel"}
_CSS = Path(__file__).with_name("look.css")


def palette() -> Palette:
    """The colours of the theme the browser shows."""
    return DARK if st.context.theme.type == "dark" else LIGHT


def style() -> None:
    """Send the CSS, with the palette as variables."""
    variables = css_variables(palette())
    st.html(f"<style>:root{{{variables}}}{_CSS.read_text(encoding='utf-8')}</style>")


def logo() -> str:
    """The mark, a causal tile grid, and the name, as SVG in the theme's colours."""
    colors = palette()
    cells = "".join(
        f'<rect x="{column * 6 + 1}" y="{row * 6 + 3}" width="5" height="5" rx="1" fill="{_cell(row, column, colors)}"/>'
        for row in range(4)
        for column in range(4)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="150" height="30" viewBox="0 0 150 30">{cells}'
        f'<text x="34" y="20.5" font-family="Arial, Helvetica, sans-serif" font-weight="700" font-size="16" '
        f'fill="{colors.text}">FlashScope</text></svg>'
    )


def _cell(row: int, column: int, colors: Palette) -> str:
    if (row, column) == (3, 2):
        return colors.here
    if row == 3 and column < 2:
        return colors.progress
    return colors.v2 if column <= row < 3 else colors.line


def chips(items: Iterable[tuple[str, str, str]], width: Literal["stretch", "content"] = "stretch") -> None:
    """(severity, short, sentence) each: grey when well, amber a caution, red a refusal, blue waiting."""
    spans = "".join(
        f'<li class="fs-chip fs-{kind}" title="{escaped(sentence)}">'
        f'<span class="fs-icon" aria-hidden="true">{_CHIP_ICONS[kind]}</span>'
        f"{escaped(short)}</li>"
        for kind, short, sentence in items
    )
    st.html(f'<ul class="fs-chips">{spans}</ul>', width=width)


def metrics(items: Iterable[Sequence[object]]) -> None:
    """What app.metric.Metric holds, side by side; (label, value, notes by line, kind) where no more is to be said."""
    st.html(metric.html_of(items, _sign))


def _sign(name: str) -> str:
    return f'<span class="fs-icon" aria-hidden="true">{_SIGNS[name]}</span>'


def title(text: str) -> None:
    """The page's one h1: the result or the question."""
    st.html(f'<h1 class="fs-title">{escaped(text)}</h1>', width="content")


def sentence(text: str, strong: str = "", width: Literal["stretch", "content"] = "stretch") -> None:
    """One plain sentence of foreign text, after an optional bold beginning."""
    start = f"<strong>{escaped(strong)}</strong> " if strong else ""
    st.html(f'<p class="fs-sentence">{start}{escaped(text)}</p>', width=width)


def excerpt(text: str, strong: str = "") -> None:
    """Foreign text after a bold beginning, cut where it would fill more than two lines."""
    start = f"<strong>{escaped(strong)}</strong> " if strong else ""
    st.html(f'<p class="fs-sentence fs-excerpt">{start}{escaped(text)}</p>')


def note(text: str, label: str) -> None:
    """A foreign text of many lines as it was written; a long one scrolls and can be reached by keyboard."""
    st.html(f'<p class="fs-sentence fs-lines" tabindex="0" role="region" aria-label="{escaped(label)}">{escaped(text)}</p>')


def caption(text: str) -> None:
    """A small grey line of foreign text, as wide as it is long."""
    st.html(f'<p class="fs-caption">{escaped(text)}</p>', width="content")


def field_error(text: str) -> None:
    """What is wrong with the field above."""
    st.html(f'<p class="fs-field-error" role="alert"><span class="fs-icon" aria-hidden="true">error</span>{escaped(text)}</p>')


def warning(text: str) -> None:
    """Something to know before relying on the numbers."""
    icon = '<span class="fs-icon fs-caution" aria-hidden="true">warning</span>'
    st.html(f'<p class="fs-sentence">{icon}{escaped(text)}</p>')


def table(rows: Sequence[dict[str, str]], label: str, explained: Mapping[str, str] | None = None) -> None:
    """Rows of words as an HTML table that scrolls when long and can be reached by keyboard; see table_html.table_of."""
    if rows:
        st.html(table_of(rows, label, explained or {}))


def heading(title: str, provenance: str | None = None) -> None:
    """A section's bold title with its provenance at the right."""
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", gap="small"):
        st.html(f'<p class="fs-sentence" role="heading" aria-level="2"><strong>{escaped(title)}</strong></p>', width="content")
        if provenance is not None:
            st.caption(BADGES[provenance], width="content")


def chart(found: Chart, key: str, with_table: bool) -> None:
    """Title and provenance above, the caption below saying how it was taken, and the table behind it when asked for."""
    with st.container(gap="xsmall"):
        heading(found.title, found.provenance)
        st.plotly_chart(found.figure, theme=None, config={"displayModeBar": False}, key=key, alt=found.alt)
        st.html(f'<p class="fs-caption">{escaped(found.caption)}</p>')
        if with_table:
            table(found.table, f"Table: {found.title}", found.explained)


def absences(found: Iterable[Absent]) -> None:
    """One line for each chart that has no data, with the reason."""
    lines = "<br>".join(f"<strong>{escaped(one.title)}:</strong> {escaped(one.reason)}" for one in found)
    if lines:
        st.html(f'<p class="fs-caption">{lines}</p>')
