"""A snapshot as one HTML file that shows what the app shows, from disk, without a network and without FlashScope.

Everything is in the file: the charts of every version, the script that draws them, the snapshot's own file. Its
Content-Security-Policy lets nothing else in and nothing out: scripts run by their hash alone.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from plotly.offline import get_plotlyjs

from app import metric, result_facts, schedule_shown
from app.csv_text import csv_of, csv_of_rows
from app.figures import limits, microscope, versions
from app.figures.style import DARK, LIGHT, Absent, Chart, css_variables
from app.how_taken import COLUMNS, FACTS
from app.html_parts import parts
from app.lanes.export import LANES_SCRIPT, lanes_of
from app.lanes.files import STYLE as LANES_STYLE
from app.player.export import PLAYER_SCRIPT, player_of
from app.player.files import STYLE as PLAYER_STYLE
from app.player.payload import can_step_together
from app.schedule_shown import Shown
from app.views import run_metrics
from kernels.registry import OUR_VERSIONS
from profiling.records import Measurement
from profiling.snapshot import AnySnapshot, NewerSnapshot, embedded, file_name
from profiling.words import escaped

_HERE = Path(__file__).parent
_OWN_FILES = _HERE / "html_parts"
_SERIES = (
    "power_w", "sm_clock_mhz", "memory_used_bytes", "temperature_c", "memory_clock_mhz", "utilisation_percent"
)  # fmt: skip


@dataclass(frozen=True)
class _Canvas:
    """What draws the blobs of one kind; a page holds the script and the style of those that it has."""

    name: str
    script: str
    style: str


_CANVASES = (_Canvas("player", PLAYER_SCRIPT, PLAYER_STYLE), _Canvas("lanes", LANES_SCRIPT, LANES_STYLE))


def page_of(snapshot: AnySnapshot) -> bytes:
    """The page of a snapshot, the same bytes every time; of a newer schema's, what is understood of it."""
    ran = [measurement for measurement in snapshot.measurements if measurement.error is None]
    charts = _Charts()
    sections = [
        _masthead(snapshot),
        "<main>",
        _words(snapshot),
        _controls(snapshot, ran),
        *(parts.sentence(text, strong=strong) for strong, text in result_facts.verdicts(snapshot.measurements)),
        *(_version(snapshot.measurements, focus, place, charts) for place, focus in enumerate(ran)),
        _tiles(ran),
        _schedule(ran),
        _failures(snapshot.measurements, charts),
        "</main>",
        _files(snapshot),
    ]
    return _document(snapshot, "\n".join(sections), charts)


class _Charts:
    """The figures of a page, collected as their places are written."""

    def __init__(self) -> None:
        self._figures: list[str] = []

    def row(self, charts: Sequence[Chart | Absent], kind: str) -> str:
        """Charts side by side where there is room; a lone one is as wide as one of two."""
        return f'<div class="row {kind}">{"".join(map(self._place, charts))}</div>'

    def _place(self, chart: Chart | Absent) -> str:
        if isinstance(chart, Absent):
            return f'<div class="chart">{parts.absences([chart])}</div>'
        self._figures.append(chart.figure.to_json())
        least_px = versions.NARROWEST if chart.title == versions.TITLE else 0
        return parts.chart(chart, key=str(len(self._figures) - 1), least_px=least_px)

    def data(self) -> str:
        """All figures in the light theme's colours, and which dark colour stands for which: JSON."""
        dark = dict(zip(asdict(LIGHT).values(), asdict(DARK).values(), strict=True))
        return f'{{"dark":{json.dumps(dark)},"figures":[{",".join(self._figures)}]}}'


# The page's sections, in their order. Each is a function that gives HTML.


def _masthead(snapshot: AnySnapshot) -> str:
    saved = f"Saved with FlashScope on {_moment(snapshot.created_at)}" if snapshot.created_at else "Saved with FlashScope"
    return (
        f'<header>{parts.logo()}<span class="name">FlashScope</span>'
        f'<span class="origin">{escaped(saved)}; not measured here</span></header>'
    )


