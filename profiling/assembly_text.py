"""The compiler's texts, line by line: which source lines each came from, what of it is noise. Pure.

Triton says where a line came from as MLIR's loc, LLVM's !dbg, PTX's .loc with the calls it was inlined through, and, by way
of ptxas, as a line table in the cubin, which names the innermost function alone. The calls around that are PTX's, where they
are the same for every place of PTX that is of this line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Place(NamedTuple):
    """A line of a source file."""

    file: str
    line: int


Chain = tuple[Place, ...]
"""Where a line came from, the innermost function first, then the lines that called it."""


@dataclass(frozen=True)
class Row:
    """A line of a text: its characters from `start` to `end` are what there is to read, none where the whole line is noise."""

    text: str
    start: int
    end: int
    chain: Chain = ()

    @property
    def is_noise(self) -> bool:
        """Whether nothing of the line is worth reading."""
        return self.start >= self.end

    @property
    def shown(self) -> str:
        """The line without what is noise."""
        return self.text[self.start : self.end]


def rows_of(stage: str, texts: dict[str, str]) -> tuple[Row, ...]:
    """The lines of a stage's text, one of assembly.STAGES; texts has PTX too, where SASS is asked for."""
    if stage == "sass":
        return tuple(_sass(texts["sass"], _around(_ptx(texts["ptx"]))))
    return tuple({"ptx": _ptx, "llir": _llir, "ttgir": _mlir, "ttir": _mlir}[stage](texts[stage]))


def _whole(text: str, chain: Chain = ()) -> Row:
    return Row(text, 0, len(text.rstrip()), chain)


def _noise(text: str) -> Row:
    return Row(text, 0, 0)


# ---- SASS

_FILE = re.compile(r'^\s*//## File "([^"]+)", line (\d+)')
_CODE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/")
_LABEL = re.compile(r"^[.$\w]+:$")


def _sass(text: str, around: dict[Place, Chain]) -> Iterator[Row]:
    chain: Chain = ()
    for line in text.splitlines():
        named = _FILE.match(line)
        if named:
            place = Place(named[1], int(named[2]))
            chain = around.get(place, (place,))
            yield _noise(line)
        elif _CODE.match(line):
            yield Row(line, len(line) - len(line.lstrip()), len(line.rstrip()), chain)
        elif _LABEL.match(line) and not line.startswith(".text."):
            yield _whole(line)
        else:
            yield _noise(line)


def _around(rows: Iterable[Row]) -> dict[Place, Chain]:
    """Of each innermost place, itself and the places that are around it wherever it stands in PTX."""
    found: dict[Place, Chain] = {}
    for chain in {row.chain for row in rows if row.chain}:
        known = found.get(chain[0])
        found[chain[0]] = chain if known is None else tuple(place for place in known if place in chain)
    return found


# ---- PTX

_LOC = re.compile(r"^\t\.loc\t.*// (.*)$")
_SAID = re.compile(r"([\w.]+):(\d+):\d+")
_PTX_FILE = re.compile(r'^\t\.file\t\d+ "([^"]+)"(?: "([^"]+)")?', re.MULTILINE)
_PTX_NOISE = re.compile(r"^\s*(?:$|//|\.file\t|\.section|\$L__(?:tmp|func_\w+|info\w*|pubNames\w*|pubTypes\w*)\d*:)")


def _ptx(text: str) -> list[Row]:
    files = {name.rpartition("/")[2]: name for name in map(_path, _PTX_FILE.findall(text))}
    rows, chain = [], ()
    for line in text.splitlines():
        said = _LOC.match(line)
        if said:
            chain = tuple(Place(files.get(name, name), int(number)) for name, number in _SAID.findall(said[1]))
            rows.append(_noise(line))
        else:
            rows.append(_noise(line) if _PTX_NOISE.match(line) else _whole(line, chain if line.startswith("\t") else ()))
    return rows


def _path(named: tuple[str, str]) -> str:
    folder, name = named
    return f"{folder}/{name}" if name else folder


# ---- LLVM IR

_METADATA = re.compile(r"^!(\d+) = (?:distinct )?!(\w+)\((.*)\)$")
_DEBUGGED = re.compile(r"(?:, |\s)!dbg !(\d+)")
_FIELD = re.compile(r'(\w+): (?:!(\d+)|"([^"]*)"|(\d+))')


def _llir(text: str) -> Iterator[Row]:
    known = {number: (kind, _fields(said)) for number, kind, said in map(_groups, text.splitlines()) if number}
    chains: dict[str, Chain] = {}
    for line in text.splitlines():
        if line.startswith(("!", "source_filename", "; ModuleID")) or not line.strip():
            yield _noise(line)
            continue
        debugged = _DEBUGGED.search(line)
        if debugged is None:
            yield _whole(line)
            continue
        number = debugged[1]
        if number not in chains:
            chains[number] = tuple(_inlined(number, known))
        at_end = debugged.end() == len(line.rstrip())
        yield Row(line, 0, debugged.start() if at_end else len(line), chains[number])


def _groups(line: str) -> tuple[str, str, str]:
    found = _METADATA.match(line)
    return (found[1], found[2], found[3]) if found else ("", "", "")


def _fields(said: str) -> dict[str, str]:
    return {name: number or text or plain for name, number, text, plain in _FIELD.findall(said)}


def _inlined(number: str | None, known: dict[str, tuple[str, dict[str, str]]]) -> Iterator[Place]:
    for _ in range(64):  # deeper than any kernel, and an end if a text should go round in circles
        kind, fields = known.get(number or "", ("", {}))
        if kind != "DILocation":
            return
        file = _file_of_scope(fields.get("scope"), known)
        if file:
            yield Place(file, int(fields.get("line", 0)))
        number = fields.get("inlinedAt")


def _file_of_scope(number: str | None, known: dict[str, tuple[str, dict[str, str]]]) -> str:
    _, scope = known.get(number or "", ("", {}))
    _, file = known.get(scope.get("file", ""), ("", {}))
    folder, name = file.get("directory", ""), file.get("filename", "")
    return f"{folder}/{name}" if folder and name else name


# ---- TTIR, TTGIR

_DEFINED = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_AT_END = re.compile(r"\s*loc\((#loc\d*|unknown)\)\s*$")
_FILE_LINE = re.compile(r'^"([^"]+)":(\d+):\d+')
_CALL = re.compile(r"^callsite\((#loc\d*) at (#loc\d*)\)$")
_NAMED = re.compile(r'^"[^"]*"\((#loc\d*)\)$')
_FUSED = re.compile(r"^fused(?:<.*>)?\[(#loc\d*)")


def _mlir(text: str) -> Iterator[Row]:
    lines = text.splitlines()
    known = {found[1]: found[2] for found in map(_DEFINED.match, lines) if found}
    chains: dict[str, Chain] = {}
    for line in lines:
        if _DEFINED.match(line) or not line.strip():
            yield _noise(line)
            continue
        located = _AT_END.search(line)
        if located is None:
            yield _whole(line)
            continue
        name = located[1]
        if name not in chains:
            chains[name] = _located(name, known, 64)
        yield Row(line, 0, located.start(), chains[name])


def _located(name: str, known: dict[str, str], deepest: int) -> Chain:
    said = known.get(name, "")
    if deepest == 0 or not said:
        return ()
    if found := _FILE_LINE.match(said):
        return (Place(found[1], int(found[2])),)
    if found := _CALL.match(said):
        return _located(found[1], known, deepest - 1) + _located(found[2], known, deepest - 1)
    if found := _NAMED.match(said) or _FUSED.match(said):
        return _located(found[1], known, deepest - 1)
    return ()
