"""The FP8 microscope: what its figures draw and its sentences say is what the records and the study hold."""

from __future__ import annotations

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from app import state
from app.figures import microscope, other_scales
from app.figures.style import DARK, LIGHT, Absent, Chart
from app.html_page import page_of
from app.player import choices
from app.player.choices import Choices
from kernels.problem import AttentionProblem, Precision
from profiling import words
from profiling.fp8_study import SCALES, Scheme, study
from profiling.records import Measurement
from profiling.snapshot import Snapshot
from profiling.trace_record import Fp8Errors
from tests import records_for_tests as records
from tests.fake_queue import FakeQueue
from tests.traces_for_tests import traced

FP8 = traced("v3", fp8=True)
RAGGED = AttentionProblem(num_heads=1, num_kv_heads=1, seq_len_q=70, seq_len_kv=100, head_dim=16, causal=True)
BLIND = AttentionProblem(num_heads=1, num_kv_heads=1, seq_len_q=96, seq_len_kv=32, head_dim=16, causal=True)
SMALL_STUDY = study("outliers", 64, 32)
TREATMENTS = tuple(other_scales.TREATMENTS)


def with_shares(qk: float, pv: float, accumulation: float, accumulation_error: float = 1.5e-7) -> Fp8Errors:
    """A record with these shares of an error of 2.6 %."""
    found = FP8.tiles_trace.fp8_errors
    shares = {"qk": qk, "pv": pv, "accumulation": accumulation}
    parts = {name: getattr(found, name).model_copy(update={"share": share}) for name, share in shares.items()}
    parts["accumulation"] = parts["accumulation"].model_copy(update={"error": accumulation_error})
    return Fp8Errors(**dict(found) | parts | {"whole": found.whole.model_copy(update={"error": 0.026})})


def without_errors() -> Measurement:
    trace = FP8.tiles_trace.model_copy(update={"fp8_errors": None})
    return FP8.model_copy(update={"tiles_trace": trace})


# Words


def test_the_headline_names_the_largest_part_and_its_share():
    said = microscope.headline(with_shares(0.92, 0.08, 0.0))
    assert said.startswith("Of the 2.60 % error of O, 92 % comes from rounding Q and K and 8 % from rounding P and V;")
    assert "add 1.5e−7, no more than float32 rounds off." in said
    assert "83 % comes from rounding P and V and 17 % from rounding Q and K" in microscope.headline(
        with_shares(0.17, 0.83, 0.0)
    )


def test_the_headline_does_not_call_a_coarse_sum_float32():
    coarse = microscope.headline(with_shares(0.6, 0.4, 0.0, 1.2e-4))
    assert coarse.endswith("the kernel’s own sums add 1.2e−4.")
    worst = microscope.headline(with_shares(0.1, 0.05, 0.85, 0.024))
    assert worst == "Of the 2.60 % error of O, 85 % comes from the kernel’s own sums and 10 % from rounding Q and K."


def test_an_error_of_nothing_is_said_as_that():
    found = traced("v3", BLIND, 32, fp8=True, query_block=0).tiles_trace.fp8_errors
    assert microscope.headline(found) == "FP8 costs this block nothing: O is exact."
    assert [value for _, value, _, _ in microscope.numbers(found, Precision(fp8=True))] == ["0", "0", "0", "0"]


def test_the_numbers_are_the_records():
    found = FP8.tiles_trace.fp8_errors
    values = {label: (value, notes) for label, value, notes, _ in microscope.numbers(found, Precision(fp8=True))}
    assert values["Error of O"][0] == microscope.percent(found.whole.error)
    assert values["From Q and K"] == (
        microscope.percent(found.qk.error),
        f"{100 * found.qk.share:.0f} % of the error".replace("-0 ", "0 ").replace("-", "−"),
    )
    assert microscope.percent(0.0488) == "4.88 %"
    assert microscope.percent(2e-4) == "2.0e−4"


