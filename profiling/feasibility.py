"""Which tiles can run on a GPU: a grid of BLOCK_M × BLOCK_N, warps and stages, and of every cell what the compiler said. Pure.

What needs no compiler is judged here; profiling.feasibility_process compiles the rest, profiling.feasibility_map asks it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Literal, get_args

from pydantic import Field, ValidationError, model_validator

from kernels.architecture import ARCHITECTURES, Architecture, architecture
from kernels.problem import BLOCK_M_SIZES, BLOCK_SIZES, AttentionProblem, Frozen, LoopOrder, Precision, TileConfig, listed
from kernels.registry import Refused, default_tiles, refuse, version
from profiling import words
from profiling.record_types import first_sentence
from profiling.records import CompileReport, RunRequest
from profiling.samples_csv import harmless

Reason = Literal[
    "fits",
    "spills",
    "shared memory",
    "does not compile",
    "FP8 minimum",
    "refused",
    "not a power of two",
    "time limit",
    "crashed",
]
REASONS: tuple[Reason, ...] = get_args(Reason)
CAN_RUN: tuple[Reason, ...] = ("fits", "spills")
MAY_CHANGE: tuple[Reason, ...] = ("time limit", "crashed")
"""What another try on a quieter machine, or with more time, may judge otherwise."""
MOST_CELLS = 600
_RANGES = (
    ("block_m", "BLOCK_M", 4096),
    ("block_n", "BLOCK_N", 4096),
    ("num_warps", "num_warps", 64),
    ("num_stages", "num_stages", 16),
)
CELL_LIMIT_S = 30.0

Sizes = Annotated[tuple[int, ...], Field(max_length=16)]


@dataclass(frozen=True)
class Advice:
    """A pair of sizes that the article which started this project recommends, and for which lengths."""

    block_m: int
    block_n: int
    lengths: str

    @property
    def title(self) -> str:
        """'64 × 256'."""
        return f"{self.block_m} × {self.block_n}"


ARTICLE = (
    Advice(128, 128, "below 1,024 tokens"),
    Advice(64, 256, "1,024 to 8,192 tokens"),
    Advice(32, 512, "above 8,192 tokens"),
)


class Place(Frozen):
    """Where a cell stands. Any whole numbers: whether they can be tiles is what the map says."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int

    @property
    def title(self) -> str:
        """'128 × 64, 8 warps, 3 stages'."""
        warps, stages = self.num_warps, self.num_stages
        return f"{self.block_m} × {self.block_n}, {warps} warp{'s' * (warps > 1)}, {stages} stage{'s' * (stages > 1)}"


class Cell(Place):
    """What was found of a place. sentence says it in words; needs and has are bytes of shared memory, where that is known.

    report: of the attention's own kernel, where it was compiled to the end; its compile_ms is of that kernel alone.
    """

    reason: Reason
    sentence: str
    needs_bytes: int | None = None
    has_bytes: int | None = None
    report: CompileReport | None = None

    @property
    def can_run(self) -> bool:
        """Whether the compiler made a kernel that fits on the GPU."""
        return self.reason in CAN_RUN


