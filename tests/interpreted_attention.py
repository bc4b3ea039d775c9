"""A child process with TRITON_INTERPRET set: one JSON line a question on stdin, one answer on stdout."""

import json
import sys

import torch

from kernels.kernel import TORCH_DTYPES, require_layout
from kernels.problem import AttentionProblem, Frozen, Precision, TileConfig
from kernels.registry import load
from profiling.accuracy import check


class Question(Frozen):
    """A kernel on a problem. nan_elsewhere: all heads but the first hold NaN, and only the first is looked at."""

    kernel: str
    problem: AttentionProblem
    precision: Precision
    tiles: TileConfig | None
    has_tma: bool = True
    nan_elsewhere: bool = False
    seed: int = 0


def answer(question: Question) -> dict:
    """The Accuracy of the kernel's output, as a dictionary."""
    from kernels.launch import Launch

    problem, precision = question.problem, question.precision
    generator = torch.Generator().manual_seed(question.seed)
    q, k, v = (
        torch.randn((problem.batch, heads, length, problem.head_dim), generator=generator).to(TORCH_DTYPES[precision.dtype])
        for heads, length in (
            (problem.num_heads, problem.seq_len_q),
            (problem.num_kv_heads, problem.seq_len_kv),
            (problem.num_kv_heads, problem.seq_len_kv),
        )
    )
    if question.nan_elsewhere:
        for tensor in (q, k, v):
            tensor.flatten(0, 1)[1:] = float("nan")
    require_layout(problem, q, k, v)
    kernel, launch = load(question.kernel), Launch(has_tma=question.has_tma)
    operands = kernel.prepare(q, k, v, precision, launch)
    result = kernel.forward(operands, problem, question.tiles, launch)
    out, lse = result.out, result.lse
    if question.nan_elsewhere:
        problem = problem.model_copy(update={"batch": 1, "num_heads": 1, "num_kv_heads": 1})
        q, k, v, out, lse = (x[:1, :1] for x in (q, k, v, out, lse))
        operands = None
    return check(out, lse, q, k, v, problem, precision, "interpreted", question.kernel, operands).model_dump()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(answer(Question.model_validate_json(line))), flush=True)
