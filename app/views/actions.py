"""The toolbar of a result: tables, save, share, compare. The Run page, the gallery and an opened snapshot have the same."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from app import compiler_choices, look, schedule_choices, state
from app.csv_text import csv_of
from app.player import choices
from app.state import Opened
from app.views import save
from profiling import privacy
from profiling.records import Measurement
from profiling.snapshot import AnySnapshot, file_name, file_of


def toolbar(found: Opened) -> None:
    """Everything that can be done with any result, wherever it comes from."""
    _watch(found)
    _where_it_ran(found)
    _its_code(found)
    st.toggle("Tables", key=state.TABLES_KEY, bind="query-params", help="The numbers behind every chart.")
    if found.kept is None and found.origin != "file":
        save.button(found)
    share(found)
    if found.snapshot.measurements and found.origin not in ("unsaved", "file"):
        compare(found.id)


def _watch(found: Opened) -> None:
    """Where a version that can be traced has run: the form's own, or else the first."""
    chosen = _form_s_own([one for one in found.snapshot.measurements if choices.can_be_watched(one)])
    if chosen is None:
        return
    st.page_link(
        state.page("softmax"),
        label="Watch it",
        icon=":material/animation:",
        query_params=state.address_to_watch(chosen),
        help="Its tiles one after the other, on a problem small enough to follow.",
    )


def _where_it_ran(found: Opened) -> None:
    """Likewise the way to its schedule, with the form's values."""
    chosen = _form_s_own([one for one in found.snapshot.measurements if schedule_choices.can_be_stamped(one)])
    if chosen is not None:
        st.page_link(
            state.page("schedule"),
            label="Where it ran",
            icon=":material/view_timeline:",
            query_params=state.address_to_schedule(chosen),
            help="Which SM ran which block, when: stamped by the kernel, or modelled.",
        )


def _its_code(found: Opened) -> None:
    """Likewise the way to its machine code."""
    chosen = _form_s_own([one for one in found.snapshot.measurements if compiler_choices.question_of(one) is not None])
    if chosen is not None:
        st.page_link(
            state.page("compiler"),
            label="Its code",
            icon=":material/code:",
            query_params=compiler_choices.address_of(chosen),
            help="What the compiler made of this version with these tiles for this GPU, from TTIR to SASS.",
        )


def _form_s_own(ran: list[Measurement]) -> Measurement | None:
    kernel = state.form_values()["kernel"]
    return next((one for one in ran if one.request.kernel == kernel), ran[0] if ran else None)


def compare(reference: str, against: str = "", label: str = "Compare") -> None:
    """A link to the Compare page, with this one as A, or as B against another."""
    sides = {"a": against, "b": reference} if against else {"a": reference}
    st.page_link(state.page("compare"), label=label, icon=":material/compare_arrows:", query_params=sides)


def share(found: Opened) -> None:
    """The link, where there is one, and the files."""
    snapshot = state.plain(found)
    stem = file_name(snapshot).split(".")[0]
    with st.popover("Share", icon=":material/ios_share:", key="share"):
        if found.kept is not None:
            look.caption("The link, for everyone who reaches this server:")
            st.code(state.link(found.id), language=None, wrap_lines=True)
        elif found.origin == "unsaved":
            look.caption("Saving it makes a link. A file works anywhere, now; no name, host or path is in it.")
        for sentence in privacy.personal(snapshot):
            look.caption(sentence)
        _download("Snapshot file", ":material/download:", file_name(snapshot), "application/gzip", file_of, snapshot)
        if not snapshot.measurements:
            return
        _download("Web page (HTML)", ":material/html:", f"{stem}.html", "text/html", _html, snapshot)
        _download("Samples (CSV)", ":material/table:", f"{stem}.csv", "text/csv", csv_of, snapshot)


def _download(label: str, icon: str, name: str, mime: str, make: Callable[[AnySnapshot], bytes], snapshot: AnySnapshot) -> None:
    """A button whose file is made when it is pressed."""
    st.download_button(
        label,
        on_click="ignore",
        icon=icon,
        mime=mime,
        file_name=name,
        data=lambda: make(snapshot),
        width="stretch",
        key=f"download-{mime}",
    )


def _html(snapshot: AnySnapshot) -> bytes:
    from app.html_page import page_of

    return page_of(snapshot)
