"""What a verdict rests on: the medians of each round as pairs of dots, or the launches of two jobs above each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from app.figures import dots
from app.figures.style import Absent, Chart, Palette, figure, note_of, notes
from app.how_taken import COLUMNS
from profiling import words
from profiling.launch_times import Band
from profiling.records import Latency, Measurement
from profiling.verdict import Verdict

BY_ROUND, BY_LAUNCH = "Median of each round", "Every launch of A and B"
TOP, BOTTOM, LEFT, RIGHT = 30, 26, 64, 76
_A_ROUND_PX, _LEAST_ROUND_PX, _TALL_PX, _MOST_ROUNDS = 27, 6, 450, 75
_LABEL_PX = 16
_LANE = 0.36
_FROM_ZERO = 0.2  # of the largest value: dots that lie closer together than this are looked at more closely


def chart(before: Measurement, after: Measurement, found: Verdict, palette: Palette) -> Chart | Absent:
    """Rounds for measurements of one job, launches for those of two."""
    if before.latency is None or after.latency is None:
        return Absent(BY_ROUND, "one of the two has no time.")
    if found.word is None and found.ratio is None:
        return Absent(BY_LAUNCH, "the two times are not comparable.")
    names = (words.plotly(before.label), words.plotly(after.label))
    if 1 <= len(found.rounds) <= _MOST_ROUNDS:
        return _of_rounds(found.rounds, (before.latency, after.latency), names, palette)
    return _of_launches((before.latency, after.latency), names, palette)


def _of_rounds(
    rounds: Sequence[tuple[float, float]], latencies: tuple[Latency, Latency], names: tuple[str, str], palette: Palette
) -> Chart:
    launches = " and ".join(f"{count:,}" for count in dict.fromkeys(latency.n for latency in latencies))
    flushed = ", L2 flushed" if latencies[0].mode == "cold" else ""
    low, _ = _span(np.array(rounds))
    start = "" if low == 0 else " The axis does not start at 0."
    ratios = ", ".join(words.times(a / b) for a, b in rounds)
    return Chart(
        BY_ROUND,
        _dumbbells(rounds, names, palette),
        "measured",
        f"A and B alternate within a round, {launches} launches each in all{flushed}. The unit is the round, not the launch."
        + start,
        f"Time of A over time of B by round: {ratios}",
        tuple(
            {"round": str(place), "A": _exact(a), "B": _exact(b), "A ÷ B": f"{a / b:.4f}"}
            for place, (a, b) in enumerate(rounds, 1)
        ),
        COLUMNS["rounds"],
    )


def _exact(value_ms: float) -> str:
    return f"{value_ms:.4f} ms"


def _dumbbells(rounds: Sequence[tuple[float, float]], names: tuple[str, str], palette: Palette) -> go.Figure:
    values = np.array(rounds)
    places = np.arange(len(rounds))
    a_round_px = _round_px(len(rounds))
    fig = figure(palette, TOP + BOTTOM + round(a_round_px * len(rounds)), left=LEFT, right=RIGHT, top=TOP, bottom=BOTTOM)
    named = list(range(0, len(rounds), math.ceil(_LABEL_PX / a_round_px)))
    lines = np.column_stack([values, np.full(len(rounds), np.nan)]).ravel()
    fig.add_scatter(x=lines, y=np.repeat(places, 3), mode="lines", line={"color": palette.line, "width": 3}, hoverinfo="skip")
    for which, color in enumerate(_colors(palette)):
        fig.add_scatter(
            x=values[:, which],
            y=places,
            mode="markers",
            marker={"size": min(11, a_round_px), "color": color},
            customdata=places + 1,
            hovertemplate=f"{'AB'[which]} in round %{{customdata}}: %{{x:.4g}} ms<extra></extra>",
        )
    _time_axis(fig, *_span(values), palette)
    labels = ["round 1", *(str(place + 1) for place in named[1:])]
    fig.update_yaxes(tickvals=named, ticktext=labels, range=[len(rounds) - 0.5, -0.5], showgrid=False)
    notes(fig, [*_heads(values.mean(axis=0), names, palette), *_ratios(rounds, named, palette)])
    return fig


def _colors(palette: Palette) -> tuple[str, str]:
    """What was before is grey, what is after is blue."""
    return palette.native, palette.progress


def _heads(means: np.ndarray, names: tuple[str, str], palette: Palette) -> list[dict]:
    """Each side's letter and version above its dots, written outwards so that they never meet."""
    first_is_left = means[0] < means[1]
    return [
        note_of(
            f'<span style="color:{_colors(palette)[which]}">●</span> <b>{"AB"[which]}</b> {names[which]}',
            float(means[which]),
            1,
            palette.text,
            yref="paper",
            xanchor="right" if (which == 0) == first_is_left else "left",
            yanchor="bottom",
            xshift=6 if (which == 0) == first_is_left else -6,
            yshift=4,
        )
        for which in (0, 1)
    ]


def _round_px(count: int) -> float:
    """The height of a round: less where there are many, so that the chart stays on a screen."""
    return min(_A_ROUND_PX, max(_LEAST_ROUND_PX, _TALL_PX / count))


