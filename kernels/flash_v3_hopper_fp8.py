"""FlashAttention v3 (Shah et al. 2024, arXiv 2407.08608) for Hopper in FP8, in Gluon; called by kernels.flash_v3_hopper.

As there, a producer warp loads and every other warpgroup owns 64 queries, whose softmax runs under matrix products. What
FP8 changes: Hopper's matrix units add 8-bit products with about 14 bits, so each tile's P V starts at zero and is added to O
in float32 (two-level accumulation); with that, O is multiplied by alpha in the same instruction, and m need not lag. P is
packed four weights a register by hand: what the compiler makes of the conversion takes seven instructions for two of them.
K's rows are stored so that no weight changes threads on its way into the second product (kernels.quantize).

K of a tile and V of the tile before it are one stage, as their products are issued together: one wait and one release a tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.hopper import (
    FIRST_ROW,
    HEAD,
    KEY_TILES,
    KV_HEAD,
    REGISTERS,
    UNMASKED,
    add_to_sums,
    arrive,
    by_lane,
    descriptor,
    end_basic_block,
    not_before,
    num_sms_of,
    num_tiles,
    of_tile,
    scaled_rows,
    sync,
    work_of,
)
from kernels.hopper_fp8_softmax import (
    P_SHIFT,
    exponentials,
    factors_of_tile,
    halves,
    hide_unseen,
    max_of_tile,
    packed,
    unpacked,
    weights,
)
from kernels.kernel import AttentionOutput, Launcher, Operands
from kernels.problem import AttentionProblem, TileConfig
from kernels.tiles import LN_2, LOG2_E

if TYPE_CHECKING:
    from kernels.stamps import StampBuffers
    from kernels.trace import TraceBuffers

# Named barriers: Triton takes 0, 1 and one a partition from 2 on.
_FREE = gl.constexpr(6)
_Q_FREE = gl.constexpr(10)
_TURN = gl.constexpr(11)


@dataclass(frozen=True)
class Form:
    """In what order the work of a tile is done where O is in one piece."""

    s_alone: bool = True
    """S is awaited alone; else with the first half of P V, whose P then gives its registers back."""
    p_v_first: bool = False
    """P V is awaited once m is known, and its addition to O goes between exponentials; else after half of those."""
    ahead: bool = False
    """The next tile's stage is awaited between the halves of the softmax; else where its products are to be issued."""


# By (head_dim, causal), smaller head_dim as 64: the fastest measured on an H200. At 64 three warpgroups have 160 registers a
# thread: with S alone they spill. At 256, where O is in four pieces, there is one order only: with ahead it would spill.
FORMS = {
    (64, False): Form(s_alone=False, ahead=True),
    (64, True): Form(s_alone=False, p_v_first=True, ahead=True),
    (128, False): Form(p_v_first=True, ahead=True),
    (128, True): Form(p_v_first=True, ahead=True),
    (256, False): Form(),
    (256, True): Form(),
}


# PTX


@gluon.constexpr_function
def _pass_turn_asm(barrier):
    """Arrive at barrier once two numbers, which are never this large, are known, and end the basic block there."""
    return f"""{{
    .reg .pred p, q;
    .reg .b32 b, n;
    .reg .f32 x;
    mov.b32 n, 4;
    max.f32 x, $2, $3;
    setp.gt.f32 p, x, 0f7F000000;
    selp.b32 b, 3, {barrier}, p;
    bar.arrive b, 256;
    again: @!p bra done;
    nanosleep.u32 20;
    sub.s32 n, n, 1;
    setp.gt.s32 q, n, 0;
    @q bra again;
    done:
    }} // $0 $1"""


@gluon.jit
def _pass_turn(m, GROUP: gl.constexpr, GROUPS: gl.constexpr):
    """Let the next warpgroup issue its products, now that this one turns to its exponentials: so two groups' exponentials
    do not meet. m must be known by then, or ptxas would let it go on later."""
    ASM: gl.constexpr = _pass_turn_asm(_TURN.value + (GROUP + 1) % GROUPS)
    gl.inline_asm_elementwise(ASM, "=r,=r,r,r", [m], dtype=gl.int32, is_pure=False, pack=2)


