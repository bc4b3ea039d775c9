"""Where a training step's time goes: forward, pre-process and the rest of the backward as one bar a version."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from app.figures.style import Absent, Chart, Palette, figure, note_of, notes, shortened
from app.figures.versions import names_of, short
from app.how_taken import COLUMNS
from profiling import words
from profiling.direction import split_ms
from profiling.records import Measurement

TITLE = "Where a step's time goes"
ROW, TOP, BOTTOM, LEFT, RIGHT = 42, 24, 26, 104, 150
_KEY_PX = (0, 72, 166)


@dataclass(frozen=True)
class Row:
    """A version's parts, in ms, in their order; step_ms: the median of the step as it was timed whole."""

    label: str
    parts: tuple[tuple[str, float], ...]
    step_ms: float

    @property
    def sum_ms(self) -> float:
        """Of the parts, each timed alone."""
        return sum(ms for _, ms in self.parts)

    @property
    def backward_share(self) -> float:
        """Of the parts' sum, the whole backward's, its pre-process included."""
        return 1.0 - dict(self.parts)["forward"] / self.sum_ms


def chart(measurements: Sequence[Measurement], focus: Measurement, palette: Palette) -> Chart | Absent | None:
    """The chart of a job's training steps, the focus set in bold; None where no step was asked for."""
    if focus.request.direction != "both":
        return None
    rows = _rows(measurements)
    if not rows:
        why = "its gradients or its output are wrong" if focus.wrong else "no step was timed"
        return Absent(TITLE, f"{why}.")
    names = names_of(measurements)
    name = next((short(name) for name, one in zip(names, measurements, strict=True) if one is focus), "")
    provenance = next(one.latency.provenance for one in measurements if one.latency is not None)
    return Chart(
        TITLE,
        _figure(rows, name, palette),
        provenance,
        _caption(rows, name, provenance),
        "Parts of a training step: " + "; ".join(map(_said, rows)),
        tuple(_cells(row) for row in rows),
        COLUMNS["step"],
    )


def headline(measurement: Measurement) -> str | None:
    """'the backward takes 72 %, 1.31 ms beside a forward of 0.51 ms'; None without a split."""
    found = _rows((measurement,))
    if not found:
        return None
    (row,) = found
    forward = dict(row.parts)["forward"]
    backward = words.milliseconds(row.sum_ms - forward)
    share = words.percent(row.backward_share)
    where = "" if measurement.latency.provenance == "measured" else " (by the interpreter's clock: no GPU time)"
    return f"the backward takes {share}, {backward} beside a forward of {words.milliseconds(forward)}{where}"


def _rows(measurements: Sequence[Measurement]) -> list[Row]:
    return [
        Row(short(name), split_ms(one), one.latency.median_ms)
        for name, one in zip(names_of(measurements), measurements, strict=True)
        if one.latency is not None and split_ms(one)
    ]


def _said(row: Row) -> str:
    return f"{row.label} " + ", ".join(f"{name} {words.milliseconds(ms)}" for name, ms in row.parts)


def _cells(row: Row) -> dict[str, str]:
    parts = dict(row.parts)
    return {
        "version": row.label,
        "forward": words.milliseconds(parts["forward"]),
        "pre-process": words.milliseconds(parts["pre-process"]) if "pre-process" in parts else "none of its own",
        "rest of the backward": words.milliseconds(parts["backward"]),
        "sum": words.milliseconds(row.sum_ms),
        "step": words.milliseconds(row.step_ms),
        "backward": words.percent(row.backward_share),
    }


def _colors(palette: Palette) -> dict[str, str]:
    return {"forward": palette.peer, "pre-process": palette.native, "backward": palette.progress}


def _figure(rows: list[Row], focus: str, palette: Palette) -> go.Figure:
    longest = max(row.sum_ms for row in rows)
    left = 40 if max(len(row.label) for row in rows) <= 6 else LEFT
    fig = figure(palette, TOP + BOTTOM + ROW * len(rows), left=left, right=RIGHT, top=TOP, bottom=BOTTOM)
    for name, color in _colors(palette).items():
        found = [(place, dict(row.parts)[name]) for place, row in enumerate(rows) if name in dict(row.parts)]
        if found:
            fig.add_bar(
                y=[place for place, _ in found], x=[ms for _, ms in found], orientation="h", width=0.46,
                marker={"color": color, "line": {"color": palette.background, "width": 1}},
                customdata=[words.milliseconds(ms) for _, ms in found],
                hovertemplate=f"{name} %{{customdata}}<extra></extra>",
            )  # fmt: skip
    fig.update_layout(barmode="stack")
    notes(fig, [*_key(palette), *_numbers(rows, focus, palette)])
    ticks = _ticks(longest)
    fig.update_xaxes(range=[0, longest * 1.02], tickvals=ticks, ticktext=["0", *map(words.milliseconds, ticks[1:])])
    fig.update_yaxes(
        tickvals=list(range(len(rows))),
        ticktext=[words.plotly(shortened(row.label)) for row in rows],
        range=[len(rows) - 0.5, -0.5],
        showgrid=False,
        tickfont={"size": 13, "color": palette.text},
    )
    return fig


def _ticks(longest: float) -> list[float]:
    """From 0 on, in steps of 1, 2 or 5 times a power of ten: four at most."""
    power = 10.0 ** math.floor(math.log10(longest / 3))
    step = next(step * power for step in (1, 2, 5, 10) if longest / (step * power) < 4)
    return [step * k for k in range(int(longest // step) + 1)]


def _key(palette: Palette) -> list[dict[str, object]]:
    """The parts' names above the bars: a part may be too short to stand under its own."""
    at = {"xref": "paper", "yref": "paper", "yanchor": "bottom", "yshift": 2}
    found = []
    for (name, color), shift in zip(_colors(palette).items(), _KEY_PX, strict=True):
        found += [note_of("■", 0, 1, color, xshift=shift, **at), note_of(name, 0, 1, palette.muted, xshift=shift + 12, **at)]
    return found


def _numbers(rows: list[Row], focus: str, palette: Palette) -> list[dict[str, object]]:
    right = {"xref": "paper", "xanchor": "right"}
    found = [
        note_of(name, 1, 1, palette.muted, yref="paper", yanchor="bottom", xshift=RIGHT * share - 2, yshift=2, **right)
        for name, share in (("step", 0.5), ("backward", 1.0))
    ]
    for place, row in enumerate(rows):
        for text, share in ((words.milliseconds(row.step_ms), 0.5), (words.percent(row.backward_share), 1.0)):
            bold = row.label == focus
            found.append(note_of(text, 1, place, palette.text, size=13, bold=bold, xshift=RIGHT * share - 2, **right))
    return found


def _caption(rows: list[Row], focus: str, provenance: str) -> str:
    row = next((row for row in rows if row.label == focus), rows[0])
    parts = " + ".join(f"{name} {words.milliseconds(ms)}" for name, ms in row.parts)
    how = (
        "Each part was timed alone, in the step's own rounds, L2 flushed before it; backward: the whole less its pre-process."
        if provenance == "measured"
        else "By a clock on the wall around the interpreter, once: no GPU time."
    )
    return f"{row.label}: {parts}. {how}"
