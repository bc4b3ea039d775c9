"""Sweeps put into a database and taken out of it. Every function works within a transaction; profiling.sweep_store is the face.

What came of a cell only ever goes forward: pending cells have no row, and one with a final is further than one without.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from pydantic import ValidationError

from kernels.problem import Frozen
from profiling.foreign_text import Moment
from profiling.record_types import Words
from profiling.store import StoreProblem
from profiling.store_tables import sweep_cells, sweeps
from profiling.sweep_record import CellOutcome, Sweep, SweepCell, SweepPlan, SweepState, knowledge

_MOST_BYTES = 64 << 20


class _Document(Frozen):
    """What of a sweep never changes."""

    plan: SweepPlan
    created_at: Moment
    owner: Words
    device_name: Words
    capability: int | None
    cells: tuple[SweepCell, ...]


def put(connection: sa.Connection, sweep: Sweep, now: str) -> None:
    """Put a new sweep in, with what is known of its cells."""
    document = _Document(**{name: getattr(sweep, name) for name in _Document.model_fields})
    connection.execute(
        sweeps.insert().values(
            id=sweep.sweep_id, title=sweep.plan.title, owner=sweep.owner, device_name=sweep.device_name,
            created_at=sweep.created_at, changed_at=now, holder=None, seen_at=now, document=_packed(document),
            **_of_state(sweep.state),
        )
    )  # fmt: skip
    put_outcomes(connection, sweep.sweep_id, [one for one in sweep.outcomes if one.is_over])


def put_outcomes(connection: sa.Connection, id: str, outcomes: Iterable[CellOutcome]) -> None:
    """Put in what came of cells, in the place of what was known of them."""
    found = [{"sweep_id": id, "key": one.key, "status": one.status, "document": _packed(one)} for one in outcomes]
    if found:
        keys = [one["key"] for one in found]
        connection.execute(sweep_cells.delete().where(sweep_cells.c.sweep_id == id, sweep_cells.c.key.in_(keys)))
        connection.execute(sweep_cells.insert(), found)


def change(connection: sa.Connection, id: str, now: str, state: SweepState, **values: str | None) -> None:
    """Say where it stands."""
    changed = {"changed_at": now, "seen_at": now, **_of_state(state), **values}
    connection.execute(sweeps.update().where(sweeps.c.id == id).values(**changed))


def row(connection: sa.Connection, id: str) -> sa.Row | None:
    """Everything but the cells; None if it is not there."""
    return connection.execute(sa.select(sweeps).where(sweeps.c.id == id)).one_or_none()


def rows(connection: sa.Connection, limit: int) -> Sequence[sa.Row]:
    """What a list shows, newest first."""
    named = ("id", "title", "owner", "device_name", "created_at", "status", "done", "total", "holder", "seen_at")
    wanted = sa.select(*(sweeps.c[name] for name in named)).order_by(sweeps.c.created_at.desc(), sweeps.c.id.desc())
    return connection.execute(wanted.limit(max(0, limit))).all()


def sweep_of(connection: sa.Connection, found: sa.Row, state: SweepState | None = None) -> Sweep:
    """The whole sweep of a row. state: instead of the stored one. Raises StoreProblem where what is stored is damaged."""
    try:
        document = _Document.model_validate_json(_unpacked(found.document))
        known = cells_of(connection, found.id)
        outcomes = {key: CellOutcome.model_validate_json(_unpacked(packed)) for key, packed in known.items()}
        whole = tuple(outcomes.get(cell.key) or CellOutcome(key=cell.key, status="pending") for cell in document.cells)
        return Sweep(
            sweep_id=found.id, **dict(document), outcomes=whole, change=knowledge(whole),
            state=state or SweepState.model_validate_json(found.state),
        )  # fmt: skip
    except (ValidationError, zlib.error) as error:
        said = str(error).splitlines()[0]
        raise StoreProblem(f"The stored sweep {found.id} cannot be opened: {said}.") from None


def state_of(found: sa.Row) -> SweepState:
    """Where it stood when it was last said."""
    return SweepState.model_validate_json(found.state)


def cells_of(connection: sa.Connection, id: str) -> dict[str, bytes]:
    """The stored outcomes of a sweep by the cells' keys, packed."""
    wanted = sa.select(sweep_cells.c.key, sweep_cells.c.document).where(sweep_cells.c.sweep_id == id)
    return dict(connection.execute(wanted).all())


def start_of(connection: sa.Connection, text: str) -> list[str]:
    """The ids that begin so, two at most."""
    wanted = sa.select(sweeps.c.id).where(sweeps.c.id >= text, sweeps.c.id < text + "g").limit(2)
    return list(connection.scalars(wanted))


# To another store


def ids(connection: sa.Connection) -> Sequence[str]:
    """All of them, oldest first."""
    return connection.scalars(sa.select(sweeps.c.id).order_by(sweeps.c.created_at, sweeps.c.id)).all()


def copy(here: sa.Connection, there: sa.Connection, id: str) -> None:
    """Copy a sweep; of a cell that both have, what is further counts, and of the sweep's state what was said last."""
    ours, theirs = row(here, id), row(there, id)
    values = {**ours._mapping, "holder": None}
    if theirs is None:
        there.execute(sweeps.insert().values(**values))
    elif ours.changed_at > theirs.changed_at:
        there.execute(sweeps.update().where(sweeps.c.id == id).values(**values))
    known = cells_of(there, id)
    better = [key for key, packed in cells_of(here, id).items() if key not in known or _is_further(packed, known[key])]
    put_outcomes(there, id, [CellOutcome.model_validate_json(_unpacked(cells_of(here, id)[key])) for key in better])


def missing(here: sa.Connection, there: sa.Connection, id: str) -> int:
    """How many cells there are neither what they are here nor further; all of them where the sweep itself is not there."""
    ours, known = cells_of(here, id), cells_of(there, id)
    if row(there, id) is None:
        return max(1, len(ours))
    return sum(key not in known or (known[key] != packed and _is_further(packed, known[key])) for key, packed in ours.items())


def _is_further(packed: bytes, than: bytes) -> bool:
    if packed == than:
        return False
    ours, theirs = (CellOutcome.model_validate_json(_unpacked(one)) for one in (packed, than))
    return _progress(ours) > _progress(theirs)


def _progress(one: CellOutcome) -> tuple[bool, str]:
    return one.final is not None, one.finished_at or ""


def _of_state(state: SweepState) -> dict[str, object]:
    return {"status": state.status, "done": state.done, "total": state.total, "state": state.model_dump_json()}


def _packed(record: Frozen) -> bytes:
    return zlib.compress(record.model_dump_json().encode())


def _unpacked(packed: bytes) -> bytes:
    expander = zlib.decompressobj()
    found = expander.decompress(packed, _MOST_BYTES)
    if not expander.eof:
        raise zlib.error("it is not whole")
    return found
