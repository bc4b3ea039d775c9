"""Sweeps with invented times, for tests alone: nothing here was measured."""

from __future__ import annotations

from collections.abc import Callable

from profiling.records import Measurement
from profiling.sweep_cells import cells_of
from profiling.sweep_record import CellOutcome, Series, Sweep, SweepCell, SweepPlan, SweepState, problems_of
from tests import fake_sweep_worker as fake
from tests import records_for_tests as records

Outcome = Callable[[SweepCell], CellOutcome]


def plan(**changes: object) -> SweepPlan:
    """Twelve combinations of v2's tiles on one problem."""
    usual = {
        "kernels": ("v2",), "problems": problems_of((4096,), (True,), (128,), 16), "devices": (records.GPU_ID,),
        "block_m": (64, 128), "block_n": (32, 64), "num_warps": (8,), "num_stages": (2, 3, 4),
    }  # fmt: skip
    return SweepPlan(**{**usual, **changes})


def measurement(cell: SweepCell, effort: str = "screening", started: str = "2026-11-30T13:00:00+00:00") -> Measurement:
    """A right cell with its invented time."""
    return Measurement(
        request=cell.request, tiles=cell.tiles, environment=records.environment(fake.device()), started_at=started,
        duration_s=0.2, accuracy=records.accuracy(), latency=fake.latency(cell.request, effort),
    )  # fmt: skip


def measured(cell: SweepCell) -> CellOutcome:
    """A cell that the screening timed."""
    return CellOutcome(key=cell.key, status="measured", measurement=measurement(cell), finished_at="2026-11-30T13:00:01+00:00")


def sweep(asked: SweepPlan, outcome: Outcome = measured, capability: int | None = fake.CAPABILITY) -> Sweep:
    """A sweep in which each cell came out so."""
    cells = cells_of(asked, capability)
    outcomes = tuple(outcome(cell) for cell in cells)
    done = sum(one.is_over for one in outcomes)
    return Sweep(
        sweep_id="0123456789ab", plan=asked, created_at="2026-11-30T13:00:00+00:00", owner="Ada", device_name="NVIDIA Invented",
        capability=capability, cells=cells, outcomes=outcomes,
        state=SweepState(status="running", phase="screening", done=done, total=len(cells)),
    )  # fmt: skip


def with_finals(found: Sweep, finalists: Callable[[Sweep, Series], tuple[SweepCell, ...]]) -> Sweep:
    """The same with the finalists of each series timed again in one job."""
    chosen = {cell.key: cell for series in found.plan.series for cell in finalists(found, series)}
    outcomes = tuple(
        one.model_copy(update={"final": measurement(chosen[one.key], "full", "2026-11-30T13:05:00+00:00")})
        if one.key in chosen else one
        for one in found.outcomes
    )  # fmt: skip
    return Sweep(**{name: getattr(found, name) for name in Sweep.model_fields} | {"outcomes": outcomes})
