"""The command compile: what the compiler made of a configuration, for any GPU, on a machine that needs none."""

from __future__ import annotations

import argparse
import json
import sys

from pydantic import ValidationError

from kernels.architecture import ARCHITECTURES, Architecture, architecture
from kernels.problem import AttentionProblem, BackwardTiles, Precision, listed
from kernels.registry import backward_of, precision_for, version
from profiling.assembly import STAGES, Assembler, Assembly, CompiledKernel, kernel_of
from profiling.assembly_counts import Counts, count_table, loop_words
from profiling.assembly_diff import unified
from profiling.assembly_loops import Code, code_of, counts
from profiling.assembly_text import rows_of
from profiling.compile_request import DIRECTIONS, backward_request, forward_request
from profiling.compiler_process import Question
from profiling.kernel_choice import KernelChoice, kernel_choices
from profiling.kernel_parts import tiles_of, title
from profiling.occupancy import room
from profiling.record_types import first_sentence
from profiling.records import RunRequest
from profiling.run_options import EXPLAINED, backward_tiles_of
from profiling.terminal import NOT_RIGHT, RIGHT, BadInput, columns, complain, shown

TOKENS, HEADS = 4096, 16
_GPUS = ", ".join(f"sm_{one}" for one in ARCHITECTURES)


def add_compile_command(commands: argparse._SubParsersAction) -> None:
    """Give a parser the command of this module."""
    parser = commands.add_parser(
        "compile",
        help="show what the compiler makes of a kernel, for any GPU",
        description="Compile a configuration for any GPU, on a machine that needs none: instructions by class and innermost "
        "loop, the occupancy step by step, or a stage's text; and how two configurations differ.",
        allow_abbrev=False,
    )
    parser.add_argument("--kernel", required=True, help="a version; with settings after @, as in v2@block_m=64,num_warps=4")
    parser.add_argument("--diff", metavar="KERNEL", help="a second configuration: counts side by side, texts as a unified diff")
    parser.add_argument("--gpu", default="sm_90", help=f"for which GPU: {_GPUS} (sm_90)")
    parser.add_argument("--diff-gpu", metavar="GPU", help="the second configuration's GPU (as --gpu)")
    parser.add_argument("--show", choices=("counts", *STAGES), default="counts", help="what to print (counts)")
    parser.add_argument(
        "--direction", choices=DIRECTIONS, default=DIRECTIONS[0], help="the forward's kernels, or the backward's (forward)"
    )
    tiles = {"nargs": "+", "metavar": "BLOCK_M,BLOCK_N,WARPS,STAGES"}
    parser.add_argument("--backward-tiles", **tiles, help=EXPLAINED["backward_tiles"])
    parser.add_argument(
        "--diff-backward-tiles", **tiles, help="the second configuration's (those of the first, but with --diff the version's)"
    )
    parser.add_argument(
        "--of", metavar="NAME",
        help="which of several kernels that are launched: its name, or of a backward dkdv, dq or delta (the attention; dkdv)",
    )  # fmt: skip
    parser.add_argument("--head-dim", type=int, default=128, metavar="N", help="numbers a head has (128)")
    parser.add_argument("--causal", action=argparse.BooleanOptionalAction, default=False, help="a query sees no later key (no)")
    parser.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16", help="format of the inputs and the output (bf16)")
    parser.add_argument("--fp8", action=argparse.BooleanOptionalAction, default=False, help="e4m3 operands (no)")
    parser.add_argument("--whole", action="store_true", help="print a text with its locations and debug data too")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON, and nothing else")
    parser.set_defaults(command=show)


def show(options: argparse.Namespace) -> int:
    """Run the command and return its exit code. Raises BadInput."""
    asked = _questions(options)
    if options.json and options.show != "counts":
        raise BadInput(f"--json is not possible with --show {options.show}: the texts are no JSON.")
    assembler = Assembler()
    found: list[Assembly] = []
    try:
        for question in asked:
            if assembler.kept(question) is None:
                print(f"Compiling {_title(question)} …", file=sys.stderr, flush=True)
            found.append(assembler.answer(question))
    finally:
        assembler.close()
    for one in found:
        if one.error is not None:
            complain(shown(one.error.sentence))
            if not one.kernels and one.error.raw:
                complain("\n".join(map(_as_it_was, one.error.raw.splitlines())))
    if not all(one.kernels for one in found):
        return NOT_RIGHT
    kernels = [_kernel(one, options.of) for one in found]
    if options.json:
        print(json.dumps([_as_json(*pair) for pair in zip(found, kernels, strict=True)], allow_nan=False))
    else:
        print(_text(found, kernels, options))
    return NOT_RIGHT if any(one.error is not None for one in found) else RIGHT


