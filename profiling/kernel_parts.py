"""The kernels that a request launches by what each does: the attention; or of a backward dK and dV, dQ, and delta. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kernels.problem import TileConfig
from profiling.records import RunRequest

ATTENTION, GRADIENTS, DELTA = "attention", "gradients", "delta"
TITLES = {ATTENTION: "attention", "dkdv": "dK, dV", "dq": "dQ", GRADIENTS: "dQ, dK, dV", DELTA: "delta"}
"""What each part is called on screen; a kernel that is none of them, a pre-pass of FP8 say, goes by its own name."""
OF_GRADIENTS = ("dkdv", "dq")


def forward_parts(names: Sequence[str]) -> dict[str, str]:
    """The part of each kernel of a forward, in the order in which they are launched: the attention comes last."""
    return {name: ATTENTION if name == names[-1] else name for name in names}


def backward_parts(before: Sequence[str], own: Sequence[str]) -> dict[str, str]:
    """The part of each kernel of a backward: before are those of its pre-process, own those that make the gradients."""
    told = {name: DELTA if len(before) == 1 else name for name in before}
    if len(own) == 1:
        return told | {own[0]: GRADIENTS}
    return told | {name: next((part for part in OF_GRADIENTS if name.endswith(f"_{part}")), name) for name in own}


def title(part: str) -> str:
    """'dK, dV' for dkdv."""
    return TITLES.get(part, part)


def tiles_of(request: RunRequest, part: str) -> TileConfig | None:
    """The tiles of a part; None where there are none to choose."""
    if part == ATTENTION:
        return request.tiles
    tiles = request.backward_tiles
    if tiles is None or part == DELTA:
        return None
    return tiles.dq if part == "dq" else tiles.dkdv if part in ("dkdv", GRADIENTS) else None
