"""The backward of v3 for Hopper, in Gluon: dq, dk, dv by recomputation (Shah et al. 2024, arXiv 2407.08608, section 3).

Two launches after the pre-pass, so that nothing is added to memory by two programs at once and every run gives the same bits:
one keeps dk and dv of 64 keys a warpgroup and passes over the queries, one keeps dq of 64 queries and passes over the keys.
That is seven products where five would do; but each warpgroup hands P and dS on in registers, and writes its gradients once.

dk and dv: Sᵀ = K Qᵀ and dPᵀ = V dOᵀ, so that Pᵀ and dSᵀ are the left operands of dv += Pᵀ dO and dk += dSᵀ Q as they stand.
A program is one warpgroup that loads for itself, two on an SM (three where head_dim is at most 64): one's exponentials run
under the others' products. Two warpgroups of one program, which free their buffers together, were slower. The scores of the
next tile are begun behind the last product of this one, and are there when its turn comes.

dq: three warpgroups of 64 queries, and a warp that loads each tile of keys for all of them. The matrix units have work enough
from three: beginning the next scores early made them slower.

All this was measured on an H200 (MEASURED.md). Where head_dim is at most 64, v3's kernel for dq is faster than this one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.hopper import REGISTERS, arrive, descriptor, end_basic_block, sync
from kernels.kernel import AttentionOutput, Gradients, Launcher, Operands
from kernels.problem import AttentionProblem, BackwardTiles, TileConfig
from kernels.tiles import LN_2, LOG2_E

# Of a tile, of a warpgroup, and of a block of what the pre-pass writes.
_QUERIES = gl.constexpr(64)
_KEYS = gl.constexpr(64)
# Warpgroups of a program for dq, and the registers a thread of them and of the producer.
_GROUPS = gl.constexpr(3)
_CONSUMER_REGISTERS, _PRODUCER_REGISTERS = map(gl.constexpr, REGISTERS[_GROUPS.value])
# Of the scores, and of a number for each of their rows and columns.
_SCORES = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
_OF_ROWS = gl.constexpr(gl.SliceLayout(1, _SCORES.value))
_OF_COLUMNS = gl.constexpr(gl.SliceLayout(0, _SCORES.value))
# Named barriers: kernels.hopper says which are free. For dq one for each buffer of the ring.
_FREE = gl.constexpr(8)


# The pre-pass


@triton.jit(do_not_specialize=("seq_len_q",))
def backward_v3_hopper_rows(out_ptr, d_out_ptr, lse_ptr, rows_ptr, seq_len_q, HEAD_DIM: tl.constexpr, DIM: tl.constexpr):
    """For each query log2 of its sum of exponentials, +inf where it sees nothing or is none, and delta = rowsum(dO ∘ O)."""
    blocks = tl.cdiv(seq_len_q, _QUERIES)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    queries = tl.arange(0, _QUERIES)
    rows = tl.program_id(0) % blocks * _QUERIES + queries
    columns = tl.arange(0, DIM)
    there = rows < seq_len_q
    place = (head * seq_len_q + rows)[:, None] * HEAD_DIM + columns[None, :]
    mask = there[:, None] & (columns < HEAD_DIM)[None, :]
    out = tl.load(out_ptr + place, mask=mask, other=0.0).to(tl.float32)
    d_out = tl.load(d_out_ptr + place, mask=mask, other=0.0).to(tl.float32)
    lse = tl.load(lse_ptr + head * seq_len_q + rows, mask=there, other=-float("inf"))
    target = rows_ptr + tl.program_id(0).to(tl.int64) * (2 * _QUERIES) + queries
    tl.store(target, tl.where(lse == -float("inf"), float("inf"), lse / LN_2))
    tl.store(target + _QUERIES, tl.sum(out * d_out, 1))


# Both


@gluon.jit
def _issue(a, b):
    """a bᵀ, begun; a and b are buffers of 64 rows."""
    zero = gl.zeros([64, 64], gl.float32, _SCORES)
    return warpgroup_mma(a, b.permute((1, 0)), zero, use_acc=False, is_async=True)


@gluon.jit
def _read(buffer, layout: gl.constexpr):
    """A number for each query."""
    return buffer._reinterpret(gl.float32, [_QUERIES], gl.SwizzledSharedLayout(1, 1, 1, order=[0])).load(layout)


@gluon.jit
def _store(target, acc, head, first_row, buffer, DIM: gl.constexpr):
    """64 rows through a buffer that nobody reads any more; tma.store_wait() waits until they have left it."""
    buffer.reshape([64, DIM]).store(acc.to(buffer.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(target, [head, first_row, 0], buffer)


# dk and dv


@gluon.jit
def _load_keys_once(k_source, v_source, kv_head, first_key, k_s, v_s, kv_full):
    mbarrier.expect(kv_full, k_source.block_type.nbytes + v_source.block_type.nbytes)
    tma.async_copy_global_to_shared(k_source, [kv_head, first_key, 0], kv_full, k_s)
    tma.async_copy_global_to_shared(v_source, [kv_head, first_key, 0], kv_full, v_s)


@gluon.jit
def _load_queries(sources, facts, shared, fill, STAGES: gl.constexpr, SHARING: gl.constexpr):
    """Ask for Q, dO and the rows' numbers of tile `fill`, unless there is none."""
    q_source, d_out_source, rows_source = sources
    q_s, d_out_s, log2_sum_s, delta_s, _kv_full, q_full, d_out_full = shared
    kv_head, first_tile, tiles_a_head, num_fills = facts
    head, tile = kv_head, first_tile + fill
    if SHARING > 1:
        head = kv_head * SHARING + fill // tiles_a_head
        tile = first_tile + fill % tiles_a_head
    stage = fill % STAGES
    there = fill < num_fills
    q_ready, d_out_ready = q_full.index(stage), d_out_full.index(stage)
    place = [head, tile * _QUERIES, 0]
    mbarrier.expect(q_ready, q_source.block_type.nbytes + rows_source.block_type.nbytes, pred=there)
    tma.async_copy_global_to_shared(q_source, place, q_ready, q_s.index(stage), pred=there)
    tma.async_copy_global_to_shared(rows_source, [head, tile, 0, 0], q_ready, log2_sum_s.index(stage), pred=there)
    mbarrier.expect(d_out_ready, d_out_source.block_type.nbytes + rows_source.block_type.nbytes, pred=there)
    tma.async_copy_global_to_shared(d_out_source, place, d_out_ready, d_out_s.index(stage), pred=there)
    tma.async_copy_global_to_shared(rows_source, [head, tile, 1, 0], d_out_ready, delta_s.index(stage), pred=there)


