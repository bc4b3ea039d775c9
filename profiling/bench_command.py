"""The command bench: a suite run cell by cell, each a job and a snapshot; and its table, also of snapshots kept earlier."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from profiling import article, words
from profiling.job_queue import JobQueue
from profiling.keeping import STORE_HELP, Keeping, KeptAs, Wording, check_file, open_store
from profiling.record_types import first_sentence
from profiling.records import DeviceFacts, Measurement, RunRequest
from profiling.run_options import gpu_of
from profiling.snapshot import MAX_PAGE_BYTES, SUFFIX, AnySnapshot, NotASnapshot, read
from profiling.suite_table import SuiteTable, suite_table
from profiling.suites import SUITES, PlannedCell, Suite, chosen, planned, selected, suite, title_of
from profiling.summary import is_missing_peer, is_sound, summary
from profiling.terminal import BAD_INPUT, INTERRUPTED, NOT_RIGHT, RIGHT, BadInput, complain
from profiling.whole_file import read_at_most

if TYPE_CHECKING:
    from profiling.store import Store

SECONDS_BETWEEN_LOOKS = 0.5
MOST_CELLS = 500
_TAKES_THE_WORKER = ("crashed", "timeout", "launch")


def add_bench_command(commands: argparse._SubParsersAction) -> None:
    """Give a parser the command of this module."""
    parser = commands.add_parser(
        "bench",
        help="run a suite of problems by our versions and the installed peers, and print its table",
        description="Run a suite, problem by problem: interleaved, every output checked, each problem a snapshot.",
        allow_abbrev=False,
    )
    parser.epilog = (
        "Interrupted with Ctrl-C, it keeps the problems that are finished and prints their table. A version that fails costs "
        "its own cell."
    )
    parser.add_argument("suite", nargs="?", metavar="SUITE", help=f"{', '.join(SUITES)}; --list describes them")
    parser.add_argument("--list", action="store_true", help="say what each suite is, and the words that --only takes")
    parser.add_argument(
        "--only",
        metavar="WORDS",
        help="the problems with these words, with commas, as d128,16k,causal,bf16; full is not causal",
    )
    parser.add_argument("--kernel", metavar="NAMES", help="only these of the suite's versions and peers, with commas")
    parser.add_argument("--device", help="a GPU's UUID or its beginning (the first GPU)")
    parser.add_argument(
        "--from",
        dest="kept",
        metavar="FOLDER",
        help="measure nothing: the table of a folder's snapshots, or of a run's tag in the store",
    )
    group = parser.add_argument_group("keep", "Each problem is a snapshot, tagged with the suite's name and the run's.")
    group.add_argument("--save", action="store_true", help="keep the snapshots in the store")
    group.add_argument("--store", metavar="URL", help=f"with --save or --from: {STORE_HELP}")
    group.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write a file a problem into this folder, replacing those of the same name"
    )
    group.add_argument("--tag", action="append", help="one more word to find them by; can be given several times")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    shown.add_argument("--json", action="store_true", help="print the table's values as JSON, and nothing else")
    parser.set_defaults(command=bench)


def bench(options: argparse.Namespace) -> int:
    """Run the command and return its exit code. Raises BadInput, and StoreProblem."""
    if options.list:
        return _list(options)
    try:
        found = _suite(options.suite)
        cells, names = selected(found, options.only), chosen(found, options.kernel)
    except ValueError as error:
        raise BadInput(error) from None
    if not cells:
        raise BadInput(f"No problem of {found.name} has all of {options.only}.")
    if options.kept is not None:
        return _print_kept(options, found)
    with _queue() as queue:
        plan = _plan(found, cells, names, _gpu(options.device, queue))
        with _keeping(options, found) as keeping:
            run = _Run(found, plan, queue, keeping)
            run.go()
    return _finish(options, run)


def _suite(name: str | None) -> Suite:
    if name is None:
        raise BadInput(f"A suite is needed: it can be {', '.join(SUITES)}; bench --list describes them.")
    return suite(name)


def _list(options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps([_described(one) for one in SUITES.values()]))
        return RIGHT
    for one in SUITES.values():
        lines = [
            f"{one.name}: {len(one.cells)} problems. {one.what}",
            f"Source: {one.source}.",
            f"Versions: {', '.join(map(title_of, one.versions))} (--kernel takes {', '.join(one.versions)}).",
            *(f"Compared: {match.title}." for match in one.matches),
            f"--only takes {'; '.join(', '.join(kind) for kind in one.vocabulary)}.",
        ]
        print(lines[0], *(f"    {line}" for line in lines[1:]), sep="\n")
    return RIGHT


def _described(one: Suite) -> dict[str, Any]:
    return {
        "name": one.name,
        "what": one.what,
        "source": one.source,
        "problems": len(one.cells),
        "versions": list(one.versions),
        "only": [list(kind) for kind in one.vocabulary],
    }


# What is run, and where


@contextmanager
def _queue() -> Iterator[JobQueue]:
    queue = JobQueue()
    try:
        yield queue
    finally:
        queue.close()


def _gpu(asked: str | None, queue: JobQueue) -> DeviceFacts:
    try:
        return gpu_of(asked, queue.devices(), "bench", "; --from FOLDER prints the table of a kept run without one")
    except ValueError as error:
        raise BadInput(error) from None


def _plan(found: Suite, cells: Sequence, names: Sequence[str], device: DeviceFacts) -> tuple[PlannedCell, ...]:
    try:
        plan = [planned(found, cell, names, device) for cell in cells]
    except ValueError as error:
        raise BadInput(error) from None
    for sentence in dict.fromkeys(sentence for one in plan for sentence in one.left_out):
        complain(f"Left out: {sentence}")
    possible = tuple(one for one in plan if one.requests)
    if not possible:
        raise BadInput(f"None of {', '.join(names)} has a problem of this selection that it can run here.")
    return possible


@contextmanager
def _keeping(options: argparse.Namespace, found: Suite) -> Iterator[Keeping]:
    """Where the snapshots go, checked before minutes of measuring. out is the folder; _Run names a file in it for each."""
    if options.store is not None and not options.save:
        raise BadInput("--store is for snapshots that are kept there: give --save too.")
    try:
        wording = Wording(tags=(found.name, found.run_tag(datetime.now(UTC)), *(options.tag or ())))
    except ValidationError as error:
        raise BadInput(first_sentence(error)) from None
    if options.out is not None:
        _make(options.out)
    store = open_store(options.store) if options.save else None
    try:
        yield Keeping(wording, store, options.out)
    finally:
        if store is not None:
            store.close()


def _make(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"out = {folder} is not possible: it is a file, and the snapshots need a folder.")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise BadInput(f"out = {folder} cannot be made: {(error.strerror or str(error)).lower()}.") from None
    check_file(folder / f"x{SUFFIX}")


# The run


@dataclass
class _Run:
    """A suite on its way: what is finished stays, whatever happens to the rest."""

    suite: Suite
    plan: tuple[PlannedCell, ...]
    queue: JobQueue
    keeping: Keeping
    snapshots: list[AnySnapshot] = field(default_factory=list)
    kept: list[KeptAs] = field(default_factory=list)
    interrupted: bool = False

    def go(self) -> None:
        """Cell after cell, until all are done or Ctrl-C; a cell is kept as soon as it is finished."""
        begun = time.monotonic()
        try:
            for place, one in enumerate(self.plan):
                self._announce(place, time.monotonic() - begun)
                self._keep(one, self._measured(one.requests))
        except KeyboardInterrupt:
            self.interrupted = True
            complain(f"Interrupted: {len(self.snapshots)} of {len(self.plan)} problems are finished.")

    def _announce(self, place: int, elapsed_s: float) -> None:
        left = f", about {words.seconds(elapsed_s / place * (len(self.plan) - place))} left" if place else ""
        one = self.plan[place]
        names = ", ".join(map(title_of, one.names))
        complain(f"{place + 1} of {len(self.plan)}{left}: {one.cell.title} · {names}")

    def _keep(self, one: PlannedCell, measurements: tuple[Measurement, ...]) -> None:
        wording = self.keeping.wording.model_copy(update={"title": self.suite.title_of(one.cell)})
        folder = self.keeping.out
        file = None if folder is None else folder / f"{self.suite.name}-{'-'.join(one.cell.short)}{SUFFIX}"
        keeping = replace(self.keeping, wording=wording, out=file)
        snapshot = keeping.snapshot(measurements)
        self.snapshots.append(snapshot)
        if keeping.store is not None or keeping.out is not None:
            self.kept.append(keeping.put(snapshot))
            for problem in self.kept[-1].problems:
                complain(problem)
        complain(f"    {summary(measurements)}")

    def _measured(self, requests: tuple[RunRequest, ...]) -> tuple[Measurement, ...]:
        """One job; where a version took the worker with it, and so the others' times, the others once more without it."""
        found = self._job(requests)
        if len(requests) == 1 or not _worker_was_lost(found):
            return found
        complain("    No version was timed: each is tried alone, and those that work are run again.")
        alone = [self._job((_checked_only(request),))[0] for request in requests]
        sound = [place for place, one in enumerate(alone) if one.error is None]
        if not sound or len(sound) == len(requests):
            return found
        again = dict(zip(sound, self._job(tuple(requests[place] for place in sound)), strict=True))
        failed = [one.model_copy(update={"request": request}) for one, request in zip(alone, requests, strict=True)]
        return tuple(again.get(place, failed[place]) for place in range(len(requests)))

    def _job(self, requests: tuple[RunRequest, ...]) -> tuple[Measurement, ...]:
        job_id = self.queue.submit(requests, "bench")
        while not (view := self.queue.wait(job_id, SECONDS_BETWEEN_LOOKS)).finished:
            pass
        return tuple(result for result in view.results if result is not None)


