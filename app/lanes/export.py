"""The lanes as one HTML page that works anywhere: from disk, without a server, without a request to anyone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.canvas.page import elements_of, page_of, script_that_mounts
from app.lanes.files import SCRIPT, STYLE
from app.lanes.payload import LaneFacts, Selection, pack
from profiling.timetable import Timetable

LANES_SCRIPT = script_that_mounts(SCRIPT, "lanes")


def page_of_lanes(tables: Sequence[tuple[str, Timetable]], facts: LaneFacts, selection: Selection | None = None) -> bytes:
    """One or two timetables as a page; the same bytes every time. Raises ValueError like pack."""
    elements = lanes_of(tables, facts, selection)
    title = f"{' and '.join(label for label, _ in tables)} · {facts.title}"
    return page_of(title, f"Which SM ran which block, when: {title}", _about(tables, facts), elements, LANES_SCRIPT, STYLE)


def lanes_of(tables: Sequence[tuple[str, Timetable]], facts: LaneFacts, selection: Selection | None = None) -> str:
    """The elements of the lanes in a page that has LANES_SCRIPT as a module and STYLE. Raises ValueError like pack.

    Nothing is offered that only the app can do.
    """
    return elements_of("lanes", pack(tables, replace(facts, can_open=False), selection))


def _about(tables: Sequence[tuple[str, Timetable]], facts: LaneFacts) -> str:
    """Where the numbers come from, a sentence each kind."""
    found = []
    for kind in ("measured", "modelled"):
        which = " and ".join(label for label, table in tables if table.provenance == kind)
        if which and kind == "measured":
            found.append(f"{which}: every bar was stamped by the kernel itself while it ran on the GPU ({facts.device}).")
        elif which:
            found.append(f"{which}: modelled, nobody measured it.")
    return " ".join(found)
