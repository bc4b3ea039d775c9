"""What a user would pick instead of ours, where it is installed: cuDNN and FA2 through torch's SDPA, FlexAttention, FA3."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.kernel import AttentionOutput, Launcher, Operands, as_given
from kernels.problem import AttentionProblem, Precision, TileConfig
from kernels.registry import Refused

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

_FA3_MODULES = ("fa3_fwd_interface", "flash_attn_interface")
_E4M3_MAX = 448.0


@dataclass(frozen=True)
class _Sdpa:
    """torch.nn.functional.scaled_dot_product_attention held to one backend. Gives no lse."""

    backend: SDPBackend

    def prepare(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, precision: Precision, launch: Launcher) -> Operands:
        return as_given(q, k, v, precision, launch)

    def forward(
        self, operands: Operands, problem: AttentionProblem, tiles: TileConfig | None, launch: Launcher, with_lse: bool = True
    ) -> AttentionOutput:
        square, mask = problem.seq_len_q == problem.seq_len_kv, None
        if problem.causal and not square:
            from torch.nn.attention.bias import causal_lower_right  # brings torch's compiler: a second at a worker's start

            mask = causal_lower_right(problem.seq_len_q, problem.seq_len_kv)
        with sdpa_kernel(self.backend):
            out = torch.nn.functional.scaled_dot_product_attention(
                operands.q, operands.k, operands.v, attn_mask=mask, is_causal=problem.causal and square,
                enable_gqa=problem.num_heads != problem.num_kv_heads,
            )  # fmt: skip
        return AttentionOutput(out, None)


@dataclass(frozen=True)
class _Flex:
    """torch's flex_attention, the causal mask as a block mask, which is made once a shape. Gives no lse."""

    attend: Callable[..., torch.Tensor]

    def prepare(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, precision: Precision, launch: Launcher) -> Operands:
        return as_given(q, k, v, precision, launch)

    def forward(
        self, operands: Operands, problem: AttentionProblem, tiles: TileConfig | None, launch: Launcher, with_lse: bool = True
    ) -> AttentionOutput:
        mask = _bottom_right(problem.seq_len_q, problem.seq_len_kv, operands.q.device) if problem.causal else None
        try:
            out = self.attend(
                operands.q, operands.k, operands.v, block_mask=mask, enable_gqa=problem.num_heads != problem.num_kv_heads
            )
        except RuntimeError as error:
            raise _refusal(error) from error
        return AttentionOutput(out, None)


@lru_cache(maxsize=4)
def _bottom_right(seq_len_q: int, seq_len_kv: int, device: torch.device) -> BlockMask:
    from torch.nn.attention.flex_attention import create_block_mask

    offset = seq_len_kv - seq_len_q

    def sees(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return query + offset >= key

    return create_block_mask(sees, None, None, seq_len_q, seq_len_kv, device)


def _refusal(error: RuntimeError) -> RuntimeError | Refused:
    """What torch.compile could not do is refused; every other error stays what it is."""
    from torch._dynamo.exc import TorchDynamoException

    if not isinstance(error, TorchDynamoException):
        return error
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return Refused(f"flex is not possible here: torch.compile could not compile it ({reason[:200].rstrip('.')}).")


def _compiled_flex() -> Callable[..., torch.Tensor]:
    """flex_attention, compiled for each shape; without compiling it would write S out.

    Dynamo compiles a function for 8 shapes and then runs it as it stands: resetting begins anew, and with fullgraph the
    limit is an error instead of a slow result.
    """
    from torch.nn.attention.flex_attention import flex_attention

    torch.compiler.reset()
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


@dataclass(frozen=True)
class HeadScaled(Operands):
    """FA3's operands: q (batch, seq_len_q, num_heads, head_dim); k, v (batch, seq_len_kv, num_kv_heads, head_dim).

    With FP8 they are e4m3, and q_scale, k_scale, v_scale (batch, num_kv_heads) float32: Q has one scale for all query
    heads that share a key-value head.
    """

    def dequantized(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v in float32, (batch, heads, seq_len, head_dim), as codes and scales stand for them."""
        group = self.q.shape[2] // self.k.shape[2]
        scaled = ((self.q, self.q_scale.repeat_interleave(group, 1)), (self.k, self.k_scale), (self.v, self.v_scale))
        return tuple((x.float() * scale[:, None, :, None]).transpose(1, 2).contiguous() for x, scale in scaled)


@dataclass(frozen=True)
class _Fa3:
    """FlashAttention-3's forward. Its layout is (batch, seq_len, heads, head_dim); the transposes are made outside."""

    interface: ModuleType

    def prepare(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, precision: Precision, launch: Launcher) -> HeadScaled:
        if not precision.fp8:
            return HeadScaled(*(x.transpose(1, 2).contiguous() for x in (q, k, v)), dtype=q.dtype)
        group = q.shape[1] // k.shape[1]
        codes, scales = zip(_by_head(q, group), _by_head(k, 1), _by_head(v, 1), strict=True)
        return HeadScaled(*codes, dtype=q.dtype, **dict(zip(("q_scale", "k_scale", "v_scale"), scales, strict=True)))

    def forward(
        self, operands: Operands, problem: AttentionProblem, tiles: TileConfig | None, launch: Launcher, with_lse: bool = True
    ) -> AttentionOutput:
        scales = {"q_descale": operands.q_scale, "k_descale": operands.k_scale, "v_descale": operands.v_scale}
        result = self.interface.flash_attn_func(
            operands.q, operands.k, operands.v, causal=problem.causal, **(scales if operands.q_scale is not None else {})
        )
        out = result[0] if isinstance(result, tuple) else result
        return AttentionOutput(out.transpose(1, 2), None)


def _by_head(x: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes (batch, seq_len, heads, head_dim) in e4m3, scales (batch, heads / group)): the largest magnitude becomes 448."""
    largest = torch.linalg.vector_norm(x, torch.inf, dim=(2, 3), dtype=torch.float32).unflatten(1, (-1, group)).amax(2)
    scale = torch.where(largest > 0.0, largest / _E4M3_MAX, 1.0)
    scaled = x.transpose(1, 2) / scale.repeat_interleave(group, 1)[:, None, :, None]
    return scaled.to(torch.float8_e4m3fn, memory_format=torch.contiguous_format), scale


def peer(name: str) -> _Sdpa | _Flex | _Fa3:
    """The peer of a registry name. Raises ImportError, naming the package, where FA3 is not installed."""
    if name == "sdpa-cudnn":
        return _Sdpa(SDPBackend.CUDNN_ATTENTION)
    if name == "sdpa-flash":
        return _Sdpa(SDPBackend.FLASH_ATTENTION)
    if name == "flex":
        return _Flex(_compiled_flex())
    for module in _FA3_MODULES:
        try:
            return _Fa3(importlib.import_module(module))
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
    raise ImportError("FA3 is not installed here: pip install fa3-fwd (Hopper only).")
