"""What a store does, each in one transaction: keep, find, change, list, log. profiling.store is its face."""

from __future__ import annotations

import sqlalchemy as sa
from pydantic import ValidationError

from profiling import store_documents as documents
from profiling import store_migration, store_search
from profiling.record_types import first_sentence
from profiling.snapshot import AnySnapshot, NotASnapshot, Snapshot, read
from profiling.store import Change, Choices, Found, Kept, Migrated, Origin, Query, StoreProblem
from profiling.store_database import Database
from profiling.store_rows import derived
from profiling.store_tables import DERIVED, states
from profiling.store_tables import documents as documents_table

_SAVED: dict[Origin, str] = {"here": "saved", "imported": "imported"}


class Contents:
    """The snapshots of one database. Raises StoreProblem."""

    def __init__(self, url: str) -> None:
        self._database = Database(url)
        self.place = self._database.place

    def close(self) -> None:
        """Let the connections go."""
        self._database.close()

    def save(self, snapshot: AnySnapshot, who: str, origin: Origin) -> str:
        """Keep a snapshot; returns its id once it is durable."""
        one = documents.packed(snapshot)
        with self._database.writing() as connection:
            _keep(connection, one, who, origin, _SAVED[origin], one.derived.row["title"])
        return one.id

    def get(self, id_or_start: str) -> Kept | None:
        """The snapshot with this id or start of it."""
        with self._database.reading() as connection:
            id = documents.find(connection, id_or_start)
            return None if id is None else documents.kept(connection, id)

    def search(self, query: Query, limit: int, offset: int) -> Found:
        """Snapshots that fit, newest first."""
        with self._database.reading() as connection:
            return store_search.found(connection, query, limit, offset)

    def choices(self) -> Choices:
        """What there is to filter by."""
        with self._database.reading() as connection:
            return store_search.choices(connection)

    def edit(self, id: str, who: str, title: str, note: str, tags: tuple[str, ...]) -> str:
        """Save the same measurements under new words, and delete the old ones softly."""
        with self._database.reading() as connection:
            documents.known(connection, id)
            old = documents.kept(connection, id)
        new = _reworded(old.snapshot, title, note, tags)
        one = documents.packed(new)
        if one.id == id:
            return id
        with self._database.writing() as connection:
            state = documents.known(connection, id)
            if state.replaced_by is not None:
                raise StoreProblem(f"Snapshot {id[:12]} has been edited by someone else meanwhile: open the newer one.")
            if state.deleted_at is not None:
                raise StoreProblem(f"Snapshot {id[:12]} is deleted: restore it before editing it.")
            _keep(connection, one, who, state.origin, "saved", f"edited from {id[:12]}")
            now = documents.now()
            documents.change(connection, id, deleted_at=now, replaced_by=one.id)
            documents.note(connection, now, who, "edited", id, f"{_what_changed(old.snapshot, new)}; now {one.id[:12]}")
            if state.is_baseline:
                _unpin(connection, who)
                _pin(connection, one.id, who)
        return one.id

    def delete(self, id: str, who: str) -> None:
        """Delete softly."""
        with self._database.writing() as connection:
            state = documents.known(connection, id)
            if state.deleted_at is not None:
                return
            if state.is_baseline:
                _unpin(connection, who)
            now = documents.now()
            documents.change(connection, id, deleted_at=now)
            documents.note(connection, now, who, "deleted", id)

    def restore(self, id: str, who: str) -> None:
        """Undo a soft deletion."""
        with self._database.writing() as connection:
            if documents.known(connection, id).deleted_at is not None:
                _restore(connection, id, who)

    def baseline(self) -> str | None:
        """The id of the pinned baseline."""
        with self._database.reading() as connection:
            return _baseline(connection)

    def pin_baseline(self, id: str | None, who: str) -> None:
        """Pin the baseline, or unpin with None."""
        with self._database.writing() as connection:
            if id is not None and documents.known(connection, id).deleted_at is not None:
                raise StoreProblem(f"Snapshot {id[:12]} is deleted: restore it before pinning it.")
            if id == _baseline(connection):
                return
            _unpin(connection, who)
            if id is not None:
                _pin(connection, id, who)

    def changes(self, id: str | None, limit: int) -> tuple[Change, ...]:
        """The log, newest first."""
        with self._database.reading() as connection:
            return documents.changes(connection, id, limit)

    def rebuild_rows(self) -> int:
        """Derive the searchable rows again from every document that is whole."""
        with self._database.reading() as connection:
            ids = connection.scalars(sa.select(documents_table.c.id)).all()
        return sum(self._rebuild(id) for id in ids)

    def _rebuild(self, id: str) -> bool:
        with self._database.writing() as connection:
            file = connection.scalar(sa.select(documents_table.c.file).where(documents_table.c.id == id))
            if documents.digest(file) != id:
                return False
            try:
                snapshot = read(file)
            except NotASnapshot:
                return False
            for table in DERIVED:
                connection.execute(table.delete().where(table.c.snapshot_id == id))
            documents.put_derived(connection, id, derived(snapshot))
            return True

    def migrate_to(self, url: str, who: str) -> Migrated:
        """Copy everything to another store and prove it."""
        target = Database(url)
        try:
            return store_migration.migrate(self._database, target, who)
        finally:
            target.close()


def _keep(connection: sa.Connection, one: documents.Packed, who: str, origin: Origin, what: str, detail: str) -> None:
    now = documents.now()
    if documents.put(connection, one, origin, now):
        documents.note(connection, now, who, what, one.id, detail)
        return
    if documents.mend(connection, one):
        documents.note(connection, now, who, "saved", one.id, "the stored document was damaged")
    if documents.known(connection, one.id).deleted_at is not None:
        _restore(connection, one.id, who)


def _restore(connection: sa.Connection, id: str, who: str) -> None:
    documents.change(connection, id, deleted_at=None, replaced_by=None)
    documents.note(connection, documents.now(), who, "restored", id)


def _baseline(connection: sa.Connection) -> str | None:
    return connection.scalar(sa.select(states.c.snapshot_id).where(states.c.is_baseline))


def _pin(connection: sa.Connection, id: str, who: str) -> None:
    documents.change(connection, id, is_baseline=True)
    documents.note(connection, documents.now(), who, "made the baseline", id)


def _unpin(connection: sa.Connection, who: str) -> None:
    pinned = _baseline(connection)
    if pinned is not None:
        documents.change(connection, pinned, is_baseline=False)
        documents.note(connection, documents.now(), who, "no longer the baseline", pinned)


def _reworded(snapshot: AnySnapshot, title: str, note: str, tags: tuple[str, ...]) -> Snapshot:
    if not isinstance(snapshot, Snapshot):
        raise StoreProblem(
            f"This snapshot was made by a newer FlashScope (its schema is {snapshot.schema_version}), and is read-only here: "
            "update FlashScope to edit it."
        )
    kept = {name: getattr(snapshot, name) for name in ("author", "host", "created_at", "measurements")}
    try:
        return Snapshot(title=title, note=note, tags=tuple(tags), **kept)
    except ValidationError as error:
        raise StoreProblem(first_sentence(error)) from None


def _what_changed(old: Snapshot, new: Snapshot) -> str:
    changed = [name for name in ("title", "note", "tags") if getattr(old, name) != getattr(new, name)]
    return ", ".join(changed) or "rewritten"
