"""The backward that torch's autograd makes of a forward in torch: of native, which keeps P for it, and of the peers."""

from __future__ import annotations

import torch

from kernels.kernel import AttentionOutput, Gradients, Launcher, Operands
from kernels.problem import AttentionProblem, BackwardTiles


def prepare(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Operands:
    """Leaves that require a gradient, on the memory of q, k and v; see kernels.kernel.Backward."""
    return Operands(*(tensor.detach().requires_grad_() for tensor in (q, k, v)), dtype=q.dtype)


def preprocess(
    operands: Operands, output: AttentionOutput, d_out: torch.Tensor, problem: AttentionProblem, launch: Launcher | None
) -> None:
    """Nothing: what autograd computes first is no step of its own; see kernels.kernel.Backward."""


def backward(
    operands: Operands, output: AttentionOutput, d_out: torch.Tensor, problem: AttentionProblem,
    tiles: BackwardTiles | None, launch: Launcher | None, delta: torch.Tensor | None = None,
) -> Gradients:  # fmt: skip
    """The gradients by the graph that output.out knows, which is kept for the next call; see kernels.kernel.Backward.

    Raises ValueError for an output without a graph: its forward did not read what prepare() made.
    """
    if not output.out.requires_grad:
        raise ValueError("out = a tensor without a graph is not possible here: the forward must read what prepare() made.")
    return Gradients(*torch.autograd.grad(output.out, (operands.q, operands.k, operands.v), d_out, retain_graph=True))
