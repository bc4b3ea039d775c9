"""The only file that names session_state keys, query parameters and cached resources.

Every field of the form is a widget whose key is also its query parameter, so a link restores the form. `job` in the
address is the job this tab follows: a reload, or another tab with the link, finds it again in the queue.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

import streamlit as st

from app import result_facts, schedule_choices
from app.lanes.payload import Selection
from app.player import choices
from app.player.first_trace import FIRST_TRACE
from app.player.payload import Position
from app.presets import FIRST_ON_A_GPU, PRESETS
from app.schedule_shown import Shown
from kernels.architecture import ARCHITECTURES
from kernels.problem import (
    BLOCK_M_SIZES,
    BLOCK_SIZES,
    DTYPES,
    FP8_SCALES,
    HEAD_DIMS,
    LOOP_ORDERS,
    NUM_STAGES,
    WARP_COUNTS,
    TileConfig,
)
from kernels.registry import OUR_VERSIONS
from profiling.foreign_text import MAX_NAME
from profiling.improvements import Judged, judged_pairs
from profiling.job_queue import JobQueue, JobView
from profiling.privacy import without_personal
from profiling.records import DeviceFacts, Measurement, OwnInputs, RunRequest
from profiling.snapshot import AnySnapshot, NotASnapshot, Snapshot, read
from profiling.store import Kept, Store, StoreProblem

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
    "block_m": tuple(map(str, BLOCK_M_SIZES)),
    "block_n": tuple(map(str, BLOCK_SIZES)),
    "num_warps": tuple(map(str, WARP_COUNTS)),
    "num_stages": tuple(map(str, NUM_STAGES)),
}
TILE_FIELDS = ("block_m", "block_n", "num_warps", "num_stages")
COMPILE_FOR = {f"sm_{number} · {arch.example.split(', ')[-1]}": number for number, arch in ARCHITECTURES.items()}
DEFAULT_COMPILE_FOR = list(COMPILE_FOR.values()).index(90)
PRESET_KEY, DEVICE_KEY, COMPILE_FOR_KEY, TABLES_KEY, DETAILS_KEY = "preset", "device", "compile_for", "tables", "details"
FIND_KEY, VERSION_KEY, GPU_KEY, LENGTH_KEY, TAG_KEY, BY_KEY = "find", "ran", "gpu", "seq_lens", "tag", "by"
SINCE_KEY, UNTIL_KEY, DELETED_KEY, LIST_PAGE_KEY = "since", "until", "deleted", "list"
ANY = "any"
FILTERS: dict[str, str | bool | None] = {
    FIND_KEY: "",
    **dict.fromkeys((VERSION_KEY, GPU_KEY, LENGTH_KEY, TAG_KEY, BY_KEY), ANY),
    **dict.fromkeys((SINCE_KEY, UNTIL_KEY)),
    DELETED_KEY: False,
}
_JOB_PARAM, _RECORDING_PARAM, SNAPSHOT_PARAM, _AGAINST_PARAM = "job", "recording", "snapshot", "against"
LONGEST_INTERPRETED, LONGEST_ON_A_GPU = 512, 4096
PLAYER_KEY, TAU_KEY = "player", "tau"
WATCHED_TRACE_KEY, TRACE_BESIDE_KEY = "watched_trace", "trace_beside"
FP8_PART_KEY, STUDY_SCALES_KEY, STUDY_HADAMARD_KEY, STUDY_MEAN_KEY = "fp8_part", "study_scales", "study_hadamard", "study_mean"
STUDY_TOKENS_KEY, STUDY_DIM_KEY = "study_tokens", "study_dim"
_POSITION_KEY, _TRACE_NEXT_KEY, _WATCHED_KEY = "_position", "_trace_next", "_watched"
_CLICK_SEEN_KEY, _BLOCK_NEXT_KEY = "_click_seen", "_block_next"
OWN_FROM_KEY, _OWN_KEY = "own_from", "_own"
LANES_KEY, SCHEDULE_OF_KEY, RECORDED_SCHEDULE_KEY, DRAWN_BELOW_KEY = "lanes", "schedule_of", "recorded_schedule", "below"
_SELECTED_PARAM = "at"
WHAT_IF_KEY, BELOW = "what_if", ("measured", "modelled")
_SCHEDULE_KEY, _SELECTED_KEY, _SELECTED_IN_ADDRESS_KEY, _OPEN_SEEN_KEY = (
    "_schedule", "_selected", "_selected_in_address", "_open_seen",
)  # fmt: skip
_PUT_BACK_KEY, _PUT_BACK_DONE_KEY, _OPENED_SCHEDULES_KEY = "_put_back", "_put_back_done", "_opened_schedules"
_OWNER_KEY, _JOB_KEY, _GREETED_KEY, _RUN_NEXT_KEY, _PAGES_KEY, _WARMED_KEY, _AGAINST_KEY = (
    "_owner",
    "_job",
    "_greeted",
    "_run_next",
    "_pages",
    "_warmed",
    "_against",
)
_AUTHOR_KEY, _SAVED_KEY, _RECEIPT_KEY, _DIALOG_KEY, _PROBLEM_KEY = "_author", "_saved", "_receipt", "_dialog", "_problem"
_DELETED_NOW_KEY, _UPLOADS_KEY, _UPLOAD_KEY, _REPEAT_KEY = "_deleted_now", "_uploads", "_upload", "_repeat"
_UNSAVED_KEY, _PLAIN_KEY = "_unsaved", "_plain"
COMPARE_PARAMS = ("a", "b", "va", "vb", "more")
_COMPARED_KEY = "_compared"


def register_pages(pages: dict[str, Any]) -> list[Any]:
    """Remember the pages under short names, for switching between them, and return them in order."""
    st.session_state[_PAGES_KEY] = pages
    return list(pages.values())


def page(name: str) -> Any:
    """A page by its short name."""
    return st.session_state[_PAGES_KEY][name]


def go_to(name: str, address: dict[str, str] | None = None) -> None:
    """Leave for another page, with this in the address and nothing else; nothing after it on this page is drawn."""
    # Without any, st.switch_page would clear the address, and refuses where a field of the form is in it.
    st.switch_page(page(name), query_params=address or {})


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
    """A snapshot found by its reference, with what the store says of it, if it is there.

    origin: where it is: this store, the store by import, the gallery, a file that was not kept, or only in the queue.
    """

    snapshot: AnySnapshot
    id: str
    origin: Literal["here", "imported", "gallery", "file", "unsaved"]
    kept: Kept | None = None


@st.cache_resource(show_spinner=False)
def _store() -> Store:
    return Store()


def store() -> Store | str:
    """The store, or the sentence saying why there is none; then the next call tries again."""
    try:
        return _store()
    except StoreProblem as error:
        return str(error)


def find(reference: str) -> Opened | None:
    """A snapshot by its id or the start of it, in the store or in the gallery; or by 'job-<id>' the job of this server.

    Raises StoreProblem when the store cannot be read.
    """
    if reference.startswith("job-"):
        view = _view(reference.removeprefix("job-"))
        return unsaved(view) if view is not None and view.finished and has_result(view) else None
    if len(reference) < FEWEST_DIGITS:
        return None
    found = store()
    kept = None if isinstance(found, str) else found.get(reference)
    if kept is not None:
        return Opened(kept.snapshot, kept.id, kept.origin, kept)
    for one in recordings().values():
        if not isinstance(one, str) and one.id.startswith(reference):
            return Opened(one, one.id, "gallery")
    return None


def unsaved(view: JobView) -> Opened:
    """A finished job's results as the snapshot that saving them would make: of the same job always the same one."""
    made = st.session_state.setdefault(_UNSAVED_KEY, {})
    if view.job_id not in made:
        measurements = tuple(result for result in view.results if result is not None)
        title = result_facts.title(view.requests)[:MAX_NAME]
        snapshot = Snapshot(title=title, created_at=view.finished_at or view.submitted_at, measurements=measurements)
        made[view.job_id] = Opened(snapshot, f"job-{view.job_id}", "unsaved")
    return made[view.job_id]


