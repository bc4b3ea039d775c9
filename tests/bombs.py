"""Fifty files made to take the reader's time or memory, each under the limits on its size."""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import random
import zipfile
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from profiling.record_types import Array

_SAMPLE = Path(__file__).with_name("samples") / "snapshot-schema-3.json"


def _sample() -> dict[str, Any]:
    return json.loads(_SAMPLE.read_bytes())


def _gzip(data: bytes) -> bytes:
    return gzip.compress(data, 9, mtime=0)


def _gzip_of(byte: bytes, count: int, before: bytes = b"", after: bytes = b"") -> bytes:
    """A gzip stream of one byte many times, without holding it."""
    packer = zlib.compressobj(9, wbits=31)
    pieces = [packer.compress(before)] + [packer.compress(byte * 1_000_000) for _ in range(count // 1_000_000)]
    return b"".join([*pieces, packer.compress(after), packer.flush()])


def _many(item: str, count: int, around: str = "[]") -> bytes:
    return _gzip((around[0] + ",".join([item] * count) + around[1]).encode())


def _numbered(item: str, count: int, around: str = "[]") -> bytes:
    return _gzip((around[0] + ",".join(item % number for number in range(count)) + around[1]).encode())


def _changed(change: Callable[[dict[str, Any]], Any]) -> bytes:
    value = _sample()
    change(value)
    return _gzip(json.dumps(value).encode())


def _with_first(**fields: Any) -> bytes:
    return _changed(lambda value: value["measurements"][0].update(fields))


def _page(inside: bytes) -> bytes:
    return (
        b'<!doctype html><html><script type="application/gzip+base64" id="flashscope-snapshot">'
        + base64.b64encode(inside)
        + b"</script></html>"
    )


def _launches(n: int) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {
        "provenance": "measured",
        "mode": "cold",
        "samples_ms": Array.of(1 + np.round(rng.random(n), 1)).model_dump(mode="json"),
        "round_of": Array.of(np.zeros(n), "<i4").model_dump(mode="json"),
    }


def _largest() -> bytes:
    """The most that a snapshot can hold: a real one, that opens."""
    value = _sample()
    value["measurements"] = [{**value["measurements"][0], "latency": _launches(25_000)} for _ in range(16)]
    return _gzip(json.dumps(value).encode())


def _zip() -> bytes:
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"\0" * 100_000_000)
    return file.getvalue()


def _newer(**fields: Any) -> bytes:
    return _gzip(json.dumps({**_sample(), "schema_version": 5, **fields}).encode())


def _letters_in(schema_version: int, count: int) -> bytes:
    """A document with a very long text where a measurement's error has its own."""
    value = {**_sample(), "schema_version": schema_version}
    next(one["error"] for one in value["measurements"] if one["error"] is not None)["raw"] = "LETTERS"
    before, after = json.dumps(value).encode().split(b"LETTERS")
    return _gzip_of(b"a", count, before, after)


_MARKS = "\u0301\u0316"
_ZEROS = {"dtype": "<f8", "shape": [1_000_000], "data": base64.b64encode(b"\0" * 8_000_000).decode()}

BOMBS: dict[str, Callable[[], bytes]] = {
    "gzip of 200 MB": lambda: _gzip_of(b" ", 200_000_000),
    "gzip of 49 MB of blanks": lambda: _gzip_of(b" ", 49_000_000, after=b"{}"),
    "one number of 49 million digits": lambda: _gzip_of(b"1", 49_000_000),
    "one fraction of 49 million digits": lambda: _gzip_of(b"0", 49_000_000, before=b"1."),
    "a million whole numbers": lambda: _numbered("%d", 999_999),
    "a million floats": lambda: _many("1.2345678901234567", 999_999),
    "a million texts": lambda: _numbered('"%d"', 999_999),
    "half a million texts of 90 letters": lambda: _numbered('"%090d"', 500_000),
    "a million empty objects": lambda: _many("{}", 1_000_000),
    "as many objects as are allowed": lambda: _many('{"a":1}', 333_333),
    "as many objects in arrays as are allowed": lambda: _many("[{}]", 333_333),
    "as many fields as are allowed": lambda: _numbered('"%d":0', 499_999, "{}"),
    "fields with long names": lambda: _numbered('"%095d":0', 480_000, "{}"),
    "2.5 million arrays in one another": lambda: b"[" * 2_500_000 + b"]" * 2_400_000,
    "two million objects in one another": lambda: _gzip(b'{"a":' * 2_000_000),
    "brackets that close what never opened": lambda: _gzip_of(b"]", 49_000_000),
    "25 million empty texts": lambda: _gzip_of(b'"', 49_000_000),
    "49 million backslashes": lambda: _gzip_of(b"\\", 48_000_000, b'["', b'"]'),
    "a text of 49 million letters": lambda: _gzip_of(b"a", 49_000_000, b'{"title":"', b'"}'),
    "a text of 49 million letters and an emoji": lambda: _gzip_of(b"a", 49_000_000, b'["', '😀"]'.encode()),
    "a text of 49 million letters and an escape": lambda: _gzip_of(b"a", 49_000_000, b'["', b'\\ud83d\\ude00"]'),
    "eight million escapes": lambda: _gzip(b'["' + b"\\u00e9" * 8_000_000 + b'"]'),
    "eleven thousand numbers of 4,299 digits": lambda: _many("9" * 4299, 11_000),
    "a million times beyond the largest float": lambda: _many("1e999", 999_999),
    "a title of 300,000 marks on one letter": lambda: _changed(lambda value: value.update(title="a" + _MARKS * 150_000)),
    "a note of 40,000 marks on one letter": lambda: _changed(lambda value: value.update(note="a" + _MARKS * 19_999)),
    "a thousand tags of marks": lambda: _changed(lambda value: value.update(tags=["x" + _MARKS * 70] * 1_000)),
    "45,000 unknown fields": lambda: _with_first(environment={f"k{number}": 1 for number in range(45_000)}),
    "reports that lack every field": lambda: _with_first(compiled=[{}] * 45_000),
    "measurements that lack every field": lambda: _changed(lambda value: value.update(measurements=[{}] * 45_000)),
    "reasons that are no texts": lambda: _changed(
        lambda value: value["measurements"][0]["environment"].update(missing={f"k{number}": 1 for number in range(40_000)})
    ),
    "an array of a million zeros for launches": lambda: _with_first(latency={**_launches(1), "samples_ms": _ZEROS}),
    "arrays of a million readings": lambda: _with_first(
        timeline={**_sample()["measurements"][0]["timeline"], "t_s": _ZEROS, "power_w": _ZEROS, "sm_clock_mhz": _ZEROS}
    ),
    "an array of shape 2⁶⁰ × 2⁶⁰": lambda: _with_first(
        latency={**_launches(1), "samples_ms": {**_ZEROS, "shape": [2**60, 2**60]}}
    ),
    "the largest snapshot": _largest,
    "a page of 16 MB of tags": lambda: b"<!doctype html>" + b"<script " * 1_990_000,
    "a page of 16 MB of beginnings": lambda: b"<html>" + b"<script type=\"application/gzip+base64\" id=" * 380_000,
    "a page that holds 200 MB": lambda: _page(_gzip_of(b" ", 200_000_000)),
    "a page that holds a million floats": lambda: _page(_many("1.5", 999_999)),
    "a hundred thousand gzip streams": lambda: _gzip(b"{}") * 100_000,
    "gzip of gzip of gzip": lambda: _gzip(_gzip(_gzip_of(b" ", 40_000_000))),
    "a zip": _zip,
    "a pickle": lambda: pickle.dumps([0] * 1_000_000, protocol=4),
    "five million random bytes": lambda: random.Random(1).randbytes(4_999_999),
    "a newer one with a million tags": lambda: _newer(tags=["a"] * 900_000),
    "a newer one with reports that lack every field": lambda: _newer(
        measurements=[{**_sample()["measurements"][0], "compiled": [{}] * 160_000}] * 3
    ),
    "a newer one with a note of marks": lambda: _newer(note="a" + _MARKS * 300_000),
    "a newer one of 49 million letters": lambda: _gzip_of(b"a", 49_000_000, b'{"schema_version":9,"title":"', b'"}'),
    "a newer one of 49 million letters in a measurement": lambda: _letters_in(3, 49_000_000),
    "schema 3 of 19 million letters": lambda: _letters_in(3, 19_000_000),
    "schema 1 of 19 million letters": lambda: _letters_in(1, 19_000_000),
    "schema 1 of 49 million letters": lambda: _gzip_of(b"a", 49_000_000, b'{"schema_version":1,"note":"', b'"}'),
    "schema 3 of 49 million letters": lambda: _gzip_of(b"a", 49_000_000, b'{"schema_version":3,"note":"', b'"}'),
}  # fmt: skip
