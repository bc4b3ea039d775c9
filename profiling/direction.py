"""What a direction is called and what is said of it: in titles, tables and captions alike. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from profiling.records import Direction, Measurement, RunRequest

TITLES: dict[Direction, str] = {"forward": "", "backward": "backward", "both": "forward + backward"}
EXPLAINED: dict[Direction, str] = {
    "forward": "The attention alone.",
    "backward": "The gradients of Q, K and V, after one forward that is not timed.",
    "both": "A training step's attention: the forward, then its backward; and each of its parts.",
}
_WHERE_ITS_KERNELS_ARE = "what the compiler made of the backward's is on the Compiler page, and in the command compile"


def title_part(request: RunRequest) -> tuple[str, ...]:
    """('forward + backward',) for a heading; nothing for a forward."""
    return (TITLES[request.direction],) if request.direction != "forward" else ()


def sentences(measurement: Measurement) -> Iterator[str]:
    """What must be said of a run with a backward: in which format it ran, what its compile report is of."""
    request = measurement.request
    if request.direction == "forward":
        return
    if request.precision.fp8:
        yield (
            f"The forward is FP8; the backward reads Q, K and V as they were before, in {request.precision.dtype}, with the "
            "FP8 forward's output."
        )
    of_backward = f"; {_WHERE_ITS_KERNELS_ARE}" if measurement.backward_tiles is not None else ""
    if measurement.compiled:
        yield f"The compile report is of the forward's kernels{of_backward}."
    elif "compiled" in measurement.missing:
        yield f"There is no compile report: {measurement.missing['compiled']}{of_backward}."


def split_ms(measurement: Measurement) -> tuple[tuple[str, float], ...]:
    """Where a step's time goes, in ms: forward, pre-process, the rest of the backward; () unless the first and last are known.

    The rest is the backward's median less the pre-process's: both were timed, it was not.
    """
    parts = measurement.parts
    if parts is None or parts.forward is None or parts.backward is None:
        return ()
    before = 0.0 if parts.preprocess is None else parts.preprocess.median_ms
    rest = max(0.0, parts.backward.median_ms - before)
    found = (("forward", parts.forward.median_ms), ("pre-process", before), ("backward", rest))
    return tuple(one for one in found if one[0] != "pre-process" or parts.preprocess is not None)
