"""Snapshot: a job's measurements as they are kept, shared and compared; its document, its id, older and newer versions.

The document is canonical JSON (UTF-8, sorted keys, no spaces); the id is its SHA-256. What differs in a letter has another
id, what is the same has the same id everywhere: in a file, in a store, in an exported page. Pure.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import FailFast, Field, TypeAdapter, ValidationError

from kernels.problem import Frozen
from profiling.foreign_text import MAX_NAME, MAX_NOTE, MAX_TAG, MAX_TAGS, Moment, Name, Note, Tags, Title, cleaned
from profiling.record_types import first_sentence
from profiling.records import Measurement
from profiling.untrusted import Json, NotASnapshot, json_in

SCHEMA_VERSION = 5
SUFFIX = ".flashscope.json.gz"
MAX_PAGE_BYTES = 16_000_000
# What the records allow is less than what is read; a newer snapshot may be more, and is not validated whole.
MAX_VALUES, MAX_DOCUMENT_BYTES = 100_000, 20_000_000
_ELEMENT_BEGINS = '<script type="application/gzip+base64" id="flashscope-snapshot">'
_ELEMENT_ENDS = "</script>"


class Snapshot(Frozen):
    """What one job measured, with a title, a note and tags. author and host are empty unless their owner put them in.

    created_at: when it was saved, ISO 8601 with time zone. measurements: in the order of the job's requests.
    """

    schema_version: Literal[5] = SCHEMA_VERSION
    title: Title
    note: Note = ""
    author: Name = ""
    host: Name = ""
    tags: Tags = ()
    created_at: Moment
    measurements: Annotated[tuple[Measurement, ...], Field(min_length=1, max_length=16), FailFast()]

    @cached_property
    def document(self) -> bytes:
        """The canonical JSON; of a snapshot read from an older schema, the one it had there, so that its id stays for ever."""
        return canonical(self.model_dump(mode="json"))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy has its own document, and so an id of its own."""
        copy = super().model_copy(update=update, deep=deep)
        copy.__dict__.pop("document", None)
        return copy

    @property
    def id(self) -> str:
        """SHA-256 of the document, 64 hexadecimal digits."""
        return hashlib.sha256(self.document).hexdigest()


@dataclass(frozen=True)
class NewerSnapshot:
    """A snapshot by a newer FlashScope: its document byte for byte, and what of it this version understands. Read-only.

    What is not understood is left out: measurements may be (), texts and created_at may be ''.
    """

    document: bytes
    schema_version: int
    title: str
    note: str
    author: str
    host: str
    tags: tuple[str, ...]
    created_at: str
    measurements: tuple[Measurement, ...]

    @property
    def id(self) -> str:
        """SHA-256 of the document, 64 hexadecimal digits."""
        return hashlib.sha256(self.document).hexdigest()


AnySnapshot = Snapshot | NewerSnapshot


def canonical(value: Any) -> bytes:
    """The one way to write a JSON value. Raises ValueError for NaN, infinities and text that is not Unicode."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


def file_of(snapshot: AnySnapshot) -> bytes:
    """The snapshot as a gzip file; the same bytes every time."""
    return gzip.compress(snapshot.document, mtime=0)


def file_name(snapshot: AnySnapshot) -> str:
    """A name for its file, made of its id alone."""
    return f"{snapshot.id[:12]}{SUFFIX}"


def embedded(snapshot: AnySnapshot) -> str:
    """The snapshot's file as an inert element of an HTML page, which read() finds there again. Base64 cannot end it."""
    return _ELEMENT_BEGINS + base64.b64encode(file_of(snapshot)).decode() + _ELEMENT_ENDS


def read(data: bytes) -> AnySnapshot:
    """The snapshot in a file's bytes: JSON, gzip of it, or an exported HTML page; of any schema version.

    Raises NotASnapshot with one sentence that a person can act on, whatever the bytes are.
    """
    found = json_in(_file_in_page(data) if _is_page(data) else data)
    value, version = found.value, _version_of(found.value)
    if version > SCHEMA_VERSION:
        return _newer(found.document, value, version)
    _refuse_if_too_large(found, version)
    for schema in range(version, SCHEMA_VERSION):
        value = _MIGRATIONS[schema](value)
    is_older = version < SCHEMA_VERSION
    older = canonical(found.value) if is_older else b""
    document = canonical(value) if is_older else found.document
    del found, value
    try:
        snapshot = _SNAPSHOT.validate_json(document)
    except ValidationError as error:
        raise NotASnapshot(f"This is no snapshot: {first_sentence(error)}") from None
    if is_older:
        snapshot.__dict__["document"] = older
    return snapshot


