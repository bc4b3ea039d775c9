"""Running the article's suite: the command, and on a machine with a GPU from the page itself."""

from __future__ import annotations

import streamlit as st

from app import look, state
from profiling.article import SUITE, the_suite
from profiling.job_queue import JobView
from profiling.records import DeviceFacts
from profiling.suites import planned

COMMAND = f"python -m profiling bench {SUITE} --save"
_LOOKS_EVERY_S = 1.0


def show() -> None:
    """The command to copy; a button where there is a GPU; how far a run is, and its Save."""
    look.heading("Run it here")
    st.code(COMMAND, language=None)
    queue = state.job_queue()
    devices = queue.devices() if queue.devices_ready else ()
    device = next((one for one in devices if one.kind == "gpu"), None)
    jobs = state.article_jobs()
    is_running = any(not view.finished for view in jobs)
    if is_running:
        with st.container():  # a fragment that runs by itself needs a place of its own
            st.fragment(_progress, run_every=_LOOKS_EVERY_S)()
        return
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="article-run-bar"):
        if device is not None:
            _start(device)
        if any(state.has_result(view) for view in jobs) and not state.article_is_saved():
            st.button(
                "Save this run", icon=":material/save:", type="primary", on_click=state.save_article, key="article_save",
                help="Keeps each of its jobs as a snapshot, with a tag by which this page finds them.",
            )  # fmt: skip
    _failures(jobs)
    if device is None:
        look.caption(
            "There is no GPU here. On a machine with one, run it with --out FOLDER in place of --save; here, "
            "python -m profiling import FILES puts its snapshots where this page finds them."
        )


def _start(device: DeviceFacts) -> None:
    st.button(
        f"Run it on {device.short_name}", icon=":material/play_arrow:", on_click=state.start_article, args=(device,),
        key="article_start", help="One job a problem, the versions of each timed in interleaved rounds.",
    )  # fmt: skip
    left_out = [
        sentence for cell in the_suite().cells for sentence in planned(the_suite(), cell, the_suite().versions, device).left_out
    ]
    for sentence in dict.fromkeys(left_out):
        look.caption(f"Left out: {sentence}")


def _progress() -> None:
    """How many of the jobs are done, and the way to stop them."""
    jobs = state.article_jobs()
    if all(view.finished for view in jobs):
        st.rerun()
    done = sum(view.finished for view in jobs)
    running = next((view for view in jobs if view.state == "running"), None)
    said = f"{done} of {len(jobs)} problems"
    if running is not None:
        said += f"; {running.requests[0].problem.title}" + (f": {running.progress.text}" if running.progress else "")
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        look.chips([("wait", said, "The jobs of the suite, in the queue of the GPU.")], width="content")
        st.button("Stop", icon=":material/stop:", on_click=state.stop_article, key="article_stop")


def _failures(jobs: tuple[JobView, ...]) -> None:
    """Why a job of this tab's run gave nothing."""
    for view in jobs:
        if view.finished and not state.has_result(view):
            errors = [one.error.sentence for one in view.results if one is not None and one.error is not None]
            look.sentence(next(iter(errors), "It was cancelled."), strong=f"{view.requests[0].problem.title}:")