def plain(found: Opened) -> AnySnapshot:
    """What may leave: what was measured here, without what tells of a person or a machine; a kept snapshot as it is."""
    if found.origin != "unsaved" or not isinstance(found.snapshot, Snapshot):
        return found.snapshot
    made = st.session_state.setdefault(_PLAIN_KEY, {})
    if found.id not in made:
        made[found.id] = without_personal(found.snapshot)
    return made[found.id]


def link(snapshot_id: str) -> str:
    """The address of a snapshot, as the browser reaches this server."""
    base = (st.context.url or "").rstrip("/")
    for one in st.session_state[_PAGES_KEY].values():
        base = base.removesuffix(f"/{one.url_path}") if one.url_path else base
    return f"{base}/snapshots?{SNAPSHOT_PARAM}={snapshot_id}"


def list_page() -> int:
    """Which page of the list is shown; before its widget is first drawn, the one that the address says."""
    given = str(st.session_state.get(LIST_PAGE_KEY) or st.query_params.get(LIST_PAGE_KEY, ""))
    return max(1, int(given)) if re.fullmatch("[0-9]{1,6}", given) else 1


def opened_snapshot() -> str | None:
    """The reference of the snapshot that the address names."""
    return st.query_params.get(SNAPSHOT_PARAM)


def open_snapshot(reference: str | None) -> None:
    """Open a snapshot on the snapshots page, or go back to the list."""
    if reference is None:
        st.query_params.pop(SNAPSHOT_PARAM, None)
    else:
        st.query_params[SNAPSHOT_PARAM] = reference


