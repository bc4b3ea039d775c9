"""The pages of snapshots, driven without a browser: saving, the list, an opened one, a file, running it again here."""

from __future__ import annotations

import json
import re

import pytest
from streamlit.testing.v1 import AppTest

from app import repeat, state
from kernels.problem import Precision
from profiling.plausibility import implausible
from profiling.snapshot import Snapshot, canonical, file_of, read
from profiling.store import StoreProblem
from tests import records_for_tests as records
from tests.fake_queue import FakeQueue
from tests.fake_store import FakeStore
from tests.test_run_page import opened, shown

NASTY = '<img src=x onerror="alert(1)"> **b** :red[x] [l](javascript:alert(1)) $x$'


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FakeStore:
    found = FakeStore()
    monkeypatch.setattr(state, "store", lambda: found)
    return found


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> FakeQueue:
    found = FakeQueue((records.interpreter(),))
    monkeypatch.setattr(state, "job_queue", lambda: found)
    return found


@pytest.fixture
def no_gallery(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(state, "GALLERY", tmp_path)


@pytest.fixture
def result(queue: FakeQueue, store: FakeStore, no_gallery: None) -> AppTest:
    """The Run page with a finished job on it."""
    queue.put("done", [records.in_interpreter().request])
    queue.finish("done", records.in_interpreter())
    return opened(job="done")


def snapshots(**words: str) -> AppTest:
    """The list, reached as a mistyped link reaches it."""
    return opened(snapshot="00000000", **words)


def kept(store: FakeStore, *titles: str, origin: str = "here") -> list[str]:
    """Ids of snapshots with these titles, in the store."""
    return [store.save(records.recording(title, kernels=("v2", "v3")), "test", origin) for title in titles]


def button(page: AppTest, label: str):
    return next(one for one in page.button if one.label == label)


def link_in(page: AppTest) -> str:
    return next(code.value for code in page.code if "snapshot=" in code.value)


def test_one_click_saves_and_gives_the_link(result: AppTest, store: FakeStore) -> None:
    result.button(key="save").click().run()
    assert not result.exception
    (one,) = store.kept.values()
    assert link_in(result).endswith(f"/snapshots?snapshot={one.id}")
    assert (one.origin, one.snapshot.author, one.snapshot.host) == ("here", "", "")
    assert one.snapshot.title == "FlashAttention v3 · 256 tokens · head_dim 64 · causal · bf16"
    assert one.snapshot.measurements == (records.in_interpreter(),)
    assert "Saved" in [found.label for found in result.button]
    assert "save" not in [found.key for found in result.button]


def test_saving_the_same_again_says_that_it_is_there(result: AppTest, store: FakeStore) -> None:
    result.button(key="save").click().run()
    again = opened(job="done")
    again.button(key="save").click().run()
    assert len(store.kept) == 1
    assert "It is already here" in shown(again)
    assert link_in(again) == link_in(result)


def test_a_store_that_fails_is_said_and_nothing_claims_to_be_saved(result: AppTest, store: FakeStore) -> None:
    store.problem = "The disk is full: make room and try again."
    result.button(key="save").click().run()
    assert not result.exception
    assert store.problem in shown(result)
    assert not result.code
    assert result.button(key="save")


def test_words_and_names_go_in_only_when_they_are_given(result: AppTest, store: FakeStore, monkeypatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-box")
    result.button(key="icon-save-with-words").click().run()
    result.text_input(key="save-title").set_value("Mine")
    result.text_area(key="save-note").set_value("one\ntwo")
    result.text_input(key="save-tags").set_value("Smoke, h200, smoke")
    result.text_input(key="save-author").set_value("Ada")
    result.button(key="save-now").click().run()
    (one,) = store.kept.values()
    assert (one.snapshot.title, one.snapshot.note, one.snapshot.tags) == ("Mine", "one\ntwo", ("h200", "smoke"))
    assert (one.snapshot.author, one.snapshot.host) == ("", "")
    assert store.log[0].who == "Ada"


def test_names_go_in_when_ticked(result: AppTest, store: FakeStore, monkeypatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-box")
    result.button(key="icon-save-with-words").click().run()
    result.text_input(key="save-author").set_value("Ada")
    result.checkbox(key="save-with-author").check()
    result.checkbox(key="save-with-host").check()
    result.button(key="save-now").click().run()
    (one,) = store.kept.values()
    assert (one.snapshot.author, one.snapshot.host) == ("Ada", "gpu-box")


def test_a_title_that_is_not_possible_is_said_in_the_dialog(result: AppTest, store: FakeStore) -> None:
    result.button(key="icon-save-with-words").click().run()
    result.text_input(key="save-title").set_value("   ")
    result.button(key="save-now").click().run()
    assert not store.kept
    assert "a title without a visible character is not possible" in shown(result)


def test_paths_and_users_are_shown_and_stay_here(queue: FakeQueue, store: FakeStore, no_gallery: None) -> None:
    secret = "/home/ada/secret/kernel.py"
    raw = f'File "{secret}", line 3'
    broken = records.failed(error=records.failed().error.model_copy(update={"raw": raw}))
    queue.put("mixed", [records.on_gpu().request, broken.request])
    queue.finish("mixed", records.on_gpu(), broken)
    page = opened(job="mixed")
    page.button(key="icon-save-with-words").click().run()
    assert secret in shown(page)
    page.button(key="save-now").click().run()
    (one,) = store.kept.values()
    assert "secret" not in one.snapshot.document.decode()


def test_paths_leave_when_their_owner_says_so(queue: FakeQueue, store: FakeStore, no_gallery: None) -> None:
    secret = "/home/ada/secret/kernel.py"
    raw = f'File "{secret}", line 3'
    broken = records.failed(error=records.failed().error.model_copy(update={"raw": raw}))
    queue.put("mixed", [records.on_gpu().request, broken.request])
    queue.finish("mixed", records.on_gpu(), broken)
    page = opened(job="mixed")
    page.button(key="icon-save-with-words").click().run()
    page.checkbox(key="save-with-personal").check()
    page.button(key="save-now").click().run()
    (one,) = store.kept.values()
    assert secret in one.snapshot.document.decode()


def test_an_empty_store_says_what_a_snapshot_is(queue: FakeQueue, store: FakeStore, no_gallery: None) -> None:
    page = snapshots()
    assert "A snapshot is a result to share." in shown(page)
    assert {"to-run", "to-gallery"} <= {one.key for one in page.button}


def test_a_store_that_is_not_there_is_said_with_a_way_on(queue: FakeQueue, no_gallery: None, monkeypatch) -> None:
    monkeypatch.setattr(state, "store", lambda: "The folder /nowhere cannot be written: choose another.")
    page = snapshots()
    assert "The folder /nowhere cannot be written" in shown(page)
    assert page.file_uploader
    page.file_uploader[0].set_value(("a.json", records.recording("Sent").document, "application/json")).run()
    assert "Sent" in shown(page)
    page.button(key="keep").click().run()
    assert not page.exception
    assert "The folder /nowhere cannot be written" in shown(page)


def test_an_unknown_link_says_so_above_the_list(queue: FakeQueue, store: FakeStore, no_gallery: None) -> None:
    kept(store, "There")
    page = opened(snapshot="<b>abcdefgh</b>")
    assert "snapshot = &lt;b&gt;abcdefgh&lt;/b&gt; is not here" in shown(page)
    assert "There" in shown(page)


def test_the_list_is_newest_first_with_a_count_and_pages(queue: FakeQueue, store: FakeStore, no_gallery: None) -> None:
    kept(store, *(f"number {place}" for place in range(25)))
    page = snapshots()
    assert "25 snapshots" in shown(page)
    titles = re.findall(r"number (\d+)", shown(page))
    assert titles == [str(place) for place in range(24, 4, -1)]
    page.pagination[0].set_value(2).run()
    assert re.findall(r"number (\d+)", shown(page)) == ["4", "3", "2", "1", "0"]


def test_search_and_filters_restrict_the_list(queue: FakeQueue, store: FakeStore, no_gallery: None) -> None:
    kept(store, "alpha", "beta")
    store.save(records.recording("gamma", kernels=("native",)), "test")
    page = snapshots()
    page.text_input(key="find").set_value("BET").run()
    assert "beta" in shown(page)
    assert "alpha" not in shown(page)
    button(page, "Clear search and filters").click().run()
    assert "alpha" in shown(page)
    page.selectbox(key=state.VERSION_KEY).set_value("native").run()
    assert "gamma" in shown(page)
    assert "alpha" not in shown(page)


def test_filters_are_read_from_the_address(queue: FakeQueue, store: FakeStore, no_gallery: None) -> None:
    kept(store, "alpha", "beta")
    page = snapshots(find="alpha")
    assert page.text_input(key="find").value == "alpha"
    assert "beta" not in shown(page)


def test_delete_offers_the_undo(queue: FakeQueue, store: FakeStore, no_gallery: None) -> None:
    (one,) = kept(store, "gone soon")
    page = snapshots()
    page.button(key=f"icon-delete-{one}").click().run()
    assert store.kept[one].deleted_at is not None
    assert "gone soon is deleted." in shown(page)
    page.button(key="undo-delete").click().run()
    assert store.kept[one].deleted_at is None
    assert "undo-delete" not in [found.key for found in page.button]


def test_deleted_ones_are_listed_when_asked_for_and_come_back(queue: FakeQueue, store: FakeStore, no_gallery: None) -> None:
    (one,) = kept(store, "gone")
    store.delete(one, "test")
    page = snapshots()
    page.toggle(key="deleted").set_value(True).run()
    page.button(key=f"restore-{one}").click().run()
    assert store.kept[one].deleted_at is None


def test_pin_and_unpin(queue: FakeQueue, store: FakeStore, no_gallery: None) -> None:
    (one,) = kept(store, "base")
    page = snapshots()
    page.button(key=f"icon-pin-{one}").click().run()
    assert store.baseline() == one
    assert ">baseline</li>" in shown(page)
    page.button(key=f"icon-pin-{one}").click().run()
    assert store.baseline() is None


def test_a_change_that_fails_is_said_once(queue: FakeQueue, store: FakeStore, no_gallery: None, monkeypatch) -> None:
    (one,) = kept(store, "stays")
    page = snapshots()

    def refuse(*_: object) -> None:
        raise StoreProblem("The store is busy: try again.")

    monkeypatch.setattr(store, "delete", refuse)
    page.button(key=f"icon-delete-{one}").click().run()
    assert "The store is busy: try again." in shown(page)
    page.run()
    assert "The store is busy" not in shown(page)


def test_open_shows_the_result_and_back_keeps_the_search(queue: FakeQueue, store: FakeStore, no_gallery: None) -> None:
    (one, _) = kept(store, "alpha", "beta")
    page = snapshots()
    page.text_input(key="find").set_value("alpha").run()
    page.button(key=f"open-{one}").click().run()
    assert len(page.get("plotly_chart")) == 6
    assert "saved here · H200" in shown(page)
    assert "not measured here" not in shown(page)
    button(page, "All snapshots").click().run()
    assert page.text_input(key="find").value == "alpha"
    assert "beta" not in shown(page)


def test_the_start_of_an_id_is_a_link_too(queue: FakeQueue, store: FakeStore, no_gallery: None) -> None:
    (one,) = kept(store, "short link", origin="imported")
    page = opened(snapshot=one[:8])
    assert "short link" in shown(page)
    assert "not measured here" in shown(page)


def test_edited_words_get_a_new_link_and_the_old_one_leads_there(queue: FakeQueue, store: FakeStore, no_gallery: None) -> None:
    (old,) = kept(store, "before")
    page = opened(snapshot=old)
    page.button(key="edit").click().run()
    page.text_input(key=f"edit-{old}-title").set_value("after")
    page.button(key="save-words").click().run()
    new = next(id for id in store.kept if id != old)
    assert store.kept[new].snapshot.title == "after"
    assert link_in(page).endswith(new)
    stale = opened(snapshot=old)
    assert "Its words were edited" in shown(stale)
    stale.button(key="open-newer").click().run()
    assert "after" in shown(stale)


def test_a_snapshot_of_failures_says_why(queue: FakeQueue, store: FakeStore, no_gallery: None) -> None:
    failed = Snapshot(title="All failed", created_at="2026-11-29T13:10:00+00:00", measurements=(records.failed(),))
    page = opened(snapshot=store.save(failed, "test"))
    assert "BLOCK_N = 512 does not fit" in shown(page)
    assert not page.exception


@pytest.mark.parametrize("understood", [True, False])
def test_a_newer_snapshot_is_read_only(queue: FakeQueue, store: FakeStore, no_gallery: None, understood: bool) -> None:
    value = json.loads(records.recording("From the future").document) | {"schema_version": 9, "more": {"x": 1}}
    if not understood:
        value["measurements"] = [{"x": 1}]
    newer = read(canonical(value))
    page = opened(snapshot=store.save(newer, "test", "imported"))
    assert "Made by a newer FlashScope." in shown(page)
    assert "edit" not in [one.key for one in page.button]
    assert bool(page.get("plotly_chart")) == understood


def upload(page: AppTest, name: str, data: bytes) -> AppTest:
    return page.file_uploader[0].set_value((name, data, "application/octet-stream")).run()


def test_a_file_is_looked_at_before_it_is_kept(queue: FakeQueue, store: FakeStore, no_gallery: None) -> None:
    sent = records.recording("Sent", kernels=("v2", "v3"))
    page = upload(snapshots(), "<b>x</b>.gz", file_of(sent))
    assert not store.kept
    assert "&lt;b&gt;x&lt;/b&gt;.gz" in shown(page)
    assert "not in the store yet" in shown(page)
    assert sent.id in shown(page)
    assert len(page.get("plotly_chart")) == 6
    page.button(key="keep").click().run()
    assert store.kept[sent.id].origin == "imported"
    assert link_in(page).endswith(sent.id)
    assert "not measured here" in shown(page)


def test_a_file_can_be_discarded(queue: FakeQueue, store: FakeStore, no_gallery: None) -> None:
    page = upload(snapshots(), "x.json", records.recording("Sent").document)
    page.button(key="discard").click().run()
    assert not store.kept
    assert page.file_uploader
    assert "Sent" not in shown(page)


def test_a_file_that_is_there_already_says_so(queue: FakeQueue, store: FakeStore, no_gallery: None) -> None:
    (one,) = kept(store, "Known")
    page = upload(snapshots(), "x.json", store.kept[one].snapshot.document)
    assert "It is in the store already" in shown(page)


def test_a_file_that_is_no_snapshot_gets_its_sentence(queue: FakeQueue, store: FakeStore, no_gallery: None) -> None:
    page = upload(snapshots(), "x.json", b"{]")
    assert "This file cannot be opened" in shown(page)
    assert "This is not JSON" in shown(page)


def test_numbers_no_gpu_can_reach_are_said_before_keeping_and_after(
    queue: FakeQueue, store: FakeStore, no_gallery: None
) -> None:
    fast = records.latency(0.01)
    measurement = records.on_gpu("v2", latency=fast)
    sent = Snapshot(title="Too fast", created_at="2026-11-29T13:10:00+00:00", measurements=(measurement,))
    (sentence,) = implausible(sent)
    page = upload(snapshots(), "x.json", sent.document)
    assert sentence in shown(page)
    page.button(key="keep").click().run()
    assert sentence in shown(page)


def test_text_of_a_snapshot_is_never_markup(queue: FakeQueue, store: FakeStore, no_gallery: None) -> None:
    value = json.loads(records.recording(NASTY, note=NASTY, kernels=("v2", "v3")).document)
    value |= {"author": NASTY, "host": NASTY, "tags": ["**t**<b>"]}
    for measurement in value["measurements"]:
        measurement["environment"]["device"]["name"] = NASTY
        measurement["flags"][0] |= {"short": NASTY[:60], "sentence": NASTY}
    value["measurements"][0]["request"]["kernel"] = "**k** ![i](http://x/y) :red[z]"
    nasty = read(canonical(value))
    page = upload(snapshots(), f"{NASTY}.json", nasty.document)
    pages = [page, snapshots()]
    store.save(nasty, NASTY, "imported")
    pages += [snapshots(), opened(snapshot=nasty.id)]
    for one in pages:
        assert not one.exception
        assert "<img" not in shown(one)
        labels = [found.label for kind in (one.button, one.toggle, one.text_input, one.selectbox) for found in kind]
        labels += [found.value for found in one.markdown] + [found.value for found in one.caption]
        assert not [label for label in labels if "img" in label or "**" in label]
    assert "&lt;img src=x" in shown(pages[-1])
    assert not [one for one in pages[-1].get("button_group") if "k" in str(one.proto.options)]


def test_two_of_the_same_name_in_a_file_are_told_apart(queue: FakeQueue, store: FakeStore, no_gallery: None) -> None:
    twice = Snapshot(
        title="Twice",
        created_at="2026-11-29T13:10:00+00:00",
        measurements=(records.on_gpu("v2"), records.on_gpu("v2", latency=records.latency(4.0))),
    )
    page = opened(snapshot=store.save(twice, "test"))
    assert "4.00 ms" in shown(page)
    page.button_group[0].set_value("v2").run()
    assert "2.21 ms" in shown(page)


def test_the_gallery_s_recordings_can_be_saved(queue: FakeQueue, store: FakeStore, monkeypatch, tmp_path) -> None:
    one = records.recording("Shipped", kernels=("v2", "v3"))
    (tmp_path / "one.json").write_bytes(one.document)
    monkeypatch.setattr(state, "GALLERY", tmp_path)
    page = opened()
    button(page, "Open the gallery").click().run()
    page.button(key="open one").click().run()
    page.button(key="save").click().run()
    assert store.kept[one.id].origin == "imported"
    assert "recording · H200" in shown(opened(snapshot=one.id)) or "imported · H200" in shown(opened(snapshot=one.id))


def test_run_it_here_repeats_the_requests_and_offers_the_comparison(
    queue: FakeQueue, store: FakeStore, no_gallery: None
) -> None:
    measurements = tuple(records.in_interpreter(kernel) for kernel in ("native", "v2", "v3"))
    tiny = Snapshot(title="Tiny", created_at="2026-11-29T13:10:00+00:00", measurements=measurements)
    page = opened(snapshot=store.save(tiny, "test"))
    page.button(key="run-here").click().run()
    (requests,) = queue.submitted
    assert [one.kernel for one in requests] == ["native", "v2", "v3"]
    assert all(one.problem == records.TINY for one in requests)
    assert [one.tiles for one in requests] == [one.tiles for one in measurements]
    assert page.selectbox(key="seq_len").value == "256"
    queue.finish("job1", *measurements)
    page.run()
    assert "requests, run again here." in shown(page)
    comparison = next(link for link in page.page_link if link.label == "Compare with the snapshot")
    assert comparison.proto.query_string == f"a={tiny.id}&b=job-job1"


def test_what_the_interpreter_cannot_repeat_is_said_with_what_can_be_done(
    queue: FakeQueue, store: FakeStore, no_gallery: None
) -> None:
    page = opened(snapshot=store.save(records.recording("Long"), "test"))
    page.button(key="run-here").click().run()
    assert not queue.submitted
    assert "Interpreter (CPU) cannot repeat it." in shown(page)
    assert "native, v1, v2, v3: seq_len = 16,384 would take about" in shown(page)
    assert "cuDNN (SDPA), FA2 (SDPA), FA3: not possible in the interpreter" in shown(page)
    page.button(key="change-in-the-form").click().run()
    assert page.selectbox(key="seq_len").value == "16384"
    assert page.button(key="run").disabled


def test_the_rest_can_be_run_where_one_cannot(queue: FakeQueue, store: FakeStore, no_gallery: None) -> None:
    ours = records.in_interpreter("v3")
    fa3 = ours.model_copy(update={"request": ours.request.model_copy(update={"kernel": "fa3", "tiles": None}), "tiles": None})
    mixed = Snapshot(title="Mixed", created_at="2026-11-29T13:10:00+00:00", measurements=(ours, fa3))
    page = opened(snapshot=store.save(mixed, "test"))
    page.button(key="run-here").click().run()
    assert not queue.submitted
    page.button(key="run-the-rest").click().run()
    assert [one.kernel for one in queue.submitted[0]] == ["v3"]


def test_fp8_on_a_gpu_without_it_is_left_out() -> None:
    fp8 = records.on_gpu("v3", fp8=True)
    old = records.gpu().model_copy(update={"capability": 80, "name": "NVIDIA A100", "id": "GPU-a100"})
    found = repeat.plan([records.on_gpu("v2"), fp8], "v3 FP8", old, None)
    assert [(one.kernel, one.device) for one in found.requests] == [("v2", "GPU-a100")]
    assert found.left_out == ("v3 FP8: sm_80 has no e4m3 matrix units: they begin with sm_89 (Ada).",)
    assert found.form["fp8"] is True


def test_an_unknown_version_is_named() -> None:
    request = records.on_gpu().request.model_copy(update={"kernel": "v9"})
    found = repeat.plan([records.on_gpu(request=request)], "", records.gpu(), None)
    assert found.requests == ()
    assert found.left_out[0].startswith("kernel = v9 is not known to this FlashScope")


def test_the_form_says_what_was_measured() -> None:
    half = records.on_gpu("v3", request=records.on_gpu().request.model_copy(update={"precision": Precision(dtype="fp16")}))
    values = repeat.form_values(half)
    assert (values["seq_len"], values["seq_len_kv"], values["dtype"], values["block_m"]) == ("16384", "same", "fp16", "128")
    assert set(values) == set(state.FORM_DEFAULTS)
