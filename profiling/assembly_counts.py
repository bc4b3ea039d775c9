"""The instructions of one kernel or two, class by class, whole and loop by loop. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from profiling.assembly_loops import PRODUCTS, Code, Loop, counts, meanings

ALL = "all instructions"
_ALL = "As they stand in the text: one in a loop is issued once a trip by each warp that goes round."


@dataclass(frozen=True)
class CountRow:
    """A class of instructions: how many in each column, None where there is no such loop, and what it means."""

    name: str
    cells: tuple[int | None, ...]
    meaning: str


@dataclass(frozen=True)
class Counts:
    """Groups of columns, the whole kernel first, then loops; each group has a column a kernel."""

    groups: tuple[str, ...]
    sides: int
    rows: tuple[CountRow, ...]


def count_table(codes: Sequence[Code]) -> Counts:
    """The counts of one kernel, or of two with like loops beside each other."""
    pairs = paired(codes[0], codes[1]) if len(codes) > 1 else [(place,) for place in range(len(codes[0].loops))]
    columns: list[dict[str, int] | None] = [counts(code.instructions) for code in codes]
    for pair in pairs:
        columns += [
            None if place is None else counts(code.loops[place].instructions) for code, place in zip(codes, pair, strict=True)
        ]
    rows = [CountRow(ALL, tuple(None if one is None else sum(one.values()) for one in columns), _ALL)]
    for name, meaning in meanings().items():
        if any(one and one.get(name) for one in columns):
            rows.append(CountRow(name, tuple(None if one is None else one.get(name, 0) for one in columns), meaning))
    return Counts(("whole kernel", *map(pair_name, pairs)), len(codes), tuple(rows))


def paired(first: Code, second: Code) -> list[tuple[int | None, int | None]]:
    """Which loops of two kernels are alike, in the order of the first's: those of the same words in the source; and where
    neither has such a partner, those that both hold products, or both do not. None: it has no like.
    """
    partners = _partners(first, second, lambda loop: loop.words or None, {})
    partners = _partners(first, second, _has_products, partners)
    alone = [place for place in range(len(second.loops)) if place not in partners.values()]
    return [*((place, partners.get(place)) for place in range(len(first.loops))), *((None, place) for place in alone)]


def _partners(first: Code, second: Code, likeness: Callable[[Loop], object], known: dict[int, int]) -> dict[int, int]:
    found = dict(known)
    for place, loop in enumerate(first.loops):
        like = [
            other for other, one in enumerate(second.loops)
            if other not in found.values() and likeness(loop) is not None and likeness(one) == likeness(loop)
        ]  # fmt: skip
        if place not in found and like:
            found[place] = like[0]
    return found


def _has_products(loop: Loop) -> bool:
    return _products(loop) > 0


def pair_name(pair: tuple[int | None, ...]) -> str:
    """'loop 2', or 'loops 2, 1' and 'loops 1, –' where two kernels number them otherwise."""
    numbers = ["–" if place is None else str(place + 1) for place in pair]
    return f"loop {numbers[0]}" if len(set(numbers)) == 1 else f"loops {', '.join(numbers)}"


def loop_words(code: Code) -> list[str]:
    """A line a loop: its number, name, size and address."""
    return [
        f"Loop {place}: {loop.name} · {len(loop.instructions):,} instructions from 0x{loop.begins:x}"
        for place, loop in enumerate(code.loops, 1)
    ]


def main_loop(code: Code) -> Loop | None:
    """The loop with most matrix products; of several the one with fewest instructions: full key tiles need no mask."""
    if not code.loops:
        return None
    return max(code.loops, key=lambda loop: (_products(loop), -len(loop.instructions)))


def _products(loop: Loop) -> int:
    found = counts(loop.instructions)
    return sum(found.get(name, 0) for name in PRODUCTS)
