"""A version that is native's and writes stamps as a GPU would; its launches can be told to come out otherwise."""

from __future__ import annotations

from functools import lru_cache

import torch

from kernels import native
from kernels.kernel import AttentionOutput, Operands

prepare = native.prepare
SMS = 4


class Faults:
    """factor, stamped_factor: by what all outputs, or the stamped ones, are multiplied. error: what a stamped launch raises."""

    factor = stamped_factor = 1.0
    error: Exception | None = None
    launches = 0


def forward(operands: Operands, problem, tiles, launch, with_lse=True, trace=None, stamps=None) -> AttentionOutput:
    output = _right(operands, problem)
    output = AttentionOutput(output.out * Faults.factor, output.lse)
    if stamps is None:
        return output
    if Faults.error is not None:
        raise Faults.error
    Faults.launches += 1
    entry = torch.arange(len(stamps.stamps))
    # Each launch's first entry is one ns longer than the launch before; the clock began long ago.
    start = 10**15 + 5000 * (entry // SMS)
    end = start + 64 + Faults.launches * (entry == 0)
    stamps.stamps.copy_(torch.stack([entry % SMS, entry, start, end, entry * 0 + 1], 1))
    return AttentionOutput(output.out * Faults.stamped_factor, output.lse)


@lru_cache(maxsize=1)
def _right(operands: Operands, problem) -> AttentionOutput:
    """Computed in float32, once: a launch is to cost nothing."""
    exact = Operands(operands.q.float(), operands.k.float(), operands.v.float(), operands.dtype)
    output = native.forward(exact, problem, None, None)
    return AttentionOutput(output.out.to(operands.dtype), output.lse)
