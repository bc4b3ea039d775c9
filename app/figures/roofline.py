"""The roofline: this device's ceilings over operations a byte, and every timed run of a job on it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from app.figures.style import Absent, Chart, Palette, figure, note, shortened, spread
from kernels.registry import PEERS
from profiling import words
from profiling.records import DeviceFacts, Measurement
from profiling.roofline import Roof, Standing, roof, standing

TITLE = "Roofline"
HEIGHT, TOP, BOTTOM, LEFT, RIGHT = 300, 24, 40, 46, 132
_LABEL_GAP_PX = 15
_ROOM = 1.5  # free space beyond the outermost point, as a factor
_LEADER_PX = 22
_NEAR = 1.6  # points whose operations a byte differ by less share a column of labels
_SAME_PLACE = 1.1
_ROOM_FOR_L2 = 3.0  # how far right of the edge the L2 line must end for its name to stand left of that
_COLUMNS = {
    "TFLOP/s": "The problem's operations over the median launch (measured).",
    "of the roof": "What was achieved, of what the lower of both ceilings allows at its operations a byte.",
    "through memory": "The least that must go through the GPU's memory: operands and results once, and of what a version keeps "
    "between its steps what the L2 cache cannot hold (counted from its tiles).",
    "asked for": "Every load and store of every tile, whichever cache serves it (counted; not known for peers). What the L2 "
    "cache gave to scattered reads is dotted; what several SMs ask for at once is merged, and can be more.",
    "FLOP a byte": "Operations over the bytes through memory.",
}


def chart(measurements: Sequence[Measurement], focus: str, palette: Palette) -> Chart | Absent:
    """The runs of a job under their device's ceilings; focus is the label of the one that is set in bold."""
    if not measurements:
        return Absent(TITLE, "nothing ran.")
    device = measurements[0].environment.device
    if device.kind == "interpreter":
        return Absent(TITLE, "n/a: the interpreter's times say nothing about a GPU's ceilings.")
    if not any(one.tflops for one in measurements):
        return Absent(TITLE, "no GPU time was taken.")
    if measurements[0].request.direction != "forward":
        return Absent(TITLE, "n/a: bytes are counted for a forward only; direction forward has it.")
    found = [one for one in map(standing, measurements) if one is not None]
    if not found:
        reasons = (device.missing.get("peak_bf16_tflops"), device.missing.get("measured_bf16_tflops"))
        return Absent(
            TITLE, f"this device's ceilings are not known: {'; '.join(filter(None, reasons)) or 'not in the record'}."
        )
    return Chart(
        TITLE,
        _figure(found, device, focus, palette),
        "measured",
        _caption(found, device),
        "Roofline: " + ", ".join(f"{one.label} {words.percent(one.share)} of what the device can do" for one in found),
        tuple(_row(one) for one in found),
        _COLUMNS,
    )


def _row(one: Standing) -> dict[str, str]:
    asked = one.traffic.asked_bytes
    return {
        "version": one.label,
        "TFLOP/s": words.three_digits(one.operations_per_s / 1e12),
        "of the roof": words.percent(one.share),
        "limit": one.bound,
        "through memory": f"≥ {words.bytes_(one.traffic.hbm_bytes)}",
        "asked for": "–" if asked is None else words.bytes_(asked),
        "FLOP a byte": words.three_digits(one.intensity),
    }


def _figure(found: list[Standing], device: DeviceFacts, focus: str, palette: Palette) -> go.Figure:
    fig = figure(palette, HEIGHT, left=LEFT, right=RIGHT, top=TOP, bottom=BOTTOM)
    roofs = _roofs(found, device)
    x, y = _limits(found, [one for one, _, _ in roofs])
    _draw_roofs(fig, roofs, x, palette)
    _draw_l2(fig, found, device, x, palette)
    _draw_points(fig, found, palette)
    _name_points(fig, found, roofs, focus, y, palette)
    _axes(fig, x, y, palette)
    return fig


def _roofs(found: list[Standing], device: DeviceFacts) -> list[tuple[Roof, str, str]]:
    """(roof, dash, the name of its flat part), measured ones solid, the data sheet's dashed; FP8's too when a run is in FP8."""
    drawn = []
    for fp8 in sorted({one.fp8 for one in found}):
        kind = "FP8 " if fp8 else ""
        for source, dash, name in (("measured", "solid", "measured"), ("data sheet", "dash", "data sheet")):
            limits = roof(device, fp8, source)
            if limits is not None:
                drawn.append((limits, dash, f"{words.three_digits(limits.operations.per_s / 1e12)} {kind}{name}"))
    # Neither source has both ceilings: the best that is known of each.
    return drawn or [(found[0].roof, "dash", f"{words.three_digits(found[0].roof.operations.per_s / 1e12)}")]


