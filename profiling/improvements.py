"""What got faster or slower since a baseline: measurements of two snapshots paired, and a verdict on each pair. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from profiling.records import Measurement
from profiling.snapshot import AnySnapshot
from profiling.verdict import Verdict, verdict

_ORDER = {"FASTER": 0, "SLOWER": 1, "UNCLEAR": 2, "SAME": 3, None: 4}


@dataclass(frozen=True)
class Judged:
    """A measurement of the baseline, its counterpart in another snapshot, and the verdict on the second.

    before_name, after_name: what tells them from the others of their snapshots.
    """

    before_name: str
    after_name: str
    before: Measurement
    after: Measurement
    after_of: AnySnapshot
    verdict: Verdict


def labels(measurements: Sequence[Measurement]) -> tuple[str, ...]:
    """A name for each that none of the others has: its label, with number format, tiles or place where that is not enough."""
    found: list[str] = []
    for place, one in enumerate(measurements, 1):
        alike = [other for other in measurements if other.label == one.label]
        formats = {other.request.precision.dtype for other in alike}
        name = one.label if len(formats) == 1 else f"{one.label} {one.request.precision.dtype}"
        if len(alike) > len(formats) and one.tiles is not None:
            name += f" · {one.tiles.title}"
        found.append(f"{name} · {place}" if name in found else name)
    return tuple(found)


def of_one_job(a: AnySnapshot, b: AnySnapshot, before: Measurement, after: Measurement) -> bool:
    """Whether two measurements were timed together: one snapshot holds both, which may have been saved under other words."""
    return a.id == b.id or after in a.measurements or before in b.measurements


def pairs(a: AnySnapshot, b: AnySnapshot) -> tuple[tuple[Measurement, Measurement], ...]:
    """Measurements of the same version, number format and problem, in a's order; alike tiles meet first."""
    found: list[tuple[Measurement, Measurement]] = []
    left = list(b.measurements)
    for exactly in (True, False):
        taken = [before for before, _ in found]
        for before in a.measurements:
            if any(before is one for one in taken):
                continue
            after = next((one for one in left if _alike(before, one) and (not exactly or before.tiles == one.tiles)), None)
            if after is not None:
                left = [one for one in left if one is not after]
                found.append((before, after))
    places = {id(one): place for place, one in enumerate(a.measurements)}
    return tuple(sorted(found, key=lambda pair: places[id(pair[0])]))


def _alike(a: Measurement, b: Measurement) -> bool:
    return (a.label, a.request.precision, a.request.problem, a.request.direction) == (
        b.label,
        b.request.precision,
        b.request.problem,
        b.request.direction,
    )


def judged_pairs(a: AnySnapshot, b: AnySnapshot) -> tuple[Judged, ...]:
    """Every pair of the two with its verdict on b's, in a's order."""
    return tuple(_judged(a, b, before, after) for before, after in pairs(a, b))


def judged_in_its_job(snapshot: AnySnapshot, before: Measurement) -> tuple[Judged, ...]:
    """Every other measurement of a snapshot, judged against one of its own."""
    return tuple(_judged(snapshot, snapshot, before, after) for after in snapshot.measurements if after is not before)


def _judged(a: AnySnapshot, b: AnySnapshot, before: Measurement, after: Measurement) -> Judged:
    found = verdict(before, after, of_one_job(a, b, before, after))
    return Judged(name_in(a, before), name_in(b, after), before, after, b, found)


def name_in(snapshot: AnySnapshot, measurement: Measurement) -> str:
    """The name of one of a snapshot's own measurements among its labels."""
    place = next(place for place, one in enumerate(snapshot.measurements) if one is measurement)
    return labels(snapshot.measurements)[place]


def since(baseline: AnySnapshot, others: Sequence[AnySnapshot]) -> tuple[Judged, ...]:
    """Every counterpart in the others, judged against the baseline and ranked."""
    return ranked(one for other in others for one in judged_pairs(baseline, other))


def ranked(judged: Iterable[Judged]) -> tuple[Judged, ...]:
    """Faster ones first, then slower, unclear, same, without a word; within a word the largest difference first."""
    return tuple(sorted(judged, key=_rank))


def _rank(one: Judged) -> tuple[int, float]:
    ratio = one.verdict.ratio or 1.0
    return _ORDER[one.verdict.word], -max(ratio, 1.0 / ratio)
