"""Under a comparison: everything else against A. The other versions of its job, and the snapshots that were picked."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

import streamlit as st

from app import compare_choice, compare_html, look, state
from app.csv_text import csv_of_rows
from app.state import Opened
from app.views.compare_sides import Chosen
from profiling import words
from profiling.improvements import Judged, judged_in_its_job, ranked
from profiling.records import Measurement
from profiling.store import StoreProblem

MOST_AT_ONCE = 20
_NONE = "-"


def show(chosen: Chosen) -> None:
    """The list, with the field that adds snapshots to it."""
    a, side = chosen.opened[0], chosen.sides[0]
    is_baseline = a.id == chosen.shelf.baseline
    look.heading("Since the baseline" if is_baseline else "More against A")
    picked = _pick(chosen, [id for id in chosen.labels if id != a.id], is_baseline)
    if picked:
        what = "Every version that the picked snapshots have in common with A, against A's own."
        judged = ranked(_picked(a, picked))
    else:
        what = f"Without a pick: the other versions of A's job, against its {side.label}."
        judged = ranked(judged_in_its_job(side.snapshot, side.measurement))
    if judged:
        _table(chosen, judged, what)
    elif picked:
        look.caption("The picked snapshots have no version in common with A.")
    else:
        look.caption("Pick snapshots: every version that they have in common with A is judged against A's own.")


def _pick(chosen: Chosen, others: Sequence[str], is_baseline: bool) -> list[str]:
    """The snapshots that are picked; at first, for a baseline, those of its problem."""
    asked = chosen.address.get("more", "")
    if asked:
        starts = [start for start in asked.split(",") if start != _NONE]
        picked = [id for id in others if id.startswith(tuple(starts))]
    else:
        picked = _of_its_problem(chosen) if is_baseline else []
    state.show_chosen("more", picked)
    st.multiselect(
        "Snapshots to judge against A",
        others,
        format_func=lambda id: chosen.labels[id],
        max_selections=MOST_AT_ONCE,
        key=state.compare_key("more"),
        on_change=_changed,
        args=(chosen.address,),
        placeholder="Snapshots to judge against A",
        label_visibility="collapsed",
    )
    return picked


def _of_its_problem(chosen: Chosen) -> list[str]:
    """Those that have a version in common with it: a row does not say in which direction it ran."""
    a = chosen.opened[0]
    problem = a.snapshot.measurements[0].request.problem.title if a.snapshot.measurements else ""
    ids = [row.id for row in chosen.shelf.rows if row.problem_title == problem and row.id != a.id][:MOST_AT_ONCE]
    return [id for id in ids if _has_pairs(a, id)]


def _has_pairs(a: Opened, id: str) -> bool:
    try:
        return bool(state.judged(a, id))
    except StoreProblem:
        return True  # said where it is judged


def _changed(address: dict[str, str]) -> None:
    picked = state.chosen("more") or []
    state.compare({**address, "more": ",".join(map(compare_choice.reference, picked)) or _NONE})


def _picked(a: Opened, ids: Sequence[str]) -> list[Judged]:
    found: list[Judged] = []
    for id in ids:
        try:
            found += state.judged(a, id)
        except StoreProblem as problem:
            look.field_error(str(problem))
    return found


def _table(chosen: Chosen, judged: Sequence[Judged], what: str) -> None:
    rows = [_row(chosen, one) for one in judged]
    links = [f"?{urlencode(_address(chosen, one))}" for one in judged]
    kinds = [compare_html.KINDS[one.verdict.word] for one in judged]
    st.html(compare_html.listing(rows, links, kinds, "Verdicts against A"))
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", gap="small"):
        look.caption(f"{what} B is the row's; its first cell opens the comparison.")
        st.download_button(
            "List (CSV)",
            on_click="ignore",
            icon=":material/download:",
            type="tertiary",
            mime="text/csv",
            file_name="verdicts.csv",
            data=lambda: csv_of_rows([{**row, "ratio": one.verdict.ratio} for row, one in zip(rows, judged, strict=True)]),
            key="download-list",
        )


def _row(chosen: Chosen, one: Judged) -> dict[str, str]:
    found = one.verdict
    interval = "" if found.low is None else f"{words.ratio(found.low)} to {words.ratio(found.high)}"
    return {
        "version": one.after_name,
        "snapshot": chosen.labels[_id(chosen, one)],
        "verdict": compare_html.headline(found),
        "A ÷ B": words.ratio(found.ratio) if found.ratio is not None else "–",
        "interval": interval or "–",
        "A": _median(one.before),
        "B": _median(one.after),
        "rests on": f"{len(found.rounds)} rounds of one job" if found.rounds else found.refused or "two jobs",
    }


def _id(chosen: Chosen, one: Judged) -> str:
    """The id that the snapshot of a row goes by here: a job that is not saved yet has its reference."""
    found = one.after_of.id
    unsaved = [*chosen.opened, *filter(None, [chosen.shelf.unsaved])]
    return found if found in chosen.labels else next(opened.id for opened in unsaved if opened.snapshot.id == found)


def _median(measurement: Measurement) -> str:
    return words.milliseconds(measurement.latency.median_ms) if measurement.latency is not None else "–"


def _address(chosen: Chosen, one: Judged) -> dict[str, str]:
    found = {
        "a": chosen.address["a"],
        "b": compare_choice.reference(_id(chosen, one)),
        "va": one.before_name,
        "vb": one.after_name,
        "more": chosen.address.get("more", ""),
    }
    return {name: value for name, value in found.items() if value}
