"""The backward of v3 (Shah et al. 2024, arXiv 2407.08608, section 3) in portable Triton: tiles arrive under the products.

dK and dV stay with the program that owns the keys, dQ with the one that owns the queries: seven products, where one kernel
with five would add its parts of dQ to memory. Added by several programs they would differ from run to run; kept in order
they wait for each other at every tile, and float32 parts of dQ take a quarter of a step's memory more.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.backward import key_block_at, key_heads_per_section, row_sums, seeing_blocks
from kernels.backward import row_sums_in as row_sums_in
from kernels.block_order import grid_of, heads_per_section
from kernels.kernel import AttentionOutput, Gradients, Launcher, Operands
from kernels.problem import AttentionProblem, BackwardTiles, TileConfig
from kernels.tiles import LOG2_E, dot, dot_add, key_value_head, query_block_at, rounded, visible_keys

preprocess = row_sums
_LOG2_E = tl.constexpr(LOG2_E)


def prepare(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Operands:
    """The tensors as they are; see kernels.kernel.Backward."""
    return Operands(q, k, v, dtype=q.dtype)


@triton.jit
def load_tile(
    source, head, first_row, num_rows, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, ROWS: tl.constexpr,
    TMA: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """ROWS rows of one head, where MASKED says whether they may reach past its last.

    Past the last column come zeros. Past the last row come zeros by address, by TMA the next head's rows.
    """
    if TMA:
        return source.load([head * num_rows + first_row, 0])
    else:
        rows = first_row + tl.arange(0, ROWS)
        dims = tl.arange(0, PADDED_DIM)
        pointers = source + tl.cast(head, tl.int64) * num_rows * HEAD_DIM + rows[:, None] * HEAD_DIM + dims[None, :]
        if MASKED:
            return tl.load(pointers, mask=(rows < num_rows)[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
        elif HEAD_DIM != PADDED_DIM:
            return tl.load(pointers, mask=(dims < HEAD_DIM)[None, :], other=0.0)
        else:
            return tl.load(pointers)


@triton.jit
def add_query_tile(
    k, v, dk, dv, q_source, d_out_source, lse_ptr, delta_ptr, head, first_row, keys, qk_scale, seq_len_q, seq_len_kv,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK_M: tl.constexpr, CAUSAL: tl.constexpr, TMA: tl.constexpr,
    RAGGED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Sᵀ and dPᵀ, not S and dP: as left operands of the products for dV and dK they stay in registers."""
    MAY_PASS_END: tl.constexpr = MASKED and RAGGED
    rows = first_row + tl.arange(0, BLOCK_M)
    q = load_tile(q_source, head, first_row, seq_len_q, HEAD_DIM, PADDED_DIM, BLOCK_M, TMA, MAY_PASS_END)
    d_out = load_tile(d_out_source, head, first_row, seq_len_q, HEAD_DIM, PADDED_DIM, BLOCK_M, TMA, MAY_PASS_END)
    row_offset = tl.cast(head, tl.int64) * seq_len_q
    if MAY_PASS_END:
        lse = tl.load(lse_ptr + row_offset + rows, mask=rows < seq_len_q, other=0.0)
        delta = tl.load(delta_ptr + row_offset + rows, mask=rows < seq_len_q, other=0.0)
        if TMA:
            # Weights of the next head's rows are 0, but 0 times infinity is NaN.
            q = tl.where((rows < seq_len_q)[:, None], q, tl.zeros([1, 1], q.dtype))
            d_out = tl.where((rows < seq_len_q)[:, None], d_out, tl.zeros([1, 1], d_out.dtype))
    else:
        lse = tl.load(lse_ptr + row_offset + rows)
        delta = tl.load(delta_ptr + row_offset + rows)
    scores = dot(k, q.T)
    p = tl.math.exp2(scores * qk_scale - (lse * _LOG2_E)[None, :])
    if MASKED and CAUSAL:
        # Also where a row sees nothing: its lse is -inf, and p infinite.
        p = tl.where(keys[:, None] <= rows[None, :] + (seq_len_kv - seq_len_q), p, 0.0)
    if MAY_PASS_END:
        p = tl.where((rows < seq_len_q)[None, :], p, 0.0)
    dv = dot_add(rounded(p, v.dtype), d_out, dv)
    dp = dot(v, d_out.T)
    ds = p * (dp - delta[None, :])
    dk = dot_add(rounded(ds, k.dtype), q, dk)
    return dk, dv


