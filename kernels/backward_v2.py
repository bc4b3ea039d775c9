"""The backward of v2 (Dao 2023, arXiv 2307.08691, section 3.1.2): a program a key block, and one a query block for dQ.

The paper's one kernel adds its parts of dQ to memory with atomics, in any order, so that no run repeats another's bits. Here
dQ has a kernel of its own: seven products instead of five, nothing added in memory, and every tile's P computed twice.
"""

import torch
import triton
import triton.language as tl

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
def load_rows(base, rows, num_rows, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, MASKED: tl.constexpr):
    """Rows of one head's matrix; past its last column, and where MASKED past its last row, come zeros."""
    dims = tl.arange(0, PADDED_DIM)
    pointers = base + rows[:, None] * HEAD_DIM + dims[None, :]
    if MASKED:
        return tl.load(pointers, mask=(rows < num_rows)[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    elif HEAD_DIM != PADDED_DIM:
        return tl.load(pointers, mask=(dims < HEAD_DIM)[None, :], other=0.0)
    else:
        return tl.load(pointers)


@triton.jit
def store_rows(base, rows, num_rows, x, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr):
    dims = tl.arange(0, PADDED_DIM)
    inside = (rows < num_rows)[:, None] & (dims < HEAD_DIM)[None, :]
    tl.store(base + rows[:, None] * HEAD_DIM + dims[None, :], rounded(x, base.dtype.element_ty), mask=inside)


@triton.jit
def add_query_tile(
    k, v, dk, dv, q_base, d_out_base, lse_base, delta_base, first_row, keys, qk_scale, seq_len_q, seq_len_kv,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK_M: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Sᵀ and dPᵀ, not S and dP: the left operands of the products for dV and dK are then rows of keys as they stand."""
    rows = first_row + tl.arange(0, BLOCK_M)
    q = load_rows(q_base, rows, seq_len_q, HEAD_DIM, PADDED_DIM, MASKED)
    d_out = load_rows(d_out_base, rows, seq_len_q, HEAD_DIM, PADDED_DIM, MASKED)
    if MASKED:
        lse = tl.load(lse_base + rows, mask=rows < seq_len_q, other=0.0)
        delta = tl.load(delta_base + rows, mask=rows < seq_len_q, other=0.0)
    else:
        lse = tl.load(lse_base + rows)
        delta = tl.load(delta_base + rows)
    p = tl.math.exp2(dot(k, q.T) * qk_scale - (lse * _LOG2_E)[None, :])
    if MASKED:
        visible = (rows < seq_len_q)[None, :]
        if CAUSAL:
            visible = visible & (keys[:, None] <= rows[None, :] + (seq_len_kv - seq_len_q))
        # Also where a row sees nothing: its lse is -inf, and p infinite.
        p = tl.where(visible, p, 0.0)
    dv = dot_add(rounded(p, v.dtype), d_out, dv)
    ds = p * (dot(v, d_out.T) - delta[None, :])
    dk = dot_add(rounded(ds, k.dtype), q, dk)
    return dk, dv


@triton.jit
def flash_v2_backward_dkdv(
    q_ptr, k_ptr, v_ptr, d_out_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, sm_scale, qk_scale, group, kv_heads_in_all,
    kv_heads_per_section, seq_len_q, seq_len_kv, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, RAGGED: tl.constexpr,
):  # fmt: skip
    num_blocks = tl.cdiv(seq_len_kv, BLOCK_N)
    block, kv_head = key_block_at(tl.program_id(0), num_blocks, kv_heads_in_all, kv_heads_per_section, CAUSAL)
    first_key = block * BLOCK_N
    keys = first_key + tl.arange(0, BLOCK_N)
    kv_offset = kv_head.to(tl.int64) * seq_len_kv * HEAD_DIM
    # Keys past the last one give rows of dK and dV that nobody stores.
    k = load_rows(k_ptr + kv_offset, keys, seq_len_kv, HEAD_DIM, PADDED_DIM, True)
    v = load_rows(v_ptr + kv_offset, keys, seq_len_kv, HEAD_DIM, PADDED_DIM, True)
    dk = tl.zeros([BLOCK_N, PADDED_DIM], tl.float32)
    dv = tl.zeros([BLOCK_N, PADDED_DIM], tl.float32)
    last_key = tl.minimum(first_key + BLOCK_N, seq_len_kv) - 1
    first, full, whole, end = seeing_blocks(first_key, last_key, seq_len_q, seq_len_kv, BLOCK_M, CAUSAL)
    # Bounds that do not fold when group is 1: ptxas serialises the products of a loop that stands alone.
    for head in tl.range(kv_head * group, (kv_head + 1) * group, num_stages=1):
        row_offset = tl.cast(head, tl.int64) * seq_len_q
        q_base, d_out_base = q_ptr + row_offset * HEAD_DIM, d_out_ptr + row_offset * HEAD_DIM
        if CAUSAL or RAGGED:
            # Those on the diagonal, then a last one that is not whole.
            on_diagonal = full - first
            for index in tl.range(0, on_diagonal + end - whole):
                query_block = tl.where(index < on_diagonal, first + index, whole + index - on_diagonal)
                dk, dv = add_query_tile(
                    k, v, dk, dv, q_base, d_out_base, lse_ptr + row_offset, delta_ptr + row_offset, query_block * BLOCK_M,
                    keys, qk_scale, seq_len_q, seq_len_kv, HEAD_DIM, PADDED_DIM, BLOCK_M, CAUSAL, True,
                )  # fmt: skip
        for query_block in tl.range(full, whole):
            dk, dv = add_query_tile(
                k, v, dk, dv, q_base, d_out_base, lse_ptr + row_offset, delta_ptr + row_offset, query_block * BLOCK_M,
                keys, qk_scale, seq_len_q, seq_len_kv, HEAD_DIM, PADDED_DIM, BLOCK_M, CAUSAL, False,
            )  # fmt: skip
    store_rows(dk_ptr + kv_offset, keys, seq_len_kv, dk * sm_scale, HEAD_DIM, PADDED_DIM)
    store_rows(dv_ptr + kv_offset, keys, seq_len_kv, dv, HEAD_DIM, PADDED_DIM)


@triton.jit
def add_key_tile(
    q, d_out, row_lse, delta, dq, k_base, v_base, first_key, rows, qk_scale, seq_len_q, seq_len_kv,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    keys = first_key + tl.arange(0, BLOCK_N)
    k = load_rows(k_base, keys, seq_len_kv, HEAD_DIM, PADDED_DIM, MASKED)
    v = load_rows(v_base, keys, seq_len_kv, HEAD_DIM, PADDED_DIM, MASKED)
    p = tl.math.exp2(dot(q, k.T) * qk_scale - row_lse[:, None])
    ds = p * (dot(d_out, v.T) - delta[:, None])
    if MASKED:
        visible = (keys < seq_len_kv)[None, :]
        if CAUSAL:
            visible = visible & (keys[None, :] <= rows[:, None] + (seq_len_kv - seq_len_q))
        ds = tl.where(visible, ds, 0.0)
    return dot_add(rounded(ds, k.dtype), k, dq)


@triton.jit
def flash_v2_backward_dq(
    q_ptr, k_ptr, v_ptr, d_out_ptr, lse_ptr, delta_ptr, dq_ptr, sm_scale, qk_scale, num_heads, num_kv_heads,
    heads_in_all, heads_in_section, seq_len_q, seq_len_kv, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, RAGGED: tl.constexpr, ORDER: tl.constexpr,
):  # fmt: skip
    block, head = query_block_at(tl.program_id(0), tl.cdiv(seq_len_q, BLOCK_M), heads_in_all, heads_in_section, ORDER)
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    row_offset = head.to(tl.int64) * seq_len_q
    kv_offset = key_value_head(head, num_heads, num_kv_heads).to(tl.int64) * seq_len_kv * HEAD_DIM
    # Rows past the last one give rows of dQ that nobody stores.
    q = load_rows(q_ptr + row_offset * HEAD_DIM, rows, seq_len_q, HEAD_DIM, PADDED_DIM, True)
    d_out = load_rows(d_out_ptr + row_offset * HEAD_DIM, rows, seq_len_q, HEAD_DIM, PADDED_DIM, True)
    row_lse = tl.load(lse_ptr + row_offset + rows, mask=rows < seq_len_q, other=0.0) * _LOG2_E
    delta = tl.load(delta_ptr + row_offset + rows, mask=rows < seq_len_q, other=0.0)
    dq = tl.zeros([BLOCK_M, PADDED_DIM], tl.float32)
    last_row = tl.minimum((block + 1) * BLOCK_M, seq_len_q) - 1
    full_end, end = visible_keys(block * BLOCK_M, last_row, seq_len_q, seq_len_kv, BLOCK_N, CAUSAL)
    for first_key in tl.range(0, full_end, BLOCK_N):
        dq = add_key_tile(
            q, d_out, row_lse, delta, dq, k_ptr + kv_offset, v_ptr + kv_offset, first_key, rows, qk_scale,
            seq_len_q, seq_len_kv, HEAD_DIM, PADDED_DIM, BLOCK_N, CAUSAL, False,
        )  # fmt: skip
    if CAUSAL or RAGGED:
        for first_key in tl.range(full_end, end, BLOCK_N):
            dq = add_key_tile(
                q, d_out, row_lse, delta, dq, k_ptr + kv_offset, v_ptr + kv_offset, first_key, rows, qk_scale,
                seq_len_q, seq_len_kv, HEAD_DIM, PADDED_DIM, BLOCK_N, CAUSAL, True,
            )  # fmt: skip
    store_rows(dq_ptr + row_offset * HEAD_DIM, rows, seq_len_q, dq * sm_scale, HEAD_DIM, PADDED_DIM)


def backward(
    operands: Operands, output: AttentionOutput, d_out: torch.Tensor, problem: AttentionProblem,
    tiles: BackwardTiles | None, launch: Launcher, delta: torch.Tensor | None = None,
) -> Gradients:  # fmt: skip
    """The gradients by two launches, after one for delta where it is not given; see kernels.kernel.Backward."""
    assert tiles is not None
    assert tiles.dq is not None
    q, k, v = operands.q, operands.k, operands.v
    delta = row_sums(operands, output, d_out, problem, launch) if delta is None else delta
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    read = (q, k, v, d_out, output.lse, delta)
    scales = (problem.sm_scale, problem.sm_scale * LOG2_E)
    launch(
        flash_v2_backward_dkdv, (triton.cdiv(problem.seq_len_kv, tiles.dkdv.block_n) * problem.batch * problem.num_kv_heads,),
        *read, dk, dv, *scales, problem.num_heads // problem.num_kv_heads, problem.batch * problem.num_kv_heads,
        key_heads_per_section(problem, q.element_size()), problem.seq_len_q, problem.seq_len_kv,
        RAGGED=problem.seq_len_q % tiles.dkdv.block_m != 0, **_constants(problem, tiles.dkdv),
    )  # fmt: skip
    launch(
        flash_v2_backward_dq, grid_of(problem, tiles.dq), *read, dq, *scales, problem.num_heads, problem.num_kv_heads,
        problem.batch * problem.num_heads, heads_per_section(problem, q.element_size()),
        problem.seq_len_q, problem.seq_len_kv, RAGGED=problem.seq_len_kv % tiles.dq.block_n != 0,
        ORDER="heaviest" if problem.causal else "natural", **_constants(problem, tiles.dq),
    )  # fmt: skip
    return Gradients(dq, dk, dv)


def _constants(problem: AttentionProblem, tiles: TileConfig) -> dict[str, int | bool]:
    return {
        "HEAD_DIM": problem.head_dim, "PADDED_DIM": problem.padded_head_dim, "BLOCK_M": tiles.block_m,
        "BLOCK_N": tiles.block_n, "CAUSAL": problem.causal, "num_warps": tiles.num_warps, "num_stages": tiles.num_stages,
    }  # fmt: skip