def _as_it_was(line: str) -> str:
    """A line of the compiler's, with its indentation and without what a terminal would obey."""
    return " " * (len(line) - len(line.lstrip(" "))) + shown(line)


def _questions(options: argparse.Namespace) -> list[Question]:
    first, second = options.backward_tiles, options.diff_backward_tiles
    if options.direction == "forward" and (first or second):
        given = "--backward-tiles" if first else "--diff-backward-tiles"
        raise BadInput(f"{given} is not possible with direction = forward: --direction backward has them.")
    asked = [_question(options, options.kernel, options.gpu, "--backward-tiles", first)]
    if options.diff or options.diff_gpu or second:
        option = "--diff-backward-tiles" if second else "--backward-tiles"
        tiles = second or (None if options.diff else first)
        asked.append(_question(options, options.diff or options.kernel, options.diff_gpu or options.gpu, option, tiles))
    return asked


def _question(options: argparse.Namespace, kernel: str, gpu: str, option: str, tiles: list[str] | None) -> Question:
    arch = _architecture(gpu)
    try:
        choices = kernel_choices(kernel)
        if len(choices) != 1:
            raise ValueError(f"kernel = {kernel} is not possible: compile takes one; --diff takes a second.")
        request = _request(options, choices[0], arch, backward_tiles_of(option, tiles))
        return Question(request=request, capability=arch.capability)
    except ValidationError as error:
        raise BadInput(first_sentence(error)) from None
    except ValueError as error:
        raise BadInput(error) from None


def _architecture(gpu: str) -> Architecture:
    number = gpu.removeprefix("sm_")
    if not number.isdecimal() or int(number) not in ARCHITECTURES:
        raise BadInput(f"gpu = {shown(gpu, 40)} is not possible: it can be {_GPUS}.")
    return architecture(int(number))


def _request(
    options: argparse.Namespace, choice: KernelChoice, arch: Architecture, backward_tiles: BackwardTiles | None
) -> RunRequest:
    name = choice.name
    problem = AttentionProblem(
        num_heads=HEADS, num_kv_heads=HEADS, seq_len_q=TOKENS, seq_len_kv=TOKENS, head_dim=options.head_dim,
        causal=options.causal,
    )  # fmt: skip
    precision = Precision(**{"dtype": options.dtype, "fp8": options.fp8} | choice.precision)
    if version(name).has_fp8 and "fp8_scale" not in choice.precision:
        precision = precision_for(name, precision)
    if options.direction == "forward":
        return forward_request(name, problem, precision, arch, choice.tiles, choice.tiles.get("loop_order", "query"))
    if choice.tiles:
        raise ValueError(f"{choice.spelled} is not possible with direction = backward: --backward-tiles names its tiles.")
    return backward_request(name, problem, precision, arch, backward_tiles)


def _title(question: Question) -> str:
    request = question.request
    tiles = request.tiles or request.backward_tiles
    direction = "" if request.direction == "forward" else " backward"
    return (
        f"{request.kernel}{direction} {request.precision.title}, {tiles.title}, head_dim {request.problem.head_dim}"
        f"{', causal' if request.problem.causal else ''}, sm_{question.capability}"
    )


def _kernel(found: Assembly, name: str | None) -> CompiledKernel:
    kernel = kernel_of(found.kernels, name)
    if kernel is None:
        is_forward = found.question.request.direction == "forward"
        names = tuple(one.report.kernel if is_forward else one.part for one in found.kernels)
        possible = listed(names) if len(names) > 1 else names[0]
        raise BadInput(f"of = {shown(name, 40)} is not possible: it can be {possible}.")
    return kernel


def _code(found: Assembly, kernel: CompiledKernel) -> Code:
    return code_of(rows_of("sass", kernel.texts), found.sources)


