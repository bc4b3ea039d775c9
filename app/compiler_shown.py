"""What the Compiler page shows of an answer: derived from its texts once, then kept beside them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache

from kernels.architecture import architecture
from profiling import kernel_parts, words
from profiling.assembly import STAGES, Assembly, CompiledKernel, kernel_of
from profiling.assembly_counts import main_loop
from profiling.assembly_diff import DiffLine, unified
from profiling.assembly_loops import PRODUCTS, Code, Loop, code_of, counts
from profiling.assembly_text import Row, rows_of
from profiling.compiler_process import Question
from profiling.occupancy import Room, room
from profiling.records import CompileReport, label_of


class ShownKernel:
    """One kernel of an answer."""

    def __init__(self, kernel: CompiledKernel, sources: dict[str, str]) -> None:
        self.part, self.report, self.texts, self.sources = kernel.part, kernel.report, kernel.texts, sources
        self._rows: dict[str, tuple[Row, ...]] = {}

    def rows(self, stage: str) -> tuple[Row, ...]:
        """The lines of a stage."""
        if stage not in self._rows:
            self._rows[stage] = rows_of(stage, self.texts)
        return self._rows[stage]

    @cached_property
    def code(self) -> Code:
        """Its SASS as instructions and loops."""
        return code_of(self.rows("sass"), self.sources)

    @cached_property
    def room(self) -> tuple[Room, ...]:
        """What each of an SM's resources allows it."""
        report = self.report
        arch = architecture(report.capability)
        return room(arch, report.registers_per_thread, report.warps_per_program, report.shared_memory_bytes)

    def rows_within(self, stage: str, loop: int | None) -> tuple[Row, ...]:
        """The lines of a stage, or of SASS those of one loop."""
        rows = self.rows(stage)
        if loop is None or stage != "sass" or loop >= len(self.code.loops):
            return rows
        return tuple(rows[one.row] for one in self.code.loops[loop].instructions)


class Shown:
    """One answer of the compiler, with kernels."""

    def __init__(self, assembly: Assembly) -> None:
        self.assembly = assembly
        self.kernels = tuple(ShownKernel(kernel, assembly.sources) for kernel in assembly.kernels)

    @property
    def question(self) -> Question:
        """What was asked."""
        return self.assembly.question

    def kernel(self, part: str | None = None) -> ShownKernel:
        """The kernel that does this; the one that is shown first where there is no such, and without a part."""
        found = kernel_of(self.assembly.kernels, part) or self.assembly.kernels[-1]
        return next(one for one, kernel in zip(self.kernels, self.assembly.kernels, strict=True) if kernel is found)


def parts(found: Sequence[Shown]) -> dict[str, str | None]:
    """What can be shown of one answer or of two beside each other: by its title the part, None for each one's main kernel."""
    mains = [one.kernels[-1].part for one in found]
    told: dict[str, str | None] = {" | ".join(dict.fromkeys(map(kernel_parts.title, mains))): None}
    every = dict.fromkeys(kernel.part for one in found for kernel in reversed(one.kernels))
    shared = (part for part in every if part not in mains and all(kernel_of(one.assembly.kernels, part) for one in found))
    return told | {kernel_parts.title(part): part for part in shared}


def name_of(question: Question, part: str) -> str:
    """'v2 · 64 × 64, 4 warps, 3 stages · head_dim 128 · causal · sm_90'; with a backward, 'v2 backward · dQ · 64 × 64, …'."""
    request, tiles = question.request, kernel_parts.tiles_of(question.request, part)
    dtype = "" if request.precision.fp8 or request.precision.dtype == "bf16" else f" {request.precision.dtype}"
    name = f"{label_of(request, request.tiles)}{dtype}"
    if request.direction == "backward":
        name = f"{request.kernel} backward{dtype} · {kernel_parts.title(part)}"
    told = [name, *([tiles.title] if tiles else []), f"head_dim {request.problem.head_dim}"]
    return " · ".join([*told, *(["causal"] if request.problem.causal else []), f"sm_{question.capability}"])


def others(shown: Shown, part: str) -> str:
    """Of a backward, its other kernels in words: 'dQ (128 × 64, 8 warps, 2 stages): 162 registers a thread, …'."""
    request = shown.question.request
    if request.direction == "forward":
        return ""
    told = []
    for kernel in reversed(shown.kernels):
        tiles = kernel_parts.tiles_of(request, kernel.part)
        if kernel.part != part:
            told.append(
                f"{kernel_parts.title(kernel.part)}{f' ({tiles.title})' if tiles else ''}: "
                f"{kernel.report.registers_per_thread} registers a thread, {result(kernel.report)}."
            )
    return " ".join(told)


def result(report: CompileReport) -> str:
    """The result in words: 'two programs on an SM, shared memory keeps a third off'."""
    if report.programs_per_sm == 0:
        return "does not fit on an SM"
    programs = (
        f"{report.programs_per_sm} program{'s' if report.programs_per_sm > 1 else ''} an SM, limited by {report.limited_by}"
    )
    return f"{programs}; {'no spills' if report.spill_bytes == 0 else f'{report.spill_bytes:,} bytes of spills a thread'}"


def metrics(kernel: ShownKernel) -> list[tuple[str, str, str, str]]:
    """(label, value, note, kind) as look.metrics takes them."""
    report, code = kernel.report, kernel.code
    limit = words.kib(report.shared_memory_limit_bytes)
    return [
        ("Registers a thread", str(report.registers_per_thread), f"of {report.max_registers_per_thread}", ""),
        ("Spills", f"{report.spill_bytes:,} B", "a thread, on its stack", "refused" if report.spill_bytes else "correct"),
        ("Shared memory", f"{report.shared_memory_bytes / 1024:.4g} KiB", f"of {limit} a program", ""),
        (
            "Programs an SM",
            str(report.programs_per_sm),
            f"{report.warps_per_sm} of {report.max_warps_per_sm} warps; {report.limited_by}",
            "" if report.programs_per_sm else "refused",
        ),
        ("Instructions", f"{len(code.instructions):,}", f"{len(code.loops)} innermost loop{'s' * (len(code.loops) != 1)}", ""),
        _loop_metric(main_loop(code)),
    ]


def _loop_metric(loop: Loop | None) -> tuple[str, str, str, str]:
    """The size of the loop over full key tiles, and what of it decides how long a trip takes."""
    if loop is None:
        return "In the main loop", "–", "no loop", ""
    found = counts(loop.instructions)
    told = [f"{found[name]} {name}" for name in (*PRODUCTS, "exp2", "shuffles") if name in found]
    return "In the main loop", f"{len(loop.instructions):,}", ", ".join(told), ""


@lru_cache(maxsize=16)
def diff_of(
    first: ShownKernel, second: ShownKernel, stage: str, loops: tuple[int, int] | None
) -> tuple[tuple[DiffLine, ...], tuple[Row, ...], tuple[Row, ...]]:
    """The unified diff of a stage, and the lines of each side that its rows are of; loops: of one of each, from 0."""
    before = first.rows_within(stage, loops[0] if loops else None)
    after = second.rows_within(stage, loops[1] if loops else None)
    return tuple(unified(stage, before, after)), before, after


def stage_of(name: str | None) -> str | None:
    """A stage by the name a user sees."""
    return next((stage for stage, said in STAGES.items() if said == name), None)
