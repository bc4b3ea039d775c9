"""The article's block sizes on its own GPU and on the one here, as the compiler has them. Nothing is launched."""

from __future__ import annotations

import streamlit as st

from app import article_shown, blocks_choices, look, state
from app.views import press
from kernels.architecture import architecture
from profiling import words
from profiling.feasibility import ARTICLE, Grid
from profiling.feasibility_map import FeasibilityMap, known_of

_FILLS_EVERY_S = 1.0
_WITHOUT_GPU = 90


def show() -> None:
    """The three pairs with what stops them; while they are compiled, drawn again every second."""
    grids = _grids()
    is_filling = any(not one.finished for one in _maps(grids))
    with st.container():  # a fragment that runs by itself needs a place of its own
        st.fragment(_pairs, run_every=_FILLS_EVERY_S if is_filling else None)(grids, is_filling)


def _grids() -> dict[str, tuple[Grid, ...]]:
    """The pairs by the name of a GPU: the article's, and the one here or else Hopper."""
    queue = state.job_queue()
    devices = queue.devices() if queue.devices_ready else ()
    here = next((one.capability for one in devices if one.kind == "gpu"), _WITHOUT_GPU)
    capabilities = dict.fromkeys((article_shown.ARTICLE_CAPABILITY, architecture(here).capability))
    names = {number: name for name, number in blocks_choices.GPUS.items()}
    return {
        names[capability]: tuple(article_shown.pair_grid(advice, capability) for advice in ARTICLE)
        for capability in capabilities
    }


def _maps(grids: dict[str, tuple[Grid, ...]]) -> list[FeasibilityMap]:
    found = [state.feasibility_maps().of(grid) for some in grids.values() for grid in some]
    return [one for one in found if one is not None]


def _pairs(grids: dict[str, tuple[Grid, ...]], was_filling: bool) -> None:
    maps = _maps(grids)
    if was_filling and all(one.finished for one in maps):
        st.rerun()
    look.heading("Its block sizes, as compiled", "compiled")
    cells = {grid: _cells(grid) for some in grids.values() for grid in some}
    st.html(
        article_shown.pairs_html(
            {name: [article_shown.compiled_pair(grid, cells[grid]) for grid in some] for name, some in grids.items()}
        )
    )
    left = sum(len(grid.places) - len(known) for grid, known in cells.items())
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="article-blocks-bar"):
        if was_filling:
            st.button("Stop", icon=":material/stop:", on_click=_stop, args=(maps,), key="article_stop_compiling")
            took_s = max(one.elapsed_s for one in maps)
            look.chips([("wait", f"{left} left, {words.seconds(took_s)}", "Each setting has a process of its own.")], "content")
        elif left and press.button(f"Compile the {left} settings", icon=":material/memory:", key="article_compile"):
            for grid in cells:
                if len(cells[grid]) < len(grid.places):
                    state.feasibility_maps().start(grid)
            st.rerun()
        look.caption(
            "v2 at head_dim 32, with 4 and 8 warps, 2 and 3 stages, compiled on this machine for each GPU; nothing is "
            "launched. Whether a pair is fast is for the claims above."
        )


def _cells(grid: Grid) -> dict:
    found = state.feasibility_maps().of(grid)
    return found.cells if found is not None else known_of(grid)


def _stop(maps: list[FeasibilityMap]) -> None:
    for one in maps:
        one.cancel()
