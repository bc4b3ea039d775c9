"""A sweep's figures: the map, parallel coordinates, time over seq_len, the ladder; their numbers are those of the records."""

from __future__ import annotations

import math

import numpy as np
import pytest

from app import ladder_rungs, sweep_shown, sweep_tables
from app.figures import cells, ladder, parallel, scaling, sweep_map
from app.figures.style import DARK, LIGHT, Absent, Chart, Palette
from app.sweep_shown import Shown
from kernels.problem import AttentionProblem
from profiling import words
from profiling.records import DeviceFacts, Latency, Measurement
from profiling.snapshot import read
from profiling.sweep_ranking import ranking
from profiling.sweep_record import Series, Sweep, SweepState
from tests import made_up_sweeps as sweeps
from tests import records_for_tests as records
from tests.test_how_taken import unexplained


@pytest.fixture(scope="module")
def whole() -> Sweep:
    """Three lengths, causal and not, with finals; at 1k one crashed, one is wrong, one does not compile."""
    return sweeps.with_finals(sweeps.swept(changed={0: sweeps.crashed, 9: sweeps.wrong, 17: sweeps.not_compiled}))


def shown(sweep: Sweep, series: Series | None = None) -> Shown:
    series = series or sweep.plan.series[0]
    return Shown(sweep, series, ranking(sweep, series))


def notes_of(chart: Chart) -> list[str]:
    return [one.text for one in chart.figure.layout.annotations]


# The map


def test_every_place_holds_the_fastest_of_its_warps_and_stages(whole: Sweep) -> None:
    one = shown(whole)
    for spot in one.spots:
        times = [outcome.median_ms for _, outcome in spot.pairs if outcome.median_ms is not None]
        assert not times or spot.outcome.median_ms == min(times)
    assert sum(len(spot.pairs) for spot in one.spots) == len(one.pairs)
    drawn = notes_of(sweep_map.chart(one, None, LIGHT))
    best = next(spot for spot in one.spots if one.best[0].key in {cell.key for cell, _ in spot.pairs})
    assert f"<b>{words.three_digits(sweep_shown.tflops(best.pairs[0]))}</b>" in drawn
    assert {"best", "default", "article"} <= {name for text in drawn for name in text.split(" · ")}


def test_what_cannot_run_is_hatched_and_says_how_much_it_needs(whole: Sweep) -> None:
    one = shown(whole, next(series for series in whole.plan.series if series.problem.seq_len_q == 16384))
    chart = sweep_map.chart(one, None, LIGHT)
    too_large = [spot for spot in one.spots if spot.outcome.reason == "shared memory"]
    assert [(spot.block_m, spot.block_n) for spot in too_large] == [(32, 512)]
    assert f"<b>{words.kib(too_large[0].outcome.needs_bytes)}</b>" in notes_of(chart)
    assert "over 227" in notes_of(chart)
    hatching = dict(
        zip([(spot.block_m, spot.block_n) for spot in one.spots], chart.figure.data[0].marker.pattern.shape, strict=True)
    )
    assert {at for at, shape in hatching.items() if shape} == {(32, 512)}


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_every_ending_has_its_own_words_and_can_be_read(palette: Palette) -> None:
    asked = sweeps.plan(problems=sweeps.plan().problems[:1], block_m=(64, 128), num_warps=(8,), num_stages=(3,), finalists=0)
    of_places = {spot: place for place, spot in enumerate(_sizes(sweeps.swept(asked)))}
    alone = [place for spot, place in of_places.items() if _sizes(sweeps.swept(asked)).count(spot) == 1]
    found = sweeps.swept(asked, changed={alone[0]: sweeps.crashed, alone[1]: sweeps.wrong, alone[2]: sweeps.not_compiled})
    one = shown(found)
    chart = sweep_map.chart(one, one.first(), palette)
    assert {"<b>crashed</b>", "<b>WRONG</b>", "<b>no compile</b>"} <= set(notes_of(chart))
    shapes = [shape for shape in chart.figure.data[0].marker.pattern.shape if shape]
    assert len(shapes) == len(set(shapes)) == 4  # and the article's, which needs too much shared memory
    for spot in one.spots:
        fill, _, ink = sweep_map._drawn(one, spot, palette)
        assert cells.contrast(fill, ink) >= 4.5


