"""What the Hopper kernels in Gluon share: their PTX, the list of which program works on which tiles, and their descriptors."""

from __future__ import annotations

from functools import lru_cache

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.block_order import DEALT_OVERHEAD_KEYS, deal
from kernels.hopper_watch import stamp_end, stamp_start
from kernels.problem import AttentionProblem, TileConfig

_SECTION_BYTES = 32 << 20
_MOST_DEALT_TILES = 1 << 16
# The fields of a tile in the lists of work_of.
HEAD, KV_HEAD, FIRST_ROW, KEY_TILES, UNMASKED = (gl.constexpr(field) for field in range(5))
FIELDS = gl.constexpr(5)
_H200_SMS = 132
_GLUON_DTYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float8_e4m3fn: gl.float8e4nv}
# Registers a thread of the consumers and of the producer, by the number of consumers: 65,536 shared out in steps of 8.
REGISTERS = {2: (240, 24), 3: (160, 32), 4: (112, 32)}


# PTX

# The hardware has 16 named barriers: Triton takes 0, 1 and one a partition from 2 on. Unlike an mbarrier's arrival, which
# Triton precedes by a barrier of the whole warpgroup, bar.arrive makes nobody wait.


@gluon.constexpr_function
def _bar_asm(action, threads):
    return f"bar.{action} $1, {threads}; // $0"


@gluon.constexpr_function
def asm_operands(letter, outs, ins):
    return ",".join([f"={letter}"] * outs + [letter] * ins)


@gluon.constexpr_function
def _all_have_no_sign(count):
    """A branch on the signs of count numbers: or of three at a time, as lop3 has it."""
    ors = " ".join(f"lop3.b32 a, a, ${count + i}, ${count + i + 1}, 0xFE;" for i in range(1, count - 1, 2))
    outs = " ".join(f"${i}" for i in range(count))
    return f"""{{
    .reg .pred p, q;
    .reg .b32 a, n;
    mov.b32 n, 4;
    or.b32 a, ${count}, ${2 * count - 1};
    {ors}
    again: setp.ge.s32 p, a, 0;
    @p bra done;
    nanosleep.u32 20;
    sub.s32 n, n, 1;
    setp.gt.s32 q, n, 0;
    @q bra again;
    done:
    }} // {outs}"""


