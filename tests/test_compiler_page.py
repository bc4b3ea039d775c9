"""The Compiler page, driven without a browser: its fields and its address, one answer, two, none."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest
from streamlit.testing.v1 import AppTest

from app import compiler_choices as choices
from app import form_check, state
from app.compiler_shown import Shown
from app.listing import payload
from app.state.compiler import Compilations
from kernels.problem import AttentionProblem, BackwardTiles, Precision, TileConfig
from kernels.registry import VERSIONS
from profiling.assembly import STAGES, Assembly, failed
from profiling.assembly_loops import counts
from profiling.assembly_text import rows_of
from profiling.compiler_process import Question
from profiling.records import JobError, RunRequest
from tests import compiled_v2
from tests import records_for_tests as records

SMALL = {"c_head_dim": "64", "c_causal": "false", "c_block_m": "64", "c_block_n": "64", "c_num_warps": "4", "c_num_stages": "2"}


class FakeCompilations:
    """Answers every question at once, by a function of it; None: it never does."""

    def __init__(self, answer: Callable[[Question], Assembly | None]) -> None:
        self.asked: list[Question] = []
        self._answer = answer

    def of(self, question: Question) -> Future[Shown]:
        self.asked.append(question)
        future: Future[Shown] = Future()
        found = self._answer(question)
        if found is not None:
            future.set_result(Shown(found))
        return future

    def seconds(self, _question: Question) -> float:
        return 7.0

    def again(self, _question: Question) -> None:
        """Nothing was forgotten."""

    def stop(self, _question: Question) -> None:
        """Nothing runs."""


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeCompilations]:
    def use(answer: Callable[[Question], Assembly | None]) -> FakeCompilations:
        found = FakeCompilations(answer)
        monkeypatch.setattr(state, "compilations", lambda: found)
        return found

    return use


def same(question: Question) -> Assembly:
    return compiled_v2.answer().model_copy(update={"question": question})


def opened(**address: str) -> AppTest:
    page = AppTest.from_function(_script, default_timeout=120)
    for name, value in address.items():
        page.query_params[name] = value
    page.run()
    assert not page.exception
    return page


def _script() -> None:
    import streamlit as st

    from app import look, state
    from app.views import compiler

    look.style()
    pages = {"compiler": st.Page(compiler.page, title="compiler", url_path="compiler", default=True)}
    st.navigation(state.register_pages(pages), position="hidden").run()


def shown(page: AppTest) -> str:
    return "\n".join(element.proto.body for element in page.get("html") if "<style>" not in element.proto.body)


def listing(page: AppTest) -> dict:
    (component,) = page.get("bidi_component")
    return json.loads(component.proto.json)


@pytest.mark.parametrize("gpu", choices.OPTIONS["gpu"])
def test_every_version_and_format_has_a_question_or_a_reason(gpu):
    for direction in choices.OPTIONS["direction"]:
        for kernel in choices.OPTIONS["kernel"]:
            for head_dim in choices.OPTIONS["head_dim"]:
                for number in choices.OPTIONS["format"]:
                    fields = {"direction": direction, "kernel": kernel, "gpu": gpu, "head_dim": head_dim, "format": number}
                    found = choices.check(choices.FIELDS | fields)
                    assert (found.question is None) == bool(found.sentence)
                    if number != "FP8" and not (kernel == "v3-hopper" and gpu != "sm_90"):
                        assert found.question.request.direction == direction
                    if number == "FP8" and direction == "backward":
                        assert found.question is None


def test_an_address_asks_for_what_the_request_launches():
    tiles = TileConfig(block_m=128, block_n=32, num_warps=8, num_stages=4)
    for kernel, precision in (("v1", Precision(dtype="fp16")), ("v2", Precision()), ("v3", Precision(fp8=True))):
        problem = AttentionProblem(num_heads=4, num_kv_heads=4, seq_len_q=512, seq_len_kv=512, head_dim=64, causal=True)
        request = RunRequest(kernel=kernel, problem=problem, precision=precision, tiles=tiles)
        said = choices.address(request, 89)
        values = choices.FIELDS | {name.removeprefix("c_"): value for name, value in said.items()}
        asked = choices.check(values | {"causal": values["causal"] in (True, "true")}).question
        assert (asked.capability, asked.request.kernel, asked.request.tiles) == (89, kernel, tiles)
        assert asked.request.precision == precision
        assert (asked.request.problem.head_dim, asked.request.problem.causal) == (64, True)
    assert VERSIONS["v2"].name not in choices.address(request, 89)  # defaults are left out


@pytest.mark.parametrize("kernel", ["v1", "v2", "v3"])
@pytest.mark.parametrize("direction", ["backward", "both"])
def test_a_backward_s_address_has_its_tiles_and_a_step_s_both_kinds(kernel, direction):
    tiles = BackwardTiles(dkdv=records.TILES, dq=None if kernel == "v1" else records.TILES)
    measured = records.with_backward(kernel, direction, backward_tiles=tiles)
    question = choices.question_of(measured)
    said = choices.address_of(measured)
    values = choices.FIELDS | {name.removeprefix("c_"): value for name, value in said.items()}
    asked = choices.check(values | {"causal": values["causal"] in (True, "true")}).question
    assert asked == question
    if direction == "backward":
        assert (asked.request.direction, asked.request.backward_tiles) == ("backward", measured.backward_tiles)
        assert asked.request.tiles is None
    else:
        assert (asked.request.direction, asked.request.tiles) == ("forward", measured.tiles)
    backward = choices.check(values | {"causal": True, "direction": "backward"}).question
    assert backward.request.backward_tiles == measured.backward_tiles


@pytest.mark.parametrize("kernel", ["v1", "v2", "v3", "v3-hopper"])
def test_a_backward_leads_to_the_form_where_that_can_ask_for_it(kernel):
    question = choices.check(choices.FIELDS | {"kernel": kernel, "direction": "backward"}).question
    assert choices.why_not_run(question) is None
    checked = form_check.check(state.FORM_DEFAULTS | choices.run_form(question), records.gpu(), 90)
    assert checked.errors == {}
    assert (checked.request.direction, checked.request.backward_tiles) == ("backward", question.request.backward_tiles)
    other = choices.check(choices.FIELDS | {"kernel": kernel, "direction": "backward", "dkdv_num_stages": "3"}).question
    if other.request.backward_tiles != question.request.backward_tiles:
        assert "--backward-tiles takes others" in choices.why_not_run(other)
    assert choices.why_not_run(compiled_v2.QUESTION) is None


def test_a_cure_of_a_backward_s_tiles_is_not_offered_for_the_forward_s():
    found = choices.check(choices.FIELDS | {"kernel": "v2", "direction": "backward", "dkdv_block_m": "192"})
    assert "BLOCK_M = 192 is not possible with the backward of v2" in found.sentence
    assert (found.question, found.cure) == (None, None)
    assert choices.check(choices.FIELDS | {"kernel": "v2", "block_m": "192"}).cure is not None


def test_whose_backward_it_is():
    def question(**fields: str) -> Question:
        return choices.check(choices.FIELDS | fields).question

    assert choices.whose_backward(question(kernel="v3-hopper", direction="backward", head_dim="256").request) == "v3"
    assert choices.whose_backward(question(kernel="v3-hopper", direction="backward").request) is None
    assert choices.whose_backward(question(kernel="v3-hopper", head_dim="256").request) is None


@pytest.mark.parametrize("kernel", ["v1", "v2", "v3"])
@pytest.mark.parametrize("fp8", [False, True])
def test_a_result_leads_to_what_it_launched_and_that_to_the_form(kernel, fp8):
    if fp8 and not VERSIONS[kernel].has_fp8:
        return
    measured = records.on_gpu(kernel, fp8=fp8)
    question = choices.question_of(measured)
    assert (question.capability, question.request.kernel) == (90, kernel)
    assert (question.request.tiles, question.request.precision) == (measured.tiles, measured.request.precision)
    form = state.FORM_DEFAULTS | choices.run_form(question)
    checked = form_check.check(form, records.gpu(), 90)
    assert checked.errors == {}
    assert (checked.request.kernel, checked.request.tiles) == (kernel, measured.tiles)
    assert (checked.request.precision.dtype, checked.request.precision.fp8) == (measured.request.precision.dtype, fp8)
    assert checked.request.problem.head_dim == measured.request.problem.head_dim
    assert checked.request.problem.causal == measured.request.problem.causal


def test_without_a_gpu_the_question_is_of_the_gpu_that_was_compiled_for():
    assert choices.question_of(records.in_interpreter("v2")).capability == 90


def test_what_the_page_has_no_field_for_has_no_question():
    other_way = records.TILES.model_copy(update={"block_order": "natural"})
    usual = choices.question_of(records.on_gpu("v2")).request.tiles
    assert usual.block_order != other_way.block_order
    assert choices.question_of(records.on_gpu("v2", tiles=other_way)) is None
    assert choices.question_of(records.on_gpu("native")) is None
    assert choices.question_of(records.on_gpu("fa3")) is None


def test_an_address_is_compiled_and_counted(compiler):
    found = compiler(same)
    page = opened(**SMALL)
    assert {question.model_dump_json() for question in found.asked} == {compiled_v2.QUESTION.model_dump_json()}
    kernel = Shown(compiled_v2.answer()).kernel(None)
    words = re.sub(r"<[^>]+>", " ", shown(page))
    assert f"{kernel.report.registers_per_thread}" in words
    for name, count in counts(kernel.code.instructions).items():
        assert re.search(rf"\s{re.escape(name)}\s+{count:,}\s", words), name
    assert "binds" in words
    assert "flash_v2.py:79" in words or kernel.code.loops[0].name.split(" ")[0] in words


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_is_listed_whole_with_its_source(compiler, stage):
    compiler(same)
    data = listing(opened(**SMALL, c_show=STAGES[stage]))
    texts = compiled_v2.answer().kernels[-1].texts
    assert data["rows"] == texts[stage].rstrip("\n")
    rows = rows_of(stage, texts)
    for place, row in enumerate(rows):
        chain = data["chains"][data["chain"][place]] if data["chain"][place] >= 0 else []
        assert [(data["files"][file]["name"], line) for file, line in chain] == [tuple(one) for one in row.chain]
    assert {one["name"]: one["text"] for one in data["files"] if one["text"]} == compiled_v2.answer().sources


SMALL_BACKWARD = {
    "c_direction": "backward", "c_head_dim": "64", "c_causal": "false", "c_dkdv_block_m": "32", "c_dkdv_block_n": "64",
    "c_dkdv_num_warps": "4", "c_dkdv_num_stages": "2", "c_dq_block_m": "64", "c_dq_block_n": "64", "c_dq_num_warps": "4",
    "c_dq_num_stages": "2",
}  # fmt: skip


def same_backward(question: Question) -> Assembly:
    return compiled_v2.backward().model_copy(update={"question": question})


@pytest.mark.parametrize(("title", "part"), [(None, "dkdv"), ("dQ", "dq"), ("delta", "delta"), ("<b>", "dkdv")])
def test_each_kernel_of_a_backward_is_counted_and_named(compiler, title, part):
    found = compiler(same_backward)
    page = opened(**SMALL_BACKWARD, **({"c_part": title} if title else {}))
    assert {question.model_dump_json() for question in found.asked} == {compiled_v2.BACKWARD.model_dump_json()}
    kernel = Shown(compiled_v2.backward()).kernel(part)
    words = re.sub(r"<[^>]+>", " ", shown(page))
    for name, count in counts(kernel.code.instructions).items():
        assert re.search(rf"\s{re.escape(name)}\s+{count:,}\s", words), name
    tiles = {"dkdv": "dK, dV · 32 × 64, 4 warps", "dq": "dQ · 64 × 64, 4 warps", "delta": "delta"}[part]
    assert f"v2 backward · {tiles}" in words
    for other in {"dkdv": "dK, dV (32 × 64", "dq": "dQ (64 × 64", "delta": "delta:"}.items():
        assert (other[1] in words) == (other[0] != part)


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_of_a_backward_s_kernel_is_listed_whole(compiler, stage):
    compiler(same_backward)
    data = listing(opened(**SMALL_BACKWARD, c_part="dQ", c_show=STAGES[stage]))
    (kernel,) = (one for one in compiled_v2.backward().kernels if one.part == "dq")
    assert data["rows"] == kernel.texts[stage].rstrip("\n")


def test_two_backwards_stand_side_by_side_kernel_by_kernel(compiler):
    compiler(same_backward)
    both = SMALL_BACKWARD | {name.replace("c_", "d_", 1): value for name, value in SMALL_BACKWARD.items()}
    page = opened(**both | {"c_compare": "true", "d_dq_num_stages": "3", "c_part": "dQ"})
    assert page.segmented_control(key="c_part").options == ["dK, dV", "dQ", "delta"]
    assert shown(page).count("Programs at once on an SM") == 2
    assert "Second: v2 backward · dQ · 64 × 64, 4 warps, 3 stages" in shown(page)


def test_a_forward_beside_a_backward_shows_each_one_s_main_kernel(compiler):
    compiler(lambda question: (same if question.request.direction == "forward" else same_backward)(question))
    second = {name.replace("c_", "d_", 1): value for name, value in SMALL_BACKWARD.items()}
    page = opened(**SMALL, **second, c_compare="true")
    assert "First: v2 · 64 × 64" in shown(page)
    assert "Second: v2 backward · dK, dV · 32 × 64" in shown(page)
    assert not [one for one in page.segmented_control if one.key == "c_part"]


def test_a_stage_is_offered_where_the_kernel_that_is_shown_has_it(compiler):
    def gluon(question: Question) -> Assembly:
        *others, main = compiled_v2.backward().kernels
        texts = {stage: text for stage, text in main.texts.items() if stage != "ttir"}
        return same_backward(question).model_copy(update={"kernels": (*others, main.model_copy(update={"texts": texts}))})

    compiler(gluon)
    page = opened(**SMALL_BACKWARD, c_show="TTIR", c_part="delta")
    assert listing(page)["rows"]
    page = page.segmented_control(key="c_part").set_value("dK, dV").run()
    assert not page.exception
    assert "TTIR" not in page.segmented_control(key="c_show").options
    assert "Instructions, by what they are for" in shown(page)


def test_a_field_is_out_of_sight_where_it_says_nothing(compiler):
    """Each is drawn all the same, so that a link keeps it."""
    compiler(lambda question: (same if question.request.direction == "forward" else same_backward)(question))
    page = opened(**SMALL)
    page.selectbox(key="c_direction").set_value("backward").run()
    page.selectbox(key="c_dq_block_m").set_value("128").run()
    page.selectbox(key="c_direction").set_value("forward").run()
    assert not page.exception
    assert page.selectbox(key="c_dq_block_m").value == "128"
    assert page.selectbox(key="c_block_m").value == "64"


def test_what_the_run_page_cannot_ask_for_is_no_button(compiler):
    compiler(same_backward)
    assert opened(**SMALL_BACKWARD).button(key="c_run").disabled
    assert not opened(c_direction="backward").button(key="c_run").disabled


def test_two_configurations_stand_side_by_side(compiler):
    compiler(same)
    both = (
        SMALL | {name.replace("c_", "d_"): value for name, value in SMALL.items()} | {"c_compare": "true", "d_block_m": "128"}
    )
    page = opened(**both)
    assert shown(page).count("Programs at once on an SM") == 2
    page = opened(**both, c_show="SASS")
    assert "The two texts are the same" in shown(page)
    assert listing(opened(**both, c_show="SASS", c_side="Second"))["loops"]


def test_the_second_configuration_begins_as_the_first(compiler):
    found = compiler(same)
    page = opened(**SMALL)
    page.toggle(key="c_compare").set_value(True).run()
    assert not page.exception
    assert page.selectbox(key="d_head_dim").value == "64"
    assert page.toggle(key="d_causal").value is False
    assert found.asked[-1] == compiled_v2.QUESTION


def test_what_cannot_be_is_one_sentence_and_asks_nothing(compiler):
    found = compiler(same)
    page = opened(c_kernel="v3-hopper", c_gpu="sm_89")
    assert "v3-hopper is not possible on sm_89 (Ada)" in shown(page)
    assert found.asked == []
    opened(c_head_dim="<b>", c_causal="maybe", c_block_m="7")  # what no field can hold is as if it were not there
    assert found.asked[0].request.problem.head_dim == 128


def test_what_does_not_compile_shows_the_compilers_words_folded(compiler):
    error = JobError(kind="compile", sentence="v2 could not be compiled: <no>.", raw="loc: <b>error</b>")
    compiler(lambda question: Assembly(question=question, error=error))
    page = opened(**SMALL)
    assert "v2 could not be compiled: &lt;no&gt;." in shown(page)
    assert [code.value for code in page.code] == ["loc: <b>error</b>"]


def test_while_the_compiler_is_at_it_the_last_answer_stays(compiler):
    compiler(lambda question: same(question) if question.capability == 90 else None)
    page = opened(**SMALL, c_show="SASS")
    before = listing(page)
    page.selectbox(key="c_gpu").set_value("sm_80").run()
    assert not page.exception
    assert "compiling · 7 s" in shown(page)
    assert listing(page) == before


class SlowAssembler:
    """Compiles until it is stopped."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def kept(self, _question: Question) -> None:
        return None

    def answer(self, question: Question) -> Assembly:
        assert self.stopped.wait(120)
        self.stopped.clear()
        return failed(question, "cancelled", "Stopped.")

    def stop(self) -> None:
        self.stopped.set()


