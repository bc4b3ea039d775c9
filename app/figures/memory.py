"""Memory over the sequence length: what S and P would take against what the fused kernels return, and what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from app.figures.style import Absent, Chart, Palette, figure, note, shortened, spread, vertical
from app.figures.versions import short
from profiling import words
from profiling.memory import estimate
from profiling.records import Direction, Measurement, Memory

TITLE = "Memory over seq_len"
_TITLES = {"forward": TITLE, "backward": "Memory of a backward over seq_len", "both": "Memory of a training step over seq_len"}
_OUTPUTS = {"forward": "O and lse, N", "backward": "dQ, dK, dV, N", "both": "O, lse, grads, N"}
_OUTPUTS_BY_SHAPE = {
    "backward": "The gradients of Q, K and V by their shapes.",
    "both": "Output, log-sum-exp and the gradients of Q, K and V by their shapes: what a step cannot do without.",
}
_SCORES_BY_SHAPE = (
    "What scores and weights would take by their shapes; only native writes them out, and its backward as much again for "
    "their gradients, beside the weights that it kept."
)
HEIGHT, TOP, BOTTOM, LEFT, RIGHT = 222, 22, 26, 54, 92
_LABEL_GAP_PX = 15
_ALIKE = 0.05  # closer points cannot be told apart here
_LONGEST_NAME = 14
_TOO_OLD = "not in this record: it is older than this reading"


@dataclass(frozen=True)
class Number:
    """One number of a run's memory: value in words, or '–'; sentence: what it is; how: 'measured', 'modelled', or why not."""

    name: str
    value: str
    sentence: str
    how: str


@dataclass(frozen=True)
class Series:
    """What launches of versions that allocate alike added: the longer side's length to bytes, this problem's among them."""

    labels: tuple[str, ...]
    kernel: str
    added_bytes: dict[int, int]

    @property
    def name(self) -> str:
        """'native', 'v1, v2, v3', '5 versions': what fits beside the plot."""
        listed = ", ".join(map(short, self.labels))
        return shortened(listed if len(self.labels) == 1 or len(listed) <= _LONGEST_NAME else f"{len(self.labels)} versions")


def chart(measurement: Measurement, palette: Palette, others: Sequence[Measurement] = ()) -> Chart | Absent:
    """Modelled curves through this problem's sizes; a filled point for every launch whose peak was read.

    others: the other measurements of the job, whose launches are drawn too.
    """
    memory = measurement.memory
    if memory is None:
        return Absent(_TITLES[measurement.request.direction], "memory was not observed.")
    series = _alike([one for one in map(_series, (measurement, *others)) if one is not None])
    this = f"this problem: S and P {words.bytes_(memory.scores_bytes)}, outputs {words.bytes_(memory.outputs_bytes)}"
    measured = memory.torch_added_bytes if memory.provenance == "measured" else None
    told = (*numbers(memory, measurement.request.direction), *_quantised(measurement))
    return Chart(
        _TITLES[measurement.request.direction],
        _figure(measurement, series, palette),
        "measured" if any(len(one.added_bytes) > 1 for one in series) else "modelled",
        _caption(measurement, series),
        f"Memory over sequence length, {this}" + (f"; measured {words.bytes_(measured)}" if measured is not None else ""),
        (*({"what": one.name, "size": one.value, "how": one.how} for one in told), *_curve_rows(series, others)),
        {one.name: one.sentence for one in told},
    )