def compared() -> dict[str, str]:
    """What the address says is compared, by COMPARE_PARAMS; where it says nothing, what this session compared last."""
    found = {name: st.query_params[name] for name in COMPARE_PARAMS if st.query_params.get(name)}
    return found if "a" in found or "b" in found else dict(st.session_state.get(_COMPARED_KEY, {}))


def compare(values: dict[str, str]) -> None:
    """Put what is compared into the address, where a link finds it, and remember it for this session."""
    st.session_state[_COMPARED_KEY] = values
    for name in COMPARE_PARAMS:
        if values.get(name, "") != st.query_params.get(name, ""):
            if values.get(name):
                st.query_params[name] = values[name]
            else:
                st.query_params.pop(name, None)


@st.cache_resource(show_spinner=False, max_entries=60)
def _judged(_a: Opened, a_id: str, b_id: str) -> tuple[Judged, ...]:
    other = find(b_id)
    return () if other is None else judged_pairs(_a.snapshot, other.snapshot)


def judged(a: Opened, b_id: str) -> tuple[Judged, ...]:
    """Every version of another snapshot judged against its counterpart in A. Raises StoreProblem."""
    return _judged(a, a.id, b_id)


def compare_key(name: str) -> str:
    """The key of the widget that chooses one of COMPARE_PARAMS."""
    return f"_compare_{name}"


def chosen(name: str) -> Any:
    """What the widget of one of COMPARE_PARAMS holds."""
    return st.session_state.get(compare_key(name))


def show_chosen(name: str, value: Any) -> None:
    """Make the widget of one of COMPARE_PARAMS show a value; before it is drawn."""
    st.session_state[compare_key(name)] = value


def compare_link(values: dict[str, str]) -> str:
    """The address of a comparison, as the browser reaches this server."""
    return f"{st.context.url or ''}?{urlencode({name: values[name] for name in COMPARE_PARAMS if values.get(name)})}"


def author() -> str:
    """The name this session's user gave last, empty before they did."""
    return st.session_state.get(_AUTHOR_KEY, "")


def remember_author(name: str) -> None:
    """Keep the user's name for this session."""
    st.session_state[_AUTHOR_KEY] = name


def who() -> str:
    """Whom the store's log names for what this session does."""
    return author() or "someone in the app"


def saved_as(reference: str) -> str | None:
    """The id under which this session saved what has this reference."""
    return st.session_state.get(_SAVED_KEY, {}).get(reference)


@dataclass(frozen=True)
class Receipt:
    """What came of saving: a sentence, and the id it is kept under, None when it could not be saved."""

    sentence: str
    id: str | None = None


