"""The tiles each version starts with. Pure.

For Hopper most are the best of a search on an H200; v1 and FP8 at head_dim 256, v3 there with a ragged end, and all
key-outer ones were chosen, as those for other GPUs, because they compile without spills and fit.
"""

from __future__ import annotations

from kernels.architecture import Architecture
from kernels.problem import AttentionProblem, LoopOrder, Precision, TileConfig

Tiles = tuple[int, int, int, int]
"""BLOCK_M, BLOCK_N, warps, stages."""

_SHORT, _MEDIUM, _LONG = 2048, 4096, 16384
_H200_SMS = 132

# By padded head_dim. Data-centre Ampere and consumer cards have different room in shared memory.
_AMPERE: dict[str, dict[int, Tiles]] = {
    "v1": {32: (128, 64, 4, 3), 64: (128, 64, 8, 3), 128: (64, 32, 4, 2), 256: (64, 32, 8, 2)},
    "v2": {32: (128, 64, 4, 3), 64: (128, 64, 8, 3), 128: (64, 64, 4, 3), 256: (64, 64, 8, 2)},
    "v3": {32: (64, 64, 4, 3), 64: (128, 64, 8, 3), 128: (128, 64, 8, 3), 256: (64, 32, 8, 3)},
}
_CONSUMER: dict[str, dict[int, Tiles]] = {
    "v1": {32: (128, 64, 4, 3), 64: (128, 64, 8, 3), 128: (128, 32, 8, 3), 256: (64, 32, 8, 2)},
    "v2": {32: (128, 64, 4, 3), 64: (128, 64, 8, 3), 128: (64, 64, 4, 3), 256: (64, 32, 8, 2)},
    "v3": {32: (64, 64, 4, 3), 64: (128, 64, 8, 3), 128: (64, 64, 4, 3), 256: (64, 32, 8, 2)},
    "fp8": {32: (64, 64, 4, 3), 64: (64, 128, 4, 3), 128: (64, 128, 4, 3), 256: (64, 64, 8, 2)},
}
_BLACKWELL: dict[str, dict[int, Tiles]] = {
    "v1": {32: (128, 64, 4, 3), 64: (128, 64, 8, 3), 128: (128, 64, 8, 3), 256: (64, 64, 8, 2)},
    "v2": {32: (128, 64, 4, 3), 64: (128, 64, 8, 3), 128: (128, 128, 8, 3), 256: (128, 64, 8, 2)},
    "v3": {32: (64, 64, 4, 3), 64: (64, 128, 4, 3), 128: (64, 64, 4, 3), 256: (64, 64, 4, 3)},
    "fp8": {32: (64, 64, 4, 2), 64: (64, 128, 4, 3), 128: (64, 32, 4, 3), 256: (128, 64, 8, 2)},
}
_CONSUMER_BLACKWELL = {
    **_CONSUMER,
    "v1": {**_CONSUMER["v1"], 128: (64, 32, 4, 2)},
    "v3": {**_CONSUMER["v3"], 128: (128, 64, 8, 3)},
}
_TABLES = {80: _AMPERE, 100: _BLACKWELL, 120: _CONSUMER_BLACKWELL}
# What v3-hopper has, by padded head_dim: BLOCK_M is 64 queries a warpgroup, and its registers must hold S, P and O.
HOPPER_TILES: dict[int, tuple[tuple[int, int], ...]] = {
    64: ((256, 64), (128, 128), (192, 128), (128, 64)),
    128: ((128, 128), (128, 64)),
    256: ((128, 64),),
}
HOPPER_FP8_TILES: dict[int, tuple[tuple[int, int], ...]] = {
    64: ((192, 128), (128, 128)),
    128: ((128, 128),),
    256: ((128, 128),),
}
# As many tiles of K and V as shared memory has room for in FP8.
HOPPER_STAGES, HOPPER_FP8_STAGES = {64: 2, 128: 2, 256: 2}, {64: 4, 128: 4, 256: 2}
_KEY_OUTER: dict[int, Tiles] = {32: (64, 32, 8, 2), 64: (64, 32, 8, 2), 128: (64, 32, 8, 1), 256: (32, 32, 8, 1)}


