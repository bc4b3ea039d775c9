"""The chips and the numbers at the top of a result, as words with how each was taken. Pure: no Streamlit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Literal

from app import flag_words
from app.figures.versions import names_of
from app.how_taken import figure
from app.metric import Chip, Figure, Metric
from profiling import plausibility, summary, words
from profiling.backward_record import GradientAccuracy
from profiling.records import Flag, Latency, Measurement, Memory
from profiling.stop_rule import STOP_WORDS

Origin = Literal["here", "imported", "gallery", "file", "unsaved"]
"""Where measurements come from: this store, the store by import, the gallery, a file that was not kept, this server's queue"""
_FROM = {"here": "saved here", "imported": "imported", "gallery": "recording", "file": "file"}


def chips(measurement: Measurement, origin: Origin) -> list[Chip]:
    """The device, or where the numbers come from; then what the worker noted, a file's own word on its peak judged again."""
    return [*_start(measurement, origin), *map(_chip, _flags(measurement, origin))]


def chips_above(measurement: Measurement, origin: Origin) -> list[Chip]:
    """Those of them that stand above the numbers, as they take from none of them."""
    above = (flag for flag in _flags(measurement, origin) if flag_words.about(flag) is None)
    return [*_start(measurement, origin), *map(_chip, above)]


def _start(measurement: Measurement, origin: Origin) -> list[Chip]:
    device = measurement.environment.device
    return [("info", device.short_name, device.name)] if origin == "unsaved" else origin_chips(measurement, origin)


def _flags(measurement: Measurement, origin: Origin) -> Sequence[Flag]:
    return measurement.flags if origin in ("unsaved", "here") else plausibility.flags_to_show(measurement)


def _chip(flag: Flag) -> Chip:
    return flag.severity, flag.short, flag_words.sentence(flag)


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
    """A recording's throughputs in one line: 'native 39.6 · v1 166 · v2 511 TFLOP/s'; tiles tell apart what has one label."""
    return summary.speeds(measurements, names_of(measurements)) or "no GPU time was taken"


def metrics(measurement: Measurement, origin: Origin = "unsaved") -> list[Metric]:
    """Output, time cold and warm, throughput, memory and energy, as asked for, each with the flags that take from it."""
    found = {
        "output": _output(measurement),
        "gradients": _gradients(measurement),
        "time": _time(measurement),
        "warm": _warm(measurement),
        "throughput": _throughput(measurement),
        "memory": _memory(measurement),
        "energy": _energy(measurement),
    }
    flags = _flags(measurement, origin)
    return [
        metric._replace(flags=tuple(_chip(flag) for flag in flags if flag_words.about(flag) == name))
        for name, metric in found.items()
        if metric is not None
    ]


class _Figures:
    """The numbers of one metric, collected while its words are written."""

    def __init__(self, measurement: Measurement, provenance: str) -> None:
        self._measurement, self._provenance = measurement, provenance
        self._found: list[Figure] = []

    def __call__(self, name: str, text: str, provenance: str = "") -> str:
        """A number's own text, its kind noted."""
        self._found.append(figure(name, text, self._measurement, provenance or self._provenance))
        return text

    def all(self) -> tuple[Figure, ...]:
        """In the order in which they were written."""
        return tuple(self._found)


def _output(measurement: Measurement) -> Metric:
    accuracy = measurement.accuracy
    if accuracy is None:
        return Metric("Output", "–", "not checked")
    shown = _Figures(measurement, accuracy.provenance)
    lines = []
    if accuracy.relative_error is None:
        lines.append(f"n/a: {accuracy.missing.get('relative_error', 'values are not finite')}")
        if accuracy.non_finite:
            lines.append(f"{shown('non_finite', f'{accuracy.non_finite:,}')} values not finite")
    else:
        found = shown("relative_error", words.error(accuracy.relative_error))
        allowed = shown("allowed_error", words.error(accuracy.allowed_relative_error), "modelled")
        lines.append(f"rel. error {found} · allowed {allowed}")
        if accuracy.max_abs_error is not None:
            lines.append(f"largest absolute error {shown('largest_error', words.error(accuracy.max_abs_error))}")
        if accuracy.end_to_end_relative_error is not None:
            whole = shown("end_to_end_error", words.error(accuracy.end_to_end_relative_error))
            lines.append(f"with the inputs' own rounding to FP8 {whole}")
    if accuracy.rows_checked != accuracy.rows_total:
        rows = shown("rows_checked", f"{accuracy.rows_checked:,} of {accuracy.rows_total:,}")
        lines.append(f"{rows} rows checked")
    value, kind = ("correct", "correct") if accuracy.passed else ("WRONG", "refused")
    return Metric("Output", value, "\n".join(lines), kind, shown.all())


