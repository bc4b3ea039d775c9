"""What the versions' backwards share: delta, the order of key blocks, and attention() as a function that autograd knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from kernels import registry
from kernels.architecture import architecture
from kernels.kernel import TORCH_DTYPES, AttentionOutput, Backward, Kernel, Launcher, Operands, require_layout
from kernels.launch import Launch
from kernels.problem import AttentionProblem, BackwardTiles, Precision, TileConfig, listed
from kernels.tiles import INTERPRETED

DIFFERENTIABLE = tuple(
    name for name in registry.OUR_VERSIONS if registry.VERSIONS[name].backwards and registry.VERSIONS[name].has_tiles
)
"""The versions that attention() has; the others are functions of torch, which autograd knows without it."""
_CAPABILITY_OF_TILES = 90  # in the interpreter, where no limit counts
_DELTA_ROWS = 64
_SECTION_BYTES = 32 << 20


@triton.jit
def backward_delta(
    out_ptr, d_out_ptr, delta_ptr, num_rows, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    dims = tl.arange(0, PADDED_DIM)
    offsets = rows.to(tl.int64)[:, None] * HEAD_DIM + dims[None, :]
    inside = (rows < num_rows)[:, None] & (dims < HEAD_DIM)[None, :]
    out = tl.load(out_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    d_out = tl.load(d_out_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    tl.store(delta_ptr + rows, tl.sum(out * d_out, 1), mask=rows < num_rows)


def row_sums(
    _operands: Operands, output: AttentionOutput, d_out: torch.Tensor, problem: AttentionProblem, launch: Launcher
) -> torch.Tensor:
    """delta, the row sums of dO ∘ O, which stand for a sum over all keys (FA2 paper, Algorithm 2, line 4)."""
    delta = torch.empty(d_out.shape[:-1], dtype=torch.float32, device=d_out.device)
    launch(
        backward_delta, (triton.cdiv(delta.numel(), _DELTA_ROWS),), output.out, d_out, delta, delta.numel(),
        HEAD_DIM=problem.head_dim, PADDED_DIM=problem.padded_head_dim, BLOCK=_DELTA_ROWS, num_warps=4, num_stages=1,
    )  # fmt: skip
    return delta


def row_sums_in(delta: torch.Tensor, _problem: AttentionProblem) -> torch.Tensor:
    """delta is those; see kernels.kernel.Backward."""
    return delta


@triton.jit
def key_block_at(index, num_blocks, num_heads_in_all, heads_per_section, HEAVIEST_FIRST: tl.constexpr):
    """Which key block and (batch · key-value head) is the index-th; a section's queries and dO stay in the L2 cache.

    When causal the first keys are seen by most queries: HEAVIEST_FIRST starts with the first block of all heads of a section.
    """
    section = index // (heads_per_section * num_blocks)
    first_head = section * heads_per_section
    heads = tl.minimum(heads_per_section, num_heads_in_all - first_head)
    within = index - section * heads_per_section * num_blocks
    if HEAVIEST_FIRST:
        return within // heads, first_head + within % heads
    else:
        return within % num_blocks, first_head + within // num_blocks


@triton.jit
def seeing_blocks(first_key, last_key, seq_len_q, seq_len_kv, BLOCK_M: tl.constexpr, CAUSAL: tl.constexpr):
    """(first, full, whole, end) in blocks of BLOCK_M queries, of which none before first sees a key from first_key to last_key.

    All queries of the blocks from full to before whole see all these keys: only the others, to before end, need a mask.
    """
    whole = seq_len_q // BLOCK_M
    end = tl.cdiv(seq_len_q, BLOCK_M)
    if CAUSAL:
        offset = seq_len_kv - seq_len_q
        first = tl.minimum(tl.maximum(first_key - offset, 0) // BLOCK_M, end)
        full = tl.minimum(tl.cdiv(tl.maximum(last_key - offset, 0), BLOCK_M), end)
        return first, full, tl.maximum(full, whole), end
    else:
        return 0, 0, whole, end


def key_heads_per_section(problem: AttentionProblem, element_bytes: int) -> int:
    """How many key-value heads (batch · head) run beside each other: those whose queries and dO lie in the L2 cache."""
    group = problem.num_heads // problem.num_kv_heads
    bytes_a_head = 2 * group * problem.seq_len_q * problem.head_dim * element_bytes
    return max(1, min(problem.batch * problem.num_kv_heads, _SECTION_BYTES // bytes_a_head))


class _Attention(torch.autograd.Function):
    """The forward of a version, and its backward on what that leaves: q, k, v, out and lse."""

    @staticmethod
    def forward(context: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: _Plan) -> torch.Tensor:
        operands = plan.backward.prepare(q, k, v)
        output = plan.kernel.forward(operands, plan.problem, plan.tiles, plan.launch)
        context.save_for_backward(q, k, v, output.out, output.lse)
        context.plan = plan
        return output.out

    @staticmethod
    @once_differentiable
    def backward(context: Any, d_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, lse = context.saved_tensors
        plan = context.plan
        gradients = plan.backward.backward(
            plan.backward.prepare(q, k, v), AttentionOutput(out, lse), d_out.contiguous(), plan.problem, plan.backward_tiles,
            plan.launch,
        )  # fmt: skip
        return gradients.dq, gradients.dk, gradients.dv, None


@dataclass(frozen=True)
class _Plan:
    """What one call of attention() runs."""

    kernel: Kernel
    backward: Backward
    problem: AttentionProblem
    tiles: TileConfig
    backward_tiles: BackwardTiles
    launch: Launcher


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, version: str = "v3", causal: bool = False,
    tiles: TileConfig | None = None, backward_tiles: BackwardTiles | None = None, launch: Launcher | None = None,
) -> torch.Tensor:  # fmt: skip
    """softmax(q kᵀ / sqrt(head_dim)) v by one of our versions, differentiable once in q, k and v.

    q (batch, num_heads, seq_len_q, head_dim); k, v (batch, num_kv_heads, seq_len_kv, head_dim); bf16 or fp16, contiguous.
    Without tiles those of the registry for this GPU. Raises ValueError, or registry.Refused, that says what is not possible:
    a shape, a dtype, a version that is not ours or has no backward.
    """
    if version not in DIFFERENTIABLE:
        raise ValueError(f"version = {version} is not possible: it can be {listed(DIFFERENTIABLE)}.")
    dtypes = {name for name, dtype in TORCH_DTYPES.items() if q.dtype == k.dtype == v.dtype == dtype}
    if not dtypes:
        raise ValueError(f"dtype = {q.dtype}, {k.dtype}, {v.dtype} is not possible: all three can be bf16, or all fp16.")
    problem = _problem_of(q, k, causal)
    require_layout(problem, q, k, v)
    if not (q.is_cuda or INTERPRETED.value):
        raise ValueError(
            f"device = {q.device} is not possible: it can be a CUDA GPU, or the CPU where TRITON_INTERPRET=1 is set."
        )
    precision = Precision(dtype=dtypes.pop())
    on_gpu = q.is_cuda
    arch = architecture(_capability(q.device) if on_gpu else _CAPABILITY_OF_TILES)
    tiles = tiles or registry.default_tiles(version, problem, precision, arch)
    backward_tiles = backward_tiles or registry.default_backward_tiles(version, problem, precision, arch)
    registry.refuse(version, problem, precision, tiles, arch if on_gpu else None)
    registry.refuse_backward(version, problem, precision, backward_tiles, arch if on_gpu else None)
    kernel, of_backward = registry.load(version), registry.load_backward(version, problem)
    plan = _Plan(kernel, of_backward, problem, tiles, backward_tiles, launch or Launch())
    return _Attention.apply(q, k, v, plan)


def _problem_of(q: torch.Tensor, k: torch.Tensor, causal: bool) -> AttentionProblem:
    for name, tensor in (("q", q), ("k", k)):
        if tensor.dim() != 4:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}: it must be (batch, heads, seq_len, head_dim).")
    return AttentionProblem(
        batch=q.shape[0], num_heads=q.shape[1], num_kv_heads=k.shape[1], seq_len_q=q.shape[2], seq_len_kv=k.shape[2],
        head_dim=q.shape[3], causal=causal,
    )  # fmt: skip


def _capability(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor
