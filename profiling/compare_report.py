"""Two snapshots compared, version by version: what the verdicts are, what differs, and what fails a CI job. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from profiling import words
from profiling.comparable import times_of
from profiling.differences import Row, differences
from profiling.improvements import labels, of_one_job
from profiling.kernel_choice import KernelChoice, kernel_choices
from profiling.records import Measurement
from profiling.snapshot import AnySnapshot
from profiling.terminal import BadInput, columns, shown
from profiling.verdict import Verdict, verdict, warm_verdict

RULE = (
    "It fails when a version's output in B is wrong, when it failed there, or when its verdict is SLOWER and the near end of "
    "the interval is beyond what is allowed. UNCLEAR and a SLOWER whose near end is within it do not fail, unless --strict."
)


# The times and errors of two jobs always differ a little, and the summary and the JSON have them.
_RESULTS_SHOWN = {"output", "rows checked", "memory it adds", "how launches were timed", "times are", "it failed", "because"}
# These differ between any two jobs, or stand at the head of the report.
_NOT_SHOWN = {"started", "the job took", "NVML readings", "compiling took", "title", "note", "created", "id"}
_WIDEST_CELL = 60


@dataclass(frozen=True)
class Pair:
    """One version in both snapshots: its measurement in A and in B, and the verdict on B against A.

    warm: the verdict on the warm times, which decides nothing; None unless both have one.
    """

    name: str
    before: Measurement
    after: Measurement
    verdict: Verdict
    warm: Verdict | None = None


@dataclass(frozen=True)
class Comparison:
    """Snapshot B against snapshot A, which may be one and the same; the versions that only one of them has are named."""

    before: AnySnapshot
    after: AnySnapshot
    pairs: tuple[Pair, ...]
    only_before: tuple[str, ...] = ()
    only_after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limit:
    """How much slower B may be, as a share of A's time (0.05 is 5 %); strict: what is not surely within it fails too."""

    allowed: float
    strict: bool = False


def compare(before: AnySnapshot, after: AnySnapshot, version: str | None, pair: Sequence[str] | None) -> Comparison:
    """Compare what both have, or one version, or version pair[0] of A with pair[1] of B. Raises BadInput."""
    ours, theirs = by_label(before), by_label(after)
    if pair is not None:
        first, second = _named(ours, pair[0], "A"), _named(theirs, pair[1], "B")
        return Comparison(before, after, (_judged(f"{pair[0]} → {pair[1]}", before, after, first, second),))
    if before.id == after.id:
        raise BadInput("A and B are the same snapshot: name two of its versions with --versions.")
    if version is not None:
        first, second = _named(ours, version, "A"), _named(theirs, version, "B")
        return Comparison(before, after, (_judged(version, before, after, first, second),))
    common = [label for label in ours if label in theirs]
    if not common:
        raise BadInput(f"A and B have no version in common: A has {_listed(ours)}, B has {_listed(theirs)}.")
    return Comparison(
        before,
        after,
        tuple(_judged(label, before, after, ours[label], theirs[label]) for label in common),
        tuple(label for label in ours if label not in theirs),
        tuple(label for label in theirs if label not in ours),
    )


def by_label(snapshot: AnySnapshot) -> dict[str, Measurement]:
    """The measurements by the names that tell them apart, as the pages have them: with format, tiles or place if need be."""
    found: dict[str, Measurement] = {}
    for place, (name, one) in enumerate(zip(labels(snapshot.measurements), snapshot.measurements, strict=True), 1):
        cleaned = shown(name)
        found[cleaned if cleaned not in found else f"{cleaned} · {place}"] = one
    return found


def within_one_job(measurements: Sequence[Measurement]) -> list[str]:
    """What one job's versions are against its first timed one, a line each with its word; nothing where fewer were timed."""
    named = [
        (shown(name), one)
        for name, one in zip(labels(measurements), measurements, strict=True)
        if one.latency is not None and one.latency.provenance == "measured"
    ]
    if len(named) < 2:
        return []
    (first, before), *others = named
    rows = [["against " + first, "verdict", "A ÷ B", "interval", ""]]
    for name, after in others:
        for found in filter(None, (verdict(before, after, True), warm_verdict(before, after, True))):
            rows.append([name, found.word or "refused", *_ratio_and_interval(found), shown(found.sentence)])
    return columns(rows, frozenset({2, 3}))


def _named(found: dict[str, Measurement], label: str, side: str) -> Measurement:
    """The one of a name, or, as --kernel has it, of a version with settings: 'v2@block_m=64,block_n=64'."""
    if label in found:
        return found[label]
    fitting = _with_settings(found, label) if "@" in label else []
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise BadInput(f"version = {shown(label)} is {len(fitting)} of {side}: it can be {_listed(found)}.")
    raise BadInput(f"version = {shown(label)} is not in {side}: it can be {_listed(found)}.")


def _with_settings(found: dict[str, Measurement], asked: str) -> list[Measurement]:
    """The measurements of a version that have all the settings asked for."""
    try:
        choices = kernel_choices(asked)
    except ValueError as error:
        raise BadInput(error) from None
    if len(choices) > 1:
        raise BadInput(f"version = {shown(asked)} is not possible: it is one version, with settings after @.")
    (choice,) = choices
    return [one for one in found.values() if one.request.kernel == choice.name and _has(one, choice)]


def _has(one: Measurement, choice: KernelChoice) -> bool:
    """Whether a measurement ran with the settings of a choice."""
    sides = ((one.tiles, choice.tiles), (one.request.precision, choice.precision))
    return all(getattr(record, name, None) == value for record, asked in sides for name, value in asked.items())


def _listed(found: dict[str, Measurement]) -> str:
    return ", ".join(found) or "none that this FlashScope understands"


def _judged(name: str, before: AnySnapshot, after: AnySnapshot, ours: Measurement, theirs: Measurement) -> Pair:
    together = of_one_job(before, after, ours, theirs)
    return Pair(name, ours, theirs, verdict(ours, theirs, together), warm_verdict(ours, theirs, together))


def failures(comparison: Comparison, limit: Limit | None) -> tuple[str, ...]:
    """A sentence for everything that makes B fail; see RULE. Without a limit only outputs and jobs count."""
    return tuple(sentence for pair in comparison.pairs if (sentence := _failure(pair, limit)))


def _failure(pair: Pair, limit: Limit | None) -> str:
    after, found = pair.after, pair.verdict
    if after.error is not None:
        return f"{pair.name}: failed in B: {shown(after.error.sentence)}"
    if after.wrong is not None:
        was = " and was right in A" if pair.before.accuracy is not None and pair.before.wrong is None else ""
        return f"{pair.name}: the {after.wrong} of B {'are' if after.wrong == 'gradients' else 'is'} wrong{was}."
    if limit is None:
        return ""
    allowed = f"{_percent(limit.allowed)} is allowed"
    if found.word == "SLOWER" and slower_by(found.high) > limit.allowed:
        return f"{pair.name}: SLOWER by {_percent(slower_by(found.high))} at least, and {allowed}."
    if limit.strict and found.word == "SLOWER" and slower_by(found.low) > limit.allowed:
        return f"{pair.name}: SLOWER by up to {_percent(slower_by(found.low))}, and {allowed} (--strict)."
    return f"{pair.name}: UNCLEAR, and that fails too (--strict)." if limit.strict and found.word == "UNCLEAR" else ""


def slower_by(ratio: float | None) -> float:
    """How much more time B takes, as a share of A's, for a ratio of A's time over B's."""
    return 1.0 / ratio - 1.0 if ratio else 0.0


def refusals(comparison: Comparison) -> tuple[str, ...]:
    """A sentence for every version on which no word is possible, with its reason; what failed in B is not among them."""
    failed = {pair.name for pair in comparison.pairs if _failure(pair, None)}
    return tuple(
        f"{pair.name}: {shown(pair.verdict.refused)}"
        for pair in comparison.pairs
        if pair.verdict.word is None and pair.name not in failed
    )


def report(comparison: Comparison, limit: Limit | None) -> str:
    """The comparison for people: what A and B are, a block a version, then what differs."""
    lines = [f"A  {_side(comparison.before)}", f"B  {_side(comparison.after)}", ""]
    lines += _summary(comparison.pairs)
    shared = _shared_cautions(comparison.pairs)
    for pair in comparison.pairs:
        lines += ["", f"{pair.name}: {shown(pair.verdict.sentence)}"]
        lines += [f"    {shown(caution)}" for caution in pair.verdict.cautions if caution not in shared]
        lines += [f"    {pair.warm.word or 'refused'}: {shown(pair.warm.sentence)}"] if pair.warm is not None else []
    if shared:
        lines += ["", "Of every version:", *(f"    {shown(caution)}" for caution in shared)]
    lines += _differing(comparison)
    sides = (("A", comparison.only_before), ("B", comparison.only_after))
    only = [f"Only in {side}: {', '.join(labels)}." for side, labels in sides if labels]
    lines += ["", *only] if only else []
    if limit is not None:
        lines += ["", *(failures(comparison, limit) or [_passed(comparison, limit)])]
    return "\n".join(lines)


def _differing(comparison: Comparison) -> list[str]:
    """What differs, a table: what does in every version first, then what does in one alone. Times are in the summary."""
    of_pair = {pair.name: _fields(comparison, pair) for pair in comparison.pairs}
    first, *others = of_pair.values()
    shared = [row for row in first if all(row in rows for rows in others)]
    lines = []
    if shared:
        lines += ["", "Differs in every version:" if others else "Differs:", *_rows(shared)]
    for name, rows in of_pair.items():
        alone = [row for row in rows if row not in shared]
        if alone:
            lines += ["", f"Differs in {name}:", *_rows(alone)]
    return lines or ["", "Nothing else differs."]


def _fields(comparison: Comparison, pair: Pair) -> list[Row]:
    found = differences(pair.before, pair.after, comparison.before, comparison.after).differing
    return [row for row in found if row.field in _RESULTS_SHOWN or (row.group != "Result" and row.field not in _NOT_SHOWN)]