def _gradients(measurement: Measurement) -> Metric | None:
    """None of a forward."""
    if measurement.request.direction == "forward":
        return None
    gradients = measurement.gradients
    if gradients is None:
        return Metric("Gradients", "–", "of a wrong output there are none" if measurement.wrong else "not checked")
    shown = _Figures(measurement, gradients.provenance)
    name, worst = gradients.worst
    if worst.relative_error is None:
        lines = [f"n/a: {gradients.missing.get(name, 'values are not finite')}"]
    else:
        found = shown("gradient_error", words.error(worst.relative_error))
        allowed = shown("gradient_allowed", words.error(worst.allowed_relative_error), "modelled")
        lines = [f"{name} rel. error {found} · allowed {allowed}"]
        lines.append(" · ".join(_other_gradients(gradients, name, shown)))
    if gradients.heads_checked != gradients.heads_total:
        heads = shown("heads_checked", f"{gradients.heads_checked:,} of {gradients.heads_total:,}")
        lines.append(f"{heads} heads checked")
    value, kind = ("correct", "correct") if gradients.passed else ("WRONG", "refused")
    return Metric("Gradients", value, "\n".join(lines), kind, shown.all())


def _other_gradients(gradients: GradientAccuracy, name: str, shown: _Figures) -> Iterator[str]:
    for other, found in gradients.named:
        if other != name:
            error = None if found.relative_error is None else shown("gradient_error", words.error(found.relative_error))
            yield f"{other} {error or 'n/a'}{'' if found.passed else ' WRONG'}"


def _time(measurement: Measurement) -> Metric:
    latency = measurement.latency
    if latency is None:
        wrong = f"{'wrong gradients have' if measurement.wrong == 'gradients' else 'a wrong output has'} no speed"
        return Metric("Latency, L2 cold", "–", wrong if measurement.wrong else _why_no_time(measurement))
    shown = _Figures(measurement, latency.provenance)
    if latency.mode == "wall":
        value = shown("wall_time", words.milliseconds(latency.median_ms))
        lines = ["interpreter, not GPU time", *_split(measurement, shown)]
        return Metric("Wall time", value, "\n".join(lines), figures=shown.all())
    value = shown("median", words.milliseconds(latency.median_ms))
    lines = [_interval(latency, shown), *_split(measurement, shown)]
    if latency.stopped is not None:
        noise = "" if latency.noise is None else f"noise {shown('noise', words.percent(latency.noise))} · "
        lines.append(f"{noise}stopped: {shown('stopped', STOP_WORDS[latency.stopped])}")
    if latency.exposed:
        lines.append(f"{shown('exposed', f'{latency.exposed:,}')} launches held up by the host")
    if measurement.with_prepass is not None:
        both = shown("prepass_median", words.milliseconds(measurement.with_prepass.median_ms))
        lines.append(f"with the FP8 pre-pass {both}")
    return Metric("Latency, L2 cold", value, "\n".join(lines), figures=shown.all())


def _split(measurement: Measurement, shown: _Figures) -> Iterator[str]:
    """A step's parts: 'forward 0.51 ms · backward 1.33 ms'."""
    parts = measurement.parts
    if parts is None or parts.forward is None or parts.backward is None:
        return
    forward = shown("forward_median", words.milliseconds(parts.forward.median_ms))
    backward = shown("backward_median", words.milliseconds(parts.backward.median_ms))
    yield f"forward {forward} · backward {backward}"
    if parts.preprocess is not None:
        yield f"of it pre-process {shown('preprocess_median', words.milliseconds(parts.preprocess.median_ms))}"


def _why_no_time(measurement: Measurement) -> str:
    """A time that its own launches contradict is no number: its flags say what was seen."""
    denied = any(flag.severity == "bad" and flag_words.is_about_time(flag) for flag in measurement.flags)
    return "contradicted by what was seen" if denied else "not timed"


def _interval(latency: Latency, shown: _Figures, kind: str = "") -> str:
    """'min 1.99 ms · q3 2.23 ms · n = 255'."""
    fastest = shown(f"{kind}fastest", words.milliseconds(latency.quantile_ms(0.0)))
    third = shown(f"{kind}third_quartile", words.milliseconds(latency.quantile_ms(0.75)))
    count = shown(f"{kind}samples" if kind else "launches", f"{latency.n:,}")
    return f"min {fastest} · q3 {third} · n = {count}"


def _warm(measurement: Measurement) -> Metric | None:
    """None where nobody asked for it: older files know no such time."""
    label, latency = "Latency, L2 warm", measurement.warm
    if latency is None:
        reason = measurement.missing.get("warm")
        return None if reason is None else Metric(label, "n/a", f"n/a: {reason}")
    shown = _Figures(measurement, latency.provenance)
    value = shown("warm_median", words.milliseconds(latency.median_ms))
    return Metric(label, value, f"{_interval(latency, shown, 'warm_')}\nin a CUDA graph", figures=shown.all())


