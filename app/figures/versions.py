"""Versions beside each other on one problem: throughput as bars, peers as thin lines, the numbers in the right margin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from app.figures.style import Absent, Chart, Palette, figure, note, note_of, notes, shortened
from app.how_taken import COLUMNS, round_count
from kernels.registry import PEERS, VERSIONS
from profiling import words
from profiling.records import DeviceFacts, Measurement

TITLE = "Versions on this problem"
HEIGHT, ROW, RIGHT = 236, 42, 206
NARROWEST = 500
_CHARACTER_SHARE = 0.026  # of the plot at its narrowest, about 240 px
_COLUMNS = (("TFLOP/s", 0.36), ("median", 0.70), ("vs native", 1.0))


@dataclass(frozen=True)
class Row:
    """One version's line: its numbers, or why it has none."""

    kernel: str
    label: str
    tflops: float | None
    spread: tuple[float, float]
    median_ms: float | None
    reason: str


def chart(measurements: Sequence[Measurement], focus: str, palette: Palette) -> Chart | Absent:
    """The chart of a job's measurements; focus is the name, among names_of, of the one that is set in bold."""
    rows = _rows(measurements)
    if len(rows) < 2:
        return Absent(TITLE, "only one version ran; “Run all versions” puts native, v1, v2 and v3 side by side.")
    timed = [row for row in rows if row.tflops is not None]
    if not timed:
        return Absent(TITLE, "no GPU time was taken; the interpreter's times say nothing about speed.")
    device = measurements[0].environment.device
    return Chart(
        TITLE,
        _figure(rows, _native_ms(rows), focus, _ceiling(device, measurements), palette),
        "measured",
        _caption(measurements, _ceiling(device, measurements)),
        "Throughput by version: " + ", ".join(f"{row.label} {words.three_digits(row.tflops)} TFLOP/s" for row in timed),
        table(measurements),
        COLUMNS["versions"],
    )


def table(measurements: Sequence[Measurement]) -> tuple[dict[str, str], ...]:
    """Every version with its proof and its numbers, in words."""
    rows = _rows(measurements)
    native_ms = _native_ms(rows)
    cells = [_cells(measurement, row, native_ms) for measurement, row in zip(measurements, rows, strict=True)]
    used = [name for name in cells[0] if any(row[name] for row in cells)]
    return tuple({name: row[name] for name in used} for row in cells)


def _native_ms(rows: Sequence[Row]) -> float | None:
    return next((row.median_ms for row in rows if row.kernel == "native"), None)


def _cells(measurement: Measurement, row: Row, native_ms: float | None) -> dict[str, str]:
    accuracy, latency, energy = measurement.accuracy, measurement.latency, measurement.energy
    wall = latency is not None and latency.provenance == "interpreted"
    return {
        "version": row.label,
        "tiles": measurement.tiles.title if measurement.tiles else "",
        "output": row.reason or "correct",
        "rel. error": words.error(accuracy.relative_error) if accuracy and accuracy.relative_error is not None else "",
        "gradients": _gradients(measurement),
        "TFLOP/s": words.three_digits(row.tflops) if row.tflops else "",
        "median": words.milliseconds(latency.median_ms) + (" (interpreter)" if wall else "") if latency else "",
        "min to q3": " to ".join(words.milliseconds(latency.quantile_ms(q)) for q in (0.0, 0.75))
        if latency and latency.n > 1
        else "",
        "n": str(latency.n) if latency else "",
        "vs native": words.times(native_ms / row.median_ms) if row.tflops and native_ms else "",
        "warm": words.milliseconds(measurement.warm.median_ms) if measurement.warm else "",
        "energy": words.millijoules(energy.per_launch_mj) if energy and energy.per_launch_mj else "",
    }


def _gradients(measurement: Measurement) -> str:
    """The worst of the three: 'dk 2.5e−3'."""
    if measurement.gradients is None:
        return ""
    name, worst = measurement.gradients.worst
    return f"{name} n/a" if worst.relative_error is None else f"{name} {words.error(worst.relative_error)}"


def names_of(measurements: Sequence[Measurement]) -> tuple[str, ...]:
    """A short name for each: its label, with the tiles where one version ran with several: 'v3 128×64', 'v3 128×64·w4·s3'."""
    found = []
    for one in measurements:
        alike = [other for other in measurements if other.label == one.label]
        names = [[_spelt(other)[:parts] for other in alike] for parts in range(1, 4)]
        told_apart = next((parts for parts, spelt in enumerate(names, 1) if len({*map(tuple, spelt)}) == len(alike)), 3)
        found.append(one.label if len(alike) == 1 else f"{one.label} {'·'.join(_spelt(one)[:told_apart])}".rstrip())
    return tuple(found)


