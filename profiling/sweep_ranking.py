"""Who won a sweep: each series' cells in order, where those that cannot be told apart share the rank. Pure.

The finalists were timed in common rounds, so that profiling.verdict goes round by round among them. Every other cell has its
screening alone: it is held against the others' screening, by rounds where one job timed both in enough of them, else by
nvbench's clear gap. A screening is brief, and a GPU may be cooler then: its times are scaled by what the finalists' times
changed from theirs.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import lru_cache

from profiling import words
from profiling.feasibility import CAN_RUN
from profiling.launch_times import launch_times
from profiling.records import Measurement
from profiling.sweep_cells import advice_for
from profiling.sweep_record import CellOutcome, Gain, Ranking, RankRow, Series, Sweep, SweepCell
from profiling.verdict import FEWEST_ROUNDS, Verdict, verdict

_INTERPRETED = "Interpreted: there is no GPU time to rank."
_UNTIMED = "Nothing was timed yet."


@dataclass(frozen=True)
class _Timed:
    """A cell with a GPU time that can be true; behind: its time ÷ the best's, once that is known."""

    cell: SweepCell
    outcome: CellOutcome
    behind: float = 1.0

    @property
    def final(self) -> Measurement | None:
        final = self.outcome.final
        return final if final is not None and _can_be_true(final) else None

    @property
    def quoted(self) -> Measurement:
        return self.final or self.outcome.measurement


def rankings(sweep: Sweep) -> tuple[Ranking, ...]:
    """The ranking of every series, in the plan's order."""
    return tuple(ranking(sweep, series) for series in sweep.plan.series)


def ranking(sweep: Sweep, series: Series) -> Ranking:
    """One series' ranking; without rows, and with the reason in its gains, where no GPU timed it."""
    pairs = sweep.of(series)
    ordered = _ordered([_Timed(*pair) for pair in pairs if _can_be_true(pair[1].measurement)])
    if not ordered:
        interpreted = any(outcome.provenance == "interpreted" for _, outcome in pairs)
        nothing = Gain(key=None, sentence=_INTERPRETED if interpreted else _UNTIMED)
        return Ranking(series=series, rows=(), over_default=nothing, over_article=nothing)
    return Ranking(
        series=series,
        rows=_rows(ordered),
        over_default=_gain(ordered, pairs, "default", "the default"),
        over_article=_gain(ordered, pairs, "article", f"the article's {advice_for(series.problem.seq_len_q).title}"),
    )


def finalists_of(sweep: Sweep, series: Series) -> tuple[SweepCell, ...]:
    """Whom to time again: the plan's count of the fastest by the screening, the default, and the article's best."""
    timed = sorted(
        (_Timed(*pair) for pair in sweep.of(series) if _can_be_true(pair[1].measurement)),
        key=lambda one: (_median_ms(one.outcome.measurement), one.cell.key),
    )
    if not timed or sweep.plan.finalists == 0:
        return ()
    chosen = timed[: sweep.plan.finalists]
    for role in ("default", "article"):
        best = next((one for one in timed if role in one.cell.roles), None)
        if best is not None and best not in chosen:
            chosen.append(best)
    return tuple(one.cell for one in chosen)


def _can_be_true(one: Measurement | None) -> bool:
    """Whether a measurement has a GPU time that nothing speaks against."""
    if one is None or one.latency is None or one.latency.provenance != "measured":
        return False
    return all(flag.severity != "bad" for flag in one.flags)


def _median_ms(one: Measurement) -> float:
    """The latency's, which is read once."""
    return launch_times(one.latency).band.median_ms


def _ordered(timed: list[_Timed]) -> list[_Timed]:
    """The best first, then by how far they are behind it."""
    if not timed:
        return []
    finals = [one for one in timed if one.final is not None]
    best = min(finals or timed, key=lambda one: (_median_ms(one.quoted), one.cell.key))
    changed = statistics.median([_median_ms(one.final) / _median_ms(one.outcome.measurement) for one in finals] or [1.0])
    found = []
    for one in timed:
        median_ms = _median_ms(one.quoted) * (1.0 if one.final is not None else changed)
        found.append(_Timed(one.cell, one.outcome, median_ms / _median_ms(best.quoted)))
    return sorted(found, key=lambda one: (one.cell.key != best.cell.key, one.behind, one.cell.key))


