"""The Schedule page, driven without a browser: its fields, the job that stamps, its numbers, what if, the ways in and out."""

from __future__ import annotations

import json
import re
import struct
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from app import schedule_choices as choices
from app import schedule_outlook, schedule_shown, state
from app.figures import block_times, utilisation
from app.figures.style import LIGHT, Absent
from app.html_page import page_of
from app.lanes.payload import Selection
from app.player import choices as watching
from app.schedule_shown import Shown
from kernels.problem import AttentionProblem, TileConfig
from profiling.records import Flag, JobError, Measurement, Progress, RunRequest
from profiling.snapshot import Snapshot
from profiling.what_if import SM_COUNTS
from tests import records_for_tests as records
from tests.fake_queue import FakeQueue, result_of
from tests.traces_for_tests import SMALL, traced


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> FakeQueue:
    found = FakeQueue((records.interpreter(),))
    monkeypatch.setattr(state, "job_queue", lambda: found)
    monkeypatch.setattr(state, "recordings", dict)
    return found


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> FakeQueue:
    found = FakeQueue((records.gpu(), records.interpreter()))
    monkeypatch.setattr(state, "job_queue", lambda: found)
    monkeypatch.setattr(state, "recordings", dict)
    return found


def opened(first: str, **address: str) -> AppTest:
    """A page of the app in a fresh session, as a link opens it."""
    page = AppTest.from_function(_script, default_timeout=120)
    page.session_state["_first"] = first
    for name, value in address.items():
        page.query_params[name] = value
    page.run()
    assert not page.exception
    return page


def schedule_page(**address: str) -> AppTest:
    return opened("schedule", **address)


def _script() -> None:
    import streamlit as st

    from app import look, state
    from app.views import compare, compiler, gallery, run, schedule, snapshots, softmax

    look.style()
    views = {
        "run": run,
        "softmax": softmax,
        "schedule": schedule,
        "compiler": compiler,
        "snapshots": snapshots,
        "compare": compare,
        "gallery": gallery,
    }
    first = st.session_state["_first"]
    pages = {name: st.Page(view.page, title=name, url_path=name, default=name == first) for name, view in views.items()}
    st.navigation(state.register_pages(pages), position="hidden").run()


def shown(page: AppTest) -> str:
    """All text that went through st.html, in order."""
    return "\n".join(element.proto.body for element in page.get("html") if "<style>" not in element.proto.body)


def title(page: AppTest) -> str:
    return next(element.proto.body for element in page.get("html") if "fs-title" in element.proto.body)


def lanes(page: AppTest) -> dict[str, Any]:
    """What the lanes were handed."""
    (component,) = page.get("bidi_component")
    blob = component.proto.bytes
    (length,) = struct.unpack_from("<I", blob)
    return json.loads(blob[4 : 4 + length])


def drawn(page: AppTest) -> list[tuple[str, str]]:
    """Label and provenance of each timetable in the lanes."""
    return [(table["label"], table["provenance"]) for table in lanes(page)["tables"]]


def metric(page: AppTest, label: str) -> str:
    """A number at the top, by its label."""
    return re.search(rf"<dt>{re.escape(label)}</dt><dd[^>]*>(?:<span.*?</span>)?(.*?)</dd>", shown(page)).group(1)


def answer(request: RunRequest, **changes: object) -> Measurement:
    """What an H200 might have stamped for a request."""
    heaviest = request.tiles.block_order == "heaviest" or (request.tiles.block_order == "default" and request.problem.causal)
    fields = {"schedule": records.schedule_of(request.problem, request.tiles, heaviest=heaviest), "latency": None} | changes
    return records.on_gpu(request.kernel, fp8=request.precision.fp8, request=request, tiles=request.tiles,
                          **{"with_prepass": None, **fields})  # fmt: skip


def stamp(page: AppTest, queue: FakeQueue, key: str = "stamp_it", **changes: object) -> Measurement:
    """Press the button and let the job end."""
    page.button(key=key).click().run()
    (request,) = queue.submitted[-1]
    found = answer(request, **changes)
    queue.finish(f"job{len(queue.submitted)}", found)
    page.run()
    assert not page.exception
    return found


# Without a GPU


