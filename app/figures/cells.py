"""A map of BLOCK_M × BLOCK_N as Plotly draws it: cells, hatching by reason, frames, ink that can be read on a fill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from app.figures.style import Palette, figure, note_of
from profiling.feasibility import Reason

LEFT, TOP, ROW_PX, LEAST_PX = 84, 34, 74, 300
GAP = 0.05
_WIDE = 8  # more columns have no room for a second line
HATCH: dict[Reason, str] = {
    "shared memory": "/",
    "does not compile": "x",
    "FP8 minimum": ".",
    "refused": "-",
    "not a power of two": "\\",
    "time limit": "+",
    "crashed": "|",
}
SHORT: dict[Reason, str] = {
    "does not compile": "no compile",
    "FP8 minimum": "FP8 minimum",
    "refused": "refused",
    "not a power of two": "no power of 2",
    "time limit": "time is up",
    "crashed": "crashed",
}


def empty(rows: Sequence[int], columns: Sequence[int], palette: Palette) -> go.Figure:
    """The figure of a map without its cells: BLOCK_M down, BLOCK_N above; a click on a cell selects it."""
    fig = figure(palette, max(LEAST_PX, TOP + ROW_PX * len(rows)), left=LEFT, top=TOP, bottom=4)
    ticks = {"showgrid": False, "tickfont": {"size": 13, "color": palette.text}}
    names = [f"BLOCK_N <b>{size}</b>" if place == 0 else f"<b>{size}</b>" for place, size in enumerate(columns)]
    fig.update_xaxes(range=[-0.5, len(columns) - 0.5], tickvals=list(range(len(columns))), ticktext=names, side="top", **ticks)
    names = [f"BLOCK_M<br><b>{size}</b>" if place == 0 else f"<b>{size}</b>" for place, size in enumerate(rows)]
    fig.update_yaxes(range=[-0.5, len(rows) - 0.5], tickvals=list(range(len(rows)))[::-1], ticktext=names, **ticks)
    fig.update_layout(clickmode="event+select", dragmode=False)
    return fig


def add(
    fig: go.Figure,
    at: Sequence[tuple[int, int]],
    drawn: Sequence[tuple[str, str, str]],
    lines: Sequence[str],
    customdata: Sequence[Sequence[Any]],
    palette: Palette,
) -> None:
    """Put cells at (column, row from below), each as (fill, hatching, colour of its words); customdata ends with its hover."""
    fig.add_bar(
        x=[x for x, _ in at],
        y=[1 - GAP] * len(at),
        base=[y - 0.5 + GAP / 2 for _, y in at],
        width=1 - GAP,
        customdata=list(customdata),
        hovertemplate=f"%{{customdata[{len(customdata[0]) - 1}]}}<extra></extra>" if customdata else None,
        marker={
            "color": [fill for fill, _, _ in drawn],
            "line": {"width": 1, "color": list(lines)},
            "pattern": {
                "shape": [hatch for _, hatch, _ in drawn],
                "fillmode": "overlay",
                "fgcolor": palette.native,
                "fgopacity": 0.35,
                "size": 9,
                "solidity": 0.2,
            },
        },
        selected={"marker": {"opacity": 1}},
        unselected={"marker": {"opacity": 1}},
    )


def texts(
    at: tuple[int, int], lines: tuple[str, str], drawn: tuple[str, str, str], columns: int, is_known: bool = True
) -> list[dict[str, Any]]:
    """What stands in a cell: one line in bold, and a smaller one below where there is room."""
    (first, second), (fill, hatch, color) = lines, drawn
    place = {"xanchor": "center", **({"bgcolor": fill} if hatch else {})}
    if not second or columns > _WIDE:
        return [note_of(first, *at, color, 13 if columns <= _WIDE else 11, bold=is_known, **place)]
    return [
        note_of(first, *at, color, 14, bold=True, yshift=9, **place),
        note_of(second, *at, color, 11, yshift=-9, **place),
    ]


def frame(fig: go.Figure, x: int, y: int, color: str, dash: str, inset: float) -> None:
    """A line around a cell, so far inside it."""
    half = 0.5 - inset
    line = {"color": color, "width": 2.5, "dash": dash}
    fig.add_shape(type="rect", x0=x - half, x1=x + half, y0=y - half, y1=y + half, line=line)


def wrapped(text: str, most: int = 64) -> list[str]:
    """A long sentence as lines of a hover."""
    lines = [""]
    for word in text.split():
        lines[-1:] = [f"{lines[-1]} {word}".strip()] if len(lines[-1]) + len(word) < most else [lines[-1], word]
    return lines


def between(low: str, high: str, share: float) -> str:
    """A colour between two."""
    mixed = (round(a + (b - a) * share) for a, b in zip(_rgb(low), _rgb(high), strict=True))
    return "#" + "".join(f"{one:02X}" for one in mixed)


def ink(fill: str, palette: Palette) -> str:
    """Which of text and background can be read on a fill."""
    return max((palette.text, palette.background), key=lambda color: contrast(color, fill))


def contrast(one: str, other: str) -> float:
    """WCAG 2's contrast ratio."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _rgb(color: str) -> tuple[int, int, int]:
    return tuple(int(color[place : place + 2], 16) for place in (1, 3, 5))


def _luminance(color: str) -> float:
    parts = (one / 255 for one in _rgb(color))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
