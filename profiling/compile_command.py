"""The command compile: what the compiler made of a configuration, for any GPU, on a machine that needs none."""

from __future__ import annotations

import argparse
import json
import sys

from pydantic import ValidationError

from kernels.architecture import ARCHITECTURES, Architecture, architecture
from kernels.problem import AttentionProblem, Precision, TileConfig
from kernels.registry import Refused, default_tiles, precision_for, refuse, version
from profiling.assembly import STAGES, Assembler, Assembly, CompiledKernel
from profiling.assembly_counts import Counts, count_table, loop_words
from profiling.assembly_diff import unified
from profiling.assembly_loops import Code, code_of, counts
from profiling.assembly_text import rows_of
from profiling.compiler_process import Question
from profiling.kernel_choice import KernelChoice, kernel_choices
from profiling.occupancy import room
from profiling.record_types import first_sentence
from profiling.records import RunRequest
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
    parser.add_argument("--of", metavar="NAME", help="which of several kernels that are launched (the attention)")
    parser.add_argument("--head-dim", type=int, default=128, metavar="N", help="numbers a head has (128)")
    parser.add_argument("--causal", action=argparse.BooleanOptionalAction, default=False, help="a query sees no later key (no)")
    parser.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16", help="format of the inputs and the output (bf16)")
    parser.add_argument("--fp8", action=argparse.BooleanOptionalAction, default=False, help="e4m3 operands (no)")
    parser.add_argument("--whole", action="store_true", help="print a text with its locations and debug data too")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON, and nothing else")
    parser.set_defaults(command=show)


def show(options: argparse.Namespace) -> int:
    """Run the command and return its exit code. Raises BadInput."""
    asked = [_question(options, options.kernel, options.gpu)]
    if options.diff or options.diff_gpu:
        asked.append(_question(options, options.diff or options.kernel, options.diff_gpu or options.gpu))
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


def _question(options: argparse.Namespace, kernel: str, gpu: str) -> Question:
    arch = _architecture(gpu)
    try:
        choices = kernel_choices(kernel)
        if len(choices) != 1:
            raise ValueError(f"kernel = {kernel} is not possible: compile takes one; --diff takes a second.")
        return Question(request=_request(options, choices[0], arch), capability=arch.capability)
    except ValidationError as error:
        raise BadInput(first_sentence(error)) from None
    except ValueError as error:
        raise BadInput(error) from None


def _architecture(gpu: str) -> Architecture:
    number = gpu.removeprefix("sm_")
    if not number.isdecimal() or int(number) not in ARCHITECTURES:
        raise BadInput(f"gpu = {shown(gpu, 40)} is not possible: it can be {_GPUS}.")
    return architecture(int(number))


def _request(options: argparse.Namespace, choice: KernelChoice, arch: Architecture) -> RunRequest:
    name = choice.name
    problem = AttentionProblem(
        num_heads=HEADS, num_kv_heads=HEADS, seq_len_q=TOKENS, seq_len_kv=TOKENS, head_dim=options.head_dim,
        causal=options.causal,
    )  # fmt: skip
    precision = Precision(**{"dtype": options.dtype, "fp8": options.fp8} | choice.precision)
    if version(name).has_fp8 and "fp8_scale" not in choice.precision:
        precision = precision_for(name, precision)
    suggested = default_tiles(name, problem, precision, arch, choice.tiles.get("loop_order", "query"))
    if suggested is None:
        raise Refused(f"kernel = {name} is not possible: its kernels are not ours to compile.")
    tiles = TileConfig(**suggested.model_dump() | choice.tiles)
    refuse(name, problem, precision, tiles, arch)
    return RunRequest(kernel=name, problem=problem, precision=precision, tiles=tiles)


def _title(question: Question) -> str:
    request = question.request
    return (
        f"{request.kernel} {request.precision.title}, {request.tiles.title}, head_dim {request.problem.head_dim}"
        f"{', causal' if request.problem.causal else ''}, sm_{question.capability}"
    )


def _kernel(found: Assembly, name: str | None) -> CompiledKernel:
    by_name = {kernel.report.kernel: kernel for kernel in found.kernels}
    if name is not None and name not in by_name:
        raise BadInput(f"of = {shown(name, 40)} is not possible: it can be {', '.join(by_name)}.")
    return by_name[name] if name else found.kernels[-1]


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
        report = kernel.report
        spills = f"{report.spill_bytes:,} bytes of spills a thread" if report.spill_bytes else "no spills"
        head = f"{_title(one.question)}: {kernel.report.kernel}, {report.registers_per_thread} registers a thread, {spills}"
        parts.append("\n".join([head, *(f"  {line}" for line in loop_words(code)), *_room(kernel)]))
    return parts


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
    lines = [f"  {one.resource}: {'; '.join(one.steps)}: {one.programs} programs" for one in found]
    return [*lines, f"  {report.programs_per_sm} programs on an SM at once, limited by: {report.limited_by}"]


def _as_json(found: Assembly, kernel: CompiledKernel) -> dict[str, object]:
    code = _code(found, kernel)
    return {
        "request": found.question.request.model_dump(mode="json"),
        "report": kernel.report.model_dump(mode="json"),
        "instructions": counts(code.instructions),
        "loops": [{"name": loop.name, "begins": loop.begins, "instructions": counts(loop.instructions)} for loop in code.loops],
        "error": found.error.sentence if found.error else None,
    }
