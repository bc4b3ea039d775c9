"""Files that were snapshots once: mutated by structure and by bytes, wrapped and cut."""

from __future__ import annotations

import base64
import copy
import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np

from profiling.snapshot import SCHEMA_VERSION, read

SAMPLES = Path(__file__).with_name("samples")
_RAW = "\ue000raw:"
_ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**30, 0.0, -0.0, 1e-320, 1e-7, 0.5,
    1e22, 1e308, -1e308, "", " ", "a", "v4", "GPU-1", "interpreter", "gpu", "measured", "cold", "😀", "\u202e\x00", "x" * 300,
    "x" * 30_000, "=1+1", "$a$", "<script>", "/home/ada/x.py", "2026-02-30T00:00:00Z", "9999-12-31T23:59:59-23:59", "NaN",
    [], {}, [[]], [0] * 3, [{}] * 5, {"a": 1}, {"data": "", "dtype": "<f8", "shape": [0]}, [[{"block_m": 1}, 1]],
    _RAW + "NaN", _RAW + "-Infinity", _RAW + "1e999", _RAW + "[" * 40 + "]" * 40, _RAW + '{"a":' * 200 + "1" + "}" * 200,
    _RAW + '"\\ud800"', _RAW + "9" * 5000, _RAW + "0" * 20, _RAW + '{"a":1,"a":2}', _RAW + "tru", _RAW + "", _RAW + "'a'",
)  # fmt: skip
_ODD_BYTES = (
    b"\x00", b"\xff", b"\xef\xbb\xbf", b"\\", b'"', b"{", b"}", b"[", b"]", b",", b":", b"1e999", b"NaN", b"\xf0\x9f\x98\x80",
    b"\xed\xa0\x80", b"\xc0\x80", b"</script>", b"<!--", b"\\u0000", b"\x1f\x8b", b"null", b"-", b"0x10", b"[" * 500,
)  # fmt: skip


def seeds() -> list[bytes]:
    """The documents that mutations start from: each schema's sample, and one of a schema to come."""
    documents = [path.read_bytes() for path in sorted(SAMPLES.glob("*.json"))]
    small = json.loads(documents[-1])
    first = read(documents[0])
    documents[0] = json.dumps(
        {**json.loads(documents[0]), "measurements": json.loads(first.document)["measurements"][:1]}
    ).encode()
    newer = {
        **small, "schema_version": SCHEMA_VERSION + 1, "sweep": [{"x": 1}], "measurements": small["measurements"][:2]
    }  # fmt: skip
    newer["measurements"][0]["environment"]["new"] = {"deep": [1, 2]}
    return [*documents, json.dumps(newer).encode()]


def mutated(rng: random.Random, documents: list[bytes]) -> bytes:
    """A file made of one of the documents."""
    data = rng.choice(documents)
    if rng.random() < 0.7:
        data = _by_structure(rng, data)
    if rng.random() < 0.4:
        data = _by_bytes(rng, data, documents)
    return _wrapped(rng, data)


def _by_structure(rng: random.Random, data: bytes) -> bytes:
    value = json.loads(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        places = list(_places(value))
        if len(places) > 20_000:
            break
        rng.choice(_STRUCTURAL)(rng, value, places)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.2)
    escaped_mark = json.dumps(_RAW)[1:-1]
    text = re.sub(
        rf'"(?:{re.escape(_RAW)}|{re.escape(escaped_mark)})((?:[^"\\]|\\.)*)"', lambda match: json.loads(f'"{match[1]}"'), text
    )
    return text.encode("utf-8", "surrogatepass")


