"""The chips and the four numbers at the top of a result, as words. Pure: no Streamlit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from profiling import plausibility, summary, words
from profiling.records import Measurement, Memory

Chip = tuple[str, str, str]
"""(severity, short, sentence)"""
Metric = tuple[str, str, str, str]
"""(label, value, notes by line, kind: 'correct', 'refused' or nothing)"""


Origin = Literal["here", "imported", "gallery", "file", "unsaved"]
"""Where measurements come from: this store, the store by import, the gallery, a file that was not kept, this server's queue"""
_FROM = {"here": "saved here", "imported": "imported", "gallery": "recording", "file": "file"}


def chips(measurement: Measurement, origin: Origin) -> list[Chip]:
    """The device, or where the numbers come from; then what the worker noted, a file's own word on its peak judged again."""
    device = measurement.environment.device
    start = [("info", device.short_name, device.name)] if origin == "unsaved" else origin_chips(measurement, origin)
    flags = measurement.flags if origin in ("unsaved", "here") else plausibility.flags_to_show(measurement)
    return start + [(flag.severity, flag.short, flag.sentence) for flag in flags]


def origin_chips(measurement: Measurement, origin: Origin = "gallery") -> list[Chip]:
    """Where and when a snapshot was made, and whether it was not here."""
    device = measurement.environment.device
    started = datetime.fromisoformat(measurement.started_at)
    name = device.short_name.split(" · ")[0]
    made = "Interpreted" if device.kind == "interpreter" else "Measured"
    first = (
        "info",
        f"{_FROM[origin]} · {name} · {started.day} {started:%b %Y}",
        f"{made} on {device.name} at {measurement.started_at}.",
    )
    return [first] if origin == "here" else [first, ("caution", "not measured here", "These numbers were read from a file.")]


def speeds(measurements: Sequence[Measurement]) -> str:
    """A recording's throughputs in one line: 'native 39.6 · v1 166 · v2 511 TFLOP/s'."""
    return summary.speeds(measurements) or "no GPU time was taken"


def metrics(measurement: Measurement) -> list[Metric]:
    """Output, time, throughput and memory, in this order."""
    return [_output(measurement), _time(measurement), _throughput(measurement), _memory(measurement)]


def _output(measurement: Measurement) -> Metric:
    accuracy = measurement.accuracy
    if accuracy is None:
        return "Output", "–", "not checked", ""
    if accuracy.relative_error is None:
        error = accuracy.missing.get("relative_error", f"{accuracy.non_finite:,} values are not finite")
    else:
        error = f"rel. error {words.error(accuracy.relative_error)} · allowed {words.error(accuracy.allowed_relative_error)}"
        if accuracy.max_abs_error is not None:
            error += f"\nlargest absolute error {words.error(accuracy.max_abs_error)}"
        if accuracy.end_to_end_relative_error is not None:
            error += f"\nwith the inputs' own rounding to FP8 {words.error(accuracy.end_to_end_relative_error)}"
    rows = (
        ""
        if accuracy.rows_checked == accuracy.rows_total
        else f"\n{accuracy.rows_checked:,} of {accuracy.rows_total:,} rows checked"
    )
    return ("Output", "correct", error + rows, "correct") if accuracy.passed else ("Output", "WRONG", error + rows, "refused")


def _time(measurement: Measurement) -> Metric:
    latency = measurement.latency
    if latency is None:
        wrong = measurement.accuracy is not None and not measurement.accuracy.passed
        return "Median latency", "–", "a wrong output has no speed" if wrong else "not timed", ""
    p20, p80 = (words.milliseconds(latency.quantile_ms(q)) for q in (0.2, 0.8))
    if latency.mode == "wall":
        return "Wall time", words.milliseconds(latency.median_ms), "interpreter, not GPU time", ""
    notes = f"p20 {p20} · p80 {p80} · n = {latency.n}"
    if measurement.with_prepass is not None:
        notes += f"\nwith the FP8 pre-pass {words.milliseconds(measurement.with_prepass.median_ms)}"
    return "Median latency", words.milliseconds(latency.median_ms), notes, ""


def _throughput(measurement: Measurement) -> Metric:
    if measurement.tflops is None:
        why = "no GPU time was taken" if measurement.environment.device.kind == "interpreter" else "nothing was timed"
        return "Throughput", "–", why, ""
    device = measurement.environment.device
    if measurement.peak_tflops:
        percent = f"{100 * measurement.tflops / measurement.peak_tflops:.0f} %"
        share = f"{percent} of {measurement.peak_tflops:,.0f}, the data sheet's dense rate"
    else:
        share = device.missing.get("peak_bf16_tflops", "this model's peak is not known")
    if measurement.tflops_with_prepass:
        share += f"\nwith the FP8 pre-pass {words.three_digits(measurement.tflops_with_prepass)}"
    return "Throughput", f"{words.three_digits(measurement.tflops)} TFLOP/s", share, ""


def _memory(measurement: Measurement) -> Metric:
    found = measurement.memory
    if found is None:
        return "Memory it adds", "–", "not observed", ""
    scores = f"S and P alone: {words.bytes_(found.scores_bytes)} (modelled)"
    if found.torch_added_bytes is None:
        return "Memory it adds", "–", f"{found.missing.get('torch_added_bytes', 'not read')}\n{scores}", ""
    return "Memory it adds", words.bytes_(found.torch_added_bytes), f"{scores}\n{_nvml(found)}", ""


def _nvml(found: Memory) -> str:
    readings = (found.nvml_used_before_bytes, found.nvml_used_peak_bytes, found.nvml_used_after_bytes)
    if None in readings:
        return f"NVML: {next((found.missing[name] for name in found.missing if name.startswith('nvml')), 'not read')}"
    before, peak, after = (words.bytes_(reading) for reading in readings)
    return f"NVML, whole GPU: {before} before, {peak} peak, {after} after"
