"""FlashAttention v3 (Shah et al. 2024, arXiv 2407.08608) for Hopper, in Gluon: what plain Triton cannot say.

A producer warp fills K and V's two buffers each through the copy engine. Every other warpgroup owns 64 queries: it issues
the next tile's Q Kᵀ and this tile's P V together and does its softmax while they run, with P in registers. Programs stay
for many tiles, so that the next one's loads run under this one's end.

The softmax keeps its maximum m, and O unscaled, while no row of a warp exceeds it by more than 8 in log2: all that a row sums
refers to the same m, so nothing is lost, and P stays below 2^8 (FlashAttention-4's rule, a warp at a time).
"""

from __future__ import annotations

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

from kernels.flash_v3_hopper_fp8 import forward_fp8
from kernels.hopper import (
    FIRST_ROW,
    HEAD,
    KEY_TILES,
    KV_HEAD,
    REGISTERS,
    UNMASKED,
    add_to_sums,
    arrive,
    asm_operands,
    by_lane,
    descriptor,
    end_basic_block,
    end_of_tile,
    not_before,
    num_sms_of,
    num_tiles,
    of_tile,
    scaled_rows,
    start_of_tile,
    sync,
    work_of,
)
from kernels.hopper_watch import store_acc, store_softmax
from kernels.kernel import AttentionOutput, Launcher, Operands, as_given
from kernels.problem import AttentionProblem, Precision, TileConfig
from kernels.quantize import quantize
from kernels.stamps import StampBuffers, watched
from kernels.tiles import LN_2, LOG2_E
from kernels.trace import Frames, TraceBuffers


def prepare(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, precision: Precision, launch: Launcher) -> Operands:
    """As given, or with FP8 quantised; see kernels.kernel.Kernel."""
    return quantize(q, k, v, precision, launch) if precision.fp8 else as_given(q, k, v, precision, launch)


# Named barriers: kernels.hopper says which are free.
_K_FREE = gl.constexpr(7)
_V_FREE = gl.constexpr(9)
_Q_FREE = gl.constexpr(11)
_TURN = gl.constexpr(12)


# PTX


@gluon.constexpr_function
def _rescale_asm(count):
    """count elements of O times their factors, skipped where the first factor is the mark 2."""
    moves = " ".join(f"mov.f32 ${i}, ${count + i};" for i in range(count))
    products = " ".join(f"mul.f32 ${i}, ${i}, ${2 * count + i};" for i in range(count))
    return f"{{ .reg .pred p; {moves} setp.eq.f32 p, ${2 * count}, 0f40000000; @p bra done; {products} done: }}"


_NEXT_MAX = gl.constexpr("""{
    .reg .pred any, all;
    .reg .f32 x, y;
    sub.f32 x, $6, $4;
    sub.f32 y, $7, $5;
    setp.gt.f32 any, x, 0f41000000;
    setp.gt.or.f32 any, y, 0f41000000, any;
    vote.sync.any.pred all, any, 0xffffffff;
    max.f32 x, $4, $6;
    max.f32 y, $5, $7;
    selp.f32 $0, x, $4, all;
    selp.f32 $1, y, $5, all;
    selp.b32 $2, 1, 0, all;
    selp.b32 $3, 1, 0, all;
    }""")


@gluon.jit
def _next_max(m_i, row_max):
    """(m, whether it moved): kept in a warp while no row exceeds it by 8; both rows of a thread are settled together."""
    outs: gl.constexpr = (gl.float32, gl.int32)
    return gl.inline_asm_elementwise(_NEXT_MAX, "=f,=f,=r,=r,f,f,f,f", [m_i, row_max], dtype=outs, is_pure=True, pack=2)


