"""A user's own Q, K and V: from .npy files or pasted numbers to the record of them, or one sentence saying why not. Pure.

Whatever the bytes say of themselves, nothing larger than they are is allocated, and nothing in them is run.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Sequence

import numpy as np
from pydantic import ValidationError

from kernels.problem import AttentionProblem
from profiling.record_types import Array, first_sentence
from profiling.records import MAX_OWN_NUMBERS, OwnInputs, RunRequest

LARGEST = 65504.0  # fp16's, so that either number format holds it
MAX_FILE_BYTES = 8 * MAX_OWN_NUMBERS + 10_000
MAX_TEXT = 30 * MAX_OWN_NUMBERS
NAMES = ("Q", "K", "V")
SHAPES = "(seq_len, head_dim) for one head, (heads, seq_len, head_dim) or (batch, heads, seq_len, head_dim)"

_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000  # NumPy's own limit
# There is one way at most to read a text by these: what they do not match costs no more than its length.
_SHAPE = r"\((?:[0-9]{1,18}(?:,[0-9]{1,18}){0,7},?)?\)"
_ENTRY = rf"'(descr|fortran_order|shape)':('[<>=|][A-Za-z][0-9]{{0,4}}'|True|False|{_SHAPE})"
_HEADER = re.compile(rf"\{{(?:{_ENTRY},?){{3}}\}}")
_FLOATS = ("f2", "f4", "f8")
_LONGEST_WORD = 40
_EXAMPLE_TOKENS, _EXAMPLE_DIM = 128, 32


# From files


def from_npy(name: str, content: bytes) -> np.ndarray:
    """The float32 array (batch, heads, seq_len, head_dim) in a .npy file's bytes; name is Q, K or V.

    Raises ValueError, in one sentence, for anything but finite float16, float32 or float64 numbers of a shape in SHAPES,
    MAX_OWN_NUMBERS at most. What the header claims is checked against the bytes that are there before NumPy reads it.
    """
    descr, shape, start = _header(name, content)
    if descr[1:] not in _FLOATS:
        raise ValueError(f"{name} of type {descr} is not possible: its numbers are float16, float32 or float64.")
    _require_shape(name, shape)
    needed, found = math.prod(shape) * int(descr[2:]), len(content) - start
    if found != needed:
        raise ValueError(f"{name} is damaged: its shape {_words(shape)} needs {needed:,} bytes, the file has {found:,}.")
    return _checked(name, np.load(io.BytesIO(content), allow_pickle=False))


def _header(name: str, content: bytes) -> tuple[str, tuple[int, ...], int]:
    """The type's code, the shape, and where the numbers begin. Only the plainest header is read, as NumPy writes it."""
    if content[: len(_MAGIC)] != _MAGIC:
        raise ValueError(f"{name} is no .npy file: numpy.save writes one, an array a file.")
    version, size_bytes = content[6:8], 2 if content[6:7] == b"\x01" else 4
    start = 8 + size_bytes
    length = int.from_bytes(content[8:start], "little")
    if version not in (b"\x01\x00", b"\x02\x00") or length > min(_LONGEST_HEADER, len(content) - start):
        raise ValueError(f"{name} is damaged, or no array of plain numbers: its header cannot be read.")
    text = re.sub(r"\s", "", content[start : start + length].decode("latin-1"))
    entries = dict(re.findall(_ENTRY, text)) if _HEADER.fullmatch(text) else {}
    descr, order, shape = (entries.get(key, "") for key in ("descr", "fortran_order", "shape"))
    if not (descr.startswith("'") and order in ("True", "False") and shape.startswith("(")):
        raise ValueError(f"{name} is damaged, or no array of plain numbers: its header cannot be read.")
    return descr.strip("'"), tuple(map(int, re.findall("[0-9]+", shape))), start + length


# From pasted numbers


def from_text(name: str, text: str) -> np.ndarray:
    """The float32 array (1, 1, seq_len, head_dim) of pasted numbers: a token a line, or in brackets as Python prints lists.

    Raises ValueError as from_npy does.
    """
    if len(text) > MAX_TEXT:
        raise ValueError(f"{name} of {len(text):,} characters is not possible: it can have {MAX_TEXT:,}.")
    lines = re.split(r"[\[\]]", text) if "[" in text else text.splitlines()
    rows = [row for row in (re.split(r"[\s,;]+", line.strip(" \t\r\n,;")) for line in lines) if row != [""]]
    if not rows:
        raise ValueError(f"{name} is empty: it is a line of numbers a token.")
    numbers = [_row(name, place, words, len(rows[0])) for place, words in enumerate(rows, 1)]
    _require_shape(name, (len(numbers), len(numbers[0])))
    return _checked(name, np.array(numbers, np.float64))


