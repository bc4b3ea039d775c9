"""What a sweep is: the plan, its cells, what came of each, where it stands, who won. Pure: pydantic, no torch, no Triton.

A sweep is of series: a version on a problem in a number format. Each series has a cell for every combination of tiles; one
cell is one RunRequest. The screening times every cell that can run, briefly; the finalists of a series are then timed again
in one job, round by round, by the full stop rule.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from kernels.problem import (
    BLOCK_M_SIZES,
    BLOCK_SIZES,
    NUM_STAGES,
    WARP_COUNTS,
    AttentionProblem,
    BlockOrder,
    Frozen,
    Precision,
    TileConfig,
    listed,
)
from kernels.registry import precision_for, version
from profiling import words
from profiling.feasibility import Reason
from profiling.foreign_text import Moment
from profiling.record_types import Count, Ms, Text, Words, first_sentence
from profiling.records import CompileReport, JobError, KernelName, Latency, Measurement, Probe, RunRequest

SWEEP_PROBES: tuple[Probe, ...] = ("accuracy", "latency")
MOST_CELLS = 4_000
MOST_FINALISTS = 12
FEWEST_BUDGET = 5

Key = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
SweepId = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
Role = Literal["grid", "default", "article"]
CellStatus = Literal["pending", "refused", "infeasible", "measured", "wrong", "failed", "untried"]
Status = Literal["running", "paused", "cancelled", "finished"]
SweepPhase = Literal["compiling", "screening", "finals", "over"]
Seconds = Annotated[float, Field(ge=0, le=1e7)]
Ratio = Annotated[float, Field(gt=0, le=1e9)]

_SIDES = (
    ("block_m", "BLOCK_M", BLOCK_M_SIZES),
    ("block_n", "BLOCK_N", BLOCK_SIZES),
    ("num_warps", "num_warps", WARP_COUNTS),
    ("num_stages", "num_stages", NUM_STAGES),
)
SIDES = tuple(name for name, _, _ in _SIDES)
"""The fields of a plan, and of its tiles, that are the axes of a map."""


class Series(Frozen):
    """What is swept on its own: one version on one problem in one number format. Its cells are ranked among themselves."""

    kernel: KernelName
    problem: AttentionProblem
    precision: Precision = Precision()

    @property
    def title(self) -> str:
        """'v2 · 4,096 tokens · head_dim 128 · causal · bf16'."""
        return f"{self.kernel} · {self.problem.title} · {self.precision.title}"


class SweepPlan(Frozen):
    """What is varied, and how it is searched.

    Every kernel on every problem in every precision is a series. block_m to num_stages and block_orders: the values tried, in
    every combination. budget: how many cells of each series a search may time, None for all of them (a grid). finalists: how
    many of each series are timed again. devices: their ids; all must be of one model, and share the cells. seed: of the inputs
    and of the search.
    Raises ValueError (inside pydantic's), in one sentence, for a value that is not possible and for too many cells.
    """

    kernels: Annotated[tuple[KernelName, ...], Field(min_length=1, max_length=8)]
    problems: Annotated[tuple[AttentionProblem, ...], Field(min_length=1, max_length=64)]
    precisions: Annotated[tuple[Precision, ...], Field(min_length=1, max_length=4)] = (Precision(),)
    block_m: Annotated[tuple[int, ...], Field(min_length=1, max_length=16)] = (64, 128)
    block_n: Annotated[tuple[int, ...], Field(min_length=1, max_length=16)] = (32, 64, 128)
    num_warps: Annotated[tuple[int, ...], Field(min_length=1, max_length=16)] = (4, 8)
    num_stages: Annotated[tuple[int, ...], Field(min_length=1, max_length=16)] = (2, 3, 4)
    block_orders: Annotated[tuple[BlockOrder, ...], Field(min_length=1, max_length=4)] = ("default",)
    budget: int | None = None
    finalists: int = 5
    devices: Annotated[tuple[Words, ...], Field(min_length=1, max_length=256)]
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0

    @model_validator(mode="after")
    def _possible(self) -> SweepPlan:
        for name in self.kernels:
            if not version(name).has_tiles:
                raise ValueError(f"kernel = {name} is not possible in a sweep: it has no tiles to choose.")
        for field, name, allowed in _SIDES:
            wrong = next((one for one in getattr(self, field) if one not in allowed), None)
            if wrong is not None:
                raise ValueError(f"{name} = {wrong} is not possible: it can be {listed(allowed)}.")
        for field in ("kernels", "problems", "precisions", *SIDES, "block_orders", "devices"):
            if len(set(getattr(self, field))) != len(getattr(self, field)):
                raise ValueError(f"{field} with the same value twice is not possible.")
        if any(one.fp8 for one in self.precisions) and not any(version(name).has_fp8 for name in self.kernels):
            raise ValueError(f"FP8 is not possible with {listed(self.kernels) if self.kernels[1:] else self.kernels[0]}.")
        if self.budget is not None and self.budget < FEWEST_BUDGET:
            raise ValueError(f"budget = {self.budget} is not possible: a search needs {FEWEST_BUDGET} cells a series at least.")
        if not 0 <= self.finalists <= MOST_FINALISTS:
            raise ValueError(f"finalists = {self.finalists} is not possible: it can be 0 to {MOST_FINALISTS}.")
        if self.size > MOST_CELLS:
            raise ValueError(
                f"{self.size:,} cells are too many: choose fewer values, for at most {MOST_CELLS:,} ({self.configurations} "
                f"configurations in {len(self.series)} series now)."
            )
        return self

    @property
    def method(self) -> Literal["grid", "budget"]:
        """How it is searched."""
        return "grid" if self.budget is None else "budget"

    @property
    def series(self) -> tuple[Series, ...]:
        """Every version on every problem in every number format that it has; the problems are the outermost."""
        found = (
            Series(kernel=kernel, problem=problem, precision=precision_for(kernel, precision))
            for problem in self.problems
            for precision in self.precisions
            for kernel in self.kernels
            if version(kernel).has_fp8 or not precision.fp8
        )
        return tuple(dict.fromkeys(found))

    @property
    def configurations(self) -> int:
        """How many combinations of tiles a series has."""
        product = len(self.block_orders)
        for name in SIDES:
            product *= len(getattr(self, name))
        return product

    @property
    def size(self) -> int:
        """How many cells there are, without the defaults and the article's pairs, which are added."""
        return self.configurations * len(self.series)

    @property
    def title(self) -> str:
        """'v2 · 4k, 16k tokens · head_dim 128 · 36 configurations'."""
        lengths = ", ".join(words.tokens(one) for one in sorted({problem.seq_len_q for problem in self.problems}))
        dims = ", ".join(str(one) for one in sorted({problem.head_dim for problem in self.problems}))
        masks = sorted({problem.causal for problem in self.problems})
        mask = {(True,): " · causal", (False,): ""}.get(tuple(masks), " · causal and not")
        count = f"{self.configurations} configuration{'s' * (self.configurations != 1)}"
        return f"{', '.join(self.kernels)} · {lengths} tokens · head_dim {dims}{mask} · {count}"


class SweepCell(Frozen):
    """One configuration of one series. key is the same wherever and whenever the plan is made.

    roles: `grid`, one of the plan's combinations; `default`, the tiles that the version starts with here; `article`, the pair
    of sizes that the article recommends for this length. request.device is the plan's first: where it ran, its measurement
    says.
    """

    key: Key
    request: RunRequest
    roles: Annotated[tuple[Role, ...], Field(min_length=1, max_length=3)]

    @model_validator(mode="after")
    def _of_its_request(self) -> SweepCell:
        if self.request.tiles is None:
            raise ValueError("a cell without tiles is not possible.")
        return self

    @property
    def tiles(self) -> TileConfig:
        """Its place on the axes."""
        return self.request.tiles

    @property
    def series(self) -> Series:
        """What it belongs to."""
        return Series(kernel=self.request.kernel, problem=self.request.problem, precision=self.request.precision)

    @property
    def title(self) -> str:
        """'128 × 64, 8 warps, 3 stages'."""
        return self.tiles.title


def key_of(request: RunRequest) -> str:
    """What tells a cell from all others of all sweeps, whatever device runs it: 16 hexadecimal digits."""
    told = request.model_dump(mode="json", include={"kernel", "problem", "precision", "tiles", "seed", "probes", "inputs"})
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


class CellOutcome(Frozen):
    """What came of a cell. sentence says it in words wherever there is no time.

    pending: nothing yet. refused: the version cannot have these tiles. infeasible: compiled, and it cannot run; reason is the
    feasibility map's word. measured: timed and right; provenance says whether on a GPU. wrong: its output is wrong, and it
    was not timed. failed: error says how (it crashed, hung, ran out of memory). untried: the search did not choose it.
    measurement is the screening's, without the job's timeline; final that of the finalists' common rounds. report: what the
    compiler said of it before any launch, None in the interpreter. needs_bytes, has_bytes: of shared
    memory, where that is the reason.
    """

    key: Key
    status: CellStatus
    sentence: Text = ""
    reason: Reason | None = None
    report: CompileReport | None = None
    measurement: Measurement | None = None
    final: Measurement | None = None
    error: JobError | None = None
    needs_bytes: Count | None = None
    has_bytes: Count | None = None
    finished_at: Moment | None = None

    @model_validator(mode="after")
    def _consistent(self) -> CellOutcome:
        timed = self.measurement is not None and self.measurement.latency is not None
        if timed != (self.status == "measured"):
            raise ValueError(f"a cell that is {self.status} {'with' if timed else 'without'} a time is not possible.")
        if self.final is not None and not timed:
            raise ValueError("a finalist without a time in the screening is not possible.")
        if (self.error is not None) != (self.status == "failed"):
            raise ValueError(f"a cell that is {self.status} {'with' if self.error else 'without'} an error is not possible.")
        if self.status not in ("pending", "measured") and not self.sentence:
            raise ValueError(f"a cell that is {self.status} without a sentence is not possible.")
        return self

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be found out but, of a finalist, its final."""
        return self.status != "pending"

    @property
    def provenance(self) -> Literal["measured", "interpreted", "compiled"] | None:
        """Where what is known of it comes from; None where nobody launched or compiled anything."""
        if self.measurement is not None:
            return "measured" if self.measurement.environment.device.kind == "gpu" else "interpreted"
        return "compiled" if self.status == "infeasible" or self.report is not None else None

    @property
    def best_known(self) -> Measurement | None:
        """The final where there is one with a time, else the screening's."""
        return self.final if self.final is not None and self.final.latency is not None else self.measurement

    @property
    def latency(self) -> Latency | None:
        """The time to quote: the final's, else the screening's; None where there is none."""
        return None if self.best_known is None else self.best_known.latency

    @property
    def median_ms(self) -> float | None:
        """The number to colour a cell by."""
        return None if self.latency is None else self.latency.median_ms


class SweepState(Frozen):
    """Where a sweep stands at one moment.

    done of total are cells of which nothing is pending: those that were refused or cannot run count at once. seconds_left:
    from what the cells so far took; None until enough is known. running: the cells being timed. sentence: what is going on, or
    why it stopped.
    """

    status: Status
    phase: SweepPhase
    done: Count
    total: Count
    elapsed_s: Seconds = 0.0
    seconds_left: Seconds | None = None
    running: tuple[Key, ...] = ()
    sentence: Text = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.status in ("cancelled", "finished")


class Sweep(Frozen):
    """A whole sweep at one moment: what a page draws, a file holds. outcomes has one for each cell, in the order of cells.

    change grows with every outcome and every final; of one sweep, the same number is the same knowledge.
    """

    sweep_id: SweepId
    plan: SweepPlan
    created_at: Moment
    owner: Words
    device_name: Words
    capability: int | None
    cells: tuple[SweepCell, ...]
    outcomes: tuple[CellOutcome, ...]
    state: SweepState
    change: Count = 0

    @model_validator(mode="after")
    def _one_outcome_a_cell(self) -> Sweep:
        if [one.key for one in self.cells] != [one.key for one in self.outcomes]:
            raise ValueError("a sweep whose outcomes are not those of its cells, in order, is not possible.")
        return self

    @cached_property
    def by_key(self) -> Mapping[str, tuple[SweepCell, CellOutcome]]:
        """A cell and its outcome by the cell's key."""
        return {cell.key: (cell, outcome) for cell, outcome in zip(self.cells, self.outcomes, strict=True)}

    def of(self, series: Series) -> tuple[tuple[SweepCell, CellOutcome], ...]:
        """The cells of a series with their outcomes."""
        return self.by_series.get(series, ())

    @cached_property
    def by_series(self) -> Mapping[Series, tuple[tuple[SweepCell, CellOutcome], ...]]:
        """The cells of each series with their outcomes."""
        found: dict[Series, list[tuple[SweepCell, CellOutcome]]] = {}
        for pair in zip(self.cells, self.outcomes, strict=True):
            found.setdefault(pair[0].series, []).append(pair)
        return {series: tuple(pairs) for series, pairs in found.items()}

    @property
    def counts(self) -> dict[CellStatus, int]:
        """How many cells there are of each status that there is one of."""
        found: dict[CellStatus, int] = {}
        for outcome in self.outcomes:
            found[outcome.status] = found.get(outcome.status, 0) + 1
        return found


def knowledge(outcomes: Iterable[CellOutcome]) -> int:
    """How much is known: Sweep.change."""
    return sum(outcome.is_over + (outcome.final is not None) for outcome in outcomes)


class Gain(Frozen):
    """What is won by the best of a series over another of its cells: time of the other ÷ time of the best, above 1 when won.

    word is of profiling.verdict, from the other's side: FASTER means that the best is faster. low, high: the interval.
    sentence says it all, also where there is no ratio (the article's pair does not fit, say).
    """

    key: Key | None
    ratio: Ratio | None = None
    low: Ratio | None = None
    high: Ratio | None = None
    word: Literal["FASTER", "SLOWER", "SAME", "UNCLEAR"] | None = None
    sentence: Text


class RankRow(Frozen):
    """A cell with a time in its place. rank is shared by cells that cannot be told from the first of that rank.

    low_ms to high_ms: from the fastest launch to the third quartile. is_final: timed in the finalists' common rounds.
    behind_best: its median ÷ the best's; where it has its screening alone, scaled by what the finalists' times changed. why:
    the verdict on it against the first of its rank, '' for that one itself.
    """

    rank: Annotated[int, Field(ge=1)]
    key: Key
    median_ms: Ms
    low_ms: Ms
    high_ms: Ms
    is_final: bool
    behind_best: Ratio
    why: Text = ""


class Ranking(Frozen):
    """The cells of a series that have a time, best first, and what the best wins over the default and the article's pair."""

    series: Series
    rows: tuple[RankRow, ...]
    over_default: Gain
    over_article: Gain

    @property
    def best(self) -> RankRow | None:
        """The first row, None where nothing was timed."""
        return self.rows[0] if self.rows else None

    @property
    def tied(self) -> tuple[RankRow, ...]:
        """All that share the first rank."""
        return tuple(row for row in self.rows if row.rank == 1)


def snippet(tiles: TileConfig) -> str:
    """The tiles as Python: 'TileConfig(block_m=128, block_n=64, num_warps=8, num_stages=3)'; usual values are left out."""
    usual = {name: field.default for name, field in TileConfig.model_fields.items() if not field.is_required()}
    told = {name: value for name, value in tiles if name not in usual or value != usual[name]}
    return f"TileConfig({', '.join(f'{name}={value!r}' for name, value in told.items())})"


def problems_of(
    seq_lens: Iterable[int],
    causals: Iterable[bool],
    head_dims: Iterable[int],
    num_heads: int,
    num_kv_heads: int | None = None,
    batch: int = 1,
) -> tuple[AttentionProblem, ...]:
    """Every length with every mask and head_dim, queries and keys alike. Raises ValueError, in one sentence."""
    causals, head_dims = tuple(causals), tuple(head_dims)
    try:
        return tuple(
            AttentionProblem(
                batch=batch, num_heads=num_heads, num_kv_heads=num_kv_heads or num_heads, seq_len_q=length, seq_len_kv=length,
                head_dim=head_dim, causal=causal,
            )
            for head_dim in head_dims for length in seq_lens for causal in causals
        )  # fmt: skip
    except ValidationError as error:
        raise ValueError(first_sentence(error)) from None


class SweepRow(Frozen):
    """A line of the list of sweeps: what is needed to show and to choose."""

    sweep_id: SweepId
    title: Words
    owner: Words
    device_name: Words
    created_at: Moment
    status: Status
    done: Count
    total: Count
