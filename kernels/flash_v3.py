"""FlashAttention v3 (Shah et al. 2024, arXiv 2407.08608) in portable Triton: asynchronous tile loads, and FP8.

The next tiles arrive while the matrix units work on this one: on Hopper and later through tensor descriptors, which
the copy engine (TMA) serves; on older GPUs by address, through asynchronous copies.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.block_order import chosen_order, grid_of, heads_per_section
from kernels.kernel import AttentionOutput, Launcher, Operands, as_given
from kernels.problem import AttentionProblem, Precision, TileConfig
from kernels.quantize import in_token_order, quantize, token_of_row, tokens_of_rows
from kernels.stamps import StampBuffers, stamp_start, store_stamp, watched
from kernels.tiles import LN_2, LOG2_E, dot, dot_add, hide_unseen, key_value_head, query_block_at, rounded, visible_keys
from kernels.trace import Frames, TraceBuffers, store_tile

# P is at most 1; times 2^8 its small weights stay out of e4m3's subnormals, and 2^8 is below 448.
P_SHIFT = tl.constexpr(8.0)


@triton.jit
def load_tile(
    source, head, first_row, first_column, num_rows, num_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    TMA: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """A ROWS × COLUMNS tile of one head's row-major matrix, where MASKED says whether it may reach past that.

    Past the last column come zeros. Past the last row come zeros by address; by TMA, whose matrix is all heads on top of
    each other (a third dimension made it slower, kernels/MEASURED.md), the next head's rows: callers must mask them.
    """
    if TMA:
        return source.load([head * num_rows + first_row, first_column])
    else:
        rows = first_row + tl.arange(0, ROWS)
        columns = first_column + tl.arange(0, COLUMNS)
        pointers = source + head.to(tl.int64) * num_rows * num_columns + rows[:, None] * num_columns + columns[None, :]
        if MASKED:
            return tl.load(pointers, mask=(rows < num_rows)[:, None] & (columns < num_columns)[None, :], other=0.0)
        else:
            return tl.load(pointers)


@triton.jit
def attend_tile(
    q, k_source, v_source, k_scale_base, acc, m_i, l_i, row_scale, rows, kv_head, first_key, seq_len_q, seq_len_kv, stored_len,
    trace, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, FP8: tl.constexpr,
    TMA: tl.constexpr, RAGGED: tl.constexpr, MASKED: tl.constexpr, TRACE: tl.constexpr,
):  # fmt: skip
    stored_rows = first_key + tl.arange(0, BLOCK_N)
    keys = token_of_row(stored_rows) if FP8 else stored_rows
    MAY_PASS_EDGE: tl.constexpr = MASKED or HEAD_DIM != PADDED_DIM
    k = load_tile(k_source, kv_head, first_key, 0, stored_len, HEAD_DIM, BLOCK_N, PADDED_DIM, TMA, MAY_PASS_EDGE)
    scores = dot(q, k.T)
    if FP8:
        if MASKED:
            k_scale = tl.load(k_scale_base + stored_rows, mask=stored_rows < stored_len, other=0.0)
        else:
            k_scale = tl.load(k_scale_base + stored_rows)
        scores = scores * k_scale[None, :]
    if MASKED:
        scores = hide_unseen(scores, rows, keys, seq_len_q, seq_len_kv, CAUSAL)
    m_new = tl.maximum(m_i, tl.max(scores, 1) * row_scale)
    # A row that has seen nothing yet has m = -inf, and -inf minus -inf is NaN.
    m_safe = tl.where(m_new == float("-inf"), 0.0, m_new) if MASKED else m_new
    if FP8:
        p = tl.math.exp2(scores * row_scale[:, None] - (m_safe - P_SHIFT)[:, None])
    else:
        p = tl.math.exp2(scores * row_scale - m_safe[:, None])
    alpha = tl.math.exp2(m_i - m_safe)
    l_new = l_i * alpha + tl.sum(p, 1)
    p = rounded(p, v_source.dtype if TMA else v_source.dtype.element_ty)
    if FP8:
        v = load_tile(v_source, kv_head, 0, first_key, HEAD_DIM, stored_len, PADDED_DIM, BLOCK_N, TMA, MAY_PASS_EDGE).T
        # Hopper's matrix units add 8-bit products with about 14 bits: a sum kept in them stops growing over a long sequence
        # (16k ones came out a third short on an H200). So each tile's product starts at zero and is added here, in float32.
        acc = acc * alpha[:, None] + dot(in_token_order(p), v)
    else:
        v = load_tile(v_source, kv_head, first_key, 0, stored_len, HEAD_DIM, BLOCK_N, PADDED_DIM, TMA, MAY_PASS_EDGE)
        if MASKED and TMA and RAGGED:
            # Weights of the next head's rows are 0, but 0 times infinity is NaN.
            v = tl.where((keys < seq_len_kv)[:, None], v, tl.zeros([1, 1], v.dtype))
        acc = dot_add(p, v, acc * alpha[:, None])
    if TRACE:
        store_tile(trace, first_key, seq_len_q, seq_len_kv, scores, m_i, m_new, l_new, alpha, acc)
    return acc, m_new, l_new


@triton.jit
def attend_block(
    block, head, q_source, k_source, v_source, out_ptr, lse_ptr, q_scale_ptr, k_scale_ptr, v_scale_ptr, lse_shift_ptr,
    qk_scale, num_heads, num_kv_heads, seq_len_q, seq_len_kv, stored_len, trace, stamps,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
    FP8: tl.constexpr, SHIFT_LSE: tl.constexpr, TMA: tl.constexpr, RAGGED: tl.constexpr, TRACE: tl.constexpr,
    STAMP: tl.constexpr,
):  # fmt: skip
    if STAMP:
        started_ns = stamp_start()
    if TRACE:
        trace = (trace, head, block)
    kv_head = key_value_head(head, num_heads, num_kv_heads)
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    row_inside = rows < seq_len_q
    row_offset = head.to(tl.int64) * seq_len_q
    q = load_tile(q_source, head, block * BLOCK_M, 0, seq_len_q, HEAD_DIM, BLOCK_M, PADDED_DIM, TMA, True)
    row_scale = qk_scale
    if FP8:
        row_scale = tl.load(q_scale_ptr + row_offset + rows, mask=row_inside, other=1.0) * qk_scale
    k_scale_base = k_scale_ptr + kv_head.to(tl.int64) * stored_len

    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, PADDED_DIM], tl.float32)
    last_row = tl.minimum((block + 1) * BLOCK_M, seq_len_q) - 1
    full_end, end = visible_keys(block * BLOCK_M, last_row, seq_len_q, seq_len_kv, BLOCK_N, CAUSAL)
    for first_key in tl.range(0, full_end, BLOCK_N):
        acc, m_i, l_i = attend_tile(
            q, k_source, v_source, k_scale_base, acc, m_i, l_i, row_scale, rows, kv_head, first_key,
            seq_len_q, seq_len_kv, stored_len, trace, HEAD_DIM, PADDED_DIM, BLOCK_N, CAUSAL, FP8, TMA, RAGGED, False, TRACE,
        )  # fmt: skip
    for first_key in tl.range(full_end, end, BLOCK_N):
        acc, m_i, l_i = attend_tile(
            q, k_source, v_source, k_scale_base, acc, m_i, l_i, row_scale, rows, kv_head, first_key,
            seq_len_q, seq_len_kv, stored_len, trace, HEAD_DIM, PADDED_DIM, BLOCK_N, CAUSAL, FP8, TMA, RAGGED, True, TRACE,
        )  # fmt: skip

    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    out = acc * (1.0 / l_safe)[:, None]
    dims = tl.arange(0, PADDED_DIM)
    lse = m_i + tl.math.log2(l_safe)
    if FP8:
        v_scale = tl.load(v_scale_ptr + kv_head.to(tl.int64) * HEAD_DIM + dims, mask=dims < HEAD_DIM, other=0.0)
        out = out * v_scale[None, :]
        lse = lse - P_SHIFT
    lse = lse * LN_2
    if SHIFT_LSE:
        lse = lse + tl.load(lse_shift_ptr + row_offset + rows, mask=row_inside, other=0.0)
    offsets = row_offset * HEAD_DIM + rows[:, None] * HEAD_DIM + dims[None, :]
    inside = row_inside[:, None] & (dims < HEAD_DIM)[None, :]
    tl.store(out_ptr + offsets, rounded(out, out_ptr.dtype.element_ty), mask=inside)
    tl.store(lse_ptr + row_offset + rows, tl.where(l_i == 0.0, float("-inf"), lse), mask=row_inside)
    if STAMP:
        store_stamp(stamps, head * tl.cdiv(seq_len_q, BLOCK_M) + block, started_ns, tl.cdiv(end, BLOCK_N))


@triton.jit
def flash_v3_forward(
    q_source, k_source, v_source, out_ptr, lse_ptr, q_scale_ptr, k_scale_ptr, v_scale_ptr, lse_shift_ptr, qk_scale,
    num_heads, num_kv_heads, heads_in_all, heads_per_section, seq_len_q, seq_len_kv, stored_len, trace, stamps,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
    FP8: tl.constexpr, SHIFT_LSE: tl.constexpr, TMA: tl.constexpr, RAGGED: tl.constexpr, ORDER: tl.constexpr,
    PERSISTENT: tl.constexpr, TRACE: tl.constexpr, STAMP: tl.constexpr,
):  # fmt: skip
    num_blocks = tl.cdiv(seq_len_q, BLOCK_M)
    if PERSISTENT:
        for index in tl.range(tl.program_id(0), num_blocks * heads_in_all, tl.num_programs(0)):
            block, head = query_block_at(index, num_blocks, heads_in_all, heads_per_section, ORDER)
            attend_block(
                block, head, q_source, k_source, v_source, out_ptr, lse_ptr, q_scale_ptr, k_scale_ptr, v_scale_ptr,
                lse_shift_ptr, qk_scale, num_heads, num_kv_heads, seq_len_q, seq_len_kv, stored_len, trace, stamps,
                HEAD_DIM, PADDED_DIM, BLOCK_M, BLOCK_N, CAUSAL, FP8, SHIFT_LSE, TMA, RAGGED, TRACE, STAMP,
            )  # fmt: skip
    else:
        block, head = query_block_at(tl.program_id(0), num_blocks, heads_in_all, heads_per_section, ORDER)
        attend_block(
            block, head, q_source, k_source, v_source, out_ptr, lse_ptr, q_scale_ptr, k_scale_ptr, v_scale_ptr,
            lse_shift_ptr, qk_scale, num_heads, num_kv_heads, seq_len_q, seq_len_kv, stored_len, trace, stamps,
            HEAD_DIM, PADDED_DIM, BLOCK_M, BLOCK_N, CAUSAL, FP8, SHIFT_LSE, TMA, RAGGED, TRACE, STAMP,
        )  # fmt: skip


def prepare(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, precision: Precision, launch: Launcher) -> Operands:
    """The tensors as they are, or quantised when precision.fp8; see kernels.kernel.Kernel."""
    make = quantize if precision.fp8 else as_given
    return make(q, k, v, precision, launch)


def forward(
    operands: Operands, problem: AttentionProblem, tiles: TileConfig | None, launch: Launcher, with_lse: bool = True,
    trace: TraceBuffers | None = None, stamps: StampBuffers | None = None,
) -> AttentionOutput:  # fmt: skip
    """Attention by FlashAttention v3; see kernels.kernel.Kernel. FP8 when the operands are quantised."""
    assert tiles is not None
    q, k, v = operands.q, operands.k, operands.v
    fp8 = operands.q_scale is not None
    out = torch.empty(q.shape, dtype=operands.dtype, device=q.device)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    dim = problem.padded_head_dim
    blocks = ([tiles.block_m, dim], [tiles.block_n, dim], [dim, tiles.block_n] if fp8 else [tiles.block_n, dim])
    sources = [_source(x, block, launch.has_tma) for x, block in zip((q, k, v), blocks, strict=True)]
    launch(
        flash_v3_forward, grid_of(problem, tiles), *sources, out, lse, *_scales(operands, lse), problem.sm_scale * LOG2_E,
        problem.num_heads, problem.num_kv_heads, problem.batch * problem.num_heads,
        heads_per_section(problem, q.element_size()), problem.seq_len_q, problem.seq_len_kv, v.shape[3] if fp8 else v.shape[2],
        HEAD_DIM=problem.head_dim, PADDED_DIM=dim, BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n, CAUSAL=problem.causal,
        FP8=fp8, SHIFT_LSE=operands.lse_shift is not None, TMA=launch.has_tma,
        RAGGED=problem.seq_len_kv % tiles.block_n != 0,
        ORDER=chosen_order(problem, tiles), PERSISTENT=tiles.num_programs is not None,
        num_warps=tiles.num_warps, num_stages=tiles.num_stages, **watched(trace, stamps),
    )  # fmt: skip
    return AttentionOutput(out, lse)


def frames(trace: TraceBuffers, operands: Operands, problem: AttentionProblem) -> Frames:
    """What a traced launch stored; see kernels.kernel.Kernel. v3 holds S without sm_scale, and m in log2.

    With FP8 it holds S without Q's scale and its columns in the order of K's stored rows, P and with it l and O times 2^8,
    and O without V's scale.
    """
    if operands.q_scale is None:
        return trace.read(scores=problem.sm_scale, m=LN_2.value, l=1.0, acc=1.0)
    q_scale = torch.ones(trace.tiles.block_m)
    rows = operands.q_scale[trace.batch_index, trace.head, trace.rows].cpu()
    q_scale[: rows.numel()] = rows
    v_scale = operands.v_scale[trace.batch_index, trace.kv_head].cpu()
    unshift = 2.0**-P_SHIFT.value
    order = tokens_of_rows(torch.arange(trace.tiles.block_n))
    return trace.read(problem.sm_scale * q_scale[:, None], LN_2.value, unshift, v_scale * unshift, order)


def _source(tensor: torch.Tensor, block: list[int], has_tma: bool) -> TensorDescriptor | torch.Tensor:
    """What load_tile reads: a descriptor of all heads' rows on top of each other, or the tensor itself."""
    return TensorDescriptor.from_tensor(tensor.flatten(0, 2), block) if has_tma else tensor


def _scales(operands: Operands, unused: torch.Tensor) -> tuple[torch.Tensor, ...]:
    scales = (operands.q_scale, operands.k_scale, operands.v_scale, operands.lse_shift)
    return tuple(unused if scale is None else scale for scale in scales)