class Grid(Frozen):
    """What is to be compiled: a version on a problem for a GPU, in every combination of these sizes.

    block_m and block_n empty: all that the version can have; num_warps and num_stages empty: those of its default tiles,
    where v3-hopper's warps follow BLOCK_M.
    Raises ValueError (inside pydantic's), in one sentence, for a version without tiles and for too many cells.
    """

    kernel: str
    problem: AttentionProblem
    precision: Precision = Precision()
    capability: int
    block_m: Sizes = ()
    block_n: Sizes = ()
    num_warps: Sizes = ()
    num_stages: Sizes = ()
    loop_order: LoopOrder = "query"

    @model_validator(mode="after")
    def _possible(self) -> Grid:
        if not version(self.kernel).has_tiles:
            raise ValueError(f"kernel = {self.kernel} is not possible here: it has no tiles to choose.")
        if self.capability not in ARCHITECTURES:
            raise ValueError(f"gpu = sm_{self.capability} is not possible: it can be {listed(GPU_NAMES)}.")
        if self.loop_order == "key" and not version(self.kernel).has_loop_order:
            raise ValueError(f"loop_order = key is not possible with {self.kernel}: only v1 has Algorithm 1's key-outer order.")
        if self.precision.fp8 and not version(self.kernel).has_fp8:
            raise ValueError(f"FP8 is not possible with {self.kernel}: it has none.")
        for field, name, most in _RANGES:
            wrong = next((one for one in getattr(self, field) if not 1 <= one <= most), None)
            if wrong is not None:
                raise ValueError(f"{name} = {wrong} is not possible: it can be 1 to {most}.")
        if (cells := len(self.places)) > MOST_CELLS:
            raise ValueError(f"{cells:,} cells are too many: choose fewer warps, stages or sizes, to at most {MOST_CELLS}.")
        return self

    @property
    def arch(self) -> Architecture:
        """The limits of the GPU."""
        return architecture(self.capability)

    @property
    def default(self) -> TileConfig:
        """The tiles that the version starts with on this problem and GPU."""
        # Only Hopper has v3-hopper's tiles; on another GPU every cell is refused, and these are as good as any.
        arch = architecture(90) if version(self.kernel).deals_blocks else self.arch
        return default_tiles(self.kernel, self.problem, self.precision, arch, self.loop_order)

    @property
    def places(self) -> tuple[Place, ...]:
        """Every cell once, small tiles first: they compile fastest."""
        found = {
            Place(block_m=m, block_n=n, num_warps=warps, num_stages=stages)
            for m, n, stages in product(self._rows, self.block_n or BLOCK_SIZES, self.num_stages or (self.default.num_stages,))
            for warps in self.num_warps or (self._usual_warps(m),)
        }
        return tuple(sorted(found, key=lambda one: (one.block_m * one.block_n, one.block_m, one.num_warps, one.num_stages)))

    @property
    def _rows(self) -> tuple[int, ...]:
        return self.block_m or (BLOCK_M_SIZES if version(self.kernel).deals_blocks else BLOCK_SIZES)

    def _usual_warps(self, block_m: int) -> int:
        return max(4, block_m // 16) if version(self.kernel).deals_blocks else self.default.num_warps

    def tiles(self, place: Place) -> TileConfig:
        """A place as tiles. Raises pydantic's ValidationError where it cannot be tiles."""
        sizes = {name: getattr(place, name) for name in Place.model_fields}
        return TileConfig(**sizes, loop_order=self.loop_order)

    def request(self, place: Place) -> RunRequest:
        """What the compiler is asked for a place. Raises ValidationError where it cannot be tiles."""
        return RunRequest(
            kernel=self.kernel,
            problem=self.problem,
            precision=self.precision,
            tiles=self.tiles(place),
            compile_for=self.capability,
        )

    @property
    def layers(self) -> dict[str, tuple[Place, ...]]:
        """The cells by warps and stages: a map of BLOCK_M × BLOCK_N each, under words such as '8 warps · 3 stages'."""
        stages = sorted(set(self.num_stages)) or [self.default.num_stages]
        found: dict[str, tuple[Place, ...]] = {}
        for warps, count in product(sorted(set(self.num_warps)) or [None], stages):
            usual = "warps by BLOCK_M" if version(self.kernel).deals_blocks else f"{self.default.num_warps} warps"
            name = f"{usual if warps is None else f'{warps} warp' + 's' * (warps > 1)} · {count} stage{'s' * (count > 1)}"
            found[name] = tuple(
                one for one in self.places
                if one.num_stages == count and one.num_warps == (self._usual_warps(one.block_m) if warps is None else warps)
            )  # fmt: skip
        return found

    @property
    def title(self) -> str:
        """'v2 · 4,096 tokens · head_dim 128 · causal · bf16 · sm_90'."""
        order = " key-outer" if self.loop_order == "key" else ""
        return f"{self.kernel}{order} · {self.problem.title} · {self.precision.title} · sm_{self.capability}"


GPU_NAMES = tuple(f"sm_{capability}" for capability in ARCHITECTURES)


def sorted_out(grid: Grid) -> tuple[dict[Place, Cell], tuple[Place, ...]]:
    """What can be said without the compiler, and the places that it must be asked for."""
    judged = {place: refusal(grid, place) for place in grid.places}
    known = {place: cell for place, cell in judged.items() if cell is not None}
    return known, tuple(place for place in grid.places if place not in known)


def refusal(grid: Grid, place: Place) -> Cell | None:
    """Why a place cannot run, where that is known before compiling."""
    odd = (
        None if version(grid.kernel).deals_blocks else next((name for name in _TWOS if not _is_power_of_two(place, name)), None)
    )
    if odd is not None:
        said = f"{_TWOS[odd]} = {getattr(place, odd)} is not a power of two, as tiles and warps of Triton's must be."
        return cell(place, "not a power of two", said)
    try:
        refuse(grid.kernel, grid.problem, grid.precision, grid.tiles(place), grid.arch)
    except ValidationError as error:
        return cell(place, "refused", first_sentence(error))
    except Refused as refused:
        is_minimum = grid.precision.fp8 and refused.needs == 32  # what an 8-bit product takes at least, keys or elements
        return cell(place, "FP8 minimum" if is_minimum else "refused", refused.sentence)
    return None


_TWOS = {"block_m": "BLOCK_M", "block_n": "BLOCK_N", "num_warps": "num_warps"}


def _is_power_of_two(place: Place, name: str) -> bool:
    value = getattr(place, name)
    return value & (value - 1) == 0


def cell(place: Place, reason: Reason, sentence: str, **found: object) -> Cell:
    """A place with what was found of it."""
    return Cell(**{name: getattr(place, name) for name in Place.model_fields}, reason=reason, sentence=sentence, **found)


def too_much_shared_memory(grid: Grid, place: Place, needs_bytes: int) -> Cell:
    """A cell whose program needs more shared memory than one may have."""
    has_bytes = grid.arch.shared_memory_per_block_bytes
    needs, has = words.kib(needs_bytes), words.kib(has_bytes)
    sentence = f"It needs {needs} of shared memory; a program on sm_{grid.capability} has {has}."
    return cell(place, "shared memory", sentence, needs_bytes=needs_bytes, has_bytes=has_bytes)


def compiled(grid: Grid, place: Place, report: CompileReport) -> Cell:
    """A cell that was compiled to the end."""
    if report.shared_memory_bytes > report.shared_memory_limit_bytes:
        return too_much_shared_memory(grid, place, report.shared_memory_bytes)
    at_once = f"{report.programs_per_sm} program{'s' * (report.programs_per_sm != 1)} an SM"
    limit = {"does not fit": "its registers do not fit"}.get(report.limited_by, f"limited by {report.limited_by}")
    sentence = (
        f"{at_once}, {limit}; {report.registers_per_thread} registers a thread, "
        f"{words.kib(report.shared_memory_bytes)} of {words.kib(report.shared_memory_limit_bytes)} shared memory."
    )
    if report.spill_bytes:
        sentence = f"It spills {report.spill_bytes:,} bytes a thread, which go through memory. {sentence}"
    elif report.programs_per_sm == 0:
        return cell(place, "refused", f"It does not fit on an SM: {sentence}", report=report)
    return cell(
        place, "spills" if report.spill_bytes else "fits", sentence,
        needs_bytes=report.shared_memory_bytes, has_bytes=report.shared_memory_limit_bytes, report=report,
    )  # fmt: skip


def row(found: Cell) -> dict[str, str | int | float | None]:
    """A cell as a row of a table: numbers as numbers, None where there is none."""
    report = found.report
    return {
        "BLOCK_M": found.block_m,
        "BLOCK_N": found.block_n,
        "warps": found.num_warps,
        "stages": found.num_stages,
        "result": found.reason,
        "shared_memory_bytes": found.needs_bytes,
        "shared_memory_limit_bytes": found.has_bytes,
        "registers_per_thread": report.registers_per_thread if report else None,
        "spill_bytes": report.spill_bytes if report else None,
        "programs_per_sm": report.programs_per_sm if report else None,
        "limited_by": report.limited_by if report else None,
        "compile_ms": round(report.compile_ms, 1) if report else None,
        "why": found.sentence,
    }


def csv_of(cells: Iterable[Cell]) -> bytes:
    """The cells as a CSV file: UTF-8 with the mark by which spreadsheets know it, no cell a formula to one."""
    rows, text = [row(one) for one in cells], io.StringIO(newline="")
    table = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    table.writeheader()
    table.writerows({name: harmless(one) if isinstance(one, str) else one for name, one in found.items()} for found in rows)
    return text.getvalue().encode("utf-8-sig")


def document(grid: Grid, cells: Iterable[Cell]) -> dict[str, object]:
    """The whole map for a file of JSON: what was asked, the cells with their reports, and with what it was compiled."""
    return {
        "provenance": "compiled",
        "grid": grid.model_dump(mode="json"),
        "default_tiles": grid.default.model_dump(mode="json"),
        "cells": [one.model_dump(mode="json") for one in cells],
    }


def summary(cells: Iterable[Cell]) -> str:
    """'12 of 36 fit, 6 spill, 18 cannot run'."""
    found = list(cells)
    fits, spills = (sum(one.reason == name for one in found) for name in CAN_RUN)
    return f"{fits} of {len(found)} fit, {spills} spill, {len(found) - fits - spills} cannot run"
