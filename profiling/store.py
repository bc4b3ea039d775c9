"""The store: snapshots in one database, SQLite by default, PostgreSQL by its URL; found, edited, deleted softly, logged.

A snapshot's document is never changed. What can change lives beside it: which one is the baseline, whether it is deleted,
which one replaced it. Every change is a line in the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from profiling.snapshot import AnySnapshot

if TYPE_CHECKING:
    from profiling.store_contents import Contents

Origin = Literal["here", "imported"]


class StoreProblem(Exception):
    """Why the store cannot do what was asked, in one sentence that a person can act on."""


@dataclass(frozen=True)
class Kept:
    """A snapshot in the store. deleted_at: soft deletion, None when not. replaced_by: the id of its edited successor."""

    snapshot: AnySnapshot
    id: str
    origin: Origin
    saved_at: str
    deleted_at: str | None = None
    replaced_by: str | None = None
    is_baseline: bool = False


@dataclass(frozen=True)
class Listed:
    """A row of the list, without the document: what is needed to show and to choose."""

    id: str
    title: str
    note: str
    author: str
    tags: tuple[str, ...]
    created_at: str
    saved_at: str
    origin: Origin
    kernels: tuple[str, ...]
    problem_title: str
    precision_titles: tuple[str, ...]
    device_name: str
    device_kind: str
    summary: str
    is_baseline: bool
    deleted_at: str | None


@dataclass(frozen=True)
class Query:
    """What to look for; an empty field does not restrict. text: every word must occur in title, note, author, tags,
    version, problem or device. saved_from, saved_until: ISO dates, inclusive. deleted: the deleted ones instead.
    """

    text: str = ""
    kernel: str = ""
    device_name: str = ""
    tag: str = ""
    author: str = ""
    seq_len: int | None = None
    head_dim: int | None = None
    causal: bool | None = None
    fp8: bool | None = None
    saved_from: str = ""
    saved_until: str = ""
    deleted: bool = False


@dataclass(frozen=True)
class Found:
    """A page of the list, newest first, and how many there are in all."""

    rows: tuple[Listed, ...]
    total: int


@dataclass(frozen=True)
class Choices:
    """What the filters can be set to: the distinct values in the store."""

    kernels: tuple[str, ...] = ()
    device_names: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    authors: tuple[str, ...] = ()
    seq_lens: tuple[int, ...] = ()


@dataclass(frozen=True)
class Change:
    """A line of the log: who did what to which snapshot, and when."""

    at: str
    who: str
    what: Literal[
        "saved", "imported", "edited", "deleted", "restored", "made the baseline", "no longer the baseline", "migrated"
    ]
    snapshot_id: str
    detail: str = ""


@dataclass(frozen=True)
class Migrated:
    """What a migration moved and proved: every id read back from the target and hashed again.

    sweeps, sweep_cells: how many of the source's are in the target now, as far at least as here.
    """

    copied: int
    already_there: int
    verified: int
    sweeps: int = 0
    sweep_cells: int = 0


@dataclass(eq=False)
class Store:
    """A store at a database URL. Safe to use from several threads and processes at once. Raises StoreProblem.

    url: a path, sqlite:///path or postgresql://…; the default is FLASHSCOPE_STORE, else a file in the user's data folder.
    The schema is made, or brought up to date, when the store is opened. Moments are UTC, and so are the days of a Query.
    """

    url: str = field(default="", repr=False)
    _contents: Contents = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # SQLAlchemy takes a quarter of a second to import: whoever only names a Store does not wait for it.
        from profiling.store_contents import Contents

        self._contents = Contents(self.url)

    @property
    def place(self) -> str:
        """Where the store is, to be shown: a path, or an address without its password."""
        return self._contents.place

    def save(self, snapshot: AnySnapshot, who: str, origin: Origin = "here") -> str:
        """Keep a snapshot; returns its id once it is durable. Saving it again changes nothing; a deleted one comes back."""
        return self._contents.save(snapshot, who, origin)

    def get(self, id_or_start: str) -> Kept | None:
        """The snapshot with this id, or with the one id that starts with these 8 or more digits; deleted ones too.

        Raises StoreProblem if several ids start so, and if the stored document no longer gives its id.
        """
        return self._contents.get(id_or_start)

    def search(self, query: Query, limit: int = 50, offset: int = 0) -> Found:
        """Snapshots that fit, newest first."""
        return self._contents.search(query, limit, offset)

    def choices(self) -> Choices:
        """What there is to filter by, among those that are not deleted."""
        return self._contents.choices()

    def edit(self, id: str, who: str, *, title: str, note: str, tags: tuple[str, ...]) -> str:
        """Save the same measurements under new words; the old one is deleted softly and points to the new one.

        Returns the new id; the old one, and nothing is changed, if the words are the same. The baseline moves along.
        """
        return self._contents.edit(id, who, title, note, tags)

    def delete(self, id: str, who: str) -> None:
        """Delete softly; the baseline is unpinned with it."""
        self._contents.delete(id, who)

    def restore(self, id: str, who: str) -> None:
        """Undo a soft deletion; an edited one no longer points to its successor."""
        self._contents.restore(id, who)

    def baseline(self) -> str | None:
        """The id of the pinned baseline."""
        return self._contents.baseline()

    def pin_baseline(self, id: str | None, who: str) -> None:
        """Pin the baseline, or unpin with None."""
        self._contents.pin_baseline(id, who)

    def changes(self, id: str | None = None, limit: int = 200) -> tuple[Change, ...]:
        """The log, newest first, of one snapshot or of all."""
        return self._contents.changes(id, limit)

    def rebuild_rows(self) -> int:
        """Derive again what the list and the search use from every document; returns of how many. Damaged ones are left."""
        return self._contents.rebuild_rows()

    def migrate_to(self, url: str, who: str) -> Migrated:
        """Copy everything to another store and prove it: same ids, same hashes, same log. This store is left as it is.

        Whatever the target has stays; run again it goes on where it was interrupted. Of what both have, the state that
        was changed last counts. Raises StoreProblem if anything is not in the target as it is here.
        """
        return self._contents.migrate_to(url, who)

    def close(self) -> None:
        """Let the connections go."""
        self._contents.close()
