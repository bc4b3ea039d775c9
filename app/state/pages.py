"""What every page shares: the other pages, the tables' switch, the job queue, a snapshot's link."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app import state
from profiling.job_queue import JobQueue, JobView

TABLES_KEY = "tables"
SNAPSHOT_PARAM = "snapshot"
_PAGES_KEY = "_pages"


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


def tables_shown() -> bool:
    """Whether the tables behind the charts are on screen."""
    return bool(st.session_state.get(TABLES_KEY, False))


@st.cache_resource(show_spinner=False)
def job_queue() -> JobQueue:
    """The one queue of this server, shared by all sessions."""
    return JobQueue()


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
