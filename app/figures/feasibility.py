"""Which tiles can run: a cell a BLOCK_M × BLOCK_N, in it what fits or why it cannot, in colour, hatching and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from app.figures import cells as drawing
from app.figures.style import Chart, Palette, notes
from app.how_taken import COMPILED_ALONE, COMPILED_ROWS
from profiling import words
from profiling.feasibility import ARTICLE, Cell, Grid, Place, summary

TITLE = "What the compiler made of each tile"


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
    fig = drawing.empty(rows, columns, palette)
    at = {place: (columns.index(place.block_n), len(rows) - 1 - rows.index(place.block_m)) for place in layer}
    drawn = [_drawn(cells.get(place), palette) for place in layer]
    lines = [palette.line if cells.get(place) is None else palette.background for place in layer]
    told = [[place.block_m, place.block_n, _hover(place, cells.get(place))] for place in layer]
    drawing.add(fig, [at[place] for place in layer], drawn, lines, told, palette)
    notes(fig, [one for place, look in zip(layer, drawn, strict=True)
                for one in drawing.texts(at[place], _lines(cells.get(place)), look, len(columns), place in cells)])  # fmt: skip
    _frames(fig, grid, at, looked_at, palette)
    return fig


def _drawn(found: Cell | None, palette: Palette) -> tuple[str, str, str]:
    """(fill, hatching, colour of its words)."""
    if found is None:
        return palette.background, "", palette.muted
    if found.reason in drawing.HATCH:
        return palette.background, drawing.HATCH[found.reason], palette.refused if found.reason == "crashed" else palette.muted
    if found.reason == "spills":
        fill = drawing.between(palette.background, palette.work_lost, 0.28)
    else:
        share = found.report.warps_per_sm / found.report.max_warps_per_sm
        fill = drawing.between(palette.band, palette.progress, min(1.0, share / 0.5))
    return fill, "", drawing.ink(fill, palette)


def _lines(found: Cell | None) -> tuple[str, str]:
    if found is None:
        return "…", ""
    if found.reason == "shared memory":
        return words.kib(found.needs_bytes), f"over {found.has_bytes // words.KIB}"
    if found.report is None or not found.can_run:
        return drawing.SHORT[found.reason], ""
    at_once = f"{found.report.programs_per_sm} per SM"
    if found.reason == "spills":
        return f"spills {found.report.spill_bytes:,} B", at_once
    return at_once, f"{words.kib(found.needs_bytes)} · {found.report.registers_per_thread} reg"


def _hover(place: Place, found: Cell | None) -> str:
    if found is None:
        return f"<b>{place.title}</b><br>not compiled yet"
    lines = [f"<b>{place.title}</b>: {found.reason}", *drawing.wrapped(words.plotly(found.sentence))]
    if found.report is not None:
        lines.append(f"compiled in {words.milliseconds(found.report.compile_ms)}")
    return "<br>".join(lines)


def _frames(fig: go.Figure, grid: Grid, at: Mapping[Place, tuple[int, int]], looked_at: Place | None, palette: Palette) -> None:
    """The article's pairs dotted, the default in a solid frame, what is looked at in the text's colour."""
    default = grid.default
    for place, (x, y) in at.items():
        if any((place.block_m, place.block_n) == (one.block_m, one.block_n) for one in ARTICLE):
            drawing.frame(fig, x, y, palette.here, "dot", 0.02)
        if all(getattr(place, name) == getattr(default, name) for name in Place.model_fields):
            drawing.frame(fig, x, y, palette.here, "solid", 0.02)
        if place == looked_at:
            drawing.frame(fig, x, y, palette.text, "solid", 0.055)
