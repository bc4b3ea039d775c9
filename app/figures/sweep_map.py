"""A sweep as a map: a cell a BLOCK_M × BLOCK_N with its best time, or why it has none, in colour, hatching and words."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from app.figures import cells as drawing
from app.figures.style import Chart, Palette, note_of, notes
from app.how_taken import COLUMNS
from app.sweep_shown import Pair, Shown, Spot, said, tflops, value, word
from profiling import words

TITLE = "TFLOP/s by tile"
INTERPRETED_TITLE = "Which tiles give a correct output"
_MOST_IN_A_HOVER = 8
_PALEST = 0.12
_HATCH = {"refused": "-", "wrong": "+", "failed": "|"}
Look = tuple[str, str, str]
"""(fill, hatching, colour of its words)."""


def chart(shown: Shown, looked_at: str | None, palette: Palette) -> Chart:
    """The series' map; looked_at is the key of the cell whose place is framed in the text's colour."""
    return Chart(
        INTERPRETED_TITLE if shown.is_interpreted else TITLE,
        _figure(shown, looked_at, palette),
        shown.provenance,
        _caption(shown),
        "; ".join(f"{one.block_m} × {one.block_n} {value(one.pairs[0]) or word(shown, one.pairs[0])}" for one in shown.spots),
        tuple(_row(shown, pair) for spot in shown.spots for pair in spot.pairs),
        COLUMNS["sweep"],
    )  # fmt: skip


def _figure(shown: Shown, looked_at: str | None, palette: Palette) -> go.Figure:
    rows, columns = (sorted({getattr(spot, side) for spot in shown.spots}) for side in ("block_m", "block_n"))
    fig = drawing.empty(rows, columns, palette)
    at = [(columns.index(spot.block_n), len(rows) - 1 - rows.index(spot.block_m)) for spot in shown.spots]
    drawn = [_drawn(shown, spot, palette) for spot in shown.spots]
    lines = [palette.line if spot.outcome.status in ("pending", "untried") else palette.background for spot in shown.spots]
    told = [[spot.cell.key, _hover(shown, spot)] for spot in shown.spots]
    drawing.add(fig, at, drawn, lines, told, palette)
    found: list[dict[str, Any]] = []
    for spot, place, look in zip(shown.spots, at, drawn, strict=True):
        found += drawing.texts(place, _lines(shown, spot), look, len(columns), spot.outcome.is_over)
        found += _marks(fig, shown, spot, place, looked_at, (look, palette))
    notes(fig, found)
    return fig


def _drawn(shown: Shown, spot: Spot, palette: Palette) -> Look:
    """How a place is drawn."""
    outcome = spot.outcome
    if outcome.status == "measured":
        fill = (
            drawing.between(palette.background, palette.progress, _share(shown, spot))
            if not shown.is_interpreted
            else palette.band
        )
        return fill, "", drawing.ink(fill, palette)
    if outcome.status in ("pending", "untried"):
        return palette.background, "", palette.muted
    hatch = (
        drawing.HATCH.get(outcome.reason, _HATCH.get(outcome.status, "/"))
        if outcome.reason
        else _HATCH.get(outcome.status, "/")
    )
    return palette.background, hatch, palette.refused if outcome.status in ("wrong", "failed") else palette.muted


def _share(shown: Shown, spot: Spot) -> float:
    """How strong its blue is: its speed between the slowest and the fastest of the map."""
    speeds = [tflops(one.pairs[0]) for one in shown.spots if tflops(one.pairs[0]) is not None]
    low, high, here = min(speeds), max(speeds), tflops(spot.pairs[0])
    return 1.0 if high == low else _PALEST + (1 - _PALEST) * (here - low) / (high - low)


def _lines(shown: Shown, spot: Spot) -> tuple[str, str]:
    """The large line and the small one of a cell."""
    pair, outcome = spot.pairs[0], spot.outcome
    if outcome.status == "measured":
        speed = tflops(pair)
        first = words.three_digits(speed) if speed is not None else "correct"
        return first, _why(spot) if speed is not None else value(pair)
    if outcome.reason == "shared memory" and outcome.needs_bytes is not None:
        return words.kib(outcome.needs_bytes), f"over {outcome.has_bytes // words.KIB}"
    return drawing.SHORT.get(word(shown, pair), word(shown, pair)), ""


def _why(spot: Spot) -> str:
    """The compile fact that explains a speed; while cells are awaited, how many."""
    if spot.pending:
        return f"{len(spot.pairs) - spot.pending} of {len(spot.pairs)} timed"
    report, tiles = spot.outcome.report, spot.cell.tiles
    if report is None:
        return f"{tiles.num_warps} warps · {tiles.num_stages} stages"
    if report.spill_bytes:
        return f"spills {report.spill_bytes:,} B"
    return f"{words.kib(report.shared_memory_bytes)} · {report.programs_per_sm} per SM"


def _marks(
    fig: go.Figure, shown: Shown, spot: Spot, at: tuple[int, int], looked_at: str | None, ink: tuple[Look, Palette]
) -> list[dict[str, Any]]:  # fmt: skip
    """Frames around the best, the default's and the article's place, and their names in the cell's corner."""
    (fill, hatch, color), palette = ink
    keys = {cell.key for cell, _ in spot.pairs}
    marks = {"best": (shown.best, "solid"), "default": (shown.default, "dash"), "article": (shown.article, "dot")}
    here = {name: dash for name, (pair, dash) in marks.items() if pair is not None and pair[0].key in keys}
    for dash in list(here.values())[:1]:  # one frame a cell: the best's before the others'
        drawing.frame(fig, *at, palette.here, dash, 0.02)
    if looked_at in keys:
        drawing.frame(fig, *at, palette.text, "solid", 0.055)
    if not here:
        return []
    corner = {"xanchor": "left", "yanchor": "top", "xshift": 7, "yshift": -5, **({"bgcolor": fill} if hatch else {})}
    x, y = at[0] - 0.5 + drawing.GAP / 2, at[1] + 0.5 - drawing.GAP / 2
    return [note_of(" · ".join(here), x, y, color, 11, **corner)]


