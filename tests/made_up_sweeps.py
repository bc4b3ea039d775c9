"""Sweeps as a page shows them, and a server's sweeps that run nothing, for tests alone: nothing here was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from kernels.problem import Precision
from profiling.feasibility import cell, too_much_shared_memory
from profiling.record_types import Array
from profiling.records import JobError, Latency, Measurement
from profiling.sweep_cells import cells_of, grid_of, known_of, outcome_of, place_of
from profiling.sweep_ranking import finalists_of
from profiling.sweep_record import CellOutcome, Sweep, SweepCell, SweepPlan, SweepRow, SweepState, problems_of
from tests import records_for_tests as records

SWEEP_ID = "0123456789ab"
CREATED = "2026-11-29T13:05:00+00:00"
FINISHED = SweepState(status="finished", phase="over", done=1, total=1, elapsed_s=200.0)


def plan(**changes: object) -> SweepPlan:
    """v2 at 1k, 4k and 16k tokens, head_dim 128, on one H200-like GPU; causal and not."""
    found = {
        "kernels": ("v2",),
        "problems": problems_of((1024, 4096, 16384), (False, True), (128,), 16),
        "block_m": (64, 128),
        "block_n": (32, 64, 128),
        "devices": (records.GPU_ID,),
    }
    return SweepPlan(**{**found, **changes})


def tiny_plan(**changes: object) -> SweepPlan:
    """What the interpreter can sweep in seconds."""
    found = {
        "kernels": ("v2",),
        "problems": problems_of((64,), (False,), (32,), 1),
        "block_m": (16, 32),
        "block_n": (16, 32),
        "num_warps": (4,),
        "num_stages": (2,),
        "devices": (records.INTERPRETER,),
    }
    return SweepPlan(**{**found, **changes})


def fp8_plan() -> SweepPlan:
    """v3 and v3-hopper in both formats, which only some tiles of theirs can have."""
    return plan(
        kernels=("v3", "v3-hopper"), precisions=(Precision(), Precision(fp8=True, fp8_scale="block")),
        problems=plan().problems[2:3],
    )  # fmt: skip


def shared_bytes(one: SweepCell) -> int:
    """Q, and a K and a V tile for each stage."""
    tiles, dim = one.tiles, one.request.problem.padded_head_dim
    return 2 * dim * (tiles.block_m + 2 * tiles.block_n * tiles.num_stages)


def invented_ms(one: SweepCell) -> float:
    """Faster with tiles near 128 × 64, more stages and not too many warps; in proportion to the work."""
    tiles = one.tiles
    away = abs(math.log2(tiles.block_m / 128)) + abs(math.log2(tiles.block_n / 64)) + 0.4 * abs(math.log2(tiles.num_warps / 8))
    share = 0.62 / (1 + 0.28 * away + 0.05 * abs(tiles.num_stages - 3) + 900 / one.request.problem.seq_len_q)
    return one.request.problem.flops / (share * 790e9)


def latency(median_ms: float, seed: int, is_final: bool = False) -> Latency:
    """Launches scattered about a median, in ten rounds for a finalist."""
    rounds, each = (10, 30) if is_final else (1, 20)
    samples = median_ms * (1 + 0.004 * np.random.default_rng(seed).standard_normal(rounds * each))
    turns = Array.of(np.repeat(np.arange(rounds), each), "<i4")
    return Latency(provenance="measured", mode="cold", samples_ms=Array.of(samples), round_of=turns)


def on_gpu(one: SweepCell, is_final: bool = False) -> Measurement:
    """A cell's measurement on the GPU: the screening in a job of its own, the finals of a series in one."""
    minute = 6 if is_final else 7 + int(one.key[:2], 16) % 50
    second = 0 if is_final else int(one.key[2:4], 16) % 60
    return records.on_gpu(
        one.request.kernel, request=one.request, tiles=one.tiles, timeline=None, memory=None, compiled=(), flags=(),
        latency=latency(invented_ms(one), int(one.key[:8], 16), is_final), with_prepass=None,
        started_at=f"2026-11-29T13:{minute:02d}:{second:02d}+00:00",
    )  # fmt: skip


def in_interpreter(one: SweepCell) -> Measurement:
    """A cell's measurement in the interpreter."""
    return records.in_interpreter(one.request.kernel, request=one.request, tiles=one.tiles, memory=None, compiled=(), flags=())


def outcome(one: SweepCell, known: CellOutcome, capability: int | None) -> CellOutcome:
    """What came of a cell: refused as known, too large by its shared memory, else measured."""
    if known.is_over:
        return known
    if capability is None:
        return CellOutcome(key=one.key, status="measured", measurement=in_interpreter(one), finished_at=CREATED)
    grid, place = grid_of(one.series, capability, one.tiles), place_of(one.tiles)
    if shared_bytes(one) > 227 << 10:
        return outcome_of(one, too_much_shared_memory(grid, place, shared_bytes(one)))
    spills = 96 if one.tiles.block_m * one.tiles.block_n >= 128 * 128 and one.tiles.num_warps == 4 else 0
    report = records.report(spill_bytes=spills).model_copy(update={"shared_memory_bytes": shared_bytes(one)})
    return CellOutcome(
        key=one.key, status="measured", reason="spills" if spills else "fits", report=report, measurement=on_gpu(one),
        finished_at=CREATED,
    )  # fmt: skip