def test_without_a_gpu_there_is_a_model_at_once_and_nothing_runs(on_cpu: FakeQueue) -> None:
    page = schedule_page()
    assert drawn(page) == [("v2 · 128 × 128, 8 warps, 3 stages", "modelled")]
    assert lanes(page)["facts"]["nsPerTile"] == schedule_shown.NS_PER_TILE
    assert "No NVIDIA GPU here." in shown(page)
    assert "Stamp it" not in {button.label for button in page.button}
    assert on_cpu.submitted == []
    assert metric(page, "SMs that worked") == "132 of 132"
    assert metric(page, "First start to last end").endswith(" tiles")
    assert "Stamping costs" not in shown(page)


@pytest.mark.parametrize(("gpu", "sms"), [("A100-SXM4-80GB", 108), ("GeForce RTX 5090", 170)])
def test_the_model_is_of_the_gpu_that_is_chosen(on_cpu: FakeQueue, gpu: str, sms: int) -> None:
    page = schedule_page(as_on=choices.gpu_words(gpu))
    assert lanes(page)["tables"][0]["smCount"] == sms
    assert f"of {sms}" in metric(page, "SMs that worked")


def test_v1_key_outer_has_a_program_a_head_and_starves_the_rest(on_cpu: FakeQueue) -> None:
    page = schedule_page(of="v1 key-outer")
    assert metric(page, "SMs that worked") == "16 of 132"
    assert "16 of 132 SMs worked" in title(page)
    assert page.selectbox(key="block_order").disabled
    assert page.selectbox(key="num_programs").disabled


def test_every_gpu_that_can_be_imagined_is_known_and_told_apart() -> None:
    assert set(choices.GPUS) <= set(SM_COUNTS)
    assert len({(choices.GPUS[name], SM_COUNTS[name]) for name in choices.GPUS}) == len(choices.GPUS)
    for name in choices.GPUS:
        device = choices.imagined(choices.gpu_words(name))
        assert (device.capability, device.sm_count) == (choices.GPUS[name], SM_COUNTS[name])
        assert choices.check(choices.DEFAULTS, device).request is not None


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Measurement:
    """A recording in the gallery: v2 on its default problem, natural order."""
    tiles = records.TILES.model_copy(update={"block_order": "natural"})
    request = RunRequest(kernel="v2", problem=records.LONG, tiles=tiles, device=records.GPU_ID)
    found = answer(request)
    snapshot = Snapshot(title="Made up", created_at="2026-11-29T13:10:00+00:00", measurements=(found,))
    monkeypatch.setattr(state, "recordings", lambda: {"made-up": snapshot})
    return found


def test_a_recording_is_shown_where_the_fields_ask_for_it_and_says_that_it_is_one(
    on_cpu: FakeQueue, recorded: Measurement
) -> None:
    page = schedule_page()
    assert drawn(page)[0][1] == "modelled"
    page.selectbox(key="recorded_schedule").select_index(0).run()
    assert not page.exception
    assert drawn(page) == [("v2 · 128 × 128, 8 warps, 3 stages, natural order", "measured")]
    assert "not measured here" in shown(page)
    assert page.selectbox(key="block_order").value == "natural"
    assert page.selectbox(key="recorded_schedule").value is None


# With a GPU


def test_stamp_it_sends_what_the_fields_say_and_the_page_follows_it(with_gpu: FakeQueue) -> None:
    page = schedule_page(of="v2", length="4096", block_order="natural")
    assert drawn(page)[0][1] == "modelled", "until it is stamped"
    assert with_gpu.submitted == []
    page.button(key="stamp_it").click().run()
    ((request,),) = with_gpu.submitted
    assert (request.kernel, request.problem.seq_len_q, request.probes) == ("v2", 4096, ("accuracy", "schedule"))
    assert (request.tiles.block_order, request.tiles.num_programs, request.device) == ("natural", None, records.GPU_ID)
    with_gpu.run("job1", Progress(job_id="job1", phase="schedule", text="Stamping programs"))
    page.run()
    assert "Stamping programs" in shown(page)
    assert page.button(key="stamp_it").disabled
    with_gpu.finish("job1", answer(request))
    page.run()
    assert [provenance for _, provenance in drawn(page)] == ["measured"]
    assert len(with_gpu.submitted) == 1


