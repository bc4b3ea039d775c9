"""Two texts of the compiler against each other, without what differs for no reason: addresses, numbers of registers. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from profiling.assembly_text import Row

CONTEXT = 3
_SAME = {
    "sass": (
        (re.compile(r"^\s*/\*[0-9a-f]+\*/\s*"), ""),
        (re.compile(r"\.reuse\b"), ""),
        (re.compile(r"\b(UR|UP|R|P|B|SB|gsb)\d+\b"), r"\1"),
        (re.compile(r"\.L_x_\d+"), ".L"),
        (re.compile(r"\s*\(\*.*?\*\)"), ""),
        (re.compile(r"\s+"), " "),
    ),
    "ptx": (
        (re.compile(r"%(rd|rs|r|f|fd|p|b|rb|rl)\d+\b"), r"%\1"),
        (re.compile(r"\$L__(\w*?)\d+(?:_\d+)?\b"), r"$L"),
        (re.compile(r"\s*//.*$"), ""),
        (re.compile(r"\s+"), " "),
    ),
    "llir": ((re.compile(r"%\"?[\w.]+\"?"), "%"), (re.compile(r"#\d+"), "#"), (re.compile(r"!\d+"), "!")),
    "ttgir": ((re.compile(r"%\w+(?:#\d+)?(?::\d+)?"), "%"), (re.compile(r"#loc\d*"), "#loc")),
}
_SAME["ttir"] = _SAME["ttgir"]


@dataclass(frozen=True)
class DiffLine:
    """A line of a unified diff: mark is ' ', '-', '+' or '@'; text is as compared; rows: where it stands in each text."""

    mark: str
    text: str
    rows: tuple[int | None, int | None] = (None, None)


def comparable(stage: str, rows: Sequence[Row]) -> list[tuple[int, str]]:
    """(place, text) of the lines that are no noise, with registers, labels and addresses without their numbers."""
    return [(place, text) for place, row in enumerate(rows) if not row.is_noise and (text := _same(stage, row.shown))]


def _same(stage: str, text: str) -> str:
    for pattern, instead in _SAME[stage]:
        text = pattern.sub(instead, text)
    return text.rstrip(" ;") if stage == "sass" else text.rstrip()


def unified(stage: str, before: Sequence[Row], after: Sequence[Row], context: int = CONTEXT) -> list[DiffLine]:
    """The differences with lines around them; empty where there are none."""
    old, new = comparable(stage, before), comparable(stage, after)
    matcher = difflib.SequenceMatcher(None, [text for _, text in old], [text for _, text in new], autojunk=False)
    found: list[DiffLine] = []
    for group in matcher.get_grouped_opcodes(context):
        (_, i1, _, j1, _), (_, _, i2, _, j2) = group[0], group[-1]
        found.append(DiffLine("@", f"lines {i1 + 1}–{i2} and {j1 + 1}–{j2}"))
        for tag, low, high, first, end in group:
            found += _lines(tag, old[low:high], new[first:end])
    return found


def _lines(tag: str, old: list[tuple[int, str]], new: list[tuple[int, str]]) -> Iterator[DiffLine]:
    if tag == "equal":
        for (was, text), (now, _) in zip(old, new, strict=True):
            yield DiffLine(" ", text, (was, now))
        return
    for was, text in old:
        yield DiffLine("-", text, (was, None))
    for now, text in new:
        yield DiffLine("+", text, (None, now))