def _places(value: Any) -> Any:
    """(container, key) of everything in a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield value, key
        if isinstance(one, dict | list):
            yield from _places(one)


def _replace(rng: random.Random, value: Any, places: list) -> None:
    container, key = rng.choice(places)
    container[key] = copy.deepcopy(rng.choice(_ODD_VALUES))


def _scale(rng: random.Random, value: Any, places: list) -> None:
    numbers = [(c, k) for c, k in places if type(c[k]) in (int, float)]
    container, key = rng.choice(numbers) if numbers else (None, None)
    if container is not None:
        container[key] = container[key] * rng.choice((-1, 0, 2, 1000, 10**12, 0.5, 1e-9))


def _delete(rng: random.Random, value: Any, places: list) -> None:
    container, key = rng.choice(places)
    del container[key]


def _rename(rng: random.Random, value: Any, places: list) -> None:
    container, key = rng.choice(places)
    if isinstance(container, dict):
        container[rng.choice(("", "x", "__class__", "model_config", key + "_", "😀" * 5))] = container.pop(key)


def _add(rng: random.Random, value: Any, places: list) -> None:
    container, _ = rng.choice(places)
    if isinstance(container, dict):
        container.update(
            (f"new {number}", copy.deepcopy(rng.choice(_ODD_VALUES))) for number in range(rng.choice((1, 1, 3, 2000)))
        )


def _swap(rng: random.Random, value: Any, places: list) -> None:
    (a, i), (b, j) = rng.choice(places), rng.choice(places)
    one, other = json.dumps(a[i]), json.dumps(b[j])
    if len(one) + len(other) < 100_000:
        a[i], b[j] = json.loads(other), json.loads(one)


def _lengthen(rng: random.Random, value: Any, places: list) -> None:
    lists = [c[k] for c, k in places if isinstance(c[k], list) and c[k]]
    if lists:
        found = rng.choice(lists)
        if len(json.dumps(found[0])) < 3000:
            found.extend(copy.deepcopy(found[0]) for _ in range(rng.choice((1, 2, 20, 200))))


def _array(rng: random.Random, value: Any, places: list) -> None:
    """Another array, most of them whole ones with numbers that no measurement has."""
    arrays = [c[k] for c, k in places if isinstance(c[k], dict) and isinstance(c[k].get("data"), str)]
    if not arrays:
        return
    found = rng.choice(arrays)
    what = rng.randrange(4)
    if what == 0:
        found["shape"] = rng.choice(([], [0], [1], [-1], [2**62, 2**62], [0, 2**70], [1] * 40, [3, 0], [10**9], [2, 2]))
    elif what == 1:
        found["dtype"] = rng.choice(("<f4", "<f8", "<i4", "<i8", "|u1", "O", ">f8"))
    elif what == 2:
        found["data"] = rng.choice(("", "A", "AAAA", "====", "\u0661", found["data"][:-4], found["data"] + "AAAA"))
    else:
        dtype, n = rng.choice(("<f4", "<f8", "<i4", "<i8", "|u1")), rng.choice((0, 1, 2, 5, 8, 10, 300))
        number = rng.choice((0.0, -1.0, 1.0, 3.0, 1e-7, 1e9, 1e18, 1e300, np.nan, np.inf))
        with np.errstate(all="ignore"):
            numbers = np.full(n, number).astype(dtype)
        found.update(dtype=dtype, shape=[n], data=base64.b64encode(numbers.tobytes()).decode())


def _name_twice(rng: random.Random, value: Any, places: list) -> None:
    container, key = rng.choice(places)
    if isinstance(container, dict):
        container[f"{key}"] = f'{_RAW}1,"{rng.choice(list(container))}":2'


_STRUCTURAL = (
    _replace,
    _replace,
    _replace,
    _scale,
    _scale,
    _delete,
    _rename,
    _add,
    _swap,
    _swap,
    _lengthen,
    _array,
    _array,
    _name_twice,
)


def _by_bytes(rng: random.Random, data: bytes, documents: list[bytes]) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        place = rng.randrange(len(found) + 1)
        what = rng.randrange(7)
        if what == 0 and place < len(found):
            found[place] ^= 1 << rng.randrange(8)
        elif what == 1:
            del found[place : place + rng.choice((1, 2, 10, 1000))]
        elif what == 2:
            found[place:place] = rng.choice(_ODD_BYTES)
        elif what == 3:
            other = rng.choice(documents)
            start = rng.randrange(len(other) + 1)
            found[place : place + rng.choice((0, 50))] = other[start : start + rng.choice((5, 50, 500))]
        elif what == 4:
            del found[place:]
        elif what == 5:
            found[place:place] = bytes(found[place : place + 20]) * rng.choice((1, 3, 100))
        else:
            number = re.search(rb"-?[0-9]+(\.[0-9]+)?", bytes(found[place:]))
            if number:
                found[place + number.start() : place + number.end()] = rng.choice(
                    (b"1e999", b"NaN", b"-0", b"01", b"9" * 400, b"1e5")
                )
    return bytes(found)


def _wrapped(rng: random.Random, data: bytes) -> bytes:
    """As it is; as gzip, whole or broken, or of gzip; in an HTML page, whole or broken."""
    what = rng.random()
    if what < 0.45:
        return data
    file = gzip.compress(data, 1, mtime=0)
    if what < 0.6:
        return file
    if what < 0.72:
        return _by_bytes(rng, file, [data, file])
    if what < 0.75:
        return rng.choice(
            (
                lambda: file + file,
                lambda: gzip.compress(file, 1, mtime=0),
                lambda: file + b"\0",
                lambda: file[:-8],
                lambda: gzip.compress(data + b" " * 20_000_000, 1, mtime=0),
                lambda: gzip.compress(data + b" " * 51_000_000, 1, mtime=0),
            )
        )()
    element = '<script type="application/gzip+base64" id="flashscope-snapshot">' + base64.b64encode(file).decode() + "</script>"
    page = f"<!DOCTYPE html><html><title>x</title>{element}<p>after</p></html>".encode()
    if what < 0.88:
        return page
    if what < 0.92:
        return page + element.encode() * rng.choice((1, 3))
    return _by_bytes(rng, page, [data, page])
