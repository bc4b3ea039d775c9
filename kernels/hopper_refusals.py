"""What v3-hopper's kernels, written for tiles of a few sizes, cannot be asked for. Pure."""

from __future__ import annotations

from kernels.architecture import Architecture
from kernels.default_tiles import HOPPER_FP8_STAGES, HOPPER_FP8_TILES, HOPPER_STAGES, HOPPER_TILES
from kernels.problem import AttentionProblem, BackwardTiles, Precision, TileConfig, listed
from kernels.refused import Refused

# BLOCK_M, BLOCK_N, warps.
_BACKWARD_DKDV, _BACKWARD_DQ = (64, 64, 4), (192, 64, 12)
_BACKWARD_STAGES = (2, 3, 4)


def refuse_hopper(problem: AttentionProblem, precision: Precision, tiles: TileConfig, arch: Architecture) -> None:
    """Raise Refused for what v3-hopper's forward cannot be; see kernels.registry.refuse."""
    if arch.capability != 90:
        raise Refused(
            f"v3-hopper is not possible on sm_{arch.capability} ({arch.name}): it is written in Hopper's instructions, sm_90.",
            needs=90, has=arch.capability, unit="sm",
        )  # fmt: skip
    dim = max(64, problem.padded_head_dim)
    possible = (HOPPER_FP8_TILES if precision.fp8 else HOPPER_TILES)[dim]
    stages = (HOPPER_FP8_STAGES if precision.fp8 else HOPPER_STAGES)[dim]
    if (tiles.block_m, tiles.block_n) not in possible:
        sizes = " or ".join(f"{block_m} × {block_n}" for block_m, block_n in possible)
        raise Refused(
            f"BLOCK_M × BLOCK_N = {tiles.block_m} × {tiles.block_n} is not possible with v3-hopper at "
            f"head_dim {problem.head_dim}{' in FP8' if precision.fp8 else ''}: it can be {sizes}."
        )
    if tiles.num_warps != tiles.block_m // 16:
        raise Refused(
            f"num_warps = {tiles.num_warps} is not possible with v3-hopper: BLOCK_M = {tiles.block_m} takes "
            f"{tiles.block_m // 16}, four for each 64 queries.",
            needs=tiles.block_m // 16, has=tiles.num_warps, unit="warps",
            cure=tiles.model_copy(update={"num_warps": tiles.block_m // 16}),
        )  # fmt: skip
    if tiles.num_stages != stages:
        raise Refused(
            f"num_stages = {tiles.num_stages} is not possible with v3-hopper{' in FP8' if precision.fp8 else ''} at "
            f"head_dim {problem.head_dim}: K and V have {stages} buffers each.",
            needs=stages, has=tiles.num_stages, unit="stages", cure=tiles.model_copy(update={"num_stages": stages}),
        )  # fmt: skip


def refuse_hopper_backward(tiles: BackwardTiles) -> None:
    """Raise Refused for tiles that v3-hopper's backward does not have; see kernels.registry.refuse_backward."""
    assert tiles.dq is not None
    for of, one, (block_m, block_n, num_warps) in (
        ("dK and dV", tiles.dkdv, _BACKWARD_DKDV),
        ("dQ", tiles.dq, _BACKWARD_DQ),
    ):
        stages = min(max(one.num_stages, _BACKWARD_STAGES[0]), _BACKWARD_STAGES[-1])
        fields = {"block_m": block_m, "block_n": block_n, "num_warps": num_warps, "num_stages": stages}
        cure = one.model_copy(update=fields)
        kernel = f"is not possible with the backward of v3-hopper: its kernel for {of}"
        if (one.block_m, one.block_n) != (block_m, block_n):
            raise Refused(
                f"BLOCK_M × BLOCK_N = {one.block_m} × {one.block_n} {kernel} has tiles of {block_m} × {block_n}.", cure=cure
            )
        if one.num_warps != num_warps:
            raise Refused(
                f"num_warps = {one.num_warps} {kernel} has {num_warps}, four for each 64 queries or keys that a program keeps.",
                needs=num_warps, has=one.num_warps, unit="warps", cure=cure,
            )  # fmt: skip
        if one.num_stages != stages:
            raise Refused(
                f"num_stages = {one.num_stages} {kernel} can have {listed(_BACKWARD_STAGES)}.",
                needs=stages, has=one.num_stages, unit="stages", cure=cure,
            )  # fmt: skip
