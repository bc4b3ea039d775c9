"""What can be asked of the compiler: a version's forward or its backward, with which tiles. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from kernels.architecture import Architecture
from kernels.problem import AttentionProblem, BackwardTiles, LoopOrder, Precision, TileConfig
from kernels.registry import Refused, default_backward_tiles, default_tiles, refuse, refuse_backward
from profiling.records import RunRequest

CompiledDirection = Literal["forward", "backward"]
DIRECTIONS: tuple[CompiledDirection, ...] = get_args(CompiledDirection)


def forward_request(
    name: str, problem: AttentionProblem, precision: Precision, arch: Architecture, chosen: Mapping[str, Any],
    loop_order: LoopOrder = "query",
) -> RunRequest:  # fmt: skip
    """A forward with the version's default tiles but for the fields of TileConfig that are chosen.

    Raises Refused for what cannot work, and ValueError for a size that no tile has.
    """
    suggested = default_tiles(name, problem, precision, arch, loop_order)
    if suggested is None:
        raise _not_ours(name)
    request = RunRequest(
        kernel=name, problem=problem, precision=precision, tiles=TileConfig(**suggested.model_dump() | dict(chosen))
    )
    require_possible(request, arch)
    return request


def backward_request(
    name: str, problem: AttentionProblem, precision: Precision, arch: Architecture, tiles: BackwardTiles | None = None,
    chosen: Mapping[str, Any] | None = None, chosen_dq: Mapping[str, Any] | None = None,
) -> RunRequest:  # fmt: skip
    """A backward with these tiles, or the version's default ones; but for the fields that are chosen for dK and dV, for dQ.

    Its forward's tiles are no part of it. Raises Refused for what cannot work, and ValueError for a size that no tile has.
    """
    if default_tiles(name, problem, precision, arch) is None:
        raise _not_ours(name)
    tiles = tiles or default_backward_tiles(name, problem, precision, arch)
    if tiles is not None:
        dq = None if tiles.dq is None else TileConfig(**tiles.dq.model_dump() | dict(chosen_dq or {}))
        tiles = BackwardTiles(dkdv=TileConfig(**tiles.dkdv.model_dump() | dict(chosen or {})), dq=dq)
    request = RunRequest(kernel=name, problem=problem, precision=precision, direction="backward", backward_tiles=tiles)
    require_possible(request, arch)
    return request


def require_possible(request: RunRequest, arch: Architecture) -> None:
    """Raise Refused, in one sentence, for what no compiler need be asked."""
    name, problem, precision = request.kernel, request.problem, request.precision
    if request.direction == "forward":
        refuse(name, problem, precision, request.tiles, arch)
        return
    # A GPU that cannot run a version's forward has no use for its backward.
    refuse(name, problem, precision, default_tiles(name, problem, precision, arch), arch)
    if precision.fp8:
        raise Refused("FP8 is not possible with direction = backward: a backward reads Q, K and V in bf16 or fp16.")
    refuse_backward(name, problem, precision, request.backward_tiles, arch)


def _not_ours(name: str) -> Refused:
    return Refused(f"kernel = {name} is not possible: its kernels are not ours to compile.")
