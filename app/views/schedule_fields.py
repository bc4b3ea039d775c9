"""The Schedule page's fields: what runs, in which tiles and order; and without a GPU on which one it is imagined."""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import form_check, look, state
from app import schedule_choices as choices
from app.schedule_choices import ONE_A_BLOCK, SAME, Checked
from profiling.records import Measurement

_LENGTHS = tuple(map(str, form_check.SEQ_LENS))
_DEFAULT_ORDER = "default is the version’s own: heaviest first when causal, else natural."
_PROGRAMS = ("132", "264", "528")


def fields(values: dict[str, str | bool], has_gpu: bool) -> DeltaGenerator:
    """The problem in one row, its tiles and their order in the next, which is returned: what runs it stands at its end."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="problem-to-stamp"):
        st.segmented_control(
            "Version", choices.VERSIONS, default=str(choices.DEFAULTS["of"]), required=True, key="of", bind="query-params"
        )
        _typed("Tokens", "length", _LENGTHS, 104)
        _choice("head_dim", "width", 84)
        _typed("Heads", "heads", ("1", "2", "4", "8", "16", "32", "64"), 84)
        st.toggle("Causal", value=bool(choices.DEFAULTS["masked"]), key="masked", bind="query-params")
        _more(values)
    row = st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="tiles-to-stamp")
    with row:
        _choice("BLOCK_M", "rows", 88)
        _choice("BLOCK_N", "columns", 88)
        _grid(values)
        if not has_gpu:
            _imagined()
    return row


def recordings(found: list[Measurement]) -> None:
    """What was stamped on a real GPU and can be looked at here: choosing one puts it into the fields."""
    if found:
        st.selectbox(
            "Recordings from a real GPU",
            range(len(found)),
            index=None,
            placeholder=f"{len(found)} recorded schedule{'s' if len(found) > 1 else ''}",
            format_func=lambda place: _recording_name(found[place]),
            key=state.RECORDED_SCHEDULE_KEY,
            on_change=state.choose_recorded_schedule,
            args=(found,),
            label_visibility="collapsed",
            width=360,
        )


def _recording_name(one: Measurement) -> str:
    device = one.environment.device.short_name.split(" · ")[0]
    return f"{one.label} · {one.request.problem.title} · {one.tiles.title} · {device}"


def _grid(values: dict[str, str | bool]) -> None:
    """The order of blocks and a persistent grid, out of reach for a version that has neither."""
    reason = choices.why_no_orders(str(values["of"]))
    _choice("Order of blocks", "block_order", 142, disabled=reason is not None, help=reason or _DEFAULT_ORDER)
    _typed("Programs", "num_programs", (ONE_A_BLOCK, *_PROGRAMS), 128, disabled=reason is not None, help=reason)


def _imagined() -> None:
    _choice("As on", "as_on", 190)
    _choice("At once on an SM", "at_once", 118, help="Programs that fit on an SM at once: registers and shared memory decide.")


def _more(values: dict[str, str | bool]) -> None:
    changed = sum(
        values[name] != choices.DEFAULTS[name]
        for name in ("length_kv", "kv_heads", "sequences", "warps", "stages", "number", "scale", "smoothed")
    )
    with st.popover(f"More ({changed})" if changed else "More", icon=":material/tune:", key="more-to-stamp"):
        left, right = st.columns(2, gap="small")
        with left:
            _typed("K, V length", "length_kv", (SAME, *_LENGTHS))
            _typed("Batch", "sequences", ("1", "2", "4", "8", "16"))
            _choice("Warps", "warps")
            _choice("FP8 scale per", "scale", disabled=values["of"] != "v3 FP8")
        with right:
            _typed("KV heads", "kv_heads", (SAME, "1", "2", "4", "8", "16"))
            _choice("dtype", "number")
            _choice("Stages", "stages")
            st.toggle("Smooth K", value=True, key="smoothed", bind="query-params", disabled=values["of"] != "v3 FP8")


def _choice(
    label: str,
    name: str,
    width: int | str = "stretch",
    disabled: bool = False,
    help: str | None = None,
) -> None:
    options, default = choices.OPTIONS[name], str(choices.DEFAULTS[name])
    st.selectbox(
        label, options, index=options.index(default), key=name, bind="query-params", width=width, disabled=disabled, help=help,
    )  # fmt: skip


def _typed(
    label: str,
    name: str,
    options: tuple[str, ...],
    width: int | str = "stretch",
    disabled: bool = False,
    help: str | None = None,
) -> None:
    """A field that offers values and takes any."""
    default = str(choices.DEFAULTS[name])
    st.selectbox(
        label, options, index=options.index(default), key=name, bind="query-params", width=width, disabled=disabled, help=help,
        accept_new_options=True,
    )  # fmt: skip


def wrong(checked: Checked) -> None:
    """What is not possible of the fields, with the cure where there is one."""
    with st.container(gap="small"):  # a place of its own: what comes and goes in it does not remake what follows
        for _, sentence in checked.errors:
            look.field_error(sentence)
        if checked.cure is not None:
            st.button(f"Use {checked.cure.title}", on_click=state.set_schedule_tiles, args=(checked.cure,), key="cure-tiles")
