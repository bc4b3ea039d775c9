"""What stands above the result: no GPU here, a job that waits or runs, a job that failed."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import look, state
from app.figures import limits
from app.figures.style import Chart
from app.views import run_metrics
from kernels.problem import TileConfig
from profiling import words
from profiling.job_queue import JobView
from profiling.records import DeviceFacts, JobError, Measurement

_PHASES = {
    "starting": "Starting the worker",
    "compile": "Compiling",
    "inputs": "Making inputs",
    "check": "Checking the output",
    "latency": "Timing launches",
    "memory": "Measuring memory",
    "energy": "Measuring energy",
    "observe": "Observing the GPU",
    "trace": "Tracing tiles",
    "schedule": "Stamping programs",
}


def discovering() -> None:
    """Look again until the devices are known, then draw the whole page."""
    with _place_of_its_own():
        _discovering()


def _place_of_its_own() -> DeltaGenerator:
    """A container for a fragment alone.

    A fragment that runs again right after the script drops what of it the browser has not had yet. Whatever follows it in
    the same container would then reach the browser without it, and the browser gives up the page ("Bad delta path index").
    """
    return st.container()


@st.fragment(run_every=0.3)
def _discovering() -> None:
    if state.job_queue().devices_ready:
        st.rerun()
    look.chips([("wait", "looking for GPUs", "NVIDIA's management library is being asked.")])


def no_gpu(devices: tuple[DeviceFacts, ...]) -> None:
    """What works without a GPU, and three ways on."""
    with st.container(border=True, gap="small", key="no-gpu"):
        look.sentence(
            "Kernels run in Triton's interpreter on the CPU: every tile is exact, no time is GPU time.", "No NVIDIA GPU here."
        )
        look.sentence("Compile reports are real for any GPU; the gallery has recordings from a real one.")
        _what_a_gpu_gives()
        with st.container(horizontal=True, gap="small"):
            st.button("Run the tiny problem here", icon=":material/play_arrow:", on_click=_run_tiny)
            if st.button("Open the gallery", icon=":material/photo_library:", type="tertiary"):
                state.go_to("gallery")
            with st.popover("Why is there no GPU?", type="tertiary"):
                look.sentence(devices[-1].missing.get("gpu", "NVIDIA's management library lists none."))
                st.markdown(
                    "- `nvidia-smi` must list the GPU: if it does not, install or reload NVIDIA's driver.\n"
                    "- In a container, start it with `--gpus all`.\n"
                    "- On WSL 2 the driver is installed in Windows, not in Linux.\n"
                    "- AMD, Intel and Apple GPUs are not supported."
                )


def _what_a_gpu_gives() -> None:
    """The gallery's first recording in one line."""
    recording = next((one for one in state.recordings().values() if not isinstance(one, str)), None)
    if recording is not None:
        device = recording.measurements[0].environment.device.short_name.split(" · ")[0]
        problem = recording.measurements[0].request.problem.title
        look.sentence(f"{run_metrics.speeds(recording.measurements)}.", strong=f"Recorded on an {device}, {problem}:")
        look.caption(
            "Measured: medians of launches in interleaved rounds, L2 flushed, each output checked. The gallery has them."
        )


def _run_tiny() -> None:
    state.set_tiny()
    state.ask_to_run()


def live(job_id: str) -> None:
    """The job that waits or runs; only this panel is drawn again, and the whole page once when it has ended."""
    with _place_of_its_own():
        _live(job_id)


@st.fragment(run_every=0.5)
def _live(job_id: str) -> None:
    view = state.job_queue().view(job_id)
    if view.finished:
        st.rerun()
    with st.container(border=True, gap="small", key="live"):
        with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
            if view.state == "queued":
                place = f"{words.ordinal(view.position or 1)} in the queue"
                look.chips([("wait", place, "Jobs on one device run one after the other.")], width="content")
                look.sentence(_waiting_for(view))
            else:
                look.chips([("wait", f"running on {view.host}" if view.host else "running", view.title)], width="content")
                look.sentence(_doing(view))
            st.button("Cancel", icon=":material/close:", on_click=state.job_queue().cancel, args=(job_id,), key="cancel")
        if view.state == "running":
            st.progress(_share(view))


def _waiting_for(view: JobView) -> str:
    whose = "this tab" if view.running_owner == view.owner else "another tab"
    running = f"{view.running_title} runs now, from {whose}" if view.running_title else "The worker is starting"
    wait = f" · about {words.seconds(view.estimated_wait_s)} until yours" if view.estimated_wait_s is not None else ""
    return running + wait


def _doing(view: JobView) -> str:
    progress = view.progress
    if progress is None:
        return f"Starting the worker · {view.elapsed_s:.0f} s"
    step = f" · {progress.done} of {progress.total}" if progress.total else ""
    return f"{progress.text or _PHASES[progress.phase]}{step} · {view.elapsed_s:.0f} s"


def _share(view: JobView) -> float:
    """How far the job is: the phases weigh the same, a phase's own count moves within it."""
    if view.progress is None:
        return 0.0
    phases = list(_PHASES)
    within = view.progress.done / view.progress.total if view.progress.total else 0.0
    return min(1.0, (phases.index(view.progress.phase) + within) / len(phases))


def failed(view: JobView, use_tiles: Callable[[TileConfig], None] | None = None) -> None:
    """Why a job gave nothing: the sentence, what it needed and what there was, the cure, the original text folded.

    use_tiles: the callback that puts the cure into the fields of another page than Run.
    """
    result = next((one for one in view.results if one is not None and one.error is not None), None)
    if result is None:
        return
    error = result.error
    if error.kind == "cancelled":
        look.chips([("info", "cancelled", error.sentence)])
        return
    look.chips([("bad", "not run" if error.kind in ("refused", "compile") else "failed", error.sentence)])
    with st.container(border=True, gap="small", key="failed"):
        look.sentence(error.sentence)
        _cure(error, use_tiles)
        _needed_and_there(error, result)
        if error.raw:
            with st.expander("Details: the original message"):
                st.code(error.raw, language=None, wrap_lines=True)


def _cure(error: JobError, use_tiles: Callable[[TileConfig], None] | None) -> None:
    if error.cure is None:
        return
    with st.container(horizontal=True, gap="small"):
        use = use_tiles or state.set_tiles
        st.button(f"Use {error.cure.title}", type="primary", on_click=use, args=(error.cure,), key="cure")
        if use_tiles is None:
            st.button("Use it and run", icon=":material/play_arrow:", on_click=_cure_and_run, args=(error,), key="cure_and_run")


def _cure_and_run(error: JobError) -> None:
    state.set_tiles(error.cure)
    state.ask_to_run()


def _needed_and_there(error: JobError, result: Measurement) -> None:
    found = limits.chart(error, result.tiles or result.request.tiles, look.palette())
    if isinstance(found, Chart):
        with st.container(width=560):
            look.chart(found, key="limits", with_table=state.tables_shown())