def _sizes(sweep: Sweep) -> list[tuple[int, int]]:
    return [(cell.tiles.block_m, cell.tiles.block_n) for cell in sweep.cells]


def test_while_it_fills_places_wait_and_say_how_many(whole: Sweep) -> None:
    running = SweepState(status="running", phase="screening", done=0, total=1)
    begun = sweeps.swept(state=running, until=20)
    one = shown(begun)
    drawn = notes_of(sweep_map.chart(one, None, LIGHT))
    assert "…" in drawn
    assert any(" timed" in text for text in drawn)
    assert sum(text == "…" for text in drawn) == sum(not any(o.is_over for _, o in spot.pairs) for spot in one.spots)
    busy = begun.model_copy(update={"state": running.model_copy(update={"running": (begun.cells[20].key,)})})
    assert sweep_shown.word(shown(busy), (busy.cells[20], busy.outcomes[20])) == "now"


def test_an_interpreted_sweep_shows_what_was_right_and_colours_nothing_by_time() -> None:
    one = shown(sweeps.swept(sweeps.tiny_plan()))
    chart = sweep_map.chart(one, None, LIGHT)
    assert chart.provenance == "interpreted"
    assert "say nothing of a GPU" in chart.caption
    assert set(chart.figure.data[0].marker.color) == {LIGHT.band}
    assert [text for text in notes_of(chart) if text == "<b>correct</b>"] == ["<b>correct</b>"] * len(one.spots)
    assert all(row["TFLOP/s"] == "–" for row in chart.table)
    assert sweep_shown.headline(one) == "v2 at 64 tokens: All 7 outputs that were computed are correct"
    for drawn in (parallel.chart(one, {}, LIGHT), scaling.chart([one], one, LIGHT)):
        assert isinstance(drawn, Absent)


def test_every_number_in_the_tables_says_how_it_was_taken(whole: Sweep) -> None:
    one = shown(whole)
    of_lengths = [shown(whole, series) for series in sweep_shown.alike(whole, one.series, ("tokens",))]
    for chart in (sweep_map.chart(one, None, LIGHT), parallel.chart(one, {}, LIGHT), scaling.chart(of_lengths, one, LIGHT)):
        assert unexplained(chart) == [], chart.title
        assert chart.caption.endswith(".")


# Ranking and recommendation


def test_the_tables_follow_the_ranking(whole: Sweep) -> None:
    one = shown(whole)
    rows = sweep_tables.ranked(one)
    assert [row["rank"] for row in rows] == [str(row.rank) for row in one.ranking.rows]
    assert rows[0]["behind"] == "1.000×"
    of_lengths = [shown(whole, series) for series in sweep_shown.alike(whole, one.series, ("tokens",))]
    recommended = sweep_tables.recommended(of_lengths)
    assert [row["tokens"] for row in recommended] == ["1,024", "4,096", "16,384"]
    assert [row["the article’s"] for row in recommended] == ["64 × 256", "64 × 256", "32 × 512"]
    assert recommended[2]["its TFLOP/s"] == "shared memory"
    assert sweep_tables.in_words(of_lengths).endswith(" tokens.")


def test_the_headline_says_the_best_and_what_it_wins(whole: Sweep) -> None:
    one = shown(whole)
    said = sweep_shown.headline(one)
    assert one.best[0].title in said
    assert f"{words.three_digits(sweep_shown.tflops(one.best))} TFLOP/s" in said
    assert f"{words.ratio(one.ranking.over_default.ratio)} the default" in said


# Parallel coordinates


