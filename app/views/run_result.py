"""Measurements on screen: chips, four metrics, the charts with their tables. Every page with a result shares it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st

from app import look, metric, result_facts, state
from app.figures import versions
from app.figures.style import Absent, Chart
from app.how_taken import COLUMNS, FACTS
from app.result_facts import title as title
from app.result_facts import version_title
from app.views import run_metrics
from app.views.run_metrics import Origin
from kernels.registry import VERSIONS
from profiling.improvements import labels
from profiling.records import Measurement


def show(measurements: Sequence[Measurement], origin: Origin = "unsaved") -> None:
    """Everything there is to see of a job's measurements; those that failed only say why."""
    ran = [measurement for measurement in measurements if measurement.error is None]
    focus = _details_of(ran) if ran else None
    for strong, text in result_facts.verdicts(measurements):
        look.sentence(text, strong=strong)
    if focus is not None:
        look.chips(run_metrics.chips_above(focus, origin))
        numbers = run_metrics.metrics(focus, origin)
        look.metrics(numbers)
        if state.tables_shown():
            look.table(metric.table_of(numbers), "Table: how each number was taken")
        _charts(measurements, focus)
    elif measurements:
        look.chips(run_metrics.chips(measurements[0], origin))
    for measurement in measurements:
        if measurement.error is not None:
            look.sentence(measurement.error.sentence, strong=f"{version_title(measurement.request.kernel)} did not run.")
    if focus is not None and state.tables_shown():
        look.heading("About this run")
        look.table(result_facts.facts(focus), "Table: about this run", FACTS)


def clock(moment: str) -> str:
    """An ISO 8601 time as the browser's hours and minutes."""
    return datetime.fromisoformat(moment).astimezone(_zone()).strftime("%H:%M")


def when(moment: str) -> str:
    """An ISO 8601 time as the browser's day, hours and minutes; what is none, as it is."""
    try:
        found = datetime.fromisoformat(moment).astimezone(_zone())
    except (ValueError, OverflowError):
        return moment
    return f"{found.day} {found:%b %Y, %H:%M}"


def _zone() -> tzinfo:
    try:
        return ZoneInfo(st.context.timezone or "UTC")
    except (ZoneInfoNotFoundError, ValueError):
        return UTC


def _details_of(ran: Sequence[Measurement]) -> Measurement:
    """The measurement whose details are shown: chosen where several ran, at first the form's version."""
    if len(ran) == 1:
        return ran[0]
    names = labels(ran)
    kernel = str(state.form_values()["kernel"])
    preferred = next((place for place in reversed(range(len(ran))) if ran[place].request.kernel == kernel), len(ran) - 1)
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        st.caption("Details of", width="content")
        if all(measurement.request.kernel in VERSIONS for measurement in ran):
            chosen = st.segmented_control(
                "Details of",
                names,
                default=names[preferred],
                required=True,
                key=state.DETAILS_KEY,
                bind="query-params",
                label_visibility="collapsed",
            )
        else:  # a segmented control reads its labels as markdown, and these are foreign
            chosen = st.selectbox(
                "Details of", names, index=preferred, key=state.DETAILS_KEY, label_visibility="collapsed", width=320
            )
    return ran[names.index(chosen)] if chosen in names else ran[-1]


def _charts(measurements: Sequence[Measurement], focus: Measurement) -> None:
    """First row: versions and launches, as there are; then the other charts side by side; then what is absent, and why."""
    found = result_facts.charts(measurements, focus, look.palette())
    if found.first:
        _row(found.first, [0.6, 0.4], focus)
    else:
        _versions_table(measurements)
    for strong, text in result_facts.sentences(measurements, focus):
        look.sentence(text, strong=strong)
    _grid(found.rest, focus)
    look.absences(found.absent)


def _grid(charts: Sequence[Chart], focus: Measurement) -> None:
    """Two in a row: beside the form three would be too narrow."""
    for start in range(0, len(charts), 2):
        row = charts[start : start + 2]
        _row(row, [1] * len(row), focus)


def _versions_table(measurements: Sequence[Measurement]) -> None:
    if len(measurements) > 1:
        look.heading(versions.TITLE, result_facts.versions_provenance(measurements))
        look.table(versions.table(measurements), f"Table: {versions.TITLE}", COLUMNS["versions"])


def _row(charts: Sequence[Chart | Absent], shares: Sequence[float], focus: Measurement) -> None:
    shares = list(shares) if len(shares) > 1 else [1, 1]  # a lone chart is as wide as one of two
    for column, chart in zip(st.columns(shares, gap="medium"), charts, strict=False):
        with column:
            if isinstance(chart, Absent):
                look.absences([chart])
            else:
                look.chart(chart, key=f"{chart.title} {focus.started_at}", with_table=state.tables_shown())
