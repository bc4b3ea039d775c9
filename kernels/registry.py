"""What versions there are, what each can do and with which tiles it starts, without importing any of them. Pure."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels.architecture import Architecture
from kernels.default_backward_tiles import backward_tiles_to_start_with
from kernels.default_tiles import tiles_to_start_with
from kernels.hopper_refusals import refuse_hopper, refuse_hopper_backward
from kernels.problem import (
    BLOCK_SIZES,
    NUM_WARPS,
    AttentionProblem,
    BackwardTiles,
    LoopOrder,
    Precision,
    TileConfig,
    listed,
)
from kernels.refused import Refused

if TYPE_CHECKING:
    from kernels.kernel import Backward, Kernel


@dataclass(frozen=True)
class Idea:
    """One named idea of a version: what it changes, and where it was published."""

    name: str
    what: str
    source: str


@dataclass(frozen=True)
class Version:
    """A row of the registry. module is imported by load(); is_peer marks what a user would pick instead of ours.

    has_block_order: the order in which query blocks start can be chosen, and a persistent grid. has_trace: it can store its
    tiles. visits_hidden: it computes also the tiles of which a query block sees nothing; visits_one: one of them, where it sees
    none. last_first: it goes through the key tiles from the last one down. lag_log2: by how much, in log2, scores may exceed
    its m before m moves (not with FP8). deals_blocks: it deals its query blocks out itself, to one persistent program an SM,
    whose warpgroups own 64 queries each and stamp for themselves. has_hadamard: with FP8, Q and K can be turned first.
    backwards: names of BACKWARDS, of which the first that has the problem's head_dim is the version's.
    """

    name: str
    title: str
    module: str
    summary: str
    ideas: tuple[Idea, ...] = ()
    has_tiles: bool = True
    has_fp8: bool = False
    has_hadamard: bool = False
    has_loop_order: bool = False
    has_block_order: bool = False
    has_trace: bool = False
    visits_hidden: bool = False
    visits_one: bool = False
    last_first: bool = False
    lag_log2: float = 0.0
    deals_blocks: bool = False
    is_peer: bool = False
    interpretable: bool = True
    backwards: tuple[str, ...] = ()


@dataclass(frozen=True)
class BackwardVersion:
    """A row of BACKWARDS. module is imported by load_backward(); owner: the version that it was written for, None for torch's.

    dq_apart: dQ has a kernel, and tiles, of its own. most_head_dim: the largest head_dim it has.
    """

    module: str
    owner: str | None
    dq_apart: bool = False
    most_head_dim: int = 256


BACKWARDS: dict[str, BackwardVersion] = {
    "autograd": BackwardVersion("kernels.backward_autograd", None),
    "v1": BackwardVersion("kernels.backward_v1", "v1"),
    "v2": BackwardVersion("kernels.backward_v2", "v2", dq_apart=True),
    "v3": BackwardVersion("kernels.backward_v3", "v3", dq_apart=True),
    "v3-hopper": BackwardVersion("kernels.backward_v3_hopper", "v3-hopper", dq_apart=True, most_head_dim=128),
}


_DAO_2022 = "Dao et al. 2022, arXiv 2205.14135"
_DAO_2023 = "Dao 2023, arXiv 2307.08691"
_SHAH_2024 = "Shah et al. 2024, arXiv 2407.08608"

VERSIONS: dict[str, Version] = {
    version.name: version
    for version in (
        Version(
            "native",
            "PyTorch native",
            "kernels.native",
            "Three PyTorch calls; the whole score matrix S goes through memory.",
            has_tiles=False, backwards=("autograd",),
        ),
        Version(
            "v1",
            "FlashAttention v1",
            "kernels.flash_v1",
            "Online softmax, a tile at a time; O is renormalised after every tile, every tile is computed.",
            (
                Idea("online softmax", "running maximum m and sum l replace the score matrix", f"{_DAO_2022}, section 3.1"),
                Idea("tiling", "Q, K, V pass through shared memory tile by tile", f"{_DAO_2022}, Algorithm 1"),
            ),
            has_loop_order=True, has_trace=True, visits_hidden=True, backwards=("v1",),
        ),
        Version(
            "v2",
            "FlashAttention v2",
            "kernels.flash_v2",
            "O is normalised once, at the end; tiles above the diagonal are never visited; heaviest blocks first.",
            (
                Idea("late normalisation", "O stays unscaled until the last tile", f"{_DAO_2023}, section 3.1.1"),
                Idea(
                    "parallel over queries", "one program a query tile, so that few heads fill the GPU",
                    f"{_DAO_2023}, section 3.2",
                ),
                Idea(
                    "causal skip", "tiles above the diagonal are not visited, full tiles not masked",
                    f"{_DAO_2023}, section 3.1.1",
                ),
                Idea("exp2", "the scale times log2(e) is folded into one multiply-add", f"{_DAO_2023}, section 3.1"),
                Idea(
                    "heaviest first", "causal blocks with most tiles start first, which shortens the tail",
                    "LPT scheduling, Graham 1969",
                ),
            ),
            has_block_order=True, has_trace=True, backwards=("v2",),
        ),
        Version(
            "v3",
            "FlashAttention v3",
            "kernels.flash_v3",
            "Tiles arrive by asynchronous copies while the last one is computed; FP8 with a scale a token.",
            (
                Idea(
                    "asynchronous loads", "the copy engine fills the next tiles under this one's products",
                    f"{_SHAH_2024}, section 3.1",
                ),
                Idea(
                    "FP8", "e4m3 operands with real scales; V is written transposed by the pre-pass",
                    f"{_SHAH_2024}, section 3.3",
                ),
            ),
            has_fp8=True, has_hadamard=True, has_block_order=True, has_trace=True,
            backwards=("v3",),
        ),
        Version(
            "v3-hopper",
            "FlashAttention v3 (Hopper)",
            "kernels.flash_v3_hopper",
            "A producer warp loads; each warpgroup's softmax runs under its own and the others' matrix products.",
            (
                Idea(
                    "warp specialisation", "one warp only loads; the others own 64 queries a warpgroup, with P in registers",
                    f"{_SHAH_2024}, section 3.1",
                ),
                Idea(
                    "ping-pong", "warpgroups take turns at the matrix units: one's softmax under another's products",
                    f"{_SHAH_2024}, section 3.1",
                ),
                Idea(
                    "overlap in a warpgroup", "the next tile's Q Kᵀ and this one's P V run under the softmax",
                    f"{_SHAH_2024}, section 3.2",
                ),
                Idea(
                    "lazy rescaling", "m stays, and O unscaled, until a row exceeds it by 2⁸",
                    "FlashAttention-4, Dao-AILab/flash-attention",
                ),
                Idea(
                    "dealt tiles", "a program a SM; tiles dealt out heaviest first, the next one's loads under this one's end",
                    "LPT scheduling, Graham 1969",
                ),
            ),
            has_fp8=True, has_hadamard=True, has_trace=True, visits_one=True, last_first=True, lag_log2=8.0, deals_blocks=True,
            interpretable=False, backwards=("v3-hopper", "v3"),
        ),
        Version(
            "sdpa-cudnn", "cuDNN (SDPA)", "kernels.peers", "torch's scaled_dot_product_attention, cuDNN backend.",
            has_tiles=False, is_peer=True, interpretable=False, backwards=("autograd",),
        ),
        Version(
            "sdpa-flash", "FA2 (SDPA)", "kernels.peers", "torch's scaled_dot_product_attention, FlashAttention-2 backend.",
            has_tiles=False, is_peer=True, interpretable=False, backwards=("autograd",),
        ),
        Version(
            "flex", "FlexAttention", "kernels.peers", "torch's flex_attention, compiled; causal through a block mask.",
            has_tiles=False, is_peer=True, interpretable=False, backwards=("autograd",),
        ),
        Version(
            "fa3", "FA3", "kernels.peers", "The FlashAttention-3 authors' own Hopper kernels, package fa3-fwd.",
            has_tiles=False, has_fp8=True, is_peer=True, interpretable=False,
        ),
    )
}  # fmt: skip

OUR_VERSIONS = tuple(name for name, version in VERSIONS.items() if not version.is_peer)
PEERS = tuple(name for name, version in VERSIONS.items() if version.is_peer)


def ours_on(arch: Architecture | None) -> tuple[str, ...]:
    """Our versions that an architecture can run; None is the interpreter."""
    return tuple(
        name for name in OUR_VERSIONS
        if (VERSIONS[name].interpretable if arch is None else name != "v3-hopper" or arch.capability == 90)
    )  # fmt: skip


def load(name: str) -> Kernel:
    """Import a version and return it.

    Raises ValueError naming the versions there are; ImportError where it needs what is not installed.
    """
    module = importlib.import_module(version(name).module)
    return module.peer(name) if VERSIONS[name].is_peer else module


def backward_of(name: str, problem: AttentionProblem) -> BackwardVersion:
    """The row of a version's backward for this problem.

    Raises ValueError naming the versions there are; Refused for one that has no backward.
    """
    rows = [BACKWARDS[one] for one in version(name).backwards]
    found = next((row for row in rows if problem.head_dim <= row.most_head_dim), None)
    if found is None:
        raise _without_backward(name)
    return found


def load_backward(name: str, problem: AttentionProblem) -> Backward:
    """Import a version's backward for this problem and return it; raises what backward_of() does."""
    return importlib.import_module(backward_of(name, problem).module)


