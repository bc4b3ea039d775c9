"""The jobs of this tab on the Run page: what it follows, what it repeats."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import streamlit as st

from app import state
from app.state.form import COMPILE_FOR, COMPILE_FOR_KEY
from profiling.job_queue import JobView
from profiling.records import RunRequest
from profiling.sweep_record import SWEEP_PROBES

DETAILS_KEY = "details"
_JOB_PARAM = "job"
_AGAINST_PARAM = "against"
_OWNER_KEY = "_owner"
_JOB_KEY = "_job"
_RUN_NEXT_KEY = "_run_next"
_AGAINST_KEY = "_against"
_REPEAT_KEY = "_repeat"


def owner() -> str:
    """Who this tab is to the queue. A tab that follows a job of an earlier visit takes over its owner."""
    if _OWNER_KEY not in st.session_state:
        found = state.job_view(st.query_params.get(_JOB_PARAM))
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
    found = state.job_view(job_id)
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
    job_id = state.job_queue().submit(requests, owner())
    state.set_form(form)
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


def followed_address() -> dict[str, str]:
    """The query parameters of the job that this tab follows, which the Run page puts into its address."""
    found = state.job_view(st.session_state.get(_JOB_KEY))
    return job_address(found.job_id) if found is not None else {}


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
    finished = [view for view in state.job_queue().jobs(owner()) if view.finished and not _is_of_another_page(view)]
    return next((view for view in reversed(finished) if state.has_result(view)), None)


def _is_of_another_page(view: JobView) -> bool:
    """A trace, a schedule, or what is only checked and timed (a sweep's cells, the ladder, a suite): other pages show them."""
    probes = [{*request.probes} for request in view.requests]
    return any({"tiles", "schedule"} & asked for asked in probes) or all(asked <= {*SWEEP_PROBES} for asked in probes)


def ask_to_run() -> None:
    """Let the page run what the form says on its next pass, as the Run button does."""
    st.session_state[_RUN_NEXT_KEY] = True


def asked_to_run() -> bool:
    """Whether ask_to_run was called since the last look."""
    return bool(st.session_state.pop(_RUN_NEXT_KEY, False))
