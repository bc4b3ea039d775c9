"""What FP8 costs a query block: the error of its O in words, by row and tile, and by tile in its parts."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from app.figures.style import Absent, Chart, Palette, figure, note, spread
from kernels.problem import Precision
from profiling import words
from profiling.fp8_study import SCALE_BLOCK
from profiling.trace_record import Fp8Errors, TileTrace

PARTS: dict[str, str] = {"whole": "All of it", "qk": "Q and K", "pv": "P and V", "accumulation": "Accumulation"}
_FROM = {"qk": "rounding Q and K", "pv": "rounding P and V", "accumulation": "the kernel’s own sums"}
MAP_TITLE, LINES_TITLE = "Where the error of O comes in", "The error by tile, in its parts"
LIMIT_TITLE = "Values at ±448, where e4m3 ends:"
NOT_TAKEN = "this trace was stored without it; trace the block again to see it."
HEIGHT, LEFT, TOP, BOTTOM = 236, 40, 22, 38
_LABELS_RIGHT, _LABEL_GAP_PX, _MOST_MARKED = 104, 15, 64


def percent(share: float) -> str:
    """An error in words: '4.88 %'; what is below a thousandth, or far above 1, as '1.5e−7'."""
    return f"{words.three_digits(100 * share)} %" if 1e-3 <= share < 10 else words.error(share)


def headline(errors: Fp8Errors) -> str:
    """One sentence: how large the error is and what most of it comes from."""
    if not errors.whole.error:
        return "FP8 costs this block nothing: O is exact."
    ordered = sorted(_FROM, key=lambda name: -getattr(errors, name).share)
    first, second = ordered[:2]
    found = f"Of the {percent(errors.whole.error)} error of O, {_whole_percent(getattr(errors, first).share)} comes from "
    found += f"{_FROM[first]} and {_whole_percent(getattr(errors, second).share)} from {_FROM[second]}"
    if "accumulation" in (first, second):
        return f"{found}."
    return f"{found}; the kernel’s own sums add {percent(errors.accumulation.error)}{_float32_words(errors)}."


def _float32_words(errors: Fp8Errors) -> str:
    """Sums of a few hundred numbers in float32 err by some 2⁻²²; 2⁻¹⁸ leaves room for the longest."""
    return ", no more than float32 rounds off" if errors.accumulation.error < 2.0**-18 else ""


def _whole_percent(share: float) -> str:
    return f"{100 * share:.0f} %".replace("-0 %", "0 %").replace("-", "\u2212")


def numbers(errors: Fp8Errors, precision: Precision) -> list[tuple[str, str, str, str]]:
    """Four numbers with what they are made of, for look.metrics."""
    found = [
        (
            "Error of O",
            percent(errors.whole.error),
            f"beside float64 of the unrounded inputs\nrounding O to {precision.dtype} then adds {percent(errors.output_error)}",
            "",
        )
    ]
    for name in _FROM:
        part = getattr(errors, name)
        notes_ = f"{_whole_percent(part.share)} of the error" + (
            _float32_words(errors) if name == "accumulation" and part.error else ""
        )
        found.append((f"From {PARTS[name] if name != 'accumulation' else 'accumulation'}", percent(part.error), notes_, ""))
    return found


def limit_words(errors: Fp8Errors, precision: Precision) -> str:
    """How many values stand at ±448, and whether that is as it should be."""
    counts = {"Q": errors.q, "K": errors.k, "V": errors.v, "P": errors.p}
    stand = ", ".join(f"{name} {count.at_limit:,} of {count.values:,}" for name, count in counts.items())
    clipped = {name: count.clipped for name, count in counts.items() if count.clipped}
    if clipped:
        lost = " and ".join(f"{count:,} of {name}" for name, count in clipped.items())
        return f"{stand}. Clipped, as they were larger than what rounds to 448: {lost}."
    unit = "token" if precision.fp8_scale == "token" else f"block of {SCALE_BLOCK} tokens"
    there = f"a scale puts the largest value of a {unit} (Q, K) or of a channel (V) there; P is at most 2⁸."
    return f"{stand}. None was clipped: {there}"


# The error of a trace


def heat_map(trace: TileTrace, part: str, palette: Palette) -> Chart | Absent:
    """One part of the error, or the whole, by row of the query block and stored tile."""
    if trace.fp8_errors is None:
        return Absent(MAP_TITLE, NOT_TAKEN)
    found: np.ndarray = getattr(trace.fp8_errors, part).by_tile.numpy()
    largest = float(found.max(initial=0.0))
    tile, row = np.unravel_index(int(found.argmax()), found.shape) if found.size else (0, 0)
    where = f"largest {percent(largest)} in row {row} at tile {_places(trace)[tile]}" if found.size else "no tile was visited"
    return Chart(
        f"{MAP_TITLE}: {PARTS[part].lower() if part == 'whole' else PARTS[part]}",
        _map_figure(found.T, largest, trace, palette),
        trace.provenance,
        f"What each tile puts into each row of O: its root mean square, as a share of that of O. Strongest: {percent(largest)}."
        + _sampled(trace),
        f"Error by row and tile: {where}",
        tuple(
            {"tile": str(place), "mean over rows": percent(mean), "largest": percent(most), "in row": str(at)}
            for place, mean, most, at in zip(
                _places(trace), _over_rows(found), found.max(1), found.argmax(1), strict=True
            )
        ),
    )  # fmt: skip


def by_tile(trace: TileTrace, palette: Palette) -> Chart | Absent:
    """The three parts over the tiles, on a logarithmic scale."""
    errors = trace.fp8_errors
    if errors is None:
        return Absent(LINES_TITLE, NOT_TAKEN)
    lines = {name: _over_rows(getattr(errors, name).by_tile.numpy()) for name in _FROM}
    if not any((line > 0).any() for line in lines.values()):
        return Absent(LINES_TITLE, "no tile puts any error into O.")
    counts = {name: getattr(errors, name.lower()).by_tile.numpy() for name in "KVP"}
    return Chart(
        LINES_TITLE,
        _lines_figure(lines, trace, palette),
        trace.provenance,
        "Root mean square over the block’s rows, as a share of that of O. Each part is what one more rounding changes in exact "
        "sums; accumulation is what the kernel’s own sums change then. Contributions of tiles can cancel.",
        "; ".join(f"{PARTS[name]} {percent(float(getattr(errors, name).error))}" for name in _FROM),
        tuple(
            {"tile": str(place)}
            | {PARTS[name]: percent(float(line[at])) for name, line in lines.items()}
            | {f"{name} at ±448": f"{count[at]:,}" for name, count in counts.items()}
            for at, place in enumerate(_places(trace))
        ),
    )


def _over_rows(by_tile: np.ndarray) -> np.ndarray:
    """(T,): the root mean square over the rows, those past the last query included, as they are 0."""
    return np.sqrt((by_tile.astype(np.float64) ** 2).mean(1)) if by_tile.size else np.zeros(len(by_tile))


def _places(trace: TileTrace) -> list[int]:
    """The stored tiles, counted from 1 in the order visited."""
    return [int(block) + 1 for block in trace.key_blocks.numpy()]


def _sampled(trace: TileTrace) -> str:
    return f" One tile in {trace.every} is stored; it stands for those before it, too." if trace.every > 1 else ""


def _map_figure(rows: np.ndarray, largest: float, trace: TileTrace, palette: Palette) -> go.Figure:
    fig = figure(palette, HEIGHT, left=LEFT, right=2, top=TOP, bottom=BOTTOM)
    places = _places(trace)
    fig.add_heatmap(
        z=np.where(rows > 0, rows, np.nan), x=places, y=np.arange(len(rows)), colorscale=shades(palette), zmin=0.0,
        zmax=largest or 1.0, showscale=False, hoverongaps=False,
        hovertemplate="row %{y}, tile %{x}: %{z:.3~g} of O<extra></extra>",
    )  # fmt: skip
    fig.update_yaxes(autorange="reversed", showgrid=False, nticks=5, tickformat=",d")
    _tile_axis(fig, places, palette)
    note(fig, "row", 0, 1, palette.muted, xref="paper", yref="paper", xanchor="right", yanchor="bottom", xshift=-4, yshift=4)
    return fig


def shades(palette: Palette) -> list[list[object]]:
    """From nothing to the colour of what is lost; as opacity, it fits either theme's background."""
    red, green, blue = (int(palette.work_lost[at : at + 2], 16) for at in (1, 3, 5))
    return [[0.0, f"rgba({red},{green},{blue},0.06)"], [1.0, f"rgba({red},{green},{blue},1)"]]


