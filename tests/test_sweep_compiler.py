"""A sweep's cells are compiled before any is launched, into the cache that the launches read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.problem import TileConfig
from profiling.feasibility_cache import FeasibilityCache
from profiling.sweep_cells import cells_of, grid_of, outcome_of, place_of
from profiling.sweep_compiler import Answer, SweepCompiler
from profiling.sweep_record import SweepCell, problems_of
from tests.sweeps_for_tests import plan

ROOT = Path(__file__).resolve().parent.parent
_LAUNCHED_LIKE = """
import sys
from profiling.compile_report import compile_reports
from profiling.sweep_record import SweepCell
print(len(compile_reports(SweepCell.model_validate_json(sys.stdin.readline()).request, 90)))
"""


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Triton's cache, empty, and the map's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    return tmp_path / "triton"


def cells(*wanted: TileConfig) -> tuple[SweepCell, ...]:
    """The cells of some tiles on a small problem."""
    sides = {name: tuple(sorted({getattr(one, name) for one in wanted})) for name in ("block_m", "block_n", "num_stages")}
    orders = tuple(sorted({one.block_order for one in wanted}))
    asked = plan(problems=problems_of((256,), (True,), (64,), 1), num_warps=(4,), block_orders=orders, **sides)
    return tuple(one for one in cells_of(asked, 90) if one.tiles in wanted)


def answers(asked: tuple[SweepCell, ...]) -> dict[TileConfig, Answer]:
    compiler, found = SweepCompiler(asked, 90), dict[str, Answer]()
    while not compiler.over:
        found |= {one.key: one for one in compiler.take(0.5)}
    return {one.tiles: found[one.key] for one in asked}


def made(folder: Path) -> dict[str, int]:
    return {path.name + path.parent.name: path.stat().st_mtime_ns for path in folder.rglob("*.cubin")}


def test_what_can_run_is_in_triton_s_cache_for_a_launch_and_what_cannot_is_on_the_map(caches: Path) -> None:
    small = TileConfig(block_m=64, block_n=32, num_warps=4, num_stages=2)
    ordered = small.model_copy(update={"block_order": "natural"})
    large = TileConfig(block_m=16, block_n=512, num_warps=4, num_stages=6)
    asked = cells(small, ordered, large)
    found = answers(asked)
    assert {tiles: one.found.reason for tiles, one in found.items()} == {small: "fits", ordered: "fits", large: "shared memory"}
    before = made(caches)
    assert len(before) == 2, "one for each order: its kernel is another"

    cell = next(one for one in asked if one.tiles == small)
    child = subprocess.run(
        [sys.executable, "-c", _LAUNCHED_LIKE], input=cell.model_dump_json() + "\n", text=True, capture_output=True,
        cwd=ROOT, env=os.environ, timeout=120,
    )  # fmt: skip
    assert child.stdout == "1\n", child.stderr
    assert made(caches) == before, "who compiles the same without the watching found it in the cache"

    held = FeasibilityCache(grid_of(asked[0].series, 90))
    assert held.get(place_of(large)).reason == "shared memory"
    assert held.get(place_of(small)) is None
    refused = outcome_of(next(one for one in asked if one.tiles == large), found[large].found)
    assert (refused.status, refused.has_bytes) == ("infeasible", 227 << 10)
    assert refused.needs_bytes > refused.has_bytes


@pytest.mark.parametrize("python", ["false", "/nowhere/python"])
def test_a_compiler_that_is_killed_says_of_no_cell_that_it_cannot_run(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profiling.sweep_compiler.sys.executable", python)
    compiler = SweepCompiler(cells(TileConfig(block_m=64, block_n=32, num_warps=4, num_stages=2)), 90)
    found = compiler.take(30.0)
    assert (found, compiler.over) == ((), True)


def test_nothing_to_compile_is_over_at_once() -> None:
    compiler = SweepCompiler((), 90)
    assert compiler.over
    assert compiler.take(1.0) == ()
