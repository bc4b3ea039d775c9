"""Saving what is on screen: one click, or a dialog with title, note, tags and name; then the receipt with its link."""

from __future__ import annotations

import socket

import streamlit as st
from pydantic import ValidationError

from app import look, state
from app.state import Opened, Receipt
from app.views import run_result
from profiling import privacy
from profiling.foreign_text import MAX_NAME, MAX_NOTE
from profiling.record_types import first_sentence
from profiling.snapshot import NewerSnapshot, Snapshot
from profiling.store import Origin, StoreProblem

_DIALOG = "save"


def button(found: Opened) -> None:
    """Save at once, or with words; once saved, what brings the receipt back."""
    saved = state.saved_as(found.id)
    if saved is not None:
        receipt = Receipt("It is saved.", saved)
        st.button("Saved", icon=":material/check:", type="tertiary", on_click=state.show_receipt, args=(found.id, receipt))
        return
    st.button(
        "Save snapshot",
        icon=":material/bookmark_add:",
        on_click=_save_at_once,
        args=(found,),
        key="save",
        help="Keeps what is on screen under a link. No name, host or path goes in.",
    )
    with_words(found, "Save with a note", key="icon-save-with-words")


def with_words(found: Opened, label: str, key: str = "save-with-words") -> None:
    """The button of the dialog; a newer FlashScope's snapshot cannot be given other words."""
    if not isinstance(found.snapshot, NewerSnapshot):
        st.button(
            label,
            icon=":material/edit_note:",
            type="tertiary",
            on_click=state.open_dialog,
            args=(_DIALOG, found.id),
            key=key,
            help="With a title, a note, tags or your name",
        )


def below(found: Opened) -> None:
    """What saving puts under the toolbar: the receipt, the dialog."""
    receipt = state.receipt(found.id)
    if receipt is not None:
        _receipt(receipt)
    if state.dialog_is_open(_DIALOG, found.id):
        _dialog(found)


def keep(snapshot: Snapshot | NewerSnapshot, origin: Origin) -> Receipt:
    """Put a snapshot into the store as it is; the receipt says whether it is new there, or why it could not be kept."""
    store = state.store()
    if isinstance(store, str):
        return Receipt(store)
    try:
        before = store.get(snapshot.id)
        saved = store.save(snapshot, state.who(), origin)
    except StoreProblem as error:
        return Receipt(str(error))
    if before is None:
        return Receipt("Saved. The link opens it for everyone who reaches this server.", saved)
    if before.deleted_at is not None:
        return Receipt("It was here and deleted: now it is back.", saved)
    return Receipt(f"It is already here, saved {run_result.when(before.saved_at)}: nothing was added.", saved)


def words_fields(title: str, note: str, tags: tuple[str, ...], key: str) -> tuple[str, str, tuple[str, ...]]:
    """Fields for title, note and tags with these values at first; what stands in them now."""
    new_title = st.text_input("Title", title, max_chars=MAX_NAME, key=f"{key}-title")
    new_note = st.text_area("Note", note, max_chars=MAX_NOTE, key=f"{key}-note", placeholder="What is to be seen here?")
    new_tags = st.text_input("Tags", ", ".join(tags), key=f"{key}-tags", placeholder="separated by commas")
    return new_title, new_note, tuple(tag for tag in new_tags.split(",") if tag.strip())


def _origin(found: Opened) -> Origin:
    return "here" if found.origin in ("here", "unsaved") else "imported"


def _save_at_once(found: Opened) -> None:
    state.show_receipt(found.id, keep(state.plain(found), _origin(found)))


def _receipt(receipt: Receipt) -> None:
    with st.container(border=True, gap="small", key="receipt"):
        if receipt.id is None:
            look.field_error(receipt.sentence)
            st.button("Close", icon=":material/close:", type="tertiary", on_click=state.hide_receipt)
            return
        look.sentence(receipt.sentence)
        st.code(state.link(receipt.id), language=None, wrap_lines=True)
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            if state.opened_snapshot() != receipt.id and st.button("Open", icon=":material/open_in_full:", key="open-saved"):
                state.hide_receipt()
                state.go_to("snapshots", {state.SNAPSHOT_PARAM: receipt.id})
            st.page_link(
                state.page("compare"), label="Compare", icon=":material/compare_arrows:", query_params={"a": receipt.id}
            )
            st.button("Close", icon=":material/close:", type="tertiary", on_click=state.hide_receipt)


@st.dialog("Save snapshot", width="medium", on_dismiss=state.close_dialog)
def _dialog(found: Opened) -> None:
    snapshot = found.snapshot
    with st.form("save-form", border=False):
        title, note, tags = words_fields(snapshot.title, snapshot.note, snapshot.tags, "save")
        name = st.text_input("Your name", state.author(), max_chars=MAX_NAME, key="save-author")
        words = {"title": title, "note": note, "tags": tags} | _what_leaves(name)
        keeps_personal = _personal_stays(snapshot)
        pressed = st.form_submit_button("Save", type="primary", icon=":material/bookmark_add:", key="save-now")
    if not pressed:
        return
    state.remember_author(name)
    measured = snapshot if keeps_personal else privacy.without_personal(snapshot)
    try:
        changed = Snapshot(**{name: getattr(measured, name) for name in Snapshot.model_fields} | words)
    except ValidationError as error:
        look.field_error(first_sentence(error))
        return
    receipt = keep(changed, _origin(found))
    state.show_receipt(found.id, receipt)
    state.close_dialog()
    if found.origin == "file" and receipt.id is not None:
        state.discard_upload()
        state.open_snapshot(receipt.id)
        state.show_receipt(receipt.id, receipt)
    st.rerun()


def _what_leaves(name: str) -> dict[str, str]:
    """Ask for the author's and the machine's name; what is not ticked stays here."""
    host = socket.gethostname()
    look.heading("What leaves with it")
    look.caption(
        f"Numbers, versions, the GPU's name and UUID always. Only when ticked: your name; this machine's name, {host}."
    )
    with_author = st.checkbox("My name", key="save-with-author")
    with_host = st.checkbox("This machine's name", key="save-with-host")
    return ({"author": name} if with_author and name.strip() else {}) | ({"host": host} if with_host else {})


def _personal_stays(snapshot: Snapshot) -> bool:
    """Show what in it is personal, and ask whether it may leave."""
    tells = privacy.personal(snapshot)
    if not tells:
        look.caption("It holds no path and no user name.")
        return False
    for sentence in tells:
        look.warning(sentence)
    return st.checkbox("Keep these in it", key="save-with-personal")
