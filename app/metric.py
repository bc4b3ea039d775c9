"""The numbers at the top of a result, each with how it was taken, as HTML for the app and the exported page. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from profiling.words import escaped

Chip = tuple[str, str, str]
"""(severity, short, sentence)"""
NO_VALUE = ("n/a", "–")
"""It could not be had, or was not asked for: then a line below says why."""
SIGNS = {"correct": "correct", "refused": "refused"}


@dataclass(frozen=True)
class Figure:
    """A number as it is shown, what it is called, its unit, its provenance, and one sentence that says how it was taken."""

    text: str
    what: str
    unit: str
    provenance: str
    sentence: str


class Metric(NamedTuple):
    """A label, the value in large, what stands below it by line, and how each number in both was taken.

    kind: 'correct' and 'refused' colour the value and give it a sign. flags: what takes from the number's worth.
    """

    label: str
    value: str
    notes: str = ""
    kind: str = ""
    figures: tuple[Figure, ...] = ()
    flags: tuple[Chip, ...] = ()


def html_of(items: Iterable[Sequence[object]], icon: Callable[[str], str]) -> str:
    """Metrics side by side; the provenance beside a label opens, by pointer or keyboard, how its numbers were taken.

    icon gives the HTML of a sign by its name: a severity, a provenance, 'correct' or 'refused'.
    """
    found = [Metric(*item) for item in items]
    proved = " fs-proved" if any(one.figures for one in found) else ""
    return f'<dl class="fs-metrics{proved}">{"".join(_cell(one, icon) for one in found)}</dl>'


def _cell(one: Metric, icon: Callable[[str], str]) -> str:
    sign = icon(one.kind) if one.kind in SIGNS else ""
    notes = "".join(f'<dd class="fs-note">{escaped(line)}</dd>' for line in one.notes.splitlines())
    badge = "" if one.value in NO_VALUE else _badge(one.figures, icon)
    head = f"<dt>{escaped(one.label)}{badge}</dt>"
    value = f'<dd class="fs-value fs-{one.kind}">{sign}{escaped(one.value)}</dd>'
    return f"<div>{head}{value}{notes}{_flags(one.flags, icon)}{_how(one.figures)}</div>"


def _badge(figures: Sequence[Figure], icon: Callable[[str], str]) -> str:
    """The provenance of the first figure, which is the value."""
    if not figures:
        return ""
    name = figures[0].provenance
    said = " ".join([f"{name}.", *(f"{one.what} {one.text}, {one.provenance}: {one.sentence}" for one in figures)])
    return (
        f'<span class="fs-provenance" tabindex="0" role="note" aria-label="{escaped(said)}">'
        f'{icon(name)}<span aria-hidden="true">{escaped(name)}</span></span>'
    )


def _how(figures: Sequence[Figure]) -> str:
    """What the badge opens: a paragraph a figure. Screen readers have it from the badge."""
    said = "".join(
        f"<p><strong>{escaped(one.what)}</strong> {escaped(f'{one.text} · {one.provenance}')}<br>{escaped(one.sentence)}</p>"
        for one in figures
    )
    return f'<dd class="fs-how" aria-hidden="true">{said}</dd>' if said else ""


def _flags(flags: Sequence[Chip], icon: Callable[[str], str]) -> str:
    """A line a flag: its word, and behind it what was seen and what to do."""
    return "".join(
        f'<dd class="fs-flag"><span class="fs-chip fs-{kind}" tabindex="0" role="note" '
        f'aria-label="{escaped(f"{short}: {sentence}")}">{icon(kind)}{escaped(short)}</span>'
        f'<span class="fs-how" aria-hidden="true">{escaped(sentence)}</span></dd>'
        for kind, short, sentence in flags
    )


def table_of(items: Iterable[Metric]) -> list[dict[str, str]]:
    """Every figure as a row of words: the tooltips for who reads rather than points."""
    return [
        {
            "figure": figure.what,
            "value": figure.text,
            "unit": figure.unit,
            "provenance": figure.provenance,
            "how it was taken": figure.sentence,
        }
        for one in items
        for figure in one.figures
    ]
