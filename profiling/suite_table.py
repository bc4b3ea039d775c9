"""A suite's snapshots as a table: throughputs, each version against the better peer of its job, what has no number. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from profiling import words
from profiling.records import Environment, Measurement
from profiling.snapshot import AnySnapshot
from profiling.suites import Cell, Match, Suite, choice_of, precision_of, title_of
from profiling.terminal import columns, shown
from profiling.verdict import Verdict, verdict

HOW = (
    "TFLOP/s, measured: medians of launches with the L2 cache flushed before each, in interleaved rounds of one job a row; "
    "every output was checked against float64."
)
RATIOS = (
    "A ratio is the peer's time over ours, round by round: above 1 ours is faster. Where one peer has no number, the "
    "other counts."
)
FP8 = (
    "FP8 is the kernel alone; in brackets with the pre-pass that quantises Q, K and V (FA3 ships none: there it is calls of "
    "torch, with a scale a head)."
)


@dataclass(frozen=True)
class Outcome:
    """A match in one job: the better peer there, and what can be said of ours against it."""

    peer: str
    verdict: Verdict


@dataclass(frozen=True)
class Row:
    """A cell's snapshot: its measurements by version, and an outcome a match, None where one side has no time."""

    cell: Cell
    snapshot: AnySnapshot
    measurements: dict[str, Measurement]
    outcomes: tuple[Outcome | None, ...]


@dataclass(frozen=True)
class Group:
    """A match over the rows of a number format, or of one head_dim in it; label is 'bf16' or 'bf16, head_dim 64'.

    mean: the geometric mean of the ratios; lowest and at: the smallest of them, and its row.
    """

    label: str
    match: Match
    mean: float
    lowest: float
    at: Row
    verdicts: dict[str, int]
    count: int


