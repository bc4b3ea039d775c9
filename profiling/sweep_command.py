"""The command `sweep`: which tiles are best, over a grid or by a search; stopped by Ctrl-C, resumed by its id."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from pydantic import ValidationError

from kernels.problem import BLOCK_ORDERS, Precision
from profiling import words
from profiling.keeping import COMMAND_LINE, STORE_HELP, check_file, write
from profiling.record_types import first_sentence
from profiling.records import DeviceFacts
from profiling.run_options import EXPLAINED, ON_GPU, ON_INTERPRETER, device_of, whole
from profiling.runner import Runner, add_cluster_option, runner_from
from profiling.sweep_export import csv_of, gzip_of, json_of
from profiling.sweep_file import SUFFIXES, NotASweep, read
from profiling.sweep_ranking import rankings
from profiling.sweep_record import (
    SIDES,
    CellOutcome,
    CellStatus,
    Ranking,
    RankRow,
    Sweep,
    SweepCell,
    SweepPlan,
    SweepRow,
    problems_of,
    snippet,
)
from profiling.sweep_run import PAUSED, SweepRun
from profiling.sweep_runner import planned
from profiling.sweep_store import SweepStore
from profiling.terminal import BAD_INPUT, INTERRUPTED, NOT_RIGHT, RIGHT, BadInput, columns, complain, shown
from profiling.untrusted import MAX_RAW_BYTES
from profiling.whole_file import read_at_most

_LOOK_S = 0.5
_WRITTEN = {".csv": csv_of, ".json": json_of, ".gz": gzip_of}
_USUAL = SweepPlan.model_fields
_LONGEST_WHY = 100


def add_sweep_command(commands: argparse._SubParsersAction) -> None:
    """Give the command line `sweep`."""
    parser = commands.add_parser(
        "sweep", help="find the best tiles for a GPU and problems: a grid, or a search with a budget",
        description="Compile every combination, launch those that can run, each checked and timed briefly, and time the "
        "fastest again in common rounds. Every finished cell is kept in the store at once.",
        epilog="Ctrl-C pauses it; --resume ID goes on with the cells that are missing, also after a crash. Values with commas.",
        allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("--kernel", help="v1, v2, v3 or v3-hopper; several with commas")
    group = parser.add_argument_group("problems: every combination is swept")
    group.add_argument("--seq-len", type=_wholes, metavar="N,N", help="tokens, queries and keys alike (4096; interpreter 256)")
    group.add_argument("--causal", default="no", help="yes, no or both (no)")
    group.add_argument("--head-dim", type=_wholes, metavar="N,N", help=EXPLAINED["head_dim"])
    for name in ("num_heads", "num_kv_heads", "batch"):
        group.add_argument(f"--{name.replace('_', '-')}", type=whole, metavar="N", help=EXPLAINED[name])
    group.add_argument("--dtype", default="bf16", help=EXPLAINED["dtype"])
    group.add_argument("--fp8", default="no", help="yes, no or both: e4m3 operands, for the versions that have them (no)")
    group = parser.add_argument_group("tiles: every combination is a cell")
    for name in SIDES:
        usual = ",".join(map(str, _USUAL[name].default))
        group.add_argument(f"--{name.replace('_', '-')}", type=_wholes, metavar="N,N", help=f"({usual})")
    group.add_argument("--block-order", metavar="WORDS", help=f"v2 and v3: of {', '.join(BLOCK_ORDERS)} (default)")
    group = parser.add_argument_group("sweep")
    group.add_argument("--budget", type=whole, metavar="N", help="search: time so many cells of each series (all: a grid)")
    group.add_argument(
        "--finalists", type=whole, metavar="N", help=f"of each series, timed again ({_USUAL['finalists'].default})"
    )
    group.add_argument("--seed", type=whole, metavar="N", help="of the inputs and of the search (0)")
    group.add_argument("--device", help="interpreter, GPUs by UUID or its beginning, with commas, or all (the first GPU)")
    add_cluster_option(parser)
    group.add_argument("--resume", metavar="ID", help="go on with this sweep; all else is as it was")
    group.add_argument("--list", action="store_true", help="list the sweeps in the store, and run nothing")
    group.add_argument("--show", metavar="ID|FILE", help="print a sweep as it was last kept, or of a written file; run nothing")
    group.add_argument("--store", metavar="URL", help=STORE_HELP)
    group.add_argument("--out", type=Path, metavar="FILE", help="write it too: cells as .csv, everything as .json or .json.gz")
    group.add_argument("--all", action="store_true", help="print every cell, also those that cannot run, with the reason")
    group.add_argument("--json", action="store_true", help="print everything as JSON, and nothing else")
    parser.set_defaults(command=_sweep)


def _wholes(text: str) -> tuple[int, ...]:
    return tuple(sorted({whole(one.strip()) for one in text.split(",")}))


def _sweep(options: argparse.Namespace) -> int:
    if options.out is not None:
        check_file(options.out, tuple(_WRITTEN))
    if _is_file(options.show):
        return _finish(options, _in_file(Path(options.show)))
    store = SweepStore(options.store or "")
    try:
        if options.list:
            print(*_list(store.listed()), sep="\n")
            return RIGHT
        if options.show is not None:
            return _finish(options, _known(store, options.show))
        with runner_from(options) as runner:
            return _finish(options, _run(_begun(options, store, runner), store, runner))
    finally:
        store.close()


def _known(store: SweepStore, id: str) -> Sweep:
    found = store.get(id)
    if found is None:
        raise BadInput(f"sweep = {shown(id, 40)} is not in the store {store.place}: sweep --list names those that are.")
    return found


def _is_file(asked: str | None) -> bool:
    return asked is not None and Path(asked).suffix in SUFFIXES


def _in_file(path: Path) -> Sweep:
    try:
        return read(read_at_most(path, MAX_RAW_BYTES))
    except OSError as error:
        raise BadInput(f"{shown(str(path), 200)} cannot be read: {(error.strerror or str(error)).lower()}.") from None
    except NotASweep as problem:
        raise BadInput(f"{shown(str(path), 200)}: {problem}") from None


# What is asked for


def _begun(options: argparse.Namespace, store: SweepStore, runner: Runner) -> Sweep:
    if options.resume is not None:
        if options.kernel is not None:
            raise BadInput("--resume goes on with a sweep as it was planned: --kernel and the like are not possible with it.")
        return store.take(_known(store, options.resume).sweep_id)
    if options.kernel is None:
        raise BadInput("A version is needed: --kernel v2, say; or --resume ID.")
    try:
        sweep = planned(plan_of(options, runner.devices()), runner.devices(), COMMAND_LINE)
    except ValidationError as error:
        raise BadInput(first_sentence(error)) from None
    except ValueError as error:
        raise BadInput(error) from None
    store.create(sweep)
    return sweep


def plan_of(options: argparse.Namespace, devices: tuple[DeviceFacts, ...]) -> SweepPlan:
    """The plan that parsed options ask for. Raises ValueError, in one sentence."""
    chosen = _devices(options.device, devices)
    usual = ON_INTERPRETER if chosen[0].kind == "interpreter" else ON_GPU
    problems = problems_of(
        options.seq_len or (usual["seq_len"],), _either("causal", options.causal), options.head_dim or (usual["head_dim"],),
        options.num_heads or usual["num_heads"], options.num_kv_heads, options.batch or 1,
    )  # fmt: skip
    given = {name: getattr(options, name) for name in (*SIDES, "budget", "finalists", "seed")}
    if options.block_order is not None:
        given["block_orders"] = _orders(options.block_order)
    return SweepPlan(
        kernels=tuple(dict.fromkeys(name.strip() for name in options.kernel.split(","))),
        problems=problems,
        precisions=tuple(Precision(dtype=options.dtype, fp8=fp8) for fp8 in _either("fp8", options.fp8)),
        devices=tuple(one.id for one in chosen),
        **{name: value for name, value in given.items() if value is not None},
    )


def _devices(asked: str | None, devices: tuple[DeviceFacts, ...]) -> tuple[DeviceFacts, ...]:
    if asked == "all":
        first = devices[0]
        return tuple(one for one in devices if one.kind == first.kind and one.name == first.name)
    if asked is None:
        return devices[:1]
    found = [device_of(one.strip(), devices) for one in asked.split(",")]
    return tuple({one.id: one for one in found}.values())


def _either(name: str, text: str) -> tuple[bool, ...]:
    found = {"yes": (True,), "no": (False,), "both": (False, True)}.get(text.lower())
    if found is None:
        raise ValueError(f"{name} = {text} is not possible: it can be yes, no or both.")
    return found


def _orders(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(one.strip() for one in text.split(",")))
    wrong = next((one for one in found if one not in BLOCK_ORDERS), None)
    if wrong is not None:
        raise ValueError(f"block_order = {wrong} is not possible: it can be {', '.join(BLOCK_ORDERS)}.")
    return found


# The run


def _run(sweep: Sweep, store: SweepStore, runner: Runner) -> Sweep:
    """Run it in a thread, and say on stderr how it goes; Ctrl-C pauses it at once."""
    run = SweepRun(sweep, runner, lambda outcomes, state: store.put(sweep.sweep_id, outcomes, state))
    ended = threading.Event()

    def to_the_end() -> None:
        try:
            run.run()
        finally:
            ended.set()

    complain(f"Sweep {sweep.sweep_id}: {sweep.plan.title} · {len(sweep.cells):,} cells on {sweep.device_name}.")
    threading.Thread(target=to_the_end, name="sweep", daemon=True).start()
    said: set[str] = {one.key for one in sweep.outcomes if one.is_over}
    while not ended.is_set():
        try:
            ended.wait(_LOOK_S)
            _tell(run.view(), said)
        except KeyboardInterrupt:
            complain("Pausing …")
            run.pause(now=True)
    return run.view()


def _tell(view: Sweep, said: set[str]) -> None:
    """Each cell as it is found, with how many are done and the time left."""
    state = view.state
    left = f", about {words.seconds(state.seconds_left)} left" if state.seconds_left else ""
    for cell, outcome in view.by_key.values():
        if outcome.is_over and cell.key not in said:
            said.add(cell.key)
            counted = f"{state.elapsed_s:6.1f} s  {state.done} of {state.total}{left}"
            complain(f"{counted}: {cell.series.title} · {cell.title}: {_result(outcome)}")
    if state.phase == "finals" and (mark := f"finals {len(state.running)}") not in said and state.running:
        said.add(mark)
        complain(f"{state.elapsed_s:6.1f} s  timing {len(state.running)} finalists again, in common rounds{left}")


def _result(outcome: CellOutcome) -> str:
    if outcome.median_ms is not None:
        how = "" if outcome.provenance == "measured" else ", interpreted, correct"
        return f"{words.milliseconds(outcome.median_ms)}{how}"
    return f"{outcome.reason or outcome.status}: {shown(outcome.sentence, 160)}"


# What is printed


def _list(rows: Iterable[SweepRow]) -> list[str]:
    head = ("id", "begun", "state", "cells", "what", "device")
    lines = [
        (
            row.sweep_id, row.created_at[:16].replace("T", " "), row.status, f"{row.done} of {row.total}",
            shown(row.title, 80), row.device_name,
        )
        for row in rows
    ]  # fmt: skip
    return columns([head, *lines], right=frozenset((3,))) if lines else ["There are no sweeps in this store."]


def _finish(options: argparse.Namespace, sweep: Sweep) -> int:
    if options.json:
        print(json_of(sweep).decode())
    else:
        for ranking in rankings(sweep):
            print(*_series(sweep, ranking, options.all), "", sep="\n")
    if options.out is not None:
        write(options.out, _WRITTEN[options.out.suffix](sweep))
        complain(f"Written: {options.out}")
    return _code(options, sweep)


def _code(options: argparse.Namespace, sweep: Sweep) -> int:
    state, going_on = sweep.state, f"python -m profiling sweep --resume {sweep.sweep_id}"
    if state.status == "paused":
        kept = "are in the file." if _is_file(options.show) else f"are kept. Go on with: {going_on}"
        complain(f"{state.sentence.rstrip('.')}: {state.done} of {state.total} cells {kept}")
        if options.show is not None:
            return RIGHT
        return INTERRUPTED if state.sentence == PAUSED else BAD_INPUT
    bad: tuple[CellStatus, ...] = ("wrong", "failed")
    return NOT_RIGHT if any(one.status in bad for one in sweep.outcomes) else RIGHT


def _series(sweep: Sweep, ranking: Ranking, every: bool) -> list[str]:
    """A series: its table, the best, what it wins, and how many cells could not run and why."""
    pairs = sweep.of(ranking.series)
    ranks = {row.key: row for row in ranking.rows}
    order = {row.key: place for place, row in enumerate(ranking.rows)}
    listed = sorted(
        (pair for pair in pairs if every or pair[1].status in ("measured", "wrong", "failed")),
        key=lambda pair: order.get(pair[0].key, len(order)),
    )
    head = ("rank", "BLOCK_M", "BLOCK_N", "warps", "stages", "order", "time", "min to q3", "TFLOP/s", "error", "", "why")
    found = [_line(cell, one, ranks.get(cell.key)) for cell, one in listed]
    lines = columns([head, *found], right=frozenset((0, 1, 2, 3, 4, 6, 8, 9)))
    lines = [ranking.series.title, *(lines if listed else ["Nothing was launched yet."])]
    rest = [f"{count} {_NAMES[status]}" for status, count in _counts(pairs).items() if status in _NAMES]
    if rest:
        lines.append(f"Without a time: {', '.join(rest)}." + ("" if every else " --all lists them with the reasons."))
    if ranking.best is not None:
        best = sweep.by_key[ranking.best.key][0]
        others = len(ranking.tied) - 1
        tied = f" {others} more cannot be told from it." if others else ""
        lines += ["", f"Best: {snippet(best.tiles)}.{tied}"]
    return [*lines, ranking.over_default.sentence, *_once(ranking)]


def _once(ranking: Ranking) -> list[str]:
    return [] if ranking.over_article.sentence == ranking.over_default.sentence else [ranking.over_article.sentence]


_NAMES: dict[CellStatus, str] = {
    "pending": "not tried yet", "refused": "refused", "infeasible": "cannot run", "untried": "not chosen by the search",
    "wrong": "wrong", "failed": "failed",
}  # fmt: skip


def _counts(pairs: Iterable[tuple[SweepCell, CellOutcome]]) -> dict[CellStatus, int]:
    found = dict.fromkeys(get_args(CellStatus), 0)
    for _, outcome in pairs:
        found[outcome.status] += 1
    return {status: count for status, count in found.items() if count}


def _line(cell: SweepCell, outcome: CellOutcome, rank: RankRow | None) -> tuple[str, ...]:
    tiles, known = cell.tiles, outcome.best_known
    error = None if known is None or known.accuracy is None else known.accuracy.relative_error
    span = "" if rank is None else f"{words.milliseconds(rank.low_ms)} to {words.milliseconds(rank.high_ms)}"
    return (
        "–" if rank is None else str(rank.rank),
        *(str(getattr(tiles, name)) for name in SIDES),
        tiles.block_order,
        "–" if outcome.median_ms is None else words.milliseconds(outcome.median_ms),
        span,
        "–" if known is None or known.tflops is None else words.three_digits(known.tflops),
        "–" if error is None else words.error(error),
        _marks(cell, outcome, rank),
        "" if outcome.median_ms is not None else shown(f"{outcome.reason or outcome.status}: {outcome.sentence}", _LONGEST_WHY),
    )


def _marks(cell: SweepCell, outcome: CellOutcome, rank: RankRow | None) -> str:
    said = {
        "default": "default" in cell.roles,
        "article's pair": "article" in cell.roles,
        "finalist": rank is not None and rank.is_final,
        "spills": outcome.reason == "spills",
        "interpreted": outcome.provenance == "interpreted",
    }
    return ", ".join(word for word, is_so in said.items() if is_so)
