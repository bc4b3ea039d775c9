"""The backward of v3 for Hopper, in Gluon: dq, dk, dv by recomputation (Shah et al. 2024, arXiv 2407.08608, section 3).

Two launches after the pre-pass, so that nothing is added to memory by two programs at once and every run gives the same bits:
one keeps dk and dv of 64 keys a warpgroup and passes over the queries, one keeps dq of 64 queries and passes over the keys.
That is seven products where five would do; but each warpgroup hands P and dS on in registers, and writes its gradients once.

dk and dv: Sᵀ = K Qᵀ and dPᵀ = V dOᵀ, so that Pᵀ and dSᵀ are the left operands of dv += Pᵀ dO and dk += dSᵀ Q as they stand.

Not offered yet: it is compiled and read, and has not run. Until it has, kernels.registry gives v3-hopper the backward of v3.
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

from kernels.hopper import REGISTERS, arrive, descriptor, end_basic_block, sync
from kernels.kernel import AttentionOutput, Gradients, Launcher, Operands
from kernels.problem import AttentionProblem, BackwardTiles, TileConfig
from kernels.tiles import LN_2, LOG2_E

# Named barriers: kernels.hopper says which are free. One for each buffer of the ring.
_FREE = gl.constexpr(8)
# Queries of a tile of the kernel for dk and dv, and of a block of what the pre-pass writes.
_QUERIES = gl.constexpr(64)


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
def _issue(a, b, zero):
    """a bᵀ, begun; b is a buffer."""
    return warpgroup_mma(a, b.permute((1, 0)), zero, use_acc=False, is_async=True)


@gluon.jit
def _store(target, acc, head, first_row, buffer, DIM: gl.constexpr):
    """64 rows through a buffer that nobody reads any more; waits until they have left it."""
    buffer.reshape([64, DIM]).store(acc.to(buffer.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(target, [head, first_row, 0], buffer)


# dk and dv


@gluon.jit
def _produce_queries(
    q_source, k_source, v_source, d_out_source, facts, shared, GROUPS: gl.constexpr, STAGES: gl.constexpr, SHARING: gl.constexpr
):
    k_s, v_s, q_s, d_out_s, kv_full, q_full, d_out_full = shared
    kv_head, first_key, first_tile, num_tiles = facts[0], facts[1], facts[2], facts[3]
    THREADS: gl.constexpr = 128 * GROUPS + 32
    mbarrier.expect(kv_full, GROUPS * (k_source.block_type.nbytes + v_source.block_type.nbytes))
    for group in gl.static_range(GROUPS):
        place = [kv_head, first_key + group * 64, 0]
        tma.async_copy_global_to_shared(k_source, place, kv_full, k_s.index(group))
        tma.async_copy_global_to_shared(v_source, place, kv_full, v_s.index(group))
    fill = 0
    for shared_head in range(SHARING):
        head = kv_head * SHARING + shared_head
        for tile in range(first_tile, num_tiles):
            stage = fill % STAGES
            if fill >= STAGES:
                sync(_FREE + stage, THREADS)
            place = [head, tile * _QUERIES, 0]
            mbarrier.expect(q_full.index(stage), q_source.block_type.nbytes)
            tma.async_copy_global_to_shared(q_source, place, q_full.index(stage), q_s.index(stage))
            mbarrier.expect(d_out_full.index(stage), d_out_source.block_type.nbytes)
            tma.async_copy_global_to_shared(d_out_source, place, d_out_full.index(stage), d_out_s.index(stage))
            fill += 1


@gluon.jit
def _of_columns(ptr, x):
    """One number a column of x."""
    return gl.load(ptr + gl.arange(0, x.shape[1], gl.SliceLayout(0, x.type.layout)))[None, :]


@gluon.jit
def _step_queries(
    k, v, shared, zero, dk, dv, rows_ptr, qk_scale, hidden_before, fill,
    GROUPS: gl.constexpr, STAGES: gl.constexpr, DIM: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """One tile of queries: its exponentials run under dPᵀ, dS under Pᵀ dO. Nothing is in flight at its end.

    hidden_before: with MASKED, for each key the first query of the tile that sees it.
    """
    q_s, d_out_s, q_full, d_out_full = shared[2], shared[3], shared[5], shared[6]
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=dk.type.layout, k_width=2)
    stage = fill % STAGES
    q = q_s.index(stage).reshape([_QUERIES, DIM])
    d_out = d_out_s.index(stage).reshape([_QUERIES, DIM])
    mbarrier.wait(q_full.index(stage), (fill // STAGES) & 1)
    s = _issue(k, q, zero)
    mbarrier.wait(d_out_full.index(stage), (fill // STAGES) & 1)
    dp = _issue(v, d_out, zero)
    log2_sum = _of_columns(rows_ptr, zero)
    s = warpgroup_mma_wait(1, deps=[s])
    p = gl.exp2(s * qk_scale - log2_sum)
    if MASKED:
        queries = gl.arange(0, _QUERIES, gl.SliceLayout(0, zero.type.layout))
        p = gl.where(queries[None, :] >= hidden_before[:, None], p, 0.0)
    p16 = gl.convert_layout(p.to(q_s.dtype), P_LAYOUT)
    dv = warpgroup_mma(p16, d_out, dv, is_async=True)
    delta = _of_columns(rows_ptr + _QUERIES, zero)
    dp = warpgroup_mma_wait(1, deps=[dp])
    ds16 = gl.convert_layout((p * (dp - delta)).to(q_s.dtype), P_LAYOUT)
    dk = warpgroup_mma(ds16, q, dk, is_async=True)
    dk, dv, p16, ds16 = warpgroup_mma_wait(0, deps=[dk, dv, p16, ds16])
    arrive(_FREE + stage, 128 * GROUPS + 32)
    return dk, dv, rows_ptr + 2 * _QUERIES, fill + 1


@gluon.jit
def _consume_queries(
    dk_target, dv_target, facts, shared, rows, GROUP: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr,
    DIM: gl.constexpr, SHARING: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """dk and dv of 64 keys."""
    k_s, v_s, kv_full = shared[0], shared[1], shared[4]
    rows_ptr, qk_scale, sm_scale = rows[0], rows[1], rows[2]
    kv_head, first_key, first_tile, num_tiles, num_masked, offset = facts
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _QUERIES, 16])
    D_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    zero = gl.zeros([64, _QUERIES], gl.float32, S_LAYOUT)
    dk = gl.zeros([64, DIM], gl.float32, D_LAYOUT)
    dv = gl.zeros([64, DIM], gl.float32, D_LAYOUT)
    first_key += GROUP * 64
    keys = first_key - offset - first_tile * _QUERIES + gl.arange(0, 64, gl.SliceLayout(1, S_LAYOUT))
    k, v = k_s.index(GROUP).reshape([64, DIM]), v_s.index(GROUP).reshape([64, DIM])
    mbarrier.wait(kv_full, 0)
    fill = 0
    for shared_head in range(SHARING):
        of_head = rows_ptr + ((kv_head * SHARING + shared_head).to(gl.int64) * num_tiles + first_tile) * (2 * _QUERIES)
        if CAUSAL:
            hidden_before = keys
            for _ in range(num_masked):
                dk, dv, of_head, fill = _step_queries(
                    k, v, shared, zero, dk, dv, of_head, qk_scale, hidden_before, fill, GROUPS, STAGES, DIM, True
                )
                hidden_before -= _QUERIES
        for _ in range(first_tile + num_masked, num_tiles):
            dk, dv, of_head, fill = _step_queries(
                k, v, shared, zero, dk, dv, of_head, qk_scale, keys, fill, GROUPS, STAGES, DIM, False
            )
    # K and V of this warpgroup are read by nobody else.
    _store(dv_target, dv, kv_head, first_key, v_s.index(GROUP), DIM)
    _store(dk_target, dk * sm_scale, kv_head, first_key, k_s.index(GROUP), DIM)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=("seq_len_q", "seq_len_kv"))
def backward_v3_hopper_dkdv(
    q_source, k_source, v_source, d_out_source, dk_target, dv_target, rows_ptr, qk_scale, sm_scale,
    seq_len_q, seq_len_kv,
    GROUPS: gl.constexpr, STAGES: gl.constexpr, DIM: gl.constexpr, SHARING: gl.constexpr, CAUSAL: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    k_s = gl.allocate_shared_memory(k_source.dtype, [GROUPS, 1, 64, DIM], k_source.layout)
    v_s = gl.allocate_shared_memory(v_source.dtype, [GROUPS, 1, 64, DIM], v_source.layout)
    q_s = gl.allocate_shared_memory(q_source.dtype, [STAGES, 1, _QUERIES, DIM], q_source.layout)
    d_out_s = gl.allocate_shared_memory(d_out_source.dtype, [STAGES, 1, _QUERIES, DIM], d_out_source.layout)
    kv_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    d_out_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(kv_full, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(q_full.index(stage), count=1)
        mbarrier.init(d_out_full.index(stage), count=1)
    blocks = gl.cdiv(seq_len_kv, 64 * GROUPS)
    kv_head = gl.program_id(0) // blocks
    # The first keys are seen by most queries, and start first.
    first_key = gl.program_id(0) % blocks * (64 * GROUPS)
    offset = seq_len_kv - seq_len_q
    num_tiles = gl.cdiv(seq_len_q, _QUERIES)
    first_tile, num_masked = 0, 0
    if CAUSAL:
        first_tile = gl.minimum(gl.maximum(first_key - offset, 0) // _QUERIES, num_tiles)
        whole = gl.cdiv(gl.maximum(first_key + 64 * GROUPS - 1 - offset, 0), _QUERIES)
        num_masked = gl.minimum(whole, num_tiles) - first_tile
    facts = (kv_head, first_key, first_tile, num_tiles, num_masked, offset)
    shared = (k_s, v_s, q_s, d_out_s, kv_full, q_full, d_out_full)
    rows = (rows_ptr, qk_scale, sm_scale, seq_len_q)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_consume_queries,
                 (dk_target, dv_target, facts, shared, rows, 0, GROUPS, STAGES, DIM, SHARING, CAUSAL)),
                (_consume_queries,
                 (dk_target, dv_target, facts, shared, rows, 1, GROUPS, STAGES, DIM, SHARING, CAUSAL)),
                (_produce_queries, (q_source, k_source, v_source, d_out_source, facts, shared, GROUPS, STAGES, SHARING)),
            ],
            [4, 1],
            [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_consume_queries,
                 (dk_target, dv_target, facts, shared, rows, 0, GROUPS, STAGES, DIM, SHARING, CAUSAL)),
                (_consume_queries,
                 (dk_target, dv_target, facts, shared, rows, 1, GROUPS, STAGES, DIM, SHARING, CAUSAL)),
                (_consume_queries,
                 (dk_target, dv_target, facts, shared, rows, 2, GROUPS, STAGES, DIM, SHARING, CAUSAL)),
                (_produce_queries, (q_source, k_source, v_source, d_out_source, facts, shared, GROUPS, STAGES, SHARING)),
            ],
            [4, 4, 1],
            [CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )  # fmt: skip


# dq


@gluon.jit
def _produce_keys(q_source, k_source, v_source, d_out_source, facts, shared, GROUPS: gl.constexpr, STAGES: gl.constexpr):
    q_s, d_out_s, k_s, v_s, rows_full, k_full, v_full = shared
    head, kv_head, first_row, num_tiles = facts[0], facts[1], facts[2], facts[3]
    BLOCK_N: gl.constexpr = k_source.block_type.shape[1]
    THREADS: gl.constexpr = 128 * GROUPS + 32
    for group in gl.static_range(GROUPS):
        place = [head, first_row + group * 64, 0]
        mbarrier.expect(rows_full.index(group), q_source.block_type.nbytes + d_out_source.block_type.nbytes)
        tma.async_copy_global_to_shared(q_source, place, rows_full.index(group), q_s.index(group))
        tma.async_copy_global_to_shared(d_out_source, place, rows_full.index(group), d_out_s.index(group))
    for fill in range(num_tiles):
        stage = fill % STAGES
        if fill >= STAGES:
            sync(_FREE + stage, THREADS)
        # Last keys first: so the tiles that need a mask come before the loop that has none.
        place = [kv_head, (num_tiles - 1 - fill) * BLOCK_N, 0]
        mbarrier.expect(k_full.index(stage), k_source.block_type.nbytes)
        tma.async_copy_global_to_shared(k_source, place, k_full.index(stage), k_s.index(stage))
        mbarrier.expect(v_full.index(stage), v_source.block_type.nbytes)
        tma.async_copy_global_to_shared(v_source, place, v_full.index(stage), v_s.index(stage))


@gluon.jit
def _step_keys(
    q, d_out, shared, zero, dq, log2_sum, delta, qk_scale, last_seen, fill,
    GROUPS: gl.constexpr, STAGES: gl.constexpr, DIM: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """One tile of keys: its exponentials run under dP. Nothing is in flight at its end.

    last_seen: with MASKED, for each query the last key of the tile that it sees.
    """
    k_s, v_s, k_full, v_full = shared[2], shared[3], shared[5], shared[6]
    BLOCK_N: gl.constexpr = zero.shape[1]
    DS_LAYOUT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=dq.type.layout, k_width=2)
    stage = fill % STAGES
    k = k_s.index(stage).reshape([BLOCK_N, DIM])
    mbarrier.wait(k_full.index(stage), (fill // STAGES) & 1)
    s = _issue(q, k, zero)
    mbarrier.wait(v_full.index(stage), (fill // STAGES) & 1)
    dp = _issue(d_out, v_s.index(stage).reshape([BLOCK_N, DIM]), zero)
    s = warpgroup_mma_wait(1, deps=[s])
    p = gl.exp2(s * qk_scale - log2_sum[:, None])
    if MASKED:
        keys = gl.arange(0, BLOCK_N, gl.SliceLayout(0, zero.type.layout))
        p = gl.where(keys[None, :] <= last_seen[:, None], p, 0.0)
    end_basic_block(p, 32)
    dp = warpgroup_mma_wait(0, deps=[dp])
    ds16 = gl.convert_layout((p * (dp - delta[:, None])).to(k_s.dtype), DS_LAYOUT)
    dq = warpgroup_mma(ds16, k, dq, is_async=True)
    dq, ds16 = warpgroup_mma_wait(0, deps=[dq, ds16])
    arrive(_FREE + stage, 128 * GROUPS + 32)
    return dq


@gluon.jit
def _consume_keys(
    dq_target, facts, shared, rows, GROUP: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr,
    BLOCK_N: gl.constexpr, DIM: gl.constexpr, CAUSAL: gl.constexpr, RAGGED: gl.constexpr,
):  # fmt: skip
    """dq of 64 queries."""
    q_s, d_out_s, rows_full = shared[0], shared[1], shared[4]
    rows_ptr, qk_scale, sm_scale, seq_len_q = rows
    head, _kv_head, first_row, num_tiles, num_unmasked, seq_len_kv, offset = facts
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    D_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    zero = gl.zeros([64, BLOCK_N], gl.float32, S_LAYOUT)
    dq = gl.zeros([64, DIM], gl.float32, D_LAYOUT)
    first_row += GROUP * 64
    row = first_row + gl.arange(0, 64, gl.SliceLayout(1, S_LAYOUT))
    blocks = gl.cdiv(seq_len_q, _QUERIES)
    place = rows_ptr + (head.to(gl.int64) * blocks + row // _QUERIES) * (2 * _QUERIES) + row % _QUERIES
    log2_sum = gl.load(place, mask=row < seq_len_q, other=float("inf"))
    delta = gl.load(place + _QUERIES, mask=row < seq_len_q, other=0.0)
    first_key = (num_tiles - 1) * BLOCK_N
    last_seen = gl.full([64], seq_len_kv - 1 - first_key, gl.int32, gl.SliceLayout(1, S_LAYOUT))
    if CAUSAL:
        last_seen = gl.minimum(last_seen, row + (offset - first_key))
    q, d_out = q_s.index(GROUP).reshape([64, DIM]), d_out_s.index(GROUP).reshape([64, DIM])
    mbarrier.wait(rows_full.index(GROUP), 0)
    fill = 0
    if CAUSAL or RAGGED:
        for _ in range(num_tiles - num_unmasked):
            dq = _step_keys(q, d_out, shared, zero, dq, log2_sum, delta, qk_scale, last_seen, fill, GROUPS, STAGES, DIM, True)
            last_seen += BLOCK_N
            fill += 1
    for _ in range(num_unmasked):
        dq = _step_keys(q, d_out, shared, zero, dq, log2_sum, delta, qk_scale, last_seen, fill, GROUPS, STAGES, DIM, False)
        fill += 1
    # Q of this warpgroup is read by nobody else.
    _store(dq_target, dq * sm_scale, head, first_row, q_s.index(GROUP), DIM)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=("seq_len_q", "seq_len_kv"))
def backward_v3_hopper_dq(
    q_source, k_source, v_source, d_out_source, dq_target, rows_ptr, qk_scale, sm_scale,
    seq_len_q, seq_len_kv,
    GROUPS: gl.constexpr, STAGES: gl.constexpr, BLOCK_N: gl.constexpr, DIM: gl.constexpr, SHARING: gl.constexpr,
    CAUSAL: gl.constexpr, RAGGED: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    q_s = gl.allocate_shared_memory(q_source.dtype, [GROUPS, 1, 64, DIM], q_source.layout)
    d_out_s = gl.allocate_shared_memory(d_out_source.dtype, [GROUPS, 1, 64, DIM], d_out_source.layout)
    k_s = gl.allocate_shared_memory(k_source.dtype, [STAGES, 1, BLOCK_N, DIM], k_source.layout)
    v_s = gl.allocate_shared_memory(v_source.dtype, [STAGES, 1, BLOCK_N, DIM], v_source.layout)
    rows_full = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for group in gl.static_range(GROUPS):
        mbarrier.init(rows_full.index(group), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(v_full.index(stage), count=1)
    ROWS: gl.constexpr = 64 * GROUPS
    blocks = gl.cdiv(seq_len_q, ROWS)
    head = gl.program_id(0) // blocks
    # The last queries see most keys, and start first.
    first_row = (blocks - 1 - gl.program_id(0) % blocks) * ROWS
    offset = seq_len_kv - seq_len_q
    seen, seen_by_all = seq_len_kv, seq_len_kv
    if CAUSAL:
        seen = gl.minimum(gl.maximum(first_row + ROWS + offset, 0), seq_len_kv)
        seen_by_all = gl.minimum(gl.maximum(first_row + offset + 1, 0), seq_len_kv)
    num_tiles = gl.cdiv(seen, BLOCK_N)
    facts = (head, head // SHARING, first_row, num_tiles, seen_by_all // BLOCK_N, seq_len_kv, offset)
    shared = (q_s, d_out_s, k_s, v_s, rows_full, k_full, v_full)
    rows = (rows_ptr, qk_scale, sm_scale, seq_len_q)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_consume_keys, (dq_target, facts, shared, rows, 0, GROUPS, STAGES, BLOCK_N, DIM, CAUSAL, RAGGED)),
                (_consume_keys, (dq_target, facts, shared, rows, 1, GROUPS, STAGES, BLOCK_N, DIM, CAUSAL, RAGGED)),
                (_produce_keys, (q_source, k_source, v_source, d_out_source, facts, shared, GROUPS, STAGES)),
            ],
            [4, 1],
            [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (_consume_keys, (dq_target, facts, shared, rows, 0, GROUPS, STAGES, BLOCK_N, DIM, CAUSAL, RAGGED)),
                (_consume_keys, (dq_target, facts, shared, rows, 1, GROUPS, STAGES, BLOCK_N, DIM, CAUSAL, RAGGED)),
                (_consume_keys, (dq_target, facts, shared, rows, 2, GROUPS, STAGES, BLOCK_N, DIM, CAUSAL, RAGGED)),
                (_produce_keys, (q_source, k_source, v_source, d_out_source, facts, shared, GROUPS, STAGES)),
            ],
            [4, 4, 1],
            [CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS],
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


def backward(
    operands: Operands, output: AttentionOutput, d_out: torch.Tensor, problem: AttentionProblem, tiles: BackwardTiles | None,
    launch: Launcher, delta: torch.Tensor | None = None,
) -> Gradients:  # fmt: skip
    """The gradients on Hopper, head_dim at most 128; see kernels.kernel.Backward. delta is what preprocess() gives here."""
    assert tiles is not None
    assert tiles.dq is not None
    q, k, v = operands.q, operands.k, operands.v
    gradients = Gradients(torch.empty_like(q), torch.empty_like(k), torch.empty_like(v))
    rows = preprocess(operands, output, d_out, problem, launch) if delta is None else delta
    shared = (rows, problem.sm_scale * LOG2_E, problem.sm_scale, problem.seq_len_q, problem.seq_len_kv)
    _launch_dkdv(q, k, v, d_out, gradients, shared, problem, tiles.dkdv, launch)
    _launch_dq(q, k, v, d_out, gradients, shared, problem, tiles.dq, launch)
    return gradients


def _launch_dkdv(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, d_out: torch.Tensor, gradients: Gradients, shared: tuple,
    problem: AttentionProblem, tiles: TileConfig, launch: Launcher,
) -> None:  # fmt: skip
    groups, block_m, dim = tiles.block_n // 64, tiles.block_m, problem.padded_head_dim
    launch(
        backward_v3_hopper_dkdv, (problem.batch * problem.num_kv_heads * triton.cdiv(problem.seq_len_kv, tiles.block_n),),
        descriptor(q, block_m, dim), descriptor(k, 64, dim), descriptor(v, 64, dim), descriptor(d_out, block_m, dim),
        descriptor(gradients.dk, 64, dim), descriptor(gradients.dv, 64, dim), *shared,
        GROUPS=groups, STAGES=tiles.num_stages, DIM=dim, SHARING=problem.num_heads // problem.num_kv_heads,
        CAUSAL=problem.causal, CONSUMER_REGISTERS=REGISTERS[groups][0], PRODUCER_REGISTERS=REGISTERS[groups][1], num_warps=4,
    )  # fmt: skip


def _launch_dq(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, d_out: torch.Tensor, gradients: Gradients, shared: tuple,
    problem: AttentionProblem, tiles: TileConfig, launch: Launcher,
) -> None:  # fmt: skip
    groups, block_n, dim = tiles.block_m // 64, tiles.block_n, problem.padded_head_dim
    launch(
        backward_v3_hopper_dq, (problem.batch * problem.num_heads * triton.cdiv(problem.seq_len_q, tiles.block_m),),
        descriptor(q, 64, dim), descriptor(k, block_n, dim), descriptor(v, block_n, dim), descriptor(d_out, 64, dim),
        descriptor(gradients.dq, 64, dim), *shared,
        GROUPS=groups, STAGES=tiles.num_stages, BLOCK_N=block_n, DIM=dim, SHARING=problem.num_heads // problem.num_kv_heads,
        CAUSAL=problem.causal, RAGGED=problem.seq_len_kv % block_n != 0,
        CONSUMER_REGISTERS=REGISTERS[groups][0], PRODUCER_REGISTERS=REGISTERS[groups][1], num_warps=4,
    )  # fmt: skip
