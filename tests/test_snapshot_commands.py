"""list, export, import, compare, store: from a run in CI to a teammate's empty store, with real samples from the gallery."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
import sqlite3
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from profiling import compare_report, improvements
from profiling.cli import main
from profiling.flags import peak_flag
from profiling.keeping import usual_title
from profiling.nvbench_json import nvbench_json
from profiling.record_types import Array
from profiling.records import Latency, Measurement
from profiling.samples_csv import harmless
from profiling.snapshot import Snapshot, canonical, embedded, file_of, read
from profiling.store import Query, Store
from profiling.text_report import line
from profiling.verdict import verdict
from tests import hostile_text
from tests import records_for_tests as made_up

ROOT = Path(__file__).resolve().parent.parent
GALLERY = ROOT / "app" / "gallery"
BF16, FP8, FULL = (GALLERY / f"{name}.json" for name in ("01-16k-causal", "03-fp8-16k-causal", "02-16k-full"))
RUN = "run --kernel native,v2 --seq-len 64 --num-heads 1 --probes accuracy,latency --device interpreter"


@pytest.fixture(autouse=True)
def store_file(tmp_path, monkeypatch):
    """Where this test's store is: never the user's."""
    monkeypatch.setenv("FLASHSCOPE_STORE", str(tmp_path / "store.sqlite3"))
    return tmp_path / "store.sqlite3"


@pytest.fixture
def store(store_file):
    """The store that the commands use."""
    found = Store(str(store_file))
    yield found
    found.close()


@pytest.fixture
def say(capsys) -> Callable[..., tuple[int, str, str]]:
    """say(*arguments) runs a command here and gives its exit code, what it printed, and what it said beside that."""

    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as left:
            code = left.code
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def call(store: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "profiling", *arguments],
        cwd=ROOT,
        env={**os.environ, "FLASHSCOPE_STORE": str(store)},
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )


def opened(file: Path) -> Snapshot:
    return read(file.read_bytes())


def scaled(measurement: Measurement, factor: float) -> Measurement:
    """The measurement with every launch that much longer, as another job's."""
    latency = measurement.latency
    samples = Array.of(latency.samples_ms.numpy() * factor)
    slower = Latency(provenance="measured", mode="cold", samples_ms=samples, round_of=latency.round_of)
    return measurement.model_copy(update={"latency": slower, "started_at": "2026-11-29T19:00:00+00:00"})


def kept_in(file: Path, *measurements: Measurement, title: str = "Made for a test") -> Path:
    file.write_bytes(
        file_of(Snapshot(title=title, created_at="2026-11-29T19:01:00+00:00", measurements=measurements))
        if file.suffix == ".gz"
        else Snapshot(title=title, created_at="2026-11-29T19:01:00+00:00", measurements=measurements).document
    )
    return file


def steady(kernel: str, median_ms: float = 2.0) -> Measurement:
    """Launches within 0.4 % of the median, all of them different."""
    samples = median_ms * (1 + 0.002 * np.linspace(-1, 1, 100))
    latency = Latency(
        provenance="measured",
        mode="cold",
        samples_ms=Array.of(samples),
        round_of=Array.of(np.repeat(np.arange(5), 20), "<i8"),
    )
    return made_up.on_gpu(kernel, latency=latency)


# The story of a team


def test_a_ci_job_saves_compares_and_hands_over_without_a_browser(tmp_path, say, monkeypatch):
    ours, theirs, file = tmp_path / "ours.sqlite3", tmp_path / "theirs.sqlite3", tmp_path / "one.json"
    one = call(ours, *RUN.split(), "--save", "--out", str(file), "--tag", "nightly", "--title", "One", "--note", "A note.")
    assert one.returncode == 0, one.stderr
    snapshot, printed = opened(file), one.stdout.splitlines()
    assert printed[-3:-1] == [f"Written: {file}", f"Saved: {snapshot.id}"]
    assert printed[-5:-3] == [line(measurement) for measurement in snapshot.measurements]
    assert (snapshot.title, snapshot.note, snapshot.author, snapshot.host) == ("One", "A note.", "", "")
    assert [(m.request.kernel, m.accuracy.passed) for m in snapshot.measurements] == [("native", True), ("v2", True)]

    two = call(ours, *RUN.split(), "--save", "--json", "--tag", "nightly", "--title", "Two")
    assert two.returncode == 0, two.stderr
    second = json.loads(two.stdout)["id"]
    assert [path.name for path in tmp_path.iterdir() if "sqlite3" not in path.name] == ["one.json"]

    compared = call(ours, "compare", snapshot.id[:12], second, "--fail-if-slower", "5%")
    assert compared.returncode == 2, "an interpreter's time is not judged"
    assert compared.stdout.count("An interpreter's time says nothing of a GPU's") == 2
    assert "No word is possible on 2 of 2 versions" in compared.stderr

    export = tmp_path / "two.flashscope.json.gz"
    assert call(ours, "export", second, "--out", str(export)).returncode == 0
    taken = call(theirs, "import", str(export))
    assert (taken.returncode, second in taken.stdout) == (0, True), taken.stderr
    for store, expected in ((ours, [(second, "here"), (snapshot.id, "here")]), (theirs, [(second, "imported")])):
        monkeypatch.setenv("FLASHSCOPE_STORE", str(store))
        rows = json.loads(say("list", "--json", "--tag", "nightly", "--kernel", "native")[1])["snapshots"]
        assert [(row["id"], row["origin"]) for row in rows] == expected


