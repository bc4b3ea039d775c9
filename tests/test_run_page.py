"""The Run page and the gallery, driven without a browser: a queue that runs nothing holds the states."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from streamlit.testing.v1 import AppTest

from app import state
from app.views import run_status
from kernels.problem import Precision
from profiling.records import PROBES, JobError, Phase, Progress, RunRequest
from tests import records_for_tests as records
from tests.fake_queue import FakeQueue, result_of

MAIN = Path(__file__).parent.parent / "app" / "main.py"


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> FakeQueue:
    queue = FakeQueue((records.interpreter(),))
    monkeypatch.setattr(state, "job_queue", lambda: queue)
    return queue


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> FakeQueue:
    queue = FakeQueue((records.gpu(), records.interpreter()))
    monkeypatch.setattr(state, "job_queue", lambda: queue)
    return queue


def wait_until(something: Callable[[], object]) -> None:
    for _ in range(200):
        if something():
            return
        time.sleep(0.05)


def opened(**address: str) -> AppTest:
    page = AppTest.from_file(MAIN, default_timeout=120)
    for name, value in address.items():
        page.query_params[name] = value
    page.run()
    assert not page.exception
    return page


def shown(page: AppTest) -> str:
    """All text that went through st.html, in order."""
    return "\n".join(element.proto.body for element in page.get("html") if "<style>" not in element.proto.body)


def titles_of_charts(page: AppTest) -> int:
    return len(page.get("plotly_chart"))


def test_without_a_gpu_the_page_says_what_works_and_offers_three_ways_on(on_cpu: FakeQueue) -> None:
    page = opened()
    assert "No NVIDIA GPU here." in shown(page)
    assert {"Run the tiny problem here", "Open the gallery"} <= {button.label for button in page.button}
    assert on_cpu.submitted == []


def test_the_worker_starts_with_the_page_and_only_once(on_cpu: FakeQueue) -> None:
    page = opened()
    page.selectbox(key="dtype").set_value("fp16").run()
    wait_until(lambda: on_cpu.warmed)
    assert on_cpu.warmed == ["interpreter"]


def test_run_sends_what_the_form_says_and_the_page_follows_it(on_cpu: FakeQueue) -> None:
    page = opened()
    page.selectbox(key="num_heads").set_value("4").run()
    assert on_cpu.submitted == [], "choosing a value launches nothing"
    page.selectbox(key="num_kv_heads").set_value("1").run()
    page.button(key="run").click().run()
    (request,) = on_cpu.submitted[0]
    assert (request.kernel, request.problem.num_heads, request.problem.num_kv_heads) == ("v3", 4, 1)
    assert request.device == "interpreter"
    assert page.query_params["job"] == "job1"
    on_cpu.finish("job1", records.in_interpreter())
    page.run()
    assert "correct" in shown(page)
    assert "interpreter, not GPU time" in shown(page)
    assert "TFLOP/s" not in shown(page)


def test_the_tiny_button_runs_the_tiny_problem(on_cpu: FakeQueue) -> None:
    page = opened(seq_len="512")
    next(button for button in page.button if button.label == "Run the tiny problem here").click().run()
    (request,) = on_cpu.submitted[0]
    assert request.problem == records.TINY


def test_run_all_is_one_job_of_every_version(with_gpu: FakeQueue) -> None:
    page = opened()
    page.button(key="run_all").click().run()
    assert len(with_gpu.submitted) == 1
    assert [request.kernel for request in with_gpu.submitted[0]][:4] == ["native", "v1", "v2", "v3"]


def test_a_direction_is_asked_for_and_its_result_says_where_the_time_goes(with_gpu: FakeQueue) -> None:
    page = opened(kernel="v2", direction="both")
    assert "A training step's attention" in "\n".join(caption.value for caption in page.caption)
    page.button(key="run").click().run()
    (request,) = with_gpu.submitted[0]
    assert (request.direction, request.backward_tiles is None) == ("both", False)
    with_gpu.finish("job1", records.with_backward("v2"))
    page.run()
    text = shown(page)
    for words in ("FlashAttention v2 · forward + backward", "Gradients", "Where a step", "Of this training step", "69.7 %"):
        assert words in text, words


def test_wrong_gradients_show_their_error_and_no_speed(with_gpu: FakeQueue) -> None:
    page = opened(kernel="v2", direction="both")
    page.button(key="run").click().run()
    with_gpu.finish("job1", records.with_backward("v2", passed=False))
    page.run()
    text = shown(page)
    assert "dk rel. error" in text
    assert "wrong gradients have no speed" in text
    assert "TFLOP/s" not in text


def test_other_tiles_run_beside_the_default_ones_and_are_judged(with_gpu: FakeQueue) -> None:
    page = opened(kernel="v2")
    assert "run_beside" not in {button.key for button in page.button}, "there is nothing to tell apart"
    page.selectbox(key="block_n").set_value("32").run()
    page.button(key="run_beside").click().run()
    first, second = with_gpu.submitted[0]
    assert (first.kernel, second.kernel, second.tiles.block_n) == ("v2", "v2", 32)
    assert first.tiles != second.tiles
    slow, quick = (records.on_gpu("v2", request=one, tiles=one.tiles) for one in (first, second))
    quick = quick.model_copy(update={"latency": records.latency(2.0)})
    with_gpu.finish("job1", slow, quick)
    page.run()
    text = shown(page)
    assert "FlashAttention v2 with 2 settings" in text
    assert f"against v2 · {first.tiles.title} (A): FASTER 1.10×." in text
    spec = json.loads(page.get("plotly_chart")[0].proto.spec)
    assert spec["layout"]["yaxis"]["ticktext"] == [f"v2 {one.tiles.block_m}×{one.tiles.block_n}" for one in (first, second)]


def test_on_a_gpu_an_untouched_form_starts_with_a_problem_worth_it(with_gpu: FakeQueue) -> None:
    assert opened().selectbox(key="seq_len").value == "16384"
    assert opened(seq_len="512").selectbox(key="seq_len").value == "512"


def test_a_link_restores_the_form_at_the_first_look(on_cpu: FakeQueue) -> None:
    page = opened(kernel="v1", seq_len="128", causal="false", block_m="32", loop_order="key", head_dim="128", fp8="true")
    page.button(key="run").click().run()
    (request,) = on_cpu.submitted[0]
    assert request.kernel == "v1"
    assert (request.problem.seq_len_q, request.problem.causal, request.problem.head_dim) == (128, False, 128)
    assert (request.tiles.block_m, request.tiles.loop_order) == (32, "key")
    assert not request.precision.fp8


@pytest.mark.parametrize(
    "address",
    [{"kernel": "v9"}, {"causal": "maybe"}, {"block_m": "77"}, {"device": "GPU-none"}, {"compile_for": "x"}, {"job": "gone"}],
)
def test_a_broken_link_still_opens(on_cpu: FakeQueue, address: dict[str, str]) -> None:
    page = opened(**address)
    assert not page.button(key="run").disabled


def test_a_bad_value_stands_at_its_field_and_loses_nothing(on_cpu: FakeQueue) -> None:
    page = opened()
    page.selectbox(key="head_dim").set_value("128").run()
    page.selectbox(key="num_kv_heads").set_value("4").run()
    assert page.button(key="run").disabled
    assert "num_kv_heads = 4 is not possible: it can be 1 to 2." in shown(page)
    assert page.selectbox(key="head_dim").value == "128"


def test_a_preset_sets_the_problem_and_puts_tiles_back(with_gpu: FakeQueue) -> None:
    page = opened()
    page.selectbox(key="block_m").set_value("64").run()
    page.pills(key="preset").set_value("Llama 3 8B").run()
    page.button(key="run").click().run()
    (request,) = with_gpu.submitted[0]
    assert (request.problem.num_heads, request.problem.num_kv_heads, request.problem.seq_len_q) == (32, 8, 8192)
    assert page.selectbox(key="block_m").value == "auto"


def test_the_defaults_button_puts_tiles_back(with_gpu: FakeQueue) -> None:
    page = opened(block_m="32", num_warps="2")
    next(button for button in page.button if button.label == "Defaults").click().run()
    assert [page.selectbox(key=name).value for name in state.TILE_FIELDS] == ["auto"] * 4


def test_fp8_is_disabled_with_the_reason(with_gpu: FakeQueue) -> None:
    page = opened(kernel="v2")
    fp8 = next(toggle for toggle in page.toggle if toggle.label == "FP8")
    assert fp8.disabled
    assert "only v3" in fp8.help
    assert not next(toggle for toggle in opened(kernel="v3").toggle if toggle.label == "FP8").disabled


@pytest.mark.parametrize(("kernel", "turned"), [("v3-hopper", True), ("v2", False)])
def test_q_and_k_can_be_turned_before_fp8_where_the_version_does_that(with_gpu: FakeQueue, kernel: str, turned: bool) -> None:
    page = opened(kernel=kernel, head_dim="128", fp8="true", hadamard="true", energy="false")
    assert next(toggle for toggle in page.toggle if toggle.label == "Hadamard").disabled is not turned
    page.button(key="run").click().run()
    (request,) = with_gpu.submitted[0]
    assert (request.precision.fp8, request.precision.hadamard) == (turned, turned)
    assert request.precision.fp8_scale == ("block" if turned else "token"), "v3-hopper has no other"
    assert "energy" not in request.probes


def test_energy_is_asked_for_where_there_is_a_counter(with_gpu: FakeQueue) -> None:
    page = opened()
    page.button(key="run_all").click().run()
    assert {request.probes for request in with_gpu.submitted[0]} == {(*PROBES, "energy")}
    here = opened(device="Interpreter (CPU)", seq_len="256")
    here.button(key="run").click().run()
    assert with_gpu.submitted[1][0].probes == PROBES


def test_a_waiting_job_says_its_place_and_can_be_cancelled(with_gpu: FakeQueue) -> None:
    request = records.on_gpu().request
    with_gpu.put("old", [request])
    with_gpu.finish("old", records.on_gpu())
    with_gpu.put("new", [request], position=3, running_title="v2 · 64k", running_owner="someone", estimated_wait_s=20.0)
    page = opened(job="new")
    text = shown(page)
    assert "3rd in the queue" in text
    assert "v2 · 64k runs now, from another tab · about 20 s until yours" in text
    assert "The last run that worked" in text
    assert "TFLOP/s" in text, "the last result stays"
    page.button(key="cancel").click().run()
    assert with_gpu.view("new").state == "cancelled"


def test_a_running_job_shows_its_phase(with_gpu: FakeQueue) -> None:
    with_gpu.put("new", [records.on_gpu().request])
    with_gpu.run("new", Progress(job_id="new", phase="latency", text="Timing launches", done=2, total=5))
    page = opened(job="new")
    assert "Timing launches · 2 of 5 · 3 s" in shown(page)


def test_progress_never_goes_back() -> None:
    queue = FakeQueue((records.gpu(),))
    queue.put("j", [records.on_gpu().request])
    shares = []
    phases = ("starting", "compile", "inputs", "check", "latency", "memory", "energy", "observe", "trace", "schedule")
    assert set(phases) == set(get_args(Phase))
    for phase in phases:
        for done in (0, 1, 2):
            queue.run("j", Progress(job_id="j", phase=phase, text="", done=done, total=2))
            shares.append(run_status._share(queue.view("j")))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_a_job_that_failed_offers_its_cure_and_keeps_the_last_result(with_gpu: FakeQueue) -> None:
    with_gpu.put("old", [records.on_gpu().request])
    with_gpu.finish("old", records.on_gpu())
    failed = records.failed()
    with_gpu.put("new", [failed.request])
    with_gpu.finish("new", failed)
    page = opened(job="new", kernel="v3", block_n="512")
    assert "BLOCK_N = 512 does not fit" in shown(page)
    assert "The last run that worked" in shown(page)
    page.button(key="cure_and_run").click().run()
    (request,) = with_gpu.submitted[0]
    assert request.tiles == failed.error.cure


def test_a_worker_that_died_is_said_plainly(on_cpu: FakeQueue) -> None:
    request = RunRequest(kernel="v2", problem=records.TINY)
    on_cpu.put("new", [request])
    on_cpu.finish(
        "new", result_of(request, records.interpreter(), JobError(kind="crashed", sentence="The worker ended (signal 9)."))
    )
    page = opened(job="new")
    assert "The worker ended (signal 9)." in shown(page)
    assert not page.button(key="run").disabled


def test_a_wrong_output_shows_its_error_and_no_speed(with_gpu: FakeQueue) -> None:
    with_gpu.put("bad", [records.on_gpu().request])
    with_gpu.finish("bad", records.on_gpu(passed=False))
    text = shown(opened(job="bad"))
    assert "WRONG" in text
    assert "4.1e\u22121" in text
    assert "a wrong output has no speed" in text
    assert "TFLOP/s" not in text


def test_fp8_shows_the_time_with_the_prepass_beside_it(with_gpu: FakeQueue) -> None:
    with_gpu.put("fp8", [records.on_gpu(fp8=True).request])
    with_gpu.finish("fp8", records.on_gpu(fp8=True))
    text = shown(opened(job="fp8"))
    assert "with the FP8 pre-pass 2.22 ms" in text
    assert "28 % of 1,979, the data sheet" in text


def test_all_charts_of_a_gpu_run_and_their_tables(with_gpu: FakeQueue) -> None:
    measurements = records.recording().measurements
    with_gpu.put("all", [one.request for one in measurements])
    with_gpu.finish("all", *measurements)
    page = opened(job="all")
    assert titles_of_charts(page) == 6
    assert "<table>" not in shown(page)
    page.toggle(key="tables").set_value(True).run()
    assert shown(page).count("<table>") == 8


def test_on_the_interpreter_versions_are_a_table_of_proofs(on_cpu: FakeQueue) -> None:
    measurements = [records.in_interpreter(kernel) for kernel in ("native", "v1", "v2", "v3")]
    on_cpu.put("all", [one.request for one in measurements])
    on_cpu.finish("all", *measurements)
    text = shown(opened(job="all"))
    assert text.count("<td>correct</td>") == 4
    assert "TFLOP/s" not in text


def test_one_version_that_failed_does_not_hide_the_others(with_gpu: FakeQueue) -> None:
    measurements = (records.on_gpu("v2"), records.failed("v3"))
    with_gpu.put("mixed", [one.request for one in measurements])
    with_gpu.finish("mixed", *measurements)
    text = shown(opened(job="mixed"))
    assert "FlashAttention v3 did not run." in text
    assert "498" in text


def test_while_devices_are_looked_for_the_page_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = FakeQueue((records.gpu(),), ready=False)
    monkeypatch.setattr(state, "job_queue", lambda: queue)
    page = opened(device="H200 · GPU-487a")
    assert "looking for GPUs" in shown(page)
    assert page.button(key="run").disabled
    queue.devices_ready = True
    page.run()
    assert "looking for GPUs" not in shown(page)
    assert page.selectbox(key="device").value == "H200 · GPU-487a"


@pytest.fixture
def gallery(monkeypatch: pytest.MonkeyPatch, tmp_path, on_cpu: FakeQueue) -> AppTest:
    nasty = '<img src=x onerror="alert(1)"> **bold** :red[x]'
    found = records.recording(title=nasty, note=nasty)
    (tmp_path / "one.json").write_text(found.document.decode())
    (tmp_path / "broken.json").write_text('{"title": 1}')
    monkeypatch.setattr(state, "GALLERY", tmp_path)
    page = opened()
    next(button for button in page.button if button.label == "Open the gallery").click().run()
    assert not page.exception
    return page


def test_the_gallery_lists_and_opens_recordings(gallery: AppTest) -> None:
    assert "recording · H200 · 29 Nov 2026" in shown(gallery)
    assert "broken is not a recording" in shown(gallery)
    gallery.button(key="open one").click().run()
    assert not gallery.exception
    assert "not measured here" in shown(gallery)
    assert titles_of_charts(gallery) == 6
    next(button for button in gallery.button if button.label == "All recordings").click().run()
    assert titles_of_charts(gallery) == 0


def test_the_gallery_opens_from_a_filled_form(on_cpu: FakeQueue) -> None:
    page = opened(seq_len="64", kernel="v2")
    next(button for button in page.button if button.label == "Open the gallery").click().run()
    assert not page.exception
    assert "Recordings from a real GPU" in shown(page)


def test_text_of_a_recording_is_never_markup(gallery: AppTest) -> None:
    gallery.button(key="open one").click().run()
    assert "&lt;img src=x" in shown(gallery)
    assert "<img" not in shown(gallery)
    assert not any("bold" in element.value for element in gallery.markdown)


def test_precision_of_the_title(with_gpu: FakeQueue) -> None:
    request = records.on_gpu().request.model_copy(update={"precision": Precision(dtype="fp16")})
    with_gpu.put("half", [request])
    with_gpu.finish("half", records.on_gpu(request=request))
    assert "FlashAttention v3 · 16,384 tokens · head_dim 128 · causal · fp16" in shown(opened(job="half"))
