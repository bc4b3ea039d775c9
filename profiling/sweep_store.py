"""Where sweeps are kept: in the store's database, each finished cell at once. Safe to use from several threads and processes.

A sweep is run by one process at a time, its holder, which says again and again that it lives. One whose holder was killed is
shown as paused, and whoever resumes it becomes its holder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from profiling.store import StoreProblem
from profiling.sweep_record import CellOutcome, Sweep, SweepRow, SweepState

if TYPE_CHECKING:
    from sqlalchemy import Row

_SILENT_S = 30.0
"""A holder on another machine that has said nothing for so long is taken for dead."""
_ID = re.compile(r"[0-9a-f]{4,12}")
INTERRUPTED = "It was interrupted: resume it, and it goes on with the cells that are missing."


class SweepStore:
    """The sweeps of the store at a URL, as profiling.store.Store understands it. Raises StoreProblem."""

    def __init__(self, url: str = "") -> None:
        # SQLAlchemy takes a quarter of a second to import: whoever only names a store does not wait for it.
        from profiling.store_database import Database

        self._database = Database(url)
        self.place = self._database.place
        self._me = f"{_machine()}/{os.getpid()}/{uuid.uuid4().hex}"

    def close(self) -> None:
        """Let the connections go."""
        self._database.close()

    def create(self, sweep: Sweep) -> None:
        """Keep a new sweep, held by this object."""
        from profiling import store_sweep_rows as rows

        with self._database.writing() as connection:
            rows.put(connection, sweep, _now())
            rows.change(connection, sweep.sweep_id, _now(), sweep.state, holder=self._me)

    def take(self, sweep_id: str) -> Sweep:
        """Become the holder of a sweep that is not over, and return it. Raises StoreProblem where another process runs it."""
        from profiling import store_sweep_rows as rows

        with self._database.writing() as connection:
            found = self._found(connection, sweep_id)
            if found.holder != self._me and _is_alive(found):
                raise StoreProblem(f"The sweep {sweep_id} is being run by another process: pause it there first.")
            state = rows.state_of(found)
            if state.is_over:
                raise StoreProblem(f"The sweep {sweep_id} is {state.status}: there is nothing to resume.")
            state = state.model_copy(update={"status": "running", "sentence": "", "running": ()})
            rows.change(connection, sweep_id, _now(), state, holder=self._me)
            return rows.sweep_of(connection, found, state)

    def put(self, sweep_id: str, outcomes: Sequence[CellOutcome], state: SweepState) -> None:
        """Keep what came of cells, and where the sweep stands; all of it or, where this is interrupted, nothing."""
        from profiling import store_sweep_rows as rows

        with self._database.writing() as connection:
            self._require_mine(connection, sweep_id)
            rows.put_outcomes(connection, sweep_id, outcomes)
            holder = self._me if state.status == "running" else None
            rows.change(connection, sweep_id, _now(), state, holder=holder)

    def cancel(self, sweep_id: str) -> None:
        """End a sweep that nobody runs. Raises StoreProblem where another process does."""
        self.take(sweep_id)
        from profiling import store_sweep_rows as rows

        with self._database.writing() as connection:
            state = rows.state_of(self._found(connection, sweep_id))
            ended = state.model_copy(update={"status": "cancelled", "phase": "over", "sentence": "Cancelled."})
            rows.change(connection, sweep_id, _now(), ended, holder=None)

    def get(self, id_or_start: str) -> Sweep | None:
        """The sweep with this id, or the one whose id begins so (4 digits at least); as it was last kept."""
        from profiling import store_sweep_rows as rows

        start = id_or_start.strip().lower()
        if not _ID.fullmatch(start):
            return None
        with self._database.reading() as connection:
            found = rows.start_of(connection, start)
            if len(found) > 1:
                raise StoreProblem(f"More than one sweep's id begins with {start}: give more of its digits.")
            return self._whole(connection, found[0]) if found else None

    def listed(self, limit: int = 50) -> tuple[SweepRow, ...]:
        """The newest sweeps."""
        from profiling import store_sweep_rows as rows

        with self._database.reading() as connection:
            return tuple(_row(one) for one in rows.rows(connection, limit))

    def _whole(self, connection, sweep_id: str) -> Sweep:
        from profiling import store_sweep_rows as rows

        found = self._found(connection, sweep_id)
        state = rows.state_of(found)
        if state.status == "running" and not _is_alive(found):
            state = state.model_copy(update={"status": "paused", "sentence": INTERRUPTED, "running": (), "seconds_left": None})
        return rows.sweep_of(connection, found, state)

    def _found(self, connection, sweep_id: str) -> Row:
        from profiling import store_sweep_rows as rows

        found = rows.row(connection, sweep_id)
        if found is None:
            raise StoreProblem(f"There is no sweep {sweep_id[:12]} in this store.")
        return found

    def _require_mine(self, connection, sweep_id: str) -> None:
        holder = self._found(connection, sweep_id).holder
        if holder != self._me:
            raise StoreProblem(f"The sweep {sweep_id} was taken over by another process: it goes on there.")


def _row(one: Row) -> SweepRow:
    status = "paused" if one.status == "running" and not _is_alive(one) else one.status
    return SweepRow(
        sweep_id=one.id, title=one.title, owner=one.owner, device_name=one.device_name, created_at=one.created_at,
        status=status, done=one.done, total=one.total,
    )  # fmt: skip


def _is_alive(found: Row) -> bool:
    """Whether somebody runs it: on this machine the process tells, elsewhere when it was last heard of."""
    if found.holder is None:
        return False
    machine, pid, _ = found.holder.split("/")
    if machine == _machine():
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
    return (datetime.now(UTC) - datetime.fromisoformat(found.seen_at)).total_seconds() < _SILENT_S


def _machine() -> str:
    """A name for where process ids mean the same; what the machine is called is not told."""
    space = ""
    with contextlib.suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(f"{platform.node()} {space}".encode()).hexdigest()[:12]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