_NUMBERS = (
    ("torch, allocated at the peak", "torch_peak_allocated_bytes",
     "All tensors alive at the peak of a launch, inputs and other versions' tensors too, as torch's allocator counts them."),
    ("torch, reserved at the peak", "torch_peak_reserved_bytes",
     "What torch's allocator held of the GPU then: it keeps freed blocks for later, so never less than is allocated."),
    ("NVML, whole GPU, peak", "nvml_used_peak_bytes",
     "What was in use on the whole GPU then, by NVML: every process, CUDA's contexts and the kernels' code too."),
    ("NVML, whole GPU, before", "nvml_used_before_bytes", "What was in use on the whole GPU just before the launch."),
    ("NVML, whole GPU, after", "nvml_used_after_bytes", "The same afterwards, torch's cache given back."),
    ("inputs", "inputs_bytes", "Q, K and V by their shapes; they are there before the call."),
    ("torch, added by the call", "torch_added_bytes",
     "Attention's own: torch's peak during the call, less what was allocated before it."),
    ("of it, output", "out_bytes", "What the returned output holds."),
    ("of it, log-sum-exp", "lse_bytes", "What the returned log-sum-exp holds; 0 where none is returned."),
    ("of it, workspace", "workspace_bytes", "The rest: allocated in the call, and given back before it ends."),
    ("kept after the call", "kept_bytes", "What stays allocated when the output is gone, for the next call."),
    ("outputs", "outputs_bytes", "Output and log-sum-exp by their shapes."),
    ("S and P written out", "scores_bytes", "What scores and weights would take by their shapes; only native writes them out."),
)  # fmt: skip
_BY_SHAPE = ("inputs_bytes", "outputs_bytes", "scores_bytes")


def numbers(memory: Memory, direction: Direction = "forward") -> tuple[Number, ...]:
    """Three totals (torch allocated, torch reserved, NVML used), then what the call itself took, against S and P."""
    if direction == "forward":
        return tuple(_number(memory, name, field, sentence) for name, field, sentence in _NUMBERS)
    said = {"outputs_bytes": _OUTPUTS_BY_SHAPE[direction], "scores_bytes": _SCORES_BY_SHAPE}
    found = [_number(memory, name, field, said.get(field, sentence)) for name, field, sentence in _NUMBERS]
    place = [field for _, field, _ in _NUMBERS].index("workspace_bytes")
    gradients = _number(memory, "of it, gradients", "gradients_bytes", "What the returned dq, dk and dv hold.")
    return (*found[:place], gradients, *found[place:])


def _quantised(measurement: Measurement) -> Iterator[Number]:
    """With FP8 there is more beside the inputs, which the call finds ready."""
    if measurement.request.precision.fp8:
        size = words.bytes_(estimate(measurement.request, measurement.tiles).quantised_bytes)
        yield Number("FP8 operands", size, "Q, K and V in e4m3 with their scales, which the pre-pass makes.", "modelled")


def _number(memory: Memory, name: str, field: str, sentence: str) -> Number:
    value = getattr(memory, field)
    if value is None:
        return Number(name, "–", sentence, memory.missing.get(field, _TOO_OLD))
    return Number(name, words.bytes_(value), sentence, "modelled" if field in _BY_SHAPE else memory.provenance)


def _curve_rows(series: Sequence[Series], others: Sequence[Measurement]) -> list[dict[str, str]]:
    """Each launch of the curves; several versions' by name."""
    return [
        {
            "what": f"added at {length:,} tokens" + (f", {one.name}" if others else ""),
            "size": words.bytes_(size),
            "how": "measured",
        }
        for one in series
        for length, size in sorted(one.added_bytes.items())
        if len(one.added_bytes) > 1
    ]


def _series(measurement: Measurement) -> Series | None:
    """A measurement's own launch and those of its curve; None when nothing was measured."""
    memory = measurement.memory
    if memory is None or memory.provenance != "measured":
        return None
    points = memory.curve.points if memory.curve is not None else ()
    found = {max(point.seq_len_q, point.seq_len_kv): point.added_bytes for point in points}
    if memory.torch_added_bytes is not None:
        found[_length(measurement)] = memory.torch_added_bytes
    return Series((measurement.label,), measurement.request.kernel, found) if found else None


def _length(measurement: Measurement) -> int:
    return max(measurement.request.problem.seq_len_q, measurement.request.problem.seq_len_kv)


