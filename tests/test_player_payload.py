"""The player's blob against the record it was made of."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest

from app.player import payload
from app.player.payload import Position, first_rescale, pack
from kernels.problem import AttentionProblem
from profiling.record_types import Array, Frames
from profiling.trace_record import TileTrace
from tests import records_for_tests as records
from tests.traces_for_tests import SMALL, bytes_of, traced

RAGGED = AttentionProblem(num_heads=1, num_kv_heads=1, seq_len_q=70, seq_len_kv=100, head_dim=16, causal=True)
BLIND = AttentionProblem(num_heads=1, num_kv_heads=1, seq_len_q=96, seq_len_kv=32, head_dim=16, causal=True)
LONG = AttentionProblem(num_heads=1, num_kv_heads=1, seq_len_q=64, seq_len_kv=65536, head_dim=64)


def unpacked(blob: bytes) -> tuple[dict[str, Any], list[dict[str, np.ndarray]]]:
    """The header, and each trace's arrays by name, read as player.js reads them."""
    (length,) = struct.unpack_from("<I", blob)
    assert (4 + length) % 16 == 0
    header = json.loads(blob[4 : 4 + length])
    arrays = []
    for trace in header["traces"]:
        found = {}
        for name, (kind, offset, count) in trace["arrays"].items():
            assert offset % 4 == 0, "a typed array must be aligned"
            found[name] = np.frombuffer(blob, dtype=f"<{kind}", count=count, offset=4 + length + offset)
        arrays.append(found)
    return header, arrays


