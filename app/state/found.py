"""Snapshots wherever they are: in the gallery, the store, the queue."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import streamlit as st

from app import result_facts, state
from app.state.pages import SNAPSHOT_PARAM
from profiling.foreign_text import MAX_NAME
from profiling.job_queue import JobView
from profiling.privacy import without_personal
from profiling.snapshot import AnySnapshot, NotASnapshot, Snapshot, read
from profiling.store import Kept, Store, StoreProblem

FEWEST_DIGITS = 8
GALLERY = Path(__file__).parents[1] / "gallery"
_RECORDING_PARAM = "recording"
_UNSAVED_KEY = "_unsaved"
_PLAIN_KEY = "_plain"


@st.cache_data(show_spinner=False)
def _read_recording(path: str, modified_ns: int) -> AnySnapshot | str:
    try:
        return read(Path(path).read_bytes())
    except NotASnapshot as error:
        return str(error)


def recordings() -> dict[str, AnySnapshot | str]:
    """The gallery by file name without suffix; a file that is not a recording comes as the sentence saying why."""
    return {path.stem: _read_recording(str(path), path.stat().st_mtime_ns) for path in sorted(state.GALLERY.glob("*.json"))}


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
        view = state.job_view(reference.removeprefix("job-"))
        return unsaved(view) if view is not None and view.finished and has_result(view) else None
    if len(reference) < FEWEST_DIGITS:
        return None
    found = state.store()
    kept = None if isinstance(found, str) else found.get(reference)
    if kept is not None:
        return Opened(kept.snapshot, kept.id, kept.origin, kept)
    for one in state.recordings().values():
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


def opened_snapshot() -> str | None:
    """The reference of the snapshot that the address names."""
    return st.query_params.get(SNAPSHOT_PARAM)


def open_snapshot(reference: str | None) -> None:
    """Open a snapshot on the snapshots page, or go back to the list."""
    if reference is None:
        st.query_params.pop(SNAPSHOT_PARAM, None)
    else:
        st.query_params[SNAPSHOT_PARAM] = reference


def opened_recording() -> str | None:
    """The recording that is open on the gallery page."""
    return st.query_params.get(_RECORDING_PARAM)


def open_recording(name: str | None) -> None:
    """Open a recording, or go back to the list."""
    if name is None:
        st.query_params.pop(_RECORDING_PARAM, None)
    else:
        st.query_params[_RECORDING_PARAM] = name


def has_result(view: JobView) -> bool:
    """Whether some version of the job ran to its end, right or wrong."""
    return any(result is not None and result.error is None for result in view.results)