def _alike(found: list[Series]) -> list[Series]:
    """Versions that added the same, within 5 %, wherever both were launched, as one series under the first one's colour."""
    merged: list[Series] = []
    for one in found:
        for place, other in enumerate(merged):
            shared = one.added_bytes.keys() & other.added_bytes.keys()
            if shared and all(abs(one.added_bytes[at] / max(1, other.added_bytes[at]) - 1) <= _ALIKE for at in shared):
                merged[place] = Series(other.labels + one.labels, other.kernel, one.added_bytes | other.added_bytes)
                break
        else:
            merged.append(one)
    return merged


def _figure(measurement: Measurement, series: list[Series], palette: Palette) -> go.Figure:
    memory, here = measurement.memory, _length(measurement)
    capacity = measurement.environment.device.memory_bytes
    fig = figure(palette, HEIGHT, left=LEFT, right=RIGHT, top=TOP, bottom=BOTTOM)
    lengths, scores, outputs = _curves(memory, here, [length for one in series for length in one.added_bytes])
    low = 10 ** math.floor(math.log10(max(outputs[0], 1)) - 0.2)
    high = 10 ** math.ceil(math.log10(max(scores[-1], outputs[-1], capacity or 1)) + 0.2)
    for sizes, color in ((scores, palette.native), (outputs, palette.progress)):
        fig.add_scatter(x=lengths, y=sizes, mode="lines", line={"color": color, "width": 2.2, "dash": "dash"}, hoverinfo="skip")
    vertical(fig, here, palette.here)
    _launches(fig, series, measurement.label, here, palette)
    _points(fig, measurement, _native_bytes(series, here), here, palette)
    ends = (outputs[-1], _OUTPUTS[measurement.request.direction])
    _end_labels(fig, scores[-1], ends, capacity, series, (low, high), palette)
    _axes(fig, lengths, here, (low, high))
    return fig