def can_be_watched(name: str, fp8: bool) -> bool:
    """Whether a version can store its tiles and stamp its programs: all that have a trace but v3-hopper in FP8."""
    return version(name).has_trace and not (fp8 and name == "v3-hopper")


def stamping_lanes(name: str, tiles: TileConfig) -> int:
    """How many of a program's warpgroups stamp for themselves, its producer among them; 1 where the program does as a whole."""
    return tiles.block_m // 64 + 1 if version(name).deals_blocks else 1


def version(name: str) -> Version:
    """The registry's row of a name. Raises ValueError naming the versions there are."""
    if name not in VERSIONS:
        raise ValueError(f"kernel = {name} is not known: it can be {', '.join(VERSIONS)}.")
    return VERSIONS[name]


def default_tiles(
    name: str, problem: AttentionProblem, precision: Precision, arch: Architecture, loop_order: LoopOrder = "query"
) -> TileConfig | None:
    """The tiles a version starts with on this problem and architecture, or None where it has no tiles to choose.

    All compile without spills and fit; kernels.default_tiles says which of them were measured.
    """
    return tiles_to_start_with(name, problem, precision, arch, loop_order) if version(name).has_tiles else None


def default_backward_tiles(
    name: str, problem: AttentionProblem, precision: Precision, arch: Architecture
) -> BackwardTiles | None:
    """The tiles a version's backward starts with, or None where it has none to choose, or no backward.

    All compile without spills and fit; precision.fp8 changes nothing, as a backward never runs in FP8.
    """
    entry = version(name)
    if not (entry.has_tiles and entry.backwards):
        return None
    return backward_tiles_to_start_with(backward_of(name, problem).module, problem, arch)


