"""What the compiler made of the kernel: registers, shared memory, warps per SM and spills against their limits."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from app import programs
from app.figures.style import Absent, Chart, Palette, figure, note
from app.how_taken import COMPILED_ROWS
from app.programs import Programs
from kernels.architecture import architecture
from profiling import words
from profiling.records import CompileReport, Measurement

TITLE = "What the compiler made"
HEIGHT = 222


def chart(measurement: Measurement, palette: Palette) -> Chart | Absent:
    """The attention kernel's report; the table has every kernel of the call."""
    report = programs.main_report(measurement)
    if report is None:
        return Absent(TITLE, _why_not(measurement))
    return _chart(report, measurement.compiled, programs.of(measurement), palette)


def chart_of(report: CompileReport, palette: Palette) -> Chart:
    """A kernel that was compiled, with no launch in view."""
    return _chart(report, (report,), None, palette)


def _chart(report: CompileReport, reports: Sequence[CompileReport], launch: Programs | None, palette: Palette) -> Chart:
    rows = _rows(report)
    return Chart(
        TITLE,
        _figure(rows, palette),
        "compiled",
        _caption(report, launch),
        "; ".join(f"{name} {text}" for name, _, text, _ in rows),
        _table(reports),
        COMPILED_ROWS,
    )


_WHY_NO_REPORT = ("no compile report", "does not fit")


def _why_not(measurement: Measurement) -> str:
    """What the worker said about the missing report, or that there is nothing of ours to compile."""
    if measurement.tiles is None:
        return f"the kernels of {measurement.request.kernel} are the library's own."
    said = next((flag.sentence for flag in measurement.flags if flag.name in _WHY_NO_REPORT), None)
    return said or "there is no compile report."


def _rows(report: CompileReport) -> list[tuple[str, float, str, bool]]:
    """(name, share of the limit, words, whether it is work lost or the binding limit), top to bottom."""
    limit, used = report.shared_memory_limit_bytes, report.shared_memory_bytes
    binding = report.limited_by
    return [
        (
            "Registers",
            report.registers_per_thread / report.max_registers_per_thread,
            f"{report.registers_per_thread} of {report.max_registers_per_thread}",
            binding == "registers",
        ),
        (
            "Shared memory",
            used / limit,
            f"{used / 1024:.4g} of {words.kib(limit)}",
            binding in ("shared memory", "does not fit"),
        ),
        (
            "Warps per SM",
            report.warps_per_sm / report.max_warps_per_sm,
            f"{report.warps_per_sm} of {report.max_warps_per_sm}",
            binding == "warps",
        ),
        ("Spills", min(1.0, report.spill_bytes / 256), f"{report.spill_bytes:,} bytes", report.spill_bytes > 0),
    ]


def _figure(rows: list[tuple[str, float, str, bool]], palette: Palette) -> go.Figure:
    fig = figure(palette, HEIGHT, left=96, right=108, top=6)
    places = list(range(len(rows)))[::-1]
    fig.add_bar(y=places, x=[1] * len(rows), orientation="h", marker_color=palette.track, width=0.28, hoverinfo="skip")
    fig.add_bar(
        y=places,
        x=[min(1, share) for _, share, _, _ in rows],
        orientation="h",
        width=0.28,
        customdata=[COMPILED_ROWS[name[0].lower() + name[1:]] for name, _, _, _ in rows],
        hovertemplate="%{customdata}<extra></extra>",
        marker_color=[palette.work_lost if lost else palette.progress for _, _, _, lost in rows],
    )
    for place, (_, _, text, lost) in zip(places, rows, strict=True):
        note(fig, text, 1, place, palette.work_lost if lost else palette.text, size=13, xref="paper", xshift=8, bold=lost)
    fig.update_layout(barmode="overlay")
    fig.update_xaxes(range=[0, 1], visible=False)
    fig.update_yaxes(
        tickvals=places, ticktext=[name for name, _, _, _ in rows], showgrid=False, tickfont={"size": 13, "color": palette.text}
    )
    return fig


def _caption(report: CompileReport, launch: Programs | None) -> str:
    per_sm = f"{report.programs_per_sm} program{'' if report.programs_per_sm == 1 else 's'}"
    target = f"sm_{report.capability} ({architecture(report.capability).name})"
    return f"For {target} by Triton {report.triton_version}; occupancy is computed. Orange: what keeps an SM at {per_sm}." + (
        f" This launch: {launch.sentence}." if launch else ""
    )


def _table(reports: Sequence[CompileReport]) -> tuple[dict[str, str], ...]:
    """A row a figure, a column a kernel."""
    cells = [_cells(report) for report in reports]
    return tuple({"what": name, **{f"{column['kernel']}": column[name] for column in cells}} for name in list(cells[0])[1:])


def _cells(report: CompileReport) -> dict[str, str]:
    return {
        "kernel": report.kernel,
        "registers": f"{report.registers_per_thread} of {report.max_registers_per_thread}",
        "spills": f"{report.spill_bytes:,} bytes",
        "shared memory": f"{report.shared_memory_bytes / 1024:.4g} of {words.kib(report.shared_memory_limit_bytes)}",
        "warps per SM": f"{report.warps_per_sm} of {report.max_warps_per_sm}",
        "programs per SM": str(report.programs_per_sm),
        "limited by": report.limited_by,
        "compiled in": words.milliseconds(report.compile_ms),
        "instructions": ", ".join(f"{name} {number}" for name, number in report.counts.items()),
    }