def test_the_numbers_are_those_of_the_stamps(with_gpu: FakeQueue) -> None:
    page = schedule_page(block_order="natural")
    schedule = stamp(page, with_gpu).schedule
    sm, start, end = (getattr(schedule, name).numpy() for name in ("sm", "start_ns", "end_ns"))
    last = np.array([end[sm == one].max() for one in np.unique(sm)])
    assert metric(page, "SMs that worked") == f"{len(np.unique(sm))} of 132"
    assert metric(page, "First start to last end") == f"{(end.max() - start.min()) / 1e6:.2f} ms"
    assert metric(page, "Tail") == f"{(end.max() - last.min()) / 1e3:.0f} µs"
    assert metric(page, "Longest program") == f"{(end - start).max() / 1e3:.0f} µs"
    busy = sum((end - start)[sm == one].sum() for one in range(132)) / 132 / (end.max() - start.min())
    assert metric(page, "SMs busy") == f"{100 * busy:.1f} %"
    assert metric(page, "Waves") == f"{2048 / 132:.1f}"
    assert metric(page, "Clock step") == "± 32 ns"
    cost = 100 * (np.median(schedule.stamped_ms.numpy()) / np.median(schedule.plain_ms.numpy()) - 1)
    assert metric(page, "Stamping costs") == f"{cost:.1f} %".replace("-", "−")
    assert "distorted" not in shown(page)


def test_stamps_that_cost_too_much_are_called_distorted(with_gpu: FakeQueue) -> None:
    page = schedule_page(block_order="natural")
    stamp(page, with_gpu, schedule=records.schedule_of(heaviest=False, overhead_share=0.13))
    assert "distorted" in shown(page)


def test_the_last_good_view_stays_while_another_is_asked_for(with_gpu: FakeQueue) -> None:
    page = schedule_page()
    stamp(page, with_gpu)
    before = drawn(page)
    page.selectbox(key="block_order").set_value("zigzag").run()
    assert drawn(page) == before
    assert "Still shown:" in shown(page)
    page.button(key="stamp_it").click().run()
    assert drawn(page) == before
    page.selectbox(key="block_order").set_value("default").run()
    assert "Still shown:" not in shown(page)
    assert page.button(key="stamp_it").label == "Stamp it again"


def test_another_tab_finds_what_is_held(with_gpu: FakeQueue) -> None:
    stamp(schedule_page(), with_gpu)
    assert drawn(schedule_page())[0][1] == "measured"


def test_a_failed_job_says_why_and_its_cure_fills_these_fields(with_gpu: FakeQueue) -> None:
    page = schedule_page(rows="128", columns="512")
    page.button(key="stamp_it").click().run()
    (request,) = with_gpu.submitted[0]
    error = records.failed().error
    with_gpu.finish("job1", result_of(request, records.gpu(), error))
    page.run()
    assert error.sentence in shown(page)
    page.button(key="cure").click().run()
    assert not page.exception
    assert [page.selectbox(key=name).value for name in ("rows", "columns", "warps", "stages")] == ["128", "128", "8", "3"]
    assert page.session_state["block_m"] == "auto" if "block_m" in page.session_state else True, "the Run form is another"


def test_a_run_whose_stamps_failed_says_so(with_gpu: FakeQueue) -> None:
    page = schedule_page()
    flag = Flag(name="no schedule", severity="caution", short="no schedule", sentence="The stamps are not there: no memory.")
    stamp(page, with_gpu, schedule=None, flags=(flag,))
    assert flag.sentence in shown(page)
    assert drawn(page)[0][1] == "modelled"


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ({"heads": "many"}, "num_heads = many is not possible: it must be a whole number"),
        ({"num_programs": "0"}, "num_programs = 0 is not possible: it can be 1 to 65536."),
        ({"num_programs": "a few"}, "num_programs = a few is not possible: it is a whole number"),
        (
            {"length": "131072", "heads": "64", "rows": "16", "columns": "16"},
            "a schedule of 524,288 pieces of work is not possible",
        ),
    ],
)
def test_what_is_not_possible_is_one_sentence_and_runs_nothing(
    with_gpu: FakeQueue, address: dict[str, str], sentence: str
) -> None:
    page = schedule_page(**address)
    assert sentence in shown(page)
    assert page.button(key="stamp_it").disabled


