"""The Run page: a form at the left; at the right what the job is doing and what the last one gave."""

from __future__ import annotations

import streamlit as st

from app import look, state
from app.views import actions, run_form, run_result, run_status, save
from app.views.run_form import Asked
from profiling.job_queue import JobView
from profiling.records import DeviceFacts, RunRequest


def page() -> None:
    """Form left, job and result right."""
    queue = state.job_queue()
    devices = queue.devices() if queue.devices_ready else ()
    if devices:
        state.greet(devices[0].kind == "gpu")
    with st.container(horizontal=True, gap="medium", wrap=False):
        asked = run_form.form(devices)
        _start(asked)
        with st.container(width="stretch", gap="small", key="result"):
            _right_side(devices)


def _start(asked: Asked) -> None:
    """Queue what a button asked for: one version, or several as one job, timed in interleaved rounds."""
    requests = _requests(asked, state.asked_to_run() or asked.run)
    if not requests:
        return
    try:
        state.follow(state.job_queue().submit(requests, state.owner()))
    except ValueError as error:
        look.field_error(str(error))


def _requests(asked: Asked, run: bool) -> tuple[RunRequest, ...]:
    if asked.run_all:
        return asked.checked.run_all
    if asked.run_beside_default:
        return asked.checked.beside_default
    return (asked.checked.request,) if run and asked.checked.request else ()


def _right_side(devices: tuple[DeviceFacts, ...]) -> None:
    job, good = state.followed_job(), state.last_good()
    if job is not None and job.finished and state.has_result(job):
        good = job
    busy = job is not None and job is not good
    if busy or good is None:
        look.title(run_result.title(job.requests) if job is not None else "Run an attention kernel")
    if not devices:
        run_status.discovering()
    elif devices[0].kind != "gpu" and good is None and not busy:
        run_status.no_gpu(devices)
    if busy:
        run_status.failed(job) if job.finished else run_status.live(job.job_id)
    if good is not None:
        _last_result(good, is_older=busy)
    elif not busy:
        look.sentence("Nothing has run yet. Run checks the output first; only a correct kernel gets a speed.")


def _last_result(good: JobView, is_older: bool) -> None:
    found = state.unsaved(good)
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", gap="small"):
        if is_older:
            done = run_result.clock(good.finished_at or good.submitted_at)
            look.sentence(f"{done} · {found.snapshot.title}", strong="The last run that worked")
        else:
            look.title(found.snapshot.title)
        with st.container(horizontal=True, gap="small", width="content", vertical_alignment="center"):
            actions.toolbar(found)
    _repeated(good)
    save.below(found)
    run_result.show(found.snapshot.measurements)


def _repeated(good: JobView) -> None:
    """After a snapshot was repeated here: the way to its comparison."""
    repeated = state.repeated_snapshot(good.job_id)
    if repeated is not None:
        with st.container(horizontal=True, gap="small", vertical_alignment="center", key="repeated"):
            look.sentence("A snapshot's requests, run again here.", width="content")
            actions.compare(f"job-{good.job_id}", against=repeated, label="Compare with the snapshot")
