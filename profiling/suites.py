"""Bench suites: which problems are run, by which versions and peers, and who is compared with whom. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import product

from kernels.architecture import Architecture, architecture
from kernels.problem import AttentionProblem, Precision, TileConfig
from kernels.registry import VERSIONS, Refused, default_backward_tiles, default_tiles, precision_for, refuse, refuse_backward
from profiling import words
from profiling.kernel_choice import KernelChoice, kernel_choices
from profiling.records import DIRECTION_WORDS, DeviceFacts, Direction, Probe, RunRequest

SUITE_PROBES: tuple[Probe, ...] = ("accuracy", "latency")


@dataclass(frozen=True)
class Cell:
    """One problem in one number format, in one direction: one job, one snapshot, one row of the table.

    versions: those of the suite's that run in it, None for all. probes: what is taken of each; of one with tiles of its own
    only the proof and the time.
    """

    problem: AttentionProblem
    precision: Precision
    direction: Direction = "forward"
    versions: tuple[str, ...] | None = None
    probes: tuple[Probe, ...] = SUITE_PROBES

    @property
    def words(self) -> tuple[str, str, str, str, str]:
        """What --only selects it by: ('d128', '16k', 'causal', 'bf16', 'forward'); 'full' is not causal."""
        mask = "causal" if self.problem.causal else "full"
        length, form = words.tokens(self.problem.seq_len_q), self.precision.title.lower()
        return (f"d{self.problem.head_dim}", length, mask, form, self.direction)

    @property
    def short(self) -> tuple[str, ...]:
        """Its words without 'forward': for the name of a file, and a mention."""
        return tuple(word for word in self.words if word != "forward")

    @property
    def kind(self) -> str:
        """What the rows of one table share: 'bf16', 'FP8', 'bf16, forward and backward'."""
        return self.precision.title + ("" if self.direction == "forward" else f", {DIRECTION_WORDS[self.direction]}")

    @property
    def title(self) -> str:
        """Words for a heading: '16,384 tokens · head_dim 128 · causal · bf16'."""
        return f"{self.problem.title} · {self.kind.replace(',', ' ·')}"


@dataclass(frozen=True)
class Match:
    """A version, and the peers (or other versions) of which the better one in the same job is what it is compared with."""

    version: str
    against: tuple[str, ...]

    @property
    def title(self) -> str:
        """'v3 against the better of cuDNN (SDPA) and FA3'."""
        titles = [title_of(name) for name in self.against]
        if len(titles) == 1:
            return f"{title_of(self.version)} against {titles[0]}"
        return f"{title_of(self.version)} against the better of {', '.join(titles[:-1])} and {titles[-1]}"


@dataclass(frozen=True)
class Suite:
    """A named list of cells, the versions in them, and the matches that a reader wants decided.

    versions: names, some with settings of their own, as profiling.kernel_choice reads them: 'v2', 'v2@block_m=64,block_n=256'.
    """

    name: str
    what: str
    source: str
    cells: tuple[Cell, ...]
    versions: tuple[str, ...]
    matches: tuple[Match, ...]

    def in_cell(self, cell: Cell) -> tuple[str, ...]:
        """The versions that run in a cell: with FP8 those that have it."""
        names = self.versions if cell.versions is None else cell.versions
        return tuple(name for name in names if VERSIONS[choice_of(name).name].has_fp8 or not cell.precision.fp8)

    def run_tag(self, moment: datetime) -> str:
        """The tag of a run that began then, UTC: 'fa3-paper-20261129-131000'."""
        return f"{self.name}-{moment.astimezone(UTC):%Y%m%d-%H%M%S}"

    def run_tags(self, tags: Iterable[str]) -> tuple[str, ...]:
        """Those of the tags that are a run's of this suite."""
        return tuple(tag for tag in tags if re.fullmatch(rf"{re.escape(self.name)}-\d{{8}}-\d{{6}}", tag))

    def title_of(self, cell: Cell) -> str:
        """What the snapshot of a cell is called: 'fa3-paper · 16,384 tokens · head_dim 128 · causal'."""
        return f"{self.name} · {cell.title.removesuffix(' · bf16')}"

    @property
    def vocabulary(self) -> tuple[tuple[str, ...], ...]:
        """The words of --only, by kind: head_dim, length, mask, number format, direction."""
        return tuple(tuple(dict.fromkeys(kind)) for kind in zip(*(cell.words for cell in self.cells), strict=True))


