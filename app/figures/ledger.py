"""Rows rescaled per tile: what the kernel did, and hollow what a maximum that may lag behind would leave of it.

Where the kernel's own m lags, the rows for which it was kept though a larger score came are drawn on top of those it moved for.
"""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from app.figures.style import Absent, Chart, Palette, figure, note
from profiling.rescale_ledger import RescaleLedger
from profiling.trace_record import TileTrace

HEIGHT = 150


def chart(ledger: RescaleLedger, trace: TileTrace, palette: Palette) -> Chart | Absent:
    """The tiles of one query block in the order visited; the lazy rule's where every tile is stored."""
    rows = ledger.rescaled_rows
    title = "Rows rescaled, tile by tile"
    if rows is None:
        return Absent(title, ledger.missing["rescaled_rows"])
    lazy = ledger.lazy.rescaled_rows if ledger.lazy else None
    kept = ledger.lagging.kept_rows if ledger.lagging else None
    return Chart(
        title if kept is None else "Rows that m moved for, and rows it was kept for, tile by tile",
        _figure(rows, kept, lazy, palette),
        trace.provenance,
        _caption(ledger, trace),
        _summary(rows, kept, lazy),
        tuple(
            {"tile": str(place + 1), "rows rescaled": str(int(count))}
            | ({"kept though a larger score came": str(int(kept[place]))} if kept is not None else {})
            | ({"still rescaled": str(int(lazy[place]))} if lazy is not None else {})
            for place, count in enumerate(rows)
        ),
    )


def _caption(ledger: RescaleLedger, trace: TileTrace) -> str:
    if trace.lag_log2:
        said = f"Filled: rows of this query block whose m moved at that tile, of {trace.m.shape[1]}."
        if ledger.lagging:
            most = f"2^{trace.lag_log2:g}"
            said += f" Pale: rows with a score above m, which stayed, as no row of their warp was more than {most} above."
    else:
        said = f"Filled: rows of this query block whose maximum rose at that tile, of {trace.m.shape[1]}."
    if ledger.lazy:
        said += (
            f" Hollow (modelled, from the stored scores): rows that still rescale when the maximum may lag by "
            f"τ = {ledger.lazy.tau_log2:g}, row by row; "
        )
        said += "this kernel" if trace.lag_log2 else "FlashAttention-4"
        said += " decides for a warp’s rows together and saves less."
    return said


def _summary(rows: np.ndarray, kept: np.ndarray | None, lazy: np.ndarray | None) -> str:
    said = f"{int(rows.sum()):,} rows rescaled over {len(rows):,} tiles"
    if kept is not None:
        said += f"; m kept {int(kept.sum()):,} times though a larger score came"
    if lazy is not None:
        said += f"; {int(lazy.sum()):,} with a maximum that may lag"
    return said


def _figure(rows: np.ndarray, kept: np.ndarray | None, lazy: np.ndarray | None, palette: Palette) -> go.Figure:
    fig = figure(palette, HEIGHT, left=30, right=2, top=8, bottom=38)
    places = np.arange(1, len(rows) + 1)
    width = 0.7 if len(rows) <= 200 else 1.0
    fig.add_bar(
        x=places, y=rows, width=width, marker={"color": palette.work_lost, "opacity": 0.85, "line": {"width": 0}},
        hovertemplate="tile %{x}: %{y} rows<extra></extra>",
    )  # fmt: skip
    if kept is not None:
        fig.add_bar(
            x=places, y=kept, base=rows, width=width,
            marker={"color": palette.work_lost, "opacity": 0.3, "line": {"width": 0}},
            hovertemplate="tile %{x}: kept for %{customdata} rows<extra></extra>", customdata=kept,
        )  # fmt: skip
    if lazy is not None:
        fig.add_bar(
            x=places, y=lazy, width=width, marker={"color": "rgba(0,0,0,0)", "line": {"width": 1.5, "color": palette.text}},
            hovertemplate="tile %{x}: %{y} rows with τ<extra></extra>",
        )  # fmt: skip
    fig.update_layout(barmode="overlay")
    fig.update_yaxes(rangemode="tozero", nticks=4)
    fig.update_xaxes(range=[0.4, len(rows) + 0.6], showgrid=False, tickformat=",d", nticks=min(17, len(rows) + 1))
    note(fig, "tile, in the order visited", 0.5, 0, palette.muted, xref="paper", yref="paper", xanchor="center", yshift=-30)
    return fig
