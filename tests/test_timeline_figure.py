"""The timeline's figure: what NVML did not give is a gap and a reason, never a zero; launches and throttling are marked."""

from __future__ import annotations

import itertools
import re

import pytest

from app.figures import timeline as figure
from app.figures.style import DARK, LIGHT, Absent, Chart
from profiling.nvml import Nvml
from profiling.records import LaunchSpan, Measurement, NotedSpan, PhaseSpan, Timeline
from profiling.sampler import SERIES, read, timeline
from tests import records_for_tests as records
from tests.fake_nvml import FakeNvml
from tests.nvml_failures import FAILURES

ZERO = re.compile(r"(?<![\d.,])0 (W|MHz|°C|MiB|GiB|bytes)")
SPANS = (
    PhaseSpan(phase="compile", start_s=0.0, end_s=1.0, sampled=True),
    PhaseSpan(phase="latency", start_s=1.0, end_s=2.0, sampled=False),
    PhaseSpan(phase="energy", start_s=2.0, end_s=4.0, sampled=True),
)


@pytest.fixture
def library(tmp_path, monkeypatch) -> FakeNvml:
    return FakeNvml(tmp_path).load(monkeypatch)


def of(found: Timeline) -> Measurement:
    return records.on_gpu().model_copy(update={"timeline": found})


def moments(library: FakeNvml, uuid: str = "GPU-0", failing: tuple[str, ...] = ()) -> Timeline:
    """Forty moments of a job; NVML fails in two of them."""
    gpu, samples = Nvml.open(uuid), []
    for k in range(40):
        if failing and k in (30, 32):
            library.answer(*(failing if k == 30 else ()))
        sample = read(gpu)
        if not 10 <= k < 20:
            samples.append(sample.__class__(**{**vars(sample), "at": k / 10}))
    launched = (
        LaunchSpan(label="v2", phase="latency", start_s=1.1, end_s=1.4, launches=60),
        LaunchSpan(label="v3 FP8", phase="latency", start_s=1.5, end_s=1.8),
        LaunchSpan(label="v3 FP8", phase="energy", start_s=2.1, end_s=3.9, launches=900),
    )
    return timeline(gpu, samples, 0.0, SPANS, launched)


def lines(chart: Chart) -> dict[str, list[tuple[float, float]]]:
    """The points of each series, by its name; None where the line is broken."""
    return {
        trace.hovertemplate.split(" %")[0]: list(zip(trace.x, trace.y, strict=True))
        for trace in chart.figure.data
        if trace.hovertemplate.startswith(tuple(kind.name for kind in figure.KINDS))
    }


@pytest.mark.parametrize("name", FAILURES)
def test_every_failure_reaches_the_page_as_a_reason_and_never_as_a_zero(library, name):
    failure = FAILURES[name]
    library.answer(*failure.lines)
    found = moments(library, failure.uuid)
    chart = figure.chart(of(found), LIGHT)
    said = [chart.reason] if isinstance(chart, Absent) else [chart.caption, *(row["reading"] for row in chart.table)]
    assert not any(ZERO.search(text) for text in said)
    for reading in set(failure.gone) & set(SERIES):
        assert any(failure.gone[reading] in text for text in said), reading
    if isinstance(chart, Chart):
        drawn = {kind.field for kind in figure.KINDS if kind.name in lines(chart)}
        assert drawn == {field for field in SERIES if getattr(found, field) is not None}
        assert all(value is None or value > 0 for points in lines(chart).values() for _at, value in points)


def test_nothing_is_drawn_where_nvml_did_not_answer(library):
    found = moments(library, failing=("nvmlDeviceGetTemperature 19",))
    (gap,) = found.gaps
    assert (gap.start_s, gap.end_s) == (3.0, 3.1)
    chart = figure.chart(of(found), LIGHT)
    broken = [(1.0, 2.0), (gap.start_s, gap.end_s)]
    for name, points in lines(chart).items():
        for (x0, y0), (x1, y1) in itertools.pairwise(points):
            if None not in (x0, y0, x1, y1):
                assert not any(start <= x1 and x0 <= end for start, end in broken), name
    assert "NVML did not answer (NVML: fake words for 19)" in chart.caption
    (frame,) = [shape for shape in chart.figure.layout.shapes if shape.type == "rect" and shape.line.color == LIGHT.refused]
    assert (frame.x0, frame.x1) == (3.0, 3.1)
    assert {"what": "No answer", "from": "3.00 s", "to": "3.10 s", "reading": gap.words} in chart.table


def test_launches_and_what_held_the_clocks_down_are_marked(library):
    found = moments(library)
    chart = figure.chart(of(found), DARK)
    bars = {trace.customdata[0]: trace for trace in chart.figure.data if trace.line.width == 9}
    assert set(bars) == {
        "v2, timed: 1.10 to 1.40 s, 60 launches", "v3 FP8, timed: 1.50 to 1.80 s", "power cap: 0.00 to 0.90 s",
    }  # fmt: skip
    assert [bar.line.color for bar in bars.values()] == [DARK.v2, DARK.v3, DARK.work_lost]
    fp8 = bars["v3 FP8, timed: 1.50 to 1.80 s"]
    assert [x for x in fp8.x if x is not None] == pytest.approx([1.5, 1.65, 1.8, 2.1, 3.0, 3.9])
    rows = {(row["what"], row["reading"]) for row in chart.table}
    assert ("Launches", "v2, timed: 1 stretch, 60 launches") in rows
    assert ("Clocks held down", "power cap") in rows
    assert chart.figure.layout.height == figure.TOP + figure.BOTTOM + 2 * 20 + 6 * 44 + 7 * 7


def test_held_down_never_is_said_only_where_it_was_read(library):
    library.answer("clock_events 1")
    read_it = figure.chart(of(moments(library)), LIGHT)
    assert {"what": "Clocks held down", "from": "", "to": "", "reading": "never, at any reading"} in read_it.table
    library.answer("nvmlDeviceGetCurrentClocksEventReasons 3", "nvmlDeviceGetCurrentClocksThrottleReasons 3")
    not_read = figure.chart(of(moments(library)), LIGHT)
    assert not any("Held down" in (note.text or "") for note in not_read.figure.layout.annotations)
    assert "n/a: Clocks held down (this device does not give it)" in not_read.caption
    old = figure.chart(records.on_gpu(), LIGHT)
    assert "held down" not in old.caption.lower()
    assert not any(row["what"] == "Clocks held down" for row in old.table)


def test_foreign_words_are_text(library):
    hostile = "<b>a</b> $x$"
    found = moments(library).model_copy(
        update={
            "throttled": (NotedSpan(words=hostile, start_s=0.0, end_s=0.5),),
            "launched": (LaunchSpan(label=hostile, phase="memory", start_s=0.0, end_s=0.5),),
        }
    )
    drawn = figure.chart(of(found), LIGHT).figure.to_json()
    assert "<b>a" not in drawn
    assert "$x$" not in drawn
