"""The backward of v1 (Dao et al. 2022, arXiv 2205.14135, Algorithm 4): a program a head, every tile computed.

Keys in the outer loop, with dK and dV on chip; queries in the inner one, with dQ read and written in memory at every tile,
and the row sums of dO ∘ O computed again at every tile. With grouped heads a program owns a key-value head and all
query heads that read it, so that nobody else adds to its gradients.
"""

import torch
import triton
import triton.language as tl

from kernels.kernel import AttentionOutput, Gradients, Launcher, Operands
from kernels.problem import AttentionProblem, BackwardTiles
from kernels.tiles import dot, dot_add, hide_unseen, rounded


def prepare(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Operands:
    """The tensors as they are; see kernels.kernel.Backward."""
    return Operands(q, k, v, dtype=q.dtype)


def preprocess(
    operands: Operands, output: AttentionOutput, d_out: torch.Tensor, problem: AttentionProblem, launch: Launcher
) -> None:
    """Nothing: Algorithm 4 computes its row sums tile by tile; see kernels.kernel.Backward."""


@triton.jit
def flash_v1_backward(
    q_ptr, k_ptr, v_ptr, out_ptr, d_out_ptr, lse_ptr, dq_sum_ptr, dq_ptr, dk_ptr, dv_ptr, sm_scale, group,
    seq_len_q, seq_len_kv, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(0)
    dims = tl.arange(0, PADDED_DIM)
    kv_offset = kv_head.to(tl.int64) * seq_len_kv * HEAD_DIM
    for first_key in tl.range(0, seq_len_kv, BLOCK_N):
        keys = first_key + tl.arange(0, BLOCK_N)
        kv_offsets = kv_offset + keys[:, None] * HEAD_DIM + dims[None, :]
        kv_inside = (keys < seq_len_kv)[:, None] & (dims < HEAD_DIM)[None, :]
        k = tl.load(k_ptr + kv_offsets, mask=kv_inside, other=0.0)
        v = tl.load(v_ptr + kv_offsets, mask=kv_inside, other=0.0)
        dk = tl.zeros([BLOCK_N, PADDED_DIM], tl.float32)
        dv = tl.zeros([BLOCK_N, PADDED_DIM], tl.float32)
        is_first = first_key == 0
        is_last = first_key + BLOCK_N >= seq_len_kv
        for member in tl.range(0, group, num_stages=1):
            head = kv_head * group + member
            row_offset = head.to(tl.int64) * seq_len_q
            for first_row in tl.range(0, seq_len_q, BLOCK_M):
                rows = first_row + tl.arange(0, BLOCK_M)
                row_inside = rows < seq_len_q
                offsets = row_offset * HEAD_DIM + rows[:, None] * HEAD_DIM + dims[None, :]
                inside = row_inside[:, None] & (dims < HEAD_DIM)[None, :]
                q = tl.load(q_ptr + offsets, mask=inside, other=0.0)
                d_out = tl.load(d_out_ptr + offsets, mask=inside, other=0.0)
                out = tl.load(out_ptr + offsets, mask=inside, other=0.0)
                lse = tl.load(lse_ptr + row_offset + rows, mask=row_inside, other=0.0)
                scores = dot(q, k.T) * sm_scale
                if MASKED:
                    scores = hide_unseen(scores, rows, keys, seq_len_q, seq_len_kv, CAUSAL)
                # A row that sees nothing has lse = -inf, and -inf minus -inf is NaN.
                p = tl.exp(scores - tl.where(lse == float("-inf"), 0.0, lse)[:, None])
                dv = dot_add(rounded(p, v.dtype).T, d_out, dv)
                delta = tl.sum(out.to(tl.float32) * d_out.to(tl.float32), 1)
                ds = rounded(p * (dot(d_out, v.T) - delta[:, None]) * sm_scale, k.dtype)
                dq = tl.load(dq_sum_ptr + offsets, mask=inside & (not is_first), other=0.0)
                dq = dot_add(ds, k, dq)
                tl.store(dq_sum_ptr + offsets, dq, mask=inside & (not is_last))
                tl.store(dq_ptr + offsets, rounded(dq, dq_ptr.dtype.element_ty), mask=inside & is_last)
                dk = dot_add(ds.T, q, dk)
        tl.store(dk_ptr + kv_offsets, rounded(dk, dk_ptr.dtype.element_ty), mask=kv_inside)
        tl.store(dv_ptr + kv_offsets, rounded(dv, dv_ptr.dtype.element_ty), mask=kv_inside)
        # The next key tile reads what other threads of this program have just written.
        tl.debug_barrier()


def backward(
    operands: Operands, output: AttentionOutput, d_out: torch.Tensor, problem: AttentionProblem,
    tiles: BackwardTiles | None, launch: Launcher, delta: torch.Tensor | None = None,
) -> Gradients:  # fmt: skip
    """The gradients by one launch; see kernels.kernel.Backward. dQ is summed in float32, so that no rounding adds up."""
    assert tiles is not None
    q, k, v = operands.q, operands.k, operands.v
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    dq_sum = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    launch(
        flash_v1_backward, (problem.batch * problem.num_kv_heads,), q, k, v, output.out, d_out, output.lse, dq_sum,
        dq, dk, dv, problem.sm_scale, problem.num_heads // problem.num_kv_heads, problem.seq_len_q, problem.seq_len_kv,
        HEAD_DIM=problem.head_dim, PADDED_DIM=problem.padded_head_dim, BLOCK_M=tiles.dkdv.block_m,
        BLOCK_N=tiles.dkdv.block_n, CAUSAL=problem.causal,
        MASKED=problem.causal or problem.seq_len_kv % tiles.dkdv.block_n != 0,
        num_warps=tiles.dkdv.num_warps, num_stages=tiles.dkdv.num_stages,
    )  # fmt: skip
    return Gradients(dq, dk, dv)
