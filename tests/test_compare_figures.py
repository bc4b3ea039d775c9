"""Compare's figures, HTML and CSV: the records' numbers, all of them, and no foreign text that is markup or a formula."""

from __future__ import annotations

import csv
import io
import itertools
import math
from html import escape

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app import compare_html
from app.csv_text import csv_of, csv_of_rows
from app.figures import overlay, rounds
from app.figures.style import DARK, LIGHT, Absent, Chart, Palette
from profiling.differences import as_cells, differences
from profiling.improvements import judged_in_its_job, judged_pairs
from profiling.records import Measurement
from profiling.snapshot import Snapshot
from profiling.verdict import Band, Verdict, Word, verdict
from tests import records_for_tests as records

V2, V3 = records.on_gpu("v2"), records.on_gpu("v3")
HOSTILE = "<img src=x onerror=alert(1)>$x$"


def notes_of(chart: Chart) -> list[str]:
    return [note.text for note in chart.figure.layout.annotations]


def named(one: Measurement, kernel: str) -> Measurement:
    return one.model_copy(update={"request": one.request.model_copy(update={"kernel": kernel})})


def rounds_chart(same_job: bool = True, palette: Palette = LIGHT) -> Chart:
    return rounds.chart(V2, V3, verdict(V2, V3, same_job), palette)


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_every_chart_says_how_it_was_taken(palette: Palette) -> None:
    a, b = records.recording(), records.recording(title="Another", kernels=("native", "v1", "v2", "v3"))
    later = b.model_copy(update={"measurements": tuple(one.model_copy(update={"duration_s": 9.0}) for one in b.measurements)})
    for chart in (rounds_chart(True, palette), rounds_chart(False, palette), overlay.chart(judged_pairs(a, later), palette)):
        assert isinstance(chart, Chart)
        assert chart.caption.endswith(".")
        assert chart.alt
        assert len({tuple(row) for row in chart.table}) == 1
        chart.figure.to_json()


def test_rounds_are_drawn_where_their_medians_are() -> None:
    found = verdict(V2, V3, True)
    chart = rounds.chart(V2, V3, found, LIGHT)
    _, a, b = chart.figure.data
    assert list(zip(a.x, b.x, strict=True)) == list(found.rounds)
    assert [f"{x / y:.3f}×" for x, y in found.rounds] == [text for text in notes_of(chart) if text.endswith("×")]
    low, high = chart.figure.layout.xaxis.range
    assert low < min(map(min, found.rounds)) < max(map(max, found.rounds)) < high


def test_many_rounds_are_drawn_close_together_and_none_is_left_out() -> None:
    slow, quick = (records.on_gpu(latency=records.latency(ms, rounds=40, a_round=12)) for ms in (2.2, 2.0))
    found = verdict(slow, quick, True)
    chart = rounds.chart(slow, quick, found, LIGHT)
    assert chart.title == rounds.BY_ROUND
    assert chart.figure.layout.height < 600
    assert [len(one.x) for one in chart.figure.data[1:]] == [40, 40]
    assert len(chart.table) == 40
    numbered = [text for text in notes_of(chart) if text.endswith("×")]
    assert len(numbered) == len(chart.figure.layout.yaxis.tickvals) == 20


def test_an_axis_that_does_not_start_at_0_says_so() -> None:
    near = records.on_gpu("v3", latency=records.latency(2.2))
    zoomed = rounds.chart(V2, near, verdict(V2, near, True), LIGHT)
    assert zoomed.figure.layout.xaxis.range[0] > 0
    assert "does not start at 0" in zoomed.caption
    far = records.on_gpu("v3", latency=records.latency(1.1))
    whole = rounds.chart(V2, far, verdict(V2, far, True), LIGHT)
    assert whole.figure.layout.xaxis.range[0] == 0
    assert "does not start at 0" not in whole.caption


