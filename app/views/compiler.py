"""The Compiler page: what the compiler made of a configuration, for any GPU; counted, listed, and beside another one."""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import compiler_choices, compiler_shown, look, state
from app.compiler_choices import SIDES, Checked
from app.compiler_shown import Shown, ShownKernel
from app.listing import component, payload
from app.views import compiler_counts, compiler_fields, press
from profiling.assembly import STAGES
from profiling.assembly_counts import pair_name, paired
from profiling.records import JobError

COUNTS = "Counts"
_SIDE_NAMES = ("First", "Second")
_WHENCE = {
    "sass": "Source lines by ptxas’s line table, which names the innermost function; the calls around it are PTX’s, where they "
    "are the same everywhere. What ptxas moved may bear the line of what stands before it.",
    "ptx": "Source lines by Triton’s .loc, with the calls that were inlined. Debug sections are left out.",
    "llir": "Source lines by LLVM’s !dbg locations.",
    "ttgir": "Source lines by MLIR’s locations.",
    "ttir": "Source lines by MLIR’s locations.",
}


def page() -> None:
    """The fields of one configuration or two, what came of them, and one view of it."""
    state.put_back_fields("compiler")
    before = state.compiler_fields_now()
    sides = SIDES if state.is_compared() else SIDES[:1]
    place = st.container(gap="xsmall")
    compiler_fields.fields(sides)
    if state.lost_fields("compiler", before, state.compiler_fields_now(), state.compiler_view()):
        st.rerun()
    found: list[Shown] = []
    for side in sides:
        checked = compiler_choices.check(state.compiler_values(side))
        with st.container(gap="small"):  # a place of its own: what comes and goes in it does not remake what follows
            shown = _side(side, checked, is_one_of_two=len(sides) > 1)
        if shown is not None:
            found.append(shown)
    with place:
        _head(found)
    if len(found) == len(sides):
        _views(found)


def _side(side: str, checked: Checked, is_one_of_two: bool) -> Shown | None:
    """What there is of a side: its answer, or what it showed last while there is none; and why."""
    name = f"{_SIDE_NAMES[SIDES.index(side)]}: " if is_one_of_two else ""
    last = state.last_compiled(side)
    if checked.question is None:
        look.field_error(f"{name}{checked.sentence}")
        _cure(side, checked.cure)
        return last
    future = state.compilations().of(checked.question)
    if not future.done():
        with st.container():  # a fragment that runs again by itself needs a container of its own
            _waiting(side, name)
        return last
    if future.exception() is not None:
        look.field_error(f"{name}{future.exception()}")
        return last
    shown = future.result()
    if shown.assembly.error is not None:
        _error(side, name, shown)
    if not shown.kernels:
        return last
    state.remember_compiled(side, shown)
    return shown


@st.fragment(run_every=0.5)
def _waiting(side: str, name: str) -> None:
    checked = compiler_choices.check(state.compiler_values(side))
    if checked.question is None or state.compilations().of(checked.question).done():
        st.rerun()
    waited = state.compilations().seconds(checked.question)
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        kept = "By Triton and ptxas, on this machine; the answer is kept on disk."
        look.chips([("wait", f"{name}compiling · {waited:.0f} s", kept)], width="content")
        stop = state.compilations().stop
        st.button("Stop", icon=":material/close:", type="tertiary", on_click=stop, args=(checked.question,), key=f"{side}stop")


def _cure(side: str, cure: object) -> None:
    if cure is not None:
        st.button(f"Use {cure.title}", on_click=state.use_compiler_tiles, args=(side, cure), key=f"{side}cure")


def _error(side: str, name: str, shown: Shown) -> None:
    """Why it cannot run, in one sentence; the compiler's own message folded beneath."""
    error: JobError = shown.assembly.error
    look.field_error(f"{name}{error.sentence}")
    with st.container(horizontal=True, gap="small"):
        if error.kind in ("timeout", "crashed", "cancelled"):
            st.button("Try again", on_click=state.compilations().again, args=(shown.question,), key=f"{side}again")
    if error.raw and error.kind != "refused":
        with st.expander("The compiler’s own message"):
            st.code(error.raw, language=None, wrap_lines=True, height=320)


def _head(found: list[Shown]) -> None:
    """The result in words."""
    kernels = _kernels(found)
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", gap="small"):
        if not found:
            look.title("What the compiler makes of it")
        elif len(found) == 1:
            name = compiler_shown.name_of(found[0].question, kernels[0].part)
            look.title(f"{name}: {compiler_shown.result(kernels[0].report)}")
        else:
            look.title(compiler_counts.difference(kernels))
        with st.container(horizontal=True, gap="small", width="content", vertical_alignment="center"):
            for side, one in zip(SIDES, found, strict=False):
                _run_it(side, one, "Run it" if len(found) == 1 else f"Run the {_SIDE_NAMES[SIDES.index(side)].lower()}")
            st.caption(look.BADGES["compiled"], width="content")


