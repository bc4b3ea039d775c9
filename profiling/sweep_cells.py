"""A plan's cells: every combination of its tiles, the defaults, the article's pairs, and what is known of each at once. Pure.

Nothing is compiled here. What the compiler said before is on the disk (profiling.feasibility_cache), by the same question.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from kernels.architecture import ARCHITECTURES, architecture
from kernels.problem import TileConfig
from kernels.registry import Refused, default_tiles, refuse, version
from profiling.feasibility import ARTICLE, Advice, Cell, Grid, Place
from profiling.feasibility_cache import FeasibilityCache
from profiling.records import RunRequest
from profiling.sweep_record import SIDES, SWEEP_PROBES, CellOutcome, Role, Series, SweepCell, SweepPlan, key_of

_SHORT, _MEDIUM = 1024, 8192


def advice_for(seq_len: int) -> Advice:
    """The pair of sizes that the article recommends for a length: 128 × 128 below 1k, 64 × 256 to 8k, 32 × 512 above."""
    return ARTICLE[0] if seq_len < _SHORT else ARTICLE[1] if seq_len <= _MEDIUM else ARTICLE[2]


def cells_of(plan: SweepPlan, capability: int | None) -> tuple[SweepCell, ...]:
    """Every cell once, series by series, small tiles first; capability None is the interpreter, with the defaults of sm_90."""
    return tuple(cell for series in plan.series for cell in _of_series(plan, series, capability))


def _of_series(plan: SweepPlan, series: Series, capability: int | None) -> Iterator[SweepCell]:
    roles: dict[TileConfig, list[Role]] = {}
    for tiles in _grid(plan):
        roles.setdefault(tiles, []).append("grid")
    default = default_of(series, capability)
    roles.setdefault(default, []).append("default")
    for tiles in _article(plan, series, default):
        roles.setdefault(tiles, []).append("article")
    for tiles in sorted(roles, key=_small_first):
        request = request_of(plan, series, tiles)
        yield SweepCell(key=key_of(request), request=request, roles=tuple(roles[tiles]))


def _small_first(tiles: TileConfig) -> tuple[object, ...]:
    sides = tiles.block_m * tiles.block_n, tiles.block_m, tiles.num_warps, tiles.num_stages
    return *sides, tiles.block_order, tiles.num_programs or 0


def _grid(plan: SweepPlan) -> Iterator[TileConfig]:
    for *sides, order in product(*(getattr(plan, name) for name in SIDES), plan.block_orders):
        yield TileConfig(**dict(zip(SIDES, sides, strict=True)), block_order=order)


def default_of(series: Series, capability: int | None) -> TileConfig:
    """The tiles that the version starts with."""
    # Only Hopper has v3-hopper's tiles; on another GPU every cell is refused, and these are as good as any.
    known = capability if capability in ARCHITECTURES and not version(series.kernel).deals_blocks else 90
    return default_tiles(series.kernel, series.problem, series.precision, architecture(known))


def _article(plan: SweepPlan, series: Series, default: TileConfig) -> Iterator[TileConfig]:
    """The article says nothing of warps and stages: its pair has all those of the plan, and the default's."""
    advice = advice_for(series.problem.seq_len_q)
    warps = {*plan.num_warps, default.num_warps}
    stages = {*plan.num_stages, default.num_stages}
    for num_warps, num_stages in product(sorted(warps), sorted(stages)):
        yield TileConfig(block_m=advice.block_m, block_n=advice.block_n, num_warps=num_warps, num_stages=num_stages)


def request_of(plan: SweepPlan, series: Series, tiles: TileConfig) -> RunRequest:
    """What the worker is asked for a cell."""
    return RunRequest(
        kernel=series.kernel,
        problem=series.problem,
        precision=series.precision,
        tiles=tiles,
        device=plan.devices[0],
        probes=SWEEP_PROBES,
        seed=plan.seed,
    )


# What is known at once


def refused_of(cell: SweepCell, capability: int | None) -> CellOutcome | None:
    """The registry's sentence, where the version cannot have these tiles on this device; None where it may."""
    request = cell.request
    try:
        refuse(request.kernel, request.problem, request.precision, request.tiles, _arch(capability))
    except Refused as refused:
        return CellOutcome(key=cell.key, status="refused", sentence=refused.sentence)
    return None


def _arch(capability: int | None):
    return None if capability is None else architecture(capability)


def grid_of(series: Series, capability: int, tiles: TileConfig | None = None) -> Grid:
    """The question that the feasibility map would ask of a series: of one cell where tiles are given."""
    sides = {} if tiles is None else {name: (getattr(tiles, name),) for name in SIDES}
    return Grid(
        kernel=series.kernel, problem=series.problem, precision=series.precision, capability=capability,
        loop_order="query" if tiles is None else tiles.loop_order, **sides,
    )  # fmt: skip


def place_of(tiles: TileConfig) -> Place:
    """Where it stands on the feasibility map."""
    return Place(**{name: getattr(tiles, name) for name in SIDES})


def outcome_of(cell: SweepCell, found: Cell) -> CellOutcome:
    """What the compiler said, as a cell's outcome: still pending where it can run."""
    if found.can_run:
        return CellOutcome(key=cell.key, status="pending", reason=found.reason, report=found.report)
    status = "refused" if found.reason == "refused" and found.report is None else "infeasible"
    return CellOutcome(
        key=cell.key, status=status, sentence=found.sentence, reason=found.reason, report=found.report,
        needs_bytes=found.needs_bytes, has_bytes=found.has_bytes,
    )  # fmt: skip


def can_be_compiled_for(capability: int | None) -> bool:
    """Whether a compiler's word is a limit: not in the interpreter, and not on a GPU that FlashScope has no limits of."""
    return capability in ARCHITECTURES


def known_of(plan: SweepPlan, cells: tuple[SweepCell, ...], capability: int | None) -> tuple[CellOutcome, ...]:
    """What is known of the cells before anything is compiled: refused, cannot run by what is on the disk, else pending."""
    caches = {}
    if can_be_compiled_for(capability):
        caches = {series: FeasibilityCache(grid_of(series, capability)) for series in plan.series}
    found = []
    for cell in cells:
        outcome = refused_of(cell, capability)
        if outcome is None and cell.series in caches:
            held = caches[cell.series].get(place_of(cell.tiles))
            outcome = None if held is None else outcome_of(cell, held)
        found.append(outcome or CellOutcome(key=cell.key, status="pending"))
    return tuple(found)


def outlook(plan: SweepPlan, capability: int | None) -> tuple[tuple[SweepCell, CellOutcome], ...]:
    """The cells with what is known of them before the start. Raises ValueError, in one sentence, for a GPU below sm_80."""
    cells = cells_of(plan, capability)
    return tuple(zip(cells, known_of(plan, cells, capability), strict=True))
