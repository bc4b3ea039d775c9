"""The Sweep page without a browser: the form and its outlook, a sweep as it fills and ends, the ways on from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.testing.v1 import AppTest

from app import state, sweep_choices, sweep_shown, sweep_tables
from kernels.problem import TileConfig
from profiling.records import DeviceFacts, Flag
from profiling.store import StoreProblem
from profiling.sweep_export import gzip_of, json_of
from profiling.sweep_record import Sweep, SweepState, snippet
from tests import made_up_sweeps as sweeps
from tests import records_for_tests as records
from tests.fake_queue import FakeQueue
from tests.made_up_sweeps import FakeSweeps
from tests.test_fragments import placeless, sent  # noqa: F401  (a fixture)

RUNNING = SweepState(status="running", phase="screening", done=0, total=1, elapsed_s=61.0, seconds_left=140.0)
PAUSED = SweepState(status="paused", phase="screening", done=0, total=1, sentence="Paused.")


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeQueue:
    found = FakeQueue((records.gpu(), records.interpreter()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(state, "job_queue", lambda: found)
    return found


def sweep_page(monkeypatch: pytest.MonkeyPatch, *found: Sweep, **address: str) -> tuple[AppTest, FakeSweeps]:
    held = FakeSweeps(*found)
    monkeypatch.setattr(state, "sweeps", lambda: held)
    page = AppTest.from_function(_script, default_timeout=120)
    for name, value in address.items():
        page.query_params[name] = value
    page.run()
    assert not page.exception
    return page, held


def _script() -> None:
    import streamlit as st

    from app import state
    from app.views import compiler, run, sweep

    pages = {name: st.Page(view.page, title=name, url_path=name, default=name == "sweep")
             for name, view in {"sweep": sweep, "run": run, "compiler": compiler}.items()}  # fmt: skip
    st.navigation(state.register_pages(pages), position="hidden").run()


def said(page: AppTest) -> str:
    return " ".join(one.proto.body for one in page.get("html"))


def drawn(page: AppTest, place: int = 0) -> dict[str, Any]:
    return json.loads(page.get("plotly_chart")[place].proto.spec)


def has_button(page: AppTest, key: str) -> bool:
    return any(one.key == key for one in page.button)


@pytest.fixture(scope="module")
def whole() -> Sweep:
    asked = sweeps.plan(problems=sweeps.plan().problems[2:6], num_warps=(8,), num_stages=(2, 3))
    return sweeps.with_finals(sweeps.swept(asked))


# The form


def test_before_the_start_it_says_how_many_cells_there_are_and_what_cannot_run(
    queue: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, held = sweep_page(monkeypatch, s_kernels="v3-hopper", s_tokens="4096")
    text = said(page)
    assert "refused by the version" in text
    assert "are compiled before any launch" in text
    page.button(key="sweep_start").click().run()
    assert not page.exception
    (asked,) = held.started
    assert (asked.kernels, asked.devices, asked.method) == (("v3-hopper",), (records.GPU_ID,), "grid")
    assert page.query_params["sweep"] == "000000000001"
    assert "Sweeping v3-hopper" in said(page)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("s_tokens", "4096 many", "seq_len = many is not possible: it must be whole numbers such as 4096 16k."),
        ("s_heads", "0", "num_heads = 0 is not possible: it can be 1 to 1024."),
        ("s_finalists", "40", "finalists = 40 is not possible: it can be 0 to 12."),
        ("s_tokens", "", "seq_len: none is given."),
    ],
)
def test_what_is_not_possible_is_one_sentence_and_cannot_be_started(
    field: str, value: str, sentence: str, queue: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, _ = sweep_page(monkeypatch)
    page.text_input(key=field).set_value(value).run()
    assert sentence in said(page)
    assert page.button(key="sweep_start").disabled


def test_a_budget_is_part_of_the_plan_and_not_possible_in_the_interpreter(
    queue: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, held = sweep_page(monkeypatch, s_search=sweep_choices.BUDGET, s_budget="12")
    assert "12 a series are timed at most" in said(page)
    page.button(key="sweep_start").click().run()
    assert held.started[0].budget == 12
    page, _ = sweep_page(monkeypatch, s_search=sweep_choices.BUDGET, s_device="Interpreter (CPU)")
    assert "A budgeted search is not possible in the interpreter" in said(page)


def test_without_a_gpu_the_fields_start_with_what_the_interpreter_can_do(
    monkeypatch: pytest.MonkeyPatch, queue: FakeQueue
) -> None:
    monkeypatch.setattr(state, "job_queue", lambda: FakeQueue((records.interpreter(),)))
    page, held = sweep_page(monkeypatch)
    assert "run in the interpreter, about" in said(page)
    assert "no time is a GPU’s" in said(page)
    page.button(key="sweep_start").click().run()
    assert held.started[0].devices == (records.INTERPRETER,)
    page, _ = sweep_page(monkeypatch, s_tokens="8192")
    assert "seq_len = 8,192 would take about" in said(page)
    assert page.button(key="sweep_start").disabled


def test_a_plan_comes_back_from_its_fields() -> None:
    for asked in (sweeps.plan(), sweeps.fp8_plan(), sweeps.plan(budget=30, finalists=3)):
        found = sweep_choices.check(sweep_choices.like(asked), [records.gpu()]).plan
        assert set(found.series) == set(asked.series)
        assert found.model_copy(update={"problems": asked.problems}) == asked


def test_gpus_of_one_model_can_share_the_cells() -> None:
    other = records.gpu().model_copy(update={"id": "GPU-99990000-0000-0000-0000-000000000000"})
    devices: list[DeviceFacts] = [records.gpu(), other, records.interpreter()]
    names = sweep_choices.device_names(devices)
    assert list(names) == ["2 × H200", "H200 · GPU-487a", "H200 · GPU-9999", "Interpreter (CPU)"]
    assert sweep_choices.chosen_devices("2 × H200", devices) == (records.gpu(), other)
    assert sweep_choices.chosen_devices("gone", devices) == (records.gpu(), other)


# A sweep


def test_a_finished_sweep_says_the_best_and_what_it_wins(
    queue: FakeQueue, monkeypatch: pytest.MonkeyPatch, whole: Sweep
) -> None:
    page, _ = sweep_page(monkeypatch, whole, sweep=whole.sweep_id)
    text = said(page)
    series = whole.plan.series[0]
    one = state.shown_series(whole, series)
    assert sweep_shown.headline(one) in text
    assert one.ranking.over_default.sentence in text.replace("&#x27;", "'")
    assert "Recommended for this GPU" in text
    assert page.code[0].value == snippet(one.best[0].tiles)
    assert not has_button(page, "sweep_pause")
    assert not has_button(page, "sweep_cancel")
    assert not page.get("progress")
    assert len(page.get("plotly_chart")) == 4  # map, compile report, time over seq_len, parallel coordinates


def test_the_series_are_chosen_by_what_tells_them_apart(
    queue: FakeQueue, monkeypatch: pytest.MonkeyPatch, whole: Sweep
) -> None:
    page, _ = sweep_page(monkeypatch, whole, sweep=whole.sweep_id)
    assert list(page.button_group(key="v_tokens").options) == ["4k", "16k"]
    page.button_group(key="v_tokens").set_value("16k").run()
    page.button_group(key="v_mask").set_value("causal").run()
    assert not page.exception
    assert "v2 at 16k tokens, causal:" in said(page)
    same, _ = sweep_page(monkeypatch, whole, sweep=whole.sweep_id, v_tokens="16k", v_mask="causal")
    assert "v2 at 16k tokens, causal:" in said(same)


def test_a_cell_goes_to_the_run_page_s_form(queue: FakeQueue, monkeypatch: pytest.MonkeyPatch, whole: Sweep) -> None:
    page, _ = sweep_page(monkeypatch, whole, sweep=whole.sweep_id)
    cell = next(one for one in whole.cells if one.tiles == TileConfig(block_m=128, block_n=32, num_warps=8, num_stages=2))
    page.selectbox(key=state.SWEEP_CELL_KEY).set_value(cell.key).run()
    assert page.code[0].value == "TileConfig(block_m=128, block_n=32, num_warps=8, num_stages=2)"
    page.button(key="sweep_run").click().run()
    assert not page.exception
    form = {
        name: page.session_state[name]
        for name in ("kernel", "seq_len", "head_dim", "causal", "block_m", "block_n", "num_stages")
    }
    assert form == {
        "kernel": "v2", "seq_len": "4096", "head_dim": "128", "causal": False, "block_m": "128", "block_n": "32",
        "num_stages": "2",
    }  # fmt: skip


def test_a_running_sweep_can_be_paused_resumed_and_cancelled(queue: FakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = sweeps.swept(sweeps.plan(problems=sweeps.plan().problems[:1]), RUNNING, until=10)
    page, held = sweep_page(monkeypatch, begun, sweep=begun.sweep_id)
    assert "timing each · " in said(page)
    assert "about 2.3 min left" in said(page)
    assert page.get("progress")
    page.button(key="sweep_pause").click().run()
    assert held.view(begun.sweep_id).state.status == "paused"
    assert "is the fastest so far" in said(page)
    page.button(key="sweep_resume").click().run()
    assert held.view(begun.sweep_id).state.status == "running"
    page.button(key="sweep_cancel").click().run()
    assert not page.exception
    assert "cancelled · " in said(page)
    assert not has_button(page, "sweep_resume")


def test_the_map_fills_while_one_looks(queue: FakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = sweeps.plan(problems=sweeps.plan().problems[:1])
    begun, more = (sweeps.swept(asked, RUNNING, until=count) for count in (4, 30))
    page, held = sweep_page(monkeypatch, begun, sweep=begun.sweep_id)
    before = [one["text"] for one in drawn(page)["layout"]["annotations"]].count("…")
    held.put(more)
    page.run()
    assert [one["text"] for one in drawn(page)["layout"]["annotations"]].count("…") < before
    held.put(sweeps.swept(asked))
    page.run()
    assert "is the fastest, " in said(page)


def test_sweeps_are_listed_opened_and_another_tab_s_can_be_cancelled(
    queue: FakeQueue, monkeypatch: pytest.MonkeyPatch, whole: Sweep
) -> None:
    theirs = sweeps.swept(sweeps.tiny_plan(), RUNNING, owner="somebody else", until=2, sweep_id="00000000beef")
    page, held = sweep_page(monkeypatch, whole, theirs)
    assert "Which tiles are fastest, and which cannot run" in said(page)
    page.selectbox(key=state.SWEEP_CHOICE_KEY).set_value(theirs.sweep_id).run()
    assert not page.exception
    assert page.query_params["sweep"] == theirs.sweep_id
    assert "another tab, or an earlier visit" in said(page)
    page.button(key="sweep_cancel").click().run()
    assert held.view(theirs.sweep_id).state.status == "cancelled"
    page.selectbox(key=state.SWEEP_CHOICE_KEY).set_value(whole.sweep_id).run()
    assert "v2 at 4k tokens:" in said(page)


def test_an_unknown_sweep_leaves_the_address(queue: FakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    page, _ = sweep_page(monkeypatch, sweep="ffffffffffff")
    assert "sweep" not in page.query_params
    assert "Which tiles are fastest" in said(page)


def test_a_sweep_s_plan_comes_into_the_fields(queue: FakeQueue, monkeypatch: pytest.MonkeyPatch, whole: Sweep) -> None:
    page, held = sweep_page(monkeypatch, whole, sweep=whole.sweep_id)
    assert not page.expander[0].proto.expanded
    page.button(key="sweep_like").click().run()
    assert page.expander[0].proto.expanded
    page.button(key="sweep_start").click().run()
    assert not page.exception
    assert not page.expander[0].proto.expanded
    assert set(held.started[0].series) == set(whole.plan.series)
    assert held.started[0].num_stages == whole.plan.num_stages


def test_lines_of_the_parallel_coordinates_are_picked(queue: FakeQueue, monkeypatch: pytest.MonkeyPatch, whole: Sweep) -> None:
    page, _ = sweep_page(monkeypatch, whole, sweep=whole.sweep_id, tables="true")
    assert "Table: What the fast ones have in common" in said(page)
    page.button_group(key=state.SWEEP_ONLY_KEY).set_value(["BLOCK_N 32"]).run()
    assert not page.exception
    assert page.session_state[state.SWEEP_ONLY_KEY] == ["BLOCK_N 32"]


# One that was not made here


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(state, "GALLERY", tmp_path)
    return tmp_path


def test_a_recorded_sweep_is_listed_opened_and_shown_like_one_of_ones_own(
    queue: FakeQueue, monkeypatch: pytest.MonkeyPatch, whole: Sweep, box: Path
) -> None:
    (box / "1.sweep.json.gz").write_bytes(gzip_of(whole))
    (box / "2.sweep.json.gz").write_bytes(b"{}")
    page, _ = sweep_page(monkeypatch)
    assert whole.plan.title in said(page)
    assert "2.sweep.json.gz is not a recorded sweep:" in said(page)
    page.button(key="open 1.sweep.json.gz").click().run()
    assert not page.exception
    assert page.query_params["sweep"] == whole.sweep_id
    own, _ = sweep_page(monkeypatch, whole.model_copy(update={"sweep_id": "00000000beef"}), sweep="00000000beef")
    for place in range(4):
        assert drawn(page, place) == drawn(own, place)
    shown, device = said(page), whole.outcomes[0].measurement.environment
    assert "recording · H200 · " in shown
    assert "not measured here" in shown
    assert "Recommended for NVIDIA H200" in shown
    for version in (device.driver_version, device.torch_version, device.triton_version, device.python_version):
        assert version in shown
    assert [one.label for one in page.get("download_button")] == ["CSV", "JSON"]
    for key in ("sweep_pause", "sweep_resume", "sweep_cancel"):
        assert not has_button(page, key)


def test_a_recorded_sweep_opens_by_its_link_without_a_store_or_a_gpu(
    monkeypatch: pytest.MonkeyPatch, queue: FakeQueue, whole: Sweep, box: Path
) -> None:
    monkeypatch.setattr(state, "job_queue", lambda: FakeQueue((records.interpreter(),)))
    (box / "1.sweep.json.gz").write_bytes(gzip_of(sweeps.swept(whole.plan, PAUSED, until=30)))

    def broken(*_: object) -> None:
        raise StoreProblem("The store cannot be opened: disk I/O error.")

    monkeypatch.setattr(FakeSweeps, "listed", broken)
    monkeypatch.setattr(FakeSweeps, "view", broken)
    page, _ = sweep_page(monkeypatch, sweep=sweeps.SWEEP_ID, v_tokens="4k")
    assert "The store cannot be opened: disk I/O error." in said(page)
    assert "v2 at 4k tokens: " in said(page)
    assert "paused · 30 of " in said(page)
    assert not has_button(page, "sweep_resume")


def test_a_teammate_s_file_is_opened_in_this_tab_alone(
    queue: FakeQueue, monkeypatch: pytest.MonkeyPatch, whole: Sweep, box: Path
) -> None:
    page, _ = sweep_page(monkeypatch)
    page.file_uploader[0].set_value(("<b>x</b>.json", b"{}", "application/json")).run()
    assert "This is JSON, but no exported sweep" in said(page)
    page.run()
    assert "no exported sweep" not in said(page)
    page.file_uploader[0].set_value(("x.json", json_of(whole), "application/json")).run()
    assert not page.exception
    assert page.query_params["sweep"] == whole.sweep_id
    assert "file · H200 · " in said(page)
    assert sweep_shown.headline(state.shown_series(whole, whole.plan.series[0])) in said(page)
    assert page.selectbox(key=state.SWEEP_CHOICE_KEY).options[0].startswith("a file: ")
    other, _ = sweep_page(monkeypatch, sweep=whole.sweep_id)
    assert "neither in this server’s store nor in the box" in said(other)


def test_what_disturbed_a_time_stands_beside_it(queue: FakeQueue, monkeypatch: pytest.MonkeyPatch, whole: Sweep) -> None:
    flag = Flag(name="power cap", severity="caution", short="power cap", sentence="The power cap held the clock down.")
    best = state.shown_series(whole, whole.plan.series[0]).best[0].key
    outcomes = tuple(
        one.model_copy(update={"final": one.final.model_copy(update={"flags": (flag,)})}) if one.key == best else one
        for one in whole.outcomes
    )
    page, _ = sweep_page(monkeypatch, sweeps.with_outcomes(whole, outcomes), sweep=whole.sweep_id)
    assert 'title="The power cap held the clock down.' in said(page)
    rows = sweep_tables.ranked(state.shown_series(sweeps.with_outcomes(whole, outcomes), whole.plan.series[0]))
    assert [row["noted"] for row in rows] == ["power cap", *[""] * (len(rows) - 1)]
    assert "noted" not in sweep_tables.ranked(state.shown_series(whole, whole.plan.series[0]))[0]


# The ladder


def test_the_ladder_is_one_job_of_the_queue_and_its_end_is_drawn(
    queue: FakeQueue, monkeypatch: pytest.MonkeyPatch, whole: Sweep
) -> None:
    page, _ = sweep_page(monkeypatch, whole, sweep=whole.sweep_id)
    page.button(key="ladder_start").click().run()
    (requests,) = queue.submitted
    assert [one.kernel for one in requests] == ["v1", "v1", "v2", "v3", "v3-hopper", "v3-hopper"]
    assert requests[0].tiles.loop_order == "key"
    assert has_button(page, "cancel")
    results = [
        records.on_gpu(one.kernel, request=one, tiles=one.tiles, with_prepass=None, timeline=None,
                       latency=records.latency(10.0 / place, rounds=10, a_round=12))
        for place, one in enumerate(requests, 1)
    ]  # fmt: skip
    queue.finish("job1", *results)
    page.run()
    assert not page.exception
    assert "From v1 to v3, one idea at a time" in said(page)
    assert "Left out: v2, heaviest first (without a mask all blocks are equally heavy)" in said(page)
    assert len(page.get("plotly_chart")) == 5
    page.button(key="sweep_run").click().run()
    assert not page.exception
    assert "The last run that worked" not in said(page)  # the ladder is no result of the Run page
    assert "Nothing has run yet." in said(page)


def test_without_a_gpu_the_ladder_is_a_recording_and_says_so(queue: FakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "job_queue", lambda: FakeQueue((records.interpreter(),)))
    page, _ = sweep_page(monkeypatch)
    assert not has_button(page, "ladder_start")
    assert "not measured here" in said(page)
    assert "There is no GPU here to measure it on" in said(page)
    assert len(page.get("plotly_chart")) == 1


def test_a_fragment_that_runs_again_at_once_takes_nothing_with_it(
    queue: FakeQueue,
    monkeypatch: pytest.MonkeyPatch,
    sent: list[ForwardMsg],  # noqa: F811
) -> None:
    begun = sweeps.swept(sweeps.plan(problems=sweeps.plan().problems[:1]), RUNNING, until=10)
    sweep_page(monkeypatch, begun, sweep=begun.sweep_id)
    assert placeless(sent) == []


def test_a_store_that_cannot_be_read_is_one_sentence_and_the_form_stays(
    queue: FakeQueue, monkeypatch: pytest.MonkeyPatch, whole: Sweep
) -> None:
    page, held = sweep_page(monkeypatch, whole, sweep=whole.sweep_id)
    assert [one.label for one in page.get("download_button")] == ["CSV", "JSON"]

    def broken(*_: object) -> None:
        raise StoreProblem("The store cannot be opened: disk I/O error.")

    monkeypatch.setattr(held, "listed", broken)
    monkeypatch.setattr(held, "start", broken)
    page.run()
    assert "The store cannot be opened: disk I/O error." in said(page)
    page.button(key="sweep_start").click().run()
    assert not page.exception
    assert said(page).count("The store cannot be opened: disk I/O error.") == 2
