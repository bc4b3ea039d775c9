"""Snapshot: a job's measurements as they are kept, shared and compared; its document, its id, older and newer versions.

The document is canonical JSON (UTF-8, sorted keys, no spaces); the id is its SHA-256. What differs in a letter has another
id, what is the same has the same id everywhere: in a file, in a store, in an exported page. Pure.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from kernels.problem import Frozen
from profiling.foreign_text import Moment, Name, Note, Tags, Title, cleaned
from profiling.records import Measurement, first_sentence
from profiling.untrusted import NotASnapshot, json_in

SCHEMA_VERSION = 2
SUFFIX = ".flashscope.json.gz"


class Snapshot(Frozen):
    """What one job measured, with a title, a note and tags. author and host are empty unless their owner put them in.

    created_at: when it was saved, ISO 8601 with time zone. measurements: in the order of the job's requests.
    """

    schema_version: Literal[2] = SCHEMA_VERSION
    title: Title
    note: Note = ""
    author: Name = ""
    host: Name = ""
    tags: Tags = ()
    created_at: Moment
    measurements: Annotated[tuple[Measurement, ...], Field(min_length=1, max_length=16)]

    @cached_property
    def document(self) -> bytes:
        """The canonical JSON."""
        return canonical(self.model_dump(mode="json"))

    @property
    def id(self) -> str:
        """SHA-256 of the document, 64 hexadecimal digits."""
        return hashlib.sha256(self.document).hexdigest()


@dataclass(frozen=True)
class NewerSnapshot:
    """A snapshot by a newer FlashScope: its document byte for byte, and what of it this version understands. Read-only."""

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


def read(data: bytes) -> AnySnapshot:
    """The snapshot in a file's bytes: JSON or gzip, of any schema version.

    Raises NotASnapshot with one sentence that a person can act on, whatever the bytes are.
    """
    document, value = json_in(data)
    version = value.get("schema_version") if isinstance(value, dict) else None
    if type(version) is not int or version < 1:
        raise NotASnapshot("This is JSON, but no snapshot: it has no schema_version that is a whole number from 1.")
    if version > SCHEMA_VERSION:
        return _newer(document, value, version)
    for older in range(version, SCHEMA_VERSION):
        value = _MIGRATIONS[older](value)
    try:
        return _SNAPSHOT.validate_json(canonical(value))
    except ValidationError as error:
        raise NotASnapshot(f"This is no snapshot: {first_sentence(error)}") from None


def _from_1(value: dict[str, Any]) -> dict[str, Any]:
    """Schema 1 was the gallery's recording: title, note, measurements."""
    measurements = value.get("measurements")
    first = measurements[0] if isinstance(measurements, list) and measurements else None
    started = first.get("started_at") if isinstance(first, dict) else None
    return {**value, "schema_version": 2, "created_at": started}


_MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _from_1}
_SNAPSHOT = TypeAdapter(Snapshot)
_MEASUREMENT = TypeAdapter(Measurement)


def _newer(document: bytes, value: dict[str, Any], version: int) -> NewerSnapshot:
    understood = [found for one in _list(value, "measurements") if (found := _measurement(one)) is not None]
    tags = tuple(cleaned(tag) for tag in _list(value, "tags") if isinstance(tag, str))
    return NewerSnapshot(
        document=document,
        schema_version=version,
        title=_text(value, "title") or "without a title",
        note=_text(value, "note", lines=True),
        author=_text(value, "author"),
        host=_text(value, "host"),
        tags=tags,
        created_at=_text(value, "created_at"),
        measurements=tuple(understood),
    )


def _text(value: dict[str, Any], name: str, lines: bool = False) -> str:
    found = value.get(name)
    return cleaned(found, lines) if isinstance(found, str) else ""


def _list(value: dict[str, Any], name: str) -> list[Any]:
    found = value.get(name)
    return found if isinstance(found, list) else []


def _measurement(value: Any) -> Measurement | None:
    """A newer measurement without the fields this version does not know; None where it does not understand the rest."""
    try:
        return _MEASUREMENT.validate_json(canonical(value), extra="ignore")
    except (ValidationError, ValueError):
        return None
