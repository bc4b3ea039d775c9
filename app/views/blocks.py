"""The Blocks page: which BLOCK_M × BLOCK_N can run on a GPU, and what stops the others. Compiled; nothing is launched."""

from __future__ import annotations

import streamlit as st

from app import blocks_choices, look, state
from app.figures import feasibility as figure
from app.views import blocks_cell, blocks_fields, press
from profiling import words
from profiling.feasibility import MAY_CHANGE, Cell, Grid, Place, summary
from profiling.feasibility_map import FeasibilityMap, known_of

_FILLS_EVERY_S = 1.0
_MAP, _CELL = 1.9, 1.0


def page() -> None:
    """What to compile, the map as it fills, the cell that is looked at."""
    queue = state.job_queue()
    devices = queue.devices() if queue.devices_ready else ()
    state.greet_blocks(next((one for one in devices if one.kind == "gpu"), devices[0] if devices else None))
    state.put_back_fields("blocks")
    values = state.blocks_values()
    checked = blocks_choices.check(values)
    grid = checked.grid or state.last_grid()
    found = state.feasibility_maps().of(grid) if grid is not None else None
    title = st.container()
    blocks_fields.fields(values)
    if state.lost_fields("blocks", values, state.blocks_values()):
        st.rerun()
    with st.container(gap="small"):  # a place of its own: what comes and goes in it does not remake the map below
        if checked.grid is None:
            look.field_error(checked.sentence)
            if grid is not None:
                look.sentence(f"{grid.title}.", strong="Still shown:")
    if grid is None:
        with title:
            look.title("Which tiles can run")
        return
    state.remember_grid(grid)
    is_filling = found is not None and not found.finished
    with title:
        known = found.cells if found is not None else known_of(grid)
        is_whole = len(known) == len(grid.places)
        look.title(f"{summary(known.values()) if is_whole else 'Which tiles can run'}: {grid.title}")
    with st.container():  # a fragment that runs by itself needs a place of its own
        st.fragment(_map, run_every=_FILLS_EVERY_S if is_filling else None)(grid, is_filling)


def _map(grid: Grid, was_filling: bool) -> None:
    """The map and the cell that is looked at; while it fills, drawn again every second, and at its end the whole page."""
    found = state.feasibility_maps().of(grid)
    if was_filling and (found is None or found.finished):
        st.rerun()
    cells = found.cells if found is not None else known_of(grid)
    _above(grid, found, cells)
    layer = _layer(grid)
    looked_at = state.chosen_cell(list(layer)) or blocks_cell.first(grid, layer)
    left, right = st.columns([_MAP, _CELL], gap="large")
    with left:
        _chart(grid, layer, cells, looked_at)
    with right:
        blocks_cell.looked_at(grid, layer, cells)
        blocks_cell.advice(grid, layer, cells)


def _chart(grid: Grid, layer: tuple[Place, ...], cells: dict[Place, Cell], looked_at: Place | None) -> None:
    drawn = figure.chart(grid, layer, cells, looked_at, look.palette())
    look.heading(drawn.title, drawn.provenance)
    st.plotly_chart(
        drawn.figure, theme=None, config={"displayModeBar": False}, key=state.BLOCKS_MAP_KEY, alt=drawn.alt,
        on_select=lambda: state.take_clicked_cell(list(layer)), selection_mode="points",
    )  # fmt: skip
    look.caption(drawn.caption)
    if state.tables_shown():
        look.table(drawn.table, f"Table: {drawn.title}", drawn.explained)


def _layer(grid: Grid) -> tuple[Place, ...]:
    """The warps and stages that are drawn, of those that were chosen."""
    layers = grid.layers
    if len(layers) == 1:
        return next(iter(layers.values()))
    name = st.segmented_control(
        "Warps and stages", list(layers), default=state.blocks_layer(list(layers)), required=True, key=state.BLOCKS_LAYER_KEY,
        label_visibility="collapsed",
    )  # fmt: skip
    return layers[name]


def _above(grid: Grid, found: FeasibilityMap | None, cells: dict[Place, Cell]) -> None:
    """How far it is, and what can be done: compile, stop, try again, take it away."""
    left = len(grid.places) - len(cells)
    is_filling = found is not None and not found.finished
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="blocks-bar"):
        if is_filling:
            st.button("Stop", icon=":material/stop:", on_click=found.cancel, disabled=found.is_cancelled, key="blocks_stop")
            look.chips([_progress(grid, found, left)], width="content")
        elif left:
            start = f"Compile {left} cell{'s' * (left > 1)}"
            if press.button(start, type="primary", icon=":material/memory:", key="blocks_start"):
                state.feasibility_maps().start(grid)
                st.rerun()
        elif any(one.reason in MAY_CHANGE for one in cells.values()) and press.button(
            "Try the unclear ones again", icon=":material/refresh:", key="blocks_again"
        ):
            state.feasibility_maps().start(grid, again=True)
            st.rerun()
        st.toggle("Tables", key=state.TABLES_KEY, bind="query-params", help="The numbers behind the map.")
        if cells:
            blocks_cell.downloads(grid, [cells[place] for place in grid.places if place in cells])


def _progress(grid: Grid, found: FeasibilityMap, left: int) -> tuple[str, str, str]:
    done = len(grid.places) - left
    if found.is_waiting:
        return "wait", f"{done} of {len(grid.places)}; another map is compiled first", "One map is compiled at a time."
    said = f"{done} of {len(grid.places)} cells, {words.seconds(found.elapsed_s)}"
    return "wait", said, "Each cell is compiled in a process of its own, small tiles first."
