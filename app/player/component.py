"""The player in Streamlit."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.player.files import SCRIPT, STYLE

_mount = st.components.v2.component("fs_player", html='<div class="fs-player-root"></div>', css=STYLE, js=SCRIPT)


def player(blob: bytes, key: str) -> Any:
    """Draw a blob of payload.pack, and return what the player said last; it comes from a browser, and may be anything.

    None before it has said something; {tile, row, speed, clicked}: where it rests, and None or {block, at}: the query block
    that was last chosen on its map, and when.
    """
    return _mount(key=key, data=blob, on_said_change=_nothing).get("said")


def _nothing() -> None:
    """Streamlit wants a callback for every value that a component may set."""