def _rows(rows: Sequence[Row]) -> list[str]:
    cells = [[f"    {row.field}", *(shown(text, _WIDEST_CELL) for text in (row.a, row.b, row.change))] for row in rows]
    return columns([["", "A", "B", ""], *cells])


def _shared_cautions(pairs: Sequence[Pair]) -> list[str]:
    """What weakens every verdict alike, to be said once."""
    if len(pairs) == 1:
        return []
    return [caution for caution in pairs[0].verdict.cautions if all(caution in pair.verdict.cautions for pair in pairs)]


def _passed(comparison: Comparison, limit: Limit) -> str:
    """That nothing fails, and of which versions this says little."""
    words_of = {word: [pair.name for pair in comparison.pairs if pair.verdict.word == word] for word in ("UNCLEAR", None)}
    aside = [f"{', '.join(words_of['UNCLEAR'])} UNCLEAR"] if words_of["UNCLEAR"] else []
    aside += [f"{', '.join(words_of[None])} not comparable"] if words_of[None] else []
    return f"No version is surely slower by more than {_percent(limit.allowed)}{''.join(f'; {one}' for one in aside)}."


def _side(snapshot: AnySnapshot) -> str:
    devices = dict.fromkeys(shown(one.environment.device.name) for one in snapshot.measurements)
    parts = [snapshot.id[:12], shown(snapshot.title), ", ".join(devices), shown(snapshot.created_at)[:16].replace("T", " ")]
    return " · ".join(part for part in parts if part)


def _summary(pairs: Sequence[Pair]) -> list[str]:
    rows = [["version", "verdict", "A ÷ B", "interval", "A", "B", "rests on"]]
    for pair in pairs:
        found = pair.verdict
        basis = {"interleaved rounds": f"{len(found.rounds)} interleaved rounds", "none": "–"}.get(found.basis, found.basis)
        times = _time(pair.before), _time(pair.after)
        rows.append([pair.name, found.word or "refused", *_ratio_and_interval(found), *times, basis])
    return columns(rows, frozenset({2, 3, 4, 5}))


def _ratio_and_interval(found: Verdict) -> tuple[str, str]:
    """'1.25×' and '1.24× to 1.25×', a dash for what there is not."""
    ratio = "–" if found.ratio is None else words.ratio(found.ratio)
    return ratio, "–" if found.low is None or found.high is None else f"{words.ratio(found.low)} to {words.ratio(found.high)}"


def _time(measurement: Measurement) -> str:
    if measurement.error is not None:
        return "failed"
    if measurement.wrong is not None:
        return "WRONG"
    if measurement.latency is None or times_of(measurement.latency) is None:
        return "–"
    return words.milliseconds(measurement.latency.median_ms)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def as_json(comparison: Comparison, limit: Limit | None, exit_code: int) -> dict[str, Any]:
    """The comparison as plain values: what report says, with every number."""
    return {
        "a": _side_as_json(comparison.before),
        "b": _side_as_json(comparison.after),
        "versions": [_pair_as_json(pair, (comparison.before, comparison.after)) for pair in comparison.pairs],
        "only_in_a": list(comparison.only_before),
        "only_in_b": list(comparison.only_after),
        "limit": None if limit is None else {"allowed": limit.allowed, "strict": limit.strict},
        "failures": list(failures(comparison, limit)),
        "refused": list(refusals(comparison)),
        "exit_code": exit_code,
    }


def _side_as_json(snapshot: AnySnapshot) -> dict[str, Any]:
    return {"id": snapshot.id, "title": snapshot.title, "created_at": snapshot.created_at}


def _pair_as_json(pair: Pair, snapshots: tuple[AnySnapshot, AnySnapshot]) -> dict[str, Any]:
    return {
        "version": pair.name,
        **_verdict_as_json(pair.verdict),
        "warm": None if pair.warm is None else _verdict_as_json(pair.warm),
        "differences": [
            {"group": row.group, "field": row.field, "a": row.a_value, "b": row.b_value, "change": row.change}
            for row in differences(pair.before, pair.after, *snapshots).differing
        ],
        "a": _measured_as_json(pair.before),
        "b": _measured_as_json(pair.after),
    }


def _verdict_as_json(found: Verdict) -> dict[str, Any]:
    return {
        "word": found.word,
        "ratio": found.ratio,
        "interval": None if found.low is None else [found.low, found.high],
        "basis": found.basis,
        "sentence": found.sentence,
        "refused": found.refused,
        "cautions": list(found.cautions),
        "rounds_ms": [list(one) for one in found.rounds],
    }


def _measured_as_json(measurement: Measurement) -> dict[str, Any]:
    latency, accuracy = measurement.latency, measurement.accuracy
    timed = latency is not None and times_of(latency) is not None
    return {
        "median_ms": latency.median_ms if timed else None,
        "launches": latency.n if timed else None,
        "correct": None if accuracy is None else measurement.wrong is None,
        "error": None if measurement.error is None else measurement.error.sentence,
    }
