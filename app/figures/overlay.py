"""The versions that two snapshots have in common, each as a pair of bars: what was before in grey, what is after in blue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from app.figures.rounds import nice_ticks
from app.figures.style import Absent, Chart, Palette, figure, note_of, notes
from profiling import words
from profiling.improvements import Judged
from profiling.records import Measurement

TITLE = "Versions of A and B"
ROW, TOP, BOTTOM, RIGHT = 40, 28, 26, 310
_COLUMNS = (("A", 0.24), ("B", 0.47), ("A ÷ B", 0.70), ("", 1.0))


def chart(judged: Sequence[Judged], palette: Palette) -> Chart | Absent:
    """The chart of pairs that have GPU times; pairs without say why in their row."""
    timed = [one for one in judged if one.before.tflops is not None and one.after.tflops is not None]
    if len(judged) < 2:
        return Absent(TITLE, "the two snapshots have fewer than two versions in common.")
    if not timed:
        return Absent(TITLE, "no version has a GPU time in both.")
    return Chart(
        TITLE,
        _figure(judged, palette),
        "measured",
        "Bar: throughput at the median of all launches. A ÷ B: time of A over time of B, as the verdict takes it.",
        "Throughput of A and B by version: "
        + ", ".join(f"{one.after_name} {_rate(one.before)} and {_rate(one.after)} TFLOP/s" for one in timed),
        tuple(
            {
                "version": one.after_name,
                "A, TFLOP/s": _rate(one.before),
                "B, TFLOP/s": _rate(one.after),
                "A, median": _median(one.before),
                "B, median": _median(one.after),
                "A ÷ B": _ratio(one),
                "verdict": one.verdict.word or one.verdict.refused,
            }
            for one in judged
        ),
    )


def _rate(measurement: Measurement) -> str:
    return words.three_digits(measurement.tflops) if measurement.tflops is not None else "–"


def _median(measurement: Measurement) -> str:
    return words.milliseconds(measurement.latency.median_ms) if measurement.latency is not None else "–"


def _ratio(one: Judged) -> str:
    return words.ratio(one.verdict.ratio) if one.verdict.ratio is not None else "–"


def _figure(judged: Sequence[Judged], palette: Palette) -> go.Figure:
    longest = max(len(one.after_name) for one in judged)
    left = 52 if longest <= 6 else min(40 + 5 * longest, 150)
    fig = figure(palette, TOP + BOTTOM + ROW * len(judged), left=left, right=RIGHT, top=TOP, bottom=BOTTOM)
    places = np.arange(len(judged))
    for shift, color, side, of in (
        (-0.17, palette.native, "A", lambda one: one.before),
        (0.17, palette.progress, "B", lambda one: one.after),
    ):
        fig.add_bar(
            x=[of(one).tflops or 0.0 for one in judged],
            y=places + shift,
            orientation="h",
            width=0.3,
            marker={"color": color},
            hovertemplate=f"{side}: %{{x:.3g}} TFLOP/s<extra></extra>",
        )
    top_value = max(one.tflops or 0.0 for pair in judged for one in (pair.before, pair.after))
    ticks = nice_ticks(0.0, top_value * 1.04)
    labels = [f"{tick:,.4g}" for tick in ticks]
    labels[-1] += " TFLOP/s"
    fig.update_xaxes(range=[0, top_value * 1.04], tickvals=ticks, ticktext=labels)
    fig.update_yaxes(
        tickvals=places,
        ticktext=[words.plotly(one.after_name) for one in judged],
        range=[len(judged) - 0.5, -0.5],
        showgrid=False,
        tickfont={"size": 13, "color": palette.text},
    )
    notes(fig, _numbers(judged, palette))
    return fig


def _numbers(judged: Sequence[Judged], palette: Palette) -> list[dict[str, Any]]:
    right: dict[str, Any] = {"xref": "paper", "xanchor": "right"}
    found = [
        note_of(name, 1, 1, palette.muted, yref="paper", yanchor="bottom", xshift=RIGHT * share - 2, yshift=2, **right)
        for name, share in _COLUMNS
    ]
    for place, one in enumerate(judged):
        cells = (_median(one.before), _median(one.after), _ratio(one), one.verdict.word or "no verdict")
        colors = (palette.text, palette.text, palette.text, word_color(one.verdict.word, palette))
        for cell, color, (_, share) in zip(cells, colors, _COLUMNS, strict=True):
            found.append(note_of(cell, 1, place, color, size=13, xshift=RIGHT * share - 2, **right))
    return found


def word_color(word: str | None, palette: Palette) -> str:
    """Blue for faster, orange for slower; the others are no news."""
    return {"FASTER": palette.progress, "SLOWER": palette.work_lost}.get(word or "", palette.muted)
