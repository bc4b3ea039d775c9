"""Memory over the sequence length: what S and P would take against what the fused kernel returns, and what was measured."""

from __future__ import annotations

import math

import numpy as np
import plotly.graph_objects as go

from app.figures.style import Absent, Chart, Palette, figure, note, spread, vertical
from profiling import words
from profiling.records import Measurement, Memory

TITLE = "Memory over seq_len"
HEIGHT, TOP, BOTTOM, LEFT, RIGHT = 222, 22, 26, 54, 92
_LABEL_GAP_PX = 15


def chart(measurement: Measurement, palette: Palette) -> Chart | Absent:
    """Modelled curves through this problem's sizes; a filled point where the allocation was measured."""
    memory, problem = measurement.memory, measurement.request.problem
    if memory is None:
        return Absent(TITLE, "memory was not observed.")
    measured = memory.torch_added_bytes is not None and memory.provenance == "measured"
    this = f"this problem: S and P {words.bytes_(memory.scores_bytes)}, outputs {words.bytes_(memory.outputs_bytes)}"
    caption = "Sizes of the tensors on log scales, dashed: modelled. "
    caption += (
        "Filled: what torch allocated for this run." if measured else "Hollow: this problem; its allocation was not measured."
    )
    return Chart(
        TITLE,
        _figure(memory, problem.seq_len_q, measurement.environment.device.memory_bytes, measurement.request.kernel, palette),
        "modelled",
        caption,
        f"Memory over sequence length, {this}" + (f"; measured {words.bytes_(memory.torch_added_bytes)}" if measured else ""),
        _table(memory),
    )


def _table(memory: Memory) -> tuple[dict[str, str], ...]:
    kinds = {
        "inputs": (memory.inputs_bytes, "modelled"),
        "outputs": (memory.outputs_bytes, "modelled"),
        "S and P written out": (memory.scores_bytes, "modelled"),
        "torch, added by the call": (memory.torch_added_bytes, "torch_added_bytes"),
        "torch, allocated at the peak": (memory.torch_peak_allocated_bytes, "torch_peak_allocated_bytes"),
        "torch, reserved at the peak": (memory.torch_peak_reserved_bytes, "torch_peak_reserved_bytes"),
        "NVML, whole GPU, before": (memory.nvml_used_before_bytes, "nvml_used_before_bytes"),
        "NVML, whole GPU, peak": (memory.nvml_used_peak_bytes, "nvml_used_peak_bytes"),
        "NVML, whole GPU, after": (memory.nvml_used_after_bytes, "nvml_used_after_bytes"),
    }
    return tuple(
        {
            "what": name,
            "size": words.bytes_(value) if value is not None else "–",
            "how": (field if field == "modelled" else memory.provenance)
            if value is not None
            else memory.missing.get(field, "not read"),
        }
        for name, (value, field) in kinds.items()
    )


def _figure(memory: Memory, seq_len: int, capacity: int | None, kernel: str, palette: Palette) -> go.Figure:
    fig = figure(palette, HEIGHT, left=LEFT, right=RIGHT, top=TOP, bottom=BOTTOM)
    lengths, scores, outputs = _curves(memory, seq_len)
    low = 10 ** math.floor(math.log10(max(outputs[0], 1)) - 0.2)
    high = 10 ** math.ceil(math.log10(max(scores[-1], outputs[-1], capacity or 1)) + 0.2)
    for sizes, color in ((scores, palette.native), (outputs, palette.progress)):
        fig.add_scatter(x=lengths, y=sizes, mode="lines", line={"color": color, "width": 2.2, "dash": "dash"}, hoverinfo="skip")
    vertical(fig, seq_len, palette.here)
    _points(fig, memory, seq_len, kernel, palette)
    _end_labels(fig, scores[-1], outputs[-1], capacity, (low, high), palette)
    _axes(fig, lengths, seq_len, (low, high))
    return fig


