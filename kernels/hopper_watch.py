"""What the traced and stamped variants of a warp-specialised Gluon kernel store: kernels.trace, kernels.stamps by warpgroup.

A consumer holds 64 rows of a query block, which is as many warpgroups high; the producer stamps too. As there, only
`if TRACE:` and `if STAMP:` blocks are added to a kernel.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import globaltimer, smid

from kernels.stamps import FIRST_LANE
from kernels.trace import MAXIMA

# Triton 3.6 and 3.7 have the one or the other.
_barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
_ROWS = gl.constexpr(64)
_MAXIMA = gl.constexpr(MAXIMA)
_FIRST_LANE = gl.constexpr(FIRST_LANE)


# Tiles


@gluon.jit
def store_softmax(
    trace, key_block, s, m_before, m, row_max, l, alpha, multiplied,  # noqa: E741
    DIM: gl.constexpr, GROUP: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """Store a tile of the chosen head and query block but for O, and how many rows' maxima rose at it.

    trace: (TraceBuffers.arguments, batch · head, first row of the block, seq_len_q, seq_len_kv, the factor from S to m's unit).
    s (64, BLOCK_N), -inf where hidden; m_before, m, row_max, l, alpha, multiplied: of its rows, in one layout. row_max: the
    largest of s. multiplied: 1 where O is multiplied by alpha. DIM: O's columns. All in the units in which the version has it.
    """
    buffers, head, first_row, seq_len_q, seq_len_kv, scale = trace
    frames_ptr, rises_ptr, choice_ptr, maxima_ptr = buffers
    HEIGHT: gl.constexpr = GROUPS * _ROWS
    WIDTH: gl.constexpr = s.shape[1]
    block = first_row // HEIGHT
    rows = GROUP * _ROWS + gl.arange(0, _ROWS, m.type.layout)
    every = gl.load(choice_ptr + 2)
    if head == gl.load(choice_ptr):
        if rises_ptr is not None:
            rose = ((m > m_before) & (first_row + rows < seq_len_q)).to(gl.int32)
            # From -1, by the first group.
            place = rises_ptr + block * gl.cdiv(seq_len_kv, WIDTH) + key_block
            gl.atomic_add(place + rows * 0, rose + (rows == 0).to(gl.int32))
        if block == gl.load(choice_ptr + 1):
            if maxima_ptr is not None:
                settled = maxima_ptr + key_block.to(gl.int64) * (_MAXIMA * HEIGHT) + rows
                gl.store(settled, m)
                # Once rounded, as where it is held against m.
                gl.store(settled + HEIGHT, row_max * scale)
                gl.store(settled + 2 * HEIGHT, multiplied.to(gl.float32))
            if key_block % every == gl.load(choice_ptr + 3):
                frame = frames_ptr + (key_block // every).to(gl.int64) * (HEIGHT * (WIDTH + 3 + DIM))
                in_s = GROUP * _ROWS + gl.arange(0, _ROWS, gl.SliceLayout(1, s.type.layout))
                keys = gl.arange(0, WIDTH, gl.SliceLayout(0, s.type.layout))
                gl.store(frame + in_s[:, None] * WIDTH + keys[None, :], s)
                gl.store(frame + HEIGHT * WIDTH + rows, m)
                gl.store(frame + HEIGHT * (WIDTH + 1) + rows, l)
                gl.store(frame + HEIGHT * (WIDTH + 2) + rows, alpha)


@gluon.jit
def store_acc(trace, key_block, acc, WIDTH: gl.constexpr, GROUP: gl.constexpr, GROUPS: gl.constexpr):
    """Store O as it is after a tile of the chosen head and query block. WIDTH: keys a tile."""
    buffers, head, first_row, _, _, _ = trace
    frames_ptr, _, choice_ptr, _ = buffers
    HEIGHT: gl.constexpr = GROUPS * _ROWS
    DIM: gl.constexpr = acc.shape[1]
    every = gl.load(choice_ptr + 2)
    is_chosen = (head == gl.load(choice_ptr)) & (first_row // HEIGHT == gl.load(choice_ptr + 1))
    if is_chosen & (key_block % every == gl.load(choice_ptr + 3)):
        frame = frames_ptr + (key_block // every).to(gl.int64) * (HEIGHT * (WIDTH + 3 + DIM)) + HEIGHT * (WIDTH + 3)
        rows = GROUP * _ROWS + gl.arange(0, _ROWS, gl.SliceLayout(1, acc.type.layout))
        dims = gl.arange(0, DIM, gl.SliceLayout(0, acc.type.layout))
        gl.store(frame + rows[:, None] * DIM + dims[None, :], acc)


# Stamps


@gluon.jit
def _entry(stamps_ptr, head, first_row, seq_len_q, GROUPS: gl.constexpr):
    HEIGHT: gl.constexpr = GROUPS * _ROWS
    entry = head * gl.cdiv(seq_len_q, HEIGHT) + first_row // HEIGHT
    return stamps_ptr + entry.to(gl.int64) * (_FIRST_LANE + 2 * (GROUPS + 1))


@gluon.jit
def stamp_start(stamps_ptr, head, first_row, seq_len_q, LANE: gl.constexpr, GROUPS: gl.constexpr):
    """Store when a warpgroup (LANE: its place, GROUPS for the producer) begins a tile: at once, as registers are scarce."""
    place = _entry(stamps_ptr, head, first_row, seq_len_q, GROUPS)
    gl.store(place + (_FIRST_LANE + 2 * LANE), globaltimer())


@gluon.jit
def stamp_end(stamps_ptr, head, first_row, seq_len_q, tiles, LANE: gl.constexpr, GROUPS: gl.constexpr):
    """Store when it is done with it, by the first group also who did it, where.

    The barrier holds the clock back as in kernels.stamps.store_stamp. O leaves by the copy engine, which may then still be
    at it.
    """
    _barrier()
    ended_ns = globaltimer()
    place = _entry(stamps_ptr, head, first_row, seq_len_q, GROUPS)
    gl.store(place + (_FIRST_LANE + 2 * LANE + 1), ended_ns)
    if LANE == 0:
        gl.store(place, smid().to(gl.int64))
        gl.store(place + 1, gl.program_id(0).to(gl.int64))
        gl.store(place + 2, tiles.to(gl.int64))
