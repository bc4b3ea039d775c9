"""The softmax of a tile in kernels.flash_v3_hopper_fp8: from the scores in a warpgroup's registers to P in e4m3, ready there
as an operand."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.hopper import by_lane

# P is at most 1; times 2^8 its small weights stay out of e4m3's subnormals, and 2^8 is below 448.
P_SHIFT = gl.constexpr(8.0)

# From S to m and to P


@gluon.jit
def hide_unseen(s, last_seen):
    """Scores of the tokens after last_seen, counted in the tile, become -inf; columns lie as K's stored rows."""
    columns = gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout))
    # Column 16a + 8b + 2t + e is token 16a + 4t + 2b + e: all but 4t is the same in every thread, and so a constant.
    constants = (columns & -16) + ((columns >> 2) & 2) + (columns & 1)
    return gl.where(constants[None, :] <= last_seen[:, None] - ((columns & 6) * 2)[None, :], s, -float("inf"))


@gluon.jit
def halves(s):
    """The columns of s in two, each thread keeping what it has."""
    HALF: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, s.shape[1] // 2, 32])
    left, right = gl.split(s.reshape([s.shape[0], 2, s.shape[1] // 2]).permute((0, 2, 1)))
    return gl.convert_layout(left, HALF, assert_trivial=True), gl.convert_layout(right, HALF, assert_trivial=True)


@gluon.jit
def _scaled_max(s, factor, LIKE: gl.constexpr):
    """The largest of what a thread holds of each row, times the row's factor: (64, lanes 4)."""
    largest = gl.convert_layout(gl.max(gl.max(by_lane(s), 1), 2), LIKE)
    return largest * gl.convert_layout(factor, gl.SliceLayout(1, LIKE))[:, None]


@gluon.jit
def max_of_tile(left, right, m_i, factors, MASKED: gl.constexpr):
    """(m, m less the shift, to subtract, alpha). factors: from S to m's unit, for the rows of either half."""
    LIKE: gl.constexpr = gl.max(gl.max(by_lane(left), 1), 2).type.layout
    largest = gl.maximum(_scaled_max(left, factors[0], LIKE), _scaled_max(right, factors[1], LIKE))
    m_new = gl.maximum(m_i, gl.convert_layout(gl.max(largest, 1), m_i.type.layout))
    m_safe = m_new
    if MASKED:
        # A row that has seen nothing yet has m = -inf, and -inf minus -inf is NaN.
        m_safe = gl.where(m_new == -float("inf"), 0.0, m_new)
    return m_new, m_safe - P_SHIFT, gl.exp2(m_i - m_safe)


@gluon.jit
def exponentials(s, factor, m_shifted):
    """weights without the sums, kept before what follows it: with sums between them each exponential would wait for one
    two before it, as there are but six scoreboards."""
    ROWS: gl.constexpr = gl.SliceLayout(1, s.type.layout)
    x = s * gl.convert_layout(factor, ROWS)[:, None] - gl.convert_layout(m_shifted, ROWS)[:, None]
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=False, pack=1)


@gluon.jit
def weights(s, factor, m_shifted):
    """(2^8 times exp2 of the scores less m, their sums a lane)."""
    ROWS: gl.constexpr = gl.SliceLayout(1, s.type.layout)
    p = gl.exp2(s * gl.convert_layout(factor, ROWS)[:, None] - gl.convert_layout(m_shifted, ROWS)[:, None])
    return p, gl.sum(by_lane(p), 1)


@gluon.jit
def factors_of_tile(scales, row_scale, kv_head, first_key, BLOCK_N: gl.constexpr, CHECK: gl.constexpr):
    """From S to m's unit, log2: each row's factor in the left and in the right half of a tile, whose K have a scale each."""
    _, k_scale_ptr, stored_len, _, _, _ = scales
    of_tile_ptr = k_scale_ptr + kv_head.to(gl.int64) * stored_len + first_key
    if CHECK:
        right = gl.load(of_tile_ptr + BLOCK_N // 2, mask=first_key + BLOCK_N // 2 < stored_len, other=1.0)
    else:
        right = gl.load(of_tile_ptr + BLOCK_N // 2)
    return row_scale * gl.load(of_tile_ptr), row_scale * right


# P as an operand

_PACK_FOUR = gl.constexpr("""{
    .reg .b16 x, y;
    cvt.rn.satfinite.e4m3x2.f32 x, $2, $1;
    cvt.rn.satfinite.e4m3x2.f32 y, $4, $3;
    mov.b32 $0, {x, y};
    }""")


@gluon.jit
def packed(p):
    """P (64, N), whose columns lie as K's stored rows, as (64, N / 16, 4) words of the weights of four consecutive tokens."""
    p = p.reshape([p.shape[0], p.shape[1] // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4))
    even, odd = gl.split(p)
    first, third = gl.split(even)
    second, fourth = gl.split(odd)
    four = [first, second, third, fourth]
    return gl.inline_asm_elementwise(_PACK_FOUR, "=r,f,f,f,f", four, dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def unpacked(words, P_LAYOUT: gl.constexpr):
    """P (64, N) in e4m3, its columns in the order of tokens. Words, unlike bytes, stay whole in a loop's registers."""
    pairs = gl.join(words, words)
    x = gl.join(pairs, pairs).reshape([words.shape[0], words.shape[1] * 16])
    x = gl.convert_layout(x, P_LAYOUT, assert_trivial=True)
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $1; // $2 $3 $4", "=r,r,r,r,r", [x], dtype=gl.float8e4nv, is_pure=True, pack=4
    )
