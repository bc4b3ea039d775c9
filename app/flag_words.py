"""Which number a flag concerns, and what to do about it, by the flag's name. Pure.

A flag that stands here as a caution or worse is shown beside its number; any other stands in the row above the numbers.
"""

from __future__ import annotations

from typing import Literal

from profiling.records import Flag

About = Literal["output", "gradients", "time", "warm", "throughput", "memory", "energy"]
BESIDE = ("caution", "bad")

_LIMIT = "Compare versions of one job, which meet the same limit; a higher one, or better cooling, gives another number."
_CLOCKS = "Compare versions of one job: their interleaved rounds meet the same clocks."
_OTHERS = "nvidia-smi lists who uses the GPU: run it again when they are gone."
_BLIND = "Make sure that nobody else uses this GPU; in a container NVML cannot tell."
_REPORT = "Do not use it: the clock or the work is not what it seems. Report it with this snapshot."
_ABOUT: dict[str, tuple[About, str]] = {
    "wrong output": ("output", "Report it with this snapshot: a wrong kernel gets no speed."),
    "wrong gradients": ("gradients", "Report it with this snapshot: a backward with wrong gradients gets no speed."),
    "stale output": ("time", _REPORT),
    "no time": ("time", _REPORT),
    "time unaccounted": ("time", _REPORT),
    "patched timer": ("time", _REPORT),
    "unproved": ("time", "Take other inputs, such that the output is not zero."),
    "too few samples": ("time", "Trust only differences far larger than the scatter, or time a shorter problem."),
    "launch-bound": (
        "time",
        "Read it as the host's time as well; the warm latency is the kernel's own. Or make the problem larger.",
    ),
    "low clock": ("time", "Let the GPU warm up, or lift its clock limit (nvidia-smi -q -d CLOCK shows it), then run it again."),
    "clock moved": ("time", _CLOCKS),
    "clock unknown": ("time", _CLOCKS),
    **dict.fromkeys(("throttled", "power cap", "thermal", "slowed"), ("time", _LIMIT)),
    **dict.fromkeys(("busy", "contended"), ("time", _OTHERS)),
    **dict.fromkeys(("busy unknown", "contention unknown"), ("time", _BLIND)),
    "not locked": ("time", "See that no other FlashScope times on this GPU, then run it again."),
    "implausible": ("throughput", _REPORT),
    "other peak": ("throughput", "Read the share of the peak as meaningless."),
    "peak unknown": ("throughput", "Compare with other versions on this GPU."),
    "energy launch-bound": ("energy", "Make the problem larger: its launches fill the GPU then."),
    "no energy": ("energy", "Run it again without other work on the GPU; the time and the memory stand."),
}


def about(flag: Flag) -> About | None:
    """The number that a flag takes from, where it is to stand beside it; None for one that is well or stands for itself."""
    found = _ABOUT.get(flag.name)
    return found[0] if found is not None and flag.severity in BESIDE else None


def is_about_time(flag: Flag) -> bool:
    """Whether a flag takes from the cold time."""
    return about(flag) == "time"


def what_to_do(flag: Flag) -> str:
    """One sentence; empty where all is well or nothing can be done."""
    found = _ABOUT.get(flag.name)
    return found[1] if found is not None and flag.severity != "ok" else ""


def sentence(flag: Flag) -> str:
    """What was seen, then what to do."""
    return f"{flag.sentence} {what_to_do(flag)}".strip()
