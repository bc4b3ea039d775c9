"""The gallery: recordings that ship with FlashScope. They are snapshots, and open like any other."""

from __future__ import annotations

import streamlit as st

from app import look, schedule_shown, state
from app.state import Opened
from app.views import actions, opened, run_metrics
from app.views.run_metrics import Chip
from profiling.snapshot import AnySnapshot


def page() -> None:
    """The list, or the recording that was opened."""
    found = state.recordings()
    recording = found.get(state.opened_recording() or "")
    if recording is not None and not isinstance(recording, str):
        opened.show(Opened(recording, recording.id, "gallery"), "All recordings", state.open_recording)
    else:
        _list(found)


def _list(found: dict[str, AnySnapshot | str]) -> None:
    look.title("Recordings from a real GPU")
    look.sentence(
        "Not measured here: each is a file that the same worker wrote on the GPU it names, every sample in it. "
        "Recorded sweeps, with every cell, are on the Sweep page."
    )
    if not found:
        look.sentence("There are none yet. `python -m profiling run … --out app/gallery/mine.json` makes one.")
    for name, recording in found.items():
        with st.container(border=True, horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
            if isinstance(recording, str):
                look.sentence(recording, strong=f"{name} is not a recording:")
                continue
            with st.container(gap="xsmall"):
                look.sentence(recording.note, strong=recording.title)
                look.sentence(run_metrics.speeds(recording.measurements))
                look.chips([*run_metrics.origin_chips(recording.measurements[0])[:1], *_has(recording)])
            with st.container(horizontal=True, gap="xsmall", width="content", vertical_alignment="center"):
                st.button("Open", key=f"open {name}", on_click=state.open_recording, args=(name,))
                actions.compare(recording.id)


def _has(recording: AnySnapshot) -> list[Chip]:
    """What there is to see in it besides speeds."""
    traced = sum(one.tiles_trace is not None for one in recording.measurements)
    stamped = len(schedule_shown.with_schedule(recording.measurements))
    kinds = (
        (traced, "trace", "The online softmax, tile by tile, as the kernel stored it."),
        (stamped, "schedule", "Which SM ran which block, when, as the kernel stamped it."),
    )
    return [("info", f"{count} {name}{'s' if count > 1 else ''}", why) for count, name, why in kinds if count]
