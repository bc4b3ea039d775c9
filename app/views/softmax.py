"""The Softmax page: what a kernel stored of its online softmax, tile by tile, and why it had to rescale."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app import form_check, look, state
from app.figures import ledger
from app.figures.style import Absent
from app.player import choices, component, export, payload
from app.player.choices import Choices
from app.views import microscope, press, run_status, save, schedule_lanes, watch_form
from kernels.architecture import architecture
from kernels.registry import Refused, refuse
from profiling import words
from profiling.job_queue import JobView
from profiling.records import INTERPRETER, DeviceFacts, Measurement, RunRequest
from profiling.rescale_ledger import DEFAULT_TAU_LOG2, RescaleLedger, rescale_ledger
from profiling.trace_record import Replay, TileTrace

_WHY = (
    "Softmax subtracts the largest score m of a row before it exponentiates, so that nothing overflows, and divides by the "
    "sum l of the row at the end.",
    "A kernel that sees the keys tile by tile does not know the largest score yet: it measures against the largest one so far.",
    "When a later tile brings a larger one, everything summed up before was measured against the wrong maximum; multiplying it "
    "by α = e^(old m − new m) sets that right, exactly, without going back.",
)
_HOW_THEY_DIFFER = {
    "v1": "keeps O divided by l at every tile, and computes the tiles of which no query sees a key, too.",
    "v1 key-outer": "takes each key tile once for all query blocks; O, m and l go through memory between two tiles.",
    "v2": "leaves O undivided until the last tile, and never visits a tile that causality hides.",
    "v3": "does the same arithmetic as v2, while the copy engine already fetches the next tile.",
    "v3-hopper": "goes through the keys from the last tile down, and lets m lag by up to 2⁸: while no row of a warp’s 16 "
    "exceeds it by more, m and O stay, and weights reach up to 2⁸ instead of 1.",
    "v3 FP8": "rounds Q and K to 8 bits with a scale each, so S is a little off; m, α and l are float32 all the same.",
}


def page() -> None:
    """What to watch, the job that traces it, the player, its proof, what rescaling cost, and why there is any."""
    queue = state.job_queue()
    devices = queue.devices() if queue.devices_ready else ()
    device = devices[0] if devices else None
    look.title("The online softmax, tile by tile")
    state.take_clicked_block()
    watch_form.fields()
    requests, problem = _asked(device)
    shown = _found(requests)
    with st.container(gap="small"):  # a place of its own: what comes and goes in it does not remake the player below
        _job(requests, problem, device, is_found=bool(shown))
        if not shown:
            look.sentence(_name(state.last_watched()), strong="Still shown:")
    _keep(requests)
    _play(shown or state.last_watched())


def watched(measurements: Sequence[Measurement]) -> None:
    """The player for the traces among these, where there are any."""
    found = tuple(one for one in measurements if one.tiles_trace is not None)
    if found:
        look.heading("The online softmax, tile by tile", found[0].tiles_trace.provenance)
        _play(found if len(found) < 3 and payload.can_step_together(found) else _chosen(found))


def _chosen(found: tuple[Measurement, ...]) -> tuple[Measurement, ...]:
    """One of several traces, and beside it one that can step with it."""

    def name(place: int | None) -> str:
        return choices.ALONE if place is None else found[place].label

    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="which-trace"):
        watched = st.selectbox("Watch", range(len(found)), format_func=name, key=state.WATCHED_TRACE_KEY, width=160)
        able = [
            place for place, one in enumerate(found) if place != watched and payload.can_step_together((found[watched], one))
        ]
        beside = st.selectbox("Beside it", [None, *able], format_func=name, key=state.TRACE_BESIDE_KEY, width=160)
    return (found[watched],) if beside is None else (found[watched], found[beside])


def _keep(requests: tuple[RunRequest, ...]) -> None:
    """Save and share what was traced here; what ships with FlashScope is there already."""
    job = state.job_of(requests)
    found = state.find(f"job-{job.job_id}") if job is not None and job.finished else None
    if found is not None:
        with st.container(horizontal=True, gap="small", vertical_alignment="center", key="keep-trace"):
            save.button(found)
        save.below(found)


def _asked(device: DeviceFacts | None) -> tuple[tuple[RunRequest, ...], str | None]:
    """What the fields ask for, nothing while own inputs are awaited; and why it cannot be traced on this device."""
    if watch_form.awaited():
        return (), None
    try:
        found = Choices.of(state.watch_values(), state.own_inputs()).requests(device.id if device else INTERPRETER)
    except ValueError as error:
        return (), str(error)
    return found, _problem_with(found, device)


def _problem_with(requests: tuple[RunRequest, ...], device: DeviceFacts | None) -> str | None:
    for request in requests:
        try:
            arch = architecture(device.capability) if device and device.kind == "gpu" else None
            refuse(request.kernel, request.problem, request.precision, request.tiles, arch)
        except Refused as error:
            return error.sentence
        if device is None or device.kind == "interpreter":
            seconds = _seconds(request, device)
            if seconds > form_check.INTERPRETER_LIMIT_S:
                return (
                    f"{request.problem.seq_len_q:,} tokens would take about {words.seconds(seconds)} in the interpreter: "
                    f"choose fewer tokens or heads, or larger tiles, to stay under {form_check.INTERPRETER_LIMIT_S:.0f} s."
                )
    return None


def _seconds(request: RunRequest, device: DeviceFacts | None) -> float:
    """The interpreter runs a traced kernel twice: to check the output, and once more with the trace."""
    tile_ms = (state.interpreter_tile_ms(device) if device else None) or form_check.CAUTIOUS_TILE_MS
    return 2 * form_check.interpreter_seconds(request, tile_ms)


def _found(requests: tuple[RunRequest, ...]) -> tuple[Measurement, ...]:
    """The traces that were asked for, if this server holds them all."""
    found = tuple(choices.traced(request, state.traces()) for request in requests)
    return found if None not in found else ()


def _job(requests: tuple[RunRequest, ...], problem: str | None, device: DeviceFacts | None, is_found: bool) -> None:
    """The button that traces, what the job is doing, or why it gave nothing."""
    if device is None:
        run_status.discovering()
        return
    job = state.job_of(requests)
    if job is not None and not job.finished:
        state.asked_to_trace()
        run_status.live(job.job_id)
        return
    if is_found:
        state.asked_to_trace()
        return
    if job is not None:
        _why_no_trace(job)
    if requests or problem is not None:
        _offer(requests, problem, device)


def _why_no_trace(job: JobView) -> None:
    """The job's error; or, where it ran well and only the trace failed, the flag that says so."""
    run_status.failed(job)
    for flag in (flag for result in job.results if result is not None for flag in result.flags if flag.name == "no trace"):
        look.sentence(flag.sentence)


