"""Measurements on screen: chips, four metrics, the charts with their tables. The Run page and the gallery share it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st

from app import look, programs, state
from app.figures import compiled, launches, memory, timeline, versions
from app.figures.style import Absent, Chart
from app.views import run_metrics
from kernels.registry import VERSIONS
from profiling import words
from profiling.records import Measurement, RunRequest
from profiling.snapshot import SUFFIX, Snapshot, file_of


def show(measurements: Sequence[Measurement], recorded: bool = False) -> None:
    """Everything there is to see of a job's measurements; those that failed only say why."""
    ran = [measurement for measurement in measurements if measurement.error is None]
    focus = _details_of(ran)
    look.chips(run_metrics.chips(focus, recorded))
    look.metrics(run_metrics.metrics(focus))
    _charts(measurements, focus)
    for measurement in measurements:
        if measurement.error is not None:
            look.sentence(measurement.error.sentence, strong=f"{version_title(measurement.request.kernel)} did not run.")
    if state.tables_shown():
        look.heading("About this run")
        look.table(_facts(focus), "Table: about this run")


def toolbar(measurements: Sequence[Measurement], title: str, note: str = "") -> None:
    """The tables' switch and the download of what is on screen."""
    with st.container(horizontal=True, gap="small", width="content", vertical_alignment="center"):
        st.toggle("Tables", key=state.TABLES_KEY, bind="query-params", help="The numbers behind every chart.")
        st.download_button(
            "Download",
            on_click="ignore",
            icon=":material/download:",
            mime="application/gzip",
            file_name=_file_name(measurements[0]),
            data=lambda: file_of(_snapshot(measurements, title, note)),
            help="The measurements as one snapshot file.",
        )


def title(requests: Sequence[RunRequest]) -> str:
    """What ran: 'FlashAttention v3 · 16,384 tokens · head_dim 128 · causal · bf16', or how many versions did."""
    first = requests[0]
    what = version_title(first.kernel) if len(requests) == 1 else f"{len(requests)} versions"
    formats = dict.fromkeys(request.precision.title for request in requests)
    return f"{what} · {first.problem.title} · {' and '.join(formats)}"


def version_title(kernel: str) -> str:
    """A version's name for people."""
    return VERSIONS[kernel].title if kernel in VERSIONS else kernel


def clock(moment: str) -> str:
    """An ISO 8601 time as the browser's hours and minutes."""
    try:
        zone = ZoneInfo(st.context.timezone or "UTC")
    except (ZoneInfoNotFoundError, ValueError):
        zone = UTC
    return datetime.fromisoformat(moment).astimezone(zone).strftime("%H:%M")


def _details_of(ran: Sequence[Measurement]) -> Measurement:
    """The measurement whose details are shown: chosen where several ran, at first the form's version."""
    if len(ran) == 1:
        return ran[0]
    names = [measurement.label for measurement in ran]
    kernel = str(state.form_values()["kernel"])
    preferred = next((m.label for m in reversed(ran) if m.request.kernel == kernel), names[-1])
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        st.caption("Details of", width="content")
        chosen = st.segmented_control(
            "Details of",
            names,
            default=preferred,
            required=True,
            key=state.DETAILS_KEY,
            label_visibility="collapsed",
        )
    return ran[names.index(chosen)] if chosen in names else ran[-1]


def _charts(measurements: Sequence[Measurement], focus: Measurement) -> None:
    """First row: versions and launches, as there are; then the other charts side by side; then what is absent, and why."""
    colors = look.palette()
    beside = versions.chart(measurements, focus.label, colors)
    every = launches.chart(focus, colors)
    rest = [memory.chart(focus, colors), timeline.chart(focus, colors), compiled.chart(focus, colors)]
    if isinstance(beside, Chart):
        _row([beside, every], [0.6, 0.4], focus)
    else:
        _versions_table(measurements)
        rest.insert(0, every)
    for measurement in measurements:
        for reason in programs.why_slow(measurement):
            look.sentence(reason, strong=f"Why is {measurement.label} slow?")
    _grid([chart for chart in rest if isinstance(chart, Chart)], focus)
    missed = rest if len(measurements) > 1 else [beside, *rest]
    look.absences(chart for chart in missed if isinstance(chart, Absent))


def _grid(charts: Sequence[Chart], focus: Measurement) -> None:
    """Three in a row; four as two rows of two."""
    a_row = 2 if len(charts) == 4 else 3
    for start in range(0, len(charts), a_row):
        row = charts[start : start + a_row]
        _row(row, [1] * len(row), focus)


def _versions_table(measurements: Sequence[Measurement]) -> None:
    if len(measurements) > 1:
        look.heading(versions.TITLE, "measured" if measurements[0].environment.device.kind == "gpu" else "interpreted")
        look.table(versions.table(measurements), f"Table: {versions.TITLE}")


def _row(charts: Sequence[Chart | Absent], shares: Sequence[float], focus: Measurement) -> None:
    shares = list(shares) if len(shares) > 1 else [1, 1]  # a lone chart is as wide as one of two
    for column, chart in zip(st.columns(shares, gap="medium"), charts, strict=False):
        with column:
            if isinstance(chart, Absent):
                look.absences([chart])
            else:
                look.chart(chart, key=f"{chart.title} {focus.started_at}", with_table=state.tables_shown())


def _facts(measurement: Measurement) -> list[dict[str, str]]:
    environment, accuracy = measurement.environment, measurement.accuracy
    facts = {
        "tiles": measurement.tiles.title if measurement.tiles else "none to choose",
        "device": environment.device.name,
        "peak rates from": environment.device.peak_source or "not known for this model",
        "torch": environment.torch_version,
        "Triton": environment.triton_version or environment.missing.get("triton_version", "not installed"),
        "driver": environment.driver_version or environment.missing.get("driver_version", "not read"),
        "commit": environment.commit or environment.missing.get("commit", "not read"),
        "started": measurement.started_at,
        "took": words.seconds(measurement.duration_s),
        "allowed error": accuracy.allowed_because if accuracy else "not checked",
    }
    if measurement.first_launch_ms is not None:
        facts["first launch, untimed"] = words.milliseconds(measurement.first_launch_ms)
    facts |= {flag.short: flag.sentence for flag in measurement.flags}
    return [{"what": name, "value": value} for name, value in facts.items()]


def _file_name(measurement: Measurement) -> str:
    problem = measurement.request.problem
    return f"{measurement.request.kernel}-{problem.seq_len_q}x{problem.head_dim}{SUFFIX}"


def _snapshot(measurements: Sequence[Measurement], title: str, note: str) -> Snapshot:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Snapshot(title=title, note=note, created_at=now, measurements=tuple(measurements))