@lru_cache(maxsize=256)
def choice_of(name: str) -> KernelChoice:
    """A suite's version with its settings."""
    return kernel_choices(name)[0]


def title_of(name: str) -> str:
    """A version's name, with its settings; a peer's title."""
    return choice_of(name).title


def _equal_tokens(
    tokens: int,
    hidden: int,
    head_dims: Sequence[int],
    lengths: Sequence[int],
    formats: Sequence[bool] = (False, True),
    directions: Sequence[Direction] = ("forward",),
) -> tuple[Cell, ...]:
    """The same tokens in all and the same hidden size: the longer the sequences, the fewer of them. formats: FP8 or not."""
    cells = []
    for direction, fp8, head_dim, causal, seq_len in product(directions, formats, head_dims, (False, True), lengths):
        heads = hidden // head_dim
        problem = AttentionProblem(
            batch=tokens // seq_len, num_heads=heads, num_kv_heads=heads, seq_len_q=seq_len, seq_len_kv=seq_len,
            head_dim=head_dim, causal=causal,
        )  # fmt: skip
        cells.append(Cell(problem, Precision(fp8=fp8), direction))
    return tuple(cells)


def _there(*names: str) -> tuple[str, ...]:
    return tuple(name for name in names if name in VERSIONS)


_BEST_PEERS = ("sdpa-cudnn", "fa3")

# The article names no warps and no stages. Two stages fit on every GPU; of 4 and 8 warps the faster counts.
ARTICLE_PAIRS = ((128, 128), (64, 256), (32, 512))
PAIR_WARPS, PAIR_STAGES = (4, 8), 2


def of_pair(block_m: int, block_n: int) -> tuple[str, ...]:
    """v2 with a pair of the article's block sizes, with each number of warps."""
    sizes = {"block_m": block_m, "block_n": block_n}
    return tuple(KernelChoice("v2", {**sizes, "num_warps": warps, "num_stages": PAIR_STAGES}).spelled for warps in PAIR_WARPS)


_PAIRS = tuple(name for pair in ARTICLE_PAIRS for name in of_pair(*pair))
_ARTICLE_TABLE = ("native", "v1", "v2", "v3")
V3_FORMS = ("v3", "v3-hopper", "v3@fp8=yes")
_ARTICLE_PROBES: tuple[Probe, ...] = ("accuracy", "latency", "memory")


def _article_cells() -> tuple[Cell, ...]:
    """d_model 512 in 16 heads, no mask; at each length what the article says something about."""
    of_length = {
        512: ("v2", *_PAIRS),
        1024: (*_ARTICLE_TABLE, *_PAIRS),
        4096: (*_ARTICLE_TABLE, *_PAIRS),
        16384: (*_ARTICLE_TABLE, *V3_FORMS[1:], *_PAIRS),
        32768: ("v1", "v2", *V3_FORMS),
    }
    return tuple(
        Cell(AttentionProblem(seq_len_q=length, seq_len_kv=length, head_dim=32), Precision(), versions=names,
             probes=_ARTICLE_PROBES)
        for length, names in of_length.items()
    )  # fmt: skip


SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite(
            name="fa3-paper",
            what="16,384 tokens in all, hidden size 2048; head_dim 64, 128, 256; 512 to 16k tokens a sequence; bf16 and FP8.",
            source="Shah et al. 2024, arXiv 2407.08608, section 4.1",
            cells=_equal_tokens(16384, 2048, (64, 128, 256), (512, 1024, 2048, 4096, 8192, 16384)),
            versions=_there("v2", "v3", "v3-hopper", "sdpa-cudnn", "sdpa-flash", "flex", "fa3"),
            matches=(*(Match(name, _BEST_PEERS) for name in _there("v3-hopper", "v3")), Match("v2", ("flex",))),
        ),
        Suite(
            name="fa2-paper",
            what="16,384 tokens in all, hidden size 2048; head_dim 64, 128; 512 to 16k tokens a sequence; bf16; forward, "
            "backward, and both.",
            source="Dao 2023, arXiv 2307.08691, section 4.1",
            cells=_equal_tokens(
                16384, 2048, (64, 128), (512, 1024, 2048, 4096, 8192, 16384), (False,), ("forward", "backward", "both")
            ),
            versions=_there("native", "v1", "v2", "v3", "v3-hopper", "sdpa-flash", "sdpa-cudnn", "fa3"),
            matches=(
                Match("v2", ("native",)),
                Match("v2", ("v1",)),
                Match("v2", ("sdpa-flash",)),
                *(Match(name, ("sdpa-cudnn",)) for name in _there("v3", "v3-hopper")),
            ),
        ),
        Suite(
            name="article",
            what="d_model 512 in 16 heads, head_dim 32, no mask; 512 to 32k tokens; native to v3, and v2 with its block sizes.",
            source="the article that started FlashScope, and its table of native, v1, v2 and v3 on an RTX 4090",
            cells=_article_cells(),
            versions=(*_ARTICLE_TABLE, *V3_FORMS[1:], *_PAIRS),
            matches=(Match("v2", ("v1",)), Match("v3", ("v2",))),
        ),
    )
}