def _offer(requests: tuple[RunRequest, ...], problem: str | None, device: DeviceFacts) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="offer"):
        pressed = press.button(
            "Trace it", type="primary", icon=":material/play_arrow:", disabled=problem is not None, key="trace_it"
        )
        if problem is not None:
            look.field_error(problem)
        elif device.kind == "interpreter":
            seconds = sum(_seconds(request, device) for request in requests)
            look.sentence(f"Not traced yet: the interpreter needs about {words.seconds(seconds)}.")
        else:
            look.sentence(f"Not traced yet on {device.short_name}.")
        if device.kind == "interpreter":
            watch_form.recordings(state.recorded_traces())
    if (state.asked_to_trace() or pressed) and problem is None:
        _submit(requests)


def _submit(requests: tuple[RunRequest, ...]) -> None:
    try:
        state.job_queue().submit(requests, state.owner())
    except ValueError as error:
        look.field_error(str(error))
    else:
        st.rerun()


def _play(shown: tuple[Measurement, ...]) -> None:
    """The player and what belongs to it."""
    state.remember_watched(shown)
    try:
        blob = payload.pack(shown, state.position())
    except ValueError as error:
        look.sentence(str(error))
        return
    state.keep_position_in_address()
    with st.container(key="player-place"):
        _player(blob, shown)
    schedule_lanes.where_it_ran(shown[0])
    with st.container(gap="small"):
        for measurement in shown:
            _proof(measurement)
    left, right = st.columns(2, gap="large")
    with left:
        _why_alpha()
    with right:
        _how_they_differ([measurement.label for measurement in shown])
    with st.container(key="ledger-place"):
        _ledger(shown[0])
    microscope.of(shown)


def _name(shown: tuple[Measurement, ...]) -> str:
    labels = " and ".join(measurement.label for measurement in shown)
    request, block = shown[0].request, shown[0].tiles_trace.query_block
    return f"{labels} · {request.problem.title} · {request.inputs} inputs · query block {block}."


@st.fragment
def _player(blob: bytes, shown: tuple[Measurement, ...]) -> None:
    """Runs again alone when the player rests elsewhere; the whole page when another query block is to be traced."""
    if state.follow_player(component.player(blob, state.PLAYER_KEY)):
        st.rerun()
    position = state.position()  # here, as the file is made in a thread that has no session
    st.download_button(
        "Download the animation",
        icon=":material/download:",
        on_click="ignore",
        mime="text/html",
        file_name=f"softmax-{shown[0].label.lower().replace(' ', '-')}.html",
        data=lambda: export.page_of_traces(shown, position),
        help="One HTML file that plays in any browser, without a server.",
    )


def _proof(measurement: Measurement) -> None:
    replay = measurement.tiles_trace.replay
    kind = "ok" if replay.passed else "bad"
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        look.chips(
            [(kind, f"{measurement.label}: {'proved' if replay.passed else 'not proved'}", replay.allowed_because)], "content"
        )
        look.sentence(_proof_words(replay))