def short(name: str) -> str:
    """A name in a chart whose heading says the direction: 'v2' for 'v2 fwd+bwd', 'v2 128×64' for 'v2 bwd 128×64'."""
    return name.replace(" fwd+bwd", "").replace(" bwd", "")


def _spelt(measurement: Measurement) -> list[str]:
    tiles = measurement.tiles
    return [] if tiles is None else [f"{tiles.block_m}×{tiles.block_n}", f"w{tiles.num_warps}", f"s{tiles.num_stages}"]


def _rows(measurements: Sequence[Measurement]) -> list[Row]:
    return [_row(measurement, name) for measurement, name in zip(measurements, names_of(measurements), strict=True)]


def _row(measurement: Measurement, label: str) -> Row:
    kernel = measurement.request.kernel
    if measurement.tflops is None:
        return Row(kernel, label, None, (0.0, 0.0), None, _reason(measurement))
    flops, latency = measurement.request.flops, measurement.latency
    slow, fast = (flops / latency.quantile_ms(q) / 1e9 for q in (0.75, 0.0))
    return Row(kernel, label, measurement.tflops, (slow, fast), latency.median_ms, "")


def _reason(measurement: Measurement) -> str:
    if measurement.error is not None:
        return {"refused": "refused", "out_of_memory": "out of memory"}.get(measurement.error.kind, measurement.error.kind)
    if measurement.wrong is not None:
        return "WRONG"
    return "" if measurement.latency is not None else "not timed"


def _ceiling(device: DeviceFacts, measurements: Sequence[Measurement]) -> tuple[float, str] | None:
    """The dotted line: what this GPU's own matrix product reached, else the data sheet's rate."""
    if any(measurement.request.precision.fp8 for measurement in measurements):
        return (device.peak_fp8_tflops, "FP8 data sheet") if device.peak_fp8_tflops else None
    if device.measured_bf16_tflops:
        return device.measured_bf16_tflops, "matmul"
    return (device.peak_bf16_tflops, "data sheet") if device.peak_bf16_tflops else None


def _figure(
    rows: list[Row], native_ms: float | None, focus: str, ceiling: tuple[float, str] | None, palette: Palette
) -> go.Figure:
    ours = [row for row in rows if row.kernel not in VERSIONS or not VERSIONS[row.kernel].is_peer] or rows
    peers = [row for row in rows if row not in ours and row.tflops is not None]
    top_value = max([row.tflops or 0 for row in rows] + ([ceiling[0]] if ceiling else []))
    levels = _levels(peers, top_value)
    top = 28 + 15 * max(levels, default=0)
    longest = max(len(short(row.label)) for row in ours)
    left = 52 if longest <= 6 else 94 if longest <= 11 else 122
    fig = figure(palette, max(HEIGHT, top + 26 + ROW * len(ours)), left=left, right=RIGHT, top=top)
    _peer_lines(fig, peers, levels, top_value, palette)
    _bars(fig, ours, palette)
    _numbers(fig, ours, native_ms, focus, palette)
    _axis(fig, top_value, ceiling, palette)
    fig.update_yaxes(
        tickvals=list(range(len(ours))),
        ticktext=[words.plotly(shortened(short(row.label))) for row in ours],
        range=[-0.5, len(ours) - 0.5],
        showgrid=False,
        tickfont={"size": 13, "color": palette.text},
    )
    return fig


def _levels(peers: list[Row], top_value: float) -> list[int]:
    """A height for each peer's label, so that no two meet even where the plot is narrow."""
    levels = [0] * len(peers)
    last_right: dict[int, float] = {}
    for i in sorted(range(len(peers)), key=lambda i: peers[i].tflops):
        width = _CHARACTER_SHARE * len(_peer_label(peers[i]))
        right = min(peers[i].tflops / top_value + width / 2, 1.0)
        levels[i] = next(level for level in range(len(peers)) if right - width >= last_right.get(level, -1.0))
        last_right[levels[i]] = right
    return levels


def _peer_label(peer: Row) -> str:
    return f"{short(peer.label).removesuffix(' (SDPA)')} {words.three_digits(peer.tflops)}"