def test_values_at_the_limit_are_counted_and_clipped_ones_named():
    found = FP8.tiles_trace.fp8_errors
    assert f"Q {found.q.at_limit:,} of {found.q.values:,}" in microscope.limit_words(found, Precision(fp8=True))
    assert "None was clipped" in microscope.limit_words(found, Precision(fp8=True))
    assert "block of 64 tokens" in microscope.limit_words(found, Precision(fp8=True, fp8_scale="block"))
    worse = found.model_copy(update={"v": found.v.model_copy(update={"at_limit": 9, "clipped": 7})})
    assert "Clipped, as they were larger than what rounds to 448: 7 of V." in microscope.limit_words(worse, Precision(fp8=True))


# Figures


@pytest.mark.parametrize("part", microscope.PARTS)
@pytest.mark.parametrize("problem", [None, RAGGED])
def test_the_map_is_the_record_by_row_and_tile(problem, part):
    measurement = FP8 if problem is None else traced("v3", problem, fp8=True)
    trace = measurement.tiles_trace
    drawn = microscope.heat_map(trace, part, LIGHT)
    by_tile = getattr(trace.fp8_errors, part).by_tile.numpy()
    np.testing.assert_array_equal(np.nan_to_num(drawn.figure.data[0].z), by_tile.T)
    assert list(drawn.figure.data[0].x) == [block + 1 for block in trace.key_blocks.numpy()]
    assert drawn.provenance == trace.provenance
    assert drawn.figure.data[0].zmax == pytest.approx(float(by_tile.max()) or 1.0)
    assert [row["largest"] for row in drawn.table] == [microscope.percent(float(most)) for most in by_tile.max(1)]
    assert microscope.heat_map(trace, part, DARK).figure.data[0].colorscale != drawn.figure.data[0].colorscale


def test_the_lines_are_the_parts_over_the_tiles_and_the_largest_stands_out():
    trace = FP8.tiles_trace
    drawn = microscope.by_tile(trace, LIGHT)
    sizes = {}
    for line, name in zip(drawn.figure.data, ("qk", "pv", "accumulation"), strict=True):
        rms = np.sqrt((getattr(trace.fp8_errors, name).by_tile.numpy().astype(float) ** 2).mean(1))
        np.testing.assert_allclose(np.nan_to_num(line.y), rms, rtol=1e-12)
        sizes[line.line.color] = max(sizes.get(line.line.color, 0.0), float((rms**2).sum()))
    assert sizes[LIGHT.work_lost] > sizes[LIGHT.muted]
    assert [row["K at ±448"] for row in drawn.table] == [f"{count:,}" for count in trace.fp8_errors.k.by_tile.numpy()]


def test_a_trace_without_it_says_so_and_a_sampled_one_too():
    bare = without_errors().tiles_trace
    for drawn in (microscope.heat_map(bare, "whole", LIGHT), microscope.by_tile(bare, LIGHT)):
        assert isinstance(drawn, Absent)
        assert "trace the block again" in drawn.reason
    sampled = traced("v3", fp8=True, every=2).tiles_trace
    assert "One tile in 2 is stored" in microscope.heat_map(sampled, "whole", LIGHT).caption
    nothing = traced("v3", BLIND, 32, fp8=True, query_block=0).tiles_trace
    assert isinstance(microscope.by_tile(nothing, LIGHT), Absent)
    assert isinstance(microscope.heat_map(nothing, "whole", LIGHT), Chart)


def test_the_grid_holds_the_studys_numbers_and_frames_ones_own():
    own = Scheme("token", smooth_k=True)
    drawn = other_scales.chart(SMALL_STUDY, SCALES, TREATMENTS, own, LIGHT)
    written = {(note.x, note.y): note.text for note in drawn.figure.layout.annotations}
    for row, scale in enumerate(SCALES):
        for column, treatment in enumerate(TREATMENTS):
            assert written[column, row] == words.error(SMALL_STUDY.rmse[Scheme(scale, *treatment)])
    (frame,) = drawn.figure.layout.shapes
    assert ((frame.x0 + frame.x1) / 2, (frame.y0 + frame.y1) / 2) == (TREATMENTS.index((False, True)), SCALES.index("token"))
    assert drawn.provenance == "modelled"
    shade = np.array(drawn.figure.data[0].z)
    assert shade.min() == 0.0, "the smallest of those shown"


