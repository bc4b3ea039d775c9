"""The Softmax page, driven without a browser: its fields, the job that traces, and what it draws of a trace."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, get_args
from urllib.parse import parse_qs

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from app import repeat, state
from app.figures import ledger
from app.figures.style import LIGHT
from app.player import choices, export, first_trace
from app.player.choices import Choices
from app.player.first_trace import FIRST_TRACE
from app.player.payload import pack
from kernels.problem import AttentionProblem, Precision, TileConfig
from profiling import own_inputs
from profiling.own_inputs import as_text
from profiling.records import Flag, InputKind, JobError, Measurement, Progress, RunRequest
from profiling.rescale_ledger import rescale_ledger
from profiling.snapshot import read
from profiling.trace_record import TraceChoice
from tests import records_for_tests as records
from tests.fake_queue import FakeQueue, result_of
from tests.traces_for_tests import traced

MAIN = Path(__file__).parent.parent / "app" / "main.py"
FIRST = tuple(traced(kernel) for kernel in ("v2", "v1"))


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> FakeQueue:
    found = FakeQueue((records.interpreter(),))
    monkeypatch.setattr(state, "job_queue", lambda: found)
    monkeypatch.setattr(state, "first_traces", lambda: FIRST)
    return found


def softmax_page(**address: str) -> AppTest:
    """The page in a fresh session, as a link opens it."""
    page = AppTest.from_function(_script, default_timeout=120)
    for name, value in address.items():
        page.query_params[name] = value
    page.run()
    assert not page.exception
    return page


def _script() -> None:
    from app import look
    from app.views import softmax

    look.style()
    softmax.page()


def shown(page: AppTest) -> str:
    """All text that went through st.html, in order."""
    return "\n".join(element.proto.body for element in page.get("html") if "<style>" not in element.proto.body)


def header_of(page: AppTest) -> dict[str, Any]:
    """What the player was handed."""
    (component,) = page.get("bidi_component")
    blob = component.proto.bytes
    (length,) = struct.unpack_from("<I", blob)
    return json.loads(blob[4 : 4 + length])


def request_of(**fields: object) -> RunRequest:
    (request,) = Choices.of({**choices.DEFAULTS, **fields}).requests()
    return request


def answer(request: RunRequest) -> Measurement:
    """A trace that fits a request."""
    made = traced(request.kernel, request.problem, request.tiles.block_m, query_block=request.trace.query_block,
                  fp8=request.precision.fp8, loop_order=request.tiles.loop_order)  # fmt: skip
    return made.model_copy(update={"request": request})


def test_the_first_visit_has_a_trace_to_play_with_its_proof_and_runs_nothing(queue: FakeQueue) -> None:
    page = softmax_page()
    header = header_of(page)
    assert [trace["label"] for trace in header["traces"]] == ["v2"]
    assert "agrees with its NumPy replay" in shown(page)
    assert "Why is there an α?" in shown(page)
    assert queue.submitted == []
    assert "Trace it" not in {button.label for button in page.button}


def test_a_choice_that_is_not_traced_keeps_the_last_and_offers_to_trace(queue: FakeQueue) -> None:
    page = softmax_page()
    page.selectbox(key="tokens").set_value("128").run()
    assert "Still shown:" in shown(page)
    assert header_of(page)["traces"][0]["seqLenQ"] == 256
    assert queue.submitted == []
    page.button(key="trace_it").click().run()
    ((request,),) = queue.submitted
    assert (request.problem.seq_len_q, request.kernel, request.probes) == (128, "v2", ("accuracy", "tiles"))
    assert request.tiles == TileConfig(block_m=32, block_n=32, num_warps=4, num_stages=2)


def test_the_page_follows_the_job_and_shows_its_trace(queue: FakeQueue) -> None:
    page = softmax_page(tokens="128", version="v3 FP8")
    page.button(key="trace_it").click().run()
    (request,) = queue.submitted[0]
    queue.run("job1", Progress(job_id="job1", phase="check", text="Checking the output"))
    page.run()
    assert "Checking the output" in shown(page)
    queue.finish("job1", answer(request))
    page.run()
    assert [trace["label"] for trace in header_of(page)["traces"]] == ["v3 FP8"]
    assert "Still shown" not in shown(page)
    assert len(queue.submitted) == 1


def test_another_tab_finds_the_trace_that_is_held(queue: FakeQueue) -> None:
    request = request_of(tokens="128")
    queue.put("earlier", [request], owner="somebody else")
    queue.finish("earlier", answer(request))
    assert header_of(softmax_page(tokens="128"))["traces"][0]["seqLenQ"] == 128


def test_a_job_that_failed_says_why_and_can_be_tried_again(queue: FakeQueue) -> None:
    request = request_of(tokens="128")
    queue.put("earlier", [request])
    queue.finish("earlier", result_of(request, records.interpreter(), JobError(kind="crashed", sentence="The worker died.")))
    page = softmax_page(tokens="128")
    assert "The worker died." in shown(page)
    page.button(key="trace_it").click().run()
    assert queue.submitted == [(request,)]


def test_a_run_whose_trace_failed_says_so(queue: FakeQueue) -> None:
    request = request_of(tokens="128")
    flag = Flag(name="no trace", severity="caution", short="no trace", sentence="The tiles are not there: no memory.")
    queue.put("earlier", [request])
    queue.finish("earlier", records.in_interpreter("v2", request=request, flags=(flag,)))
    assert "The tiles are not there: no memory." in shown(softmax_page(tokens="128"))


def test_two_versions_are_traced_as_one_job_and_step_together(queue: FakeQueue) -> None:
    page = softmax_page(version="v1", beside="v2")
    assert [trace["label"] for trace in header_of(page)["traces"]] == ["v1", "v2"]
    page.selectbox(key="query_block").set_value("3").run()
    page.button(key="trace_it").click().run()
    assert [request.kernel for request in queue.submitted[0]] == ["v1", "v2"]
    assert {request.trace.query_block for request in queue.submitted[0]} == {3}


def test_the_address_restores_where_the_player_stood(queue: FakeQueue) -> None:
    header = header_of(softmax_page(tile="5", row="17", speed="16"))
    assert header["start"] == {"tile": 5, "row": 17, "speed": 16}
    odd = header_of(softmax_page(tile="<b>", row="-1", speed="1e9"))["start"]
    assert odd == {"tile": 0, "row": 0, "speed": 4}


@pytest.mark.parametrize(
    "address",
    [
        {"version": "v9"},
        {"inputs": "mine"},
        {"query_block": "99"},
        {"query_block": "<b>"},
        {"head": "2"},
        {"entry": "-1"},
        {"dim": "abc"},
        {"fp8_scales": "<b>"},
        {"smooth": "maybe"},
    ],
)
def test_an_address_that_is_not_possible_is_the_default(queue: FakeQueue, address: dict[str, str]) -> None:
    page = softmax_page(**address)
    assert header_of(page)["traces"][0]["queryBlock"] == 7
    assert "Still shown" not in shown(page), "it is what the fields ask for"


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ({"tokens": "7.5"}, "seq_len = 7.5 is not possible: it must be a whole number"),
        ({"tokens": "0"}, "seq_len_q = 0 is not possible"),
        ({"tokens": "99999"}, "seq_len_q = 99,999 is not possible here: up to 16,384 can be watched"),
        ({"key_tokens": "<b>"}, "seq_len_kv = &lt;b&gt; is not possible"),
        ({"query_heads": "65"}, "num_heads = 65 is not possible here: up to 64 can be watched"),
        ({"query_heads": "4", "key_heads": "3"}, "num_kv_heads = 3 is not possible: num_heads = 4 must be a multiple of it"),
        ({"batches": "17"}, "batch = 17 is not possible here"),
    ],
)
def test_a_problem_that_is_not_possible_is_said_and_the_last_trace_stays(
    queue: FakeQueue, address: dict[str, str], says: str
) -> None:
    page = softmax_page(**address)
    assert says in shown(page)
    assert page.button(key="trace_it").disabled
    assert "Still shown:" in shown(page)


def test_the_whole_problem_is_asked_for_as_the_address_says_it(queue: FakeQueue) -> None:
    page = AppTest.from_function(_script, default_timeout=120)
    page.query_params = {
        "version": "v3 FP8", "inputs": "outliers", "tokens": "40", "key_tokens": "50", "dim": "32", "query_heads": "4",
        "key_heads": "2", "batches": "2", "head": "3", "entry": "1", "query_block": "0", "number_format": "fp16",
        "fp8_scales": "block", "smooth": "false", "is_causal": "false",
    }  # fmt: skip
    page.session_state["_trace_next"] = True  # AppTest cannot press a button beside a field that holds what was typed
    page.run()
    ((request,),) = queue.submitted
    assert request.problem == AttentionProblem(
        batch=2, num_heads=4, num_kv_heads=2, seq_len_q=40, seq_len_kv=50, head_dim=32, causal=False
    )
    assert request.precision == Precision(dtype="fp16", fp8=True, fp8_scale="block", smooth_k=False)
    assert (request.inputs, request.trace) == ("outliers", TraceChoice(batch_index=1, head=3, query_block=0))


def test_the_kv_head_is_named_where_it_is_shared(queue: FakeQueue) -> None:
    request = request_of(tokens="64", query_heads="4", key_heads="2", head="3")
    held = answer(request)
    held = held.model_copy(update={"tiles_trace": held.tiles_trace.model_copy(update={"head": 3})})
    queue.put("earlier", [request])
    queue.finish("earlier", held)
    page = softmax_page(tokens="64", query_heads="4", key_heads="2", head="3")
    assert header_of(page)["traces"][0]["kvHead"] == 1
    assert header_of(softmax_page())["traces"][0]["kvHead"] is None


def test_what_only_fp8_has_leaves_the_other_versions_as_they_are() -> None:
    assert request_of(fp8_scales="block", smooth=False) == request_of()


def test_heads_and_entries_that_are_no_more_there_are_the_first(queue: FakeQueue) -> None:
    page = softmax_page(query_heads="4", head="3", batches="2", entry="1")
    page.selectbox(key="query_heads").set_value("2").run()
    page.selectbox(key="batches").set_value("1").run()
    assert (page.selectbox(key="head").value, page.selectbox(key="entry").value) == ("0", "0")
    assert "Still shown" not in shown(page)


def test_every_kind_of_inputs_can_be_chosen_and_says_what_to_look_for(queue: FakeQueue) -> None:
    assert set(choices.WHAT_TO_LOOK_FOR) == set(get_args(InputKind))
    page = softmax_page()
    for kind, words in choices.WHAT_TO_LOOK_FOR.items():
        page.selectbox(key="inputs").set_value(kind).run()
        assert not page.exception
        assert words in shown(page)


# A user's own Q, K and V


def numbers(page: AppTest, texts: dict[str, str]) -> AppTest:
    """The page with these pasted."""
    page.button_group(key="own_from").set_value("Numbers").run()
    for name, text in texts.items():
        page.text_area(key=f"_own_text_{name}").set_value(text)
    pressed(page, "Take these numbers")
    return page


def pressed(page: AppTest, label: str) -> None:
    next(button for button in page.button if button.label == label).click().run()
    assert not page.exception


def texts_of(rng: np.random.Generator, queries: int = 64, keys: int = 128) -> dict[str, str]:
    return {name: as_text(rng.integers(-3, 4, (length, 16))) for name, length in (("Q", queries), ("K", keys), ("V", keys))}


def test_own_inputs_are_awaited_without_a_word_of_blame(queue: FakeQueue) -> None:
    page = softmax_page(inputs="own")
    assert [element.key for element in page.button if element.key == "trace_it"] == []
    assert "not possible" not in shown(page)
    assert "Still shown:" in shown(page)


def test_pasted_numbers_are_traced_with_the_problem_that_they_have(queue: FakeQueue) -> None:
    texts = texts_of(np.random.default_rng(0))
    page = numbers(softmax_page(inputs="own", beside="v1"), texts)
    assert "Taken: Q (1, 1, 64, 16), K (1, 1, 128, 16)" in page.expander[0].label
    assert page.selectbox(key="tokens").value == "64"
    page.button(key="trace_it").click().run()
    (requests,) = queue.submitted
    assert [request.kernel for request in requests] == ["v2", "v1"]
    for request in requests:
        assert request.problem == AttentionProblem(
            num_heads=1, num_kv_heads=1, seq_len_q=64, seq_len_kv=128, head_dim=16, causal=True
        )
        assert request.own.v.numpy()[0, 0].tolist() == [list(map(float, row.split())) for row in texts["V"].splitlines()]
    queue.finish("job1", *map(answer, requests))
    page.run()
    assert {trace["inputs"] for trace in header_of(page)["traces"]} == {"own"}
    assert "Still shown" not in shown(page)


def test_other_numbers_of_the_same_shapes_are_another_trace(queue: FakeQueue) -> None:
    rng = np.random.default_rng(1)
    page = numbers(softmax_page(inputs="own"), texts_of(rng))
    page.button(key="trace_it").click().run()
    queue.finish("job1", answer(queue.submitted[0][0]))
    page.run()
    assert "Still shown" not in shown(page)
    assert "Still shown:" in shown(numbers(page, texts_of(rng)))


def test_own_inputs_stay_out_of_the_address_and_other_inputs_keep_their_shapes(queue: FakeQueue) -> None:
    page = numbers(softmax_page(inputs="own"), texts_of(np.random.default_rng(2)))
    assert not {name for name in page.query_params if "own" in name}
    page.selectbox(key="inputs").set_value("ramp").run()
    page.button(key="trace_it").click().run()
    (request,) = queue.submitted[0]
    assert (request.own, request.problem.seq_len_q, request.problem.seq_len_kv) == (None, 64, 128)


def test_numbers_that_cannot_be_are_said_and_nothing_is_traced(queue: FakeQueue) -> None:
    page = numbers(softmax_page(inputs="own"), {"Q": "1 2", "K": "1 2", "V": "1 2 3 4"})
    assert "V of shape (1, 1, 1, 4) is not possible: K has (1, 1, 1, 2)" in shown(page)
    numbers(page, {"V": "1 2"})
    assert "head_dim = 2 is not possible: it can be 16, 32, 64, 80, 96, 128 or 256." in shown(page)
    assert [element.key for element in page.button if element.key == "trace_it"] == []


def test_an_example_can_be_filled_in(queue: FakeQueue) -> None:
    page = softmax_page(inputs="own")
    page.button_group(key="own_from").set_value("Numbers").run()
    pressed(page, "Fill in an example")
    page.button(key="trace_it").click().run()
    assert queue.submitted[0][0].own == own_inputs.own_inputs(
        *(own_inputs.from_text(name, as_text(array)) for name, array in own_inputs.example().items())
    )


def test_a_repeated_snapshot_carries_its_inputs_and_the_block_that_was_watched(queue: FakeQueue) -> None:
    page = numbers(softmax_page(inputs="own", query_block="0"), texts_of(np.random.default_rng(3)))
    page.button(key="trace_it").click().run()
    (request,) = queue.submitted[0]
    (repeated,) = repeat.plan([answer(request)], "v2", records.interpreter(), 5.0).requests
    assert (repeated.inputs, repeated.own, repeated.trace) == ("own", request.own, TraceChoice(query_block=0))


def test_a_block_past_the_new_length_becomes_the_last(queue: FakeQueue) -> None:
    page = softmax_page(query_block="6")
    page.selectbox(key="tokens").set_value("64").run()
    assert page.selectbox(key="query_block").value == "last"
    assert not page.exception


def test_what_would_take_too_long_here_is_said_and_not_offered(queue: FakeQueue) -> None:
    page = softmax_page(tokens="4096")
    assert page.button(key="trace_it").disabled
    assert "4,096 tokens would take about" in shown(page)
    assert queue.submitted == []


def test_a_click_on_another_query_block_traces_it(queue: FakeQueue) -> None:
    page = softmax_page()
    page.session_state["player"] = {"said": {"tile": 3, "row": 1, "speed": 8, "clicked": {"block": 2, "at": 1}}}
    page.run()
    assert queue.submitted[0][0].trace == TraceChoice(query_block=2)
    assert page.selectbox(key="query_block").value == "2"
    assert header_of(page)["start"] == {"tile": 3, "row": 1, "speed": 8}
    queue.finish("job1", answer(queue.submitted[0][0]))
    page.run()
    page.selectbox(key="query_block").set_value("5").run()
    assert len(queue.submitted) == 1, "a click counts once"


def test_a_result_leads_to_its_tiles(queue: FakeQueue) -> None:
    run = AppTest.from_file(MAIN, default_timeout=120)
    run.run()
    run.button(key="run").click().run()
    queue.finish("job1", records.in_interpreter("v3"))
    run.run()
    (link,) = [found.proto for found in run.get("page_link") if found.proto.label == "Watch it"]
    address = {name: values[0] for name, values in parse_qs(link.query_string).items()}
    assert (address["version"], address["tokens"], address["tile_m"], address["is_causal"]) == ("v3", "256", "64", "true")
    page = softmax_page(**address)
    page.button(key="trace_it").click().run()
    assert queue.submitted[1][0].tiles.block_m == 64


def test_a_trace_is_no_result_of_the_run_page(queue: FakeQueue) -> None:
    request = request_of()
    queue.put("trace", [request])
    queue.finish("trace", answer(request))
    run = AppTest.from_file(MAIN, default_timeout=120)
    run.session_state["_owner"] = "me"
    run.run()
    assert "No NVIDIA GPU here." in shown(run)


def test_the_ledger_draws_what_the_trace_says_and_hollow_what_the_lazy_rule_leaves() -> None:
    trace = FIRST[0].tiles_trace
    found = rescale_ledger(trace, "v2", FIRST[0].request.precision, 2.0)
    drawn = ledger.chart(found, trace, LIGHT)
    done, lazy = drawn.figure.data
    m = trace.m.numpy()
    assert list(done.y) == [0, *(m[1:] > m[:-1]).sum(1)]
    assert list(lazy.y) == list(found.lazy.rescaled_rows)
    assert lazy.marker.color == "rgba(0,0,0,0)", "modelled is hollow"
    assert "τ = 2" in drawn.caption
    assert [row["rows rescaled"] for row in drawn.table] == [str(count) for count in done.y]


def test_tau_changes_what_is_saved(queue: FakeQueue) -> None:
    page = softmax_page()
    before = shown(page)
    page.slider(key="tau").set_value(0.0).run()
    assert not page.exception
    assert "τ would save" in shown(page)
    assert shown(page) != before


def test_what_ships_is_every_version_on_the_default_problem_proved_by_the_interpreter() -> None:
    shipped = read(FIRST_TRACE.read_bytes()).measurements
    assert [one.request for one in shipped] == list(first_trace.requests())
    assert [one.label for one in shipped] == ["v2", "v1", "v1 key-outer", "v3", "v3 FP8"]
    for one in shipped:
        assert one.tiles_trace.provenance == "interpreted"
        assert one.tiles_trace.replay.passed
        assert one.accuracy.passed
        assert choices.traced(one.request, shipped) is one
        assert pack([one])


def test_the_export_is_the_same_every_time_and_says_where_its_numbers_come_from() -> None:
    page = export.page_of_trace(FIRST[0])
    assert page == export.page_of_trace(FIRST[0])
    text = page.decode()
    assert "default-src 'none'" in text
    assert "interpreter on a CPU" in text
    assert "http" not in text.replace('http-equiv="', "").replace("http://www.w3.org/2000/svg", "")


def test_foreign_words_in_an_export_stay_words() -> None:
    device = records.interpreter().model_copy(update={"name": "</script><script>alert(1)</script>"})
    foreign = FIRST[0].model_copy(update={"environment": records.environment(device)})
    assert b"<script>alert" not in export.page_of_trace(foreign)


def _of_a_recording() -> None:
    from app import look
    from app.views import softmax
    from tests.traces_for_tests import traced

    look.style()
    softmax.watched([traced("v1"), traced("v2"), traced("v3", fp8=True), traced("v2", block=16)])


def test_of_many_traces_each_can_be_watched_and_beside_it_what_steps_with_it(queue: FakeQueue) -> None:
    page = AppTest.from_function(_of_a_recording, default_timeout=120).run()
    assert [trace["label"] for trace in header_of(page)["traces"]] == ["v1"]
    page.selectbox(key=state.TRACE_BESIDE_KEY).set_value(2).run()
    assert [trace["label"] for trace in header_of(page)["traces"]] == ["v1", "v3 FP8"]
    page.selectbox(key=state.WATCHED_TRACE_KEY).set_value(3).run()
    assert page.selectbox(key=state.TRACE_BESIDE_KEY).options == [choices.ALONE]
    assert [trace["blockN"] for trace in header_of(page)["traces"]] == [16]
    assert not page.exception
