"""Sweeps that were not made here: those in the box, one that somebody sent; where each is from, and with what it was made."""

from __future__ import annotations

from datetime import datetime

import streamlit as st

from app import look, state
from app.state import ForeignSweep
from app.views import run_metrics
from app.views.run_metrics import Chip
from profiling import words
from profiling.records import Environment
from profiling.sweep_record import Sweep


def to_open() -> None:
    """The recorded sweeps with what was found on the way to each, and a button; nothing where there is none."""
    found = state.recorded_sweeps()
    if not found:
        return
    look.heading("Recorded on a real GPU")
    for name, one in found.items():
        if isinstance(one, str):
            look.sentence(one, strong=f"{name} is not a recorded sweep:")
            continue
        with st.container(horizontal=True, gap="small", vertical_alignment="center", key=f"recorded-{one.sweep.sweep_id}"):
            st.button(
                "Open", icon=":material/grid_on:", key=f"open {name}", on_click=state.open_sweep, args=(one.sweep.sweep_id,),
                help="Opens it like a sweep of your own.",
            )  # fmt: skip
            with st.container(gap="xsmall"):
                look.sentence(_what(one.sweep), strong=f"{one.sweep.plan.title}:")
                look.chips(origin(one))


def _what(sweep: Sweep) -> str:
    rows, columns = (", ".join(map(str, sizes)) for sizes in (sweep.plan.block_m, sweep.plan.block_n))
    timed, cannot = sweep.counts.get("measured", 0), sweep.counts.get("infeasible", 0) + sweep.counts.get("refused", 0)
    counts = f"{timed} timed and correct, {cannot} cannot run"
    return f"BLOCK_M {rows} × BLOCK_N {columns}, the defaults and the article’s pairs: {counts}."


def open_a_file() -> None:
    """The uploader, folded away until it is wanted."""
    with st.popover("Open a file", icon=":material/upload_file:", key="open-a-sweep", type="tertiary"):
        look.caption("A sweep that was downloaded as JSON, or written by --out FILE.json.gz. It is open in this tab alone.")
        st.file_uploader(
            "Sweep file", type=["gz", "json"], key=state.sweep_upload_key(), on_change=state.open_sweep_file,
            max_upload_size=10, label_visibility="collapsed",
        )  # fmt: skip


def origin(found: ForeignSweep) -> list[Chip]:
    """Where and when it was made, and that it was not here; in the words of every recording."""
    measured = _measured(found.sweep)
    if measured:
        return run_metrics.origin_chips(measured[0], found.origin)
    made = datetime.fromisoformat(found.sweep.created_at)
    said = f"{found.sweep.device_name} · {made.day} {made:%b %Y}"
    return [("info", said, f"Begun at {found.sweep.created_at}."), ("caution", "not measured here", "It was read from a file.")]


def made_with(found: ForeignSweep) -> str:
    """The GPUs, and the versions of all below them, as the cells' own records name them."""
    environments = [one.environment for one in _measured(found.sweep)]
    if not environments:
        return f"{found.sweep.device_name}. Nothing of it was launched, so that no versions are known."
    gpus = len({one.device.id for one in environments})
    name = environments[0].device.name
    several = "" if gpus == 1 else f"{gpus} × "
    kinds = [" and ".join(dict.fromkeys(text)) for text in zip(*map(_versions, environments), strict=True)]
    return f"{several}{name}, {words.seconds(found.sweep.state.elapsed_s)} in all: {', '.join(kinds)}."


def _measured(sweep: Sweep) -> list:
    return [one.best_known for one in sweep.outcomes if one.best_known is not None]


def _versions(environment: Environment) -> tuple[str, ...]:
    commit, _, dirty = (environment.commit or "unknown").partition("-")
    return (
        f"driver {environment.driver_version or 'unknown'}",
        f"CUDA {environment.cuda_version or 'unknown'}",
        f"torch {environment.torch_version}",
        f"Triton {environment.triton_version or 'unknown'}",
        f"Python {environment.python_version}",
        f"FlashScope at {commit[:8]}{' with changes' if dirty else ''}",
    )