def precision_for(name: str, precision: Precision) -> Precision:
    """What a version makes of a precision that several are asked for: FP8 where it has it, and there the scales that it has."""
    if not version(name).has_fp8:
        return precision.model_copy(update={"fp8": False, "hadamard": False})
    if name == "fa3" and precision.fp8:
        return precision.model_copy(update={"fp8_scale": "head", "smooth_k": False, "hadamard": False})
    if name == "v3-hopper" and precision.fp8:
        return precision.model_copy(update={"fp8_scale": "block"})
    return precision


def refuse(
    name: str, problem: AttentionProblem, precision: Precision, tiles: TileConfig | None, arch: Architecture | None
) -> None:
    """Raise Refused, in one sentence, when a request cannot work; arch None is the interpreter, which has no limits.

    What only the compiler knows (shared memory, registers) is refused after compiling, before the launch.
    """
    entry = version(name)
    if precision.fp8 and not entry.has_fp8:
        having = [one.title if one.is_peer else one.name for one in VERSIONS.values() if one.has_fp8]
        raise Refused(f"FP8 is not possible with {name}: only {', '.join(having[:-1])} and {having[-1]} have it.")
    if entry.has_tiles and tiles is None:
        raise Refused(f"{name} needs block_m, block_n, num_warps and num_stages.")
    if tiles is not None and tiles.loop_order == "key" and not entry.has_loop_order:
        raise Refused(f"loop_order = key is not possible with {name}: only v1 has Algorithm 1's key-outer order.")
    if tiles is not None and not entry.has_block_order:
        if tiles.block_order != "default":
            raise Refused(f"block_order = {tiles.block_order} is not possible with {name}: only v2 and v3 let it be chosen.")
        if tiles.num_programs is not None:
            raise Refused(
                f"num_programs = {tiles.num_programs:,} is not possible with {name}: only v2 and v3 have such a grid."
            )
    if arch is None and not entry.interpretable:
        what = "a library for the GPU" if entry.is_peer else "written in Hopper's own instructions"
        raise Refused(f"{name} is not possible in the interpreter: it is {what}.")
    if name == "v3-hopper":
        refuse_hopper(problem, precision, tiles, arch)
    elif tiles is not None:
        _refuse_three_warpgroups(name, tiles)
    if precision.fp8:
        _refuse_fp8(problem, tiles, arch)
        _refuse_scales(name, precision, arch)
        _refuse_hadamard(name, problem, precision)


def refuse_backward(
    name: str, problem: AttentionProblem, precision: Precision, tiles: BackwardTiles | None, arch: Architecture | None
) -> None:
    """Raise Refused, in one sentence, when a version's backward cannot work; the forward has its own refuse().

    arch None is the interpreter. What only the compiler knows is refused after compiling, before the launch.
    """
    entry, row = version(name), backward_of(name, problem)
    if not entry.has_tiles:
        if tiles is not None:
            raise Refused(f"Tiles of the backward are not possible with {name}: it has none to choose.")
        return
    if tiles is None:
        raise Refused(f"The backward of {name} needs block_m, block_n, num_warps and num_stages.")
    if row.dq_apart != (tiles.dq is not None):
        wanted = "needs tiles for dQ, too" if row.dq_apart else "has one kernel: tiles for dQ alone are not possible"
        raise Refused(f"The backward of {name} {wanted}.")
    if row.owner == "v3-hopper":
        refuse_hopper_backward(tiles)
    for one in (tiles.dkdv, tiles.dq or tiles.dkdv):
        if row.owner != "v3-hopper":
            _refuse_three_warpgroups(f"the backward of {name}", one)
        _refuse_grids(name, one)