def _tile_axis(fig: go.Figure, places: list[int], palette: Palette) -> None:
    fig.update_xaxes(showgrid=False, tickformat=",d", nticks=min(17, len(places) + 1))
    note(fig, "tile, in the order visited", 0.5, 0, palette.muted, xref="paper", yref="paper", xanchor="center", yshift=-30)


def _lines_figure(lines: dict[str, np.ndarray], trace: TileTrace, palette: Palette) -> go.Figure:
    fig = figure(palette, HEIGHT, left=LEFT, right=_LABELS_RIGHT, top=TOP, bottom=BOTTOM)
    places = _places(trace)
    largest = max(lines, key=lambda name: float((lines[name] ** 2).sum()))
    colors = {name: palette.work_lost if name == largest else palette.muted for name in lines}
    for name, line in lines.items():
        fig.add_scatter(
            x=places, y=np.where(line > 0, line, np.nan), mode="lines+markers" if len(places) <= _MOST_MARKED else "lines",
            line={"color": colors[name], "width": 2 if name == largest else 1.4}, marker={"size": 5, "color": colors[name]},
            hovertemplate=f"{PARTS[name]}, tile %{{x}}: %{{y:.3~g}} of O<extra></extra>",
        )  # fmt: skip
    positive = np.log10(np.concatenate([line[line > 0] for line in lines.values()]))
    low, high = int(np.floor(positive.min())), int(np.floor(positive.max())) + 1
    powers = range(low, high + 1, max(1, (high - low) // 5))
    ticks = {
        "tickvals": [10.0**power for power in powers],
        "ticktext": [f"10<sup>{power}</sup>".replace("-", "\u2212") for power in powers],
    }
    fig.update_yaxes(type="log", range=[low, high], **ticks)
    _tile_axis(fig, places, palette)
    _line_names(fig, {name: line for name, line in lines.items() if (line > 0).any()}, colors, (low, high), palette)
    return fig


def _line_names(
    fig: go.Figure, lines: dict[str, np.ndarray], colors: dict[str, str], span: tuple[int, int], palette: Palette
) -> None:
    """Each line's name at its end, as near to it as its neighbours let it be."""
    plot_px, (low, high) = HEIGHT - TOP - BOTTOM, span
    ends = [float(np.log10(line[line > 0][-1])) for line in lines.values()]
    wanted = [(end - low) / (high - low) * plot_px for end in ends]
    placed = spread(wanted, _LABEL_GAP_PX, 6, plot_px - 4)
    for name, end, wish, place in zip(lines, ends, wanted, placed, strict=True):
        color = colors[name]
        note(fig, PARTS[name], 1, end, color, 13, bold=color != palette.muted, xref="paper", xshift=8, yshift=place - wish)
