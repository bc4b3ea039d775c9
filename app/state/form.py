"""The Run page's form: its fields, its presets, its device."""

from __future__ import annotations

import threading

import streamlit as st

from app import state
from app.presets import FIRST_ON_A_GPU, PRESETS
from kernels.architecture import ARCHITECTURES
from kernels.problem import (
    BLOCK_M_SIZES,
    BLOCK_SIZES,
    DTYPES,
    FP8_SCALES,
    HEAD_DIMS,
    LOOP_ORDERS,
    NUM_STAGES,
    WARP_COUNTS,
    TileConfig,
)
from kernels.registry import OUR_VERSIONS
from profiling.records import DIRECTIONS, DeviceFacts

_WARM_AFTER_S = 2.0
FORM_DEFAULTS: dict[str, str | bool] = {
    "kernel": "v3",
    "direction": "forward",
    **PRESETS["Tiny"].values,
    "fp8": False,
    "fp8_scale": "token",
    "smooth_k": True,
    "hadamard": False,
    "energy": True,
    "loop_order": "query",
    "block_m": "auto",
    "block_n": "auto",
    "num_warps": "auto",
    "num_stages": "auto",
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "kernel": OUR_VERSIONS,
    "direction": DIRECTIONS,
    "dtype": DTYPES,
    "fp8_scale": FP8_SCALES,
    "loop_order": LOOP_ORDERS,
    "head_dim": tuple(map(str, HEAD_DIMS)),
    "block_m": tuple(map(str, BLOCK_M_SIZES)),
    "block_n": tuple(map(str, BLOCK_SIZES)),
    "num_warps": tuple(map(str, WARP_COUNTS)),
    "num_stages": tuple(map(str, NUM_STAGES)),
}
TILE_FIELDS = ("block_m", "block_n", "num_warps", "num_stages")
COMPILE_FOR = {f"sm_{number} · {arch.example.split(', ')[-1]}": number for number, arch in ARCHITECTURES.items()}
DEFAULT_COMPILE_FOR = list(COMPILE_FOR.values()).index(90)
PRESET_KEY = "preset"
DEVICE_KEY = "device"
COMPILE_FOR_KEY = "compile_for"
_GREETED_KEY = "_greeted"
_WARMED_KEY = "_warmed"


def form_values() -> dict[str, str | bool]:
    """The form as it stands; before its widgets are first drawn, what the address says, or else the defaults."""
    return {field: st.session_state.get(field, _from_address(field, default)) for field, default in FORM_DEFAULTS.items()}


def _from_address(field: str, default: str | bool) -> str | bool:
    given = st.query_params.get(field)
    if given is None:
        return default
    if isinstance(default, bool):
        return given == "true" if given in ("true", "false") else default
    return given if field not in _CHOICES or given in _CHOICES[field] else default


def set_form(values: dict[str, str | bool]) -> None:
    """Put values into the form: before its widgets are drawn, or in a callback."""
    for field, value in values.items():
        st.session_state[field] = value


def form_address(values: dict[str, str | bool]) -> dict[str, str]:
    """The query parameters that make a form say this."""
    changed = {field: value for field, value in values.items() if value != FORM_DEFAULTS[field]}
    return {field: value if isinstance(value, str) else str(value).lower() for field, value in changed.items()}


def go_to_form(values: dict[str, str | bool], capability: int | None) -> None:
    """Leave for the Run page, its form saying this, its compile reports for a compute capability that it has.

    The address is just what that page makes of it, without what is as usual, with the job it follows: what it changed would be
    a step of its own, to which Back would lead first.
    """
    target = next((name for name, number in COMPILE_FOR.items() if number == capability), None)
    said = {} if target is None else {COMPILE_FOR_KEY: target}
    state.set_form({**values, **said})
    is_usual = target == list(COMPILE_FOR)[DEFAULT_COMPILE_FOR]
    state.go_to("run", state.form_address(values) | ({} if is_usual else said) | state.followed_address())


def set_tiles(tiles: TileConfig) -> None:
    """Put tile sizes into the form, as a callback does that offers a configuration that works."""
    set_form({name: str(getattr(tiles, name)) for name in TILE_FIELDS})


def set_tiny() -> None:
    """Put the smallest preset into the form, with default tiles."""
    set_form({**PRESETS["Tiny"].values, **dict.fromkeys(TILE_FIELDS, "auto")})


def reset_tiles() -> None:
    """Callback of the defaults button: every tile size is the version's own again."""
    set_form(dict.fromkeys(TILE_FIELDS, "auto"))


def compile_for() -> int:
    """The compute capability that compile reports are for when there is no GPU."""
    chosen = st.session_state.get(COMPILE_FOR_KEY) or st.query_params.get(COMPILE_FOR_KEY)
    return COMPILE_FOR.get(chosen, list(COMPILE_FOR.values())[DEFAULT_COMPILE_FOR])


def device_name() -> str | None:
    """The short name of the device that was chosen, here or in the address."""
    return st.session_state.get(DEVICE_KEY) or st.query_params.get(DEVICE_KEY)


def warm(device: DeviceFacts) -> None:
    """Once a session and device: start its worker, so that the first job need not wait for it."""
    warmed = st.session_state.setdefault(_WARMED_KEY, set())
    if device.id not in warmed:
        warmed.add(device.id)
        # Importing torch takes a core for seconds: not while the page is being painted.
        threading.Timer(_WARM_AFTER_S, state.job_queue().warm, (device.id,)).start()


def interpreter_tile_ms(device: DeviceFacts) -> float | None:
    """What a 64 × 64 × 64 tile takes in the interpreter: as its worker measured it, None before one has started."""
    worker = state.job_queue().environment(device.id)
    return (worker.device if worker else device).interpreter_tile_ms


def apply_chosen_preset() -> None:
    """Callback of the preset pills: tiles go back to their defaults with the problem."""
    chosen = st.session_state.get(PRESET_KEY)
    if chosen is not None:
        set_form({**PRESETS[chosen].values, **dict.fromkeys(TILE_FIELDS, "auto")})


def show_preset(name: str | None) -> None:
    """Make the pills show which preset the form's values are."""
    st.session_state[PRESET_KEY] = name


def greet(has_gpu: bool) -> None:
    """Once a session: on a GPU an untouched form starts with a problem that is worth a GPU."""
    if st.session_state.get(_GREETED_KEY):
        return
    st.session_state[_GREETED_KEY] = True
    if has_gpu and form_values() == FORM_DEFAULTS and not set(st.query_params) & set(FORM_DEFAULTS):
        set_form(PRESETS[FIRST_ON_A_GPU].values)