def _peer_lines(fig: go.Figure, peers: list[Row], levels: list[int], top_value: float, palette: Palette) -> None:
    for peer, level in zip(peers, levels, strict=True):
        line = {"color": palette.peer, "width": 1.2}
        fig.add_shape(type="line", x0=peer.tflops, x1=peer.tflops, y0=0, y1=1, yref="paper", line=line)
        text = words.plotly(_peer_label(peer))
        at_edge = peer.tflops / top_value + _CHARACTER_SHARE * len(text) / 2 > 1
        note(
            fig,
            text,
            1 if at_edge else peer.tflops,
            1,
            palette.text,
            xref="paper" if at_edge else "x",
            yref="paper",
            xanchor="right" if at_edge else "center",
            yanchor="bottom",
            yshift=2 + 15 * level,
        )


def _bars(fig: go.Figure, rows: list[Row], palette: Palette) -> None:
    timed = [(place, row) for place, row in enumerate(rows) if row.tflops is not None]
    fig.add_bar(
        y=[place for place, _ in timed],
        x=[row.tflops for _, row in timed],
        orientation="h",
        width=0.46,
        marker={"color": [palette.version(row.kernel) for _, row in timed]},
        error_x={
            "type": "data",
            "symmetric": False,
            "color": palette.text,
            "thickness": 1.2,
            "width": 4,
            "array": [row.spread[1] - row.tflops for _, row in timed],
            "arrayminus": [row.tflops - row.spread[0] for _, row in timed],
        },
        hovertemplate="%{x:.3g} TFLOP/s<extra></extra>",
    )


def _numbers(fig: go.Figure, rows: list[Row], native_ms: float | None, focus: str, palette: Palette) -> None:
    right: dict[str, Any] = {"xref": "paper", "xanchor": "right"}
    found = [
        note_of(
            name,
            1,
            1,
            palette.muted,
            yref="paper",
            yanchor="bottom",
            xshift=RIGHT * share - 2,
            yshift=2,
            hovertext=words.plotly(COLUMNS["versions"][name]),
            **right,
        )
        for name, share in _COLUMNS
    ]
    for place, row in enumerate(rows):
        if row.tflops is None:
            found.append(note_of(row.reason, 1, place, palette.refused, size=13, xshift=RIGHT - 2, **right))
            continue
        versus = words.times(native_ms / row.median_ms) if native_ms else "–"
        cells = (words.three_digits(row.tflops), words.milliseconds(row.median_ms), versus)
        for cell, (_, share) in zip(cells, _COLUMNS, strict=True):
            bold = row.label == focus
            found.append(note_of(cell, 1, place, palette.text, size=13, bold=bold, xshift=RIGHT * share - 2, **right))
    notes(fig, found)


def _axis(fig: go.Figure, top_value: float, ceiling: tuple[float, str] | None, palette: Palette) -> None:
    steps = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
    step = next((step for step in steps if top_value / step <= 5), 10 ** math.ceil(math.log10(top_value / 5)))
    ticks = [step * k for k in range(int(top_value // step) + 1)]
    labels = {float(tick): f"{tick:,}" for tick in ticks}
    if ceiling is not None:
        value, name = ceiling
        fig.add_shape(
            type="line", x0=value, x1=value, y0=0, y1=1, yref="paper", line={"color": palette.peer, "width": 1.2, "dash": "dot"}
        )
        text = f"{value:,.0f} {name}"
        room = _CHARACTER_SHARE * (len(text) / 2 + 3) * top_value
        labels = {tick: label for tick, label in labels.items() if abs(tick - value) > room} | {value: text}
    fig.update_xaxes(range=[0, top_value * 1.04], tickvals=list(labels), ticktext=list(labels.values()))


_CEILINGS = {
    "matmul": "this GPU's own large matrix product",
    "data sheet": "the data sheet's bf16 rate",
    "FP8 data sheet": "the data sheet's FP8 rate, which bf16 cannot reach",
}


def _from_to(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _caption(measurements: Sequence[Measurement], ceiling: tuple[float, str] | None) -> str:
    timed = [measurement for measurement in measurements if measurement.tflops is not None]
    rounds = _from_to([round_count(measurement.latency) for measurement in timed])
    launches = _from_to([measurement.latency.n for measurement in timed])
    flushed = ", L2 flushed" if timed[0].latency.mode == "cold" else ""
    peers = "Lines: peers in the same job. " if any(one.request.kernel in PEERS for one in timed) else ""
    dotted = f"Dotted: {_CEILINGS[ceiling[1]]}." if ceiling else ""
    marks = "Bar: median; whisker: fastest launch to third quartile."
    return f"{rounds} interleaved rounds, {launches} launches each{flushed}. {marks} {peers}{dotted}".strip()
