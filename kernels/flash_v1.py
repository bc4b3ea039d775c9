"""FlashAttention v1 (Dao et al. 2022, arXiv 2205.14135): online softmax, O kept normalised, every tile computed."""

import torch
import triton
import triton.language as tl

from kernels.kernel import AttentionOutput, Launcher, Operands, as_given
from kernels.problem import AttentionProblem, TileConfig
from kernels.stamps import StampBuffers, stamp_start, store_stamp, watched
from kernels.tiles import dot, hide_unseen, key_value_head, query_block_at, rounded
from kernels.trace import Frames, TraceBuffers, store_tile

prepare = as_given


@triton.jit
def merge_tile(
    q, k, v, o_i, m_i, l_i, rows, keys, sm_scale, seq_len_q, seq_len_kv, first_key, trace,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, TRACE: tl.constexpr,
):  # fmt: skip
    """Algorithm 1, lines 9 to 13: one tile's softmax merged into O, which is normalised before and after."""
    scores = dot(q, k.T) * sm_scale
    if MASKED:
        scores = hide_unseen(scores, rows, keys, seq_len_q, seq_len_kv, CAUSAL)
    m_tile = tl.max(scores, 1)
    # A row that this tile shows nothing has m = -inf, and -inf minus -inf is NaN.
    p = tl.exp(scores - tl.where(m_tile == float("-inf"), 0.0, m_tile)[:, None])
    m_new = tl.maximum(m_i, m_tile)
    m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
    alpha = tl.exp(m_i - m_safe)
    beta = tl.exp(m_tile - m_safe)
    l_new = alpha * l_i + beta * tl.sum(p, 1)
    l_safe = tl.where(l_new == 0.0, 1.0, l_new)
    o_i = o_i * (l_i * alpha / l_safe)[:, None] + dot(rounded(p, v.dtype), v) * (beta / l_safe)[:, None]
    if TRACE:
        store_tile(trace, first_key, seq_len_q, seq_len_kv, scores, m_i, m_new, l_new, alpha, o_i)
    return o_i, m_new, l_new


@triton.jit
def natural_lse(m_i, l_i):
    return tl.where(l_i == 0.0, float("-inf"), m_i + tl.log(tl.where(l_i == 0.0, 1.0, l_i)))