def test_the_last_good_view_stays_beside_what_is_not_possible(with_gpu: FakeQueue) -> None:
    page = schedule_page()
    stamp(page, with_gpu)
    page.selectbox(key="heads").set_value("4").run()
    page.selectbox(key="kv_heads").set_value("16").run()
    assert not page.exception
    assert "num_kv_heads = 16 is not possible: it can be 1 to 4." in shown(page)
    assert page.button(key="stamp_it").disabled
    assert drawn(page)[0][1] == "measured"


def test_fp8_needs_a_gpu_that_has_it(on_cpu: FakeQueue) -> None:
    page = schedule_page(of="v3 FP8", as_on=choices.gpu_words("A100-SXM4-80GB"))
    assert "v3 FP8 is not possible here: sm_80 has no e4m3 matrix units" in shown(page)


# What if


def test_a_what_if_is_drawn_below_and_told_in_words(with_gpu: FakeQueue) -> None:
    page = schedule_page(block_order="natural")
    ran = stamp(page, with_gpu)
    page.pills(key="what_if").set_value("heaviest first").run()
    assert drawn(page)[1] == ("heaviest first, modelled", "modelled")
    found = schedule_outlook.outlook(Shown.of(ran), choices.IF_DEFAULTS | {"if_order": "heaviest"}, lambda request: None)
    assert f"would take {found.table.span_ns / 1e6:.2f} ms" in shown(page)
    assert found.gain(Shown.of(ran)) < -0.05, "the natural order has a tail"
    assert "less than the" in shown(page)
    page.pills(key="what_if").set_value(None).run()
    assert len(drawn(page)) == 1


def test_run_it_for_real_puts_prediction_and_measurement_side_by_side(with_gpu: FakeQueue) -> None:
    page = schedule_page(block_order="natural", if_order="heaviest")
    ran = stamp(page, with_gpu)
    real = stamp(page, with_gpu, key="run_for_real")
    assert real.request == ran.request.model_copy(update={"tiles": ran.tiles.model_copy(update={"block_order": "heaviest"})})
    assert drawn(page)[1] == ("heaviest first, measured", "measured")
    predicted = schedule_outlook.outlook(Shown.of(ran), choices.IF_DEFAULTS | {"if_order": "heaviest"}, lambda request: None)
    error = 100 * (predicted.table.span_ns / real.schedule.end_ns.numpy().max() - 1)
    told = re.search(r"the prediction was off by ([+−]?[0-9.]+) %", shown(page)).group(1)
    assert float(told.replace("−", "-")) == pytest.approx(error, abs=0.06)
    page.segmented_control(key="below").set_value("modelled").run()
    assert drawn(page)[1][1] == "modelled"


def test_another_gpu_or_tile_size_is_modelled_and_says_what_that_stands_on(with_gpu: FakeQueue) -> None:
    page = schedule_page(block_order="natural", if_gpu=choices.gpu_words("H100 PCIe"))
    stamp(page, with_gpu)
    assert lanes(page)["tables"][1]["smCount"] == 114
    assert "run_for_real" not in {button.key for button in page.button}
    assert "its SMs are as fast as the measured ones" in shown(page)
    page = schedule_page(block_order="natural", if_rows="64")
    assert lanes(page)["tables"][1]["blocks"] == 256
    assert "durations scaled with the tiles" in shown(page)
    assert page.button(key="run_for_real")


def test_a_what_if_that_is_not_possible_is_one_sentence(with_gpu: FakeQueue) -> None:
    stamp(schedule_page(), with_gpu)
    page = schedule_page(if_programs="-1")
    assert "num_programs = -1 is not possible" in shown(page)
    assert len(drawn(page)) == 1


def test_the_table_compares_every_order_with_what_ran(with_gpu: FakeQueue) -> None:
    page = schedule_page(block_order="natural")
    ran = Shown.of(stamp(page, with_gpu))
    rows = schedule_outlook.rows(ran, schedule_outlook.at_a_glance(ran, lambda request: None))
    assert [row["what if"] for row in rows] == [
        "as it ran: natural order", "heaviest first", "zig-zag", "132 persistent programs", "perfect balance",
    ]  # fmt: skip
    assert rows[0]["measured"] == "2.27 ms"
    assert {row["measured"] for row in rows[1:4]} == {"not run"}
    assert all(row["modelled"] in shown(page) for row in rows)


