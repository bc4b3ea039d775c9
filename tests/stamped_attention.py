"""A child process with TRITON_INTERPRET set, a counter in place of the clock: what a stamped launch writes, a JSON line each.

The interpreter runs one program after the other, so that the counter gives away in which order they did what.
"""

import json
import sys
from itertools import accumulate, chain, repeat

import torch
import triton.language as tl

from kernels import block_order, stamps
from kernels.launch import Launch
from kernels.problem import AttentionProblem, Frozen, Precision, TileConfig
from kernels.registry import Refused, load
from kernels.stamps import StampBuffers, measure_tick_ns
from kernels.trace import TraceBuffers

THE_SM = 7
FIELDS = ("sm", "program", "start_ns", "end_ns", "head", "block", "tiles")


class Question(Frozen):
    """A stamped launch of a kernel; section: how many heads of bf16 or FP8 run beside each other."""

    kernel: str
    problem: AttentionProblem
    tiles: TileConfig
    fp8: bool = False
    has_tma: bool = True
    section: int = 64


def answer(question: Question) -> dict:
    """The stamps, and whether out and lse are bit for bit those of the launch without them."""
    problem, tiles, precision = question.problem, question.tiles, Precision(fp8=question.fp8)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn((problem.batch, heads, length, problem.head_dim), generator=generator).bfloat16()
        for heads, length in (
            (problem.num_heads, problem.seq_len_q),
            (problem.num_kv_heads, problem.seq_len_kv),
            (problem.num_kv_heads, problem.seq_len_kv),
        )
    )
    kernel, launch = load(question.kernel), Launch(has_tma=question.has_tma)
    operands = kernel.prepare(q, k, v, precision, launch)
    block_order._SECTION_BYTES = question.section * 2 * problem.seq_len_kv * problem.head_dim * (1 if question.fp8 else 2)
    stamps.globaltimer = clock(repeat(1))
    buffers = StampBuffers.on("cpu", problem, tiles)
    plain = kernel.forward(operands, problem, tiles, launch)
    stamped = kernel.forward(operands, problem, tiles, launch, stamps=buffers)
    found = buffers.read()
    same = torch.equal(plain.out, stamped.out) and torch.equal(plain.lse, stamped.lse)
    return {"same": same, **{name: getattr(found, name).tolist() for name in FIELDS}}


def clock(steps):
    """What takes the place of %globaltimer: every reading a step later than the last."""
    readings = accumulate(chain([10_000], steps))
    return lambda: tl.full([], next(readings), tl.int64)


def refusals() -> dict[str, str]:
    """What is said where stamps are not possible, and what a clock is found to step by."""
    problem = AttentionProblem(seq_len_q=16, seq_len_kv=16, head_dim=32, num_heads=1, num_kv_heads=1)
    tiles = TileConfig(block_m=16, block_n=16, num_warps=4, num_stages=1)
    found = {}
    for name, refused in {"on": lambda: StampBuffers.on("cpu", problem, tiles), "tick": lambda: measure_tick_ns("cpu")}.items():
        try:
            refused()
        except Refused as error:
            found[name] = str(error)
    stamps.INTERPRETED, stamps._MOST_READS = False, 50
    stamps.smid = lambda: tl.full([], THE_SM, tl.int32)
    buffers = StampBuffers.on("cpu", problem, tiles)
    try:
        buffers.read()
    except RuntimeError as error:
        found["not launched"] = str(error)
    trace = TraceBuffers.on("cpu", problem, tiles, batch_index=0, head=0, query_block=0, stored=1)
    q = torch.zeros((1, 1, 16, 32), dtype=torch.bfloat16)
    for name in ("v1", "v2", "v3"):
        kernel, launch = load(name), Launch(has_tma=True)
        try:
            kernel.forward(kernel.prepare(q, q, q, Precision(), launch), problem, tiles, launch, trace=trace, stamps=buffers)
        except ValueError as error:
            found[f"both, {name}"] = str(error)
    stamps.globaltimer = clock(repeat(0))
    try:
        measure_tick_ns("cpu")
    except RuntimeError as error:
        found["stands"] = str(error)
    stamps.globaltimer = clock(chain([0, 64, 0, 0, 96, 32, 0, 64], repeat(0)))
    found["steps of 32"] = measure_tick_ns("cpu")
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(refusals()), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(Question.model_validate_json(line))), flush=True)