@triton.jit
def flash_v3_backward_dkdv(
    q_source, k_source, v_source, d_out_source, lse_ptr, delta_ptr, dk_ptr, dv_ptr, sm_scale, qk_scale, group,
    kv_heads_in_all, kv_heads_per_section, seq_len_q, seq_len_kv, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, TMA: tl.constexpr, RAGGED: tl.constexpr,
):  # fmt: skip
    num_blocks = tl.cdiv(seq_len_kv, BLOCK_N)
    block, kv_head = key_block_at(tl.program_id(0), num_blocks, kv_heads_in_all, kv_heads_per_section, CAUSAL)
    first_key = block * BLOCK_N
    keys = first_key + tl.arange(0, BLOCK_N)
    # Keys past the last one give rows of dK and dV that nobody stores.
    k = load_tile(k_source, kv_head, first_key, seq_len_kv, HEAD_DIM, PADDED_DIM, BLOCK_N, TMA, True)
    v = load_tile(v_source, kv_head, first_key, seq_len_kv, HEAD_DIM, PADDED_DIM, BLOCK_N, TMA, True)
    dk = tl.zeros([BLOCK_N, PADDED_DIM], tl.float32)
    dv = tl.zeros([BLOCK_N, PADDED_DIM], tl.float32)
    last_key = tl.minimum(first_key + BLOCK_N, seq_len_kv) - 1
    first, full, whole, end = seeing_blocks(first_key, last_key, seq_len_q, seq_len_kv, BLOCK_M, CAUSAL)
    # Bounds that do not fold when group is 1: ptxas serialises the products of a loop that stands alone.
    for head in tl.range(kv_head * group, (kv_head + 1) * group, num_stages=1):
        if CAUSAL or RAGGED:
            # Those on the diagonal, then a last one that is not whole.
            on_diagonal = full - first
            count = on_diagonal + end - whole if RAGGED else on_diagonal
            for index in tl.range(0, count):
                query_block = first + index
                if RAGGED:
                    query_block = tl.where(index < on_diagonal, query_block, whole + index - on_diagonal)
                dk, dv = add_query_tile(
                    k, v, dk, dv, q_source, d_out_source, lse_ptr, delta_ptr, head, query_block * BLOCK_M, keys, qk_scale,
                    seq_len_q, seq_len_kv, HEAD_DIM, PADDED_DIM, BLOCK_M, CAUSAL, TMA, RAGGED, True,
                )  # fmt: skip
        for query_block in tl.range(full, whole):
            dk, dv = add_query_tile(
                k, v, dk, dv, q_source, d_out_source, lse_ptr, delta_ptr, head, query_block * BLOCK_M, keys, qk_scale,
                seq_len_q, seq_len_kv, HEAD_DIM, PADDED_DIM, BLOCK_M, CAUSAL, TMA, RAGGED, False,
            )  # fmt: skip
    dims = tl.arange(0, PADDED_DIM)
    offsets = kv_head.to(tl.int64) * seq_len_kv * HEAD_DIM + keys[:, None] * HEAD_DIM + dims[None, :]
    inside = (keys < seq_len_kv)[:, None] & (dims < HEAD_DIM)[None, :]
    tl.store(dk_ptr + offsets, rounded(dk * sm_scale, dk_ptr.dtype.element_ty), mask=inside)
    tl.store(dv_ptr + offsets, rounded(dv, dv_ptr.dtype.element_ty), mask=inside)


