"""A child process with TRITON_INTERPRET set: the pre-pass against the same done in float64, in torch; prints JSON."""

import json

import torch

from kernels import quantize as module
from kernels.kernel import Operands
from kernels.launch import Launch
from kernels.problem import Precision
from kernels.quantize import quantize, tokens_of_rows
from tests.interpreted_rounding import walsh

# batch, num_heads, num_kv_heads, seq_len_q, seq_len_kv, head_dim, scale, smooth_k, hadamard
CASES = {
    "ragged, GQA": (2, 4, 2, 70, 100, 64, "token", True, False),
    "a width that is no power of two": (1, 2, 2, 64, 77, 80, "block", True, False),
    "whole blocks": (1, 2, 2, 128, 256, 128, "block", True, False),
    "whole blocks, turned": (1, 2, 2, 128, 256, 128, "token", True, True),
    "several chunks": (1, 2, 1, 65, 1100, 128, "block", True, False),
    "several chunks, not smoothed": (2, 2, 2, 3, 600, 256, "token", False, False),
    "wide, turned": (1, 2, 1, 70, 130, 256, "block", True, True),
    "narrow, turned": (1, 4, 2, 40, 50, 32, "token", False, True),
    "narrowest, turned": (1, 2, 1, 33, 300, 16, "block", True, True),
    "one token": (1, 2, 1, 1, 1, 64, "token", True, True),
}


def inputs(case: tuple) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """N(0, 1); K with a bias, and in its first head a token of zeros; a channel of V that is zero."""
    batch, num_heads, num_kv_heads, seq_len_q, seq_len_kv, head_dim = case[:6]
    generator = torch.Generator().manual_seed(5)
    q, k, v = (
        torch.randn((batch, heads, n, head_dim), generator=generator)
        for heads, n in ((num_heads, seq_len_q), (num_kv_heads, seq_len_kv), (num_kv_heads, seq_len_kv))
    )
    k = k + 3.0 * torch.randn((batch, num_kv_heads, 1, head_dim), generator=generator)
    k[0, 0, seq_len_kv // 2] = 0.0
    v[..., 1] = 0.0
    return q.bfloat16(), k.bfloat16(), v.bfloat16()


def largest(x: torch.Tensor, scale: str) -> torch.Tensor:
    rows = x.abs().amax(-1)
    if scale == "block":
        rows = torch.cat([part.amax(-1, keepdim=True).expand_as(part) for part in rows.split(64, dim=-1)], dim=-1)
    return rows


def steps_off(codes: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor, slack: float = 0.0) -> float:
    """The largest error, but for slack, in halves of the distance between e4m3's neighbours: 1 is a tie."""
    wanted = exact / scale.double()
    distance = 2.0 ** (torch.frexp(wanted.abs().clamp(min=2.0**-6))[1] - 4).double()
    error = ((codes.double() - wanted).abs() - slack / scale.double()).clamp(min=0.0)
    return float((error / (distance / 2)).max())


def relative(x: torch.Tensor, exact: torch.Tensor) -> float:
    return float(((x.double() - exact).abs() / exact.abs().clamp(min=1e-30)).max())


def found(case: tuple) -> dict[str, float]:
    q, k, v = inputs(case)
    seq_len_kv, head_dim, scale, smooth_k, hadamard = case[4:]
    precision = Precision(fp8=True, fp8_scale=scale, smooth_k=smooth_k, hadamard=hadamard)
    operands: Operands = quantize(q, k, v, precision, Launch(has_tma=True))
    order = tokens_of_rows(torch.arange(operands.k.shape[2]))
    exact_q, exact_k, exact_v = q.double(), k.double(), v.double()
    mean = exact_k.mean(2, keepdim=True)
    if smooth_k:
        exact_k = exact_k - mean
    if hadamard:
        exact_q, exact_k = exact_q @ walsh(operands.turn), exact_k @ walsh(operands.turn)
    # A mean of sums in float32 is up to 2^-20 off; and if K is turned, float32 has sums of its rows before they lose the mean.
    k_slack = 2.0**-20 if smooth_k else 0.0
    if smooth_k and hadamard:
        k_slack = 2.0**-22 * float(k.double().norm(dim=-1).max())
    stored_k = torch.cat([exact_k, exact_k.new_zeros((*k.shape[:2], len(order) - seq_len_kv, head_dim))], 2)[:, :, order]
    k_largest, q_largest = largest(stored_k, scale), largest(exact_q, scale)
    v_largest = exact_v.abs().amax(2)
    exact_scales = [torch.where(x > 0, x / 448.0, 1.0) for x in (q_largest, k_largest, v_largest)]
    stored_v = torch.cat([exact_v, exact_v.new_zeros((*v.shape[:2], len(order) - seq_len_kv, head_dim))], 2).transpose(2, 3)
    result = {
        "q": steps_off(operands.q, exact_q, operands.q_scale[..., None]),
        "k": steps_off(operands.k, stored_k, operands.k_scale[..., None], k_slack),
        "v": steps_off(operands.v, stored_v, operands.v_scale[..., None]),
        "past the end": float(
            operands.v.float()[..., seq_len_kv:].abs().sum() + operands.k.float()[:, :, order >= seq_len_kv].abs().sum()
        ),
        "q_scale": relative(operands.q_scale, exact_scales[0]),
        "k_scale": relative(operands.k_scale, exact_scales[1]),
        "v_scale": relative(operands.v_scale, exact_scales[2]),
    }  # fmt: skip
    if smooth_k:
        shift = (q.double() * mean.repeat_interleave(q.shape[1] // k.shape[1], 1)).sum(-1) * head_dim**-0.5
        result["shift"] = float((operands.lse_shift.double() - shift).abs().max())
    return result


def in_other_orders() -> list[bool]:
    """Whether every operand is the same, bit for bit, however the programs for V are mixed with the others."""
    q, k, v = inputs((1, 4, 2, 300, 300, 64))
    precision = Precision(fp8=True, fp8_scale="block", smooth_k=True, hadamard=True)
    made = []
    for every in (2, 1, 3, 4):
        module._EVERY = every
        made.append(quantize(q, k, v, precision, Launch(has_tma=True)))
    names = ("q", "k", "v", "q_scale", "k_scale", "v_scale", "lse_shift")
    kept = [[getattr(operands, name).contiguous().view(torch.uint8) for name in names] for operands in made]
    return [all(torch.equal(a, b) for a, b in zip(kept[0], other, strict=True)) for other in kept[1:]]


if __name__ == "__main__":
    print(json.dumps({"cases": {name: found(case) for name, case in CASES.items()}, "in_other_orders": in_other_orders()}))
