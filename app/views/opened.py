"""An opened snapshot: its words, where it comes from, everything it shows, and what can be done with it."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from app import look, state
from app.state import Opened, Receipt
from app.views import actions, run_it_here, run_result, save, schedule, softmax
from profiling.plausibility import implausible
from profiling.snapshot import AnySnapshot, NewerSnapshot
from profiling.store import Kept, Store, StoreProblem

_EDIT = "edit"


def from_address(reference: str) -> bool:
    """Show the snapshot that the address names; False, with a sentence, when there is none."""
    try:
        found = state.find(reference)
    except StoreProblem as problem:
        look.field_error(str(problem))
        return False
    if found is None or found.origin == "unsaved":
        _unknown(reference)
        return False
    show(found, "All snapshots", state.open_snapshot)
    return True


def show(found: Opened, back: str, go_back: Callable[[None], None]) -> None:
    """The whole page of a snapshot; back and go_back lead to the list it came from."""
    snapshot = found.snapshot
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", gap="small"):
        look.title(snapshot.title)
        with st.container(horizontal=True, gap="small", width="content", vertical_alignment="center"):
            actions.toolbar(found)
            run_it_here.button(found)
            if found.kept is not None:
                _more(found.kept)
            st.button(back, icon=":material/arrow_back:", type="tertiary", on_click=go_back, args=(None,))
    _state_of(found)
    save.below(found)
    run_it_here.below(found)
    words(found)
    if found.origin == "imported":
        warnings(snapshot)
    run_result.show(snapshot.measurements, found.origin)
    softmax.watched(snapshot.measurements)
    schedule.watched(snapshot.measurements, found.origin)
    if found.kept is not None and state.dialog_is_open(_EDIT, found.id):
        _edit(found.kept)


def words(found: Opened) -> None:
    """What ran, the note, by whom and when, the tags; and what a newer FlashScope's snapshot cannot show here."""
    snapshot = found.snapshot
    if isinstance(snapshot, NewerSnapshot):
        _newer(snapshot)
    with st.container(gap="xsmall"):
        ran = run_result.title([one.request for one in snapshot.measurements]) if snapshot.measurements else ""
        if ran and ran != snapshot.title:
            look.sentence("", strong=ran)
        if snapshot.note:
            look.note(snapshot.note, "Note")
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            look.caption(_by_line(found))
            if snapshot.tags:
                look.chips([("tag", tag, "A tag.") for tag in snapshot.tags], width="content")


def warnings(snapshot: AnySnapshot) -> None:
    """Why the numbers of a file cannot be believed, where they cannot."""
    for sentence in implausible(snapshot):
        look.warning(sentence)


def icons(id: str, is_baseline: bool, is_deleted: bool) -> None:
    """Pin and delete, or restore, as buttons with an icon alone."""
    if is_deleted:
        st.button("Restore", icon=":material/undo:", key=f"restore-{id}", on_click=restore, args=(id,))
        return
    pin_help = "Unpin: it is the baseline" if is_baseline else "Pin as the baseline that others are compared with"
    st.button(
        "Unpin the baseline" if is_baseline else "Pin as baseline",
        icon=":material/keep_off:" if is_baseline else ":material/keep:",
        type="tertiary",
        key=f"icon-pin-{id}",
        help=pin_help,
        on_click=pin,
        args=(None if is_baseline else id,),
    )
    st.button(
        "Delete",
        icon=":material/delete:",
        type="tertiary",
        key=f"icon-delete-{id}",
        help="Delete; it can be undone",
        on_click=delete,
        args=(id,),
    )


def pin(id: str | None) -> None:
    """Callback: make a snapshot the baseline, or none with None."""
    _change(lambda store: store.pin_baseline(id, state.who()))


def delete(id: str) -> None:
    """Callback: delete softly, and offer the undo."""
    if _change(lambda store: store.delete(id, state.who())):
        state.deleted_now(id)


def restore(id: str) -> None:
    """Callback: undo a deletion."""
    if _change(lambda store: store.restore(id, state.who())):
        state.deleted_now(None)


def _change(change: Callable[[Store], None]) -> bool:
    """Change the store; when it cannot be changed, the page says why."""
    store = state.store()
    try:
        if isinstance(store, str):
            raise StoreProblem(store)
        change(store)
    except StoreProblem as problem:
        state.show_problem(str(problem))
        return False
    return True


def _unknown(reference: str) -> None:
    look.field_error(
        f"snapshot = {reference[:80]} is not here: neither this server's store nor the gallery has it. "
        "Check the link, or ask for the file."
    )


