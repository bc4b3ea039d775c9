"""The replay of a kernel whose m may lag, against a NumPy model of it: what follows the rule passes, what bends it does not."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from kernels.problem import AttentionProblem
from profiling.replay import Stored, prove
from tests.lagging_attention import ALL_SEEN, BLOCK_M, LAG_LOG2, Faults, LaggingKernel

# A tile of 32 keys lifts the scores by 32 · ramp: a little, so that m lags for tiles; much, so that each tile moves it.
SOME, MUCH = 0.05, 1.0


def proof(kernel: LaggingKernel, stored: Stored):
    return prove(stored, kernel.block, kernel.arithmetic, kernel.visited)


@pytest.mark.parametrize("query_block", [0, 1])
@pytest.mark.parametrize("ramp", [0.0, SOME, MUCH, -SOME])
def test_an_honest_lagging_trace_passes(query_block, ramp):
    kernel = LaggingKernel(query_block=query_block, ramp=ramp)
    stored = kernel.run()
    replay = proof(kernel, stored)
    assert replay.passed, replay
    assert 0 < replay.output_error <= replay.allowed_output_error


@pytest.mark.parametrize(
    ("ramp", "keeps", "moves"), [(0.0, True, False), (SOME, True, True), (MUCH, False, True), (-MUCH, False, False)]
)
def test_the_cases_are_what_they_are_for(ramp, keeps, moves):
    maxima = LaggingKernel(ALL_SEEN, ramp=ramp).run().maxima
    before, after, row_max = maxima[:-1, 0], maxima[1:, 0], maxima[1:, 1]
    assert ((row_max > before) & (after == before)).any() == keeps
    assert (after > before).any() == moves
    assert (row_max - after).max() <= LAG_LOG2


@pytest.mark.parametrize(
    "problem",
    [
        AttentionProblem(num_heads=1, num_kv_heads=1, seq_len_q=100, seq_len_kv=77, head_dim=64),
        AttentionProblem(num_heads=1, num_kv_heads=1, seq_len_q=130, seq_len_kv=10, head_dim=16, causal=True),
        AttentionProblem(num_heads=1, num_kv_heads=1, seq_len_q=1, seq_len_kv=300, head_dim=32, causal=True),
    ],
    ids=lambda problem: problem.title,
)
def test_ragged_ends_and_rows_that_see_nothing_pass(problem):
    for query_block in range(-(-problem.seq_len_q // BLOCK_M)):
        kernel = LaggingKernel(problem, query_block, spread=3.0, ramp=SOME)
        assert proof(kernel, kernel.run()).passed


def test_fp16_passes_too():
    kernel = LaggingKernel(ramp=SOME, dtype="fp16")
    assert proof(kernel, kernel.run()).passed


def test_a_sampled_trace_is_proved_at_every_tile_all_the_same():
    def sampled(stored: Stored) -> Stored:
        parts = ("key_blocks", "scores", "m", "l", "alpha", "acc")
        return replace(stored, **{name: getattr(stored, name)[::-1][::2][::-1] for name in parts})

    moving = LaggingKernel(ALL_SEEN, ramp=MUCH)
    assert proof(moving, sampled(moving.run())).passed
    for place in (2, 3):
        assert not proof(moving, sampled(moving.run(Faults(place, keeps_though_exceeded=True)))).passed


@pytest.mark.parametrize(
    ("ramp", "faults"),
    [
        (SOME, Faults(1, moves_without_cause=True)),
        (MUCH, Faults(2, keeps_though_exceeded=True)),
        (MUCH, Faults(2, skips_rescale=True)),
    ],
)
def test_a_kernel_that_bends_the_rule_is_refused(ramp, faults):
    kernel = LaggingKernel(ALL_SEEN, ramp=ramp)
    assert proof(kernel, kernel.run()).passed
    assert not proof(kernel, kernel.run(faults)).passed


def test_one_that_never_lags_is_refused():
    kernel = LaggingKernel(ALL_SEEN, ramp=SOME)
    assert not proof(kernel, kernel.run(eager=True)).passed


def changed(stored: Stored, name: str, change) -> Stored:
    values = getattr(stored, name).copy()
    change(values)
    return dataclasses.replace(stored, **{name: values})


def _scale(place, factor):
    def change(values):
        values[place] *= np.float32(factor)

    return change


def _put(place, value):
    def change(values):
        values[place] = value

    return change


FAULTS = {
    # Place 1 keeps m in every row: alpha is 1 there, and nothing else.
    "alpha while m is kept": ("alpha", _scale((1, 3), 1 - 2e-6)),
    "m in a frame": ("m", _scale((1, 3), 1.0001)),
    "m where it was settled": ("maxima", _scale((1, 0, 3), 1.0001)),
    "the tile's own maximum": ("maxima", _scale((1, 1, 3), 1.0001)),
    "a maximum that hides that m had to move": ("maxima", _put((1, 1, 3), -500.0)),
    "a tile that is not there": ("maxima", lambda values: values.__setitem__(0, values[1])),
    "a row that rose": ("rises", lambda values: values.__iadd__(values > 0)),
    "one sum": ("l", _scale((1, 3), 1.001)),
    "one row of O": ("acc", _scale((1, 3), 1.05)),
    "a score": ("scores", _scale((1, 3, 0), 1.001)),
    "the order": ("scores", lambda values: values.__setitem__([1, 2], values[[2, 1]])),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_lagging_trace_is_refused(fault):
    kernel = LaggingKernel(ALL_SEEN, query_block=0, ramp=SOME)
    stored = kernel.run()
    assert (stored.maxima[1, 0] == stored.maxima[0, 0]).all()
    name, change = FAULTS[fault]
    assert not proof(kernel, changed(stored, name, change)).passed


def test_a_trace_without_what_was_held_at_every_tile_is_no_proof():
    kernel = LaggingKernel()
    with pytest.raises(ValueError, match="is not possible without what it held"):
        proof(kernel, replace(kernel.run(), maxima=None))
    stored = kernel.run()
    assert not proof(kernel, replace(stored, maxima=stored.maxima[1:])).passed
