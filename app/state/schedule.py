"""The Schedule page: its fields, its what-if, the lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from app import schedule_choices, state
from app.lanes.payload import Selection
from app.player import choices
from app.schedule_shown import Shown
from app.state.form import TILE_FIELDS
from app.state.softmax import LONGEST_INTERPRETED
from kernels.problem import TileConfig
from profiling.records import Measurement

LANES_KEY = "lanes"
SCHEDULE_OF_KEY = "schedule_of"
RECORDED_SCHEDULE_KEY = "recorded_schedule"
DRAWN_BELOW_KEY = "below"
_SELECTED_PARAM = "at"
WHAT_IF_KEY = "what_if"
BELOW = ("measured", "modelled")
_SCHEDULE_KEY = "_schedule"
_SELECTED_KEY = "_selected"
_SELECTED_IN_ADDRESS_KEY = "_selected_in_address"
_OPEN_SEEN_KEY = "_open_seen"
_OPENED_SCHEDULES_KEY = "_opened_schedules"


def schedule_values() -> dict[str, str | bool]:
    """The fields of the Schedule page as they stand; before its widgets are first drawn, what the address says."""
    return {field: _schedule_field(field, default) for field, default in schedule_choices.DEFAULTS.items()}


def what_if_values() -> dict[str, str]:
    """Its what-if fields, likewise."""
    return {field: str(_schedule_field(field, default)) for field, default in schedule_choices.IF_DEFAULTS.items()}


def show_what_if(usual: dict[str, dict[str, str]]) -> None:
    """Make the pills show which of the usual what-ifs the fields ask for."""
    values = what_if_values()
    st.session_state[WHAT_IF_KEY] = next((name for name, fields in usual.items() if fields == values), None)


def apply_what_if(usual: dict[str, dict[str, str]]) -> None:
    """Callback of the pills: the fields ask for what was chosen, or for nothing."""
    state.set_form(usual.get(st.session_state.get(WHAT_IF_KEY) or "", schedule_choices.IF_DEFAULTS))


def _schedule_field(field: str, default: str | bool) -> str | bool:
    if field in st.session_state:
        return st.session_state[field]
    given = st.query_params.get(field)
    if given is None or (isinstance(default, bool) and given not in ("true", "false")):
        return default
    if isinstance(default, bool):
        return given == "true"
    return given if given in schedule_choices.OPTIONS.get(field, (given,)) else default


def address_to_schedule(measurement: Measurement) -> dict[str, str]:
    """The Schedule page's address for what a result ran."""
    return _schedule_address(schedule_choices.like(measurement.request, measurement.tiles, measurement.label))


def address_of_schedule(shown: Shown, selected: Selection) -> dict[str, str]:
    """The Schedule page's address for what it showed, and this piece of work in it."""
    fields = schedule_choices.like(shown.request, shown.request.tiles, shown.label)
    if shown.measurement is None:
        fields |= {"as_on": schedule_choices.gpu_words(shown.device), "at_once": str(shown.machine.programs_per_sm)}
    return _schedule_address(fields) | {_SELECTED_PARAM: f"{selected.head}.{selected.block}"}


def _schedule_address(fields: dict[str, str | bool]) -> dict[str, str]:
    changed = {name: value for name, value in fields.items() if value != schedule_choices.DEFAULTS[name]}
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in changed.items()}


def choose_recorded_schedule(recorded: Sequence[Measurement]) -> None:
    """Callback of the recordings' list: the fields ask for what was recorded, and nothing is chosen in the list any more."""
    place = st.session_state[RECORDED_SCHEDULE_KEY]
    st.session_state[RECORDED_SCHEDULE_KEY] = None
    if place is not None:
        one = recorded[place]
        state.set_form(schedule_choices.like(one.request, one.tiles, one.label) | schedule_choices.IF_DEFAULTS)


def set_schedule_tiles(tiles: TileConfig) -> None:
    """Callback: put tile sizes that work into the Schedule page's fields."""
    names = {name: form for name, form in schedule_choices.FORM_FIELDS.items() if form in TILE_FIELDS}
    state.set_form({name: str(getattr(tiles, form)) for name, form in names.items()})


def address_to_block(shown: Shown, selected: Selection) -> dict[str, str]:
    """The Softmax page's address for a piece of work, at a length that can be traced here."""
    fields = schedule_choices.to_watch(shown.request, shown.label, selected, _longest_to_watch())
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in fields.items()}


