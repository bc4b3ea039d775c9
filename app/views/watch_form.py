"""What to watch: the row of fields above the player, what is folded under More, and a user's own Q, K and V."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import streamlit as st

from app import look, state
from app.player import choices
from app.player.choices import Choices
from profiling import own_inputs
from profiling.records import Measurement, OwnInputs

_FROM_FILES, _FROM_NUMBERS = "Files", "Numbers"


def fields() -> None:
    """The fields, and what to look for. Only once they are drawn do they hold what a new address says."""
    own = state.own_inputs()
    is_own = state.watch_values()["inputs"] == choices.OWN
    if is_own and own is not None:
        state.set_form(choices.fields_of(own))
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="watch"):
        st.segmented_control(
            "Version",
            choices.VERSIONS,
            default=str(choices.DEFAULTS["version"]),
            required=True,
            key="version",
            bind="query-params",
        )
        _select("Beside it", "beside", choices.OPTIONS["beside"], 116)
        _select("Inputs", "inputs", choices.OPTIONS["inputs"], 104)
        _typed("Tokens", "tokens", choices.TOKENS, is_own, 88)
        _select("BLOCK_M", "tile_m", choices.OPTIONS["tile_m"], 78)
        _select("BLOCK_N", "tile_n", choices.OPTIONS["tile_n"], 78)
        _place("Head", "head", 64)
        _place("Query block", "query_block", 86)
        st.toggle("Causal", value=bool(choices.DEFAULTS["is_causal"]), key="is_causal", bind="query-params")
        with st.popover("More", key="watch-more"):
            _more(is_own)
    inputs = str(state.watch_values()["inputs"])
    with st.container(gap="small"):
        look.sentence(choices.WHAT_TO_LOOK_FOR[inputs], strong=f"{inputs.capitalize()}:")
        if inputs == choices.OWN:
            _own(own)


def recordings(found: list[Measurement]) -> None:
    """What was traced on a real GPU and can be watched here: choosing one puts it into the fields."""
    if found:
        st.selectbox(
            "Recordings from a real GPU",
            range(len(found)),
            index=None,
            placeholder=f"{len(found)} recorded trace{'s' if len(found) > 1 else ''}",
            format_func=lambda place: _recording_name(found[place]),
            key=state.RECORDED_TRACE_KEY,
            on_change=state.choose_recorded_trace,
            args=(found,),
            label_visibility="collapsed",
            width=360,
        )


def _recording_name(one: Measurement) -> str:
    device, request = one.environment.device.short_name.split(" · ")[0], one.request
    return f"{one.label} · {request.problem.title} · {request.inputs} · {one.tiles.block_m} × {one.tiles.block_n} · {device}"


def _more(is_own: bool) -> None:
    """The rest of the problem and of the number formats; own inputs have a problem of their own."""
    left, right = st.columns(2, gap="small")
    with left:
        _select("head_dim", "dim", choices.OPTIONS["dim"], disabled=is_own)
        _typed("Query heads", "query_heads", choices.HEAD_COUNTS, is_own)
        _typed("Batch", "batches", choices.BATCHES, is_own)
        _select("Number format", "number_format", choices.OPTIONS["number_format"])
    with right:
        _typed("K, V tokens", "key_tokens", (choices.SAME, *choices.TOKENS), is_own)
        _typed("KV heads", "key_heads", (choices.SAME, *choices.HEAD_COUNTS), is_own)
        _place("Batch entry", "entry")
        has_fp8 = any("FP8" in str(state.watch_values()[name]) for name in ("version", "beside"))
        _select("FP8 scale per", "fp8_scales", choices.OPTIONS["fp8_scales"], disabled=not has_fp8)
    st.toggle(
        "Smooth K",
        value=bool(choices.DEFAULTS["smooth"]),
        key="smooth",
        bind="query-params",
        disabled=not has_fp8,
        help="With FP8, K's mean over the tokens is taken off before K is quantised. The softmax does not notice.",
    )
    look.caption("With fewer KV heads than query heads, several query heads read the same K and V (GQA).")


def _select(
    label: str, name: str, options: tuple[str, ...], width: int | None = None, disabled: bool = False, typed: bool = False
) -> None:
    """A select box whose key is its query parameter; typed lets a free value be written."""
    st.selectbox(
        label,
        options,
        index=options.index(str(choices.DEFAULTS[name])),
        key=name,
        bind="query-params",
        width=width or "stretch",
        disabled=disabled,
        accept_new_options=typed,
    )


def _typed(label: str, name: str, options: tuple[object, ...], disabled: bool, width: int | None = None) -> None:
    _select(label, name, tuple(map(str, options)), width, disabled, typed=True)


def _place(label: str, name: str, width: int | None = None) -> None:
    """Whose tiles: what the problem has no more is the default; while there is no problem, what was chosen stays."""
    values = state.watch_values()
    try:
        options = Choices.of(values, state.own_inputs()).places[name]
    except ValueError:  # said below the fields
        options = tuple(dict.fromkeys((str(choices.DEFAULTS[name]), str(values[name]))))
    if values[name] not in options:
        state.set_form({name: choices.DEFAULTS[name]})
    _select(label, name, options, width)


# A user's own Q, K and V


def awaited() -> bool:
    """Whether own inputs are chosen, and none were given yet."""
    return state.watch_values()["inputs"] == choices.OWN and state.own_inputs() is None


def _own(own: OwnInputs | None) -> None:
    """Where they come from, folded away once they are taken, and what is wrong with them."""
    # By another key it is another expander, which folds as it is told to.
    label, key = ("Give Q, K and V", "own-awaited") if own is None else (f"Taken: {_shapes(own)}", "own-taken")
    with st.expander(label, expanded=own is None, key=key):
        how = st.segmented_control(
            "From",
            (_FROM_FILES, _FROM_NUMBERS),
            default=_FROM_FILES,
            required=True,
            key=state.OWN_FROM_KEY,
            label_visibility="collapsed",
        )
        if how == _FROM_NUMBERS:
            _numbers()
        else:
            _files()
        why_not = state.why_no_own_inputs()
        if why_not is not None:
            look.field_error(why_not)


def _shapes(own: OwnInputs) -> str:
    shapes = ", ".join(f"{name} {array.shape}" for name, array in zip(own_inputs.NAMES, (own.q, own.k, own.v), strict=True))
    return f"{shapes}, each (batch, heads, seq_len, head_dim)"


def _files() -> None:
    look.caption(
        f"Three .npy files as numpy.save writes them: float16, float32 or float64, {own_inputs.MAX_OWN_NUMBERS:,} numbers each "
        f"at most. Each is {own_inputs.SHAPES}."
    )
    examples = own_inputs.example()
    for column, name in zip(st.columns(3, gap="small"), own_inputs.NAMES, strict=True):
        with column:
            st.file_uploader(name, type=["npy"], key=state.own_key("file", name), on_change=_take_files, max_upload_size=1)
            st.download_button(
                f"Example {name}.npy",
                own_inputs.as_npy(examples[name]),
                f"{name}.npy",
                "application/octet-stream",
                icon=":material/download:",
                type="tertiary",
                on_click="ignore",
                key=state.own_key("example", name),
            )


def _take_files() -> None:
    """Callback of each uploader: all three or none."""
    files = [st.session_state.get(state.own_key("file", name)) for name in own_inputs.NAMES]
    if None not in files:
        _take(own_inputs.from_npy, [file.getvalue() for file in files])


def _numbers() -> None:
    look.caption("One head: a token a line, its numbers between spaces or commas. Lists as Python prints them are read, too.")
    with st.form("own-numbers", border=False):
        for column, name in zip(st.columns(3, gap="small"), own_inputs.NAMES, strict=True):
            with column:
                st.text_area(name, height=140, key=state.own_key("text", name), max_chars=own_inputs.MAX_TEXT)
        with st.container(horizontal=True, gap="small"):
            st.form_submit_button("Take these numbers", on_click=_take_numbers)
            st.form_submit_button("Fill in an example", type="tertiary", icon=":material/edit:", on_click=_fill_in)


def _take_numbers() -> None:
    _take(own_inputs.from_text, [st.session_state.get(state.own_key("text", name)) or "" for name in own_inputs.NAMES])


def _fill_in() -> None:
    state.set_form({state.own_key("text", name): own_inputs.as_text(array) for name, array in own_inputs.example().items()})
    _take_numbers()


def _take(read: Callable[[str, Any], np.ndarray], contents: Sequence[str | bytes]) -> None:
    """Hold the record of Q, K and V, or the sentence saying why there is none."""
    try:
        found = own_inputs.own_inputs(*map(read, own_inputs.NAMES, contents))
    except ValueError as error:
        state.hold_own_inputs(str(error))
    else:
        state.hold_own_inputs(found)
