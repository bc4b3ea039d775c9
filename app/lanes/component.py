"""The lanes in Streamlit."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.lanes.files import SCRIPT, STYLE

_mount = st.components.v2.component("fs_lanes", html='<div class="fs-lanes-root"></div>', css=STYLE, js=SCRIPT)


def lanes(blob: bytes, key: str) -> Any:
    """Draw a blob of payload.pack, and return what the lanes said last; it comes from a browser, and may be anything.

    None before they have said something; {selected, opened}: selected is None or {head, block}, the piece of work that is
    selected now (block -1: a whole head); opened is None or {head, block, at}: the one last asked to be opened in the tile
    player, and when (ms since 1970, so that an answer can tell a new wish from an old one).

    What a user selects here is kept here: a pack's selection is for what was selected elsewhere, and a blob that does not
    follow each click does not travel to the browser again.
    """
    return _mount(key=key, data=blob, on_said_change=_nothing).get("said")


def _nothing() -> None:
    """Streamlit wants a callback for every value that a component may set."""