# compare


def test_compare_says_what_the_verdicts_say(say):
    code, printed, _ = say("compare", BF16, FP8, "--json")
    assert code == 0
    ours, theirs = ({one.label: one for one in opened(file).measurements} for file in (BF16, FP8))
    found = json.loads(printed)
    assert [one["version"] for one in found["versions"]] == ["native", "v1", "v2"]
    assert (found["only_in_a"], found["only_in_b"]) == (["v3", "cuDNN (SDPA)", "FA2 (SDPA)", "FA3"], ["v3 FP8"])
    for one in found["versions"]:
        before, after = ours[one["version"]], theirs[one["version"]]
        expected = verdict(before, after, same_job=False)
        assert (one["word"], one["ratio"], one["interval"]) == (expected.word, expected.ratio, [expected.low, expected.high])
        assert (one["sentence"], one["cautions"]) == (expected.sentence, list(expected.cautions))
        assert one["a"]["median_ms"] == float(np.median(before.latency.samples_ms.numpy()))
        assert one["b"]["launches"] == len(after.latency.samples_ms.numpy())


def test_compare_prints_a_table_the_sentences_and_what_differs(say):
    code, printed, _ = say("compare", BF16, FP8)
    assert code == 0
    lines = printed.splitlines()
    assert lines[0].startswith(
        f"A  {opened(BF16).id[:12]} · Seven ways to the same output: 16,384 tokens, causal · NVIDIA H200"
    )
    table = {line.split()[0]: line.split() for line in lines[3:7]}
    assert table["v2"][1] == "UNCLEAR"
    assert table["native"][1] == "SAME"
    assert "27.7" in table["native"]
    assert sum("Two jobs share no rounds" in line for line in lines) == 1, "what holds of all is said once"
    assert any(line.split() == ["power,", "highest", "819", "W", "728", "W", "−91.7", "W"] for line in lines)
    assert not any("2026-11-29T" in line for line in lines), "what differs between any two jobs is not listed"
    assert "Only in B: v3 FP8." in lines


def test_versions_of_one_job_are_compared_by_its_rounds(say):
    code, printed, _ = say("compare", BF16, "--versions", "v1", "v3", "--json")
    (one,) = json.loads(printed)["versions"]
    by_label = {one.label: one for one in opened(BF16).measurements}
    assert code == 0
    assert (one["version"], one["word"], one["basis"]) == ("v1 → v3", "FASTER", "interleaved rounds")
    assert one["rounds_ms"] == [list(pair) for pair in verdict(by_label["v1"], by_label["v3"], same_job=True).rounds]
    assert {row["field"]: (row["a"], row["b"]) for row in one["differences"]}["version"] == ("v1", "v3")


def test_a_version_of_one_job_against_another_of_another(say):
    code, printed, _ = say("compare", BF16, FP8, "--versions", "v2", "v3 FP8", "--json")
    (one,) = json.loads(printed)["versions"]
    assert (code, one["word"], one["basis"]) == (0, "FASTER", "clear gap")


def rule(tmp_path: Path, factor: float, *options: str) -> list[object]:
    v2 = steady("v2")
    return ["compare", kept_in(tmp_path / "a.json", v2), kept_in(tmp_path / "b.json", scaled(v2, factor)), *options]