def _curves(memory: Memory, here: int, measured: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Doublings around this problem and past every launch, both lengths scaled together: S and P grow squared, outputs in
    proportion."""
    first = here / 2 ** max(3, math.ceil(math.log2(here / min([*measured, here]))))
    last = max(2 * max([*measured, here]), 8 * here)
    lengths = first * 2.0 ** np.arange(1 + max(7, math.ceil(math.log2(last / first))))
    ratio = lengths / here
    return lengths, memory.scores_bytes * ratio**2, memory.outputs_bytes * ratio


def _launches(fig: go.Figure, series: list[Series], focus: str, here: int, palette: Palette) -> None:
    """A small filled point for each launch but this chart's own; native's name at its longest, where its line goes on."""
    for one in series:
        at = sorted(length for length in one.added_bytes if length != here or focus not in one.labels)
        if not at:
            continue
        color = _color(one, palette)
        fig.add_scatter(
            x=at, y=[one.added_bytes[length] for length in at], mode="markers", marker={"size": 6, "color": color},
            customdata=[words.bytes_(one.added_bytes[length]) for length in at],
            hovertemplate=f"{words.plotly(one.name)}, %{{x:,}} tokens: %{{customdata}}<extra></extra>",
        )  # fmt: skip
        if one.kernel == "native":
            place = {"xanchor": "left", "yanchor": "top", "xshift": 6, "yshift": -4}
            note(fig, words.plotly(one.name), math.log10(at[-1]), math.log10(max(1, one.added_bytes[at[-1]])), color, **place)


def _color(one: Series, palette: Palette) -> str:
    """As text it must be legible, which the paler versions' colours are not."""
    return palette.text if one.kernel == "native" else palette.progress


def _native_bytes(series: list[Series], here: int) -> int | None:
    """What native's launch added at this problem's length, where one of the job's was read."""
    return next((one.added_bytes[here] for one in series if one.kernel == "native" and here in one.added_bytes), None)


def _points(fig: go.Figure, measurement: Measurement, native_bytes: int | None, here: int, palette: Palette) -> None:
    """Hollow: modelled. Filled: measured, in place of the modelled point of what ran; the larger labelled at its left."""
    memory = measurement.memory
    measured = memory.torch_added_bytes if memory.provenance == "measured" else None
    scores = (memory.scores_bytes, palette.text, palette.background)
    outputs = (memory.outputs_bytes, palette.progress, palette.background)
    is_native = measurement.request.kernel == "native"
    if native_bytes := measured if is_native else native_bytes:
        scores = (native_bytes, palette.text, palette.text)
    if measured and not is_native:
        outputs = (measured, palette.progress, palette.progress)
    upper = max(scores[0], outputs[0])
    for size, line, fill in (scores, outputs):
        fig.add_scatter(
            x=[here],
            y=[size],
            mode="markers",
            marker={"size": 9, "color": fill, "line": {"color": line, "width": 2}},
            hovertemplate=words.bytes_(size) + "<extra></extra>",
        )
        beside = {"xanchor": "right", "yanchor": "bottom", "xshift": -7, "yshift": 1}
        if size != upper:
            beside = {"xanchor": "left", "yanchor": "top", "xshift": 7, "yshift": -1}
        place = (math.log10(here), math.log10(max(size, 1)))
        note(fig, words.bytes_(size), *place, line, size=13, bold=True, **beside)


def _end_labels(
    fig: go.Figure, scores: float, outputs: tuple[float, str], capacity: int | None, series: list[Series],
    limits: tuple[float, float], palette: Palette,
) -> None:  # fmt: skip
    """Names at the ends of the lines and beside the longest launches, moved apart where they would touch."""
    lines = [(scores, "S and P, N²", palette.muted), (*outputs, palette.progress)]
    if capacity:
        fig.add_hline(y=capacity, line={"color": palette.work_lost, "width": 1.2, "dash": "dot"})
        lines.append((capacity, f"GPU {words.bytes_(capacity)}", palette.work_lost))
    several = [one for one in series if one.kernel != "native" and len(one.added_bytes) > 1]
    lines += [(one.added_bytes[max(one.added_bytes)], words.plotly(one.name), palette.text) for one in several]
    low, high = (math.log10(limit) for limit in limits)
    plot_px = HEIGHT - TOP - BOTTOM
    wanted = [(math.log10(max(size, 1)) - low) / (high - low) * plot_px for size, _, _ in lines]
    for (size, text, color), wish, place in zip(lines, wanted, spread(wanted, _LABEL_GAP_PX, 4, plot_px), strict=True):
        note(fig, text, 1, math.log10(max(size, 1)), color, xref="paper", xshift=6, yshift=place - wish)


def _axes(fig: go.Figure, lengths: np.ndarray, here: int, limits: tuple[float, float]) -> None:
    """Ticks at powers of two, four of them at most, this problem's length among them when it is one."""
    every = max(1, math.ceil(len(lengths) / 4))
    offset = int(np.argmin(abs(lengths - here))) % every
    shown = [round(length) for length in lengths[offset::every]]
    fig.update_xaxes(
        type="log",
        range=[math.log10(lengths[0] / 1.2), math.log10(lengths[-1])],
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


def _caption(measurement: Measurement, series: list[Series]) -> str:
    if not any(measurement.label in one.labels for one in series):
        hollow = "Dashed: sizes of the tensors, modelled. Hollow: this problem; its allocation was not measured."
        return hollow + (" Filled: what torch allocated in other versions' launches." if series else "")
    curve = measurement.memory.curve
    if curve is None or not curve.points:
        return "Sizes of the tensors on log scales, dashed: modelled. Filled: what torch allocated for this run."
    longest = max(curve.points[-1].seq_len_q, curve.points[-1].seq_len_kv)
    return (
        "Dashed: modelled. Filled: torch's peak in a launch at that length, less its inputs; "
        f"{measurement.label} to {words.tokens(longest)}: {curve.ended_by.rstrip('.')}."
    )
