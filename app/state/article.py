"""The Article page: the runs of its suite in the store and in the gallery, and the run that this tab started."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

import streamlit as st

from app import state
from app.state.found import has_result
from profiling.article import SUITE, the_suite
from profiling.job_queue import JobView
from profiling.keeping import Keeping, Wording
from profiling.records import DeviceFacts
from profiling.snapshot import AnySnapshot
from profiling.store import Listed, Query, StoreProblem
from profiling.suite_table import suite_table
from profiling.suites import Cell, planned

ARTICLE_FROM_KEY = "article_from"
HERE, RECORDINGS = "here", "recordings"
_RUN_PARAM = "article_run"
_RUN_KEY = "_article_run"
_SAVED_KEY = "_article_saved"
_KEPT_KEY = "_article_kept"
_MOST_RUNS, _MOST_ROWS = 10, 200


@dataclass(frozen=True)
class RunJob:
    """A job of a run, and where it can be opened: a page's short name and its address."""

    snapshot: AnySnapshot
    page: str
    address: dict[str, str]


@dataclass(frozen=True)
class SuiteRun:
    """Snapshots of one run of the suite. name: 'here', a run's tag, or 'recordings'; began: ISO 8601, '' where none is known.

    jobs: the snapshots; ids: those of the store, which are read when they are asked for.
    """

    name: str
    began: str
    is_imported: bool = False
    jobs: tuple[RunJob, ...] = ()
    ids: tuple[str, ...] = ()


def article_runs() -> dict[str, SuiteRun]:
    """The runs that the page can show, by name: this tab's, those in the store, newest first, the recordings."""
    found = [_run_here(), *_kept_runs(), _recorded_run()]
    return {run.name: run for run in found if run is not None}


def jobs_of_run(run: SuiteRun) -> tuple[RunJob, ...]:
    """A run's snapshots; those in the store are read when they are asked for, and once."""
    if not run.ids:
        return run.jobs
    held = st.session_state.setdefault(_KEPT_KEY, {})
    for id in run.ids:
        if id not in held:
            held[id] = _kept(id)
    for old in [id for id in held if id not in run.ids]:
        del held[old]
    return tuple(RunJob(held[id], "snapshots", {state.SNAPSHOT_PARAM: id}) for id in run.ids if held.get(id) is not None)


def _kept(id: str) -> AnySnapshot | None:
    store = state.store()
    try:
        kept = None if isinstance(store, str) else store.get(id)
    except StoreProblem:
        return None
    return None if kept is None else kept.snapshot


def _kept_runs() -> list[SuiteRun]:
    store = state.store()
    if isinstance(store, str):
        return []
    try:
        rows = store.search(Query(tag=SUITE), _MOST_ROWS).rows
    except StoreProblem:
        return []
    by_tag: dict[str, list[Listed]] = {}
    for row in rows:
        for tag in the_suite().run_tags(row.tags):
            by_tag.setdefault(tag, []).append(row)
    return [_kept_run(tag, by_tag[tag]) for tag in sorted(by_tag, reverse=True)[:_MOST_RUNS]]


def _kept_run(tag: str, rows: list[Listed]) -> SuiteRun:
    is_imported = any(row.origin == "imported" for row in rows)
    return SuiteRun(tag, _began(tag), is_imported, ids=tuple(row.id for row in rows))


def _began(tag: str) -> str:
    """When a tag says that its run began; a file from anywhere may have one that names no moment."""
    try:
        found = datetime.strptime(tag.removeprefix(f"{SUITE}-"), "%Y%m%d-%H%M%S")
    except ValueError:
        return ""
    return found.replace(tzinfo=UTC).isoformat()


def _recorded_run() -> SuiteRun | None:
    """The newest run in the gallery; where it has none, its recordings of the suite's problems."""
    found = {name: one for name, one in state.recordings().items() if not isinstance(one, str)}
    tagged = {tag for one in found.values() for tag in the_suite().run_tags(one.tags)}
    if tagged:
        newest = max(tagged)
        fitting = {name: one for name, one in found.items() if newest in one.tags}
    else:
        fitting = {name: one for name, one in found.items() if suite_table(the_suite(), [one]).rows}
    if not fitting:
        return None
    jobs = tuple(RunJob(one, "gallery", {"recording": name}) for name, one in fitting.items())
    return SuiteRun(RECORDINGS, _began(newest) if tagged else "", jobs=jobs)


# The run of this tab


def article_jobs() -> tuple[JobView, ...]:
    """The jobs that this tab, or an earlier visit whose address it has, started for the suite, in order."""
    run = st.session_state.get(_RUN_KEY) or st.query_params.get(_RUN_PARAM)
    if run is None:
        return ()
    jobs = state.job_queue().jobs(_owner(run))
    if not jobs:
        st.session_state.pop(_RUN_KEY, None)
        st.query_params.pop(_RUN_PARAM, None)
        return ()
    st.session_state[_RUN_KEY] = st.query_params[_RUN_PARAM] = run
    return jobs


def article_is_saved() -> bool:
    """Whether this tab's run is in the store already."""
    return st.session_state.get(_SAVED_KEY) == st.session_state.get(_RUN_KEY)


def start_article(device: DeviceFacts) -> None:
    """Callback: queue every job of the suite that the device can run; or say why that cannot be."""
    run = uuid.uuid4().hex[:12]
    try:
        for cell in the_suite().cells:
            requests = planned(the_suite(), cell, the_suite().versions, device).requests
            if requests:
                state.job_queue().submit(requests, _owner(run))
    except ValueError as error:
        state.show_problem(str(error))
        return
    st.session_state[_RUN_KEY] = st.query_params[_RUN_PARAM] = run
    st.session_state.pop(ARTICLE_FROM_KEY, None)


def stop_article() -> None:
    """Callback: cancel what of this tab's run has not finished."""
    for view in article_jobs():
        if not view.finished:
            state.job_queue().cancel(view.job_id)


def save_article() -> None:
    """Callback: keep this tab's run in the store, as the command would; or say why that cannot be."""
    store, jobs = state.store(), [view for view in article_jobs() if has_result(view)]
    tag = the_suite().run_tag(datetime.fromisoformat(jobs[0].submitted_at))
    try:
        if isinstance(store, str):
            raise StoreProblem(store)
        for view in jobs:
            cell = _cell_of(view)
            wording = Wording(title=None if cell is None else the_suite().title_of(cell), tags=(SUITE, tag))
            results = [one for one in view.results if one is not None]
            store.save(Keeping(wording).snapshot(results), state.who())
    except StoreProblem as problem:
        state.show_problem(str(problem))
        return
    st.session_state[_SAVED_KEY] = st.session_state[_RUN_KEY]
    st.session_state.pop(ARTICLE_FROM_KEY, None)


def _cell_of(view: JobView) -> Cell | None:
    """The suite's cell that a job is of."""
    return next((cell for cell in the_suite().cells if cell.problem == view.requests[0].problem), None)


def _owner(run: str) -> str:
    return f"{SUITE}-{run}"


def _run_here() -> SuiteRun | None:
    if article_is_saved():
        return None
    jobs = [view for view in article_jobs() if view.finished and has_result(view)]
    if not jobs:
        return None
    found = tuple(RunJob(state.unsaved(view).snapshot, "run", state.job_address(view.job_id)) for view in jobs)
    return SuiteRun(HERE, jobs[0].submitted_at, jobs=found)
