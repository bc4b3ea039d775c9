"""The Compare page, driven without a browser, over a store in memory: what the address, the selects and the defaults do."""

from __future__ import annotations

from html import unescape

import pytest
from streamlit.testing.v1 import AppTest

from app import state
from app.compare_choice import label_of, label_of_listed, partner, sides
from profiling.records import Measurement
from profiling.snapshot import Snapshot
from profiling.store import Query
from tests import records_for_tests as records
from tests.fake_queue import FakeQueue
from tests.fake_store import FakeStore

HOSTILE = "<img src=x onerror=alert(1)> =1+1 $x$"


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> FakeQueue:
    found = FakeQueue((records.gpu(), records.interpreter()))
    monkeypatch.setattr(state, "job_queue", lambda: found)
    return found


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, queue: FakeQueue) -> FakeStore:
    found = FakeStore()
    monkeypatch.setattr(state, "store", lambda: found)
    return found


def script() -> None:
    from app.views import compare

    compare.page()


def opened(**address: str) -> AppTest:
    page = AppTest.from_function(script, default_timeout=120)
    for name, value in address.items():
        page.query_params[name] = value
    page.run()
    assert not page.exception, page.exception
    return page


def shown(page: AppTest) -> str:
    return "\n".join(element.proto.body for element in page.get("html"))


def address(page: AppTest) -> dict[str, str]:
    return {name: page.query_params[name] for name in state.COMPARE_PARAMS if name in page.query_params}


def box(page: AppTest, name: str):
    return page.selectbox(key=state.compare_key(name))


def kept(store: FakeStore, title: str, *kernels: str, slower: float = 1.0, **changes: object) -> str:
    measurements = tuple(
        records.on_gpu(name, latency=records.latency(records.INVENTED_MS[name] * slower), duration_s=len(title), **changes)
        for name in kernels
    )
    return store.save(Snapshot(title=title, created_at="2026-11-29T13:10:00+00:00", measurements=measurements), "me")


# Without a choice


def test_the_first_visit_compares_v2_with_v3_of_the_first_recording(store: FakeStore) -> None:
    page = opened()
    first = next(iter(state.recordings().values()))
    assert (box(page, "a").value, box(page, "b").value) == (first.id, first.id)
    assert (box(page, "va").value, box(page, "vb").value) == ("v2", "v3")
    assert address(page) == {"a": first.id[:16], "b": first.id[:16], "va": "v2", "vb": "v3"}
    text = shown(page)
    assert "interleaved in one job" in text
    assert "A and B not measured here" in text
    assert "Median of each round" in text


def test_the_baseline_is_a_and_the_newest_of_its_problem_is_b(store: FakeStore) -> None:
    old, _, new = kept(store, "old", "v2"), kept(store, "middle", "v2"), kept(store, "the newest", "v2", slower=1.5)
    store.pin_baseline(old, "me")
    page = opened()
    assert (box(page, "a").value, box(page, "b").value) == (old, new)
    labels = list(page.selectbox(key=state.compare_key("a")).options)
    assert labels[0].startswith("Baseline: v2 · 16k causal · H200 · 29 Nov 2026, 13:10 · ")
    text = shown(page)
    assert "SLOWER 1.50×" in text
    assert "Since the baseline" in text
    assert text.count("two jobs</td>") == 2, "both others are in the list"


def test_what_just_ran_and_is_not_saved_is_compared_with_the_baseline(store: FakeStore, queue: FakeQueue) -> None:
    store.pin_baseline(kept(store, "old", "v2"), "me")
    fast = records.on_gpu("v2", latency=records.latency(1.0), duration_s=3.0)
    page = opened()
    queue.put("job1", [fast.request], owner=page.session_state["_owner"])
    queue.finish("job1", fast)
    page.run()
    assert "not saved yet" in "".join(box(page, "b").options)
    box(page, "b").set_value("job-job1").run()
    assert address(page)["b"] == "job-job1"
    assert "FASTER 2.21×" in shown(page)


