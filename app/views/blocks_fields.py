"""The Blocks page's fields: what to compile, for which GPU, in which sizes."""

from __future__ import annotations

import streamlit as st

from app import blocks_choices, form_check
from app.blocks_choices import DEFAULTS, MORE, OPTIONS
from app.state.blocks import Value
from kernels.registry import VERSIONS

_LENGTHS = tuple(map(str, form_check.SEQ_LENS))
_SIZES = "all, or whole numbers such as 32 64 128."
_NONE_CHOSEN = "None chosen: those of the version’s default tiles."


def fields(values: dict[str, Value]) -> None:
    """The problem and the GPU in one row, warps and stages in the next."""
    kernel = str(values["b_kernel"])
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="blocks-problem"):
        st.segmented_control(
            "Version", blocks_choices.KERNELS, default=DEFAULTS["b_kernel"], required=True, key="b_kernel", bind="query-params"
        )
        _choice("GPU", "b_gpu", 160)
        st.selectbox(
            "Tokens", _LENGTHS, index=_LENGTHS.index(str(DEFAULTS["b_tokens"])), key="b_tokens", bind="query-params", width=104,
            accept_new_options=True,
        )  # fmt: skip
        _choice("head_dim", "b_head_dim", 84)
        st.toggle("Causal", value=False, key="b_causal", bind="query-params")
        reason = blocks_choices.why_no_fp8(kernel)
        st.toggle("FP8", value=False, key="b_fp8", bind="query-params", disabled=reason is not None, help=reason)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium", key="blocks-sizes"):
        _several("Warps", "b_warps")
        _several("Stages", "b_stages")
        _more(values, kernel)


def _more(values: dict[str, Value], kernel: str) -> None:
    changed = sum(values[name] != DEFAULTS[name] for name in MORE)
    with st.popover(f"More ({changed})" if changed else "More", icon=":material/tune:", key="blocks-more"):
        st.text_input("BLOCK_M", value=str(DEFAULTS["b_rows"]), key="b_rows", bind="query-params", help=_SIZES)
        st.text_input("BLOCK_N", value=str(DEFAULTS["b_columns"]), key="b_columns", bind="query-params", help=_SIZES)
        st.text_input("Heads", value=str(DEFAULTS["b_heads"]), key="b_heads", bind="query-params")
        _choice("dtype", "b_dtype")
        _choice("Outer loop", "b_loop", disabled=not VERSIONS[kernel].has_loop_order)


def _choice(label: str, name: str, width: int | str = "stretch", disabled: bool = False) -> None:
    st.selectbox(
        label, OPTIONS[name], index=OPTIONS[name].index(str(DEFAULTS[name])), key=name, bind="query-params", width=width,
        disabled=disabled,
    )  # fmt: skip


def _several(label: str, name: str) -> None:
    st.pills(label, OPTIONS[name], selection_mode="multi", key=name, bind="query-params", help=_NONE_CHOSEN, width="content")
