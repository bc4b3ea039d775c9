"""Kill the worker and the sweep's own process, at any moment: every finished cell is kept, and the table becomes the same."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from profiling.sweep_record import CellOutcome, Sweep
from profiling.sweep_store import SweepStore

ROOT = Path(__file__).resolve().parent.parent
_PATIENCE_S = 240.0


class Child:
    """A process that runs a sweep, which may be killed and begun again."""

    def __init__(self, url: str, folder: Path, kind: str) -> None:
        self._arguments = (url, str(folder), kind)
        self._process: subprocess.Popen[str] | None = None
        self.sweep_id = ""

    def begin(self) -> None:
        """Start it, with the sweep that there is."""
        command = [sys.executable, "-m", "tests.sweep_child", *self._arguments, *filter(None, [self.sweep_id])]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        said = self._process.stdout.readline().strip()
        assert said, "the sweep's process died at once"
        assert self.sweep_id in ("", said)
        self.sweep_id = said

    def kill(self) -> None:
        """SIGKILL, as a machine's out-of-memory killer would."""
        self._process.kill()
        self._process.wait()

    def kill_worker(self) -> bool:
        """SIGKILL to its worker; False where it has none at this moment."""
        for worker in workers_of(self._process.pid):
            os.killpg(worker, signal.SIGKILL)
            return True
        return False

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> str:
        """Its last word."""
        return self._process.communicate(timeout=_PATIENCE_S)[0].strip()


def workers_of(pid: int) -> Iterator[int]:
    """The process's children that lead a group of their own: its workers."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        child = int(stat.parent.name)
        if int(fields[1]) == pid and int(fields[2]) == child:
            yield child


def finished(store: SweepStore, sweep_id: str) -> dict[str, CellOutcome]:
    """The cells of which something is known."""
    found = store.get(sweep_id)
    return {one.key: one for one in found.outcomes if one.is_over}


def done_of(store: SweepStore, sweep_id: str) -> int:
    """How many cells are finished, without reading them."""
    return next(row.done for row in store.listed() if row.sweep_id == sweep_id)


def table(sweep: Sweep) -> list[tuple[object, ...]]:
    """What must not depend on the kills: of the interpreter not what its clock said."""
    return [_row(one) for one in sweep.outcomes]


def _row(one: CellOutcome) -> tuple[object, ...]:
    error = None if one.measurement is None else one.measurement.accuracy.relative_error
    return one.key, one.status, one.provenance, error, one.final is not None, one.provenance == "measured" and one.median_ms


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("kind", "kills", "apart", "place"),
    [
        pytest.param("gpu", 2, 8, "sqlite", id="short"),
        pytest.param("gpu-wide", 10, 8, "sqlite", marks=pytest.mark.long, id="ten times, invented GPU"),
        pytest.param("gpu-wide", 10, 8, "postgresql", marks=pytest.mark.long, id="ten times, PostgreSQL"),
        pytest.param("interpreter", 10, 3, "sqlite", marks=pytest.mark.long, id="ten times, interpreter"),
    ],
)
def test_killed_at_random_moments_it_comes_to_the_same_table(
    kind, kills, apart, place, tmp_path, monkeypatch, capsys, request
) -> None:
    store_url = str(tmp_path / "s.sqlite3") if place == "sqlite" else request.getfixturevalue("postgres").new_url()
    monkeypatch.setenv("INVENTED_CELL_S", "0.1" if kind == "gpu-wide" else "0.02")
    store, rng = SweepStore(store_url), random.Random(kills)
    whole, child = Child(store_url, tmp_path, kind), Child(store_url, tmp_path, kind)
    whole.begin()
    assert whole.end() == "finished"
    child.begin()
    deadline, kept, killed = time.monotonic() + 10 * _PATIENCE_S, dict[str, CellOutcome](), []
    for kill in range(kills):
        # between two kills some cells get done: one that is killed again and again would rightly be called failed
        while done_of(store, child.sweep_id) < len(kept) + apart and not child.has_ended:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        now = finished(store, child.sweep_id)
        time.sleep(rng.uniform(0.0, 0.4))
        if child.has_ended:
            break
        if kill % 2 == 0:
            child.kill()
            killed.append("process")
            now = finished(store, child.sweep_id)
            assert store.get(child.sweep_id).state.status in ("paused", "finished")
            if store.get(child.sweep_id).state.status == "finished":
                break
            child.begin()
        elif child.kill_worker():
            killed.append("worker")
        later = finished(store, child.sweep_id)
        assert all(later[key] == one for key, one in now.items() if later[key].final is None)
        assert set(kept) <= set(now) <= set(later)
        kept = now
    if not child.has_ended:
        assert child.end() == "finished"
    assert len(killed) == kills
    with capsys.disabled():
        print(f"\n{kind}: {killed.count('process')} times the sweep, {killed.count('worker')} times its worker", end=" ")
    sides = [store.get(one.sweep_id) for one in (whole, child)]
    assert table(sides[1]) == table(sides[0])
    store.close()
