"""Measurements as a table for a terminal: a column a version, units, and the word for how each number was come by. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kernels.problem import AttentionProblem
from profiling import direction
from profiling.backward_record import GradientAccuracy
from profiling.improvements import labels
from profiling.own_inputs import inputs_of
from profiling.records import Accuracy, Latency, Measurement, RunRequest
from profiling.roofline import standing
from profiling.schedule_facts import ScheduleFacts, facts_of, overhead_share, sentences, time_of
from profiling.stop_rule import STOP_WORDS
from profiling.terminal import columns, shown
from profiling.timetable import Timetable
from profiling.trace_record import TileTrace
from profiling.words import LEAST_IN_MS, bytes_, error, millijoules, milliseconds, percent, signed_percent, three_digits

Cell = tuple[str, str] | None
"""A text and its provenance; None where there is nothing to say."""


def table(measurements: tuple[Measurement, ...]) -> str:
    """What was run, a row a quantity, and a sentence for each error and each flag that asks for caution."""
    first, names = measurements[0], labels(measurements)
    problem, environment = first.request.problem, first.environment
    triton = environment.triton_version or "not installed"
    drawn = _inputs(first.request) + ([f"seed {first.request.seed}"] if first.request.own is None else [])
    lines = [
        " · ".join([problem.title, f"batch {problem.batch}", _heads(problem), *direction.title_part(first.request), *drawn]),
        f"{environment.device.short_name} · torch {environment.torch_version} · Triton {triton}",
        "",
        *columns([["", *names, ""], *_rows(measurements)], frozenset(range(1, len(measurements) + 1))),
    ]
    notes = [note for name, one in zip(names, measurements, strict=True) for note in _notes(name, one)]
    return "\n".join(lines + ([""] if notes else []) + notes)


def line(measurement: Measurement) -> str:
    """One measurement for a paste: the problem, where, the time with its spread, the proof, with what, and every caution."""
    problem, environment = measurement.request.problem, measurement.environment
    parts = [measurement.label, problem.title, *([f"batch {problem.batch}"] if problem.batch > 1 else [])]
    parts += [_heads(problem), measurement.request.precision.title, *_inputs(measurement.request)]
    parts += [measurement.tiles.title] if measurement.tiles is not None else []
    parts += [environment.device.short_name.split(" · ")[0], *_outcome(measurement), f"torch {environment.torch_version}"]
    if environment.triton_version is not None:
        parts.append(f"Triton {environment.triton_version}")
    parts.append(f"FlashScope {_short(environment.commit)}" if environment.commit else "FlashScope, commit unknown")
    return shown(" · ".join(parts + [flag.short for flag in measurement.flags if flag.severity in ("caution", "bad")]))


def _outcome(measurement: Measurement) -> Iterable[str]:
    if measurement.error is not None:
        yield f"failed: {measurement.error.sentence.removesuffix('.')}"
        return
    if measurement.latency is not None:
        yield _time(measurement.latency)
    if measurement.tflops is not None:
        yield f"{three_digits(measurement.tflops)} TFLOP/s"
    if measurement.with_prepass is not None:
        yield f"with pre-pass {milliseconds(measurement.with_prepass.median_ms)}"
    yield _proof(measurement.accuracy)
    if measurement.gradients is not None:
        yield _proof_of_gradients(measurement.gradients)


def _time(latency: Latency) -> str:
    """The median and, in its unit, the interval to judge by: '2.18 ms (min 1.98, q3 2.23, n 260)'."""
    if latency.provenance == "interpreted":
        return f"{milliseconds(latency.median_ms)} in the CPU interpreter, no GPU time (n {latency.n})"
    unit, per_ms = ("ms", 1) if latency.median_ms >= LEAST_IN_MS else ("µs", 1000)
    fastest, median, third = (three_digits(latency.quantile_ms(q) * per_ms) for q in (0.0, 0.5, 0.75))
    return f"{median} {unit} (min {fastest}, q3 {third}, n {latency.n})"


def _proof(accuracy: Accuracy | None) -> str:
    if accuracy is None:
        return "output not checked"
    word = "correct" if accuracy.passed else "WRONG"
    if accuracy.relative_error is None:
        return f"{word} ({accuracy.non_finite:,} values are not finite)"
    sign = "≤" if accuracy.relative_error <= accuracy.allowed_relative_error else ">"
    return f"{word} ({error(accuracy.relative_error)} {sign} {error(accuracy.allowed_relative_error)})"


def _proof_of_gradients(gradients: GradientAccuracy) -> str:
    """'gradients correct (dk 2.4e-3 ≤ 3.7e-3)', of the one that uses most of what it is allowed."""
    name, worst = gradients.worst
    word = "correct" if gradients.passed else "WRONG"
    if worst.relative_error is None:
        return f"gradients {word} ({name}: {worst.non_finite:,} values are not finite)"
    sign = "≤" if worst.relative_error <= worst.allowed_relative_error else ">"
    return f"gradients {word} ({name} {error(worst.relative_error)} {sign} {error(worst.allowed_relative_error)})"


def _heads(problem: AttentionProblem) -> str:
    """'32 heads over 8', and '16 heads' where each has keys and values of its own."""
    heads = f"{problem.num_heads} {'head' if problem.num_heads == 1 else 'heads'}"
    return heads if problem.num_heads == problem.num_kv_heads else f"{heads} over {problem.num_kv_heads}"


def _inputs(request: RunRequest) -> list[str]:
    """What the inputs are, where they are not N(0, 1)."""
    return [] if request.inputs == "normal" else [f"{inputs_of(request)} inputs"]


def _short(commit: str) -> str:
    """A commit's first 12 digits, and whether files differed from it."""
    digits, _, rest = commit.partition("-")
    return digits[:12] + (f"-{rest}" if rest else "")


