"""What NVML saw during the job: power, clocks, temperature, load and memory over time, with phases and launches marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import plotly.graph_objects as go

from app.figures.style import Absent, Chart, Palette, figure, note_of, notes, shortened
from app.how_taken import TIMELINE_ROWS
from profiling import words
from profiling.records import LaunchSpan, Measurement, NotedSpan, PhaseSpan, Span, Timeline

TITLE = "GPU during the job"
TOP, BOTTOM, RIGHT = 22, 26, 140
_LANE_PX, _ROW_PX, _SPACE_PX = 20, 44, 7
_CHARACTER_SHARE = 0.04  # of the plot at its narrowest, about 160 px
_LEAST_SHARE = 0.004  # of the plot: what is shorter is drawn so long
_PHASES = {"latency": "timed"}


@dataclass(frozen=True)
class Kind:
    """A series of the record: its name, its unit (empty for bytes), and the record's field with the largest it can be."""

    field: str
    name: str
    unit: str
    limit: str = ""


KINDS = (
    Kind("power_w", "Power", " W", "power_limit_w"),
    Kind("sm_clock_mhz", "SM clock", " MHz", "max_sm_clock_mhz"),
    Kind("memory_clock_mhz", "Memory clock", " MHz", "max_memory_clock_mhz"),
    Kind("temperature_c", "Temperature", " °C"),
    Kind("utilisation_percent", "Utilisation", " %"),
    Kind("memory_used_bytes", "Memory used", "", "memory_total_bytes"),
)
_NAMES = {kind.field: kind.name for kind in KINDS} | {
    "power_limit_w": "Power limit",
    "power_instant": "Power",
    "max_sm_clock_mhz": "Highest SM clock",
    "max_memory_clock_mhz": "Highest memory clock",
    "memory_reserved_bytes": "Memory reserved",
    "throttled": "Clocks held down",
    "t_s": "Moments",
    "mig": "MIG",
}


@dataclass(frozen=True)
class Series:
    """One row of the chart: a reading over time, the top of its axis, and the largest it can be, where that is known."""

    kind: Kind
    values: np.ndarray
    top: float
    limit: float | None

    @property
    def largest(self) -> str:
        """The largest value as words."""
        return _said(self.kind, self.values.max())


def _said(kind: Kind, value: float) -> str:
    return f"{value:,.0f}{kind.unit}" if kind.unit else words.bytes_(value)


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
        "NVML readings over the job: " + ", ".join(f"{one.kind.name.lower()} at most {one.largest}" for one in series),
        _table(timeline, series),
        TIMELINE_ROWS,
    )


def _series(timeline: Timeline) -> list[Series]:
    rows = []
    for kind in KINDS:
        found = getattr(timeline, kind.field)
        if found is None:
            continue
        limit = getattr(timeline, kind.limit) if kind.limit else None
        values, in_view = found.numpy(), None if kind.field == "memory_used_bytes" else limit
        top = 100.0 if kind.unit == " %" else max(float(values.max()) * 1.04, in_view or 0)
        rows.append(Series(kind, values, top or 1.0, limit))
    return rows


@dataclass
class _Drawing:
    """A figure on the way: shapes and notes are put in once, at the end, as Plotly looks at all of them each time."""

    fig: go.Figure
    palette: Palette
    end: float
    shapes: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)

    def axis(self, place: int, domain: tuple[float, float], top: float) -> str:
        """A y axis of its own for a lane or a row, and its name."""
        number = "" if place == 0 else str(place + 1)
        self.fig.layout[f"yaxis{number}"] = {
            "domain": [max(0.0, domain[0]), domain[1]],
            "range": [0, top * 1.04],
            "showgrid": False,
            "zeroline": True,
            "zerolinecolor": self.palette.line,
            "showticklabels": False,
            "fixedrange": True,
        }
        return f"y{number}"

    def named(self, domain: tuple[float, float], text: str, color: str, yshift: int = 0) -> None:
        """Words at the right of a lane or a row."""
        place = {"xref": "paper", "yref": "paper", "xshift": 6, "yshift": yshift}
        self.notes.append(note_of(text, 1, (domain[0] + domain[1]) / 2, color, **place))

    def finished(self) -> go.Figure:
        """The figure, whole."""
        self.fig.layout.shapes = self.shapes
        notes(self.fig, self.notes)
        ticks = _ticks(self.end)
        self.fig.update_xaxes(
            range=[0, self.end],
            tickvals=ticks,
            ticktext=[f"{tick:g}" for tick in ticks[:-1]] + [f"{ticks[-1]:g} s"],
            showgrid=False,
            anchor="free",
            position=0,
        )
        return self.fig


