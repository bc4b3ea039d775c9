"""Timetables as one blob of bytes for the lanes, see app.canvas.blob. Pure.

Times stay float64, as a Timetable has them; what is new is the slot of each entry: the place beside the other programs that
its SM ran at the same time. The same timetables give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from app.canvas.blob import blob_of
from profiling.schedule_record import MOST_ENTRIES, MOST_PROGRAMS_PER_SM, MOST_SMS, WHOLE_HEAD
from profiling.timetable import Timetable

MOST_TABLES = 2
MOST_CELLS = 4_194_304
_COLUMNS = ("sm", "program", "start_ns", "end_ns", "head", "block", "tiles")


@dataclass(frozen=True)
class LaneFacts:
    """What the labels say besides the timetable itself.

    title: the problem in words. device: the GPU's short name. num_heads: heads of one batch entry (a Timetable counts heads
    through the batch: head // num_heads is the batch entry). block_m, seq_len_q: which queries a block holds; seq_len_q 0 where
    that is not to be said. can_open: whether "Watch its tiles" is offered. ns_per_tile: None where times are times; where they
    stem from tile counts alone, what one key tile counts: times are then told in tiles.
    """

    title: str
    device: str
    num_heads: int
    block_m: int
    seq_len_q: int
    can_open: bool = True
    ns_per_tile: float | None = None


@dataclass(frozen=True)
class Selection:
    """One piece of work: head counted through the batch, block -1 where a program does a whole head."""

    head: int
    block: int


def pack(tables: Sequence[tuple[str, Timetable]], facts: LaneFacts, selection: Selection | None = None) -> bytes:
    """One blob for one or two timetables, each with the name it is shown by ("v2, natural order").

    Two are drawn under each other on one time axis. A selection that no table holds is none. Raises ValueError, in one
    sentence, for what cannot be shown.
    """
    if not 1 <= len(tables) <= MOST_TABLES:
        raise ValueError(f"{len(tables)} timetables cannot be shown at once: 1 or {MOST_TABLES} can.")
    for label, table in tables:
        _check(label, table)
    parts = [_part(label, table, facts) for label, table in tables]
    held = selection is not None and any(_holds(table, selection) for _, table in tables)
    labels = {
        "title": facts.title,
        "numHeads": facts.num_heads,
        "blockM": facts.block_m,
        "seqLenQ": facts.seq_len_q,
        "canOpen": facts.can_open,
        "nsPerTile": facts.ns_per_tile,
    }
    return blob_of("tables", parts, facts=labels, selection=asdict(selection) if held else None)


def slots_of(table: Timetable) -> np.ndarray:
    """(P,) int32: for each entry its program's place on the SM, 0 for the first; the lowest that is free when it starts.

    A program keeps its place from its first entry's start to its last one's end.
    """
    stays = table.stays
    places = np.zeros(stays.sm.size, np.int32)
    free_from: dict[int, list[float]] = {}
    for one in np.lexsort((stays.program, stays.end_ns, stays.start_ns)):
        taken = free_from.setdefault(int(stays.sm[one]), [])
        place = next((at for at, until in enumerate(taken) if until <= stays.start_ns[one]), len(taken))
        taken[place : place + 1] = [stays.end_ns[one]]
        places[one] = place
    keys, wanted = (
        sm.astype(np.int64) << 32 | program for sm, program in ((stays.sm, stays.program), (table.sm, table.program))
    )
    return places[np.searchsorted(keys, wanted)]


def _check(label: str, table: Timetable) -> None:
    """Raises ValueError for a timetable that the lanes cannot show, in one sentence."""
    columns = {name: getattr(table, name) for name in _COLUMNS}
    entries = len(table.sm)
    if not 1 <= entries <= MOST_ENTRIES:
        raise ValueError(f"{label} has {entries:,} entries: 1 to {MOST_ENTRIES:,} can be shown.")
    if not 1 <= table.sm_count <= MOST_SMS:
        raise ValueError(f"{label} has {table.sm_count:,} SMs: 1 to {MOST_SMS:,} can be shown.")
    for name, values in columns.items():
        if values.shape != (entries,):
            raise ValueError(f"{label}'s {name} has the shape {values.shape} beside {entries:,} entries: each needs one value.")
        if not np.isfinite(values).all() or values.min() < (WHOLE_HEAD if name == "block" else 0):
            raise ValueError(f"{label}'s {name} = {values.min()} cannot be shown: it must be a number from 0 on.")
    if table.sm.max() >= table.sm_count:
        raise ValueError(f"{label} names SM {table.sm.max()}: of {table.sm_count:,} the last is {table.sm_count - 1}.")
    if (table.end_ns < table.start_ns).any():
        raise ValueError(f"{label} has an entry that ends before it starts: that cannot be shown.")
    if table.span_ns <= 0:
        raise ValueError(f"{label} spans 0 ns: there is nothing to draw.")
    together = int(table.stays.levels.programs.max())
    if together > MOST_PROGRAMS_PER_SM:
        raise ValueError(f"{label} has {together:,} programs on one SM at once: {MOST_PROGRAMS_PER_SM} can be shown.")
    cells = (int(table.head.max()) + 1) * max(1, int(table.block.max()) + 1)
    if cells > MOST_CELLS:
        raise ValueError(f"{label} has {cells:,} heads × query blocks: {MOST_CELLS:,} can be shown.")


def _part(label: str, table: Timetable, facts: LaneFacts) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A timetable's facts for the header, and its arrays, the earliest start at 0."""
    slots = slots_of(table)
    first = table.start_ns.min()
    integers = {name: np.asarray(getattr(table, name), "<i4") for name in ("sm", "program", "head", "block", "tiles")}
    times = {"start": np.asarray(table.start_ns - first, "<f8"), "end": np.asarray(table.end_ns - first, "<f8")}
    if table.group_start_ns is not None and table.group_end_ns is not None:
        times |= {"groupStart": table.group_start_ns.ravel() - first, "groupEnd": table.group_end_ns.ravel() - first}
    shown = {
        "label": label,
        "provenance": table.provenance,
        "device": facts.device,
        "smCount": table.sm_count,
        "tickNs": table.tick_ns,
        "slots": int(slots.max()) + 1,
        "programs": len(np.unique(table.program)),
        "heads": int(table.head.max()) + 1,
        "blocks": max(1, int(table.block.max()) + 1),
        "wholeHeads": bool((table.block == WHOLE_HEAD).any()),
    }
    return shown, integers | times | {"slot": slots.astype("<i4")}


def _holds(table: Timetable, selection: Selection) -> bool:
    return bool(((table.head == selection.head) & (table.block == selection.block)).any())
