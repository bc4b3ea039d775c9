"""Why something did not fit: what it needs against what there is, in the same unit, and the tiles that were tried."""

from __future__ import annotations

import plotly.graph_objects as go

from app.figures.style import Absent, Chart, Palette, figure, note, shortened, vertical
from app.how_taken import COLUMNS
from kernels.problem import TileConfig
from profiling import words
from profiling.records import JobError

TITLE = "Needed and there"
_ROW, _TOP = 24, 24


def chart(error: JobError, tiles: TileConfig | None, palette: Palette) -> Chart | Absent:
    """Bars against the limit; Absent where the error carries no pair of numbers."""
    if error.needs is None or error.has is None:
        return Absent(TITLE, "the error gives no pair of numbers to compare.")
    rows = _tried(error, tiles) or [("needs", error.needs)]
    fits = bool(error.fits)
    return Chart(
        TITLE,
        _figure(rows, error, palette),
        "compiled" if fits else "modelled",
        "Shared memory a program takes, compiled for this GPU. Nothing was launched." if fits else "Nothing was launched.",
        f"needs {quantity(error.needs, error.unit)}, has {quantity(error.has, error.unit)}",
        tuple(
            {"tiles": name, "needs": quantity(value, error.unit), "limit": quantity(error.has, error.unit)}
            for name, value in rows
        ),
        COLUMNS["limits"],
    )


def quantity(value: float, unit: str) -> str:
    """A number of the error in its unit; bytes as KiB below a mebibyte, so that two numbers stay comparable."""
    if unit != "bytes":
        return f"{value:,.6g} {shortened(unit)}".strip()
    return words.kib(value) if value < words.MIB else words.bytes_(value)


def _tried(error: JobError, tiles: TileConfig | None) -> list[tuple[str, float]]:
    """At most six tile configurations, the largest first, with the one that was asked for at the top."""
    found = sorted(((_label(one), float(size)) for one, size in error.fits), key=lambda row: -row[1])
    if tiles is not None and found and all(name != _label(tiles) for name, _ in found):
        found.insert(0, (_label(tiles), error.needs))
    return found[:6]


def _label(tiles: TileConfig) -> str:
    return f"{tiles.block_m} × {tiles.block_n}, {tiles.num_stages} stage{'s' if tiles.num_stages > 1 else ''}"


def _figure(rows: list[tuple[str, float]], error: JobError, palette: Palette) -> go.Figure:
    fig = figure(palette, _TOP + 6 + _ROW * max(2, len(rows)), left=128, right=80, top=_TOP, bottom=6)
    places = list(range(len(rows)))[::-1]
    colors = [palette.refused if value > error.has else palette.progress for _, value in rows]
    fig.add_bar(y=places, x=[value for _, value in rows], orientation="h", marker_color=colors, width=0.5, hoverinfo="skip")
    vertical(fig, error.has, palette.text)
    note(
        fig,
        f"has <b>{words.plotly(quantity(error.has, error.unit))}</b>",
        error.has,
        1,
        palette.text,
        yref="paper",
        xanchor="center",
        yanchor="bottom",
        yshift=2,
    )
    for place, (_, value) in zip(places, rows, strict=True):
        text = words.plotly(quantity(value, error.unit))
        over = value > error.has
        note(
            fig,
            text,
            1,
            place,
            palette.refused if over else palette.text,
            size=13,
            bold=over,
            xref="paper",
            xanchor="right",
            xshift=80,
        )
    fig.update_xaxes(range=[0, max([error.has, *(value for _, value in rows)]) * 1.03], visible=False)
    fig.update_yaxes(
        range=[-0.6, len(rows) - 0.4],
        tickvals=places,
        ticktext=[name for name, _ in rows],
        showgrid=False,
        tickfont={"size": 13, "color": palette.text},
    )
    return fig
