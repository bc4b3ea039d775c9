"""Beside the map: the cell that is looked at, the article's pairs, the map as a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import streamlit as st

from app import look, state
from app.figures import compiled
from app.how_taken import COMPILED_ALONE
from app.views import press
from profiling.feasibility import ARTICLE, Advice, Cell, Grid, Place, csv_of, document


def looked_at(grid: Grid, layer: Sequence[Place], cells: Mapping[Place, Cell]) -> None:
    """A cell's report, and the ways on from it."""
    ordered = sorted(layer, key=lambda one: (one.block_m, one.block_n))
    place = st.selectbox(
        "Cell", ordered, index=ordered.index(first(grid, layer)),
        format_func=lambda one: f"{one.title}{_short(cells.get(one))}", key=state.BLOCKS_CELL_KEY,
    )  # fmt: skip
    found = cells.get(place)
    look.sentence(found.sentence if found is not None else "Not compiled yet.")
    if found is not None and found.report is not None:
        drawn = compiled.chart_of(found.report, look.palette())
        look.heading(drawn.title, drawn.provenance)
        st.plotly_chart(drawn.figure, theme=None, config={"displayModeBar": False}, key="blocks_report", alt=drawn.alt)
        look.caption(drawn.caption)
        if state.tables_shown():
            look.table(drawn.table, f"Table: {drawn.title}", {**drawn.explained, "compiled in": COMPILED_ALONE})
    _ways_on(grid, place, found)


def first(grid: Grid, layer: Sequence[Place]) -> Place:
    """What is looked at before a cell was chosen: the version's default, or the smallest tile."""
    sizes = grid.default.block_m, grid.default.block_n
    return next((one for one in layer if (one.block_m, one.block_n) == sizes), layer[0])


def _short(found: Cell | None) -> str:
    return f" · {found.reason}" if found is not None else ""


def _ways_on(grid: Grid, place: Place, found: Cell | None) -> None:
    with st.container(horizontal=True, gap="small", key="blocks-ways-on"):
        can_run = found is not None and found.can_run
        if press.button(
            "Use these tiles",
            type="primary" if can_run else "secondary",
            icon=":material/arrow_forward:",
            disabled=not can_run,
            help="Puts them, with the problem, into the Run page’s form.",
            key="blocks_use",
        ):
            state.run_with_tiles(grid, place)
        is_compiled = found is not None and found.report is not None
        if is_compiled and press.button("Read its code", icon=":material/code:", help="From TTIR to SASS.", key="blocks_code"):
            state.go_to("compiler", state.address_to_compiler(grid.request(place), grid.capability))


def advice(grid: Grid, layer: Sequence[Place], cells: Mapping[Place, Cell]) -> None:
    """The article's three pairs, each with what is wrong with it on this GPU."""
    look.heading("The article’s pairs", "compiled")
    for one in ARTICLE:
        look.sentence(_judged(one, layer, cells), strong=f"{one.title}, {one.lengths}:")


def _judged(one: Advice, layer: Sequence[Place], cells: Mapping[Place, Cell]) -> str:
    place = next((place for place in layer if (place.block_m, place.block_n) == (one.block_m, one.block_n)), None)
    if place is None:
        return "not among these sizes."
    found = cells.get(place)
    if found is None:
        return "not compiled yet."
    return found.sentence if found.reason != "fits" else f"It fits. {found.sentence}"


def downloads(grid: Grid, cells: list[Cell]) -> None:
    """The map as it stands, for a spreadsheet and for a program."""
    name = f"feasibility-{grid.kernel}-sm_{grid.capability}-d{grid.problem.head_dim}"
    st.download_button(
        "CSV", lambda: csv_of(cells), f"{name}.csv", "text/csv", icon=":material/download:",
        on_click="ignore", key="blocks_csv", type="tertiary",
    )  # fmt: skip
    st.download_button(
        "JSON", lambda: json.dumps(document(grid, cells), indent=1), f"{name}.json", "application/json",
        icon=":material/download:", on_click="ignore", key="blocks_json", type="tertiary",
    )  # fmt: skip
