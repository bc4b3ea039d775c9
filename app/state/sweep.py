"""The Sweep page: its fields, the sweeps of this server, which one is open, what of it is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import streamlit as st

from app import repeat, state, sweep_choices, sweep_shown
from app.state.form import FORM_DEFAULTS
from app.sweep_choices import DEFAULTS, OPTIONS, TINY
from app.sweep_shown import Shown
from profiling.records import DeviceFacts
from profiling.sweep_file import NotASweep, implausible, read
from profiling.sweep_ranking import ranking
from profiling.sweep_record import Ranking, Series, Sweep, SweepCell
from profiling.sweep_runner import Sweeps

SWEEP_MAP_KEY = "sweep_map"
SWEEP_CELL_KEY = "sweep_cell"
SWEEP_DEVICE_KEY = "s_device"
SWEEP_CHOICE_KEY = "sweep_choice"
SWEEP_ONLY_KEY = "sweep_only"
SWEEP_FILES = "*.sweep.json.gz"
"""What a recorded sweep is called in the gallery's folder, where every .json is a recorded snapshot."""
_SWEEP_PARAM = "sweep"
_OPENED_KEY = "_sweep"
_GREETED_KEY = "_sweep_greeted"
_RANKED_KEY = "_sweep_ranked"
_SERIES_KEY = "_sweep_series"
_VARIED_KEY = "_sweep_varied"
_FILE_KEY = "_sweep_file"
_FILES_KEY = "_sweep_files"
_BOX_KEY = "_sweep_upload"

Value = str | list[str]


@st.cache_resource(show_spinner=False)
def sweeps() -> Sweeps:
    """The sweeps of this server, shared by all sessions."""
    return Sweeps(state.job_queue())


@dataclass(frozen=True)
class ForeignSweep:
    """A sweep that this server neither ran nor keeps: recorded and in the box, or a file that was opened in this tab.

    warnings: a sentence for each of its times that cannot be true.
    """

    sweep: Sweep
    origin: Literal["gallery", "file"]
    name: str
    warnings: tuple[str, ...] = ()


@st.cache_resource(show_spinner="Reading the recorded sweeps …")
def _read_sweep(path: str, modified_ns: int) -> ForeignSweep | str:
    try:
        return ForeignSweep(read(Path(path).read_bytes()), "gallery", Path(path).name)
    except NotASweep as problem:
        return str(problem)


def recorded_sweeps() -> dict[str, ForeignSweep | str]:
    """The gallery's sweeps by file name; a file that is none comes as the sentence saying why."""
    paths = sorted(state.GALLERY.glob(SWEEP_FILES))
    return {path.name: _read_sweep(str(path), path.stat().st_mtime_ns) for path in paths}


def foreign_sweeps() -> dict[str, ForeignSweep]:
    """By id: the recorded sweeps, and the one whose file was opened in this tab."""
    opened = st.session_state.get(_FILE_KEY)
    found = [one for one in (*recorded_sweeps().values(), opened) if isinstance(one, ForeignSweep)]
    return {one.sweep.sweep_id: one for one in found}


def view_sweep(sweep_id: str) -> Sweep:
    """The sweep as it is now, wherever it is. Raises KeyError where there is none, StoreProblem."""
    foreign = foreign_sweeps().get(sweep_id)
    return foreign.sweep if foreign is not None else state.sweeps().view(sweep_id)


def sweep_upload_key() -> str:
    """The uploader's key: another one after each file, so that it is empty again."""
    return f"{_BOX_KEY}_{st.session_state.get(_FILES_KEY, 0)}"


def open_sweep_file() -> None:
    """Callback of the uploader: open the sweep in the file, or hold the sentence saying why it is none."""
    file = st.session_state.get(sweep_upload_key())
    if file is None:
        return
    st.session_state[_FILES_KEY] = st.session_state.get(_FILES_KEY, 0) + 1
    try:
        sweep = read(file.getvalue())
    except NotASweep as problem:
        st.session_state[_FILE_KEY] = f"{file.name[:120]}: {problem}"
        return
    st.session_state[_FILE_KEY] = ForeignSweep(sweep, "file", file.name, implausible(sweep))
    open_sweep(sweep.sweep_id)


def take_sweep_file_problem() -> str:
    """Why the file that was opened last is no sweep, said once; nothing where it is one."""
    if not isinstance(st.session_state.get(_FILE_KEY), str):
        return ""
    return st.session_state.pop(_FILE_KEY)


def sweep_values() -> dict[str, Value]:
    """The fields of the Sweep page as they stand; before its widgets are first drawn, what the address says."""
    return {field: _sweep_field(field, default) for field, default in DEFAULTS.items()}


def _sweep_field(field: str, default: Value) -> Value:
    if field in st.session_state:
        found = st.session_state[field]
        return list(found or ()) if isinstance(default, list) else found
    if isinstance(default, list):
        given = st.query_params.get_all(field)
        if given == [""]:
            return []  # every one of them was taken away
        return given if given and all(one in OPTIONS[field] for one in given) else default
    given = st.query_params.get(field)
    return given if given is not None and given in OPTIONS.get(field, (given,)) else default


def greet_sweep(devices: Sequence[DeviceFacts]) -> None:
    """Once a session: where there is no GPU and the address names no field, they start with what the interpreter can sweep."""
    if st.session_state.get(_GREETED_KEY) or not devices:
        return
    st.session_state[_GREETED_KEY] = True
    if devices[0].kind != "gpu" and not set(st.query_params) & set(DEFAULTS) and sweep_values() == DEFAULTS:
        state.set_form(TINY)


