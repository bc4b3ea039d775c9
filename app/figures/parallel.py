"""Parallel coordinates of a sweep: an axis a choice or a compile fact, a line a configuration, at the end its speed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from app.figures import cells as drawing
from app.figures.rounds import nice_ticks
from app.figures.style import Absent, Chart, Palette, figure, note_of, notes
from app.how_taken import COLUMNS
from app.sweep_shown import Pair, Shown, tflops, value
from profiling import words

TITLE = "What the fast ones have in common"
HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 330, 26, 56, 44, 12
_STEPS = 7
_SPREAD = 0.16  # of a step of an axis of choices: lines through one value lie side by side
_CHOICES = {"BLOCK_M": "block_m", "BLOCK_N": "block_n", "warps": "num_warps", "stages": "num_stages"}


@dataclass(frozen=True)
class Axis:
    """A name, where each line crosses it (0 to 1 from below), and the words at some of its heights."""

    name: str
    heights: tuple[float, ...]
    ticks: tuple[tuple[float, str], ...]


def chart(shown: Shown, only: Mapping[str, int], palette: Palette) -> Chart | Absent:
    """Three configurations at least must have a GPU's time; only: the choices that a line must have made not to be grey."""
    timed = sorted((pair for pair in shown.pairs if tflops(pair) is not None), key=tflops)
    if shown.is_interpreted:
        return Absent(TITLE, "the interpreter's times say nothing of a GPU's.")
    if len(timed) < 3:
        return Absent(TITLE, "fewer than three configurations have a time.")
    lit = [all(getattr(pair[0].tiles, _CHOICES[name]) == wanted for name, wanted in only.items()) for pair in timed]
    return Chart(
        TITLE,
        _figure(shown, timed, lit, palette),
        "measured",
        f"A line a configuration that has a time, {len(timed)} of them; the bluer the faster, amber the fastest, dashed the "
        "default. Lines through one value lie side by side, the faster above. What cannot run has no line.",
        "; ".join(f"{pair[0].title} {value(pair)}" for pair in reversed(timed)),
        tuple(_row(pair) for pair, is_lit in zip(reversed(timed), reversed(lit), strict=True) if is_lit),
        COLUMNS["sweep"],
    )  # fmt: skip


def choices(shown: Shown) -> dict[str, tuple[str, int]]:
    """What lines can be picked by: 'BLOCK_M 64' to ('BLOCK_M', 64), of axes on which there is something to choose."""
    found: dict[str, tuple[str, int]] = {}
    for name, field in _CHOICES.items():
        values = sorted({getattr(pair[0].tiles, field) for pair in shown.pairs if tflops(pair) is not None})
        if len(values) > 1:
            found |= {(f"{one} {name}" if name in ("warps", "stages") else f"{name} {one}"): (name, one) for one in values}
    return found


def _figure(shown: Shown, timed: Sequence[Pair], lit: Sequence[bool], palette: Palette) -> go.Figure:
    axes = _axes(timed)
    fig = figure(palette, HEIGHT, left=LEFT, right=RIGHT, top=TOP, bottom=BOTTOM)
    for place in range(len(axes)):
        line = {"color": palette.line, "width": 1}
        fig.add_shape(type="line", x0=place, x1=place, y0=0, y1=1, layer="below", line=line)
    best, default = (pair[0].key if pair is not None else None for pair in (shown.best, shown.default))
    for step in range(-1, _STEPS):
        rows = [row for row, pair in enumerate(timed)
                if pair[0].key not in (best, default) and (_step(row, len(timed)) if lit[row] else -1) == step]  # fmt: skip
        color = palette.track if step < 0 else drawing.between(palette.band, palette.progress, step / (_STEPS - 1))
        _lines(fig, axes, timed, rows, {"color": color, "width": 1 if step < 0 else 1.6})
    for key, color, dash in ((default, palette.text, "dash"), (best, palette.here, "solid")):
        rows = [row for row, pair in enumerate(timed) if pair[0].key == key]
        _lines(
            fig,
            axes,
            timed,
            rows,
            {"color": color if all(lit[row] for row in rows) else palette.track, "width": 2.4, "dash": dash},
        )
    _words(fig, axes, palette)
    fig.update_xaxes(range=[-0.02, len(axes) - 1], visible=False)
    fig.update_yaxes(range=[-0.02, 1.02], visible=False)
    return fig


