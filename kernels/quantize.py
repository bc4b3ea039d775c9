"""FP8 (e4m3): the pre-pass that scales Q and K, takes K's mean off, and writes V transposed.

Scales map the largest magnitude to 448, e4m3's largest finite value. Q and K get one a token, or a block of 64 tokens
(Shah et al. 2024, arXiv 2407.08608, section 3.3, has blocks); V one a channel, so that it can be applied to O, once.
V is written (head_dim, seq_len_kv), because Hopper's matrix units read 8-bit operands only along the summed dimension.
K's rows are stored in an order in which each thread's weights P leave the first product just as the second one wants
them; without it, P is shuffled between threads (48 shuffle instructions in the Hopper kernel instead of 16).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.kernel import Launcher, Operands
from kernels.problem import Precision
from kernels.tiles import E4M3_MAX, e4m3_code

SCALE_BLOCK = 64
ROW_GROUP = 16
_NUM_CHUNKS = 32


@triton.jit
def token_of_row(row):
    """The token that row 16a + 8b + 2t + e of a stored K holds: 16a + 4t + 2b + e."""
    within = row % 16
    return row - within + (within % 8) // 2 * 4 + within // 8 * 2 + within % 2


@triton.jit
def in_token_order(p):
    """P, whose columns are in the order of K's stored rows, with its columns in the order of tokens, as V has them."""
    return p.reshape([p.shape[0], p.shape[1] // 16, 2, 4, 2]).permute(0, 1, 3, 2, 4).reshape([p.shape[0], p.shape[1]])


@triton.jit
def column_statistics(
    k_ptr, v_ptr, k_sum_ptr, v_max_ptr, seq_len, rows_a_chunk, num_chunks,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Over one chunk of one head's tokens: K's sum and V's largest magnitude, each per channel."""
    head = (tl.program_id(0) // num_chunks).to(tl.int64)
    first_row = (tl.program_id(0) % num_chunks) * rows_a_chunk
    dims = tl.arange(0, PADDED_DIM)
    k_sum = tl.zeros([PADDED_DIM], tl.float32)
    v_max = tl.zeros([PADDED_DIM], tl.float32)
    for row in tl.range(first_row, tl.minimum(first_row + rows_a_chunk, seq_len), BLOCK):
        rows = row + tl.arange(0, BLOCK)
        offsets = head * seq_len * HEAD_DIM + rows[:, None] * HEAD_DIM + dims[None, :]
        inside = (rows < seq_len)[:, None] & (dims < HEAD_DIM)[None, :]
        k_sum += tl.sum(tl.load(k_ptr + offsets, mask=inside, other=0.0).to(tl.float32), 0)
        v_max = tl.maximum(v_max, tl.max(tl.abs(tl.load(v_ptr + offsets, mask=inside, other=0.0).to(tl.float32)), 0))
    out_offsets = tl.program_id(0).to(tl.int64) * HEAD_DIM + dims
    tl.store(k_sum_ptr + out_offsets, k_sum, mask=dims < HEAD_DIM)
    tl.store(v_max_ptr + out_offsets, v_max, mask=dims < HEAD_DIM)


@triton.jit
def all_chunks(partial_ptr, head, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, NUM_CHUNKS: tl.constexpr):
    dims = tl.arange(0, PADDED_DIM)
    chunks = tl.arange(0, NUM_CHUNKS)
    offsets = (head * NUM_CHUNKS + chunks)[:, None] * HEAD_DIM + dims[None, :]
    return tl.load(partial_ptr + offsets, mask=(dims < HEAD_DIM)[None, :], other=0.0)


@triton.jit
def quantize_rows(
    x_ptr, k_sum_ptr, codes_ptr, scale_ptr, shift_ptr, sm_scale, num_blocks, seq_len, stored_len, heads_a_mean, mean_len,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK: tl.constexpr, NUM_CHUNKS: tl.constexpr,
    SCALE_A_BLOCK: tl.constexpr, IS_KEY: tl.constexpr, SMOOTH: tl.constexpr,
):  # fmt: skip
    """BLOCK rows of Q or K of one head to e4m3. K loses its mean; Q notes what that takes off its rows' scores."""
    head = (tl.program_id(0) // num_blocks).to(tl.int64)
    stored = (tl.program_id(0) % num_blocks) * BLOCK + tl.arange(0, BLOCK)
    rows = token_of_row(stored) if IS_KEY else stored
    dims = tl.arange(0, PADDED_DIM)
    inside = (rows < seq_len)[:, None] & (dims < HEAD_DIM)[None, :]
    x = tl.load(x_ptr + head * seq_len * HEAD_DIM + rows[:, None] * HEAD_DIM + dims[None, :], mask=inside, other=0.0)
    x = x.to(tl.float32)
    if SMOOTH:
        mean = tl.sum(all_chunks(k_sum_ptr, head // heads_a_mean, HEAD_DIM, PADDED_DIM, NUM_CHUNKS), 0) / mean_len
        if IS_KEY:
            x = tl.where(inside, x - mean[None, :], 0.0)
        else:
            shift = tl.sum(x * mean[None, :], 1) * sm_scale
            tl.store(shift_ptr + head * seq_len + rows, shift, mask=rows < seq_len)
    largest = tl.max(tl.abs(x), 1)
    if SCALE_A_BLOCK:
        largest = tl.zeros([BLOCK], tl.float32) + tl.max(largest, 0)
    scale = tl.where(largest > 0.0, largest / E4M3_MAX, 1.0)
    stored_inside = (stored < stored_len)[:, None] & (dims < HEAD_DIM)[None, :]
    offsets = head * stored_len * HEAD_DIM + stored[:, None] * HEAD_DIM + dims[None, :]
    tl.store(codes_ptr + offsets, e4m3_code(x / scale[:, None]), mask=stored_inside)
    tl.store(scale_ptr + head * stored_len + stored, scale, mask=stored < stored_len)


@triton.jit
def quantize_transposed(
    v_ptr, v_max_ptr, codes_ptr, scale_ptr, num_blocks, seq_len, stored_len,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK: tl.constexpr, NUM_CHUNKS: tl.constexpr,
):  # fmt: skip
    """BLOCK rows of V of one head to e4m3, written as columns; columns past seq_len are written as zeros."""
    head = (tl.program_id(0) // num_blocks).to(tl.int64)
    rows = (tl.program_id(0) % num_blocks) * BLOCK + tl.arange(0, BLOCK)
    dims = tl.arange(0, PADDED_DIM)
    inside = (rows < seq_len)[:, None] & (dims < HEAD_DIM)[None, :]
    v = tl.load(v_ptr + head * seq_len * HEAD_DIM + rows[:, None] * HEAD_DIM + dims[None, :], mask=inside, other=0.0)
    largest = tl.max(all_chunks(v_max_ptr, head, HEAD_DIM, PADDED_DIM, NUM_CHUNKS), 0)
    scale = tl.where(largest > 0.0, largest / E4M3_MAX, 1.0)
    # Every program of a head finds the same scale and writes it to the same place.
    tl.store(scale_ptr + head * HEAD_DIM + dims, scale, mask=dims < HEAD_DIM)
    codes = e4m3_code(v.to(tl.float32) / scale[None, :])
    out_inside = (dims < HEAD_DIM)[:, None] & (rows < stored_len)[None, :]
    out_offsets = head * HEAD_DIM * stored_len + dims[:, None] * stored_len + rows[None, :]
    tl.store(codes_ptr + out_offsets, codes.T, mask=out_inside)


def quantize(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, precision: Precision, launch: Launcher) -> Operands:
    """Q, K, V as e4m3 operands with float32 scales; shapes as kernels.kernel.Operands says.

    With precision.smooth_k, K's mean over the tokens is subtracted: each row of scores moves by a constant, which the
    softmax does not notice and lse_shift gives back to the lse (SageAttention, arXiv 2410.02367, section 4.2).
    """
    head_dim, seq_len_kv = k.shape[3], k.shape[2]
    sizes = {"HEAD_DIM": head_dim, "PADDED_DIM": triton.next_power_of_2(head_dim), "BLOCK": SCALE_BLOCK, "num_warps": 4}
    k_sum, v_max = _statistics(k, v, sizes, launch)
    sizes["NUM_CHUNKS"] = _NUM_CHUNKS
    stored_len = triton.cdiv(seq_len_kv, ROW_GROUP) * ROW_GROUP

    def rows_of(x: torch.Tensor, rows_stored: int, is_key: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        codes = x.new_empty((*x.shape[:2], rows_stored, head_dim), dtype=torch.uint8)
        scale = x.new_empty((*x.shape[:2], rows_stored), dtype=torch.float32)
        shift = torch.empty_like(scale) if precision.smooth_k and not is_key else scale
        num_blocks = triton.cdiv(rows_stored, SCALE_BLOCK)
        launch(
            quantize_rows, (num_blocks * x.shape[0] * x.shape[1],), x, k_sum, codes, scale, shift, head_dim**-0.5,
            num_blocks, x.shape[2], rows_stored, x.shape[1] // k.shape[1], seq_len_kv,
            SCALE_A_BLOCK=precision.fp8_scale == "block", IS_KEY=is_key, SMOOTH=precision.smooth_k, **sizes,
        )  # fmt: skip
        return codes.view(torch.float8_e4m3fn), scale, shift

    q_codes, q_scale, shift = rows_of(q, q.shape[2], is_key=False)
    k_codes, k_scale, _ = rows_of(k, stored_len, is_key=True)
    v_codes = v.new_empty((*v.shape[:2], head_dim, stored_len), dtype=torch.uint8)
    v_scale = torch.empty((*v.shape[:2], head_dim), dtype=torch.float32, device=v.device)
    num_blocks = triton.cdiv(stored_len, SCALE_BLOCK)
    grid = (num_blocks * v.shape[0] * v.shape[1],)
    launch(quantize_transposed, grid, v, v_max, v_codes, v_scale, num_blocks, seq_len_kv, stored_len, **sizes)
    return Operands(
        q_codes, k_codes, v_codes.view(torch.float8_e4m3fn), dtype=q.dtype, q_scale=q_scale, k_scale=k_scale,
        v_scale=v_scale, lse_shift=shift if precision.smooth_k else None,
    )  # fmt: skip


def _statistics(k: torch.Tensor, v: torch.Tensor, sizes: dict[str, int], launch: Launcher) -> tuple[torch.Tensor, torch.Tensor]:
    rows_a_chunk = triton.cdiv(triton.cdiv(k.shape[2], _NUM_CHUNKS), SCALE_BLOCK) * SCALE_BLOCK
    k_sum, v_max = (torch.empty((*k.shape[:2], _NUM_CHUNKS, k.shape[3]), dtype=torch.float32, device=k.device) for _ in "kv")
    grid = (_NUM_CHUNKS * k.shape[0] * k.shape[1],)
    launch(column_statistics, grid, k, v, k_sum, v_max, k.shape[2], rows_a_chunk, _NUM_CHUNKS, **sizes)
    return k_sum, v_max


def tokens_of_rows(rows: torch.Tensor) -> torch.Tensor:
    """token_of_row, of a torch tensor."""
    within = rows % ROW_GROUP
    return rows - within + within % 8 // 2 * 4 + within // 8 * 2 + within % 2


def dequantize(operands: Operands, seq_len_kv: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k (its mean still off) and v in float32, of the shapes they had, as the quantised operands stand for them."""
    in_order = torch.argsort(tokens_of_rows(torch.arange(operands.k.shape[2], device=operands.k.device)))[:seq_len_kv]
    q = operands.q.float() * operands.q_scale[..., None]
    k = (operands.k.float() * operands.k_scale[..., None])[:, :, in_order]
    v = (operands.v.float() * operands.v_scale[..., None])[..., :seq_len_kv].transpose(2, 3)
    return q, k.contiguous(), v.contiguous()
