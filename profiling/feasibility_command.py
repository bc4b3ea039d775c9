"""The command `feasible`: which tiles can run on a GPU, compiled here without one, as a table, CSV or JSON."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pydantic import ValidationError

from kernels.problem import AttentionProblem, Precision
from kernels.registry import precision_for
from profiling.feasibility import ARTICLE, CELL_LIMIT_S, GPU_NAMES, Cell, Grid, csv_of, document, row, summary
from profiling.feasibility_map import FeasibilityMap
from profiling.record_types import first_sentence
from profiling.records import CompileReport
from profiling.run_options import EXPLAINED, ON_GPU, whole
from profiling.terminal import NOT_RIGHT, RIGHT, BadInput, columns, shown
from profiling.whole_file import write_whole

_LOOK_S = 0.3
_SIDES = ("block_m", "block_n", "num_warps", "num_stages")


def add_feasible_command(commands: argparse._SubParsersAction) -> None:
    """Give the command line `feasible`."""
    parser = commands.add_parser(
        "feasible", help="say which tiles can run on a GPU, by compiling them here",
        description="Compile every BLOCK_M × BLOCK_N, launching none: shared memory, registers, spills, programs an SM, and "
        "for a cell that cannot run the reason. Cells are kept on the disk. Needs no GPU.",
        allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("--kernel", required=True, help="v1, v2, v3 or v3-hopper")
    parser.add_argument("--gpu", default="sm_90", help=f"{', '.join(GPU_NAMES)} (sm_90)")
    for name in ("seq_len", "head_dim", "num_heads"):
        usual = f"({ON_GPU[name]})"
        parser.add_argument(f"--{name.replace('_', '-')}", type=whole, default=ON_GPU[name], metavar="N", help=usual)
    for name in ("causal", "fp8"):
        parser.add_argument(f"--{name}", action="store_true", help=EXPLAINED[name])
    parser.add_argument("--dtype", default="bf16", help=EXPLAINED["dtype"])
    parser.add_argument("--loop-order", default="query", help=EXPLAINED["loop_order"])
    for name in _SIDES:
        usual = "those of the version's default tiles" if name.startswith("num") else "all that the version can have"
        parser.add_argument(f"--{name.replace('_', '-')}", type=_wholes, metavar="N,N", help=f"with commas ({usual})")
    parser.add_argument("--jobs", type=whole, help="compilers at once (as many as this machine has CPUs)")
    parser.add_argument("--limit-s", type=float, default=CELL_LIMIT_S, help=f"CPU seconds a cell may take ({CELL_LIMIT_S:g})")
    parser.add_argument("--again", action="store_true", help="try cells once more that ran out of time or crashed")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the cells there too")
    parser.add_argument("--json", action="store_true", help="print the map as JSON, with every report, and nothing else")
    parser.set_defaults(command=_feasible)


def _wholes(text: str) -> tuple[int, ...]:
    return tuple(sorted({whole(one) for one in text.split(",")}))


def _feasible(options: argparse.Namespace) -> int:
    grid = _grid(options)
    if not (options.jobs is None or 1 <= options.jobs <= 256):
        raise BadInput(f"jobs = {options.jobs} is not possible: it can be 1 to 256.")
    if not 1 <= options.limit_s <= 3600:
        raise BadInput(f"limit_s = {options.limit_s:g} is not possible: it can be 1 to 3600.")
    filling = FeasibilityMap(grid, options.limit_s, options.jobs, options.again)
    try:
        _follow(filling)
    except KeyboardInterrupt:
        filling.cancel()
        filling.wait(10)
        raise
    cells = [filling.cells[place] for place in grid.places]
    if options.csv is not None:
        try:
            write_whole(options.csv, csv_of(cells))
        except OSError as error:
            raise BadInput(f"{options.csv} cannot be written: {error.strerror or error}.") from None
    if options.json:
        print(json.dumps(document(grid, cells), allow_nan=False))
    else:
        print(*_table(grid, cells), "", f"{summary(cells)}: {grid.title}. {filling.elapsed_s:.1f} s.", sep="\n")
    return NOT_RIGHT if all(one.reason == "crashed" for one in cells) else RIGHT


def _grid(options: argparse.Namespace) -> Grid:
    """The grid that the options ask for. Raises BadInput, in one sentence, for what is not possible."""
    if options.gpu not in GPU_NAMES:
        raise BadInput(f"gpu = {options.gpu} is not possible: it can be {', '.join(GPU_NAMES)}.")
    heads, length = options.num_heads, options.seq_len
    try:
        problem = AttentionProblem(
            num_heads=heads, num_kv_heads=heads, seq_len_q=length, seq_len_kv=length, head_dim=options.head_dim,
            causal=options.causal,
        )  # fmt: skip
        asked = Precision(dtype=options.dtype, fp8=options.fp8)
        sides = {name: getattr(options, name) for name in _SIDES if getattr(options, name) is not None}
        precision = precision_for(options.kernel, asked).model_copy(update={"fp8": options.fp8})
        capability = int(options.gpu.removeprefix("sm_"))
        return Grid(
            kernel=options.kernel, problem=problem, precision=precision, capability=capability, loop_order=options.loop_order,
            **sides,
        )  # fmt: skip
    except ValidationError as error:
        raise BadInput(first_sentence(error)) from None
    except ValueError as error:
        raise BadInput(error) from None


def _follow(filling: FeasibilityMap) -> None:
    """Say each cell as it is found, on stderr."""
    said = set(filling.cells)
    while not filling.wait(_LOOK_S) or said != set(filling.cells):
        for place, found in filling.cells.items():
            if place not in said:
                said.add(place)
                count = f"{len(said)} of {len(filling.grid.places)}"
                print(f"{filling.elapsed_s:6.1f} s  {count}  {place.title}: {found.reason}", file=sys.stderr, flush=True)


def _table(grid: Grid, cells: list[Cell]) -> list[str]:
    head = ("BLOCK_M", "BLOCK_N", "warps", "stages", "result", "KiB", "registers", "spills", "per SM", "ms", "", "why")
    return columns([head, *(_row(grid, one) for one in cells)], right=frozenset((0, 1, 2, 3, 5, 6, 7, 8, 9)))


def _row(grid: Grid, one: Cell) -> tuple[str, ...]:
    found = row(one)
    report = one.report
    return (
        *(str(found[name]) for name in ("BLOCK_M", "BLOCK_N", "warps", "stages", "result")),
        "–" if one.needs_bytes is None else f"{one.needs_bytes / 1024:.4g}",
        *(("–",) * 4 if report is None else _figures(report)),
        _marks(grid, one),
        "" if one.can_run else shown(one.sentence, 160),
    )


def _figures(report: CompileReport) -> tuple[str, ...]:
    found = report.registers_per_thread, report.spill_bytes, report.programs_per_sm, report.compile_ms
    return tuple(f"{value:,.0f}" for value in found)


def _marks(grid: Grid, one: Cell) -> str:
    default = grid.default
    is_default = all(getattr(one, name) == getattr(default, name) for name in _SIDES)
    is_advice = any((one.block_m, one.block_n) == (advice.block_m, advice.block_n) for advice in ARTICLE)
    return ", ".join(word for word, is_it in (("default", is_default), ("article's pair", is_advice)) if is_it)
