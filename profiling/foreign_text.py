"""Text that people wrote and files brought: made one form, freed of what is invisible, bounded. Pure.

Cleaning twice is cleaning once, under every version of Python: a snapshot's id rests on it. So characters that this
Python's Unicode does not know yet stay, and text is composed (NFC) after the last character was taken out.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator

MAX_NAME, MAX_TAG, MAX_NOTE, MAX_TAGS = 120, 40, 10_000, 20
# Control characters, and the format characters that reorder or hide text; the joiners that emoji and scripts need stay.
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
_KEPT = {"\u200c", "\u200d"}
_LINES = {"\n", "\t"}
# Unicode's stream-safe format (UAX #15, section 13): more marks on one character are no language, and slow to put in order.
_MOST_MARKS = 30
# Letters and symbols by their category, with nothing to be seen: Hangul fillers, the blank Braille pattern.
_BLANK = {"\u115f", "\u1160", "\u3164", "\uffa0", "\u2800"}
_DECOMPOSED = 4  # A composed character that a person types has been at most four.
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})")


def cleaned(text: str, lines: bool = False) -> str:
    """The text in NFC without control, bidirectional or private characters, trimmed; lines keeps line breaks and tabs."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not lines:
        text = text.replace("\n", " ").replace("\t", " ")
    return unicodedata.normalize("NFC", "".join(_few_marks(_shown(text, lines)))).strip()


def printable(text: str) -> str:
    """A program's text, line breaks and tabs kept, without the characters that hide or reorder text or steer a terminal."""
    return text if text.isprintable() else "".join(_shown(text, lines=True))


def is_visible(text: str) -> bool:
    """Whether there is anything to see in it."""
    return any(unicodedata.category(mark)[0] in "LNPS" and mark not in _BLANK for mark in text)


def _shown(text: str, lines: bool) -> Iterator[str]:
    kept = _KEPT | _LINES if lines else _KEPT
    return (mark for mark in text if mark in kept or unicodedata.category(mark) not in _HIDDEN)


def _few_marks(text: Iterable[str]) -> Iterator[str]:
    marks = 0
    for mark in text:
        marks = marks + 1 if unicodedata.combining(mark) else 0
        if marks <= _MOST_MARKS:
            yield mark


def _bounded(what: str, text: str, most: int) -> str:
    if len(text) > most:
        raise ValueError(f"{what} of {len(text):,} characters is not possible: it can be {most:,} at most.")
    return text


def _clean_and_bounded(what: str, text: str, most: int, lines: bool = False) -> str:
    """Cleaned, and bounded before and after: what cleaning takes out or composes counts four to one."""
    if len(text) > _DECOMPOSED * most:
        return _bounded(what, text, most)
    return _bounded(what, cleaned(text, lines), most)


def _name(text: str) -> str:
    return _clean_and_bounded("a name", text, MAX_NAME)


def _title(text: str) -> str:
    title = _clean_and_bounded("a title", text, MAX_NAME)
    if not is_visible(title):
        raise ValueError("a title without a visible character is not possible: it needs at least one.")
    return title


def _tag(text: str) -> str:
    found = unicodedata.normalize("NFC", _clean_and_bounded("a tag", text, MAX_TAG).casefold())
    if not is_visible(found):
        raise ValueError("a tag without a visible character is not possible: it needs at least one.")
    return _bounded("a tag", found, MAX_TAG)


def _note(text: str) -> str:
    return _clean_and_bounded("a note", text, MAX_NOTE, lines=True)


def _tags(found: tuple[str, ...]) -> tuple[str, ...]:
    if len(found) > MAX_TAGS:
        raise ValueError(f"{len(found):,} tags are not possible: there can be {MAX_TAGS} at most.")
    return tuple(sorted(set(found)))


def _moment(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text) if _MOMENT.fullmatch(text) else None
    except ValueError:
        moment = None
    if moment is None or not 2000 <= moment.year <= 9000:
        raise ValueError(
            f"{text[:40]!r} is not a moment: it is written as 2026-11-29T20:15:00+00:00, in the years 2000 to 9000."
        )
    return text


Name = Annotated[str, AfterValidator(_name)]
Title = Annotated[str, AfterValidator(_title)]
Note = Annotated[str, AfterValidator(_note)]
Tag = Annotated[str, AfterValidator(_tag)]
Tags = Annotated[tuple[Tag, ...], AfterValidator(_tags)]
Moment = Annotated[str, AfterValidator(_moment)]