def _figure(timeline: Timeline, series: list[Series], palette: Palette) -> go.Figure:
    lanes = (["launched"] if timeline.launched else []) + (["throttled"] if timeline.throttled is not None else [])
    heights = [_LANE_PX] * len(lanes) + [_ROW_PX] * len(series)
    plot_px = sum(heights) + _SPACE_PX * (len(heights) - 1)
    fig = figure(palette, TOP + plot_px + BOTTOM, left=4, right=RIGHT, top=TOP, bottom=BOTTOM)
    every: tuple[Span, ...] = (*timeline.spans, *timeline.launched)
    drawing = _Drawing(fig, palette, max([float(timeline.t_s.numpy().max()), *(span.end_s for span in every)]))
    _phases(drawing, timeline.spans)
    _gaps(drawing, timeline.gaps)
    above = 0
    for place, (what, height) in enumerate(zip([*lanes, *series], heights, strict=True)):
        domain = (1 - (above + height) / plot_px, 1 - above / plot_px)
        above += height + _SPACE_PX
        axis = drawing.axis(place, domain, what.top if isinstance(what, Series) else 1.0)
        if what == "launched":
            _launches(drawing, axis, domain, timeline.launched)
        elif what == "throttled":
            _held_down(drawing, axis, domain, timeline.throttled)
        else:
            _row(drawing, axis, domain, what, timeline)
    return drawing.finished()


def _ticks(end: float) -> list[float]:
    steps = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
    step = next((step for step in steps if end / step <= 5), 10 ** math.ceil(math.log10(max(end, 1) / 5)))
    return [step * k for k in range(int(end / step) + 1)]


def _row(drawing: _Drawing, axis: str, domain: tuple[float, float], one: Series, timeline: Timeline) -> None:
    """A series, its limit as a dashed line, and its name with the largest value at the right."""
    kind, palette = one.kind, drawing.palette
    x, y = _broken(timeline.t_s.numpy(), one.values, _breaks(timeline))
    value = f"%{{y:,.0f}}{kind.unit}" if kind.unit else "%{customdata}"
    drawing.fig.add_scatter(
        x=x,
        y=y,
        yaxis=axis,
        mode="lines",
        connectgaps=False,
        line={"color": palette.progress, "width": 1.6},
        customdata=None if kind.unit else ["" if moment is None else _said(kind, moment) for moment in y],
        hovertemplate=f"{kind.name} {value} at %{{x:.2f}} s<extra></extra>",
    )
    if one.limit is not None and one.limit <= one.top:
        line = {"color": palette.muted, "width": 1, "dash": "dot"}
        ends = {"xref": "paper", "x0": 0, "x1": 1, "yref": axis, "y0": one.limit, "y1": one.limit}
        drawing.shapes.append({"type": "line", "line": line, **ends})
    drawing.named(domain, kind.name, palette.muted, 8)
    if one.limit is None or not kind.unit:
        drawing.named(domain, f"<b>{one.largest}</b> max", palette.text, -8)
    else:
        drawing.named(domain, f"<b>{one.values.max():,.0f}</b> of {_said(kind, one.limit)}", palette.text, -8)


def _launches(drawing: _Drawing, axis: str, domain: tuple[float, float], launched: Sequence[LaunchSpan]) -> None:
    """A lane with a bar for every stretch of launches, in its version's colour."""
    labels = list(dict.fromkeys(span.label for span in launched))
    for label in labels:
        own = [span for span in launched if span.label == label]
        said = [
            f"{words.plotly(label)}, {_phase(span.phase)}: {_from_to(span)}"
            + (f", {_launches_of(span.launches)}" if span.launches else "")
            for span in own
        ]
        _bars(drawing, axis, own, said, drawing.palette.version(label.split(" ")[0]))
    who = shortened(words.plotly(labels[0]), 12) if len(labels) == 1 else f"{len(labels)} kernels"
    drawing.named(domain, f"Launches: {who}", drawing.palette.muted)


