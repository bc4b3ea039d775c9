"""Bytes from anywhere to a JSON value, within limits: size before and after gzip, depth, count, finite numbers, no duplicates.

Neither zip nor pickle nor YAML is read. Whatever the bytes are, the answer is a value or one sentence.
"""

from __future__ import annotations

import json
import math
import zlib
from typing import Any

MAX_RAW_BYTES, MAX_EXPANDED_BYTES = 5_000_000, 50_000_000
MAX_DEPTH, MAX_VALUES = 32, 1_000_000


class NotASnapshot(ValueError):
    """Why bytes are no snapshot, in one sentence."""


def json_in(data: bytes) -> tuple[bytes, Any]:
    """The JSON text in the bytes, expanded if they are gzip, and its value. Raises NotASnapshot."""
    if len(data) > MAX_RAW_BYTES:
        raise NotASnapshot(f"A file of {len(data):,} bytes is not possible: a snapshot has {MAX_RAW_BYTES:,} at most.")
    document = _expanded(data) if data[:2] == b"\x1f\x8b" else data
    return document, _value(document)


def _expanded(data: bytes) -> bytes:
    expander = zlib.decompressobj(wbits=31)
    try:
        document = expander.decompress(data, MAX_EXPANDED_BYTES + 1)
    except zlib.error as error:
        raise NotASnapshot(f"This gzip file is damaged: {error}.") from None
    if len(document) > MAX_EXPANDED_BYTES:
        raise NotASnapshot(f"This file expands to more than {MAX_EXPANDED_BYTES:,} bytes, the most a snapshot has.")
    if not expander.eof or expander.unused_data:
        raise NotASnapshot("This gzip file is cut off, or something follows it.")
    return document


def _value(document: bytes) -> Any:
    try:
        return json.loads(document.decode("utf-8"), parse_constant=_not_finite, parse_float=_float, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        if isinstance(error, NotASnapshot):
            raise
        raise NotASnapshot(f"This is not JSON: {error}.") from None


def _not_finite(text: str) -> float:
    raise NotASnapshot(f"{text} is not possible: a snapshot's numbers are finite.")


def _float(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _not_finite(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise NotASnapshot("An object names a field twice: a snapshot names each once.")
    return found
