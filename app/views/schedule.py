"""The Schedule page: which SM ran which block, when; as a kernel stamped it, or modelled; and what another way would do."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app import look, schedule_choices, schedule_shown, state
from app.figures import block_times, utilisation
from app.figures.style import Chart
from app.schedule_choices import Checked
from app.schedule_outlook import Outlook
from app.schedule_shown import Shown
from app.views import actions, press, run_metrics, run_status, save, schedule_fields, schedule_lanes, schedule_what_if
from app.views.run_metrics import Origin
from profiling.job_queue import JobView
from profiling.records import DeviceFacts, Measurement, RunRequest


def page() -> None:
    """What to look at, the job that stamps it, its numbers, its lanes, what another way would do."""
    state.put_back_fields("schedule")
    queue, values = state.job_queue(), state.schedule_values()
    devices = queue.devices() if queue.devices_ready else ()
    gpu = next((device for device in devices if device.kind == "gpu"), None)
    checked = schedule_choices.check(values, gpu or schedule_choices.imagined(str(values["as_on"])))
    stamped = _stamped(checked.request, gpu)
    shown = stamped or _otherwise(checked, gpu, values)
    _head(shown)
    with schedule_fields.fields(values, has_gpu=gpu is not None):
        if gpu is not None:
            _stamp(checked.request, is_again=_is_own(stamped, gpu))
    if state.lost_fields("schedule", values, state.schedule_values(), state.what_if_values()):
        st.rerun()
    schedule_fields.wrong(checked)
    with st.container(gap="small"):  # a place of its own: what comes and goes in it does not remake the lanes below
        _job(checked, gpu, stamped, is_ready=bool(devices))
        _still_shown(shown, checked)
    if shown is not None:
        state.remember_schedule(shown)
        _result(shown, gpu)


def watched(measurements: Sequence[Measurement], origin: Origin) -> None:
    """The lanes of the schedules among these, where there are any: of one of them, when several are there."""
    found = [Shown.of(one, origin) for one in schedule_shown.with_schedule(measurements)]
    if not found:
        return
    state.remember_opened_schedules(found)
    look.heading("Which SM ran which block, when", "measured")
    shown = found[0] if len(found) == 1 else _chosen(found)
    look.sentence(f"{schedule_shown.title(shown)}.")
    look.metrics(schedule_shown.metrics(shown))
    schedule_lanes.lanes(shown, None)
    _table(shown)


def _chosen(found: list[Shown]) -> Shown:
    place = st.selectbox(
        "Schedule of",
        range(len(found)),
        format_func=lambda place: found[place].name,
        key=state.SCHEDULE_OF_KEY,
        label_visibility="collapsed",
        width=420,
    )
    return found[place or 0]


def _stamped(request: RunRequest | None, gpu: DeviceFacts | None) -> Shown | None:
    """The schedule that was asked for, if this server holds it: this GPU's own before any other's."""
    if request is None:
        return None
    found = [one for one in state.schedules() if schedule_choices.is_same_launch(one.request, request)]
    return next((one for one in found if _is_own(one, gpu)), found[0] if found else None)


def _is_own(shown: Shown | None, gpu: DeviceFacts | None) -> bool:
    """Whether it was stamped on this GPU."""
    measurement = shown.measurement if shown is not None else None
    return measurement is not None and gpu is not None and measurement.environment.device.id == gpu.id


def _otherwise(checked: Checked, gpu: DeviceFacts | None, values: dict[str, str | bool]) -> Shown | None:
    """What there is to see of what is not stamped: what was shown before, where that has times; else a model."""
    last = state.last_schedule()
    if checked.request is None or (gpu is not None and last is not None and last.has_times):
        return last
    device = gpu or schedule_choices.imagined(str(values["as_on"]))
    return Shown.modelled(str(values["of"]), checked.request, device, int(values["at_once"]))


def _head(shown: Shown | None) -> None:
    """The result in words; what can be done with it."""
    found = state.find(shown.reference) if shown is not None and shown.reference else None
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", gap="small"):
        look.title(schedule_shown.title(shown) if shown is not None else "Which SM ran which block, when")
        with st.container(horizontal=True, gap="small", width="content", vertical_alignment="center"):
            st.toggle("Tables", key=state.TABLES_KEY, bind="query-params", help="The numbers behind lanes and charts.")
            if found is not None:
                save.button(found)
                actions.share(found)
    if found is not None:
        save.below(found)


def _job(checked: Checked, gpu: DeviceFacts | None, stamped: Shown | None, is_ready: bool) -> None:
    """What the job is doing, why it gave nothing, or that there is none."""
    if not is_ready:
        run_status.discovering()
    elif gpu is None:
        _no_gpu(stamped)
    elif checked.request is not None:
        job = state.job_of((checked.request,))
        if job is not None and not job.finished:
            run_status.live(job.job_id)
        elif not _is_own(stamped, gpu):
            if job is not None:
                _why_not_stamped(job)
            else:
                look.sentence(f"Not stamped yet on {gpu.short_name}.")


def _no_gpu(stamped: Shown | None) -> None:
    """What is shown without a GPU, and which recordings there are."""
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="no-gpu-schedule"):
        if stamped is None:
            look.sentence("Only a GPU has SMs to stamp: this is a model of it.", strong="No NVIDIA GPU here.", width="content")
        schedule_fields.recordings([one.measurement for one in state.schedules() if one.origin != "unsaved"])


def _is_at_it(request: RunRequest) -> bool:
    job = state.job_of((request,))
    return job is not None and not job.finished


def _why_not_stamped(job: JobView) -> None:
    """The job's error; or, where it ran well and only the stamps failed, the flag that says so."""
    run_status.failed(job, use_tiles=state.set_schedule_tiles)
    for flag in (flag for one in job.results if one is not None for flag in one.flags if flag.name == "no schedule"):
        look.field_error(flag.sentence)


