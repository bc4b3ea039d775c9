"""FlashAttention v2 (Dao 2023, arXiv 2307.08691): normalise once, mask only the diagonal, skip what nothing sees."""

import torch
import triton
import triton.language as tl

from kernels.block_order import chosen_order, grid_of, heads_per_section
from kernels.kernel import AttentionOutput, Launcher, Operands, as_given
from kernels.problem import AttentionProblem, TileConfig
from kernels.stamps import StampBuffers, stamp_start, store_stamp, watched
from kernels.tiles import LN_2, LOG2_E, dot, dot_add, hide_unseen, key_value_head, query_block_at, rounded, visible_keys
from kernels.trace import Frames, TraceBuffers, store_tile

prepare = as_given


@triton.jit
def attend_tile(
    q, k_base, v_base, acc, m_i, l_i, rows, first_key, qk_scale, seq_len_q, seq_len_kv, trace,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    TRACE: tl.constexpr,
):  # fmt: skip
    keys = first_key + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, PADDED_DIM)
    offsets = keys[:, None] * HEAD_DIM + dims[None, :]
    if MASKED:
        inside = (keys < seq_len_kv)[:, None] & (dims < HEAD_DIM)[None, :]
        k = tl.load(k_base + offsets, mask=inside, other=0.0)
    elif HEAD_DIM != PADDED_DIM:
        k = tl.load(k_base + offsets, mask=(dims < HEAD_DIM)[None, :], other=0.0)
    else:
        k = tl.load(k_base + offsets)
    scores = dot(q, k.T)
    if MASKED:
        scores = hide_unseen(scores, rows, keys, seq_len_q, seq_len_kv, CAUSAL)
    m_new = tl.maximum(m_i, tl.max(scores, 1) * qk_scale)
    # A row that has seen nothing yet has m = -inf, and -inf minus -inf is NaN.
    m_safe = tl.where(m_new == float("-inf"), 0.0, m_new) if MASKED else m_new
    p = tl.math.exp2(scores * qk_scale - m_safe[:, None])
    alpha = tl.math.exp2(m_i - m_safe)
    if MASKED:
        v = tl.load(v_base + offsets, mask=inside, other=0.0)
    elif HEAD_DIM != PADDED_DIM:
        v = tl.load(v_base + offsets, mask=(dims < HEAD_DIM)[None, :], other=0.0)
    else:
        v = tl.load(v_base + offsets)
    acc = dot_add(rounded(p, v.dtype), v, acc * alpha[:, None])
    l_new = l_i * alpha + tl.sum(p, 1)
    if TRACE:
        store_tile(trace, first_key, seq_len_q, seq_len_kv, scores, m_i, m_new, l_new, alpha, acc)
    return acc, m_new, l_new


@triton.jit
def attend_block(
    block, head, q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, qk_scale, num_heads, num_kv_heads, seq_len_q, seq_len_kv, trace, stamps,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
    TRACE: tl.constexpr, STAMP: tl.constexpr,
):  # fmt: skip
    if STAMP:
        started_ns = stamp_start()
    if TRACE:
        trace = (trace, head, block)
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, PADDED_DIM)
    kv_offset = key_value_head(head, num_heads, num_kv_heads).to(tl.int64) * seq_len_kv * HEAD_DIM
    k_base = k_ptr + kv_offset
    v_base = v_ptr + kv_offset
    row_offset = head.to(tl.int64) * seq_len_q
    q_offsets = row_offset * HEAD_DIM + rows[:, None] * HEAD_DIM + dims[None, :]
    q_inside = (rows < seq_len_q)[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(q_ptr + q_offsets, mask=q_inside, other=0.0)

    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, PADDED_DIM], tl.float32)
    last_row = tl.minimum((block + 1) * BLOCK_M, seq_len_q) - 1
    full_end, end = visible_keys(block * BLOCK_M, last_row, seq_len_q, seq_len_kv, BLOCK_N, CAUSAL)
    for first_key in tl.range(0, full_end, BLOCK_N):
        acc, m_i, l_i = attend_tile(
            q, k_base, v_base, acc, m_i, l_i, rows, first_key, qk_scale, seq_len_q, seq_len_kv, trace,
            HEAD_DIM, PADDED_DIM, BLOCK_N, CAUSAL, False, TRACE,
        )  # fmt: skip
    for first_key in tl.range(full_end, end, BLOCK_N):
        acc, m_i, l_i = attend_tile(
            q, k_base, v_base, acc, m_i, l_i, rows, first_key, qk_scale, seq_len_q, seq_len_kv, trace,
            HEAD_DIM, PADDED_DIM, BLOCK_N, CAUSAL, True, TRACE,
        )  # fmt: skip

    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    out = acc * (1.0 / l_safe)[:, None]
    tl.store(out_ptr + q_offsets, rounded(out, out_ptr.dtype.element_ty), mask=q_inside)
    lse = tl.where(l_i == 0.0, float("-inf"), (m_i + tl.math.log2(l_safe)) * LN_2)
    tl.store(lse_ptr + row_offset + rows, lse, mask=rows < seq_len_q)
    if STAMP:
        store_stamp(stamps, head * tl.cdiv(seq_len_q, BLOCK_M) + block, started_ns, tl.cdiv(end, BLOCK_N))


