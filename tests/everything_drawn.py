"""All that pages, the command line and the exports make of a snapshot, for tests that none of it raises."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

from app import programs, result_facts, schedule_shown
from app.csv_text import csv_of
from app.figures import (
    block_times,
    compiled,
    launches,
    ledger,
    limits,
    memory,
    microscope,
    roofline,
    step,
    timeline,
    utilisation,
    versions,
)
from app.figures.style import LIGHT, Absent, Chart
from app.lanes.export import lanes_of
from app.player import payload
from app.schedule_shown import Shown
from app.views import run_metrics
from profiling import flags, plausibility, privacy, schedule_facts, summary, text_report, what_if
from profiling.records import Measurement
from profiling.rescale_ledger import rescale_ledger
from profiling.roofline import explained
from profiling.schedule_csv import schedule_csv
from profiling.snapshot import AnySnapshot, Snapshot
from profiling.timetable import Timetable
from profiling.verdict import verdict


def draw_everything(snapshot: AnySnapshot) -> int:
    """Make every chart and every table of a snapshot; how many charts there were."""
    found = snapshot.measurements
    csv_of(snapshot)
    schedule_csv(snapshot)
    privacy.personal(snapshot)
    plausibility.implausible(snapshot)
    if isinstance(snapshot, Snapshot):
        assert not privacy.personal(privacy.without_personal(snapshot))
    if not found:
        return 0
    text_report.table(found)
    run_metrics.speeds(found)
    summary.summary(found)
    versions.table(found)
    result_facts.title([one.request for one in found])
    charts = [chart(found, found[0].label, LIGHT) for chart in (versions.chart, roofline.chart)]
    for one in found:
        charts += [module.chart(one, LIGHT) for module in (launches, timeline, compiled)]
        charts += filter(None, [step.chart(found, one, LIGHT)])
        step.headline(one)
        charts.append(memory.chart(one, LIGHT, [other for other in found if other is not one]))
        explained(one)
        if one.error is not None:
            charts.append(limits.chart(one.error, one.tiles, LIGHT))
        run_metrics.chips(one, "file")
        run_metrics.metrics(one)
        result_facts.facts(one)
        programs.why_slow(one)
        plausibility.flags_to_show(one)
        text_report.line(one)
        if one.schedule is not None:
            _schedule_told(one)
            charts += _schedule_drawn(one)
        if one.tiles_trace is not None:
            charts += [_trace_drawn(one), *_fp8_drawn(one)]
    for before, after in pairwise(found):
        verdict(before, after, same_job=True)
        verdict(before, after, same_job=False)
    drawn = [chart for chart in charts if isinstance(chart, Chart)]
    for chart in drawn:
        assert chart.figure.to_json()
    return len(drawn)


def _schedule_told(one: Measurement) -> None:
    """Its facts, groups and sentences; and what a model makes of it, where the version is one of ours."""
    schedule, sm_count = one.schedule, one.environment.device.sm_count or 1
    table = Timetable.of(schedule, sm_count)
    assert schedule_facts.sentences(schedule_facts.facts_of(table, schedule.programs_per_sm))
    schedule_facts.utilisation(table)
    schedule_facts.by_head(table)
    schedule_facts.by_block(table)
    flags.schedule_flags(schedule)
    try:
        work = what_if.Work(one.request.problem, one.request.kernel, one.tiles, one.request.precision)
    except ValueError:
        return
    machine = what_if.Machine(table.sm_count, schedule.programs_per_sm)
    assert what_if.predict(table, work, work, machine, machine).because


def _schedule_drawn(one: Measurement) -> list[Chart | Absent]:
    """Its numbers in words, the lanes where they can be drawn, the charts below them."""
    shown = Shown.of(one)
    schedule_shown.title(shown)
    schedule_shown.metrics(shown)
    schedule_shown.caption(shown)
    assert schedule_shown.rows(shown)
    with suppress(ValueError):
        lanes_of([(shown.name, shown.table)], shown.lane_facts(can_open=False))
    return [block_times.chart(shown, LIGHT), utilisation.chart(shown, "itself", shown.table, LIGHT)]


def _fp8_drawn(one: Measurement) -> list[Chart | Absent]:
    """What FP8 costs, in words, numbers and figures, where the trace has it."""
    trace, precision = one.tiles_trace, one.request.precision
    if trace.fp8_errors is not None:
        microscope.headline(trace.fp8_errors)
        microscope.numbers(trace.fp8_errors, precision)
        microscope.limit_words(trace.fp8_errors, precision)
    return [microscope.by_tile(trace, LIGHT), *(microscope.heat_map(trace, part, LIGHT) for part in microscope.PARTS)]


def _trace_drawn(one: Measurement) -> Chart | Absent:
    """The player's blob, where there is a tile to play; the ledger."""
    trace = one.tiles_trace
    if trace.key_blocks.shape[0]:
        payload.pack([one])
    found = rescale_ledger(trace, one.request.kernel, one.request.precision, 8.0)
    return ledger.chart(found, trace, LIGHT)