def _hover(shown: Shown, spot: Spot) -> str:
    """Every configuration of the place, the fastest first; of those that cannot run the sentence of one."""
    lines = [f"<b>{spot.block_m} × {spot.block_n}</b>"]
    for pair in spot.pairs[:_MOST_IN_A_HOVER]:
        _, _, rest = pair[0].title.partition(", ")
        lines.append(f"{rest}: {words.plotly(value(pair) or word(shown, pair))}")
    if len(spot.pairs) > _MOST_IN_A_HOVER:
        lines.append(f"… and {len(spot.pairs) - _MOST_IN_A_HOVER} more")
    if spot.outcome.median_ms is None and spot.outcome.sentence:
        lines += drawing.wrapped(words.plotly(spot.outcome.sentence))
    return "<br>".join(lines)


def _caption(shown: Shown) -> str:
    marks = "Hatched: cannot run, and why. "
    if shown.is_interpreted:
        return (
            f"Triton’s interpreter ran each on the CPU and its output was checked; its times say nothing of a GPU, so nothing "
            f"is ranked or coloured by them. {marks}Point at a cell for its warps and stages."
        )
    return (
        f"In each cell the fastest of its warps and stages: median launch, L2 flushed, its output checked first; below it what "
        f"the compiler says of it. {marks}Solid frame: the fastest; dashed: the version’s default; dotted: the article’s pair "
        "for this length; inner: the cell at the right."
    )


def _row(shown: Shown, pair: Pair) -> dict[str, str]:
    cell, outcome = pair
    report, latency = outcome.report, outcome.latency
    speed = tflops(pair)
    return {
        "tiles": cell.title,
        "result": word(shown, pair),
        "TFLOP/s": "–" if speed is None else words.three_digits(speed),
        "median": "–" if latency is None else words.milliseconds(latency.median_ms) + " (interpreter)" * (speed is None),
        "n": "–" if latency is None else f"{latency.n:,}",
        "shared memory": words.kib(report.shared_memory_bytes) if report else "–",
        "registers": str(report.registers_per_thread) if report else "–",
        "spills": f"{report.spill_bytes:,} bytes" if report else "–",
        "why": "" if outcome.median_ms is not None else said(pair),
    }