def show_receipt(reference: str, found: Receipt) -> None:
    """Put a receipt on screen above what has this reference, and remember that it is saved."""
    if found.id is not None:
        st.session_state.setdefault(_SAVED_KEY, {})[reference] = found.id
    st.session_state[_RECEIPT_KEY] = (reference, found)


def receipt(reference: str) -> Receipt | None:
    """The receipt that belongs above what has this reference."""
    about, found = st.session_state.get(_RECEIPT_KEY, ("", None))
    return found if about == reference else None


def hide_receipt() -> None:
    """Callback: take the receipt off the screen."""
    st.session_state.pop(_RECEIPT_KEY, None)


def open_dialog(name: str, reference: str) -> None:
    """Callback: ask for a dialog, which stays through reruns until it is closed."""
    st.session_state[_DIALOG_KEY] = (name, reference)


def dialog_is_open(name: str, reference: str) -> bool:
    """Whether this dialog is on screen."""
    return st.session_state.get(_DIALOG_KEY) == (name, reference)


def close_dialog() -> None:
    """Close whatever dialog is open."""
    st.session_state.pop(_DIALOG_KEY, None)


def show_problem(sentence: str) -> None:
    """Callback: say once on the page why a change could not be made."""
    st.session_state[_PROBLEM_KEY] = sentence


def problem() -> str | None:
    """Why the last change could not be made, told once."""
    return st.session_state.pop(_PROBLEM_KEY, None)


def deleted_now(snapshot_id: str | None) -> None:
    """Remember what was just deleted, to offer the undo; None forgets it."""
    st.session_state[_DELETED_NOW_KEY] = snapshot_id


def just_deleted() -> str | None:
    """What was just deleted in this session."""
    return st.session_state.get(_DELETED_NOW_KEY)


def upload_key() -> str:
    """The uploader's key: another one after each file, so that it is empty again."""
    return f"_file_{st.session_state.get(_UPLOADS_KEY, 0)}"


def look_at_upload(name: str, found: AnySnapshot | str) -> None:
    """Hold what an uploaded file is, or the sentence saying why it is no snapshot; nothing is kept yet."""
    st.session_state[_UPLOAD_KEY] = (name, found)
    st.session_state[_UPLOADS_KEY] = st.session_state.get(_UPLOADS_KEY, 0) + 1


def upload() -> tuple[str, AnySnapshot | str] | None:
    """The uploaded file's name and what it is."""
    return st.session_state.get(_UPLOAD_KEY)


def discard_upload() -> None:
    """Let go of the uploaded file."""
    st.session_state.pop(_UPLOAD_KEY, None)


def clear_filters() -> None:
    """Callback: show the whole list again."""
    for key, default in FILTERS.items():
        st.session_state[key] = default


def keep_filters() -> None:
    """Hold on to the search while its fields are not drawn."""
    for key in FILTERS:
        if key in st.session_state:
            st.session_state[key] = st.session_state[key]


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


def form_address(values: dict[str, str | bool]) -> dict[str, str]:
    """The query parameters that make a form say this."""
    changed = {field: value for field, value in values.items() if value != FORM_DEFAULTS[field]}
    return {field: value if isinstance(value, str) else str(value).lower() for field, value in changed.items()}


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


def follow(job_id: str, against: str | None = None) -> None:
    """Make this tab follow a job; against: the snapshot it repeats."""
    repeats = st.session_state.setdefault(_AGAINST_KEY, {})
    if against is not None:
        repeats[job_id] = against
    st.session_state[_JOB_KEY] = job_id
    st.query_params[_JOB_PARAM] = job_id
    if job_id in repeats:
        st.query_params[_AGAINST_PARAM] = repeats[job_id]
    else:
        st.query_params.pop(_AGAINST_PARAM, None)


def followed_job() -> JobView | None:
    """The job this tab follows, as it is now; an unknown one is dropped from the address."""
    owner()
    job_id = st.session_state.get(_JOB_KEY) or st.query_params.get(_JOB_PARAM)
    found = _view(job_id)
    if found is not None:
        follow(found.job_id, _against_in_the_address(found.job_id))
    elif job_id is not None:
        st.query_params.pop(_JOB_PARAM, None)
        st.query_params.pop(_AGAINST_PARAM, None)
        st.session_state.pop(_JOB_KEY, None)
    return found