@gluon.jit
def _wait_for(full, fill, num_fills, STAGES: gl.constexpr):
    """Until tile `fill` is there, if there is one."""
    mbarrier.wait(full.index(fill % STAGES), (fill // STAGES) & 1, pred=fill < num_fills)


@gluon.jit
def _step_queries(
    k, v, sources, facts, shared, s, dk, dv, qk_scale, hidden_before, fill,
    STAGES: gl.constexpr, SHARING: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """One tile of queries: its exponentials run under dPᵀ, dS under Pᵀ dO. Sᵀ of the next tile is begun before its end.

    hidden_before: with MASKED, for each key the first query of the tile that sees it.
    """
    q_s, d_out_s, log2_sum_s, delta_s, kv_full, q_full, d_out_full = shared
    num_fills = facts[3]
    DIM: gl.constexpr = dk.shape[1]
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=dk.type.layout, k_width=2)
    stage = fill % STAGES
    q, d_out = q_s.index(stage).reshape([_QUERIES, DIM]), d_out_s.index(stage).reshape([_QUERIES, DIM])
    mbarrier.wait(d_out_full.index(stage), (fill // STAGES) & 1)
    dp = _issue(v, d_out)
    # A branch that no load may pass: so all of dPᵀ is issued before the exponentials. Of two tiles the next is not there yet.
    if STAGES == 2:
        mbarrier.wait(kv_full, 0)
    else:
        _wait_for(q_full, fill + 1, num_fills, STAGES)
    p = gl.exp2(s * qk_scale - _read(log2_sum_s.index(stage), _OF_COLUMNS)[None, :])
    if MASKED:
        queries = gl.arange(0, _QUERIES, _OF_COLUMNS)
        p = gl.where(queries[None, :] >= hidden_before[:, None], p, 0.0)
    p16 = gl.convert_layout(p.to(q.dtype), P_LAYOUT)
    dv = warpgroup_mma(p16, d_out, dv, is_async=True)
    if DIM <= 64:
        # Three programs an SM have no registers for delta or dSᵀ until Pᵀ has left its own.
        dp, dv, p16 = warpgroup_mma_wait(0, deps=[dp, dv, p16])
        delta = _read(delta_s.index(stage), _OF_COLUMNS)[None, :]
    else:
        delta = _read(delta_s.index(stage), _OF_COLUMNS)[None, :]
        dp = warpgroup_mma_wait(1, deps=[dp])
    ds16 = gl.convert_layout((p * (dp - delta)).to(q.dtype), P_LAYOUT)
    dk = warpgroup_mma(ds16, q, dk, is_async=True)
    if STAGES == 2:
        _wait_for(q_full, fill + 1, num_fills, STAGES)
    # Past the last tile with whatever lies there, for nobody.
    s = _issue(k, q_s.index((fill + 1) % STAGES).reshape([_QUERIES, DIM]))
    dk, dv, p16, ds16 = warpgroup_mma_wait(1, deps=[dk, dv, p16, ds16])
    sync(_FREE, 128)
    _load_queries(sources, facts, shared, fill + STAGES, STAGES, SHARING)
    s = warpgroup_mma_wait(0, deps=[s])
    return s, dk, dv, fill + 1


@gluon.jit
def _pass_over_queries(
    k, v, sources, facts, shared, qk_scale, num_masked, hidden_before,
    STAGES: gl.constexpr, SHARING: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """dk / sm_scale and dv. hidden_before: for each key the first query that sees it, counted from the first tile."""
    q_s, q_full = shared[0], shared[5]
    tiles_a_head, num_fills = facts[2], facts[3]
    DIM: gl.constexpr = k.shape[1]
    D_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    dk = gl.zeros([_KEYS, DIM], gl.float32, D_LAYOUT)
    dv = gl.zeros([_KEYS, DIM], gl.float32, D_LAYOUT)
    _wait_for(q_full, 0, num_fills, STAGES)
    s = warpgroup_mma_wait(0, deps=[_issue(k, q_s.index(0).reshape([_QUERIES, DIM]))])
    fill = 0
    for _head in range(SHARING):
        if CAUSAL:
            for masked in range(num_masked):
                s, dk, dv, fill = _step_queries(
                    k, v, sources, facts, shared, s, dk, dv, qk_scale, hidden_before - masked * _QUERIES, fill,
                    STAGES, SHARING, True,
                )  # fmt: skip
        for _ in range(num_masked, tiles_a_head):
            s, dk, dv, fill = _step_queries(
                k, v, sources, facts, shared, s, dk, dv, qk_scale, hidden_before, fill, STAGES, SHARING, False
            )
    return dk, dv


@gluon.jit(do_not_specialize=("seq_len_q", "seq_len_kv"))
def backward_v3_hopper_dkdv(
    q_source, k_source, v_source, d_out_source, rows_source, dk_target, dv_target, qk_scale, sm_scale,
    seq_len_q, seq_len_kv,
    STAGES: gl.constexpr, DIM: gl.constexpr, SHARING: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    k_s = gl.allocate_shared_memory(k_source.dtype, [1, _KEYS, DIM], k_source.layout)
    v_s = gl.allocate_shared_memory(v_source.dtype, [1, _KEYS, DIM], v_source.layout)
    q_s = gl.allocate_shared_memory(q_source.dtype, [STAGES, 1, _QUERIES, DIM], q_source.layout)
    d_out_s = gl.allocate_shared_memory(d_out_source.dtype, [STAGES, 1, _QUERIES, DIM], d_out_source.layout)
    log2_sum_s = gl.allocate_shared_memory(gl.float32, [STAGES, 1, 1, 1, _QUERIES], rows_source.layout)
    delta_s = gl.allocate_shared_memory(gl.float32, [STAGES, 1, 1, 1, _QUERIES], rows_source.layout)
    kv_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    d_out_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(kv_full, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(q_full.index(stage), count=1)
        mbarrier.init(d_out_full.index(stage), count=1)
    blocks = gl.cdiv(seq_len_kv, _KEYS)
    kv_head = gl.program_id(0) // blocks
    # The first keys are seen by most queries, and start first.
    first_key = gl.program_id(0) % blocks * _KEYS
    num_tiles = gl.cdiv(seq_len_q, _QUERIES)
    first_tile, num_masked = 0, 0
    # The query from which on the first key is seen.
    seen_from = first_key - (seq_len_kv - seq_len_q)
    if CAUSAL:
        first_tile = gl.minimum(gl.maximum(seen_from, 0) // _QUERIES, num_tiles)
        num_masked = gl.minimum(gl.cdiv(gl.maximum(seen_from + _KEYS - 1, 0), _QUERIES), num_tiles) - first_tile
    tiles_a_head = num_tiles - first_tile
    facts = (kv_head, first_tile, tiles_a_head, SHARING * tiles_a_head)
    shared = (q_s, d_out_s, log2_sum_s, delta_s, kv_full, q_full, d_out_full)
    sources = (q_source, d_out_source, rows_source)
    _load_keys_once(k_source, v_source, kv_head, first_key, k_s, v_s, kv_full)
    for fill in range(STAGES):
        _load_queries(sources, facts, shared, fill, STAGES, SHARING)
    hidden_before = seen_from - first_tile * _QUERIES + gl.arange(0, _KEYS, _OF_ROWS)
    mbarrier.wait(kv_full, 0)
    k, v = k_s.reshape([_KEYS, DIM]), v_s.reshape([_KEYS, DIM])
    dk, dv = _pass_over_queries(
        k, v, sources, facts, shared, qk_scale, num_masked, hidden_before, STAGES, SHARING, CAUSAL
    )  # fmt: skip
    _store(dv_target, dv, kv_head, first_key, v_s, DIM)
    _store(dk_target, dk * sm_scale, kv_head, first_key, k_s, DIM)
    tma.store_wait(0)


# dq


@gluon.jit
def _load_rows_once(sources, facts, shared):
    q_source, _k_source, _v_source, d_out_source, rows_source = sources
    q_s, d_out_s, _k_s, _v_s, log2_sum_s, delta_s, rows_full, _k_full, _v_full = shared
    BYTES: gl.constexpr = q_source.block_type.nbytes + d_out_source.block_type.nbytes + 2 * rows_source.block_type.nbytes
    for group in gl.static_range(_GROUPS):
        head, row = facts[0], facts[2] + group * _QUERIES
        full = rows_full.index(group)
        mbarrier.expect(full, BYTES)
        tma.async_copy_global_to_shared(q_source, [head, row, 0], full, q_s.index(group))
        tma.async_copy_global_to_shared(d_out_source, [head, row, 0], full, d_out_s.index(group))
        tma.async_copy_global_to_shared(rows_source, [head, row // _QUERIES, 0, 0], full, log2_sum_s.index(group))
        tma.async_copy_global_to_shared(rows_source, [head, row // _QUERIES, 1, 0], full, delta_s.index(group))


@gluon.jit
def _produce_keys(sources, facts, shared, STAGES: gl.constexpr):
    _q_source, k_source, v_source, _d_out_source, _rows_source = sources
    _q_s, _d_out_s, k_s, v_s, _log2_sum_s, _delta_s, _rows_full, k_full, v_full = shared
    kv_head, num_tiles = facts[1], facts[3]
    _load_rows_once(sources, facts, shared)
    for fill in range(num_tiles):
        stage = fill % STAGES
        if fill >= STAGES:
            sync(_FREE + stage, 128 * _GROUPS + 32)
        # Last keys first: so the tiles that need a mask come before the loop that has none.
        place = [kv_head, (num_tiles - 1 - fill) * _KEYS, 0]
        mbarrier.expect(k_full.index(stage), k_source.block_type.nbytes)
        tma.async_copy_global_to_shared(k_source, place, k_full.index(stage), k_s.index(stage))
        mbarrier.expect(v_full.index(stage), v_source.block_type.nbytes)
        tma.async_copy_global_to_shared(v_source, place, v_full.index(stage), v_s.index(stage))


@gluon.jit
def _step_keys(
    q, d_out, shared, dq, qk_scale, last_seen, fill,
    GROUP: gl.constexpr, STAGES: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """One tile of keys: its exponentials run under dP. last_seen: with MASKED, for each query the last key that it sees."""
    _q_s, _d_out_s, k_s, v_s, log2_sum_s, delta_s, _rows_full, k_full, v_full = shared
    DIM: gl.constexpr = dq.shape[1]
    DS_LAYOUT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=dq.type.layout, k_width=2)
    stage, phase = fill % STAGES, (fill // STAGES) & 1
    k, v = k_s.index(stage).reshape([_KEYS, DIM]), v_s.index(stage).reshape([_KEYS, DIM])
    mbarrier.wait(k_full.index(stage), phase)
    s = _issue(q, k)
    mbarrier.wait(v_full.index(stage), phase)
    dp = _issue(d_out, v)
    log2_sum = _read(log2_sum_s.index(GROUP), _OF_ROWS)[:, None]
    delta = _read(delta_s.index(GROUP), _OF_ROWS)[:, None]
    s = warpgroup_mma_wait(1, deps=[s])
    p = gl.exp2(s * qk_scale - log2_sum)
    if MASKED:
        keys = gl.arange(0, _KEYS, _OF_COLUMNS)
        p = gl.where(keys[None, :] <= last_seen[:, None], p, 0.0)
    end_basic_block(p, 32)
    dp = warpgroup_mma_wait(0, deps=[dp])
    ds16 = gl.convert_layout((p * (dp - delta)).to(k.dtype), DS_LAYOUT)
    dq = warpgroup_mma(ds16, k, dq, is_async=True)
    dq, ds16 = warpgroup_mma_wait(0, deps=[dq, ds16])
    arrive(_FREE + stage, 128 * _GROUPS + 32)
    return dq


@gluon.jit
def _consume_keys(
    target, facts, shared, qk_scale, sm_scale, GROUP: gl.constexpr, STAGES: gl.constexpr, DIM: gl.constexpr,
    CAUSAL: gl.constexpr, RAGGED: gl.constexpr,
):  # fmt: skip
    """dq of 64 queries."""
    q_s, d_out_s, rows_full = shared[0], shared[1], shared[6]
    head, _kv_head, first_row, num_tiles, num_unmasked, seq_len_kv, offset = facts
    D_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    dq = gl.zeros([_QUERIES, DIM], gl.float32, D_LAYOUT)
    first_row += GROUP * _QUERIES
    first_key = (num_tiles - 1) * _KEYS
    last_seen = gl.full([_QUERIES], seq_len_kv - 1 - first_key, gl.int32, _OF_ROWS)
    if CAUSAL:
        last_seen = gl.minimum(last_seen, first_row + gl.arange(0, _QUERIES, _OF_ROWS) + (offset - first_key))
    q, d_out = q_s.index(GROUP).reshape([_QUERIES, DIM]), d_out_s.index(GROUP).reshape([_QUERIES, DIM])
    mbarrier.wait(rows_full.index(GROUP), 0)
    num_masked = num_tiles - num_unmasked
    if CAUSAL or RAGGED:
        for fill in range(num_masked):
            dq = _step_keys(q, d_out, shared, dq, qk_scale, last_seen, fill, GROUP, STAGES, True)
            last_seen += _KEYS
    for fill in range(num_masked, num_tiles):
        dq = _step_keys(q, d_out, shared, dq, qk_scale, last_seen, fill, GROUP, STAGES, False)
    # Q of this warpgroup is read by nobody else.
    _store(target, dq * sm_scale, head, first_row, q_s.index(GROUP), DIM)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=("seq_len_q", "seq_len_kv"))
def backward_v3_hopper_dq(
    q_source, k_source, v_source, d_out_source, rows_source, target, qk_scale, sm_scale,
    seq_len_q, seq_len_kv,
    STAGES: gl.constexpr, DIM: gl.constexpr, SHARING: gl.constexpr, CAUSAL: gl.constexpr, RAGGED: gl.constexpr,
):  # fmt: skip
    q_s = gl.allocate_shared_memory(q_source.dtype, [_GROUPS, 1, _QUERIES, DIM], q_source.layout)
    d_out_s = gl.allocate_shared_memory(d_out_source.dtype, [_GROUPS, 1, _QUERIES, DIM], d_out_source.layout)
    k_s = gl.allocate_shared_memory(k_source.dtype, [STAGES, 1, _KEYS, DIM], k_source.layout)
    v_s = gl.allocate_shared_memory(v_source.dtype, [STAGES, 1, _KEYS, DIM], v_source.layout)
    log2_sum_s = gl.allocate_shared_memory(gl.float32, [_GROUPS, 1, 1, 1, _QUERIES], rows_source.layout)
    delta_s = gl.allocate_shared_memory(gl.float32, [_GROUPS, 1, 1, 1, _QUERIES], rows_source.layout)
    rows_full = gl.allocate_shared_memory(gl.int64, [_GROUPS, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for group in gl.static_range(_GROUPS):
        mbarrier.init(rows_full.index(group), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(v_full.index(stage), count=1)
    ROWS: gl.constexpr = _QUERIES * _GROUPS
    blocks = gl.cdiv(seq_len_q, ROWS)
    head = gl.program_id(0) // blocks
    # The last queries see most keys, and start first.
    first_row = (blocks - 1 - gl.program_id(0) % blocks) * ROWS
    offset = seq_len_kv - seq_len_q
    seen, seen_by_all = seq_len_kv, seq_len_kv
    if CAUSAL:
        seen = gl.minimum(gl.maximum(first_row + ROWS + offset, 0), seq_len_kv)
        seen_by_all = gl.minimum(gl.maximum(first_row + offset + 1, 0), seq_len_kv)
    facts = (head, head // SHARING, first_row, gl.cdiv(seen, _KEYS), seen_by_all // _KEYS, seq_len_kv, offset)
    shared = (q_s, d_out_s, k_s, v_s, log2_sum_s, delta_s, rows_full, k_full, v_full)
    sources = (q_source, k_source, v_source, d_out_source, rows_source)
    gl.warp_specialize(
        [
            (_consume_keys, (target, facts, shared, qk_scale, sm_scale, 0, STAGES, DIM, CAUSAL, RAGGED)),
            (_consume_keys, (target, facts, shared, qk_scale, sm_scale, 1, STAGES, DIM, CAUSAL, RAGGED)),
            (_consume_keys, (target, facts, shared, qk_scale, sm_scale, 2, STAGES, DIM, CAUSAL, RAGGED)),
            (_produce_keys, (sources, facts, shared, STAGES)),
        ],
        [4, 4, 1],
        [_CONSUMER_REGISTERS, _CONSUMER_REGISTERS, _PRODUCER_REGISTERS],
    )


# On the host


def prepare(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Operands:
    """As given; see kernels.kernel.Backward."""
    return Operands(q, k, v, q.dtype)


def preprocess(
    operands: Operands, output: AttentionOutput, d_out: torch.Tensor, problem: AttentionProblem, launch: Launcher
) -> torch.Tensor:
    """For each query log2 of its sum of exponentials, and delta: float32, (batch · num_heads, blocks of 64 queries, 2, 64).

    Queries after the last one count as seeing nothing, so that the kernel for dk and dv needs no mask for them.
    """
    heads, blocks = problem.batch * problem.num_heads, triton.cdiv(problem.seq_len_q, _QUERIES.value)
    rows = torch.empty((heads, blocks, 2, _QUERIES.value), dtype=torch.float32, device=d_out.device)
    launch(
        backward_v3_hopper_rows, (heads * blocks,), output.out, d_out, output.lse, rows, problem.seq_len_q,
        HEAD_DIM=problem.head_dim, DIM=problem.padded_head_dim, num_warps=4,
    )  # fmt: skip
    return rows


def row_sums_in(delta: torch.Tensor, problem: AttentionProblem) -> torch.Tensor:
    """What lies beside the lse of each block; see kernels.kernel.Backward."""
    rows = delta[:, :, 1].reshape(problem.batch, problem.num_heads, -1)
    return rows[..., : problem.seq_len_q]


def backward(
    operands: Operands, output: AttentionOutput, d_out: torch.Tensor, problem: AttentionProblem, tiles: BackwardTiles | None,
    launch: Launcher, delta: torch.Tensor | None = None,
) -> Gradients:  # fmt: skip
    """The gradients on Hopper, head_dim at most 128; see kernels.kernel.Backward. delta is what preprocess() gives here.

    Of the tiles only the stages can be chosen: kernels.registry.refuse_backward says so.
    """
    assert tiles is not None
    assert tiles.dq is not None
    q, k, v = operands.q, operands.k, operands.v
    gradients = Gradients(torch.empty_like(q), torch.empty_like(k), torch.empty_like(v))
    rows = preprocess(operands, output, d_out, problem, launch) if delta is None else delta
    dim = problem.padded_head_dim
    q_source, d_out_source = descriptor(q, _QUERIES.value, dim), descriptor(d_out, _QUERIES.value, dim)
    k_source, v_source = descriptor(k, _KEYS.value, dim), descriptor(v, _KEYS.value, dim)
    sources = (q_source, k_source, v_source, d_out_source, _rows_descriptor(rows))
    _launch_dkdv(sources, gradients, problem, tiles.dkdv, launch)
    _launch_dq(sources, gradients, problem, tiles.dq, launch)
    return gradients


def _launch_dkdv(
    sources: tuple[TensorDescriptor, ...], gradients: Gradients, problem: AttentionProblem, tiles: TileConfig, launch: Launcher
) -> None:
    dim = problem.padded_head_dim
    blocks = triton.cdiv(problem.seq_len_kv, _KEYS.value)
    launch(
        backward_v3_hopper_dkdv, (problem.batch * problem.num_kv_heads * blocks,), *sources,
        descriptor(gradients.dk, _KEYS.value, dim), descriptor(gradients.dv, _KEYS.value, dim), *_scales_and_lengths(problem),
        STAGES=tiles.num_stages, DIM=dim, SHARING=problem.num_heads // problem.num_kv_heads, CAUSAL=problem.causal,
        # Of 65,536 registers, so that three programs share an SM.
        num_warps=4, maxnreg=168 if dim <= 64 else None,
    )  # fmt: skip


def _launch_dq(
    sources: tuple[TensorDescriptor, ...], gradients: Gradients, problem: AttentionProblem, tiles: TileConfig, launch: Launcher
) -> None:
    dim = problem.padded_head_dim
    blocks = triton.cdiv(problem.seq_len_q, _QUERIES.value * _GROUPS.value)
    launch(
        backward_v3_hopper_dq, (problem.batch * problem.num_heads * blocks,), *sources,
        descriptor(gradients.dq, _QUERIES.value, dim), *_scales_and_lengths(problem),
        STAGES=tiles.num_stages, DIM=dim, SHARING=problem.num_heads // problem.num_kv_heads, CAUSAL=problem.causal,
        RAGGED=problem.seq_len_kv % _KEYS.value != 0, num_warps=4,
    )  # fmt: skip


def _scales_and_lengths(problem: AttentionProblem) -> tuple[float, float, int, int]:
    return problem.sm_scale * LOG2_E, problem.sm_scale, problem.seq_len_q, problem.seq_len_kv


def _rows_descriptor(rows: torch.Tensor) -> TensorDescriptor:
    """Of what preprocess() gives: tiles of 64 queries of one of the two numbers."""
    return TensorDescriptor.from_tensor(rows, [1, 1, 1, _QUERIES.value], gl.NVMMASharedLayout(0, 32, rank=4))
