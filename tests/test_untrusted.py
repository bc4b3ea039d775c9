"""Bytes from anywhere become a value or one sentence, within the limits on time and memory."""

from __future__ import annotations

import codecs
import gzip
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling import untrusted
from profiling.untrusted import MAX_BYTES_BEYOND_ASCII, MAX_DEPTH, MAX_RAW_BYTES, MAX_VALUES, NotASnapshot, json_in
from tests.bombs import BOMBS
from tests.reading_process import Reader

MOST_SECONDS, MOST_RSS_MB = 2.0, 300.0
QUICK_BOMBS = (
    "gzip of 49 MB of blanks", "2.5 million arrays in one another", "as many objects as are allowed",
    "a text of 49 million letters and an emoji", "a title of 300,000 marks on one letter", "45,000 unknown fields",
)  # fmt: skip


def packed(data: bytes) -> bytes:
    """As gzip, the same bytes every time: they are in the names of tests."""
    return gzip.compress(data, mtime=0)


def said_of(data: bytes) -> str:
    with pytest.raises(NotASnapshot) as caught:
        json_in(data)
    sentence = str(caught.value)
    assert sentence.endswith("."), sentence
    return sentence


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "This file is empty."),
        (b" " * (MAX_RAW_BYTES + 1), "A file of 5,000,001 bytes is not possible: a snapshot has 5,000,000 at most."),
        (codecs.BOM_UTF8 + b"{}", "byte order mark"),
        ('{"a": 1}'.encode("utf-16"), "UTF-16"),
        ('{"a": 1}'.encode("utf-16-le"), "UTF-16"),
        ('{"a": 1}'.encode("utf-16-be"), "UTF-16"),
        ('{"a": 1}'.encode("utf-32"), "UTF-32"),
        (packed('{"a": 1}'.encode("utf-16")), "UTF-16"),
        (b"PK\x03\x04" + b"\0" * 30, "zip archive"),
        (b"\x80\x04\x95", "pickle"),
        (b"\x89PNG\r\n", "it begins with the byte 0x89"),
        (b"hello", "it begins with the byte 0x68"),
        (packed(b""), "This gzip file holds nothing."),
        (packed(b"{}") + packed(b"{}"), "Something follows the gzip stream"),
        (packed(b"{}") + b"\0", "Something follows the gzip stream"),
        (packed(b"{}")[:-1], "cut off"),
        (packed(b"{}")[:5], "cut off"),
        (packed(b"{}")[:-5] + b"\xff" * 5, "incorrect data check"),
        (b"\x1f\x8b\x08\xff", "damaged"),
        (packed(b'{"a": '), "This is not JSON"),
        (b'{"a": 1} 2', "This is not JSON: trailing characters at line 1 column 10."),
        (b'{"a": 01}', "invalid number"),
        (b"{'a': 1}", "key must be a string"),
        (b'{"a": 1,}', "trailing comma"),
        (b'{"a": tru}', "This is not JSON"),
        (b'{"a": "\xff"}', "invalid unicode"),
        (b'{"a": "\xed\xa0\x80"}', "invalid unicode"),
        (b'{"a": "\\ud800"}', "This is not JSON"),
        (b'{"a": "\\ud800\\ud800"}', "This is not JSON"),
        (b'{"a": "\x01"}', "control character"),
        (b'{"a": NaN}', "not finite"),
        (b'{"a": -Infinity}', "not finite"),
        (b'{"a": [1e999]}', "not finite"),
        (b'{"a": 1, "b": {"c": 2, "d": 3, "c": 2}}', "An object names 'c' twice"),
        (b'{"a": 1, "\\u0061": 2}', "An object names 'a' twice"),
        (b'{"a": 9223372036854775808}', "A whole number of 64 bits is not possible"),
        (b'{"a": -9223372036854775809}', "is not possible"),
        (b'{"a": ' + b"1" * 4000 + b"}", "bits is not possible"),
        (b'{"a": ' + b"1" * 5000 + b"}", "number out of range"),
        (b"[" * 33 + b"]" * 33, "nests deeper than 32 levels"),
        (b"[" + b"]" * 9, "closes what was never opened"),
        (b'["' + b"\\u00e9" * (MAX_BYTES_BEYOND_ASCII // 6 + 1) + b'"]', "bytes of text beyond ASCII"),
    ],
)  # fmt: skip
def test_what_is_no_value_gets_one_sentence(data: bytes, said: str) -> None:
    assert said in said_of(data)


