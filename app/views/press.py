"""A button whose press survives when another run of the script cuts off the run that should have answered it."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app import state


def button(label: str, *, key: str, **options: Any) -> bool:
    """st.button, whose press is told once, to the first run that gets as far as this.

    Streamlit tells a press to one run alone. Where a player comes to rest, or a fragment's time has come, that run may be cut
    off before it reaches the button, and the next one knows nothing of it; a callback has run by then.
    """
    st.button(label, key=key, on_click=state.press, args=(key,), **options)
    return state.was_pressed(key)