def _held_down(drawing: _Drawing, axis: str, domain: tuple[float, float], held: Sequence[NotedSpan]) -> None:
    """A lane with a bar wherever something held the clocks down."""
    palette = drawing.palette
    if held:
        _bars(drawing, axis, held, [f"{words.plotly(span.words)}: {_from_to(span)}" for span in held], palette.work_lost)
    reasons = list(dict.fromkeys(span.words for span in held))
    what = f"{len(reasons)} reasons" if len(reasons) > 1 else shortened(words.plotly(reasons[0]), 9) if reasons else "never"
    drawing.named(domain, f"Held down: {what}", palette.work_lost if held else palette.muted)


def _bars(drawing: _Drawing, axis: str, spans: Sequence[Span], said: Sequence[str], color: str) -> None:
    x: list[float | None] = []
    text: list[str] = []
    for span, one in zip(spans, said, strict=True):
        middle, half = (span.start_s + span.end_s) / 2, max(span.end_s - span.start_s, _LEAST_SHARE * drawing.end) / 2
        x += [middle - half, middle, middle + half, None]
        text += [one, one, one, ""]
    drawing.fig.add_scatter(
        x=x,
        y=[None if moment is None else 0.5 for moment in x],
        yaxis=axis,
        mode="lines",
        connectgaps=False,
        line={"color": color, "width": 9},
        customdata=text,
        hovertemplate="%{customdata}<extra></extra>",
    )


def _launches_of(count: int) -> str:
    return "1 launch" if count == 1 else f"{count:,} launches"


def _from_to(span: Span) -> str:
    return f"{span.start_s:.2f} to {span.end_s:.2f} s"


def _phase(phase: str) -> str:
    return _PHASES.get(phase, phase)


def _breaks(timeline: Timeline) -> list[tuple[float, float]]:
    """The stretches that no line may cross: NVML was not read there, or did not answer."""
    unread: list[Span] = [span for span in timeline.spans if not span.sampled]
    return [(span.start_s, span.end_s) for span in (*unread, *timeline.gaps)]


def _broken(t_s: np.ndarray, values: np.ndarray, gaps: list[tuple[float, float]]) -> tuple[list, list]:
    """The series with a hole wherever two samples lie on both sides of a stretch without readings."""
    x: list[float | None] = []
    y: list[float | None] = []
    is_after_gap = np.zeros(len(t_s), dtype=bool)
    for start, end in gaps:
        is_after_gap[1:] |= (start <= t_s[1:]) & (t_s[:-1] <= end)
    for moment, value, broken in zip(t_s.tolist(), values.tolist(), is_after_gap.tolist(), strict=True):
        if broken:
            x.append(None)
            y.append(None)
        x.append(moment)
        y.append(value)
    return x, y


def _phases(drawing: _Drawing, spans: tuple[PhaseSpan, ...]) -> None:
    """Grey where launches were timed and NVML was not read; the longest stretches get their names, as many as fit."""
    palette, end = drawing.palette, drawing.end
    grey = {"type": "rect", "y0": 0, "y1": 1, "yref": "paper", "fillcolor": palette.track, "line_width": 0, "layer": "below"}
    drawing.shapes += [{**grey, "x0": span.start_s, "x1": span.end_s} for span in spans if not span.sampled]
    taken: list[tuple[float, float]] = []
    stretches = [list(group) for _phase_name, group in groupby(spans, key=lambda span: span.phase)]
    for stretch in sorted(stretches, key=lambda stretch: stretch[0].start_s - stretch[-1].end_s):
        label = _phase(stretch[0].phase)
        half = (len(label) + 1) * _CHARACTER_SHARE / 2 * end
        middle = min(max((stretch[0].start_s + stretch[-1].end_s) / 2, half), end - half)
        if any(left < middle + half and middle - half < right for left, right in taken):
            continue
        taken.append((middle - half, middle + half))
        place = {"yref": "paper", "xanchor": "center", "yanchor": "bottom", "yshift": 2}
        drawing.notes.append(note_of(label, middle, 1, palette.muted, **place))


