"""Script and style of a canvas as text: what all share, the palette of both themes, then its own file. Pure: no Streamlit."""

from __future__ import annotations

from pathlib import Path

from app.figures.style import DARK, LIGHT, Palette

_HERE = Path(__file__).parent


def script_of(*own: Path) -> str:
    """One module: canvas.js and then the canvas's own files, in this order."""
    return "".join(map(_text, (_HERE / "canvas.js", *own)))


def style_of(own: Path) -> str:
    """The palette as variables, canvas.css, and then the canvas's own file."""
    return (
        _colors("light", LIGHT, zero="#FAFAF8", ramp_end="#083D6E", faint="#DCEAF5", deep="#083D6E")
        + _colors("dark", DARK, zero="#161D2B", ramp_end="#D6ECFA", faint="#17344A", deep="#B0DBF6")
        + _text(_HERE / "canvas.css")
        + _text(own)
    )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _colors(theme: str, palette: Palette, zero: str, ramp_end: str, faint: str, deep: str) -> str:
    """The palette as the variables that the styles and the scripts read; step-0 to step-4: a ramp that background never is."""
    steps = (faint, palette.v1, palette.v2, palette.v3, deep)
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
        "busy": palette.v2,
        "zero": zero,
        "ramp-end": ramp_end,
    } | {f"step-{place}": color for place, color in enumerate(steps)}
    return f".fs-canvas[data-theme={theme}]{{{';'.join(f'--{name}:{value}' for name, value in values.items())}}}\n"