def _text(found: list[Assembly], kernels: list[CompiledKernel], options: argparse.Namespace) -> str:
    stage = options.show
    if stage == "counts":
        return "\n\n".join(_counted(found, kernels))
    missing = next((kernel for kernel in kernels if stage not in kernel.texts), None)
    if missing is not None:
        raise BadInput(f"show = {stage} is not possible: {missing.report.kernel} is written in Gluon, which begins with TTGIR.")
    if len(kernels) == 1:
        rows = rows_of(stage, kernels[0].texts)
        return "\n".join(row.text if options.whole else row.shown for row in rows if options.whole or not row.is_noise)
    both = [rows_of(stage, kernel.texts) for kernel in kernels]
    heads = [f"{mark} {_title(one.question)}" for mark, one in zip(("---", "+++"), found, strict=True)]
    lines = unified(stage, *both)
    return "\n".join([*heads, *(f"@@ {line.text} @@" if line.mark == "@" else line.mark + line.text for line in lines)])


def _counted(found: list[Assembly], kernels: list[CompiledKernel]) -> list[str]:
    codes = [_code(*pair) for pair in zip(found, kernels, strict=True)]
    parts = [_table(count_table(codes))]
    for one, kernel, code in zip(found, kernels, codes, strict=True):
        head = f"{_title(one.question)}: {kernel.report.kernel}, {_fitted(kernel)}"
        lines = [head, *(f"  {line}" for line in loop_words(code)), *_room(kernel)]
        parts.append("\n".join([*lines, *_beside(one, kernel)]))
    return parts


def _fitted(kernel: CompiledKernel) -> str:
    """'168 registers a thread, no spills'."""
    report = kernel.report
    spills = f"{report.spill_bytes:,} bytes of spills a thread" if report.spill_bytes else "no spills"
    return f"{report.registers_per_thread} registers a thread, {spills}"


def _beside(found: Assembly, kernel: CompiledKernel) -> list[str]:
    """Of a backward, whose it is where it is another version's; and its other kernels, which --of shows."""
    request = found.question.request
    if request.direction == "forward":
        return []
    owner = backward_of(request.kernel, request.problem).owner
    whose = [] if owner == request.kernel else [f"  the backward of {owner}: {request.kernel} has none here of its own"]
    return whose + [
        f"  also launched: {title(one.part)} (--of {one.part}), {_fitted(one)}, "
        f"{_programs(one.report.programs_per_sm)} on an SM"
        for one in reversed(found.kernels)
        if one is not kernel
    ]


def _table(table: Counts) -> str:
    sides = ("", " second") if table.sides > 1 else ("",)
    heads = [f"{group}{side}" for group in table.groups for side in sides]
    rows = [["class", *heads, "what it means"]]
    rows += [[row.name, *("–" if one is None else f"{one:,}" for one in row.cells), row.meaning] for row in table.rows]
    return "\n".join(columns(rows, frozenset(range(1, len(heads) + 1))))


def _room(kernel: CompiledKernel) -> list[str]:
    report = kernel.report
    arch = architecture(report.capability)
    found = room(arch, report.registers_per_thread, report.warps_per_program, report.shared_memory_bytes)
    lines = [f"  {one.resource}: {'; '.join(one.steps)}: {_programs(one.programs)}" for one in found]
    return [*lines, f"  {_programs(report.programs_per_sm)} on an SM at once, limited by: {report.limited_by}"]


def _programs(count: int) -> str:
    return f"{count} program{'' if count == 1 else 's'}"


def _as_json(found: Assembly, kernel: CompiledKernel) -> dict[str, object]:
    code, tiles = _code(found, kernel), tiles_of(found.question.request, kernel.part)
    return {
        "request": found.question.request.model_dump(mode="json"),
        "part": kernel.part,
        "tiles": tiles.model_dump(mode="json") if tiles else None,
        "report": kernel.report.model_dump(mode="json"),
        "instructions": counts(code.instructions),
        "loops": [{"name": loop.name, "begins": loop.begins, "instructions": counts(loop.instructions)} for loop in code.loops],
        "launched": [{"part": one.part, "report": one.report.model_dump(mode="json")} for one in found.kernels],
        "error": found.error.sentence if found.error else None,
    }
