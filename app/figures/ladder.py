"""The ladder v1 → v3 as a waterfall that lies: a row a rung, its bar from the time before it to its own, on a log scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from app.figures.rounds import nice_ticks
from app.figures.style import Absent, Chart, Palette, figure, note_of, notes
from app.how_taken import COLUMNS
from app.ladder_rungs import Rung, Step
from profiling import words

TITLE = "From v1 to v3, one idea at a time"
LEFT, RIGHT, TOP, BOTTOM, ROW_PX = 328, 208, 26, 28, 44
_COLUMNS = (("median", 0.34), ("step", 0.68), ("so far", 1.0))
_HALF = 0.26
_LEAST_WIDTH = 0.004  # of the axis: a step that changes nothing is seen as a line


def chart(steps: Sequence[Step], left_out: Sequence[Rung], palette: Palette) -> Chart | Absent:
    """Two rungs at least must have a time."""
    if len(steps) < 2:
        reason = left_out[0].why_not if left_out and not steps else "fewer than two rungs have a time"
        return Absent(TITLE, f"{reason}.")
    return Chart(
        f"{TITLE}: {title(steps)}",
        _figure(steps, palette),
        "measured",
        _caption(steps, left_out),
        "; ".join(f"{one.rung.name}: {words.milliseconds(one.median_ms)}, {_step(one)}" for one in steps),
        tuple(_row(one, steps[0]) for one in steps) + tuple(_row_left_out(one) for one in left_out),
        COLUMNS["ladder"],
    )


def title(steps: Sequence[Step]) -> str:
    """The result in words: 'v3-hopper is 22.0× as fast as v1 key-outer; v3 made it slower'."""
    factor = steps[0].median_ms / steps[-1].median_ms
    slower = [one.rung.name for one in steps if one.against is not None and one.against.word == "SLOWER"]
    but = f"; {', '.join(slower)} made it slower" if slower else ""
    return f"{steps[-1].rung.name} is {words.times(factor)} as fast as {steps[0].rung.name}{but}"


def _figure(steps: Sequence[Step], palette: Palette) -> go.Figure:
    fig = figure(palette, TOP + BOTTOM + ROW_PX * len(steps), left=LEFT, right=RIGHT, top=TOP, bottom=BOTTOM)
    low, high = min(one.median_ms for one in steps) / 1.25, max(one.median_ms for one in steps) * 1.25
    spans = [_span(steps, place, low, high) for place in range(len(steps))]
    fig.add_bar(
        y=list(range(len(steps))),
        x=[end - start for start, end in spans],
        base=[start for start, _ in spans],
        orientation="h",
        width=2 * _HALF,
        marker={"color": [_color(one, palette) for one in steps], "line": {"width": 0}},
        customdata=[[_hover(one)] for one in steps],
        hovertemplate="%{customdata[0]}<extra></extra>",
    )
    for place, one in enumerate(steps[:-1]):
        ends = {"x0": one.median_ms, "x1": one.median_ms, "y0": place + _HALF, "y1": place + 1 + _HALF}
        fig.add_shape(type="line", line={"color": palette.native, "width": 1, "dash": "dot"}, layer="below", **ends)
    notes(
        fig, [*_heads(palette), *(found for place, one in enumerate(steps) for found in _texts(one, place, steps[0], palette))]
    )
    _axes(fig, len(steps), low, high)
    return fig


def _span(steps: Sequence[Step], place: int, low: float, high: float) -> tuple[float, float]:
    """From the time before to its own, the shorter first; the first rung's starts at the axis' left end."""
    now = steps[place].median_ms
    before = steps[place - 1].median_ms if place else low
    start, end = sorted((before, now))
    least = (high / low) ** _LEAST_WIDTH
    return (start, end) if end / start >= least else (start / least, end)


def _color(step: Step, palette: Palette) -> str:
    if step.against is None:
        return palette.track
    return {"FASTER": palette.progress, "SLOWER": palette.work_lost}.get(step.against.word, palette.native)


def _step(step: Step) -> str:
    if step.against is None or step.against.ratio is None:
        return "the start" if step.against is None else "not comparable"
    found = step.against
    interval = f" ({words.ratio(found.low)} to {words.ratio(found.high)})" if found.low is not None else ""
    return f"{words.ratio(found.ratio)}{interval} {found.word or ''}".rstrip()


def _hover(step: Step) -> str:
    tiles = step.measurement.tiles.title
    return f"<b>{step.rung.name}</b>: {words.milliseconds(step.median_ms)}<br>{tiles}<br>{_step(step)}"


def _heads(palette: Palette) -> list[dict[str, Any]]:
    place = {"xref": "paper", "yref": "paper", "xanchor": "right", "yanchor": "bottom", "yshift": 3}
    return [note_of(name, 1, 1, palette.muted, xshift=RIGHT * share - 2, hovertext=COLUMNS["ladder"][name], **place)
            for name, share in _COLUMNS]  # fmt: skip


def _texts(step: Step, place: int, first: Step, palette: Palette) -> list[dict[str, Any]]:
    """At the left what is new, at the right the numbers."""
    left = {"xref": "paper", "xanchor": "left", "xshift": -LEFT}
    right = {"xref": "paper", "xanchor": "right"}
    ratio = step.against.ratio if step.against is not None else None
    word = step.against.word if step.against is not None else None
    by = "–" if ratio is None else words.ratio(ratio)
    ink = palette.work_lost if word == "SLOWER" else palette.muted if word in ("SAME", "UNCLEAR", None) else palette.text
    cells = (
        (words.milliseconds(step.median_ms), palette.text),
        (by, ink),
        (words.times(first.median_ms / step.median_ms), palette.text),
    )
    return [
        note_of(step.rung.name, 0, place, palette.text, 13, bold=True, yshift=8, **left),
        note_of(step.rung.idea, 0, place, palette.muted, 12, yshift=-8, **left),
        *(
            note_of(text, 1, place, color, 13, xshift=RIGHT * share - 2, **right)
            for (text, color), (_, share) in zip(cells, _COLUMNS, strict=True)
        ),
    ]


def _axes(fig: go.Figure, count: int, low: float, high: float) -> None:
    """Decades where there are some, round numbers where there is less than one."""
    decades = [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    ticks = decades if len(decades) > 1 else nice_ticks(low, high, 4)
    fig.update_xaxes(
        type="log", range=[math.log10(low), math.log10(high)], tickvals=ticks,
        ticktext=[words.milliseconds(tick) for tick in ticks],
    )  # fmt: skip
    fig.update_yaxes(range=[count - 0.5, -0.5], tickvals=[], showgrid=False)


def _caption(steps: Sequence[Step], left_out: Sequence[Rung]) -> str:
    rounds = {len(one.against.rounds) for one in steps if one.against is not None}
    shared = f"One job, {min(rounds)} interleaved rounds" if rounds and min(rounds) else "One job"
    out = f" Left out: {'; '.join(f'{one.name} ({one.why_not})' for one in left_out)}." if left_out else ""
    return (
        f"{shared}, every output checked, each with its version’s default tiles; median launch, L2 flushed, log scale. "
        f"Blue: faster than the rung above; orange: slower; grey: cannot be told apart.{out}"
    )


def _row(step: Step, first: Step) -> dict[str, str]:
    return {
        "rung": step.rung.name,
        "what is new": step.rung.idea,
        "tiles": step.measurement.tiles.title,
        "median": words.milliseconds(step.median_ms),
        "step": _step(step),
        "so far": words.times(first.median_ms / step.median_ms),
        "n": f"{step.measurement.latency.n:,}",
    }


def _row_left_out(rung: Rung) -> dict[str, str]:
    return {
        "rung": rung.name, "what is new": rung.idea, "tiles": "–", "median": "–", "step": f"left out: {rung.why_not}",
        "so far": "–", "n": "–",
    }  # fmt: skip
