"""A child process with TRITON_INTERPRET set that rounds every kind of float32 and quantises tensors; prints JSON."""

import json

import numpy as np
import torch
import triton
import triton.language as tl

from kernels.launch import Launch
from kernels.problem import Precision
from kernels.quantize import dequantize, quantize
from kernels.tiles import e4m3_code, rounded


@triton.jit
def round_all(x_ptr, e4m3_ptr, bf16_ptr, fp16_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    x = tl.load(x_ptr + offsets, mask=inside, other=0.0)
    tl.store(e4m3_ptr + offsets, e4m3_code(x), mask=inside)
    tl.store(bf16_ptr + offsets, rounded(x, tl.bfloat16), mask=inside)
    tl.store(fp16_ptr + offsets, rounded(x, tl.float16), mask=inside)


def every_kind() -> torch.Tensor:
    """float32 bit patterns all over the range, and all neighbours of e4m3's and bf16's values and midpoints."""
    patterns = torch.arange(0, 1 << 32, 9973, dtype=torch.int64).to(torch.uint32).view(torch.float32)
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    codes = codes[codes.isfinite()].unique()
    edges = torch.cat([codes, (codes[1:] + codes[:-1]) / 2])
    neighbours = [torch.nextafter(edges, torch.tensor(way)) for way in (-np.inf, np.inf)]
    values = torch.cat([patterns, edges, *neighbours, torch.tensor([0.0, -0.0, np.inf, -np.inf, np.nan, 448.0, 464.0, 1e30])])
    return values[values.isfinite() | values.isnan() | values.isinf()]


def differing() -> dict[str, int]:
    """How many values round otherwise than torch rounds them, by format. NaN may have any payload."""
    x = every_kind()
    e4m3 = torch.empty(x.shape, dtype=torch.uint8)
    bf16, fp16 = torch.empty(x.shape, dtype=torch.bfloat16), torch.empty(x.shape, dtype=torch.float16)
    round_all[(triton.cdiv(x.numel(), 65536),)](x, e4m3, bf16, fp16, x.numel(), BLOCK=65536)
    saturated = torch.where(x.isnan(), x, x.clamp(-448.0, 448.0))
    expected = saturated.to(torch.float8_e4m3fn).view(torch.uint8)
    nan = x.isnan()
    return {
        "values": x.numel(),
        "e4m3": int(((e4m3 != expected) & ~nan).sum() + ((e4m3[nan] & 0x7F) != 0x7F).sum()),
        "bf16": int((bf16.view(torch.int16) != x.to(torch.bfloat16).view(torch.int16))[~nan].sum()),
        "fp16": int((fp16.view(torch.int16) != x.to(torch.float16).view(torch.int16))[~nan].sum()),
    }


def quantised(seq_len_kv: int, head_dim: int, scale: str, smooth_k: bool, hadamard: bool = False) -> dict[str, float]:
    """How a pre-pass differs from the same done in torch."""
    generator = torch.Generator().manual_seed(3)
    q, k, v = (
        torch.randn((2, heads, n, head_dim), generator=generator).bfloat16()
        for heads, n in ((4, 70), (2, seq_len_kv), (2, seq_len_kv))
    )
    k += 3.0  # a channel bias that smoothing should find
    k[0, 0, 5] = 0.0
    precision = Precision(fp8=True, fp8_scale=scale, smooth_k=smooth_k, hadamard=hadamard)
    operands = quantize(q, k, v, precision, Launch(has_tma=True))
    mean = k.float().mean(dim=2, keepdim=True) if smooth_k else torch.zeros(())
    q_back, k_back, v_back = dequantize(operands, seq_len_kv)
    q_rounded, q_stored = (operands.q.float() * operands.q_scale[..., None], q.float())
    if hadamard:
        q_stored = (q.double() @ walsh(operands.turn)).float()
    found = {
        "stored": operands.k.shape[2],
        "q": _largest_relative(q_rounded, q_stored, operands.q_scale[..., None]),
        "q back": float((q_back - q.float()).norm() / q.float().norm()),
        "k": float(((k_back - (k.float() - mean)).norm() / (k.float() - mean).norm()).item()),
        "v": _largest_relative(v_back, v.float(), operands.v_scale[:, :, None, :]),
        "v past the end": float(operands.v.float()[..., seq_len_kv:].abs().sum()),
        "q amax in scale": float((operands.q_scale * 448.0 - _amax(q_stored, scale)).abs().max()),
    }
    if smooth_k:
        shift = (q.float() * mean.repeat_interleave(2, dim=1)).sum(-1) * head_dim**-0.5
        found["shift"] = float((operands.lse_shift - shift).abs().max())
    return found


def walsh(turn: torch.Tensor) -> torch.Tensor:
    """The orthonormal matrix with entry (i, j) of sign (-1)^(ones in i and j), and turn's signs of the rows; float64."""
    size = len(turn)
    ones = torch.tensor([[(i & j).bit_count() % 2 for j in range(size)] for i in range(size)])
    return (1.0 - 2.0 * ones.double()) * turn[:, :1].double().sign() / size**0.5


def _amax(x: torch.Tensor, scale: str) -> torch.Tensor:
    rows = x.abs().amax(-1)
    if scale == "token":
        return rows
    return torch.cat([part.amax(-1, keepdim=True).expand_as(part) for part in rows.split(64, dim=-1)], dim=-1)


def _largest_relative(back: torch.Tensor, x: torch.Tensor, scale: torch.Tensor) -> float:
    """The largest error in units of what e4m3 may be off: 2^-4 of the value, or half of 2^-9 of the scale's unit."""
    return float(((back - x).abs() / torch.maximum(x.abs() * 2.0**-4, scale * 2.0**-10)).max())


if __name__ == "__main__":
    cases = [
        (100, 64, "token", True),
        (64, 80, "token", False),
        (33, 32, "block", True),
        (90, 128, "block", True, True),
        (40, 64, "token", False, True),
    ]
    print(json.dumps({"differing": differing(), "quantised": [quantised(*case) for case in cases]}))
