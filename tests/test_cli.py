"""The command line: options are the request's fields, bad input is one sentence, and what it prints is the record."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.problem import AttentionProblem, Precision, TileConfig
from kernels.registry import OUR_VERSIONS, VERSIONS
from profiling.cli import _parser, is_missing_peer, main
from profiling.records import DeviceFacts, JobError, Measurement, RunRequest
from profiling.run_options import EXPLAINED, Plan, plan
from profiling.snapshot import read
from profiling.text_report import table
from tests import records_for_tests as made_up

ROOT = Path(__file__).resolve().parent.parent
INTERPRETER = DeviceFacts(id="interpreter", kind="interpreter", name="Interpreter (CPU)")
H200 = DeviceFacts(id="GPU-487a", kind="gpu", name="NVIDIA H200", capability=90)
A100 = DeviceFacts(id="GPU-1234", kind="gpu", name="NVIDIA A100", capability=80)


def planned(line: str, *devices: DeviceFacts) -> Plan:
    return plan(_parser().parse_args(["run", *line.split()]), (*devices, INTERPRETER))


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "profiling", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )


def test_every_field_of_a_request_is_an_option_that_help_explains(capsys):
    with pytest.raises(SystemExit) as left:
        _parser().parse_args(["run", "--help"])
    assert left.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    fields = {*AttentionProblem.model_fields, *Precision.model_fields, *TileConfig.model_fields, *RunRequest.model_fields}
    for name in fields - {"problem", "precision", "tiles", "direction"}:
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
    assert names == list(OUR_VERSIONS)
    assert [request.kernel for request in planned("--kernel all", H200).requests] == list(VERSIONS)


def test_an_option_reaches_the_versions_that_have_it():
    by_name = {request.kernel: request for request in planned("--kernel all --fp8 --loop-order key --block-m 32").requests}
    assert [name for name, request in by_name.items() if request.precision.fp8] == ["v3"]
    assert {name: request.tiles and request.tiles.loop_order for name, request in by_name.items()} == {
        "native": None, "v1": "key", "v2": "query", "v3": "query",
    }  # fmt: skip


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
        (["walk"], None),
    ],
)
def test_what_is_no_command_line_is_one_sentence(arguments, sentence, capsys):
    with pytest.raises(SystemExit) as left:
        main(arguments)
    printed = capsys.readouterr()
    assert (left.value.code, printed.out) == (2, "")
    assert printed.err.count("\n") == 1
    assert sentence in (None, printed.err)


def test_bad_input_ends_with_2_and_prints_no_record():
    done = call("run", "--kernel", "v2", "--block-m", "63", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "BLOCK_M = 63 is not possible: it can be 16, 32, 64, 128, 256 or 512.\n"


def test_the_table_says_what_was_measured_and_how():
    right, wrong, failed = made_up.on_gpu("v2"), made_up.on_gpu("v1", passed=False), made_up.failed()
    lines = table((right, wrong, failed)).splitlines()
    row = {line[:18].strip(): line for line in lines}
    assert lines[0].startswith("16,384 tokens · head_dim 128 · causal · batch 1 · 16 heads over 16")
    assert lines[1].startswith("H200 · GPU-487a")
    for label in ("median", "p20 to p80", "speed", "share of peak"):
        assert row[label].split("  ")[-1].startswith("measured"), label
        assert row[label].count("–") == 2, f"{label}: neither a wrong output nor a failed run has a speed"
    assert f"{right.latency.median_ms:.3g} ms" in row["median"]
    assert f"{right.tflops:.3g} TFLOP/s" in row["speed"]
    assert "right" in row["output"]
    assert "WRONG" in row["output"]
    assert row["registers"].endswith("compiled for sm_90")
    assert row["S and P written"].endswith("modelled")
    assert any(failed.error.sentence in line for line in lines)


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


def test_record_writes_measurements_of_several_versions(tmp_path):
    file = tmp_path / "small.json"
    line = "record --kernel native,v2 --seq-len 64 --num-heads 1 --probes accuracy --device interpreter --title Small"
    done = call(*line.split(), "--note", "For a test.", "--out", str(file))
    assert done.returncode == 0, done.stderr
    recording = read(file.read_bytes())
    assert (recording.title, recording.note) == ("Small", "For a test.")
    assert [(m.request.kernel, m.accuracy.passed) for m in recording.measurements] == [("native", True), ("v2", True)]
    assert [path.name for path in tmp_path.iterdir()] == ["small.json"]


def test_record_says_at_once_that_there_is_no_such_folder(tmp_path):
    done = call("record", "--kernel", "v2", "--title", "x", "--out", str(tmp_path / "no" / "x.json"))
    assert done.returncode == 2
    assert "there is no folder" in done.stderr


def test_doctor_runs_a_kernel_and_names_a_cure_for_what_is_missing():
    done = call("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"ok  Python {platform.python_version()}"
    assert any(line.startswith("ok  Interpreter (CPU): v2 ran, relative error") for line in lines)
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        assert line.startswith(("ok  ", "no  ", "    Cure: "))
        assert line.startswith("no  ") == following.startswith("    Cure: ")
