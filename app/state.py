"""The only file that names session_state keys, query parameters and cached resources.

Every field of the form is a widget whose key is also its query parameter, so a link restores the form. `job` in the
address is the job this tab follows: a reload, or another tab with the link, finds it again in the queue.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import streamlit as st

from app.presets import FIRST_ON_A_GPU, PRESETS
from kernels.architecture import ARCHITECTURES
from kernels.problem import BLOCK_SIZES, DTYPES, FP8_SCALES, HEAD_DIMS, LOOP_ORDERS, NUM_STAGES, NUM_WARPS, TileConfig
from kernels.registry import OUR_VERSIONS
from profiling.foreign_text import MAX_NAME
from profiling.job_queue import JobQueue, JobView
from profiling.records import DeviceFacts
from profiling.snapshot import AnySnapshot, NotASnapshot, Snapshot, read
from profiling.store import Store, StoreProblem

_WARM_AFTER_S = 2.0
FEWEST_DIGITS = 8
GALLERY = Path(__file__).with_name("gallery")

FORM_DEFAULTS: dict[str, str | bool] = {
    "kernel": "v3",
    **PRESETS["Tiny"].values,
    "fp8": False,
    "fp8_scale": "token",
    "smooth_k": True,
    "loop_order": "query",
    "block_m": "auto",
    "block_n": "auto",
    "num_warps": "auto",
    "num_stages": "auto",
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "kernel": OUR_VERSIONS,
    "dtype": DTYPES,
    "fp8_scale": FP8_SCALES,
    "loop_order": LOOP_ORDERS,
    "head_dim": tuple(map(str, HEAD_DIMS)),
    "block_m": tuple(map(str, BLOCK_SIZES)),
    "block_n": tuple(map(str, BLOCK_SIZES)),
    "num_warps": tuple(map(str, NUM_WARPS)),
    "num_stages": tuple(map(str, NUM_STAGES)),
}
TILE_FIELDS = ("block_m", "block_n", "num_warps", "num_stages")
COMPILE_FOR = {f"sm_{number} · {arch.example.split(', ')[-1]}": number for number, arch in ARCHITECTURES.items()}
DEFAULT_COMPILE_FOR = list(COMPILE_FOR.values()).index(90)
PRESET_KEY, DEVICE_KEY, COMPILE_FOR_KEY, TABLES_KEY, DETAILS_KEY = "preset", "device", "compile_for", "tables", "details"
_JOB_PARAM, _RECORDING_PARAM, SNAPSHOT_PARAM = "job", "recording", "snapshot"
_OWNER_KEY, _JOB_KEY, _GREETED_KEY, _RUN_NEXT_KEY, _PAGES_KEY, _WARMED_KEY = (
    "_owner",
    "_job",
    "_greeted",
    "_run_next",
    "_pages",
    "_warmed",
)


def register_pages(pages: dict[str, Any]) -> list[Any]:
    """Remember the pages under short names, for switching between them, and return them in order."""
    st.session_state[_PAGES_KEY] = pages
    return list(pages.values())


def page(name: str) -> Any:
    """A page by its short name."""
    return st.session_state[_PAGES_KEY][name]


def tables_shown() -> bool:
    """Whether the tables behind the charts are on screen."""
    return bool(st.session_state.get(TABLES_KEY, False))


@st.cache_resource(show_spinner=False)
def job_queue() -> JobQueue:
    """The one queue of this server, shared by all sessions."""
    return JobQueue()


@st.cache_data(show_spinner=False)
def _read_recording(path: str, _modified_ns: int) -> AnySnapshot | str:
    try:
        return read(Path(path).read_bytes())
    except NotASnapshot as error:
        return str(error)


def recordings() -> dict[str, AnySnapshot | str]:
    """The gallery by file name without suffix; a file that is not a recording comes as the sentence saying why."""
    return {path.stem: _read_recording(str(path), path.stat().st_mtime_ns) for path in sorted(GALLERY.glob("*.json"))}


@dataclass(frozen=True)
class Opened:
    """A snapshot found by its reference. origin: where it is: this store, the store by import, the gallery, or only in the queue."""

    snapshot: AnySnapshot
    id: str
    origin: Literal["here", "imported", "gallery", "unsaved"]


@st.cache_resource(show_spinner=False)
def store() -> Store | str:
    """The store, or the sentence saying why there is none."""
    try:
        return Store()
    except StoreProblem as error:
        return str(error)


def find(reference: str) -> Opened | None:
    """A snapshot by its id or the start of it, in the store or in the gallery; or by 'job-<id>' the job of this server."""
    if reference.startswith("job-"):
        return _unsaved(reference)
    found = store()
    kept = None if isinstance(found, str) else found.get(reference)
    if kept is not None:
        return Opened(kept.snapshot, kept.id, kept.origin)
    for one in recordings().values():
        if not isinstance(one, str) and len(reference) >= FEWEST_DIGITS and one.id.startswith(reference):
            return Opened(one, one.id, "gallery")
    return None


def _unsaved(reference: str) -> Opened | None:
    view = _view(reference.removeprefix("job-"))
    if view is None or not view.finished or not has_result(view):
        return None
    measurements = tuple(result for result in view.results if result is not None)
    title = f"Not saved yet: {view.title}"[:MAX_NAME]
    snapshot = Snapshot(title=title, created_at=view.finished_at or view.submitted_at, measurements=measurements)
    return Opened(snapshot, reference, "unsaved")


def opened_recording() -> str | None:
    """The recording that is open on the gallery page."""
    return st.query_params.get(_RECORDING_PARAM)


def open_recording(name: str | None) -> None:
    """Open a recording, or go back to the list."""
    if name is None:
        st.query_params.pop(_RECORDING_PARAM, None)
    else:
        st.query_params[_RECORDING_PARAM] = name


def form_values() -> dict[str, str | bool]:
    """The form as it stands; before its widgets are first drawn, what the address says, or else the defaults."""
    return {field: st.session_state.get(field, _from_address(field, default)) for field, default in FORM_DEFAULTS.items()}


def _from_address(field: str, default: str | bool) -> str | bool:
    given = st.query_params.get(field)
    if given is None:
        return default
    if isinstance(default, bool):
        return given == "true" if given in ("true", "false") else default
    return given if field not in _CHOICES or given in _CHOICES[field] else default


def set_form(values: dict[str, str | bool]) -> None:
    """Put values into the form: before its widgets are drawn, or in a callback."""
    for field, value in values.items():
        st.session_state[field] = value


def set_tiles(tiles: TileConfig) -> None:
    """Put tile sizes into the form, as a callback does that offers a configuration that works."""
    set_form({name: str(getattr(tiles, name)) for name in TILE_FIELDS})


def set_tiny() -> None:
    """Put the smallest preset into the form, with default tiles."""
    set_form({**PRESETS["Tiny"].values, **dict.fromkeys(TILE_FIELDS, "auto")})


def reset_tiles() -> None:
    """Callback of the defaults button: every tile size is the version's own again."""
    set_form(dict.fromkeys(TILE_FIELDS, "auto"))