def _run_it(side: str, shown: Shown, label: str) -> None:
    why_not = compiler_choices.why_not_run(shown.question)
    if press.button(
        label, icon=":material/arrow_forward:", type="tertiary", key=f"{side}run", disabled=why_not is not None,
        help=why_not or "Puts version, direction, format, tiles and GPU into the Run page’s form.",
    ):  # fmt: skip
        state.run_as_compiled(shown.question)


def _views(found: list[Shown]) -> None:
    """Which kernel and which view; then that view."""
    _kernel_control(found)
    kernels = _kernels(found)
    for name, one, kernel in zip(_SIDE_NAMES, found, kernels, strict=False):
        side = [f"{name}: {compiler_shown.name_of(one.question, kernel.part)}."] if len(found) > 1 else []
        owner = compiler_choices.whose_backward(one.question.request)
        whose = [f"It is the backward of {owner}: {one.question.request.kernel} has none of its own here."] if owner else []
        others = compiler_shown.others(one, kernel.part)
        said = [*side, *whose, *([f"Launched with it: {others}"] if others else [])]
        if said:
            look.caption(" ".join(said))
    compiler_counts.metrics(kernels)
    names = [COUNTS, *(STAGES[stage] for stage in STAGES if all(stage in kernel.texts for kernel in kernels))]
    state.forget_unless_among(state.SHOW_KEY, names)
    row = st.container(horizontal=True, gap="small", vertical_alignment="center")
    with row:
        shown = st.segmented_control(
            "View", names, default=COUNTS, required=True, key=state.SHOW_KEY, bind="query-params",
            label_visibility="collapsed",
        )  # fmt: skip
    stage = compiler_shown.stage_of(shown)
    if stage is None:
        compiler_counts.counts(kernels)
    elif len(kernels) == 1:
        _listing(row, kernels[0], stage)
    else:
        _two(row, kernels, stage)


def _kernel_control(found: list[Shown]) -> None:
    """Which of several kernels is shown."""
    titles = list(compiler_shown.parts(found))
    if len(titles) > 1:
        state.forget_unless_among(state.KERNEL_KEY, titles)
        st.segmented_control(
            "Kernel", titles, default=titles[0], required=True, key=state.KERNEL_KEY, bind="query-params",
            label_visibility="collapsed",
        )  # fmt: skip


def _kernels(found: list[Shown]) -> list[ShownKernel]:
    """The kernel of each side that is chosen."""
    parts = compiler_shown.parts(found)
    part = parts.get(state.compiler_part(parts) or "")
    return [one.kernel(part) for one in found]


def _two(row: DeltaGenerator, kernels: list[ShownKernel], stage: str) -> None:
    """How two texts of a stage differ, or one of them; what is chosen of it stands in the row of the views."""
    with row:
        side = st.segmented_control(
            "Which", ("Diff", *_SIDE_NAMES), default="Diff", required=True, key=state.SIDE_KEY, bind="query-params",
            label_visibility="collapsed",
        )  # fmt: skip
    if side in _SIDE_NAMES:
        _listing(row, kernels[_SIDE_NAMES.index(side)], stage)
    else:
        _diff(row, kernels, stage)


def _listing(row: DeltaGenerator, kernel: ShownKernel, stage: str) -> None:
    with row:
        _download(kernel, stage)
    code = kernel.code if stage == "sass" else None
    component.listing(payload.pack(kernel.rows(stage), kernel.sources, code), key="listing")
    look.caption(_WHENCE[stage])


def _diff(row: DeltaGenerator, kernels: list[ShownKernel], stage: str) -> None:
    first, second = kernels
    with row:
        loops = _within(first, second) if stage == "sass" else None
    lines, before, after = compiler_shown.diff_of(first, second, stage, loops)
    if not lines:
        look.sentence("The two texts are the same but for addresses, labels and the numbers of registers.")
        return
    gone, come = (sum(line.mark == mark for line in lines) for mark in "-+")
    with row:
        look.caption(f"{gone:,} lines gone, {come:,} new; without addresses and the numbers of registers.")
    component.listing(payload.pack_diff(lines, before, after, first.sources | second.sources), key="listing")


def _within(first: ShownKernel, second: ShownKernel) -> tuple[int, int] | None:
    """Which loop of each is compared; None: the whole kernels."""
    pairs = [pair for pair in paired(first.code, second.code) if None not in pair]
    options = ["Whole kernel", *(pair_name(pair).capitalize() for pair in pairs)]
    chosen = st.selectbox("Within", options, key=state.WITHIN_KEY, label_visibility="collapsed", width=150)
    place = options.index(chosen) - 1 if chosen in options else -1
    return pairs[place] if place >= 0 else None


def _download(kernel: ShownKernel, stage: str) -> None:
    st.download_button(
        "Download", kernel.texts[stage], file_name=f"{kernel.report.kernel}-sm_{kernel.report.capability}.{stage}",
        mime="text/plain", icon=":material/download:", on_click="ignore", type="tertiary",
    )  # fmt: skip