def _curves(memory: Memory, seq_len: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seven doublings around this problem, both lengths scaled together: S and P grow squared, outputs in proportion."""
    first = 2 ** max(4, round(math.log2(seq_len)) - 4)
    lengths = first * 2.0 ** np.arange(8)
    ratio = lengths / seq_len
    return lengths, memory.scores_bytes * ratio**2, memory.outputs_bytes * ratio


def _points(fig: go.Figure, memory: Memory, seq_len: int, kernel: str, palette: Palette) -> None:
    """Hollow: modelled. Filled: measured, in place of the modelled point of what ran; the larger labelled at its left."""
    measured = memory.torch_added_bytes if memory.provenance == "measured" else None
    scores = (memory.scores_bytes, palette.text, palette.background)
    outputs = (memory.outputs_bytes, palette.progress, palette.background)
    if measured and kernel == "native":
        scores = (measured, palette.text, palette.text)
    elif measured:
        outputs = (measured, palette.progress, palette.progress)
    upper = max(scores[0], outputs[0])
    for size, line, fill in (scores, outputs):
        fig.add_scatter(
            x=[seq_len],
            y=[size],
            mode="markers",
            marker={"size": 9, "color": fill, "line": {"color": line, "width": 2}},
            hovertemplate=words.bytes_(size) + "<extra></extra>",
        )
        beside = {"xanchor": "right", "yanchor": "bottom", "xshift": -7, "yshift": 1}
        if size != upper:
            beside = {"xanchor": "left", "yanchor": "top", "xshift": 7, "yshift": -1}
        place = (math.log10(seq_len), math.log10(max(size, 1)))
        note(fig, words.bytes_(size), *place, line, size=13, bold=True, **beside)


def _end_labels(
    fig: go.Figure, scores: float, outputs: float, capacity: int | None, limits: tuple[float, float], palette: Palette
) -> None:
    """Names at the ends of the lines, moved apart where they would touch."""
    lines = [(scores, "S and P, N²", palette.muted), (outputs, "O and lse, N", palette.progress)]
    if capacity:
        fig.add_hline(y=capacity, line={"color": palette.work_lost, "width": 1.2, "dash": "dot"})
        lines.append((capacity, f"GPU {words.bytes_(capacity)}", palette.work_lost))
    low, high = (math.log10(limit) for limit in limits)
    plot_px = HEIGHT - TOP - BOTTOM
    wanted = [(math.log10(max(size, 1)) - low) / (high - low) * plot_px for size, _, _ in lines]
    for (size, text, color), wish, place in zip(lines, wanted, spread(wanted, _LABEL_GAP_PX, 4, plot_px), strict=True):
        note(fig, text, 1, math.log10(max(size, 1)), color, xref="paper", xshift=6, yshift=place - wish)


def _axes(fig: go.Figure, lengths: np.ndarray, seq_len: int, limits: tuple[float, float]) -> None:
    shown = [int(length) for length in lengths[1::2]]
    fig.update_xaxes(
        type="log",
        range=[math.log10(lengths[0]), math.log10(lengths[-1])],
        tickvals=shown,
        ticktext=[words.tokens(length) for length in shown],
        showgrid=False,
    )
    low, high = (math.log2(limit) for limit in limits)
    exponents = [e for e in range(0, 61, 10) if low <= e <= high] if high - low > 30 else _every(low, high)
    fig.update_yaxes(
        type="log",
        range=[math.log10(limit) for limit in limits],
        tickvals=[2**e for e in exponents],
        ticktext=[_power_of_two_bytes(e) for e in exponents],
    )


def _every(low: float, high: float) -> list[int]:
    step = 5 if high - low > 14 else 3
    return [e for e in range(0, 61, step) if low <= e <= high]


def _power_of_two_bytes(exponent: int) -> str:
    unit = min(exponent // 10, 4)
    return f"{2 ** (exponent - 10 * unit)} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"
