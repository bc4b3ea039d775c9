"""The article's times as rings, what was measured as dots: native, v1, v2, v3 at each length of its table, log milliseconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from app.article_shown import claimed_ms, device_words
from app.figures.style import Chart, Palette, figure, note_of, notes
from profiling import words
from profiling.article import GPU, LENGTHS, TABLE, Claimed, Run

TITLE = "Claimed and measured"
HEIGHT, _GAP, _ROOM = 268, 0.08, 0.32
_TICKS = (0.01, 0.1, 1.0, 10.0, 100.0)


def chart(run: Run, palette: Palette) -> Chart:
    """Rings at what is claimed, dots at what was measured; where nothing was, the rings alone."""
    where = device_words(run)
    measured = [f"{one.version} {words.milliseconds(ms)} at {words.tokens(length)}" for length in LENGTHS for one in TABLE
                if (ms := run.ms(one.version, length)) is not None]  # fmt: skip
    dots = f"Dots: medians measured on {where}, L2 flushed, every output checked." if measured else "Nothing is measured yet."
    return Chart(
        TITLE,
        _figure(run, palette),
        "measured",
        f"Rings: the article’s claims, on an {GPU}. {dots} Across GPUs compare the spacing, not the place.",
        "; ".join(["Claimed times as rings", "measured: " + (", ".join(measured) or "none")]),
        (),
    )


def _figure(run: Run, palette: Palette) -> go.Figure:
    fig = figure(palette, HEIGHT, left=52, right=10, top=26, bottom=40)
    width = (1 - _GAP * (len(LENGTHS) - 1)) / len(LENGTHS)
    found = []
    for panel, length in enumerate(LENGTHS):
        number, start = ("" if panel == 0 else str(panel + 1)), panel * (width + _GAP)
        fig.layout[f"xaxis{number}"] = _axis(fig, run, length, start, start + width)
        place = {"xref": "paper", "yref": "paper", "yanchor": "bottom", "yshift": 6}
        found.append(note_of(f"{length:,} tokens", start, 1, palette.muted, **place))
        for place, one in enumerate(TABLE):
            found += _marks(fig, _Mark(one, length, run.ms(one.version, length), place, f"x{number}"), palette)
    fig.update_yaxes(
        tickvals=list(range(len(TABLE))),
        ticktext=[one.version for one in TABLE],
        range=[len(TABLE) - 0.5, -0.5],
        tickfont={"size": 13, "color": palette.text},
    )
    notes(fig, found)
    return fig


def _axis(fig: go.Figure, run: Run, length: int, start: float, end: float) -> dict[str, Any]:
    """Log milliseconds over all of a length's times, from start to end of the plot's width."""
    values = [one.ms[length] for one in TABLE]
    values += [ms for one in TABLE if (ms := run.ms(one.version, length)) is not None]
    reach = [math.log10(min(values)) - _ROOM, math.log10(max(values)) + _ROOM]
    scale = {"type": "log", "range": reach, "tickvals": _TICKS, "ticktext": [words.milliseconds(tick) for tick in _TICKS]}
    return {**fig.layout.xaxis.to_plotly_json(), **scale, "domain": [start, end], "anchor": "y"}


@dataclass(frozen=True)
class _Mark:
    """A version at a length: its claim, its time where there is one, and its place in the figure."""

    claimed: Claimed
    length: int
    ms: float | None
    place: int
    x: str


def _marks(fig: go.Figure, one: _Mark, palette: Palette) -> list[dict[str, Any]]:
    """A ring, and a dot where there is a time; their numbers above and below, so that they never meet."""
    claimed, said, where = one.claimed.ms[one.length], claimed_ms(one.claimed, one.length), {"y": [one.place], "xaxis": one.x}
    if one.ms is not None:
        line = {"color": palette.line, "width": 2}
        both = {"x": [claimed, one.ms], "y": [one.place, one.place], "xaxis": one.x}
        fig.add_scatter(**both, mode="lines", line=line, hoverinfo="skip")
    ring = {"size": 14, "symbol": "circle-open", "color": palette.muted, "line": {"width": 1.8}}
    hover = "<extra></extra>"
    fig.add_scatter(x=[claimed], **where, mode="markers", marker=ring, hovertemplate=f"claimed {said}{hover}")
    at = {"xref": one.x, "xanchor": "center"}
    found = [note_of(said, math.log10(claimed), one.place, palette.muted, yshift=14, **at)]
    if one.ms is not None:
        dot, text = {"size": 9, "color": palette.version(one.claimed.version)}, words.milliseconds(one.ms)
        fig.add_scatter(x=[one.ms], **where, mode="markers", marker=dot, hovertemplate=f"measured {text}{hover}")
        found.append(note_of(text, math.log10(one.ms), one.place, palette.text, yshift=-14, **at))
    return found