def swept(
    asked: SweepPlan | None = None,
    state: SweepState = FINISHED,
    owner: str = "me",
    until: int | None = None,
    changed: Mapping[int, Callable[[SweepCell], CellOutcome]] | None = None,
    sweep_id: str = SWEEP_ID,
) -> Sweep:
    """A sweep of a plan; until: only so many cells are over yet. changed: by place, what came of a cell instead."""
    asked = asked or plan()
    capability = None if asked.devices == (records.INTERPRETER,) else 90
    cells = cells_of(asked, capability)
    outcomes = [outcome(*pair, capability) for pair in zip(cells, known_of(asked, cells, capability), strict=True)]
    for place, make in (changed or {}).items():
        outcomes[place] = make(cells[place])
    last = len(cells) if until is None else until
    outcomes = [one if place < last or one.status == "refused" else CellOutcome(key=one.key, status="pending")
                for place, one in enumerate(outcomes)]  # fmt: skip
    done = sum(one.is_over for one in outcomes)
    device = records.gpu() if capability else records.interpreter()
    return Sweep(
        sweep_id=sweep_id, plan=asked, created_at=CREATED, owner=owner, device_name=device.name, capability=capability,
        cells=cells, outcomes=tuple(outcomes), state=state.model_copy(update={"done": done, "total": len(cells)}),
    )  # fmt: skip


def with_finals(sweep: Sweep) -> Sweep:
    """The finalists of each series timed again in one job."""
    finals = {one.key for series in sweep.plan.series for one in finalists_of(sweep, series)}
    outcomes = tuple(
        found.model_copy(update={"final": on_gpu(one, is_final=True)}) if one.key in finals else found
        for one, found in zip(sweep.cells, sweep.outcomes, strict=True)
    )
    return with_outcomes(sweep, outcomes)


def with_outcomes(sweep: Sweep, outcomes: tuple[CellOutcome, ...]) -> Sweep:
    """The same sweep with these; a copy would keep what it remembers of the others."""
    return Sweep(**{name: getattr(sweep, name) for name in Sweep.model_fields} | {"outcomes": outcomes})


def crashed(one: SweepCell) -> CellOutcome:
    """A cell whose worker died."""
    error = JobError(kind="crashed", sentence="The worker ended with signal 11 while it launched this cell.")
    return CellOutcome(key=one.key, status="failed", sentence=error.sentence, error=error, finished_at=CREATED)


def wrong(one: SweepCell) -> CellOutcome:
    """A cell whose output is wrong."""
    measurement = records.on_gpu(
        one.request.kernel, passed=False, request=one.request, tiles=one.tiles, timeline=None, memory=None
    )
    return CellOutcome(
        key=one.key, status="wrong", sentence="Its output is wrong: relative error 0.41.", measurement=measurement,
    )  # fmt: skip


def not_compiled(one: SweepCell) -> CellOutcome:
    """A cell of which the compiler made nothing."""
    return outcome_of(one, cell(place_of(one.tiles), "does not compile", "Triton’s compiler gave up: PassManager::run failed."))


class FakeSweeps:
    """The part of Sweeps that the app calls, over sweeps that a test puts there."""

    def __init__(self, *found: Sweep) -> None:
        self.held = {one.sweep_id: one for one in found}
        self.started: list[SweepPlan] = []

    def start(self, asked: SweepPlan, owner: str) -> str:
        self.started.append(asked)
        sweep_id = f"{len(self.started):012x}"
        running = SweepState(status="running", phase="compiling", done=0, total=1)
        self.held[sweep_id] = swept(asked, running, owner, until=0, sweep_id=sweep_id)
        return sweep_id

    def put(self, sweep: Sweep) -> None:
        """What is found out since."""
        self.held[sweep.sweep_id] = sweep.model_copy(update={"change": self.held[sweep.sweep_id].change + 1})

    def view(self, sweep_id: str) -> Sweep:
        return self.held[sweep_id]

    def listed(self) -> tuple[SweepRow, ...]:
        return tuple(
            SweepRow(
                sweep_id=one.sweep_id, title=one.plan.title, owner=one.owner, device_name=one.device_name,
                created_at=one.created_at, status=one.state.status, done=one.state.done, total=one.state.total,
            )
            for one in self.held.values()
        )  # fmt: skip

    def pause(self, sweep_id: str) -> None:
        self._become(sweep_id, "paused")

    def resume(self, sweep_id: str) -> None:
        self._become(sweep_id, "running")

    def cancel(self, sweep_id: str) -> None:
        self._become(sweep_id, "cancelled")

    def _become(self, sweep_id: str, status: str) -> None:
        held = self.held[sweep_id]
        self.held[sweep_id] = held.model_copy(update={"state": held.state.model_copy(update={"status": status})})
