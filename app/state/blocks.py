"""The Blocks page: its fields, its maps, the cell that is looked at."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app import blocks_choices, state
from app.blocks_choices import DEFAULTS, OPTIONS
from app.state.form import FORM_DEFAULTS
from kernels.architecture import architecture
from profiling.feasibility import Grid, Place
from profiling.feasibility_map import FeasibilityMaps
from profiling.records import DeviceFacts, RunRequest

BLOCKS_MAP_KEY = "blocks_map"
BLOCKS_CELL_KEY = "blocks_cell"
BLOCKS_LAYER_KEY = "blocks_layer"
_LAST_KEY = "_blocks_last"
_GREETED_KEY = "_blocks_greeted"

Value = str | bool | list[str]


@st.cache_resource(show_spinner=False)
def feasibility_maps() -> FeasibilityMaps:
    """The maps of this server, shared by all sessions."""
    return FeasibilityMaps()


def blocks_values() -> dict[str, Value]:
    """The fields of the Blocks page as they stand; before its widgets are first drawn, what the address says."""
    return {field: _blocks_field(field, default) for field, default in DEFAULTS.items()}


def _blocks_field(field: str, default: Value) -> Value:
    if field in st.session_state:
        found = st.session_state[field]
        return list(found or ()) if isinstance(default, list) else found
    if isinstance(default, list):
        given = st.query_params.get_all(field)
        return given if given and all(one in OPTIONS[field] for one in given) else default
    given = st.query_params.get(field)
    if given is None:
        return default
    if isinstance(default, bool):
        return given == "true" if given in ("true", "false") else default
    return given if given in OPTIONS.get(field, (given,)) else default


def greet_blocks(device: DeviceFacts | None) -> None:
    """Once a session: where there is a GPU and the address names none, the fields start with that one."""
    if st.session_state.get(_GREETED_KEY) or device is None:
        return
    st.session_state[_GREETED_KEY] = True
    if device.capability is not None and "b_gpu" not in st.session_state and "b_gpu" not in st.query_params:
        near = architecture(device.capability).capability
        state.set_form({"b_gpu": next(name for name, number in blocks_choices.GPUS.items() if number == near)})


def address_to_blocks(request: RunRequest, capability: int) -> dict[str, Any]:
    """The Blocks page's address for a configuration."""
    fields = {name: value for name, value in blocks_choices.like(request, capability).items() if value != DEFAULTS[name]}
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in fields.items()}


def last_grid() -> Grid | None:
    """The grid that this tab showed last."""
    return st.session_state.get(_LAST_KEY)


def remember_grid(grid: Grid) -> None:
    """Keep what is shown, for when the fields ask for what is not possible."""
    st.session_state[_LAST_KEY] = grid


def chosen_cell(places: list[Place]) -> Place | None:
    """The cell that is looked at, if it is one of these; what is none of them is forgotten before its widget is drawn."""
    found = st.session_state.get(BLOCKS_CELL_KEY)
    if found is not None and found not in places:
        del st.session_state[BLOCKS_CELL_KEY]
        return None
    return found


def take_clicked_cell(places: list[Place]) -> None:
    """Callback of the map: look at the cell that was clicked. A click beside the cells, or the same again, changes nothing."""
    points = st.session_state[BLOCKS_MAP_KEY]["selection"]["points"]
    clicked = points[0].get("customdata") if points else None
    place = next((one for one in places if clicked and [one.block_m, one.block_n] == list(clicked[:2])), None)
    if place is not None:
        st.session_state[BLOCKS_CELL_KEY] = place


def run_with_tiles(grid: Grid, place: Place) -> None:
    """Leave for the Run page, its form saying what this cell is."""
    state.go_to_form(FORM_DEFAULTS | blocks_choices.run_form(grid, place), grid.capability)


def blocks_layer(layers: list[str]) -> str:
    """The first of these to draw; a choice of an earlier grid that is none of them is forgotten before its widget is drawn."""
    if st.session_state.get(BLOCKS_LAYER_KEY) not in layers:
        st.session_state.pop(BLOCKS_LAYER_KEY, None)
    return layers[0]