@gluon.jit
def _rescaled(acc, alpha, moved):
    """acc times alpha, skipped in a warp where m did not move."""
    if acc.shape[1] < 64:
        return scaled_rows(acc, alpha)
    else:
        # A thread holds head_dim / 2 elements of O.
        PACK: gl.constexpr = min(acc.shape[1] // 2, 64)
        marked = gl.convert_layout(gl.where(moved != 0, alpha, 2.0), gl.SliceLayout(1, acc.type.layout))
        factor, acc = gl.broadcast(marked[:, None], acc)
        ASM: gl.constexpr = _rescale_asm(PACK)
        OPERANDS: gl.constexpr = asm_operands("f", PACK, 2 * PACK)
        return gl.inline_asm_elementwise(ASM, OPERANDS, [acc, factor], dtype=gl.float32, is_pure=False, pack=PACK)


# The producer


@gluon.jit
def _produce(
    q_source, k_source, v_source, facts, shared, GROUPS: gl.constexpr, BLOCK_N: gl.constexpr, stamps, STAMP: gl.constexpr
):
    """Ask the copy engine for every tile's Q, K and V, as buffers become free."""
    _, work_ptr, _, row_length, seq_len_q, _ = facts
    q_s, k_s, v_s, _, q_full, k_full, v_full = shared
    THREADS: gl.constexpr = 128 * GROUPS + 32
    fill = 0
    for i in range(num_tiles(work_ptr, row_length)):
        kv_head = of_tile(work_ptr, row_length, i, KV_HEAD)
        num_key_tiles = of_tile(work_ptr, row_length, i, KEY_TILES)
        if STAMP:
            start_of_tile(stamps, work_ptr, row_length, i, seq_len_q, GROUPS, GROUPS)
        for j in range(num_key_tiles):
            buffer = fill % 2
            # Last keys first: so the tiles that need a mask come before the loop that has none.
            first_key = (num_key_tiles - 1 - j) * BLOCK_N
            if fill >= 2:
                sync(_K_FREE + buffer, THREADS)
            mbarrier.expect(k_full.index(buffer), k_source.block_type.nbytes)
            tma.async_copy_global_to_shared(k_source, [kv_head, first_key, 0], k_full.index(buffer), k_s.index(buffer))
            if j == 0:
                head = of_tile(work_ptr, row_length, i, HEAD)
                first_row = of_tile(work_ptr, row_length, i, FIRST_ROW)
                if i > 0:
                    sync(_Q_FREE, THREADS)
                for group in gl.static_range(GROUPS):
                    mbarrier.expect(q_full.index(group), q_source.block_type.nbytes)
                    place = [head, first_row + group * 64, 0]
                    tma.async_copy_global_to_shared(q_source, place, q_full.index(group), q_s.index(group))
            if fill >= 2:
                sync(_V_FREE + buffer, THREADS)
            mbarrier.expect(v_full.index(buffer), v_source.block_type.nbytes)
            tma.async_copy_global_to_shared(v_source, [kv_head, first_key, 0], v_full.index(buffer), v_s.index(buffer))
            fill += 1
        if STAMP:
            end_of_tile(stamps, work_ptr, row_length, i, seq_len_q, GROUPS, GROUPS)


# What a traced variant adds


@gluon.jit
def _store_tile(
    trace, key_block, s, m_before, m, l_i, alpha, multiplied, DIM: gl.constexpr, GROUP: gl.constexpr, GROUPS: gl.constexpr
):
    """Store a tile but for O; s with -inf where hidden, everything else as it is after the tile."""
    row_max = gl.convert_layout(gl.max(gl.max(gl.max(by_lane(s), 1), 2), 1), m.type.layout)
    l_row = gl.convert_layout(gl.sum(gl.sum(l_i, 2), 1), m.type.layout)
    store_softmax(trace, key_block, s, m_before, m, row_max, l_row, alpha, multiplied, DIM, GROUP, GROUPS)


@gluon.jit
def _always(m):
    """1 for every row."""
    return gl.full(m.shape, 1, gl.int32, m.type.layout)


@gluon.jit
def _is_rescaled(moved, acc):
    """Whether _rescaled multiplies a row."""
    if acc.shape[1] < 64:
        return moved * 0 + 1
    else:
        return moved


# Softmax


@gluon.jit
def _hide_unseen(s, last_seen):
    """Scores of the keys after last_seen, counted in the tile, become -inf."""
    keys = gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout))
    # A thread's keys differ from its first in all bits but two: comparing those bits, which are constants, to what is left
    # of last_seen needs no register a key.
    return gl.where((keys & -7)[None, :] <= last_seen[:, None] - (keys & 6)[None, :], s, -float("inf"))


