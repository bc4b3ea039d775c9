"""A store for tests of pages: the contract of profiling.store, in memory, with a problem to raise where a test wants one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from profiling.snapshot import AnySnapshot, Snapshot
from profiling.store import Change, Choices, Found, Kept, Listed, Origin, Query, StoreProblem
from profiling.summary import summary


class FakeStore:
    """Store's methods over a dict; `problem` set to a sentence makes every one of them raise it."""

    def __init__(self) -> None:
        self.kept: dict[str, Kept] = {}
        self.log: list[Change] = []
        self.problem: str | None = None
        self._pinned: str | None = None

    def save(self, snapshot: AnySnapshot, who: str, origin: Origin = "here") -> str:
        self._raise()
        found = self.kept.get(snapshot.id)
        if found is None:
            self.kept[snapshot.id] = Kept(snapshot, snapshot.id, origin, _now())
            self._note(who, "saved" if origin == "here" else "imported", snapshot.id)
        elif found.deleted_at is not None:
            self.restore(found.id, who)
        return snapshot.id

    def get(self, id_or_start: str) -> Kept | None:
        self._raise()
        fitting = [id for id in self.kept if len(id_or_start) >= 8 and id.startswith(id_or_start)]
        return replace(self.kept[fitting[0]], is_baseline=fitting[0] == self._pinned) if len(fitting) == 1 else None

    def search(self, query: Query, limit: int = 50, offset: int = 0) -> Found:
        self._raise()
        rows = [self._row(kept) for kept in reversed(self.kept.values())]
        rows = [row for row in rows if _fits(row, self.kept[row.id].snapshot, query)]
        return Found(tuple(rows[offset : offset + limit]), len(rows))

    def choices(self) -> Choices:
        self._raise()
        rows = [self._row(kept) for kept in self.kept.values()]

        def distinct(of: Callable[[Listed], tuple]) -> tuple:
            return tuple(sorted({value for row in rows for value in of(row) if value}))

        lengths = {one.request.problem.seq_len_q for kept in self.kept.values() for one in kept.snapshot.measurements}
        return Choices(
            kernels=distinct(lambda row: row.kernels),
            device_names=distinct(lambda row: (row.device_name,)),
            tags=distinct(lambda row: row.tags),
            authors=distinct(lambda row: (row.author,)),
            seq_lens=tuple(sorted(lengths)),
        )

    def edit(self, id: str, who: str, *, title: str, note: str, tags: tuple[str, ...]) -> str:
        self._raise()
        old = self.kept[id]
        words = {"title": title, "note": note, "tags": tags}
        new = Snapshot(**{name: getattr(old.snapshot, name) for name in Snapshot.model_fields} | words)
        if new.id == id:
            return id
        self.kept[new.id] = Kept(new, new.id, old.origin, _now())
        self.kept[id] = replace(old, deleted_at=_now(), replaced_by=new.id)
        self._pinned = new.id if self._pinned == id else self._pinned
        self._note(who, "edited", new.id)
        return new.id

    def delete(self, id: str, who: str) -> None:
        self._raise()
        self.kept[id] = replace(self.kept[id], deleted_at=_now())
        self._note(who, "deleted", id)

    def restore(self, id: str, who: str) -> None:
        self._raise()
        self.kept[id] = replace(self.kept[id], deleted_at=None, replaced_by=None)
        self._note(who, "restored", id)

    def baseline(self) -> str | None:
        self._raise()
        return self._pinned

    def pin_baseline(self, id: str | None, who: str) -> None:
        self._raise()
        if self._pinned is not None:
            self._note(who, "no longer the baseline", self._pinned)
        self._pinned = id
        if id is not None:
            self._note(who, "made the baseline", id)

    def changes(self, id: str | None = None, limit: int = 200) -> tuple[Change, ...]:
        self._raise()
        return tuple(change for change in reversed(self.log) if id in (None, change.snapshot_id))[:limit]

    def close(self) -> None:
        pass

    def _raise(self) -> None:
        if self.problem is not None:
            raise StoreProblem(self.problem)

    def _note(self, who: str, what: str, id: str) -> None:
        self.log.append(Change(_now(), who, what, id))

    def _row(self, kept: Kept) -> Listed:
        snapshot = kept.snapshot
        device = snapshot.measurements[0].environment.device if snapshot.measurements else None
        return Listed(
            id=kept.id,
            title=snapshot.title,
            note=snapshot.note,
            author=snapshot.author,
            tags=snapshot.tags,
            created_at=snapshot.created_at,
            saved_at=kept.saved_at,
            origin=kept.origin,
            kernels=tuple(dict.fromkeys(one.request.kernel for one in snapshot.measurements)),
            problem_title=snapshot.measurements[0].request.problem.title if snapshot.measurements else "",
            precision_titles=tuple(dict.fromkeys(one.request.precision.title for one in snapshot.measurements)),
            device_name=device.name if device else "",
            device_kind=device.kind if device else "",
            summary=summary(snapshot.measurements),
            is_baseline=kept.id == self._pinned,
            deleted_at=kept.deleted_at,
        )


def _fits(row: Listed, snapshot: AnySnapshot, query: Query) -> bool:
    problems = [one.request.problem for one in snapshot.measurements]
    words = " ".join((row.title, row.note, row.author, *row.tags, *row.kernels, row.problem_title, row.device_name)).casefold()
    return (
        (row.deleted_at is not None) == query.deleted
        and all(word in words for word in query.text.casefold().split())
        and query.kernel in ("", *row.kernels)
        and query.device_name in ("", row.device_name)
        and query.tag in ("", *row.tags)
        and query.author in ("", row.author)
        and (query.seq_len is None or any(problem.seq_len_q == query.seq_len for problem in problems))
        and (not query.saved_from or row.saved_at[:10] >= query.saved_from)
        and (not query.saved_until or row.saved_at[:10] <= query.saved_until)
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
