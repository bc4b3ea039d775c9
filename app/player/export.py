"""A trace as one HTML page that plays anywhere: from disk, without a server, without a request to anyone."""

from __future__ import annotations

from collections.abc import Sequence

from app.canvas.page import elements_of, page_of, script_that_mounts
from app.player.files import SCRIPT, STYLE
from app.player.payload import Position, pack
from profiling.records import Measurement

PLAYER_SCRIPT = script_that_mounts(SCRIPT, "player")


def page_of_trace(measurement: Measurement) -> bytes:
    """One measurement's trace as a page."""
    return page_of_traces([measurement])


def page_of_traces(measurements: Sequence[Measurement], start: Position | None = None) -> bytes:
    """One trace, or two that step together, as a page; the same bytes every time. Raises ValueError like pack."""
    title = f"{' and '.join(one.label for one in measurements)} · {measurements[0].request.problem.title}"
    heading = f"The online softmax, tile by tile: {title}"
    return page_of(title, heading, _about(measurements), player_of(measurements, start), PLAYER_SCRIPT, STYLE)


def player_of(measurements: Sequence[Measurement], start: Position | None = None) -> str:
    """The elements of the player in a page that has PLAYER_SCRIPT as a module and STYLE. Raises ValueError like pack."""
    return elements_of("player", pack(measurements, start))


def _about(measurements: Sequence[Measurement]) -> str:
    """Where the numbers come from, and whether the replay agreed with them."""
    first = measurements[0]
    how = "in Triton's interpreter on a CPU" if first.tiles_trace.provenance == "interpreted" else "on the GPU"
    agrees = all(one.tiles_trace.replay.passed for one in measurements)
    proof = (
        "A NumPy replay of the same tiles agrees with it."
        if agrees
        else "A NumPy replay of the same tiles does NOT agree with it."
    )
    return f"Every number here was stored by the kernel itself while it ran {how} ({first.environment.device.name}). {proof}"
