"""What is computed, and with which tiles: AttentionProblem, TileConfig, Precision. Pure: neither torch nor Triton."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, model_validator

HEAD_DIMS = (16, 32, 64, 80, 96, 128, 256)
# Sides and warps of Triton's own tiles are powers of two; v3-hopper, in Gluon, can also have three warpgroups of 64 queries.
BLOCK_SIZES = (16, 32, 64, 128, 256, 512)
BLOCK_M_SIZES = (16, 32, 64, 128, 192, 256, 512)
NUM_WARPS = (1, 2, 4, 8, 16)
WARP_COUNTS = (1, 2, 4, 8, 12, 16)
NUM_STAGES = (1, 2, 3, 4, 5, 6)
# Heads are found by 64-bit offsets; within a head of 4 Mi tokens of 256 numbers 32 bits are enough.
MAX_SEQ_LEN = 1 << 22

Dtype = Literal["bf16", "fp16"]
Fp8Scale = Literal["token", "block", "head"]
LoopOrder = Literal["query", "key"]
BlockOrder = Literal["default", "natural", "heaviest", "zigzag"]
DTYPES: tuple[str, ...] = get_args(Dtype)
FP8_SCALES: tuple[str, ...] = ("token", "block")  # what ours lets one choose; FA3 has one a head
LOOP_ORDERS: tuple[str, ...] = get_args(LoopOrder)
BLOCK_ORDERS: tuple[str, ...] = get_args(BlockOrder)
BLOCK_ORDER_WORDS = {"default": "its own order", "natural": "natural order", "heaviest": "heaviest first", "zigzag": "zig-zag"}
MAX_PROGRAMS = 1 << 16


class Frozen(BaseModel):
    """A value that cannot change, takes no unknown field, converts no type and holds no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def listed(values: tuple[object, ...]) -> str:
    """Values in a sentence: '1, 2 or 3'."""
    return ", ".join(str(value) for value in values[:-1]) + f" or {values[-1]}"


def _require_one_of(name: str, value: int, allowed: tuple[int, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} = {value} is not possible: it can be {listed(allowed)}.")


def _require_between(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} = {value} is not possible: it can be {low} to {high}.")


class AttentionProblem(Frozen):
    """One attention forward: out = softmax(q kᵀ · sm_scale) v, per batch and head.

    Shapes: q (batch, num_heads, seq_len_q, head_dim); k, v (batch, num_kv_heads, seq_len_kv, head_dim). Query head h
    reads key-value head h // (num_heads / num_kv_heads). Causal is aligned bottom-right: query i sees key j when
    j ≤ i + seq_len_kv − seq_len_q, so a query may see nothing (then out is 0 and lse −inf).
    Raises ValueError (inside pydantic's) that names the value and what is allowed.
    """

    batch: int = 1
    num_heads: int = 16
    num_kv_heads: int = 16
    seq_len_q: int
    seq_len_kv: int
    head_dim: int = 128
    causal: bool = False

    @model_validator(mode="after")
    def _possible(self) -> AttentionProblem:
        _require_between("batch", self.batch, 1, 65536)
        _require_between("num_heads", self.num_heads, 1, 1024)
        _require_between("num_kv_heads", self.num_kv_heads, 1, self.num_heads)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads = {self.num_kv_heads} is not possible: num_heads = {self.num_heads} must be a multiple of it."
            )
        _require_between("seq_len_q", self.seq_len_q, 1, MAX_SEQ_LEN)
        _require_between("seq_len_kv", self.seq_len_kv, 1, MAX_SEQ_LEN)
        _require_one_of("head_dim", self.head_dim, HEAD_DIMS)
        return self

    @property
    def sm_scale(self) -> float:
        """1 / sqrt(head_dim), the factor on the scores."""
        return self.head_dim**-0.5

    @property
    def visible_pairs(self) -> float:
        """(query, key) pairs of one head that are not masked; when causal N² / 2, the papers' convention."""
        if not self.causal:
            return float(self.seq_len_q) * self.seq_len_kv
        if self.seq_len_q <= self.seq_len_kv:
            return self.seq_len_q * (self.seq_len_kv - self.seq_len_q / 2)
        return self.seq_len_kv**2 / 2

    @property
    def flops(self) -> float:
        """Floating-point operations of the two products, 4 · batch · num_heads · pairs · head_dim (FA2 paper, section 4)."""
        return 4.0 * self.batch * self.num_heads * self.visible_pairs * self.head_dim

    @property
    def padded_head_dim(self) -> int:
        """The power of two that a tile's inner side has: 80 and 96 are padded to 128."""
        return 1 << (self.head_dim - 1).bit_length()

    @property
    def title(self) -> str:
        """Words for a heading: '16,384 tokens · head_dim 128 · causal'."""
        length = f"{self.seq_len_q:,}" if self.seq_len_q == self.seq_len_kv else f"{self.seq_len_q:,} × {self.seq_len_kv:,}"
        return f"{length} {'token' if length == '1' else 'tokens'} · head_dim {self.head_dim}" + (
            " · causal" if self.causal else ""
        )


