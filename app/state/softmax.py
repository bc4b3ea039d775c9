"""The Softmax page: its fields, one's own inputs, the player."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import streamlit as st

from app import state
from app.player import choices
from app.player.first_trace import FIRST_TRACE
from app.player.payload import Position
from profiling.job_queue import JobView
from profiling.records import Measurement, OwnInputs, RunRequest
from profiling.snapshot import read

LONGEST_INTERPRETED = 512
LONGEST_ON_A_GPU = 4096
PLAYER_KEY = "player"
TAU_KEY = "tau"
WATCHED_TRACE_KEY = "watched_trace"
TRACE_BESIDE_KEY = "trace_beside"
RECORDED_TRACE_KEY = "recorded_trace"
FP8_PART_KEY = "fp8_part"
STUDY_SCALES_KEY = "study_scales"
STUDY_HADAMARD_KEY = "study_hadamard"
STUDY_MEAN_KEY = "study_mean"
STUDY_TOKENS_KEY = "study_tokens"
STUDY_DIM_KEY = "study_dim"
_POSITION_KEY = "_position"
_TRACE_NEXT_KEY = "_trace_next"
_WATCHED_KEY = "_watched"
_CLICK_SEEN_KEY = "_click_seen"
_BLOCK_NEXT_KEY = "_block_next"
OWN_FROM_KEY = "own_from"
_OWN_KEY = "_own"


@st.cache_data(show_spinner=False)
def _first_traces(modified_ns: int) -> tuple[Measurement, ...]:
    found = read(FIRST_TRACE.read_bytes())
    return found.measurements


def first_traces() -> tuple[Measurement, ...]:
    """The traces that ship with FlashScope: every version on the problem that the page begins with."""
    return _first_traces(FIRST_TRACE.stat().st_mtime_ns)


def watch_values() -> dict[str, str | bool]:
    """The fields of the Softmax page as they stand; before its widgets are first drawn, what the address says."""
    return {field: st.session_state.get(field, _watch_from_address(field)) for field in choices.DEFAULTS}


def _watch_from_address(field: str) -> str | bool:
    default, given = choices.DEFAULTS[field], st.query_params.get(field)
    if given is None:
        return default
    if isinstance(default, bool):
        return given == "true" if given in ("true", "false") else default
    return given if given in choices.OPTIONS.get(field, (given,)) else default


def own_key(kind: Literal["file", "text", "example"], name: str) -> str:
    """The key of a widget for one of a user's own Q, K and V."""
    return f"_own_{kind}_{name}"


def hold_own_inputs(found: OwnInputs | str) -> None:
    """Hold a user's own Q, K and V for this tab, or the sentence saying why they are none; they are in no address."""
    st.session_state[_OWN_KEY] = found


def own_inputs() -> OwnInputs | None:
    """The Q, K and V that were taken last."""
    found = st.session_state.get(_OWN_KEY)
    return found if isinstance(found, OwnInputs) else None


def why_no_own_inputs() -> str | None:
    """Why those that were given last cannot be taken."""
    found = st.session_state.get(_OWN_KEY)
    return found if isinstance(found, str) else None


def address_to_watch(measurement: Measurement) -> dict[str, str]:
    """The Softmax page's address for what is nearest to a result, at a length that is quick to trace here."""
    has_gpu = any(device.kind == "gpu" for device in state.job_queue().devices())
    fields = choices.like(measurement, LONGEST_ON_A_GPU if has_gpu else LONGEST_INTERPRETED)
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in fields.items()}


def traces() -> Iterator[Measurement]:
    """Every trace that this server holds, the newest first, then those that ship with FlashScope, the gallery's last."""
    yield from (result for view in reversed(state.job_queue().jobs()) for result in view.results if result is not None)
    yield from state.first_traces()
    # Reading the gallery takes a moment: only whoever has not found it so far comes here.
    yield from recorded_traces()


def recorded_traces() -> list[Measurement]:
    """The gallery's traces that the page's fields can ask for."""
    kept = [found for found in state.recordings().values() if not isinstance(found, str)]
    return [one for found in kept for one in found.measurements if choices.asking_for(one) is not None]


def choose_recorded_trace(recorded: Sequence[Measurement]) -> None:
    """Callback of the recordings' list: the fields ask for what was recorded, and nothing is chosen in the list any more."""
    place = st.session_state[RECORDED_TRACE_KEY]
    st.session_state[RECORDED_TRACE_KEY] = None
    fields = choices.asking_for(recorded[place]) if place is not None else None
    if fields is not None:
        state.set_form(fields)


def job_of(requests: tuple[RunRequest, ...]) -> JobView | None:
    """The newest job that was asked for exactly these requests, from whichever tab."""
    return next((view for view in reversed(state.job_queue().jobs()) if view.requests == requests), None)


def last_watched() -> tuple[Measurement, ...]:
    """What the player showed last in this tab; at first a trace that ships."""
    return st.session_state.get(_WATCHED_KEY) or state.first_traces()[:1]


def remember_watched(measurements: tuple[Measurement, ...]) -> None:
    """Keep what the player shows, for when the next choice is not traced yet."""
    st.session_state[_WATCHED_KEY] = measurements


def position() -> Position | None:
    """Where the player rested last, in this tab or by the address; None before it ever has."""
    if _POSITION_KEY not in st.session_state:
        given = {name: st.query_params.get(name) for name in ("tile", "row", "speed")}
        st.session_state[_POSITION_KEY] = _position(given) if given["tile"] is not None else None
    return st.session_state[_POSITION_KEY]


def _position(given: dict[str, Any]) -> Position:
    """Whatever an address or a browser says, as a position; what is no small whole number is left at its default."""
    numbers = {name: str(given.get(name)) for name in ("tile", "row", "speed")}
    return Position(
        **{name: int(text) for name, text in numbers.items() if text.isascii() and text.isdigit() and len(text) < 7}
    )


def keep_position_in_address() -> None:
    """After the page was left and opened again, its address lacks what is no widget."""
    found = position()
    if found is not None:
        st.query_params.update({"tile": str(found.tile), "row": str(found.row), "speed": str(found.speed)})


def follow_player(said: Any) -> bool:
    """Take in what the player says; True when another query block was chosen on its map, which the page is to trace."""
    if not isinstance(said, dict):
        return False
    if _position(said) != position():
        st.session_state[_POSITION_KEY] = _position(said)
        keep_position_in_address()
    clicked = said.get("clicked")
    if not isinstance(clicked, dict) or clicked.get("at") == st.session_state.get(_CLICK_SEEN_KEY):
        return False
    st.session_state[_CLICK_SEEN_KEY] = clicked.get("at")
    st.session_state[_BLOCK_NEXT_KEY] = clicked.get("block")
    ask_to_trace()
    return True


def take_clicked_block() -> None:
    """Put the query block that was clicked into its field, before the field is drawn."""
    block = st.session_state.pop(_BLOCK_NEXT_KEY, None)
    if isinstance(block, int) and block >= 0:
        state.set_form({"query_block": str(block)})


def ask_to_trace() -> None:
    """Let the page trace what its fields say on its next pass."""
    st.session_state[_TRACE_NEXT_KEY] = True


def asked_to_trace() -> bool:
    """Whether ask_to_trace was called since the last look."""
    return bool(st.session_state.pop(_TRACE_NEXT_KEY, False))
