"""The ladder v1 → v3: one job with a configuration an idea; where there is no GPU, the one that was recorded."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app import ladder_rungs, look, state
from app.figures import ladder as figure
from app.figures.style import Absent
from app.ladder_rungs import Rung
from app.views import press, run_metrics, run_status
from kernels.problem import AttentionProblem
from profiling.records import DeviceFacts, Measurement, RunRequest


def show(problem: AttentionProblem, dtype: str, devices: Sequence[DeviceFacts]) -> None:
    """The ladder on a problem: the button, the job's progress, or what came of it."""
    gpu = next((device for device in devices if device.kind == "gpu"), None)
    if gpu is None:
        _recorded()
        return
    try:
        rungs = ladder_rungs.rungs(problem, dtype, gpu)
    except ValueError as error:
        look.absences([Absent(figure.TITLE, str(error))])
        return
    requests = ladder_rungs.requests(rungs)
    job = state.job_of(requests)
    if job is not None and not job.finished:
        look.heading(figure.TITLE)
        run_status.live(job.job_id)
        return
    if job is not None and state.has_result(job):
        results = dict(zip(requests, job.results, strict=True))
        _draw([(rung, results.get(rung.request)) for rung in rungs])
    else:
        look.heading(figure.TITLE)
        if job is not None:
            run_status.failed(job)
    _button(requests, problem, gpu, is_again=job is not None)


def _button(requests: tuple[RunRequest, ...], problem: AttentionProblem, gpu: DeviceFacts, is_again: bool) -> None:
    label = "Measure the ladder again" if is_again else f"Measure the ladder on {gpu.short_name}"
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="ladder-start"):
        if press.button(label, icon=":material/stairs:", key="ladder_start"):
            try:
                state.job_queue().submit(requests, state.owner())
            except ValueError as error:
                look.field_error(str(error))
            else:
                st.rerun()
        look.caption(f"{len(requests)} configurations on {problem.title}, as one job: checked, then timed in the same rounds.")


def _recorded() -> None:
    """The recording with most rungs, said to be one."""
    found = max(_recordings(), key=lambda one: len(ladder_rungs.climbed(one)[0]), default=None)
    if found is None:
        look.absences([Absent(figure.TITLE, f"{ladder_rungs.NEEDS_A_GPU}.")])
        return
    first = next(measurement for _, measurement in found if measurement is not None)
    _draw(found)
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        look.chips(run_metrics.origin_chips(first), width="content")
        look.caption(f"{first.request.problem.title}. There is no GPU here to measure it on: {ladder_rungs.NEEDS_A_GPU}.")


def _recordings() -> list[tuple[tuple[Rung, Measurement | None], ...]]:
    kept = [found.measurements for found in state.recordings().values() if not isinstance(found, str) and found.measurements]
    return [ladder_rungs.recorded(measurements) for measurements in kept]


def _draw(found: Sequence[tuple[Rung, Measurement | None]]) -> None:
    steps, left_out = ladder_rungs.climbed(found)
    drawn = figure.chart(steps, left_out, look.palette())
    if isinstance(drawn, Absent):
        look.absences([drawn])
    else:
        look.chart(drawn, key="sweep_ladder", with_table=state.tables_shown())
