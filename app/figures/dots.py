"""Samples as dots, however many: a few as markers, many as one path, which a browser draws at once."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

MANY, VERY_MANY = 60, 1000
_DASH_PX = 2.6
_NARROWEST_PX = 300


def add(
    fig: go.Figure,
    x: np.ndarray,
    y: np.ndarray,
    color: str,
    hover: str,
    customdata: np.ndarray,
    x_span: float,
    open_: bool = False,
) -> None:
    """Draw (x, y), every one of them. hover: Plotly's template; x_span: the width of the axis in its own unit.

    Beyond VERY_MANY each is a dash of a dot's size in one line with holes: of circles each would be an element of its own.
    """
    if len(x) <= VERY_MANY:
        _markers(fig, x, y, color, hover, customdata, open_)
        return
    half = _DASH_PX / _NARROWEST_PX * x_span / 2
    holes = np.full(len(x), np.nan)
    fig.add_scatter(
        x=np.column_stack([x - half, x + half, holes]).ravel(),
        y=np.column_stack([y, y, holes]).ravel(),
        customdata=np.repeat(customdata, 3, axis=0),
        mode="lines",
        connectgaps=False,
        hovertemplate=hover,
        line={"color": color, "width": _DASH_PX, "simplify": False},
        opacity=0.8,
    )


def _markers(fig: go.Figure, x: np.ndarray, y: np.ndarray, color: str, hover: str, customdata: np.ndarray, open_: bool) -> None:
    marker = {"size": 3.6 if len(x) > MANY else 7, "color": color, "opacity": 0.62 if len(x) > MANY else 1}
    if open_:
        marker = {"size": 4.4 if len(x) > MANY else 7, "symbol": "circle-open", "color": color, "line": {"width": 1}}
    fig.add_scatter(x=x, y=y, customdata=customdata, mode="markers", hovertemplate=hover, marker=marker)
