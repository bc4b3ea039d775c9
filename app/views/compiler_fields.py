"""The Compiler page's fields: a row a configuration."""

from __future__ import annotations

import streamlit as st

from app import state
from app.compiler_choices import FIELDS, GPU_HELP, OPTIONS, SIDES
from kernels.registry import VERSIONS


def fields(sides: tuple[str, ...]) -> None:
    """The first configuration's row, with the switch for a second; and that one's, out of sight while there is none.

    A field that is given its value before the browser has drawn it does not come into the address, and a link would lose it.
    """
    for side in SIDES:
        key = f"{side}row" if side in sides else f"{side}row-out-of-sight"
        with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key=key):
            _row(side)
            if side == SIDES[0]:
                st.toggle(
                    "Compare",
                    key=state.COMPARED_KEY,
                    bind="query-params",
                    on_change=state.begin_to_compare,
                    help="A second configuration beside the first: counts side by side, and what differs in each text.",
                )


def _row(side: str) -> None:
    kernel = str(state.compiler_values(side)["kernel"])
    _choice(side, "Version", "kernel", 116)
    _choice(side, "GPU", "gpu", 98, help=GPU_HELP)
    _choice(side, "head_dim", "head_dim", 84)
    _choice(
        side, "Format", "format", 92, help="Of Q, K, V and the output; FP8: e4m3 operands by a pre-pass, for v3 and v3-hopper."
    )
    _choice(side, "BLOCK_M", "block_m", 88)
    _choice(side, "BLOCK_N", "block_n", 88)
    _choice(side, "Warps", "num_warps", 84)
    _choice(side, "Stages", "num_stages", 84)
    has_order = VERSIONS[kernel].has_loop_order
    _choice(
        side, "Loop order", "loop_order", 92, disabled=not has_order,
        help="v1 alone: a program a query tile, or the paper’s key-outer Algorithm 1.",
    )  # fmt: skip
    key = f"{side}causal"
    st.toggle("Causal", value=bool(FIELDS["causal"]), key=key, bind="query-params")


def _choice(side: str, label: str, name: str, width: int, disabled: bool = False, help: str | None = None) -> None:
    options = OPTIONS[name]
    st.selectbox(
        label, options, index=options.index(str(FIELDS[name])), key=f"{side}{name}", bind="query-params", width=width,
        disabled=disabled, help=help,
    )  # fmt: skip
