"""The tiles each version's backward starts with. Pure.

For Hopper those of v2, v3 and v3-hopper were the fastest tried on an H200, or near it (MEASURED.md): 64 × 64 with four warps,
two or three programs an SM, though ptxas then keeps some addresses in memory; v3-hopper's dQ has 192 × 64, three warpgroups.
The others fit and compile without spills; no GPU has searched for them.

On GPUs without Hopper's products a dK of more columns than rows is split by columns among the warps, so that P and dS go to
all of them through shared memory: BLOCK_N is head_dim where registers allow it, as BLOCK_M is for dQ.
"""

from __future__ import annotations

from kernels.architecture import Architecture
from kernels.default_tiles import Tiles
from kernels.problem import AttentionProblem, BackwardTiles, TileConfig

# By padded head_dim.
_V1: dict[int, dict[int, Tiles]] = {
    80: {32: (32, 64, 4, 1), 64: (32, 32, 4, 2), 128: (16, 32, 4, 1), 256: (16, 16, 4, 1)},
    90: {32: (64, 64, 8, 1), 64: (64, 64, 8, 1), 128: (32, 64, 8, 1), 256: (32, 32, 8, 1)},
    100: {32: (64, 64, 4, 1), 64: (32, 64, 8, 1), 128: (64, 64, 8, 1), 256: (16, 16, 4, 1)},
}
# v2 everywhere, v3 where it has no copy engine.
_DKDV: dict[int, dict[int, Tiles]] = {
    80: {32: (32, 64, 4, 2), 64: (32, 64, 4, 2), 128: (32, 64, 8, 2), 256: (32, 32, 8, 2)},
    90: {32: (64, 64, 4, 3), 64: (64, 64, 4, 3), 128: (64, 64, 4, 2), 256: (64, 64, 8, 2)},
    100: {32: (64, 64, 8, 2), 64: (64, 64, 8, 2), 128: (32, 32, 8, 2), 256: (32, 32, 8, 2)},
}
_DQ: dict[int, dict[int, Tiles]] = {
    80: {32: (64, 64, 4, 2), 64: (64, 64, 4, 2), 128: (128, 32, 8, 2), 256: (32, 32, 8, 2)},
    90: {32: (64, 64, 4, 3), 64: (64, 64, 4, 3), 128: (128, 64, 8, 3), 256: (128, 32, 8, 2)},
    100: {32: (128, 64, 8, 2), 64: (128, 64, 8, 2), 128: (128, 64, 8, 2), 256: (64, 32, 8, 2)},
}
_V3_DKDV: dict[int, dict[int, Tiles]] = {
    90: _DKDV[90],
    100: {32: (64, 128, 8, 2), 64: (64, 128, 8, 2), 128: (64, 64, 8, 2), 256: (16, 64, 8, 1)},
}
_V3_DQ: dict[int, dict[int, Tiles]] = {90: _DQ[90] | {64: (128, 64, 8, 3)}, 100: _DQ[100]}
# v3-hopper: by padded head_dim.
_HOPPER: dict[int, tuple[Tiles, Tiles]] = {64: ((64, 64, 4, 3), (192, 64, 12, 4)), 128: ((64, 64, 4, 2), (192, 64, 12, 3))}


def backward_tiles_to_start_with(module: str, problem: AttentionProblem, arch: Architecture) -> BackwardTiles:
    """The default of a backward that has tiles; see kernels.registry.default_backward_tiles."""
    dim = max(32, problem.padded_head_dim)
    kind = 100 if arch.capability == 100 else 90 if arch.capability == 90 else 80
    if module == "kernels.backward_v3_hopper":
        dkdv, dq = _HOPPER[max(64, dim)]
        return BackwardTiles(dkdv=_config(dkdv), dq=_config(dq))
    if module == "kernels.backward_v1":
        return BackwardTiles(dkdv=_config(_V1[kind][dim]))
    by_copy_engine = module == "kernels.backward_v3" and arch.tma
    dkdv, dq = (_V3_DKDV, _V3_DQ) if by_copy_engine and kind in _V3_DKDV else (_DKDV, _DQ)
    return BackwardTiles(dkdv=_config(dkdv[kind][dim]), dq=_config(dq[kind][dim]))


def _config(tiles: Tiles) -> TileConfig:
    block_m, block_n, num_warps, num_stages = tiles
    return TileConfig(block_m=block_m, block_n=block_n, num_warps=num_warps, num_stages=num_stages)