def _step(row: int, count: int) -> int:
    return min(_STEPS - 1, _STEPS * row // max(1, count))


def _lines(fig: go.Figure, axes: Sequence[Axis], timed: Sequence[Pair], rows: Sequence[int], line: dict[str, object]) -> None:
    """Several configurations as one trace: a gap between the lines."""
    if not rows:
        return
    xs, ys, told = [], [], []
    for row in rows:
        xs += [*range(len(axes)), None]
        ys += [*(axis.heights[row] for axis in axes), None]
        told += [f"<b>{timed[row][0].title}</b><br>{value(timed[row])}"] * len(axes) + [""]
    fig.add_scatter(
        x=xs, y=ys, mode="lines", line=line, connectgaps=False, customdata=told, hovertemplate="%{customdata}<extra></extra>"
    )


def _axes(timed: Sequence[Pair]) -> list[Axis]:
    """The choices that differ, what the compiler says where it says it of all, and the speed."""
    found = []
    for name, field in _CHOICES.items():
        values = [getattr(pair[0].tiles, field) for pair in timed]
        if len(set(values)) > 1:
            found.append(_of_choices(name, values))
    reports = [pair[1].report for pair in timed]
    if all(report is not None for report in reports):
        amounts = {
            "shared, KiB": [report.shared_memory_bytes / words.KIB for report in reports],
            "registers": [report.registers_per_thread for report in reports],
            "spills, bytes": [report.spill_bytes for report in reports],
        }
        found += [_of_amounts(name, values) for name, values in amounts.items() if len(set(values)) > 1]
    return [*found, _of_amounts("TFLOP/s", [tflops(pair) for pair in timed])]


def _of_choices(name: str, values: Sequence[int]) -> Axis:
    """Evenly spaced; the lines come slowest first, so that the faster of one value lie higher."""
    places = sorted(set(values))
    step = 1 / (len(places) - 1)
    seen = dict.fromkeys(places, 0)
    heights = []
    for one in values:
        many = values.count(one)
        side = (seen[one] - (many - 1) / 2) / max(1, many - 1)
        seen[one] += 1
        heights.append(_within((places.index(one) + 2 * _SPREAD * side / 2) * step))
    return Axis(name, tuple(heights), tuple((place * step, str(one)) for place, one in enumerate(places)))


def _within(height: float) -> float:
    return min(1.0, max(0.0, height))


def _of_amounts(name: str, values: Sequence[float]) -> Axis:
    low, high = min(values), max(values)
    if high == low:
        return Axis(name, (0.5,) * len(values), ((0.5, words.three_digits(low)),))
    ticks = nice_ticks(low, high, 4)
    return Axis(
        name,
        tuple((one - low) / (high - low) for one in values),
        tuple(
            ((tick - low) / (high - low), f"{tick:,.{0 if float(tick).is_integer() else 1}f}")
            for tick in ticks
            if math.isfinite(tick)
        ),
    )


def _words(fig: go.Figure, axes: Sequence[Axis], palette: Palette) -> None:
    """The axes' names above, the words at their heights at the right of each."""
    found = []
    for place, axis in enumerate(axes):
        is_first = place == 0
        found.append(note_of(axis.name, place, 1, palette.text, 12, bold=True, yref="paper", yanchor="bottom", yshift=14,
                             xanchor="left" if is_first else "center", xshift=-LEFT if is_first else 0))  # fmt: skip
        found += [note_of(text, place, height, palette.muted, 11, xshift=5, bgcolor=palette.background, opacity=0.85)
                  for height, text in axis.ticks]  # fmt: skip
    notes(fig, found)


def _row(pair: Pair) -> dict[str, str]:
    tiles, report = pair[0].tiles, pair[1].report
    return {
        "tiles": pair[0].title,
        **{name: str(getattr(tiles, field)) for name, field in _CHOICES.items()},
        "shared memory": words.kib(report.shared_memory_bytes) if report else "–",
        "registers": str(report.registers_per_thread) if report else "–",
        "TFLOP/s": words.three_digits(tflops(pair)),
    }
