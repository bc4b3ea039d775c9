"""What contradicts a timing: outputs that are not fresh, time that the events do not see, a timer that was replaced. Pure.

A time that is contradicted is no number: the flag is bad, and the measurement has no time at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from profiling.measure import Ledger, Timed
from profiling.records import Flag

# An honest stretch's events make up all of what the host's clock shows, but for the moment until the host wakes up, which on a
# busy host can be long: the best of a timing's stretches counts, and a quarter may be missing.
LEAST_ACCOUNTED = 0.75
_WAKING_MS = 0.2
# CUDA's events count in steps of half a microsecond at most: so far off may each end of a part be.
_STEP_MS = 0.0005
# Pauses hold the same work every time; on a quiet GPU their mean is their median.
_INTERRUPTED = 1.5
_FEWEST_PAUSES = 40


def contradictions(
    kernel: str, timed: Timed, looked: int, stale: int, replaced: Sequence[str] = (), mode: str = "cold"
) -> tuple[Flag, ...]:
    """A flag for each thing that cannot be true of an honest timing of a kernel; none where all is well.

    looked, stale: of how many samples the output was looked at, and how many of those were not fresh. replaced: what of the
    timer somebody has replaced, by name.
    """
    found = [
        _no_time(kernel, timed),
        _replaced(kernel, replaced),
        _unaccounted(kernel, timed.ledgers),
        _stale(kernel, looked, stale, mode),
    ]
    return tuple(flag for flag in found if flag is not None)


def unproved(kernel: str) -> Flag:
    """That the output is zero everywhere, so that a fresh one and a kept one look alike."""
    return Flag(
        name="unproved",
        severity="info",
        short="launches not proved",
        sentence=f"The output of {kernel} is zero wherever it was looked at: whether each launch wrote it anew cannot be seen.",
    )


def interruption(ledgers: Sequence[Ledger]) -> float | None:
    """How many times longer than usual the pauses between launches were on average, where that says that others had the GPU.

    A pause holds the same untimed work every time. None where there are too few of them, or they are alike.
    """
    pauses = np.concatenate([np.array(ledger.pauses_ms[1:-1]) for ledger in ledgers] or [np.empty(0)])
    if len(pauses) < _FEWEST_PAUSES or np.median(pauses) <= 0.0:
        return None
    ratio = float(pauses.mean() / np.median(pauses))
    return ratio if ratio >= _INTERRUPTED else None


def _no_time(kernel: str, timed: Timed) -> Flag | None:
    none = sum(not 0.0 < ms < np.inf for ms in timed.samples_ms)
    if not none:
        return None
    sentence = f"{none:,} of {len(timed.samples_ms):,} launches of {kernel} took no time by the timer, which is not possible."
    return _bad("no time", "no time", sentence)


def _replaced(kernel: str, replaced: Sequence[str]) -> Flag | None:
    if not replaced:
        return None
    return _bad("patched timer", "timer replaced", f"While {kernel} was timed, {', '.join(replaced)} was not its own any more.")


def _unaccounted(kernel: str, ledgers: Sequence[Ledger]) -> Flag | None:
    for ledger in ledgers:
        parts = (*ledger.launches_ms, *ledger.pauses_ms)
        apart = abs(sum(parts) - ledger.span_ms)
        if apart > _STEP_MS * (len(parts) + 1):
            sentence = (
                f"Launches of {kernel} and the pauses between them add up to {sum(parts):.4g} ms in {ledger.span_ms:.4g}."
            )
            return _bad("time unaccounted", "timer contradicts itself", sentence)
    seen = [(sum(ledger.launches_ms) + sum(ledger.pauses_ms), ledger.wall_ms) for ledger in ledgers if ledger.wall_ms]
    if not seen:
        return None
    parts_ms, wall_ms = max(seen, key=lambda one: one[0] / one[1])
    if parts_ms >= LEAST_ACCOUNTED * wall_ms - _WAKING_MS:
        return None
    sentence = (
        f"At best {100 * parts_ms / wall_ms:.0f} % of the time until the GPU was idle is in the launches of {kernel} and the "
        "pauses between them: work ran on another stream, or the timer is not right."
    )
    return _bad("time unaccounted", "time unaccounted for", sentence)


def _stale(kernel: str, looked: int, stale: int, mode: str) -> Flag | None:
    if not stale:
        return None
    did = "was not written again" if mode == "warm" else "did not follow when V's sign was turned"
    sentence = f"In {stale:,} of {looked:,} timed launches of {kernel} the output {did}: it was not computed in that time."
    return _bad("stale output", "output not fresh", sentence)


def _bad(name: str, short: str, sentence: str) -> Flag:
    return Flag(name=name, severity="bad", short=short, sentence=f"{sentence} It has no time.")