def _state_of(found: Opened) -> None:
    """What a reader must know before the numbers: deleted, replaced, the baseline."""
    kept = found.kept
    if kept is None or kept.deleted_at is None:
        return
    with st.container(border=True, horizontal=True, gap="small", vertical_alignment="center", key="deleted"):
        if kept.replaced_by is not None:
            look.sentence("The measurements are the same.", strong="Its words were edited:", width="content")
            st.button("Open the newer one", key="open-newer", on_click=state.open_snapshot, args=(kept.replaced_by,))
        else:
            look.sentence(f"It was deleted {run_result.when(kept.deleted_at)}.", width="content")
            st.button("Restore", icon=":material/undo:", key="restore", on_click=restore, args=(kept.id,))


def _newer(snapshot: NewerSnapshot) -> None:
    shown = len(snapshot.measurements)
    what = "None of its measurements is understood here" if shown == 0 else "What is understood is shown"
    with st.container(border=True, key="newer"):
        look.sentence(
            f"Its schema is {snapshot.schema_version}. {what}; it is kept byte for byte and cannot be edited. "
            "Update FlashScope to see all of it.",
            strong="Made by a newer FlashScope.",
        )


def _by_line(found: Opened) -> str:
    snapshot, kept = found.snapshot, found.kept
    parts = [
        f"Made {run_result.when(snapshot.created_at)}" if snapshot.created_at else "",
        f"by {snapshot.author}" if snapshot.author else "",
        f"on {snapshot.host}" if snapshot.host else "",
        f"{'imported' if kept.origin == 'imported' else 'saved'} {run_result.when(kept.saved_at)}" if kept else "",
        "the baseline" if kept and kept.is_baseline else "",
        f"id {found.id[:12]}",
    ]
    return " · ".join(part for part in parts if part)


def _more(kept: Kept) -> None:
    with st.popover("More", icon=":material/more_horiz:", key="more"):
        deleted = kept.deleted_at is not None
        if not isinstance(kept.snapshot, NewerSnapshot) and not deleted:
            st.button(
                "Edit title, note, tags", icon=":material/edit:", width="stretch", key="edit",
                on_click=state.open_dialog, args=(_EDIT, kept.id),
            )  # fmt: skip
        if deleted:
            st.button("Restore", icon=":material/undo:", width="stretch", key="more-restore", on_click=restore, args=(kept.id,))
        else:
            st.button(
                "Unpin the baseline" if kept.is_baseline else "Pin as baseline",
                icon=":material/keep:", width="stretch", key="more-pin",
                on_click=pin, args=(None if kept.is_baseline else kept.id,),
            )  # fmt: skip
            st.button(
                "Delete",
                icon=":material/delete:",
                width="stretch",
                key="more-delete",
                on_click=_delete_and_leave,
                args=(kept.id,),
            )
        _compare_with_baseline(kept)
        _history(kept)


def _delete_and_leave(id: str) -> None:
    delete(id)
    if state.just_deleted() == id:
        state.open_snapshot(None)


def _compare_with_baseline(kept: Kept) -> None:
    store = state.store()
    baseline = None if isinstance(store, str) else store.baseline()
    if baseline is not None and baseline != kept.id:
        actions.compare(kept.id, against=baseline, label="Compare with the baseline")


def _history(kept: Kept) -> None:
    store = state.store()
    if isinstance(store, str):
        return
    look.heading("History")
    rows = [
        {"when": run_result.when(change.at), "who": change.who, "what": change.what, "detail": change.detail}
        for change in store.changes(kept.id)
    ]
    look.table(rows, "Table: history")


@st.dialog("Edit title, note and tags", width="medium", on_dismiss=state.close_dialog)
def _edit(kept: Kept) -> None:
    snapshot = kept.snapshot
    title, note, tags = save.words_fields(snapshot.title, snapshot.note, snapshot.tags, f"edit-{kept.id}")
    look.caption("The measurements stay as they are. The new words get a link of their own; the old one leads to it.")
    if not st.button("Save the new words", type="primary", key="save-words"):
        return
    store = state.store()
    try:
        if isinstance(store, str):
            raise StoreProblem(store)
        new = store.edit(kept.id, state.who(), title=title, note=note, tags=tags)
    except StoreProblem as problem:
        look.field_error(str(problem))
        return
    state.close_dialog()
    state.open_snapshot(new)
    if new != kept.id:
        state.show_receipt(new, Receipt("The words are saved. The old link leads here.", new))
    st.rerun()
