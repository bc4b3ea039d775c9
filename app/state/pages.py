"""What every page shares: the other pages, the tables' switch, the job queue, a snapshot's link."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import streamlit as st

from app import state
from profiling.job_queue import JobView
from profiling.runner import Runner, runner_at

TABLES_KEY = "tables"
SNAPSHOT_PARAM = "snapshot"
_PAGES_KEY = "_pages"
_PRESSED_KEY = "_pressed_"
_PRESS_HOLDS_S = 10.0
_PUT_BACK_KEY = "_put_back_"
_PUT_BACK_DONE_KEY = "_put_back_done_"


def register_pages(pages: dict[str, Any]) -> list[Any]:
    """Remember the pages under short names, for switching between them, and return them in order."""
    st.session_state[_PAGES_KEY] = pages
    return list(pages.values())


def page(name: str) -> Any:
    """A page by its short name."""
    return st.session_state[_PAGES_KEY][name]


def go_to(name: str, address: dict[str, str] | None = None) -> None:
    """Leave for another page, with this in the address and nothing else; nothing after it on this page is drawn."""
    # Without any, st.switch_page would clear the address, and refuses where a field of the form is in it.
    st.switch_page(page(name), query_params=address or {})


def press(key: str) -> None:
    """Callback of a button: remember that it was pressed."""
    st.session_state[f"{_PRESSED_KEY}{key}"] = time.monotonic()


def was_pressed(key: str) -> bool:
    """Whether a button was pressed and nobody has asked since. A press that nothing came of for long is forgotten."""
    pressed_at = st.session_state.pop(f"{_PRESSED_KEY}{key}", None)
    return pressed_at is not None and time.monotonic() - pressed_at < _PRESS_HOLDS_S


def put_back_fields(page: str) -> None:
    """Before a page's fields are drawn: what they said when lost_fields saw that they were lost."""
    state.set_form(st.session_state.pop(f"{_PUT_BACK_KEY}{page}", {}))


def lost_fields(page: str, before: Mapping[str, Any], now: Mapping[str, Any], later: Mapping[str, Any] | None = None) -> bool:
    """Whether drawing a page's fields changed them, and the page is to be drawn again. All by their keys.

    When the browser goes back to a page, its fields take what that address says. Mostly Streamlit has emptied it by then, and
    they say again what they said before; an address that still names some of them is followed. later: fields that are drawn
    further down, as they stand.
    """
    is_second_time = st.session_state.pop(f"{_PUT_BACK_DONE_KEY}{page}", False)
    if is_second_time or now == before:
        return False
    st.session_state[f"{_PUT_BACK_DONE_KEY}{page}"] = True
    if not set(before) & set(st.query_params):
        st.session_state[f"{_PUT_BACK_KEY}{page}"] = {**before, **(later or {})}
    return True


def tables_shown() -> bool:
    """Whether the tables behind the charts are on screen."""
    return bool(st.session_state.get(TABLES_KEY, False))


@st.cache_resource(show_spinner=False)
def job_queue() -> Runner:
    """The one queue of this server, shared by all sessions: this machine's, or that of the cluster in FLASHSCOPE_CLUSTER."""
    return runner_at()


def link(snapshot_id: str) -> str:
    """The address of a snapshot, as the browser reaches this server."""
    base = (st.context.url or "").rstrip("/")
    for one in st.session_state[_PAGES_KEY].values():
        base = base.removesuffix(f"/{one.url_path}") if one.url_path else base
    return f"{base}/snapshots?{SNAPSHOT_PARAM}={snapshot_id}"


def job_view(job_id: str | None) -> JobView | None:
    """A job of this server by its id; None where it is unknown."""
    if job_id is None:
        return None
    try:
        return state.job_queue().view(job_id)
    except KeyError:
        return None
