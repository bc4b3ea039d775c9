"""The form at the left of the Run page: what to run, where, with which tiles. Nothing here launches anything."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import form_check, look, presets, state
from app.form_check import Checked
from app.views import press
from kernels.problem import BLOCK_M_SIZES, BLOCK_SIZES, DTYPES, FP8_SCALES, HEAD_DIMS, LOOP_ORDERS, NUM_STAGES, WARP_COUNTS
from kernels.registry import OUR_VERSIONS, VERSIONS
from profiling import direction, words
from profiling.records import DIRECTIONS, DeviceFacts

_ENERGY_HELP = "After timing, launches in a row for over a second while NVML's energy counter is read."


@dataclass(frozen=True)
class Asked:
    """What the form says, judged, and whether a button was pressed."""

    checked: Checked
    run: bool
    run_all: bool
    run_beside_default: bool = False


def form(devices: tuple[DeviceFacts, ...]) -> Asked:
    """Draw the form; devices is empty while they are still being looked for."""
    values = state.form_values()
    device = _chosen_device(devices)
    if device is not None:
        state.warm(device)
    checked, tile_ms = _judge(values, device)
    with st.container(width=look.FORM_WIDTH, gap="small", key="form"):
        with _group():
            _version(values)
            _direction(values, checked.errors)
            _preset_pills(values)
        with _group():
            _problem_fields(values, device, tile_ms, checked.errors)
        with _group():
            _switches(values, device, checked.errors)
        with _group():
            _tile_fields(values, device, checked.errors)
        with _group():
            _device_fields(devices, device, checked.errors)
        return _buttons(checked, device)


def _group() -> DeltaGenerator:
    """A part of the form with a place of its own: a sentence that comes and goes in it does not remake the parts below."""
    return st.container(gap="small")


def _judge(values: dict[str, str | bool], device: DeviceFacts | None) -> tuple[Checked, float | None]:
    if device is None:
        return Checked(), None
    tile_ms = state.interpreter_tile_ms(device)
    return form_check.check(values, device, state.compile_for(), tile_ms), tile_ms


def _chosen_device(devices: tuple[DeviceFacts, ...]) -> DeviceFacts | None:
    """The device in the form, by the name it is shown under; the first one before a choice was made."""
    name = state.device_name()
    return next((device for device in devices if device.short_name == name), devices[0] if devices else None)


def _version(values: dict[str, str | bool]) -> None:
    st.segmented_control(
        "Version",
        OUR_VERSIONS,
        default=state.FORM_DEFAULTS["kernel"],
        required=True,
        key="kernel",
        bind="query-params",
        width="stretch",
        label_visibility="collapsed",
    )
    st.caption(VERSIONS[str(values["kernel"])].summary)


def _direction(values: dict[str, str | bool], errors: dict[str, str]) -> None:
    """What is timed; a forward, as most runs are, needs no words."""
    st.segmented_control(
        "Direction",
        list(DIRECTIONS),
        default=state.FORM_DEFAULTS["direction"],
        required=True,
        key="direction",
        bind="query-params",
        width="stretch",
        label_visibility="collapsed",
    )
    if values["direction"] != "forward":
        st.caption(direction.EXPLAINED[values["direction"]])
    _errors(errors, "direction")


def _preset_pills(values: dict[str, str | bool]) -> None:
    state.show_preset(presets.matching(values))
    st.pills(
        "Preset", list(presets.PRESETS), key=state.PRESET_KEY, on_change=state.apply_chosen_preset, label_visibility="collapsed"
    )


def _choice(
    label: str,
    name: str,
    options: tuple[object, ...],
    typed: bool = False,
    disabled: bool = False,
    help: str | None = None,
) -> None:
    """A select box of the form; typed lets a free value be written. Its key is its query parameter."""
    default = str(state.FORM_DEFAULTS[name])
    choices = [str(option) for option in options]
    choices = choices if default in choices else [default, *choices]
    st.selectbox(
        label,
        choices,
        index=choices.index(default),
        key=name,
        bind="query-params",
        accept_new_options=typed,
        disabled=disabled,
        help=help,
    )


def _errors(errors: dict[str, str], *names: str) -> None:
    for name in names:
        if name in errors:
            look.field_error(errors[name])


def _problem_fields(
    values: dict[str, str | bool], device: DeviceFacts | None, tile_ms: float | None, errors: dict[str, str]
) -> None:
    lengths = form_check.SEQ_LENS
    if device is not None:
        lengths = form_check.seq_len_choices(values, device, state.compile_for(), tile_ms)
    first, second, third = st.columns(3, gap="small")
    with first:
        _choice("seq_len", "seq_len", lengths, typed=True)
    with second:
        _choice("K, V length", "seq_len_kv", ("same", *lengths), typed=True)
    with third:
        _choice("head_dim", "head_dim", HEAD_DIMS)
    _errors(errors, "seq_len", "seq_len_kv", "head_dim")
    first, second, third = st.columns(3, gap="small")
    with first:
        _choice("Heads", "num_heads", (1, 2, 4, 8, 16, 32, 64), typed=True)
    with second:
        _choice("KV heads", "num_kv_heads", (1, 2, 4, 8, 16, 32, 64), typed=True)
    with third:
        _choice("Batch", "batch", (1, 2, 4, 8, 16), typed=True)
    _errors(errors, "num_heads", "num_kv_heads", "batch")


def _switches(values: dict[str, str | bool], device: DeviceFacts | None, errors: dict[str, str]) -> None:
    reason = form_check.fp8_reason(str(values["kernel"]), device) if device is not None else None
    on = bool(values["fp8"]) and reason is None
    left, right = st.columns(2, gap="small")
    with left:
        _choice("dtype", "dtype", DTYPES)
    with right:
        scales = form_check.scales_of(str(values["kernel"]))
        if on and len(scales) == 1:
            st.selectbox("FP8 scale per", scales, disabled=True, help=f"{values['kernel']} has no other.")
        else:
            _choice("FP8 scale per", "fp8_scale", FP8_SCALES, disabled=not on)
    no_hadamard = form_check.hadamard_reason(str(values["kernel"]))
    left, right = st.columns(2, gap="small")
    with left:
        _toggle("Causal", "causal")
        _toggle("Smooth K", "smooth_k", disabled=not on, help="FP8: K less its mean over the tokens, which softmax ignores.")
    with right:
        _toggle("FP8", "fp8", disabled=reason is not None, help=reason)
        _toggle(
            "Hadamard",
            "hadamard",
            disabled=not on or no_hadamard is not None,
            help=no_hadamard or "FP8: turn Q and K by a Hadamard matrix before rounding, which spreads outliers.",
        )
    _errors(errors, "fp8", "fp8_scale", "dtype", "hadamard")


def _toggle(label: str, name: str, disabled: bool = False, help: str | None = None) -> None:
    """A switch of the form; its key is its query parameter."""
    st.toggle(label, value=bool(state.FORM_DEFAULTS[name]), key=name, bind="query-params", disabled=disabled, help=help)


def _tile_fields(values: dict[str, str | bool], device: DeviceFacts | None, errors: dict[str, str]) -> None:
    """Tile sizes; `auto` is the version's default for this problem and device, spelt out below."""
    kernel = VERSIONS[str(values["kernel"])]
    left, right = st.columns(2, gap="small")
    with left:
        _choice("BLOCK_M", "block_m", ("auto", *BLOCK_M_SIZES), disabled=not kernel.has_tiles)
    with right:
        _choice("BLOCK_N", "block_n", ("auto", *BLOCK_SIZES), disabled=not kernel.has_tiles)
    _errors(errors, "block_m", "block_n")
    left, right = st.columns(2, gap="small")
    with left:
        _choice("Warps", "num_warps", ("auto", *WARP_COUNTS), disabled=not kernel.has_tiles)
    with right:
        _choice("Stages", "num_stages", ("auto", *NUM_STAGES), disabled=not kernel.has_tiles)
    _errors(errors, "num_warps", "num_stages")
    suggested = form_check.suggested_tiles(values, device, state.compile_for()) if device is not None else None
    if suggested is not None:
        st.caption(f"auto: {suggested.title}")
    of_backward = form_check.suggested_backward_tiles(values, device, state.compile_for()) if device is not None else None
    if of_backward is not None:
        st.caption(
            f"backward: {of_backward.title}", help="Always its version’s own; --backward-tiles of the command run takes others."
        )
    left, right = st.columns(2, gap="small", vertical_alignment="bottom")
    with left:
        _choice(
            "Outer loop",
            "loop_order",
            LOOP_ORDERS,
            disabled=not kernel.has_loop_order,
            help="Query tiles, or key tiles as in the paper's Algorithm 1; only v1 has both.",
        )
    with right:
        st.button(
            "Defaults",
            icon=":material/restart_alt:",
            width="stretch",
            on_click=state.reset_tiles,
            disabled=all(values[name] == "auto" for name in state.TILE_FIELDS),
            help="Puts the version's own tiles back.",
        )