def test_the_utilisation_chart_has_both_ways_and_the_block_chart_what_a_tile_costs(with_gpu: FakeQueue) -> None:
    page = schedule_page(block_order="natural", if_order="heaviest")
    ran = stamp(page, with_gpu)
    assert len(page.get("plotly_chart")) == 2
    natural = Shown.of(ran)
    other = schedule_outlook.outlook(natural, choices.IF_DEFAULTS | {"if_order": "heaviest"}, lambda request: None)
    chart = utilisation.chart(natural, other.name, other.table, LIGHT)
    filled, dashed = chart.figure.data
    assert filled.line.dash is None
    assert dashed.line.dash == "dash", "modelled is dashed"
    # The area under the curve is the time of the programs, one at a time on an SM.
    area = float(np.sum(np.diff(filled.x) * 1e3 * np.asarray(filled.y)[:-1]))
    assert area == pytest.approx(natural.table.duration_ns.sum(), rel=1e-6)
    per_block = block_times.chart(natural, LIGHT)
    (bars,) = per_block.figure.data
    duration, block, tiles = natural.table.duration_ns, natural.table.block, natural.table.tiles
    assert bars.y[5] == pytest.approx(duration[block == 5].sum() / tiles[block == 5].sum())
    assert per_block.table[5]["query block"] == "5"


def test_the_block_chart_is_absent_where_it_would_say_nothing() -> None:
    device = choices.imagined(choices.gpu_words("H200"))
    model = Shown.modelled("v2", choices.check(choices.DEFAULTS, device).request, device, 1)
    assert isinstance(block_times.chart(model, LIGHT), Absent)
    tiles = TileConfig(block_m=64, block_n=32, num_warps=8, num_stages=1, loop_order="key")
    request = RunRequest(kernel="v1", problem=records.LONG, tiles=tiles, device=records.GPU_ID)
    assert isinstance(block_times.chart(Shown.of(answer(request)), LIGHT), Absent)


# Ways in and out


def test_the_address_restores_every_field(with_gpu: FakeQueue) -> None:
    page = schedule_page(of="v3", length="4096", width="64", heads="8", kv_heads="2", sequences="2", masked="false", rows="64",
                         columns="64", block_order="zigzag", num_programs="264")  # fmt: skip
    page.button(key="stamp_it").click().run()
    ((request,),) = with_gpu.submitted
    assert request.problem == AttentionProblem(
        batch=2, num_heads=8, num_kv_heads=2, seq_len_q=4096, seq_len_kv=4096, head_dim=64, causal=False
    )
    tiles = request.tiles
    assert (request.kernel, tiles.block_m, tiles.block_n, tiles.block_order, tiles.num_programs) == (
        "v3",
        64,
        64,
        "zigzag",
        264,
    )


@pytest.mark.parametrize(
    "address",
    [
        {"of": "v9"},
        {"width": "77"},
        {"masked": "maybe"},
        {"as_on": "<b>"},
        {"if_gpu": "x"},
        {"at": "<b>"},
        {"at": "1.-9"},
        {"at": "²"},
    ],
)
def test_an_address_that_is_not_possible_is_the_default(on_cpu: FakeQueue, address: dict[str, str]) -> None:
    page = schedule_page(**address)
    assert drawn(page) == [("v2 · 128 × 128, 8 warps, 3 stages", "modelled")]
    assert lanes(page)["selection"] is None


def test_no_field_is_another_page_s() -> None:
    own = {*choices.DEFAULTS, *choices.IF_DEFAULTS, state.WHAT_IF_KEY, state.DRAWN_BELOW_KEY, state.RECORDED_SCHEDULE_KEY}
    others = {*state.FORM_DEFAULTS, *watching.DEFAULTS, *state.FILTERS, *state.COMPARE_PARAMS, state.DEVICE_KEY, state.TAU_KEY,
              state.COMPILE_FOR_KEY, state.PRESET_KEY, state.DETAILS_KEY, state.TABLES_KEY, "tile", "row", "speed"}  # fmt: skip
    assert not own & others


