"""FP8 (e4m3): the pre-pass that scales Q and K, takes K's mean off, turns both if asked, and writes V transposed.

Scales map the largest magnitude to 448, e4m3's largest finite value. Q and K get one a token, or a block of 64 tokens
(Shah et al. 2024, arXiv 2407.08608, section 3.3, has blocks); V one a channel, so that it can be applied to O, once.
V is written (head_dim, seq_len_kv), because Hopper's matrix units read 8-bit operands only along the summed dimension.
K's rows are stored in an order in which each thread's weights P leave the first product just as the second one wants
them; without it, P is shuffled between threads (48 shuffle instructions in the Hopper kernel instead of 16).

Two launches: K's mean and V's largest magnitudes are of all tokens, so nothing can be rounded before all have been read.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import triton
import triton.language as tl

from kernels.kernel import Launcher, Operands
from kernels.problem import Precision
from kernels.tiles import E4M3_MAX, dot, e4m3_code, rounded

SCALE_BLOCK = 64
ROW_GROUP = 16
# As many programs of column_statistics as keep a large GPU's memory busy, in at most as many chunks a head.
_PROGRAMS, _MOST_CHUNKS = 512, 32
# Which channels change sign before they are mixed, so that a bias on all channels does not end up in one: the digits of e.
_SIGNS = 0xADF8_5458_A2BB_4A9A_AFDC_5620_273D_3CF1_D8B9_C583_CE2D_3695_A9E1_3641_1464_33FB


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
    k_sum = tl.zeros([BLOCK, PADDED_DIM], tl.float32)
    v_max = tl.zeros([BLOCK, PADDED_DIM], tl.float32)
    for row in tl.range(first_row, tl.minimum(first_row + rows_a_chunk, seq_len), BLOCK):
        rows = row + tl.arange(0, BLOCK)
        offsets = head * seq_len * HEAD_DIM + rows[:, None] * HEAD_DIM + dims[None, :]
        inside = (rows < seq_len)[:, None] & (dims < HEAD_DIM)[None, :]
        k_sum += tl.load(k_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        v_max = tl.maximum(v_max, tl.abs(tl.load(v_ptr + offsets, mask=inside, other=0.0).to(tl.float32)))
    out_offsets = tl.program_id(0).to(tl.int64) * HEAD_DIM + dims
    tl.store(k_sum_ptr + out_offsets, tl.sum(k_sum, 0), mask=dims < HEAD_DIM)
    tl.store(v_max_ptr + out_offsets, tl.max(v_max, 0), mask=dims < HEAD_DIM)


@triton.jit
def all_chunks(partial_ptr, head, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, NUM_CHUNKS: tl.constexpr):
    dims = tl.arange(0, PADDED_DIM)
    chunks = tl.arange(0, NUM_CHUNKS)
    offsets = (head * NUM_CHUNKS + chunks)[:, None] * HEAD_DIM + dims[None, :]
    return tl.load(partial_ptr + offsets, mask=(dims < HEAD_DIM)[None, :], other=0.0)


@triton.jit
def quantize_rows(
    x_ptr, k_sum_ptr, turn_ptr, codes_ptr, scale_ptr, shift_ptr, index, sm_scale, num_blocks, seq_len, stored_len,
    heads_a_mean, mean_len, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK: tl.constexpr, NUM_CHUNKS: tl.constexpr,
    SCALE_A_BLOCK: tl.constexpr, IS_KEY: tl.constexpr, SMOOTH: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """The index-th BLOCK rows of Q or K to e4m3. K loses its mean; Q notes what that takes off its rows' scores."""
    head = (index // num_blocks).to(tl.int64)
    stored = (index % num_blocks) * BLOCK + tl.arange(0, BLOCK)
    rows = token_of_row(stored) if IS_KEY else stored
    dims = tl.arange(0, PADDED_DIM)
    inside = (rows < seq_len)[:, None] & (dims < HEAD_DIM)[None, :]
    x = tl.load(x_ptr + head * seq_len * HEAD_DIM + rows[:, None] * HEAD_DIM + dims[None, :], mask=inside, other=0.0)
    dtype: tl.constexpr = x.dtype
    x = x.to(tl.float32)
    if SMOOTH:
        mean = tl.sum(all_chunks(k_sum_ptr, head // heads_a_mean, HEAD_DIM, PADDED_DIM, NUM_CHUNKS), 0) / mean_len
        if IS_KEY:
            x = tl.where(inside, x - mean[None, :], 0.0)
        else:
            shift = tl.sum(x * mean[None, :], 1) * sm_scale
            tl.store(shift_ptr + head * seq_len + rows, shift, mask=rows < seq_len)
    if TURN:
        turn = tl.load(turn_ptr + dims[:, None] * PADDED_DIM + dims[None, :])
        # turn_matrix says why.
        TO_ORTHONORMAL: tl.constexpr = 1.0 if HEAD_DIM == 64 or HEAD_DIM == 256 else 0.7071067811865476
        x = dot(rounded(x, dtype), turn) * TO_ORTHONORMAL
    # With both dimensions kept: Triton 3.7 cannot compile a product's maximum as one number for Blackwell.
    largest = tl.max(tl.abs(x), 1, keep_dims=True)
    if SCALE_A_BLOCK:
        largest = tl.zeros([BLOCK, 1], tl.float32) + tl.max(largest, 0, keep_dims=True)
    scale = tl.where(largest > 0.0, largest / E4M3_MAX, 1.0)
    stored_inside = (stored < stored_len)[:, None]
    offsets = head * stored_len * HEAD_DIM + stored[:, None] * HEAD_DIM + dims[None, :]
    tl.store(codes_ptr + offsets, e4m3_code(x / scale), mask=stored_inside & (dims < HEAD_DIM)[None, :])
    tl.store(scale_ptr + head * stored_len + stored[:, None], scale, mask=stored_inside)


@triton.jit
def quantize_transposed(
    v_ptr, v_max_ptr, codes_ptr, scale_ptr, index, num_blocks, seq_len, stored_len,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK: tl.constexpr, NUM_CHUNKS: tl.constexpr,
):  # fmt: skip
    """The index-th BLOCK rows of V to e4m3, written as columns; columns past seq_len are written as zeros."""
    head = (index // num_blocks).to(tl.int64)
    rows = (index % num_blocks) * BLOCK + tl.arange(0, BLOCK)
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


@triton.jit
def quantize_all(
    q_ptr, k_ptr, v_ptr, k_sum_ptr, v_max_ptr, turn_ptr, q_codes_ptr, k_codes_ptr, v_codes_ptr,
    q_scale_ptr, k_scale_ptr, v_scale_ptr, shift_ptr, sm_scale, num_heads_in_all, num_kv_heads_in_all, heads_a_mean,
    seq_len_q, seq_len_kv, stored_len,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK: tl.constexpr, NUM_CHUNKS: tl.constexpr,
    SCALE_A_BLOCK: tl.constexpr, SMOOTH: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """One program for every BLOCK rows: first K's and V's, which were read last and may still be in the cache, then Q's."""
    num_kv_blocks = tl.cdiv(stored_len, BLOCK)
    kv_programs = num_kv_heads_in_all * num_kv_blocks
    index = tl.program_id(0)
    if index < kv_programs:
        quantize_rows(
            k_ptr, k_sum_ptr, turn_ptr, k_codes_ptr, k_scale_ptr, shift_ptr, index, sm_scale, num_kv_blocks, seq_len_kv,
            stored_len, 1, seq_len_kv, HEAD_DIM, PADDED_DIM, BLOCK, NUM_CHUNKS, SCALE_A_BLOCK, True, SMOOTH, TURN,
        )  # fmt: skip
    elif index < 2 * kv_programs:
        quantize_transposed(
            v_ptr, v_max_ptr, v_codes_ptr, v_scale_ptr, index - kv_programs, num_kv_blocks, seq_len_kv, stored_len,
            HEAD_DIM, PADDED_DIM, BLOCK, NUM_CHUNKS,
        )  # fmt: skip
    else:
        quantize_rows(
            q_ptr, k_sum_ptr, turn_ptr, q_codes_ptr, q_scale_ptr, shift_ptr, index - 2 * kv_programs, sm_scale,
            tl.cdiv(seq_len_q, BLOCK), seq_len_q, seq_len_q, heads_a_mean, seq_len_kv,
            HEAD_DIM, PADDED_DIM, BLOCK, NUM_CHUNKS, SCALE_A_BLOCK, False, SMOOTH, TURN,
        )  # fmt: skip


def quantize(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, precision: Precision, launch: Launcher) -> Operands:
    """Q, K, V as e4m3 operands with float32 scales; shapes as kernels.kernel.Operands says.

    With precision.smooth_k, K's mean over the tokens is subtracted: each row of scores moves by a constant, which the
    softmax does not notice and lse_shift gives back to the lse (SageAttention, arXiv 2410.02367, section 4.2). With
    precision.hadamard, the rows of Q and K are turned by turn_matrix first.
    """
    batch, num_kv_heads, seq_len_kv, head_dim = k.shape
    heads, kv_heads = batch * q.shape[1], batch * num_kv_heads
    stored_len = triton.cdiv(seq_len_kv, ROW_GROUP) * ROW_GROUP
    sizes = {"HEAD_DIM": head_dim, "PADDED_DIM": triton.next_power_of_2(head_dim), "num_warps": 4}
    num_chunks = min(_MOST_CHUNKS, triton.next_power_of_2(triton.cdiv(_PROGRAMS, kv_heads)))
    rows_a_chunk = triton.cdiv(triton.cdiv(seq_len_kv, num_chunks), SCALE_BLOCK) * SCALE_BLOCK
    k_sum, v_max = (torch.empty((kv_heads, num_chunks, head_dim), dtype=torch.float32, device=k.device) for _ in "kv")
    grid = (num_chunks * kv_heads,)
    launch(column_statistics, grid, k, v, k_sum, v_max, seq_len_kv, rows_a_chunk, num_chunks, BLOCK=SCALE_BLOCK // 2, **sizes)
    q_codes = q.new_empty(q.shape, dtype=torch.uint8)
    k_codes = k.new_empty((*k.shape[:2], stored_len, head_dim), dtype=torch.uint8)
    v_codes = v.new_empty((*v.shape[:2], head_dim, stored_len), dtype=torch.uint8)
    q_scale, k_scale, v_scale = (x.new_empty(x.shape[:3], dtype=torch.float32) for x in (q_codes, k_codes, v_codes))
    shift = torch.empty_like(q_scale) if precision.smooth_k else None
    turn = turn_matrix(head_dim, q.dtype, q.device) if precision.hadamard else None
    programs = 2 * kv_heads * triton.cdiv(stored_len, SCALE_BLOCK) + heads * triton.cdiv(q.shape[2], SCALE_BLOCK)
    launch(
        quantize_all, (programs,), q, k, v, k_sum, v_max, turn, q_codes, k_codes, v_codes, q_scale, k_scale, v_scale, shift,
        head_dim**-0.5, heads, kv_heads, q.shape[1] // num_kv_heads, q.shape[2], seq_len_kv, stored_len, BLOCK=SCALE_BLOCK,
        NUM_CHUNKS=num_chunks, SCALE_A_BLOCK=precision.fp8_scale == "block", SMOOTH=precision.smooth_k,
        TURN=precision.hadamard, **sizes,
    )  # fmt: skip
    codes = (x.view(torch.float8_e4m3fn) for x in (q_codes, k_codes, v_codes))
    return Operands(*codes, dtype=q.dtype, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, lse_shift=shift, turn=turn)


@lru_cache(maxsize=16)
def turn_matrix(head_dim: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """(head_dim, head_dim): Hadamard's matrix after Sylvester with some rows' signs changed; ± 2^-⌊log2(head_dim) / 2⌋, which
    both 16-bit formats hold, so orthonormal but for a factor √2 where head_dim is not a power of four.

    Raises ValueError unless head_dim is a power of two.
    """
    if head_dim < 1 or head_dim & (head_dim - 1):
        raise ValueError(f"head_dim = {head_dim} is not possible with hadamard: Hadamard's matrix needs a power of two.")
    found = torch.ones((1, 1))
    while len(found) < head_dim:
        found = torch.cat([torch.cat([found, found], 1), torch.cat([found, -found], 1)])
    signs = torch.tensor([1.0 - 2.0 * (_SIGNS >> channel & 1) for channel in range(head_dim)])
    return (signs[:, None] * found * 2.0 ** -(int(math.log2(head_dim)) // 2)).to(device, dtype)


def tokens_of_rows(rows: torch.Tensor) -> torch.Tensor:
    """token_of_row, of a torch tensor."""
    within = rows % ROW_GROUP
    return rows - within + within % 8 // 2 * 4 + within // 8 * 2 + within % 2


def dequantize(operands: Operands, seq_len_kv: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k (its mean still off) and v in float32, of the shapes they had, as the quantised operands stand for them."""
    in_order = torch.argsort(tokens_of_rows(torch.arange(operands.k.shape[2], device=operands.k.device)))[:seq_len_kv]
    q = operands.q.float() * operands.q_scale[..., None]
    k = (operands.k.float() * operands.k_scale[..., None])[:, :, in_order]
    if operands.turn is not None:
        back = operands.turn.float().T
        back = back / back[0].norm()
        q, k = q @ back, k @ back
    v = (operands.v.float() * operands.v_scale[..., None])[..., :seq_len_kv].transpose(2, 3)
    return q, k.contiguous(), v.contiguous()
