"""The player's two source files as text, the palette of both themes in the style. Pure: no Streamlit."""

from __future__ import annotations

from pathlib import Path

from app.figures.style import DARK, LIGHT, Palette

SCRIPT = Path(__file__).with_name("player.js").read_text(encoding="utf-8")
_CSS = Path(__file__).with_name("player.css").read_text(encoding="utf-8")


def _colors(theme: str, palette: Palette, zero: str, ramp_end: str) -> str:
    """The palette as the variables that player.css and player.js read."""
    values = {
        "bg": palette.background,
        "fg": palette.text,
        "muted": palette.muted,
        "line": palette.line,
        "track": palette.track,
        "m": palette.progress,
        "on-m": palette.background,
        "alpha": palette.work_lost,
        "l": palette.correct,
        "here": palette.here,
        "zero": zero,
        "ramp-end": ramp_end,
    }
    return f".fs-player[data-theme={theme}]{{{';'.join(f'--{name}:{value}' for name, value in values.items())}}}\n"


STYLE = _colors("light", LIGHT, "#FAFAF8", "#083D6E") + _colors("dark", DARK, "#161D2B", "#D6ECFA") + _CSS