class Precision(Frozen):
    """Number formats: inputs and output in dtype; with fp8, Q, K, V and P enter the products as e4m3 (largest value 448).

    fp8_scale: one scale a token (row of Q, K) or a block of 64 tokens, with one a channel for V; or, as FA3 has it, one a
    key-value head for each of Q, K and V. smooth_k subtracts K's mean over the tokens before it is quantised, which the
    softmax does not notice (SageAttention, section 4.2). hadamard turns each row of Q and K by one Hadamard matrix before it
    is rounded to e4m3, which their product does not notice (FA3, section 3.3); it is possible with fp8 only.
    Raises ValueError (inside pydantic's) that names the value and what is allowed.
    """

    dtype: Dtype = "bf16"
    fp8: bool = False
    fp8_scale: Fp8Scale = "token"
    smooth_k: bool = True
    hadamard: bool = False

    @model_validator(mode="after")
    def _possible(self) -> Precision:
        if self.hadamard and not self.fp8:
            raise ValueError("hadamard = True is not possible without fp8: only what is rounded to FP8 is turned.")
        return self

    @property
    def title(self) -> str:
        """Words for a heading: 'bf16' or 'FP8'."""
        return "FP8" if self.fp8 else self.dtype


class TileConfig(Frozen):
    """How the work is cut: BLOCK_M queries by BLOCK_N keys a tile, warps a program, loads in flight (stages).

    loop_order is read by v1 alone: 'query' runs a program per query tile, 'key' the paper's Algorithm 1. block_order says
    in which order query blocks start, for the versions that let it be chosen: 'natural' from the first row on, 'heaviest'
    those with most tiles first, 'zigzag' heaviest and lightest in turn; 'default' is the version's own. num_programs: as many
    programs are launched, and each takes block after block (a persistent grid); None: one program a block.
    BLOCK_M = 192 and 12 warps are v3-hopper's alone: kernels.registry.refuse says so.
    Raises ValueError (inside pydantic's) that names the value and what is allowed.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    loop_order: LoopOrder = "query"
    block_order: BlockOrder = "default"
    num_programs: int | None = None

    @model_validator(mode="after")
    def _possible(self) -> TileConfig:
        _require_one_of("BLOCK_M", self.block_m, BLOCK_M_SIZES)
        _require_one_of("BLOCK_N", self.block_n, BLOCK_SIZES)
        _require_one_of("num_warps", self.num_warps, WARP_COUNTS)
        _require_one_of("num_stages", self.num_stages, NUM_STAGES)
        if self.num_programs is not None:
            _require_between("num_programs", self.num_programs, 1, MAX_PROGRAMS)
        return self

    @property
    def title(self) -> str:
        """Words for a caption: '128 × 64, 8 warps, 3 stages'."""
        order = ", key-outer" if self.loop_order == "key" else ""
        order += "" if self.block_order == "default" else f", {BLOCK_ORDER_WORDS[self.block_order]}"
        order += "" if self.num_programs is None else f", {self.num_programs:,} persistent programs"
        return f"{self.block_m} × {self.block_n}, {self.num_warps} warps, {self.num_stages} stages{order}"


class BackwardTiles(Frozen):
    """How a backward's work is cut: the tiles of the kernel for dK and dV, and of the one for dQ.

    In both BLOCK_M counts queries and BLOCK_N keys. dq is None where one kernel computes all three (v1).
    """

    dkdv: TileConfig
    dq: TileConfig | None = None

    @property
    def title(self) -> str:
        """Words for a caption: 'dK, dV 64 × 128, 8 warps, 2 stages; dQ 128 × 64, 8 warps, 3 stages'."""
        if self.dq is None:
            return self.dkdv.title
        return f"dK, dV {self.dkdv.title}; dQ {self.dq.title}"
