"""The contract of a version: what every flash_* module, native and the peers offer. Needs torch, not Triton."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from kernels.problem import AttentionProblem, BackwardTiles, Precision, TileConfig

if TYPE_CHECKING:
    from kernels.stamps import StampBuffers
    from kernels.trace import Frames, TraceBuffers

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Launcher(Protocol):
    """Takes a Triton kernel to the GPU, the interpreter or only the compiler: see kernels.launch."""

    has_tma: bool

    def __call__(self, kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
        """Launch kernel on grid; options are its constants, num_warps and num_stages."""


@dataclass(frozen=True)
class Operands:
    """What a forward reads. q (batch, num_heads, seq_len_q, head_dim); k, v (batch, num_kv_heads, seq_len_kv, head_dim).

    With FP8 (q_scale is not None) q, k, v are e4m3 as kernels.quantize stores them: K's rows reordered inside each 16,
    v (batch, num_kv_heads, head_dim, seq_len_kv), K and V with seq_len_kv rounded up to 16. q_scale, k_scale: float32,
    one a stored row; v_scale: one a channel, (batch, num_kv_heads, head_dim). lse_shift: what smoothing K took off the lse.
    turn: the matrix by which the rows of Q and K were multiplied before they were rounded, kernels.quantize.turn_matrix.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dtype: torch.dtype
    q_scale: torch.Tensor | None = None
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None
    lse_shift: torch.Tensor | None = None
    turn: torch.Tensor | None = None


@dataclass(frozen=True)
class AttentionOutput:
    """out: (batch, num_heads, seq_len_q, head_dim) in the problem's dtype; lse: float32, natural log, without head_dim.

    lse is None where the implementation does not give one unless asked (native), or never does (some peers).
    """

    out: torch.Tensor
    lse: torch.Tensor | None


class Kernel(Protocol):
    """A version, found by name through kernels.registry.load; a module with these functions fulfils it.

    Only those that the registry says can be traced (has_trace) take `trace` and `stamps`, and have frames().
    """

    def prepare(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, precision: Precision, launch: Launcher) -> Operands:
        """Everything that may be done once for given tensors, and is timed apart: the FP8 quantisation pre-pass."""

    def forward(
        self, operands: Operands, problem: AttentionProblem, tiles: TileConfig | None, launch: Launcher, with_lse: bool = True,
        trace: TraceBuffers | None = None, stamps: StampBuffers | None = None,
    ) -> AttentionOutput:  # fmt: skip
        """The attention itself: what is timed. Allocates its output, launches, returns without waiting.

        With trace, the traced variant is launched, which stores its tiles there; never in a timed launch. With stamps, the
        stamped one, which writes there who ran where and when. Raises ValueError for both at once.
        """

    def frames(self, trace: TraceBuffers, operands: Operands, problem: AttentionProblem) -> Frames:
        """What a traced launch stored, in natural units; waits for it."""


@dataclass(frozen=True)
class Gradients:
    """Of a loss by q, k and v, each with the shape and dtype of what it is the gradient of."""

    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor


class Backward(Protocol):
    """A version's backward, found by name through kernels.registry.load_backward; a module with these functions fulfils it.

    It computes the weights P again from q, k and the lse that the forward has left. Gradients are in bf16 or fp16; with FP8
    the forward runs in FP8, and its out and lse go with the inputs as they were before they were quantised.
    """

    def prepare(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Operands:
        """What preprocess and backward read, never quantised; without FP8 the forward of a training step reads it too.

        Where torch's autograd does the work (native, the peers) these are leaves that require a gradient: the forward that
        reads them must run with gradients enabled, and once for any number of backwards.
        """

    def preprocess(
        self, operands: Operands, output: AttentionOutput, d_out: torch.Tensor, problem: AttentionProblem, launch: Launcher
    ) -> torch.Tensor | None:
        """What backward() takes as delta: float32, (batch, num_heads, seq_len_q), the row sums of dO ∘ O; v3-hopper's has
        each row's lse, too, by blocks of 64 queries. None where it is not a step of its own."""

    def row_sums_in(self, delta: torch.Tensor, problem: AttentionProblem) -> torch.Tensor:
        """The row sums of dO ∘ O in what preprocess() returned: (batch, num_heads, seq_len_q)."""

    def backward(
        self, operands: Operands, output: AttentionOutput, d_out: torch.Tensor, problem: AttentionProblem,
        tiles: BackwardTiles | None, launch: Launcher, delta: torch.Tensor | None = None,
    ) -> Gradients:  # fmt: skip
        """The gradients of sum(out ∘ d_out), d_out shaped as out and contiguous. Launches, returns without waiting.

        output is the forward's: out and lse, or from autograd an out that knows its graph, which is kept. Without delta it
        is computed here, which is what counts as the whole backward.
        """


def require_layout(problem: AttentionProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise ValueError, in one sentence, unless the tensors have the problem's shapes and lie contiguous in memory."""
    expected_q = (problem.batch, problem.num_heads, problem.seq_len_q, problem.head_dim)
    expected_kv = (problem.batch, problem.num_kv_heads, problem.seq_len_kv, problem.head_dim)
    for name, tensor, expected in (("q", q, expected_q), ("k", k, expected_kv), ("v", v, expected_kv)):
        if tuple(tensor.shape) != expected:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, the problem asks for {expected}.")
        if not tensor.is_contiguous():
            raise ValueError(
                f"{name} is not contiguous: (batch, heads, seq_len, head_dim) must be row-major; call .contiguous()."
            )


def as_given(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _precision: Precision, _launch: Launcher) -> Operands:
    """The prepare() of a version that reads q, k and v as they are."""
    return Operands(q, k, v, dtype=q.dtype)