def test_two_jobs_show_every_launch_and_the_bands_of_the_rule() -> None:
    chart = rounds_chart(same_job=False)
    for series, one in zip(chart.figure.data, (V2, V3), strict=True):
        assert np.array_equal(series.x, one.latency.samples_ms.numpy())
    boxes = [(shape.x0, shape.x1) for shape in chart.figure.layout.shapes if shape.type == "rect"]
    assert boxes == [(band.low_ms, band.high_ms) for band in (Band.of(V2.latency), Band.of(V3.latency))]
    lines = [shape.x0 for shape in chart.figure.layout.shapes if shape.type == "line"]
    assert lines == [V2.latency.median_ms, V3.latency.median_ms]


def test_what_cannot_be_compared_is_not_drawn() -> None:
    wrong = records.on_gpu("v3", passed=False)
    assert isinstance(rounds.chart(V2, wrong, verdict(V2, wrong, True), LIGHT), Absent)
    interpreted = records.in_interpreter()
    assert isinstance(rounds.chart(V2, interpreted, verdict(V2, interpreted, False), LIGHT), Absent)


def test_versions_of_two_snapshots_are_bars_of_their_throughputs() -> None:
    a, b = records.recording(kernels=("v1", "v2")), records.recording(title="Another", kernels=("v2", "v1"))
    slower = tuple(one.model_copy(update={"latency": records.latency(9.0)}) for one in b.measurements)
    pairs = judged_pairs(a, b.model_copy(update={"measurements": slower}))
    chart = overlay.chart(pairs, LIGHT)
    before, after = chart.figure.data
    assert list(before.x) == [one.tflops for one in a.measurements]
    assert list(after.x) == [slower[1].tflops, slower[0].tflops]
    assert [row["version"] for row in chart.table] == ["v1", "v2"]
    assert notes_of(chart).count("SLOWER") == 2


def test_a_version_that_failed_has_a_row_and_no_bar() -> None:
    a = records.recording(kernels=("v2", "v3"))
    b = Snapshot(title="x", created_at=a.created_at, measurements=(records.on_gpu("v2", duration_s=9.0), records.failed("v3")))
    chart = overlay.chart(judged_pairs(a, b), LIGHT)
    assert list(chart.figure.data[1].x)[1] == 0
    assert "no verdict" in notes_of(chart)
    assert isinstance(overlay.chart(judged_pairs(a, b)[:1], LIGHT), Absent)
    assert isinstance(overlay.chart([judged_pairs(a, b)[1]] * 2, LIGHT), Absent)


@settings(deadline=None)
@given(st.floats(1e-4, 1e5), st.floats(1e-3, 1e5))
def test_ticks_are_round_within_the_axis_and_few(low: float, width: float) -> None:
    ticks = rounds.nice_ticks(low, low + width)
    assert 1 <= len(ticks) <= 7
    assert all(low - width * 1e-6 <= tick <= low + width * (1 + 1e-6) for tick in ticks)
    steps = {round((b - a) / 10 ** math.floor(math.log10(b - a) + 1e-9), 6) for a, b in itertools.pairwise(ticks)}
    assert steps <= {1.0, 2.0, 2.5, 5.0}


def test_names_from_files_are_not_markup() -> None:
    strange = named(V3, HOSTILE)
    for same_job in (True, False):
        chart = rounds.chart(V2, strange, verdict(V2, strange, same_job), LIGHT)
        texts = [*notes_of(chart), *(chart.figure.layout.yaxis.ticktext or ())]
        assert not any("<img" in text or "$" in text for text in texts)
    html = compare_html.differences(differences(V2, strange), "FASTER")
    assert "<img" not in html
    assert "&lt;img" in html
    shown = compare_html.verdict(Verdict("FASTER", 2.0, 1.9, 2.1, "clear gap", HOSTILE, cautions=(HOSTILE,)))
    assert "<img" not in shown
    listed = compare_html.listing([{"version": HOSTILE, "verdict": HOSTILE}], [f'?a={HOSTILE}"'], ["faster"], HOSTILE)
    assert "<img" not in listed
    assert 'onerror=alert(1)>"' not in listed


# The verdict in words


