"""The command `sweep`, with a worker whose times are invented, and once in the interpreter."""

from __future__ import annotations

import csv
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from profiling import sweep_command
from profiling.cli import main
from profiling.job_queue import JobQueue
from profiling.sweep_export import json_of
from profiling.sweep_record import SweepState
from profiling.sweep_store import SweepStore
from profiling.terminal import BAD_INPUT, INTERRUPTED, NOT_RIGHT, RIGHT
from tests import fake_sweep_worker as fake
from tests import made_up_sweeps as sweeps
from tests import records_for_tests as records

SMALL = "--kernel v2 --seq-len 4096 --head-dim 128 --causal yes --block-m 64,128 --block-n 32,64 --num-warps 8"
Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """say('--kernel v2 …') runs the command on an invented GPU: its code, stdout and stderr."""
    devices = (fake.device(), records.interpreter())
    monkeypatch.setenv("FLASHSCOPE_STORE", str(tmp_path / "store.sqlite3"))
    monkeypatch.delenv("FLASHSCOPE_CLUSTER", raising=False)
    monkeypatch.setattr("profiling.runner.JobQueue", lambda: JobQueue(lambda: devices, fake.command(tmp_path)))

    def run(line: str) -> tuple[int, str, str]:
        code = main(["sweep", *line.split()])
        out, error = capsys.readouterr()
        return code, out, error

    return run


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "A version is needed: --kernel v2, say; or --resume ID."),
        ("--kernel native", "kernel = native is not possible in a sweep: it has no tiles to choose."),
        ("--kernel v2 --block-m 48", "BLOCK_M = 48 is not possible: it can be"),
        ("--kernel v2 --causal perhaps", "causal = perhaps is not possible: it can be yes, no or both."),
        ("--kernel v2 --block-order up", "block_order = up is not possible: it can be default, natural, heaviest, zigzag."),
        ("--kernel v2 --device GPU-0", "device = GPU-0 is not possible: it can be"),
        ("--kernel v2 --device interpreter --budget 9", "budget = 9 is not possible in the interpreter"),
        ("--kernel v2 --seq-len 0", "seq_len_q = 0 is not possible"),
        ("--kernel v2 --dtype fp64", "dtype = 'fp64' is not possible"),
        ("--kernel v2 --out there.txt", "out = there.txt is not possible: its name ends in .csv or .json or .gz."),
        ("--resume 0123456789ab", "sweep = 0123456789ab is not in the store"),
        ("--show nothing", "sweep = nothing is not in the store"),
    ],
)
def test_what_is_not_possible_is_said_in_one_sentence(say: Say, line: str, sentence: str) -> None:
    code, out, error = say(line)
    assert (code, out) == (BAD_INPUT, "")
    assert error.startswith(sentence)
    assert error.count("\n") == 1


def test_the_best_is_printed_with_what_it_wins_and_everything_is_written(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, error = say(f"{SMALL} --num-stages 2,3 --finalists 3 --out {tmp_path / 'cells.csv'}")
    assert code == RIGHT
    assert "v2 · 4,096 tokens · head_dim 128 · causal · bf16" in out
    assert "Best: TileConfig(block_m=128, block_n=64, num_warps=8, num_stages=3)." in out
    assert "as fast as the default (" in out
    assert "as fast as the article's 64 × 256 (" in out
    header = next(line for line in out.splitlines() if line.startswith("rank"))
    first = out.splitlines()[out.splitlines().index(header) + 1].split()
    assert first[:5] == ["1", "128", "64", "8", "3"]
    assert " of 13" in error
    with (tmp_path / "cells.csv").open(encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert (rows[0]["BLOCK_M"], rows[0]["BLOCK_N"], rows[0]["rank"]) == ("128", "64", "1")
    assert len(rows) == SweepStore().listed()[0].total

    listed = say("--list")[1]
    sweep_id = listed.splitlines()[1].split()[0]
    assert "finished" in listed
    code, shown, _ = say(f"--show {sweep_id[:6]} --json")
    assert json.loads(shown)["sweep"]["sweep_id"] == sweep_id
    assert say(f"--show {sweep_id}")[1] == out
    file = tmp_path / "whole.json.gz"
    assert say(f"--show {sweep_id} --out {file}")[1] == out
    with monkeypatch.context() as without_a_store:
        without_a_store.setattr(sweep_command, "SweepStore", None)
        assert say(f"--show {file}") == (RIGHT, out, "")
    code, _, error = say(f"--resume {sweep_id}")
    assert (code, error) == (BAD_INPUT, f"The sweep {sweep_id} is finished: there is nothing to resume.\n")
    assert say(f"--resume {sweep_id} --kernel v2")[0] == BAD_INPUT


def test_of_a_file_that_is_no_sweep_there_is_one_sentence(say: Say, tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text('{"cells": []}')
    for name, sentence in {
        "none.json": "This is JSON, but no exported sweep: it has no field 'sweep'.",
        "gone.json": "cannot be read: no such file or directory.",
    }.items():
        code, out, error = say(f"--show {tmp_path / name}")
        assert (code, out, error.count("\n")) == (BAD_INPUT, "", 1)
        assert error.endswith(f"{sentence}\n")


def test_a_sweep_that_ran_when_it_was_exported_is_shown_as_far_as_it_was(say: Say, tmp_path: Path) -> None:
    began = SweepState(status="running", phase="screening", done=0, total=1)
    (tmp_path / "begun.json").write_bytes(json_of(sweeps.swept(sweeps.plan(), began, until=40)))
    code, out, error = say(f"--show {tmp_path / 'begun.json'}")
    assert code == RIGHT
    assert "not tried yet" in out
    assert error == f"It was exported while it ran: 40 of {len(sweeps.swept(sweeps.plan()).cells)} cells are in the file.\n"


def test_a_wrong_cell_has_its_reason_and_the_code_says_so(say: Say, tmp_path: Path) -> None:
    (tmp_path / "faults.json").write_text(json.dumps({"64x32x8x2": "wrong", "128x32x8x2": "refused"}))
    code, out, _ = say(f"{SMALL} --num-stages 2,3 --finalists 0")
    assert code == NOT_RIGHT
    assert "wrong: The output of 64x32x8x2 is wrong." in out
    assert "failed: 128x32x8x2 needs too much." in out
    assert "Without a time: 1 wrong, 1 failed." in out
    assert "Best: TileConfig(block_m=128, block_n=64, num_warps=8, num_stages=3)." in out


def test_ctrl_c_pauses_and_says_how_to_go_on(say: Say, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INVENTED_CELL_S", "0.25")
    told = sweep_command._tell

    pressed: list[threading.Timer] = []

    def interrupt(view, said) -> None:
        told(view, said)
        if view.state.done and not pressed:  # a moment later, in the midst of waiting
            pressed.append(threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)))
            pressed[0].start()

    monkeypatch.setattr(sweep_command, "_tell", interrupt)
    code, _, error = say(f"{SMALL} --num-stages 2,3,4 --finalists 0")
    assert code == INTERRUPTED
    row = SweepStore().listed()[0]
    assert (row.status, 0 < row.done < row.total) == ("paused", True)
    assert error.endswith(f"Go on with: python -m profiling sweep --resume {row.sweep_id}\n")
    monkeypatch.setattr(sweep_command, "_tell", told)
    code, out, _ = say(f"--resume {row.sweep_id}")
    assert code == RIGHT
    assert "Best: TileConfig(block_m=128, block_n=64, num_warps=8" in out
    assert SweepStore().listed()[0].status == "finished"
