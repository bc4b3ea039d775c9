"""Every version's traced variant in Triton's interpreter: trace = replay = output, and the map against an oracle."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from pydantic import BaseModel

from kernels.problem import AttentionProblem, Precision, TileConfig
from profiling.record_types import Array
from profiling.records import InputKind, RunRequest
from profiling.tile_trace import plan
from profiling.trace_record import TileTrace, TraceChoice
from tests.conftest import ROOT

SMALL = TileConfig(block_m=32, block_n=32, num_warps=4, num_stages=2)
WIDE = TileConfig(block_m=16, block_n=64, num_warps=4, num_stages=1)

KINDS = {
    "v1": ("v1", {}, "query"),
    "v1 key-outer": ("v1", {}, "key"),
    "v2": ("v2", {}, "query"),
    "v3": ("v3", {}, "query"),
    "v3 by address": ("v3", {"has_tma": False}, "query"),
}
FP8_KINDS = {"v3": {}, "v3 by address": {"has_tma": False}}
SHAPES = {
    "one token": {"seq_len_q": 1, "seq_len_kv": 1, "causal": True},
    "ragged": {"seq_len_q": 70, "seq_len_kv": 101},
    "ragged, causal": {"seq_len_q": 70, "seq_len_kv": 101, "causal": True},
    "whole tiles, causal": {"seq_len_q": 64, "seq_len_kv": 64, "causal": True},
    "rows that see nothing": {"seq_len_q": 100, "seq_len_kv": 40, "causal": True},
    "more queries": {"seq_len_q": 70, "seq_len_kv": 33},
}
SHORT = ("ragged, causal", "rows that see nothing")


class Traced:
    """An answer of the child: the trace, and what is known without it."""

    def __init__(self, request: RunRequest, line: dict) -> None:
        self.request = request
        self.trace = TileTrace.model_validate_json(json.dumps(line["trace"]))
        self.exact_scores, self.rises = np.array(line["exact_scores"]), np.array(line["rises"])

    @property
    def rows(self) -> int:
        return self.exact_scores.shape[0]

    def scores(self, array=None) -> np.ndarray:
        """(rows, keys of the stored tiles), in the order of the tokens."""
        stored = (array or self.trace.scores).numpy()[:, : self.rows].astype(float)
        return stored.transpose(1, 0, 2).reshape(self.rows, -1)

    def assert_proven(self) -> None:
        trace, replay = self.trace, self.trace.replay
        assert replay.passed, replay
        assert max(replay.m_error, replay.l_error, replay.alpha_error, replay.acc_error) <= replay.allowed_error
        assert replay.scores_error <= replay.allowed_scores_error
        assert replay.output_error <= replay.allowed_output_error
        assert trace.key_blocks.numpy().tolist() == list(range(trace.visited))
        found = trace.rescaled_rows.numpy()
        visited = found >= 0
        assert (found[visited] == self.rises[visited]).all()
        assert not self.rises[~visited].any()
        assert visited[trace.query_block].sum() == trace.visited

    def assert_hidden_right(self) -> None:
        keys = self.exact_scores.shape[1]
        found = self.scores()
        hidden = self.exact_scores[:, : found.shape[1]] < -1e299
        assert (np.isneginf(found[:, :keys]) == hidden).all()
        assert np.isneginf(found[:, keys:]).all()
        assert np.isneginf(self.trace.scores.numpy()[:, self.rows :]).all()


@pytest.fixture(scope="module")
def traced() -> Iterator[Callable[..., Traced]]:
    """traced(kernel, problem fields, precision, tiles, ...) runs a kernel in Triton's interpreter, traced."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.traced_attention"], cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    def run(
        kernel: str, fields: dict, precision: Precision, tiles: TileConfig, choice: dict | None = None,
        inputs: InputKind = "normal", **more,
    ) -> Traced:  # fmt: skip
        problem = AttentionProblem(**{"batch": 2, "num_heads": 2, "num_kv_heads": 1, "head_dim": 32, **fields})
        trace = TraceChoice(**{"batch_index": 1, "head": 1, **(choice or {})})
        request = RunRequest(kernel=kernel, problem=problem, precision=precision, tiles=tiles, trace=trace, inputs=inputs)
        child.stdin.write(json.dumps({"request": request.model_dump(mode="json"), **more}) + "\n")
        child.stdin.flush()
        line = child.stdout.readline()
        assert line, f"the interpreter's process died on {request}"
        return Traced(request, json.loads(line))

    yield run
    child.stdin.close()
    child.wait(60)


