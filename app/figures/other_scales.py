"""What other scales would do to FP8 attention: the RMSE of each scheme on one kind of data, as a grid of numbers."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from app.figures.microscope import shades
from app.figures.style import Absent, Chart, Palette, figure, note_of, notes
from profiling import words
from profiling.fp8_study import SCALE_BLOCK, Data, Scale, Scheme, Study

SCALE_WORDS: dict[Scale, str] = {
    "tensor": "per tensor",
    "block": f"per {SCALE_BLOCK} tokens",
    "token": "per token",
    "127": "127 for 448",
}
_DATA_WORDS: dict[Data, tuple[str, str]] = {
    "normal": ("Normal data", "N(0, 1)."),
    "outliers": ("Outliers", "N(0, 1) + N(0, 100) · Bernoulli(0.001), the test of the FlashAttention-3 paper."),
    "k bias": ("A bias on K’s channels", "N(0, 1), and on each channel of K the same N(0, 3²) for all tokens."),
}
TREATMENTS: dict[tuple[bool, bool], str] = {
    (False, False): "as it is",
    (False, True): "K − mean",
    (True, False): "Hadamard",
    (True, True): "both",
}
_FULL_SHADE = 4.0
_CELL_PX, _ROW_NAMES_PX = 40, 92


def chart(
    study: Study, scales: tuple[Scale, ...], treatments: tuple[tuple[bool, bool], ...], own: Scheme, palette: Palette
) -> Chart | Absent:
    """The RMSE of the schemes that are in, scales by treatments (hadamard, smooth_k); own is framed."""
    title, drawn = _DATA_WORDS[study.data]
    schemes = [[Scheme(scale, *treatment) for treatment in treatments] for scale in scales]
    if not scales or not treatments:
        return Absent(title, "no scale is in.")
    shown = np.array([[study.rmse[scheme] for scheme in row] for row in schemes])
    best = min((scheme for row in schemes for scheme in row), key=study.rmse.__getitem__)
    return Chart(
        title,
        _grid(shown, scales, treatments, own, palette),
        "modelled",
        f"{drawn} RMS of exact O: {words.error(study.output_rms)}. Over {study.heads} heads; standard error of a "
        f"number: up to {100 * study.scatter:.0f} %.",
        f"Smallest RMSE {words.error(study.rmse[best])}: {_scheme_words(best)}",
        tuple(
            {"Q and K": SCALE_WORDS[scale]}
            | {TREATMENTS[treatment]: words.error(study.rmse[Scheme(scale, *treatment)]) for treatment in treatments}
            for scale in scales
        ),
    )


def _scheme_words(scheme: Scheme) -> str:
    return f"{SCALE_WORDS[scheme.scale]}, {TREATMENTS[scheme.hadamard, scheme.smooth_k]}"


def _grid(
    rmse: np.ndarray, scales: tuple[Scale, ...], treatments: tuple[tuple[bool, bool], ...], own: Scheme, palette: Palette
) -> go.Figure:
    fig = figure(palette, 30 + _CELL_PX * len(scales), left=_ROW_NAMES_PX, right=4, top=26, bottom=4)
    shade = np.log(rmse / rmse.min()) / np.log(_FULL_SHADE)
    columns, rows = np.arange(len(treatments)), np.arange(len(scales))
    fig.add_heatmap(
        z=shade, x=columns, y=rows, colorscale=shades(palette), zmin=0.0, zmax=1.0, showscale=False, xgap=3, ygap=3,
        customdata=rmse, hovertemplate="%{customdata:.3~g}<extra></extra>",
    )  # fmt: skip
    fig.update_yaxes(
        tickvals=rows, ticktext=[SCALE_WORDS[scale] for scale in scales], range=[len(scales) - 0.5, -0.5], showgrid=False,
        tickfont={"size": 13, "color": palette.text},
    )  # fmt: skip
    fig.update_xaxes(
        tickvals=columns, ticktext=[TREATMENTS[treatment] for treatment in treatments], side="top", showgrid=False,
        range=[-0.5, len(treatments) - 0.5],
    )  # fmt: skip
    notes(fig, [_cell(rmse, shade, row, column, palette) for row in rows for column in columns])
    place = (own.hadamard, own.smooth_k)
    if own.scale in scales and place in treatments:
        _frame(fig, treatments.index(place), scales.index(own.scale), palette)
    return fig


def _cell(rmse: np.ndarray, shade: np.ndarray, row: int, column: int, palette: Palette) -> dict:
    """A cell's number, in the ink that its shade leaves legible."""
    ink = palette.background if shade[row, column] > 0.62 else palette.text
    return note_of(words.error(rmse[row, column]), int(column), int(row), ink, 13, xanchor="center")


def _frame(fig: go.Figure, column: int, row: int, palette: Palette) -> None:
    fig.add_shape(
        type="rect",
        x0=column - 0.47,
        x1=column + 0.47,
        y0=row - 0.47,
        y1=row + 0.47,
        line={"color": palette.here, "width": 2.5},
    )
