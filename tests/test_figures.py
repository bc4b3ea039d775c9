"""Figures show the record's numbers, all of them, and nothing where there is none."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys

import numpy as np
import plotly.graph_objects as go
import pytest

from app.figures import compiled, launches, limits, memory, timeline, versions
from app.figures.style import DARK, LIGHT, Absent, Chart, Palette, spread
from kernels.registry import OUR_VERSIONS, PEERS, VERSIONS
from profiling.record_types import Array
from profiling.records import JobError, Latency
from tests import records_for_tests as records

EVERY = records.recording().measurements


def words_in(figure: go.Figure) -> str:
    return " | ".join(note.text for note in figure.layout.annotations)


def contrast(first: str, second: str) -> float:
    """WCAG 2 contrast ratio of two colours."""

    def luminance(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("palette", [LIGHT, DARK])
@pytest.mark.parametrize("role", ["text", "muted", "progress", "work_lost", "correct", "refused", "peer"])
def test_colours_used_for_text_can_be_read(palette: Palette, role: str) -> None:
    assert contrast(getattr(palette, role), palette.background) >= 4.5


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_each_version_of_ours_has_a_bar_colour_of_its_own_that_can_be_seen(palette: Palette) -> None:
    ours = {palette.version(name) for name in OUR_VERSIONS}
    assert len(ours) == len(OUR_VERSIONS)
    assert palette.peer not in ours
    assert {palette.version(name) for name in (*PEERS, "v9")} == {palette.peer}
    assert contrast(palette.version("v3-hopper"), palette.background) >= 3


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_every_chart_says_how_it_was_taken(palette: Palette) -> None:
    one = records.on_gpu()
    failed = records.failed()
    charts = [
        versions.chart(EVERY, "v3", palette),
        launches.chart(one, palette),
        memory.chart(one, palette),
        timeline.chart(one, palette),
        compiled.chart(one, palette),
        limits.chart(failed.error, failed.tiles, palette),
    ]
    for chart in charts:
        assert isinstance(chart, Chart)
        assert chart.provenance in ("measured", "interpreted", "compiled", "modelled")
        assert chart.caption.endswith(".")
        assert chart.alt
        assert chart.table
        assert len({tuple(row) for row in chart.table}) == 1, "every row of a table has the same columns"
        chart.figure.to_json()


def test_bars_are_the_measured_throughputs_and_peers_are_lines() -> None:
    chart = versions.chart(EVERY, "v3", LIGHT)
    by_kernel = {one.request.kernel: one for one in EVERY}
    assert list(chart.figure.data[0].x) == pytest.approx([by_kernel[name].tflops for name in OUR_VERSIONS])
    lines = {shape.x0 for shape in chart.figure.layout.shapes}
    assert lines == {by_kernel[name].tflops for name in by_kernel if VERSIONS[name].is_peer} | {790.0}
    assert "<b>544</b>" in words_in(chart.figure)


def test_a_wrong_version_has_its_word_and_no_bar() -> None:
    chart = versions.chart([records.on_gpu("v2"), records.on_gpu("v3", passed=False)], "v3", LIGHT)
    assert list(chart.figure.data[0].y) == [0]
    assert "WRONG" in words_in(chart.figure)
    wrong = chart.table[1]
    assert wrong["output"] == "WRONG"
    assert wrong["TFLOP/s"] == wrong["median"] == ""


def test_a_version_that_failed_says_why_in_the_table() -> None:
    chart = versions.chart([records.on_gpu("v2"), records.failed("v3")], "v2", LIGHT)
    assert chart.table[1]["output"] == "compile"


def test_interpreted_times_are_never_bars() -> None:
    found = versions.chart([records.in_interpreter("v1"), records.in_interpreter("v2")], "v2", LIGHT)
    assert isinstance(found, Absent)
    assert "speed" in found.reason
    assert isinstance(launches.chart(records.in_interpreter(), LIGHT), Absent)


def test_one_version_is_no_comparison() -> None:
    assert isinstance(versions.chart([records.on_gpu()], "v3", LIGHT), Absent)


def test_peer_labels_of_one_height_never_meet() -> None:
    random_ = random.Random(5)
    for _ in range(300):
        peers = [versions.Row(str(i), f"peer {i}", random_.uniform(1, 800), (0, 0), 1.0, "") for i in range(4)]
        levels = versions._levels(peers, 800.0)
        spans = []
        for peer, level in zip(peers, levels, strict=True):
            width = versions._CHARACTER_SHARE * len(versions._peer_label(peer))
            right = min(peer.tflops / 800 + width / 2, 1.0)
            spans.append((level, right - width, right))
        for (level, left, right), (level_2, left_2, right_2) in itertools.combinations(spans, 2):
            assert level != level_2 or right <= left_2 + 1e-9 or right_2 <= left + 1e-9


def test_every_launch_is_a_dot_in_its_order() -> None:
    one = records.on_gpu()
    chart = launches.chart(one, LIGHT)
    assert np.array_equal(chart.figure.data[0].y, one.latency.samples_ms.numpy())
    borders = [shape.x0 for shape in chart.figure.layout.shapes if shape.x0 == shape.x1]
    assert borders == [60.5, 120.5, 180.5, 240.5]
    low, high = chart.figure.layout.yaxis.range
    assert low < one.latency.samples_ms.numpy().min() < one.latency.samples_ms.numpy().max() < high
    band = next(shape for shape in chart.figure.layout.shapes if shape.type == "rect")
    assert (band.y0, band.y1) == (one.latency.quantile_ms(0), one.latency.quantile_ms(0.75))
    rows = {row["round"]: row for row in chart.table}
    assert [row["n"] for row in chart.table] == ["60"] * 5 + ["300"]
    assert rows["2"]["median, ms"] == f"{np.median(one.latency.samples_ms.numpy()[60:120]):.4f}"
    assert rows["all"]["max, ms"] == f"{one.latency.samples_ms.numpy().max():.4f}"


def test_however_many_launches_none_is_left_out() -> None:
    many = records.latency(2.0, rounds=9, a_round=555)
    drawn = launches.chart(records.on_gpu(latency=many), LIGHT).figure.data[0]
    assert drawn.mode == "lines"
    ends = np.reshape(drawn.y, (-1, 3))
    assert np.array_equal(ends[:, 0], many.samples_ms.numpy())
    assert np.array_equal(ends[:, 1], many.samples_ms.numpy())
    assert np.isnan(ends[:, 2]).all(), "dashes are apart"
    assert np.allclose(np.reshape(drawn.x, (-1, 3))[:, :2].mean(axis=1), np.arange(1, many.n + 1))


def test_warm_launches_stand_apart_from_cold_ones() -> None:
    cold, samples = records.latency(2.0), 1.8 + 0.01 * np.arange(50)
    warm = Latency(
        provenance="measured", mode="warm", samples_ms=Array.of(samples), round_of=Array.of(np.repeat(range(5), 10), "<i4"),
        launches_per_sample=20,
    )  # fmt: skip
    chart = launches.chart(records.on_gpu(latency=cold, warm=warm), LIGHT)
    first, second = chart.figure.data
    assert np.array_equal(second.y, samples)
    assert max(first.x) < min(second.x)
    assert second.marker.symbol == "circle-open"
    assert "the mean of 20 launches of a CUDA graph" in chart.caption
    assert [row["cache"] for row in chart.table] == ["cold"] * 6 + ["warm"] * 6
    assert chart.figure.layout.yaxis.range[0] < samples.min()


def test_a_round_that_is_off_is_marked() -> None:
    steady = records.latency(2.0)
    samples = steady.samples_ms.numpy().copy()
    samples[120:180] *= 1.05
    off = steady.model_copy(update={"samples_ms": Array.of(samples)})
    chart = launches.chart(records.on_gpu(latency=off), LIGHT)
    marks = [shape for shape in chart.figure.layout.shapes if shape.line.color == LIGHT.work_lost]
    assert [(mark.x0, mark.x1) for mark in marks] == [(120.5, 180.5)]
    assert "Orange: a round" in chart.caption
    off_by = np.median(samples[120:180]) / off.median_ms - 1
    assert f"<b>3<br>+{100 * off_by:.0f} %</b>" in words_in(chart.figure)
    assert not any(one.line.color == LIGHT.work_lost for one in launches.chart(records.on_gpu(), LIGHT).figure.layout.shapes)


def test_memory_is_hollow_unless_it_was_measured() -> None:
    background = LIGHT.background
    hollow = memory.chart(records.in_interpreter(), LIGHT).figure.data[2:]
    assert {point.marker.color for point in hollow} == {background}
    filled = [point for point in memory.chart(records.on_gpu(), LIGHT).figure.data[2:] if point.marker.color != background]
    assert [point.y[0] for point in filled] == [65 << 20]


def test_memory_curves_pass_through_this_problem() -> None:
    one = records.on_gpu()
    scores, outputs = memory.chart(one, LIGHT).figure.data[:2]
    here = list(scores.x).index(16384)
    assert scores.y[here] == one.memory.scores_bytes
    assert outputs.y[here] == one.memory.outputs_bytes
    assert scores.y[here + 1] == 4 * scores.y[here]
    assert outputs.y[here + 1] == 2 * outputs.y[here]


def test_memory_readings_that_are_missing_say_why() -> None:
    rows = {row["what"]: row for row in memory.chart(records.in_interpreter(), LIGHT).table}
    assert rows["torch, added by the call"] == {
        "what": "torch, added by the call",
        "size": "–",
        "how": "the interpreter allocates on the CPU",
    }


def test_no_line_crosses_a_stretch_that_was_not_sampled() -> None:
    one = records.on_gpu()
    gaps = [(span.start_s, span.end_s) for span in one.timeline.spans if not span.sampled]
    for series in timeline.chart(one, LIGHT).figure.data:
        for (x0, y0), (x1, y1) in itertools.pairwise(zip(series.x, series.y, strict=True)):
            if None in (x0, y0, x1, y1):
                continue
            assert not any(start < x1 and x0 < end for start, end in gaps)


def test_a_timeline_without_power_draws_the_other_series() -> None:
    one = records.on_gpu()
    without = one.timeline.model_copy(update={"power_w": None, "missing": {"power_w": "not supported"}})
    chart = timeline.chart(one.model_copy(update={"timeline": without}), LIGHT)
    assert len(chart.figure.data) == 2
    assert {"what": "Power", "from": "", "to": "", "reading": "n/a: not supported"} in chart.table
    nothing = without.model_copy(update={"sm_clock_mhz": None, "memory_used_bytes": None})
    assert timeline.chart(one.model_copy(update={"timeline": nothing}), LIGHT) == Absent(timeline.TITLE, "not supported.")


def test_orange_is_what_binds() -> None:
    one = records.on_gpu()
    colors = compiled.chart(one, LIGHT).figure.data[1].marker.color
    assert [color == LIGHT.work_lost for color in colors] == [False, True, False, False]
    spilled = one.model_copy(update={"compiled": (records.report(spill_bytes=64),)})
    assert compiled.chart(spilled, LIGHT).figure.data[1].marker.color[3] == LIGHT.work_lost
    assert isinstance(compiled.chart(records.on_gpu("native"), LIGHT), Absent)


def test_what_was_asked_for_stands_first_among_what_fits() -> None:
    failed = records.failed()
    chart = limits.chart(failed.error, failed.tiles, LIGHT)
    assert [row["needs"] for row in chart.table] == ["544 KiB", "288 KiB", "160 KiB", "96 KiB"]
    assert {row["limit"] for row in chart.table} == {"227 KiB"}
    assert list(chart.figure.data[0].marker.color) == [LIGHT.refused, LIGHT.refused, LIGHT.progress, LIGHT.progress]


def test_an_error_without_numbers_has_no_chart() -> None:
    assert isinstance(limits.chart(JobError(kind="crashed", sentence="The worker ended."), None, LIGHT), Absent)


def test_names_from_files_are_not_markup_in_a_figure() -> None:
    strange = records.on_gpu().model_copy(
        update={"request": records.on_gpu().request.model_copy(update={"kernel": "<a href='javascript:x'>$v$</a>"})}
    )
    figure = versions.chart([strange, records.on_gpu("v2")], "v2", LIGHT).figure
    assert not any(set("<>$") & set(name) for name in figure.layout.yaxis.ticktext)


def test_labels_are_moved_apart_no_more_than_needed() -> None:
    random_ = random.Random(1)
    for _ in range(500):
        wanted = [random_.uniform(0, 100) for _ in range(4)]
        placed = spread(wanted, 15, 0, 100)
        assert all(b - a >= 15 - 1e-9 for a, b in itertools.pairwise(sorted(placed)))
        assert min(placed) >= -1e-9
        assert max(placed) <= 100 + 1e-9
    assert spread([10.0, 50.0, 90.0], 15, 0, 100) == [10.0, 50.0, 90.0]


def test_the_app_imports_neither_torch_nor_triton_nor_nvml_nor_do_figures_import_streamlit() -> None:
    check = (
        "import sys; import app.figures.versions, app.figures.launches, app.figures.memory, app.figures.timeline, "
        "app.figures.compiled, app.figures.limits; assert 'streamlit' not in sys.modules; "
        "import app.state, app.views.run, app.views.gallery; print({'torch', 'triton', 'pynvml'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip().endswith("set()"), done.stdout + done.stderr
