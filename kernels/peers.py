"""What a user would pick instead of ours, where it is installed: cuDNN and FA2 through torch's SDPA, and FA3."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from kernels.kernel import AttentionOutput, Launcher, Operands, as_given
from kernels.problem import AttentionProblem, Precision, TileConfig

_FA3_MODULES = ("fa3_fwd_interface", "flash_attn_interface")


@dataclass(frozen=True)
class _Sdpa:
    """torch.nn.functional.scaled_dot_product_attention held to one backend. Gives no lse."""

    backend: SDPBackend

    def prepare(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, precision: Precision, launch: Launcher) -> Operands:
        return as_given(q, k, v, precision, launch)

    def forward(
        self, operands: Operands, problem: AttentionProblem, tiles: TileConfig | None, launch: Launcher, with_lse: bool = True
    ) -> AttentionOutput:
        square = problem.seq_len_q == problem.seq_len_kv
        mask = causal_lower_right(problem.seq_len_q, problem.seq_len_kv) if problem.causal and not square else None
        with sdpa_kernel(self.backend):
            out = torch.nn.functional.scaled_dot_product_attention(
                operands.q, operands.k, operands.v, attn_mask=mask, is_causal=problem.causal and square,
                enable_gqa=problem.num_heads != problem.num_kv_heads,
            )  # fmt: skip
        return AttentionOutput(out, None)


@dataclass(frozen=True)
class _Fa3:
    """FlashAttention-3's forward. Its layout is (batch, seq_len, heads, head_dim); the transposes are views, made outside."""

    interface: ModuleType

    def prepare(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, precision: Precision, launch: Launcher) -> Operands:
        return Operands(*(x.transpose(1, 2).contiguous() for x in (q, k, v)), dtype=q.dtype)

    def forward(
        self, operands: Operands, problem: AttentionProblem, tiles: TileConfig | None, launch: Launcher, with_lse: bool = True
    ) -> AttentionOutput:
        result = self.interface.flash_attn_func(operands.q, operands.k, operands.v, causal=problem.causal)
        out = result[0] if isinstance(result, tuple) else result
        return AttentionOutput(out.transpose(1, 2), None)


def peer(name: str) -> _Sdpa | _Fa3:
    """The peer of a registry name. Raises ImportError, naming the package, where FA3 is not installed."""
    if name == "sdpa-cudnn":
        return _Sdpa(SDPBackend.CUDNN_ATTENTION)
    if name == "sdpa-flash":
        return _Sdpa(SDPBackend.FLASH_ATTENTION)
    for module in _FA3_MODULES:
        try:
            return _Fa3(importlib.import_module(module))
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
    raise ImportError("FA3 is not installed here: pip install fa3-fwd (Hopper only).")
