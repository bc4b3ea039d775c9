"""The address with which other pages leave for the Run page: the one that page makes of it, so that one Back leads back."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from app import state
from tests import records_for_tests as records
from tests.fake_queue import FakeQueue

TILES = {"kernel": "v2", "block_m": "64", "block_n": "32"}


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> FakeQueue:
    found = FakeQueue((records.interpreter(),))
    monkeypatch.setattr(state, "job_queue", lambda: found)
    return found


def leave(capability: int | None, values: dict[str, str | bool]) -> None:
    from app import state

    state.go_to_form(state.FORM_DEFAULTS | values, capability)


def run_page() -> None:
    from app.views import run

    run.page()


def left(monkeypatch: pytest.MonkeyPatch, capability: int | None, session: dict[str, str]) -> tuple[dict, dict]:
    """Where go_to_form goes, and what it leaves for the form."""
    gone: list[tuple[str, dict[str, str]]] = []
    with monkeypatch.context() as patched:
        patched.setattr(state, "go_to", lambda *to: gone.append(to))
        page = AppTest.from_function(leave, args=(capability, TILES), default_timeout=120)
        for name, value in session.items():
            page.session_state[name] = value
        page.run()
    assert not page.exception
    ((name, address),) = gone
    assert name == "run"
    names = (*state.FORM_DEFAULTS, state.COMPILE_FOR_KEY)
    return address, {name: page.session_state[name] for name in names if name in page.session_state}


@pytest.mark.parametrize("capability", [90, 80, None, 75])
@pytest.mark.parametrize("follows", [False, True])
def test_the_run_page_changes_nothing_in_it(monkeypatch, queue, capability, follows):
    request = records.in_interpreter("v2").request
    queue.put("job1", (request,))
    session = {"_job": "job1"} if follows else {}
    address, form = left(monkeypatch, capability, session)
    page = AppTest.from_function(run_page, default_timeout=120)
    for name, value in address.items():
        page.query_params[name] = value
    for name, value in {**form, **session}.items():
        page.session_state[name] = value
    page.run()
    assert not page.exception
    assert {name: page.query_params[name] for name in page.query_params} == address
    assert page.selectbox(key="block_n").value == "32"
    asked = {80: "sm_80 · A100"}.get(capability, "sm_90 · H200")
    assert page.selectbox(key=state.COMPILE_FOR_KEY).value == asked
    assert address.get("job") == ("job1" if follows else None)
    assert (state.COMPILE_FOR_KEY in address) == (capability == 80)