def test_what_is_just_within_the_limits_is_read() -> None:
    assert json_in(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH).count == MAX_DEPTH
    numbers = b"[" + b",".join([b"7"] * MAX_VALUES) + b"]"
    assert json_in(numbers).value == [7] * MAX_VALUES
    assert "more than 1,000,000 values" in said_of(numbers[:-1] + b",7]")
    limits = [2**63 - 1, -(2**63), 1.7976931348623157e308, 5e-324]
    assert json_in(json.dumps(limits).encode()).value == limits
    letters = "é" * (MAX_BYTES_BEYOND_ASCII // 2)
    assert json_in(f'["{letters}"]'.encode()).value == [letters]
    assert "beyond ASCII" in said_of(f'["{letters}a"]'.encode())


def test_a_file_is_known_by_its_content_whole_and_packed() -> None:
    text = b'{"a": [1, -0.0, "\\ud83d\\ude00"]}'
    for data in (text, packed(text), b"\n \t" + text + b"\n"):
        found = json_in(data)
        assert found.value == {"a": [1, 0.0, "😀"]}
        assert str(found.value["a"][1]) == "-0.0"
    assert json_in(packed(text)).document == text


texts = st.text(st.characters(codec="utf-8"), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | texts | st.sampled_from(['\\"{[,:', "\\\\", '"', "é😀", "\\u"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


def counted(value: Any) -> tuple[int, int]:
    """(field names, what the scan counts: a comma or an opening bracket for each value, a colon for each name)."""
    if isinstance(value, dict):
        inner = [counted(one) for one in value.values()]
        names = len(value) + sum(found[0] for found in inner)
        return names, 1 + max(0, len(value) - 1) + len(value) + sum(found[1] for found in inner)
    if isinstance(value, list):
        inner = [counted(one) for one in value]
        return sum(found[0] for found in inner), 1 + max(0, len(value) - 1) + sum(found[1] for found in inner)
    return 0, 0


def bytes_beyond_ascii(text: str) -> int:
    """By the standard library's own splitting of JSON text into strings."""
    total, place = 0, 0
    while (start := text.find('"', place)) >= 0:
        _, place = json.decoder.scanstring(text, start + 1)
        inner = text[start + 1 : place - 1]
        wide = not inner.isascii() or "\\u" in inner.replace("\\\\", "__")
        total += len(inner.encode()) * wide
    return total


@settings(max_examples=300, deadline=None)
@given(values, st.booleans(), st.integers(1, 7))
def test_the_scan_counts_what_is_there_wherever_the_pieces_are_cut(value: Any, ascii_only: bool, size: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    scan, data = untrusted._Scan(), text.encode()
    for start in range(0, len(data), size):
        scan.feed(data[start : start + size])
    assert (scan.names, scan.count) == counted(value)
    assert scan._bytes_beyond_ascii == bytes_beyond_ascii(text)
    assert scan._depth == 0
    assert not scan._is_open


@settings(max_examples=200, deadline=None)
@given(values)
def test_a_value_is_what_the_standard_library_reads(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        data = text.encode()
        if data[:1] in untrusted._JSON_BEGINS_WITH:
            assert repr(json_in(data).value) == repr(json.loads(text))


def check_bomb(name: str) -> str:
    """Have a bomb read by a fresh process; its figures, once they are within the limits."""
    data = BOMBS[name]()
    assert len(data) <= 16_000_000
    with Reader() as reader:
        answer = reader.read(data)
    figures = f"{answer.cpu_seconds:.2f} s of CPU, {answer.seconds:.2f} s, {answer.peak_rss_mb:.0f} MB: {name}"
    assert answer.cpu_seconds <= MOST_SECONDS, figures
    assert answer.peak_rss_mb <= MOST_RSS_MB, figures
    assert answer.kind != "sentence" or (len(answer.text) < 400 and answer.text.endswith(".")), answer.text
    return figures


@pytest.mark.parametrize("name", QUICK_BOMBS)
def test_a_bomb_is_given_up_in_time(name: str) -> None:
    check_bomb(name)


@pytest.mark.long
def test_every_bomb_is_given_up_in_time() -> None:
    assert len(BOMBS) >= 50
    figures = [check_bomb(name) for name in BOMBS]
    print(*sorted(figures, reverse=True), sep="\n")
