"""The two selects of the Compare page: what there is to choose from, what the address asks for, and what that is."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from app import compare_choice, look, state
from app.compare_choice import Side
from app.state import Opened
from app.views import run_result
from profiling.foreign_text import printable
from profiling.snapshot import AnySnapshot
from profiling.store import Listed, Query, StoreProblem

MOST_LISTED = 200
_NAMES = {"a": "A, before", "b": "B, after"}


@dataclass(frozen=True)
class Shelf:
    """What can be chosen: the store's rows, newest first; the session's last job that is not saved; the gallery."""

    rows: tuple[Listed, ...]
    baseline: str | None
    unsaved: Opened | None
    gallery: tuple[AnySnapshot, ...]
    problem: str = ""

    def labels(self) -> dict[str, str]:
        """Labels by id: what was not saved yet, the baseline, the store, the gallery."""
        found: dict[str, str] = {}
        if self.unsaved is not None:
            found[self.unsaved.id] = _label(self.unsaved)
        for row in sorted(self.rows, key=lambda row: not row.is_baseline):
            found[row.id] = compare_choice.label_of_listed(row, run_result.when)
        for one in self.gallery:
            found.setdefault(one.id, compare_choice.label_of(one, one.id, run_result.when, "Gallery"))
        return found


@dataclass(frozen=True)
class Chosen:
    """What is compared. address: COMPARE_PARAMS; labels: of all there is, by id."""

    opened: tuple[Opened, Opened]
    sides: tuple[Side, Side]
    shelf: Shelf
    labels: dict[str, str]
    address: dict[str, str]

    def swap(self) -> None:
        """Callback: A becomes B."""
        turned = {"a": "b", "b": "a", "va": "vb", "vb": "va"}
        state.compare({turned.get(name, name): value for name, value in self.address.items()})


def choose() -> Chosen | None:
    """Draw the selects and say what they hold; None when there is nothing at all."""
    shelf = _shelf()
    if shelf.problem:
        look.sentence(f"{shelf.problem} The gallery can be compared.", strong="The store is not available.")
    asked = state.compared()
    given = {name: _asked_for(name, asked.get(name, "")) for name in ("a", "b")}
    unknown = {name for name in given if given[name] is None and asked.get(name)}
    opened = _opened(given["a"], given["b"], shelf)
    if opened is None:
        return None
    sides = compare_choice.sides(opened[0].snapshot, opened[1].snapshot, asked.get("va", ""), asked.get("vb", ""))
    labels = {**{one.id: _label(one) for one in opened}, **shelf.labels()}
    chosen = Chosen(opened, sides, shelf, labels, _address(opened, sides, asked))
    _draw(chosen)
    for name, side in zip(("va", "vb"), sides, strict=True):
        if asked.get(name) and asked[name] not in side.labels and not unknown:
            look.field_error(f"{name} = {asked[name][:80]} is no version there: it can be {', '.join(side.labels)}.")
    # What is not known stays in the address: the link may be right where the snapshot is.
    state.compare(chosen.address if not unknown else {**chosen.address, **{name: asked[name] for name in unknown}})
    return chosen


def _shelf() -> Shelf:
    gallery = tuple(one for one in state.recordings().values() if not isinstance(one, str))
    view = state.last_good()
    unsaved = state.unsaved(view) if view is not None and state.saved_as(f"job-{view.job_id}") is None else None
    store = state.store()
    if isinstance(store, str):
        return Shelf((), None, unsaved, gallery, store)
    try:
        return Shelf(store.search(Query(), MOST_LISTED).rows, store.baseline(), unsaved, gallery)
    except StoreProblem as problem:
        return Shelf((), None, unsaved, gallery, str(problem))


def _label(opened: Opened) -> str:
    where = {"gallery": "Gallery", "imported": "Imported", "unsaved": "", "here": ""}.get(opened.origin, "")
    if opened.kept is not None and opened.kept.deleted_at is not None:
        where = "Deleted"
    return compare_choice.label_of(opened.snapshot, opened.id, run_result.when, where)


def _asked_for(name: str, reference: str) -> Opened | None:
    """The snapshot that the address names for a side; a sentence when it names one that is not here."""
    if not reference:
        return None
    try:
        found = state.find(reference)
    except StoreProblem as problem:
        look.field_error(f"{name} = {reference[:80]}: {problem}")
        return None
    if found is None:
        look.field_error(
            f"{name} = {reference[:80]} is not here: neither this server's store nor the gallery has it. "
            "Something else stands in its place."
        )
    return found


def _opened(a: Opened | None, b: Opened | None, shelf: Shelf) -> tuple[Opened, Opened] | None:
    """Both sides: as asked for, else the baseline or the first recording as A, and as B what belongs to A."""
    before = a or _default_a(b, shelf)
    if before is None:
        return None
    return before, b or _default_b(before, shelf, is_asked_for=a is not None)


def _default_a(b: Opened | None, shelf: Shelf) -> Opened | None:
    if shelf.baseline is not None and (b is None or b.id != shelf.baseline):
        return _by_id(shelf.baseline)
    if b is not None:
        return b
    if shelf.unsaved is not None and len(shelf.unsaved.snapshot.measurements) > 1:
        return shelf.unsaved
    if shelf.gallery:
        return Opened(shelf.gallery[0], shelf.gallery[0].id, "gallery")
    return _by_id(shelf.rows[0].id) if shelf.rows else shelf.unsaved


def _default_b(a: Opened, shelf: Shelf, is_asked_for: bool) -> Opened:
    if not is_asked_for and a.id != shelf.baseline:
        return a
    if shelf.unsaved is not None and shelf.unsaved.id != a.id and compare_choice.belong(a.snapshot, shelf.unsaved.snapshot):
        return shelf.unsaved
    return compare_choice.partner(a.snapshot, shelf.rows, _by_id) or a


def _by_id(id: str) -> Opened | None:
    try:
        return state.find(id)
    except StoreProblem:
        return None


def _address(opened: tuple[Opened, Opened], sides: tuple[Side, Side], asked: dict[str, str]) -> dict[str, str]:
    found = {name: compare_choice.reference(one.id) for name, one in zip("ab", opened, strict=True)}
    for name, side in zip(("va", "vb"), sides, strict=True):
        if side.label is not None and len(side.labels) > 1:
            found[name] = side.label
    return found | ({"more": asked["more"]} if asked.get("more") else {})


def _draw(chosen: Chosen) -> None:
    for column, name, opened, side in zip(st.columns(2, gap="medium"), "ab", chosen.opened, chosen.sides, strict=True):
        with column:
            several = len(side.labels) > 1
            parts = st.columns([0.74, 0.26], gap="small") if several else [st.container()]
            with parts[0]:
                _select(chosen, name, opened)
            if several:
                with parts[1]:
                    _version(chosen, f"v{name}", side)
            look.caption(_words(opened))


def _select(chosen: Chosen, name: str, opened: Opened) -> None:
    state.show_chosen(name, opened.id)
    st.selectbox(
        _NAMES[name],
        list(chosen.labels),
        format_func=lambda id: chosen.labels[id],
        key=state.compare_key(name),
        on_change=_changed,
        args=(name, chosen.address),
    )


def _version(chosen: Chosen, name: str, side: Side) -> None:
    state.show_chosen(name, side.label)
    st.selectbox(
        f"Version of {name[1].upper()}",
        side.labels,
        format_func=printable,
        key=state.compare_key(name),
        on_change=_changed,
        args=(name, chosen.address),
    )


def _changed(name: str, address: dict[str, str]) -> None:
    """Callback of the selects: another snapshot keeps the version's name where it has it."""
    value = state.chosen(name)
    state.compare({**address, name: compare_choice.reference(value) if name in _NAMES else value})


def _words(opened: Opened) -> str:
    """Title, author and where it is from, which the select does not say."""
    snapshot = opened.snapshot
    place = {"gallery": "in the gallery", "imported": "imported, not measured here", "unsaved": "not saved yet"}
    return " · ".join(filter(None, [snapshot.title, snapshot.author, place.get(opened.origin, "")]))
