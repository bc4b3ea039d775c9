"""Every timed launch as a dot, in the order taken, so that drift shows; rounds apart, warm launches beside the cold ones."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from app.figures import dots
from app.figures.style import Absent, Chart, Palette, figure, note, spread, vertical
from app.how_taken import COLUMNS
from profiling import words
from profiling.records import Latency, Measurement

HEIGHT, TOP, TOP_OF_TWO_LINES, BOTTOM, RIGHT = 236, 28, 42, 26, 96
MOVED = 0.02
"""A round whose median is further than this from the median of all is marked."""
_LABEL_GAP_PX = 15
_MOST_TOLD = 1000
_MOST_ROUNDS, _MOST_LINES, _MOST_NUMBERS, _FEW = 60, 24, 12, 5
_GAP_SHARE = 0.03


@dataclass(frozen=True)
class Round:
    """An interleaved round: its number from 1, where its samples begin and end in order, its median, and how far that is off.

    off: its median over the median of all launches, less 1.
    """

    number: int
    start: int
    end: int
    median_ms: float
    off: float

    @property
    def is_moved(self) -> bool:
        """Whether it differs from the others by more than MOVED."""
        return abs(self.off) > MOVED


def rounds_of(latency: Latency) -> list[Round]:
    """The rounds of a latency, in order; more than a job can have, as only a file may say, are told as one."""
    turns, samples = latency.round_of.numpy(), latency.samples_ms.numpy()
    between = (np.flatnonzero(np.diff(turns)) + 1).tolist()
    edges = [0, *(between if len(between) < _MOST_TOLD else []), len(turns)]
    medians = [float(np.median(samples[start:end])) for start, end in itertools.pairwise(edges)]
    of_all = float(np.median(samples))
    return [
        Round(number, start, end, median, median / of_all - 1)
        for number, ((start, end), median) in enumerate(zip(itertools.pairwise(edges), medians, strict=True), 1)
    ]


def chart(measurement: Measurement, palette: Palette) -> Chart | Absent:
    """The launches of one measurement."""
    latency, warm = measurement.latency, measurement.warm
    title = f"Every launch of {measurement.label}"
    if latency is None:
        return Absent(title, "nothing was timed.")
    if latency.mode == "wall":
        return Absent(title, "the interpreter ran it once, on the CPU; its time says nothing about a GPU.")
    return Chart(
        title,
        _figure(latency, warm, palette),
        latency.provenance,
        _caption(latency, warm),
        "; ".join(_in_words(name, one) for name, one in _kinds(latency, warm)),
        tuple(row for name, one in _kinds(latency, warm) for row in _rows(name, one)),
        COLUMNS["launches"],
    )


def _kinds(latency: Latency, warm: Latency | None) -> list[tuple[str, Latency]]:
    return [("cold", latency), *([("warm", warm)] if warm is not None else [])]


def _in_words(name: str, latency: Latency) -> str:
    samples = latency.samples_ms.numpy()
    return (
        f"{latency.n} {name} launches, median {words.milliseconds(latency.median_ms)}, "
        f"from {words.milliseconds(samples.min())} to {words.milliseconds(samples.max())}"
    )


def _rows(name: str, latency: Latency) -> list[dict[str, str]]:
    """A row a round; every sample by itself is in the file of samples."""
    samples = latency.samples_ms.numpy()
    turns = [(str(turn.number), samples[turn.start : turn.end], words.signed_percent(turn.off)) for turn in rounds_of(latency)]
    return [
        {"cache": name, "round": number, **_row(of_it), "off": off} for number, of_it, off in [*turns, ("all", samples, "")]
    ]


def _row(samples: np.ndarray) -> dict[str, str]:
    fastest, median, third, slowest = (f"{value:.4f}" for value in np.quantile(samples, (0.0, 0.5, 0.75, 1.0)))
    return {"n": f"{len(samples):,}", "min, ms": fastest, "median, ms": median, "q3, ms": third, "max, ms": slowest}


def _caption(latency: Latency, warm: Latency | None) -> str:
    moved = [turn for turn in rounds_of(latency) if turn.is_moved]
    parts = ["One dot a launch, in order, by CUDA events, L2 flushed; band: fastest to third quartile."]
    if warm is not None:
        each = "one launch" if warm.launches_per_sample == 1 else f"the mean of {warm.launches_per_sample:,} launches"
        parts.append(f"At the right: L2 warm, each {each} of a CUDA graph.")
    if moved:
        parts.append(f"Orange: a round whose median is over {MOVED:.0%} off.".replace("%", " %"))
    return " ".join([*parts, "None is dropped; the axis does not start at 0."])


def _figure(latency: Latency, warm: Latency | None, palette: Palette) -> go.Figure:
    turns = rounds_of(latency)
    top = TOP_OF_TWO_LINES if len(turns) <= _FEW and any(turn.is_moved for turn in turns) else TOP
    fig = figure(palette, HEIGHT, left=2, right=RIGHT, top=top, bottom=BOTTOM)
    samples = latency.samples_ms.numpy()
    every = samples if warm is None else np.concatenate([samples, warm.samples_ms.numpy()])
    margin = max((every.max() - every.min()) * 0.06, latency.median_ms * 1e-4)
    low, high = every.min() - margin, every.max() + margin
    start = latency.n * (1 + _GAP_SHARE)
    end = latency.n if warm is None else start + _warm_width(latency, warm)
    _cold(fig, latency, palette)
    if warm is not None:
        _warm(fig, warm, start, end, palette)
    _quantile_labels(fig, latency, warm, (low, high), HEIGHT - top - BOTTOM, palette)
    ticks = sorted({1, *(round(latency.n * k / 4) for k in range(1, 5))} - {0})
    fig.update_yaxes(range=[low, high], showticklabels=False, showgrid=False)
    fig.update_xaxes(range=[0.4, end + 0.6], tickvals=ticks, ticktext=[f"{tick:,}" for tick in ticks], showgrid=False)
    return fig


def _warm_width(latency: Latency, warm: Latency) -> float:
    """The warm samples' share of the axis: as many places as they are, a quarter to a half of the cold ones' width."""
    return float(np.clip(warm.n, latency.n / 4, latency.n / 2))


def _cold(fig: go.Figure, latency: Latency, palette: Palette) -> None:
    end = latency.n + 0.5
    fastest, median, third = (latency.quantile_ms(q) for q in (0.0, 0.5, 0.75))
    box = {"type": "rect", "x0": 0.4, "x1": end, "layer": "below", "line": {"width": 0}}
    fig.add_shape(y0=fastest, y1=third, fillcolor=palette.band, **box)
    fig.add_shape(type="line", x0=0.4, x1=end, y0=median, y1=median, line={"color": palette.progress, "width": 1.2})
    turns, places = rounds_of(latency), np.arange(1, latency.n + 1)
    numbers = np.concatenate([np.full(turn.end - turn.start, turn.number) for turn in turns])
    hover = "launch %{customdata[0]}, round %{customdata[1]}: %{y:.4g} ms<extra></extra>"
    told = np.column_stack([places, numbers])
    dots.add(fig, places, latency.samples_ms.numpy(), palette.progress, hover, told, latency.n)
    _round_marks(fig, turns, palette)


def _round_marks(fig: go.Figure, turns: list[Round], palette: Palette) -> None:
    """A line between rounds, numbers above, and orange for a round whose median is off."""
    if len(turns) == 1 or len(turns) > _MOST_ROUNDS:
        return
    every = -(-len(turns) // _MOST_NUMBERS)
    for turn in turns:
        if turn.start and len(turns) <= _MOST_LINES:
            vertical(fig, turn.start + 0.5, palette.line, width=1)
        if turn.is_moved:
            at = {"x0": turn.start + 0.5, "x1": turn.end + 0.5, "y0": turn.median_ms, "y1": turn.median_ms}
            fig.add_shape(type="line", line={"color": palette.work_lost, "width": 2.4}, **at)
        if (turn.number - 1) % every == 0:
            place = {"yref": "paper", "xanchor": "center", "yanchor": "bottom", "yshift": 2}
            middle, color = (turn.start + turn.end + 1) / 2, palette.work_lost if turn.is_moved else palette.muted
            note(fig, _name(turn, len(turns)), middle, 1, color, bold=turn.is_moved, **place)


def _name(turn: Round, count: int) -> str:
    """Its number, and by how much it is off where there is room for that."""
    name = "round 1" if turn.number == 1 and count <= _FEW else str(turn.number)
    off = f"{'+' if turn.off > 0 else '−'}{100 * abs(turn.off):.0f} %"
    return f"{name}<br>{off}" if turn.is_moved and count <= _FEW else name


def _warm(fig: go.Figure, warm: Latency, start: float, end: float, palette: Palette) -> None:
    """The warm samples in a stretch of their own at the right, hollow: they are another quantity."""
    places = start + (np.arange(warm.n) + 0.5) / warm.n * (end - start)
    fastest, median, third = (warm.quantile_ms(q) for q in (0.0, 0.5, 0.75))
    fig.add_shape(
        type="rect", x0=start, x1=end, y0=fastest, y1=third, layer="below", fillcolor=palette.track, line={"width": 0}
    )
    fig.add_shape(type="line", x0=start, x1=end, y0=median, y1=median, line={"color": palette.text, "width": 1.2})
    numbers, hover = np.arange(1, warm.n + 1), "L2 warm, sample %{customdata}: %{y:.4g} ms<extra></extra>"
    dots.add(fig, places, warm.samples_ms.numpy(), palette.text, hover, numbers, end, open_=True)
    vertical(fig, start - (start - 1) * _GAP_SHARE / 2, palette.muted, width=1)
    place = (start + end) / 2
    note(fig, "L2 warm", place, 1, palette.text, yref="paper", xanchor="center", yanchor="bottom", yshift=2)


def _quantile_labels(
    fig: go.Figure, latency: Latency, warm: Latency | None, limits: tuple[float, float], plot_px: float, palette: Palette
) -> None:
    """The numbers that the marks stand for in the right margin, moved apart where they would touch."""
    low, high = limits
    fastest, median, third, slowest = (latency.quantile_ms(q) for q in (0.0, 0.5, 0.75, 1.0))
    named = [("max", slowest), ("q3", third), ("median", median), ("min", fastest)]
    if warm is not None:
        named.append(("warm", warm.median_ms))
    wanted = [(value - low) / (high - low) * plot_px for _, value in named]
    placed = spread(wanted, _LABEL_GAP_PX, 6, plot_px - 4)
    for (name, value), wish, place in zip(named, wanted, placed, strict=True):
        number = words.milliseconds(value)
        loud = name in ("median", "warm")
        text = f"<b>{number}</b> {name}" if loud else f"{number} {name}"
        note(fig, text, 1, value, palette.text if loud else palette.muted, xref="paper", xshift=6, yshift=place - wish)
