"""FP8 (e4m3): the pre-pass that scales Q and K, takes K's mean off, turns both if asked, and writes V transposed.

Scales map the largest magnitude to 448, e4m3's largest finite value. Q and K get one a token, or a block of 64 tokens
(Shah et al. 2024, arXiv 2407.08608, section 3.3, has blocks); V one a channel, so that it can be applied to O, once.
V is written (head_dim, seq_len_kv), because Hopper's matrix units read 8-bit operands only along the summed dimension.
K's rows are stored in an order in which each thread's weights P leave the first product just as the second one wants
them; without it, P is shuffled between threads (48 shuffle instructions in the Hopper kernel instead of 16).

Three launches: statistics of chunks of tokens, a small one that makes K's means and V's scales of them, codes. K's mean and
V's largest magnitudes are of all tokens, so none of theirs can be rounded before all have been read.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import triton
import triton.language as tl

from kernels.kernel import Launcher, Operands
from kernels.problem import Precision
from kernels.tiles import E4M3_MAX, INTERPRETED, dot, dot_add, e4m3_code

SCALE_BLOCK = 64
ROW_GROUP = 16
# As many chunks of K as of V keep a large GPU's memory busy, but at most so many a head.
_CHUNKS_IN_ALL, _MOST_CHUNKS = 2048, 64
# Elements of a program a thread: as many as leave registers for several programs on a multiprocessor.
_ELEMENTS = 64
# Of the programs that make codes, each so many-th does V as long as there are any. 1: all of V first, measured the fastest.
_EVERY = 1
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


# Below it a row counts as zeros: one over its scale would not be a number.
LEAST = tl.constexpr(448.0 * 2.0**-126)


@triton.jit
def scale_of(largest):
    return tl.where(largest > LEAST, largest / E4M3_MAX, 1.0)


@triton.jit
def four_codes(a, b, c, d):
    """Four numbers as e4m3 in the bytes of one, a the lowest."""
    if INTERPRETED:
        low = e4m3_code(a).to(tl.int32) | (e4m3_code(b).to(tl.int32) << 8)
        return low | (e4m3_code(c).to(tl.int32) << 16) | (e4m3_code(d).to(tl.int32) << 24)
    else:
        return tl.inline_asm_elementwise(
            """{ .reg .b16 low, high;
            cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
            cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
            mov.b32 $0, {low, high}; }""",
            "=r,f,f,f,f", [a, b, c, d], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip


@triton.jit
def sylvester(SIZE: tl.constexpr):
    """(SIZE, SIZE), at most 16: (-1)^(ones in i and j)."""
    some = tl.arange(0, SIZE)
    common = some[:, None] & some[None, :]
    common = common ^ (common >> 2)
    return 1.0 - 2.0 * ((common ^ (common >> 1)) & 1).to(tl.float32)


@triton.jit
def flipped(x, flip):
    """16-bit x, its sign changed where the 16 bits of flip have the highest set."""
    bits = x.to(tl.int16, bitcast=True)
    flip = tl.broadcast_to(flip, bits.shape)
    if INTERPRETED:
        return (bits ^ flip).to(x.dtype, bitcast=True)
    else:
        return tl.inline_asm_elementwise(
            "xor.b32 $0, $1, $2;", "=r,r,r", [bits, flip], dtype=tl.int16, is_pure=True, pack=2
        ).to(x.dtype, bitcast=True)  # fmt: skip


@triton.jit
def butterflies(x):
    """Sylvester's matrix times x, in registers."""
    if x.shape[0] == 1:
        return x
    else:
        rows: tl.constexpr = x.shape[0]
        columns: tl.constexpr = x.shape[1]
        a, b = tl.split(x.reshape([2, rows // 2, columns]).permute(1, 2, 0))
        both = tl.join(butterflies(a + b), butterflies(a - b))
        return both.permute(2, 0, 1).reshape([rows, columns])


@triton.jit
def as_product(x, NUM_WARPS: tl.constexpr):
    """x (groups, rows, 32), channel 32g + c at [g, :, c], as (NUM_WARPS, groups · rows · 2 / NUM_WARPS, 16).

    A product of the last dimension takes four of a channel's bits. Which four is chosen so that every thread gives the
    matrix units what a load of 16 bytes gave it (four threads have a row, eight channels each) and gets the same channels
    back: nothing passes through shared memory. Of the first dimension every warp has one.
    """
    groups: tl.constexpr = x.shape[0]
    rows: tl.constexpr = x.shape[1]
    if x.shape[2] == 16:
        return x.reshape([NUM_WARPS, rows // NUM_WARPS, 16])
    else:
        rounds: tl.constexpr = rows // (8 * NUM_WARPS)
        x = x.reshape([groups, rounds, NUM_WARPS, 8, 4, 2, 2, 2]).permute(2, 0, 1, 5, 3, 6, 4, 7)
        return x.reshape([NUM_WARPS, groups * rounds * 16, 16])


@triton.jit
def turned_to_the_end(y, GROUPS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, NUM_WARPS: tl.constexpr):
    """(GROUPS, ROWS, WIDTH) of what as_product made, its last dimension turned; the other bits of a channel turned too."""
    if WIDTH == 16:
        return y.reshape([1, ROWS, 16])
    else:
        rounds: tl.constexpr = ROWS // (8 * NUM_WARPS)
        y = y.reshape([NUM_WARPS, GROUPS, rounds, 2, 8, 2, 4, 2]).permute(3, 1, 2, 0, 4, 6, 5, 7)
        y = butterflies(y.reshape([2 * GROUPS, ROWS * 16])).reshape([2, GROUPS, rounds, NUM_WARPS, 8, 4, 2, 2])
        return y.permute(1, 2, 3, 4, 5, 0, 6, 7).reshape([GROUPS, ROWS, WIDTH])


@triton.jit
def row_sums(y, GROUPS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, NUM_WARPS: tl.constexpr):
    """(ROWS,): the sums of what as_product made of (GROUPS, ROWS, WIDTH)."""
    if WIDTH == 16:
        return tl.sum(y, 2).reshape([ROWS])
    else:
        y = tl.sum(y.reshape([NUM_WARPS, GROUPS, ROWS // (8 * NUM_WARPS), 2, 8, 16]), 3)
        return tl.sum(tl.sum(y, 1), 3).permute(1, 0, 2).reshape([ROWS])


@triton.jit
def row_maxima(x):
    """(1, rows, 1): the largest magnitudes of rows of x (groups, rows, 32).

    In halves, so that whatever the order of a thread's numbers the same two are compared: Triton wants the maxima in two
    orders, the compiler after it sees that they are one."""
    rows: tl.constexpr = x.shape[1]
    if x.shape[0] > 1:
        return row_maxima(tl.max(x.reshape([2, x.shape[0] // 2, rows, 32]), 0))
    else:
        x = tl.max(x.reshape([rows, 4, 2, 4]), 2)
        x = tl.max(x.reshape([rows, 4, 2, 2]), 2)
        return tl.max(tl.max(x, 2), 1, keep_dims=True).reshape([1, rows, 1])


@triton.jit
def row_scales(x, TO_ORTHONORMAL: tl.constexpr, SCALE_A_BLOCK: tl.constexpr, TURN: tl.constexpr):
    """(1, rows, 1): the scales of rows of TO_ORTHONORMAL times x (groups, rows, channels)."""
    rows: tl.constexpr = x.shape[1]
    # With all dimensions kept: Triton 3.7 cannot compile a product's maximum as one number for Blackwell.
    if TURN and x.shape[2] == 32:
        largest = row_maxima(tl.abs(x)) * TO_ORTHONORMAL
    else:
        largest = tl.max(tl.max(tl.abs(x), 0, keep_dims=True), 2, keep_dims=True) * TO_ORTHONORMAL
    if SCALE_A_BLOCK:
        largest = tl.max(largest.reshape([rows // 64, 64, 1]), 1, keep_dims=True)
        largest = (tl.zeros([rows // 64, 64, 1], tl.float32) + largest).reshape([1, rows, 1])
    return scale_of(largest)


# A kernel of its own for each of these numbers would be compiled for nothing.
@triton.jit(do_not_specialize=["rows_a_chunk", "num_chunks"])
def column_statistics(
    k_ptr, v_ptr, k_sum_ptr, v_max_ptr, seq_len, rows_a_chunk, num_chunks, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    BLOCK: tl.constexpr, SMOOTH: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Over one chunk of one head's tokens: K's sum or V's largest magnitude, per channel; if SMOOTH, programs take turns."""
    if SMOOTH:
        chunk = tl.program_id(0) // 2
        if tl.program_id(0) % 2 == 0:
            one_chunk(k_ptr, k_sum_ptr, chunk, seq_len, rows_a_chunk, num_chunks, HEAD_DIM, PADDED_DIM, BLOCK, True, WHOLE)
        else:
            one_chunk(v_ptr, v_max_ptr, chunk, seq_len, rows_a_chunk, num_chunks, HEAD_DIM, PADDED_DIM, BLOCK, False, WHOLE)
    else:
        chunk = tl.program_id(0)
        one_chunk(v_ptr, v_max_ptr, chunk, seq_len, rows_a_chunk, num_chunks, HEAD_DIM, PADDED_DIM, BLOCK, False, WHOLE)


@triton.jit
def one_chunk(
    x_ptr, found_ptr, chunk, seq_len, rows_a_chunk, num_chunks, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    BLOCK: tl.constexpr, IS_KEY: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    head = (chunk // num_chunks).to(tl.int64)
    first_row = chunk % num_chunks * rows_a_chunk
    dims = tl.arange(0, PADDED_DIM)
    found = tl.zeros([BLOCK // 8, PADDED_DIM], tl.float32)
    for row in tl.range(first_row, tl.minimum(first_row + rows_a_chunk, seq_len), BLOCK):
        rows = row + tl.arange(0, BLOCK)
        offsets = head * seq_len * HEAD_DIM + rows[:, None] * HEAD_DIM + dims[None, :]
        if WHOLE:
            x = tl.load(x_ptr + offsets)
        else:
            x = tl.load(x_ptr + offsets, mask=(rows < seq_len)[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
        x = x.to(tl.float32).reshape([8, BLOCK // 8, PADDED_DIM])
        if IS_KEY:
            found += tl.sum(x, 0)
        else:
            found = tl.maximum(found, tl.max(tl.abs(x), 0))
    result = tl.sum(found, 0) if IS_KEY else tl.max(found, 0)
    tl.store(found_ptr + chunk.to(tl.int64) * HEAD_DIM + dims, result, mask=dims < HEAD_DIM)


@triton.jit(do_not_specialize=["num_chunks"])
def column_results(
    k_sum_ptr, v_max_ptr, flip_ptr, mean_ptr, v_scale_ptr, seq_len, num_chunks, HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr, FACTOR: tl.constexpr, SMOOTH: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """Of one head's chunks: V's scales; if SMOOTH, K's mean, if TURN turned as far as a product turns K (as_product)."""
    head = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, PADDED_DIM)
    k_sum = tl.zeros([16, PADDED_DIM], tl.float32)
    v_max = tl.zeros([16, PADDED_DIM], tl.float32)
    for first_chunk in tl.range(0, num_chunks, 16):
        chunks = first_chunk + tl.arange(0, 16)
        offsets = (head * num_chunks + chunks[:, None]) * HEAD_DIM + dims[None, :]
        known = (chunks < num_chunks)[:, None] & (dims < HEAD_DIM)[None, :]
        v_max = tl.maximum(v_max, tl.load(v_max_ptr + offsets, mask=known, other=0.0))
        if SMOOTH:
            k_sum += tl.load(k_sum_ptr + offsets, mask=known, other=0.0)
    tl.store(v_scale_ptr + head * HEAD_DIM + dims, scale_of(tl.max(v_max, 0)), mask=dims < HEAD_DIM)
    if SMOOTH:
        mean = tl.sum(k_sum, 0) / seq_len
        if TURN:
            # Of a channel's bits as_product's four.
            groups: tl.constexpr = max(1, HEAD_DIM // 32)
            halves: tl.constexpr = min(2, HEAD_DIM // 16)
            mean = tl.where(tl.load(flip_ptr + dims) < 0, -mean, mean).reshape([groups, 4, halves, 4])
            mean = mean.permute(0, 2, 1, 3).reshape([groups * halves, 16])
            # As a sum of products Triton would hand this to the matrix units, in TF32.
            mean = butterflies(mean.permute(1, 0)).permute(1, 0) * FACTOR
            mean = mean.reshape([groups, halves, 4, 4]).permute(0, 2, 1, 3).reshape([HEAD_DIM])
        tl.store(mean_ptr + head * HEAD_DIM + dims, mean, mask=dims < HEAD_DIM)


@triton.jit
def quantize_rows(
    x_ptr, mean_ptr, flip_ptr, codes_ptr, scale_ptr, shift_ptr, index, sm_scale, num_blocks, seq_len, stored_len,
    heads_a_mean, HEAD_DIM: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    SCALE_A_BLOCK: tl.constexpr, IS_KEY: tl.constexpr, SMOOTH: tl.constexpr, TURN: tl.constexpr, FACTOR: tl.constexpr,
    TO_ORTHONORMAL: tl.constexpr, WHOLE: tl.constexpr, NUM_WARPS: tl.constexpr,
):  # fmt: skip
    """The index-th BLOCK rows of Q or K to e4m3. K loses its mean; Q notes what that takes off its rows' scores."""
    head = (index // num_blocks).to(tl.int64)
    stored = (index % num_blocks) * BLOCK + tl.arange(0, BLOCK)
    rows = token_of_row(stored) if IS_KEY else stored
    dims = tl.arange(0, GROUPS)[:, None, None] * WIDTH + tl.arange(0, WIDTH)[None, None, :]
    if SMOOTH:  # before x: of two loads that meet, Triton brings the first one's numbers to where the second one's are
        mean = tl.load(mean_ptr + head // heads_a_mean * HEAD_DIM + dims, mask=dims < HEAD_DIM, other=0.0)
    # One group of channels after the other, each for all rows: so Triton gives eight rows, 32 channels of each, to a warp.
    lines = tl.arange(0, GROUPS * BLOCK)
    stored_of_line = (index % num_blocks) * BLOCK + lines % BLOCK
    row_of_line = token_of_row(stored_of_line) if IS_KEY else stored_of_line
    columns = (lines // BLOCK * WIDTH)[:, None] + tl.arange(0, WIDTH)[None, :]
    pointers = x_ptr + head * seq_len * HEAD_DIM + row_of_line[:, None] * HEAD_DIM + columns
    if WHOLE:
        x = tl.load(pointers, eviction_policy="evict_first")
    else:
        inside = (row_of_line < seq_len)[:, None] & (columns < HEAD_DIM)
        x = tl.load(pointers, mask=inside, other=0.0, eviction_policy="evict_first")
    x = x.reshape([GROUPS, BLOCK, WIDTH])
    if TURN:
        matrix = tl.broadcast_to((sylvester(16) * FACTOR).to(x.dtype)[None, :, :], [NUM_WARPS, 16, 16])
        x = as_product(flipped(x, tl.load(flip_ptr + dims)), NUM_WARPS)
        if SMOOTH:
            mean = as_product(tl.broadcast_to(mean, [GROUPS, BLOCK, WIDTH]), NUM_WARPS)
    else:
        x = x.to(tl.float32)
    # Where x is turned: turning K less its mean is turning both, and turning changes no product of two rows.
    if SMOOTH and IS_KEY:
        x = dot_add(x, matrix, -mean) if TURN else x - mean
    elif TURN:
        x = dot(x, matrix)
    if SMOOTH and not IS_KEY:
        shift = row_sums(x * mean, GROUPS, BLOCK, WIDTH, NUM_WARPS) if TURN else tl.sum(tl.sum(x * mean, 0), 1)
        shift *= sm_scale / (16.0 * FACTOR * FACTOR) if TURN else sm_scale
        if WHOLE:
            tl.store(shift_ptr + head * seq_len + rows, shift)
        else:
            tl.store(shift_ptr + head * seq_len + rows, shift, mask=rows < seq_len)
    if TURN:
        x = turned_to_the_end(x, GROUPS, BLOCK, WIDTH, NUM_WARPS)
    if SMOOTH and IS_KEY and not WHOLE:
        x = tl.where((rows < seq_len)[None, :, None] & (dims < HEAD_DIM), x, 0.0)
    scale = row_scales(x, TO_ORTHONORMAL, SCALE_A_BLOCK, TURN)
    codes = e4m3_code(x * (TO_ORTHONORMAL / scale)).reshape([GROUPS * BLOCK, WIDTH])
    codes_ptr += head * stored_len * HEAD_DIM + stored_of_line[:, None] * HEAD_DIM + columns
    if TURN:  # eight codes a thread, though 16 fit into a store: as x was loaded
        codes_ptr = tl.max_contiguous(codes_ptr, [1, 8])
    scale_ptr += head * stored_len + stored[None, :, None]
    if WHOLE:
        tl.store(codes_ptr, codes)
        tl.store(scale_ptr, scale)
    else:
        tl.store(codes_ptr, codes, mask=(stored_of_line < stored_len)[:, None] & (columns < HEAD_DIM))
        tl.store(scale_ptr, scale, mask=(stored < stored_len)[None, :, None])


@triton.jit
def every_fourth(
    x_ptr, first_row, seq_len, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, ROWS: tl.constexpr, WHOLE: tl.constexpr
):
    rows = first_row + 4 * tl.arange(0, ROWS)
    dims = tl.arange(0, PADDED_DIM)
    pointers = x_ptr + rows[:, None] * HEAD_DIM + dims[None, :]
    if WHOLE:
        return tl.load(pointers, eviction_policy="evict_first")
    else:
        inside = (rows < seq_len)[:, None] & (dims < HEAD_DIM)[None, :]
        return tl.load(pointers, mask=inside, other=0.0, eviction_policy="evict_first")


@triton.jit
def quantize_transposed(
    v_ptr, scale_ptr, codes_ptr, index, num_blocks, seq_len, stored_len, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    BLOCK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The index-th BLOCK rows of V to e4m3, written as columns, four codes at a time; columns past seq_len are zeros."""
    head = (index // num_blocks).to(tl.int64)
    first_row = (index % num_blocks) * BLOCK
    dims = tl.arange(0, PADDED_DIM)
    v_ptr += head * seq_len * HEAD_DIM
    a = every_fourth(v_ptr, first_row, seq_len, HEAD_DIM, PADDED_DIM, BLOCK // 4, WHOLE)
    b = every_fourth(v_ptr, first_row + 1, seq_len, HEAD_DIM, PADDED_DIM, BLOCK // 4, WHOLE)
    c = every_fourth(v_ptr, first_row + 2, seq_len, HEAD_DIM, PADDED_DIM, BLOCK // 4, WHOLE)
    d = every_fourth(v_ptr, first_row + 3, seq_len, HEAD_DIM, PADDED_DIM, BLOCK // 4, WHOLE)
    by = (1.0 / tl.load(scale_ptr + head * HEAD_DIM + dims, mask=dims < HEAD_DIM, other=1.0))[None, :]
    four = four_codes(a.to(tl.float32) * by, b.to(tl.float32) * by, c.to(tl.float32) * by, d.to(tl.float32) * by)
    columns = first_row // 4 + tl.arange(0, BLOCK // 4)
    pointers = codes_ptr.to(tl.pointer_type(tl.int32)) + head * HEAD_DIM * (stored_len // 4)
    pointers += dims[:, None] * (stored_len // 4) + columns[None, :]
    if WHOLE:
        tl.store(pointers, four.T)
    else:
        tl.store(pointers, four.T, mask=(dims < HEAD_DIM)[:, None] & (columns < stored_len // 4)[None, :])


@triton.jit(do_not_specialize=["every", "num_kv_heads_in_all", "heads_a_mean"])
def quantize_all(
    q_ptr, k_ptr, v_ptr, mean_ptr, flip_ptr, q_codes_ptr, k_codes_ptr, v_codes_ptr, q_scale_ptr, k_scale_ptr, v_scale_ptr,
    shift_ptr, sm_scale, every, num_kv_heads_in_all, heads_a_mean, seq_len_q, seq_len_kv, stored_len,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    V_BLOCK: tl.constexpr, SCALE_A_BLOCK: tl.constexpr, SMOOTH: tl.constexpr, TURN: tl.constexpr, FACTOR: tl.constexpr,
    TO_ORTHONORMAL: tl.constexpr, WHOLE_Q: tl.constexpr, WHOLE_KV: tl.constexpr, NUM_WARPS: tl.constexpr,
):  # fmt: skip
    """BLOCK rows of K or Q, or V_BLOCK rows of V. K's and V's come first and from the last to the first, because those
    that were read last may still be in the cache."""
    num_kv_blocks = tl.cdiv(stored_len, BLOCK)
    num_v_blocks = tl.cdiv(stored_len, V_BLOCK)
    k_programs = num_kv_heads_in_all * num_kv_blocks
    v_programs = num_kv_heads_in_all * num_v_blocks
    program = tl.program_id(0)
    of_v = program // every
    if program % every == 0 and of_v < v_programs:
        quantize_transposed(
            v_ptr, v_scale_ptr, v_codes_ptr, v_programs - 1 - of_v, num_v_blocks, seq_len_kv, stored_len, HEAD_DIM, PADDED_DIM,
            V_BLOCK, WHOLE_KV,
        )  # fmt: skip
    else:
        index = program - tl.minimum(of_v + 1, v_programs)
        if index < k_programs:
            quantize_rows(
                k_ptr, mean_ptr, flip_ptr, k_codes_ptr, k_scale_ptr, shift_ptr, k_programs - 1 - index, sm_scale, num_kv_blocks,
                seq_len_kv, stored_len, 1, HEAD_DIM, GROUPS, WIDTH, BLOCK, SCALE_A_BLOCK, True, SMOOTH, TURN, FACTOR,
                TO_ORTHONORMAL, WHOLE_KV, NUM_WARPS,
            )  # fmt: skip
        else:
            quantize_rows(
                q_ptr, mean_ptr, flip_ptr, q_codes_ptr, q_scale_ptr, shift_ptr, index - k_programs, sm_scale,
                tl.cdiv(seq_len_q, BLOCK), seq_len_q, seq_len_q, heads_a_mean, HEAD_DIM, GROUPS, WIDTH, BLOCK, SCALE_A_BLOCK,
                False, SMOOTH, TURN, FACTOR, TO_ORTHONORMAL, WHOLE_Q, NUM_WARPS,
            )  # fmt: skip


def quantize(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, precision: Precision, launch: Launcher) -> Operands:
    """Q, K, V as e4m3 operands with float32 scales; shapes as kernels.kernel.Operands says.

    With precision.smooth_k, K's mean over the tokens is subtracted: each row of scores moves by a constant, which the
    softmax does not notice and lse_shift gives back to the lse (SageAttention, arXiv 2410.02367, section 4.2). With
    precision.hadamard, the rows of Q and K are turned by turn_matrix first.
    """
    batch, num_kv_heads, seq_len_kv, head_dim = k.shape
    stored_len = triton.cdiv(seq_len_kv, ROW_GROUP) * ROW_GROUP
    turn = turn_matrix(head_dim, q.dtype, q.device) if precision.hadamard else None
    flips = _sign_flips(head_dim, q.device) if precision.hadamard else None
    mean, v_scale = _column_results(k, v, flips, precision.smooth_k, launch)
    q_codes = q.new_empty(q.shape, dtype=torch.uint8)
    k_codes = k.new_empty((*k.shape[:2], stored_len, head_dim), dtype=torch.uint8)
    v_codes = v.new_empty((*v.shape[:2], head_dim, stored_len), dtype=torch.uint8)
    q_scale, k_scale = (x.new_empty(x.shape[:3], dtype=torch.float32) for x in (q_codes, k_codes))
    shift = torch.empty_like(q_scale) if precision.smooth_k else None
    padded = triton.next_power_of_2(head_dim)
    num_warps = min(8, max(2, padded * SCALE_BLOCK // (32 * _ELEMENTS)))
    block = max(SCALE_BLOCK, _ELEMENTS * 32 * num_warps // padded)
    width = min(32, head_dim) if precision.hadamard else padded
    of_kv, of_q = batch * num_kv_heads * triton.cdiv(stored_len, block), batch * q.shape[1] * triton.cdiv(q.shape[2], block)
    launch(
        quantize_all, (2 * of_kv + of_q,), q, k, v, mean, flips, q_codes, k_codes, v_codes, q_scale, k_scale, v_scale, shift,
        head_dim**-0.5, _EVERY, batch * num_kv_heads, q.shape[1] // num_kv_heads, q.shape[2], seq_len_kv, stored_len,
        HEAD_DIM=head_dim, PADDED_DIM=padded, GROUPS=padded // width, WIDTH=width, BLOCK=block, V_BLOCK=block,
        SCALE_A_BLOCK=precision.fp8_scale == "block", SMOOTH=precision.smooth_k, TURN=precision.hadamard,
        FACTOR=_turn_factor(head_dim), TO_ORTHONORMAL=head_dim**-0.5 / _turn_factor(head_dim) if precision.hadamard else 1.0,
        WHOLE_Q=head_dim == padded and q.shape[2] % block == 0, WHOLE_KV=head_dim == padded and seq_len_kv % block == 0,
        NUM_WARPS=num_warps, num_warps=num_warps,
    )  # fmt: skip
    codes = (x.view(torch.float8_e4m3fn) for x in (q_codes, k_codes, v_codes))
    return Operands(*codes, dtype=q.dtype, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, lse_shift=shift, turn=turn)


def _column_results(
    k: torch.Tensor, v: torch.Tensor, flips: torch.Tensor | None, smooth_k: bool, launch: Launcher
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """K's means if smooth_k, turned if there are flips, and V's scales; both (batch, num_kv_heads, head_dim), float32."""
    batch, num_kv_heads, seq_len, head_dim = k.shape
    kv_heads, padded, num_warps = batch * num_kv_heads, triton.next_power_of_2(head_dim), 4
    block = _ELEMENTS * 32 * num_warps // padded
    num_chunks = triton.next_power_of_2(min(_MOST_CHUNKS, triton.cdiv(_CHUNKS_IN_ALL, kv_heads), triton.cdiv(seq_len, block)))
    rows_a_chunk = triton.cdiv(triton.cdiv(seq_len, num_chunks), block) * block
    k_sum = k.new_empty((kv_heads, num_chunks, head_dim), dtype=torch.float32) if smooth_k else None
    v_max = v.new_empty((kv_heads, num_chunks, head_dim), dtype=torch.float32)
    sizes = {"HEAD_DIM": head_dim, "PADDED_DIM": padded, "SMOOTH": smooth_k, "num_warps": num_warps}
    launch(
        column_statistics, (num_chunks * kv_heads * (2 if smooth_k else 1),), k, v, k_sum, v_max, seq_len, rows_a_chunk,
        num_chunks, BLOCK=block, WHOLE=head_dim == padded and num_chunks * rows_a_chunk == seq_len, **sizes,
    )  # fmt: skip
    mean = k.new_empty((batch, num_kv_heads, head_dim), dtype=torch.float32) if smooth_k else None
    v_scale = v.new_empty((batch, num_kv_heads, head_dim), dtype=torch.float32)
    launch(
        column_results, (kv_heads,), k_sum, v_max, flips, mean, v_scale, seq_len, num_chunks,
        FACTOR=_turn_factor(head_dim), TURN=flips is not None, **sizes,
    )  # fmt: skip
    return mean, v_scale


def _turn_factor(head_dim: int) -> float:
    """The size of turn_matrix's entries."""
    return 2.0 ** -(int(math.log2(head_dim)) // 2)


@lru_cache(maxsize=16)
def _sign_flips(head_dim: int, device: torch.device) -> torch.Tensor:
    """(head_dim,), int16: the sign bit of a 16-bit number for channels whose sign turn_matrix changes, else 0."""
    return torch.tensor([-(_SIGNS >> channel & 1) << 15 for channel in range(head_dim)], dtype=torch.int16).to(device)


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
    return (signs[:, None] * found * _turn_factor(head_dim)).to(device, dtype)


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
