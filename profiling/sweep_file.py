"""An exported sweep, read again: one from the box, a teammate's, anybody's. Within limits, whole, and true to itself. Pure.

What a file says of itself is not believed where it can be made anew: its rankings are not read, its counts are counted, and
what stands in a cell has to be of that cell.
"""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_core import to_json

from profiling.plausibility import suspicions
from profiling.record_types import first_sentence
from profiling.sweep_record import MOST_CELLS, Sweep, key_of, knowledge
from profiling.untrusted import NotASnapshot, json_in

SUFFIXES = (".json", ".gz")
EXPORTED_MEANWHILE = "It was exported while it ran."
# The defaults and the article's pairs are added to a plan's cells.
_MOST_CELLS = 2 * MOST_CELLS


class NotASweep(ValueError):
    """Why bytes are no exported sweep, in one sentence."""


def read(data: bytes) -> Sweep:
    """The sweep in the bytes that json_of or gzip_of made, or anybody. One that ran then is paused here. Raises NotASweep."""
    try:
        value = json_in(data).value
    except NotASnapshot as problem:
        raise NotASweep(str(problem).replace("a snapshot", "an exported sweep")) from None
    if not isinstance(value, dict) or "sweep" not in value:
        if isinstance(value, dict) and "measurements" in value:
            raise NotASweep("This is a snapshot, not an exported sweep: the Snapshots page opens it.")
        raise NotASweep("This is JSON, but no exported sweep: it has no field 'sweep'.")
    try:
        sweep = Sweep.model_validate_json(to_json(value["sweep"]))
    except ValidationError as error:
        raise NotASweep(f"This is no exported sweep: {first_sentence(error)}") from None
    _require_whole(sweep)
    return _at_rest(sweep)


def _require_whole(sweep: Sweep) -> None:
    """Raise NotASweep where a page would show under one cell what is another's, or nothing of a cell at all."""
    if len(sweep.cells) > _MOST_CELLS:
        raise NotASweep(f"A sweep of {len(sweep.cells):,} cells is not possible: it has {_MOST_CELLS:,} at most.")
    if len(sweep.by_key) < len(sweep.cells):
        raise NotASweep("This is no exported sweep: it has a cell twice.")
    planned = set(sweep.plan.series)
    for cell, outcome in sweep.by_key.values():
        ran = [one.request for one in (outcome.measurement, outcome.final) if one is not None]
        if cell.series not in planned or any(key_of(one) != cell.key for one in (cell.request, *ran)):
            raise NotASweep(f"This is no exported sweep: what is in the cell {cell.key} belongs to another.")


def _at_rest(sweep: Sweep) -> Sweep:
    """As nobody runs it: with its own cells counted."""
    now = {"done": sum(one.is_over for one in sweep.outcomes), "total": len(sweep.cells), "running": (), "seconds_left": None}
    if sweep.state.status == "running":
        now |= {"status": "paused", "sentence": EXPORTED_MEANWHILE}
    return sweep.model_copy(update={"state": sweep.state.model_copy(update=now), "change": knowledge(sweep.outcomes)})


def implausible(sweep: Sweep) -> tuple[str, ...]:
    """A sentence for each time that cannot be true, by the data sheet of the GPU that the file names."""
    return tuple(
        f"{cell.series.title}, {cell.title}: {flag.sentence}"
        for cell, outcome in sweep.by_key.values()
        for measurement in (outcome.measurement, outcome.final)
        if measurement is not None
        for flag in suspicions(measurement)
        if flag.severity == "bad"
    )