def _rows(measurements: tuple[Measurement, ...]) -> Iterable[list[str]]:
    for label, cell_of in _ROWS:
        cells = [cell_of(measurement) for measurement in measurements]
        words = dict.fromkeys(cell[1] for cell in cells if cell is not None and cell[1])
        if any(cells):
            yield [label, *("–" if cell is None else cell[0] for cell in cells), ", ".join(words)]


def _notes(name: str, measurement: Measurement) -> Iterable[str]:
    if measurement.error is not None:
        yield f"{name}: {measurement.error.sentence}"
        if measurement.error.cure is not None:
            yield f"{name}: {measurement.error.cure.title} works."
    yield from (f"{name}: {sentence}" for sentence in direction.sentences(measurement))
    if "warm" in measurement.missing:
        yield f"{name}: there is no warm time: {measurement.missing['warm']}"
    if measurement.energy is not None and "energy_mj" in measurement.energy.missing:
        yield f"{name}: the energy is n/a: {measurement.energy.missing['energy_mj']}."
    if measurement.schedule is not None:
        yield f"{name}: {sentences(_facts(measurement))[0]}"
    if measurement.tiles_trace is not None:
        yield f"{name}: {_trace(measurement.tiles_trace)}"
    for flag in measurement.flags:
        if flag.severity in ("caution", "bad"):
            yield f"{name}: {flag.sentence or flag.short}"


def _trace(trace: TileTrace) -> str:
    stored = trace.key_blocks.shape[0]
    of = f" of {trace.visited:,}" if stored < trace.visited else ""
    verdict = "agrees" if trace.replay.passed else "does NOT agree"
    tiles = f"{stored:,}{of} {'tile' if stored == 1 else 'tiles'} stored"
    return (
        f"trace of head {trace.head}, query block {trace.query_block}: {tiles}, {verdict} with its replay ({trace.provenance})."
    )


def _tiles(m: Measurement) -> Cell:
    return (f"{m.tiles.block_m} × {m.tiles.block_n}", "BLOCK_M × BLOCK_N") if m.tiles else None


def _warps(m: Measurement) -> Cell:
    return (f"{m.tiles.num_warps}, {m.tiles.num_stages}", "") if m.tiles else None


def _output(m: Measurement) -> Cell:
    return ("right" if m.accuracy.passed else "WRONG", m.accuracy.provenance) if m.accuracy else None