@gluon.jit
def _max_of_tile(s, m_i, qk_scale, MASKED: gl.constexpr):
    """(m, m to subtract, whether it moved, alpha)."""
    row_max = gl.convert_layout(gl.max(gl.max(gl.max(by_lane(s), 1), 2), 1), m_i.type.layout)
    m_new, moved = _next_max(m_i, row_max * qk_scale)
    m_safe = m_new
    if MASKED:
        # A row that has seen nothing yet has m = -inf, and -inf minus -inf is NaN.
        m_safe = gl.where(m_new == -float("inf"), 0.0, m_new)
    return m_new, m_safe, moved, gl.exp2(m_i - m_safe)


@gluon.jit
def _weights(s, qk_scale, m):
    """(exp2 of the scores less m, their sums a lane)."""
    p = gl.exp2(s * qk_scale - gl.convert_layout(m, gl.SliceLayout(1, s.type.layout))[:, None])
    return p, gl.sum(by_lane(p), 1)


@gluon.jit
def _halves(s):
    """The columns of s in two, each thread keeping what it has."""
    HALF: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, s.shape[1] // 2, 16])
    left, right = gl.split(s.reshape([s.shape[0], 2, s.shape[1] // 2]).permute((0, 2, 1)))
    return gl.convert_layout(left, HALF, assert_trivial=True), gl.convert_layout(right, HALF, assert_trivial=True)


# A consumer


@gluon.jit
def _issue_qk(q, k_s, k_full, s_zero, fill, GROUP: gl.constexpr):
    buffer = fill % 2
    mbarrier.wait(k_full.index(buffer), (fill // 2) & 1)
    sync(_TURN + GROUP, 256)
    k = k_s.index(buffer).reshape([s_zero.shape[1], q.shape[1]])
    return warpgroup_mma(q, k.permute((1, 0)), s_zero, use_acc=False, is_async=True)


@gluon.jit
def _issue_pv(p_left, p_right, v_s, v_full, acc, fill, SPLIT: gl.constexpr):
    buffer = fill % 2
    mbarrier.wait(v_full.index(buffer), (fill // 2) & 1)
    if SPLIT:
        KEYS: gl.constexpr = p_left.shape[1]
        v = v_s.index(buffer).reshape([2 * KEYS, acc.shape[1]])
        acc = warpgroup_mma(p_left, v.slice(0, KEYS), acc, is_async=True)
        return warpgroup_mma(p_right, v.slice(KEYS, KEYS), acc, is_async=True)
    else:
        return warpgroup_mma(p_left, v_s.index(buffer).reshape([p_left.shape[1], acc.shape[1]]), acc, is_async=True)


@gluon.jit
def _pass_turn(GROUP: gl.constexpr, GROUPS: gl.constexpr):
    arrive(_TURN + (GROUP + 1) % GROUPS, 256)


@gluon.jit
def _scores(q, k_s, k_full, s_zero, fill, GROUP: gl.constexpr, GROUPS: gl.constexpr):
    """Q Kᵀ of tile `fill`, done."""
    s = _issue_qk(q, k_s, k_full, s_zero, fill, GROUP)
    _pass_turn(GROUP, GROUPS)
    s = warpgroup_mma_wait(0, deps=[s])
    arrive(_K_FREE + fill % 2, 128 * GROUPS + 32)
    return s


@gluon.jit
def _softmax(
    s, m_i, l_i, qk_scale, last_seen, P_LAYOUT: gl.constexpr, P_DTYPE: gl.constexpr, MASKED: gl.constexpr, SPLIT: gl.constexpr
):
    """With no product in flight: (m, l, alpha, P's left half or all of it, P's right half or the same)."""
    if MASKED:
        s = _hide_unseen(s, last_seen)
    m_i, m_safe, _, alpha = _max_of_tile(s, m_i, qk_scale, MASKED)
    if SPLIT:
        left, right = _halves(s)
        left, sums = _weights(left, qk_scale, m_safe)
        right, right_sums = _weights(right, qk_scale, m_safe)
        sums += gl.convert_layout(right_sums, sums.type.layout)
    else:
        left, sums = _weights(s, qk_scale, m_safe)
        right = left
    l_i = add_to_sums(l_i, alpha, sums)
    p_left = gl.convert_layout(left.to(P_DTYPE), P_LAYOUT)
    p_right = gl.convert_layout(right.to(P_DTYPE), P_LAYOUT)
    return m_i, l_i, alpha, p_left, p_right


@gluon.jit
def _step(
    q, k_s, v_s, k_full, v_full, s_zero, acc, m_i, l_i, p_left, p_right, qk_scale, fill,
    GROUP: gl.constexpr, GROUPS: gl.constexpr, SPLIT: gl.constexpr, trace, TRACE: gl.constexpr,
):  # fmt: skip
    """Q Kᵀ of tile `fill` and P V of the one before, and the softmax of this one under P V and the other groups' products.

    trace: with TRACE what kernels.hopper_watch takes, and which fill has key block 0.
    """
    THREADS: gl.constexpr = 128 * GROUPS + 32
    if TRACE:
        m_before = m_i
    s = _issue_qk(q, k_s, k_full, s_zero, fill, GROUP)
    acc = _issue_pv(p_left, p_right, v_s, v_full, acc, fill - 1, SPLIT)
    _pass_turn(GROUP, GROUPS)
    s, acc = warpgroup_mma_wait(2 if SPLIT else 1, deps=[s, acc])
    arrive(_K_FREE + fill % 2, THREADS)
    m_i, _, moved, alpha = _max_of_tile(s, m_i, qk_scale, False)
    if SPLIT:
        left, right = _halves(s)
        left, sums = _weights(left, qk_scale, m_i)
    else:
        left, sums = _weights(s, qk_scale, m_i)
    end_basic_block(sums)
    acc = warpgroup_mma_wait(0, deps=[acc])
    arrive(_V_FREE + (fill - 1) % 2, THREADS)
    if TRACE:
        # Nothing is in flight here. O has the tile before in it now.
        trace, last_fill = trace
        key_block = last_fill - fill
        store_acc(trace, key_block + 1, acc, s.shape[1], GROUP, GROUPS)
    acc = _rescaled(acc, alpha, moved)
    if SPLIT:
        right, right_sums = _weights(right, qk_scale, not_before(m_i))
        sums += gl.convert_layout(right_sums, sums.type.layout)
        p_right = gl.convert_layout(right.to(p_right.dtype), p_right.type.layout)
    l_i = add_to_sums(l_i, alpha, sums)
    p_left = gl.convert_layout(left.to(p_left.dtype), p_left.type.layout)
    if TRACE:
        is_scaled = _is_rescaled(moved, acc)
        _store_tile(trace, key_block, s, m_before, m_i, l_i, alpha, is_scaled, acc.shape[1], GROUP, GROUPS)
    return acc, m_i, l_i, p_left, p_right


@gluon.jit
def _store_rows(out, acc, head, first_row, o, OWN_O: gl.constexpr):
    """To out through shared memory; where that is Q's, wait until it has been read."""
    if OWN_O:
        tma.store_wait(0)
    o.reshape(acc.shape).store(acc.to(o.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(out, [head, first_row, 0], o)
    if not OWN_O:
        tma.store_wait(0)


@gluon.jit
def _attend(
    out, facts, shared, q, s_zero, i, fill, GROUP: gl.constexpr, GROUPS: gl.constexpr, BLOCK_N: gl.constexpr, DIM: gl.constexpr,
    CAUSAL: gl.constexpr, RAGGED: gl.constexpr, trace, TRACE: gl.constexpr,
):  # fmt: skip
    """64 rows of this program's i-th tile: attention, out and lse. Returns fill, the key tiles that there have been."""
    lse_ptr, work_ptr, qk_scale, row_length, seq_len_q, seq_len_kv = facts
    q_s, k_s, v_s, o_s, q_full, k_full, v_full = shared
    OWN_O: gl.constexpr = DIM < 256
    # Where O is small, rescaling it is cheap and P V short: the halves gain nothing.
    SPLIT: gl.constexpr = DIM > 64
    THREADS: gl.constexpr = 128 * GROUPS + 32
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=O_LAYOUT, k_width=2)
    ROWS: gl.constexpr = gl.SliceLayout(1, s_zero.type.layout)
    num_key_tiles = of_tile(work_ptr, row_length, i, KEY_TILES)
    num_unmasked = of_tile(work_ptr, row_length, i, UNMASKED)
    first_key = (num_key_tiles - 1) * BLOCK_N
    last_seen = gl.full([64], seq_len_kv - 1 - first_key, gl.int32, ROWS)
    if CAUSAL:
        rows = of_tile(work_ptr, row_length, i, FIRST_ROW) + GROUP * 64 + gl.arange(0, 64, ROWS)
        last_seen = gl.minimum(last_seen, rows + (seq_len_kv - seq_len_q - first_key))
    m_i = gl.full([64], -float("inf"), gl.float32, ROWS)
    l_i = gl.sum(by_lane(s_zero), 1)
    acc = gl.zeros([64, DIM], gl.float32, O_LAYOUT)
    mbarrier.wait(q_full.index(GROUP), i & 1)
    if TRACE:
        first_row = of_tile(work_ptr, row_length, i, FIRST_ROW)
        trace = (trace, of_tile(work_ptr, row_length, i, HEAD), first_row, seq_len_q, seq_len_kv, qk_scale)
        last_fill = fill + num_key_tiles - 1
    if CAUSAL:
        for _ in range(num_key_tiles - 1 - num_unmasked):
            s = _scores(q, k_s, k_full, s_zero, fill, GROUP, GROUPS)
            if TRACE:
                m_before = m_i
            m_i, l_i, alpha, p_left, p_right = _softmax(s, m_i, l_i, qk_scale, last_seen, P_LAYOUT, q_s.dtype, True, SPLIT)
            acc = scaled_rows(acc, alpha)
            acc = _issue_pv(p_left, p_right, v_s, v_full, acc, fill, SPLIT)
            acc = warpgroup_mma_wait(0, deps=[acc])
            arrive(_V_FREE + fill % 2, THREADS)
            if TRACE:
                s = _hide_unseen(s, last_seen)
                _store_tile(trace, last_fill - fill, s, m_before, m_i, l_i, alpha, _always(m_i), DIM, GROUP, GROUPS)
                store_acc(trace, last_fill - fill, acc, BLOCK_N, GROUP, GROUPS)
            last_seen += BLOCK_N
            fill += 1
    s = _scores(q, k_s, k_full, s_zero, fill, GROUP, GROUPS)
    if TRACE:
        m_before = m_i
    m_i, l_i, alpha, p_left, p_right = _softmax(s, m_i, l_i, qk_scale, last_seen, P_LAYOUT, q_s.dtype, CAUSAL or RAGGED, SPLIT)
    if CAUSAL:
        acc = scaled_rows(acc, alpha)
    if TRACE:
        if CAUSAL or RAGGED:
            s = _hide_unseen(s, last_seen)
        is_scaled = _always(m_i) * (1 if CAUSAL else 0)
        _store_tile(trace, last_fill - fill, s, m_before, m_i, l_i, alpha, is_scaled, DIM, GROUP, GROUPS)
        trace = (trace, last_fill)
    fill += 1
    for _ in range(num_unmasked):
        acc, m_i, l_i, p_left, p_right = _step(
            q, k_s, v_s, k_full, v_full, s_zero, acc, m_i, l_i, p_left, p_right, qk_scale, fill,
            GROUP, GROUPS, SPLIT, trace, TRACE,
        )  # fmt: skip
        fill += 1
    if OWN_O:
        arrive(_Q_FREE, THREADS)
    acc = _issue_pv(p_left, p_right, v_s, v_full, acc, fill - 1, SPLIT)
    row_sums = gl.convert_layout(gl.sum(gl.sum(l_i, 2), 1), ROWS)
    l_safe = gl.where(row_sums == 0.0, 1.0, row_sums)
    lse = (m_i + gl.log2(l_safe)) * LN_2
    acc = warpgroup_mma_wait(0, deps=[acc])
    arrive(_V_FREE + (fill - 1) % 2, THREADS)
    if TRACE:
        store_acc(trace[0], 0, acc, BLOCK_N, GROUP, GROUPS)
    # Read again, so that they take no registers in the loop.
    head = of_tile(work_ptr, row_length, i, HEAD)
    first_row = of_tile(work_ptr, row_length, i, FIRST_ROW) + GROUP * 64
    rows = first_row + gl.arange(0, 64, ROWS)
    gl.store(lse_ptr + head.to(gl.int64) * seq_len_q + rows, lse, mask=rows < seq_len_q)
    _store_rows(out, scaled_rows(acc, 1.0 / l_safe), head, first_row, o_s.index(GROUP), OWN_O)
    if not OWN_O:
        arrive(_Q_FREE, THREADS)
    return fill


@gluon.jit
def _consume(
    out, facts, shared, GROUP: gl.constexpr, GROUPS: gl.constexpr, BLOCK_N: gl.constexpr, DIM: gl.constexpr,
    CAUSAL: gl.constexpr, RAGGED: gl.constexpr, trace, stamps, TRACE: gl.constexpr, STAMP: gl.constexpr,
):  # fmt: skip
    """64 rows of every tile of this program."""
    _, work_ptr, _, row_length, seq_len_q, _ = facts
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    q = shared[0].index(GROUP).reshape([64, DIM])
    s_zero = gl.zeros([64, BLOCK_N], gl.float32, S_LAYOUT)
    fill = 0
    if GROUP == GROUPS - 1:
        arrive(_TURN, 256)
    for i in range(num_tiles(work_ptr, row_length)):
        if STAMP:
            start_of_tile(stamps, work_ptr, row_length, i, seq_len_q, GROUP, GROUPS)
        fill = _attend(out, facts, shared, q, s_zero, i, fill, GROUP, GROUPS, BLOCK_N, DIM, CAUSAL, RAGGED, trace, TRACE)
        if STAMP:
            end_of_tile(stamps, work_ptr, row_length, i, seq_len_q, GROUP, GROUPS)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=("row_length", "seq_len_q", "seq_len_kv"))
def flash_v3_hopper_forward(
    q_source, k_source, v_source, out, lse_ptr, work_ptr, qk_scale, row_length, seq_len_q, seq_len_kv, trace, stamps,
    GROUPS: gl.constexpr, BLOCK_N: gl.constexpr, DIM: gl.constexpr, CAUSAL: gl.constexpr, RAGGED: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr, TRACE: gl.constexpr, STAMP: gl.constexpr,
):  # fmt: skip
    q_s = gl.allocate_shared_memory(q_source.dtype, [GROUPS, 1, 64, DIM], q_source.layout)
    k_s = gl.allocate_shared_memory(k_source.dtype, [2, 1, BLOCK_N, DIM], k_source.layout)
    v_s = gl.allocate_shared_memory(v_source.dtype, [2, 1, BLOCK_N, DIM], v_source.layout)
    # At head_dim 256 there is room for O only where Q was.
    o_s = q_s
    if DIM < 256:
        o_s = gl.allocate_shared_memory(out.dtype, [GROUPS, 1, 64, DIM], out.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for group in gl.static_range(GROUPS):
        mbarrier.init(q_full.index(group), count=1)
    for buffer in gl.static_range(2):
        mbarrier.init(k_full.index(buffer), count=1)
        mbarrier.init(v_full.index(buffer), count=1)
    facts = (lse_ptr, work_ptr, qk_scale, row_length, seq_len_q, seq_len_kv)
    shared = (q_s, k_s, v_s, o_s, q_full, k_full, v_full)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_consume, (out, facts, shared, 0, GROUPS, BLOCK_N, DIM, CAUSAL, RAGGED, trace, stamps, TRACE, STAMP)),
                (_consume, (out, facts, shared, 1, GROUPS, BLOCK_N, DIM, CAUSAL, RAGGED, trace, stamps, TRACE, STAMP)),
                (_produce, (q_source, k_source, v_source, facts, shared, GROUPS, BLOCK_N, stamps, STAMP)),
            ],
            [4, 1],
            [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )
    elif GROUPS == 3:
        gl.warp_specialize(
            [
                (_consume, (out, facts, shared, 0, GROUPS, BLOCK_N, DIM, CAUSAL, RAGGED, trace, stamps, TRACE, STAMP)),
                (_consume, (out, facts, shared, 1, GROUPS, BLOCK_N, DIM, CAUSAL, RAGGED, trace, stamps, TRACE, STAMP)),
                (_consume, (out, facts, shared, 2, GROUPS, BLOCK_N, DIM, CAUSAL, RAGGED, trace, stamps, TRACE, STAMP)),
                (_produce, (q_source, k_source, v_source, facts, shared, GROUPS, BLOCK_N, stamps, STAMP)),
            ],
            [4, 4, 1],
            [CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (_consume, (out, facts, shared, 0, GROUPS, BLOCK_N, DIM, CAUSAL, RAGGED, trace, stamps, TRACE, STAMP)),
                (_consume, (out, facts, shared, 1, GROUPS, BLOCK_N, DIM, CAUSAL, RAGGED, trace, stamps, TRACE, STAMP)),
                (_consume, (out, facts, shared, 2, GROUPS, BLOCK_N, DIM, CAUSAL, RAGGED, trace, stamps, TRACE, STAMP)),
                (_consume, (out, facts, shared, 3, GROUPS, BLOCK_N, DIM, CAUSAL, RAGGED, trace, stamps, TRACE, STAMP)),
                (_produce, (q_source, k_source, v_source, facts, shared, GROUPS, BLOCK_N, stamps, STAMP)),
            ],
            [4, 4, 4, 1],
            [CONSUMER_REGISTERS, CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )


# On the host


def forward(
    operands: Operands, problem: AttentionProblem, tiles: TileConfig | None, launch: Launcher, with_lse: bool = True,
    trace: TraceBuffers | None = None, stamps: StampBuffers | None = None,
) -> AttentionOutput:  # fmt: skip
    """Attention by FlashAttention v3 on Hopper; see kernels.kernel.Kernel."""
    assert tiles is not None
    if operands.q_scale is not None:
        return forward_fp8(operands, problem, tiles, launch, trace, stamps)
    q, k, v = operands.q, operands.k, operands.v
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    work = work_of(problem, tiles, num_sms_of(q), q.device)
    groups, dim = tiles.block_m // 64, problem.padded_head_dim
    consumer_registers, producer_registers = REGISTERS[groups]
    launch(
        flash_v3_hopper_forward, (work.shape[0],),
        descriptor(q, 64, dim), descriptor(k, tiles.block_n, dim), descriptor(v, tiles.block_n, dim), descriptor(out, 64, dim),
        lse, work,
        problem.sm_scale * LOG2_E, work.stride(0), problem.seq_len_q, problem.seq_len_kv,
        GROUPS=groups, BLOCK_N=tiles.block_n, DIM=dim, CAUSAL=problem.causal, RAGGED=problem.seq_len_kv % tiles.block_n != 0,
        CONSUMER_REGISTERS=consumer_registers, PRODUCER_REGISTERS=producer_registers, num_warps=4,
        **watched(trace, stamps),
    )  # fmt: skip
    return AttentionOutput(out, lse)


def frames(trace: TraceBuffers, _operands: Operands, problem: AttentionProblem) -> Frames:
    """What a traced launch stored; see kernels.kernel.Kernel. Like v2 it holds S without sm_scale, and m in log2."""
    return trace.read(scores=problem.sm_scale, m=LN_2.value, l=1.0, acc=1.0, last_first=True)
