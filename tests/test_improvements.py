"""Since a baseline: what is paired with what, how measurements are called, in which order the verdicts come."""

from __future__ import annotations

from pathlib import Path

from app import compare_html
from kernels.problem import AttentionProblem, Precision, TileConfig
from profiling import compare_report
from profiling.improvements import judged_in_its_job, judged_pairs, labels, of_one_job, pairs, since
from profiling.records import Measurement
from profiling.snapshot import Snapshot, read
from tests import records_for_tests as records

GALLERY = Path(__file__).parents[1] / "app" / "gallery"
SMALL = TileConfig(block_m=64, block_n=64, num_warps=4, num_stages=2)
HALF = Precision(dtype="fp16")


def of(*measurements: Measurement, title: str = "Made up") -> Snapshot:
    return Snapshot(title=title, created_at="2026-11-29T13:10:00+00:00", measurements=measurements)


def asked(one: Measurement, **changes: object) -> Measurement:
    return one.model_copy(update={"request": one.request.model_copy(update=changes)})


def timed(kernel: str, median_ms: float) -> Measurement:
    return records.on_gpu(kernel, latency=records.latency(median_ms), duration_s=9.0)


def test_versions_meet_by_name_whatever_their_order() -> None:
    a, b = of(*(records.on_gpu(name) for name in ("v1", "v2", "v3"))), of(records.on_gpu("v3"), records.on_gpu("v2"))
    assert [(x.label, y.label) for x, y in pairs(a, b)] == [("v2", "v2"), ("v3", "v3")]


def test_another_problem_or_number_format_is_no_counterpart() -> None:
    one = records.on_gpu("v2")
    other_problem = AttentionProblem(seq_len_q=4096, seq_len_kv=4096, causal=True)
    assert pairs(of(one), of(asked(one, problem=other_problem))) == ()
    assert pairs(of(one), of(asked(one, precision=HALF))) == ()
    assert pairs(of(records.on_gpu("v3")), of(records.on_gpu("v3", fp8=True))) == ()


def test_one_version_with_several_tiles_meets_its_own_tiles_first() -> None:
    large, small = records.on_gpu("v2"), records.on_gpu("v2", tiles=SMALL)
    assert [(x.tiles, y.tiles) for x, y in pairs(of(large, small), of(small, large))] == [
        (large.tiles, large.tiles),
        (SMALL, SMALL),
    ]
    assert [(x.tiles, y.tiles) for x, y in pairs(of(large), of(small))] == [(large.tiles, SMALL)], "tiles are what is compared"
    assert len(pairs(of(large, large), of(large))) == 1, "no measurement is used twice"


def test_names_are_told_apart_by_format_tiles_and_place() -> None:
    large, small = records.on_gpu("v2"), records.on_gpu("v2", tiles=SMALL)
    assert labels([records.on_gpu("v1"), large]) == ("v1", "v2")
    assert labels([large, asked(large, precision=HALF)]) == ("v2 bf16", "v2 fp16")
    assert labels([large, small]) == ("v2 · 128 × 128, 8 warps, 3 stages", "v2 · 64 × 64, 4 warps, 2 stages")
    same = labels([large, large, large])
    assert len(set(same)) == 3


def test_a_snapshot_saved_under_other_words_is_still_the_same_job() -> None:
    v2, v3 = records.on_gpu("v2"), records.on_gpu("v3")
    first, renamed = of(v2, v3), of(v2, v3, title="Other words")
    assert first.id != renamed.id
    assert of_one_job(first, renamed, v2, v3)
    assert not of_one_job(of(v2), of(v3), v2, v3)
    (judged,) = [one for one in judged_pairs(first, renamed) if one.before_name == "v2"]
    assert judged.verdict.refused == "A and B are the same measurement."


def test_what_changed_most_comes_first_by_word() -> None:
    baseline = of(*(timed(name, 2.0) for name in ("v1", "v2", "v3", "native", "sdpa-cudnn")))
    new = of(timed("v1", 1.5), timed("v2", 1.0), timed("v3", 4.0), timed("native", 2.001), records.failed("sdpa-cudnn"))
    later = tuple(one.model_copy(update={"duration_s": 8.0}) for one in new.measurements)
    found = since(baseline, [of(*later)])
    assert [(one.after_name, one.verdict.word) for one in found] == [
        ("v2", "FASTER"),
        ("v1", "FASTER"),
        ("v3", "SLOWER"),
        ("native", "SAME"),
    ] + [(one.after_name, None) for one in found[4:]]


def test_several_snapshots_are_judged_against_one() -> None:
    baseline, first, second = of(timed("v2", 2.0)), of(timed("v2", 1.0), title="1"), of(timed("v2", 4.0), title="2")
    found = since(baseline, [second, first])
    assert [(one.after_of.title, one.verdict.word) for one in found] == [("1", "FASTER"), ("2", "SLOWER")]


def test_the_word_is_one_wherever_it_is_said():
    """The page and the exported page, the command's table, its JSON, and a run's last lines: of one pair they say one word."""
    snapshot = read((GALLERY / "01-16k-causal.json").read_bytes())
    first, *others = snapshot.measurements
    in_run = compare_report.within_one_job(snapshot.measurements)[1:]
    for one, line, judged in zip(others, in_run, judged_in_its_job(snapshot, first), strict=True):
        found = compare_report.compare(snapshot, snapshot, None, (first.label, one.label))
        (as_json,) = compare_report.as_json(found, None, 0)["versions"]
        words = {
            judged.verdict.word,
            as_json["word"],
            compare_html.headline(judged.verdict).split()[0],
            compare_report.report(found, None).splitlines()[4].removeprefix(f"{first.label} → {one.label}").split()[0],
            line.removeprefix(one.label).split()[0],
        }
        assert len(words) == 1, words