def _refuse_if_too_large(found: Json, version: int) -> None:
    if found.count > MAX_VALUES:
        raise NotASnapshot(f"This file holds {found.count:,} values: schema {version} has {MAX_VALUES:,} at most.")
    if len(found.document) > MAX_DOCUMENT_BYTES:
        raise NotASnapshot(
            f"This file is {len(found.document):,} bytes of JSON: schema {version} has {MAX_DOCUMENT_BYTES:,} at most."
        )


def _version_of(value: Any) -> int:
    version = value.get("schema_version") if isinstance(value, dict) else None
    if type(version) is not int or version < 1:
        raise NotASnapshot("This is JSON, but no snapshot: it has no schema_version that is a whole number from 1.")
    return version


def _is_page(data: bytes) -> bool:
    return data[:1024].removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<")


def _file_in_page(page: bytes) -> bytes:
    """The bytes of the file that embedded() put into a page."""
    if len(page) > MAX_PAGE_BYTES:
        raise NotASnapshot(f"A page of {len(page):,} bytes is not possible: an exported one has {MAX_PAGE_BYTES:,} at most.")
    _, begins, rest = page.partition(_ELEMENT_BEGINS.encode())
    if not begins:
        raise NotASnapshot("This HTML page holds no snapshot: only a page that FlashScope exported does.")
    if _ELEMENT_BEGINS.encode() in rest:
        raise NotASnapshot("This HTML page holds more than one snapshot: an exported page has one.")
    text, ends, _ = rest.partition(_ELEMENT_ENDS.encode())
    try:
        if ends:
            return base64.b64decode(b"".join(text.split()), validate=True)
    except ValueError:
        pass
    raise NotASnapshot("The snapshot in this HTML page is damaged: it is cut off, or no base64.")


def _from_1(value: dict[str, Any]) -> dict[str, Any]:
    """Schema 1 was the gallery's recording: title, note, measurements."""
    measurements = value.get("measurements")
    first = measurements[0] if isinstance(measurements, list) and measurements else None
    started = first.get("started_at") if isinstance(first, dict) else None
    return {**value, "schema_version": 2, "created_at": started}


def _from_2(value: dict[str, Any]) -> dict[str, Any]:
    """Schema 3 added schedules, inputs of one's own, what FP8 costs a trace, and orders of blocks: all may be left out."""
    return {**value, "schema_version": 3}


def _from_3(value: dict[str, Any]) -> dict[str, Any]:
    """Schema 4 added warm times, why a timing stopped, energy, memory at other lengths, an m that lags: all may be left out."""
    return {**value, "schema_version": 4}


def _from_4(value: dict[str, Any]) -> dict[str, Any]:
    """Schema 5 added the backward: a direction, its tiles, gradients, a step's parts, their memory; all may be left out."""
    return {**value, "schema_version": 5}


_MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _from_1, 2: _from_2, 3: _from_3, 4: _from_4}
_SNAPSHOT = TypeAdapter(Snapshot)
_MEASUREMENT = TypeAdapter(Measurement)
_MOMENT: TypeAdapter[str] = TypeAdapter(Moment)


def _newer(document: bytes, value: dict[str, Any], version: int) -> NewerSnapshot:
    understood = tuple(found for one in _list(value, "measurements")[:16] if (found := _measurement(one)) is not None)
    tags = tuple(_cleaned(tag, MAX_TAG) for tag in _list(value, "tags")[:MAX_TAGS] if isinstance(tag, str))
    return NewerSnapshot(
        document=document,
        schema_version=version,
        title=_text(value, "title", MAX_NAME) or "without a title",
        note=_text(value, "note", MAX_NOTE, lines=True),
        author=_text(value, "author", MAX_NAME),
        host=_text(value, "host", MAX_NAME),
        tags=tuple(tag for tag in tags if tag),
        created_at=_moment(value.get("created_at")),
        measurements=understood,
    )


def _text(value: dict[str, Any], name: str, most: int, lines: bool = False) -> str:
    found = value.get(name)
    return _cleaned(found, most, lines) if isinstance(found, str) else ""


def _cleaned(text: str, most: int, lines: bool = False) -> str:
    return cleaned(text[: 4 * most], lines)[:most]


def _moment(found: Any) -> str:
    try:
        return _MOMENT.validate_python(found)
    except ValidationError:
        return ""


def _list(value: dict[str, Any], name: str) -> list[Any]:
    found = value.get(name)
    return found if isinstance(found, list) else []


def _measurement(value: Any) -> Measurement | None:
    """A newer measurement without the fields this version does not know; None where it does not understand the rest."""
    if _letters(value) > MAX_DOCUMENT_BYTES:
        return None
    try:
        return _MEASUREMENT.validate_json(canonical(value), extra="ignore")
    except ValidationError:
        return None


def _letters(value: Any) -> int:
    """How many characters its texts have in all."""
    count, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            count += len(one)
        elif isinstance(one, dict):
            waiting += [*one, *one.values()]
        elif isinstance(one, list):
            waiting += one
    return count
