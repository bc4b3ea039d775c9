"""The record of a trace whose m lags, and the account of what it rescaled: from buffers filled by the rule's NumPy model."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.problem import Precision
from profiling import tile_trace
from profiling.records import RunRequest
from profiling.replay import ROWS_A_WARP
from profiling.rescale_ledger import rescale_ledger
from tests.lagging_attention import PROBLEM, TILES, taken

LN_2 = np.log(2.0)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("every", [1, 3])
def test_the_record_is_in_the_order_visited_and_proved(every, causal):
    trace, kernel = taken(0.05, every, causal)
    assert trace.replay.passed, trace.replay
    assert trace.key_blocks.numpy().tolist() == [block for block in range(kernel.visited - 1, -1, -1) if block % every == 0]
    assert trace.every == every
    assert trace.lag_log2 == 8.0
    stored = kernel.run()
    places = [kernel.visited - 1 - block for block in trace.key_blocks.numpy()]
    rows = len(kernel.block.q)
    assert np.array_equal(trace.m.numpy()[:, :rows], stored.m[places])
    assert np.allclose(trace.row_max.numpy()[:, :rows], stored.maxima[places, 1, :rows] * LN_2, rtol=1e-6)
    # Rows past the last query are as those that see nothing, though the kernel computes them.
    assert (trace.row_max.numpy()[:, rows:] == -np.inf).all()
    assert not trace.multiplied.numpy()[:, rows:].any()


def test_a_kernel_that_went_elsewhere_leaves_no_trace():
    _, kernel = taken(0.05)
    plan = tile_trace.TracePlan(1, kernel.visited + 1, 1, 1, 2, 0, 0, True, last_first=True)
    with pytest.raises(RuntimeError, match=f"the kernel went through {kernel.visited} key blocks"):
        tile_trace._lag(plan, kernel.run(), kernel.arithmetic)


def test_the_plan_counts_back_from_the_last_tile_which_is_key_block_0():
    problem = PROBLEM.model_copy(update={"seq_len_q": 16384, "seq_len_kv": 16384, "head_dim": 128, "causal": False})
    tiles = TILES.model_copy(update={"block_n": 128})
    request = RunRequest(kernel="v3-hopper", problem=problem, tiles=tiles, device="GPU-test")
    plan = tile_trace.plan(request, tiles)
    assert (plan.visited, plan.every, plan.stored, plan.first) == (128, 3, 43, 0)
    assert plan.key_blocks.tolist() == list(range(126, -1, -3))
    assert plan.record_bytes <= tile_trace.RECORD_BYTES


def test_a_block_that_sees_nothing_still_visits_one_tile():
    problem = PROBLEM.model_copy(update={"seq_len_q": 400, "seq_len_kv": 100})
    assert tile_trace.visited_tiles("v3-hopper", problem, TILES, 0) == 1
    assert tile_trace.visited_tiles("v2", problem, TILES, 0) == 0


# The account


@pytest.mark.parametrize("ramp", [0.0, 0.05, 1.0])
def test_the_ledger_tells_moved_from_kept_though_a_larger_score_came(ramp):
    trace, kernel = taken(ramp, causal=False)
    maxima, rows = kernel.run().maxima, len(kernel.block.q)
    m, row_max = maxima[:, 0, :rows], maxima[:, 1, :rows]
    found = rescale_ledger(trace, "v3-hopper", Precision())
    moved = (m[1:] > m[:-1]).sum(1)
    assert found.rescaled_rows.tolist() == [0, *moved]
    assert found.lagging.kept_rows.tolist() == (row_max > m).sum(1).tolist()
    true = np.maximum.accumulate(row_max, axis=0)
    assert found.lagging.eager_rows.tolist() == [0, *(true[1:] > true[:-1]).sum(1)]
    assert found.lagging.most_ahead_log2 == pytest.approx(max(0.0, float((row_max - m).max())), abs=1e-5)
    assert found.lagging.most_ahead_log2 <= 8.0 + 1e-5
    # A warp's rows go together, so that as many or more are multiplied as moved, in sixteens where all are inside.
    assert (found.lagging.multiplied_rows[1:] >= moved).all()
    assert found.done_multiplications == found.lagging.multiplied_rows.sum() * PROBLEM.head_dim
    assert found.head_done_multiplications is None
    assert found.lagging.multiplied_rows[1] % ROWS_A_WARP in (0, rows % ROWS_A_WARP)


def test_what_tau_would_save_is_counted_from_the_true_maxima():
    trace, _ = taken(0.05, causal=False)
    never, lagging = (rescale_ledger(trace, "v3-hopper", Precision(), tau) for tau in (0.0, 8.0))
    assert never.lazy.saved_multiplications == 0
    assert never.lazy.rescaled_rows.tolist() == never.lagging.eager_rows.tolist()
    # Row by row saves at least what a warp's rows together save.
    moved = int(lagging.rescaled_rows.sum())
    assert int(lagging.lazy.rescaled_rows.sum()) <= moved < int(lagging.lagging.eager_rows.sum())


def test_a_sampled_lagging_trace_is_counted_by_the_map_in_the_order_visited():
    whole, sampled = (taken(1.0, every, causal=False)[0] for every in (1, 3))
    found = rescale_ledger(sampled, "v3-hopper", Precision())
    assert found.rescaled_rows.tolist() == rescale_ledger(whole, "v3-hopper", Precision()).rescaled_rows.tolist()
    assert found.lagging is None
    assert found.done_multiplications is None