@triton.jit
def add_key_tile(
    q, d_out, row_lse, delta, dq, k_source, v_source, kv_head, first_key, rows, qk_scale, seq_len_q, seq_len_kv,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, TMA: tl.constexpr,
    RAGGED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    MAY_PASS_END: tl.constexpr = MASKED and RAGGED
    keys = first_key + tl.arange(0, BLOCK_N)
    k = load_tile(k_source, kv_head, first_key, seq_len_kv, HEAD_DIM, PADDED_DIM, BLOCK_N, TMA, MAY_PASS_END)
    v = load_tile(v_source, kv_head, first_key, seq_len_kv, HEAD_DIM, PADDED_DIM, BLOCK_N, TMA, MAY_PASS_END)
    if MAY_PASS_END and TMA:
        # dS of the next head's keys is 0, but 0 times infinity is NaN.
        k = tl.where((keys < seq_len_kv)[:, None], k, tl.zeros([1, 1], k.dtype))
    scores = dot(q, k.T)
    dp = dot(d_out, v.T)
    ds = tl.math.exp2(scores * qk_scale - row_lse[:, None]) * (dp - delta[:, None])
    if MASKED and CAUSAL:
        ds = tl.where(keys[None, :] <= rows[:, None] + (seq_len_kv - seq_len_q), ds, 0.0)
    if MAY_PASS_END:
        ds = tl.where((keys < seq_len_kv)[None, :], ds, 0.0)
    return dot_add(rounded(ds, k.dtype), k, dq)


@triton.jit
def flash_v3_backward_dq(
    q_source, k_source, v_source, d_out_source, lse_ptr, delta_ptr, dq_ptr, sm_scale, qk_scale, num_heads, num_kv_heads,
    heads_in_all, heads_in_section, seq_len_q, seq_len_kv, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, TMA: tl.constexpr, RAGGED: tl.constexpr,
    ORDER: tl.constexpr,
):  # fmt: skip
    block, head = query_block_at(tl.program_id(0), tl.cdiv(seq_len_q, BLOCK_M), heads_in_all, heads_in_section, ORDER)
    kv_head = key_value_head(head, num_heads, num_kv_heads)
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    row_offset = head.to(tl.int64) * seq_len_q
    # Rows past the last one give rows of dQ that nobody stores.
    q = load_tile(q_source, head, block * BLOCK_M, seq_len_q, HEAD_DIM, PADDED_DIM, BLOCK_M, TMA, True)
    d_out = load_tile(d_out_source, head, block * BLOCK_M, seq_len_q, HEAD_DIM, PADDED_DIM, BLOCK_M, TMA, True)
    row_lse = tl.load(lse_ptr + row_offset + rows, mask=rows < seq_len_q, other=0.0) * _LOG2_E
    delta = tl.load(delta_ptr + row_offset + rows, mask=rows < seq_len_q, other=0.0)
    dq = tl.zeros([BLOCK_M, PADDED_DIM], tl.float32)
    last_row = tl.minimum((block + 1) * BLOCK_M, seq_len_q) - 1
    full_end, end = visible_keys(block * BLOCK_M, last_row, seq_len_q, seq_len_kv, BLOCK_N, CAUSAL)
    for first_key in tl.range(0, full_end, BLOCK_N):
        dq = add_key_tile(
            q, d_out, row_lse, delta, dq, k_source, v_source, kv_head, first_key, rows, qk_scale, seq_len_q, seq_len_kv,
            HEAD_DIM, PADDED_DIM, BLOCK_N, CAUSAL, TMA, RAGGED, False,
        )  # fmt: skip
    if CAUSAL or RAGGED:
        for first_key in tl.range(full_end, end, BLOCK_N):
            dq = add_key_tile(
                q, d_out, row_lse, delta, dq, k_source, v_source, kv_head, first_key, rows, qk_scale, seq_len_q, seq_len_kv,
                HEAD_DIM, PADDED_DIM, BLOCK_N, CAUSAL, TMA, RAGGED, True,
            )  # fmt: skip
    dims = tl.arange(0, PADDED_DIM)
    offsets = row_offset * HEAD_DIM + rows[:, None] * HEAD_DIM + dims[None, :]
    inside = (rows < seq_len_q)[:, None] & (dims < HEAD_DIM)[None, :]
    tl.store(dq_ptr + offsets, rounded(dq * sm_scale, dq_ptr.dtype.element_ty), mask=inside)


def backward(
    operands: Operands, output: AttentionOutput, d_out: torch.Tensor, problem: AttentionProblem,
    tiles: BackwardTiles | None, launch: Launcher, delta: torch.Tensor | None = None,
) -> Gradients:  # fmt: skip
    """The gradients by two launches, after one for delta where it is not given; see kernels.kernel.Backward."""
    assert tiles is not None
    assert tiles.dq is not None
    delta = row_sums(operands, output, d_out, problem, launch) if delta is None else delta
    dq, dk, dv = (torch.empty_like(x) for x in (operands.q, operands.k, operands.v))
    scales = (problem.sm_scale, problem.sm_scale * LOG2_E)
    launch(
        flash_v3_backward_dkdv, (triton.cdiv(problem.seq_len_kv, tiles.dkdv.block_n) * problem.batch * problem.num_kv_heads,),
        *_sources(operands, d_out, tiles.dkdv, problem, launch), output.lse, delta, dk, dv, *scales,
        problem.num_heads // problem.num_kv_heads, problem.batch * problem.num_kv_heads,
        key_heads_per_section(problem, dq.element_size()), problem.seq_len_q, problem.seq_len_kv,
        RAGGED=problem.seq_len_q % tiles.dkdv.block_m != 0, **_constants(problem, tiles.dkdv, launch),
    )  # fmt: skip
    launch(
        flash_v3_backward_dq, grid_of(problem, tiles.dq),
        *_sources(operands, d_out, tiles.dq, problem, launch), output.lse, delta, dq, *scales,
        problem.num_heads, problem.num_kv_heads, problem.batch * problem.num_heads,
        heads_per_section(problem, dq.element_size()), problem.seq_len_q, problem.seq_len_kv,
        RAGGED=problem.seq_len_kv % tiles.dq.block_n != 0, ORDER="heaviest" if problem.causal else "natural",
        **_constants(problem, tiles.dq, launch),
    )  # fmt: skip
    return Gradients(dq, dk, dv)


def _sources(
    operands: Operands, d_out: torch.Tensor, tiles: TileConfig, problem: AttentionProblem, launch: Launcher
) -> tuple[TensorDescriptor | torch.Tensor, ...]:
    """What load_tile reads: descriptors of all heads' rows on top of each other, or the tensors themselves."""
    tensors = (operands.q, operands.k, operands.v, d_out)
    if not launch.has_tma:
        return tensors
    rows = (tiles.block_m, tiles.block_n, tiles.block_n, tiles.block_m)
    return tuple(
        TensorDescriptor.from_tensor(tensor.flatten(0, 2), [some, problem.padded_head_dim])
        for tensor, some in zip(tensors, rows, strict=True)
    )


def _constants(problem: AttentionProblem, tiles: TileConfig, launch: Launcher) -> dict[str, int | bool]:
    return {
        "HEAD_DIM": problem.head_dim, "PADDED_DIM": problem.padded_head_dim, "BLOCK_M": tiles.block_m,
        "BLOCK_N": tiles.block_n, "CAUSAL": problem.causal, "TMA": launch.has_tma,
        "num_warps": tiles.num_warps, "num_stages": tiles.num_stages,
    }  # fmt: skip
