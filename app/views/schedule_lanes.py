"""The lanes of a timetable on a page, and the way from a bar to its tiles."""

from __future__ import annotations

import streamlit as st

from app import look, schedule_shown, state
from app.lanes import component, export, payload
from app.lanes.payload import Selection
from app.schedule_outlook import Outlook
from app.schedule_shown import Shown
from profiling.records import Measurement
from profiling.schedule_record import WHOLE_HEAD
from profiling.timetable import Timetable

_SHORTER = "“Watch its tiles” shows the like of a block in a shorter problem: this one is too long to be traced here."


def lanes(shown: Shown, asked: Outlook | str | None) -> None:
    """The lanes, another way below them where one is asked for; what is selected in them; how it was taken."""
    tables = [(shown.name, shown.table), *_below(asked)]
    facts = shown.lane_facts(can_open=True)
    try:
        blob = payload.pack(tables, facts, state.selection())
    except ValueError as error:
        look.sentence(str(error))
        return
    state.keep_selection_in_address()
    with st.container(key="lanes-place"):
        _lanes(blob, shown, tables)
    said = schedule_shown.caption(shown)
    look.caption(said if state.can_watch_whole(shown) else f"{said} {_SHORTER}")


def where_it_ran(trace: Measurement) -> None:
    """On the Softmax page: the way back to the schedule in which this block stands, where there is one."""
    shown = state.where_it_ran(trace)
    if shown is None:
        return
    block = WHOLE_HEAD if shown.request.tiles.loop_order == "key" else trace.tiles_trace.query_block
    head = trace.tiles_trace.batch_index * trace.request.problem.num_heads + trace.tiles_trace.head
    st.page_link(
        state.page("schedule"),
        label="See where this block ran" if shown.has_times else "See where this block would run",
        icon=":material/view_timeline:",
        query_params=state.address_of_schedule(shown, Selection(head, block)),
    )


def _below(asked: Outlook | str | None) -> list[tuple[str, Timetable]]:
    """The what-if's timetable: as it was measured, where it ran, or as it is modelled."""
    if not isinstance(asked, Outlook):
        return []
    measured = asked.measured
    if measured is not None and state.drawn_below() == "measured":
        return [(f"{asked.name}, measured", measured.table)]
    return [(f"{asked.name}, modelled", asked.table)]


@st.fragment
def _lanes(blob: bytes, shown: Shown, tables: list[tuple[str, Timetable]]) -> None:
    """Runs again alone when something is selected; leaves for the Softmax page when it is to be watched there."""
    opened = state.follow_lanes(component.lanes(blob, state.LANES_KEY))
    if opened is not None:
        state.go_to("softmax", state.address_to_block(shown, opened))
    facts, selection = shown.lane_facts(can_open=False), state.selection()  # the file is made in a thread without a session
    st.download_button(
        "Download the lanes",
        icon=":material/download:",
        on_click="ignore",
        mime="text/html",
        file_name=f"schedule-{shown.label.lower().replace(' ', '-')}.html",
        data=lambda: export.page_of_lanes(tables, facts, selection),
        help="One HTML file that shows them in any browser, without a server.",
    )
