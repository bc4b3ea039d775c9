"""CSV files: rows of words and numbers for a spreadsheet, in which no text is a formula. Pure: no Streamlit."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

from profiling.foreign_text import printable
from profiling.samples_csv import harmless, samples_csv
from profiling.snapshot import AnySnapshot

Cell = str | int | float | bool | None


def csv_of(snapshot: AnySnapshot) -> bytes:
    """Every sample of a snapshot as a CSV file."""
    return _file(samples_csv(snapshot))


def csv_of_rows(rows: Sequence[Mapping[str, Cell]]) -> bytes:
    """Rows as a CSV file, columns by the first one's keys; empty without rows. A text that begins like a formula gets a '."""
    if not rows:
        return b""
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return _file(text.getvalue())


def _cell(value: Cell) -> Cell:
    return harmless(printable(value)) if isinstance(value, str) else value


def _file(text: str) -> bytes:
    """UTF-8 with the mark by which spreadsheets know it: they would show × and − as garbage."""
    return text.encode("utf-8-sig")
