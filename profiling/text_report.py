"""Measurements as a table for a terminal: a column a version, units, and the word for how each number was come by. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from profiling.records import Measurement
from profiling.words import bytes_, three_digits

Cell = tuple[str, str] | None
"""A text and its provenance; None where there is nothing to say."""


def table(measurements: tuple[Measurement, ...]) -> str:
    """What was run, a row a quantity, and a sentence for each error and each flag that asks for caution."""
    first = measurements[0]
    problem, environment = first.request.problem, first.environment
    heads = f"{problem.num_heads} heads over {problem.num_kv_heads}"
    triton = environment.triton_version or "not installed"
    lines = [
        f"{problem.title} · batch {problem.batch} · {heads} · seed {first.request.seed}",
        f"{environment.device.short_name} · torch {environment.torch_version} · Triton {triton}",
        "",
        *_aligned([["", *(m.label for m in measurements), ""], *_rows(measurements)]),
    ]
    notes = [note for measurement in measurements for note in _notes(measurement)]
    return "\n".join(lines + ([""] if notes else []) + notes)


def _rows(measurements: tuple[Measurement, ...]) -> Iterable[list[str]]:
    for label, cell_of in _ROWS:
        cells = [cell_of(measurement) for measurement in measurements]
        words = dict.fromkeys(cell[1] for cell in cells if cell is not None and cell[1])
        if any(cells):
            yield [label, *("–" if cell is None else cell[0] for cell in cells), ", ".join(words)]


def _aligned(rows: list[list[str]]) -> list[str]:
    """The first and the last column to the left, the numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for first, *numbers, last in rows:
        padded = [text.rjust(width) for text, width in zip(numbers, widths[1:-1], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *padded, last]).rstrip())
    return lines


def _notes(measurement: Measurement) -> Iterable[str]:
    name = measurement.label
    if measurement.error is not None:
        yield f"{name}: {measurement.error.sentence}"
        if measurement.error.cure is not None:
            yield f"{name}: {measurement.error.cure.title} works."
    for flag in measurement.flags:
        if flag.severity in ("caution", "bad"):
            yield f"{name}: {flag.sentence or flag.short}"


def _tiles(m: Measurement) -> Cell:
    return (f"{m.tiles.block_m} × {m.tiles.block_n}", "BLOCK_M × BLOCK_N") if m.tiles else None


def _warps(m: Measurement) -> Cell:
    return (f"{m.tiles.num_warps}, {m.tiles.num_stages}", "") if m.tiles else None


def _output(m: Measurement) -> Cell:
    return ("right" if m.accuracy.passed else "WRONG", m.accuracy.provenance) if m.accuracy else None


def _relative_error(m: Measurement) -> Cell:
    if m.accuracy is None or m.accuracy.relative_error is None:
        return None
    return f"{m.accuracy.relative_error:.2e}", f"{m.accuracy.provenance}, against float64"


def _allowed_error(m: Measurement) -> Cell:
    return (f"{m.accuracy.allowed_relative_error:.2e}", "") if m.accuracy else None


def _median(m: Measurement) -> Cell:
    return (f"{three_digits(m.latency.median_ms)} ms", _latency_word(m)) if m.latency else None


def _spread(m: Measurement) -> Cell:
    if m.latency is None or m.latency.n == 1:
        return None
    return f"{three_digits(m.latency.quantile_ms(0.2))} to {three_digits(m.latency.quantile_ms(0.8))} ms", _latency_word(m)


def _samples(m: Measurement) -> Cell:
    return (str(m.latency.n), "") if m.latency else None


def _latency_word(m: Measurement) -> str:
    return "measured, L2 flushed" if m.latency.provenance == "measured" else "interpreted: no GPU time"


def _speed(m: Measurement) -> Cell:
    return (f"{three_digits(m.tflops)} TFLOP/s", "measured") if m.tflops is not None else None


def _share_of_peak(m: Measurement) -> Cell:
    if m.tflops is None or m.peak_tflops is None:
        return None
    return f"{three_digits(100 * m.tflops / m.peak_tflops)} %", "measured, of the data sheet's"


def _with_prepass(m: Measurement) -> Cell:
    return (f"{three_digits(m.with_prepass.median_ms)} ms", m.with_prepass.provenance) if m.with_prepass else None


def _memory(m: Measurement, name: str) -> Cell:
    value = getattr(m.memory, name) if m.memory else None
    if value is None:
        return None
    provenance = "modelled" if name == "scores_bytes" else m.memory.provenance
    return bytes_(value), provenance


def _compiled(m: Measurement, name: str, unit: str = "") -> Cell:
    return (f"{getattr(m.compiled[-1], name):,}{unit}", f"compiled for sm_{m.compiled[-1].capability}") if m.compiled else None


_ROWS: tuple[tuple[str, Callable[[Measurement], Cell]], ...] = (
    ("precision", lambda m: (m.request.precision.title, "")),
    ("tile", _tiles),
    ("warps, stages", _warps),
    ("output", _output),
    ("relative error", _relative_error),
    ("allowed", _allowed_error),
    ("median", _median),
    ("p20 to p80", _spread),
    ("launches timed", _samples),
    ("with pre-pass", _with_prepass),
    ("speed", _speed),
    ("share of peak", _share_of_peak),
    ("added by the call", lambda m: _memory(m, "torch_added_bytes")),
    ("torch peak", lambda m: _memory(m, "torch_peak_allocated_bytes")),
    ("torch reserved", lambda m: _memory(m, "torch_peak_reserved_bytes")),
    ("NVML peak", lambda m: _memory(m, "nvml_used_peak_bytes")),
    ("S and P written", lambda m: _memory(m, "scores_bytes")),
    ("registers", lambda m: _compiled(m, "registers_per_thread")),
    ("spills", lambda m: _compiled(m, "spill_bytes", " bytes")),
    ("shared memory", lambda m: _compiled(m, "shared_memory_bytes", " bytes")),
    ("programs an SM", lambda m: _compiled(m, "programs_per_sm")),
)
