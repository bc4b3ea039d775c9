"""What is compared with what: how snapshots are called, which versions are meant, and what is offered unasked. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from kernels.registry import OUR_VERSIONS, VERSIONS
from profiling import words
from profiling.comparable import not_comparable
from profiling.foreign_text import printable
from profiling.improvements import labels, name_in, pairs
from profiling.own_inputs import inputs_of
from profiling.records import Measurement
from profiling.snapshot import AnySnapshot
from profiling.store import Listed

if TYPE_CHECKING:
    from app.state import Opened

DIGITS_IN_A_LINK = 16
_MOST_READ = 12
_LENGTH = re.compile(r"^([\d,]+) tokens?\b")
When = Callable[[str], str]


@dataclass(frozen=True)
class Side:
    """A snapshot and the version of it that is compared; label None when it holds nothing that can be."""

    snapshot: AnySnapshot
    label: str | None

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of what it holds."""
        return labels(self.snapshot.measurements)

    @property
    def measurement(self) -> Measurement | None:
        """The version that is compared."""
        return None if self.label is None else self.snapshot.measurements[self.labels.index(self.label)]


def reference(id: str) -> str:
    """What stands in a link: enough of an id to be the only one; a job's reference as it is."""
    return id if id.startswith("job-") else id[:DIGITS_IN_A_LINK]


def label_of(snapshot: AnySnapshot, id: str, when: When, where: str = "") -> str:
    """'v3 · 16k causal · H200 · 29 Nov 2026, 13:06 · b81d07', with where it is in front."""
    if not snapshot.measurements:
        return _label(where, "nothing that is understood here", "", "", when(snapshot.created_at), id)
    first = snapshot.measurements[0]
    names = labels(snapshot.measurements)
    what = names[0] if len(names) == 1 else f"{len(names)} versions"
    device = first.environment.device.name
    return _label(where, what, first.request.problem.title, device, when(snapshot.created_at), id)


def label_of_listed(row: Listed, when: When) -> str:
    """The same for a row of the store's list, without reading the snapshot."""
    names = [VERSIONS[name].title if name in VERSIONS and VERSIONS[name].is_peer else name for name in row.kernels]
    what = f"{len(names)} versions" if len(names) > 1 else "".join(names) or "nothing that is understood here"
    if len(names) == 1 and row.precision_titles == ("FP8",):
        what += " FP8"
    where = "Baseline" if row.is_baseline else "Imported" if row.origin == "imported" else ""
    return _label(where, what, row.problem_title, row.device_name, when(row.created_at), row.id)


def _label(where: str, what: str, problem: str, device: str, when: str, id: str) -> str:
    end = "not saved yet" if id.startswith("job-") else id[:6]
    parts = (what, _short(problem), device.removeprefix("NVIDIA ").removeprefix("GeForce "), when, end)
    return printable((f"{where}: " if where else "") + " · ".join(part for part in parts if part))


def _short(problem: str) -> str:
    """'16k causal' for '16,384 tokens · head_dim 128 · causal'."""
    length = _LENGTH.match(problem)
    if length is None:
        return problem
    causal = " causal" if problem.endswith("· causal") else ""
    return words.tokens(int(length[1].replace(",", ""))) + causal


def sides(a: AnySnapshot, b: AnySnapshot, asked_a: str = "", asked_b: str = "") -> tuple[Side, Side]:
    """The versions that are compared: those asked for, as far as they are there; else two that belong together.

    Of one snapshot v2 and v3, or else its last two of ours; of two snapshots the newest version that both have.
    """
    ours, theirs = labels(a.measurements), labels(b.measurements)
    known_a, known_b = asked_a if asked_a in ours else None, asked_b if asked_b in theirs else None
    if known_a is None and known_b is None:
        default_a, default_b = _of_one(a) if a.id == b.id else _of_two(a, b)
    elif a.id == b.id:
        known = known_a or known_b
        other = next((name for name in (*reversed(_of_one(a)), *reversed(ours)) if name not in (known, None)), known)
        default_a = default_b = other
    else:
        default_a, default_b = _counterpart(b, known_b, a), _counterpart(a, known_a, b)
    return Side(a, known_a or default_a), Side(b, known_b or default_b)


def _of_one(snapshot: AnySnapshot) -> tuple[str | None, str | None]:
    named = list(zip(labels(snapshot.measurements), snapshot.measurements, strict=True))
    timed = [(name, one) for name, one in named if one.latency is not None]
    ours = [(name, one) for name, one in timed if one.request.kernel in OUR_VERSIONS]
    best = [name for name, _ in next((some for some in (ours, timed, named) if len(some) > 1), named)]
    if {"v2", "v3"} <= set(best):
        return "v2", "v3"
    return (best[-2], best[-1]) if len(best) > 1 else (best[0], best[0]) if best else (None, None)


def _of_two(a: AnySnapshot, b: AnySnapshot) -> tuple[str | None, str | None]:
    common = pairs(a, b)
    timed = [pair for pair in common if pair[0].latency is not None and pair[1].latency is not None] or list(common)
    ours = [pair for pair in timed if pair[0].request.kernel in OUR_VERSIONS] or timed
    if ours:
        return name_in(a, ours[-1][0]), name_in(b, ours[-1][1])
    return _of_one(a)[1], _of_one(b)[1]


def _counterpart(known_in: AnySnapshot, known: str | None, wanted_in: AnySnapshot) -> str | None:
    """The version that belongs to a known one of another snapshot."""
    for one, other in pairs(known_in, wanted_in):
        if known is not None and name_in(known_in, one) == known:
            return name_in(wanted_in, other)
    return _of_one(wanted_in)[1]


def partner(a: AnySnapshot, rows: Sequence[Listed], read: Callable[[str], Opened | None]) -> Opened | None:
    """The newest row that belongs to a, and is another; None where none does. read: what is kept under an id.

    A row says neither direction nor inputs: the newest few that have a version and the problem of a are read.
    """
    if not a.measurements:
        return None
    kernels = {one.request.kernel for one in a.measurements}
    problem = a.measurements[0].request.problem.title
    fitting = (row for row in rows if row.id != a.id and row.problem_title == problem and kernels & set(row.kernels))
    found = (read(row.id) for row in islice(fitting, _MOST_READ))
    return next((one for one in found if one is not None and belong(a, one.snapshot)), None)


def belong(a: AnySnapshot, b: AnySnapshot) -> bool:
    """Whether a version of theirs can be compared: its times, or in the interpreter, which has none, its outputs."""
    return any(_can_be_compared(before, after) for before, after in pairs(a, b))


def _can_be_compared(before: Measurement, after: Measurement) -> bool:
    kinds = {one.environment.device.kind for one in (before, after)}
    if kinds == {"interpreter"}:
        return inputs_of(before.request) == inputs_of(after.request)
    return kinds == {"gpu"} and not not_comparable(before, after)