def sweep_device_name() -> str | None:
    """The name of the devices that were chosen, here or in the address."""
    return st.session_state.get(SWEEP_DEVICE_KEY) or st.query_params.get(SWEEP_DEVICE_KEY)


def forget_sweep_device() -> None:
    """Before the widget is drawn: a device that is not here any more is not chosen."""
    st.session_state.pop(SWEEP_DEVICE_KEY, None)


def opened_sweep() -> str | None:
    """The id of the sweep that is open in this tab, by the address, or from before another page was opened."""
    given = st.query_params.get(_SWEEP_PARAM)
    if given is None and st.session_state.get(_OPENED_KEY) is not None:
        st.query_params[_SWEEP_PARAM] = st.session_state[_OPENED_KEY]
    elif given is not None:
        st.session_state[_OPENED_KEY] = given
    return st.session_state.get(_OPENED_KEY)


def open_sweep(sweep_id: str | None) -> None:
    """Open a sweep, or none: in a callback, or before its widgets are drawn."""
    st.session_state[_OPENED_KEY] = sweep_id
    st.session_state.pop(_VARIED_KEY, None)
    st.session_state.pop(SWEEP_CELL_KEY, None)
    st.session_state.pop(SWEEP_ONLY_KEY, None)
    if sweep_id is None:
        st.query_params.pop(_SWEEP_PARAM, None)
    else:
        st.query_params[_SWEEP_PARAM] = sweep_id


def show_sweep_choice(sweep_id: str | None) -> None:
    """Make the list of sweeps show which one is open."""
    st.session_state[SWEEP_CHOICE_KEY] = sweep_id


def open_chosen_sweep() -> None:
    """Callback of the list of sweeps."""
    open_sweep(st.session_state[SWEEP_CHOICE_KEY])


def series_key(name: str) -> str:
    """The key, and query parameter, of the widget that chooses one of sweep_shown.dimensions."""
    return f"v_{name}"


def chosen_series(sweep: Sweep) -> Series:
    """The series that is looked at; a choice that this sweep does not have is forgotten before its widget is drawn.

    What was chosen before another page was opened is put back: by then it is in no widget and no address.
    """
    before = st.session_state.get(_SERIES_KEY, {})
    values = {}
    for name, texts in sweep_shown.dimensions(sweep).items():
        key = series_key(name)
        if key in st.session_state and st.session_state[key] not in texts:
            del st.session_state[key]
        if key not in st.session_state and key not in st.query_params and before.get(name) in texts:
            st.session_state[key] = before[name]
        given = st.session_state.get(key, st.query_params.get(key))
        values[name] = given if given in texts else texts[0]
    st.session_state[_SERIES_KEY] = before | values
    return sweep_shown.chosen_series(sweep, values)


def shown_series(sweep: Sweep, series: Series) -> Shown:
    """A series as it is shown, ranked once for what is known of it."""
    made: dict[Any, Ranking] = st.session_state.setdefault(_RANKED_KEY, {})
    now = (sweep.sweep_id, sweep.change, sweep.state.done)  # the store does not count the changes of another process
    if made and next(iter(made))[:-1] != now:
        made.clear()
    key = (*now, series)
    if key not in made:
        made[key] = ranking(sweep, series)
    return Shown(sweep, series, made[key])


def chosen_sweep_cell(keys: Sequence[str]) -> str | None:
    """The cell that is looked at, if it is one of these; what is none of them is forgotten before its widget is drawn."""
    found = st.session_state.get(SWEEP_CELL_KEY)
    if found is not None and found not in keys:
        del st.session_state[SWEEP_CELL_KEY]
        return None
    return found


def take_clicked_sweep_cell(keys: Sequence[str]) -> None:
    """Callback of the map: look at the cell that was clicked. A click beside the cells, or the same again, changes nothing."""
    points = st.session_state[SWEEP_MAP_KEY]["selection"]["points"]
    clicked = points[0].get("customdata") if points else None
    if clicked and clicked[0] in keys:
        st.session_state[SWEEP_CELL_KEY] = clicked[0]


def picked_lines(choices: Sequence[str]) -> list[str]:
    """Which choices the lines of the parallel coordinates must have made; those that are none any more are forgotten."""
    found = [one for one in st.session_state.get(SWEEP_ONLY_KEY) or () if one in choices]
    if SWEEP_ONLY_KEY in st.session_state and st.session_state[SWEEP_ONLY_KEY] != found:
        st.session_state[SWEEP_ONLY_KEY] = found
    return found


def run_cell(cell: SweepCell, capability: int | None) -> None:
    """Leave for the Run page, its form saying what this cell is."""
    form = FORM_DEFAULTS | repeat.form_of(cell.request, cell.tiles) | {"energy": FORM_DEFAULTS["energy"]}
    state.go_to_form(form, capability)


def use_plan_of(sweep: Sweep) -> None:
    """Callback: put what a sweep varied into the fields, and unfold them."""
    state.set_form(sweep_choices.like(sweep.plan))
    st.session_state[_VARIED_KEY] = True


def is_varied() -> bool:
    """Whether the fields are unfolded above the sweep that is open."""
    return bool(st.session_state.get(_VARIED_KEY, False))