def shown(found: dict[str, np.ndarray], name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Bytes back to numbers, -inf where hidden."""
    values = found[name].reshape(shape).astype("f4")
    return np.where(values == 255, -np.inf, (values / 127 - 1) * found[f"{name}Limits"][:, None, None])


@pytest.mark.parametrize("as_bytes", [False, True])
@pytest.mark.parametrize("kernel", ["v1", "v2"])
@pytest.mark.parametrize("problem", [SMALL, RAGGED])
def test_the_blob_says_what_the_record_says(kernel: str, problem: AttentionProblem, as_bytes: bool) -> None:
    measurement = traced(kernel, problem, as_bytes=as_bytes)
    trace = measurement.tiles_trace
    header, (found,) = unpacked(pack([measurement]))
    facts = header["traces"][0]
    for name in ("m", "l", "alpha"):
        np.testing.assert_array_equal(found[name].reshape(trace.m.shape), getattr(trace, name).numpy())
    np.testing.assert_array_equal(found["keyBlocks"], trace.key_blocks.numpy())
    np.testing.assert_array_equal(found["map"].reshape(trace.rescaled_rows.shape), trace.rescaled_rows.numpy())
    for name, array, limit in (("scores", trace.scores, trace.scores_limit), ("acc", trace.acc, trace.acc_limit)):
        raw = array.numpy()
        wanted = np.where(raw == 255, -np.inf, (raw.astype("f4") / 127 - 1) * limit) if as_bytes else raw.astype("f4")
        got = shown(found, name, array.shape)
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(wanted))
        seen = np.isfinite(wanted)
        allowed = (found[f"{name}Limits"][:, None, None] / 254 * 1.001 + 1e-7) * np.ones(array.shape)
        assert (np.abs(got[seen] - wanted[seen]) <= allowed[seen]).all(), "half a step of 254"
    assert (facts["blockM"], facts["blockN"], facts["headDim"]) == (32, 32, problem.head_dim)
    assert (facts["normalised"], facts["provenance"], facts["tiles"]) == (kernel == "v1", "interpreted", trace.visited)


def test_the_same_record_gives_the_same_bytes_and_another_start_the_same_id() -> None:
    measurement = traced()
    assert pack([measurement]) == pack([measurement])
    here, there = (unpacked(pack([measurement], Position(tile, 3, 8)))[0] for tile in (1, 2))
    assert here["id"] == there["id"]
    assert here["start"] == {"tile": 1, "row": 3, "speed": 8}
    assert unpacked(pack([traced("v1")]))[0]["id"] != here["id"]


def test_two_traces_are_one_blob() -> None:
    first, second = traced("v1"), traced("v3", fp8=True)
    header, arrays = unpacked(pack([first, second]))
    assert [facts["label"] for facts in header["traces"]] == ["v1", "v3 FP8"]
    np.testing.assert_array_equal(arrays[1]["m"].reshape(second.tiles_trace.m.shape), second.tiles_trace.m.numpy())


def test_fp8_brings_the_error_of_the_scores() -> None:
    trace = (measurement := traced("v3", fp8=True)).tiles_trace
    _, (found,) = unpacked(pack([measurement]))
    used, exact = trace.scores.numpy().astype("f4"), trace.exact_scores.numpy().astype("f4")
    seen = np.isfinite(used)
    got = shown(found, "errors", trace.scores.shape)
    np.testing.assert_array_equal(np.isfinite(got), seen)
    limits = (found["errorsLimits"][:, None, None] * np.ones(used.shape))[seen]
    assert (np.abs(got[seen] - (used[seen] - exact[seen])) <= limits / 254 * 1.001).all()
    assert 0 < limits.max() < 0.5, "an error's own limit, not that of the scores"
    np.testing.assert_array_equal(found["qScale"], trace.q_scale.numpy())
    keys = trace.k_scale.numpy()
    np.testing.assert_array_equal(found["kScales"].reshape(-1, 2), np.stack([keys.min(1), keys.max(1)], 1))


def test_what_does_not_fit_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "MOST_BYTES", 30_000)
    header, (found,) = unpacked(pack([traced("v3", fp8=True)]))
    assert "errors" not in found
    assert header["traces"][0]["whyNoErrors"].startswith("The exact scores are left out")


def test_a_thousand_tiles_fit_in_ten_megabytes() -> None:
    measurement = traced("v3", LONG, 64, as_bytes=True)
    assert measurement.tiles_trace.scores.shape == (1024, 64, 64)
    blob = pack([measurement])
    assert 9_000_000 < len(blob) <= payload.MOST_BYTES


def test_a_long_map_is_grouped_and_keeps_what_was_never_visited() -> None:
    rows = np.full((600, 600), -1)
    rows[np.tril_indices(600)] = 8
    rows[599, :3] = 32
    grouped, group = payload._map(rows)
    assert (grouped.shape, group) == ((200, 200), 3)
    assert (grouped[np.triu_indices(200, 1)] == -1).all()
    assert grouped[0, 0] == 8
    assert grouped[199, 0] == round((6 * 8 + 3 * 32) / 9)


def test_a_trace_without_a_map_still_shows_its_own_row() -> None:
    measurement = traced(query_block=3)
    bare = measurement.tiles_trace.model_copy(update={"rescaled_rows": Array.of(np.zeros((0, 0)), "<i4")})
    header, (found,) = unpacked(pack([measurement.model_copy(update={"tiles_trace": bare})]))
    facts = header["traces"][0]
    assert found["map"].tolist() == [0, 0, 0, 0, -1, -1, -1, -1]
    assert (facts["map"]["rows"], facts["map"]["own"], facts["queryBlocks"], facts["onlyOwn"]) == (1, 0, 8, True)


def test_the_first_look_is_at_the_row_that_shrinks_most() -> None:
    trace = traced().tiles_trace
    start = first_rescale(trace)
    alpha, m = trace.alpha.numpy(), trace.m.numpy()
    had = np.isfinite(m[start.tile - 1])
    assert start.tile >= 1
    assert alpha[start.tile, start.row] == alpha[start.tile][had].min() < 1
    assert (alpha[1 : start.tile] == 1).all()


def test_a_row_that_sees_nothing_has_nothing_to_rescale() -> None:
    measurement = traced("v1", BLIND, query_block=0)
    assert not np.isfinite(measurement.tiles_trace.m.numpy()).any()
    assert first_rescale(measurement.tiles_trace) == Position()
    header, _ = unpacked(pack([measurement]))
    assert header["traces"][0]["range"] == {"m": [0.0, 1.0], "l": [0.0, 0.0]}


def test_a_measurement_without_a_trace_is_refused() -> None:
    with pytest.raises(ValueError, match="v2 has no trace"):
        pack([records.in_interpreter("v2")])


@pytest.mark.parametrize("name", ["l", "alpha", "acc"])
def test_only_scores_and_maximum_can_be_hidden(name: str) -> None:
    trace = traced("v2").tiles_trace
    values = getattr(trace, name).numpy().copy()
    values.flat[0] = -np.inf
    changed = dict(trace) | {name: Frames.of(values, getattr(trace, name).dtype)}
    with pytest.raises(ValueError, match="only S and m can be -inf"):
        TileTrace(**changed)


def test_a_block_that_visits_no_tile_is_refused() -> None:
    with pytest.raises(ValueError, match="visits no tile"):
        pack([traced("v2", BLIND, query_block=0)])


def test_hidden_stays_apart_from_every_number() -> None:
    assert bytes_of(np.array([-1.0, 0.0, 1.0, -np.inf]), 1.0).tolist() == [0, 127, 254, 255]
