"""What the listing shows, as JSON for its script. Pure.

{id, rows, start, end, marks, chain, chains, files, loops, kind, kinds}: rows is the whole text; start and end say of each row
which of its characters are worth reading (none: noise, which is folded); chain is a place in chains, lists of [file, line] from
the innermost function out, file a place in files ({name, text}; text null for what is not the project's); loops are {name,
rows}; kind is a place in kinds ({name, meaning}), -1 for no instruction; marks is a character a row: ' ', or '-', '+', '@'.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from profiling.assembly_diff import DiffLine
from profiling.assembly_loops import CLASSES, OTHER, Code
from profiling.assembly_text import Chain, Row

_KINDS = tuple((one.name, one.meaning) for one in (*CLASSES, OTHER))


def pack(rows: Sequence[Row], sources: Mapping[str, str], code: Code | None = None) -> dict[str, Any]:
    """A text of one kernel; code: what its rows are, where it is SASS."""
    kinds = [-1] * len(rows)
    places = {name: place for place, (name, _) in enumerate(_KINDS)}
    for one in code.instructions if code else ():
        kinds[one.row] = places[one.kind]
    loops = [{"name": one.name, "rows": [each.row for each in one.instructions]} for one in (code.loops if code else ())]
    return _packed(rows, [row.chain for row in rows], sources, " " * len(rows), loops, kinds)


def pack_diff(
    lines: Sequence[DiffLine],
    before: Sequence[Row],
    after: Sequence[Row],
    sources: Mapping[str, str],
) -> dict[str, Any]:
    """A unified diff; what is on one side alone has that side's source lines."""
    chains = [_chain(line, before, after) for line in lines]
    rows = [Row(line.text, 0, len(line.text)) for line in lines]
    return _packed(rows, chains, sources, "".join(line.mark for line in lines), [], [-1] * len(lines))


def _chain(line: DiffLine, before: Sequence[Row], after: Sequence[Row]) -> Chain:
    old, new = line.rows
    if new is not None:
        return after[new].chain
    return before[old].chain if old is not None else ()


def _packed(
    rows: Sequence[Row],
    of_rows: Sequence[Chain],
    sources: Mapping[str, str],
    marks: str,
    loops: list[dict[str, Any]],
    kinds: list[int],
) -> dict[str, Any]:
    chains = {chain: place for place, chain in enumerate(dict.fromkeys(chain for chain in of_rows if chain))}
    named = dict.fromkeys((*sources, *(place.file for chain in chains for place in chain)))
    files = {name: place for place, name in enumerate(named)}
    text = "\n".join(row.text for row in rows)
    return {
        "id": hashlib.sha256((text + marks).encode()).hexdigest()[:16],
        "rows": text,
        "start": [row.start for row in rows],
        "end": [row.end for row in rows],
        "marks": marks,
        "chain": [chains.get(chain, -1) for chain in of_rows],
        "chains": [[[files[place.file], place.line] for place in chain] for chain in chains],
        "files": [{"name": name, "text": sources.get(name)} for name in files],
        "loops": loops,
        "kind": kinds,
        "kinds": [{"name": name, "meaning": meaning} for name, meaning in _KINDS],
    }
