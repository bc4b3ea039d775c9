"""Time over seq_len, both on log scales: the fastest of each version, the default, the article's pairs; guides N and N²."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from app.figures.style import Absent, Chart, Palette, figure, note_of, notes, spread
from app.how_taken import COLUMNS
from app.sweep_shown import Pair, Shown, name_of
from profiling import words

TITLE = "Time over seq_len"
HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 330, 64, 128, 16, 44
_LABEL_PX = 16


@dataclass(frozen=True)
class Line:
    """A curve: its name, a point a length, how it is drawn."""

    name: str
    kind: str
    points: tuple[tuple[int, Pair], ...]


def chart(found: Sequence[Shown], focus: Shown, palette: Palette) -> Chart | Absent:
    """found: the series alike but for length, version and format; focus: the one whose default and article are drawn."""
    if focus.is_interpreted:
        return Absent(TITLE, "the interpreter's times say nothing of a GPU's.")
    lines = lines_of(found, focus)
    lengths = sorted({length for line in lines for length, _ in line.points})
    if len(lengths) < 2:
        return Absent(TITLE, "fewer than two lengths have a time; sweep several, such as 1k 4k 16k.")
    return Chart(
        TITLE,
        _figure(lines, lengths, palette),
        "measured",
        f"The fastest configuration at each length; {_slope(lines[0])}log scales. Filled: measured, median launch, L2 flushed. "
        "Dashed: modelled, what N and N² would take from the first point on.",
        "; ".join(f"{line.name} {', '.join(_told(*point) for point in line.points)}" for line in lines),
        tuple(_row(line, length, pair) for line in lines for length, pair in line.points),
        COLUMNS["scaling"],
    )  # fmt: skip


def lines_of(found: Sequence[Shown], focus: Shown) -> list[Line]:
    """The fastest by version and format, the focus' first; then its default and its article's pair, where they have a time."""
    names = list(dict.fromkeys([name_of(focus.series), *(name_of(one.series) for one in found)]))
    of_focus = [one for one in found if name_of(one.series) == name_of(focus.series)]
    lines = [Line(name, "best", _points([one for one in found if name_of(one.series) == name], "best")) for name in names]
    lines.append(Line(f"{names[0]} default", "default", _points(of_focus, "default")))
    lines.append(Line("article’s pairs", "article", _points(of_focus, "article")))
    return [line for line in lines if line.points]


def _points(found: Sequence[Shown], which: str) -> tuple[tuple[int, Pair], ...]:
    pairs = ((one.series.problem.seq_len_q, getattr(one, which)) for one in found)
    return tuple(
        sorted(((n, pair) for n, pair in pairs if pair is not None and pair[1].median_ms is not None), key=lambda it: it[0])
    )


def exponent(line: Line) -> float | None:
    """The power of N by which time grows, least squares on the logarithms; None of one length."""
    xs, ys = [math.log(n) for n, _ in line.points], [math.log(pair[1].median_ms) for _, pair in line.points]
    if len(xs) < 2:
        return None
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum((x - mean_x) ** 2 for x in xs)


def _slope(line: Line) -> str:
    found = exponent(line)
    return "" if found is None else f"{line.name}’s time grows as N^{found:.2f}; "


def _told(length: int, pair: Pair) -> str:
    return f"{words.tokens(length)} {words.milliseconds(pair[1].median_ms)}"


def _figure(lines: Sequence[Line], lengths: Sequence[int], palette: Palette) -> go.Figure:
    fig = figure(palette, HEIGHT, left=LEFT, right=RIGHT, top=TOP, bottom=BOTTOM)
    first, (start, pair) = lines[0], lines[0].points[0]
    ends: list[tuple[float, str, str]] = []
    for power, name in ((1, "N"), (2, "N²")):
        ys = [pair[1].median_ms * (n / start) ** power for n in (start, lengths[-1])]
        line = {"color": palette.native, "width": 1.2, "dash": "dash"}
        fig.add_scatter(x=[start, lengths[-1]], y=ys, mode="lines", line=line, hoverinfo="skip")
        ends.append((ys[-1], f"{name}, modelled", palette.muted))
    for line in lines:
        color, dash = _style(line, first, palette)
        fig.add_scatter(
            x=[n for n, _ in line.points], y=[one[1].median_ms for _, one in line.points], mode="lines+markers",
            line={"color": color, "width": 2.2 if line is first else 1.6, "dash": dash}, marker={"size": 7, "color": color},
            customdata=[f"<b>{line.name}</b>, {words.tokens(n)}<br>{one[0].title}<br>{words.milliseconds(one[1].median_ms)}"
                        for n, one in line.points],
            hovertemplate="%{customdata}<extra></extra>",
        )  # fmt: skip
        ends.append((line.points[-1][1][1].median_ms, line.name, palette.text if line is first else palette.muted))
    _scales(fig, lines, lengths, ends)
    low, high = (10**one for one in fig.layout.yaxis.range)
    _labels(fig, ends, low, high)
    note = {"xref": "paper", "yref": "paper", "xanchor": "center", "yshift": -34}
    notes(fig, [note_of("tokens", 0.5, 0, palette.muted, **note)])
    return fig


def _style(line: Line, first: Line, palette: Palette) -> tuple[str, str]:
    if line.kind == "article":
        return palette.work_lost, "dot"
    if line.kind == "default":
        return palette.native, "solid"
    return (palette.progress if line is first else palette.version(line.name.split()[0])), "solid"


def _scales(fig: go.Figure, lines: Sequence[Line], lengths: Sequence[int], ends: Sequence[tuple[float, str, str]]) -> None:
    times = [pair[1].median_ms for line in lines for _, pair in line.points] + [value for value, _, _ in ends]
    low, high = math.log10(min(times)) - 0.1, math.log10(max(times)) + 0.1
    powers = range(math.floor(low), math.ceil(high) + 1)
    ticks = [10.0**power * factor for power in powers for factor in ((1,) if high - low > 2.5 else (1, 2, 5))]
    fig.update_yaxes(type="log", range=[low, high], tickvals=ticks, ticktext=[words.milliseconds(tick) for tick in ticks])
    edge = 0.04 * (math.log10(lengths[-1]) - math.log10(lengths[0]))
    fig.update_xaxes(
        type="log", range=[math.log10(lengths[0]) - edge, math.log10(lengths[-1]) + edge], tickvals=list(lengths),
        ticktext=[words.tokens(length) for length in lengths], showgrid=False,
    )  # fmt: skip


def _labels(fig: go.Figure, ends: Sequence[tuple[float, str, str]], low: float, high: float) -> None:
    """Names at the ends of the lines, moved apart where they would touch."""
    plot_px = HEIGHT - TOP - BOTTOM
    scale = plot_px / (math.log10(high) - math.log10(low))
    wanted = [(math.log10(value) - math.log10(low)) * scale for value, _, _ in ends]
    found: list[dict[str, Any]] = []
    for (value, text, color), wish, place in zip(ends, wanted, spread(wanted, _LABEL_PX, 4, plot_px), strict=True):
        found.append(note_of(words.plotly(text), 1, math.log10(value), color, xref="paper", xshift=6, yshift=place - wish))
    notes(fig, found)


def _row(line: Line, length: int, pair: Pair) -> dict[str, str]:
    return {
        "line": line.name,
        "tokens": f"{length:,}",
        "tiles": pair[0].title,
        "median": words.milliseconds(pair[1].median_ms),
        "TFLOP/s": words.three_digits(pair[1].best_known.tflops),
        "n": f"{pair[1].latency.n:,}",
    }
