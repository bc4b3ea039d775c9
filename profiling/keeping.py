"""What `run` keeps: in the store, in a file, or both. What cannot be kept is said before anything is measured."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from kernels.problem import Frozen
from profiling.foreign_text import MAX_NAME, Name, Note, Tags, Title
from profiling.privacy import without_personal
from profiling.record_types import first_sentence
from profiling.records import Measurement
from profiling.snapshot import Snapshot, file_of
from profiling.store import StoreProblem
from profiling.terminal import BadInput
from profiling.whole_file import write_whole

if TYPE_CHECKING:
    from profiling.store import Store

COMMAND_LINE = "command line"
"""Who changed the store, where its owner did not say a name."""
STORE_HELP = "the store, a path or a URL (FLASHSCOPE_STORE, else a file in the user's data folder)"
_SUFFIXES = (".json", ".gz")
_ONLY_KEPT = {"title": "--title", "note": "--note", "tag": "--tag", "author": "--author", "host_name": "--host-name"}


class Wording(Frozen):
    """The words a person gives to a snapshot. Raises pydantic's ValidationError, whose first sentence says what is wrong."""

    title: Title | None = None
    note: Note = ""
    tags: Tags = ()
    author: Name = ""
    host: Name = ""


@dataclass(frozen=True)
class KeptAs:
    """Where a snapshot went: facts for JSON, sentences for people; empty when nothing was to be kept.

    problems: why it could not be put where it should; what was measured is not lost by that.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    sentences: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def add_keeping_options(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options that say what becomes of what was measured."""
    group = parser.add_argument_group("keep", "Names of files' folders and of this machine and its users are left out.")
    group.add_argument("--save", action="store_true", help="keep what was measured as a snapshot in the store")
    group.add_argument("--store", metavar="URL", help=f"with --save: {STORE_HELP}")
    group.add_argument(
        "--out", type=Path, metavar="FILE", help="write the snapshot's file, replacing it: .json, or compressed .gz"
    )
    group.add_argument("--title", help="the snapshot's name (the versions, the problem and the device)")
    group.add_argument("--note", help="what a reader should know")
    group.add_argument("--tag", action="append", help="a word to find it by; can be given several times")
    group.add_argument("--author", metavar="NAME", help="who measured it; left out unless given")
    group.add_argument("--host-name", action="store_true", help="put this machine's name in; left out unless given")


@dataclass(frozen=True)
class Keeping:
    """What to keep, and where; asked_for has checked both."""

    wording: Wording
    store: Store | None = None
    out: Path | None = None

    @staticmethod
    @contextmanager
    def asked_for(options: argparse.Namespace) -> Iterator[Keeping]:
        """What the options ask for. Raises BadInput or StoreProblem when it cannot be kept; closes the store at the end."""
        wording = _wording(options)
        if options.out is not None:
            check_file(options.out)
        store = open_store(options.store) if options.save else None
        try:
            yield Keeping(wording, store, options.out)
        finally:
            if store is not None:
                store.close()

    def keep(self, measurements: Sequence[Measurement]) -> KeptAs:
        """Make the snapshot and put it where it belongs; nothing where nothing was asked for."""
        return KeptAs() if self.store is None and self.out is None else self.put(self.snapshot(measurements))

    def put(self, snapshot: Snapshot) -> KeptAs:
        """Put it where it belongs, into the store also when the file could not be written."""
        facts: dict[str, Any] = {"id": snapshot.id}
        sentences, problems = [], []
        if self.out is not None:
            try:
                write(self.out, snapshot.document if self.out.suffix == ".json" else file_of(snapshot))
                facts["out"] = str(self.out)
                sentences.append(f"Written: {self.out}")
            except BadInput as problem:
                problems.append(str(problem))
        if self.store is not None:
            try:
                self.store.save(snapshot, snapshot.author or COMMAND_LINE)
                facts["link"] = f"/snapshots?snapshot={snapshot.id}"
                sentences += [f"Saved: {snapshot.id}", f"Link, after FlashScope's address: {facts['link']}"]
            except StoreProblem as problem:
                problems.append(str(problem))
        return KeptAs(facts, tuple(sentences), tuple(problems))

    def snapshot(self, measurements: Sequence[Measurement]) -> Snapshot:
        """What was measured, with the words, and without what tells of a person or a machine."""
        wording = self.wording
        now = datetime.now(UTC).isoformat(timespec="seconds")
        title = wording.title or usual_title(measurements)
        whole = Snapshot(title=title, note=wording.note, tags=wording.tags, created_at=now, measurements=tuple(measurements))
        plain = without_personal(whole)
        fields = {name: getattr(plain, name) for name in Snapshot.model_fields}
        return Snapshot(**{**fields, "author": wording.author, "host": wording.host})


def usual_title(measurements: Sequence[Measurement]) -> str:
    """A title made of what was run: 'v1, v2: 4,096 tokens · head_dim 128 on H200'."""
    first = measurements[0]
    labels = list(dict.fromkeys(one.label for one in measurements))
    device = first.environment.device.short_name.split(" · ")[0]
    rest = f"{first.request.problem.title} on {device}"
    whole = f"{', '.join(labels)}: {rest}"
    return whole if len(whole) <= MAX_NAME else f"{len(labels)} versions: {rest}"[:MAX_NAME]


def check_file(path: Path, suffixes: tuple[str, ...] = _SUFFIXES) -> None:
    """Raise BadInput when the file cannot be written, or its name does not say as what."""
    if path.suffix not in suffixes:
        raise BadInput(f"out = {path} is not possible: its name ends in {' or '.join(suffixes)}.")
    if not path.parent.is_dir():
        raise BadInput(f"out = {path} is not possible: there is no folder {path.parent}.")
    if path.is_dir():
        raise BadInput(f"out = {path} is not possible: it is a folder.")
    if not os.access(path.parent, os.W_OK):
        raise BadInput(f"out = {path} is not possible: this user may not write in {path.parent}.")


def write(path: Path, data: bytes) -> None:
    """Write the whole file or raise BadInput, with what stood there intact."""
    try:
        write_whole(path, data)
    except OSError as error:
        raise BadInput(f"{path} could not be written: {(error.strerror or str(error)).lower()}.") from None


def open_store(url: str | None) -> Store:
    """The store at a URL, or the usual one. Imports the database. Raises StoreProblem."""
    from profiling.store import Store

    return Store(url or "")


def _wording(options: argparse.Namespace) -> Wording:
    if not options.save and options.out is None:
        for name, option in _ONLY_KEPT.items():
            if getattr(options, name):
                raise BadInput(f"{option} is for a snapshot: give --save or --out FILE too.")
    if options.store is not None and not options.save:
        raise BadInput("--store is for a snapshot that is kept there: give --save too.")
    try:
        return Wording(
            title=options.title,
            note=options.note or "",
            tags=tuple(options.tag or ()),
            author=options.author or "",
            host=platform.node() if options.host_name else "",
        )
    except ValidationError as error:
        raise BadInput(first_sentence(error)) from None
