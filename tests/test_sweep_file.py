"""Exported sweeps read again: the same sweep, the recordings in the box, and whatever else a file can hold."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app import sweep_shown, sweep_tables
from app.figures import parallel, scaling, sweep_map
from app.figures.style import LIGHT
from app.sweep_shown import Shown
from profiling import sweep_file
from profiling.privacy import plain
from profiling.record_types import Array
from profiling.records import JobError, Latency
from profiling.sweep_export import csv_of, gzip_of, json_of, rows_of
from profiling.sweep_file import NotASweep, implausible, read
from profiling.sweep_ranking import ranking, rankings
from profiling.sweep_record import CellOutcome, Sweep, SweepState
from profiling.untrusted import MAX_RAW_BYTES
from tests import made_up_sweeps as sweeps
from tests import mutated_files
from tests import records_for_tests as records

RECORDED = sorted((Path(__file__).parents[1] / "app" / "gallery").glob("*.sweep.json.gz"))
MOST_BYTES = 400_000
_DAMAGED = 80
SAID = "/home/ada/work/flash.py: no space left for ada on node7.local"


def small(**changes: Any) -> Sweep:
    asked = sweeps.plan(problems=sweeps.plan().problems[2:4], block_m=(128,), num_warps=(8,), num_stages=(2, 3))
    return sweeps.with_finals(sweeps.swept(asked, **changes))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return json.loads(json_of(small()))


@pytest.mark.parametrize("written", [json_of, gzip_of], ids=["json", "gzip"])
def test_an_exported_sweep_is_the_same_sweep_but_for_who_started_it(written: Callable[[Sweep], bytes]) -> None:
    sweep = small()
    found = read(written(sweep))
    assert found.owner == ""
    for name in ("sweep_id", "plan", "created_at", "device_name", "capability", "cells", "outcomes"):
        assert getattr(found, name) == getattr(sweep, name)
    assert rankings(found) == rankings(sweep)
    assert json_of(read(json_of(found))) == json_of(found)


def test_neither_names_nor_folders_leave_with_a_file() -> None:
    error = JobError(kind="crashed", sentence=SAID, raw=f'File "{SAID}", line 3')

    def crashed(one: Any) -> CellOutcome:
        return CellOutcome(key=one.key, status="failed", sentence=SAID, error=error)

    sweep = small(owner="Ada Lovelace", changed={0: crashed})
    for written in (json_of(sweep).decode(), csv_of(sweep).decode("utf-8-sig")):
        assert "flash.py" in written
        for gone in ("/home", "Ada Lovelace", "for ada", "node7"):
            assert gone not in written
    rows = list(csv.DictReader(io.StringIO(csv_of(sweep).decode("utf-8-sig"))))
    assert len(rows) == len(sweep.cells)
    assert [row["device"] or None for row in rows] == [row["device"] for row in rows_of(sweep)]


@pytest.mark.parametrize("state", ["running", "paused"])
def test_nobody_runs_what_is_in_a_file_and_its_counts_are_counted(state: str) -> None:
    began = SweepState(status=state, phase="screening", done=0, total=9_999, seconds_left=5.0, sentence="Paused.")
    found = read(json_of(sweeps.swept(sweeps.tiny_plan(), began, until=3))).state
    assert (found.status, found.done, found.seconds_left) == ("paused", 3, None)
    assert found.total == len(sweeps.swept(sweeps.tiny_plan()).cells)
    assert found.sentence == (sweep_file.EXPORTED_MEANWHILE if state == "running" else "Paused.")


def test_what_is_none_is_one_sentence(document: dict[str, Any]) -> None:
    other_cell = json.loads(json.dumps(document))
    other_cell["sweep"]["outcomes"][0] |= {
        name: other_cell["sweep"]["outcomes"][1][name] for name in ("status", "measurement", "final", "report", "reason")
    }
    twice = json.loads(json.dumps(document))
    for name in ("cells", "outcomes"):
        twice["sweep"][name].append(twice["sweep"][name][0])
    unplanned = json.loads(json.dumps(document))
    del unplanned["sweep"]["plan"]["problems"][0]
    files = {
        b"PK\x03\x04": "This is a zip archive: an exported sweep is one JSON file, or gzip of one.",
        b"[1]": "This is JSON, but no exported sweep: it has no field 'sweep'.",
        records.recording().document: "This is a snapshot, not an exported sweep: the Snapshots page opens it.",
        b"[" * 40: "This file nests deeper than 32 levels, the most an exported sweep has.",
        b" " * (MAX_RAW_BYTES + 1): f"A file of {MAX_RAW_BYTES + 1:,} bytes is not possible: an exported sweep has",
        b'{"sweep": {"plan": 1}}': "This is no exported sweep: ",
        json.dumps(other_cell).encode(): "This is no exported sweep: what is in the cell ",
        json.dumps(twice).encode(): "This is no exported sweep: it has a cell twice.",
        json.dumps(unplanned).encode(): "This is no exported sweep: what is in the cell ",
    }
    for data, sentence in files.items():
        with pytest.raises(NotASweep) as caught:
            read(data)
        assert str(caught.value).startswith(sentence)
        assert "\n" not in str(caught.value)


def test_a_time_that_cannot_be_true_is_said() -> None:
    sweep = small()
    assert implausible(sweep) == ()
    place = next(n for n, one in enumerate(sweep.outcomes) if one.measurement is not None)
    measurement = sweep.outcomes[place].measurement
    turns = Array.of([0] * 20, "<i4")
    fast = Latency(provenance="measured", mode="cold", samples_ms=Array.of([1e-3] * 20), round_of=turns)
    faked = measurement.model_copy(update={"latency": fast})
    outcomes = list(sweep.outcomes)
    outcomes[place] = outcomes[place].model_copy(update={"measurement": faked})
    (sentence,) = implausible(sweeps.with_outcomes(sweep, tuple(outcomes)))
    assert sentence.startswith(f"{sweep.cells[place].series.title}, {sweep.cells[place].title}: ")


def drawn(sweep: Sweep) -> None:
    """Everything that the page makes of a sweep."""
    csv_of(sweep), gzip_of(sweep), implausible(sweep)
    shown = [Shown(sweep, series, ranking(sweep, series)) for series in sweep.plan.series]
    for one in shown:
        sweep_shown.headline(one)
        sweep_map.chart(one, one.first(), LIGHT)
        parallel.chart(one, {}, LIGHT)
        scaling.chart(shown, one, LIGHT)
        sweep_tables.ranked(one), sweep_tables.about_ranks(one), sweep_tables.recommended(shown)


def test_of_a_damaged_file_there_is_a_sentence_or_a_sweep_that_can_be_shown(document: dict[str, Any]) -> None:
    rng, seed = random.Random(20), json.dumps({"sweep": document["sweep"]}).encode()
    whole = 0
    for _ in range(_DAMAGED):
        try:
            found = read(mutated_files.mutated(rng, [seed]))
        except NotASweep:
            continue
        drawn(found)
        whole += 1
    assert 0 < whole < _DAMAGED


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_a_recorded_sweep_is_whole_small_measured_on_a_gpu_and_tells_of_nobody(path: Path) -> None:
    data = path.read_bytes()
    assert len(data) < MOST_BYTES
    written = json.loads(gzip.decompress(data))
    assert plain(written) == written
    assert written["sweep"]["owner"] == ""
    sweep = read(data)
    assert json.loads(json_of(sweep))["sweep"] == written["sweep"]
    assert sweep.state.status == "finished"
    assert implausible(sweep) == ()
    measured = [one for one in sweep.outcomes if one.status == "measured"]
    assert measured
    for one in measured:
        assert one.provenance == "measured"
        assert one.measurement.accuracy.passed
        assert one.measurement.environment.device.id in sweep.plan.devices
    for one in (one for one in sweep.outcomes if one.status != "measured"):
        assert one.status in ("infeasible", "refused")
        assert one.sentence
    drawn(sweep)


def test_there_is_a_recorded_sweep() -> None:
    assert RECORDED