def _against_in_the_address(job_id: str) -> str | None:
    return st.query_params.get(_AGAINST_PARAM) if st.query_params.get(_JOB_PARAM) == job_id else None


def repeated_snapshot(job_id: str) -> str | None:
    """The id of the snapshot that a job repeats on this machine."""
    return st.session_state.get(_AGAINST_KEY, {}).get(job_id)


def repeat(requests: Sequence[RunRequest], form: dict[str, str | bool], against: str) -> str:
    """Queue a snapshot's requests for this machine, put them in the form, and follow the job, whose id it returns.

    Raises ValueError, in one sentence, when the requests do not fit together.
    """
    job_id = job_queue().submit(requests, owner())
    set_form(form)
    target = next((name for name, number in COMPILE_FOR.items() if number == requests[0].compile_for), None)
    if target is not None:
        st.session_state[COMPILE_FOR_KEY] = target
    st.session_state.setdefault(_AGAINST_KEY, {})[job_id] = against
    st.session_state[_JOB_KEY] = job_id
    return job_id


def job_address(job_id: str) -> dict[str, str]:
    """The query parameters that make a tab follow a job."""
    against = repeated_snapshot(job_id)
    return {_JOB_PARAM: job_id} | ({_AGAINST_PARAM: against} if against else {})


def ask_to_repeat(reference: str) -> None:
    """Callback: repeat a snapshot on this machine, or say why that cannot be."""
    st.session_state[_REPEAT_KEY] = reference


def asked_to_repeat(reference: str) -> bool:
    """Whether this snapshot is to be repeated here."""
    return st.session_state.get(_REPEAT_KEY) == reference


def stop_asking_to_repeat() -> None:
    """Callback: nothing is to be repeated any more."""
    st.session_state.pop(_REPEAT_KEY, None)


def details() -> str | None:
    """The label of the version whose details are on screen, where several ran."""
    return st.session_state.get(DETAILS_KEY)


def last_good() -> JobView | None:
    """This owner's newest finished job that has a result to show."""
    finished = [view for view in job_queue().jobs(owner()) if view.finished and not _is_of_another_page(view)]
    return next((view for view in reversed(finished) if has_result(view)), None)


def has_result(view: JobView) -> bool:
    """Whether some version of the job ran to its end, right or wrong."""
    return any(result is not None and result.error is None for result in view.results)


def _is_of_another_page(view: JobView) -> bool:
    """A trace or a schedule, which the Softmax and the Schedule page asked for and show."""
    return any({"tiles", "schedule"} & {*request.probes} for request in view.requests)


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


@st.cache_data(show_spinner=False)
def _first_traces(_modified_ns: int) -> tuple[Measurement, ...]:
    found = read(FIRST_TRACE.read_bytes())
    return found.measurements


def first_traces() -> tuple[Measurement, ...]:
    """The traces that ship with FlashScope: every version on the problem that the page begins with."""
    return _first_traces(FIRST_TRACE.stat().st_mtime_ns)


def watch_values() -> dict[str, str | bool]:
    """The fields of the Softmax page as they stand; before its widgets are first drawn, what the address says."""
    return {field: st.session_state.get(field, _watch_from_address(field)) for field in choices.DEFAULTS}


def _watch_from_address(field: str) -> str | bool:
    default, given = choices.DEFAULTS[field], st.query_params.get(field)
    if given is None:
        return default
    if isinstance(default, bool):
        return given == "true" if given in ("true", "false") else default
    return given if given in choices.OPTIONS.get(field, (given,)) else default


def own_key(kind: Literal["file", "text", "example"], name: str) -> str:
    """The key of a widget for one of a user's own Q, K and V."""
    return f"_own_{kind}_{name}"


def hold_own_inputs(found: OwnInputs | str) -> None:
    """Hold a user's own Q, K and V for this tab, or the sentence saying why they are none; they are in no address."""
    st.session_state[_OWN_KEY] = found


def own_inputs() -> OwnInputs | None:
    """The Q, K and V that were taken last."""
    found = st.session_state.get(_OWN_KEY)
    return found if isinstance(found, OwnInputs) else None


