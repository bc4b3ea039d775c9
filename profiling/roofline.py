"""The roofline: what a device can do at most, where a run stands below it, and what its record shows of the difference. Pure.

Williams, Waterman, Patterson 2009 (doi 10.1145/1498765.1498785): a run of I operations a byte cannot be faster than I times
the memory's bandwidth, nor than the matrix units. Rates are measured where this device was measured, else the data sheet's;
bytes are counted (profiling.tile_traffic), not measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kernels.architecture import architecture
from kernels.block_order import grid_of
from kernels.registry import VERSIONS
from profiling.records import DeviceFacts, Flag, Measurement
from profiling.schedule_facts import facts_of, is_distorted
from profiling.tile_traffic import Traffic, traffic
from profiling.timetable import Timetable
from profiling.words import bytes_, percent, three_digits

Source = Literal["measured", "data sheet"]
Bound = Literal["matrix units", "memory"]

_WORTH_TELLING = 0.01
_NEARLY_ALL = 0.97
_FEW_WARPS = 8
_HELD_DOWN = ("power cap", "thermal", "slowed", "throttled")  # the last one in older records
_SLOWING_FLAGS = ("low clock", "launch-bound", "contended", "busy")
_HARDLY_MORE = 1.05


@dataclass(frozen=True)
class Rate:
    """A ceiling: per_s operations or bytes a second, and how it is known."""

    per_s: float
    source: Source


@dataclass(frozen=True)
class Roof:
    """Both ceilings of a device for one number format."""

    operations: Rate
    memory: Rate

    def attainable_per_s(self, intensity: float) -> float:
        """Operations a second at `intensity` operations a byte."""
        return min(self.operations.per_s, intensity * self.memory.per_s)

    @property
    def ridge(self) -> float:
        """The operations a byte from which on the matrix units are the limit."""
        return self.operations.per_s / self.memory.per_s


@dataclass(frozen=True)
class Standing:
    """A run on the roofline. intensity: operations a byte of the least that goes through memory; asked_intensity: of every
    tile load and store, None where tiles are not known. share: of what the roof allows at `intensity`."""

    label: str
    kernel: str
    fp8: bool
    operations_per_s: float
    traffic: Traffic
    intensity: float
    asked_intensity: float | None
    roof: Roof
    attainable_per_s: float
    bound: Bound

    @property
    def share(self) -> float:
        """Achieved ÷ attainable."""
        return self.operations_per_s / self.attainable_per_s


@dataclass(frozen=True)
class Cause:
    """Where a part of the difference goes. kept: the share of the time or work that is left when it is taken off, None
    where the record names it without a number."""

    sentence: str
    kept: float | None = None


def roof(device: DeviceFacts, fp8: bool, source: Source | None = None) -> Roof | None:
    """The ceilings of a device, measured ones before the data sheet's; only those of one source, if it is given.

    None where one of the two is not known.
    """
    operations = {
        "measured": device.measured_fp8_tflops if fp8 else device.measured_bf16_tflops,
        "data sheet": device.peak_fp8_tflops if fp8 else device.peak_bf16_tflops,
    }
    memory = {"measured": device.measured_bandwidth_bytes_per_s, "data sheet": device.peak_bandwidth_bytes_per_s}
    of_both = [_first({name: rate for name, rate in rates.items() if source in (None, name)}) for rates in (operations, memory)]
    if None in of_both:
        return None
    return Roof(Rate(of_both[0].per_s * 1e12, of_both[0].source), of_both[1])


def _first(rates: dict[Source, float | None]) -> Rate | None:
    return next((Rate(rate, name) for name, rate in rates.items() if rate is not None), None)


def standing(measurement: Measurement) -> Standing | None:
    """Where a run stands; None without a GPU time, without ceilings, or for a version that is not known here."""
    found = counted(measurement)
    if measurement.tflops is None or found is None or measurement.request.direction != "forward":
        return None
    request, device = measurement.request, measurement.environment.device
    limits = roof(device, request.precision.fp8)
    if limits is None:
        return None
    flops, intensity = request.problem.flops, request.problem.flops / found.hbm_bytes
    return Standing(
        label=measurement.label, kernel=request.kernel, fp8=request.precision.fp8,
        operations_per_s=measurement.tflops * 1e12, traffic=found, intensity=intensity,
        asked_intensity=None if found.asked_bytes is None else flops / found.asked_bytes,
        roof=limits, attainable_per_s=limits.attainable_per_s(intensity),
        bound="memory" if intensity < limits.ridge else "matrix units",
    )  # fmt: skip


def counted(measurement: Measurement) -> Traffic | None:
    """The bytes of a run, None for a version that is not known here, or of ours without tiles."""
    request, device = measurement.request, measurement.environment.device
    entry = VERSIONS.get(request.kernel)
    if entry is None or (entry.has_tiles and measurement.tiles is None):
        return None
    has_tma = device.capability is not None and device.capability >= 80 and architecture(device.capability).tma
    return traffic(request.kernel, request.problem, measurement.tiles, request.precision, device.l2_bytes, has_tma)


# In words


def headline(found: Standing) -> str:
    """'62.5 % of what this GPU can do: 494 of the 790 TFLOP/s that a large matrix product reached on it'."""
    achieved, can = (three_digits(rate / 1e12) for rate in (found.operations_per_s, found.attainable_per_s))
    return f"{percent(found.share)} of what this GPU can do: {achieved} of the {can} TFLOP/s {_whose(found)}"


def _whose(found: Standing) -> str:
    if found.bound == "memory":
        rate = found.roof.memory
        how = "as a copy reached on it" if rate.source == "measured" else "by its data sheet"
        return f"that its memory allows ({three_digits(rate.per_s / 1e12)} TB/s, {how})"
    product = "FP8 product" if found.fp8 else "matrix product"
    return f"that a large {product} reached on it" if found.roof.operations.source == "measured" else "of its data sheet"


def explained(measurement: Measurement) -> str | None:
    """The gap in words: the headline, and where the rest goes as far as the record shows it; None without a standing."""
    found = standing(measurement)
    if found is None:
        return None
    if found.share > 1:
        return _above(measurement, found)
    told = causes(measurement, found)
    left = found.share
    for cause in told:
        left /= cause.kept or 1.0
    sentences = [headline(found), *_why_low(found)]
    if told:
        sentences.append(f"The rest goes to: {'; '.join(cause.sentence for cause in told)}")
    if left < _NEARLY_ALL:
        sentences.append("Where what is left goes, the record does not show" if told else
                         "The record does not show where the rest goes")  # fmt: skip
    return ". ".join(sentences) + "."


def _above(measurement: Measurement, found: Standing) -> str:
    """A measured product is limited by power, and by its own kernel: other inputs or a better kernel can pass it."""
    achieved, can = (three_digits(rate / 1e12) for rate in (found.operations_per_s, found.attainable_per_s))
    said = f"{achieved} TFLOP/s, more than the {can} TFLOP/s {_whose(found)}: for this run that is no ceiling"
    sheet = roof(measurement.environment.device, found.fp8, "data sheet")
    if sheet is None:
        return f"{said}."
    attainable = sheet.attainable_per_s(found.intensity)
    return (
        f"{said}. By the data sheet it is {percent(found.operations_per_s / attainable)} of {three_digits(attainable / 1e12)}."
    )


def _why_low(found: Standing) -> Iterator[str]:
    """Why memory is the limit of a version that would not need so much of it."""
    moved, once = found.traffic.hbm_bytes, found.traffic.once_bytes
    if found.bound == "memory" and moved > once * _HARDLY_MORE:
        yield (
            f"At least {bytes_(moved)} go through memory, {three_digits(moved / once)} times its operands and results: it "
            "keeps more between its steps than the L2 cache holds"
        )


def causes(measurement: Measurement, found: Standing) -> tuple[Cause, ...]:
    """What a record shows of the difference, the largest part first, then what has no number."""
    known = [*_lost_products(measurement, found), *_idle_sms(measurement)]
    known.sort(key=lambda cause: cause.kept if cause.kept is not None else 1.0)
    return (*known, *_compiled(measurement), *_flagged(measurement.flags))


def _lost_products(measurement: Measurement, found: Standing) -> Iterator[Cause]:
    """Masked keys and padded elements are multiplied, but not counted as work."""
    made = found.traffic.multiplied_flops
    if made is None or found.bound == "memory":
        return
    kept = measurement.request.problem.flops / made
    if 1 - kept >= _WORTH_TELLING:
        yield Cause(f"{percent(1 - kept)} of its products, which are on masked keys or padding (counted from its tiles)", kept)


def _idle_sms(measurement: Measurement) -> Iterator[Cause]:
    """By the stamped schedule; without one only SMs that a grid smaller than the device cannot reach."""
    schedule, sm_count = measurement.schedule, measurement.environment.device.sm_count
    if schedule is not None and sm_count is not None and not is_distorted(schedule):
        facts = facts_of(Timetable.of(schedule, sm_count), schedule.programs_per_sm)
        parts = {"the tail": facts.idle.tail, "SMs never used": facts.idle.unused, "the start": facts.idle.start}
        worst = max(parts, key=parts.get)
        if 1 - facts.busy_share >= _WORTH_TELLING:
            of_these = f", most of it {worst}" if parts[worst] > (1 - facts.busy_share) / 2 else ""
            yield Cause(f"{percent(1 - facts.busy_share)} of the SMs' time without a program{of_these} (stamped)",
                        facts.busy_share)  # fmt: skip
        return
    programs = _programs(measurement)
    if sm_count is not None and programs is not None and programs < sm_count:
        yield Cause(f"{sm_count - programs} of {sm_count} SMs, which its {programs} programs leave idle", programs / sm_count)


def _programs(measurement: Measurement) -> int | None:
    request, tiles = measurement.request, measurement.tiles
    if tiles is None or not VERSIONS[request.kernel].has_tiles:
        return None
    heads = request.problem.batch * request.problem.num_heads
    return heads if tiles.loop_order == "key" else grid_of(request.problem, tiles)[0]


def _compiled(measurement: Measurement) -> Iterator[Cause]:
    """What ptxas says of the kernel for this very device."""
    for report in measurement.compiled:
        if report.capability != measurement.environment.device.capability:
            continue
        if report.spill_bytes:
            yield Cause(f"{bytes_(report.spill_bytes)} a thread that do not fit in its registers (compiled)")
        if report.programs_per_sm and report.warps_per_sm < _FEW_WARPS:
            yield Cause(
                f"only {report.warps_per_sm} warps fit on an SM, by its {report.limited_by}, so that few hide another's "
                "waits (compiled)"
            )


def _flagged(flags: tuple[Flag, ...]) -> Iterator[Cause]:
    """What disturbed it, as its flags say. The ceiling was measured under the same limits of power and heat."""
    for flag in flags:
        if flag.name in _HELD_DOWN:
            yield Cause(f"clocks held down while it was timed ({flag.short}), as they may have been for the ceiling")
        elif flag.name in _SLOWING_FLAGS:
            yield Cause(f"what disturbed it ({flag.short})")