def _worker_was_lost(found: Sequence[Measurement]) -> bool:
    """Whether nothing was timed because a version broke the worker, or the GPU's context."""
    broke = any(one.error is not None and one.error.kind in _TAKES_THE_WORKER for one in found)
    return broke and all(one.latency is None for one in found)


def _checked_only(request: RunRequest) -> RunRequest:
    return request.model_copy(update={"probes": ("accuracy",)})


def _finish(options: argparse.Namespace, run: _Run) -> int:
    kept = [one.facts for one in run.kept]
    if run.snapshots:
        _print(options, suite_table(run.suite, run.snapshots), kept)
        if not options.json:
            _say_where(run)
    if run.interrupted:
        return INTERRUPTED
    if any(one.problems for one in run.kept):
        return BAD_INPUT
    measurements = [one for snapshot in run.snapshots for one in snapshot.measurements]
    return RIGHT if all(_is_fine(one) for one in measurements) else NOT_RIGHT


def _is_fine(measurement: Measurement) -> bool:
    return is_missing_peer(measurement) or is_sound(measurement)


def _say_where(run: _Run) -> None:
    count = len(run.snapshots)
    if run.keeping.out is not None:
        print(f"\nWritten: {count} snapshots in {run.keeping.out}")
    if run.keeping.store is not None:
        tag = run.suite.run_tags(run.keeping.wording.tags)[-1]
        print(f"\nSaved: {count} snapshots, tagged {tag}; bench {run.suite.name} --from {tag} prints this again.")