def test_a_line_crosses_each_axis_where_its_value_is(whole: Sweep) -> None:
    one = shown(whole)
    timed = sorted((pair for pair in one.pairs if sweep_shown.tflops(pair) is not None), key=sweep_shown.tflops)
    axes = parallel._axes(timed)
    assert [axis.name for axis in axes] == ["BLOCK_M", "BLOCK_N", "warps", "stages", "shared, KiB", "spills, bytes", "TFLOP/s"]
    by_name = {axis.name: axis for axis in axes}
    low, high = (sweep_shown.tflops(timed[place]) for place in (0, -1))
    for row, (cell, outcome) in enumerate(timed):
        share = (sweep_shown.tflops((cell, outcome)) - low) / (high - low)
        assert math.isclose(by_name["TFLOP/s"].heights[row], share, abs_tol=1e-9)
        heights = [height for height, text in by_name["BLOCK_N"].ticks if text == str(cell.tiles.block_n)]
        assert abs(by_name["BLOCK_N"].heights[row] - heights[0]) <= parallel._SPREAD / 2 + 1e-9


def test_lines_that_are_not_picked_are_grey_and_leave_the_table(whole: Sweep) -> None:
    one = shown(whole)
    assert parallel.choices(one)["BLOCK_N 32"] == ("BLOCK_N", 32)
    every, some = (parallel.chart(one, only, LIGHT) for only in ({}, {"BLOCK_N": 32, "warps": 8}))
    assert {row["BLOCK_N"] for row in some.table} == {"32"}
    assert {row["warps"] for row in some.table} == {"8"}
    assert len(some.table) < len(every.table) == len(one.ranking.rows)
    grey = next(trace for trace in some.figure.data if trace.line.color == LIGHT.track)
    assert len([y for y in grey.y if y is None]) > 0
    assert not [trace for trace in every.figure.data if trace.line.color == LIGHT.track]


# Time over seq_len


def test_guides_are_dashed_modelled_and_start_where_the_fastest_does(whole: Sweep) -> None:
    one = shown(whole)
    found = [shown(whole, series) for series in sweep_shown.alike(whole, one.series, ("tokens", "version", "format"))]
    chart = scaling.chart(found, one, LIGHT)
    n, n_squared, best, *_ = chart.figure.data
    assert (n.line.dash, n_squared.line.dash) == ("dash", "dash")
    assert n.y[0] == n_squared.y[0] == best.y[0]
    assert math.isclose(n.y[1] / n.y[0], 16)
    assert math.isclose(n_squared.y[1] / n_squared.y[0], 256)
    assert "N², modelled" in notes_of(chart)
    assert list(best.x) == [1024, 4096, 16384]
    assert list(best.y) == [one.best[1].median_ms for one in sorted(found, key=lambda it: it.series.problem.seq_len_q)]
    assert chart.figure.layout.xaxis.type == chart.figure.layout.yaxis.type == "log"


def test_the_exponent_is_the_slope_on_the_logarithms() -> None:
    lines = scaling.lines_of(*_of_lengths(sweeps.swept()))
    xs = [math.log(n) for n, _ in lines[0].points]
    ys = [math.log(pair[1].median_ms) for _, pair in lines[0].points]
    assert math.isclose(scaling.exponent(lines[0]), float(np.polyfit(xs, ys, 1)[0]), rel_tol=1e-9)


def _of_lengths(sweep: Sweep) -> tuple[list[Shown], Shown]:
    one = shown(sweep)
    return [shown(sweep, series) for series in sweep_shown.alike(sweep, one.series, ("tokens",))], one


def test_one_length_has_no_curve() -> None:
    one = shown(sweeps.swept(sweeps.plan(problems=sweeps.plan().problems[:1])))
    assert isinstance(scaling.chart([one], one, LIGHT), Absent)


# The ladder

H200 = records.gpu()
AMPERE = H200.model_copy(update={"capability": 80, "name": "NVIDIA A100"})
CAUSAL = AttentionProblem(seq_len_q=4096, seq_len_kv=4096, head_dim=128, causal=True)


@pytest.mark.parametrize("device", [H200, AMPERE], ids=["H200", "A100"])
@pytest.mark.parametrize("causal", [True, False])
def test_the_rungs_fit_into_one_job_and_what_cannot_run_says_why(device: DeviceFacts, causal: bool) -> None:
    rungs = ladder_rungs.rungs(CAUSAL.model_copy(update={"causal": causal}), "bf16", device)
    names = [rung.name for rung in rungs if rung.request is not None]
    assert names[:3] == ["v1 key-outer", "v1 query-outer", "v2, natural order"]
    assert ("v2, heaviest first" in names) == causal
    assert ("v3-hopper" in names) == ("v3-hopper FP8" in names) == (device.capability == 90)
    assert all(rung.why_not for rung in rungs if rung.request is None)
    assert len({request.tiles for request in ladder_rungs.requests(rungs) if request.kernel == "v2"}) == 1 + causal
    assert {request.problem for request in ladder_rungs.requests(rungs)} == {rungs[0].request.problem}


