"""All that pages, the command line and the exports make of a snapshot, for tests that none of it raises."""

from __future__ import annotations

from itertools import pairwise

from app import programs, result_facts
from app.csv_text import csv_of
from app.figures import compiled, launches, ledger, limits, memory, timeline, versions
from app.figures.style import LIGHT, Absent, Chart
from app.player import payload
from app.views import run_metrics
from profiling import plausibility, privacy, summary, text_report
from profiling.records import Measurement
from profiling.rescale_ledger import rescale_ledger
from profiling.snapshot import AnySnapshot, Snapshot
from profiling.verdict import verdict


def draw_everything(snapshot: AnySnapshot) -> int:
    """Make every chart and every table of a snapshot; how many charts there were."""
    found = snapshot.measurements
    csv_of(snapshot)
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
    charts = [versions.chart(found, found[0].label, LIGHT)]
    for one in found:
        charts += [module.chart(one, LIGHT) for module in (launches, memory, timeline, compiled)]
        if one.error is not None:
            charts.append(limits.chart(one.error, one.tiles, LIGHT))
        run_metrics.chips(one, "file")
        run_metrics.metrics(one)
        result_facts.facts(one)
        programs.why_slow(one)
        plausibility.flags_to_show(one)
        text_report.line(one)
        if one.tiles_trace is not None:
            charts.append(_trace_drawn(one))
    for before, after in pairwise(found):
        verdict(before, after, same_job=True)
        verdict(before, after, same_job=False)
    drawn = [chart for chart in charts if isinstance(chart, Chart)]
    for chart in drawn:
        assert chart.figure.to_json()
    return len(drawn)


def _trace_drawn(one: Measurement) -> Chart | Absent:
    """The player's blob, where there is a tile to play; the ledger."""
    trace = one.tiles_trace
    if trace.key_blocks.shape[0]:
        payload.pack([one])
    found = rescale_ledger(trace, one.request.kernel, one.request.precision, 8.0)
    return ledger.chart(found, trace, LIGHT)
