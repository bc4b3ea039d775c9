"""The command line: options are the request's fields, bad input is one sentence, and what it prints is the record."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from kernels.problem import AttentionProblem, Precision, TileConfig
from kernels.registry import VERSIONS, ours_on
from profiling import cli, doctor
from profiling.cli import _parser, main
from profiling.privacy import without_personal
from profiling.records import DeviceFacts, Flag, Job, JobError, Measurement, RunRequest
from profiling.run_options import EXPLAINED, Plan, plan
from profiling.snapshot import Snapshot, read
from profiling.store import Query, Store
from profiling.summary import is_missing_peer, is_sound, summary
from profiling.text_report import line as line_of
from profiling.text_report import table
from profiling.verdict import verdict
from profiling.words import three_digits
from tests import records_for_tests as made_up

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = "run, bench, compile, list, compare, export, import, store, prove, feasible, sweep, doctor"
INTERPRETER = DeviceFacts(id="interpreter", kind="interpreter", name="Interpreter (CPU)")
H200 = DeviceFacts(id="GPU-487a", kind="gpu", name="NVIDIA H200", capability=90)
A100 = DeviceFacts(id="GPU-1234", kind="gpu", name="NVIDIA A100", capability=80)


def planned(line: str, *devices: DeviceFacts) -> Plan:
    return plan(_parser()[0].parse_args(["run", *line.split()]), (*devices, INTERPRETER))


@pytest.fixture(autouse=True)
def store_file(tmp_path, monkeypatch):
    """Where this test's store is: never the user's."""
    monkeypatch.setenv("FLASHSCOPE_STORE", str(tmp_path / "store.sqlite3"))
    return tmp_path / "store.sqlite3"


@pytest.fixture
def measured(monkeypatch):
    """measured(*measurements) makes `run` answer with these; the list it returns says how often it was asked."""
    asked = []

    def answer_with(*measurements: Measurement) -> list[str]:
        monkeypatch.setattr("profiling.runner.JobQueue", lambda: SimpleNamespace(close=lambda: None))
        monkeypatch.setattr(cli, "_measure", lambda options, queue: asked.append(options.kernel) or measurements)
        return asked

    return answer_with


def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "profiling", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )


def exit_code(*arguments: str) -> int:
    try:
        return main([*map(str, arguments)])
    except SystemExit as left:
        return left.code


def test_every_field_of_a_request_is_an_option_that_help_explains(capsys):
    with pytest.raises(SystemExit) as left:
        _parser()[0].parse_args(["run", "--help"])
    assert left.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    fields = {*AttentionProblem.model_fields, *Precision.model_fields, *TileConfig.model_fields, *RunRequest.model_fields}
    for name in fields - {"problem", "precision", "tiles"}:
        assert f"--{name.replace('_', '-')}" in text
    for sentence in EXPLAINED.values():
        assert sentence.replace("- ", "-") in text.replace("- ", "-")


def test_all_options_reach_the_request():
    request = planned(
        "--kernel v3 --batch 2 --num-heads 8 --num-kv-heads 2 --seq-len-q 100 --seq-len-kv 300 --head-dim 64 --causal"
        " --dtype fp16 --fp8 --fp8-scale block --no-smooth-k --block-m 128 --block-n 32 --num-warps 8 --num-stages 4"
        " --device GPU-48 --compile-for 89 --probes accuracy,compile --seed 7",
        A100,
        H200,
    ).requests[0]
    assert request == RunRequest(
        kernel="v3",
        problem=AttentionProblem(
            batch=2, num_heads=8, num_kv_heads=2, seq_len_q=100, seq_len_kv=300, head_dim=64, causal=True
        ),
        precision=Precision(dtype="fp16", fp8=True, fp8_scale="block", smooth_k=False),
        tiles=TileConfig(block_m=128, block_n=32, num_warps=8, num_stages=4),
        device="GPU-487a",
        compile_for=89,
        probes=("accuracy", "compile"),
        seed=7,
    )  # fmt: skip


def test_defaults_are_small_in_the_interpreter_and_worth_it_on_a_gpu():
    small, large = planned("--kernel v2").requests[0], planned("--kernel v2", H200).requests[0]
    assert (small.device, small.problem.seq_len_q, small.problem.num_heads, small.compile_for) == ("interpreter", 256, 2, 90)
    assert (large.device, large.problem.seq_len_q, large.problem.num_heads, large.compile_for) == ("GPU-487a", 4096, 16, None)
    assert large.tiles == TileConfig(block_m=128, block_n=128, num_warps=8, num_stages=3)


def test_heads_given_alone_are_key_value_heads_too():
    assert planned("--kernel v2 --num-heads 5").requests[0].problem.num_kv_heads == 5


def test_a_single_tile_option_changes_only_itself():
    assert planned("--kernel v2 --block-n 64", H200).requests[0].tiles == TileConfig(
        block_m=128, block_n=64, num_warps=8, num_stages=3
    )  # fmt: skip


def test_all_is_every_version_and_on_a_gpu_the_peers():
    names = [request.kernel for request in planned("--kernel all").requests]
    assert names == list(ours_on(None))
    assert [request.kernel for request in planned("--kernel all", H200).requests] == list(VERSIONS)


def test_an_option_reaches_the_versions_that_have_it():
    by_name = {request.kernel: request for request in planned("--kernel all --fp8 --loop-order key --block-m 32").requests}
    assert [name for name, request in by_name.items() if request.precision.fp8] == ["v3"]
    assert {name: request.tiles and request.tiles.loop_order for name, request in by_name.items()} == {
        "native": None, "v1": "key", "v2": "query", "v3": "query",
    }  # fmt: skip


def test_one_version_with_several_settings_is_one_job():
    """An A/B of tiles, orders and formats: what stands after @ is that side's alone, what stands as an option is of both."""
    found = planned(
        "--kernel v2,v2@BLOCK_M=64,block_n=64,num_warps=4,v3@block_order=zigzag,fp8=yes,v2@dtype=fp16,v2 --num-stages 2", H200
    ).requests
    usual = TileConfig(block_m=128, block_n=128, num_warps=8, num_stages=2)
    assert [f"{one.kernel} {one.precision.title}" for one in found] == ["v2 bf16", "v2 bf16", "v3 FP8", "v2 fp16"]
    assert [one.tiles for one in found if one.kernel == "v2"] == [
        usual, usual.model_copy(update={"block_m": 64, "block_n": 64, "num_warps": 4}), usual,
    ]  # fmt: skip
    assert (found[2].tiles.block_order, found[2].tiles.num_stages) == ("zigzag", 2)
    assert Job(job_id="ab", requests=found)