def _words(snapshot: AnySnapshot) -> str:
    """The owner's title, what ran, the note, by whom, the tags."""
    found = snapshot.measurements
    ran = result_facts.title([one.request for one in found]) if found else ""
    byline = [
        f"by {snapshot.author}" if snapshot.author else "",
        f"on {snapshot.host}" if snapshot.host else "",
        f"id {snapshot.id[:12]}",
    ]
    tags = "".join(f'<li class="tag">{escaped(tag)}</li>' for tag in snapshot.tags)
    return (
        f'<div class="words"><h1 class="fs-title">{escaped(snapshot.title)}</h1>'
        + (_newer(snapshot) if isinstance(snapshot, NewerSnapshot) else "")
        + (parts.sentence("", strong=ran) if ran and ran != snapshot.title else "")
        + (parts.sentence(snapshot.note, kind="note") if snapshot.note else "")
        + f'<ul class="byline">{"".join(f"<li>{escaped(one)}</li>" for one in byline if one)}{tags}</ul></div>'
    )


def _newer(snapshot: NewerSnapshot) -> str:
    count = len(snapshot.measurements)
    shown = f"{count} measurement{'s' if count > 1 else ''}" if count else "no measurement"
    return parts.sentence(
        f"Its schema is {snapshot.schema_version}. Shown is what the version that wrote this page understood of it: {shown}.",
        strong="Made by a newer FlashScope.",
        kind="boxed",
    )


def _controls(snapshot: AnySnapshot, ran: Sequence[Measurement]) -> str:
    """Which version's details are shown, where several ran, and the switch of the tables."""
    first = _first_shown(ran)
    choices = "".join(
        f'<label><input type="radio" name="version" value="{place}"{" checked" if place == first else ""}>'
        f"<span>{escaped(one.label)}</span></label>"
        for place, one in enumerate(ran)
    )
    choose = f'<fieldset class="versions"><legend>Details of</legend>{choices}</fieldset>' if len(ran) > 1 else ""
    switch = '<label class="switch"><input type="checkbox" role="switch" id="tables"><span></span>Tables</label>'
    said = '<p id="said" role="status"></p><noscript><p class="fs-sentence boxed">Charts need JavaScript.</p></noscript>'
    return f'<div class="controls">{choose}{switch if snapshot.measurements else ""}</div>{said}'


def _first_shown(ran: Sequence[Measurement]) -> int:
    """The last that is FlashScope's own, else the last: peers follow our versions in a job."""
    ours = [place for place, one in enumerate(ran) if one.request.kernel in OUR_VERSIONS]
    return ours[-1] if ours else len(ran) - 1


def _version(measurements: Sequence[Measurement], focus: Measurement, place: int, charts: _Charts) -> str:
    """All there is to see of one measurement, in the app's order."""
    ran = [one for one in measurements if one.error is None]
    found = result_facts.charts(measurements, focus, LIGHT)
    numbers = run_metrics.metrics(focus, "file")
    inner = [
        parts.chips(run_metrics.chips_above(focus, "file")),
        parts.metrics(numbers),
        parts.table(metric.table_of(numbers), "Table: how each number was taken", "behind"),
        charts.row(found.first, "wide") if found.first else _versions_table(measurements),
        *(parts.sentence(text, strong=strong) for strong, text in result_facts.sentences(measurements, focus)),
        *(charts.row(found.rest[start : start + 2], "of-2") for start in range(0, len(found.rest), 2)),
        parts.absences(found.absent),
        *_fp8(focus, charts),
        parts.heading(f"About this run of {focus.label}" if len(ran) > 1 else "About this run"),
        parts.facts(result_facts.facts(focus), FACTS),
    ]
    hidden = "" if place == _first_shown(ran) else " hidden"
    start = f'<section class="version" data-version="{place}" aria-label="{escaped(focus.label)}"{hidden}>'
    return f"{start}{''.join(inner)}</section>"