def suite(name: str) -> Suite:
    """The suite of a name. Raises ValueError naming the suites there are."""
    if name not in SUITES:
        raise ValueError(f"suite = {name} is not known: it can be {', '.join(SUITES)}.")
    return SUITES[name]


def selected(found: Suite, only: str | None) -> tuple[Cell, ...]:
    """The cells that words such as 'd64,d128,16k,causal' select: of each kind that is named, one of its words must fit.

    Raises ValueError naming a word that is none of the suite's, and when nothing fits.
    """
    asked = [word for word in (only or "").lower().replace(" ", "").split(",") if word]
    for word in asked:
        if all(word not in kind for kind in found.vocabulary):
            known = ", ".join(word for kind in found.vocabulary for word in kind)
            raise ValueError(f"only = {word} is not possible with {found.name}: it can be {known}.")
    wanted = [set(asked) & set(kind) for kind in found.vocabulary]
    return tuple(
        cell for cell in found.cells if all(not some or word in some for word, some in zip(cell.words, wanted, strict=True))
    )


def chosen(found: Suite, kernels: str | None) -> tuple[str, ...]:
    """The suite's versions, or those of them that are named with commas. Raises ValueError naming one that is not in it."""
    if kernels is None:
        return found.versions
    asked = tuple(choice.spelled for choice in kernel_choices(kernels))
    for name in asked:
        if name not in found.versions:
            raise ValueError(f"kernel = {name} is not in {found.name}: it can be {', '.join(found.versions)}.")
    return asked


@dataclass(frozen=True)
class PlannedCell:
    """A cell as one device will run it: a request for each of names; left_out: a sentence for each version that cannot."""

    cell: Cell
    names: tuple[str, ...]
    requests: tuple[RunRequest, ...]
    left_out: tuple[str, ...]


def planned(found: Suite, cell: Cell, names: Sequence[str], device: DeviceFacts) -> PlannedCell:
    """The requests of a cell on a GPU, by those of the named versions that are in it, with their own tiles.

    Raises ValueError for tiles that no version can have.
    """
    arch = architecture(device.capability)
    requests: dict[str, RunRequest] = {}
    left_out = []
    for name in (name for name in found.in_cell(cell) if name in names):
        try:
            requests[name] = _request(choice_of(name), cell, device, arch)
        except Refused as refused:
            left_out.append(refused.sentence)
    return PlannedCell(cell, tuple(requests), tuple(requests.values()), tuple(left_out))


def _request(choice: KernelChoice, cell: Cell, device: DeviceFacts, arch: Architecture) -> RunRequest:
    """A version's request. Raises Refused where it cannot work."""
    name, precision = choice.name, precision_of(choice, cell)
    tiles = default_tiles(name, cell.problem, precision, arch)
    if tiles is not None and choice.tiles:
        tiles = TileConfig(**{**tiles.model_dump(), **choice.tiles})
    refuse(name, cell.problem, precision, tiles, arch)
    backward_tiles = None
    if cell.direction != "forward":
        backward_tiles = default_backward_tiles(name, cell.problem, precision, arch)
        refuse_backward(name, cell.problem, precision, backward_tiles, arch)
    return RunRequest(
        kernel=name, problem=cell.problem, precision=precision, tiles=tiles, direction=cell.direction,
        backward_tiles=backward_tiles, device=device.id, probes=SUITE_PROBES if choice.tiles else cell.probes,
    )  # fmt: skip


def precision_of(choice: KernelChoice, cell: Cell) -> Precision:
    """A version's number formats in a cell."""
    return precision_for(choice.name, Precision(**{**cell.precision.model_dump(), **choice.precision}))