@triton.jit
def flash_v1_query_outer(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, sm_scale, num_heads, num_kv_heads, heads_in_all, seq_len_q, seq_len_kv,
    trace, stamps, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, TRACE: tl.constexpr, STAMP: tl.constexpr,
):  # fmt: skip
    if STAMP:
        started_ns = stamp_start()
    num_blocks = tl.cdiv(seq_len_q, BLOCK_M)
    block, head = query_block_at(tl.program_id(0), num_blocks, heads_in_all, heads_in_all, "natural")
    if TRACE:
        trace = (trace, head, block)
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, PADDED_DIM)
    kv_offset = key_value_head(head, num_heads, num_kv_heads).to(tl.int64) * seq_len_kv * HEAD_DIM
    row_offset = head.to(tl.int64) * seq_len_q
    q_offsets = row_offset * HEAD_DIM + rows[:, None] * HEAD_DIM + dims[None, :]
    q_inside = (rows < seq_len_q)[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(q_ptr + q_offsets, mask=q_inside, other=0.0)

    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    o_i = tl.zeros([BLOCK_M, PADDED_DIM], tl.float32)
    for first_key in tl.range(0, seq_len_kv, BLOCK_N):
        keys = first_key + tl.arange(0, BLOCK_N)
        offsets = kv_offset + keys[:, None] * HEAD_DIM + dims[None, :]
        inside = (keys < seq_len_kv)[:, None] & (dims < HEAD_DIM)[None, :]
        k = tl.load(k_ptr + offsets, mask=inside, other=0.0)
        v = tl.load(v_ptr + offsets, mask=inside, other=0.0)
        o_i, m_i, l_i = merge_tile(
            q, k, v, o_i, m_i, l_i, rows, keys, sm_scale, seq_len_q, seq_len_kv, first_key, trace, CAUSAL, MASKED, TRACE
        )

    tl.store(out_ptr + q_offsets, rounded(o_i, out_ptr.dtype.element_ty), mask=q_inside)
    tl.store(lse_ptr + row_offset + rows, natural_lse(m_i, l_i), mask=rows < seq_len_q)
    if STAMP:
        store_stamp(stamps, head * num_blocks + block, started_ns, tl.cdiv(seq_len_kv, BLOCK_N))


@triton.jit
def flash_v1_key_outer(
    q_ptr, k_ptr, v_ptr, o_ptr, m_ptr, l_ptr, out_ptr, lse_ptr, sm_scale, num_heads, num_kv_heads, seq_len_q, seq_len_kv,
    trace, stamps, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, TRACE: tl.constexpr, STAMP: tl.constexpr,
):  # fmt: skip
    if STAMP:
        started_ns = stamp_start()
    head = tl.program_id(0)
    dims = tl.arange(0, PADDED_DIM)
    kv_offset = key_value_head(head, num_heads, num_kv_heads).to(tl.int64) * seq_len_kv * HEAD_DIM
    row_offset = head.to(tl.int64) * seq_len_q
    for first_key in tl.range(0, seq_len_kv, BLOCK_N):
        keys = first_key + tl.arange(0, BLOCK_N)
        offsets = kv_offset + keys[:, None] * HEAD_DIM + dims[None, :]
        inside = (keys < seq_len_kv)[:, None] & (dims < HEAD_DIM)[None, :]
        k = tl.load(k_ptr + offsets, mask=inside, other=0.0)
        v = tl.load(v_ptr + offsets, mask=inside, other=0.0)
        is_first = first_key == 0
        is_last = first_key + BLOCK_N >= seq_len_kv
        for first_row in tl.range(0, seq_len_q, BLOCK_M):
            rows = first_row + tl.arange(0, BLOCK_M)
            row_inside = rows < seq_len_q
            q_offsets = row_offset * HEAD_DIM + rows[:, None] * HEAD_DIM + dims[None, :]
            q_inside = row_inside[:, None] & (dims < HEAD_DIM)[None, :]
            q = tl.load(q_ptr + q_offsets, mask=q_inside, other=0.0)
            o_i = tl.load(o_ptr + q_offsets, mask=q_inside & (not is_first), other=0.0)
            m_i = tl.load(m_ptr + row_offset + rows, mask=row_inside & (not is_first), other=float("-inf"))
            l_i = tl.load(l_ptr + row_offset + rows, mask=row_inside & (not is_first), other=0.0)
            of_program = trace
            if TRACE:
                of_program = (trace, head, first_row // BLOCK_M)
            o_i, m_i, l_i = merge_tile(
                q, k, v, o_i, m_i, l_i, rows, keys, sm_scale, seq_len_q, seq_len_kv, first_key, of_program,
                CAUSAL, MASKED, TRACE,
            )  # fmt: skip
            tl.store(o_ptr + q_offsets, o_i, mask=q_inside & (not is_last))
            tl.store(m_ptr + row_offset + rows, m_i, mask=row_inside & (not is_last))
            tl.store(l_ptr + row_offset + rows, l_i, mask=row_inside & (not is_last))
            tl.store(out_ptr + q_offsets, rounded(o_i, out_ptr.dtype.element_ty), mask=q_inside & is_last)
            tl.store(lse_ptr + row_offset + rows, natural_lse(m_i, l_i), mask=row_inside & is_last)
        # The next key tile reads what other threads of this program have just written.
        tl.debug_barrier()
    if STAMP:
        store_stamp(stamps, head, started_ns, tl.cdiv(seq_len_kv, BLOCK_N) * tl.cdiv(seq_len_q, BLOCK_M))


def forward(
    operands: Operands, problem: AttentionProblem, tiles: TileConfig | None, launch: Launcher, with_lse: bool = True,
    trace: TraceBuffers | None = None, stamps: StampBuffers | None = None,
) -> AttentionOutput:  # fmt: skip
    """Attention by FlashAttention v1; see kernels.kernel.Kernel. tiles.loop_order chooses who is in the outer loop.

    'query': a program a query tile. 'key': Algorithm 1 as printed, a program a head, with O (float32, so that its many
    roundings do not add up), m and l read and written in memory at every key tile.
    """
    assert tiles is not None
    q, k, v = operands.q, operands.k, operands.v
    out = torch.empty(q.shape, dtype=operands.dtype, device=q.device)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    heads_in_all = problem.batch * problem.num_heads
    sizes = {
        "HEAD_DIM": problem.head_dim, "PADDED_DIM": problem.padded_head_dim, "BLOCK_M": tiles.block_m,
        "BLOCK_N": tiles.block_n, "CAUSAL": problem.causal,
        "MASKED": problem.causal or problem.seq_len_kv % tiles.block_n != 0,
        "num_warps": tiles.num_warps, "num_stages": tiles.num_stages, **watched(trace, stamps),
    }  # fmt: skip
    shape = (problem.sm_scale, problem.num_heads, problem.num_kv_heads)
    if tiles.loop_order == "key":
        o_i = torch.empty(q.shape, dtype=torch.float32, device=q.device)
        m_i, l_i = torch.empty_like(lse), torch.empty_like(lse)
        launch(
            flash_v1_key_outer, (heads_in_all,), q, k, v, o_i, m_i, l_i, out, lse, *shape,
            problem.seq_len_q, problem.seq_len_kv, **sizes,
        )  # fmt: skip
    else:
        grid = (triton.cdiv(problem.seq_len_q, tiles.block_m) * heads_in_all,)
        launch(
            flash_v1_query_outer, grid, q, k, v, out, lse, *shape, heads_in_all,
            problem.seq_len_q, problem.seq_len_kv, **sizes,
        )  # fmt: skip
    return AttentionOutput(out, lse)


def frames(trace: TraceBuffers, _operands: Operands, _problem: AttentionProblem) -> Frames:
    """What a traced launch stored; see kernels.kernel.Kernel. v1 holds everything in natural units, and O normalised."""
    return trace.read(scores=1.0, m=1.0, l=1.0, acc=1.0)
