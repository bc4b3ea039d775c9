"""The snapshots page: the list with its search, or the snapshot that the address names."""

from __future__ import annotations

from datetime import date

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import look, state
from app.views import actions, opened, run_result, upload
from profiling.store import Choices, Found, Listed, Query, Store, StoreProblem

A_PAGE = 20
_SHARES = (2.0, 0.9, 1.3, 0.9, 1.0, 1.1, 1.2, 1.2, 1.1)


def page() -> None:
    """The opened snapshot; else an uploaded file that waits for an answer; else the list."""
    problem = state.problem()
    if problem is not None:
        look.field_error(problem)
    reference = state.opened_snapshot()
    if reference is not None and opened.from_address(reference):
        state.keep_filters()
        return
    if upload.waiting():
        upload.preview()
        return
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", gap="small"):
        look.title("Snapshots")
        upload.button()
    store = state.store()
    if isinstance(store, str):
        _unavailable(store)
        return
    try:
        _list(store)
    except StoreProblem as problem:
        _unavailable(str(problem))


def _unavailable(sentence: str) -> None:
    with st.container(border=True, gap="small", key="no-store"):
        look.sentence(sentence, strong="The store is not available.")
        look.sentence("A file can still be opened and looked at, and the gallery is there.")
        _to_the_gallery()


def _list(store: Store) -> None:
    _undo(store)
    choices = store.choices()
    if choices == Choices() and not store.search(Query(deleted=True), 1).total:
        _empty()
        return
    query = _filters(choices)
    page_number = state.list_page()
    found = store.search(query, A_PAGE, (page_number - 1) * A_PAGE)
    if found.total and not found.rows:
        found = store.search(query, A_PAGE)
    if not found.total:
        look.sentence("No snapshot fits." if query != Query() else "All snapshots are deleted: the switch above shows them.")
        if query != Query():
            _show_all()
        return
    _count(found, query)
    for row in found.rows:
        _row(row)
    if found.total > A_PAGE:
        st.pagination(-(-found.total // A_PAGE), key=state.LIST_PAGE_KEY, bind="query-params")


def _filters(choices: Choices) -> Query:
    """Search and filters, all of them in the address; what they ask for."""
    with st.container(key="filters"):
        columns = iter(st.columns(_SHARES, gap="small", vertical_alignment="bottom"))
    with next(columns):
        text = st.text_input("Search", key=state.FIND_KEY, bind="query-params", placeholder="any words")
    kernel = _choice(next(columns), "Version", state.VERSION_KEY, choices.kernels)
    device = _choice(next(columns), "Device", state.GPU_KEY, choices.device_names)
    length = _choice(next(columns), "seq_len", state.LENGTH_KEY, tuple(map(str, choices.seq_lens)))
    tag = _choice(next(columns), "Tag", state.TAG_KEY, choices.tags)
    author = _choice(next(columns), "Author", state.BY_KEY, choices.authors)
    since = _date(next(columns), "Saved from", state.SINCE_KEY)
    until = _date(next(columns), "until", state.UNTIL_KEY)
    with next(columns):
        deleted = st.toggle("Deleted", key=state.DELETED_KEY, bind="query-params")
    return Query(
        text=text or "",
        kernel=kernel,
        device_name=device,
        tag=tag,
        author=author,
        seq_len=int(length) if length else None,
        saved_from=since,
        saved_until=until,
        deleted=deleted,
    )


def _choice(place: DeltaGenerator, label: str, key: str, values: tuple[str, ...]) -> str:
    """A filter's select box; the empty string when it does not restrict. Its options are plain text, never markup."""
    with place:
        chosen = st.selectbox(label, (state.ANY, *values), key=key, bind="query-params")
    return "" if chosen in (None, state.ANY) else chosen


def _date(place: DeltaGenerator, label: str, key: str) -> str:
    with place:
        found = st.date_input(label, None, key=key, bind="query-params", format="YYYY-MM-DD")
    return found.isoformat() if isinstance(found, date) else ""


def _count(found: Found, query: Query) -> None:
    what = "snapshot" if found.total == 1 else "snapshots"
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        look.caption(f"{found.total:,} {'deleted ' if query.deleted else ''}{what}, newest first")
        if query != Query():
            _show_all()


def _show_all() -> None:
    st.button("Clear search and filters", type="tertiary", on_click=state.clear_filters, key="clear-filters")


def _empty() -> None:
    with st.container(border=True, gap="small", key="empty-store"):
        look.sentence(
            "It keeps what one run measured: the request, every sample, the flags, the machine it ran on, and your note.",
            strong="A snapshot is a result to share.",
        )
        look.sentence("Run something and press Save snapshot; or open the file that somebody sent you, with Open a file above.")
        with st.container(horizontal=True, gap="small"):
            if st.button("Go to Run", icon=":material/play_arrow:", key="to-run"):
                state.go_to("run")
            _to_the_gallery()


def _to_the_gallery() -> None:
    if st.button("Look at the gallery", icon=":material/photo_library:", type="tertiary", key="to-gallery"):
        state.go_to("gallery")


def _row(row: Listed) -> None:
    with st.container(border=True, horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        with st.container(gap="xsmall"):
            look.excerpt(row.note, strong=row.title)
            what = f"{row.problem_title} · {' and '.join(row.precision_titles)}" if row.problem_title else ""
            look.sentence(": ".join(filter(None, [what, row.summary])))
            look.chips(_chips(row))
        with st.container(horizontal=True, gap="xsmall", width="content", vertical_alignment="center"):
            st.button("Open", key=f"open-{row.id}", on_click=state.open_snapshot, args=(row.id,))
            actions.compare(row.id)
            opened.icons(row.id, row.is_baseline, row.deleted_at is not None)


def _chips(row: Listed) -> list[tuple[str, str, str]]:
    """Baseline and origin first, then where and when, then whose and which tags."""
    device = row.device_name.removeprefix("NVIDIA ") or "device not known"
    found = [("pinned", "baseline", "Others are compared with this one.")] if row.is_baseline else []
    if row.device_kind == "interpreter":
        found.append(("info", "CPU interpreter: not GPU time", "Its times are the interpreter's, not a GPU's."))
    else:
        found.append(("info", device, f"It ran on {row.device_name}."))
    if row.origin == "imported":
        found.append(("caution", "imported, not measured here", "These numbers were read from a file."))
    found.append(("time", run_result.when(row.saved_at), f"Saved {row.saved_at}."))
    if row.author:
        found.append(("person", row.author, "The author, as the snapshot says."))
    return found + [("tag", tag, "A tag.") for tag in row.tags]


def _undo(store: Store) -> None:
    """After a deletion: what it was, and the way back."""
    deleted = state.just_deleted()
    kept = store.get(deleted) if deleted is not None else None
    if kept is None or kept.deleted_at is None:
        return
    with st.container(border=True, horizontal=True, gap="small", vertical_alignment="center", key="undo"):
        look.sentence(f"{kept.snapshot.title} is deleted.", width="content")
        st.button("Undo", icon=":material/undo:", on_click=opened.restore, args=(kept.id,), key="undo-delete")