def test_all_leaves_out_what_the_device_cannot_do_and_says_so():
    result = planned("--kernel all --fp8", A100)
    assert "v3" not in [request.kernel for request in result.requests]
    assert any("sm_80" in sentence for sentence in result.left_out)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--kernel v9", "kernel = v9 is not known: it can be native, v1"),
        ("--kernel v2 --block-m 63", "BLOCK_M = 63 is not possible: it can be 16,"),
        ("--kernel v2 --seq-len 0", "seq_len_q = 0 is not possible: it can be 1 to"),
        ("--kernel v2 --num-heads 4 --num-kv-heads 3", "num_heads = 4 must be a multiple"),
        ("--kernel v2 --head-dim 72", "head_dim = 72 is not possible"),
        ("--kernel v2 --dtype fp64", "dtype = 'fp64' is not possible"),
        ("--kernel v2 --probes speed", "probes.0 = 'speed' is not possible"),
        ("--kernel v2 --fp8", "--fp8 is not possible with v2"),
        ("--kernel v2 --loop-order key", "--loop-order is not possible with v2"),
        ("--kernel native --block-m 64", "--block-m is not possible with native"),
        ("--kernel sdpa-flash", "sdpa-flash is not possible in the interpreter"),
        ("--kernel v3 --fp8 --head-dim 16", "head_dim = 16 is not possible with FP8"),
        ("--kernel v2 --compile-for 70", "sm_70 is not supported"),
        ("--kernel block_m=64,v2", "kernel = block_m=64,v2 is not possible: block_m=64 stands before any version."),
        ("--kernel v2@", "kernel = v2@ is not possible: after @ stands a setting"),
        ("--kernel v2@fast", "kernel = v2@fast is not possible: after @ stands a setting"),
        ("--kernel v9@block_m=64", "kernel = v9 is not known: it can be native, v1"),
        ("--kernel v2@blockm=64", "v2@blockm=64 is not possible: a version can be given block_m, block_n"),
        ("--kernel v2@block_m=large", "v2@block_m=large is not possible: it is a whole number."),
        ("--kernel v2@block_m=63", "BLOCK_M = 63 is not possible: it can be 16,"),
        ("--kernel v2,v3@fp8=perhaps", "v3@fp8=perhaps is not possible: it is yes or no."),
        ("--kernel v3,v2@fp8=yes", "FP8 is not possible with v2: only v3"),
        ("--kernel v2@block_order=random", "v2@block_order=random is not possible: it can be default, natural"),
        ("--kernel v2,v1@block_order=natural", "block_order = natural is not possible with v1: only v2 and v3"),
        ("--kernel v1,v2@loop_order=key", "loop_order = key is not possible with v2: only v1"),
        ("--kernel native@block_m=64", "native@block_m=64 is not possible: native has no tiles to choose."),
        ("--kernel v2 --device GPU-9", "device = GPU-9 is not possible: it can be interpreter"),
    ],
)
def test_what_is_not_possible_is_one_sentence(line, sentence):
    with pytest.raises(ValueError, match=r"\.$") as caught:
        planned(line)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--kernel", "v2", "--batch", "two"], "Argument --batch: 'two' is not a whole number.\n"),
        (["run", "--kernel", "v2", "--sequence", "4"], "Unrecognized arguments: --sequence 4.\n"),
        (["run"], "The following arguments are required: --kernel.\n"),
        (["walk"], f"command = walk is not known: it can be {COMMANDS}.\n"),
        (["--kernel", "v2"], f"command = --kernel is not known: it can be {COMMANDS}.\n"),
        (["run", "--kernel", "v2", "--out", "x.txt"], "out = x.txt is not possible: its name ends in .json or .gz.\n"),
        (["run", "--kernel", "v2", "--title", "x"], "--title is for a snapshot: give --save or --out FILE too.\n"),
        (["run", "--kernel", "v2", "--host-name"], "--host-name is for a snapshot: give --save or --out FILE too.\n"),
        (["run", "--kernel", "v2", "--store", "x"], "--store is for a snapshot that is kept there: give --save too.\n"),
        (
            ["run", "--kernel", "v2", "--save", "--title", "\u200b"],
            "a title without a visible character is not possible: it needs at least one.\n",
        ),
    ],
)
def test_what_is_no_command_line_is_one_sentence(arguments, sentence, capsys):
    assert exit_code(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert sentence == printed.err


def test_no_arguments_at_all_is_help(capsys):
    assert exit_code() == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    for command in COMMANDS.split(", "):
        assert f"    {command} " in printed.err


def commands() -> list[list[str]]:
    top = _parser()[1]
    return [[name] for name in top] + [["store", action] for action in ("where", "check", "migrate")]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_help_explains_every_option_of_every_command(command, capsys):
    assert exit_code(*command, "--help") == 0
    text = capsys.readouterr().out
    explained = re.findall(r"^  (--?[a-z].*?)(?:  +|\n +)(\S.*)$", text, re.MULTILINE)
    named = re.findall(r"^  (--?[a-z]\S*)", text, re.MULTILINE)
    assert len(explained) == len(named) >= 1


def test_bad_input_ends_with_2_and_prints_no_record():
    done = call("run", "--kernel", "v2", "--block-m", "63", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "BLOCK_M = 63 is not possible: it can be 16, 32, 64, 128, 192, 256 or 512.\n"


def test_the_table_says_what_was_measured_and_how():
    right, wrong, failed = made_up.on_gpu("v2"), made_up.on_gpu("v1", passed=False), made_up.failed()
    lines = table((right, wrong, failed)).splitlines()
    row = {line[:18].strip(): line for line in lines}
    assert lines[0].startswith("16,384 tokens · head_dim 128 · causal · batch 1 · 16 heads · seed 0")
    assert lines[1].startswith("H200 · GPU-487a")
    for label in ("median", "min to q3", "speed", "share of peak"):
        assert row[label].split("  ")[-1].startswith("measured"), label
        assert row[label].count("–") == 2, f"{label}: neither a wrong output nor a failed run has a speed"
    assert f"{right.latency.median_ms:.3g} ms" in row["median"]
    assert f"{right.tflops:.3g} TFLOP/s" in row["speed"]
    assert "right" in row["output"]
    assert "WRONG" in row["output"]
    assert row["registers"].endswith("compiled for sm_90")
    assert row["S and P written"].endswith("modelled")
    assert any(failed.error.sentence in line for line in lines)


def test_cold_and_warm_are_two_rows_and_say_why_no_more_was_timed():
    cold = made_up.latency(2.0).model_copy(update={"stopped": "quiet"})
    warm = made_up.latency(1.9).model_copy(update={"mode": "warm", "launches_per_sample": 4, "stopped": "settled"})
    both = made_up.on_gpu("v2", latency=cold, warm=warm)
    without = made_up.on_gpu("v3", missing={"warm": "a graph needs 2 GiB, and 1 GiB is free."})
    lines = table((both, without)).splitlines()
    row = {line[:18].strip(): line for line in lines}
    assert row["median"].endswith("measured, L2 flushed")
    assert row["median, warm"].endswith("measured, CUDA graph, cache warm")
    assert f"{three_digits(warm.median_ms)} ms" in row["median, warm"]
    assert row["median, warm"].count("–") == 1
    assert row["timing ended"].endswith("quiet: the noise is below 0.5 %")
    assert "v3: there is no warm time: a graph needs 2 GiB, and 1 GiB is free." in lines


def test_a_time_that_was_refused_fails_the_run():
    flag = Flag(name="stale output", severity="bad", short="output not fresh", sentence="It was not computed. It has no time.")
    refused = made_up.on_gpu("v2", latency=None, flags=(flag,), missing={"latency": flag.sentence})
    assert is_sound(made_up.on_gpu("v2"))
    assert not is_sound(refused)
    assert f"v2: {flag.sentence}" in table((refused,))
    assert summary((refused,)) == "v2 time refused"


def test_interpreted_times_are_called_no_gpu_time():
    text = table((made_up.in_interpreter("v2"),))
    assert "interpreted: no GPU time" in text
    assert "TFLOP/s" not in text


def test_only_a_peer_that_is_refused_is_left_out_of_all():
    refused = JobError(kind="refused", sentence="fa3 cannot run here: No module named 'flash_attn_interface'.")
    assert is_missing_peer(made_up.failed("fa3", refused))
    assert not is_missing_peer(made_up.failed("v3", refused))
    assert not is_missing_peer(made_up.failed("fa3", JobError(kind="crashed", sentence="It crashed.")))
    assert not is_missing_peer(made_up.on_gpu("fa3"))


def test_run_prints_the_record_and_nothing_else():
    line = (
        "run --kernel v2 --seq-len 128 --causal --block-m 64 --block-n 64 --probes accuracy,latency --device interpreter --json"
    )
    done = call(*line.split())
    assert done.returncode == 0, done.stderr
    measurement = Measurement.model_validate_json(done.stdout)
    assert measurement.request == planned(line.removeprefix("run ")).requests[0]
    assert measurement.accuracy.passed
    assert measurement.accuracy.provenance == measurement.latency.provenance == "interpreted"
    assert "starting: Starting the worker" in done.stderr


def test_run_says_before_it_measures_what_cannot_be_kept(tmp_path, measured, capsys):
    asked = measured(made_up.on_gpu())
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "no database").write_text("A text file, which is no database, and longer than its header.\n" * 20)
    for options, said in (
        (["--out", tmp_path / "no" / "x.json"], "there is no folder"),
        (["--out", tmp_path / "folder.json"], "it is a folder"),
        (["--save", "--store", tmp_path / "no database"], "is no SQLite database"),
        (["--save", "--store", "mysql://host/x"], "A store at mysql:// is not possible"),
        (["--save", "--tag", "x" * 41], "a tag of 41 characters is not possible"),
    ):
        assert exit_code("run", "--kernel", "v2", *options) == 2
        printed = capsys.readouterr()
        assert said in printed.err
        assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert asked == []


def test_a_saved_run_is_in_the_store_without_what_tells_of_a_person(measured, capsys):
    raw = 'File "/home/ada/flash/x.py", line 3'
    failed = made_up.failed(error=JobError(kind="crashed", sentence="It crashed.", raw=raw))
    measured(made_up.on_gpu("v3"), failed)
    assert exit_code("run", "--kernel", "v3", "--save", "--tag", "CI", "--tag", "h200", "--note", "Two lines\nof a note") == 1
    printed = capsys.readouterr().out.splitlines()
    store = Store()
    (row,) = store.search(Query()).rows
    found = store.get(row.id).snapshot
    assert printed[-2:] == [f"Saved: {row.id}", f"Link, after FlashScope's address: /snapshots?snapshot={row.id}"]
    assert printed[-4:-2] == [line_of(made_up.on_gpu("v3")), line_of(failed)]
    assert (found.title, found.tags, found.note) == (
        "v3: 16,384 tokens · head_dim 128 · causal on H200", ("ci", "h200"), "Two lines\nof a note",
    )  # fmt: skip
    assert (found.author, found.host, row.origin, store.changes()[0].who) == ("", "", "here", "command line")
    assert found.measurements[0] == made_up.on_gpu("v3")
    assert found.measurements[1].error.raw == 'File "…/x.py", line 3'
    assert found.measurements[1].error.raw == without_personal(Snapshot(
        title="x", created_at="2026-11-29T13:10:00+00:00", measurements=(failed,)
    )).measurements[0].error.raw  # fmt: skip
    store.close()


def test_author_and_host_go_in_when_they_are_asked_for(measured, capsys):
    measured(made_up.on_gpu("v3"))
    assert exit_code("run", "--kernel", "v3", "--save", "--author", "Ada", "--host-name", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    store = Store()
    kept = store.get(printed["id"])
    assert (kept.snapshot.author, kept.snapshot.host) == ("Ada", platform.node())
    assert store.changes()[0].who == "Ada"
    assert printed["link"] == f"/snapshots?snapshot={kept.id}"
    assert [Measurement.model_validate_json(json.dumps(one)) for one in printed["measurements"]] == [made_up.on_gpu("v3")]
    store.close()


def test_what_was_measured_is_not_lost_when_it_cannot_be_written(tmp_path, measured, monkeypatch, capsys):
    measured(made_up.on_gpu("v3"))
    file = tmp_path / "old.json"
    file.write_text("old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert exit_code("run", "--kernel", "v3", "--save", "--out", file) == 2
    printed = capsys.readouterr()
    assert printed.err == f"{file} could not be written: no space left on device.\n"
    assert line_of(made_up.on_gpu("v3")) in printed.out.splitlines()
    assert "Saved: " in printed.out
    assert file.read_text() == "old"
    assert not list(tmp_path.glob(".*"))


def test_a_file_that_is_there_is_replaced_and_gz_is_compressed(tmp_path, measured):
    measured(made_up.on_gpu("v3"))
    file = tmp_path / "x.flashscope.json.gz"
    file.write_text("old")
    assert exit_code("run", "--kernel", "v3", "--out", file, "--title", "New") == 0
    assert file.read_bytes()[:2] == b"\x1f\x8b"
    assert read(file.read_bytes()).title == "New"


def test_a_run_of_one_version_with_two_settings_ends_with_the_word(measured, capsys):
    narrow = made_up.TILES.model_copy(update={"block_n": 64})
    slow, quick = made_up.on_gpu("v2"), made_up.on_gpu("v2", tiles=narrow, latency=made_up.latency(1.768), duration_s=7.0)
    measured(slow, quick)
    assert exit_code("run", "--kernel", "v2,v2@block_n=64") == 0
    *_, heading, said = capsys.readouterr().out.splitlines()
    assert heading.startswith(f"against v2 · {made_up.TILES.title}")
    found = verdict(slow, quick, same_job=True)
    assert re.split(r" {2,}", said)[:2] == [f"v2 · {narrow.title}", "FASTER"]
    assert all(part in said for part in (f"{found.ratio:.2f}×", f"{found.low:.2f}× to {found.high:.2f}×", found.sentence))
    measured(slow)
    exit_code("run", "--kernel", "v2")
    assert "\nagainst v2" not in capsys.readouterr().out


def test_an_interrupt_ends_with_130_and_closes_the_queue(monkeypatch):
    closed = []
    monkeypatch.setattr("profiling.runner.JobQueue", lambda: SimpleNamespace(close=lambda: closed.append(True)))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_measure", interrupted)
    assert exit_code("run", "--kernel", "v2", "--save") == 130
    assert closed == [True]


def test_a_line_for_an_issue_has_the_number_its_proof_and_its_cautions():
    found = made_up.on_gpu("v3")
    fastest, third = (f"{value:.3g}" for value in np.quantile(found.latency.samples_ms.numpy(), (0.0, 0.75)))
    assert line_of(found) == (
        "v3 · 16,384 tokens · head_dim 128 · causal · 16 heads · bf16 · 128 × 128, 8 warps, 3 stages · H200 · "
        f"{found.latency.median_ms:.3g} ms "
        f"(min {fastest}, q3 {third}, n {found.latency.n}) · {found.tflops:.0f} TFLOP/s · correct (2.1e−3 ≤ 4.0e−3) · "
        f"torch {found.environment.torch_version} · Triton {found.environment.triton_version} · FlashScope, commit unknown · "
        "clock fell to 1,410 MHz"
    )
    commit = found.environment.model_copy(update={"commit": "0123456789abcdef0123-dirty"})
    assert "FlashScope 0123456789ab-dirty" in line_of(found.model_copy(update={"environment": commit}))


def test_a_line_has_no_speed_without_a_proof():
    wrong, failed = line_of(made_up.on_gpu("v3", passed=False)), line_of(made_up.failed())
    assert "WRONG (4.1e−1 > 4.0e−3)" in wrong
    assert "failed: BLOCK_N = 512 does not fit" in failed
    for text in (wrong, failed):
        assert "TFLOP/s" not in text
        assert " ms " not in text


def test_a_line_of_the_interpreter_says_that_its_time_is_none_of_a_gpu():
    text = line_of(made_up.in_interpreter("v2"))
    assert "in the CPU interpreter, no GPU time (n 1)" in text
    assert "TFLOP/s" not in text


def test_a_line_of_microseconds_keeps_one_unit():
    whole = made_up.latency(1.0).median_ms
    quick, slow = (made_up.on_gpu("v3", latency=made_up.latency(ms / whole)) for ms in (0.9994, 0.9996))
    assert f" · {quick.latency.median_ms * 1000:.3g} µs (min " in line_of(quick)
    assert all(mark not in line_of(quick) for mark in (" ms", "1,000"))
    assert re.search(r" · 1\.00 ms \(min 0\.\d{3}, q3 1\.0\d, n", line_of(slow))


def test_the_command_line_reads_files_without_importing_a_database():
    files = [str(ROOT / "app" / "gallery" / name) for name in ("01-16k-causal.json", "03-fp8-16k-causal.json")]
    script = (
        "import sys; from profiling.cli import main; "
        f"code = main(['compare', *{files!r}]); "
        "print(code, *({'sqlalchemy', 'alembic', 'torch', 'triton'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1] == "0", done.stderr


def test_a_reader_that_goes_away_gets_no_traceback():
    file = str(ROOT / "app" / "gallery" / "01-16k-causal.json")
    command = [sys.executable, "-m", "profiling", "compare", file, "--versions", "v2", "v3"]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    child.stdout.close()
    assert child.stderr.read() == ""
    assert child.wait(300) == 141


def test_a_terminal_without_unicode_gets_no_traceback():
    done = call(
        "compare", str(ROOT / "app" / "gallery" / "01-16k-causal.json"), "--versions", "v2", "v3", PYTHONIOENCODING="ascii"
    )
    assert done.returncode == 0, done.stderr
    assert "\\xd7" in done.stdout


def test_doctor_looks_at_the_store(tmp_path, store_file):
    finding = doctor._store()
    assert finding.works
    assert re.fullmatch(rf"store {re.escape(str(store_file))}: 0 snapshots, writable, [\d.,]+ [KMGT]iB free", finding.what)
    store = Store()
    store.save(made_up.recording(), "someone")
    store.close()
    assert doctor._store().what.startswith(f"store {store_file}: 1 snapshot, writable, ")


def test_doctor_names_a_cure_for_a_store_that_cannot_be_opened(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHSCOPE_STORE", "postgresql://ada:secret@127.0.0.1:1/x")
    finding = doctor._store()
    assert not finding.works
    assert "secret" not in str(finding)
    assert "Cure: mend that, or set FLASHSCOPE_STORE" in str(finding)


def test_doctor_runs_a_kernel_and_names_a_cure_for_what_is_missing(store_file):
    done = call("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"ok  Python {platform.python_version()}"
    assert any(line.startswith(f"ok  store {store_file}: 0 snapshots, writable, ") for line in lines)
    assert any(line.startswith("ok  Interpreter (CPU): v2 ran, relative error") for line in lines)
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        assert line.startswith(("ok  ", "no  ", "    Cure: "))
        assert line.startswith("no  ") == following.startswith("    Cure: ")