def judged(word: Word | None, ratio: float | None, low: float | None, high: float | None, rounds: int = 5) -> Verdict:
    return Verdict(word, ratio, low, high, "none", "", rounds=((2.0, 2.0),) * rounds)


@pytest.mark.parametrize(
    ("found", "headline", "interval"),
    [
        (judged("FASTER", 1.25, 1.24, 1.26), "FASTER 1.25×", "between 1.24× and 1.26×, from 5 rounds"),
        (judged("FASTER", 1.25, 1.24, 1.26, 0), "FASTER 1.25×", "between 1.24× and 1.26×, as the two bands allow"),
        (judged("SLOWER", 0.8, 0.75, 0.85), "SLOWER 1.25×", "between 1.18× and 1.33×, from 5 rounds"),
        (judged("SAME", 1.001, 0.996, 1.004), "SAME", "A ÷ B: 1.001×, between 0.996× and 1.004×, from 5 rounds"),
        (judged("UNCLEAR", 1.01, None, None, 1), "UNCLEAR", "A ÷ B: 1.010×, the ratio of the medians"),
        (judged(None, 1.5, None, None, 0), "No verdict", "A ÷ B: 1.50×, the ratio of the medians"),
        (judged(None, None, None, None, 0), "No verdict", ""),
    ],
)
def test_the_headline_and_its_interval(found: Verdict, headline: str, interval: str) -> None:
    assert compare_html.headline(found) == headline
    assert compare_html.interval(found) == interval


def test_faster_is_only_said_where_the_verdict_says_it() -> None:
    found = differences(V2, V3)
    assert "1.094× faster" in compare_html.differences(found, "FASTER")
    for word in ("UNCLEAR", "SAME", "SLOWER", None):
        shown = compare_html.differences(found, word)
        assert "faster" not in shown
        assert f"{V3.latency.median_ms / V2.latency.median_ms:.3f}× the time" in shown


def test_equal_fields_are_folded_and_counted() -> None:
    found = differences(V2, V3)
    html = compare_html.differences(found, "FASTER")
    assert f"{len(found.differing)} of {len(found.rows)} fields" in html
    shown, folded = html.split("<details>")
    assert all(f">{escape(row.field)}</th>" in shown for row in found.differing)
    assert all(f">{escape(row.field)}</th>" in folded for row in found.equal)


# CSV


def parsed(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline="")))


@settings(deadline=None)
@given(st.text(max_size=40))
def test_no_text_in_a_csv_file_is_a_formula_and_none_breaks_the_rows(text: str) -> None:
    (row,) = parsed(csv_of_rows([{"what": text, "n": -1.5}]))
    assert not row["what"].startswith(("=", "+", "-", "@", "\t", "\r"))
    assert row["n"] == "-1.5", "a number stays one"


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t"])
def test_what_begins_like_a_formula_gets_an_apostrophe(start: str) -> None:
    (row,) = parsed(csv_of_rows([{"what": f"{start}1+1"}]))
    assert row["what"] == f"'{start}1+1"


def test_the_differences_file_has_every_row_with_its_bare_values() -> None:
    found = differences(V2, V3)
    rows = parsed(csv_of_rows(as_cells(found.rows)))
    assert [row["field"] for row in rows] == [row.field for row in found.rows]
    (median,) = [row for row in rows if row["field"] == "median latency"]
    assert float(median["A value"]) == V2.latency.median_ms
    assert median["differs"] == "yes"
    assert csv_of_rows([]) == b""


def test_the_samples_file_has_every_launch() -> None:
    rows = parsed(csv_of(records.recording(kernels=("v2", "v3"))))
    assert len(rows) == V2.latency.n + V3.latency.n


def test_other_versions_of_a_job_are_judged_in_their_rounds() -> None:
    snapshot = records.recording(kernels=("v1", "v2", "v3"))
    others = judged_in_its_job(snapshot, snapshot.measurements[1])
    assert [(one.before_name, one.after_name, one.verdict.word) for one in others] == [
        ("v2", "v1", "SLOWER"),
        ("v2", "v3", "FASTER"),
    ]
    assert all(one.verdict.basis == "interleaved rounds" for one in others)
