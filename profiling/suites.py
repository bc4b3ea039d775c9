"""Bench suites: which problems are run, by which versions and peers, and who is compared with whom. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product

from kernels.architecture import architecture
from kernels.problem import AttentionProblem, Precision
from kernels.registry import VERSIONS, Refused, default_tiles, precision_for, refuse
from profiling import words
from profiling.records import DeviceFacts, Probe, RunRequest

SUITE_PROBES: tuple[Probe, ...] = ("accuracy", "latency")


@dataclass(frozen=True)
class Cell:
    """One problem in one number format: one job, one snapshot, one row of the table."""

    problem: AttentionProblem
    precision: Precision

    @property
    def words(self) -> tuple[str, str, str, str]:
        """What --only selects it by: ('d128', '16k', 'causal', 'bf16'); 'full' is not causal."""
        mask = "causal" if self.problem.causal else "full"
        return (f"d{self.problem.head_dim}", words.tokens(self.problem.seq_len_q), mask, self.precision.title.lower())

    @property
    def title(self) -> str:
        """Words for a heading: '16,384 tokens · head_dim 128 · causal · bf16'."""
        return f"{self.problem.title} · {self.precision.title}"


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
    """A named list of cells, the versions in them, and the matches that a reader wants decided."""

    name: str
    what: str
    source: str
    cells: tuple[Cell, ...]
    versions: tuple[str, ...]
    matches: tuple[Match, ...]

    def in_cell(self, cell: Cell) -> tuple[str, ...]:
        """The versions that run in a cell: with FP8 those that have it."""
        return tuple(name for name in self.versions if VERSIONS[name].has_fp8 or not cell.precision.fp8)

    def run_tag(self, moment: datetime) -> str:
        """The tag of a run that began then, UTC: 'fa3-paper-20261129-131000'."""
        return f"{self.name}-{moment.astimezone(UTC):%Y%m%d-%H%M%S}"

    def run_tags(self, tags: Iterable[str]) -> tuple[str, ...]:
        """Those of the tags that are a run's of this suite."""
        return tuple(tag for tag in tags if re.fullmatch(rf"{re.escape(self.name)}-\d{{8}}-\d{{6}}", tag))

    @property
    def vocabulary(self) -> tuple[tuple[str, ...], ...]:
        """The words of --only, by kind: head_dim, length, mask, number format."""
        return tuple(tuple(dict.fromkeys(kind)) for kind in zip(*(cell.words for cell in self.cells), strict=True))


def title_of(name: str) -> str:
    """A version's name, a peer's title."""
    return VERSIONS[name].title if VERSIONS[name].is_peer else name


def _equal_tokens(tokens: int, hidden: int, head_dims: Sequence[int], lengths: Sequence[int]) -> tuple[Cell, ...]:
    """The same tokens in all and the same hidden size: the longer the sequences, the fewer of them."""
    cells = []
    for fp8, head_dim, causal, seq_len in product((False, True), head_dims, (False, True), lengths):
        heads = hidden // head_dim
        problem = AttentionProblem(
            batch=tokens // seq_len, num_heads=heads, num_kv_heads=heads, seq_len_q=seq_len, seq_len_kv=seq_len,
            head_dim=head_dim, causal=causal,
        )  # fmt: skip
        cells.append(Cell(problem, Precision(fp8=fp8)))
    return tuple(cells)


def _there(*names: str) -> tuple[str, ...]:
    return tuple(name for name in names if name in VERSIONS)


_BEST_PEERS = ("sdpa-cudnn", "fa3")

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
    asked = tuple(dict.fromkeys(name.strip() for name in kernels.split(",")))
    for name in asked:
        if name not in found.versions:
            raise ValueError(f"kernel = {name} is not in {found.name}: it can be {', '.join(found.versions)}.")
    return asked


@dataclass(frozen=True)
class PlannedCell:
    """A cell as one device will run it; left_out: a sentence for each version that cannot."""

    cell: Cell
    requests: tuple[RunRequest, ...]
    left_out: tuple[str, ...]


def planned(found: Suite, cell: Cell, names: Sequence[str], device: DeviceFacts) -> PlannedCell:
    """The requests of a cell on a GPU, by those of the named versions that are in it, with their own tiles."""
    arch = architecture(device.capability)
    requests, left_out = [], []
    for name in (name for name in found.in_cell(cell) if name in names):
        precision = precision_for(name, cell.precision)
        tiles = default_tiles(name, cell.problem, precision, arch)
        try:
            refuse(name, cell.problem, precision, tiles, arch)
        except Refused as refused:
            left_out.append(refused.sentence)
            continue
        requests.append(
            RunRequest(
                kernel=name, problem=cell.problem, precision=precision, tiles=tiles, device=device.id, probes=SUITE_PROBES
            )
        )
    return PlannedCell(cell, tuple(requests), tuple(left_out))