def test_the_interpreter_has_no_ladder() -> None:
    with pytest.raises(ValueError, match="say nothing of a GPU"):
        ladder_rungs.rungs(CAUSAL, "bf16", records.interpreter())


TIMES = {"v1 key-outer": 34.0, "v1 query-outer": 1.7, "v2, natural order": 0.63, "v2, heaviest first": 0.6, "v3": 0.66}


def climbed(times: dict[str, float]) -> tuple[tuple[ladder_rungs.Step, ...], tuple[ladder_rungs.Rung, ...]]:
    """The ladder with these made-up times; a rung without one did not run."""
    return ladder_rungs.climbed(
        [(rung, _measured(rung, times.get(rung.name))) for rung in ladder_rungs.rungs(CAUSAL, "bf16", H200)]
    )


def _measured(rung: ladder_rungs.Rung, ms: float | None) -> Measurement | None:
    if ms is None or rung.request is None:
        return None
    return records.on_gpu(
        rung.request.kernel, request=rung.request, tiles=rung.request.tiles, latency=_latency(ms), with_prepass=None
    )


def _latency(ms: float) -> Latency:
    return records.latency(ms, rounds=10, a_round=12)


def test_a_rung_that_makes_it_slower_is_shown_so_and_one_that_did_not_run_is_left_out() -> None:
    steps, left_out = climbed(TIMES)
    assert [step.rung.name for step in steps] == list(TIMES)
    assert [step.against.word for step in steps[1:]] == ["FASTER", "FASTER", "FASTER", "SLOWER"]
    assert [rung.name for rung in left_out] == ["v3-hopper", "v3-hopper FP8"]
    chart = ladder.chart(steps, left_out, LIGHT)
    bars = chart.figure.data[0]
    assert list(bars.marker.color) == [LIGHT.track, *[LIGHT.progress] * 3, LIGHT.work_lost]
    for place, step in enumerate(steps[1:], 1):
        low, high = sorted((steps[place - 1].median_ms, step.median_ms))
        assert math.isclose(bars.base[place], low)
        assert math.isclose(bars.base[place] + bars.x[place], high)
    assert "Left out: v3-hopper (it did not run)" in chart.caption
    assert unexplained(chart) == []
    assert words.milliseconds(steps[-1].median_ms) in notes_of(chart)
    assert "v3 made it slower" in ladder.title(steps)


def test_a_wrong_rung_has_no_step() -> None:
    rungs = ladder_rungs.rungs(CAUSAL, "bf16", H200)
    wrong = records.on_gpu("v1", passed=False, request=rungs[1].request, tiles=rungs[1].request.tiles)
    steps, left_out = ladder_rungs.climbed([(rungs[0], _measured(rungs[0], 34.0)), (rungs[1], wrong)])
    assert [one.why_not for one in left_out] == ["its output is wrong, and a wrong output has no speed"]
    assert isinstance(ladder.chart(steps, left_out, LIGHT), Absent)


def test_a_recording_s_ladder_has_its_own_times() -> None:
    from app.state.found import GALLERY

    found = read((GALLERY / "09-v1-loop-orders.json").read_bytes())
    steps, left_out = ladder_rungs.climbed(ladder_rungs.recorded(found.measurements))
    assert [step.rung.name for step in steps] == ["v1 key-outer", "v1 query-outer", "v2, natural order", "v3"]
    by_label = {one.label: one.latency.median_ms for one in found.measurements}
    assert [step.median_ms for step in steps] == [by_label[name] for name in ("v1 key-outer", "v1", "v2", "v3")]
    assert {rung.why_not for rung in left_out} == {"the recording does not have it"}