def run_kind(traced, kind: str, shape: dict, precision: Precision, tiles: TileConfig, **more) -> Traced:
    kernel, tma, order = KINDS[kind]
    return traced(kernel, shape, precision, tiles.model_copy(update={"loop_order": order}), **tma, **more)


def check(found: Traced) -> None:
    found.assert_proven()
    found.assert_hidden_right()
    if not found.request.precision.fp8:
        seen = found.exact_scores > -1e299
        seen[:, found.scores().shape[1] :] = False
        exact = np.where(seen, found.exact_scores, 0.0)[:, : found.scores().shape[1]]
        stored = np.where(seen[:, : exact.shape[1]], found.scores()[:, : seen.shape[1]], 0.0)
        assert np.abs(stored - exact).max(initial=0.0) <= 2.0**-11 * np.abs(exact).max(initial=0.0) + 1e-5


@pytest.mark.parametrize("shape", SHORT)
@pytest.mark.parametrize("kind", KINDS)
def test_trace_is_replay_is_output(traced, kind, shape):
    found = run_kind(traced, kind, SHAPES[shape], Precision(), SMALL, choice={"query_block": 1})
    check(found)
    assert found.trace.normalised == (found.request.kernel == "v1")


@pytest.mark.parametrize("kind", ["v2", "v3 by address"])
def test_a_persistent_grid_is_traced_too(traced, kind):
    tiles = SMALL.model_copy(update={"block_order": "zigzag", "num_programs": 5})
    check(run_kind(traced, kind, SHAPES["ragged, causal"], Precision(), tiles, choice={"query_block": 1}))


@pytest.mark.parametrize(("scale", "smooth_k"), [("token", True), ("block", False)])
def test_fp8_trace_is_replay_is_output(traced, scale, smooth_k):
    found = traced("v3", SHAPES["ragged, causal"], Precision(fp8=True, fp8_scale=scale, smooth_k=smooth_k), SMALL)
    check(found)
    exact, quantised = found.scores(found.trace.exact_scores), found.scores()
    seen = np.isfinite(quantised)
    assert (np.isfinite(exact) == seen).all()
    # Q and K are each rounded to e4m3, at most 2^-4 of a value: scores of about 1 differ by about that, and not by more.
    difference = np.abs(exact[seen] - quantised[seen])
    assert 0.001 < difference.mean() < 0.1
    assert found.trace.k_scale.numpy().shape == (found.trace.visited, 32)
    assert (found.trace.q_scale.numpy()[: found.rows] > 0).all()


@pytest.mark.parametrize(("kernel", "fp8"), [("v2", False), ("v3", True)])
def test_the_record_is_as_large_as_planned(traced, kernel, fp8):
    found = traced(kernel, SHAPES["ragged"], Precision(fp8=fp8), SMALL)
    q_scale_bytes = 4 * 32 if fp8 else 0
    found_bytes = sum(array.numpy().nbytes for array in arrays_in(found.trace))
    assert found_bytes == plan(found.request, SMALL).record_bytes + q_scale_bytes


def arrays_in(record: BaseModel) -> Iterator[Array]:
    for _, value in record:
        if isinstance(value, Array):
            yield value
        elif isinstance(value, BaseModel):
            yield from arrays_in(value)


def test_exact_scores_are_those_of_the_inputs(traced):
    found = traced("v3", SHAPES["ragged"], Precision(fp8=True), SMALL)
    keys = found.exact_scores.shape[1]
    exact = found.scores(found.trace.exact_scores)[:, :keys]
    shift = exact - found.exact_scores
    # K's mean is off both: a constant a row, to float16's rounding of scores below 4.
    assert np.ptp(shift, axis=1).max() < 4 * 4 * 2.0**-11
    assert np.abs(shift.mean(axis=1)).max() > 0.005


@pytest.mark.parametrize("inputs", ["ramp", "outliers"])
def test_inputs_for_watching_are_proven_too(traced, inputs):
    fields = {"seq_len_q": 32, "seq_len_kv": 96, "batch": 1, "num_kv_heads": 2, "head_dim": 64}
    for kernel, precision in (("v2", Precision()), ("v3", Precision(fp8=True))):
        found = traced(kernel, fields, precision, SMALL, choice={"batch_index": 0}, inputs=inputs)
        found.assert_proven()
        rose = found.trace.rescaled_rows.numpy()[0]
        assert inputs != "ramp" or precision.fp8 or rose.tolist() == [32, 32, 32]


