"""The samples of a snapshot as CSV, a row a launch; no cell is a formula to a spreadsheet. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from profiling.backward_record import PART_NAMES
from profiling.foreign_text import printable
from profiling.records import Latency
from profiling.snapshot import AnySnapshot

HEADER = ("snapshot_id", "version", "round", "ms")
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def samples_csv(snapshot: AnySnapshot) -> str:
    """Every launch that was timed, in order: the snapshot's id, the version, its interleaved round, milliseconds.

    A kernel timed together with its FP8 pre-pass is a version of its own, 'v3 FP8 with pre-pass', and so is its warm time,
    'v2 warm', of which a row is a replay of a CUDA graph, divided by its launches; and so are a step's parts, as in
    'v2 fwd+bwd, forward'.
    """
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(HEADER)
    for measurement in snapshot.measurements:
        label = printable(measurement.label)
        table.writerows(_rows(snapshot.id, label, measurement.latency))
        table.writerows(_rows(snapshot.id, f"{label} with pre-pass", measurement.with_prepass))
        table.writerows(_rows(snapshot.id, f"{label} warm", measurement.warm))
        for part in PART_NAMES if measurement.parts is not None else ():
            table.writerows(_rows(snapshot.id, f"{label}, {part}", getattr(measurement.parts, part)))
    return text.getvalue()


def harmless(text: str) -> str:
    """A text cell that no spreadsheet takes for a formula: one that looks like it begins with an apostrophe."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _rows(id: str, label: str, latency: Latency | None) -> Iterator[tuple[str, str, int, float]]:
    if latency is None:
        return
    samples, rounds = latency.samples_ms.numpy().ravel(), latency.round_of.numpy().ravel()
    for ms, number in zip(samples.tolist(), rounds.tolist(), strict=False):
        yield id, harmless(label), number, ms