@pytest.mark.parametrize("factor", [1.02, 1.05, 1.2])
def test_slower_fails_when_the_near_end_of_the_interval_is_beyond_what_is_allowed(factor, tmp_path, say):
    samples = steady("v2").latency.samples_ms.numpy()
    near = samples.min() * factor / np.quantile(samples, 0.75) - 1
    far = np.quantile(samples, 0.75) * factor / samples.min() - 1
    assert 0 < near < factor - 1 < far
    for allowed, strict, expected in (
        (near - 1e-6, False, 1),
        (near + 1e-6, False, 0),
        (near + 1e-6, True, 1),
        (far - 1e-6, True, 1),
        (far + 1e-6, True, 0),
    ):
        options = ["--fail-if-slower", f"{100 * allowed:.9f}%", *(["--strict"] if strict else [])]
        code, printed, _ = say(*rule(tmp_path, factor, *options))
        assert code == expected, f"{options} of near {near} and far {far}"
        assert ("No version is surely slower by more than" in printed) == (expected == 0)
    assert say(*rule(tmp_path, factor))[0] == 0, "without the option a slower version is no failure"


def test_faster_and_the_same_never_fail(tmp_path, say):
    for factor in (0.8, 1.0001):
        assert say(*rule(tmp_path, factor, "--fail-if-slower", "0%", "--strict"))[0] == 0


def test_unclear_fails_only_if_strict(say):
    code, printed, _ = say("compare", BF16, FP8, "--version", "v2", "--fail-if-slower", "5%")
    assert (code, printed.splitlines()[-1]) == (0, "No version is surely slower by more than 5 %; v2 UNCLEAR.")
    code, printed, _ = say("compare", BF16, FP8, "--version", "v2", "--fail-if-slower", "5%", "--strict")
    assert (code, printed.splitlines()[-1]) == (1, "v2: UNCLEAR, and that fails too (--strict).")


@pytest.mark.parametrize("options", [(), ("--fail-if-slower", "50%")])
def test_an_output_that_became_wrong_and_a_failed_job_fail(options, tmp_path, say):
    right = kept_in(tmp_path / "right.json", steady("v2"), steady("v3"))
    wrong = kept_in(tmp_path / "wrong.json", made_up.on_gpu("v2", passed=False), steady("v3", 2.1))
    failed = kept_in(tmp_path / "failed.json", steady("v2", 2.1), made_up.failed("v3"))
    code, printed, _ = say("compare", right, wrong, *options, "--json")
    assert (code, json.loads(printed)["exit_code"]) == (1, 1)
    assert json.loads(printed)["failures"] == ["v2: the output of B is wrong and was right in A."]
    code, printed, _ = say("compare", right, failed, *options, "--json")
    assert code == 1
    assert json.loads(printed)["failures"][0].startswith("v3: failed in B: BLOCK_N = 512 does not fit")