def test_warm_times_have_a_word_of_their_own(store: FakeStore) -> None:
    cold, warm = records.latency(2.2), records.latency(1.5).model_copy(update={"mode": "warm"})
    quicker = records.latency(1.2).model_copy(update={"mode": "warm"})
    before, after = records.on_gpu("v2", latency=cold, warm=warm), records.on_gpu("v3", latency=cold, warm=quicker)
    kept_id = store.save(Snapshot(title="x", created_at="2026-11-29T13:10:00+00:00", measurements=(before, after)), "me")
    text = shown(opened(a=kept_id, b=kept_id, va="v2", vb="v3"))
    assert "With the L2 cache warm: FASTER 1.25×." in text
    assert ">SAME<" in text


# The address


def test_a_link_restores_the_comparison(store: FakeStore) -> None:
    a, b = kept(store, "first", "v1", "v2"), kept(store, "second", "v2", "v3")
    page = opened(a=a[:8], b=b, va="v1", vb="v3")
    assert (box(page, "a").value, box(page, "va").value, box(page, "b").value, box(page, "vb").value) == (a, "v1", b, "v3")
    assert address(page) == {"a": a[:16], "b": b[:16], "va": "v1", "vb": "v3"}


def test_choosing_changes_the_address_and_keeps_the_rest(store: FakeStore) -> None:
    a, b = kept(store, "first", "v1", "v2"), kept(store, "second", "v2", "v3")
    page = opened(a=a, b=b, va="v1", vb="v3")
    box(page, "va").set_value("v2").run()
    assert address(page) == {"a": a[:16], "b": b[:16], "va": "v2", "vb": "v3"}
    box(page, "b").set_value(a).run()
    assert address(page)["b"] == a[:16]
    assert address(page)["va"] == "v2"
    assert not page.exception


def test_swap_turns_both_sides_and_their_versions(store: FakeStore) -> None:
    a, b = kept(store, "first", "v1", "v2"), kept(store, "second", "v2", "v3")
    page = opened(a=a, b=b, va="v1", vb="v3")
    assert "FASTER 2.54×" in shown(page)
    page.button(key="swap").click().run()
    assert address(page) == {"a": b[:16], "b": a[:16], "va": "v3", "vb": "v1"}
    assert "SLOWER 2.54×" in shown(page)


@pytest.mark.parametrize("name", ["nonsense", "0" * 64, "job-gone", "x", HOSTILE])
def test_an_unknown_name_is_one_sentence_and_nothing_is_lost(store: FakeStore, name: str) -> None:
    a = kept(store, "first", "v1", "v2")
    page = opened(a=a, b=name, va="v1")
    text = shown(page)
    assert unescape(text).count("is not here: neither this server's store nor the gallery has it.") == 1
    assert "<img" not in text
    assert box(page, "a").value == a
    assert box(page, "va").value == "v1"
    assert page.query_params["b"] == name, "the link may be right elsewhere"
    assert 'class="fs-verdict"' in text


def test_an_unknown_version_is_said_with_those_there_are(store: FakeStore) -> None:
    a = kept(store, "first", "v1", "v2")
    text = shown(opened(a=a, b=a, va="v7"))
    assert "va = v7 is no version there: it can be v1, v2." in text


def test_a_store_that_cannot_be_read_is_said_and_the_gallery_compares(store: FakeStore) -> None:
    store.problem = "The disk is full."
    page = opened()
    assert "The disk is full. The gallery can be compared." in shown(page)
    assert box(page, "va").value == "v2"


def test_no_store_at_all_is_said_and_the_gallery_compares(monkeypatch: pytest.MonkeyPatch, queue: FakeQueue) -> None:
    monkeypatch.setattr(state, "store", lambda: "The folder cannot be written.")
    page = opened()
    assert "The folder cannot be written. The gallery can be compared." in shown(page)
    assert "fs-verdict" in shown(page)