def links(page: AppTest) -> dict[str, dict[str, str]]:
    """The page's links by label, with their addresses."""
    found = [element.proto for element in page.get("page_link")]
    return {one.label: {name: values[0] for name, values in parse_qs(one.query_string).items()} for one in found}


def test_a_selected_bar_leads_to_its_tiles_and_back(with_gpu: FakeQueue) -> None:
    page = schedule_page(block_order="natural", heads="4", length="4096")
    stamp(page, with_gpu)
    said = {"selected": {"head": 3, "block": 17}, "opened": None}
    page.session_state["lanes"] = {"said": said}
    page.run()
    assert page.query_params["at"] == "3.17"
    page.session_state["lanes"] = {"said": said | {"opened": {"head": 3, "block": 17, "at": 7}}}
    page.run()
    assert not page.exception
    address = dict(page.query_params)
    assert (address["head"], address["query_block"], address["tokens"], address["tile_m"]) == ("3", "17", "4096", "64")
    request = watching.Choices.of({**watching.DEFAULTS, **address, "is_causal": True, "smooth": True}).requests(records.GPU_ID)[
        0
    ]
    assert (request.trace.head, request.trace.query_block) == (3, 17)
    assert request.problem == AttentionProblem(
        num_heads=4, num_kv_heads=4, seq_len_q=4096, seq_len_kv=4096, head_dim=128, causal=True
    )


def test_without_a_gpu_a_long_problem_s_block_is_watched_in_a_shorter_one(on_cpu: FakeQueue) -> None:
    page = schedule_page()
    assert "the like of a block in a shorter problem" in shown(page)
    device = choices.imagined(choices.gpu_words("H200"))
    request = choices.check(choices.DEFAULTS, device).request
    fields = choices.to_watch(request, "v2", Selection(9, 64), state.LONGEST_INTERPRETED)
    assert fields["tokens"] == str(state.LONGEST_INTERPRETED)
    assert fields["query_block"] == "2", "half-way down, as block 64 of 128"


def test_whatever_a_browser_says_is_taken_or_left(on_cpu: FakeQueue) -> None:
    page = schedule_page()
    for said in (None, 3, "x", {}, {"selected": 5}, {"selected": {"head": -1, "block": None}}, {"selected": {"head": "9" * 50}},
                 {"selected": {"head": 1.5, "block": 2}}, {"opened": "x"}):  # fmt: skip
        page.session_state["lanes"] = {"said": said}
        page.run()
        assert not page.exception
        assert "at" not in page.query_params