def test_a_question_is_asked_once_and_can_be_given_up_while_it_waits_or_runs():
    found = Compilations(SlowAssembler)
    questions = [compiled_v2.QUESTION.model_copy(update={"capability": capability}) for capability in (80, 86, 90)]
    first, second, waiting = (found.of(question) for question in questions)
    assert found.of(questions[0]) is first
    while not (first.running() and second.running()):
        time.sleep(0.01)
    found.stop(questions[2])
    assert waiting.cancelled()
    assert found.of(questions[2]).result().assembly.error.kind == "cancelled"
    while not first.done():  # it takes a moment until a thread has its compiler
        found.stop(questions[0])
        time.sleep(0.01)
    assert first.result().assembly.error.kind == "cancelled"
    assert not second.done()
    found.again(questions[0])
    assert found.of(questions[0]) is not first
    while not (second.done() and found.of(questions[0]).done()):
        for question in questions[:2]:
            found.stop(question)
        time.sleep(0.01)


def test_a_payload_is_plain_json(compiler):
    kernel = Shown(compiled_v2.answer()).kernel(None)
    data = payload.pack(kernel.rows("sass"), kernel.sources, kernel.code)
    assert json.loads(json.dumps(data)) == data
    assert [len(data[name]) for name in ("start", "end", "marks", "chain", "kind")] == [len(data["rows"].split("\n"))] * 5
