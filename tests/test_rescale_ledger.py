"""The ledger on traces made by hand, against counts known beforehand and an online softmax with a stale maximum."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernels.problem import Precision
from profiling.record_types import Array, Frames
from profiling.rescale_ledger import rescale_ledger
from profiling.trace_record import Replay, TileTrace

HEAD_DIM, BLOCK_N = 16, 32
BF16, FP8 = Precision(), Precision(fp8=True)
AGREES = Replay(
    scores_error=0.0, allowed_scores_error=0.0, m_error=0.0, l_error=0.0, alpha_error=0.0, acc_error=0.0, allowed_error=0.0,
    output_error=0.0, allowed_output_error=0.0, allowed_because="made by hand", passed=True,
)  # fmt: skip


def trace_of(scores: np.ndarray, normalised: bool = False, every: int = 1, with_map: bool = True) -> TileTrace:
    """A trace of one query block with these scores (T, rows, BLOCK_N), natural units; what the ledger does not read is 0."""
    tiles, rows, _ = scores.shape
    m = np.maximum.accumulate(scores.max(2), axis=0) if tiles else np.zeros((0, rows))
    rises = (m > np.concatenate([np.full((1, rows), -np.inf), m[:-1]])).sum(1) if tiles else np.zeros(0)
    limit = float(np.abs(scores[np.isfinite(scores)]).max(initial=0.0))
    kept = slice((tiles - 1) % every, None, every)
    blocks = np.stack([np.full(tiles, -1), rises]) if with_map else np.zeros((0, 0))
    zeros = np.zeros((len(m[kept]), rows))
    return TileTrace(
        provenance="interpreted", batch_index=0, head=0, query_block=1, visited=tiles, every=every,
        key_blocks=Array.of(np.arange(tiles)[kept], "<i4"), scores=Frames.of(scores[kept], "<f2"), scores_limit=limit,
        m=Frames.of(m[kept], "<f4"), l=Frames.of(zeros, "<f4"), alpha=Frames.of(zeros, "<f4"),
        acc=Frames.of(np.zeros((len(zeros), rows, HEAD_DIM)), "<f2"), acc_limit=0.0, normalised=normalised,
        rescaled_rows=Array.of(blocks, "<i4"), replay=AGREES,
    )  # fmt: skip


def ramp(tiles: int, rows: int, step_log2: float) -> np.ndarray:
    """Every tile brings each row a maximum that is step_log2 higher."""
    generator = np.random.default_rng(0)
    below = -generator.random((tiles, rows, BLOCK_N)) * 2.0
    below[:, :, 5] = 0.0
    return below + (np.arange(tiles) * step_log2 * math.log(2.0))[:, None, None]


def drawn(tiles: int = 8, rows: int = 24, sigma: float = 3.0) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((tiles, rows, BLOCK_N)) * sigma


def test_a_ramp_rescales_every_row_at_every_tile_but_the_first():
    found = rescale_ledger(trace_of(ramp(9, 4, 1.0)), "v2", BF16)
    assert found.rescaled_rows.tolist() == [0] + [4] * 8
    assert found.needed_multiplications == 8 * 4 * HEAD_DIM
    assert found.done_multiplications == 9 * 4 * HEAD_DIM
    assert found.head_needed_multiplications == found.needed_multiplications
    assert found.head_done_multiplications == found.done_multiplications


def test_v1_multiplies_twice():
    found = rescale_ledger(trace_of(ramp(9, 4, 1.0), normalised=True), "v1", BF16)
    assert found.done_multiplications == 2 * 9 * 4 * HEAD_DIM


def test_a_row_that_never_changes_its_maximum_needs_nothing():
    found = rescale_ledger(trace_of(ramp(9, 4, -1.0)), "v2", BF16)
    assert found.needed_multiplications == 0
    assert found.lazy.saved_multiplications == 0


@pytest.mark.parametrize(("tau", "at"), [(0.0, [1, 2, 3, 4, 5, 6, 7, 8]), (2.5, [3, 6]), (8.5, []), (7.5, [8])])
def test_the_lazy_rule_waits_until_it_is_more_than_tau_behind(tau, at):
    found = rescale_ledger(trace_of(ramp(9, 4, 1.0)), "v2", BF16, tau).lazy
    assert np.flatnonzero(found.rescaled_rows).tolist() == at
    assert found.rescaled_rows.sum() == 4 * len(at)
    assert found.saved_multiplications == (8 - len(at)) * 4 * HEAD_DIM


def errors_of_o(scores: np.ndarray, tau: float, round_to) -> float:
    """‖O − exact‖ / ‖exact‖ of an online softmax with a stale maximum, written row by row, on N(0, 1) values."""
    tiles, rows, _ = scores.shape
    v = np.random.default_rng(2).standard_normal((tiles, BLOCK_N, 512))
    error = norm = 0.0
    for row in range(rows):
        m, l, acc = -np.inf, 0.0, np.zeros(512)  # noqa: E741
        for tile in range(tiles):
            m_new = max(m, scores[tile, row].max())
            if m == -np.inf or (m_new - m) / math.log(2.0) > tau:
                alpha = math.exp(m - m_new)
                l, acc, m = l * alpha, acc * alpha, m_new  # noqa: E741
            p = np.exp(scores[tile, row] - m)
            l, acc = l + p.sum(), acc + round_to(p) @ v[tile]  # noqa: E741
        weights = np.exp(scores[:, row] - scores[:, row].max())
        exact = np.einsum("tk,tkd->d", weights / weights.sum(), v)
        error, norm = error + ((acc / l - exact) ** 2).sum(), norm + (exact**2).sum()
    return math.sqrt(error / norm)


def as_bf16(p: np.ndarray) -> np.ndarray:
    _, exponent = np.frexp(p)
    step = np.ldexp(1.0, exponent - 8)
    return np.round(p / step) * step


@pytest.mark.parametrize("tau", [0.0, 4.0, 8.0])
def test_the_error_is_that_of_o(tau):
    scores = drawn().astype(np.float16).astype(np.float64)
    found = rescale_ledger(trace_of(scores), "v2", BF16, tau).lazy
    # 24 rows of 512 channels: the root mean square of 12,288 numbers scatters by under 1 %, rows alike share weights.
    assert found.lazy_error == pytest.approx(errors_of_o(scores, tau, as_bf16), rel=0.1)
    assert found.eager_error == pytest.approx(errors_of_o(scores, 0.0, as_bf16), rel=0.1)


def test_bf16_does_not_mind_a_stale_maximum_and_e4m3_does():
    scores = ramp(9, 8, 1.0)
    bf16, fp8 = (rescale_ledger(trace_of(scores), "v3", precision, 8.0).lazy for precision in (BF16, FP8))
    assert bf16.lazy_error < 1.5 * bf16.eager_error < 2.0**-8
    # P times 2^8 leaves no room above 448: weights of 2^8 saturate.
    assert fp8.eager_error < 2.0**-4 < 0.3 < fp8.lazy_error


def test_rows_that_see_nothing_count_for_nothing():
    scores = drawn()
    scores[:, 3] = -np.inf
    found = rescale_ledger(trace_of(scores), "v2", BF16)
    without = rescale_ledger(trace_of(np.delete(scores, 3, axis=1)), "v2", BF16)
    assert found.needed_multiplications == without.needed_multiplications
    assert found.lazy.lazy_error == pytest.approx(without.lazy.lazy_error)


def test_a_block_that_visits_nothing():
    found = rescale_ledger(trace_of(np.zeros((0, 4, BLOCK_N))), "v2", BF16)
    assert (found.needed_multiplications, found.done_multiplications) == (0, 0)
    assert found.lazy.lazy_error == 0.0


def test_a_sampled_trace_counts_by_the_map_and_follows_no_stale_maximum():
    found = rescale_ledger(trace_of(ramp(9, 4, 1.0), every=2), "v2", BF16)
    assert found.rescaled_rows.tolist() == [0] + [4] * 8
    assert found.lazy is None
    assert "every tile" in found.missing["lazy"]
    neither = rescale_ledger(trace_of(ramp(9, 4, 1.0), every=2, with_map=False), "v2", BF16)
    assert neither.needed_multiplications is None
    assert neither.missing.keys() == {"lazy", "head", "rescaled_rows"}


@pytest.mark.parametrize("tau", [-1.0, math.nan, math.inf])
def test_a_threshold_that_is_none_is_refused(tau):
    with pytest.raises(ValueError, match="it can be 0 or more"):
        rescale_ledger(trace_of(drawn()), "v2", BF16, tau)