def _relative_error(m: Measurement) -> Cell:
    if m.accuracy is None or m.accuracy.relative_error is None:
        return None
    return f"{m.accuracy.relative_error:.2e}", f"{m.accuracy.provenance}, against float64"


def _allowed_error(m: Measurement) -> Cell:
    return (f"{m.accuracy.allowed_relative_error:.2e}", "") if m.accuracy else None


def _gradients(m: Measurement) -> Cell:
    return ("right" if m.gradients.passed else "WRONG", m.gradients.provenance) if m.gradients else None


def _gradient_error(m: Measurement, name: str) -> Cell:
    found = getattr(m.gradients, name) if m.gradients else None
    if found is None or found.relative_error is None:
        return None
    return f"{found.relative_error:.2e} ≤ {found.allowed_relative_error:.2e}" if found.passed else (
        f"{found.relative_error:.2e} > {found.allowed_relative_error:.2e}"
    ), f"{m.gradients.provenance}, against float64, and allowed"


def _part(m: Measurement, name: str) -> Cell:
    found = getattr(m.parts, name) if m.parts else None
    if found is None:
        return None
    alone = "timed alone, L2 flushed" if found.provenance == "measured" else "interpreted: no GPU time"
    return f"{three_digits(found.median_ms)} ms", alone


def _backward_tiles(m: Measurement, name: str) -> Cell:
    tiles = getattr(m.backward_tiles, name) if m.backward_tiles else None
    return (
        None
        if tiles is None
        else (f"{tiles.block_m} × {tiles.block_n}, {tiles.num_warps}, {tiles.num_stages}", "and warps, stages")
    )


def _median(m: Measurement) -> Cell:
    return (f"{three_digits(m.latency.median_ms)} ms", _latency_word(m)) if m.latency else None


def _spread(m: Measurement) -> Cell:
    if m.latency is None or m.latency.n == 1:
        return None
    return f"{three_digits(m.latency.quantile_ms(0.0))} to {three_digits(m.latency.quantile_ms(0.75))} ms", _latency_word(m)


def _samples(m: Measurement) -> Cell:
    return (str(m.latency.n), "") if m.latency else None


def _latency_word(m: Measurement) -> str:
    return "measured, L2 flushed" if m.latency.provenance == "measured" else "interpreted: no GPU time"


def _noise(latency: Latency | None) -> Cell:
    if latency is None or latency.noise is None:
        return None
    return percent(latency.noise), "standard deviation over mean"


def _stopped(latency: Latency | None) -> Cell:
    if latency is None or latency.stopped is None:
        return None
    return latency.stopped, f"{latency.stopped}: {STOP_WORDS[latency.stopped]}"


def _warm(m: Measurement) -> Cell:
    return (f"{three_digits(m.warm.median_ms)} ms", "measured, CUDA graph, cache warm") if m.warm else None


def _speed(m: Measurement) -> Cell:
    return (f"{three_digits(m.tflops)} TFLOP/s", "measured") if m.tflops is not None else None


def _share_of_peak(m: Measurement) -> Cell:
    if m.tflops is None or m.peak_tflops is None:
        return None
    return f"{three_digits(100 * m.tflops / m.peak_tflops)} %", "measured, of the data sheet's"


def _share_of_roof(m: Measurement) -> Cell:
    found = standing(m)
    return None if found is None else (percent(found.share), "of what this GPU can do, by the bytes counted")


def _with_prepass(m: Measurement) -> Cell:
    return (f"{three_digits(m.with_prepass.median_ms)} ms", m.with_prepass.provenance) if m.with_prepass else None


def _memory(m: Measurement, name: str) -> Cell:
    value = getattr(m.memory, name) if m.memory else None
    if value is None:
        return None
    provenance = "modelled" if name == "scores_bytes" else m.memory.provenance
    return bytes_(value), provenance


def _energy(m: Measurement, name: str, said: Callable[[float], str]) -> Cell:
    value = getattr(m.energy, name) if m.energy else None
    return None if value is None else (said(value), "measured, NVML's counter over launches in a row")