def _proof_words(replay: Replay) -> str:
    worst = max(replay.m_error, replay.l_error, replay.alpha_error, replay.acc_error)
    agrees = "agrees" if replay.passed else "does NOT agree"
    return (
        f"The trace {agrees} with its NumPy replay: largest difference in S {words.error(replay.scores_error)}, allowed "
        f"{words.error(replay.allowed_scores_error)}; in m, l, α and O {words.error(worst)}, allowed "
        f"{words.error(replay.allowed_error)}. The last frame is the kernel’s output: difference "
        f"{words.error(replay.output_error)}, allowed {words.error(replay.allowed_output_error)}."
    )


def _why_alpha() -> None:
    with st.container(gap="xsmall"):
        look.heading("Why is there an α?")
        for sentence in _WHY:
            look.sentence(sentence)


def _how_they_differ(labels: list[str]) -> None:
    with st.container(gap="xsmall"):
        look.heading("What the versions do differently")
        for version, difference in _HOW_THEY_DIFFER.items():
            look.sentence(difference, strong=version if version not in labels else f"{version} (shown)")


@st.fragment
def _ledger(measurement: Measurement) -> None:
    """What rescaling cost this query block, and what a maximum that may lag behind would save; the slider draws only this."""
    trace = measurement.tiles_trace
    beside = "and what a maximum that may lag behind would save."
    if trace.lag_log2:
        beside = f"whose m may lag by up to 2^{trace.lag_log2:g}; and what another lag would save."
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom", gap="large"):
        look.sentence(beside, strong=f"What rescaling costs {measurement.label},")
        tau = st.slider(
            "τ: how far the maximum may lag, in log2",
            0.0,
            16.0,
            DEFAULT_TAU_LOG2,
            0.5,
            key=state.TAU_KEY,
            width=320,
            help="FlashAttention-4 rescales only when the maximum has moved by more than 8 in log2, a factor of 256.",
        )
    found = rescale_ledger(trace, measurement.request.kernel, measurement.request.precision, tau)
    look.metrics(_ledger_numbers(found, trace))
    drawn = ledger.chart(found, trace, look.palette())
    if isinstance(drawn, Absent):
        look.absences([drawn])
    else:
        look.chart(drawn, key="ledger", with_table=state.tables_shown())


def _ledger_numbers(found: RescaleLedger, trace: TileTrace) -> list[tuple[str, str, str, str]]:
    """A few numbers with what they are made of; those that need every tile are left out where tiles are missing."""
    numbers = []
    if found.rescaled_rows is not None:
        rows, chances = int(found.rescaled_rows.sum()), max(1, trace.visited - 1) * trace.m.shape[1]
        chance = f"{rows:,} of {chances:,} chances: a row at a tile after the first"
        numbers.append(("Rows rescaled", f"{rows / chances:.0%}", chance, ""))
        numbers += _lagging_numbers(found) if found.lagging is not None else [_multiplications(found)]
    if found.lazy is not None:
        saved, needed = found.lazy.saved_multiplications, _needed_by_the_maximum(found, trace)
        whose = "those needed" if found.lagging is None else "those that an m which never lags needs"
        share = f", {saved / needed:.0%} of {whose}" if needed else ""
        numbers += [
            ("τ would save", f"{saved:,}", f"multiplications{share} · modelled", ""),
            (
                "Error of the weights with τ",
                words.error(found.lazy.lazy_error),
                f"without it {words.error(found.lazy.eager_error)}, from rounding P · modelled",
                "",
            ),
        ]
    return numbers


def _multiplications(found: RescaleLedger) -> tuple[str, str, str, str]:
    does = "what the kernel does is not stored of every tile"
    if found.done_multiplications is not None:
        does = f"the kernel does {found.done_multiplications:,}, every row at every tile"
    return "Multiplications needed", f"{found.needed_multiplications:,}", f"of O; {does}", ""


def _lagging_numbers(found: RescaleLedger) -> list[tuple[str, str, str, str]]:
    """What a kernel did whose m lags: what it kept, and what it multiplied."""
    lagging, rows = found.lagging, int(found.rescaled_rows.sum())
    kept, eager = int(lagging.kept_rows.sum()), int(lagging.eager_rows.sum())
    return [
        (
            "m kept",
            f"{kept:,}",
            f"times though a larger score came; the largest weight was 2^{lagging.most_ahead_log2:.1f}",
            "",
        ),
        (
            "Multiplications done",
            f"{found.done_multiplications:,}",
            f"of O, a warp’s rows together; {rows:,} rows needed it, {eager:,} if m never lagged",
            "",
        ),
    ]


def _needed_by_the_maximum(found: RescaleLedger, trace: TileTrace) -> int:
    """Multiplications that an m which is always the maximum needs."""
    if found.lagging is None:
        return found.needed_multiplications
    return int(found.lagging.eager_rows.sum()) * trace.acc.shape[2]
