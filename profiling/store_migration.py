"""Everything of one store copied to another and proved there by hashes; interrupted anywhere, it can be run again.

The source is read in one read-only transaction. The target is written in short transactions, each of which leaves it whole,
so that others can use it meanwhile. Where both have a snapshot, its state is that of the store that changed it last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import sqlalchemy as sa

from profiling import store_documents, store_sweep_rows
from profiling.store import Migrated, StoreProblem
from profiling.store_database import Database
from profiling.store_tables import DERIVED, documents, log, rows, states

_AT_ONCE = 32  # a document can have megabytes
_ABOUT_STATE = ("saved", "imported", "edited", "deleted", "restored")
_PINNED, _UNPINNED = ("made the baseline", "no longer the baseline")
_MOST_NAMED = 5
_LOGGED = (log.c.key, log.c.at, log.c.who, log.c.what, log.c.snapshot_id, log.c.detail)
Ids = Sequence[str]


def migrate(source: Database, target: Database, who: str) -> Migrated:
    """Copy and prove. Raises StoreProblem if the target is the source, and if anything is not there as it is here."""
    if source.address == target.address:
        raise StoreProblem(f"The target {target.place} is this store itself: give the address of another one.")
    with source.reading() as here:
        ids = here.scalars(sa.select(states.c.snapshot_id).order_by(states.c.saved_at, states.c.snapshot_id)).all()
        copied = 0
        for some in _batches(ids):
            with target.writing() as there:
                copied += _copy(here, there, some, who, source.place)
        with target.writing() as there:
            _copy_baseline(there)
        sweeps, cells = _copy_sweeps(here, target)
        differing = [id for some in _batches(ids) for id in _differing(here, target, some)]
        damaged = [id for id in differing if not _is_whole(here, id)]
    if differing:
        raise StoreProblem(
            f"{_named(differing)} of {len(ids)} are not in {target.place} as they should be"
            + (f" ({_named(damaged)} were damaged here before)" if damaged else "")
            + f". All others are, and {source.place} is as it was."
        )
    return Migrated(copied, already_there=len(ids) - copied, verified=len(ids), sweeps=sweeps, sweep_cells=cells)


def _copy_sweeps(here: sa.Connection, target: Database) -> tuple[int, int]:
    """Every sweep with its cells, a transaction each, and proved; how many sweeps and cells that is."""
    sweeps = cells = 0
    for id in store_sweep_rows.ids(here):
        with target.writing() as there:
            store_sweep_rows.copy(here, there, id)
        with target.reading() as there:
            missing = store_sweep_rows.missing(here, there, id)
        if missing:
            raise StoreProblem(f"{missing} cells of the sweep {id} are not in {target.place} as they are here.")
        sweeps, cells = sweeps + 1, cells + len(store_sweep_rows.cells_of(here, id))
    return sweeps, cells


def _batches(ids: Ids) -> Iterator[Ids]:
    for start in range(0, len(ids), _AT_ONCE):
        yield ids[start : start + _AT_ONCE]


def _copy(here: sa.Connection, there: sa.Connection, ids: Ids, who: str, place: str) -> int:
    """Copy some snapshots with all that belongs to them; returns how many were not there."""
    known = set(there.scalars(sa.select(documents.c.id).where(documents.c.id.in_(ids))))
    new = [id for id in ids if id not in known]
    _insert(there, documents, _rows(here, documents, documents.c.id, new))
    without_pin = [{**one, "is_baseline": False} for one in _rows(here, states, states.c.snapshot_id, new)]
    _insert(there, states, without_pin)
    for table in DERIVED:
        _insert(there, table, _rows(here, table, table.c.snapshot_id, new))
    _copy_states(here, there, sorted(known))
    _copy_log(here, there, ids)
    now = store_documents.now()
    for id in new:
        store_documents.note(there, now, who, "migrated", id, f"from {place}")
    return len(new)


def _rows(connection: sa.Connection, table: sa.Table, column: sa.Column, ids: Ids) -> list[dict]:
    return [dict(one) for one in connection.execute(sa.select(table).where(column.in_(ids))).mappings()]


def _insert(connection: sa.Connection, table: sa.Table, values: list[dict]) -> None:
    if values:
        connection.execute(table.insert(), values)


def _copy_states(here: sa.Connection, there: sa.Connection, ids: Ids) -> None:
    """Before the log is copied: it says which of the two was changed last."""
    last_here, last_there = _last_changes(here, ids), _last_changes(there, ids)
    for state in here.execute(sa.select(states).where(states.c.snapshot_id.in_(ids))):
        if last_here.get(state.snapshot_id, "") > last_there.get(state.snapshot_id, ""):
            values = {"deleted_at": state.deleted_at, "replaced_by": state.replaced_by}
            store_documents.change(there, state.snapshot_id, **values)


def _last_changes(connection: sa.Connection, ids: Ids) -> dict[str, str]:
    wanted = sa.select(log.c.snapshot_id, sa.func.max(log.c.at)).where(log.c.snapshot_id.in_(ids), log.c.what.in_(_ABOUT_STATE))
    return dict(connection.execute(wanted.group_by(log.c.snapshot_id)).all())


def _log(connection: sa.Connection, ids: Ids) -> list[dict]:
    wanted = sa.select(*_LOGGED).where(log.c.snapshot_id.in_(ids)).order_by(log.c.number)
    return [dict(line) for line in connection.execute(wanted).mappings()]


def _copy_log(here: sa.Connection, there: sa.Connection, ids: Ids) -> None:
    keys = set(there.scalars(sa.select(log.c.key).where(log.c.snapshot_id.in_(ids))))
    _insert(there, log, [line for line in _log(here, ids) if line["key"] not in keys])


def _copy_baseline(there: sa.Connection) -> None:
    """By the log, which now is that of both stores: its last line about the baseline says which one it is."""
    about = sa.select(log.c.what, log.c.snapshot_id).where(log.c.what.in_((_PINNED, _UNPINNED)))
    last = there.execute(about.order_by(log.c.at.desc(), log.c.number.desc()).limit(1)).one_or_none()
    if last is None:
        return
    there.execute(states.update().where(states.c.is_baseline).values(is_baseline=False))
    if last.what == _PINNED:
        alive = (states.c.snapshot_id == last.snapshot_id, states.c.deleted_at.is_(None))
        there.execute(states.update().where(*alive).values(is_baseline=True))


def _differing(here: sa.Connection, target: Database, ids: Ids) -> list[str]:
    """Those whose document, row, state or log in the target is not what it is here."""
    with target.reading() as there:
        files = {one["id"]: one["file"] for one in _rows(there, documents, documents.c.id, ids)}
        listed = set(there.scalars(sa.select(rows.c.snapshot_id).where(rows.c.snapshot_id.in_(ids))))
        states_here, states_there = _states(here, ids), _states(there, ids)
        last_here, last_there = _last_changes(here, ids), _last_changes(there, ids)
        lines = {line["key"]: line for line in _log(there, ids)}
    lost = {line["snapshot_id"] for line in _log(here, ids) if lines.get(line["key"]) != line}

    def is_same(id: str) -> bool:
        changed_there_since = last_there.get(id, "") > last_here.get(id, "")
        same_state = states_there.get(id) == states_here[id] or changed_there_since
        return id in files and store_documents.digest(files[id]) == id and id in listed and same_state and id not in lost

    return [id for id in ids if not is_same(id)]


def _states(connection: sa.Connection, ids: Ids) -> dict[str, tuple[str | None, str | None]]:
    wanted = sa.select(states.c.snapshot_id, states.c.deleted_at, states.c.replaced_by).where(states.c.snapshot_id.in_(ids))
    return {id: (deleted_at, replaced_by) for id, deleted_at, replaced_by in connection.execute(wanted)}


def _is_whole(connection: sa.Connection, id: str) -> bool:
    file = connection.scalar(sa.select(documents.c.file).where(documents.c.id == id))
    return file is not None and store_documents.digest(file) == id


def _named(ids: Ids) -> str:
    """'3 snapshots (1f…, 2e…, 3d…)'."""
    some = ", ".join(id[:12] for id in ids[:_MOST_NAMED]) + (", …" if len(ids) > _MOST_NAMED else "")
    return f"{len(ids)} {'snapshot' if len(ids) == 1 else 'snapshots'} ({some})"
