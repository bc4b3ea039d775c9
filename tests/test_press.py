"""A press is answered by the first run that gets as far as the button, also when one was cut off before."""

import pytest
from streamlit.testing.v1 import AppTest


def script(button: str) -> None:
    import streamlit as st

    from app.views import press

    if st.session_state.pop("cut_off", False):  # as a fragment's time does, or a player that comes to rest
        st.rerun()
    draw = press.button if button == "ours" else st.button
    if draw("Go", key="go"):
        st.session_state["answered"] = st.session_state.get("answered", 0) + 1


@pytest.mark.parametrize(("button", "answered"), [("ours", 1), ("streamlit's", 0)])
def test_a_press_outlives_a_run_that_is_cut_off(button, answered):
    app = AppTest.from_function(script, args=(button,)).run(timeout=120)
    app.session_state["cut_off"] = True
    app.button(key="go").click().run(timeout=120)
    assert not app.exception
    assert ("answered" in app.session_state) == bool(answered)
    app.run(timeout=120)
    assert (app.session_state["answered"] if answered else 0) == answered  # once, and not again


def test_a_press_that_nothing_came_of_is_forgotten(monkeypatch):
    from app.state import pages

    app = AppTest.from_function(script, args=("ours",)).run(timeout=120)
    monkeypatch.setattr(pages, "_PRESS_HOLDS_S", -1.0)
    app.button(key="go").click().run(timeout=120)
    assert "answered" not in app.session_state
