"""The Sweep page's form: what is varied, where, how it is searched; what of it cannot run is said before it is started."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app import look, state, sweep_choices, sweep_shown
from app.state.sweep import Value
from app.sweep_choices import BUDGET, DEFAULTS, MORE, OPTIONS, Checked
from app.sweep_shown import Pair
from app.views import press
from profiling import sweep_cells, words
from profiling.records import DeviceFacts
from profiling.store import StoreProblem
from profiling.sweep_record import SweepPlan

_HELP = {
    "s_tokens": "Whole numbers such as 1k 4096 16k. Each is swept on its own.",
    "s_formats": "FP8: e4m3 operands by a pre-pass, for v3 and v3-hopper.",
    "s_search": "A budgeted search times some cells of each series, and goes on where the fast ones were (Optuna).",
    "s_finalists": "How many of each series are timed again, round by round, by the full rule.",
}


def form(values: dict[str, Value], devices: Sequence[DeviceFacts], is_open: bool) -> None:
    """The fields, what they come to, and the button; folded while a sweep is looked at."""
    # One key for both would keep it open after the start, as whoever filled it in left it.
    key = "sweep-form" if is_open else "sweep-form-folded"
    with st.expander("New sweep", expanded=is_open, icon=":material/grid_on:", key=key):
        _what(values)
        _sizes(values)
        chosen = _how(values, devices)
        with st.container(gap="small"):  # a place of its own: what comes and goes in it does not remake what follows
            _start(sweep_choices.check(values, chosen) if chosen else Checked(), chosen)


def _what(values: dict[str, Value]) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="sweep-problem"):
        _several("Versions", "s_kernels")
        _choice("head_dim", "s_head_dim", 84)
        _text("seq_len", "s_tokens", 168)
        st.segmented_control(
            "Mask", OPTIONS["s_mask"], default=str(DEFAULTS["s_mask"]), required=True, key="s_mask", bind="query-params",
            width="content",
        )  # fmt: skip
        _several("Format", "s_formats")
        changed = sum(values[name] != DEFAULTS[name] for name in MORE)
        with st.popover(f"More ({changed})" if changed else "More", icon=":material/tune:", key="sweep-more"):
            _text("Heads", "s_heads")
            _text("Key-value heads", "s_kv_heads")
            _text("Batch", "s_batch")
            _text("Finalists", "s_finalists")


def _sizes(values: dict[str, Value]) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium", key="sweep-sizes"):
        for label, name in (("BLOCK_M", "s_rows"), ("BLOCK_N", "s_columns"), ("Warps", "s_warps"), ("Stages", "s_stages")):
            _several(label, name)


def _how(values: dict[str, Value], devices: Sequence[DeviceFacts]) -> tuple[DeviceFacts, ...]:
    """How it is searched and by which devices, which it returns; none while they are being looked for."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="sweep-how"):
        _choice("Search", "s_search", 200)
        is_searched = values["s_search"] == BUDGET
        _text("Cells a series", "s_budget", 110, disabled=not is_searched)
        if not devices:
            return ()
        names = list(sweep_choices.device_names(devices))
        if state.sweep_device_name() not in names:
            state.forget_sweep_device()
        st.selectbox("Device", names, key=state.SWEEP_DEVICE_KEY, bind="query-params", width=230)
    return sweep_choices.chosen_devices(state.sweep_device_name(), devices)


def _choice(label: str, name: str, width: int) -> None:
    st.selectbox(
        label, OPTIONS[name], index=OPTIONS[name].index(str(DEFAULTS[name])), key=name, bind="query-params", width=width,
        help=_HELP.get(name),
    )  # fmt: skip


def _text(label: str, name: str, width: int | str = "stretch", disabled: bool = False) -> None:
    st.text_input(
        label, value=str(DEFAULTS[name]), key=name, bind="query-params", width=width, disabled=disabled, help=_HELP.get(name)
    )


def _several(label: str, name: str) -> None:
    st.pills(
        label, OPTIONS[name], selection_mode="multi", default=list(DEFAULTS[name]), key=name, bind="query-params",
        help=_HELP.get(name), width="content",
    )  # fmt: skip


def _start(checked: Checked, devices: tuple[DeviceFacts, ...]) -> None:
    """What the fields come to, and the button that starts it."""
    cells, wrong = (), checked.sentence
    if checked.plan is not None:
        try:
            cells = sweep_cells.outlook(checked.plan, devices[0].capability)
        except ValueError as error:
            wrong = str(error)
    is_here = bool(devices) and devices[0].kind == "interpreter"
    tile_ms = state.interpreter_tile_ms(devices[0]) if is_here else None
    to_run = [cell for cell, outcome in cells if not outcome.is_over]
    wrong = wrong or (sweep_choices.too_long(to_run, tile_ms) if is_here else "")
    if cells and not wrong and not to_run:
        wrong = f"None of these {len(cells)} cells can run: {_reasons(cells)}."
    if wrong:
        look.field_error(wrong)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="sweep-start"):
        is_possible = checked.plan is not None and not wrong
        if press.button("Start", type="primary", icon=":material/play_arrow:", disabled=not is_possible, key="sweep_start"):
            _submit(checked.plan)
        if is_possible:
            seconds = sweep_choices.interpreter_seconds(to_run, tile_ms) if is_here else None
            look.sentence(_outlook(checked.plan, cells, len(to_run), seconds))


def _submit(plan: SweepPlan) -> None:
    try:
        state.open_sweep(state.sweeps().start(plan, state.owner()))
    except (StoreProblem, ValueError) as error:
        look.field_error(str(error))
    else:
        st.rerun()


def _outlook(plan: SweepPlan, cells: Sequence[Pair], to_run: int, seconds: float | None) -> str:
    """'72 cells in 2 series; 14 cannot run (…); 58 are compiled first, then timed.'"""
    series = f" in {len(plan.series)} series" if len(plan.series) > 1 else ""
    known = f"{len(cells) - to_run} cannot run ({_reasons(cells)}), as is known already; " if len(cells) > to_run else ""
    if seconds is not None:
        after = f"{to_run} run in the interpreter, about {words.seconds(seconds)}: outputs are checked, no time is a GPU’s."
    elif plan.budget is not None:
        after = f"of the others {plan.budget} a series are timed at most, each compiled before."
    else:
        after = f"{to_run} are compiled before any launch, which may rule out more; then timed, each output checked first."
    return f"{len(cells)} cells{series}, the default and the article’s pair among them; {known}{after}"


def _reasons(cells: Sequence[Pair]) -> str:
    return ", ".join(f"{count} {why}" for why, count in sweep_shown.cannot(cells).items())
