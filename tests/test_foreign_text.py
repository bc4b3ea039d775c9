"""Text of people and files: one form, nothing hidden, bounded; cleaned twice is cleaned once."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from profiling.foreign_text import MAX_NAME, MAX_NOTE, MAX_TAG, Moment, Name, Note, Tags, Title, cleaned, is_visible, printable

any_text = st.text(st.characters(codec="utf-8")) | st.text(
    st.sampled_from("aeéEǰİßﬁK\u0301\u0323\u0345\u200b\u200d\u202e\u1161\u11a8가\ufb1d\n\t\r \u2028\u00a0\U0001f468")
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  a  ", "a"),
        ("a\r\nb\tc", "a b c"),
        ("e\u0301", "é"),
        ("e\u200b\u0301", "é"),
        ("a\u202eb\u2066c\u200f", "abc"),
        ("\x00a\x1b[31m", "a[31m"),
        ("a\ue000\ufeff\u00ad", "a"),
        ("👩\u200d🔬", "👩\u200d🔬"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("a\u2028b\u2029c", "abc"),
        ("\U0001fae9", "\U0001fae9"),  # assigned in Unicode 16, which older Pythons do not know
        ("a" + "\u0301" * 500, unicodedata.normalize("NFC", "a" + "\u0301" * 30)),
    ],
)
def test_cleaned(text: str, expected: str) -> None:
    assert cleaned(text) == expected


def test_lines_stay_in_a_note_alone() -> None:
    assert cleaned("a\r\n\tb\rc", lines=True) == "a\n\tb\nc"


@settings(max_examples=500, deadline=None)
@given(any_text, st.booleans())
def test_cleaning_twice_is_cleaning_once(text: str, lines: bool) -> None:
    once = cleaned(text, lines)
    assert cleaned(once, lines) == once
    assert unicodedata.is_normalized("NFC", once)
    assert printable(printable(text)) == printable(text)
    hidden = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    assert {mark for mark in once if unicodedata.category(mark) in hidden} <= {"\u200c", "\u200d", "\n", "\t"}


@settings(max_examples=300, deadline=None)
@given(st.lists(any_text, max_size=3))
def test_fields_take_their_own_output(texts: list[str]) -> None:
    for kind in (Name, Title, Note):
        adapter = TypeAdapter(kind)
        for text in texts:
            try:
                once = adapter.validate_python(text)
            except ValidationError:
                continue
            assert adapter.validate_python(once) == once
    adapter = TypeAdapter(Tags)
    try:
        once = adapter.validate_python(tuple(texts))
    except ValidationError:
        return
    assert adapter.validate_python(once) == once == tuple(sorted(set(once)))


@pytest.mark.parametrize("text", ["", " ", "\u200b", "\u200d", "\u3164", "\u2800", "\u0301", "\u00a0\u3000"])
def test_what_cannot_be_seen_is_no_title_and_no_tag(text: str) -> None:
    assert not is_visible(cleaned(text))
    for kind, value in ((Title, text), (Tags, (text,))):
        with pytest.raises(ValidationError, match="without a visible character is not possible"):
            TypeAdapter(kind).validate_python(value)


@pytest.mark.parametrize(
    ("kind", "most", "what"), [(Name, MAX_NAME, "a name"), (Title, MAX_NAME, "a title"), (Note, MAX_NOTE, "a note")]
)
def test_lengths_are_bounded_after_cleaning(kind: object, most: int, what: str) -> None:
    adapter = TypeAdapter(kind)
    assert adapter.validate_python("x" * most) == "x" * most
    assert len(adapter.validate_python("e\u0301" * most)) == most
    with pytest.raises(ValidationError, match=f"{what} of {most + 1:,} characters is not possible: it can be {most:,} at most"):
        adapter.validate_python("x" * (most + 1))


def test_tags_are_one_of_a_kind_in_order() -> None:
    adapter = TypeAdapter(Tags)
    assert adapter.validate_python(("Straße", "b", "STRASSE", " B ")) == ("b", "strasse")
    with pytest.raises(ValidationError, match="21 tags are not possible"):
        adapter.validate_python(tuple(f"tag {number}" for number in range(21)))
    with pytest.raises(ValidationError, match="a tag of 41 characters"):
        adapter.validate_python(("x" * (MAX_TAG + 1),))


@pytest.mark.parametrize("text", ["2026-11-29T20:15:00+00:00", "2026-11-29T20:15:00.123456-11:30", "2000-01-01T00:00:00Z"])
def test_a_moment_has_its_time_zone(text: str) -> None:
    assert TypeAdapter(Moment).validate_python(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "now", "2026-11-29", "2026-11-29T20:15:00", "2026-02-30T00:00:00Z", "1999-12-31T23:59:59Z", "9001-01-01T00:00:00Z",
        "2026-11-29T20:15:00+24:00", "20261129T201500Z", "2026-W48-7T20:15:00+00:00", "٢٠٢٦-11-29T20:15:00Z",
        "2026-11-29T20:15:00Z\n", "x" * 10_000_000,
    ],
)  # fmt: skip
def test_what_is_no_moment_is_named(text: str) -> None:
    with pytest.raises(ValidationError, match="is not a moment: it is written as 2026-11-29T20:15:00") as caught:
        TypeAdapter(Moment).validate_python(text)
    assert len(caught.value.errors()[0]["msg"]) < 250


def test_marks_out_of_order_take_no_time() -> None:
    begin = time.process_time()
    assert len(cleaned("a" + "\u0301\u0316" * 100_000)) <= 31
    with pytest.raises(ValidationError, match="a note of 10,000,000 characters"):
        TypeAdapter(Note).validate_python("\u0301\u0316" * 5_000_000)
    assert time.process_time() - begin < 1.0
