"""The Compiler page's numbers: what matters at once, instructions by class and loop, the occupancy step by step."""

from __future__ import annotations

import streamlit as st

from app import compiler_shown, look
from app.compiler_shown import ShownKernel
from profiling import words
from profiling.assembly_counts import CountRow, Counts, count_table, loop_words, main_loop
from profiling.occupancy import Room
from profiling.words import escaped

_SIDES = ("first", "second")


def metrics(kernels: list[ShownKernel]) -> None:
    """The figures of one kernel; of two, the second's beside the first's."""
    if len(kernels) == 1:
        look.metrics(compiler_shown.metrics(kernels[0]))
        return
    both = zip(*(compiler_shown.metrics(kernel) for kernel in kernels), strict=True)
    look.metrics([(first[0], _both(first[1], second[1]), _both(first[2], second[2]), second[3]) for first, second in both])


def _both(first: str, second: str) -> str:
    return first if first == second else f"{first} → {second}"


def difference(kernels: list[ShownKernel]) -> str:
    """What differs most in words: the size of the loop that does the work, and the programs an SM."""
    first, second = kernels
    loops = [main_loop(kernel.code) for kernel in kernels]
    fit = first.report.programs_per_sm, second.report.programs_per_sm
    programs = f"{_both(*map(str, fit))} program{'' if fit == (1, 1) else 's'} an SM"
    if None in loops:
        return programs
    sizes = _both(*(f"{len(loop.instructions):,}" for loop in loops))
    return f"{sizes} instructions in the main loop, {programs}"


def counts(kernels: list[ShownKernel]) -> None:
    """Instructions by class, whole and loop by loop; and the occupancy: beside one kernel, below two."""
    if len(kernels) == 1:
        left, right = st.columns([1.75, 1], gap="large")
        with left:
            _classes(kernels)
        with right:
            _occupancy(kernels[0], "")
        return
    _classes(kernels)
    for place, column in enumerate(st.columns(2, gap="large")):
        with column:
            _occupancy(kernels[place], f" · {_SIDES[place]}")


def _classes(kernels: list[ShownKernel]) -> None:
    look.heading("Instructions, by what they are for")
    st.html(_html(count_table([kernel.code for kernel in kernels])))
    with st.container(gap=None):
        for place, kernel in enumerate(kernels):
            of = f"{_SIDES[place].capitalize()} · " if len(kernels) > 1 else ""
            for line in loop_words(kernel.code):
                look.caption(f"{of}{line}")
    look.caption(
        "Loops: the innermost that hold matrix products, and those that load for them. Read off the SASS; a loop is found by "
        "its jumps, and named after the source’s for that most of its instructions come from."
    )


def _occupancy(kernel: ShownKernel, of: str) -> None:
    look.heading(f"Programs at once on an SM of sm_{kernel.report.capability}{of}")
    st.html(_room(kernel))
    look.caption("Computed from ptxas’s figures, as CUDA’s occupancy calculator counts; the least is what there can be.")


def _html(table: Counts) -> str:
    span = f' colspan="{table.sides}"' if table.sides > 1 else ""
    groups = "".join(f'<th scope="colgroup"{span}>{escaped(name)}</th>' for name in table.groups)
    sides = "".join(f'<th scope="col">{side}</th>' for _ in table.groups for side in _SIDES) if table.sides > 1 else ""
    second = f"<tr><td></td>{sides}<td></td></tr>" if sides else ""
    rows = "".join(_row(row, table.sides) for row in table.rows)
    return (
        '<div class="fs-counts" tabindex="0" role="region" aria-label="Table: instructions by class">'
        f'<table><thead><tr><th scope="col">class</th>{groups}<th scope="col">what it means</th></tr>{second}</thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _row(row: CountRow, sides: int) -> str:
    cells = []
    for place, cell in enumerate(row.cells):
        other = row.cells[place - place % sides + (1 - place % sides)] if sides > 1 else cell
        text = "–" if cell is None else f"{cell:,}"
        differs = sides > 1 and place % 2 == 1 and cell is not None and other is not None and cell != other
        kind = ' class="fs-differs"' if differs else ' class="fs-zero"' if not cell else ""
        cells.append(f"<td{kind}>{text}</td>")
    kind = ' class="fs-bad-row"' if row.name == "spills" else ""
    return f'<tr{kind}><th scope="row">{escaped(row.name)}</th>{"".join(cells)}<td>{escaped(row.meaning)}</td></tr>'


def _room(kernel: ShownKernel) -> str:
    least = min(one.programs for one in kernel.room)
    binding = next(one for one in kernel.room if one.programs == least)
    rows = "".join(_resource(one, one is binding) for one in kernel.room)
    report = kernel.report
    held = f"{report.programs_per_sm} × {report.warps_per_program} warps = {report.warps_per_sm} of {report.max_warps_per_sm}"
    share = report.warps_per_sm / report.max_warps_per_sm
    last = f'<tr><th scope="row">occupancy</th><td>{held}</td><td>{words.percent(share)}</td></tr>'
    return (
        '<div class="fs-counts fs-room"><table><thead><tr><th scope="col">resource</th><th scope="col">step by step</th>'
        f'<th scope="col">programs</th></tr></thead><tbody>{rows}{last}</tbody></table></div>'
    )


def _resource(one: Room, binds: bool) -> str:
    steps = "<br>".join(map(escaped, one.steps))
    name = f"{one.resource}<br><strong>binds</strong>" if binds else one.resource
    kind = ' class="fs-binds"' if binds else ""
    return f'<tr{kind}><th scope="row">{name}</th><td>{steps}</td><td>{one.programs}</td></tr>'