def _without_backward(name: str) -> Refused:
    having = [one.title if one.is_peer else one.name for one in VERSIONS.values() if one.backwards]
    return Refused(
        f"direction = backward is not possible with {name}: only {', '.join(having[:-1])} and {having[-1]} have one."
    )


def _refuse_grids(name: str, tiles: TileConfig) -> None:
    """Orders and grids that only forwards let be chosen."""
    for field, value in (
        ("loop_order", tiles.loop_order),
        ("block_order", tiles.block_order),
        ("num_programs", tiles.num_programs),
    ):
        if value not in ("query", "default", None):
            raise Refused(f"{field} = {value} is not possible with the backward of {name}: only a forward lets it be chosen.")


def _refuse_scales(name: str, precision: Precision, arch: Architecture | None) -> None:
    """FA3's FP8 is its own: one scale a head, bf16 out, Hopper. v3-hopper's scales are of 64 tokens, half a tile."""
    scale = precision.fp8_scale
    if name == "v3-hopper" and scale != "block":
        raise Refused(f"fp8_scale = {scale} is not possible with v3-hopper: it can be block, a scale for every 64 tokens.")
    if name != "fa3":
        if scale == "head":
            raise Refused(f"fp8_scale = head is not possible with {name}: it can be token or block; FA3 has a scale a head.")
        return
    if scale != "head" or precision.smooth_k:
        said = f"fp8_scale = {scale}" if scale != "head" else "smooth_k"
        raise Refused(f"{said} is not possible with fa3: it has one scale a head, of Q, K and V as they are.")
    if precision.dtype != "bf16":
        raise Refused(f"dtype = {precision.dtype} is not possible with fa3 in FP8: its output is bf16.")
    if arch is not None and arch.capability != 90:
        raise Refused(
            f"FP8 is not possible with fa3 on sm_{arch.capability} ({arch.name}): its FP8 kernels are Hopper's, sm_90."
        )


def _refuse_hadamard(name: str, problem: AttentionProblem, precision: Precision) -> None:
    if not precision.hadamard:
        return
    if not version(name).has_hadamard:
        raise Refused(f"hadamard is not possible with {name}: its pre-pass does not turn Q and K; v3's and v3-hopper's does.")
    if problem.head_dim != problem.padded_head_dim:
        raise Refused(
            f"hadamard is not possible at head_dim = {problem.head_dim}: Hadamard's matrix needs a power of two, 32 to 256."
        )


def _refuse_three_warpgroups(name: str, tiles: TileConfig) -> None:
    """What only v3-hopper can have: Triton's own tiles and warps are powers of two."""
    cure = tiles.model_copy(update={"block_m": min(tiles.block_m, 128), "num_warps": min(tiles.num_warps, 8)})
    if tiles.block_m not in BLOCK_SIZES:
        raise Refused(
            f"BLOCK_M = {tiles.block_m} is not possible with {name}: it can be {listed(BLOCK_SIZES)}.",
            cure=cure,
        )
    if tiles.num_warps not in NUM_WARPS:
        raise Refused(
            f"num_warps = {tiles.num_warps} is not possible with {name}: it can be {listed(NUM_WARPS)}.",
            cure=cure,
        )


def _refuse_fp8(problem: AttentionProblem, tiles: TileConfig | None, arch: Architecture | None) -> None:
    if arch is not None and not arch.fp8:
        raise Refused(
            f"FP8 is not possible on sm_{arch.capability} ({arch.name}): its matrix units take e4m3 from sm_89 (Ada) on.",
            needs=89, has=arch.capability, unit="sm",
        )  # fmt: skip
    if problem.head_dim < 32:
        raise Refused(
            f"head_dim = {problem.head_dim} is not possible with FP8: an 8-bit product needs at least 32.",
            needs=32, has=problem.head_dim, unit="elements",
        )  # fmt: skip
    if tiles is not None and tiles.block_n < 32:
        raise Refused(
            f"BLOCK_N = {tiles.block_n} is not possible with FP8: an 8-bit product needs at least 32 keys a tile.",
            needs=32, has=tiles.block_n, unit="keys", cure=tiles.model_copy(update={"block_n": 32}),
        )  # fmt: skip
