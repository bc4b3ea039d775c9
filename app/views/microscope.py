"""The FP8 microscope: what FP8 costs the query block that is shown, taken apart, and what other scales would do."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app import look, state
from app.figures import microscope, other_scales
from app.figures.style import Absent, Chart
from profiling.fp8_study import DATA, SCALES, Data, Scheme, Study, study
from profiling.records import Measurement

_LENGTHS, _HEAD_DIMS = (256, 1024, 4096, 8192), (32, 64, 128)
_FIRST_LENGTH, _FIRST_HEAD_DIM = 1024, 64
_WHAT_IS_127 = (
    "x · (127 / max|x| + 1e−6) per tensor, as some published code has it, is a habit from int8, whose largest value is 127. "
    "e4m3 reaches 448: its top 1.8 binades stay unused and small values meet its smallest step sooner. As a float rounds "
    "relative to a value’s own size, that alone costs little; one scale for a whole tensor costs more, once there are outliers."
)


def of(shown: Sequence[Measurement]) -> None:
    """Both parts, for the first trace of FP8 among those shown; nothing where there is none."""
    measurement = next((one for one in shown if one.request.precision.fp8 and one.tiles_trace is not None), None)
    if measurement is None:
        return
    with st.container(key="microscope-place", gap="medium"):
        _cost(measurement)
        _other_scales(measurement)


@st.fragment
def _cost(measurement: Measurement) -> None:
    """The error of this block's O, its parts, where it comes in; the switch draws only this."""
    trace, precision = measurement.tiles_trace, measurement.request.precision
    look.heading("What FP8 costs this block", trace.provenance)
    if trace.fp8_errors is None:
        look.absences([Absent("Not taken apart", microscope.NOT_TAKEN)])
        return
    look.sentence(microscope.headline(trace.fp8_errors))
    look.metrics(microscope.numbers(trace.fp8_errors, precision))
    look.caption("The shares are projections on the whole error and add up to 100 %; the sizes need not, as parts can cancel.")
    part = st.segmented_control(
        "On the map", microscope.PARTS, format_func=microscope.PARTS.get, default="whole", required=True,
        key=state.FP8_PART_KEY,
    )  # fmt: skip
    left, right = st.columns(2, gap="large")
    with left:
        _draw(microscope.heat_map(trace, part, look.palette()), "fp8-map")
    with right:
        _draw(microscope.by_tile(trace, look.palette()), "fp8-by-tile")
    look.sentence(microscope.limit_words(trace.fp8_errors, precision), strong=microscope.LIMIT_TITLE)


@st.fragment
def _other_scales(measurement: Measurement) -> None:
    """The same attention with other scales on drawn data; the switches draw only this."""
    look.heading("What other scales would do")
    precision = measurement.request.precision
    own = Scheme(precision.fp8_scale, hadamard=False, smooth_k=precision.smooth_k)
    look.sentence(
        "RMSE of O beside float64, when Q and K are rounded to e4m3 with other scales; V and P as the kernel rounds them. "
        "Framed: what the trace above ran with. Shade: from the smallest of a grid to four times that."
    )
    scales, treatments, seq_len, head_dim = _switches()
    for place, data in zip(st.columns(len(DATA), gap="large"), DATA, strict=True):
        with place:
            found = other_scales.chart(_studied(data, seq_len, head_dim), scales, treatments, own, look.palette())
            _draw(found, f"fp8-{data}")
    look.sentence(_WHAT_IS_127, strong="“127 for 448”:")


def _switches() -> tuple[tuple[str, ...], tuple[tuple[bool, bool], ...], int, int]:
    """Which scales and which treatments (hadamard, smooth_k) are in, seq_len and head_dim."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="fp8-switches"):
        chosen = st.pills(
            "Scales", SCALES, format_func=other_scales.SCALE_WORDS.get, selection_mode="multi", default=SCALES,
            key=state.STUDY_SCALES_KEY, width="content",
        )  # fmt: skip
        with_hadamard = st.toggle("Hadamard", value=True, key=state.STUDY_HADAMARD_KEY)
        with_mean_off = st.toggle("K − mean", value=True, key=state.STUDY_MEAN_KEY)
        seq_len = st.selectbox(
            "Tokens", _LENGTHS, index=_LENGTHS.index(_FIRST_LENGTH), format_func=lambda count: f"{count:,}",
            key=state.STUDY_TOKENS_KEY, width=110,
        )  # fmt: skip
        head_dim = st.selectbox(
            "head_dim", _HEAD_DIMS, index=_HEAD_DIMS.index(_FIRST_HEAD_DIM), key=state.STUDY_DIM_KEY, width=100
        )
    treatments = tuple(
        (hadamard, smooth_k)
        for hadamard, smooth_k in other_scales.TREATMENTS
        if (with_hadamard or not hadamard) and (with_mean_off or not smooth_k)
    )
    return tuple(scale for scale in SCALES if scale in chosen), treatments, seq_len, head_dim


@st.cache_data(show_spinner="Rounding and comparing", max_entries=48)
def _studied(data: Data, seq_len: int, head_dim: int) -> Study:
    return study(data, seq_len, head_dim)


def _draw(found: Chart | Absent, key: str) -> None:
    if isinstance(found, Absent):
        look.absences([found])
    else:
        look.chart(found, key=key, with_table=state.tables_shown())
