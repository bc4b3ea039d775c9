"""The memory figure: every launch of every version as a filled point where its peak was read, what is modelled dashed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.figures import memory
from app.figures.style import DARK, LIGHT
from profiling import words
from profiling.records import Measurement, MemoryCurve, MemoryPoint
from profiling.snapshot import read
from tests import records_for_tests as records

STEP = Path(__file__).parents[1] / "app" / "gallery" / "25-training-step-16k.json"
HERE = 16384
FLASH = {length: (65 << 20) * length // HERE for length in (512, 1024, 4096, HERE, 65536)}
NATIVE = {length: (16 << 30) * length**2 // HERE**2 for length in (512, 1024, 4096)}


def measured(kernel: str, added: dict[int, int], **changes: object) -> Measurement:
    one = records.on_gpu(kernel, **changes)
    points = tuple(MemoryPoint(seq_len_q=at, seq_len_kv=at, added_bytes=size) for at, size in added.items())
    curve = MemoryCurve(points=points, ended_by="131,072 tokens need 257 GiB; 120 GiB could be had")
    split = {"out_bytes": 64 << 20, "lse_bytes": 1 << 20, "workspace_bytes": 0, "kept_bytes": 4096}
    return one.model_copy(update={"memory": one.memory.model_copy(update={"curve": curve, **split})})


def launches(chart) -> list[dict[int, int]]:
    """The curves' points, by series."""
    return [dict(zip(one.x, one.y, strict=True)) for one in chart.figure.data[2:] if len(one.x) > 1]


def own_points(chart) -> dict[int, str]:
    """The points at this problem's length, with what they are filled with."""
    return {one.y[0]: one.marker.color for one in chart.figure.data[2:] if len(one.x) == 1}


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_every_launch_is_a_filled_point_and_every_line_is_dashed(palette):
    one, native = measured("v3", FLASH), measured("native", NATIVE)
    chart = memory.chart(one, palette, (native,))
    assert launches(chart) == [{at: size for at, size in FLASH.items() if at != HERE}, {**NATIVE, HERE: 16 << 30}]
    for trace in chart.figure.data:
        assert (trace.mode == "lines") == (trace.line.dash == "dash")
        if trace.mode == "markers" and len(trace.x) > 1:
            assert trace.marker.color not in (palette.background, None)
    # This problem's own: v3's launch and native's, which stands in place of the modelled S and P.
    assert own_points(chart) == {16 << 30: palette.text, 65 << 20: palette.progress}
    # S and P, which v3 does not write, are hollow where native was not launched.
    assert own_points(memory.chart(one, palette)) == {16 << 30: palette.background, 65 << 20: palette.progress}
    assert chart.provenance == "measured"
    assert "131,072 tokens need 257 GiB" in chart.caption


def test_versions_that_allocate_alike_are_one_series_and_others_are_not():
    key_outer = {at: 3 * size for at, size in FLASH.items()}
    more = {**FLASH, 131072: 8 * FLASH[HERE]}
    runs = [measured("v3", FLASH), measured("v2", more), measured("v1", key_outer)]
    # v1's own launch must not be the invented one of the other versions.
    runs[2] = runs[2].model_copy(update={"memory": runs[2].memory.model_copy(update={"torch_added_bytes": key_outer[HERE]})})
    chart = memory.chart(runs[0], LIGHT, runs[1:])
    assert len(launches(chart)) == 2
    assert launches(chart)[0][131072] == 8 * FLASH[HERE]
    named = [note.text for note in chart.figure.layout.annotations]
    assert "v3, v2" in named
    assert "v1" in named


def test_beside_a_recorded_training_step_stands_what_native_s_took_and_not_what_was_modelled():
    native, *others = read(STEP.read_bytes()).measurements
    took, modelled = native.memory.torch_added_bytes, native.memory.scores_bytes
    assert took > 2 * modelled  # S and P, and their gradients beside them
    for one in others:
        chart = memory.chart(one, LIGHT, [other for other in (native, *others) if other is not one])
        assert own_points(chart) == {took: LIGHT.text, one.memory.torch_added_bytes: LIGHT.progress}
        named = [re.sub("<[^>]+>", "", note.text) for note in chart.figure.layout.annotations]
        assert words.bytes_(took) in named
        assert words.bytes_(modelled) not in named
        assert {"native", "3 versions", "cuDNN (SDPA)", "FA2 (SDPA)"} <= set(named)


def test_the_lines_reach_past_every_launch():
    chart = memory.chart(measured("v3", FLASH), LIGHT)
    scores, outputs = chart.figure.data[:2]
    assert scores.x[0] <= 512
    assert scores.x[-1] >= 2 * 65536
    assert list(scores.y[1:]) == [4 * size for size in scores.y[:-1]]
    assert list(outputs.y[1:]) == [2 * size for size in outputs.y[:-1]]


def test_the_numbers_say_what_they_are_or_why_they_are_not_there():
    told = {one.name: one for one in memory.numbers(measured("v3", FLASH).memory)}
    assert told["of it, output"].value == "64.0 MiB"
    assert told["of it, workspace"].value == "0 bytes"
    assert told["S and P written out"].how == "modelled"
    assert all(one.sentence.endswith(".") for one in told.values())
    old = {one.name: one for one in memory.numbers(records.on_gpu().memory)}
    assert old["of it, output"].value == "–"
    assert old["of it, output"].how == "not in this record: it is older than this reading"
    fp8 = {row["what"]: row["size"] for row in memory.chart(measured("v3", FLASH, fp8=True), LIGHT).table}
    assert fp8["FP8 operands"] == "99.0 MiB"  # 96 MiB of codes; a scale a token of Q and of K, the shift of smoothing
    chart = memory.chart(measured("v3", FLASH), LIGHT)
    assert "FP8 operands" not in {row["what"] for row in chart.table}
    assert set(told) <= set(chart.explained)
    assert {"what": "added at 512 tokens", "size": "2.03 MiB", "how": "measured"} in chart.table
