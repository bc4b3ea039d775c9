"""Every timed launch as a dot, in the order taken, so that drift shows; rounds are separated."""

from __future__ import annotations

import itertools

import numpy as np
import plotly.graph_objects as go

from app.figures.style import Absent, Chart, Palette, figure, note, spread, vertical
from profiling import words
from profiling.records import Latency, Measurement

HEIGHT, TOP, BOTTOM, RIGHT = 236, 28, 26, 92
_LABEL_GAP_PX = 15


def chart(measurement: Measurement, palette: Palette) -> Chart | Absent:
    """The launches of one measurement."""
    latency = measurement.latency
    title = f"Every launch of {measurement.label}"
    if latency is None:
        return Absent(title, "nothing was timed.")
    if latency.mode == "wall":
        return Absent(title, "the interpreter ran it once, on the CPU; its time says nothing about a GPU.")
    samples = latency.samples_ms.numpy()
    return Chart(
        title,
        _figure(latency, samples, palette),
        latency.provenance,
        "One dot a launch, in order, by CUDA events, L2 flushed before each; band: p20 to p80. Nothing is dropped.",
        f"{latency.n} launches, median {words.milliseconds(latency.median_ms)}, "
        f"from {words.milliseconds(samples.min())} to {words.milliseconds(samples.max())}",
        tuple(
            {"launch": str(place + 1), "round": str(int(turn) + 1), "ms": f"{sample:.4f}"}
            for place, (sample, turn) in enumerate(zip(samples, _rounds(latency), strict=True))
        ),
    )


def _rounds(latency: Latency) -> np.ndarray:
    """The round of each sample, counted from 0."""
    turns = latency.round_of.numpy()
    return turns - turns.min()


def _figure(latency: Latency, samples: np.ndarray, palette: Palette) -> go.Figure:
    fig = figure(palette, HEIGHT, left=2, right=RIGHT, top=TOP, bottom=BOTTOM)
    places = np.arange(1, latency.n + 1)
    p20, median, p80 = (latency.quantile_ms(q) for q in (0.2, 0.5, 0.8))
    fig.add_hrect(y0=p20, y1=p80, fillcolor=palette.band, line_width=0, layer="below")
    fig.add_hline(y=median, line={"color": palette.progress, "width": 1.2})
    fig.add_scatter(
        x=places,
        y=samples,
        mode="markers",
        hovertemplate="launch %{x}: %{y:.4g} ms<extra></extra>",
        marker={"size": 3.6 if latency.n > 60 else 7, "color": palette.progress, "opacity": 0.62 if latency.n > 60 else 1},
    )
    _round_marks(fig, _rounds(latency), palette)
    margin = max((samples.max() - samples.min()) * 0.06, median * 1e-4)
    low, high = samples.min() - margin, samples.max() + margin
    _quantile_labels(fig, {"p80": p80, "median": median, "p20": p20}, low, high, palette)
    ticks = sorted({1, *(round(latency.n * k / 4) for k in range(1, 5))} - {0})
    fig.update_yaxes(range=[low, high], showticklabels=False, showgrid=False)
    fig.update_xaxes(range=[0.4, latency.n + 0.6], tickvals=ticks, ticktext=[f"{tick:,}" for tick in ticks], showgrid=False)
    return fig


def _round_marks(fig: go.Figure, turns: np.ndarray, palette: Palette) -> None:
    edges = [0, *(np.flatnonzero(np.diff(turns)) + 1).tolist(), len(turns)]
    if len(edges) > 14 or len(edges) == 2:
        return
    for place, (start, end) in enumerate(itertools.pairwise(edges)):
        if start:
            vertical(fig, start + 0.5, palette.line, width=1)
        label = f"round {place + 1}" if place == 0 else str(place + 1)
        note(fig, label, (start + end + 1) / 2, 1, palette.muted, yref="paper", xanchor="center", yanchor="bottom", yshift=2)


def _quantile_labels(fig: go.Figure, quantiles: dict[str, float], low: float, high: float, palette: Palette) -> None:
    plot_px = HEIGHT - TOP - BOTTOM
    wanted = [(value - low) / (high - low) * plot_px for value in quantiles.values()]
    placed = spread(wanted, _LABEL_GAP_PX, 6, plot_px - 4)
    for (name, value), wish, place in zip(quantiles.items(), wanted, placed, strict=True):
        number = words.milliseconds(value)
        text = f"<b>{number}</b> {name}" if name == "median" else f"{number} {name}"
        color = palette.text if name == "median" else palette.muted
        note(fig, text, 1, value, color, xref="paper", xshift=6, yshift=place - wish)