def _fp8(focus: Measurement, charts: _Charts) -> Iterator[str]:
    """What FP8 costs the query block that was traced, where the trace says so."""
    trace, precision = focus.tiles_trace, focus.request.precision
    if trace is None or trace.fp8_errors is None:
        return
    yield parts.heading(f"What FP8 costs query block {trace.query_block} of head {trace.head}", trace.provenance)
    yield parts.sentence(microscope.headline(trace.fp8_errors))
    yield parts.metrics(microscope.numbers(trace.fp8_errors, precision))
    yield charts.row([microscope.heat_map(trace, "whole", LIGHT), microscope.by_tile(trace, LIGHT)], "of-2")
    yield parts.sentence(microscope.limit_words(trace.fp8_errors, precision), strong=microscope.LIMIT_TITLE)


def _versions_table(measurements: Sequence[Measurement]) -> str:
    if len(measurements) < 2:
        return ""
    head = parts.heading(versions.TITLE, result_facts.versions_provenance(measurements))
    return head + parts.table(versions.table(measurements), f"Table: {versions.TITLE}", explained=COLUMNS["versions"])


def _tiles(ran: Sequence[Measurement]) -> str:
    """The player, where a trace was taken; two traces of tiles of one size step together."""
    traced = [one for one in ran if one.tiles_trace is not None]
    if not traced:
        return ""
    shown = traced[:2] if can_step_together(traced[:2]) else traced[:1]
    try:
        player = player_of(shown)
    except ValueError as error:
        player = parts.sentence(str(error))
    name = " and ".join(one.label for one in shown)
    heading = parts.heading(f"The online softmax of {name}, tile by tile", shown[0].tiles_trace.provenance)
    return f'<section class="tiles" aria-label="Tile by tile">{heading}{player}</section>'


def _schedule(ran: Sequence[Measurement]) -> str:
    """The lanes of every schedule that was stamped, with its numbers."""
    found = []
    for one in schedule_shown.with_schedule(ran):
        shown = Shown.of(one)
        try:
            drawn = lanes_of([(shown.name, shown.table)], shown.lane_facts(can_open=False))
        except ValueError as error:
            drawn = parts.sentence(str(error))
        caption = f'<p class="fs-caption">{escaped(schedule_shown.caption(shown))}</p>'
        said = f"{schedule_shown.title(shown)}."
        found += [parts.heading(said, "measured"), parts.metrics(schedule_shown.metrics(shown)), drawn, caption]
    return f'<section class="schedule" aria-label="Which SM ran which block, when">{"".join(found)}</section>' if found else ""


def _failures(measurements: Sequence[Measurement], charts: _Charts) -> str:
    """What did not run: why, what it needed and what there was, the original message folded."""
    found = []
    for one in measurements:
        if one.error is None:
            continue
        found.append(
            parts.sentence(one.error.sentence, strong=f"{result_facts.version_title(one.request.kernel)} did not run.")
        )
        needed = limits.chart(one.error, one.tiles, LIGHT)
        if isinstance(needed, Chart):
            found.append(charts.row([needed], "of-2"))
        if one.error.raw:
            found.append(parts.folded("Details: the original message", one.error.raw))
    return f'<section class="failures" aria-label="What did not run">{"".join(found)}</section>' if found else ""


def _files(snapshot: AnySnapshot) -> str:
    """How to open it in FlashScope, and every sample as CSV: links that need neither a server nor the script."""
    start = snapshot.id[:12]
    links = [
        _link("Every launch as CSV", f"{start}-launches.csv", csv_of(snapshot)),
        _link("NVML readings as CSV", f"{start}-nvml.csv", csv_of_rows(list(_readings(snapshot.measurements)))),
    ]
    own = f'<button type="button" id="unpack" data-name="{escaped(file_name(snapshot))}">Snapshot file</button>'
    return (
        "<footer><p><strong>Open it in FlashScope:</strong> upload this page, or its snapshot file, under Snapshots.</p>"
        f'<p class="files">{own}{"".join(links)}</p><p class="id">SHA-256 {snapshot.id}</p></footer>'
    )