def compile_for() -> int:
    """The compute capability that compile reports are for when there is no GPU."""
    chosen = st.session_state.get(COMPILE_FOR_KEY) or st.query_params.get(COMPILE_FOR_KEY)
    return COMPILE_FOR.get(chosen, list(COMPILE_FOR.values())[DEFAULT_COMPILE_FOR])


def device_name() -> str | None:
    """The short name of the device that was chosen, here or in the address."""
    return st.session_state.get(DEVICE_KEY) or st.query_params.get(DEVICE_KEY)


def warm(device: DeviceFacts) -> None:
    """Once a session and device: start its worker, so that the first job need not wait for it."""
    warmed = st.session_state.setdefault(_WARMED_KEY, set())
    if device.id not in warmed:
        warmed.add(device.id)
        # Importing torch takes a core for seconds: not while the page is being painted.
        threading.Timer(_WARM_AFTER_S, job_queue().warm, (device.id,)).start()


def interpreter_tile_ms(device: DeviceFacts) -> float | None:
    """What a 64 × 64 × 64 tile takes in the interpreter: as its worker measured it, None before one has started."""
    worker = job_queue().environment(device.id)
    return (worker.device if worker else device).interpreter_tile_ms


def apply_chosen_preset() -> None:
    """Callback of the preset pills: tiles go back to their defaults with the problem."""
    chosen = st.session_state.get(PRESET_KEY)
    if chosen is not None:
        set_form({**PRESETS[chosen].values, **dict.fromkeys(TILE_FIELDS, "auto")})


def show_preset(name: str | None) -> None:
    """Make the pills show which preset the form's values are."""
    st.session_state[PRESET_KEY] = name


def greet(has_gpu: bool) -> None:
    """Once a session: on a GPU an untouched form starts with a problem that is worth a GPU."""
    if st.session_state.get(_GREETED_KEY):
        return
    st.session_state[_GREETED_KEY] = True
    if has_gpu and form_values() == FORM_DEFAULTS and not set(st.query_params) & set(FORM_DEFAULTS):
        set_form(PRESETS[FIRST_ON_A_GPU].values)


def owner() -> str:
    """Who this tab is to the queue. A tab that follows a job of an earlier visit takes over its owner."""
    if _OWNER_KEY not in st.session_state:
        found = _view(st.query_params.get(_JOB_PARAM))
        st.session_state[_OWNER_KEY] = found.owner if found else uuid.uuid4().hex
    return st.session_state[_OWNER_KEY]


def follow(job_id: str) -> None:
    """Make this tab follow a job."""
    st.session_state[_JOB_KEY] = job_id
    st.query_params[_JOB_PARAM] = job_id


def followed_job() -> JobView | None:
    """The job this tab follows, as it is now; an unknown one is dropped from the address."""
    owner()
    job_id = st.session_state.get(_JOB_KEY) or st.query_params.get(_JOB_PARAM)
    found = _view(job_id)
    if found is not None:
        follow(found.job_id)
    elif job_id is not None:
        st.query_params.pop(_JOB_PARAM, None)
        st.session_state.pop(_JOB_KEY, None)
    return found


def last_good() -> JobView | None:
    """This owner's newest finished job that has a result to show."""
    finished = [view for view in job_queue().jobs(owner()) if view.finished]
    return next((view for view in reversed(finished) if has_result(view)), None)


def has_result(view: JobView) -> bool:
    """Whether some version of the job ran to its end, right or wrong."""
    return any(result is not None and result.error is None for result in view.results)


def ask_to_run() -> None:
    """Let the page run what the form says on its next pass, as the Run button does."""
    st.session_state[_RUN_NEXT_KEY] = True


def asked_to_run() -> bool:
    """Whether ask_to_run was called since the last look."""
    return bool(st.session_state.pop(_RUN_NEXT_KEY, False))


def _view(job_id: str | None) -> JobView | None:
    if job_id is None:
        return None
    try:
        return job_queue().view(job_id)
    except KeyError:
        return None