@dataclass(frozen=True)
class SuiteTable:
    """Rows in the suite's order; versions: those that any row holds, in the suite's order."""

    suite: Suite
    rows: tuple[Row, ...]
    versions: tuple[str, ...]

    @property
    def groups(self) -> tuple[Group, ...]:
        """Every match, over each number format and each head_dim in it."""
        found = [self._groups_of(match, place) for place, match in enumerate(self.suite.matches)]
        return tuple(group for groups in found for group in groups)

    def _groups_of(self, match: Match, place: int) -> Iterable[Group]:
        for rows in self._by_format():
            label = rows[0].cell.kind
            dims = dict.fromkeys(row.cell.problem.head_dim for row in rows)
            parts = [(label, rows)]
            if len(dims) > 1:
                parts += [
                    (f"{label}, head_dim {dim}", [row for row in rows if row.cell.problem.head_dim == dim]) for dim in dims
                ]
            here = self._here(match, rows)
            yield from filter(None, (_group(name, here, place, part) for name, part in parts))

    def _here(self, match: Match, rows: Sequence[Row]) -> Match:
        """The match with those peers alone that run in these rows."""
        return replace(match, against=tuple(name for name in match.against if name in self._shown(rows)))

    def _by_format(self) -> list[list[Row]]:
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.cell.kind, []).append(row)
        return list(found.values())

    @property
    def without_number(self) -> tuple[str, ...]:
        """A sentence for every reason why a version has no time, with the rows it is of."""
        reasons: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            for name, one in row.measurements.items():
                if (reason := why_not(one)) is not None:
                    reasons.setdefault((name, reason), []).append(row)
        return tuple(
            f"{title_of(name)}, {_where(rows, len(self.rows))}: {shown(reason, 300)}"
            for (name, reason), rows in reasons.items()
        )

    def text(self) -> str:
        """The table for a terminal."""
        lines = [f"{self.suite.name}: {self.suite.source}", *self._conditions(), "", HOW]
        for rows in self._by_format():
            heads, body = self._grid(rows)
            lines += [
                "",
                rows[0].cell.kind,
                *columns([heads, *body], frozenset(range(2 + len(self._shown(rows)) + 1)) - {2}),
            ]
        if summary := self._summary():
            lines += ["", *columns(summary, frozenset({2, 3, 4})), "", RATIOS]
        if any(row.cell.precision.fp8 for row in self.rows):
            lines.append(FP8)
        return "\n".join(lines + (["", "Without a number:", *self.without_number] if self.without_number else []))

    def markdown(self) -> str:
        """The same for a document."""
        lines = [f"{HOW} {'; '.join(self._conditions())}."]
        for rows in self._by_format():
            heads, body = self._grid(rows)
            lines += ["", f"**{rows[0].cell.kind}**", "", *_piped([heads, *body])]
        if summary := self._summary():
            lines += ["", *_piped(summary), "", RATIOS]
        if any(row.cell.precision.fp8 for row in self.rows):
            lines.append(FP8)
        return "\n".join(lines + (["", *(f"- {sentence}" for sentence in self.without_number)] if self.without_number else []))

    def as_json(self) -> dict[str, Any]:
        """The same as plain values, with every interval."""
        return {
            "suite": self.suite.name,
            "rows": [_row_as_json(row, self.suite.matches) for row in self.rows],
            "groups": [
                {
                    "group": one.label,
                    "version": one.match.version,
                    "against": list(one.match.against),
                    "problems": one.count,
                    "geometric_mean": one.mean,
                    "lowest": one.lowest,
                    "lowest_at": one.at.cell.title,
                    "verdicts": one.verdicts,
                }
                for one in self.groups
            ],
            "without_number": list(self.without_number),
        }

    def _shown(self, rows: Sequence[Row]) -> tuple[str, ...]:
        return tuple(name for name in self.versions if any(name in row.measurements for row in rows))

    def _grid(self, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
        names = self._shown(rows)
        matches = [place for place in range(len(self.suite.matches)) if any(row.outcomes[place] for row in rows)]
        here = {place: self._here(self.suite.matches[place], rows) for place in matches}
        heads = ["head_dim", "seq_len", "causal", *map(title_of, names), *map(_versus, here.values())]
        body = [
            [
                str(row.cell.problem.head_dim),
                words.tokens(row.cell.problem.seq_len_q),
                "yes" if row.cell.problem.causal else "no",
                *(_cell(row.measurements.get(name)) for name in names),
                *(_outcome(row.outcomes[place], match) for place, match in here.items()),
            ]
            for row in rows
        ]
        return heads, body

    def _summary(self) -> list[list[str]]:
        rows = [
            [
                one.match.title,
                one.label,
                str(one.count),
                words.ratio(one.mean),
                words.ratio(one.lowest),
                _short(one.at.cell),
                ", ".join(f"{count} {word}" for word, count in one.verdicts.items()),
            ]
            for one in self.groups
        ]
        heads = ["who", "over", "problems", "geometric mean", "lowest", "at", "verdicts"]
        return [heads, *rows] if rows else []

    def _conditions(self) -> list[str]:
        """Where and when it was measured; what differs between the snapshots is said."""
        environments = [one.environment for row in self.rows for one in row.measurements.values()]
        moments = sorted(row.snapshot.created_at for row in self.rows)
        jobs = (
            f"{len(self.rows)} {'job' if len(self.rows) == 1 else 'jobs'}, {_moment(moments[0])} to {_moment(moments[-1])} UTC"
        )
        runs = {tag for row in self.rows for tag in self.suite.run_tags(row.snapshot.tags)}
        several = [f"of {len(runs)} runs"] if len(runs) > 1 else []
        return [" · ".join([*_machine(environments), jobs, *several])]


def suite_table(
    suite: Suite, snapshots: Sequence[AnySnapshot], cells: Sequence[Cell] | None = None, names: Sequence[str] | None = None
) -> SuiteTable:
    """The table of a suite's snapshots; of a cell that several hold the newest counts. cells and names select."""
    wanted = {_key(cell): cell for cell in (suite.cells if cells is None else cells)}
    newest: dict[object, AnySnapshot] = {}
    for snapshot in sorted(snapshots, key=lambda one: one.created_at):
        if snapshot.measurements and (key := _key_of(snapshot)) in wanted:
            newest[key] = snapshot
    rows = tuple(_row(suite, wanted[key], newest[key], names) for key in wanted if key in newest)
    rows = tuple(row for row in rows if row.measurements)
    versions = tuple(name for name in suite.versions if any(name in row.measurements for row in rows))
    return SuiteTable(suite, rows, versions)


def _key(cell: Cell) -> object:
    return cell.problem, cell.direction, cell.precision.fp8, cell.precision.dtype


def _key_of(snapshot: AnySnapshot) -> object:
    requests = [one.request for one in snapshot.measurements]
    # A version may have FP8 of its own among others that have none: then the job is not one of FP8.
    is_fp8 = all(request.precision.fp8 for request in requests)
    return requests[0].problem, requests[0].direction, is_fp8, requests[0].precision.dtype


def _row(suite: Suite, cell: Cell, snapshot: AnySnapshot, names: Sequence[str] | None) -> Row:
    found = _by_version(suite, cell, snapshot.measurements)
    found = {name: one for name, one in found.items() if names is None or name in names}
    return Row(cell, snapshot, found, tuple(_decided(match, found) for match in suite.matches))


def _by_version(suite: Suite, cell: Cell, measurements: Sequence[Measurement]) -> dict[str, Measurement]:
    """The measurements of a job by the suite's versions, the first of each; those with tiles of their own are found first."""
    found, left = {}, list(measurements)
    for name in sorted(suite.in_cell(cell), key=lambda name: not choice_of(name).tiles):
        choice = choice_of(name)
        fp8 = precision_of(choice, cell).fp8
        for one in left:
            has = one.tiles or one.request.tiles
            settings = all(getattr(has, field, None) == value for field, value in choice.tiles.items())
            if one.request.kernel == choice.name and one.request.precision.fp8 == fp8 and settings:
                found[name] = one
                left.remove(one)
                break
    return {name: found[name] for name in suite.versions if name in found}


def _decided(match: Match, found: dict[str, Measurement]) -> Outcome | None:
    peers = {name: found[name] for name in match.against if name in found and found[name].tflops is not None}
    ours = found.get(match.version)
    if ours is None or ours.tflops is None or not peers:
        return None
    better = max(peers, key=lambda name: peers[name].tflops)
    judged = verdict(peers[better], ours, same_job=True)
    return None if judged.ratio is None else Outcome(better, judged)


def _group(label: str, match: Match, place: int, rows: Sequence[Row]) -> Group | None:
    ratios = [(row.outcomes[place].verdict.ratio, row) for row in rows if row.outcomes[place] is not None]
    if not ratios:
        return None
    lowest, at = min(ratios, key=lambda one: one[0])
    mean = math.exp(math.fsum(math.log(ratio) for ratio, _ in ratios) / len(ratios))
    counted = Counter(row.outcomes[place].verdict.word or "refused" for _, row in ratios)
    order = ("FASTER", "SAME", "UNCLEAR", "SLOWER", "refused")
    return Group(label, match, mean, lowest, at, {word: counted[word] for word in order if counted[word]}, len(ratios))


def why_not(one: Measurement) -> str | None:
    """A sentence saying why a measurement has no time; None where it has one."""
    if one.tflops is not None:
        return None
    if one.error is not None:
        return one.error.sentence
    if one.accuracy is not None and not one.accuracy.passed:
        return next((flag.sentence for flag in one.flags if flag.severity == "bad"), "The output is wrong, and was not timed.")
    return "It was not timed."


def _where(rows: Sequence[Row], count: int) -> str:
    if len(rows) == count and count > 1:
        return "everywhere"
    said = [_short(row.cell) for row in rows[:6]]
    return ", ".join(said) + (f" and {len(rows) - 6} more" if len(rows) > 6 else "")


def _short(cell: Cell) -> str:
    return " ".join(cell.short)


def _versus(match: Match) -> str:
    return f"{title_of(match.version)} : {' or '.join(title_of(name).removesuffix(' (SDPA)') for name in match.against)}"


def _cell(one: Measurement | None) -> str:
    if one is None:
        return ""
    if one.tflops is None:
        return "WRONG" if one.accuracy is not None and not one.accuracy.passed else "–"
    with_prepass = one.tflops_with_prepass
    return words.three_digits(one.tflops) + (f" ({words.three_digits(with_prepass)})" if with_prepass is not None else "")


def _outcome(outcome: Outcome | None, match: Match) -> str:
    if outcome is None:
        return "–"
    word = outcome.verdict.word or "no word"
    against = f", {title_of(outcome.peer).removesuffix(' (SDPA)')}" if len(match.against) > 1 else ""
    return f"{words.ratio(outcome.verdict.ratio)} {word}{against}"


def _machine(environments: Sequence[Environment]) -> list[str]:
    facts: tuple[Callable[[Environment], str], ...] = (
        lambda one: one.device.name,
        lambda one: f"torch {one.torch_version}",
        lambda one: f"Triton {one.triton_version or 'not installed'}",
        lambda one: f"FlashScope {one.commit[:12]}" if one.commit else "",
    )
    return [
        said for fact in facts if (said := " and ".join(filter(None, dict.fromkeys(shown(fact(one)) for one in environments))))
    ]


def _moment(created_at: str) -> str:
    return shown(created_at)[:16].replace("T", " ")


def _piped(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    return [lines[0], f"|{'---|' * len(rows[0])}", *lines[1:]]


def _row_as_json(row: Row, matches: Sequence[Match]) -> dict[str, Any]:
    problem = row.cell.problem
    return {
        "snapshot": row.snapshot.id,
        "problem": problem.model_dump(mode="json"),
        "direction": row.cell.direction,
        "format": row.cell.precision.title,
        "versions": {name: _measured_as_json(one) for name, one in row.measurements.items()},
        "matches": [
            {
                "version": match.version,
                "against": found.peer,
                "ratio": found.verdict.ratio,
                "interval": None if found.verdict.low is None else [found.verdict.low, found.verdict.high],
                "word": found.verdict.word,
            }
            for match, found in zip(matches, row.outcomes, strict=True)
            if found is not None
        ],
    }


def _measured_as_json(one: Measurement) -> dict[str, Any]:
    return {
        "label": one.label,
        "tflops": one.tflops,
        "tflops_with_prepass": one.tflops_with_prepass,
        "median_ms": None if one.latency is None else one.latency.median_ms,
        "correct": None if one.accuracy is None else one.accuracy.passed,
        "error": None if one.error is None else one.error.sentence,
    }
