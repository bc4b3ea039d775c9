"""The words beside a number: what was looked at, whether it was well, and how that is known. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from profiling.records import Flag, JobError, Latency
from profiling.schedule_facts import MOST_OVERHEAD_SHARE, is_distorted, overhead_share, residency
from profiling.schedule_record import Schedule
from profiling.timetable import Timetable

FEWEST_SAMPLES = 10
LOW_CLOCK = 0.75
_STEADY = 0.03
# Data sheets give the peak at the boost clock; a GPU may run a little above it (an H200 at 1,980 of 1,830 MHz).
_ABOVE_DATA_SHEET = 1.1
BUSY_PERCENT = 10
# The median and the quartiles of launches of which fewer are exposed are those of the others.
_MOST_EXPOSED = 0.05

# What holds clocks down, by the flag that says so; "throttled" had all of it in schema 3 and older.
_THERMAL = ("software thermal slowdown", "hardware thermal slowdown")
_POWER = ("power cap", "hardware power brake")
HELD_DOWN = ("power cap", "thermal", "slowed", "throttled")


def samples_flag(latency: Latency) -> Flag | None:
    """Too few launches to say how they scatter; None when there are enough."""
    if latency.n >= FEWEST_SAMPLES:
        return None
    return Flag(
        name="too few samples",
        severity="caution",
        short=f"{latency.n} samples",
        sentence=f"Only {latency.n} launches were timed: a median of fewer than {FEWEST_SAMPLES} can be far off.",
    )


def flush_flag() -> Flag:
    """How the launches were timed."""
    return Flag(
        name="cold",
        severity="ok",
        short="L2 flushed",
        sentence="The L2 cache was overwritten before each launch, so that every launch reads its inputs from memory.",
    )


def launch_flag(latency: Latency) -> Flag:
    """Whether the stream was held until the launches were queued, so that what the host takes to launch is in no sample."""
    if latency.exposed > _MOST_EXPOSED * latency.n:
        return Flag(
            name="launch-bound",
            severity="caution",
            short="launch-bound",
            sentence=f"The GPU began {latency.exposed:,} of {latency.n:,} launches before the host had queued them: what the "
            "host takes to launch is in their time.",
        )
    exposed = f", but for {latency.exposed:,} of them" if latency.exposed else ""
    return Flag(
        name="held",
        severity="ok",
        short="launch overhead hidden",
        sentence=f"The stream was held until the {latency.n:,} launches were queued{exposed}: the host's part is not in them.",
    )


def peak_flag(
    flops: float,
    input_bytes: int,
    latency: Latency,
    peak_tflops: float | None,
    peak_bytes_per_s: float | None,
    measured_tflops: float | None = None,
) -> Flag:
    """Whether the fastest launch is possible: no more operations and input bytes a second than the device can do.

    Without a data sheet, measured_tflops (the device's own large matrix product) stands in, with more room above it.
    """
    seconds = latency.quantile_ms(0.0) / 1000.0
    limit = peak_tflops * _ABOVE_DATA_SHEET if peak_tflops else (measured_tflops * 1.5 if measured_tflops else None)
    tflops, bytes_per_s = flops / seconds / 1e12, input_bytes / seconds
    if limit is not None and tflops > limit:
        return Flag(
            name="implausible",
            severity="bad",
            short="implausible",
            sentence=f"The fastest launch makes {tflops:,.0f} TFLOP/s, more than this device can do ({limit:,.0f}).",
        )
    if peak_bytes_per_s is not None and bytes_per_s > peak_bytes_per_s * _ABOVE_DATA_SHEET:
        return Flag(
            name="implausible",
            severity="bad",
            short="implausible",
            sentence=f"The fastest launch reads {bytes_per_s / 1e12:.2f} TB/s; memory gives {peak_bytes_per_s / 1e12:.2f}.",
        )
    if limit is None:
        return Flag(
            name="peak unknown",
            severity="info",
            short="peak unknown",
            sentence="The table of data sheets has no peak for this device, so that no launch can be called impossibly fast.",
        )
    return Flag(
        name="below peak",
        severity="ok",
        short="below physical peak",
        sentence=f"The fastest launch makes {tflops:,.0f} TFLOP/s of the {limit:,.0f} that no launch can pass.",
    )


def clock_flag(clocks_mhz: Sequence[float | None], default_mhz: float | None, reason: str) -> Flag:
    """How the SM clock stood right after each round; reason is NVML's when it could not be read."""
    known = [clock for clock in clocks_mhz if clock is not None]
    if not known:
        return Flag(
            name="clock unknown", severity="info", short="clock unknown", sentence=f"The SM clock was not read: {reason}."
        )
    low, high = min(known), max(known)
    span = f"{high:,.0f} MHz" if low == high else f"{low:,.0f} to {high:,.0f} MHz"
    if default_mhz is not None and low < LOW_CLOCK * default_mhz:
        return Flag(
            name="low clock",
            severity="caution",
            short=f"low clock {low:,.0f} MHz",
            sentence=f"After a round the SM clock stood at {low:,.0f} MHz, below 75 % of its default, {default_mhz:,.0f} MHz.",
        )
    if high - low > _STEADY * high:
        return Flag(
            name="clock moved",
            severity="info",
            short=f"clock {span}",
            sentence=f"After the rounds the SM clock stood at {span}: part of the scatter is the clock's.",
        )
    return Flag(
        name="clock steady",
        severity="ok",
        short=f"clock steady {high:,.0f} MHz",
        sentence=f"After each round the SM clock stood at {span}.",
    )


def throttle_flags(reasons: Sequence[tuple[str, ...] | None]) -> list[Flag]:
    """What held the clocks down after some round, a flag for power, for heat and for the rest; none where nothing did."""
    held = {reason for some in reasons if some for reason in some}
    groups = {
        "power cap": held & {*_POWER},
        "thermal": held & {*_THERMAL},
        "slowed": held - {*_POWER, *_THERMAL},
    }
    return [
        Flag(
            name=name,
            severity="caution",
            short=", ".join(sorted(found)),
            sentence=f"The clocks were held down while this was timed: {', '.join(sorted(found))}.",
        )
        for name, found in groups.items()
        if found
    ]


def busy_flag(others: int | None, utilisation_before: int | None, reason: str, interrupted: float | None = None) -> Flag:
    """Whether something else used the GPU; reason is NVML's when it does not show processes.

    Where it does, what was in use before this job was somebody's who is gone. interrupted: how many times longer than usual
    the pauses between launches were, where that tells of others.
    """
    said = _others(others, utilisation_before, interrupted)
    if said is not None:
        return Flag(name="contended", severity="caution", short=said[0], sentence=said[1])
    if others == 0:
        return Flag(name="alone", severity="ok", short="alone on the GPU", sentence="NVML lists no other process on this GPU.")
    before = "" if utilisation_before is None else f" It was {utilisation_before} % busy just before this job."
    return Flag(
        name="contention unknown",
        severity="info",
        short="other processes unknown",
        sentence=f"Whether other processes used the GPU is not known: {reason}.{before}",
    )


def _others(others: int | None, utilisation_before: int | None, interrupted: float | None) -> tuple[str, str] | None:
    if others:
        count = "1 other process" if others == 1 else f"{others} other processes"
        return "GPU shared", f"{count} held this GPU while it was timed."
    if others is None and utilisation_before is not None and utilisation_before >= BUSY_PERCENT:
        sentence = f"The GPU was in use {utilisation_before} % of the time just before this job; NVML does not show by whom."
        return "GPU was busy", sentence
    if interrupted is not None:
        return "GPU shared", (
            f"The pauses between launches, which hold the same work each time, were {interrupted:.1f} times longer on average "
            "than usual: something else ran on this GPU."
        )
    return None


def lock_flag(reason: str | None) -> Flag | None:
    """That another FlashScope process may have timed at the same time."""
    if reason is None:
        return None
    return Flag(
        name="not locked",
        severity="caution",
        short="GPU not locked",
        sentence=f"Another FlashScope process may have timed on this GPU at the same time: {reason}.",
    )


def interpreter_flag(is_triton: bool) -> Flag:
    """What a time on the interpreter's device is not; native runs there as PyTorch's own CPU code."""
    ran = "Triton's interpreter ran the kernel" if is_triton else "PyTorch ran"
    return Flag(
        name="interpreted",
        severity="info",
        short="CPU interpreter: not GPU time",
        sentence=f"{ran} on the CPU, once: the output is its own, the time says nothing of a GPU.",
    )


def other_backward_flag(kernel: str, owner: str) -> Flag:
    """Of which version a backward is, where it is not the forward's."""
    return Flag(
        name="other backward",
        severity="info",
        short=f"{owner}'s backward",
        sentence=f"The backward is that of {owner}: {kernel} has none of its own for this head_dim.",
    )


def no_schedule_flag(error: JobError) -> Flag:
    """Why nothing is known of who ran where and when."""
    return Flag(
        name="no schedule", severity="caution", short="no schedule", sentence=f"The schedule is not there: {error.sentence}"
    )


def schedule_flags(schedule: Schedule) -> list[Flag]:
    """What takes from a schedule's worth: stamping that slows the kernel, programs where none can have been."""
    found = []
    if is_distorted(schedule):
        share = 100 * overhead_share(schedule)
        found.append(
            Flag(
                name="distorted schedule",
                severity="caution",
                short="schedule distorted",
                sentence=f"Stamping made the launch {share:.0f} % slower: over {100 * MOST_OVERHEAD_SHARE:.0f} % the schedule "
                "is not that of the kernel without stamps.",
            )
        )
    most = int(residency(Timetable.of(schedule, sm_count=1)).max())
    if most > schedule.programs_per_sm:
        found.append(
            Flag(
                name="crowded SM",
                severity="bad",
                short="more programs than fit",
                sentence=f"By the stamps {most} programs ran on one SM at once, where {schedule.programs_per_sm} fit: one of "
                "the two is wrong.",
            )
        )
    return found
