"""What NVML saw during the job: power, SM clock and memory over time, with the job's phases marked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import plotly.graph_objects as go

from app.figures.style import Absent, Chart, Palette, figure, note
from profiling import words
from profiling.records import Measurement, PhaseSpan, Timeline

TITLE = "GPU during the job"
HEIGHT, RIGHT, TOP = 222, 100, 22
_CHARACTER_SHARE = 0.04  # of the plot at its narrowest, about 160 px


@dataclass(frozen=True)
class Series:
    """One row of the chart: a reading over time, and the largest value as words."""

    name: str
    values: np.ndarray
    top: float
    largest: str


def chart(measurement: Measurement, palette: Palette) -> Chart | Absent:
    """The timeline of one measurement's job."""
    timeline = measurement.timeline
    if timeline is None:
        return Absent(
            TITLE,
            "NVML was not sampled" + ("" if measurement.environment.device.kind == "gpu" else ": there is no GPU here") + ".",
        )
    series = _series(timeline) if timeline.t_s.shape[0] > 1 else []
    if not series:
        reason = "; ".join(sorted(set(timeline.missing.values()))) or "no reading came back"
        return Absent(TITLE, f"{reason}.")
    return Chart(
        TITLE,
        _figure(timeline, series, palette),
        "measured",
        _caption(timeline),
        "NVML readings over the job: " + ", ".join(f"{one.name.lower()} at most {one.largest}" for one in series),
        _table(timeline, series),
    )


def _series(timeline: Timeline) -> list[Series]:
    rows = []
    if timeline.power_w is not None:
        power = timeline.power_w.numpy()
        rows.append(Series("Power", power, max(power.max(), timeline.power_limit_w or 0), f"{power.max():,.0f} W"))
    if timeline.sm_clock_mhz is not None:
        clock = timeline.sm_clock_mhz.numpy()
        rows.append(Series("SM clock", clock, max(clock.max(), timeline.max_sm_clock_mhz or 0), f"{clock.max():,.0f} MHz"))
    if timeline.memory_used_bytes is not None:
        memory = timeline.memory_used_bytes.numpy()
        rows.append(Series("Memory", memory, memory.max() * 1.1, words.bytes_(memory.max())))
    return rows


def _figure(timeline: Timeline, series: list[Series], palette: Palette) -> go.Figure:
    fig = figure(palette, HEIGHT, left=4, right=RIGHT, top=TOP)
    end = max(float(timeline.t_s.numpy().max()), max((span.end_s for span in timeline.spans), default=0.0))
    _phases(fig, timeline.spans, end, palette)
    t_s, gaps = timeline.t_s.numpy(), [(span.start_s, span.end_s) for span in timeline.spans if not span.sampled]
    height = (1 - 0.06 * (len(series) - 1)) / len(series)
    for row, one in enumerate(series):
        bottom = 1 - height * (row + 1) - 0.06 * row
        axis = "y" if row == 0 else f"y{row + 1}"
        fig.layout["yaxis" + axis[1:]] = {
            "domain": [max(0, bottom), bottom + height],
            "range": [0, one.top * 1.04 or 1],
            "showgrid": False,
            "zeroline": True,
            "zerolinecolor": palette.line,
            "showticklabels": False,
            "fixedrange": True,
        }
        x, y = _broken(t_s, one.values, gaps)
        fig.add_scatter(
            x=x,
            y=y,
            yaxis=axis,
            mode="lines",
            connectgaps=False,
            line={"color": palette.progress, "width": 1.6},
            hoverinfo="skip",
        )
        middle = bottom + height / 2
        place = {"xref": "paper", "yref": "paper", "xshift": 6}
        note(fig, one.name, 1, middle, palette.muted, yshift=8, **place)
        note(fig, f"<b>{one.largest}</b> max", 1, middle, palette.text, yshift=-8, **place)
    steps = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
    step = next((step for step in steps if end / step <= 5), 10 ** math.ceil(math.log10(max(end, 1) / 5)))
    ticks = [step * k for k in range(int(end / step) + 1)]
    fig.update_xaxes(
        range=[0, end],
        tickvals=ticks,
        ticktext=[f"{tick:g}" for tick in ticks[:-1]] + [f"{ticks[-1]:g} s"],
        showgrid=False,
        anchor="free",
        position=0,
    )
    return fig


def _broken(t_s: np.ndarray, values: np.ndarray, gaps: list[tuple[float, float]]) -> tuple[list, list]:
    """The series with a hole wherever two samples lie on both sides of a stretch that was not sampled."""
    x: list[float | None] = []
    y: list[float | None] = []
    is_after_gap = np.zeros(len(t_s), dtype=bool)
    for start, end in gaps:
        is_after_gap[1:] |= (start < t_s[1:]) & (t_s[:-1] < end)
    for moment, value, broken in zip(t_s.tolist(), values.tolist(), is_after_gap.tolist(), strict=True):
        if broken:
            x.append(None)
            y.append(None)
        x.append(moment)
        y.append(value)
    return x, y


def _phases(fig: go.Figure, spans: tuple[PhaseSpan, ...], end: float, palette: Palette) -> None:
    """Grey where launches were timed and NVML was not read; every stretch that is wide enough gets its name."""
    grey = {"type": "rect", "y0": 0, "y1": 1, "yref": "paper", "fillcolor": palette.track, "line_width": 0, "layer": "below"}
    fig.layout.shapes = [{**grey, "x0": span.start_s, "x1": span.end_s} for span in spans if not span.sampled]
    last_right = -1.0
    for phase, group in groupby(spans, key=lambda span: span.phase):
        stretch = list(group)
        left, right = stretch[0].start_s, stretch[-1].end_s
        label = "timed" if phase == "latency" else phase
        half = len(label) * _CHARACTER_SHARE / 2 * end
        middle = min(max((left + right) / 2, half), end - half)
        if middle - half < last_right:
            continue
        last_right = middle + half
        note(fig, label, middle, 1, palette.muted, yref="paper", xanchor="center", yanchor="bottom", yshift=2)


def _caption(timeline: Timeline) -> str:
    t_s = timeline.t_s.numpy()
    interval = f", about every {np.median(np.diff(t_s)) * 1000:.0f} ms" if len(t_s) > 2 else ""
    return f"NVML from a thread{interval}. Grey: launches were being timed, so NVML was not read; the lines stop there."


def _table(timeline: Timeline, series: list[Series]) -> tuple[dict[str, str], ...]:
    rows = [{"what": one.name, "from": "", "to": "", "reading": f"at most {one.largest}"} for one in series] + [
        {
            "what": span.phase,
            "from": f"{span.start_s:.2f} s",
            "to": f"{span.end_s:.2f} s",
            "reading": "sampled" if span.sampled else "not sampled",
        }
        for span in timeline.spans
    ]
    return tuple(
        rows + [{"what": field, "from": "", "to": "", "reading": reason} for field, reason in timeline.missing.items()]
    )