def test_what_is_switched_off_is_not_drawn():
    own = Scheme("token", smooth_k=True)
    drawn = other_scales.chart(SMALL_STUDY, ("tensor", "127"), ((False, False),), own, LIGHT)
    assert len(drawn.figure.layout.annotations) == 2
    assert not drawn.figure.layout.shapes, "what is not in cannot be framed"
    assert [row["Q and K"] for row in drawn.table] == ["per tensor", "127 for 448"]
    assert isinstance(other_scales.chart(SMALL_STUDY, (), TREATMENTS, own, LIGHT), Absent)


# The page


@pytest.fixture
def fp8_page(monkeypatch: pytest.MonkeyPatch) -> AppTest:
    return opened(monkeypatch, FP8)


def opened(monkeypatch: pytest.MonkeyPatch, measurement: Measurement) -> AppTest:
    """The Softmax page on the default problem of a version, whose trace is there."""
    label = measurement.label
    (request,) = Choices.of({**choices.DEFAULTS, "version": label}).requests()
    monkeypatch.setattr(state, "job_queue", lambda: FakeQueue((records.interpreter(),)))
    monkeypatch.setattr(state, "first_traces", lambda: (measurement.model_copy(update={"request": request}),))
    page = AppTest.from_function(_script, default_timeout=120)
    page.query_params["version"] = label
    page.run()
    assert not page.exception
    return page


def _script() -> None:
    from app import look
    from app.views import softmax

    look.style()
    softmax.page()


def shown(page: AppTest) -> str:
    return "\n".join(element.proto.body for element in page.get("html") if "<style>" not in element.proto.body)


def charts(page: AppTest) -> list[str]:
    return [element.proto.spec for element in page.get("plotly_chart")]


def test_the_page_says_what_fp8_costs_and_what_other_scales_would_do(fp8_page: AppTest):
    said = shown(fp8_page)
    assert microscope.headline(FP8.tiles_trace.fp8_errors) in said
    assert "What other scales would do" in said
    for title in ("Normal data", "Outliers", "A bias on K’s channels", "Where the error of O comes in"):
        assert title in said


def test_switches_change_the_map_and_the_grids(fp8_page: AppTest):
    fp8_page.segmented_control(key=state.FP8_PART_KEY).set_value("pv").run()
    assert "Where the error of O comes in: P and V" in shown(fp8_page)
    before = charts(fp8_page)
    fp8_page.toggle(key=state.STUDY_HADAMARD_KEY).set_value(False).run()
    assert not fp8_page.exception
    assert charts(fp8_page) != before
    fp8_page.pills(key=state.STUDY_SCALES_KEY).set_value([]).run()
    assert "no scale is in." in shown(fp8_page)


def test_other_versions_have_no_microscope(monkeypatch: pytest.MonkeyPatch):
    said = shown(opened(monkeypatch, traced("v2")))
    assert "What FP8 costs" not in said
    assert "What other scales" not in said


def test_a_trace_that_was_stored_without_it_can_be_traced_again(monkeypatch: pytest.MonkeyPatch):
    said = shown(opened(monkeypatch, without_errors()))
    assert microscope.NOT_TAKEN in said
    assert "What other scales would do" in said


def test_the_exported_page_shows_it():
    snapshot = Snapshot(title="x", created_at="2026-01-01T00:00:00+00:00", measurements=(FP8, traced("v2")))
    page = page_of(snapshot).decode()
    assert page.count("What FP8 costs query block 7 of head 0") == 1
    assert microscope.headline(FP8.tiles_trace.fp8_errors) in page
    assert "What FP8 costs" not in page_of(snapshot.model_copy(update={"measurements": (traced("v2"),)})).decode()