def why_no_own_inputs() -> str | None:
    """Why those that were given last cannot be taken."""
    found = st.session_state.get(_OWN_KEY)
    return found if isinstance(found, str) else None


def address_to_watch(measurement: Measurement) -> dict[str, str]:
    """The Softmax page's address for what is nearest to a result, at a length that is quick to trace here."""
    has_gpu = any(device.kind == "gpu" for device in job_queue().devices())
    fields = choices.like(measurement, LONGEST_ON_A_GPU if has_gpu else LONGEST_INTERPRETED)
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in fields.items()}


def traces() -> list[Measurement]:
    """Every trace that this server holds, the newest first, and then those that ship with FlashScope."""
    held = [result for view in reversed(job_queue().jobs()) for result in view.results if result is not None]
    return [*held, *first_traces()]


def job_of(requests: tuple[RunRequest, ...]) -> JobView | None:
    """The newest job that was asked for exactly these requests, from whichever tab."""
    return next((view for view in reversed(job_queue().jobs()) if view.requests == requests), None)


def last_watched() -> tuple[Measurement, ...]:
    """What the player showed last in this tab; at first a trace that ships."""
    return st.session_state.get(_WATCHED_KEY) or first_traces()[:1]


def remember_watched(measurements: tuple[Measurement, ...]) -> None:
    """Keep what the player shows, for when the next choice is not traced yet."""
    st.session_state[_WATCHED_KEY] = measurements


def position() -> Position | None:
    """Where the player rested last, in this tab or by the address; None before it ever has."""
    if _POSITION_KEY not in st.session_state:
        given = {name: st.query_params.get(name) for name in ("tile", "row", "speed")}
        st.session_state[_POSITION_KEY] = _position(given) if given["tile"] is not None else None
    return st.session_state[_POSITION_KEY]


def _position(given: dict[str, Any]) -> Position:
    """Whatever an address or a browser says, as a position; what is no small whole number is left at its default."""
    numbers = {name: str(given.get(name)) for name in ("tile", "row", "speed")}
    return Position(
        **{name: int(text) for name, text in numbers.items() if text.isascii() and text.isdigit() and len(text) < 7}
    )


def keep_position_in_address() -> None:
    """After the page was left and opened again, its address lacks what is no widget."""
    found = position()
    if found is not None:
        st.query_params.update({"tile": str(found.tile), "row": str(found.row), "speed": str(found.speed)})


def follow_player(said: Any) -> bool:
    """Take in what the player says; True when another query block was chosen on its map, which the page is to trace."""
    if not isinstance(said, dict):
        return False
    if _position(said) != position():
        st.session_state[_POSITION_KEY] = _position(said)
        keep_position_in_address()
    clicked = said.get("clicked")
    if not isinstance(clicked, dict) or clicked.get("at") == st.session_state.get(_CLICK_SEEN_KEY):
        return False
    st.session_state[_CLICK_SEEN_KEY] = clicked.get("at")
    st.session_state[_BLOCK_NEXT_KEY] = clicked.get("block")
    ask_to_trace()
    return True


def take_clicked_block() -> None:
    """Put the query block that was clicked into its field, before the field is drawn."""
    block = st.session_state.pop(_BLOCK_NEXT_KEY, None)
    if isinstance(block, int) and block >= 0:
        set_form({"query_block": str(block)})


def ask_to_trace() -> None:
    """Let the page trace what its fields say on its next pass."""
    st.session_state[_TRACE_NEXT_KEY] = True


def asked_to_trace() -> bool:
    """Whether ask_to_trace was called since the last look."""
    return bool(st.session_state.pop(_TRACE_NEXT_KEY, False))


def schedule_values() -> dict[str, str | bool]:
    """The fields of the Schedule page as they stand; before its widgets are first drawn, what the address says."""
    return {field: _schedule_field(field, default) for field, default in schedule_choices.DEFAULTS.items()}


def what_if_values() -> dict[str, str]:
    """Its what-if fields, likewise."""
    return {field: str(_schedule_field(field, default)) for field, default in schedule_choices.IF_DEFAULTS.items()}


