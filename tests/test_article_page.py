"""The Article page without a browser: whose numbers it shows, what it says where there are none, a run from the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app import article_shown, state
from app.figures import article as figure
from app.figures.style import DARK, LIGHT, Palette
from app.views import run_metrics
from kernels.problem import Precision
from profiling.article import CLAIMS, FACTS, TABLE, Run, the_suite
from profiling.feasibility import ARTICLE, Grid, cell, compiled, too_much_shared_memory
from profiling.feasibility_cache import FeasibilityCache
from profiling.feasibility_map import FeasibilityMaps
from profiling.store import Query, Store
from tests import article_runs as made_up
from tests import records_for_tests as records
from tests.fake_queue import FakeQueue


@pytest.fixture(autouse=True)
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeQueue:
    """A queue without a GPU, an empty store and gallery, nothing compiled."""
    maps, store, made = FeasibilityMaps(), Store(str(tmp_path / "store.sqlite3")), FakeQueue((records.interpreter(),))
    (tmp_path / "gallery").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(state, "GALLERY", tmp_path / "gallery")
    monkeypatch.setattr(state, "feasibility_maps", lambda: maps)
    monkeypatch.setattr(state, "job_queue", lambda: made)
    monkeypatch.setattr(state, "store", lambda: store)
    yield made
    store.close()


def article_page(**address: str) -> AppTest:
    page = AppTest.from_function(_script, default_timeout=60)
    for name, value in address.items():
        page.query_params[name] = value
    page.run()
    assert not page.exception
    return page


def _script() -> None:
    import streamlit as st

    from app import state
    from app.views import article, gallery, run, snapshots

    views = {"article": article, "gallery": gallery, "run": run, "snapshots": snapshots}
    pages = {name: st.Page(view.page, title=name, url_path=name, default=name == "article") for name, view in views.items()}
    st.navigation(state.register_pages(pages), position="hidden").run()


def said(page: AppTest) -> str:
    return " ".join(one.proto.body for one in page.get("html"))


def title(page: AppTest) -> str:
    return next(one.proto.body for one in page.get("html") if "<h1" in one.proto.body)


def record(folder: Path, snapshots: tuple, names: Callable[[int], str] = "{:02}-made-up".format) -> None:
    for place, one in enumerate(snapshots):
        (folder / f"{names(place)}.json").write_bytes(one.document)


def links(page: AppTest) -> list[str]:
    return [one.proto.label for one in page.get("page_link")]


# Whose numbers


def test_without_a_measurement_nothing_is_shown_as_measured():
    page = article_page()
    assert f"The article’s {len(CLAIMS)} claims: none of {len(CLAIMS)} is measured yet" in title(page)
    text = said(page)
    assert "Nothing is measured yet." in text
    assert text.count('<td class="fs-missing" colspan="3">not measured</td>') == 2 * len(TABLE)
    assert text.count("not measured</td>") == 2 * len(TABLE) + len(CLAIMS)
    assert not [word for word in ("holds</td>", "does not hold</td>", "H200, L2") if word in text]
    assert links(page) == []
    spec = json.loads(page.get("plotly_chart")[0].proto.spec)
    assert {trace["marker"]["symbol"] for trace in spec["data"]} == {"circle-open"}
    for one in TABLE:
        assert f'<td class="fs-claimed">{one.ms[1024]:.2f} ms</td>' in text


def test_the_gallery_s_recordings_of_its_problems_are_shown_where_there_is_no_run():
    record(state.GALLERY, tuple(one.model_copy(update={"tags": ()}) for one in made_up.run([1024, 16384])))
    (state.GALLERY / "other.json").write_bytes(records.recording().document)
    page = article_page()
    assert "on H200: " in title(page)
    assert "Recordings that ship with FlashScope: 2 of 5 problems; 512, 4k, 32k tokens not run." in said(page)
    assert links(page) == ["Open 1k", "Open 16k"]
    assert "v2 2.00 ms" in said(page)


def test_what_ran_with_several_tiles_is_told_apart_where_recordings_are_listed():
    (one,) = made_up.run([512])
    names = [part.rsplit(" ", 1)[0] for part in run_metrics.speeds(one.measurements).removesuffix(" TFLOP/s").split(" · ")]
    assert len(set(names)) == len(one.measurements) == 7
    assert "v2 32×512·w8" in " ".join(names)


def test_a_recorded_run_needs_nothing_but_its_files_and_the_newest_counts():
    record(state.GALLERY, made_up.run(change=lambda name, cell, one: made_up.measured(name, cell, 77.0)))
    newer = made_up.run(began="2026-12-01T09:00:00+00:00")
    record(state.GALLERY, newer, "1{}-newer".format)
    page = article_page()
    assert "5 of 5 problems. NVIDIA H200" in said(page)
    assert "77.0 ms" not in said(page)
    assert len(links(page)) == len(the_suite().cells)


def test_a_kept_run_comes_before_the_recordings_and_can_be_left_for_them():
    record(state.GALLERY, made_up.run(change=lambda name, cell, one: made_up.measured(name, cell, 77.0)))
    for one in made_up.run(began="2026-12-01T09:00:00+00:00"):
        state.store().save(one, "me")
    page = article_page()
    assert "Saved run of 1 Dec 2026, 09:00: 5 of 5 problems" in said(page)
    assert "77.0 ms" not in said(page)
    chooser = page.selectbox(key=state.ARTICLE_FROM_KEY)
    chooser.set_value("recordings").run()
    assert "77.0 ms" in said(page)


def test_an_imported_run_says_so_and_foreign_words_stay_words():
    def hostile(name, cell, one):
        if name == "v2":
            return made_up.failed(one, "launch", "<script>alert(1)</script> broke.")
        device = one.environment.device.model_copy(update={"name": "NVIDIA <b>H200</b>"})
        return one.model_copy(update={"environment": one.environment.model_copy(update={"device": device})})

    for one in made_up.run(change=hostile):
        changed = one.model_copy(update={"tags": (*one.tags, "article-99999999-999999")})
        state.store().save(changed, "me", "imported")
    page = article_page()
    assert "Imported run" in said(page)
    assert "<script>" not in said(page)
    assert "&lt;b&gt;H200" in title(page)


def test_a_wrong_output_is_WRONG_in_its_row_and_decides_nothing():
    record(state.GALLERY, made_up.run(change=lambda name, cell, one: made_up.wrong(one) if name == "v3" else one))
    text = said(article_page())
    assert text.count(">WRONG</td>") == 2
    assert "v3 at 16,384 tokens has no time: " in text


def test_what_the_article_s_own_code_does_stands_there_as_no_measurement_of_ours():
    text = said(article_page())
    for sentence in FACTS:
        assert sentence.replace("'", "&#x27;") in text
    assert "launches no head axis" in text
    assert "no part of FlashScope" in text


# The chart


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_claims_are_rings_and_measurements_dots(palette: Palette):
    drawn = figure.chart(Run.of(made_up.run()), palette)
    marks = [trace for trace in drawn.figure.data if trace.mode == "markers"]
    rings = [trace.x[0] for trace in marks if trace.marker.symbol == "circle-open"]
    dots = [trace.x[0] for trace in marks if trace.marker.symbol is None]
    assert sorted(rings) == sorted(ms for one in TABLE for ms in one.ms.values())
    expected = [made_up.ms_of(one.version, length) for one in TABLE for length in one.ms]
    assert sorted(dots) == pytest.approx(sorted(expected), rel=0.01)
    assert {trace.marker.color for trace in marks if trace.marker.symbol == "circle-open"} == {palette.muted}


# The block sizes


def kept(capability: int) -> None:
    for advice in ARTICLE:
        grid = article_shown.pair_grid(advice, capability)
        for place in grid.places:
            wide = advice.block_n == 512
            spill = {128: 0, 256: 136}.get(advice.block_n, 0)
            found = (
                too_much_shared_memory(grid, place, 130 << 10) if wide
                else compiled(grid, place, records.report(grid.capability, spill_bytes=spill))
            )  # fmt: skip
            FeasibilityCache(grid).put(found)


def test_pairs_that_were_compiled_say_what_stops_them_and_the_others_can_be():
    page = article_page()
    assert page.button(key="article_compile").label == "Compile the 24 settings"
    kept(89)
    page = article_page()
    assert page.button(key="article_compile").label == "Compile the 12 settings"
    text = said(page)
    assert "sm_89 · RTX 4090" in text
    assert '<span class="fs-holds">fits</span> with 4 of 4 settings' in text
    assert '<span class="fs-fails">spills</span> 136 bytes a thread at least' in text
    assert "It needs 130 KiB of shared memory; a program on sm_89 has 99 KiB." in text


def test_of_a_pair_the_setting_that_comes_furthest_counts():
    grid: Grid = article_shown.pair_grid(ARTICLE[0], 90)
    first, second, *rest = grid.places
    cells = {first: compiled(grid, first, records.report(spill_bytes=8)), second: compiled(grid, second, records.report())}
    cells |= {place: cell(place, "time limit", "It took too long.") for place in rest}
    found = article_shown.compiled_pair(grid, cells)
    assert (found.word, f"{second.num_warps} warps" in found.sentence) == ("fits", True)
    assert article_shown.compiled_pair(grid, {first: cells[first]}).word == "not compiled"


# A run from the page


def test_without_a_gpu_there_is_the_command_and_no_button():
    page = article_page()
    assert "python -m profiling bench article --save" in [one.value for one in page.code]
    assert not [one for one in page.button if one.key == "article_start"]
    assert "There is no GPU here." in said(page)


def answers(requests: Any) -> list:
    """The requests answered with made-up times."""
    (cell,) = [one for one in the_suite().cells if one.problem == requests[0].problem]
    found = [made_up.measured(name, cell) for name in the_suite().in_cell(cell)]
    return [next(one for one in found if one.request == request) for request in requests]


def test_a_run_from_the_page_is_queued_shown_saved_and_found_again(queue: FakeQueue):
    queue._devices = (records.gpu(), records.interpreter())
    page = article_page()
    page.button(key="article_start").click().run()
    assert not page.exception
    assert len(queue.submitted) == len(the_suite().cells)
    assert {request.precision for job in queue.submitted for request in job} >= {Precision(), Precision(fp8=True)}
    assert "0 of 5 problems" in said(page)
    for job_id in list(queue.views):
        queue.finish(job_id, *answers(queue.views[job_id].requests))
    page.run()
    assert "This tab’s run, not saved: 5 of 5 problems" in said(page)
    assert "on H200" in title(page)
    page.button(key="article_save").click().run()
    assert not page.exception
    assert state.store().search(Query(tag="article")).total == len(the_suite().cells)
    assert "Saved run of 29 Nov 2026, 13:05: 5 of 5 problems" in said(page)
    assert not [one for one in page.button if one.key == "article_save"]


def test_a_run_that_is_stopped_keeps_what_was_finished(queue: FakeQueue):
    queue._devices = (records.gpu(), records.interpreter())
    page = article_page()
    page.button(key="article_start").click().run()
    first = next(iter(queue.views))
    queue.finish(first, *answers(queue.views[first].requests))
    page.run()
    page.button(key="article_stop").click().run()
    assert all(view.finished for view in queue.views.values())
    page.run()
    assert "This tab’s run, not saved: 1 of 5 problems; 1k, 4k, 16k, 32k tokens not run." in said(page)
    assert "The job was cancelled." in said(page)
    assert page.button(key="article_save")
