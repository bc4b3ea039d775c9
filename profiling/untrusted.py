"""Bytes from anywhere to a JSON value, within limits: size before and after gzip, depth, count, finite numbers, no duplicates.

What a value will cost is known before it is made: the text is expanded and scanned in pieces, and given up at the first
limit it passes. Neither zip nor pickle nor YAML is read. Whatever the bytes are, the answer is a value or one sentence.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic_core import from_json

MAX_RAW_BYTES, MAX_EXPANDED_BYTES = 5_000_000, 50_000_000
MAX_DEPTH, MAX_VALUES = 32, 1_000_000
# A string takes one byte a character, and up to four as soon as one character of it is not ASCII.
MAX_BYTES_BEYOND_ASCII = 4_000_000
_PIECE_BYTES, _GZIP_PIECE_BYTES = 1 << 18, 1 << 14
_LARGEST_TO_NAME_THE_FIELD = 1_000_000
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[{]}")
_STARTS = {
    b"\xef\xbb\xbf": "This file begins with a byte order mark: a snapshot is UTF-8 without one.",
    b"\xff\xfe": "This file is UTF-16 or UTF-32 text: a snapshot is UTF-8.",
    b"\xfe\xff": "This file is UTF-16 or UTF-32 text: a snapshot is UTF-8.",
    b"\0": "This file is UTF-16 or UTF-32 text, or no text at all: a snapshot is UTF-8.",
    b"{\0": "This file is UTF-16 or UTF-32 text: a snapshot is UTF-8.",
    b"PK\x03\x04": "This is a zip archive: a snapshot is one JSON file, or gzip of one.",
    b"\x80": "This is a Python pickle or other binary data, which is never read: a snapshot is JSON, or gzip of it.",
}
_JSON_BEGINS_WITH = b'{["-0123456789tfnNI'


class NotASnapshot(ValueError):
    """Why bytes are no snapshot, in one sentence."""


@dataclass(frozen=True)
class Json:
    """A JSON text, its value, and how many values there are in it: numbers, texts, objects, arrays, field names."""

    document: bytes
    value: Any
    count: int


def json_in(data: bytes) -> Json:
    """The JSON text in the bytes, expanded if they are gzip, and its value. Raises NotASnapshot."""
    if len(data) > MAX_RAW_BYTES:
        raise NotASnapshot(f"A file of {len(data):,} bytes is not possible: a snapshot has {MAX_RAW_BYTES:,} at most.")
    if not data:
        raise NotASnapshot("This file is empty.")
    document, scan = _scanned(data)
    return Json(document, _value(document, scan), scan.count)


def _scanned(data: bytes) -> tuple[bytes, _Scan]:
    scan, pieces = _Scan(), []
    for piece in _pieces(data):
        if not pieces:
            _refuse_other_files(piece)
        scan.feed(piece)
        pieces.append(piece)
    return b"".join(pieces), scan


def _pieces(data: bytes) -> Iterator[bytes]:
    if data[:2] == b"\x1f\x8b":
        return _expanded(data)
    return (data[start : start + _PIECE_BYTES] for start in range(0, len(data), _PIECE_BYTES))


def _expanded(data: bytes) -> Iterator[bytes]:
    """What one gzip stream expands to, a piece at a time."""
    expander, total = zlib.decompressobj(wbits=31), 0
    for start in range(0, len(data), _GZIP_PIECE_BYTES):
        waiting = data[start : start + _GZIP_PIECE_BYTES]
        while waiting and not expander.eof:
            try:
                piece = expander.decompress(waiting, _PIECE_BYTES)
            except zlib.error as error:
                raise NotASnapshot(f"This gzip file is damaged: {error}.") from None
            total += len(piece)
            if total > MAX_EXPANDED_BYTES:
                raise NotASnapshot(f"This file expands to more than {MAX_EXPANDED_BYTES:,} bytes, the most a snapshot has.")
            if piece:
                yield piece
            waiting = expander.unconsumed_tail
        if expander.eof and (expander.unused_data or start + _GZIP_PIECE_BYTES < len(data)):
            raise NotASnapshot("Something follows the gzip stream in this file: a snapshot is one stream and nothing else.")
    if not expander.eof:
        raise NotASnapshot("This gzip file is cut off: its end is missing.")
    if not total:
        raise NotASnapshot("This gzip file holds nothing.")


def _refuse_other_files(beginning: bytes) -> None:
    for start, sentence in _STARTS.items():
        if beginning.startswith(start):
            raise NotASnapshot(sentence)
    first = beginning.lstrip(b" \t\r\n")[:1]
    if first and first not in _JSON_BEGINS_WITH:
        raise NotASnapshot(f"This is neither JSON nor gzip: it begins with the byte 0x{first.hex()}.")


class _Scan:
    """Counts, piece by piece, what a JSON text will be as a value; raises NotASnapshot as soon as that is too much.

    It need not see whether the text is JSON: up to the place where a parser stops, both see the same.
    """

    def __init__(self) -> None:
        self.count, self.names = 0, 0
        self._quotes = self._depth = self._bytes_beyond_ascii = 0
        self._backslash = b""
        # Of the string that the last piece ended in:
        self._is_open, self._length, self._is_wide = False, 0, False

    def feed(self, piece: bytes) -> None:
        """Count the next piece."""
        piece = self._backslash + piece
        backslashes = len(piece) - len(piece.rstrip(b"\\"))
        self._backslash = b"\\" if backslashes % 2 else b""
        plain = piece[: len(piece) - len(self._backslash)].replace(b"\\\\", b"__").replace(b'\\"', b"__")
        parts = plain.split(b'"')
        inside, outside = (parts[::2], parts[1::2]) if self._is_open else (parts[1::2], parts[::2])
        self._quotes += len(parts) - 1
        self._is_open ^= len(parts) % 2 == 0
        self._structure(b"".join(outside))
        self._texts(inside, may_be_wide=_is_wide(plain))

    def _structure(self, outside: bytes) -> None:
        names = outside.count(b":")
        self.names += names
        self.count += names + outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        if max(self.count, self._quotes // 2) > MAX_VALUES:
            raise NotASnapshot(f"This file holds more than {MAX_VALUES:,} values, the most a snapshot has.")
        steps = np.frombuffer(outside.translate(_STEPS, _NO_BRACKETS), dtype=np.int8)
        if len(steps):
            depths = self._depth + np.cumsum(steps, dtype=np.int64)
            self._depth = int(depths[-1])
            if depths.min() < 0:
                raise NotASnapshot("This is not JSON: a bracket closes what was never opened.")
            if depths.max() > MAX_DEPTH:
                raise NotASnapshot(f"This file nests deeper than {MAX_DEPTH} levels, the most a snapshot has.")

    def _texts(self, inside: list[bytes], may_be_wide: bool) -> None:
        """Add up the lengths of the strings that are not ASCII; the last of them is not closed yet if _is_open says so."""
        if not (may_be_wide or self._is_wide) and len(inside) > 1:
            inside, self._length = inside[-1:], 0
        for place, text in enumerate(inside, start=1):
            self._length += len(text)
            self._is_wide = self._is_wide or (may_be_wide and _is_wide(text))
            if place < len(inside) or not self._is_open:
                self._bytes_beyond_ascii += self._length * self._is_wide
                self._length, self._is_wide = 0, False
        if self._bytes_beyond_ascii + self._length * self._is_wide > MAX_BYTES_BEYOND_ASCII:
            raise NotASnapshot(
                f"This file holds more than {MAX_BYTES_BEYOND_ASCII:,} bytes of text beyond ASCII, the most a snapshot has."
            )


def _is_wide(text: bytes) -> bool:
    return not text.isascii() or b"\\u" in text


def _value(document: bytes, scan: _Scan) -> Any:
    try:
        value = from_json(document)
    except ValueError as error:
        raise NotASnapshot(f"This is not JSON: {error}.") from None
    if _names_checked(value) < scan.names:
        raise NotASnapshot(f"An object names {_field_named_twice(document)} twice: a snapshot names each field once.")
    return value


def _names_checked(value: Any) -> int:
    """How many fields the value names. Raises NotASnapshot for a number that is not finite or has more than 64 bits."""
    names, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        kind = type(one)
        if kind is dict:
            names += len(one)
            waiting.extend(one.values())
        elif kind is list:
            waiting.extend(one)
        elif kind is float and not math.isfinite(one):
            raise NotASnapshot("A number that is not finite, or beyond 1.8e308, is not possible: a snapshot has none.")
        elif kind is int and not -(2**63) <= one < 2**63:
            raise NotASnapshot(f"A whole number of {one.bit_length()} bits is not possible: a snapshot's have 64 at most.")
    return names


def _field_named_twice(document: bytes) -> str:
    if len(document) > _LARGEST_TO_NAME_THE_FIELD:
        return "a field"
    found: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        found.extend(name for name, _ in pairs if name in seen or seen.add(name))

    json.loads(document, object_pairs_hook=look)
    return repr(found[0][:40])