def _rows(ordered: list[_Timed]) -> tuple[RankRow, ...]:
    rows: list[RankRow] = []
    leader, rank = ordered[0], 1
    for place, one in enumerate(ordered, start=1):
        why = ""
        if place > 1:
            found = _against(one, leader)
            why = found.sentence
            if found.word == "FASTER":
                leader, rank = one, place
        rows.append(_row(one, rank, "" if one is leader and place == rank else why))
    return tuple(rows)


def _row(one: _Timed, rank: int, why: str) -> RankRow:
    band = launch_times(one.quoted.latency).band
    return RankRow(
        rank=rank, key=one.cell.key, median_ms=band.median_ms, low_ms=band.low_ms, high_ms=band.high_ms,
        is_final=one.final is not None, behind_best=one.behind, why=why,
    )  # fmt: skip


def _against(before: _Timed, after: _Timed) -> Verdict:
    """Whether `after` is faster: by their finals where both have one, else by their screenings."""
    if before.final is not None and after.final is not None:
        return _judged(_Same(before.final), _Same(after.final))
    return _judged(_Same(before.outcome.measurement), _Same(after.outcome.measurement))


class _Same:
    """A measurement, known by its identity: to compare its contents would take as long as to judge them."""

    def __init__(self, of: Measurement) -> None:
        self.of = of

    def __hash__(self) -> int:
        return id(self.of)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.of is self.of


# While a sweep runs, a page asks for its ranking again with every new cell: most pairs are those of a moment ago.
@lru_cache(maxsize=4096)
def _judged(before: _Same, after: _Same) -> Verdict:
    same_job = before.of.started_at == after.of.started_at
    found = verdict(before.of, after.of, same_job)
    if found.word != "UNCLEAR" or not same_job or len(found.rounds) >= FEWEST_ROUNDS:
        return found
    # Of a kernel of microseconds a screening has hundreds of launches in a round or two: too few rounds, not too few launches.
    by_gap = verdict(before.of, after.of, same_job=False)
    return by_gap if by_gap.word != "UNCLEAR" else found


def _gain(ordered: list[_Timed], pairs: tuple[tuple[SweepCell, CellOutcome], ...], role: str, name: str) -> Gain:
    best = ordered[0]
    other = next((one for one in ordered if role in one.cell.roles), None)
    if other is None:
        return Gain(key=None, sentence=_why_not(pairs, role, name))
    if other.cell.key == best.cell.key:
        return Gain(key=other.cell.key, ratio=1.0, low=1.0, high=1.0, word="SAME", sentence=f"The best is {name} itself.")
    found = _against(other, best)
    return Gain(
        key=other.cell.key, ratio=found.ratio, low=found.low, high=found.high, word=found.word,
        sentence=_said(found, best, other, name),
    )  # fmt: skip


def _said(found: Verdict, best: _Timed, other: _Timed, name: str) -> str:
    ours, theirs = (words.milliseconds(_median_ms(one.quoted)) for one in (best, other))
    spills = other.outcome.report.spill_bytes if other.outcome.report is not None else 0
    what = f"{name} ({other.cell.title}{f', which spills {spills:,} bytes a thread' if spills else ''})"
    if found.word == "FASTER" and found.ratio is not None:
        return f"The best is {words.ratio(found.ratio)} as fast as {what}: {ours} against {theirs}."
    if found.word == "SLOWER" and found.ratio is not None:
        return f"The best is slower than {what} in their common rounds: {ours} against {theirs}."
    return f"The best cannot be told from {what}: {ours} against {theirs}."


def _why_not(pairs: tuple[tuple[SweepCell, CellOutcome], ...], role: str, name: str) -> str:
    """Why there is no time to hold the best against: of several cells the one that came nearest to running."""
    held = [pair for pair in pairs if role in pair[0].roles]
    if any(not outcome.is_over for _, outcome in held):
        return f"{name[:1].upper()}{name[1:]} was not timed yet."
    if not held:
        return f"{name[:1].upper()}{name[1:]} is not among the cells."
    cell, outcome = min(held, key=lambda pair: (pair[1].reason in CAN_RUN, pair[1].status == "refused"))
    return f"{name[:1].upper()}{name[1:]} has no time here ({cell.title}): {outcome.sentence}"