def test_nothing_anywhere_is_said(monkeypatch: pytest.MonkeyPatch, store: FakeStore) -> None:
    monkeypatch.setattr(state, "recordings", dict)
    assert "There is nothing to compare yet" in shown(opened())


# What is on the page


def test_a_refusal_names_both_values_and_the_table_still_shows(store: FakeStore) -> None:
    a = kept(store, "first", "v2")
    b = store.save(
        Snapshot(title="x", created_at="2026-11-29T13:10:00+00:00", measurements=(records.in_interpreter("v2"),)), "me"
    )
    text = shown(opened(a=a, b=b))
    assert "No verdict" in text
    assert "A was measured, B was interpreted" in text
    assert "different problems" in text
    assert "What differs" in text


def test_words_of_people_are_never_markup(store: FakeStore) -> None:
    one = records.on_gpu("v2")
    strange = one.model_copy(update={"request": one.request.model_copy(update={"kernel": HOSTILE[:40]}), "duration_s": 1.0})
    ids = [
        store.save(
            Snapshot(title=HOSTILE, note=HOSTILE, author=HOSTILE, tags=(HOSTILE[:30],), created_at=at, measurements=some), "me"
        )
        for at, some in (("2026-11-29T13:10:00+00:00", (one, strange)), ("2026-11-30T13:10:00+00:00", (strange,)))
    ]
    page = opened(a=ids[0], b=ids[1], more=ids[1][:16])
    assert "<img" not in shown(page)
    assert all("<img" not in chart.proto.spec for chart in page.get("plotly_chart"))
    assert not page.markdown or all(HOSTILE not in one.value for one in page.markdown)


def test_the_picked_ones_are_judged_and_their_rows_lead_there(store: FakeStore) -> None:
    a, b, c = (
        kept(store, "first", "v1", "v2"),
        kept(store, "second", "v1", "v2", slower=0.5),
        kept(store, "third", "v2", slower=2.0),
    )
    page = opened(a=a, b=b)
    assert "Without a pick: the other versions of A's job" in unescape(shown(page))
    page.multiselect(key=state.compare_key("more")).set_value([b, c]).run()
    assert page.query_params["more"] == f"{b[:16]},{c[:16]}"
    table = shown(page).split('aria-label="Verdicts against A"')[1]
    assert table.count("FASTER 2.00×") == 2
    assert table.count("SLOWER 2.00×") == 1
    assert table.index("FASTER") < table.index("SLOWER")
    assert f"?a={a[:16]}&amp;b={c[:16]}&amp;va=v2&amp;vb=v2" in table
    page.multiselect(key=state.compare_key("more")).set_value([]).run()
    assert page.query_params["more"] == "-"
    assert "Without a pick" in shown(page)


def test_a_deleted_snapshot_can_still_be_compared_by_its_link(store: FakeStore) -> None:
    a, b = kept(store, "first", "v2"), kept(store, "second", "v2", slower=2.0)
    store.delete(a, "me")
    page = opened(a=a, b=b)
    assert box(page, "a").value == a
    assert any(option.startswith("Deleted: ") for option in box(page, "a").options)
    assert "SLOWER 2.00×" in shown(page)


def test_the_tables_behind_the_charts_are_there(store: FakeStore) -> None:
    a, b = kept(store, "first", "v1", "v2"), kept(store, "second", "v1", "v2", slower=0.5)
    text = shown(opened(a=a, b=b, tables="true"))
    assert "Table: Every launch of A and B" in text
    assert "Table: Versions of A and B" in text


def test_the_page_remembers_what_was_compared(store: FakeStore) -> None:
    a, b = kept(store, "first", "v2"), kept(store, "second", "v2", slower=2.0)
    page = opened(a=a, b=b)
    page.query_params.clear()
    page.run()
    assert address(page) == {"a": a[:16], "b": b[:16]}


# The choice, without a page