def test_what_cannot_be_compared_ends_with_2_and_the_reason(tmp_path, say):
    code, printed, said = say("compare", BF16, FULL, "--version", "v3", "--fail-if-slower", "5%")
    assert code == 2
    assert "v3: A and B compute different problems: causal is yes in A and no in B." in printed
    assert said == "No word is possible on 1 of 1 versions; each says why.\n"
    elsewhere = made_up.on_gpu("v2", environment=made_up.environment(made_up.gpu().model_copy(update={"name": "NVIDIA A100"})))
    files = kept_in(tmp_path / "a.json", steady("v2")), kept_in(tmp_path / "b.json", elsewhere)
    code, printed, _ = say("compare", *files, "--json")
    assert code == 2
    assert json.loads(printed)["versions"][0]["ratio"] > 0, "a ratio is given, and no word"
    assert "no word is given across GPU models" in json.loads(printed)["refused"][0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([BF16], "One snapshot alone is compared by two of its versions: give a second one, or --versions v2 v3."),
        ([BF16, BF16], "A and B are the same snapshot: name two of its versions with --versions."),
        ([BF16, FP8, "--version", "v3"], "version = v3 is not in B: it can be native, v1, v2, v3 FP8."),
        ([BF16, FP8, "--strict"], "--strict makes --fail-if-slower stricter: give that too, as --fail-if-slower 5%."),
        ([BF16, "deadbeef"], "No snapshot in this store has an id that begins with deadbeef: see the command list."),
        ([BF16, "baseline"], "No baseline is pinned in this store: pin one on the Snapshots page, or name a snapshot's id."),
        ([BF16, "no such"], "no such is no snapshot: it can be a snapshot's id or its first 8 digits or more, a file"),
        ([BF16, ROOT / "README.md"], f"{ROOT / 'README.md'}: This "),
        ([BF16, ROOT], f"{ROOT}: It cannot be read: is a directory."),
        ([BF16, FP8, "--fail-if-slower", "5"], "Argument --fail-if-slower: '5' is not possible: it is a percentage"),
        ([BF16, FP8, "--fail-if-slower", "-1%"], "Argument --fail-if-slower: expected one argument."),
        ([BF16, FP8, "--fail-if-slower", "nan%"], "Argument --fail-if-slower: 'nan%' is not possible: it is a percentage"),
        ([BF16, FP8, "--version", "v2", "--versions", "v1", "v2"], "Argument --versions: not allowed with argument --version."),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(arguments, sentence, say):
    code, printed, said = say("compare", *arguments)
    assert (code, printed, said.count("\n")) == (2, "", 1)
    assert said.startswith(sentence)


def test_versions_of_one_name_are_told_apart(tmp_path, say):
    narrow = made_up.TILES.model_copy(update={"block_n": 64})
    several = (steady("v2"), steady("v2", 2.2).model_copy(update={"tiles": narrow}), steady("native"), steady("native", 9.0))
    file = kept_in(tmp_path / "a.json", *several)
    names = [f"v2 · {made_up.TILES.title}", f"v2 · {narrow.title}", "native", "native · 4"]
    assert list(compare_report.by_label(opened(file))) == names == list(improvements.labels(several))
    for first, second in (names[:2], ("v2@block_n=128", "v2@BLOCK_N=64,block_m=128")):
        code, printed, _ = say("compare", file, "--versions", first, second, "--json")
        (one,) = json.loads(printed)["versions"]
        after_ms = float(np.median(several[1].latency.samples_ms.numpy()))
        assert (code, one["word"], one["b"]["median_ms"]) == (0, "SLOWER", after_ms)
    for asked, said in (
        ("v2@block_m=128", "version = v2@block_m=128 is 2 of B: it can be "),
        ("v2@block_m=64", "version = v2@block_m=64 is not in B: it can be "),
        ("native@block_m=64", "native@block_m=64 is not possible: native has no tiles to choose."),
        ("v2@block_n=64,v3", "version = v2@block_n=64,v3 is not possible: it is one version, with settings after @."),
    ):
        code, printed, problem = say("compare", file, "--versions", "native", asked)
        assert (code, printed, problem.count("\n")) == (2, "", 1)
        assert problem.startswith(said)


def test_warm_times_get_a_word_of_their_own_and_decide_nothing(tmp_path, say):
    """The cold time is the one that CI is asked about; a warm one that got slower is said beside it."""

    def with_warm(cold_ms: float, warm_ms: float) -> Measurement:
        warm = steady("v2", warm_ms).latency.model_copy(update={"mode": "warm", "launches_per_sample": 10})
        return steady("v2", cold_ms).model_copy(update={"warm": warm})

    files = kept_in(tmp_path / "a.json", with_warm(2.0, 1.0)), kept_in(tmp_path / "b.json", with_warm(1.9, 1.5))
    code, printed, _ = say("compare", *files, "--fail-if-slower", "5%", "--json")
    (one,) = json.loads(printed)["versions"]
    assert (code, one["word"], one["warm"]["word"]) == (0, "FASTER", "SLOWER")
    assert "\n    SLOWER: Warm, B takes 1.50 ms where A takes 1.00 ms" in say("compare", *files)[1]
    code, printed, _ = say("compare", files[0], kept_in(tmp_path / "c.json", steady("v2", 1.9)), "--json")
    assert json.loads(printed)["versions"][0]["warm"] is None


# References


def test_a_snapshot_is_named_by_its_id_its_beginning_the_baseline_or_any_kind_of_file(tmp_path, store, say):
    snapshot = opened(BF16)
    store.save(snapshot, "someone")
    store.pin_baseline(snapshot.id, "someone")
    (tmp_path / "x.gz").write_bytes(file_of(snapshot))
    (tmp_path / "x.html").write_text(f"<!doctype html><title>x</title>{embedded(snapshot)}")
    for reference in (snapshot.id, snapshot.id[:8], snapshot.id[:20].upper(), "baseline", *tmp_path.glob("x.*")):
        code, printed, said = say("compare", reference, FP8, "--version", "v2", "--json")
        assert (code, json.loads(printed)["a"]["id"], said) == (0, snapshot.id, "")


def test_a_deleted_or_edited_snapshot_is_used_and_said_to_be(store, say):
    snapshot = opened(BF16)
    store.save(snapshot, "someone")
    newer = store.edit(snapshot.id, "someone", title="Another title", note="", tags=())
    code, _, said = say("compare", snapshot.id[:8], FP8)
    assert code == 0
    assert said == (f"{snapshot.id[:12]} is deleted and was edited: its newer form is {newer[:12]}; it is used all the same.\n")


# list


def test_list_finds_by_word_version_gpu_tag_author_length_and_day(store, say):
    long = made_up.recording("Long one", kernels=("v2", "v3"))
    short = Snapshot(
        title="Short one", author="Ada", tags=("ci",), created_at=long.created_at, measurements=(made_up.in_interpreter("v1"),)
    )
    for one in (long, short):
        store.save(one, "someone")
    day = store.get(long.id).saved_at[:10]
    for options, expected in (
        ([], {"Long one", "Short one"}),
        (["LONG"], {"Long one"}),
        (["one", "nothing"], set()),
        (["--kernel", "v3"], {"Long one"}),
        (["--gpu", "h200"], {"Long one"}),
        (["--tag", "ci"], {"Short one"}),
        (["--author", "Ada"], {"Short one"}),
        (["--seq-len", "16384"], {"Long one"}),
        (["--seq-len", "16_384", "--head-dim", "64"], set()),
        (["--since", day, "--until", day], {"Long one", "Short one"}),
        (["--until", "2020-01-01"], set()),
        (["--deleted"], set()),
    ):
        code, printed, _ = say("list", *options, "--json")
        assert (code, {row["title"] for row in json.loads(printed)["snapshots"]}) == (0, expected), options
    assert say("list", "--gpu", "A100")[2] == "gpu = A100 is not in this store: it can be Interpreter (CPU), NVIDIA H200.\n"
    assert say("list", "--since", "today")[2] == "Argument --since: 'today' is not a date: it is written as 2026-11-29.\n"
    assert say("list", "--limit", "0")[2] == "Argument --limit: 0 is not possible: it can be 1 or more.\n"


def test_list_is_a_table_newest_first(store, store_file, say):
    assert say("list")[1] == f"No snapshot fits in {store_file}; run --save keeps one.\n"
    first, second = opened(BF16), opened(FULL)
    store.save(first, "someone", origin="imported")
    store.save(second, "someone")
    store.pin_baseline(first.id, "someone")
    code, printed, _ = say("list")
    lines = printed.splitlines()
    assert code == 0
    assert [line.split()[0] for line in lines] == ["id", second.id[:12], first.id[:12]]
    assert "(baseline, imported, #h200)" in lines[2]
    assert "v3 503 · cuDNN (SDPA) 573" in lines[2]
    assert say("list", "--limit", "1")[1].splitlines()[-1] == "1 of 2; --limit shows more."
    (row, _) = json.loads(say("list", "--json")[1])["snapshots"]
    assert row == json.loads(json.dumps(asdict(store.search(Query()).rows[0])))


def test_what_strangers_wrote_cannot_steer_the_terminal(tmp_path, say):
    unprintable = [text for text in hostile_text.PAYLOADS if not text.isprintable()]
    payloads = [*unprintable, "\x1b]0;owned\x07", "\x1b[2J\x9b31m", "a\rb", "\u202etxt"]
    assert len(unprintable) > 4
    for place, payload in enumerate(payloads):
        snapshot = hostile_text.hostile_snapshot(f"t{payload}", (payload,))
        file = tmp_path / f"{place}.json"
        file.write_bytes(snapshot.document)
        outputs = [
            say("import", file),
            say("export", file, "--out", tmp_path / "x.json", "--force"),
            say("compare", file, BF16),
        ]
        outputs.append(say("compare", file, "--versions", *list(compare_report.by_label(snapshot))[:2]))
        for _, printed, said in outputs:
            assert not [mark for mark in printed + said if mark != "\n" and unicodedata.category(mark) in ("Cc", "Zl", "Zp")]
            assert not set(printed + said) & set("\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u200f")
    listed = say("list", "--limit", "100")[1]
    assert not [mark for mark in listed if mark != "\n" and unicodedata.category(mark) in ("Cc", "Zl", "Zp")]
    assert len(listed.splitlines()) == 1 + len(payloads)


# export


def test_export_writes_the_document_its_gzip_or_its_samples(tmp_path, store, say):
    snapshot = opened(FP8)
    store.save(snapshot, "someone")
    for name in ("x.json", "x.flashscope.json.gz", "x.csv"):
        assert say("export", snapshot.id[:8], "--out", tmp_path / name)[0] == 0
    assert (tmp_path / "x.json").read_bytes() == snapshot.document
    assert gzip.decompress((tmp_path / "x.flashscope.json.gz").read_bytes()) == snapshot.document
    rows = list(csv.reader(io.StringIO((tmp_path / "x.csv").read_text())))
    expected = [
        [snapshot.id, label, str(number), repr(ms)]
        for one in snapshot.measurements
        for label, latency in ((one.label, one.latency), (f"{one.label} with pre-pass", one.with_prepass))
        if latency is not None
        for ms, number in zip(latency.samples_ms.numpy().tolist(), latency.round_of.numpy().tolist(), strict=True)
    ]
    assert rows == [["snapshot_id", "version", "round", "ms"], *expected]
    assert any(row[1] == "v3 FP8 with pre-pass" for row in rows)


def test_export_replaces_nothing_unless_told_to(tmp_path, say):
    file = tmp_path / "x.json"
    file.write_text("mine")
    code, printed, said = say("export", BF16, "--out", file)
    assert (code, printed, said, file.read_text()) == (2, "", f"out = {file} is there already: --force replaces it.\n", "mine")
    assert say("export", BF16, "--out", file, "--force")[0] == 0
    assert file.read_bytes() == opened(BF16).document


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("x.html", "python -m app export FILE --out PAGE makes an HTML page of a snapshot's file."),
        ("x.txt", "its name ends in .json or .gz or .csv."),
        ("no/x.json", "there is no folder"),
    ],
)
def test_export_says_where_it_cannot_write(name, sentence, tmp_path, say):
    code, printed, said = say("export", BF16, "--out", tmp_path / name)
    assert (code, printed, said.count("\n")) == (2, "", 1)
    assert sentence in said


