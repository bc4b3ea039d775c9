"""The listing in Streamlit."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.listing.files import SCRIPT, STYLE

_mount = st.components.v2.component("fs_listing", html='<div class="fs-listing-root"></div>', css=STYLE, js=SCRIPT)


def listing(data: dict[str, Any], key: str) -> None:
    """Show what payload.pack made. What is searched and selected in it stays in the browser."""
    _mount(key=key, data=data)