def test_labels_say_version_problem_gpu_time_and_id() -> None:
    snapshot = records.recording(kernels=("v3",))
    when = {"2026-11-29T13:10:00+00:00": "29 Nov 13:10"}.__getitem__
    assert label_of(snapshot, snapshot.id, when) == f"v3 · 16k causal · H200 · 29 Nov 13:10 · {snapshot.id[:6]}"
    assert label_of(records.recording(), "job-1", when, "Here").startswith("Here: 8 versions · 16k causal")
    store = FakeStore()
    store.save(snapshot, "me")
    (row,) = store.search(Query()).rows
    assert label_of_listed(row, when) == label_of(snapshot, snapshot.id, when)


def test_of_two_snapshots_the_newest_version_of_ours_that_both_have_is_meant() -> None:
    a, b = records.recording(kernels=("v1", "v2", "v3", "fa3")), records.recording(title="b", kernels=("v2", "v1", "fa3"))
    assert tuple(side.label for side in sides(a, b)) == ("v2", "v2")
    assert tuple(side.label for side in sides(a, b, "v1")) == ("v1", "v1")
    assert tuple(side.label for side in sides(a, b, "", "v1")) == ("v1", "v1")
    assert tuple(side.label for side in sides(a, a)) == ("v2", "v3")
    assert tuple(side.label for side in sides(a, a, "v3")) == ("v3", "v2")
    one = records.recording(kernels=("v1",))
    assert tuple(side.label for side in sides(one, one)) == ("v1", "v1")


def test_a_partner_has_the_problem_and_a_version(store: FakeStore) -> None:
    a = records.recording(kernels=("v2",))
    kept(store, "other version", "v1")
    good = kept(store, "good", "v2", "v3")
    store.save(Snapshot(title="x", created_at=a.created_at, measurements=(records.in_interpreter("v2"),)), "me")
    assert partner(a, store.search(Query()).rows, state.find).id == good
    assert partner(a, (), state.find) is None


def made(title: str, *measurements: Measurement) -> Snapshot:
    return Snapshot(title=title, created_at="2026-11-29T13:06:00+00:00", measurements=measurements)


def test_what_is_suggested_can_be_compared(store: FakeStore) -> None:
    """Newer ones of another direction, of other inputs, with a wrong output or from the interpreter stand before it."""
    wanted = {
        "forward": kept(store, "forward", "v2"),
        **{name: store.save(made(name, records.with_backward("v2", name)), "me") for name in ("backward", "both")},
        "interpreted": store.save(made("interpreted", records.with_backward("v2", interpreted=True)), "me"),
    }
    forward = records.on_gpu("v2")
    ramp = forward.request.model_copy(update={"inputs": "ramp"})
    store.save(made("other inputs", forward.model_copy(update={"request": ramp})), "me")
    store.save(made("wrong", records.on_gpu("v2", passed=False)), "me")
    asked = {
        "forward": records.on_gpu("v2", duration_s=9.0),
        "backward": records.with_backward("v2", "backward", duration_s=9.0),
        "both": records.with_backward("v2", "both", duration_s=9.0),
        "interpreted": records.with_backward("v2", interpreted=True, duration_s=9.0),
    }
    rows = store.search(Query()).rows
    for name, one in asked.items():
        assert partner(made("a", one), rows, state.find).id == wanted[name], name
    assert partner(made("a", records.with_backward("v1", "backward")), rows, state.find) is None


def test_beside_a_baseline_of_a_backward_stand_backwards(store: FakeStore) -> None:
    baseline = store.save(made("baseline", records.with_backward("v2", "backward")), "me")
    later = store.save(made("later", records.with_backward("v2", "backward", duration_s=9.0)), "me")
    kept(store, "forward", "v2")
    store.pin_baseline(baseline, "me")
    page = opened()
    assert address(page)["b"] == later[:16]
    assert page.multiselect(key=state.compare_key("more")).value == [later]
