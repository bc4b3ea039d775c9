"""The parts of a comparison as HTML: the verdict, what differs, the list of verdicts. Pure; foreign text is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from profiling import words
from profiling.differences import OF_THE_TIME, Differences, Row
from profiling.verdict import CLEAR_GAP, FEWEST_ROUNDS, LEAST_EFFECT, Verdict, Word
from profiling.words import escaped

_PERCENT = f"{100 * LEAST_EFFECT:.0f} %"
_RULES = {
    "interleaved rounds": f"FASTER and SLOWER need {FEWEST_ROUNDS} interleaved rounds whose 98 % interval is clear of 1, and "
    f"{_PERCENT}. SAME needs an interval within {_PERCENT}. Otherwise: UNCLEAR, with what to do about it.",
    "two jobs": f"FASTER and SLOWER of two jobs need launches {100 * CLEAR_GAP:.1f} % clear of each other, and {_PERCENT} "
    f"between the medians. SAME needs launches that overlap, medians within {_PERCENT}. Otherwise: UNCLEAR.",
}
KINDS = {"FASTER": "faster", "SLOWER": "slower", "SAME": "same", "UNCLEAR": "unclear", None: "none"}


def verdict(found: Verdict) -> str:
    """The word with its factor, the interval, the sentence, the rule, and what weakens it."""
    # The sentence begins with why there is no word, where there is none.
    lines = [
        '<p class="fs-note">B against A</p>',
        f'<p class="fs-word fs-word-{KINDS[found.word]}" role="heading" aria-level="2">{escaped(headline(found))}</p>',
        f'<p class="fs-note">{escaped(interval(found))}</p>' if interval(found) else "",
        f'<p class="fs-sentence">{escaped(found.sentence)}</p>',
        _cautions(found.cautions),
    ]
    if found.word is not None:
        one_job = found.basis == "interleaved rounds" or bool(found.rounds)
        lines.append(f'<p class="fs-note">{escaped(_RULES["interleaved rounds" if one_job else "two jobs"])}</p>')
    return f'<div class="fs-verdict">{"".join(lines)}</div>'


def headline(found: Verdict) -> str:
    """'FASTER 1.25×', 'SLOWER 1.25×' (that many times the time), 'SAME', 'UNCLEAR', 'No verdict'."""
    if found.word is None:
        return "No verdict"
    factor = {"FASTER": found.ratio, "SLOWER": 1 / found.ratio if found.ratio else None}.get(found.word)
    return found.word if factor is None else f"{found.word} {words.ratio(factor)}"


def interval(found: Verdict) -> str:
    """'between 1.24× and 1.25×, from 5 rounds'; of a ratio that has no interval the ratio alone."""
    if found.ratio is None:
        return ""
    if found.low is None or found.high is None:
        return f"A ÷ B: {words.ratio(found.ratio)}, the ratio of the medians"
    low, high = (1 / found.high, 1 / found.low) if found.word == "SLOWER" else (found.low, found.high)
    shown = f"between {words.ratio(low)} and {words.ratio(high)}"
    if found.word not in ("FASTER", "SLOWER"):
        shown = f"A ÷ B: {words.ratio(found.ratio)}, {shown}"
    return f"{shown}, from {len(found.rounds)} rounds" if found.rounds else f"{shown}, as the two bands allow"


def _cautions(sentences: Sequence[str]) -> str:
    items = "".join(
        f'<li class="fs-note"><span class="fs-icon fs-caution" aria-hidden="true">warning</span>{escaped(one)}</li>'
        for one in sentences
    )
    return f'<ul class="fs-cautions" aria-label="What weakens it">{items}</ul>' if items else ""


def differences(found: Differences, word: Word | None) -> str:
    """What differs as a table by group; below, folded, what is the same. A latency is no more coloured than the word is."""
    heading = f"{len(found.differing)} of {len(found.rows)} fields"
    shown = _table(found.differing, "What differs between A and B", word) if found.differing else ""
    folded = f"Show the {len(found.equal)} fields that are the same"
    equal = (
        f"<details><summary>{folded}</summary>{_table(found.equal, 'What is the same in A and B', word)}</details>"
        if found.equal
        else ""
    )
    return (
        f'<p class="fs-sentence" role="heading" aria-level="2"><strong>What differs</strong>&ensp;'
        f'<span class="fs-count">{heading}</span></p><div class="fs-differences">{shown}{equal}</div>'
    )


def _table(rows: Sequence[Row], label: str, word: Word | None) -> str:
    return (
        f'<table aria-label="{escaped(label)}"><thead><tr><th scope="col">field</th><th scope="col">A</th>'
        f'<th scope="col">B</th><th scope="col">change</th></tr></thead>{"".join(_groups(rows, word))}</table>'
    )


def _groups(rows: Sequence[Row], word: Word | None) -> Iterable[str]:
    for group in dict.fromkeys(row.group for row in rows):
        body = "".join(
            f'<tr><th scope="row">{escaped(row.field)}</th><td>{escaped(row.a)}</td><td>{escaped(row.b)}</td>'
            f"<td>{_change(row, word)}</td></tr>"
            for row in rows
            if row.group == group
        )
        yield f'<tbody><tr class="fs-group"><th scope="rowgroup" colspan="4">{escaped(group)}</th></tr>{body}</tbody>'


def _change(row: Row, word: Word | None) -> str:
    """A latency that moved as the verdict says has its word and colour; of no other field can be said what is better."""
    if word not in ("FASTER", "SLOWER") or not row.change.endswith(OF_THE_TIME):
        return escaped(row.change)
    ratio = row.a_value / row.b_value if word == "FASTER" else row.b_value / row.a_value
    shown = f"{words.ratio(ratio)} {word.lower()}"
    return f'<strong class="fs-word-{KINDS[word]}">{shown}</strong>' if ratio > 1 else escaped(row.change)


def listing(rows: Sequence[dict[str, str]], links: Sequence[str], kinds: Sequence[str], label: str) -> str:
    """Verdicts as rows of words; the first cell of each leads to its comparison, the verdict has its colour."""
    head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in rows[0])
    body = "".join(
        "<tr>"
        + "".join(_listed(name, cell, link if place == 0 else "", kind) for place, (name, cell) in enumerate(row.items()))
        + "</tr>"
        for row, link, kind in zip(rows, links, kinds, strict=True)
    )
    return (
        f'<div class="fs-table fs-list" tabindex="0" role="region" aria-label="{escaped(label)}"><table><thead><tr>{head}</tr>'
        f"</thead><tbody>{body}</tbody></table></div>"
    )


def _listed(name: str, cell: str, link: str, kind: str) -> str:
    shown = f'<a href="{escaped(link)}" target="_self">{escaped(cell)}</a>' if link else escaped(cell)
    return f'<td class="fs-word-{kind}"><strong>{shown}</strong></td>' if name == "verdict" else f"<td>{shown}</td>"
