"""Sweeps in the store: kept cell by cell, one holder at a time, moved to another database; SQLite and PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from profiling import store_sweep_rows
from profiling.store import Store, StoreProblem
from profiling.store_tables import VERSION_TABLE, sweep_cells, sweeps
from profiling.sweep_ranking import finalists_of
from profiling.sweep_record import CellOutcome, Sweep, SweepCell
from profiling.sweep_store import INTERRUPTED, SweepStore
from tests.sweeps_for_tests import measured, plan, sweep, with_finals
from tests.varied_snapshots import varied


def pending(cell: SweepCell) -> CellOutcome:
    return CellOutcome(key=cell.key, status="pending")


@pytest.fixture
def store(store_url: str) -> Iterator[SweepStore]:
    found = SweepStore(store_url)
    yield found
    found.close()


def begun(store: SweepStore) -> Sweep:
    """A new sweep of which nothing is known."""
    found = sweep(plan(finalists=2), pending)
    store.create(found)
    return found


def put(store: SweepStore, found: Sweep, **state: object) -> None:
    """Keep all that is known of a sweep."""
    outcomes = [one for one in found.outcomes if one.is_over]
    store.put(found.sweep_id, outcomes, found.state.model_copy(update=state))


def test_what_was_put_in_is_what_comes_out(store: SweepStore) -> None:
    assert store.listed() == ()
    assert store.get("0123456789ab") is None
    found = begun(store)
    assert store.get(found.sweep_id) == found
    whole = sweep(plan(finalists=2))
    half = Sweep(**fields(found) | {"outcomes": whole.outcomes[:5] + found.outcomes[5:]})
    put(store, half, done=5)
    kept = store.get(found.sweep_id)
    assert kept.outcomes == half.outcomes
    finals = with_finals(whole, finalists_of)
    put(store, finals, done=len(finals.cells), status="finished", phase="over")
    assert store.get(found.sweep_id[:6]).outcomes == finals.outcomes
    (row,) = store.listed()
    assert (row.title, row.owner, row.status, row.done) == (found.plan.title, "Ada", "finished", len(finals.cells))
    assert store.get("xyz") is None


def fields(found: Sweep) -> dict[str, object]:
    return {name: getattr(found, name) for name in Sweep.model_fields}


def test_one_process_at_a_time_runs_a_sweep(store: SweepStore, store_url: str) -> None:
    found, other = begun(store), SweepStore(store_url)
    with pytest.raises(StoreProblem, match="is being run by another process"):
        other.take(found.sweep_id)
    with pytest.raises(StoreProblem, match="was taken over by another process"):
        put(other, found)
    put(store, found, status="paused", sentence="Paused.")
    assert other.get(found.sweep_id).state.status == "paused"
    taken = other.take(found.sweep_id)
    assert (taken.state.status, taken.state.sentence, taken.cells) == ("running", "", found.cells)
    with pytest.raises(StoreProblem, match="was taken over"):
        put(store, found)
    put(other, found, status="finished", phase="over")
    with pytest.raises(StoreProblem, match="is finished: there is nothing to resume"):
        store.take(found.sweep_id)
    with pytest.raises(StoreProblem, match="There is no sweep ffffffffffff"):
        store.take("f" * 12)
    other.close()


_HOLD = """
import os, sys
from profiling.sweep_store import SweepStore
from tests.test_sweep_store import begun
begun(SweepStore(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_sweep_whose_process_was_killed_is_paused_and_can_be_resumed(store: SweepStore, store_url: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _HOLD, store_url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=os.path.dirname(os.path.dirname(__file__)),
    )  # fmt: skip
    assert child.stdout.readline() == "held\n"
    sweep_id = store.listed()[0].sweep_id
    assert store.get(sweep_id).state.status == store.listed()[0].status == "running"
    child.kill()
    child.communicate()
    assert store.get(sweep_id).state.status == store.listed()[0].status == "paused"
    assert store.get(sweep_id).state.sentence == INTERRUPTED
    assert store.take(sweep_id).state.status == "running"


def test_a_holder_elsewhere_that_is_silent_is_taken_for_dead(store: SweepStore, store_url: str) -> None:
    found, other = begun(store), SweepStore(store_url)
    with store._database.writing() as connection:
        connection.execute(sweeps.update().values(holder="aaaaaaaaaaaa/1/b"))
    with pytest.raises(StoreProblem, match="is being run"):
        other.take(found.sweep_id)
    with store._database.writing() as connection:
        connection.execute(sweeps.update().values(seen_at="2026-01-01T00:00:00.000000+00:00"))
    assert other.take(found.sweep_id).cells == found.cells
    other.close()


def test_a_sweep_that_nobody_runs_can_be_cancelled(store: SweepStore) -> None:
    found = begun(store)
    put(store, found, status="paused")
    store.cancel(found.sweep_id)
    assert store.get(found.sweep_id).state.status == "cancelled"
    with pytest.raises(StoreProblem, match="is cancelled"):
        store.take(found.sweep_id)


def test_a_damaged_sweep_is_said_to_be_damaged(store: SweepStore) -> None:
    found = begun(store)
    put(store, sweep(plan(finalists=2)))
    with store._database.writing() as connection:
        document = connection.scalar(sa.select(sweep_cells.c.document).limit(1))
        connection.execute(sweep_cells.update().values(document=document[:-5]))
    with pytest.raises(StoreProblem, match=f"The stored sweep {found.sweep_id} cannot be opened"):
        store.get(found.sweep_id)


def test_a_store_from_before_there_were_sweeps_is_brought_up_to_date(store_url: str) -> None:
    old = Store(store_url)
    id = old.save(varied(1), "Ada")
    with old._contents._database.writing() as connection:
        sweep_cells.drop(connection)
        sweeps.drop(connection)
        connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '0001'"))
    old.close()
    store = SweepStore(store_url)
    found = begun(store)
    assert store.get(found.sweep_id) == found
    store.close()
    again = Store(store_url)
    assert again.get(id).snapshot == varied(1)
    again.close()


def test_sweeps_move_to_another_store_and_what_is_further_counts(store: SweepStore, store_url: str, postgres, tmp_path) -> None:
    found, whole = begun(store), with_finals(sweep(plan(finalists=2)), finalists_of)
    put(store, whole, done=3, status="paused")
    target_url = str(tmp_path / "target.sqlite3") if store_url.startswith("postgres") else postgres.new_url()
    source = Store(store_url)
    moved = source.migrate_to(target_url, "Ada")
    assert (moved.sweeps, moved.sweep_cells) == (1, len(whole.cells))
    target = SweepStore(target_url)
    assert target.get(found.sweep_id) == store.get(found.sweep_id)
    assert source.migrate_to(target_url, "Ada") == moved

    target.take(found.sweep_id)  # it goes on there, and back there is less
    put(target, whole, done=len(whole.cells), status="finished", phase="over")
    first = next(cell.key for cell, one in whole.by_key.values() if one.final is None)
    with store._database.writing() as connection:
        connection.execute(sweep_cells.delete().where(sweep_cells.c.key == first))
    source.migrate_to(target_url, "Ada")
    assert target.get(found.sweep_id).state.status == "finished"
    assert target.get(found.sweep_id).outcomes == whole.outcomes

    final = next(cell for cell, one in whole.by_key.values() if one.final is not None)
    without = measured(final).model_copy(update={"finished_at": "2026-11-30T12:00:00+00:00"})
    with target._database.writing() as connection:
        store_sweep_rows.put_outcomes(connection, found.sweep_id, [without])
    source.migrate_to(target_url, "Ada")
    assert target.get(found.sweep_id).by_key[final.key][1].final is not None
    source.close()
    target.close()
