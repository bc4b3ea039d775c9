"""A file that somebody sent: what it is, shown before anything is kept."""

from __future__ import annotations

import streamlit as st

from app import look, state
from app.state import Opened
from app.views import actions, opened, run_it_here, run_result, save
from profiling.snapshot import AnySnapshot, NotASnapshot, read
from profiling.store import StoreProblem
from profiling.summary import summary


def button() -> None:
    """Open a file: the uploader, folded away until it is wanted."""
    with st.popover("Open a file", icon=":material/upload_file:", key="open-a-file"):
        look.caption("A snapshot file (.flashscope.json.gz) or an exported page (.html). Nothing is kept before you say so.")
        st.file_uploader(
            "Snapshot file",
            type=["gz", "json", "html"],
            key=state.upload_key(),
            on_change=_look_at,
            max_upload_size=10,
            label_visibility="collapsed",
        )


def waiting() -> bool:
    """Whether a file was opened and neither kept nor discarded."""
    return state.upload() is not None


def _look_at() -> None:
    file = st.session_state.get(state.upload_key())
    if file is None:
        return
    try:
        found: AnySnapshot | str = read(file.getvalue())
    except NotASnapshot as problem:
        found = str(problem)
    state.open_snapshot(None)
    state.look_at_upload(file.name, found)


def preview() -> None:
    """What the opened file is, then all it shows; Keep or Discard."""
    name, found = state.upload()
    if isinstance(found, str):
        _no_snapshot(name, found)
        return
    file = Opened(found, found.id, "file")
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", gap="small"):
        look.title(found.title)
        with st.container(horizontal=True, gap="small", width="content", vertical_alignment="center"):
            actions.toolbar(file)
            run_it_here.button(file)
    with st.container(border=True, gap="small", key="preview"):
        look.sentence(_what_it_is(found), strong=f"{name[:120]}:")
        look.sentence(_already_here(found.id))
        look.caption(f"id {found.id}")
        opened.warnings(found)
        _answers(file)
    save.below(file)
    run_it_here.below(file)
    opened.words(file)
    run_result.show(found.measurements, "file")


def _no_snapshot(name: str, why: str) -> None:
    look.title("This file cannot be opened")
    with st.container(border=True, gap="small", key="no-snapshot"):
        look.sentence(why, strong=f"{name[:120]}:")
        st.button("Back to the list", icon=":material/arrow_back:", on_click=state.discard_upload, key="discard")


def _what_it_is(found: AnySnapshot) -> str:
    devices = ", ".join(dict.fromkeys(one.environment.device.name for one in found.measurements)) or "a device not understood"
    made = f"made {run_result.when(found.created_at)}" if found.created_at else "made at a moment that is not named"
    return f"a snapshot by {found.author or 'an author who is not named'}, {made} on {devices}. {summary(found.measurements)}"


def _already_here(id: str) -> str:
    store = state.store()
    try:
        kept = None if isinstance(store, str) else store.get(id)
    except StoreProblem as problem:
        return str(problem)
    if isinstance(store, str):
        return store
    if kept is None:
        return "It is not in the store yet; nothing is kept before you say so."
    if kept.deleted_at is not None:
        return f"It is in the store, deleted {run_result.when(kept.deleted_at)}: Keep brings it back."
    return f"It is in the store already, saved {run_result.when(kept.saved_at)}."


def _answers(file: Opened) -> None:
    with st.container(horizontal=True, gap="small"):
        st.button("Keep", type="primary", icon=":material/bookmark_add:", on_click=_keep, args=(file,), key="keep")
        save.with_words(file, "Keep with other words")
        st.button("Discard", icon=":material/close:", on_click=state.discard_upload, key="discard")


def _keep(file: Opened) -> None:
    receipt = save.keep(file.snapshot, "imported")
    state.show_receipt(file.id, receipt)
    if receipt.id is not None:
        state.discard_upload()
        state.open_snapshot(receipt.id)
