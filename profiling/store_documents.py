"""Snapshots put into a database and taken out of it, each proved by its hash. Every function works within a transaction."""

from __future__ import annotations

import hashlib
import re
import uuid
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from profiling.foreign_text import MAX_NAME, cleaned
from profiling.snapshot import AnySnapshot, NotASnapshot, file_of, read
from profiling.store import Change, Kept, Origin, StoreProblem
from profiling.store_rows import Derived, derived
from profiling.store_tables import LARGEST_INTEGER, documents, log, measured, rows, states, tags
from profiling.untrusted import MAX_EXPANDED_BYTES

_START = re.compile(r"[0-9a-f]{8,64}")
_WHOLE = 64


@dataclass(frozen=True)
class Packed:
    """A snapshot ready to be put in: made before the transaction, so that no one waits for it."""

    id: str
    schema_version: int
    file: bytes
    derived: Derived


def packed(snapshot: AnySnapshot) -> Packed:
    """The snapshot ready to be put in. Raises StoreProblem for one that could not be read again."""
    try:
        file, id = file_of(snapshot), snapshot.id
        again = read(file)
    except ValueError as error:
        raise StoreProblem(f"This snapshot cannot be kept, since it could not be opened again: {error}") from None
    if again.id != id:
        raise StoreProblem("This snapshot cannot be kept, since it would have another id when it is opened again.")
    return Packed(id, min(snapshot.schema_version, LARGEST_INTEGER), file, derived(snapshot))


def put(connection: sa.Connection, one: Packed, origin: Origin, now: str) -> bool:
    """Put a snapshot in; False, and nothing is changed, if it is there."""
    if state(connection, one.id) is not None:
        return False
    connection.execute(documents.insert().values(id=one.id, schema_version=one.schema_version, file=one.file))
    connection.execute(states.insert().values(snapshot_id=one.id, origin=origin, saved_at=now, is_baseline=False))
    put_derived(connection, one.id, one.derived)
    return True


def mend(connection: sa.Connection, one: Packed) -> bool:
    """Put the document of a snapshot that is there in again, if the stored one is damaged; whether it was."""
    if digest(connection.scalar(sa.select(documents.c.file).where(documents.c.id == one.id))) == one.id:
        return False
    connection.execute(documents.update().where(documents.c.id == one.id).values(file=one.file))
    return True


def put_derived(connection: sa.Connection, id: str, found: Derived) -> None:
    """Put in what is derived from the document."""
    for table, values in ((rows, [found.row]), (tags, found.tags), (measured, found.measured)):
        if values:
            connection.execute(table.insert(), [{"snapshot_id": id, **one} for one in values])


def state(connection: sa.Connection, id: str) -> sa.Row | None:
    """What can change about a snapshot; None if it is not there."""
    if not _START.fullmatch(id):  # a database need not be able to hold every other text
        return None
    return connection.execute(sa.select(states).where(states.c.snapshot_id == id)).one_or_none()


def known(connection: sa.Connection, id: str) -> sa.Row:
    """What can change about a snapshot. Raises StoreProblem if it is not there."""
    found = state(connection, id)
    if found is None:
        raise StoreProblem(f"There is no snapshot {cleaned(id)[:_WHOLE]} in this store.")
    return found


def change(connection: sa.Connection, id: str, **values: Any) -> None:
    """Change what can change about a snapshot."""
    connection.execute(states.update().where(states.c.snapshot_id == id).values(**values))


def note(connection: sa.Connection, at: str, who: str, what: str, id: str, detail: str = "") -> None:
    """Add a line to the log."""
    who = cleaned(who)[:MAX_NAME] or "unknown"
    connection.execute(log.insert().values(key=uuid.uuid4().hex, at=at, who=who, what=what, snapshot_id=id, detail=detail))


def find(connection: sa.Connection, id_or_start: str) -> str | None:
    """The id that is this, or the one that starts with it. Raises StoreProblem if several do."""
    start = id_or_start.strip().lower()
    if not _START.fullmatch(start):
        return None
    # 'g' follows every hexadecimal digit, so this is the range of what starts with them, found by the primary key.
    among = documents.c.id == start if len(start) == _WHOLE else sa.and_(documents.c.id >= start, documents.c.id < start + "g")
    found = connection.scalars(sa.select(documents.c.id).where(among).limit(2)).all()
    if len(found) > 1:
        raise StoreProblem(f"More than one snapshot's id starts with {start}: give more of its digits.")
    return found[0] if found else None


def kept(connection: sa.Connection, id: str) -> Kept:
    """The snapshot with this id, which is there. Raises StoreProblem if its document is damaged."""
    file = connection.scalar(sa.select(documents.c.file).where(documents.c.id == id))
    found = known(connection, id)
    if digest(file) != id:
        raise StoreProblem(f"The stored document of snapshot {id[:12]} is damaged: it no longer gives its id.")
    try:
        snapshot = read(file)
    except NotASnapshot as error:
        raise StoreProblem(f"The stored document of snapshot {id[:12]} cannot be opened: {error}") from None
    return Kept(snapshot, id, found.origin, found.saved_at, found.deleted_at, found.replaced_by, found.is_baseline)


def digest(file: bytes) -> str | None:
    """The SHA-256 of the document in a stored file; None if the file cannot be expanded."""
    expander = zlib.decompressobj(wbits=31)
    try:
        document = expander.decompress(file, MAX_EXPANDED_BYTES + 1)
    except zlib.error:
        return None
    return hashlib.sha256(document).hexdigest() if expander.eof and not expander.unused_data else None


def changes(connection: sa.Connection, id: str | None, limit: int) -> tuple[Change, ...]:
    """The log, newest first."""
    columns = (log.c.at, log.c.who, log.c.what, log.c.snapshot_id, log.c.detail)
    wanted = sa.select(*columns).order_by(log.c.at.desc(), log.c.number.desc()).limit(max(0, limit))
    if id is not None and not _START.fullmatch(id):
        return ()
    if id is not None:
        wanted = wanted.where(log.c.snapshot_id == id)
    return tuple(Change(*line) for line in connection.execute(wanted))


def now() -> str:
    """This moment as the store writes it: UTC, always of one length, so that texts sort as moments do."""
    return datetime.now(UTC).isoformat(timespec="microseconds")