def can_watch_whole(shown: Shown) -> bool:
    """Whether the Softmax page can trace just this problem here; else a shorter one of its kind."""
    problem = shown.request.problem
    return max(problem.seq_len_q, problem.seq_len_kv) <= _longest_to_watch()


def _longest_to_watch() -> int:
    has_gpu = any(device.kind == "gpu" for device in state.job_queue().devices())
    return choices.MOST["seq_len_q"] if has_gpu else LONGEST_INTERPRETED


def drawn_below() -> str:
    """Which of BELOW is drawn under the lanes, where a what-if has both."""
    return st.session_state.get(DRAWN_BELOW_KEY) or BELOW[0]


def set_what_if_tiles(tiles: TileConfig) -> None:
    """Callback: ask what if for a tile size that works."""
    state.set_form({"if_rows": str(tiles.block_m), "if_columns": str(tiles.block_n)})


def schedules() -> list[Shown]:
    """Every schedule there is to look at: this server's, the newest first, the recordings, and those opened in this tab."""
    finished = [view for view in reversed(state.job_queue().jobs()) if view.finished]
    here = [(one, "unsaved", f"job-{view.job_id}") for view in finished for one in view.results if one is not None]
    kept = [found for found in state.recordings().values() if not isinstance(found, str)]
    recorded = [(one, "gallery", "") for found in kept for one in found.measurements]
    every = [Shown.of(one, *of) for one, *of in (*here, *recorded) if one.schedule is not None]
    return [*every, *st.session_state.get(_OPENED_SCHEDULES_KEY, ())]


def remember_opened_schedules(found: Sequence[Shown]) -> None:
    """Hold the schedules of a snapshot that was opened, so that the Schedule page can ask what if."""
    st.session_state[_OPENED_SCHEDULES_KEY] = tuple(found)


def where_it_ran(trace: Measurement) -> Shown | None:
    """A schedule in which the piece of work of a trace stands: held here, or what the Schedule page showed last."""
    request = trace.request.model_copy(update={"tiles": trace.tiles})
    last = last_schedule()
    found = [*schedules(), *([last] if last is not None else [])]
    return next((one for one in found if schedule_choices.is_where_it_ran(one.request, request)), None)


def last_schedule() -> Shown | None:
    """What the Schedule page showed last in this tab."""
    return st.session_state.get(_SCHEDULE_KEY)


def remember_schedule(shown: Shown) -> None:
    """Keep what is shown, for when the next choice has not run yet or is not possible."""
    st.session_state[_SCHEDULE_KEY] = shown


def selection() -> Selection | None:
    """The piece of work that is selected in the lanes, in this tab or by the address."""
    given = st.query_params.get(_SELECTED_PARAM)
    if given is not None and given != st.session_state.get(_SELECTED_IN_ADDRESS_KEY):  # a link came with another one
        head, _, block = given.partition(".")
        st.session_state[_SELECTED_KEY] = _selection(head, block)
        st.session_state[_SELECTED_IN_ADDRESS_KEY] = given
    return st.session_state.get(_SELECTED_KEY)


def _selection(head: Any, block: Any) -> Selection | None:
    """Whatever an address or a browser says, as a selection; None where it is no two small whole numbers, block from -1 on."""
    given = [str(head), str(block).removeprefix("-")]
    if not all(text.isascii() and text.isdigit() and len(text) < 8 for text in given) or int(str(block)) < -1:
        return None
    return Selection(int(str(head)), int(str(block)))


def keep_selection_in_address() -> None:
    """After the page was left and opened again, its address lacks what is no widget."""
    found = selection()
    text = f"{found.head}.{found.block}" if found is not None else None
    st.session_state[_SELECTED_IN_ADDRESS_KEY] = text
    if text is not None:
        st.query_params[_SELECTED_PARAM] = text
    else:
        st.query_params.pop(_SELECTED_PARAM, None)


def follow_lanes(said: Any) -> Selection | None:
    """Take in what the lanes say; a piece of work when it is to be opened on the Softmax page."""
    if not isinstance(said, dict):
        return None
    chosen, opened = said.get("selected"), said.get("opened")
    found = _selection(chosen.get("head"), chosen.get("block")) if isinstance(chosen, dict) else None
    if found != selection():
        st.session_state[_SELECTED_KEY] = found
        keep_selection_in_address()
    if not isinstance(opened, dict) or opened.get("at") == st.session_state.get(_OPEN_SEEN_KEY):
        return None
    st.session_state[_OPEN_SEEN_KEY] = opened.get("at")
    return _selection(opened.get("head"), opened.get("block"))