# The producer


@gluon.jit
def _produce(q_source, k_source, v_source, facts, shared, GROUPS: gl.constexpr, BLOCK_N: gl.constexpr):
    """Ask the copy engine for every tile's Q, and as stages become free for K and the V of the tile before."""
    _, work_ptr, _, row_length, _, _ = facts
    q_s, k_s, v_s, _, q_full, full = shared
    STAGES: gl.constexpr = full.shape[0]
    THREADS: gl.constexpr = 128 * GROUPS + 32
    K_BYTES: gl.constexpr = k_source.block_type.nbytes
    V_BYTES: gl.constexpr = v_source.block_type.nbytes
    fill = 0
    for i in range(num_tiles(work_ptr, row_length)):
        kv_head = of_tile(work_ptr, row_length, i, KV_HEAD)
        num_key_tiles = of_tile(work_ptr, row_length, i, KEY_TILES)
        for j in range(num_key_tiles + 1):
            stage = fill & (STAGES - 1)
            # Last keys first: so the tiles that need a mask come before the loop that has none.
            first_key = (num_key_tiles - 1 - j) * BLOCK_N
            if fill >= STAGES:
                sync(_FREE + stage, THREADS)
            if j == 0:
                mbarrier.expect(full.index(stage), K_BYTES)
            elif j < num_key_tiles:
                mbarrier.expect(full.index(stage), K_BYTES + V_BYTES)
            else:
                mbarrier.expect(full.index(stage), V_BYTES)
            if j < num_key_tiles:
                tma.async_copy_global_to_shared(k_source, [kv_head, first_key, 0], full.index(stage), k_s.index(stage))
            if j == 0:
                head = of_tile(work_ptr, row_length, i, HEAD)
                first_row = of_tile(work_ptr, row_length, i, FIRST_ROW)
                if i > 0:
                    sync(_Q_FREE, THREADS)
                for group in gl.static_range(GROUPS):
                    mbarrier.expect(q_full.index(group), q_source.block_type.nbytes)
                    place = [head, first_row + group * 64, 0]
                    tma.async_copy_global_to_shared(q_source, place, q_full.index(group), q_s.index(group))
            else:
                place = [kv_head, 0, first_key + BLOCK_N]
                tma.async_copy_global_to_shared(v_source, place, full.index(stage), v_s.index(stage))
            fill += 1


# A consumer


