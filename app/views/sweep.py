"""The Sweep page: which tiles are fastest on this GPU, a map that fills while it is measured, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from app import look, state, sweep_shown
from app.figures import sweep_map as figure
from app.state import ForeignSweep
from app.sweep_shown import Shown
from app.views import press, run_status, sweep_below, sweep_cell, sweep_fields, sweep_ladder, sweep_recorded
from app.views.run_result import when
from kernels.problem import AttentionProblem
from profiling import words
from profiling.store import StoreProblem
from profiling.sweep_export import csv_of, json_of
from profiling.sweep_record import Series, Sweep, SweepRow

_LOOKS_EVERY_S = 1.5
_MOST_WARNINGS = 3
_MAP, _CELL = 1.9, 1.0
_FOREIGN = {"gallery": "recorded: ", "file": "a file: "}
_PHASES = {"compiling": "compiling", "screening": "timing each", "finals": "timing the finalists again", "over": "ending"}


def page() -> None:
    """The form; the sweep that is open, as it fills; the ladder."""
    state.put_back_fields("sweep")
    queue = state.job_queue()
    devices = queue.devices() if queue.devices_ready else ()
    state.greet_sweep(devices)
    values = state.sweep_values()
    head = st.container(gap="small")
    listed, found, problem = _kept()
    sweep_fields.form(values, devices, is_open=found is None or state.is_varied())
    if state.lost_fields("sweep", values, state.sweep_values()):
        st.rerun()
    if not devices:
        run_status.discovering()
    with head:
        _head(listed, found)
        for one in (problem, state.take_sweep_file_problem()):
            if one:
                look.warning(one)
    if found is None:
        with st.container(gap="small", key="sweep-recorded"):
            sweep_recorded.to_open()
    else:
        series = _series(found)
        with st.container():  # a fragment that runs by itself needs a place of its own
            is_busy = found.state.status == "running"
            st.fragment(_watched, run_every=_LOOKS_EVERY_S if is_busy else None)(found.sweep_id, series, is_busy)
    with st.container(key="sweep-ladder"):
        if devices:
            sweep_ladder.show(_problem(found), _dtype(found), devices)


def _kept() -> tuple[tuple[SweepRow, ...], Sweep | None, str]:
    """The sweeps there are, the one that is open, and what is wrong.

    One that is neither here nor in the box is dropped from the address. A recorded one opens without a store.
    """
    listed, found, problem = (), None, ""
    sweep_id = state.opened_sweep()
    try:
        found = state.view_sweep(sweep_id) if sweep_id is not None else None
    except KeyError:
        state.open_sweep(None)
        problem = "The sweep of this address is neither in this server’s store nor in the box."
    except StoreProblem as error:
        return (), None, str(error)
    try:
        listed = state.sweeps().listed()
    except StoreProblem as error:
        problem = str(error)
    return listed, found, problem


def _head(listed: Sequence[SweepRow], found: Sweep | None) -> None:
    """The result in words; the other sweeps, the tables, the files."""
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", gap="small"):
        if found is None:
            look.title("Which tiles are fastest, and which cannot run")
        elif found.state.status == "running":
            look.title(f"Sweeping {found.plan.title}")
        else:
            look.title(sweep_shown.headline(state.shown_series(found, state.chosen_series(found))))
        with st.container(horizontal=True, gap="small", width="content", vertical_alignment="center"):
            _earlier(listed, found)
            sweep_recorded.open_a_file()
            st.toggle("Tables", key=state.TABLES_KEY, bind="query-params", help="The numbers behind every chart.")
            if found is not None:
                _downloads(found)
                st.button(
                    "Vary it", icon=":material/edit:", type="tertiary", on_click=state.use_plan_of, args=(found,),
                    help="Puts what this sweep varied into the fields of a new one.", key="sweep_like",
                )  # fmt: skip


def _earlier(rows: Sequence[SweepRow], found: Sweep | None) -> None:
    """The sweeps that this server keeps, the newest first; then those that were not made here."""
    listed = {one.sweep_id: _listed(one) for one in rows}
    listed |= {key: f"{_FOREIGN[one.origin]}{_listed_foreign(one.sweep)}" for key, one in state.foreign_sweeps().items()}
    if not listed:
        return
    state.show_sweep_choice(found.sweep_id if found is not None and found.sweep_id in listed else None)
    st.selectbox(
        "Sweeps", list(listed), format_func=listed.__getitem__, key=state.SWEEP_CHOICE_KEY, index=None,
        placeholder=f"{len(listed)} sweep{'s' * (len(listed) > 1)} to open", on_change=state.open_chosen_sweep,
        label_visibility="collapsed", width=300,
    )  # fmt: skip


def _listed(one: SweepRow) -> str:
    """Nothing in it changes while the sweep runs: the browser holds a choice by its words."""
    return f"{one.title} · {one.device_name} · {when(one.created_at)} · {one.sweep_id[:4]}"


def _listed_foreign(one: Sweep) -> str:
    return f"{one.plan.title} · {one.device_name} · {when(one.created_at)} · {one.sweep_id[:4]}"


def _downloads(found: Sweep) -> None:
    name = f"sweep-{found.sweep_id}"
    st.download_button(
        "CSV", lambda: csv_of(found), f"{name}.csv", "text/csv", icon=":material/download:", on_click="ignore",
        key="sweep_csv", type="tertiary",
    )  # fmt: skip
    st.download_button(
        "JSON", lambda: json_of(found), f"{name}.json", "application/json", icon=":material/download:", on_click="ignore",
        key="sweep_json", type="tertiary",
    )  # fmt: skip


def _watched(sweep_id: str, series: Series, was_busy: bool) -> None:
    """The sweep as it is; while it runs, drawn again every second, and once it rests the whole page."""
    try:
        found = state.view_sweep(sweep_id)
    except StoreProblem as problem:
        look.field_error(str(problem))
        return
    if was_busy and found.state.status != "running":
        st.rerun()
    with st.container(gap="small"):  # what comes and goes in it does not remake the map below
        _status(found)
    shown = state.shown_series(found, series)
    keys = [pair[0].key for pair in shown.pairs]
    looked_at = state.chosen_sweep_cell(keys) or shown.first()
    left, right = st.columns([_MAP, _CELL], gap="large")
    with left:
        _map(shown, keys, looked_at)
        sweep_below.ranked(shown)
    with right:
        sweep_cell.fastest(shown)
        sweep_cell.looked_at(shown)
    if not was_busy:
        sweep_below.by_length(shown)
        sweep_below.in_common(shown)


def _map(shown: Shown, keys: Sequence[str], looked_at: str | None) -> None:
    drawn = figure.chart(shown, looked_at, look.palette())
    look.heading(drawn.title, drawn.provenance)
    st.plotly_chart(
        drawn.figure, theme=None, config={"displayModeBar": False}, key=state.SWEEP_MAP_KEY, alt=drawn.alt,
        on_select=lambda: state.take_clicked_sweep_cell(keys), selection_mode="points",
    )  # fmt: skip
    look.caption(drawn.caption)
    if state.tables_shown():
        look.table(drawn.table, f"Table: {drawn.title}", drawn.explained)


def _series(found: Sweep) -> Series:
    """The series that is looked at, with a choice for each value in which they differ."""
    dimensions = sweep_shown.dimensions(found)
    series = state.chosen_series(found)
    if dimensions:
        with st.container(horizontal=True, gap="medium", key="sweep-series"):
            for name, texts in dimensions.items():
                st.segmented_control(
                    name, texts, default=texts[0], required=True, key=state.series_key(name), bind="query-params",
                    label_visibility="collapsed",
                )  # fmt: skip
    return series


def _status(found: Sweep) -> None:
    """Where it stands, whose it is, and what can be done."""
    foreign = state.foreign_sweeps().get(found.sweep_id)
    now, problem = found.state, ""
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="sweep-bar"):
        look.chips(_chips(found, foreign), width="content")
        if foreign is None:
            problem = _buttons(found)
    if problem:
        look.field_error(problem)
    if foreign is not None:
        look.caption(sweep_recorded.made_with(foreign))
        for sentence in foreign.warnings[:_MOST_WARNINGS]:
            look.warning(sentence)
    if now.status == "running":
        st.progress(now.done / now.total if now.total else 0.0)
    if now.sentence and not now.is_over:
        look.caption(now.sentence)


def _buttons(found: Sweep) -> str:
    """Pause, Resume, Cancel, as far as each is possible; the sentence that says why what was asked for could not be done."""
    now, problem = found.state, ""
    if now.status == "running" and press.button("Pause", icon=":material/pause:", key="sweep_pause"):
        problem = _told(state.sweeps().pause, found)
    if now.status == "paused" and press.button("Resume", type="primary", icon=":material/play_arrow:", key="sweep_resume"):
        problem = _told(state.sweeps().resume, found)
    if not now.is_over and press.button("Cancel", icon=":material/close:", key="sweep_cancel"):
        problem = _told(state.sweeps().cancel, found)
    return problem


def _told(what: Callable[[str], None], found: Sweep) -> str:
    """Do it and draw the page again; the sentence that says why it could not be done."""
    try:
        what(found.sweep_id)
    except (StoreProblem, ValueError) as problem:
        return str(problem)
    st.rerun()


def _chips(found: Sweep, foreign: ForeignSweep | None) -> list[tuple[str, str, str]]:
    """The device, or where it comes from; how far it is, what was right, what cannot run, what went wrong."""
    counts = found.counts
    whose = "this tab" if found.owner == state.owner() else "another tab, or an earlier visit"
    here = [("info", found.device_name, f"Started from {whose} at {found.created_at}.")]
    chips = [*(here if foreign is None else sweep_recorded.origin(foreign)), _progress(found)]
    right, wrong = counts.get("measured", 0), counts.get("wrong", 0)
    if right:
        chips.append(("ok", f"{right} correct", "Outputs that were checked against float64 and right."))
    if wrong:
        chips.append(("bad", f"{wrong} wrong", "A wrong output has no speed; the cell says by how much."))
    if cannot := counts.get("refused", 0) + counts.get("infeasible", 0):
        chips.append(("caution", f"{cannot} cannot run", "Refused by the version, or by what the compiler made of them."))
    if failed := counts.get("failed", 0):
        chips.append(("bad", f"{failed} failed", "Crashed, hung or out of memory; each cost only itself."))
    if untried := counts.get("untried", 0):
        chips.append(("info", f"{untried} not tried", "The search did not choose them within its budget."))
    return chips


def _progress(found: Sweep) -> tuple[str, str, str]:
    now = found.state
    done = f"{now.done} of {now.total} cells, {words.seconds(now.elapsed_s)}"
    if now.status == "running":
        left = f", about {words.seconds(now.seconds_left)} left" if now.seconds_left is not None else ""
        phase = _PHASES[now.phase] if found.capability is not None else "checking each"
        return "wait", f"{phase} · {done}{left}", now.sentence or "Each finished cell is kept at once."
    if now.status == "finished":
        return "info", done, "Every cell that was to be timed has been."
    return "caution", f"{now.status} · {done}", now.sentence or "What was found is kept."


def _problem(found: Sweep | None) -> AttentionProblem:
    if found is not None:
        return state.chosen_series(found).problem
    return AttentionProblem(seq_len_q=4096, seq_len_kv=4096)


def _dtype(found: Sweep | None) -> str:
    return state.chosen_series(found).precision.dtype if found is not None else "bf16"