@triton.jit
def flash_v2_forward(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, qk_scale, num_heads, num_kv_heads, heads_in_all, heads_per_section,
    seq_len_q, seq_len_kv, trace, stamps,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
    ORDER: tl.constexpr, PERSISTENT: tl.constexpr, TRACE: tl.constexpr, STAMP: tl.constexpr,
):  # fmt: skip
    num_blocks = tl.cdiv(seq_len_q, BLOCK_M)
    if PERSISTENT:
        for index in tl.range(tl.program_id(0), num_blocks * heads_in_all, tl.num_programs(0)):
            block, head = query_block_at(index, num_blocks, heads_in_all, heads_per_section, ORDER)
            attend_block(
                block, head, q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, qk_scale, num_heads, num_kv_heads, seq_len_q, seq_len_kv,
                trace, stamps, HEAD_DIM, PADDED_DIM, BLOCK_M, BLOCK_N, CAUSAL, TRACE, STAMP,
            )  # fmt: skip
    else:
        block, head = query_block_at(tl.program_id(0), num_blocks, heads_in_all, heads_per_section, ORDER)
        attend_block(
            block, head, q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, qk_scale, num_heads, num_kv_heads, seq_len_q, seq_len_kv,
            trace, stamps, HEAD_DIM, PADDED_DIM, BLOCK_M, BLOCK_N, CAUSAL, TRACE, STAMP,
        )  # fmt: skip


def forward(
    operands: Operands, problem: AttentionProblem, tiles: TileConfig | None, launch: Launcher, with_lse: bool = True,
    trace: TraceBuffers | None = None, stamps: StampBuffers | None = None,
) -> AttentionOutput:  # fmt: skip
    """Attention by FlashAttention v2; see kernels.kernel.Kernel. The lse is always written: it costs nothing."""
    assert tiles is not None
    q, k, v = operands.q, operands.k, operands.v
    out = torch.empty(q.shape, dtype=operands.dtype, device=q.device)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    launch(
        flash_v2_forward, grid_of(problem, tiles), q, k, v, out, lse, problem.sm_scale * LOG2_E,
        problem.num_heads, problem.num_kv_heads, problem.batch * problem.num_heads,
        heads_per_section(problem, q.element_size()), problem.seq_len_q, problem.seq_len_kv,
        HEAD_DIM=problem.head_dim, PADDED_DIM=problem.padded_head_dim, BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n,
        CAUSAL=problem.causal, ORDER=chosen_order(problem, tiles), PERSISTENT=tiles.num_programs is not None,
        num_warps=tiles.num_warps, num_stages=tiles.num_stages, **watched(trace, stamps),
    )  # fmt: skip
    return AttentionOutput(out, lse)


def frames(trace: TraceBuffers, _operands: Operands, problem: AttentionProblem) -> Frames:
    """What a traced launch stored; see kernels.kernel.Kernel. v2 holds S without sm_scale, and m in log2."""
    return trace.read(scores=problem.sm_scale, m=LN_2.value, l=1.0, acc=1.0)