# The table


def _print(options: argparse.Namespace, table: SuiteTable, kept: list[dict[str, Any]]) -> None:
    is_article = table.suite.name == article.SUITE
    if options.json:
        claims = {"claims": article.as_json(article.Run(table))} if is_article else {}
        print(json.dumps({**table.as_json(), **claims, "kept": kept}, allow_nan=False))
        return
    print(table.markdown() if options.markdown else table.text(), flush=True)
    if is_article:
        print(f"\n{article.text(article.Run(table))}", flush=True)


def _print_kept(options: argparse.Namespace, found: Suite) -> int:
    """The table of what was kept, or of what --only and --kernel select of it; nothing is measured."""
    for name, value in (("--out", options.out), ("--save", options.save), ("--tag", options.tag), ("--device", options.device)):
        if value:
            raise BadInput(f"{name} is for measuring, and --from measures nothing.")
    folder = Path(options.kept)
    snapshots = _in_folder(folder, found) if folder.is_dir() else _in_store(options.kept, options.store)
    names, cells = chosen(found, options.kernel), selected(found, options.only)
    table = suite_table(found, snapshots, cells, names)
    if not table.rows:
        raise BadInput(f"{options.kept} holds no snapshot of {found.name} that was asked for.")
    _print(options, table, [])
    return RIGHT


def _in_folder(folder: Path, found: Suite) -> list[AnySnapshot]:
    snapshots = []
    for path in sorted(path for path in folder.iterdir() if path.suffix in (".json", ".gz")):
        try:
            snapshot = read(read_at_most(path, MAX_PAGE_BYTES))
        except (NotASnapshot, OSError) as error:
            complain(f"{path.name} is left out: {error}")
            continue
        if found.name in snapshot.tags:
            snapshots.append(snapshot)
    return snapshots


def _in_store(tag: str, url: str | None) -> list[AnySnapshot]:
    from profiling.store import Query

    store: Store = open_store(url)
    try:
        rows = store.search(Query(tag=tag.casefold()), MOST_CELLS).rows
        kept = [store.get(row.id) for row in rows]
    finally:
        store.close()
    if not kept:
        raise BadInput(f"from = {tag} is no folder, and no snapshot in the store has that tag.")
    return [one.snapshot for one in kept if one is not None]
