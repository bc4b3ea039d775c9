"""Pieces of a tile's work that several versions share, as Triton functions: products, rounding, who works on what.

Triton's interpreter has three silent faults (3.6, 3.7): a bf16 product returns garbage, the cast to bf16 cuts off where
a GPU rounds to nearest (twice the error), and the cast to e4m3 is wrong. So when INTERPRETED, products take operands
widened to float32 (their values already rounded to the operand's format, so that the result is what the matrix units
compute), and our own code rounds to bf16 and e4m3.
"""

import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

LOG2_E = 1.4426950408889634
LN_2 = tl.constexpr(0.6931471805599453)
E4M3_MAX = tl.constexpr(448.0)


@triton.jit
def _probe():
    pass


INTERPRETED = tl.constexpr(not isinstance(_probe, JITFunction))


@triton.jit
def dot(a, b):
    """a b in float32."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a, b)


@triton.jit
def dot_add(a, b, acc):
    """acc + a b in float32."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        return tl.dot(a, b, acc)


@triton.jit
def e4m3_code(x):
    """The byte of float32 x as e4m3: round to nearest even, saturate at ±448, keep NaN; float8_e4m3fn bit for bit."""
    if INTERPRETED:
        bits = x.to(tl.uint32, bitcast=True)
        sign = (bits >> 24) & 0x80
        magnitude = tl.minimum(tl.abs(x), E4M3_MAX)
        bits = magnitude.to(tl.uint32, bitcast=True)
        # Below 2^-6 codes are multiples of 2^-9; adding 1.5 · 2^23 leaves the nearest-even integer in the low bits.
        subnormal = (magnitude * 512.0 + 12582912.0).to(tl.uint32, bitcast=True) & 0xF
        normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 960
        code = tl.where(magnitude < 0.015625, subnormal, normal)
        return (tl.where(x == x, code, 0x7F) | sign).to(tl.uint8)
    else:
        return x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """float32 x in another format (bf16, fp16 or e4m3), to nearest even."""
    if INTERPRETED and dtype == tl.float8e4nv:
        return e4m3_code(x).to(tl.float8e4nv, bitcast=True)
    elif INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return nearest.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return x.to(dtype)


@triton.jit
def query_block_at(index, num_blocks, num_heads_in_all, heads_per_section, ORDER: tl.constexpr):
    """Which query block and (batch · head) is the index-th: kernels.block_order.order_of says the same without a launch.

    ORDER: natural, heaviest or zigzag. But for natural, heads come in sections whose K and V stay in the L2 cache: a block
    for all heads of a section, then the next; those with most tiles (the last ones, when causal) first, or in zig-zag.
    """
    programs_per_section = heads_per_section * num_blocks
    section = index // programs_per_section
    first_head = section * heads_per_section
    heads = tl.minimum(heads_per_section, num_heads_in_all - first_head)
    within = index - section * programs_per_section
    if ORDER == "natural":
        block = within % num_blocks
        head = first_head + within // num_blocks
    else:
        rank = within // heads
        if ORDER == "zigzag":
            block = tl.where(rank % 2 == 0, num_blocks - 1 - rank // 2, rank // 2)
        else:
            block = num_blocks - 1 - rank
        head = first_head + within % heads
    return block, head


@triton.jit
def key_value_head(head, num_heads, num_kv_heads):
    """(batch · key-value head) that (batch · query head) reads: consecutive query heads share one (GQA)."""
    return (head // num_heads) * num_kv_heads + (head % num_heads) // (num_heads // num_kv_heads)


@triton.jit
def hide_unseen(scores, rows, keys, seq_len_q, seq_len_kv, CAUSAL: tl.constexpr):
    """Scores of keys past the end, and when causal of keys that a row does not see, become -inf."""
    visible = (keys < seq_len_kv)[None, :]
    if CAUSAL:
        visible = visible & (keys[None, :] <= rows[:, None] + (seq_len_kv - seq_len_q))
    return tl.where(visible, scores, float("-inf"))


@triton.jit
def visible_keys(first_row, last_row, seq_len_q, seq_len_kv, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr):
    """(full_end, end): keys before full_end, a multiple of BLOCK_N, are seen by all rows; none sees keys from end on."""
    end = seq_len_kv
    seen_by_all = seq_len_kv
    if CAUSAL:
        offset = seq_len_kv - seq_len_q
        end = tl.minimum(seq_len_kv, tl.maximum(last_row + offset + 1, 0))
        seen_by_all = tl.minimum(seq_len_kv, tl.maximum(first_row + offset + 1, 0))
    return seen_by_all // BLOCK_N * BLOCK_N, end
