"""The physics gate on import: a file's times against the data sheet of the GPU it names, never the file's own peaks. Pure.

A file can say anything of itself, its peaks and its "below peak" flag too; the table of data sheets cannot be changed by it.
"""

from __future__ import annotations

from profiling.flags import peak_flag
from profiling.gpu_models import GpuModel, model_of
from profiling.memory import estimate
from profiling.record_types import Array
from profiling.records import Flag, Latency, Measurement, rate_of
from profiling.snapshot import AnySnapshot

_ANSWERED_HERE = {"below peak", "peak unknown"}
# Two editions of a data sheet differ by a rounding: 989 and 989.5.
_SAME = 0.02


def suspicions(measurement: Measurement) -> tuple[Flag, ...]:
    """What cannot be true of a measurement, or cannot be checked: a flag each; none for what was interpreted."""
    model = model_of(measurement.environment.device.name)
    judged = [
        _judged(measurement, latency, model)
        for latency in (measurement.latency, measurement.with_prepass, measurement.warm, _beside_stamps(measurement))
        if latency is not None and latency.provenance == "measured"
    ]
    flags = {flag.name: flag for flag in judged if flag.name != "below peak"}
    return tuple(flags.values()) + (_other_peaks(measurement, model) if judged else ())


def flags_to_show(measurement: Measurement) -> tuple[Flag, ...]:
    """An imported measurement's flags, with what the data sheets say of its peak; bad news of its own stays."""
    found = suspicions(measurement)
    known = _ANSWERED_HERE | {flag.name for flag in found}
    return tuple(flag for flag in measurement.flags if flag.name not in known) + found


def implausible(snapshot: AnySnapshot) -> tuple[str, ...]:
    """A sentence for each measurement that cannot be true."""
    return tuple(
        f"{one.label}: {flag.sentence}" for one in snapshot.measurements for flag in suspicions(one) if flag.severity == "bad"
    )


def _beside_stamps(measurement: Measurement) -> Latency | None:
    """The plain launches of a schedule."""
    if measurement.schedule is None:
        return None
    plain_ms = measurement.schedule.plain_ms
    in_turn = Array.of([0] * plain_ms.shape[0], "<i4")
    return Latency(provenance="measured", mode="cold", samples_ms=plain_ms, round_of=in_turn)


def _judged(measurement: Measurement, latency: Latency, model: GpuModel | None) -> Flag:
    request = measurement.request
    need = estimate(request, measurement.tiles, measurement.environment.device.capability)
    quantised = request.precision.fp8 and latency is not measurement.with_prepass  # the pre-pass reads what it quantises
    from_memory = need.quantised_bytes if quantised else need.inputs_bytes
    peak = None if model is None else rate_of(request, model.bf16_tflops, model.fp8_tflops)
    return peak_flag(
        request.flops,
        0 if latency.mode == "warm" else from_memory,  # with a warm cache memory need not be read at all
        latency,
        peak,
        None if model is None else model.bandwidth_gb_per_s * 1e9,
    )


def _other_peaks(measurement: Measurement, model: GpuModel | None) -> tuple[Flag, ...]:
    """A flag where the file's peak for this run is not the data sheet's: its share of the peak means nothing then."""
    said = measurement.peak_tflops
    if model is None or said is None:
        return ()
    true = rate_of(measurement.request, model.bf16_tflops, model.fp8_tflops)
    if true is not None and abs(said - true) <= _SAME * true:
        return ()
    sheet = "none" if true is None else f"{true:,.0f} TFLOP/s"
    sentence = f"The file gives this GPU a peak of {said:,.0f} TFLOP/s; its data sheet gives {sheet}."
    return (Flag(name="other peak", severity="caution", short="peak not the data sheet's", sentence=sentence),)