@gluon.jit
def arrive(barrier, THREADS: gl.constexpr):
    ASM: gl.constexpr = _bar_asm("arrive", THREADS)
    gl.inline_asm_elementwise(ASM, "=r,r", [barrier], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def sync(barrier, THREADS: gl.constexpr):
    ASM: gl.constexpr = _bar_asm("sync", THREADS)
    gl.inline_asm_elementwise(ASM, "=r,r", [barrier], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def end_basic_block(x, PACK: gl.constexpr = 4):
    """Branch on exponentials or sums of them, which have no sign: without a branch here ptxas issues the wait for a product
    before the exponentials that it should hide."""
    ASM: gl.constexpr = _all_have_no_sign(PACK)
    gl.inline_asm_elementwise(ASM, asm_operands("r", PACK, PACK), [x], dtype=gl.int32, is_pure=False, pack=PACK)


@gluon.jit
def not_before(x):
    """x, in a way that keeps what needs it behind the asm statements before it."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=gl.float32, is_pure=False, pack=1)


@gluon.jit
def scaled_rows(acc, factor):
    return acc * gl.convert_layout(factor, gl.SliceLayout(1, acc.type.layout))[:, None]


# Which tiles: work_of() says how they are listed


@gluon.jit
def num_tiles(work_ptr, row_length):
    return gl.load(work_ptr + gl.program_id(0) * row_length)


@gluon.jit
def of_tile(work_ptr, row_length, i, FIELD: gl.constexpr):
    return gl.load(work_ptr + gl.program_id(0) * row_length + (1 + i) * FIELDS + FIELD)


# What a stamped variant adds


@gluon.jit
def start_of_tile(stamps, work_ptr, row_length, i, seq_len_q, LANE: gl.constexpr, GROUPS: gl.constexpr):
    head, first_row = of_tile(work_ptr, row_length, i, HEAD), of_tile(work_ptr, row_length, i, FIRST_ROW)
    stamp_start(stamps, head, first_row, seq_len_q, LANE, GROUPS)


@gluon.jit
def end_of_tile(stamps, work_ptr, row_length, i, seq_len_q, LANE: gl.constexpr, GROUPS: gl.constexpr):
    head, first_row = of_tile(work_ptr, row_length, i, HEAD), of_tile(work_ptr, row_length, i, FIRST_ROW)
    stamp_end(stamps, head, first_row, seq_len_q, of_tile(work_ptr, row_length, i, KEY_TILES), LANE, GROUPS)


# Rows and lanes


@gluon.jit
def by_lane(x):
    """[M, N] as [M, N / 8, lanes 4, 2]: what a thread holds of a row, apart from what its three neighbours hold."""
    return x.reshape([x.shape[0], x.shape[1] // 8, 4, 2])


@gluon.jit
def add_to_sums(l_i, alpha, sums):
    factor = gl.convert_layout(alpha, gl.SliceLayout(1, gl.SliceLayout(2, l_i.type.layout)))
    return l_i * factor[:, None, None] + gl.convert_layout(sums, l_i.type.layout)


# On the host


@lru_cache(maxsize=64)
def work_of(problem: AttentionProblem, tiles: TileConfig, num_sms: int, device: torch.device) -> torch.Tensor:
    """What each program works on: int32 (programs, 1 + most tiles of one, fields), a row being how many, then those.

    Tiles go, in the order of queue_of, to whichever program would be done first, as the hardware would deal them out to
    programs of one tile: but known beforehand, so that a program's producer can be a tile ahead. Where they are too many
    to deal out here, every program has one.
    """
    queue = queue_of(problem, tiles)
    if queue.shape[0] > _MOST_DEALT_TILES:
        count = torch.zeros_like(queue)
        count[:, 0] = 1
        return torch.stack([count, queue], dim=1).to(torch.int32).to(device)
    programs = min(num_sms, queue.shape[0])
    mine = deal((queue[:, KEY_TILES.value] * tiles.block_n + DEALT_OVERHEAD_KEYS).tolist(), programs)
    work = torch.zeros((programs, 1 + max(map(len, mine)), FIELDS.value), dtype=torch.int32)
    for row, dealt in zip(work, mine, strict=True):
        row[0, 0] = len(dealt)
        row[1 : 1 + len(dealt)] = queue[dealt]
    return work.to(device)


def queue_of(problem: AttentionProblem, tiles: TileConfig) -> torch.Tensor:
    """All tiles in the order in which they should start: (tiles, fields): batch · head, batch · key-value head, first row,
    key tiles to visit (at least one), and how many of those, the first in memory, every row sees whole.

    When causal, heads go in sections whose K and V stay in the L2 cache, and in a section the heaviest blocks first. The
    last visited tile counts as masked in any case.
    """
    first_rows = torch.arange(0, problem.seq_len_q, tiles.block_m)
    seen_by_all = seen = torch.full_like(first_rows, problem.seq_len_kv)
    if problem.causal:
        offset = problem.seq_len_kv - problem.seq_len_q
        seen = ((first_rows + tiles.block_m).clamp(max=problem.seq_len_q) + offset).clamp(1, problem.seq_len_kv)
        seen_by_all = (first_rows + offset + 1).clamp(0, problem.seq_len_kv)
    key_tiles = (seen + tiles.block_n - 1) // tiles.block_n
    unmasked = torch.minimum(seen_by_all // tiles.block_n, key_tiles - 1)
    heads = torch.arange(problem.batch * problem.num_heads)
    sharing = problem.num_heads // problem.num_kv_heads
    grid = torch.cartesian_prod(heads, torch.arange(first_rows.numel())).unflatten(0, (heads.numel(), -1))
    if problem.causal:
        bytes_a_head = 4 * problem.seq_len_kv * problem.head_dim
        sections = grid.flip(1).split(max(1, _SECTION_BYTES // bytes_a_head) * sharing)
        grid = torch.cat([section.transpose(0, 1).flatten(0, 1) for section in sections])
    head, block = grid.reshape(-1, 2).unbind(1)
    return torch.stack([head, head // sharing, first_rows[block], key_tiles[block], unmasked[block]], dim=1)


def num_sms_of(tensor: torch.Tensor) -> int:
    """Of the GPU that holds a tensor; where it is only compiled for one, an H200's."""
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count if tensor.is_cuda else _H200_SMS


def descriptor(tensor: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    """A descriptor of (1, rows, columns) tiles of (batch, heads, ·, ·); past an edge it reads 0, writes nothing."""
    block = [1, rows, columns]
    layout = gl.NVMMASharedLayout.get_default_for(block, _GLUON_DTYPES[tensor.dtype])
    return TensorDescriptor.from_tensor(tensor.flatten(0, 1), block, layout)
