"""Arrays as one blob of bytes for a script: [u32 header length][JSON header, padded to 16][typed arrays]. Pure.

The same input gives the same bytes. canvas.js reads it: unpacked().
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

FORMAT = 1
_TYPES = {"|u1": "u1", "<u2": "u2", "<i4": "i4", "<f4": "f4", "<f8": "f8"}
_ALIGNED = 8


def blob_of(name: str, parts: Sequence[tuple[dict[str, Any], Mapping[str, np.ndarray]]], **header: Any) -> bytes:
    """The parts under that name in the header: the facts of each, and where its arrays are, as [type, offset, count].

    The header's id stands for the parts alone; what else is put into the header does not change it.
    """
    content = b"".join(_padded(np.ascontiguousarray(array).tobytes()) for _, arrays in parts for array in arrays.values())
    placed = _placed(parts)
    said = json.dumps(placed, sort_keys=True, allow_nan=False).encode()
    whole = {"format": FORMAT, "id": hashlib.sha256(said + content).hexdigest(), name: placed, **header}
    text = json.dumps(whole, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-(len(text) + 4) % 16)
    return struct.pack("<I", len(text)) + text + content


def _padded(data: bytes) -> bytes:
    """Every array starts where a float64 may."""
    return data + b"\0" * (-len(data) % _ALIGNED)


def _placed(parts: Sequence[tuple[dict[str, Any], Mapping[str, np.ndarray]]]) -> list[dict[str, Any]]:
    """The facts with each array as [type, offset after the header, count]."""
    offset = 0
    found = []
    for facts, arrays in parts:
        places = {}
        for name, array in arrays.items():
            places[name] = [_TYPES[array.dtype.str], offset, array.size]
            offset += array.nbytes + -array.nbytes % _ALIGNED
        found.append({**facts, "arrays": places})
    return found
