"""The commands on snapshots: list, export, import, compare, store. Each opens the store only when it needs it."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiling.compare_report import RULE, Limit, as_json, by_label, compare, failures, refusals, report
from profiling.keeping import COMMAND_LINE, STORE_HELP, check_file, open_store, write
from profiling.nvbench_json import nvbench_json
from profiling.plausibility import implausible
from profiling.privacy import personal
from profiling.run_options import whole
from profiling.samples_csv import samples_csv
from profiling.schedule_csv import HEADER as SCHEDULE_HEADER
from profiling.schedule_csv import schedule_csv
from profiling.snapshot import MAX_PAGE_BYTES, AnySnapshot, NewerSnapshot, NotASnapshot, file_of, read
from profiling.store import Listed, Query, StoreProblem
from profiling.summary import summary
from profiling.terminal import BAD_INPUT, NOT_RIGHT, RIGHT, BadInput, Parser, columns, complain, shown
from profiling.whole_file import read_at_most
from profiling.words import bytes_

if TYPE_CHECKING:
    from profiling.store import Store

BASELINE = "baseline"
FEWEST_DIGITS = 8
WRITES_HTML = "python -m app export FILE --out PAGE"
_REFERENCE = f"a snapshot's id or its first {FEWEST_DIGITS} digits or more, a file (.json, .gz, an exported .html), or baseline"
_SHORT_ID = 12
_AT_ONCE = 200


def add_snapshot_commands(commands: argparse._SubParsersAction) -> None:
    """Give a parser the commands of this module."""
    _add_list(commands)
    _add_compare(commands)
    _add_export(commands)
    _add_import(commands)
    _add_store(commands)


def _command(commands: argparse._SubParsersAction, name: str, what: str, function: Any, store: bool = True) -> Parser:
    parser = commands.add_parser(name, help=what, description=f"{what[:1].upper()}{what[1:]}.", allow_abbrev=False)
    parser.set_defaults(command=function)
    if store:
        parser.add_argument("--store", metavar="URL", help=STORE_HELP)
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    return parser


def _print_json(value: Any) -> None:
    print(json.dumps(value, allow_nan=False))


# References


class _Shelf:
    """The store, opened at its first use."""

    def __init__(self, url: str | None) -> None:
        self._url, self._store = url, None

    @property
    def store(self) -> Store:
        """The open store. Raises StoreProblem."""
        if self._store is None:
            self._store = open_store(self._url)
        return self._store

    def close(self) -> None:
        """Close it if it was opened."""
        if self._store is not None:
            self._store.close()


@contextmanager
def _shelf(options: argparse.Namespace) -> Iterator[_Shelf]:
    shelf = _Shelf(options.store)
    try:
        yield shelf
    finally:
        shelf.close()


def _opened(reference: str, shelf: _Shelf) -> AnySnapshot:
    """The snapshot that a reference names. Raises BadInput when there is none, StoreProblem when the store cannot tell."""
    if reference != BASELINE and os.path.exists(reference):
        try:
            return read(_bytes(Path(reference)))
        except (NotASnapshot, BadInput) as error:
            raise BadInput(f"{shown(reference)}: {error}") from None
    wanted = reference
    if reference == BASELINE:
        wanted = shelf.store.baseline()
        if wanted is None:
            raise BadInput("No baseline is pinned in this store: pin one on the Snapshots page, or name a snapshot's id.")
    elif not _is_digits(reference):
        raise BadInput(f"{shown(reference)} is no snapshot: it can be {_REFERENCE}.")
    kept = shelf.store.get(wanted)
    if kept is None:
        raise BadInput(f"No snapshot in this store has an id that begins with {shown(reference)}: see the command list.")
    if kept.deleted_at is not None:
        edited = f" and was edited: its newer form is {kept.replaced_by[:_SHORT_ID]}" if kept.replaced_by else ""
        complain(f"{kept.id[:_SHORT_ID]} is deleted{edited}; it is used all the same.")
    return kept.snapshot


def _is_digits(reference: str) -> bool:
    return FEWEST_DIGITS <= len(reference) <= 64 and all(digit in "0123456789abcdef" for digit in reference.lower())


def _bytes(path: Path) -> bytes:
    try:
        return read_at_most(path, MAX_PAGE_BYTES)
    except OSError as error:
        raise BadInput(f"It cannot be read: {(error.strerror or str(error)).lower()}.") from None


# compare


def _add_compare(commands: argparse._SubParsersAction) -> None:
    parser = _command(commands, "compare", "say of each version in two snapshots whether it got faster or slower", _compare)
    parser.epilog = f"With --fail-if-slower: {RULE} A comparison that is not possible ends with 2."
    parser.add_argument("a", metavar="A", help=f"the one before: {_REFERENCE}")
    parser.add_argument("b", metavar="B", nargs="?", help="the one after, written likewise; without it A's own versions")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--version", metavar="LABEL", help="compare this version alone, named as the table names it")
    which.add_argument(
        "--versions",
        nargs=2,
        metavar=("LABEL_A", "LABEL_B"),
        help="compare this version of A with that version of B; v2@block_m=64 where there are several",
    )
    parser.add_argument(
        "--fail-if-slower", type=_share, metavar="5%", help="for CI: end with 1 when a version in B is slower by more than this"
    )
    parser.add_argument("--strict", action="store_true", help="with --fail-if-slower: whatever is not surely within it fails")


def _share(text: str) -> float:
    digits = text.strip().removesuffix("%").rstrip()
    try:
        share = float(digits) / 100 if text.strip().endswith("%") else -1.0
    except ValueError:
        share = -1.0
    if not 0 <= share < 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not possible: it is a percentage from 0% on, as 5%")
    return share


def _compare(options: argparse.Namespace) -> int:
    if options.strict and options.fail_if_slower is None:
        raise BadInput("--strict makes --fail-if-slower stricter: give that too, as --fail-if-slower 5%.")
    if options.b is None and options.versions is None:
        raise BadInput("One snapshot alone is compared by two of its versions: give a second one, or --versions v2 v3.")
    with _shelf(options) as shelf:
        before = _opened(options.a, shelf)
        after = before if options.b is None else _opened(options.b, shelf)
    comparison = compare(before, after, options.version, options.versions)
    limit = None if options.fail_if_slower is None else Limit(options.fail_if_slower, options.strict)
    refused = refusals(comparison)
    code = NOT_RIGHT if failures(comparison, limit) else BAD_INPUT if refused else RIGHT
    if options.json:
        _print_json(as_json(comparison, limit, code))
    else:
        print(report(comparison, limit))
    if refused:
        complain(f"No word is possible on {len(refused)} of {len(comparison.pairs)} versions; each says why.")
    return code


# list


def _add_list(commands: argparse._SubParsersAction) -> None:
    parser = _command(commands, "list", "list the snapshots in the store, newest first", _list)
    parser.add_argument("words", nargs="*", help="words that all occur in title, note, author, tags, version, problem or GPU")
    parser.add_argument("--kernel", help="with this version, v2 say")
    parser.add_argument("--gpu", metavar="NAME", help="measured on this GPU; a part of its name is enough")
    parser.add_argument("--tag", help="with this tag")
    parser.add_argument("--author", metavar="NAME", help="by this author")
    parser.add_argument("--seq-len", type=whole, metavar="N", help="with so many queries, or keys")
    parser.add_argument("--head-dim", type=whole, metavar="N", help="with this head_dim")
    parser.add_argument("--since", type=_day, metavar="DATE", help="saved on this day (UTC) or later, as 2026-11-29")
    parser.add_argument("--until", type=_day, metavar="DATE", help="saved on this day (UTC) or earlier")
    parser.add_argument("--deleted", action="store_true", help="those that were deleted, instead")
    parser.add_argument("--limit", type=_count, default=50, metavar="N", help="how many at most (50)")


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date: it is written as 2026-11-29") from None


def _count(text: str) -> int:
    count = whole(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text} is not possible: it can be 1 or more")
    return count


def _list(options: argparse.Namespace) -> int:
    with _shelf(options) as shelf:
        found = shelf.store.search(_query(options, shelf.store), options.limit)
        place = shelf.store.place
    if options.json:
        _print_json({"store": place, "total": found.total, "snapshots": [asdict(row) for row in found.rows]})
        return RIGHT
    if not found.rows:
        print(f"No snapshot fits in {place}; run --save keeps one.")
        return RIGHT
    for line in _table(found.rows):
        print(line)
    if found.total > len(found.rows):
        print(f"{len(found.rows)} of {found.total:,}; --limit shows more.")
    return RIGHT


def _query(options: argparse.Namespace, store: Store) -> Query:
    return Query(
        text=" ".join(options.words),
        kernel=options.kernel or "",
        device_name=_device_name(options.gpu, store) if options.gpu else "",
        tag=options.tag or "",
        author=options.author or "",
        seq_len=options.seq_len,
        head_dim=options.head_dim,
        saved_from=options.since or "",
        saved_until=options.until or "",
        deleted=options.deleted,
    )


def _device_name(asked: str, store: Store) -> str:
    """The one name in the store that holds what was asked for. Raises BadInput for none, and for several."""
    names = store.choices().device_names
    found = [name for name in names if asked.casefold() in name.casefold()]
    if asked in names or not names:
        return asked
    if not found:
        raise BadInput(f"gpu = {shown(asked)} is not in this store: it can be {', '.join(map(shown, names))}.")
    if len(found) > 1:
        raise BadInput(f"gpu = {shown(asked)} fits several: {', '.join(map(shown, found))}.")
    return found[0]


def _table(rows: Sequence[Listed]) -> list[str]:
    """The rows with their heads; on a terminal cut at its width, the longest column last."""
    heads = ["id", "saved (UTC)", "device", "problem", "by", "title", "outcome"]
    lines = columns([heads, *(_cells(row) for row in rows)])
    if not sys.stdout.isatty():
        return lines
    width = shutil.get_terminal_size().columns
    return [line if len(line) <= width else f"{line[: width - 1]}…" for line in lines]


def _cells(row: Listed) -> list[str]:
    marks = [*(["baseline"] if row.is_baseline else []), *(["imported"] if row.origin == "imported" else [])]
    marks += [f"#{shown(tag)}" for tag in row.tags]
    return [
        row.id[:_SHORT_ID],
        row.saved_at[:16].replace("T", " "),
        shown(row.device_name, 40).removeprefix("NVIDIA "),
        shown(row.problem_title, 60),
        shown(row.author, 20) or "–",
        " ".join([shown(row.title, 80), *([f"({', '.join(marks)})"] if marks else [])]),
        shown(row.summary),
    ]


# export


def _add_export(commands: argparse._SubParsersAction) -> None:
    parser = _command(commands, "export", "write a snapshot's file, or its samples", _export)
    parser.epilog = f"{WRITES_HTML} makes of a snapshot's file a page that opens without FlashScope."
    parser.add_argument("snapshot", metavar="ID", help=_REFERENCE)
    parser.add_argument(
        "--out",
        required=True,
        type=Path,
        metavar="FILE",
        help="named by what it holds: .json or .gz the snapshot, .csv every launch (snapshot_id, version, round, ms)",
    )
    parser.add_argument(
        "--nvbench",
        action="store_true",
        help="with a .json: the GPU times as NVIDIA nvbench's JSON (version 1.0.0): a benchmark a version with its problem as "
        "axes, and of its launches min, max, mean, quartiles and spread, in seconds. nvbench-compare-legacy reads it whole; "
        "nvbench-compare-robust too, but stays AMBG on a clear gap, for want of the clock of each launch",
    )
    parser.add_argument(
        "--schedule",
        action="store_true",
        help=f"with a .csv: the stamps instead of the launches, a row a piece of work ({', '.join(SCHEDULE_HEADER)}); head "
        "counts through the batch, block is -1 where a program did a whole head",
    )
    parser.add_argument("--force", action="store_true", help="replace the file if it is there")


def _export(options: argparse.Namespace) -> int:
    out: Path = options.out
    if out.suffix in (".html", ".htm"):
        raise BadInput(f"out = {out} is not possible here: {WRITES_HTML} makes an HTML page of a snapshot's file.")
    check_file(out, tuple(_CONTENTS))
    if options.nvbench and out.suffix != ".json":
        raise BadInput(f"out = {out} is not possible with --nvbench: its name ends in .json.")
    if options.schedule and out.suffix != ".csv":
        raise BadInput(f"out = {out} is not possible with --schedule: its name ends in .csv.")
    if out.exists() and not options.force:
        raise BadInput(f"out = {out} is there already: --force replaces it.")
    with _shelf(options) as shelf:
        snapshot = _opened(options.snapshot, shelf)
    tells = personal(snapshot)
    for sentence in tells:
        complain(f"The file tells: {shown(sentence)}")
    data = _content(options, snapshot)
    write(out, data)
    if options.json:
        _print_json({"id": snapshot.id, "out": str(out), "bytes": len(data), "tells": list(tells)})
    else:
        print(f"Written: {out} ({bytes_(len(data))}), snapshot {snapshot.id[:_SHORT_ID]}")
    return RIGHT


def _content(options: argparse.Namespace, snapshot: AnySnapshot) -> bytes:
    if options.nvbench:
        return _nvbench(snapshot)
    if options.schedule:
        if all(measurement.schedule is None for measurement in snapshot.measurements):
            raise BadInput(f"snapshot {snapshot.id[:_SHORT_ID]} has no schedule: run --probes schedule takes one.")
        return schedule_csv(snapshot).encode()
    return _CONTENTS[options.out.suffix](snapshot)


def _nvbench(snapshot: AnySnapshot) -> bytes:
    try:
        value = nvbench_json(snapshot, by_label(snapshot))
    except ValueError as error:
        raise BadInput(error) from None
    return json.dumps(value, indent=2, allow_nan=False).encode()


_CONTENTS = {
    ".json": lambda snapshot: snapshot.document,
    ".gz": file_of,
    ".csv": lambda snapshot: samples_csv(snapshot).encode(),
}


# import


def _add_import(commands: argparse._SubParsersAction) -> None:
    parser = _command(commands, "import", "show what snapshot files hold, and keep them in the store", _import)
    parser.epilog = "A file that is no snapshot does not keep the others out; the exit code is 2 then."
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a snapshot's .json, .gz or exported .html")
    parser.add_argument("--dry-run", action="store_true", help="only show what they hold")


def _import(options: argparse.Namespace) -> int:
    done = []
    with _shelf(options) as shelf:
        store = shelf.store
        for file in options.files:
            try:
                snapshot = read(_bytes(file))
                there = store.get(snapshot.id)
                found = _preview(snapshot, there is not None and there.deleted_at is None)
                if not options.dry_run:
                    store.save(snapshot, COMMAND_LINE, origin="imported")
                done.append({"file": str(file), "error": None, "kept": not options.dry_run, **found})
            except (NotASnapshot, BadInput, StoreProblem) as error:
                done.append({"file": str(file), "error": str(error), "kept": False})
            if not options.json:
                _print_imported(done[-1])
    if options.json:
        _print_json(done)
    return BAD_INPUT if any(one["error"] for one in done) else RIGHT


def _preview(snapshot: AnySnapshot, already_there: bool) -> dict[str, Any]:
    measurements = snapshot.measurements
    return {
        "id": snapshot.id,
        "title": snapshot.title,
        "author": snapshot.author,
        "created_at": snapshot.created_at,
        "devices": _distinct(one.environment.device.name for one in measurements),
        "versions": [one.label for one in measurements],
        "problems": _distinct(one.request.problem.title for one in measurements),
        "outcome": summary(measurements),
        "newer_schema": snapshot.schema_version if isinstance(snapshot, NewerSnapshot) else None,
        "already_there": already_there,
        "implausible": list(implausible(snapshot)),
        "tells": list(personal(snapshot)),
    }


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _print_imported(one: dict[str, Any]) -> None:
    if one["error"]:
        complain(f"{shown(one['file'])}: {one['error']}")
        return
    what = [one["created_at"][:16].replace("T", " "), *one["devices"], *one["problems"], ", ".join(one["versions"])]
    lines = [f"{one['title']} · by {one['author'] or 'no one named'}", " · ".join(what), one["outcome"]]
    if one["newer_schema"] is not None:
        lines.append(f"Made by a newer FlashScope (schema {one['newer_schema']}): only what is understood is shown.")
    lines += [f"Implausible: {sentence}" for sentence in one["implausible"]]
    lines += [f"It tells: {sentence}" for sentence in one["tells"]]
    kept = "Kept as imported" if one["kept"] else "Not kept (--dry-run)"
    lines.append(f"{'Already there' if one['already_there'] else kept}: {one['id']}")
    print(
        f"{shown(one['file'])}: {shown(lines[0])}", *(f"    {shown(line)}" for line in lines[1:] if line), sep="\n", flush=True
    )


# store


def _add_store(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "store", help="say where the store is, check it, or move it", description="The store itself.", allow_abbrev=False
    )
    actions = parser.add_subparsers(required=True, metavar="where | check | migrate", parser_class=Parser, title="actions")
    _command(actions, "where", "say where the store is, how many snapshots it has, and how large it is", _store_where)
    _command(actions, "check", "read every document in the store and hash it again", _store_check)
    migrate = _command(actions, "migrate", "copy everything to another store, and prove it by hashes", _store_migrate)
    migrate.add_argument("--to", required=True, metavar="URL", help="the other store: a path, sqlite:///path or postgresql://…")
    migrate.epilog = "This store is left as it is. Interrupted, it can be run again."


def _store_where(options: argparse.Namespace) -> int:
    with _shelf(options) as shelf:
        store = shelf.store
        kept, deleted = (store.search(Query(deleted=which), 1).total for which in (False, True))
        size = _size_bytes(store.place)
        place = store.place
    if options.json:
        _print_json({"store": place, "snapshots": kept, "deleted": deleted, "bytes": size})
    else:
        sizes = [] if size is None else [bytes_(size)]
        print(
            " · ".join(
                [
                    place,
                    f"{kept:,} {'snapshot' if kept == 1 else 'snapshots'}",
                    *([f"{deleted:,} deleted"] if deleted else []),
                    *sizes,
                ]
            )
        )
    return RIGHT


def _size_bytes(place: str) -> int | None:
    """What a file's store takes on the disk, with what SQLite keeps beside it; None for a server's."""
    if "://" in place:
        return None
    files = [Path(place + ending) for ending in ("", "-wal", "-shm")]
    return sum(file.stat().st_size for file in files if file.exists())


def _store_check(options: argparse.Namespace) -> int:
    damaged, checked = [], 0
    with _shelf(options) as shelf:
        store = shelf.store
        for id in _every_id(store):
            checked += 1
            try:
                found = store.get(id)
                if found is None or found.snapshot.id != id:
                    damaged.append(f"Snapshot {id[:_SHORT_ID]} is listed, and not there under its hash.")
            except StoreProblem as problem:
                damaged.append(str(problem))
        place = store.place
    if options.json:
        _print_json({"store": place, "checked": checked, "damaged": damaged})
    else:
        print(*damaged, f"{place}: {checked:,} documents hashed again, {len(damaged):,} damaged.", sep="\n")
    return NOT_RIGHT if damaged else RIGHT


def _every_id(store: Store) -> list[str]:
    ids: dict[str, None] = {}
    for deleted in (False, True):
        total, offset = 1, 0
        while offset < total:
            found = store.search(Query(deleted=deleted), _AT_ONCE, offset)
            ids.update(dict.fromkeys(row.id for row in found.rows))
            total, offset = found.total, offset + _AT_ONCE
    return list(ids)


def _store_migrate(options: argparse.Namespace) -> int:
    with _shelf(options) as shelf:
        moved = shelf.store.migrate_to(options.to, COMMAND_LINE)
    if options.json:
        _print_json(asdict(moved))
    else:
        print(f"{moved.copied:,} copied, {moved.already_there:,} already there, {moved.verified:,} hashed again and equal.")
        if moved.sweeps:
            print(f"{moved.sweeps:,} sweeps with {moved.sweep_cells:,} cells are there too.")
    return RIGHT
