"""bench: a suite cell by cell through a queue, kept as it goes, and the table, also of what was kept."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernels.registry import VERSIONS
from profiling import bench_command
from profiling.cli import main
from profiling.records import JobError, Measurement, RunRequest
from profiling.snapshot import Snapshot, read
from profiling.store import Query, Store
from profiling.suite_table import suite_table
from profiling.suites import selected, suite
from profiling.verdict import verdict
from tests import records_for_tests as made_up
from tests.fake_queue import FakeQueue

PAPER = suite("fa3-paper")
CAUSAL = "d128,4k,16k,causal,bf16"
TFLOPS = {"v2": 500.0, "v3": 600.0, "v3-hopper": 680.0, "sdpa-cudnn": 620.0, "sdpa-flash": 340.0, "flex": 450.0, "fa3": 700.0}
Answer = Callable[[RunRequest], Measurement]


def measured(request: RunRequest, tflops: float | None = None) -> Measurement:
    """The request answered with that throughput, made up."""
    ms = request.problem.flops / (tflops or TFLOPS[request.kernel]) / 1e9
    times = {"latency": made_up.latency(ms), "with_prepass": made_up.latency(ms * 1.1) if request.precision.fp8 else None}
    return made_up.on_gpu("v2").model_copy(
        update={"request": request, "tiles": request.tiles, "memory": None, "compiled": (), "flags": (), **times}
    )


def failed(request: RunRequest, kind: str, sentence: str) -> Measurement:
    whole = measured(request)
    error = JobError(kind=kind, sentence=sentence)
    return whole.model_copy(update={"latency": None, "with_prepass": None, "accuracy": None, "error": error})


def wrong(request: RunRequest) -> Measurement:
    return measured(request).model_copy(
        update={"latency": None, "with_prepass": None, "accuracy": made_up.accuracy(passed=False)}
    )


class AnsweringQueue(FakeQueue):
    """Every job is finished at once; a job in which a version crashes is lost whole, as with a worker that dies."""

    def __init__(self, answer: Answer, device=None) -> None:
        super().__init__((device or made_up.gpu(), made_up.interpreter()))
        self.answer, self.closed = answer, False

    def wait(self, job_id: str, timeout_s: float | None = None):
        requests = self.views[job_id].requests
        found = [self.answer(request) for request in requests]
        if any(one.error is not None and one.error.kind == "crashed" for one in found):
            found = [failed(request, "crashed", "The worker died.") for request in requests]
        self.finish(job_id, *found)
        return replace(self.views[job_id])

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def store_file(tmp_path, monkeypatch):
    """Where this test's store is: never the user's."""
    monkeypatch.setenv("FLASHSCOPE_STORE", str(tmp_path / "store.sqlite3"))
    return tmp_path / "store.sqlite3"


@pytest.fixture
def bench(monkeypatch, capsys):
    """bench(*arguments, answer=…) runs the command on a made-up GPU: its exit code, what it printed, said, and the queue."""

    def run(*arguments: object, answer: Answer = measured, device=None) -> tuple[int, str, str, AnsweringQueue]:
        queue = AnsweringQueue(answer, device)
        monkeypatch.setattr(bench_command, "JobQueue", lambda: queue)
        try:
            code = main(["bench", *map(str, arguments)])
        except SystemExit as left:
            code = left.code
        printed = capsys.readouterr()
        return code, printed.out, printed.err, queue

    return run


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Running


def test_each_problem_is_one_job_of_all_its_versions_and_one_snapshot(bench, tmp_path):
    code, out, _, queue = bench("fa3-paper", "--only", CAUSAL, "--out", tmp_path / "run")
    assert code == 0
    assert [[request.kernel for request in job] for job in queue.submitted] == [list(PAPER.versions)] * 2
    assert files_in(tmp_path / "run") == [
        "fa3-paper-d128-16k-causal-bf16.flashscope.json.gz", "fa3-paper-d128-4k-causal-bf16.flashscope.json.gz",
    ]  # fmt: skip
    snapshot = read((tmp_path / "run" / files_in(tmp_path / "run")[0]).read_bytes())
    assert snapshot.title == "fa3-paper · 16,384 tokens · head_dim 128 · causal"
    assert "fa3-paper" in snapshot.tags
    assert len(PAPER.run_tags(snapshot.tags)) == 1
    assert [one.request.kernel for one in snapshot.measurements] == list(PAPER.versions)
    assert queue.closed
    assert "620" in out


def test_saved_snapshots_are_found_by_the_suite_s_tag_and_print_the_table_again(bench):
    code, out, _, _ = bench("fa3-paper", "--only", CAUSAL, "--save", "--tag", "Nightly")
    assert code == 0
    store = Store()
    rows = store.search(Query(tag="fa3-paper")).rows
    (run_tag,) = PAPER.run_tags(rows[0].tags)
    assert len(rows) == len(store.search(Query(tag=run_tag)).rows) == len(store.search(Query(tag="nightly")).rows) == 2
    store.close()
    code, again, _, queue = bench("fa3-paper", "--from", run_tag)
    assert (code, queue.submitted) == (0, [])
    assert again.strip() == out.split("\n\nSaved")[0].strip()


def test_without_out_or_save_nothing_is_kept_and_the_table_is_printed(bench, store_file):
    code, out, _, _ = bench("fa3-paper", "--only", CAUSAL)
    assert code == 0
    assert "FASTER" in out
    assert not store_file.exists()


def test_ctrl_c_keeps_what_is_finished_and_ends_with_130(bench, tmp_path):
    def interrupted(request: RunRequest) -> Measurement:
        if request.problem.seq_len_q == 16384:
            raise KeyboardInterrupt
        return measured(request)

    code, out, err, queue = bench("fa3-paper", "--only", CAUSAL, "--out", tmp_path / "run", answer=interrupted)
    assert code == 130
    assert files_in(tmp_path / "run") == ["fa3-paper-d128-4k-causal-bf16.flashscope.json.gz"]
    assert "1 of 2 problems" in err
    assert "| " not in out
    assert "4k" in out
    assert "16k" not in out
    assert queue.closed


def test_a_version_that_kills_the_worker_costs_only_its_own_cell(bench, tmp_path):
    def crashes(request: RunRequest) -> Measurement:
        bad = request.kernel == "v3" and request.problem.seq_len_q == 4096
        return failed(request, "crashed", "The worker died.") if bad else measured(request)

    code, out, _, queue = bench("fa3-paper", "--only", CAUSAL, "--out", tmp_path / "run", answer=crashes)
    assert code == 1
    snapshot = read((tmp_path / "run" / "fa3-paper-d128-4k-causal-bf16.flashscope.json.gz").read_bytes())
    timed = {one.request.kernel: one.latency is not None for one in snapshot.measurements}
    assert timed == {name: name != "v3" for name in PAPER.versions}
    assert all(one.request.probes == ("accuracy", "latency") for one in snapshot.measurements)
    assert "v3, d128 4k causal bf16: The worker died." in out
    sizes = [len(job) for job in queue.submitted]
    count = len(PAPER.versions)
    assert sizes == [count, *[1] * count, count - 1, count], "together, each alone, the sound ones together, the next problem"


def test_a_wrong_output_has_no_number_and_fails_the_run(bench):
    code, out, _, _ = bench(
        "fa3-paper", "--only", CAUSAL, answer=lambda request: wrong(request) if request.kernel == "fa3" else measured(request)
    )
    assert code == 1
    assert "WRONG" in out
    assert "FA3, everywhere: " in out
    assert "cuDNN" in next(line for line in out.splitlines() if line.split()[1:2] == ["4k"]), "the better peer that is right"


def test_a_library_that_is_not_installed_is_said_once_and_is_no_failure(bench):
    sentence = "fa3 cannot run here: FA3 is not installed here: pip install fa3-fwd (Hopper only)."
    code, out, _, _ = bench(
        "fa3-paper", "--only", CAUSAL,
        answer=lambda request: failed(request, "refused", sentence) if request.kernel == "fa3" else measured(request),
    )  # fmt: skip
    assert code == 0
    assert out.count("pip install fa3-fwd") == 1


def test_kernel_narrows_the_versions(bench):
    _, out, _, queue = bench("fa3-paper", "--only", CAUSAL, "--kernel", "v2,flex")
    assert [[request.kernel for request in job] for job in queue.submitted] == [["v2", "flex"]] * 2
    assert "v2 against FlexAttention" in out
    assert "cuDNN" not in out


def test_a_gpu_without_e4m3_runs_what_it_can(bench):
    ampere = made_up.gpu().model_copy(update={"name": "NVIDIA A100", "capability": 80})
    _, _, err, queue = bench("fa3-paper", "--only", "d128,16k,causal", device=ampere)
    assert len(queue.submitted) == 1
    assert "Left out: FP8 is not possible on sm_80" in err


# The article's suite: versions with tiles of their own, and its claims


def test_a_version_with_other_tiles_is_a_column_of_its_own_and_the_claims_follow_the_table(bench, tmp_path):
    code, out, err, queue = bench(
        "article", "--only", "512,16k", "--out", tmp_path / "run", answer=lambda request: measured(request, 100.0)
    )
    assert code == 0
    assert [len(job) for job in queue.submitted] == [7, 12]
    for said in ("v2 128×128·w4·s2", "v2 32×512·w8·s2", "v3 FP8", "What the article claims: ", "does not hold  v3 is 25.5× as"):
        assert said in out
    assert "v2 64×256·w8·s2" in err
    assert files_in(tmp_path / "run")[0] == "article-d32-16k-full-bf16.flashscope.json.gz"
    code, again, _, _ = bench("article", "--from", tmp_path / "run", "--json")
    found = json.loads(again)
    assert (code, len(found["rows"][1]["versions"])) == (0, 12)
    words = {one["claim"]: one["word"] for one in found["claims"]}
    assert words["v3 is nearly 8 times faster than v2 at 32,768 tokens."] == "not measured"
    assert "claims" not in json.loads(bench("fa3-paper", "--only", CAUSAL, "--json")[1])


def test_tiles_that_kill_the_worker_cost_their_own_column_alone(bench, tmp_path):
    wide = {"block_n": 512, "num_warps": 8}

    def crashes(request: RunRequest) -> Measurement:
        is_wide = request.tiles is not None and all(getattr(request.tiles, name) == value for name, value in wide.items())
        return failed(request, "crashed", "The worker died.") if is_wide else measured(request, 100.0)

    code, out, _, _ = bench("article", "--only", "512", "--out", tmp_path / "run", answer=crashes)
    assert code == 1
    assert "v2 32×512·w8·s2, d32 512 full bf16: The worker died." in out
    snapshot = read((tmp_path / "run" / files_in(tmp_path / "run")[0]).read_bytes())
    assert [one.latency is not None for one in snapshot.measurements] == [True] * 6 + [False]
    assert snapshot.measurements[-1].request.tiles.block_n == 512


def test_a_backward_is_a_table_of_its_own(bench):
    code, out, err, queue = bench(
        "fa2-paper", "--only", "d128,1k,full,forward,backward", "--kernel", "v2,fa3",
        answer=lambda request: measured(request, 100.0) if request.direction == "forward" else without_proof(request),
    )  # fmt: skip
    assert [[request.direction for request in job] for job in queue.submitted] == [["forward", "forward"], ["backward"]]
    assert "Left out: " in err
    assert "\nbf16, backward\n" in out
    assert code == 1


def without_proof(request: RunRequest) -> Measurement:
    return failed(request, "launch", "It did not launch.")


# What is not possible


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "A suite is needed: it can be fa3-paper, fa2-paper, article; bench --list describes them."),
        (["fa4"], "suite = fa4 is not known: it can be fa3-paper, fa2-paper, article."),
        (["fa3-paper", "--only", "d63"], "only = d63 is not possible with fa3-paper: it can be d64,"),
        (["fa3-paper", "--kernel", "v1"], "kernel = v1 is not in fa3-paper: it can be v2,"),
        (["fa3-paper", "--device", "GPU-9"], "device = GPU-9 is not possible: it can be GPU-487a"),
        (["fa3-paper", "--only", "fp8", "--kernel", "v2"], "None of v2 has a problem of this selection that it can run here."),
        (["fa3-paper", "--store", "x"], "--store is for snapshots that are kept there: give --save too."),
        (["fa3-paper", "--from", "nowhere"], "from = nowhere is no folder, and no snapshot in the store has that tag."),
        (["fa3-paper", "--from", "nowhere", "--save"], "--save is for measuring, and --from measures nothing."),
    ],
)
def test_what_is_not_possible_is_one_sentence(bench, arguments, sentence):
    code, out, err, queue = bench(*arguments)
    assert (code, out, err.count("\n"), queue.submitted) == (2, "", 1, [])
    assert err.startswith(sentence)


def test_a_folder_that_cannot_be_made_is_said_before_anything_is_measured(bench, tmp_path):
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "no" / "such"):
        code, _, err, queue = bench("fa3-paper", "--out", folder)
        assert (code, queue.submitted) == (2, [])
        assert str(folder) in err


def test_without_a_gpu_it_says_so_and_measures_nothing(bench, monkeypatch):
    queue = FakeQueue((made_up.interpreter(),))
    queue.close = lambda: None
    monkeypatch.setattr(bench_command, "JobQueue", lambda: queue)
    with pytest.raises(bench_command.BadInput, match=r"^bench needs a GPU \(no GPU was found\); --from FOLDER prints"):
        bench_command._gpu(None, queue)


def test_list_names_each_suite_its_source_and_the_words_it_takes(bench):
    code, out, _, _ = bench("--list")
    assert code == 0
    for said in ("fa3-paper: 72 problems", "arXiv 2407.08608", "512, 1k, 2k, 4k, 8k, 16k", "v2 against FlexAttention"):
        assert said in out
    code, out, _, _ = bench("--list", "--json")
    assert json.loads(out)[0]["problems"] == 72


# The table


def snapshots(only: str = CAUSAL, answer: Answer = measured, created_at: str = "2026-11-29T13:10:00+00:00") -> list[Snapshot]:
    from profiling.suites import planned

    return [
        Snapshot(
            title=cell.title, tags=("fa3-paper", "fa3-paper-20261129-131000"), created_at=created_at,
            measurements=tuple(answer(request) for request in planned(PAPER, cell, PAPER.versions, made_up.gpu()).requests),
        )
        for cell in selected(PAPER, only)
    ]  # fmt: skip


def test_ratios_are_the_verdicts_of_compare_against_the_better_peer_of_the_job():
    def answer(request: RunRequest) -> Measurement:
        slow_fa3 = request.kernel == "fa3" and request.problem.seq_len_q == 4096
        return measured(request, 400.0 if slow_fa3 else None)

    table = suite_table(PAPER, snapshots(answer=answer))
    place = next(place for place, match in enumerate(PAPER.matches) if match.version == "v3")
    assert [row.outcomes[place].peer for row in table.rows] == ["sdpa-cudnn", "fa3"]
    for row in table.rows:
        found = row.outcomes[place]
        assert found.verdict == verdict(row.measurements[found.peer], row.measurements["v3"], same_job=True)
        assert found.verdict.ratio == pytest.approx(TFLOPS["v3"] / TFLOPS[found.peer], rel=1e-6)
    group = next(one for one in table.groups if one.match.version == "v3")
    assert group.mean == pytest.approx(math.sqrt(600 / 620 * 600 / 700), rel=1e-6)
    assert group.lowest == pytest.approx(600 / 700, rel=1e-6)
    assert group.at.cell.problem.seq_len_q == 16384
    assert sum(group.verdicts.values()) == group.count == 2


def test_groups_are_each_number_format_and_each_head_dim_in_it():
    table = suite_table(PAPER, snapshots("d64,d128,16k"))
    labels = [one.label for one in table.groups if one.match.version == "v3"]
    assert labels == ["bf16", "bf16, head_dim 64", "bf16, head_dim 128", "FP8", "FP8, head_dim 64", "FP8, head_dim 128"]
    assert {one.label.split(",")[0] for one in table.groups if one.match.version == "v2"} == {"bf16"}


def test_the_text_has_a_row_a_problem_in_the_suite_s_order_and_says_how_it_was_measured():
    table = suite_table(PAPER, list(reversed(snapshots("d128,4k,16k,causal"))))
    text = table.text()
    lines = text.splitlines()
    assert [line.split()[1] for line in lines if line.strip().startswith("128 ")] == ["4k", "16k", "4k", "16k"]
    assert "NVIDIA H200 · torch 2.13.0 · Triton 3.7.1" in text
    for said in ("measured", "float64", "interleaved", "kernel alone"):
        assert said in text
    v3 = table.rows[-1].measurements["v3"]
    assert f"{v3.tflops:.0f} ({v3.tflops_with_prepass:.0f})" in lines[lines.index("FP8") + 2], "alone and with its pre-pass"


def test_markdown_is_a_table_of_equal_columns_with_the_same_numbers():
    table = suite_table(PAPER, snapshots())
    rows = [line for line in table.markdown().splitlines() if line.startswith("|")]
    first = rows[: rows.index(next(row for row in rows if row.startswith("| who")))]
    assert len({row.count("|") for row in first}) == 1
    assert [row.split(" | ")[0] for row in first[2:]] == ["| 128", "| 128"]
    for name in ("v2", "v3", "flex", "fa3"):
        assert f" {TFLOPS[name]:.0f} " in first[2]
        assert f"{TFLOPS[name]:.0f}" in table.text()


def test_of_a_problem_that_was_run_twice_the_newest_counts_and_two_runs_are_said():
    old = snapshots(answer=lambda request: measured(request, 100.0))
    new = [
        one.model_copy(update={"tags": ("fa3-paper", "fa3-paper-20261130-131000")})
        for one in snapshots("d128,4k,causal,bf16", created_at="2026-11-30T13:10:00+00:00")
    ]
    table = suite_table(PAPER, [*new, *old])
    by_length = {row.cell.problem.seq_len_q: row.measurements["v2"].tflops for row in table.rows}
    assert by_length[4096] == pytest.approx(500, rel=0.01)
    assert by_length[16384] == pytest.approx(100, rel=0.01)
    assert "2 jobs, 2026-11-29 13:10 to 2026-11-30 13:10 UTC · of 2 runs" in table.text()


def test_a_folder_s_other_files_do_not_matter(bench, tmp_path):
    for place, one in enumerate(snapshots()):
        (tmp_path / f"{place}.json").write_bytes(one.document)
    (tmp_path / "other.json").write_bytes(made_up.recording().document)
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "notes.txt").write_text("x")
    code, out, err, _ = bench("fa3-paper", "--from", tmp_path, "--only", "16k")
    assert code == 0
    assert "broken.json is left out" in err
    assert "4k" not in out
    code, out, _, _ = bench("fa3-paper", "--from", tmp_path, "--json", "--kernel", "v2,flex")
    found = json.loads(out)
    assert [set(row["versions"]) for row in found["rows"]] == [{"v2", "flex"}] * 2
    assert found["groups"][0]["geometric_mean"] == pytest.approx(500 / 450, rel=1e-6)


def test_a_foreign_snapshot_with_an_unknown_version_is_no_row_of_its_own():
    (one,) = snapshots("d128,4k,causal,bf16")
    strange = one.measurements[0].request.model_copy(update={"kernel": "v9"})
    changed = one.model_copy(
        update={"measurements": (one.measurements[0].model_copy(update={"request": strange}), *one.measurements[1:])}
    )
    (row,) = suite_table(PAPER, [changed]).rows
    assert "v9" not in row.measurements
    assert set(row.measurements) <= set(VERSIONS)