def _row(name: str, place: int, words: Sequence[str], expected: int) -> list[float]:
    if len(words) != expected:
        raise ValueError(f"{name}, row {place}, is {len(words):,} long and row 1 is {expected:,}: all rows have one length.")
    return [_number(name, place, word) for word in words]


def _number(name: str, place: int, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"{name}, row {place}: {word[:_LONGEST_WORD]!r} is no number.") from None


# What both must be


def _require_shape(name: str, shape: tuple[int, ...]) -> None:
    if not 2 <= len(shape) <= 4:
        raise ValueError(f"{name} of shape {_words(shape)} is not possible: it can be {SHAPES}.")
    count = math.prod(shape)
    if not 1 <= count <= MAX_OWN_NUMBERS:
        raise ValueError(
            f"{name} of shape {_words(shape)} is not possible: it has {count:,} numbers, and can have 1 to {MAX_OWN_NUMBERS:,}."
        )


def _checked(name: str, array: np.ndarray) -> np.ndarray:
    """As float32, (batch, heads, seq_len, head_dim), with every number finite and small enough."""
    wrong = np.argwhere(~(np.abs(array) <= LARGEST))
    if len(wrong):
        place = tuple(map(int, wrong[0]))
        raise ValueError(
            f"{name} holds {float(array[place]):g} at {_words(place)}, which is not possible: "
            f"numbers can be −{LARGEST:,.0f} to {LARGEST:,.0f}, fp16’s largest."
        )
    return np.ascontiguousarray(array, "<f4").reshape((1,) * (4 - array.ndim) + array.shape)


def _words(shape: Sequence[int]) -> str:
    """(3, 4) as Python writes it, cut where a file claims absurd sizes."""
    text = str(tuple(shape))
    return text if len(text) <= _LONGEST_WORD else f"{text[:_LONGEST_WORD]}…"


def own_inputs(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> OwnInputs:
    """The record of q, k and v, each (batch, heads, seq_len, head_dim). Raises ValueError where they do not fit together."""
    if v.shape != k.shape:
        raise ValueError(f"V of shape {v.shape} is not possible: K has {k.shape}, and V the same.")
    if (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3]):
        raise ValueError(f"K of shape {k.shape} is not possible with Q of shape {q.shape}: batch and head_dim are the same.")
    _problem(q.shape, k.shape, causal=False)
    return OwnInputs(q=Array.of(q, "<f4"), k=Array.of(k, "<f4"), v=Array.of(v, "<f4"))


def problem_of(own: OwnInputs, causal: bool) -> AttentionProblem:
    """The problem that has these inputs. Raises ValueError, in one sentence, where there is none."""
    return _problem(own.q.shape, own.k.shape, causal)


def _problem(query: tuple[int, ...], key: tuple[int, ...], causal: bool) -> AttentionProblem:
    try:
        return AttentionProblem(
            batch=query[0], num_heads=query[1], num_kv_heads=key[1], seq_len_q=query[2], seq_len_kv=key[2], head_dim=query[3],
            causal=causal,
        )  # fmt: skip
    except ValidationError as error:
        raise ValueError(first_sentence(error)) from None


def identity(own: OwnInputs) -> str:
    """Eight hexadecimal digits of the SHA-256 of the numbers: what tells two inputs apart."""
    return hashlib.sha256("\n".join((own.q.data, own.k.data, own.v.data)).encode()).hexdigest()[:8]


def inputs_of(request: RunRequest) -> str:
    """What a request's inputs are, in words: 'ramp', or 'own 3f2a91c0'."""
    return request.inputs if request.own is None else f"{request.inputs} {identity(request.own)}"


# An example


def example() -> dict[str, np.ndarray]:
    """Q, K and V (128, 32) to try: a query finds every 32nd key, the later ones more strongly, so that maxima keep rising."""
    token = np.arange(_EXAMPLE_TOKENS)
    kind = np.eye(_EXAMPLE_DIM, dtype=np.float32)[token % _EXAMPLE_DIM]
    strength = (1 + token // _EXAMPLE_DIM).astype(np.float32)
    return {"Q": 8 * kind, "K": strength[:, None] * kind, "V": kind}


def as_npy(array: np.ndarray) -> bytes:
    """A .npy file's bytes."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def as_text(array: np.ndarray) -> str:
    """A two-dimensional array as lines of numbers."""
    return "\n".join(" ".join(f"{number:g}" for number in row) for row in array)
