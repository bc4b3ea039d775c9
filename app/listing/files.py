"""The listing's script and style as text. Pure: no Streamlit."""

from __future__ import annotations

from pathlib import Path

from app.canvas.files import script_of, style_of

SCRIPT = script_of(Path(__file__).with_name("listing.js"))
STYLE = style_of(Path(__file__).with_name("listing.css"))