def _link(words: str, name: str, file: bytes) -> str:
    if file.count(b"\n") < 2:  # no more than its head
        return ""
    data = base64.b64encode(file).decode()
    return f'<a download="{escaped(name)}" href="data:text/csv;charset=utf-8;base64,{data}">{escaped(words)}</a>'


def _readings(measurements: Sequence[Measurement]) -> Iterator[dict[str, str | float]]:
    """What NVML read, a row a moment; a series that the device does not give is empty."""
    for one in measurements:
        if one.timeline is None:
            continue
        t_s = one.timeline.t_s.numpy().tolist()
        series = [getattr(one.timeline, name) for name in _SERIES]
        columns = [found.numpy().tolist() if found is not None else [""] * len(t_s) for found in series]
        for moment, *reading in zip(t_s, *columns, strict=True):
            yield {"version": one.label, "t_s": moment, **dict(zip(_SERIES, reading, strict=True))}


def _moment(text: str) -> str:
    """'29 Nov 2026, 13:10 UTC'."""
    moment = datetime.fromisoformat(text).astimezone(UTC)
    return f"{moment.day} {moment:%b %Y, %H:%M} UTC"


# The document around them.


def _document(snapshot: AnySnapshot, body: str, charts: _Charts) -> bytes:
    scripts = [_own("page.js")]
    canvases = [one for one in _CANVASES if f'data-of="{one.name}"' in body]
    modules = [one.script for one in canvases]
    allowed = " ".join(_hash(script) for script in [*scripts, *modules, get_plotlyjs()])
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; font-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta name="generator" content="FlashScope">
<title>{escaped(snapshot.title)} · FlashScope</title>
<link rel="icon" href="{parts.favicon(LIGHT)}">
<style>{_style()}{"".join(one.style for one in canvases)}</style>
<noscript><style>{_own("without_script.css")}</style></noscript>
</head>
<body>
{body}
{embedded(snapshot)}
{_packed("figures", charts.data())}
{_plotly()}
{"".join(f"<script>{script}</script>" for script in scripts)}
{"".join(f'<script type="module">{script}</script>' for script in modules)}
</body>
</html>
""".encode()


@cache
def _own(name: str) -> str:
    return (_OWN_FILES / name).read_text(encoding="utf-8")


@cache
def _style() -> str:
    own = (_HERE / "look.css").read_text(encoding="utf-8") + _own("page.css")
    dark = f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {css_variables(DARK)} }} }}"
    return f"{_font()}:root {{ {css_variables(LIGHT)} }}\n{dark}\n{own}"


@cache
def _font() -> str:
    """The app's own font, which comes with Streamlit: the charts' margins are measured for it. Without it, the system's."""
    streamlit = find_spec("streamlit")
    folder = Path(streamlit.origin).parent / "static/static/media" if streamlit and streamlit.origin else _HERE
    for file in sorted(folder.glob("SourceSansVF-Upright*.woff2")):
        data = base64.b64encode(file.read_bytes()).decode()
        source = f'url("data:font/woff2;base64,{data}") format("woff2")'
        return f'@font-face {{ font-family: "Source Sans"; font-weight: 200 900; src: {source} }}\n'
    return ""


@cache
def _plotly() -> str:
    """Packed it is a third of its size; the browser unpacks it in some 60 ms."""
    return _packed("plotly", get_plotlyjs())


def _packed(name: str, text: str) -> str:
    data = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    return f'<script type="application/gzip+base64" id="{name}">{data}</script>'


@cache
def _hash(script: str) -> str:
    """How the policy names a script that may run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
