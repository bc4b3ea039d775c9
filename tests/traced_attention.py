"""A child process with TRITON_INTERPRET set: reads Questions, one JSON a line, and answers each with a trace and its proof."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from typing import Literal

import torch

from kernels.kernel import Operands
from kernels.launch import Launch
from kernels.problem import Frozen
from kernels.registry import load
from kernels.trace import Frames
from profiling import tile_trace
from profiling.bench import draw_inputs
from profiling.case import Case
from profiling.records import RunRequest
from profiling.tile_trace import Subject, output_rows, take

Fault = Literal["alpha", "swapped tiles", "acc", "rises", "k scale"]


class Question(Frozen):
    """One traced run; request names its tiles. fault: what is falsified between the launch and its replay; k scale, before.

    most_tiles: how many the trace may store, fewer than it usually may.
    """

    request: RunRequest
    has_tma: bool = True
    fault: Fault | None = None
    most_tiles: int = tile_trace.MOST_TILES


@dataclass(frozen=True)
class Falsified:
    """A version whose trace is read wrongly in one place."""

    kernel: object
    fault: Fault

    def forward(self, *args, **more):
        return self.kernel.forward(*args, **more)

    def frames(self, *args) -> Frames:
        frames = self.kernel.frames(*args)
        match self.fault:
            case "alpha":
                frames.alpha[1] *= 1.001
            case "swapped tiles":
                return replace(frames, scores=frames.scores[[1, 0, *range(2, frames.scores.shape[0])]])
            case "acc":
                frames.acc[1] *= 1.01
            case "rises":
                frames.rises[args[0].query_block, 0] -= 1
        return frames


def answer(question: Question) -> dict:
    """The trace, and how it differs from what is known without it."""
    request, tile_trace.MOST_TILES = question.request, question.most_tiles
    case = Case(0, request)
    inputs = draw_inputs(case, torch.device("cpu"))
    kernel, launch = load(request.kernel), Launch(has_tma=question.has_tma)
    operands = kernel.prepare(*inputs, request.precision, launch)
    if question.fault == "k scale":
        operands.k_scale.mul_(1.5)
    output = kernel.forward(operands, request.problem, request.tiles, launch)
    traced = kernel if question.fault is None else Falsified(kernel, question.fault)
    subject = Subject(request, request.tiles, traced, launch, operands, inputs)
    trace = take(subject, output_rows(output.out, request, request.tiles), "interpreted")
    return {
        "trace": trace.model_dump(mode="json"),
        "exact_scores": tiles_of_block(inputs[:2], request, trace.query_block).tolist(),
        "rises": rises(operands, inputs, request).tolist(),
    }


def scores_of_head(qk: tuple[torch.Tensor, torch.Tensor], request: RunRequest) -> torch.Tensor:
    """S of the chosen head in float64, hidden ones -1e300, which JSON takes."""
    problem, choice = request.problem, request.trace
    kv_head = choice.head // (problem.num_heads // problem.num_kv_heads)
    scores = qk[0][choice.batch_index, choice.head].double() @ qk[1][choice.batch_index, kv_head].double().T * problem.sm_scale
    if problem.causal:
        seen = torch.ones_like(scores).tril(problem.seq_len_kv - problem.seq_len_q).bool()
        scores = scores.masked_fill(~seen, -1e300)
    return scores


def tiles_of_block(qk: tuple[torch.Tensor, torch.Tensor], request: RunRequest, query_block: int) -> torch.Tensor:
    """(rows of the block, seq_len_kv): the exact scores."""
    first = query_block * request.tiles.block_m
    return scores_of_head(qk, request)[first : first + request.tiles.block_m]


def rises(operands: Operands, inputs: tuple[torch.Tensor, ...], request: RunRequest) -> torch.Tensor:
    """(query blocks, key blocks): rows whose maximum rises, of the operands as the kernel reads them; all blocks visited."""
    qk = inputs[:2]
    if operands.q_scale is not None:
        from kernels.quantize import dequantize

        qk = dequantize(operands, request.problem.seq_len_kv)[:2]
    tiles = [part.amax(1) for part in scores_of_head(qk, request).split(request.tiles.block_n, dim=1)]
    running = torch.stack([torch.full_like(tiles[0], -1e300), *tiles], dim=1).cummax(1).values
    rose = (running[:, 1:] > running[:, :-1]).int()
    return torch.stack([part.sum(0) for part in rose.split(request.tiles.block_m, dim=0)])


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(answer(Question.model_validate_json(line))), flush=True)
