"""What is judged without the compiler, what is kept, what a crash or a hang costs, and one small map compiled for real."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from kernels.problem import AttentionProblem, Precision, TileConfig
from kernels.registry import precision_for
from profiling import compile_report, feasibility
from profiling.cli import main
from profiling.compile_report import compile_reports
from profiling.feasibility import ARTICLE, Cell, Grid, Place, compiled, document, refusal, row, sorted_out
from profiling.feasibility_cache import FeasibilityCache
from profiling.feasibility_map import FeasibilityMap, FeasibilityMaps, known_of
from profiling.feasibility_process import compile_cell
from tests import records_for_tests as records

ROOT = Path(__file__).resolve().parent.parent
PROBLEM = AttentionProblem(seq_len_q=4096, seq_len_kv=4096, head_dim=128)


def grid(kernel: str = "v2", fp8: bool = False, capability: int = 90, **sizes: tuple[int, ...]) -> Grid:
    precision = precision_for(kernel, Precision(fp8=fp8))
    return Grid(kernel=kernel, problem=PROBLEM, precision=precision, capability=capability, **sizes)


def at(block_m: int, block_n: int, num_warps: int = 8, num_stages: int = 2) -> Place:
    return Place(block_m=block_m, block_n=block_n, num_warps=num_warps, num_stages=num_stages)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "flashscope" / "feasibility"


@pytest.mark.parametrize(
    ("asked", "place", "reason", "said"),
    [
        (grid(), at(48, 64), "not a power of two", "BLOCK_M = 48 is not a power of two"),
        (grid(), at(64, 96), "not a power of two", "BLOCK_N = 96"),
        (grid(), at(192, 64), "not a power of two", "BLOCK_M = 192"),
        (grid(), at(64, 64, num_warps=12), "not a power of two", "num_warps = 12"),
        (grid(), at(1024, 64), "refused", "BLOCK_M = 1024"),
        (grid(), at(64, 64, num_stages=9), "refused", "num_stages = 9"),
        (grid("v3", fp8=True), at(64, 16), "FP8 minimum", "at least 32 keys"),
        (grid("v3", fp8=True, capability=86), at(64, 64), "refused", "sm_86"),
        (grid("v3-hopper"), at(64, 64, num_warps=4), "refused", "128 × 128 or 128 × 64"),
        (grid("v3-hopper", capability=100), at(128, 128), "refused", "sm_100"),
        (grid("v3-hopper"), at(128, 128, num_warps=4), "refused", "num_warps = 4"),
    ],
)
def test_what_needs_no_compiler_is_refused_in_a_sentence(asked: Grid, place: Place, reason: str, said: str) -> None:
    found = refusal(asked, place)
    assert (found.reason, said in found.sentence) == (reason, True), found
    assert not found.can_run


def test_what_may_compile_is_left_to_the_compiler() -> None:
    assert refusal(grid(), at(64, 64)) is None
    assert refusal(grid("v3-hopper"), at(128, 128)) is None
    assert refusal(grid("v3", fp8=True, capability=89), at(64, 32)) is None


def test_a_grid_has_every_size_of_its_version_once_in_a_layer_each() -> None:
    assert {(one.block_m, one.block_n) for one in grid().places} == {
        (m, n) for m in (16, 32, 64, 128, 256, 512) for n in (16, 32, 64, 128, 256, 512)
    }
    for version in ("v1", "v2", "v3", "v3-hopper"):
        asked = grid(version, num_stages=(2, 3))
        places = [place for layer in asked.layers.values() for place in layer]
        assert sorted(map(str, places)) == sorted(map(str, asked.places))
        assert len(set(places)) == len(places)
    asked = grid("v3-hopper", num_stages=(2,))
    assert at(192, 128, num_warps=12) in asked.places  # its warps follow BLOCK_M
    default = asked.default
    assert at(default.block_m, default.block_n, default.num_warps) in asked.places
    assert {(one.block_m, one.block_n) for one in ARTICLE} <= {(one.block_m, one.block_n) for one in grid().places}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kernel": "native"}, "no tiles to choose"),
        ({"capability": 70}, "sm_70"),
        ({"block_n": (0,)}, "BLOCK_N = 0"),
        ({"num_warps": (1, 2, 4, 8, 16), "num_stages": (1, 2, 3, 4)}, "720 cells are too many"),
        ({"precision": Precision(fp8=True)}, "FP8 is not possible with v2"),
        ({"loop_order": "key"}, "only v1"),
    ],
)
def test_an_impossible_grid_is_refused(changes: dict[str, object], said: str) -> None:
    asked = {"kernel": "v2", "problem": PROBLEM, "capability": 90}
    with pytest.raises(ValidationError, match=said):
        Grid(**asked | changes)


def test_a_report_is_judged_by_its_own_numbers() -> None:
    asked, place, good = grid(), at(64, 64), records.report()
    assert compiled(asked, place, good).reason == "fits"
    assert compiled(asked, place, good.model_copy(update={"spill_bytes": 8})).reason == "spills"
    over = compiled(asked, place, good.model_copy(update={"shared_memory_bytes": (227 << 10) + 4, "spill_bytes": 8}))
    assert (over.reason, over.needs_bytes - over.has_bytes, over.can_run) == ("shared memory", 4, False)
    # 65,536 registers, 32 warps of 128 threads' worth each: none fits.
    full = good.model_copy(update={"programs_per_sm": 0, "limited_by": "does not fit"})
    assert not compiled(asked, place, full).can_run


def test_a_kept_cell_is_found_only_by_all_that_the_compiler_saw(cache: Path) -> None:
    asked = grid()
    place = asked.places[7]
    found = compiled(asked, place, records.report())
    FeasibilityCache(asked).put(found)
    assert FeasibilityCache(asked).get(place) == found
    assert known_of(asked) == {place: found}
    assert FeasibilityCache(asked).get(asked.places[8]) is None
    longer = PROBLEM.model_copy(update={"seq_len_q": 8192})
    for other in ({"problem": longer}, {"capability": 89}, {"kernel": "v1"}, {"precision": Precision(dtype="fp16")}):
        assert FeasibilityCache(asked.model_copy(update=other)).get(place) is None
    assert FeasibilityCache(asked.model_copy(update={"kernel": "v1", "loop_order": "key"})).get(place) is None
    file = next(cache.rglob("*.json"))
    for broken in (b"", b"{", b"\xff" * 200_000, found.model_copy(update={"block_m": 128}).model_dump_json().encode()):
        file.write_bytes(broken)
        assert FeasibilityCache(asked).get(place) is None


def test_what_may_change_is_tried_again_only_when_asked() -> None:
    asked = grid(block_m=(64,), block_n=(64,))
    late = feasibility.cell(asked.places[0], "time limit", "Late.")
    FeasibilityCache(asked).put(late)
    assert known_of(asked) == dict.fromkeys(asked.places, late)
    assert known_of(asked, again=True) == {}
    filling = FeasibilityMap(asked)
    assert filling.finished
    assert filling.cells == known_of(asked)


_FAULTY = """
import os, signal, sys, time
from profiling import feasibility_process as process
from profiling.feasibility import Grid, cell, compiled
from kernels.problem import AttentionProblem
from tests import records_for_tests as records