def _compiled(m: Measurement, name: str, unit: str = "") -> Cell:
    return (f"{getattr(m.compiled[-1], name):,}{unit}", f"compiled for sm_{m.compiled[-1].capability}") if m.compiled else None


def _facts(m: Measurement) -> ScheduleFacts:
    table = Timetable.of(m.schedule, m.environment.device.sm_count or 1)
    return facts_of(table, m.schedule.programs_per_sm)


def _schedule(m: Measurement, of: Callable[[ScheduleFacts], str]) -> Cell:
    return (of(_facts(m)), "measured, one stamped launch") if m.schedule else None


def _stamping(m: Measurement) -> Cell:
    if m.schedule is None:
        return None
    return signed_percent(overhead_share(m.schedule)), "measured, stamped against plain launches"


_ROWS: tuple[tuple[str, Callable[[Measurement], Cell]], ...] = (
    ("precision", lambda m: (m.request.precision.title, "")),
    ("tile", _tiles),
    ("warps, stages", _warps),
    ("tile of dK, dV", lambda m: _backward_tiles(m, "dkdv")),
    ("tile of dQ", lambda m: _backward_tiles(m, "dq")),
    ("output", _output),
    ("relative error", _relative_error),
    ("allowed", _allowed_error),
    ("gradients", _gradients),
    ("error of dQ", lambda m: _gradient_error(m, "dq")),
    ("error of dK", lambda m: _gradient_error(m, "dk")),
    ("error of dV", lambda m: _gradient_error(m, "dv")),
    ("median", _median),
    ("min to q3", _spread),
    ("launches timed", _samples),
    ("of it, forward", lambda m: _part(m, "forward")),
    ("of it, backward", lambda m: _part(m, "backward")),
    ("of that, pre-process", lambda m: _part(m, "preprocess")),
    ("noise", lambda m: _noise(m.latency)),
    ("timing ended", lambda m: _stopped(m.latency)),
    ("median, warm", _warm),
    ("noise, warm", lambda m: _noise(m.warm)),
    ("with pre-pass", _with_prepass),
    ("speed", _speed),
    ("share of peak", _share_of_peak),
    ("share of the roof", _share_of_roof),
    ("added by the call", lambda m: _memory(m, "torch_added_bytes")),
    ("gradients hold", lambda m: _memory(m, "gradients_bytes")),
    ("its workspace", lambda m: _memory(m, "workspace_bytes")),
    ("torch peak", lambda m: _memory(m, "torch_peak_allocated_bytes")),
    ("torch reserved", lambda m: _memory(m, "torch_peak_reserved_bytes")),
    ("NVML peak", lambda m: _memory(m, "nvml_used_peak_bytes")),
    ("energy a launch", lambda m: _energy(m, "per_launch_mj", millijoules)),
    ("average power", lambda m: _energy(m, "mean_w", lambda watts: f"{watts:,.0f} W")),
    ("work for energy", lambda m: (f"{three_digits(m.tflop_per_joule)} TFLOP/J", "measured") if m.tflop_per_joule else None),
    ("S and P written", lambda m: _memory(m, "scores_bytes")),
    ("SMs used", lambda m: _schedule(m, lambda facts: f"{facts.sms_used} of {facts.sm_count}")),
    ("waves", lambda m: _schedule(m, lambda facts: three_digits(facts.waves))),
    ("SMs busy", lambda m: _schedule(m, lambda facts: percent(facts.busy_share))),
    ("first start to last end", lambda m: _schedule(m, lambda facts: time_of(facts.span_ns))),
    ("with perfect balance", lambda m: _schedule(m, lambda facts: time_of(facts.balanced_ns))),
    ("tail", lambda m: _schedule(m, lambda facts: time_of(facts.tail_ns))),
    ("longest program", lambda m: _schedule(m, lambda facts: time_of(facts.longest_ns))),
    ("stamping costs", _stamping),
    ("registers", lambda m: _compiled(m, "registers_per_thread")),
    ("spills", lambda m: _compiled(m, "spill_bytes", " bytes")),
    ("shared memory", lambda m: _compiled(m, "shared_memory_bytes", " bytes")),
    ("programs an SM", lambda m: _compiled(m, "programs_per_sm")),
)
