"""The gallery: recordings that ship with FlashScope, opened with the same view as a result."""

from __future__ import annotations

import streamlit as st

from app import look, state
from app.views import run_metrics, run_result
from profiling.snapshot import AnySnapshot


def page() -> None:
    """The list, or the recording that was opened."""
    found = state.recordings()
    opened = found.get(state.opened_recording() or "")
    if opened is not None and not isinstance(opened, str):
        _opened(opened)
    else:
        _list(found)


def _list(found: dict[str, AnySnapshot | str]) -> None:
    look.title("Recordings from a real GPU")
    look.sentence("Not measured here: each is a file that the same worker wrote on the GPU it names, every sample in it.")
    if not found:
        look.sentence("There are none yet. `python -m profiling record` makes one; it belongs in app/gallery.")
    for name, recording in found.items():
        with st.container(border=True, horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
            if isinstance(recording, str):
                look.sentence(recording, strong=f"{name} is not a recording:")
                continue
            with st.container(gap="xsmall"):
                look.sentence(recording.note, strong=recording.title)
                look.sentence(run_metrics.speeds(recording.measurements))
                look.chips(run_metrics.recording_chips(recording.measurements[0])[:1])
            st.button("Open", key=f"open {name}", on_click=state.open_recording, args=(name,))


def _opened(recording: AnySnapshot) -> None:
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", gap="small"):
        look.title(run_result.title([one.request for one in recording.measurements]))
        with st.container(horizontal=True, gap="small", width="content", vertical_alignment="center"):
            run_result.toolbar(recording.measurements, recording.title, recording.note)
            st.button(
                "All recordings", icon=":material/arrow_back:", type="tertiary", on_click=state.open_recording, args=(None,)
            )
    look.sentence(recording.note, strong=recording.title)
    run_result.show(recording.measurements, recorded=True)