def _limits(found: list[Standing], roofs: list[Roof]) -> tuple[tuple[float, float], tuple[float, float]]:
    """The ranges of both axes: all points, and where each roof bends."""
    places = [one.intensity for one in found] + [one.asked_intensity for one in found if one.asked_intensity is not None]
    places += [one.ridge for one in roofs]
    x = (min(places) / _ROOM**2, max(places) * _ROOM)
    rates = [one.operations_per_s / 1e12 for one in found]
    top = max([one.operations.per_s / 1e12 for one in roofs] + rates)
    return x, (min(*rates, top / 10) / _ROOM, top * _ROOM)


def _draw_roofs(fig: go.Figure, roofs: list[tuple[Roof, str, str]], x: tuple[float, float], palette: Palette) -> None:
    for limits, dash, _ in roofs:
        places = [x[0], min(max(limits.ridge, x[0]), x[1]), x[1]]
        color = palette.text if dash == "solid" else palette.muted
        fig.add_scatter(
            x=places, y=[limits.attainable_per_s(place) / 1e12 for place in places], mode="lines", hoverinfo="skip",
            line={"color": color, "width": 1.6 if dash == "solid" else 1.2, "dash": dash},
        )  # fmt: skip


def _draw_l2(fig: go.Figure, found: list[Standing], device: DeviceFacts, x: tuple[float, float], palette: Palette) -> None:
    """What scattered reads from the L2 cache reached, beside which the hollow points stand."""
    rate = device.measured_l2_bytes_per_s
    if rate is None or all(one.asked_intensity is None for one in found):
        return
    top = max(one.roof.operations.per_s for one in found)
    end = top / rate
    if end <= x[0]:
        return
    fig.add_scatter(
        x=[x[0], end], y=[rate * x[0] / 1e12, top / 1e12], mode="lines", hoverinfo="skip",
        line={"color": palette.muted, "width": 1.2, "dash": "dot"},
    )  # fmt: skip
    text = f"L2 {words.three_digits(rate / 1e12)} TB/s"
    # Left of its end; where the line is too short for that, from the chart's edge on.
    at_end = {"x": math.log10(end), "xanchor": "right", "xshift": -2}
    at_edge = {"x": math.log10(x[0]), "xanchor": "left", "xshift": 2}
    place = at_end if end > _ROOM_FOR_L2 * x[0] else at_edge
    note(fig, text, y=math.log10(top / 1e12), color=palette.muted, yanchor="bottom", yshift=2, **place)


def _draw_points(fig: go.Figure, found: list[Standing], palette: Palette) -> None:
    """Filled at the bytes through memory, hollow at all that the tiles ask for, a thin line between them."""
    for one in found:
        color, tflops = palette.version(one.kernel), one.operations_per_s / 1e12
        symbol = "diamond" if one.kernel in PEERS else "circle"
        asked = one.asked_intensity
        if asked is not None and one.intensity > asked * _SAME_PLACE:
            fig.add_scatter(
                x=[asked, one.intensity], y=[tflops, tflops], mode="lines", hoverinfo="skip",
                line={"color": color, "width": 1, "dash": "dot"},
            )  # fmt: skip
            _marker(fig, asked, tflops, symbol, palette.background, color, f"{words.three_digits(asked)} FLOP a byte asked for")
        _marker(fig, one.intensity, tflops, symbol, color, color, f"{words.three_digits(one.intensity)} FLOP a byte")


def _marker(fig: go.Figure, x: float, y: float, symbol: str, fill: str, line: str, said: str) -> None:
    fig.add_scatter(
        x=[x], y=[y], mode="markers",
        marker={"size": 9, "symbol": symbol, "color": fill, "line": {"color": line, "width": 1.8}},
        hovertemplate=f"{words.three_digits(y)} TFLOP/s, {said}<extra></extra>",
    )  # fmt: skip


