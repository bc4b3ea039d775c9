"""A sweep as it is shown: one series of it as a map of BLOCK_M × BLOCK_N, what each place holds, the result in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from profiling import words
from profiling.launch_times import launch_times
from profiling.records import Flag
from profiling.sweep_record import CellOutcome, Ranking, RankRow, Series, Sweep, SweepCell

Pair = tuple[SweepCell, CellOutcome]

_STATUS_WORDS = {
    "pending": "…", "running": "now", "refused": "refused", "wrong": "WRONG", "failed": "failed", "untried": "not tried",
    "measured": "timed", "infeasible": "cannot run",
}  # fmt: skip
_ERROR_WORDS = {
    "timeout": "hung", "crashed": "crashed", "out_of_memory": "no memory", "compile": "no compile", "launch": "no launch",
    "refused": "refused", "cancelled": "cancelled",
}  # fmt: skip
_LAST = {"measured": 0, "running": 1, "pending": 2, "untried": 3, "wrong": 4, "failed": 5, "infeasible": 6, "refused": 7}


@dataclass(frozen=True)
class Spot:
    """A BLOCK_M × BLOCK_N of a series: its cells, the one that stands for it first."""

    block_m: int
    block_n: int
    pairs: tuple[Pair, ...]

    @property
    def cell(self) -> SweepCell:
        """The fastest that has a time; else what is awaited; else what cannot run."""
        return self.pairs[0][0]

    @property
    def outcome(self) -> CellOutcome:
        """What came of it."""
        return self.pairs[0][1]

    @property
    def pending(self) -> int:
        """How many of its cells nothing is known of yet."""
        return sum(not outcome.is_over for _, outcome in self.pairs)


@dataclass(frozen=True)
class Shown:
    """A series of a sweep with its ranking."""

    sweep: Sweep
    series: Series
    ranking: Ranking

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """The series' cells with what came of each."""
        return self.sweep.of(self.series)

    @cached_property
    def spots(self) -> tuple[Spot, ...]:
        """The places of the map, by BLOCK_M and BLOCK_N."""
        found: dict[tuple[int, int], list[Pair]] = {}
        for pair in self.pairs:
            found.setdefault((pair[0].tiles.block_m, pair[0].tiles.block_n), []).append(pair)
        return tuple(Spot(*at, tuple(sorted(found[at], key=self._order))) for at in sorted(found))

    def _order(self, pair: Pair) -> tuple[int, float]:
        latency = pair[1].latency
        return _LAST[self.status(pair)], 0.0 if latency is None else launch_times(latency).band.median_ms

    def status(self, pair: Pair) -> str:
        """The outcome's status, and 'running' for what is being timed."""
        return "running" if pair[0].key in self.sweep.state.running and not pair[1].is_over else pair[1].status

    @property
    def is_interpreted(self) -> bool:
        """Whether it ran in the interpreter, whose times say nothing of a GPU."""
        return self.sweep.capability is None

    @property
    def provenance(self) -> str:
        """Of the map as a whole: what was launched counts more than what was compiled."""
        if self.is_interpreted:
            return "interpreted"
        found = {outcome.provenance for _, outcome in self.pairs}
        return next((one for one in ("measured", "compiled") if one in found), "compiled")

    @cached_property
    def rank_of(self) -> dict[str, RankRow]:
        """The ranking's rows by key."""
        return {row.key: row for row in self.ranking.rows}

    @property
    def best(self) -> Pair | None:
        """The first of the ranking."""
        return None if self.ranking.best is None else self.sweep.by_key[self.ranking.best.key]

    @property
    def default(self) -> Pair | None:
        """The cell of the version's own tiles."""
        return next((pair for pair in self.pairs if "default" in pair[0].roles), None)

    @property
    def article(self) -> Pair | None:
        """The fastest cell with the article's pair for this length, or the first of those that have no time."""
        found = sorted((pair for pair in self.pairs if "article" in pair[0].roles), key=self._order)
        return found[0] if found else None

    def first(self) -> str | None:
        """The key of the cell to look at before one was chosen: the best, the default, or the first."""
        pair = self.best or self.default or (self.pairs[0] if self.pairs else None)
        return None if pair is None else pair[0].key


def tflops(pair: Pair) -> float | None:
    """Throughput by the time to quote; None without a GPU's time."""
    known = pair[1].best_known
    if known is None or known.latency is None or known.latency.provenance != "measured":
        return None
    return known.request.flops / launch_times(known.latency).band.median_ms / 1e9  # read once: every chart asks again


def noted(pair: Pair) -> tuple[Flag, ...]:
    """What stands beside the time to quote, but for what is well: a power cap, a clock that moved."""
    known = pair[1].best_known
    return () if known is None else tuple(flag for flag in known.flags if flag.severity != "ok")


def word(shown: Shown, pair: Pair) -> str:
    """What came of a cell in a word or two: a reason, or 'timed'."""
    outcome = pair[1]
    if outcome.status == "failed":
        return _ERROR_WORDS[outcome.error.kind]
    if outcome.status == "infeasible" and outcome.reason is not None:
        return outcome.reason
    return _STATUS_WORDS[shown.status(pair)]