def test_export_says_first_what_the_file_tells_of_a_person(tmp_path, say):
    fields = {name: getattr(made_up.recording(), name) for name in Snapshot.model_fields}
    file = tmp_path / "x.json"
    file.write_bytes(Snapshot(**{**fields, "author": "Ada Lovelace", "note": "in /home/ada/flash/x.py"}).document)
    code, _, said = say("export", file, "--out", tmp_path / "y.gz")
    assert code == 0
    assert "Ada Lovelace" in said
    assert "/home/ada/flash/x.py" in said
    assert json.loads(say("export", file, "--out", tmp_path / "y.gz", "--force", "--json")[1])["tells"]


def test_a_snapshot_of_a_newer_schema_leaves_byte_for_byte(tmp_path, store, say):
    newer = canonical({**json.loads(opened(BF16).document), "schema_version": 99, "unheard_of": [1, {"x": None}]})
    file = tmp_path / "newer.json"
    file.write_bytes(newer)
    code, printed, _ = say("import", file)
    assert code == 0
    assert "Made by a newer FlashScope (schema 99)" in printed
    assert say("export", hashlib.sha256(newer).hexdigest(), "--out", tmp_path / "y.json")[0] == 0
    assert (tmp_path / "y.json").read_bytes() == newer


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1"])
def test_no_cell_is_a_formula(text, tmp_path, say):
    assert harmless(text) == f"'{text}"
    assert harmless(f"x{text}") == f"x{text}"
    v2 = steady("v2")
    file = kept_in(
        tmp_path / "x.json", v2.model_copy(update={"request": v2.request.model_copy(update={"kernel": f"{text.strip()}A1"})})
    )
    assert say("export", file, "--out", tmp_path / "x.csv")[0] == 0
    rows = list(csv.reader(io.StringIO((tmp_path / "x.csv").read_text())))[1:]
    assert {row[1] for row in rows} == {f"'{text.strip()}A1"}
    assert all(float(row[3]) > 0 for row in rows)