def _gaps(drawing: _Drawing, gaps: Sequence[NotedSpan]) -> None:
    """A dotted frame where NVML was asked and did not answer."""
    line = {"color": drawing.palette.refused, "width": 1, "dash": "dot"}
    frame = {"type": "rect", "y0": 0, "y1": 1, "yref": "paper", "line": line, "layer": "below"}
    for span in gaps:
        right = max(span.end_s, span.start_s + _LEAST_SHARE * drawing.end)
        drawing.shapes.append({**frame, "x0": span.start_s, "x1": right})


def _caption(timeline: Timeline) -> str:
    t_s = timeline.t_s.numpy()
    interval = f", about every {np.median(np.diff(t_s)) * 1000:.0f} ms" if len(t_s) > 2 else ""
    said = [f"NVML from a thread{interval}. Grey: launches were being timed, so NVML was not read; the lines stop there."]
    if timeline.gaps:
        reasons = "; ".join(dict.fromkeys(span.words for span in timeline.gaps if span.words))
        said.append(f"Dotted frame: NVML did not answer ({reasons or 'no reason was given'}).")
    if timeline.memory_reserved_bytes is not None:
        said.append(f"Memory used is without the {words.bytes_(timeline.memory_reserved_bytes)} that the driver reserves.")
    said += [f"{text[:1].upper()}{text[1:]}." for name, text in timeline.missing.items() if _is_note(timeline, name)]
    gone = [f"{_NAMES.get(name, name)} ({text})" for name, text in timeline.missing.items() if not _is_note(timeline, name)]
    if gone:
        said.append(f"n/a: {', '.join(gone)}.")
    return " ".join(said)


def _is_note(timeline: Timeline, name: str) -> bool:
    """Whether `missing` says something about what is there, rather than why something is not."""
    return name in ("power_instant", "mig", "t_s") or (
        name == "memory_reserved_bytes" and timeline.memory_used_bytes is not None
    )


def _table(timeline: Timeline, series: list[Series]) -> tuple[dict[str, str], ...]:
    rows = [_line(one.kind.name, f"at most {one.largest}") for one in series]
    rows += [
        _line(_NAMES[name], f"{value:,.0f}{unit}")
        for name, unit in (("power_limit_w", " W"), ("max_sm_clock_mhz", " MHz"), ("max_memory_clock_mhz", " MHz"))
        if (value := getattr(timeline, name)) is not None
    ]
    rows += [
        _line(name, words.bytes_(value))
        for name, value in (("Memory reserved", timeline.memory_reserved_bytes), ("Memory in all", timeline.memory_total_bytes))
        if value is not None
    ]
    if timeline.throttled is not None:
        held = [_line("Clocks held down", span.words, span) for span in timeline.throttled]
        rows += held or [_line("Clocks held down", "never, at any reading")]
    rows += [_line("No answer", span.words, span) for span in timeline.gaps]
    rows += [_line(span.phase, "sampled" if span.sampled else "not sampled", span) for span in timeline.spans]
    rows += _launch_rows(timeline.launched)
    for name, reason in timeline.missing.items():
        rows.append(_line(_NAMES.get(name, name), reason if _is_note(timeline, name) else f"n/a: {reason}"))
    return tuple(rows)


def _line(what: str, reading: str, span: Span | None = None) -> dict[str, str]:
    start, end = ("", "") if span is None else (f"{span.start_s:.2f} s", f"{span.end_s:.2f} s")
    return {"what": what, "from": start, "to": end, "reading": reading}


def _launch_rows(launched: Sequence[LaunchSpan]) -> list[dict[str, str]]:
    """A row for each kernel and phase: from its first launch to its last, and how often in between."""
    rows = []
    for label, phase in dict.fromkeys((span.label, span.phase) for span in launched):
        own = [span for span in launched if (span.label, span.phase) == (label, phase)]
        launches = sum(span.launches or 0 for span in own)
        counted = f", {_launches_of(launches)}" if all(span.launches for span in own) else ""
        stretches = "1 stretch" if len(own) == 1 else f"{len(own):,} stretches"
        whole = Span(start_s=min(span.start_s for span in own), end_s=max(span.end_s for span in own))
        rows.append(_line("Launches", f"{label}, {_phase(phase)}: {stretches}{counted}", whole))
    return rows