def _device_fields(devices: tuple[DeviceFacts, ...], device: DeviceFacts | None, errors: dict[str, str]) -> None:
    left, right = st.columns(2, gap="small")
    with left:
        if device is None:
            st.selectbox("Device", ["looking for GPUs…"], disabled=True)
        else:
            st.selectbox("Device", [one.short_name for one in devices], key=state.DEVICE_KEY, bind="query-params")
    with right:
        st.selectbox(
            "Compile for",
            list(state.COMPILE_FOR),
            index=state.DEFAULT_COMPILE_FOR,
            key=state.COMPILE_FOR_KEY,
            bind="query-params",
            disabled=device is None or device.kind == "gpu",
            help="The GPU model of the compile report and of the default tiles; on a GPU, that GPU.",
        )
    _errors(errors, "device", "memory")
    without = device is not None and device.kind != "gpu"
    why = "A GPU's energy counter is needed: there is none here." if without else _ENERGY_HELP
    _toggle("Energy per launch", "energy", disabled=without, help=why)


def _buttons(checked: Checked, device: DeviceFacts | None) -> Asked:
    ready = checked.request is not None
    with st.container(horizontal=True, gap="small"):
        run = press.button(
            "Run",
            type="primary",
            icon=":material/play_arrow:",
            width="stretch",
            shortcut="Mod+Enter",
            disabled=not ready,
            key="run",
        )
        run_all = press.button("Run all versions", width="stretch", disabled=not ready, key="run_all")
    beside = bool(checked.beside_default) and press.button(
        "Run beside its default tiles",
        icon=":material/compare_arrows:",
        width="stretch",
        key="run_beside",
        help="Both in one job, launched in turn in the same rounds: with a word on which is faster.",
    )
    shown = set(state.FORM_DEFAULTS) | {"device", "memory"}
    _errors({name: sentence for name, sentence in checked.errors.items() if name not in shown}, *checked.errors)
    st.caption(_what_run_does(checked, device))
    return Asked(checked, run and ready, run_all and ready, beside and ready)


def _what_run_does(checked: Checked, device: DeviceFacts | None) -> str:
    if device is None:
        return "Run waits until the devices are known."
    if checked.request is None:
        return "Run waits: a field above needs another value."
    needs = f"Needs about {words.bytes_(checked.needed_bytes)}, computed from the tensors' sizes."
    checks = {"forward": "the output", "backward": "output and gradients", "both": "output and gradients"}
    what = checks[checked.request.direction]
    if device.kind == "interpreter":
        time = words.seconds(checked.expected_s)
        report = "" if checked.request.direction == "backward" else "; makes the compile report"
        return f"Interprets every tile, about {time}; checks {what}{report}. Gives no GPU time. {needs}"
    return f"Checks {what} against float64, then times launches in interleaved rounds, cold and warm. {needs}"
