"""A sweep in tables: the ranking of a series, and the tiles recommended by length with the article's beside them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from app.sweep_shown import Shown, name_of, noted, tflops, word
from profiling import words
from profiling.sweep_cells import advice_for
from profiling.sweep_record import Gain, RankRow

NOTED = "noted"
EXPLAINED = {NOTED: "What the worker noted against this time; the cell at the right says it in a sentence."}
_WORTH_A_WORD = 0.01


def ranked(shown: Shown) -> list[dict[str, str]]:
    """A row a configuration that has a time, best first."""
    rows = []
    is_noted = any(_disturbed(shown, row) for row in shown.ranking.rows)
    for row in shown.ranking.rows:
        cell, outcome = shown.sweep.by_key[row.key]
        rows.append(
            {
                "rank": str(row.rank),
                "tiles": " · ".join([cell.title, *(role for role in cell.roles if role != "grid")]),
                "TFLOP/s": words.three_digits(tflops((cell, outcome))),
                "median": words.milliseconds(row.median_ms),
                "min to q3": f"{words.milliseconds(row.low_ms)} to {words.milliseconds(row.high_ms)}",
                "behind": words.ratio(row.behind_best),
                "timed": "finals" if row.is_final else "once",
                **({NOTED: _disturbed(shown, row)} if is_noted else {}),
            }
        )
    return rows


def _disturbed(shown: Shown, row: RankRow) -> str:
    return ", ".join(flag.short for flag in noted(shown.sweep.by_key[row.key]) if flag.severity != "info")


def about_ranks(shown: Shown) -> str:
    """How the ranks came about."""
    finals = sum(row.is_final for row in shown.ranking.rows)
    again = f"{finals} finalists were timed again, in common rounds; the others once, in a brief screening. " if finals else ""
    return f"{again}{_changed(shown)}Configurations that cannot be told apart share the rank."


def _changed(shown: Shown) -> str:
    """What the finalists' times changed by since their screening, where the others are taken to change alike."""
    once = next((row for row in shown.ranking.rows if not row.is_final), None)
    best = shown.ranking.best
    if once is None or best is None or not best.is_final:
        return ""
    ratio = once.behind_best * best.median_ms / once.median_ms
    if abs(ratio - 1) < _WORTH_A_WORD:
        return ""
    return (
        f"In the finals launches took {words.ratio(ratio)} as long as in the screening; behind reckons so for the others too. "
    )


def recommended(found: Sequence[Shown]) -> list[dict[str, str]]:
    """A row a length that has a time, shortest first."""
    return [_row(one) for one in _by_length(found)]


def _row(shown: Shown) -> dict[str, str]:
    best, article = shown.best, shown.article
    length = shown.series.problem.seq_len_q
    speed = tflops(article) if article is not None else None
    why = "not tried" if article is None else word(shown, article)
    return {
        "tokens": f"{length:,}",
        "best here": best[0].title,
        "TFLOP/s": words.three_digits(tflops(best)),
        "over the default": _ratio(shown.ranking.over_default, best[0].key),
        "the article’s": advice_for(length).title,
        "its TFLOP/s": why if speed is None else words.three_digits(speed),
        "over the article’s": _ratio(shown.ranking.over_article, best[0].key),
    }


def _ratio(gain: Gain, best: str) -> str:
    if gain.ratio is None:
        return "–"
    if gain.key == best:
        return "the same"
    interval = f" ({words.ratio(gain.low)} to {words.ratio(gain.high)})" if gain.low is not None else ""
    return f"{words.ratio(gain.ratio)}{interval}"


def about_recommended(shown: Shown) -> str:
    """What the table is of, and what it is not."""
    return (
        f"{name_of(shown.series)} on {shown.sweep.device_name}, head_dim {shown.series.problem.head_dim}"
        f"{', causal' * shown.series.problem.causal}: the fastest of what this sweep tried. Of the article’s pair the fastest "
        "of all warps and stages tried, or why it cannot run."
    )


def in_words(found: Sequence[Shown]) -> str:
    """The table in a sentence, lengths with the same sizes together: '128 × 64 at 1k to 4k; 128 × 128 at 16k.'"""
    groups: list[tuple[str, list[int]]] = []
    for one in _by_length(found):
        tiles = one.best[0].tiles
        sizes = f"{tiles.block_m} × {tiles.block_n}"
        if not groups or groups[-1][0] != sizes:
            groups.append((sizes, []))
        groups[-1][1].append(one.series.problem.seq_len_q)
    return "; ".join(f"{sizes} at {_span(lengths)}" for sizes, lengths in groups) + " tokens."


def _span(lengths: Sequence[int]) -> str:
    first, last = words.tokens(lengths[0]), words.tokens(lengths[-1])
    return first if first == last else f"{first} to {last}"


def _by_length(found: Sequence[Shown]) -> list[Shown]:
    return sorted((one for one in found if one.best is not None), key=lambda one: one.series.problem.seq_len_q)