def _name_points(
    fig: go.Figure,
    found: list[Standing],
    roofs: list[tuple[Roof, str, str]],
    focus: str,
    y: tuple[float, float],
    palette: Palette,
) -> None:
    """A name at the right of each filled point, with a thin line to it; the last column's share the margin with the roofs'."""
    columns = _columns(found)
    for column in columns:
        flat = [(limits.operations.per_s, dash, name) for limits, dash, name in roofs] if column is columns[-1] else []
        rates = [one.operations_per_s for one in column] + [rate for rate, _, _ in flat]
        heights, shifts = _spread_out([rate / 1e12 for rate in rates], y)
        for one, height, shift in zip(column, heights, shifts, strict=False):
            name = f"{words.plotly(shortened(one.label.removesuffix(' (SDPA)')))} {words.percent(one.share)}"
            note(
                fig, name, math.log10(one.intensity), height, palette.text, bold=one.label == focus, showarrow=True,
                ax=_LEADER_PX, ay=-shift, arrowhead=0, arrowwidth=1, arrowcolor=palette.muted, standoff=6,
            )  # fmt: skip
        for (_, dash, name), height, shift in zip(flat, heights[len(column) :], shifts[len(column) :], strict=True):
            color = palette.text if dash == "solid" else palette.muted
            note(fig, name, 1, height, color, xref="paper", xshift=6, yshift=shift)


def _spread_out(values: list[float], y: tuple[float, float]) -> tuple[list[float], list[float]]:
    """Heights on the log axis, and by how many pixels upwards each label moves so that none touches another: the highest
    one stays, and pushes the others down."""
    plot_px = HEIGHT - TOP - BOTTOM
    low, high = (math.log10(limit) for limit in y)
    heights = [math.log10(value) for value in values]
    wanted = [(height - low) / (high - low) * plot_px for height in heights]
    places = spread(wanted, _LABEL_GAP_PX, 6, max(wanted))
    return heights, [place - wish for place, wish in zip(places, wanted, strict=True)]


def _columns(found: list[Standing]) -> list[list[Standing]]:
    """The points, those with nearly the same operations a byte together."""
    columns: list[list[Standing]] = []
    for one in sorted(found, key=lambda one: one.intensity):
        if columns and one.intensity < columns[-1][0].intensity * _NEAR:
            columns[-1].append(one)
        else:
            columns.append([one])
    return columns


def _axes(fig: go.Figure, x: tuple[float, float], y: tuple[float, float], palette: Palette) -> None:
    for axis, limits in ((fig.update_xaxes, x), (fig.update_yaxes, y)):
        ticks = _ticks(limits)
        axis(
            type="log", range=[math.log10(limit) for limit in limits], tickvals=ticks, ticktext=[f"{tick:,g}" for tick in ticks]
        )
    fig.update_xaxes(showgrid=False)
    note(
        fig, "TFLOP/s", 0, 1, palette.muted, xref="paper", yref="paper", xanchor="right", yanchor="bottom", xshift=-4, yshift=4
    )
    below = {"xref": "paper", "yref": "paper", "xanchor": "right", "yanchor": "top", "yshift": -22}
    note(fig, "FLOP a byte", 1, 0, palette.muted, **below)


def _ticks(limits: tuple[float, float]) -> list[float]:
    """Powers of ten; with 2 and 5 of each where there are few."""
    exponents = range(math.floor(math.log10(limits[0])), math.ceil(math.log10(limits[1])) + 1)
    factors = (1,) if math.log10(limits[1] / limits[0]) > 2.2 else (1, 2, 5)
    ticks = [factor * 10.0**exponent for exponent in exponents for factor in factors]
    return [tick for tick in ticks if limits[0] <= tick <= limits[1]]


def _caption(found: list[Standing], device: DeviceFacts) -> str:
    """What the lines are, with the memories' rates, which have no room in the figure."""
    when = f" on {device.ceilings_measured_at[:10]}" if device.ceilings_measured_at else ""
    told = {"solid": f"solid: the GPU's own large matrix product and copy{when}", "dash": "dashed: data sheet"}
    rates = {dash: words.three_digits(limits.memory.per_s / 1e12) for limits, dash, _ in _roofs(found, device)}
    lines = [f"{told[dash]} ({rate} TB/s)" for dash, rate in rates.items()]
    asked = any(one.asked_intensity is not None for one in found)
    lines += ["dotted: L2 cache, scattered reads"] if asked and device.measured_l2_bytes_per_s is not None else []
    hollow = "; hollow: over all that its tiles ask for" if asked else ""
    text = f"{'; '.join(lines)}. Filled: over the least bytes through memory{hollow}. Bytes are counted."
    return text[0].upper() + text[1:]