def put_back_schedule_fields() -> None:
    """Before the fields are drawn: what they said when lost_schedule_fields saw that they were lost."""
    set_form(st.session_state.pop(_PUT_BACK_KEY, {}))


def lost_schedule_fields(before: dict[str, str | bool]) -> bool:
    """Whether drawing the fields changed them, and the page is to be drawn again with what they said before.

    When the browser goes back to a page, its fields take what that address says, which Streamlit has emptied by then.
    """
    is_second_time = st.session_state.pop(_PUT_BACK_DONE_KEY, False)
    if is_second_time or schedule_values() == before:
        return False
    st.session_state[_PUT_BACK_KEY] = {**before, **what_if_values()}
    st.session_state[_PUT_BACK_DONE_KEY] = True
    return True


def show_what_if(usual: dict[str, dict[str, str]]) -> None:
    """Make the pills show which of the usual what-ifs the fields ask for."""
    values = what_if_values()
    st.session_state[WHAT_IF_KEY] = next((name for name, fields in usual.items() if fields == values), None)


def apply_what_if(usual: dict[str, dict[str, str]]) -> None:
    """Callback of the pills: the fields ask for what was chosen, or for nothing."""
    set_form(usual.get(st.session_state.get(WHAT_IF_KEY) or "", schedule_choices.IF_DEFAULTS))


def _schedule_field(field: str, default: str | bool) -> str | bool:
    if field in st.session_state:
        return st.session_state[field]
    given = st.query_params.get(field)
    if given is None or (isinstance(default, bool) and given not in ("true", "false")):
        return default
    if isinstance(default, bool):
        return given == "true"
    return given if given in schedule_choices.OPTIONS.get(field, (given,)) else default


def address_to_schedule(measurement: Measurement) -> dict[str, str]:
    """The Schedule page's address for what a result ran."""
    return _schedule_address(schedule_choices.like(measurement.request, measurement.tiles, measurement.label))


def address_of_schedule(shown: Shown, selected: Selection) -> dict[str, str]:
    """The Schedule page's address for what it showed, and this piece of work in it."""
    fields = schedule_choices.like(shown.request, shown.request.tiles, shown.label)
    if shown.measurement is None:
        fields |= {"as_on": schedule_choices.gpu_words(shown.device), "at_once": str(shown.machine.programs_per_sm)}
    return _schedule_address(fields) | {_SELECTED_PARAM: f"{selected.head}.{selected.block}"}


def _schedule_address(fields: dict[str, str | bool]) -> dict[str, str]:
    changed = {name: value for name, value in fields.items() if value != schedule_choices.DEFAULTS[name]}
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in changed.items()}


def choose_recorded_schedule(recorded: Sequence[Measurement]) -> None:
    """Callback of the recordings' list: the fields ask for what was recorded, and nothing is chosen in the list any more."""
    place = st.session_state[RECORDED_SCHEDULE_KEY]
    st.session_state[RECORDED_SCHEDULE_KEY] = None
    if place is not None:
        one = recorded[place]
        set_form(schedule_choices.like(one.request, one.tiles, one.label) | schedule_choices.IF_DEFAULTS)


def set_schedule_tiles(tiles: TileConfig) -> None:
    """Callback: put tile sizes that work into the Schedule page's fields."""
    names = {name: form for name, form in schedule_choices.FORM_FIELDS.items() if form in TILE_FIELDS}
    set_form({name: str(getattr(tiles, form)) for name, form in names.items()})


def address_to_block(shown: Shown, selected: Selection) -> dict[str, str]:
    """The Softmax page's address for a piece of work, at a length that can be traced here."""
    fields = schedule_choices.to_watch(shown.request, shown.label, selected, _longest_to_watch())
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in fields.items()}


def can_watch_whole(shown: Shown) -> bool:
    """Whether the Softmax page can trace just this problem here; else a shorter one of its kind."""
    problem = shown.request.problem
    return max(problem.seq_len_q, problem.seq_len_kv) <= _longest_to_watch()


def _longest_to_watch() -> int:
    has_gpu = any(device.kind == "gpu" for device in job_queue().devices())
    return choices.MOST["seq_len_q"] if has_gpu else LONGEST_INTERPRETED