def value(pair: Pair) -> str:
    """A cell's time or throughput in words: '507 TFLOP/s', 'CPU 1.2 s'; nothing without a time."""
    outcome, speed = pair[1], tflops(pair)
    if speed is not None:
        return f"{words.three_digits(speed)} TFLOP/s"
    return "" if outcome.median_ms is None else f"CPU {words.milliseconds(outcome.median_ms)}"


def said(pair: Pair) -> str:
    """What came of a cell in a sentence."""
    outcome = pair[1]
    if outcome.status == "pending":
        return "Not reached yet."
    if outcome.median_ms is None:
        return outcome.sentence
    accuracy = outcome.measurement.accuracy
    error = (
        f", relative error {words.error(accuracy.relative_error)}" if accuracy and accuracy.relative_error is not None else ""
    )
    spills = (
        f" It spills {outcome.report.spill_bytes:,} bytes a thread." if outcome.report and outcome.report.spill_bytes else ""
    )
    return (
        f"{words.milliseconds(outcome.median_ms)}, {'interpreted on the CPU, ' * (tflops(pair) is None)}correct{error}.{spills}"
    )


# What of a sweep is shown


def dimensions(sweep: Sweep) -> dict[str, tuple[str, ...]]:
    """What tells its series apart: a name to the values that there are, where there are several."""
    found: dict[str, dict[str, None]] = {}
    for series in sweep.plan.series:
        for name, text in told(series).items():
            found.setdefault(name, {})[text] = None
    return {name: tuple(texts) for name, texts in found.items() if len(texts) > 1}


def told(series: Series) -> dict[str, str]:
    """A series by the values that can tell it from others."""
    return {
        "version": series.kernel,
        "tokens": words.tokens(series.problem.seq_len_q),
        "mask": "causal" if series.problem.causal else "full",
        "head_dim": f"head_dim {series.problem.head_dim}",
        "format": series.precision.title,
    }


def chosen_series(sweep: Sweep, values: dict[str, str]) -> Series:
    """The series that has these values, where they name one; else the first that agrees in most of them."""
    return max(sweep.plan.series, key=lambda series: sum(told(series).get(name) == text for name, text in values.items()))


def alike(sweep: Sweep, series: Series, but: Sequence[str]) -> tuple[Series, ...]:
    """The series that differ from one in these values alone, in the sweep's order, itself among them."""

    def kept(one: Series) -> dict[str, str]:
        return {name: text for name, text in told(one).items() if name not in but}

    return tuple(one for one in sweep.plan.series if kept(one) == kept(series))


# The result in words


def headline(shown: Shown) -> str:
    """The result of a series, or what is known so far."""
    best = shown.best
    if best is None:
        return _unranked(shown)
    speed = tflops(best)
    name = f"{_where(shown)}: {best[0].title}"
    so_far = "" if shown.sweep.state.is_over else " so far"
    tied = len(shown.ranking.tied) - 1
    shares = f", not told apart from {tied} other{'s' * (tied > 1)}" if tied else ""
    gain = shown.ranking.over_default
    over = f", {words.ratio(gain.ratio)} the default" if gain.word == "FASTER" and gain.ratio is not None else ""
    return f"{name} is the fastest{so_far}, {words.three_digits(speed)} TFLOP/s{over}{shares}"


def _unranked(shown: Shown) -> str:
    right = sum(outcome.status == "measured" for _, outcome in shown.pairs)
    if shown.is_interpreted and right:
        wrong = sum(outcome.status == "wrong" for _, outcome in shown.pairs)
        said = f"{right} of {right + wrong} outputs correct" if wrong else f"All {right} outputs that were computed are correct"
        return f"{_where(shown)}: {said}"
    if shown.sweep.state.is_over:
        return f"{_where(shown)}: no configuration has a time"
    return "Which tiles are fastest, and which cannot run"


def _where(shown: Shown) -> str:
    """'v2 at 4k tokens', 'v3 FP8 at 16k tokens, causal'."""
    problem = shown.series.problem
    several = len({one.head_dim for one in shown.sweep.plan.problems}) > 1
    head_dim = f", head_dim {problem.head_dim}" * several
    return f"{name_of(shown.series)} at {words.tokens(problem.seq_len_q)} tokens{head_dim}{', causal' * problem.causal}"


def name_of(series: Series) -> str:
    """'v2', 'v3 FP8', 'v2 fp16'."""
    title = series.precision.title
    return series.kernel if title == "bf16" else f"{series.kernel} {title}"


def cannot(pairs: Sequence[Pair]) -> dict[str, int]:
    """How many cells cannot run, by reason in words."""
    found: dict[str, int] = {}
    for _, outcome in pairs:
        if outcome.status in ("refused", "infeasible"):
            why = "refused by the version" if outcome.status == "refused" else (outcome.reason or "cannot run")
            found[why] = found.get(why, 0) + 1
    return found
