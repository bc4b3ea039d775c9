"""SMs busy over time, where two timetables are to be told apart: the measured one filled, the modelled one dashed."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from app.figures.style import Chart, Palette, figure, note
from app.schedule_shown import NS_PER_TILE, Shown
from profiling import schedule_facts, words
from profiling.timetable import Timetable

TITLE = "SMs busy over time"
HEIGHT = 190
BINS = 240
_TABLE_ROWS = 24


def chart(shown: Shown, other_name: str, other: Timetable, palette: Palette) -> Chart:
    """What ran and what another way would do, on one axis of time."""
    both = schedule_facts.utilisation(shown.table, BINS), schedule_facts.utilisation(other, BINS)
    longest = max(shown.table.span_ns, other.span_ns)
    return Chart(
        TITLE,
        _figure(shown, both, (shown.table.sm_count, other.sm_count), longest, palette),
        shown.table.provenance,
        f"Filled: {shown.name}, {shown.table.provenance}. Dashed: {other_name}, {other.provenance}. "
        f"The mean of {BINS} stretches each.",
        f"SMs busy over time: {shown.name} ends after {shown.time(shown.table.span_ns)}, {other_name} after "
        f"{shown.time(other.span_ns)}",
        _table(shown, both, longest),
    )


def _figure(
    shown: Shown,
    both: tuple[schedule_facts.Utilisation, schedule_facts.Utilisation],
    sm_counts: tuple[int, int],
    longest: float,
    palette: Palette,
) -> go.Figure:
    fig = figure(palette, HEIGHT, left=34, right=8, top=14, bottom=40)
    unit, name = _unit(shown, longest)
    styles = (
        {"fill": "tozeroy", "fillcolor": palette.v2, "line": {"width": 0, "shape": "hv", "color": palette.v2}},
        {"line": {"width": 1.8, "dash": "dash", "shape": "hv", "color": palette.text}},
    )
    for found, style in zip(both, styles, strict=True):
        fig.add_scatter(
            x=found.edges_ns / unit,
            y=np.append(found.busy_sms, 0.0),
            mode="lines",
            hovertemplate=f"%{{x:,.4~g}} {name}: %{{y:.3~g}} SMs<extra></extra>",
            **style,
        )
    fig.update_yaxes(range=[0, 1.04 * max(sm_counts)], tickvals=[0, *sorted(set(sm_counts))])
    fig.update_xaxes(range=[0, 1.01 * longest / unit], showgrid=False, nticks=7)
    note(fig, name, 1, 0, palette.muted, xref="paper", yref="paper", xanchor="right", yshift=-32)
    return fig


def _unit(shown: Shown, longest_ns: float) -> tuple[float, str]:
    """How many ns the axis counts as one, and its name."""
    if not shown.has_times:
        return NS_PER_TILE, "key tiles"
    return (1e6, "ms") if longest_ns >= 1e7 else (1e3, "µs")


def _table(
    shown: Shown, both: tuple[schedule_facts.Utilisation, schedule_facts.Utilisation], longest: float
) -> tuple[dict[str, str], ...]:
    moments = np.linspace(0, longest, _TABLE_ROWS, endpoint=False)
    return tuple(
        {"at": shown.time(float(moment)), "busy": _busy_at(both[0], moment), "busy otherwise": _busy_at(both[1], moment)}
        for moment in moments
    )


def _busy_at(found: schedule_facts.Utilisation, moment: float) -> str:
    place = int(np.searchsorted(found.edges_ns, moment, side="right")) - 1
    return words.three_digits(float(found.busy_sms[place])) if 0 <= place < len(found.busy_sms) else "0"
