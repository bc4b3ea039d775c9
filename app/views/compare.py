"""The Compare page: two snapshots side by side, or many against one; the address says which."""

from __future__ import annotations

import streamlit as st

from app import compare_html, look, state
from app.csv_text import csv_of_rows
from app.figures import overlay, rounds
from app.figures.style import Absent, Chart
from app.views import compare_list, compare_sides
from app.views.compare_sides import Chosen
from profiling.comparable import conditions
from profiling.differences import Differences, as_cells, differences
from profiling.improvements import judged_pairs, of_one_job
from profiling.records import Measurement
from profiling.verdict import Verdict, verdict, warm_verdict


def page() -> None:
    """Choose, judge, show why, list what differs; then everything else against A."""
    bar = st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", gap="small")
    chosen = compare_sides.choose()
    if chosen is None:
        with bar:
            look.title("Compare snapshots")
        look.sentence("There is nothing to compare yet: save a result on the Run page, or open the file somebody sent you.")
        return
    a, b = chosen.sides
    if a.measurement is None or b.measurement is None:
        _title(bar, chosen, None)
        look.sentence("One of the two holds nothing that this FlashScope understands, so that nothing can be compared.")
        return
    one_job = of_one_job(a.snapshot, b.snapshot, a.measurement, b.measurement)
    found = verdict(a.measurement, b.measurement, one_job)
    unlike = differences(a.measurement, b.measurement, a.snapshot, b.snapshot)
    _title(bar, chosen, unlike)
    look.chips([*conditions(a.measurement, b.measurement, bool(found.rounds)), *_from_elsewhere(chosen)])
    _judgement(a.measurement, b.measurement, found, warm_verdict(a.measurement, b.measurement, one_job))
    _overlay(chosen)
    st.html(compare_html.differences(unlike, found.word))
    compare_list.show(chosen)


def _title(bar: st.delta_generator.DeltaGenerator, chosen: Chosen, unlike: Differences | None) -> None:
    with bar:
        look.title("Compare snapshots")
        with st.container(horizontal=True, gap="small", width="content", vertical_alignment="center"):
            st.toggle("Tables", key=state.TABLES_KEY, bind="query-params", help="The numbers behind every chart.")
            st.button("Swap A and B", icon=":material/swap_horiz:", type="tertiary", key="swap", on_click=chosen.swap)
            with st.popover("Copy link", icon=":material/link:", key="copy-link"):
                look.caption("It opens this comparison, for everyone who reaches this server:")
                st.code(state.compare_link(chosen.address), language=None, wrap_lines=True)
                if any(one.origin == "unsaved" for one in chosen.opened):
                    look.caption("One of the two is not saved yet: its link lasts as long as the server runs.")
            if unlike is not None:
                st.download_button(
                    "Differences (CSV)",
                    on_click="ignore",
                    icon=":material/download:",
                    mime="text/csv",
                    file_name="differences.csv",
                    data=lambda: csv_of_rows(as_cells(unlike.rows)),
                    key="download-differences",
                )


def _from_elsewhere(chosen: Chosen) -> list[tuple[str, str, str]]:
    sides = [side for side, one in zip("AB", chosen.opened, strict=True) if one.origin not in ("here", "unsaved")]
    said = f"{' and '.join(sides)} not measured here" if sides else ""
    return [("caution", said, "These numbers were read from a file.")] if said else []


def _judgement(before: Measurement, after: Measurement, found: Verdict, warm: Verdict | None) -> None:
    """The verdict, with the L2 cache cold, and at its right what it rests on; then that of the warm times, if there are any."""
    left, right = st.columns([0.37, 0.63], gap="medium")
    with left:
        st.html(compare_html.verdict(found))
        if warm is not None and warm.word is not None:
            said = ". ".join(filter(None, (compare_html.interval(warm), warm.sentence)))
            look.sentence(said, strong=f"With the L2 cache warm: {compare_html.headline(warm)}.")
    with right:
        _chart(rounds.chart(before, after, found, look.palette()), f"{before.started_at} {after.started_at}")


def _overlay(chosen: Chosen) -> None:
    """All versions that two snapshots have in common."""
    a, b = (side.snapshot for side in chosen.sides)
    if a.id == b.id:
        return
    found = overlay.chart(judged_pairs(a, b), look.palette())
    if isinstance(found, Chart):
        _chart(found, f"{a.id} {b.id}")


def _chart(found: Chart | Absent, key: str) -> None:
    if isinstance(found, Absent):
        look.absences([found])
    else:
        look.chart(found, key=f"{found.title} {key}", with_table=state.tables_shown())
