"""A version that fails as the head_dim asks: wrong output, out of memory, a lost CUDA context, or a slow success."""

from __future__ import annotations

import torch

from kernels import native
from kernels.kernel import AttentionOutput, Operands

prepare = native.prepare

FAULTS = {
    16: "wrong",
    32: "nan",
    64: "out of memory",
    80: "sticky",
    96: "bug",
    128: "does not fit",
}


class OutOfResources(Exception):
    """As Triton's, which is known by its name."""

    required, limit, name = 557_088, 232_448, "shared memory"


def forward(operands: Operands, problem, tiles, launch, with_lse=True) -> AttentionOutput:
    output = native.forward(operands, problem, tiles, launch, with_lse)
    match FAULTS[problem.head_dim]:
        case "wrong":
            return AttentionOutput(output.out * 1.1, output.lse)
        case "nan":
            output.out[..., 0, 0] = float("nan")
            return output
        case "out of memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        case "sticky":
            raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")
        case "does not fit":
            raise OutOfResources
    raise ZeroDivisionError("a bug of the kernel")
