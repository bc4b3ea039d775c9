"""What came out of a job, in one line: the throughputs, or that it was interpreted, and what went wrong. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kernels.registry import PEERS
from profiling import words
from profiling.records import ErrorKind, Measurement

_FAILED: dict[ErrorKind, str] = {
    "refused": "refused",
    "compile": "did not compile",
    "launch": "could not be launched",
    "out_of_memory": "out of memory",
    "timeout": "timed out",
    "crashed": "crashed",
    "cancelled": "cancelled",
}


def speeds(measurements: Sequence[Measurement], names: Sequence[str] = ()) -> str:
    """The throughputs of those that have one: 'native 39.6 · v1 166 · v2 511 TFLOP/s'; nothing where none has.

    names: what each is called; their labels where none are given.
    """
    named = zip(names or [one.label for one in measurements], measurements, strict=True)
    found = [f"{name} {words.three_digits(one.tflops)}" for name, one in named if one.tflops is not None]
    return " · ".join(found) + " TFLOP/s" if found else ""


def summary(measurements: Sequence[Measurement]) -> str:
    """'v2 501 · v3 504 TFLOP/s · v1 wrong', 'interpreted, correct', 'v3 did not compile'; nothing without measurements."""
    rest = [one for one in measurements if one.tflops is None]
    outcomes = [(one.label, _outcome(one)) for one in rest]
    same = {outcome for _, outcome in outcomes}
    # One word for all of them, where it is no failure: "correct" need not be said of each.
    found = same if same and same <= {"correct", "compiled"} and len(same) == 1 else [" ".join(one) for one in outcomes]
    line = " · ".join([*filter(None, [speeds(measurements)]), *found])
    interpreted = any(one.accuracy is not None and one.accuracy.provenance == "interpreted" for one in rest)
    return f"interpreted, {line}" if interpreted else line


def _outcome(measurement: Measurement) -> str:
    if measurement.error is not None:
        return _FAILED[measurement.error.kind]
    if "latency" in measurement.missing:
        return "time refused"
    if measurement.accuracy is not None:
        return "wrong" if measurement.wrong else "correct"
    return "compiled" if measurement.compiled else "not checked"


def is_sound(measurement: Measurement) -> bool:
    """Whether nothing failed, the output is not wrong, and nothing said of it cannot be true."""
    return measurement.error is None and measurement.wrong is None and all(flag.severity != "bad" for flag in measurement.flags)


def is_missing_peer(measurement: Measurement) -> bool:
    """Whether this is a library that is not installed, or cannot do this problem: no failure when all were asked for."""
    error = measurement.error
    return measurement.request.kernel in PEERS and error is not None and error.kind == "refused"
