"""The stamps of a snapshot as CSV, a row a piece of work; no cell is a formula to a spreadsheet. Pure."""

from __future__ import annotations

import csv
import io

from profiling.foreign_text import printable
from profiling.samples_csv import harmless
from profiling.snapshot import AnySnapshot

_COLUMNS = ("sm", "program", "start_ns", "end_ns", "head", "block", "tiles")
HEADER = ("snapshot_id", "version", *_COLUMNS)


def schedule_csv(snapshot: AnySnapshot) -> str:
    """Every entry of every schedule, as profiling.schedule_record.Schedule has it; the header alone where there is none.

    head counts through the batch; block is -1 where a program did a whole head.
    """
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(HEADER)
    for measurement in snapshot.measurements:
        if measurement.schedule is not None:
            label = harmless(printable(measurement.label))
            columns = (getattr(measurement.schedule, name).numpy().tolist() for name in _COLUMNS)
            table.writerows((snapshot.id, label, *entry) for entry in zip(*columns, strict=True))
    return text.getvalue()
