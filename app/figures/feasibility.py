"""Which tiles can run: a cell a BLOCK_M × BLOCK_N, in it what fits or why it cannot, in colour, hatching and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from app.figures.style import Chart, Palette, figure, note_of, notes
from app.how_taken import COMPILED_ALONE, COMPILED_ROWS
from profiling import words
from profiling.feasibility import ARTICLE, Cell, Grid, Place, Reason, summary

TITLE = "What the compiler made of each tile"
LEFT, TOP, ROW_PX, LEAST_PX = 84, 34, 74, 300
_WIDE = 8  # more columns have no room for a second line
_GAP = 0.05
_HATCH: dict[Reason, str] = {
    "shared memory": "/",
    "does not compile": "x",
    "FP8 minimum": ".",
    "refused": "-",
    "not a power of two": "\\",
    "time limit": "+",
    "crashed": "|",
}
_SHORT: dict[Reason, str] = {
    "does not compile": "no compile",
    "FP8 minimum": "FP8 minimum",
    "refused": "refused",
    "not a power of two": "no power of 2",
    "time limit": "time is up",
    "crashed": "crashed",
}


def chart(grid: Grid, layer: Sequence[Place], cells: Mapping[Place, Cell], looked_at: Place | None, palette: Palette) -> Chart:
    """The cells of one layer, a place for each pair of sizes; those without a cell yet are empty."""
    rows, columns = sorted({one.block_m for one in layer}), sorted({one.block_n for one in layer})
    found = [cells[one] for one in layer if one in cells]
    return Chart(
        TITLE,
        _figure(grid, layer, cells, looked_at, (rows, columns), palette),
        "compiled",
        _caption(grid),
        f"{summary(found)}; " + "; ".join(f"{one.block_m} × {one.block_n} {one.reason}" for one in found),
        tuple(map(_row, found)),
        {**COMPILED_ROWS, "compiled in": COMPILED_ALONE},
    )  # fmt: skip


def _row(found: Cell) -> dict[str, str]:
    report = found.report
    return {
        "tile": f"{found.block_m} × {found.block_n}",
        "result": found.reason,
        "shared memory": f"{words.kib(found.needs_bytes)} of {found.has_bytes // words.KIB}" if found.needs_bytes else "–",
        "registers": f"{report.registers_per_thread}" if report else "–",
        "spills": f"{report.spill_bytes:,} bytes" if report else "–",
        "programs per SM": f"{report.programs_per_sm}" if report else "–",
        "compiled in": words.milliseconds(report.compile_ms) if report else "–",
        "why": f"limited by {report.limited_by}" if found.can_run else found.sentence,
    }


def _caption(grid: Grid) -> str:
    return (
        f"Compiled for sm_{grid.capability} ({grid.arch.name}); nothing was launched. Blue: fits, the stronger the more "
        "warps an SM holds at once. Orange: runs, but spills. Hatched: cannot run, and why. Dotted frames: the article’s "
        f"pairs; solid amber: the version’s default, {grid.default.title}; inner: the cell at the right."
    )


def _figure(
    grid: Grid,
    layer: Sequence[Place],
    cells: Mapping[Place, Cell],
    looked_at: Place | None,
    sides: tuple[list[int], list[int]],
    palette: Palette,
) -> go.Figure:
    rows, columns = sides
    fig = figure(palette, max(LEAST_PX, TOP + ROW_PX * len(rows)), left=LEFT, top=TOP, bottom=4)
    at = {place: (columns.index(place.block_n), len(rows) - 1 - rows.index(place.block_m)) for place in layer}
    drawn = [_drawn(cells.get(place), palette) for place in layer]
    fig.add_bar(
        x=[at[place][0] for place in layer],
        y=[1 - _GAP] * len(layer),
        base=[at[place][1] - 0.5 + _GAP / 2 for place in layer],
        width=1 - _GAP,
        customdata=[[place.block_m, place.block_n, _hover(place, cells.get(place))] for place in layer],
        hovertemplate="%{customdata[2]}<extra></extra>",
        marker={
            "color": [fill for fill, _, _ in drawn],
            "line": {
                "width": 1,
                "color": [palette.line if cells.get(place) is None else palette.background for place in layer],
            },
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
    notes(fig, [one for place, look in zip(layer, drawn, strict=True)
                for one in _words(at[place], cells.get(place), look, len(columns), palette)])  # fmt: skip
    _frames(fig, grid, at, looked_at, palette)
    _axes(fig, rows, columns, palette)
    return fig


def _axes(fig: go.Figure, rows: list[int], columns: list[int], palette: Palette) -> None:
    ticks = {"showgrid": False, "tickfont": {"size": 13, "color": palette.text}}
    names = [f"BLOCK_N <b>{size}</b>" if place == 0 else f"<b>{size}</b>" for place, size in enumerate(columns)]
    fig.update_xaxes(range=[-0.5, len(columns) - 0.5], tickvals=list(range(len(columns))), ticktext=names, side="top", **ticks)
    names = [f"BLOCK_M<br><b>{size}</b>" if place == 0 else f"<b>{size}</b>" for place, size in enumerate(rows)]
    fig.update_yaxes(range=[-0.5, len(rows) - 0.5], tickvals=list(range(len(rows)))[::-1], ticktext=names, **ticks)
    fig.update_layout(clickmode="event+select", dragmode=False)


def _drawn(found: Cell | None, palette: Palette) -> tuple[str, str, str]:
    """(fill, hatching, colour of its words)."""
    if found is None:
        return palette.background, "", palette.muted
    if found.reason in _HATCH:
        return palette.background, _HATCH[found.reason], palette.refused if found.reason == "crashed" else palette.muted
    if found.reason == "spills":
        fill = _between(palette.background, palette.work_lost, 0.28)
    else:
        share = found.report.warps_per_sm / found.report.max_warps_per_sm
        fill = _between(palette.band, palette.progress, min(1.0, share / 0.5))
    return fill, "", max((palette.text, palette.background), key=lambda color: _contrast(color, fill))


def _words(
    at: tuple[int, int], found: Cell | None, drawn: tuple[str, str, str], columns: int, palette: Palette
) -> list[dict[str, Any]]:
    """What stands in a cell: one line in bold, and a smaller one below where there is room."""
    first, second = _lines(found)
    fill, hatch, color = drawn
    behind = {"bgcolor": fill} if hatch else {}
    place = {"xanchor": "center", **behind}
    if not second or columns > _WIDE:
        return [note_of(first, *at, color, 13 if columns <= _WIDE else 11, bold=found is not None, **place)]
    return [
        note_of(first, *at, color, 14, bold=True, yshift=9, **place),
        note_of(second, *at, color, 11, yshift=-9, **place),
    ]


def _lines(found: Cell | None) -> tuple[str, str]:
    if found is None:
        return "…", ""
    if found.reason == "shared memory":
        return words.kib(found.needs_bytes), f"over {found.has_bytes // words.KIB}"
    if found.report is None or not found.can_run:
        return _SHORT[found.reason], ""
    at_once = f"{found.report.programs_per_sm} per SM"
    if found.reason == "spills":
        return f"spills {found.report.spill_bytes:,} B", at_once
    return at_once, f"{words.kib(found.needs_bytes)} · {found.report.registers_per_thread} reg"


def _hover(place: Place, found: Cell | None) -> str:
    if found is None:
        return f"<b>{place.title}</b><br>not compiled yet"
    lines = [f"<b>{place.title}</b>: {found.reason}", *_wrapped(words.plotly(found.sentence))]
    if found.report is not None:
        lines.append(f"compiled in {words.milliseconds(found.report.compile_ms)}")
    return "<br>".join(lines)


def _wrapped(text: str, most: int = 64) -> list[str]:
    lines = [""]
    for word in text.split():
        lines[-1:] = [f"{lines[-1]} {word}".strip()] if len(lines[-1]) + len(word) < most else [lines[-1], word]
    return lines


def _frames(fig: go.Figure, grid: Grid, at: Mapping[Place, tuple[int, int]], looked_at: Place | None, palette: Palette) -> None:
    """The article's pairs dotted, the default in a solid frame, what is looked at in the text's colour."""
    default = grid.default
    for place, (x, y) in at.items():
        if any((place.block_m, place.block_n) == (one.block_m, one.block_n) for one in ARTICLE):
            _frame(fig, x, y, palette.here, "dot", 0.02)
        if all(getattr(place, name) == getattr(default, name) for name in Place.model_fields):
            _frame(fig, x, y, palette.here, "solid", 0.02)
        if place == looked_at:
            _frame(fig, x, y, palette.text, "solid", 0.055)


def _frame(fig: go.Figure, x: int, y: int, color: str, dash: str, inset: float) -> None:
    half = 0.5 - inset
    line = {"color": color, "width": 2.5, "dash": dash}
    fig.add_shape(type="rect", x0=x - half, x1=x + half, y0=y - half, y1=y + half, line=line)


def _rgb(color: str) -> tuple[int, int, int]:
    return tuple(int(color[place : place + 2], 16) for place in (1, 3, 5))


def _between(low: str, high: str, share: float) -> str:
    mixed = (round(a + (b - a) * share) for a, b in zip(_rgb(low), _rgb(high), strict=True))
    return "#" + "".join(f"{one:02X}" for one in mixed)


def _contrast(one: str, other: str) -> float:
    """WCAG 2's contrast ratio."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    parts = (one / 255 for one in _rgb(color))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