def _stamp(request: RunRequest | None, is_again: bool) -> None:
    """The button that stamps what the fields ask for."""
    pressed = press.button(
        "Stamp it again" if is_again else "Stamp it",
        type="secondary" if is_again else "primary",
        icon=":material/play_arrow:",
        disabled=request is None or _is_at_it(request),
        key="stamp_it",
    )
    if pressed and request is not None:
        schedule_what_if.submit(request)


def _still_shown(shown: Shown | None, checked: Checked) -> None:
    """What is shown when it is not what the fields ask for."""
    asked = checked.request
    if shown is not None and (asked is None or not schedule_choices.is_same_launch(shown.request, asked)):
        look.sentence(f"{shown.name} · {shown.request.problem.title}.", strong="Still shown:")


def _result(shown: Shown, gpu: DeviceFacts | None) -> None:
    """Numbers, lanes, what if, charts, table."""
    if shown.measurement is not None:
        look.chips(run_metrics.chips(shown.measurement, shown.origin))
    look.metrics(schedule_shown.metrics(shown))
    asked = schedule_what_if.asked(shown)
    schedule_what_if.above(shown, asked, gpu)
    schedule_lanes.lanes(shown, asked)
    _below(shown, asked)
    _table(shown)


def _table(shown: Shown) -> None:
    if state.tables_shown():
        look.table(schedule_shown.rows(shown), "Table: who ran where and when")


def _below(shown: Shown, asked: Outlook | str | None) -> None:
    """What says more than the lanes: every what-if, both ways' busy SMs on one axis, what a tile costs in each block."""
    drawn = [utilisation.chart(shown, asked.name, asked.table, look.palette())] if isinstance(asked, Outlook) else []
    per_block = block_times.chart(shown, look.palette())
    drawn += [per_block] if isinstance(per_block, Chart) else []
    first, *columns = st.columns([1.3, *[1] * max(1, len(drawn))], gap="large")
    with first:
        schedule_what_if.below(shown, asked)
    for column, chart in zip(columns, drawn, strict=False):
        with column:
            look.chart(chart, key=chart.title, with_table=state.tables_shown())
