"""The Compare page: its two sides."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import streamlit as st

from app import state
from app.state.found import Opened
from profiling.improvements import Judged, judged_pairs

COMPARE_PARAMS = ("a", "b", "va", "vb", "more")
_COMPARED_KEY = "_compared"


def compared() -> dict[str, str]:
    """What the address says is compared, by COMPARE_PARAMS; where it says nothing, what this session compared last."""
    found = {name: st.query_params[name] for name in COMPARE_PARAMS if st.query_params.get(name)}
    return found if "a" in found or "b" in found else dict(st.session_state.get(_COMPARED_KEY, {}))


def compare(values: dict[str, str]) -> None:
    """Put what is compared into the address, where a link finds it, and remember it for this session."""
    st.session_state[_COMPARED_KEY] = values
    for name in COMPARE_PARAMS:
        if values.get(name, "") != st.query_params.get(name, ""):
            if values.get(name):
                st.query_params[name] = values[name]
            else:
                st.query_params.pop(name, None)


@st.cache_resource(show_spinner=False, max_entries=60)
def _judged(_a: Opened, a_id: str, b_id: str) -> tuple[Judged, ...]:
    other = state.find(b_id)
    return () if other is None else judged_pairs(_a.snapshot, other.snapshot)


def judged(a: Opened, b_id: str) -> tuple[Judged, ...]:
    """Every version of another snapshot judged against its counterpart in A. Raises StoreProblem."""
    return _judged(a, a.id, b_id)


def compare_key(name: str) -> str:
    """The key of the widget that chooses one of COMPARE_PARAMS."""
    return f"_compare_{name}"


def chosen(name: str) -> Any:
    """What the widget of one of COMPARE_PARAMS holds."""
    return st.session_state.get(compare_key(name))


def show_chosen(name: str, value: Any) -> None:
    """Make the widget of one of COMPARE_PARAMS show a value; before it is drawn."""
    st.session_state[compare_key(name)] = value


def compare_link(values: dict[str, str]) -> str:
    """The address of a comparison, as the browser reaches this server."""
    return f"{st.context.url or ''}?{urlencode({name: values[name] for name in COMPARE_PARAMS if values.get(name)})}"