def test_nvbench_s_json_holds_what_nvbench_would_have_written(tmp_path, say):
    file = tmp_path / "x.json"
    assert say("export", FP8, "--out", file, "--nvbench")[0] == 0
    found = json.loads(file.read_text())
    assert found["meta"]["version"]["json"] == {"major": 1, "minor": 0, "patch": 0, "string": "1.0.0"}
    assert found["devices"] == [{"id": 0, "name": "NVIDIA H200", "sm_version": 900, "ptx_version": 900, "number_of_sms": 132}]
    names = ["native", "v1", "v2", "v3 FP8", "v3 FP8 with pre-pass"]
    assert [one["name"] for one in found["benchmarks"]] == [f"attention forward, {name}" for name in names]
    assert [one["index"] for one in found["benchmarks"]] == list(range(5))
    v2 = next(one for one in opened(FP8).measurements if one.label == "v2")
    samples_s = sorted(v2.latency.samples_ms.numpy() / 1000)
    (state,) = found["benchmarks"][2]["states"]
    assert state["name"].startswith("Device=0 batch=1 num_heads=16 num_kv_heads=16 seq_len_q=16384 ")
    values = {one["tag"].removeprefix("nv/cold/"): one["data"][0]["value"] for one in state["summaries"]}
    assert all(isinstance(value, str) for value in values.values())
    n, mean = len(samples_s), sum(samples_s) / len(samples_s)
    stdev = (sum((one - mean) ** 2 for one in samples_s) / (n - 1)) ** 0.5
    q1, median, q3 = (samples_s[int(share * (n - 1) + 0.5)] for share in (0.25, 0.5, 0.75))
    assert int(values["sample_size"]) == n
    for tag, expected in {
        "min": samples_s[0], "max": samples_s[-1], "mean": mean, "stdev/absolute": stdev, "stdev/relative": stdev / mean,
        "q1": q1, "median": median, "q3": q3, "iqr/absolute": q3 - q1, "iqr/relative": (q3 - q1) / median,
    }.items():  # fmt: skip
        assert float(values[f"time/gpu/{tag}"]) == pytest.approx(expected, rel=1e-12), tag