def test_a_block_that_visits_nothing(traced):
    found = run_kind(traced, "v2", SHAPES["rows that see nothing"], Precision(), SMALL, choice={"query_block": 0})
    assert found.trace.visited == 0
    assert found.trace.scores.shape == (0, 32, 32)
    assert found.trace.replay.passed


@pytest.mark.parametrize("kind", ["v1 key-outer", "v2"])
def test_a_sampled_trace_ends_with_the_last_tile(traced, kind):
    fields = {"seq_len_q": 20, "seq_len_kv": 250, "batch": 1, "num_heads": 2}
    whole, sampled = (
        run_kind(traced, kind, fields, Precision(), SMALL, choice={"batch_index": 0}, **more)
        for more in ({}, {"most_tiles": 3})
    )
    trace = sampled.trace
    assert (trace.visited, trace.every, trace.key_blocks.numpy().tolist()) == (8, 3, [1, 4, 7])
    assert trace.replay.passed
    assert "one in 3" in trace.missing["tiles"]
    for name in ("scores", "m", "l", "alpha", "acc"):
        assert np.array_equal(getattr(trace, name).numpy(), getattr(whole.trace, name).numpy()[[1, 4, 7]]), name
    assert trace.rescaled_rows == whole.trace.rescaled_rows


@pytest.mark.parametrize("fault", ["alpha", "swapped tiles", "acc", "rises"])
def test_a_planted_fault_is_refused(traced, fault):
    for kind in ("v1", "v2"):
        found = run_kind(traced, kind, {"seq_len_q": 32, "seq_len_kv": 64, "batch": 1, "num_heads": 1}, Precision(), SMALL,
                         choice={"batch_index": 0, "head": 0}, fault=fault)  # fmt: skip
        assert not found.trace.replay.passed


def test_a_planted_fault_is_refused_with_fp8(traced):
    for fault in ("alpha", "swapped tiles", "acc"):
        found = traced("v3", {"seq_len_q": 32, "seq_len_kv": 64, "batch": 1, "num_heads": 1}, Precision(fp8=True), SMALL,
                       choice={"batch_index": 0, "head": 0}, fault=fault)  # fmt: skip
        assert not found.trace.replay.passed, fault


def test_the_command_line_stores_and_proves_a_trace():
    command = (
        "run --kernel v2 --seq-len 64 --num-heads 1 --block-m 32 --block-n 32 --probes accuracy,tiles --trace-query-block 0"
    )
    child = subprocess.run(
        [sys.executable, "-m", "profiling", *command.split(), "--device", "interpreter"], cwd=ROOT, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    assert "v2: trace of head 0, query block 0: 2 tiles stored, agrees with its replay (interpreted)." in child.stdout


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_trace_is_replay_is_output_everywhere(traced, kind, shape):
    for dtype, tiles, choice in (("bf16", SMALL, {"query_block": 0}), ("fp16", WIDE, {"head": 2})):
        for head_dim in (16, 64, 80):
            fields = {"num_heads": 4, "num_kv_heads": 2, "head_dim": head_dim, **SHAPES[shape]}
            check(run_kind(traced, kind, fields, Precision(dtype=dtype), tiles, choice=choice))


@pytest.mark.long
@pytest.mark.parametrize("inputs", ["peaked", "sliding", "outliers", "steady", "ramp"])
@pytest.mark.parametrize("kind", KINDS)
def test_inputs_for_watching_are_proven_everywhere(traced, kind, inputs):
    for causal in (True, False):
        fields = {"seq_len_q": 70, "seq_len_kv": 101, "head_dim": 64, "causal": causal}
        run_kind(traced, kind, fields, Precision(), SMALL, inputs=inputs).assert_proven()
        if kind.startswith("v3"):
            run_kind(traced, kind, fields, Precision(fp8=True), SMALL, inputs=inputs).assert_proven()


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", FP8_KINDS)
def test_fp8_trace_is_replay_is_output_everywhere(traced, kind, shape):
    for scale in ("token", "block"):
        for smooth_k in (True, False):
            for head_dim in (64, 80):
                precision = Precision(fp8=True, fp8_scale=scale, smooth_k=smooth_k)
                check(traced("v3", {"head_dim": head_dim, **SHAPES[shape]}, precision, SMALL, **FP8_KINDS[kind]))
