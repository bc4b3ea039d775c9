"""A child process with TRITON_INTERPRET set that counts the bytes a kernel's loads and stores really touch, mask by mask.

One JSON line a question (kernel, problem, precision, tiles, has_tma) on stdin, the number of bytes on stdout. The line L2
asks for what a launch of kernels.l2_read counts, which is answered only when it read its buffer whole.
"""

import json
import sys

import numpy as np
import torch
from triton.runtime import interpreter

from kernels.kernel import TORCH_DTYPES
from kernels.l2_read import L2Reading
from kernels.launch import Launch
from kernels.registry import load
from tests.interpreted_attention import Question

_counted = 0


def _count_what_masks_let_through() -> None:
    builder = interpreter.InterpreterBuilder
    load_, store_ = builder.create_masked_load, builder.create_masked_store

    def counting_load(self, pointers, mask, *rest, **options):
        global _counted
        found = load_(self, pointers, mask, *rest, **options)
        _counted += int(np.asarray(mask.data).sum()) * found.data.itemsize
        return found

    def counting_store(self, pointers, value, mask, *rest):
        global _counted
        _counted += int(np.asarray(mask.data).sum()) * value.data.itemsize
        return store_(self, pointers, value, mask, *rest)

    builder.create_masked_load, builder.create_masked_store = counting_load, counting_store


def counted(question: Question) -> int:
    """Bytes of one forward, the pre-pass not among them."""
    global _counted
    problem = question.problem
    q = torch.randn(problem.batch, problem.num_heads, problem.seq_len_q, problem.head_dim).to(
        TORCH_DTYPES[question.precision.dtype]
    )
    k, v = (q.new_ones(problem.batch, problem.num_kv_heads, problem.seq_len_kv, problem.head_dim) for _ in "kv")
    kernel, launch = load(question.kernel), Launch(has_tma=question.has_tma)
    operands = kernel.prepare(q, k, v, question.precision, launch)
    _counted = 0
    kernel.forward(operands, problem, question.tiles, launch)
    return _counted


def counted_by_l2_reading() -> tuple[int, int]:
    """(bytes counted, bytes that it says it reads, without the sums that it writes)."""
    global _counted
    reading = L2Reading(torch.device("cpu"), sm_count=1, buffer_bytes=1, rounds=1)
    _counted = 0
    reading()
    assert reading.is_whole
    return _counted, reading.bytes_per_launch + reading.sums.nbytes


if __name__ == "__main__":
    torch.set_num_threads(1)
    _count_what_masks_let_through()
    for line in sys.stdin:
        is_l2 = line.strip() == "L2"
        print(json.dumps(counted_by_l2_reading() if is_l2 else counted(Question.model_validate_json(line))), flush=True)
