"""What a key tile costs by query block: the start and the end of a program weigh more where it has few tiles."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from app.figures.style import Absent, Chart, Palette, figure, note
from app.schedule_shown import Shown
from profiling import schedule_facts, words
from profiling.schedule_facts import Groups
from profiling.schedule_record import WHOLE_HEAD

TITLE = "Time a key tile, by query block"
HEIGHT = 190


def chart(shown: Shown, palette: Palette) -> Chart | Absent:
    """Measured schedules alone: in a model from tile counts every tile takes equally long."""
    if not shown.has_times:
        return Absent(TITLE, "in a model from tile counts every tile takes equally long.")
    if (shown.table.block == WHOLE_HEAD).any():
        return Absent(TITLE, "a program goes through all query blocks of its head, and stamps only its start and its end.")
    groups = schedule_facts.by_block(shown.table)
    if len(groups.keys) < 2 or not np.isfinite(groups.ns_per_tile).any():
        return Absent(TITLE, "there is one query block.")
    heads = int(groups.entries.max())
    return Chart(
        TITLE,
        _figure(groups, palette),
        shown.table.provenance,
        f"All time that a query block’s programs took over the key tiles they computed, mean of {heads} "
        f"head{'s' if heads > 1 else ''}: what a program needs besides its tiles weighs on the short ones.",
        f"Time a key tile: {_ns(groups.ns_per_tile[0])} for query block {groups.keys[0]}, {_ns(groups.ns_per_tile[-1])} for "
        f"query block {groups.keys[-1]}",
        _table(groups),
    )


def _figure(groups: Groups, palette: Palette) -> go.Figure:
    fig = figure(palette, HEIGHT, left=44, right=8, top=14, bottom=40)
    fig.add_bar(
        x=groups.keys,
        y=groups.ns_per_tile,
        width=0.8 if len(groups.keys) <= 64 else 1.0,
        marker={"color": palette.v2, "line": {"width": 0}},
        hovertemplate="query block %{x}: %{y:,.3~g} ns a tile<extra></extra>",
    )
    fig.update_yaxes(rangemode="tozero", nticks=4, tickformat=",d")
    fig.update_xaxes(showgrid=False, nticks=9, range=[groups.keys[0] - 0.6, groups.keys[-1] + 0.6])
    note(fig, "query block", 0.5, 0, palette.muted, xref="paper", yref="paper", xanchor="center", yshift=-32)
    note(fig, "ns a tile", 0, 1, palette.muted, xref="paper", yref="paper", xanchor="right", yanchor="bottom", xshift=-4)
    return fig


def _ns(value: float) -> str:
    return f"{words.three_digits(value)} ns" if np.isfinite(value) else "no tile"


def _table(groups: Groups) -> tuple[dict[str, str], ...]:
    return tuple(
        {
            "query block": f"{groups.keys[i]}",
            "programs": f"{groups.entries[i]:,}",
            "key tiles": f"{groups.tiles[i]:,}",
            "mean": schedule_facts.time_of(groups.mean_ns[i]),
            "longest": schedule_facts.time_of(groups.longest_ns[i]),
            "a tile": _ns(groups.ns_per_tile[i]),
            "first start": schedule_facts.time_of(groups.first_start_ns[i]),
            "last end": schedule_facts.time_of(groups.last_end_ns[i]),
        }
        for i in range(len(groups.keys))
    )