def _throughput(measurement: Measurement) -> Metric:
    device = measurement.environment.device
    if measurement.tflops is None:
        return Metric("Throughput", "–", "no GPU time was taken" if device.kind == "interpreter" else "nothing was timed")
    shown = _Figures(measurement, measurement.latency.provenance)
    value = shown("throughput", f"{words.three_digits(measurement.tflops)} TFLOP/s")
    if measurement.peak_tflops:
        percent = shown("share_of_peak", f"{100 * measurement.tflops / measurement.peak_tflops:.0f} %")
        share = f"{percent} of {shown('peak', f'{measurement.peak_tflops:,.0f}', 'modelled')}, the data sheet's dense rate"
    else:
        share = f"n/a: {device.missing.get('peak_bf16_tflops', 'no data sheet of this model is known')}"
    lines = [share]
    if measurement.tflops_with_prepass:
        both = shown("throughput_prepass", words.three_digits(measurement.tflops_with_prepass))
        lines.append(f"with the FP8 pre-pass {both} TFLOP/s")
    return Metric("Throughput", value, "\n".join(lines), figures=shown.all())


def _memory(measurement: Measurement) -> Metric:
    found = measurement.memory
    if found is None:
        return Metric("Memory it adds", "–", "not observed")
    shown = _Figures(measurement, found.provenance)
    if found.torch_added_bytes is None:
        value, lines = "n/a", [f"n/a: {found.missing.get('torch_added_bytes', 'not read')}"]
    else:
        value = shown("added_memory", words.bytes_(found.torch_added_bytes))
        lines = [*_parts(found, shown), *_peaks(found, shown)]
    scores = shown("scores_memory", words.bytes_(found.scores_bytes), "modelled")
    return Metric("Memory it adds", value, "\n".join([f"S and P alone: {scores} (modelled)", *lines]), figures=shown.all())


def _parts(found: Memory, shown: _Figures) -> list[str]:
    """What it consists of, where that was looked at."""
    if found.out_bytes is None or found.lse_bytes is None or found.workspace_bytes is None:
        return []
    outputs = shown("outputs_memory", words.bytes_(found.out_bytes + found.lse_bytes))
    if found.gradients_bytes is not None:
        gradients = shown("gradients_memory", words.bytes_(found.gradients_bytes))
        workspace = shown("workspace", words.bytes_(found.workspace_bytes))
        both = f"output and lse {outputs}, " if found.out_bytes else ""
        return [f"{both}gradients {gradients}, workspace {workspace}"]
    return [f"output and lse {outputs}, workspace {shown('workspace', words.bytes_(found.workspace_bytes))}"]


def _peaks(found: Memory, shown: _Figures) -> list[str]:
    """Three counts of the same moment, which differ in what they count."""
    lines = []
    if found.torch_peak_allocated_bytes is not None and found.torch_peak_reserved_bytes is not None:
        allocated = shown("torch_allocated", words.bytes_(found.torch_peak_allocated_bytes))
        reserved = shown("torch_reserved", words.bytes_(found.torch_peak_reserved_bytes))
        lines.append(f"peak: torch allocated {allocated}, reserved {reserved}")
    if found.nvml_used_peak_bytes is not None:
        lines.append(f"NVML used {shown('nvml_peak', words.bytes_(found.nvml_used_peak_bytes))}, whole GPU")
    else:
        lines.append(
            f"NVML used n/a: {next((found.missing[name] for name in found.missing if name.startswith('nvml')), 'not read')}"
        )
    return lines


def _energy(measurement: Measurement) -> Metric | None:
    """None where nobody asked for it."""
    energy, label = measurement.energy, "Energy per launch"
    if energy is None:
        reason = measurement.missing.get("energy")
        return None if reason is None else Metric(label, "n/a", f"n/a: {reason}")
    if energy.per_launch_mj is None:
        return Metric(label, "n/a", f"n/a: {energy.missing.get('energy_mj', 'the counter was not read')}")
    shown = _Figures(measurement, energy.provenance)
    value = shown("energy", words.millijoules(energy.per_launch_mj))
    power = shown("mean_power", f"{energy.mean_w:,.0f} W")
    window, count = shown("energy_window", f"{energy.window_s:.2f} s"), shown("energy_launches", f"{energy.launches:,}")
    lines = [f"{power} over {window}, {count} launches"]
    if measurement.tflop_per_joule is not None:
        lines.append(f"{shown('tflop_per_joule', words.three_digits(measurement.tflop_per_joule))} TFLOP/J")
    if energy.sampled_mj is not None:
        off = shown("sampled_energy", words.signed_percent(energy.sampled_mj / energy.energy_mj - 1))
        lines.append(f"sampled power differs by {off}")
    return Metric(label, value, "\n".join(lines), figures=shown.all())