def tiles_to_start_with(
    name: str, problem: AttentionProblem, precision: Precision, arch: Architecture, loop_order: LoopOrder
) -> TileConfig:
    """The default of a version that has tiles; see kernels.registry.default_tiles."""
    dim = max(32, problem.padded_head_dim)
    if name == "v3-hopper":
        chosen = _hopper_gluon_fp8(problem, max(64, dim)) if precision.fp8 else _hopper_gluon(problem, max(64, dim))
    elif loop_order == "key":
        chosen = _KEY_OUTER[dim]
    elif arch.capability == 90:
        chosen = _hopper(name, problem, precision, dim)
    else:
        table = _TABLES.get(arch.capability, _CONSUMER)
        chosen = table.get("fp8" if precision.fp8 else name, table["v3"])[dim]
    block_m, block_n, num_warps, num_stages = chosen
    return TileConfig(block_m=block_m, block_n=block_n, num_warps=num_warps, num_stages=num_stages, loop_order=loop_order)


def _hopper(name: str, problem: AttentionProblem, precision: Precision, dim: int) -> Tiles:
    if precision.fp8:
        return _hopper_fp8(problem, dim)
    short = problem.seq_len_q <= _SHORT
    short_or_tail_heavy = short or (problem.causal and problem.seq_len_q <= _MEDIUM)
    if name == "v1":
        return {32: (64, 128, 4, 3), 64: (128, 64, 8, 3), 128: (64, 64, 4, 3), 256: (64, 64, 8, 2)}[dim]
    if name == "v2":
        at_128 = (64, 64, 4, 3) if short_or_tail_heavy else (128, 128, 8, 3)
        return {32: (64, 64, 4, 3), 64: (128, 64, 8, 3), 128: at_128, 256: (128, 64, 8, 2)}[dim]
    at_64 = (64, 64, 4, 2) if short_or_tail_heavy else (64, 128, 4, 3)
    at_128 = (64, 64, 4, 3) if problem.causal or problem.seq_len_q <= _MEDIUM else (128, 128, 8, 3)
    # With a ragged end, the wider tile's extra mask would not fit in the registers.
    at_256 = (128, 32, 8, 2) if problem.seq_len_kv % 64 else (128, 64, 8, 2)
    return {32: (64, 128, 4, 3), 64: at_64, 128: at_128, 256: at_256}[dim]


def _hopper_gluon(problem: AttentionProblem, dim: int) -> Tiles:
    block_m, block_n = HOPPER_TILES[dim][0]
    tiles = problem.batch * problem.num_heads * -(-problem.seq_len_q // block_m)
    if dim == 64 and tiles < _H200_SMS:
        # Half as high, so that fewer SMs stay idle.
        block_m, block_n = HOPPER_TILES[dim][1]
    elif problem.padded_head_dim == 64 and problem.seq_len_q >= (_LONG if problem.causal else _MEDIUM):
        # Three warpgroups have registers for twice the keys a tile, which pays on long problems.
        block_m, block_n = HOPPER_TILES[dim][2]
    return block_m, block_n, block_m // 16, HOPPER_STAGES[dim]


def _hopper_gluon_fp8(problem: AttentionProblem, dim: int) -> Tiles:
    possible = HOPPER_FP8_TILES[dim]
    tiles = problem.batch * problem.num_heads * -(-problem.seq_len_q // possible[0][0])
    block_m, block_n = possible[-1] if tiles < _H200_SMS else possible[0]
    return block_m, block_n, block_m // 16, HOPPER_FP8_STAGES[dim]


def _hopper_fp8(problem: AttentionProblem, dim: int) -> Tiles:
    short_causal = problem.causal and problem.seq_len_q <= _SHORT
    at_64 = (64, 64, 4, 3) if short_causal else (64, 128, 4, 3)
    at_128 = (64, 64, 4, 3) if short_causal else (64, 128, 4, 3 if problem.causal else 2)
    return {32: (64, 64, 4, 3), 64: at_64, 128: at_128, 256: (64, 64, 8, 2)}[dim]
