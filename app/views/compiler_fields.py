"""The Compiler page's fields: a row a configuration."""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import state
from app.compiler_choices import BACKWARD_TILE_FIELDS, FIELDS, GPU_HELP, OPTIONS, SIDES, has_dq_apart
from kernels.registry import VERSIONS

_TILES = {"block_m": "BLOCK_M", "block_n": "BLOCK_N", "num_warps": "Warps", "num_stages": "Stages"}


def fields(sides: tuple[str, ...]) -> None:
    """The first configuration's rows, with the switch for a second; and that one's, out of sight while there is none.

    A field that is given its value before the browser has drawn it does not come into the address, and a link would lose it.
    """
    for side in SIDES:
        with _place(f"{side}row", side in sides):
            _row(side)
            if side == SIDES[0]:
                st.toggle(
                    "Compare",
                    key=state.COMPARED_KEY,
                    bind="query-params",
                    on_change=state.begin_to_compare,
                    help="A second configuration beside the first: counts side by side, and what differs in each text.",
                )
        values = state.compiler_values(side)
        is_backward = values["direction"] == "backward"
        is_apart = has_dq_apart(values)
        with _place(f"{side}tiles-of-backward", is_backward and side in sides):
            _backward_tiles(side, "dkdv", "dK, dV" if is_apart else "dQ, dK, dV")
            with _place(f"{side}tiles-of-dq", is_apart):
                _backward_tiles(side, "dq", "dQ")


def _place(key: str, is_shown: bool) -> DeltaGenerator:
    """A row of fields, or a part of one; look.css hides what is out of sight."""
    key = key if is_shown else f"{key}-out-of-sight"
    return st.container(horizontal=True, vertical_alignment="bottom", gap="small", key=key, width="content")


def _row(side: str) -> None:
    values = state.compiler_values(side)
    _choice(side, "Version", "kernel", 104)
    _choice(side, "Direction", "direction", 106, help="The forward’s kernels, or the backward’s: for dK and dV, dQ, delta.")
    _choice(side, "GPU", "gpu", 94, help=GPU_HELP)
    _choice(side, "head_dim", "head_dim", 78)
    _choice(
        side, "Format", "format", 86, help="Of Q, K, V and the output; FP8: e4m3 operands by a pre-pass, for v3 and v3-hopper."
    )
    with _place(f"{side}tiles-of-forward", values["direction"] == "forward"):
        for name, label in _TILES.items():
            _choice(side, label, name, 86 if name.startswith("block") else 76)
        with _place(f"{side}loop-order", VERSIONS[str(values["kernel"])].has_loop_order):
            _choice(side, "Loop order", "loop_order", 90, help="A program a query tile, or the paper’s key-outer Algorithm 1.")
    st.toggle("Causal", value=bool(FIELDS["causal"]), key=f"{side}causal", bind="query-params")


def _backward_tiles(side: str, part: str, title: str) -> None:
    for name, label in _TILES.items():
        _choice(side, f"{title} · {label}", BACKWARD_TILE_FIELDS[part][name], 128 if part == "dkdv" else 104)


def _choice(side: str, label: str, name: str, width: int, help: str | None = None) -> None:
    options = OPTIONS[name]
    st.selectbox(
        label, options, index=options.index(str(FIELDS[name])), key=f"{side}{name}", bind="query-params", width=width, help=help
    )