def behave(grid, place, limit_s):
    if place.block_m == 16: os.kill(os.getpid(), signal.SIGSEGV)
    if place.block_m == 32: time.sleep(600)
    if place.block_m == 64:
        while True: pass
    if place.block_m == 128: os._exit(7)
    return compiled(grid, place, records.report())

process.compile_cell = behave
problem = AttentionProblem(seq_len_q=64, seq_len_kv=64)
grid = Grid(kernel="v2", problem=problem, capability=90, block_m=(16, 32, 64, 128, 256), block_n=(64,))
for found in process._forked(process.Question(grid=grid, limit_s=1, jobs=2), list(grid.places)):
    print(found.model_dump_json(), flush=True)
"""


def test_a_cell_that_crashes_hangs_or_runs_on_costs_only_itself() -> None:
    child = subprocess.run([sys.executable, "-c", _FAULTY], cwd=ROOT, capture_output=True, text=True, timeout=300)
    cells = {one.block_m: one for one in map(Cell.model_validate_json, child.stdout.splitlines())}
    assert {size: one.reason for size, one in cells.items()} == {
        16: "crashed", 32: "time limit", 64: "time limit", 128: "crashed", 256: "fits",
    }, child.stderr  # fmt: skip
    assert "SIGSEGV" in cells[16].sentence
    assert "without an answer" in cells[128].sentence


@pytest.mark.parametrize(
    ("error", "reason", "said"),
    [
        (RuntimeError("PassManager::run failed"), "does not compile", "v2 could not be compiled: PassManager::run failed."),
        (RuntimeError("`ptxas` failed with error code -24"), "time limit", "30 s of CPU time"),
        (AssertionError("no such layout"), "does not compile", "no such layout"),
    ],
)
def test_what_the_compiler_throws_is_the_cell_s_reason(
    error: Exception, reason: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(compile_report, "compiled_kernels", fail)
    found = compile_cell(grid(), at(64, 64))
    assert found.reason == reason
    assert said in found.sentence


def test_a_map_is_what_the_compiler_says_one_cell_at_a_time() -> None:
    small = PROBLEM.model_copy(update={"head_dim": 32})
    asked = Grid(
        kernel="v2", problem=small, capability=89, block_m=(16, 24), block_n=(16, 512), num_warps=(4,), num_stages=(3,)
    )
    maps = FeasibilityMaps()
    filling = maps.start(asked)
    assert maps.start(asked) is filling  # a second tab watches the same
    assert filling.wait(300)
    by_size = {(one.block_m, one.block_n): one for one in filling.cells.values()}
    tiles = TileConfig(block_m=16, block_n=16, num_warps=4, num_stages=3)
    (report,) = compile_reports(asked.request(asked.places[0]).model_copy(update={"tiles": tiles}), 89)
    assert by_size[16, 16].reason == "fits"
    assert by_size[16, 16].report.model_copy(update={"compile_ms": report.compile_ms}) == report
    assert by_size[16, 16].report.compile_ms > 0
    # K and V of 512 × 32 numbers of two bytes, two or more tiles each in flight, on a GPU with 99 KiB.
    assert by_size[16, 512].reason == "shared memory"
    assert by_size[16, 512].needs_bytes >= 4 * 512 * 32 * 2 > 99 * 1024
    assert by_size[24, 16].reason == by_size[24, 512].reason == "not a power of two"
    assert known_of(asked) == filling.cells  # and all of it is kept


def test_a_map_that_is_stopped_keeps_what_it_has_and_can_go_on() -> None:
    maps, asked = FeasibilityMaps(), grid(block_m=(16, 48), block_n=(16,))
    filling = maps.start(asked)
    filling.cancel()
    assert filling.wait(120)
    assert len(filling.cells) < len(asked.places)
    assert maps.of(asked).is_cancelled
    again = maps.start(asked)
    assert again is not filling
    again.cancel()
    assert again.wait(120)


def test_the_command_prints_the_table_the_json_and_the_csv(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    causal = PROBLEM.model_copy(update={"causal": True})
    asked = Grid(kernel="v2", problem=causal, capability=89, block_m=(64,), block_n=(64, 96), num_warps=(4,), num_stages=(3,))
    known, (place,) = sorted_out(asked)
    FeasibilityCache(asked).put(compiled(asked, place, records.report(89)))
    options = ["feasible", "--kernel", "v2", "--gpu", "sm_89", "--causal", "--block-m", "64", "--block-n", "64,96"]
    options += ["--num-warps", "4", "--num-stages", "3"]
    assert main([*options, "--csv", str(tmp_path / "map.csv")]) == 0
    out = capsys.readouterr().out
    for said in ("default", "BLOCK_N = 96 is not a power of two", "1 of 2 fit, 0 spill, 1 cannot run"):
        assert said in out
    lines = (tmp_path / "map.csv").read_text("utf-8-sig").splitlines()
    assert lines[0].split(",") == list(row(known[next(iter(known))]))
    assert len(lines) == 3
    assert main([*options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == document(asked, [known_of(asked)[place] for place in asked.places])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--kernel", "native"], "no tiles to choose"),
        (["--kernel", "v2", "--gpu", "H100"], "gpu = H100 is not possible"),
        (["--kernel", "v2", "--head-dim", "100"], "head_dim = 100"),
        (["--kernel", "v2", "--jobs", "0"], "jobs = 0"),
        (["--kernel", "v2", "--limit-s", "0.1"], "limit_s = 0.1"),
        (["--kernel", "v9"], "v9 is not known"),
    ],
)
def test_bad_input_gets_a_sentence(options: list[str], said: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["feasible", *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