def test_nvbench_s_batch_is_the_warm_time():
    cold = steady("v2")
    warm = cold.latency.model_copy(update={"mode": "warm", "launches_per_sample": 20})
    both = (cold.model_copy(update={"warm": warm}),)
    snapshot = made_up.recording(kernels=("v2",)).model_copy(update={"measurements": both})
    (benchmark,) = nvbench_json(snapshot, compare_report.by_label(snapshot))["benchmarks"]
    values = {one["tag"]: one["data"][0]["value"] for one in benchmark["states"][0]["summaries"]}
    assert values["nv/batch/sample_size"] == str(20 * warm.n)
    assert float(values["nv/batch/time/gpu/mean"]) == pytest.approx(warm.samples_ms.numpy().mean() / 1000)
    assert float(values["nv/batch/time/gpu/mean"]) == pytest.approx(float(values["nv/cold/time/gpu/mean"]))


def test_nvbench_s_json_has_no_time_without_a_proof(tmp_path, say):
    mixed = kept_in(tmp_path / "mixed.json", steady("v2"), made_up.on_gpu("v3", passed=False), made_up.failed("v1"))
    found = nvbench_json(opened(mixed), compare_report.by_label(opened(mixed)))
    states = {one["name"].split(", ")[1]: one["states"][0] for one in found["benchmarks"]}
    assert [states[name]["is_skipped"] for name in ("v2", "v3", "v1")] == [False, True, True]
    assert states["v3"]["summaries"] is None
    interpreted = kept_in(tmp_path / "cpu.json", made_up.in_interpreter("v2"))
    code, _, said = say("export", interpreted, "--out", tmp_path / "y.json", "--nvbench")
    assert (code, said) == (2, "nvbench's format holds GPU times, and this snapshot has none.\n")
    assert not (tmp_path / "y.json").exists()
    assert say("export", mixed, "--out", tmp_path / "y.csv", "--nvbench")[2].endswith(
        "with --nvbench: its name ends in .json.\n"
    )


# import


def test_import_shows_what_it_keeps_and_a_bad_file_stops_no_other(tmp_path, store, say):
    bad = tmp_path / "bad.json"
    bad.write_text('{"schema_version": 2}')
    code, printed, said = say("import", bad, BF16, tmp_path / "none.json", FULL)
    assert code == 2
    assert [line.split(": ")[0] for line in said.splitlines()] == [str(bad), str(tmp_path / "none.json")]
    assert store.search(Query()).total == 2
    kept = store.get(opened(BF16).id)
    assert (kept.origin, kept.snapshot, store.changes()[0].what) == ("imported", opened(BF16), "imported")
    lines = printed.splitlines()
    assert lines[0] == f"{BF16}: Seven ways to the same output: 16,384 tokens, causal · by no one named"
    assert "NVIDIA H200 · 16,384 tokens · head_dim 128 · causal · native, v1, v2, v3, cuDNN (SDPA)" in lines[1]
    assert f"    Kept as imported: {opened(BF16).id}" in lines


