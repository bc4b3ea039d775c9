"""The replay against an online softmax written out row by row: what is right passes, what is a little wrong does not."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import pytest
import torch

from kernels.problem import AttentionProblem, Precision, TileConfig
from profiling import tile_trace
from profiling.record_types import Frames
from profiling.records import RunRequest
from profiling.replay import NO_NUMBER, Arithmetic, Block, Stored, prove, rounded_to
from profiling.trace_record import TraceChoice

TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "e4m3": torch.float8_e4m3fn}


@pytest.mark.parametrize("name", TORCH)
def test_rounds_as_torch_does(name):
    generator = np.random.default_rng(1)
    x = np.concatenate([generator.standard_normal(50_000) * 10.0 ** generator.integers(-12, 3, 50_000), [0.0, -0.0, 440.0]])
    x = np.clip(x, -448.0, 448.0).astype(np.float32)
    expected = torch.from_numpy(x).to(TORCH[name]).double().numpy()
    assert np.array_equal(rounded_to(name, x.astype(np.float64)), expected)


def test_e4m3_saturates():
    assert rounded_to("e4m3", np.array([500.0, -1e9])).tolist() == [448.0, -448.0]


def test_only_a_gpu_s_8_bit_sums_are_coarse():
    assert Arithmetic.of("v3", Precision(fp8=True), "measured").coarse_sums
    assert not Arithmetic.of("v3", Precision(fp8=True), "interpreted").coarse_sums
    assert not Arithmetic.of("v3", Precision(), "measured").coarse_sums


class Kernel:
    """A kernel of the plainest kind: float32 throughout, a row and a tile at a time, in natural units."""

    def __init__(self, problem: AttentionProblem, arithmetic: Arithmetic, block_m: int, block_n: int, query_block: int) -> None:
        self.problem, self.arithmetic, self.block_n = problem, arithmetic, block_n
        self.first = query_block * block_m
        rows = min(block_m, problem.seq_len_q - self.first)
        generator = np.random.default_rng(7)
        q, k, v = (
            rounded_to("bf16", generator.standard_normal((n, problem.head_dim)))
            for n in (problem.seq_len_q, problem.seq_len_kv, problem.seq_len_kv)
        )
        self.block = Block(problem, self.first, q[self.first : self.first + rows], lambda a, b: (k[a:b], v[a:b]))
        self.q, self.k, self.v = (x.astype(np.float32) for x in (self.block.q, k, v))
        last = self.first + rows - 1 + problem.seq_len_kv - problem.seq_len_q
        end = min(problem.seq_len_kv, max(last + 1, 0)) if problem.causal else problem.seq_len_kv
        self.visited = math.ceil(end / block_n)

    def run(self) -> Stored:
        rows, tiles = len(self.q), self.visited
        empty = {"m": np.full((tiles, rows), -np.inf), "l": np.zeros((tiles, rows)), "alpha": np.zeros((tiles, rows))}
        scores = np.full((tiles, rows, self.block_n), -np.inf, np.float32)
        found = {name: value.astype(np.float32) for name, value in empty.items()}
        acc = np.zeros((tiles, rows, self.problem.head_dim), np.float32)
        rises = np.full(math.ceil(self.problem.seq_len_kv / self.block_n), -1)
        rises[:tiles] = 0
        for row in range(rows):
            self._row(row, scores, found, acc, rises)
        output = np.zeros_like(self.q)
        if tiles:
            l_safe = np.where(found["l"][-1] == 0, 1, found["l"][-1])[:, None]
            output = acc[-1] if self.arithmetic.normalised else acc[-1] / l_safe
        output = rounded_to(self.arithmetic.output, output.astype(np.float64)).astype(np.float32)
        return Stored(np.arange(tiles), scores, **found, acc=acc, rises=rises, output=output)

    def _row(self, row, scores, found, acc, rises) -> None:
        f32, shift = np.float32, f32_shift(self.arithmetic)
        m, l, o = f32(-np.inf), f32(0), np.zeros(self.problem.head_dim, f32)  # noqa: E741
        for tile in range(self.visited):
            for key in range(tile * self.block_n, min((tile + 1) * self.block_n, self.problem.seq_len_kv)):
                offset = self.problem.seq_len_kv - self.problem.seq_len_q
                if not self.problem.causal or key <= self.first + row + offset:
                    product = sum((f32(a) * f32(b) for a, b in zip(self.q[row], self.k[key], strict=True)), f32(0))
                    scores[tile, row, key - tile * self.block_n] = product * f32(self.problem.sm_scale)
            s = scores[tile, row]
            m_new = max(m, s.max())
            rises[tile] += m_new > m
            if m_new > -np.inf:
                base = s.max() if self.arithmetic.normalised and s.max() > -np.inf else m_new
                alpha, beta = np.exp(m - m_new), np.exp(base - m_new)
                p = np.exp(s - base)
                l_new = l * alpha + beta * p.sum()
                weights = (rounded_to(self.arithmetic.weights, p.astype(float) * shift) / shift).astype(f32)
                keys = self.v[tile * self.block_n : (tile + 1) * self.block_n]
                added = beta * (weights[: len(keys)] @ keys)
                o = (o * l * alpha + added) / l_new if self.arithmetic.normalised else o * alpha + added
                m, l = m_new, l_new  # noqa: E741
                found["alpha"][tile, row] = alpha
            found["m"][tile, row], found["l"][tile, row], acc[tile, row] = m, l, o


def f32_shift(arithmetic: Arithmetic) -> np.float32:
    return np.float32(256.0 if arithmetic.weights == "e4m3" else 1.0)


ARITHMETICS = {
    "v1": Arithmetic.of("v1", Precision(), "interpreted"),
    "v2": Arithmetic.of("v2", Precision(dtype="fp16"), "interpreted"),
    "v3 FP8": Arithmetic.of("v3", Precision(fp8=True), "interpreted"),
    "v3 FP8 on a GPU": Arithmetic.of("v3", Precision(fp8=True), "measured"),
}
PROBLEM = AttentionProblem(num_heads=1, num_kv_heads=1, seq_len_q=24, seq_len_kv=40, head_dim=16, causal=True)


def kernel_of(name: str, problem: AttentionProblem = PROBLEM, query_block: int = 1) -> Kernel:
    return Kernel(problem, ARITHMETICS[name], 16, 16, query_block)


def proof(kernel: Kernel, stored: Stored):
    return prove(stored, kernel.block, kernel.arithmetic, kernel.visited)


@pytest.mark.parametrize("name", ARITHMETICS)
@pytest.mark.parametrize("query_block", [0, 1])
def test_an_honest_trace_passes(name, query_block):
    kernel = kernel_of(name, query_block=query_block)
    replay = proof(kernel, kernel.run())
    assert replay.passed, replay
    assert 0 < replay.output_error <= replay.allowed_output_error


def test_rows_and_blocks_that_see_nothing_pass():
    shape = PROBLEM.model_copy(update={"seq_len_q": 40, "seq_len_kv": 10})
    for query_block in (0, 1, 2):
        kernel = kernel_of("v2", shape, query_block)
        assert proof(kernel, kernel.run()).passed
    assert kernel_of("v2", shape, 0).visited == 0


def test_a_sampled_trace_passes():
    kernel = kernel_of("v2")
    stored = kernel.run()
    part = {name: getattr(stored, name)[0::2] for name in ("key_blocks", "scores", "m", "l", "alpha", "acc")}
    assert proof(kernel, dataclasses.replace(stored, **part)).passed


def changed(stored: Stored, name: str, change) -> Stored:
    values = getattr(stored, name).copy()
    change(values)
    return dataclasses.replace(stored, **{name: values})


def scaled(place, factor):
    def change(values):
        values[place] *= factor

    return change


def set_to(place, value):
    def change(values):
        values[place] = value

    return change


FAULTS = {
    "one score": ("scores", scaled((0, 0, 0), 1.001)),
    "a score that should be hidden": ("scores", set_to((-1, 0, -1), 0.0)),
    "a score that should be seen": ("scores", set_to((0, 0, 0), -np.inf)),
    "one maximum": ("m", scaled((1, 3), 1.001)),
    "one alpha": ("alpha", scaled((1, 3), 1.001)),
    "one sum": ("l", scaled((1, 3), 1.001)),
    "a sum that is NaN": ("l", set_to((1, 3), np.nan)),
    "one row of O": ("acc", scaled((1, 3), 1.05)),
    "two tiles swapped": ("scores", lambda values: values.__setitem__([0, 1], values[[1, 0]])),
    "one row that rose": ("rises", scaled((0,), 2)),
    "a tile that was not there": ("rises", set_to((-1,), 0)),
    "one row of the output": ("output", scaled((3,), 1.1)),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["v1", "v2", "v3 FP8"])
def test_a_fault_is_refused(name, fault):
    # Block 0 goes through 2 of the 3 key blocks.
    kernel = kernel_of(name, query_block=0)
    assert kernel.visited == 2
    stored = kernel.run()
    field, change = FAULTS[fault]
    assert not proof(kernel, changed(stored, field, change)).passed


def test_a_kernel_that_forgets_alpha_in_one_tile_is_refused():
    kernel = kernel_of("v2")
    stored = kernel.run()
    wrong = (1.0 - stored.alpha[1])[:, None] * stored.acc[0]
    broken = changed(stored, "acc", lambda acc: acc.__setitem__(1, acc[1] + wrong))
    replay = proof(kernel, broken)
    assert not replay.passed
    assert replay.acc_error > replay.allowed_error


def test_nan_has_a_finite_error():
    kernel = kernel_of("v2")
    broken = changed(kernel.run(), "l", set_to((0, 0), np.nan))
    replay = proof(kernel, broken)
    assert replay.l_error <= NO_NUMBER
    assert replay.l_error > 1e20


def test_bounds_are_those_of_float32_and_of_midpoints():
    kernel = kernel_of("v2")
    replay = proof(kernel, kernel.run())
    # (16 + 16) additions of 2^-23 each, on sums of magnitudes a few times the largest score.
    assert 32 * 2.0**-23 <= replay.allowed_scores_error < 10 * 32 * 2.0**-23
    # fp16's neighbours are 2^-10 apart; hardly any of 256 weights lies on a midpoint.
    assert replay.allowed_error < 2.0**-10
    assert replay.allowed_output_error < 2 * 2.0**-10


# The plan


def request(kernel="v2", tiles=None, trace=None, fp8=False, **fields) -> RunRequest:
    problem = AttentionProblem(**{"seq_len_q": 16384, "seq_len_kv": 16384, "head_dim": 128, **fields})
    tiles = TileConfig(block_m=128, block_n=128, num_warps=8, num_stages=2) if tiles is None else tiles
    return RunRequest(kernel=kernel, problem=problem, tiles=tiles, trace=trace or TraceChoice(), precision=Precision(fp8=fp8))


def planned(**fields) -> tile_trace.TracePlan:
    asked = request(**fields)
    return tile_trace.plan(asked, asked.tiles)


def test_a_small_trace_is_whole_and_in_float16():
    plan = planned(seq_len_q=1024, seq_len_kv=1024)
    assert (plan.query_block, plan.visited, plan.every, plan.stored, plan.element_bytes) == (7, 8, 1, 8, 2)
    assert plan.record_bytes == 8 * (2 * 128 * 256 + 3 * 4 * 128 + 4) + 4 * 64


def test_a_larger_one_is_in_bytes_then_sampled_from_the_last():
    # A tile takes 34,308 bytes, and beside the map of 64 KiB 62 fit in the 2.2 MB.
    plan = planned()
    assert (plan.visited, plan.every, plan.stored, plan.element_bytes) == (128, 3, 43, 1)
    # The map would take 1 MiB, and is left out: 64 fit.
    plan = planned(seq_len_q=65536, seq_len_kv=65536)
    assert (plan.visited, plan.every, plan.stored) == (512, 8, 64)
    assert plan.first == 7


@pytest.mark.parametrize("fp8", [True, False])
@pytest.mark.parametrize("block", [16, 128, 512])
@pytest.mark.parametrize("length", [1, 4096, 1 << 22])
def test_a_trace_is_bounded(length, block, fp8):
    tiles = TileConfig(block_m=block, block_n=block, num_warps=4, num_stages=2)
    plan = planned(kernel="v3", seq_len_q=length, seq_len_kv=length, tiles=tiles, fp8=fp8)
    assert 1 <= plan.stored <= tile_trace.MOST_TILES
    assert plan.record_bytes <= tile_trace.RECORD_BYTES
    assert plan.device_bytes <= 8 * tile_trace.RECORD_BYTES
    last_stored = plan.first + (plan.stored - 1) * plan.every
    assert last_stored == plan.visited - 1


def test_what_is_visited_is_the_version_s_own():
    assert planned(kernel="v1", causal=True, trace=TraceChoice(query_block=0)).visited == 128
    assert planned(kernel="v2", causal=True, trace=TraceChoice(query_block=0)).visited == 1
    assert planned(kernel="v2", causal=True, seq_len_q=16384, seq_len_kv=128, trace=TraceChoice(query_block=0)).visited == 0


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        (TraceChoice(head=16), "head = 16 is not possible: it can be 0 to 15 on this problem."),
        (TraceChoice(batch_index=1), "batch_index = 1 is not possible: it can be 0 on this problem."),
        (TraceChoice(query_block=128), "query_block = 128 is not possible: it can be 0 to 127 on this problem."),
    ],
)
def test_a_choice_that_there_is_not_is_refused(choice, sentence):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        planned(trace=choice)


def test_bytes_keep_what_is_hidden_and_zero():
    values = np.array([-2.0, 0.0, 1.0, 2.0, -np.inf], np.float32)
    plan = dataclasses.replace(planned(), element_bytes=1)
    coded = tile_trace._coded(values, 2.0, plan)
    assert coded == Frames.of([0, 127, 190, 254, 255], "|u1")
    too_large = tile_trace._coded(np.array([1e5, 1.0]), 1e5, dataclasses.replace(plan, element_bytes=2))
    assert too_large.dtype == "|u1"
