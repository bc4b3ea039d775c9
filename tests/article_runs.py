"""Made-up runs of the suite `article`, for tests alone: nothing in them was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache

from profiling.article import SUITE, the_suite
from profiling.records import JobError, Measurement, RunRequest
from profiling.snapshot import Snapshot
from profiling.suites import Cell, planned
from tests import records_for_tests as made_up

BEGAN = "2026-11-30T09:00:00+00:00"
# What versions take at 16,384 tokens, and the others in proportion to the pairs of tokens.
MS = {"native": 12.0, "v1": 2.4, "v2": 2.0, "v3": 1.6, "v3-hopper": 1.5, "v3@fp8=yes": 1.25}
PAIR_MS = {"128": 2.2, "64": 2.5, "32": 9.0}
Change = Callable[[str, Cell, Measurement], Measurement]


def ms_of(name: str, length: int) -> float:
    """A made-up time of a version."""
    at_16k = MS[name] if name in MS else PAIR_MS[name.split("block_m=")[1].split(",")[0]]
    return at_16k * (length / 16384) ** 2


def same(name: str, cell: Cell, one: Measurement) -> Measurement:
    """A change that changes nothing."""
    return one


@lru_cache(maxsize=64)
def _request(name: str, cell: Cell) -> RunRequest:
    (request,) = planned(the_suite(), cell, [name], made_up.gpu()).requests
    return request


def measured(name: str, cell: Cell, ms: float | None = None, **changes: object) -> Measurement:
    """One version of a cell with a time, all right."""
    request = _request(name, cell)
    length = cell.problem.seq_len_q
    time_ms = ms_of(name, length) if ms is None else ms
    queries = 16 * length
    added = 2 * queries * length * 2 if name == "native" else queries * (32 * 2 + 4)
    fields = {
        "request": request, "tiles": request.tiles, "latency": made_up.latency(time_ms), "compiled": (), "flags": (),
        "memory": made_up.memory(cell.problem, added) if "memory" in request.probes else None,
        "with_prepass": made_up.latency(time_ms * 1.1) if request.precision.fp8 else None,
    }  # fmt: skip
    return made_up.on_gpu("v2").model_copy(update=fields | changes)


def failed(one: Measurement, kind: str, sentence: str) -> Measurement:
    """The same without a time, for a reason."""
    error = JobError(kind=kind, sentence=sentence)
    return one.model_copy(
        update={"error": error, "latency": None, "with_prepass": None, "accuracy": None, "memory": None, "tiles": None}
    )


def wrong(one: Measurement) -> Measurement:
    """The same with a wrong output, and so without a time."""
    return one.model_copy(update={"latency": None, "with_prepass": None, "accuracy": made_up.accuracy(passed=False)})


def run(lengths: Sequence[int] | None = None, change: Change = same, began: str = BEGAN) -> tuple[Snapshot, ...]:
    """A run of the suite as the command keeps it: a snapshot a problem."""
    found = the_suite()
    tag = found.run_tag(datetime.fromisoformat(began))
    cells = [cell for cell in found.cells if lengths is None or cell.problem.seq_len_q in lengths]
    return tuple(
        Snapshot(
            title=found.title_of(cell), tags=(SUITE, tag),
            created_at=(datetime.fromisoformat(began) + timedelta(minutes=place)).isoformat(),
            measurements=tuple(change(name, cell, measured(name, cell)) for name in found.in_cell(cell)),
        )
        for place, cell in enumerate(cells)
    )  # fmt: skip
