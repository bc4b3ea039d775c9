"""What all figures share: colours by role in both themes, the layout, notes, and the Chart that a module hands over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import plotly.graph_objects as go

from kernels.registry import OUR_VERSIONS

FONT = '"Source Sans", "Source Sans 3", system-ui, sans-serif'
TRANSPARENT = "rgba(0,0,0,0)"


@dataclass(frozen=True)
class Palette:
    """Colours by role. work_lost: rescaling, tail, binding limit; here: what this page is about; refused: what cannot be."""

    background: str
    text: str
    muted: str
    line: str
    grid: str
    track: str
    band: str
    progress: str
    work_lost: str
    correct: str
    here: str
    refused: str
    peer: str
    native: str
    v1: str
    v2: str
    v3: str
    v3_hopper: str

    def version(self, name: str) -> str:
        """The bar colour of a version; peers and unknown ones share the peers'."""
        return getattr(self, name.replace("-", "_")) if name in OUR_VERSIONS else self.peer


LIGHT = Palette(
    background="#FFFFFF",
    text="#0F1723",
    muted="#566072",
    line="#DDE3EA",
    grid="#EDF0F4",
    track="#E9EDF2",
    band="#E3F0F8",
    progress="#0072B2",
    work_lost="#C04E00",
    correct="#007A5A",
    here="#C27400",
    refused="#B3261E",
    peer="#3A4454",
    native="#8A94A3",
    v1="#9CC7E6",
    v2="#4A9BD0",
    v3="#0072B2",
    v3_hopper="#00508A",
)
DARK = Palette(
    background="#0E1420",
    text="#E8EDF5",
    muted="#9AA6B8",
    line="#2B3749",
    grid="#1A2333",
    track="#1E2839",
    band="#13293B",
    progress="#56B4E9",
    work_lost="#F0A860",
    correct="#2FC79B",
    here="#FFC247",
    refused="#F2867D",
    peer="#C3CCDA",
    native="#6E7A8C",
    v1="#2C5876",
    v2="#3F86B4",
    v3="#56B4E9",
    v3_hopper="#9BD2F3",
)


_CHIPS = {
    "chip": ("#EEF1F5", "#1B2536"),
    "caution": ("#7D4B00", "#FFD27A"),
    "caution-chip": ("#FDF1D8", "#332A16"),
    "bad-chip": ("#FCE8E6", "#3A1D1F"),
    "wait": ("#005B8F", "#8CCBF1"),
    "wait-chip": ("#E3F0F8", "#13293B"),
}


def css_variables(palette: Palette) -> str:
    """A palette and its chips' colours as the custom properties of CSS: '--fs-text:#0F1723;…'."""
    roles = {name.replace("_", "-"): color for name, color in asdict(palette).items()}
    chips = {name: pair[palette is DARK] for name, pair in _CHIPS.items()}
    return ";".join(f"--fs-{name}:{color}" for name, color in (roles | chips).items())


@dataclass(frozen=True)
class Chart:
    """A figure with what must stand around it. table: the same numbers as rows of words, column name to cell.

    explained: how the numbers of a column, by its name, or of a row, by its first cell, were taken: a sentence each.
    """

    title: str
    figure: go.Figure
    provenance: str
    caption: str
    alt: str
    table: tuple[dict[str, str], ...]
    explained: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Absent:
    """A chart that has no data, and the one line that stands in its place."""

    title: str
    reason: str


def figure(palette: Palette, height: int, left: int = 0, right: int = 0, top: int = 24, bottom: int = 26) -> go.Figure:
    """An empty figure in the house style: fixed margins, no zoom, quiet axes, no legend."""
    axis: dict[str, Any] = {
        "showline": False,
        "zeroline": False,
        "ticks": "",
        "gridcolor": palette.grid,
        "automargin": False,
        "fixedrange": True,
        "tickangle": 0,
        "tickfont": {"size": 12, "color": palette.muted},
    }
    return go.Figure(
        layout={
            "template": "none",  # Plotly's own draws pale outlines round dark bars
            "height": height,
            "margin": {"l": left, "r": right, "t": top, "b": bottom, "pad": 4},
            "paper_bgcolor": TRANSPARENT,
            "plot_bgcolor": TRANSPARENT,
            "font": {"family": FONT, "size": 13, "color": palette.text},
            "showlegend": False,
            "hoverlabel": {
                "bgcolor": palette.background,
                "bordercolor": palette.line,
                "font": {"size": 12, "color": palette.text},
            },
            "xaxis": axis,
            "yaxis": axis,
        }
    )


def note(fig: go.Figure, text: str, x: Any, y: Any, color: str, size: int = 12, bold: bool = False, **place: Any) -> None:
    """Text in the figure, left-anchored and centred on (x, y) unless `place` says otherwise; on log axes x, y are log10."""
    notes(fig, [note_of(text, x, y, color, size, bold, **place)])


def note_of(text: str, x: Any, y: Any, color: str, size: int = 12, bold: bool = False, **place: Any) -> dict[str, Any]:
    """What note() puts into a figure, for notes() to put in many at once."""
    defaults = {"xref": "x", "yref": "y", "xanchor": "left", "yanchor": "middle", "xshift": 0, "yshift": 0}
    words = f"<b>{text}</b>" if bold else text
    font = {"size": size, "color": color}
    return {"text": words, "x": x, "y": y, "showarrow": False, "font": font, **defaults, **place}


def notes(fig: go.Figure, found: list[dict[str, Any]]) -> None:
    """Put many notes into a figure: one by one each would make Plotly check all that are there again."""
    fig.layout.annotations = (*fig.layout.annotations, *found)


def vertical(fig: go.Figure, x: float, color: str, dash: str = "solid", width: float = 1.2) -> None:
    """A line from the bottom of the plot to its top."""
    fig.add_shape(type="line", x0=x, x1=x, y0=0, y1=1, yref="paper", line={"color": color, "width": width, "dash": dash})


def shortened(text: str, most: int = 16) -> str:
    """Text that has to fit beside a plot, cut where it is longer than any name of ours."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def spread(positions: list[float], gap: float, low: float, high: float) -> list[float]:
    """Move labels apart so that neighbours keep `gap`, each as near to its own place as the order allows."""
    order = sorted(range(len(positions)), key=positions.__getitem__)
    placed = [min(max(positions[i], low), high) for i in order]
    for k in range(1, len(placed)):
        placed[k] = max(placed[k], placed[k - 1] + gap)
    overflow = high
    for k in reversed(range(len(placed))):
        placed[k] = min(placed[k], overflow)
        overflow = placed[k] - gap
    result = [0.0] * len(positions)
    for rank, i in enumerate(order):
        result[i] = placed[rank]
    return result
