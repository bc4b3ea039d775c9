"""Repeating a snapshot on this machine: its requests as one job, or why they cannot run here and what can be done."""

from __future__ import annotations

import streamlit as st

from app import look, repeat, state
from app.repeat import Plan
from app.state import Opened
from app.views import press
from profiling.records import DeviceFacts


def button(found: Opened) -> None:
    """Ask to repeat what a snapshot measured."""
    if not found.snapshot.measurements:
        return
    st.button(
        "Run it here",
        icon=":material/play_arrow:",
        on_click=state.ask_to_repeat,
        args=(found.id,),
        key="run-here",
        help="Runs the same requests on this machine, to compare.",
    )


def below(found: Opened) -> None:
    """Under the toolbar, once asked: start the job, or say what this machine cannot repeat."""
    if not state.asked_to_repeat(found.id):
        return
    device = _device()
    plan = repeat.plan(found.snapshot.measurements, state.details() or "", device, state.interpreter_tile_ms(device))
    if plan.requests and not plan.left_out:
        _start(found, plan)
        return
    with st.container(border=True, gap="small", key="cannot-repeat"):
        look.sentence("", strong=f"{device.short_name} cannot repeat {'all of it' if plan.requests else 'it'}.")
        for sentence in plan.left_out:
            look.sentence(sentence)
        _ways_on(found, plan)


def _ways_on(found: Opened, plan: Plan) -> None:
    with st.container(horizontal=True, gap="small"):
        if plan.requests and press.button("Run the rest", type="primary", icon=":material/play_arrow:", key="run-the-rest"):
            _start(found, plan)
        if plan.form and press.button("Change it in the form", icon=":material/tune:", key="change-in-the-form"):
            state.stop_asking_to_repeat()
            state.go_to_form(plan.form, None)
        st.button("Close", icon=":material/close:", type="tertiary", on_click=state.stop_asking_to_repeat, key="close-repeat")


def _start(found: Opened, plan: Plan) -> None:
    state.stop_asking_to_repeat()
    try:
        job_id = state.repeat(plan.requests, plan.form, found.id)
    except ValueError as error:
        look.field_error(str(error))
        return
    state.go_to("run", state.job_address(job_id))


def _device() -> DeviceFacts:
    """The device that the Run page would use; waits while devices are being looked for."""
    devices = state.job_queue().devices()
    return next((device for device in devices if device.short_name == state.device_name()), devices[0])