def test_the_softmax_page_leads_to_the_schedule_of_its_block(with_gpu: FakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    found = traced("v2", query_block=2)
    monkeypatch.setattr(state, "first_traces", lambda: (found,))
    request = found.request.model_copy(update={"device": records.GPU_ID, "probes": ("accuracy", "schedule")})
    page = opened("softmax")
    assert "See where this block ran" not in links(page)
    with_gpu.put("earlier", [request])
    with_gpu.finish("earlier", answer(request, environment=records.environment(records.gpu())))
    page.run()
    address = links(page)["See where this block ran"]
    assert address["at"] == "0.2"
    assert (address["of"] if "of" in address else choices.DEFAULTS["of"], address["length"]) == ("v2", str(SMALL.seq_len_q))
    back = schedule_page(**address)
    assert drawn(back)[0][1] == "measured"
    assert lanes(back)["selection"] == {"head": 0, "block": 2}


def test_a_run_leads_to_its_schedule_with_its_values(on_cpu: FakeQueue) -> None:
    run = opened("run")
    run.button(key="run").click().run()
    on_cpu.finish("job1", records.in_interpreter("v3"))
    run.run()
    address = links(run)["Where it ran"]
    page = schedule_page(**address)
    assert drawn(page)[0] == ("v3 · 64 × 64, 4 warps, 3 stages", "modelled")
    assert "8 of 132 SMs worked" in title(page)


def test_a_schedule_is_no_result_of_the_run_page(with_gpu: FakeQueue) -> None:
    page = schedule_page()
    stamp(page, with_gpu)
    run = opened("run")
    run.session_state["_owner"] = with_gpu.views["job1"].owner
    run.run()
    assert "Nothing has run yet." in shown(run)


@pytest.fixture
def snapshot() -> Snapshot:
    natural = records.TILES.model_copy(update={"block_order": "natural"})
    measurements = tuple(
        answer(RunRequest(kernel="v2", problem=records.LONG, tiles=tiles, device=records.GPU_ID))
        for tiles in (records.TILES, natural)
    )
    return Snapshot(title="Made up", created_at="2026-11-29T13:10:00+00:00", measurements=measurements)


def test_an_opened_snapshot_shows_its_schedules_one_at_a_time(
    on_cpu: FakeQueue, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "recordings", lambda: {"made-up": snapshot})
    page = opened("gallery")
    page.button(key="open made-up").click().run()
    assert not page.exception
    assert drawn(page) == [("v2 · 128 × 128, 8 warps, 3 stages", "measured")]
    page.selectbox(key="schedule_of").select_index(1).run()
    assert drawn(page) == [("v2 · 128 × 128, 8 warps, 3 stages, natural order", "measured")]


def test_the_schedule_page_can_ask_what_if_of_an_opened_snapshot(
    on_cpu: FakeQueue, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown_of = [Shown.of(one, "imported") for one in snapshot.measurements]
    page = schedule_page(block_order="natural", if_order="heaviest")
    assert drawn(page)[0][1] == "modelled"
    page.session_state["_opened_schedules"] = tuple(shown_of)
    page.run()
    assert [provenance for _, provenance in drawn(page)] == ["measured", "measured"], "both orders are in it"
    assert "imported · H200" in shown(page)
    assert "the prediction was off by" in shown(page)


def test_the_exported_page_has_the_lanes_of_every_schedule_with_their_numbers(snapshot: Snapshot) -> None:
    page = page_of(snapshot)
    assert page == page_of(snapshot)
    text = page.decode()
    assert text.count('data-of="lanes"') == 2
    for one in snapshot.measurements:
        for label, value, _, _ in schedule_shown.metrics(Shown.of(one)):
            assert f"<dt>{label}</dt>" in text
            assert value in text
    assert 'data-of="lanes"' not in page_of(records.recording(kernels=("v3",))).decode()


def test_tables_stand_behind_the_lanes(on_cpu: FakeQueue) -> None:
    page = schedule_page(length="256", heads="2", rows="64", columns="64", width="64")
    page.toggle(key="tables").set_value(True).run()
    assert "Table: who ran where and when" in shown(page)
    device = choices.imagined(choices.gpu_words("H200"))
    request = choices.check(state_values(page), device).request
    rows = schedule_shown.rows(Shown.modelled("v2", request, device, 1))
    assert len(rows) == 8
    assert sum(int(row["key tiles"]) for row in rows) == 2 * (1 + 2 + 3 + 4)


def state_values(page: AppTest) -> dict[str, str | bool]:
    return {name: page.session_state[name] for name in choices.DEFAULTS}


def test_what_shows_a_selection_is_what_it_selects() -> None:
    request = RunRequest(kernel="v2", problem=records.LONG, tiles=records.TILES)
    whole = choices.to_watch(request, "v1 key-outer", Selection(5, -1), 16384)
    assert (whole["head"], whole["query_block"], whole["tokens"]) == ("5", watching.LAST, "16384")
    batched = request.model_copy(update={"problem": records.LONG.model_copy(update={"batch": 3})})
    assert (choices.to_watch(batched, "v2", Selection(37, 4), 16384)["entry"]) == "2"
    assert (choices.to_watch(batched, "v2", Selection(37, 4), 16384)["head"]) == "5"


def test_an_error_of_a_job_is_no_schedule(with_gpu: FakeQueue) -> None:
    page = schedule_page()
    page.button(key="stamp_it").click().run()
    (request,) = with_gpu.submitted[0]
    with_gpu.finish("job1", result_of(request, records.gpu(), JobError(kind="crashed", sentence="The worker died.")))
    page.run()
    assert "The worker died." in shown(page)
    assert not page.button(key="stamp_it").disabled
