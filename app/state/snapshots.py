"""The Snapshots page: its list and search, saving, uploads, dialogs."""

from __future__ import annotations

import re
from dataclasses import dataclass

import streamlit as st

from profiling.snapshot import AnySnapshot

FIND_KEY = "find"
VERSION_KEY = "ran"
GPU_KEY = "gpu"
LENGTH_KEY = "seq_lens"
TAG_KEY = "tag"
BY_KEY = "by"
SINCE_KEY = "since"
UNTIL_KEY = "until"
DELETED_KEY = "deleted"
LIST_PAGE_KEY = "list"
ANY = "any"
FILTERS: dict[str, str | bool | None] = {
    FIND_KEY: "",
    **dict.fromkeys((VERSION_KEY, GPU_KEY, LENGTH_KEY, TAG_KEY, BY_KEY), ANY),
    **dict.fromkeys((SINCE_KEY, UNTIL_KEY)),
    DELETED_KEY: False,
}
_AUTHOR_KEY = "_author"
_SAVED_KEY = "_saved"
_RECEIPT_KEY = "_receipt"
_DIALOG_KEY = "_dialog"
_PROBLEM_KEY = "_problem"
_DELETED_NOW_KEY = "_deleted_now"
_UPLOADS_KEY = "_uploads"
_UPLOAD_KEY = "_upload"


def list_page() -> int:
    """Which page of the list is shown; before its widget is first drawn, the one that the address says."""
    given = str(st.session_state.get(LIST_PAGE_KEY) or st.query_params.get(LIST_PAGE_KEY, ""))
    return max(1, int(given)) if re.fullmatch("[0-9]{1,6}", given) else 1


def author() -> str:
    """The name this session's user gave last, empty before they did."""
    return st.session_state.get(_AUTHOR_KEY, "")


def remember_author(name: str) -> None:
    """Keep the user's name for this session."""
    st.session_state[_AUTHOR_KEY] = name


def who() -> str:
    """Whom the store's log names for what this session does."""
    return author() or "someone in the app"


def saved_as(reference: str) -> str | None:
    """The id under which this session saved what has this reference."""
    return st.session_state.get(_SAVED_KEY, {}).get(reference)


@dataclass(frozen=True)
class Receipt:
    """What came of saving: a sentence, and the id it is kept under, None when it could not be saved."""

    sentence: str
    id: str | None = None


def show_receipt(reference: str, found: Receipt) -> None:
    """Put a receipt on screen above what has this reference, and remember that it is saved."""
    if found.id is not None:
        st.session_state.setdefault(_SAVED_KEY, {})[reference] = found.id
    st.session_state[_RECEIPT_KEY] = (reference, found)


def receipt(reference: str) -> Receipt | None:
    """The receipt that belongs above what has this reference."""
    about, found = st.session_state.get(_RECEIPT_KEY, ("", None))
    return found if about == reference else None


def hide_receipt() -> None:
    """Callback: take the receipt off the screen."""
    st.session_state.pop(_RECEIPT_KEY, None)


def open_dialog(name: str, reference: str) -> None:
    """Callback: ask for a dialog, which stays through reruns until it is closed."""
    st.session_state[_DIALOG_KEY] = (name, reference)


def dialog_is_open(name: str, reference: str) -> bool:
    """Whether this dialog is on screen."""
    return st.session_state.get(_DIALOG_KEY) == (name, reference)


def close_dialog() -> None:
    """Close whatever dialog is open."""
    st.session_state.pop(_DIALOG_KEY, None)


def show_problem(sentence: str) -> None:
    """Callback: say once on the page why a change could not be made."""
    st.session_state[_PROBLEM_KEY] = sentence


def problem() -> str | None:
    """Why the last change could not be made, told once."""
    return st.session_state.pop(_PROBLEM_KEY, None)


def deleted_now(snapshot_id: str | None) -> None:
    """Remember what was just deleted, to offer the undo; None forgets it."""
    st.session_state[_DELETED_NOW_KEY] = snapshot_id


def just_deleted() -> str | None:
    """What was just deleted in this session."""
    return st.session_state.get(_DELETED_NOW_KEY)


def upload_key() -> str:
    """The uploader's key: another one after each file, so that it is empty again."""
    return f"_file_{st.session_state.get(_UPLOADS_KEY, 0)}"


def look_at_upload(name: str, found: AnySnapshot | str) -> None:
    """Hold what an uploaded file is, or the sentence saying why it is no snapshot; nothing is kept yet."""
    st.session_state[_UPLOAD_KEY] = (name, found)
    st.session_state[_UPLOADS_KEY] = st.session_state.get(_UPLOADS_KEY, 0) + 1


def upload() -> tuple[str, AnySnapshot | str] | None:
    """The uploaded file's name and what it is."""
    return st.session_state.get(_UPLOAD_KEY)


def discard_upload() -> None:
    """Let go of the uploaded file."""
    st.session_state.pop(_UPLOAD_KEY, None)


def clear_filters() -> None:
    """Callback: show the whole list again."""
    for key, default in FILTERS.items():
        st.session_state[key] = default


def keep_filters() -> None:
    """Hold on to the search while its fields are not drawn."""
    for key in FILTERS:
        if key in st.session_state:
            st.session_state[key] = st.session_state[key]
