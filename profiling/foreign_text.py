"""Text that people wrote and files brought: made one form, freed of what is invisible, bounded. Pure."""

from __future__ import annotations

import unicodedata
from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator

MAX_NAME, MAX_TAG, MAX_NOTE, MAX_TAGS = 120, 40, 10_000, 20
# Control characters, and the format characters that reorder or hide text; the joiners that emoji and scripts need stay.
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_KEPT = {"\u200c", "\u200d"}


def cleaned(text: str, lines: bool = False) -> str:
    """The text in NFC without control, bidirectional or private characters, trimmed; lines keeps line breaks and tabs."""
    kept = _KEPT | ({"\n", "\t"} if lines else set())
    normal = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    spaced = normal if lines else normal.replace("\n", " ").replace("\t", " ")
    return "".join(mark for mark in spaced if mark in kept or unicodedata.category(mark) not in _HIDDEN).strip()


def _bounded(what: str, text: str, most: int) -> str:
    if len(text) > most:
        raise ValueError(f"{what} of {len(text):,} characters is not possible: it can be {most:,} at most.")
    return text


def _name(text: str) -> str:
    return _bounded("a name", cleaned(text), MAX_NAME)


def _title(text: str) -> str:
    if not cleaned(text):
        raise ValueError("a title without a visible character is not possible: it needs at least one.")
    return _name(text)


def _tag(text: str) -> str:
    found = cleaned(text).casefold()
    if not found:
        raise ValueError("a tag without a visible character is not possible: it needs at least one.")
    return _bounded("a tag", found, MAX_TAG)


def _note(text: str) -> str:
    return _bounded("a note", cleaned(text, lines=True), MAX_NOTE)


def _tags(found: tuple[str, ...]) -> tuple[str, ...]:
    if len(found) > MAX_TAGS:
        raise ValueError(f"{len(found)} tags are not possible: there can be {MAX_TAGS} at most.")
    return tuple(sorted(set(found)))


def _moment(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text[:60]!r} is not a moment: it is written as 2026-11-29T20:15:00+00:00.") from None
    if moment.tzinfo is None or not 2000 <= moment.year <= 9000:
        raise ValueError(f"{text[:60]!r} is not a moment with its time zone, in the years 2000 to 9000.")
    return text


Name = Annotated[str, AfterValidator(_name)]
Title = Annotated[str, AfterValidator(_title)]
Note = Annotated[str, AfterValidator(_note)]
Tag = Annotated[str, AfterValidator(_tag)]
Tags = Annotated[tuple[Tag, ...], AfterValidator(_tags)]
Moment = Annotated[str, AfterValidator(_moment)]