@gluon.jit
def _wait_stage(full, fill):
    # fill is never negative and the stages are 2 or 4: a mask and a shift, which a signed division would not become.
    STAGES: gl.constexpr = full.shape[0]
    mbarrier.wait(full.index(fill & (STAGES - 1)), (fill >> (STAGES // 2)) & 1)


@gluon.jit
def _free_stage(full, fill, GROUPS: gl.constexpr):
    arrive(_FREE + (fill & (full.shape[0] - 1)), 128 * GROUPS + 32)


@gluon.jit
def _issue_qk(q, k_s, s_zero, fill):
    k = k_s.index(fill & (k_s.shape[0] - 1)).reshape([s_zero.shape[1], q.shape[1]])
    return warpgroup_mma(q, k.permute((1, 0)), s_zero, use_acc=False, is_async=True)


@gluon.jit
def _issue_pv(words, v_s, o_zero, fill, DIM: gl.constexpr, CHUNK: gl.constexpr, P_LAYOUT: gl.constexpr):
    """P V of the channels of one chunk, from zero; fill: of the stage in which V lies."""
    p_left, p_right = unpacked(words[0], P_LAYOUT), unpacked(words[1], P_LAYOUT)
    KEYS: gl.constexpr = p_left.shape[1]
    CHANNELS: gl.constexpr = o_zero.shape[1]
    v = v_s.index(fill & (v_s.shape[0] - 1)).reshape([DIM, 2 * KEYS]).slice(CHUNK * CHANNELS, CHANNELS, dim=0).permute((1, 0))
    product = warpgroup_mma(p_left, v.slice(0, KEYS, dim=0), o_zero, use_acc=False, is_async=True)
    return warpgroup_mma(p_right, v.slice(KEYS, KEYS, dim=0), product, is_async=True)


@gluon.jit
def _added(acc, alpha, product):
    """O, a chunk of it, with one more tile."""
    return acc * gl.convert_layout(alpha, gl.SliceLayout(1, acc.type.layout))[:, None] + product


@gluon.jit
def _with_product(acc, alpha, product, full, fill, GROUPS: gl.constexpr):
    """Wait for P V, give its stage back, and add it to O."""
    product = warpgroup_mma_wait(0, deps=[product])
    _free_stage(full, fill, GROUPS)
    return _added(acc, alpha, product)


@gluon.jit
def _begin(
    q, k_s, full, s_zero, m_i, last_seen, factors, fill,
    GROUP: gl.constexpr, GROUPS: gl.constexpr, MASKED: gl.constexpr, FORM: gl.constexpr,
):  # fmt: skip
    """The first tile, the last keys, with no product of V to issue: (m, sums a lane, alpha, P)."""
    _wait_stage(full, fill)
    sync(_TURN + GROUP, 256)
    s = _issue_qk(q, k_s, s_zero, fill)
    arrive(_TURN + (GROUP + 1) % GROUPS, 256)
    s = warpgroup_mma_wait(0, deps=[s])
    _free_stage(full, fill, GROUPS)
    if MASKED:
        s = hide_unseen(s, last_seen)
    left, right = halves(s)
    m_i, m_shifted, alpha = max_of_tile(left, right, m_i, factors, MASKED)
    left, sums = weights(left, factors[0], m_shifted)
    if FORM.ahead:
        _wait_stage(full, fill + 1)
    right, right_sums = weights(right, factors[1], m_shifted)
    return m_i, sums + gl.convert_layout(right_sums, sums.type.layout), alpha, (packed(left), packed(right))


@gluon.jit
def _step_whole(
    q, k_s, v_s, full, s_zero, o_zero, acc, m_i, l_i, alpha, words, last_seen, factors, fill, DIM: gl.constexpr,
    GROUP: gl.constexpr, GROUPS: gl.constexpr, P_LAYOUT: gl.constexpr, MASKED: gl.constexpr, FORM: gl.constexpr,
):  # fmt: skip
    """Q Kᵀ of tile `fill` and P V of the one before, and the softmax of this one under P V and the other groups' products."""
    if not FORM.ahead:
        _wait_stage(full, fill)
    sync(_TURN + GROUP, 256)
    s = _issue_qk(q, k_s, s_zero, fill)
    product = _issue_pv(words, v_s, o_zero, fill, DIM, 0, P_LAYOUT)
    # P V is two commits, Q Kᵀ one.
    s, product = warpgroup_mma_wait(2 if FORM.s_alone else 1, deps=[s, product])
    if MASKED:
        s = hide_unseen(s, last_seen)
    left, right = halves(s)
    m_i, m_shifted, next_alpha = max_of_tile(left, right, m_i, factors, MASKED)
    _pass_turn(m_shifted, GROUP, GROUPS)
    if FORM.p_v_first:
        acc = _with_product(acc, alpha, product, full, fill, GROUPS)
    left = exponentials(left, factors[0], m_shifted)
    # Either has a branch: without one ptxas would issue the next wait for a product before the exponentials.
    if FORM.ahead:
        _wait_stage(full, fill + 1)
    else:
        end_basic_block(next_alpha, 2)
    if FORM.p_v_first:
        right = warpgroup_mma_wait(0, deps=[right])
    else:
        acc = _with_product(acc, alpha, product, full, fill, GROUPS)
    right, right_sums = weights(right, factors[1], not_before(m_shifted))
    sums = gl.sum(by_lane(left), 1)
    sums += gl.convert_layout(right_sums, sums.type.layout)
    l_i = add_to_sums(l_i, next_alpha, sums)
    return acc, m_i, l_i, next_alpha, (packed(left), packed(right))


@gluon.jit
def _step_in_chunks(
    q, k_s, v_s, full, s_zero, o_zero, acc, m_i, l_i, alpha, words, last_seen, factors, fill, DIM: gl.constexpr,
    GROUP: gl.constexpr, GROUPS: gl.constexpr, P_LAYOUT: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """_step_whole where O takes half of the registers: P V 64 channels at a time, then Q Kᵀ; only the other group's products
    run under the softmax."""
    _wait_stage(full, fill)
    sync(_TURN + GROUP, 256)
    p_0 = _issue_pv(words, v_s, o_zero, fill, DIM, 0, P_LAYOUT)
    p_1 = _issue_pv(words, v_s, o_zero, fill, DIM, 1, P_LAYOUT)
    p_0, p_1 = warpgroup_mma_wait(1, deps=[p_0, p_1])
    acc_0 = _added(acc[0], alpha, p_0)
    p_2 = _issue_pv(words, v_s, o_zero, fill, DIM, 2, P_LAYOUT)
    p_1, p_2 = warpgroup_mma_wait(1, deps=[p_1, p_2])
    acc_1 = _added(acc[1], alpha, p_1)
    p_3 = _issue_pv(words, v_s, o_zero, fill, DIM, 3, P_LAYOUT)
    p_2, p_3 = warpgroup_mma_wait(1, deps=[p_2, p_3])
    acc_2 = _added(acc[2], alpha, p_2)
    p_3 = warpgroup_mma_wait(0, deps=[p_3])
    acc_3 = _added(acc[3], alpha, p_3)
    # Again, which takes no time: a branch, before which ptxas cannot give S the registers that the chunks still need.
    _wait_stage(full, fill)
    s = _issue_qk(q, k_s, s_zero, fill)
    arrive(_TURN + (GROUP + 1) % GROUPS, 256)
    s = warpgroup_mma_wait(0, deps=[s])
    _free_stage(full, fill, GROUPS)
    if MASKED:
        s = hide_unseen(s, last_seen)
    left, right = halves(s)
    m_i, m_shifted, alpha = max_of_tile(left, right, m_i, factors, MASKED)
    left, sums = weights(left, factors[0], m_shifted)
    right, right_sums = weights(right, factors[1], m_shifted)
    sums += gl.convert_layout(right_sums, sums.type.layout)
    return (acc_0, acc_1, acc_2, acc_3), m_i, add_to_sums(l_i, alpha, sums), alpha, (packed(left), packed(right))


@gluon.jit
def _step(
    q, k_s, v_s, full, s_zero, o_zero, acc, m_i, l_i, alpha, words, last_seen, factors, fill, DIM: gl.constexpr,
    GROUP: gl.constexpr, GROUPS: gl.constexpr, P_LAYOUT: gl.constexpr, MASKED: gl.constexpr, FORM: gl.constexpr,
):  # fmt: skip
    """The next tile, with O in one piece or in four: (O, m, l, alpha, P)."""
    if o_zero.shape[1] == DIM:
        whole, m_i, l_i, alpha, words = _step_whole(
            q, k_s, v_s, full, s_zero, o_zero, acc[0], m_i, l_i, alpha, words, last_seen, factors, fill, DIM,
            GROUP, GROUPS, P_LAYOUT, MASKED, FORM,
        )  # fmt: skip
        return (whole,), m_i, l_i, alpha, words
    else:
        return _step_in_chunks(
            q, k_s, v_s, full, s_zero, o_zero, acc, m_i, l_i, alpha, words, last_seen, factors, fill, DIM,
            GROUP, GROUPS, P_LAYOUT, MASKED,
        )  # fmt: skip


@gluon.jit
def _finish(
    acc, alpha, words, m_i, l_i, out, facts, scales, v_s, o_zero, o, fill, i, DIM: gl.constexpr, GROUP: gl.constexpr,
    CHUNKS: gl.constexpr, P_LAYOUT: gl.constexpr,
):  # fmt: skip
    """The last P V, then out and lse. Its stage is not released here."""
    lse_ptr, work_ptr, _, row_length, seq_len_q, _ = facts
    _, _, _, v_scale_ptr, shift_ptr, head_dim = scales
    row_sums = gl.convert_layout(gl.sum(gl.sum(l_i, 2), 1), m_i.type.layout)
    l_safe = gl.where(row_sums == 0.0, 1.0, row_sums)
    head = of_tile(work_ptr, row_length, i, HEAD)
    first_row = of_tile(work_ptr, row_length, i, FIRST_ROW) + GROUP * 64
    rows = first_row + gl.arange(0, 64, m_i.type.layout)
    places = head.to(gl.int64) * seq_len_q + rows
    lse = (m_i - P_SHIFT + gl.log2(l_safe)) * LN_2
    if shift_ptr is not None:
        lse += gl.load(shift_ptr + places, mask=rows < seq_len_q, other=0.0)
    gl.store(lse_ptr + places, lse, mask=rows < seq_len_q)
    tma.store_wait(0)
    CHANNELS: gl.constexpr = o_zero.shape[1]
    of_head_ptr = v_scale_ptr + of_tile(work_ptr, row_length, i, KV_HEAD) * head_dim
    for chunk in gl.static_range(CHUNKS):
        product = _issue_pv(words, v_s, o_zero, fill, DIM, chunk, P_LAYOUT)
        product = warpgroup_mma_wait(0, deps=[product])
        rescaled = scaled_rows(_added(acc[chunk], alpha, product), 1.0 / l_safe)
        channels = chunk * CHANNELS + gl.arange(0, CHANNELS, gl.SliceLayout(0, o_zero.type.layout))
        scale = gl.load(of_head_ptr + channels, mask=channels < head_dim, other=1.0)
        o.reshape([64, DIM]).slice(chunk * CHANNELS, CHANNELS, dim=1).store((rescaled * scale[None, :]).to(o.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(out, [head, first_row, 0], o)


@gluon.jit
def _attend(
    out, facts, scales, shared, q, s_zero, o_zero, i, fill, GROUP: gl.constexpr, GROUPS: gl.constexpr, BLOCK_N: gl.constexpr,
    DIM: gl.constexpr, CAUSAL: gl.constexpr, RAGGED: gl.constexpr, FORM: gl.constexpr,
):  # fmt: skip
    """64 rows of this program's i-th tile: attention, out and lse. Returns fill, the stages that there have been."""
    _, work_ptr, qk_scale, row_length, seq_len_q, seq_len_kv = facts
    _, k_s, v_s, o_s, q_full, full = shared
    CHUNKS: gl.constexpr = DIM // o_zero.shape[1]
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=o_zero.type.layout, k_width=4)
    ROWS: gl.constexpr = gl.SliceLayout(1, s_zero.type.layout)
    num_key_tiles = of_tile(work_ptr, row_length, i, KEY_TILES)
    num_unmasked = of_tile(work_ptr, row_length, i, UNMASKED)
    kv_head = of_tile(work_ptr, row_length, i, KV_HEAD)
    first_key = (num_key_tiles - 1) * BLOCK_N
    rows = of_tile(work_ptr, row_length, i, FIRST_ROW) + GROUP * 64 + gl.arange(0, 64, ROWS)
    places = of_tile(work_ptr, row_length, i, HEAD).to(gl.int64) * seq_len_q + rows
    row_scale = gl.load(scales[0] + places, mask=rows < seq_len_q, other=1.0) * qk_scale
    last_seen = gl.full([64], seq_len_kv - 1 - first_key, gl.int32, ROWS)
    if CAUSAL:
        last_seen = gl.minimum(last_seen, rows + (seq_len_kv - seq_len_q - first_key))
    m_i = gl.full([64], -float("inf"), gl.float32, ROWS)
    acc = (o_zero,) if CHUNKS == 1 else (o_zero, o_zero, o_zero, o_zero)
    factors = factors_of_tile(scales, row_scale, kv_head, first_key, BLOCK_N, True)
    mbarrier.wait(q_full.index(GROUP), i & 1)
    m_i, l_i, alpha, words = _begin(q, k_s, full, s_zero, m_i, last_seen, factors, fill, GROUP, GROUPS, CAUSAL or RAGGED, FORM)
    fill += 1
    if CAUSAL:
        for _ in range(num_key_tiles - 1 - num_unmasked):
            first_key -= BLOCK_N
            last_seen += BLOCK_N
            factors = factors_of_tile(scales, row_scale, kv_head, first_key, BLOCK_N, False)
            acc, m_i, l_i, alpha, words = _step(
                q, k_s, v_s, full, s_zero, o_zero, acc, m_i, l_i, alpha, words, last_seen, factors, fill, DIM,
                GROUP, GROUPS, P_LAYOUT, True, FORM,
            )  # fmt: skip
            fill += 1
    for _ in range(num_unmasked):
        first_key -= BLOCK_N
        factors = factors_of_tile(scales, row_scale, kv_head, first_key, BLOCK_N, False)
        acc, m_i, l_i, alpha, words = _step(
            q, k_s, v_s, full, s_zero, o_zero, acc, m_i, l_i, alpha, words, last_seen, factors, fill, DIM,
            GROUP, GROUPS, P_LAYOUT, False, FORM,
        )  # fmt: skip
        fill += 1
    arrive(_Q_FREE, 128 * GROUPS + 32)
    if not FORM.ahead:
        _wait_stage(full, fill)
    o = o_s.index(GROUP)
    _finish(acc, alpha, words, m_i, l_i, out, facts, scales, v_s, o_zero, o, fill, i, DIM, GROUP, CHUNKS, P_LAYOUT)
    _free_stage(full, fill, GROUPS)
    return fill + 1


@gluon.jit
def _consume(
    out, facts, scales, shared, GROUP: gl.constexpr, GROUPS: gl.constexpr, BLOCK_N: gl.constexpr, DIM: gl.constexpr,
    CAUSAL: gl.constexpr, RAGGED: gl.constexpr, FORM: gl.constexpr,
):  # fmt: skip
    """64 rows of every tile of this program."""
    _, work_ptr, _, row_length, _, _ = facts
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 32])
    CHANNELS: gl.constexpr = DIM if DIM < 256 else 64
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CHANNELS, 32])
    q = shared[0].index(GROUP).reshape([64, DIM])
    s_zero = gl.zeros([64, BLOCK_N], gl.float32, S_LAYOUT)
    o_zero = gl.zeros([64, CHANNELS], gl.float32, O_LAYOUT)
    fill = 0
    if GROUP == GROUPS - 1:
        arrive(_TURN, 256)
    for i in range(num_tiles(work_ptr, row_length)):
        fill = _attend(
            out, facts, scales, shared, q, s_zero, o_zero, i, fill, GROUP, GROUPS, BLOCK_N, DIM, CAUSAL, RAGGED, FORM
        )
    tma.store_wait(0)


@gluon.jit(do_not_specialize=("row_length", "seq_len_q", "seq_len_kv", "head_dim"))
def flash_v3_hopper_fp8_forward(
    q_source, k_source, v_source, out, lse_ptr, work_ptr, qk_scale, row_length, seq_len_q, seq_len_kv,
    q_scale_ptr, k_scale_ptr, stored_len, v_scale_ptr, shift_ptr, head_dim,
    GROUPS: gl.constexpr, STAGES: gl.constexpr, BLOCK_N: gl.constexpr, DIM: gl.constexpr, CAUSAL: gl.constexpr,
    RAGGED: gl.constexpr, FORM: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    q_s = gl.allocate_shared_memory(q_source.dtype, [GROUPS, 1, 64, DIM], q_source.layout)
    k_s = gl.allocate_shared_memory(k_source.dtype, [STAGES, 1, BLOCK_N, DIM], k_source.layout)
    v_s = gl.allocate_shared_memory(v_source.dtype, [STAGES, 1, DIM, BLOCK_N], v_source.layout)
    o_s = gl.allocate_shared_memory(out.dtype, [GROUPS, 1, 64, DIM], out.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for group in gl.static_range(GROUPS):
        mbarrier.init(q_full.index(group), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
    facts = (lse_ptr, work_ptr, qk_scale, row_length, seq_len_q, seq_len_kv)
    scales = (q_scale_ptr, k_scale_ptr, stored_len, v_scale_ptr, shift_ptr, head_dim)
    shared = (q_s, k_s, v_s, o_s, q_full, full)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_consume, (out, facts, scales, shared, 0, GROUPS, BLOCK_N, DIM, CAUSAL, RAGGED, FORM)),
                (_consume, (out, facts, scales, shared, 1, GROUPS, BLOCK_N, DIM, CAUSAL, RAGGED, FORM)),
                (_produce, (q_source, k_source, v_source, facts, shared, GROUPS, BLOCK_N)),
            ],
            [4, 1],
            [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (_consume, (out, facts, scales, shared, 0, GROUPS, BLOCK_N, DIM, CAUSAL, RAGGED, FORM)),
                (_consume, (out, facts, scales, shared, 1, GROUPS, BLOCK_N, DIM, CAUSAL, RAGGED, FORM)),
                (_consume, (out, facts, scales, shared, 2, GROUPS, BLOCK_N, DIM, CAUSAL, RAGGED, FORM)),
                (_produce, (q_source, k_source, v_source, facts, shared, GROUPS, BLOCK_N)),
            ],
            [4, 4, 1],
            [CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )


# On the host


def forward_fp8(
    operands: Operands, problem: AttentionProblem, tiles: TileConfig, launch: Launcher,
    trace: TraceBuffers | None = None, stamps: StampBuffers | None = None,
) -> AttentionOutput:  # fmt: skip
    """Attention of e4m3 operands as kernels.quantize makes them with a scale a block of 64 tokens.

    Raises ValueError where a trace or stamps are asked for.
    """
    if trace is not None or stamps is not None:
        raise ValueError("neither a trace nor stamps are possible with v3-hopper in FP8: that kernel stores none.")
    q, k, v = operands.q, operands.k, operands.v
    out = torch.empty(q.shape, dtype=operands.dtype, device=q.device)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    work = work_of(problem, tiles, num_sms_of(q), q.device)
    groups, dim = tiles.block_m // 64, problem.padded_head_dim
    consumer_registers, producer_registers = REGISTERS[groups]
    launch(
        flash_v3_hopper_fp8_forward, (work.shape[0],),
        descriptor(q, 64, dim), descriptor(k, tiles.block_n, dim), descriptor(v, dim, tiles.block_n), descriptor(out, 64, dim),
        lse, work,
        problem.sm_scale * LOG2_E, work.stride(0), problem.seq_len_q, problem.seq_len_kv,
        operands.q_scale, operands.k_scale, k.shape[2], operands.v_scale, operands.lse_shift, problem.head_dim,
        GROUPS=groups, STAGES=tiles.num_stages, BLOCK_N=tiles.block_n, DIM=dim, CAUSAL=problem.causal,
        RAGGED=problem.seq_len_kv % tiles.block_n != 0, FORM=FORMS[max(64, dim), problem.causal],
        CONSUMER_REGISTERS=consumer_registers, PRODUCER_REGISTERS=producer_registers, num_warps=4,
    )  # fmt: skip
    return AttentionOutput(out, lse)
