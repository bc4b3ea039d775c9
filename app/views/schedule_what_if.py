"""What if: another order, grid, GPU or tile size, modelled, and launched for real where the kernel can do it."""

from __future__ import annotations

import streamlit as st

from app import look, schedule_outlook, state
from app import schedule_choices as choices
from app.schedule_choices import AS_IT_RAN, ONE_A_BLOCK
from app.schedule_outlook import Outlook
from app.schedule_shown import Shown
from app.views import press, run_status
from profiling import words
from profiling.records import DeviceFacts, RunRequest


def asked(shown: Shown) -> Outlook | str | None:
    """What the what-if fields ask of what is shown; the sentence that says why it cannot be; None when they ask nothing."""
    values = _values(shown)
    if not schedule_outlook.is_asked(values):
        return None
    try:
        return schedule_outlook.outlook(shown, values, _finder(shown))
    except ValueError as error:
        return str(error)


def above(shown: Shown, found: Outlook | str | None, gpu: DeviceFacts | None) -> None:
    """What can be asked, in one row; once it is, the answer in words and the way to run it for real."""
    with st.container(gap="small", key="what-if"):
        with st.container(horizontal=True, gap="small", vertical_alignment="center", key="what-if-choices"):
            st.caption("What if", width="content")
            _pills(shown)
            _other(shown)
        with st.container(gap="small"):  # a place of its own: what comes and goes in it does not remake the lanes below
            _answer(shown, found, gpu)


def below(shown: Shown, found: Outlook | str | None) -> None:
    """All that was asked as a table, with what was measured of it."""
    listed = schedule_outlook.at_a_glance(shown, _finder(shown))
    if isinstance(found, Outlook) and found.name not in {one.name for one in listed}:
        listed.append(found)
    with st.container(gap="xsmall", key="what-if-table"):
        look.heading("What it would take", "modelled")
        look.table(schedule_outlook.rows(shown, listed), "Table: what if")


def _pills(shown: Shown) -> None:
    """The usual ones, with what they would gain or lose."""
    usual = schedule_outlook.usual(shown)
    if not usual:
        return
    gains = {one.name: one.gain(shown) for one in schedule_outlook.at_a_glance(shown, _finder(shown))}
    state.show_what_if(usual)
    st.pills(
        "What if",
        list(usual),
        format_func=lambda name: f"{name} {words.signed_percent(gains[name])}" if name in gains else name,
        key=state.WHAT_IF_KEY,
        on_change=state.apply_what_if,
        args=(usual,),
        label_visibility="collapsed",
        width="content",
    )


def _other(shown: Shown) -> None:
    asked = sum(value != AS_IT_RAN for value in _values(shown).values())
    label = "Another grid, GPU or tiles"
    with st.popover(f"{label} ({asked})" if asked else label, icon=":material/tune:", key="what-if-other"):
        _fields(shown)


def submit(request: RunRequest) -> None:
    """Queue a stamped run, and draw the page with its progress."""
    try:
        state.job_queue().submit((request,), state.owner())
    except ValueError as error:
        look.field_error(str(error))
    else:
        st.rerun()


def _values(shown: Shown) -> dict[str, str]:
    """The fields, without an order or a grid for a version that has neither."""
    values = state.what_if_values()
    if not choices.has_orders(shown.label):
        values |= dict.fromkeys(("if_order", "if_programs"), AS_IT_RAN)
    return values


def _finder(shown: Shown) -> schedule_outlook.Find:
    """What ran on the GPU of what is shown."""
    held = state.schedules()
    device = shown.measurement.environment.device.id if shown.measurement is not None else None

    def find(request: RunRequest) -> Shown | None:
        own = (one for one in held if one.measurement.environment.device.id == device)
        return next((one for one in own if choices.is_same_launch(one.request, request)), None)

    return find


def _fields(shown: Shown) -> None:
    without = choices.why_no_orders(shown.label)
    slots = str(shown.facts.slots)
    left, right = st.columns(2, gap="small")
    with left:
        _choice("Order of blocks", "if_order", without)
        _choice("BLOCK_M", "if_rows")
    with right:
        st.selectbox(
            "Programs", (AS_IT_RAN, ONE_A_BLOCK, slots), key="if_programs", bind="query-params",
            accept_new_options=True, disabled=without is not None, help=without or f"A persistent grid; {slots} fill this GPU.",
        )  # fmt: skip
        _choice("BLOCK_N", "if_columns")
    _choice("GPU", "if_gpu")


def _choice(label: str, name: str, without: str | None = None) -> None:
    st.selectbox(label, choices.OPTIONS[name], key=name, bind="query-params", disabled=without is not None, help=without)


def _answer(shown: Shown, found: Outlook | str | None, gpu: DeviceFacts | None) -> None:
    if isinstance(found, str):
        look.field_error(found)
    elif found is not None:
        with st.container(horizontal=True, gap="small", vertical_alignment="center", key="answer"):
            with st.container(gap="xsmall", width="stretch"):
                look.sentence(schedule_outlook.sentence(shown, found), strong=found.name[0].upper() + found.name[1:])
                look.caption(schedule_outlook.trust(shown, found))
            _for_real(shown, found, gpu)


def _for_real(shown: Shown, found: Outlook, gpu: DeviceFacts | None) -> None:
    """The launch itself, where this machine has the GPU: its button, its progress, or what came of it."""
    if found.measured is not None:
        st.segmented_control("Below the lanes", state.BELOW, default=state.BELOW[0], required=True, key=state.DRAWN_BELOW_KEY)
        return
    if found.gpu is not None or gpu is None or shown.measurement is None or shown.measurement.environment.device.id != gpu.id:
        return
    request = found.request.model_copy(update={"device": gpu.id, "probes": ("accuracy", "schedule"), "compile_for": None})
    job = state.job_of((request,))
    if job is not None and not job.finished:
        run_status.live(job.job_id)
        return
    if job is not None:
        run_status.failed(job, use_tiles=state.set_what_if_tiles)
    if press.button("Run it for real", icon=":material/play_arrow:", key="run_for_real", help="Stamps this launch, too."):
        submit(request)