def test_import_can_only_look_and_knows_what_is_there(store, say):
    code, printed, _ = say("import", BF16, "--dry-run", "--json")
    (found,) = json.loads(printed)
    assert (code, found["kept"], found["already_there"], found["id"]) == (0, False, False, opened(BF16).id)
    assert store.search(Query()).total == 0
    say("import", BF16)
    assert json.loads(say("import", BF16, "--json")[1])[0]["already_there"]
    store.delete(opened(BF16).id, "someone")
    assert not json.loads(say("import", BF16, "--json")[1])[0]["already_there"]
    assert store.get(opened(BF16).id).deleted_at is None, "what was deleted comes back"


def test_import_names_numbers_that_no_gpu_reaches(tmp_path, say):
    """The file may claim any peak for its device: this FlashScope's own table judges."""
    claimed = made_up.gpu().model_copy(update={"peak_bf16_tflops": 1e6, "measured_bf16_tflops": None})
    quick = scaled(steady("v3"), 0.01).model_copy(update={"environment": made_up.environment(claimed)})
    file = kept_in(tmp_path / "quick.json", quick, steady("v2"))
    (found,) = json.loads(say("import", file, "--dry-run", "--json")[1])
    by_own_table = peak_flag(quick.request.problem.flops, 0, quick.latency, 989.5, None)
    assert found["implausible"] == [f"v3: {by_own_table.sentence}"]
    assert json.loads(say("import", BF16, "--dry-run", "--json")[1])[0]["implausible"] == []
    assert f"    Implausible: v3: {by_own_table.sentence}" in say("import", file)[1].splitlines()


# store


def test_where_says_the_place_the_count_and_the_size(store, store_file, say):
    store.save(opened(BF16), "someone")
    store.save(opened(FULL), "someone")
    store.delete(opened(FULL).id, "someone")
    found = json.loads(say("store", "where", "--json")[1])
    on_disk = sum(file.stat().st_size for file in store_file.parent.glob("store.sqlite3*"))
    assert found == {"store": str(store_file), "snapshots": 1, "deleted": 1, "bytes": on_disk}
    assert say("store", "where")[1].startswith(f"{store_file} · 1 snapshot · 1 deleted · ")


def test_a_password_is_never_shown(say):
    code, printed, said = say("store", "where", "--store", "postgresql://ada:top-secret@127.0.0.1:1/x")
    assert (code, printed) == (2, "")
    assert "ada@127.0.0.1:1/x" in said
    assert "top-secret" not in said


def test_check_hashes_every_document_again(store, store_file, say):
    store.save(opened(BF16), "someone")
    store.save(opened(FULL), "someone")
    store.delete(opened(FULL).id, "someone")
    assert say("store", "check") == (0, f"{store_file}: 2 documents hashed again, 0 damaged.\n", "")
    document = opened(FULL).document.replace(b'"seq_len_q":16384', b'"seq_len_q":16385', 1)
    with sqlite3.connect(store_file) as connection:
        connection.execute("UPDATE flashscope_documents SET file = ? WHERE id = ?", (gzip.compress(document), opened(FULL).id))
    connection.close()
    code, printed, _ = say("store", "check", "--json")
    found = json.loads(printed)
    assert (code, found["checked"], len(found["damaged"])) == (1, 2, 1)
    assert opened(FULL).id[:12] in found["damaged"][0]


def test_migrate_moves_everything_and_counts_what_it_proved(tmp_path, store, say):
    for file in (BF16, FULL, FP8):
        store.save(opened(file), "someone")
    store.delete(opened(FP8).id, "someone")
    target = tmp_path / "target.sqlite3"
    assert say("store", "migrate", "--to", target) == (0, "3 copied, 0 already there, 3 hashed again and equal.\n", "")
    found = json.loads(say("store", "migrate", "--to", f"sqlite:///{target}", "--json")[1])
    assert found == {"copied": 0, "already_there": 3, "verified": 3, "sweeps": 0, "sweep_cells": 0}
    moved = Store(str(target))
    assert {row.id for row in moved.search(Query()).rows} == {opened(BF16).id, opened(FULL).id}
    assert moved.get(opened(FP8).id).deleted_at is not None
    moved.close()
    assert say("store", "migrate")[2] == "The following arguments are required: --to.\n"
    assert say("store")[2] == "The following arguments are required: where | check | migrate.\n"


def test_a_title_that_would_be_too_long_counts_the_versions():
    gallery = Path(__file__).resolve().parent.parent / "app" / "gallery"
    step = read((gallery / "25-training-step-16k.json").read_bytes()).measurements
    assert usual_title(step) == "6 versions: 16,384 tokens · head_dim 128 on H200"
    assert usual_title(step[1:3]) == "v2 fwd+bwd, v3 fwd+bwd: 16,384 tokens · head_dim 128 on H200"