def drawn_below() -> str:
    """Which of BELOW is drawn under the lanes, where a what-if has both."""
    return st.session_state.get(DRAWN_BELOW_KEY) or BELOW[0]


def set_what_if_tiles(tiles: TileConfig) -> None:
    """Callback: ask what if for a tile size that works."""
    set_form({"if_rows": str(tiles.block_m), "if_columns": str(tiles.block_n)})


def schedules() -> list[Shown]:
    """Every schedule there is to look at: this server's, the newest first, the recordings, and those opened in this tab."""
    finished = [view for view in reversed(job_queue().jobs()) if view.finished]
    here = [(one, "unsaved", f"job-{view.job_id}") for view in finished for one in view.results if one is not None]
    kept = [found for found in recordings().values() if not isinstance(found, str)]
    recorded = [(one, "gallery", "") for found in kept for one in found.measurements]
    every = [Shown.of(one, *of) for one, *of in (*here, *recorded) if one.schedule is not None]
    return [*every, *st.session_state.get(_OPENED_SCHEDULES_KEY, ())]


def remember_opened_schedules(found: Sequence[Shown]) -> None:
    """Hold the schedules of a snapshot that was opened, so that the Schedule page can ask what if."""
    st.session_state[_OPENED_SCHEDULES_KEY] = tuple(found)


def where_it_ran(trace: Measurement) -> Shown | None:
    """A schedule in which the piece of work of a trace stands: held here, or what the Schedule page showed last."""
    request = trace.request.model_copy(update={"tiles": trace.tiles})
    last = last_schedule()
    found = [*schedules(), *([last] if last is not None else [])]
    return next((one for one in found if schedule_choices.is_where_it_ran(one.request, request)), None)


def last_schedule() -> Shown | None:
    """What the Schedule page showed last in this tab."""
    return st.session_state.get(_SCHEDULE_KEY)


def remember_schedule(shown: Shown) -> None:
    """Keep what is shown, for when the next choice has not run yet or is not possible."""
    st.session_state[_SCHEDULE_KEY] = shown


def selection() -> Selection | None:
    """The piece of work that is selected in the lanes, in this tab or by the address."""
    given = st.query_params.get(_SELECTED_PARAM)
    if given is not None and given != st.session_state.get(_SELECTED_IN_ADDRESS_KEY):  # a link came with another one
        head, _, block = given.partition(".")
        st.session_state[_SELECTED_KEY] = _selection(head, block)
        st.session_state[_SELECTED_IN_ADDRESS_KEY] = given
    return st.session_state.get(_SELECTED_KEY)


def _selection(head: Any, block: Any) -> Selection | None:
    """Whatever an address or a browser says, as a selection; None where it is no two small whole numbers, block from -1 on."""
    given = [str(head), str(block).removeprefix("-")]
    if not all(text.isascii() and text.isdigit() and len(text) < 8 for text in given) or int(str(block)) < -1:
        return None
    return Selection(int(str(head)), int(str(block)))


def keep_selection_in_address() -> None:
    """After the page was left and opened again, its address lacks what is no widget."""
    found = selection()
    text = f"{found.head}.{found.block}" if found is not None else None
    st.session_state[_SELECTED_IN_ADDRESS_KEY] = text
    if text is not None:
        st.query_params[_SELECTED_PARAM] = text
    else:
        st.query_params.pop(_SELECTED_PARAM, None)


def follow_lanes(said: Any) -> Selection | None:
    """Take in what the lanes say; a piece of work when it is to be opened on the Softmax page."""
    if not isinstance(said, dict):
        return None
    chosen, opened = said.get("selected"), said.get("opened")
    found = _selection(chosen.get("head"), chosen.get("block")) if isinstance(chosen, dict) else None
    if found != selection():
        st.session_state[_SELECTED_KEY] = found
        keep_selection_in_address()
    if not isinstance(opened, dict) or opened.get("at") == st.session_state.get(_OPEN_SEEN_KEY):
        return None
    st.session_state[_OPEN_SEEN_KEY] = opened.get("at")
    return _selection(opened.get("head"), opened.get("block"))