def _ratios(rounds: Sequence[tuple[float, float]], named: Sequence[int], palette: Palette) -> list[dict]:
    place = {"xref": "paper", "xanchor": "right", "xshift": RIGHT - 2}
    head = note_of("A ÷ B", 1, 1, palette.muted, yref="paper", yanchor="bottom", yshift=4, **place)
    ratios = [(row, rounds[row][0] / rounds[row][1]) for row in named]
    return [head, *(note_of(f"{ratio:.3f}×", 1, row, palette.text, size=13, **place) for row, ratio in ratios)]


def _span(values: np.ndarray) -> tuple[float, float]:
    """The axis: from 0, unless the values lie so close together that nothing would be seen."""
    low, high = float(values.min()), float(values.max())
    if high - low > _FROM_ZERO * high:
        return 0.0, high * 1.06
    margin = max((high - low) * 0.25, high * 0.002)
    return low - margin, high + margin


def _time_axis(fig: go.Figure, low: float, high: float, palette: Palette) -> None:
    unit, scale = ("µs", 1000.0) if high < 1 else ("ms", 1.0)
    ticks = nice_ticks(low * scale, high * scale)
    labels = [f"{tick:,.{_decimals(ticks)}f}" for tick in ticks]
    labels[-1] += f" {unit}"
    fig.update_xaxes(range=[low, high], tickvals=[tick / scale for tick in ticks], ticktext=labels, gridcolor=palette.grid)


def _decimals(ticks: Sequence[float]) -> int:
    """As many as the step needs: 2 for 0.05, 3 for 0.025."""
    step = ticks[1] - ticks[0] if len(ticks) > 1 else ticks[0]
    return next((count for count in range(8) if abs(step - round(step, count)) < 1e-6 * step), 8)


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between low and high, evenly spaced, most at the most and at least one."""
    rough = (high - low) / most
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(magnitude * factor for factor in (1, 2, 2.5, 5, 10, 20) if magnitude * factor >= rough)
    return [step * k for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)] or [low]


def _of_launches(latencies: tuple[Latency, Latency], names: tuple[str, str], palette: Palette) -> Chart:
    bands = [Band.of(latency) for latency in latencies]
    return Chart(
        BY_LAUNCH,
        _strips(latencies, bands, names, palette),
        "measured",
        "One dot a launch, the first at the top. Band: from the fastest launch to the third quartile, which two jobs are "
        "judged by. Line: median. Nothing is dropped.",
        "; ".join(
            f"{side}: {words.milliseconds(band.low_ms)} to {words.milliseconds(band.high_ms)}, "
            f"median {words.milliseconds(band.median_ms)}"
            for side, band in zip("AB", bands, strict=True)
        ),
        tuple(
            {
                "side": f"{side} {latency_name}",
                "launches": f"{latency.n:,}",
                "fastest": _exact(band.low_ms),
                "median": _exact(band.median_ms),
                "third quartile": _exact(band.high_ms),
                "slowest": _exact(latency.quantile_ms(1.0)),
            }
            for side, latency_name, latency, band in zip("AB", names, latencies, bands, strict=True)
        ),
        COLUMNS["sides"],
    )


def _width(samples: Sequence[np.ndarray]) -> float:
    low, high = _span(np.concatenate(samples))
    return high - low


def _strips(latencies: tuple[Latency, Latency], bands: Sequence[Band], names: tuple[str, str], palette: Palette) -> go.Figure:
    fig = figure(palette, 236, left=LEFT, right=RIGHT + 30, top=12, bottom=BOTTOM)
    samples = [latency.samples_ms.numpy() for latency in latencies]
    for lane, (times, band, color) in enumerate(zip(samples, bands, _colors(palette), strict=True)):
        box = {"x0": band.low_ms, "x1": band.high_ms, "y0": lane - _LANE - 0.06, "y1": lane + _LANE + 0.06}
        fig.add_shape(type="rect", layer="below", fillcolor=palette.track, line={"width": 0}, **box)
        places = np.linspace(lane - _LANE, lane + _LANE, len(times))
        hover = f"{'AB'[lane]}, launch %{{customdata}}: %{{x:.4g}} ms<extra></extra>"
        dots.add(fig, times, places, color, hover, np.arange(1, len(times) + 1), _width(samples))
        line = {"color": palette.text, "width": 1.6}
        fig.add_shape(type="line", x0=band.median_ms, x1=band.median_ms, y0=box["y0"], y1=box["y1"], line=line)
    _time_axis(fig, *_span(np.concatenate(samples)), palette)
    labels = [f"<b>{side}</b> {name}" for side, name in zip("AB", names, strict=True)]
    fig.update_yaxes(
        tickvals=[0, 1], ticktext=labels, range=[1.5, -0.5], showgrid=False, tickfont={"size": 13, "color": palette.text}
    )
    place = {"xref": "paper", "xanchor": "left", "xshift": 8}
    for lane, band in enumerate(bands):
        text = f"<b>{words.milliseconds(band.median_ms)}</b> median"
        notes(fig, [note_of(text, 1, lane, palette.text, **place)])
    return fig
