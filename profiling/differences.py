"""What differs between two measurements, field by field in words: every field of the records, or why it is left out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kernels.problem import BLOCK_ORDER_WORDS
from profiling import words
from profiling.backward_record import NAMES
from profiling.own_inputs import identity
from profiling.record_types import Array
from profiling.records import Latency, Measurement, MemoryCurve, NotedSpan
from profiling.schedule_facts import ScheduleFacts, facts_of, overhead_share, time_of
from profiling.schedule_record import Schedule
from profiling.snapshot import AnySnapshot
from profiling.stop_rule import STOP_WORDS
from profiling.timetable import Timetable

Group = Literal["Result", "Kernel", "Problem", "Compiled", "Environment", "Snapshot"]
Value = str | int | float | bool | None
NOTHING = "–"
OF_THE_TIME = "the time"
_LONGEST = 300


@dataclass(frozen=True)
class Row:
    """A field of A and B: in words, and as the bare values. differs goes by the bare values."""

    group: Group
    field: str
    a: str
    b: str
    change: str
    differs: bool
    a_value: Value = None
    b_value: Value = None


@dataclass(frozen=True)
class Differences:
    """All rows, in order; those that are missing on both sides are no rows."""

    rows: tuple[Row, ...]

    @property
    def differing(self) -> tuple[Row, ...]:
        """The rows that differ."""
        return tuple(row for row in self.rows if row.differs)

    @property
    def equal(self) -> tuple[Row, ...]:
        """The rows that are the same."""
        return tuple(row for row in self.rows if not row.differs)


@dataclass(frozen=True)
class Kind:
    """How a value is written, and how its change is; numbers without a unit of their own just get a sign."""

    text: Callable[[Any], str]
    change: Callable[[Any, Any], str]


def differences(
    a: Measurement, b: Measurement, a_of: AnySnapshot | None = None, b_of: AnySnapshot | None = None
) -> Differences:
    """Compare two measurements, and the snapshots they are of where these are given."""
    found = [_row(entry, a, b) for entry in FIELDS]
    found += _compiled(a, b)
    found += _flags(a, b)
    if a_of is not None and b_of is not None:
        found += [_row(entry, a_of, b_of) for entry in ENVELOPE]
    shown = [row for row in found if row is not None]
    order = {group: place for place, group in enumerate(_GROUPS)}
    return Differences(tuple(sorted(shown, key=lambda row: order[row.group])))


# How values are written


def _signed(value: float, text: Callable[[float], str]) -> str:
    return f"+{text(value)}" if value > 0 else f"\N{MINUS SIGN}{text(-value)}"


def _difference(text: Callable[[Any], str]) -> Callable[[Any, Any], str]:
    return lambda a, b: _signed(b - a, text)


def _factor(a: float, b: float) -> str:
    """What B takes of A's time; whether that is faster is the verdict's to say."""
    return f"{words.ratio(b / a)} {OF_THE_TIME}"


def _number(unit: str = "") -> Kind:
    def text(value: float) -> str:
        whole = f"{value:,}" if isinstance(value, int) else words.three_digits(value)
        return f"{whole} {unit}".rstrip()

    return Kind(text, _difference(text))


def _written(how: Callable[[Any], str]) -> Kind:
    return Kind(how, _difference(how))


def _words_of(how: Callable[[Any], str]) -> Kind:
    return Kind(how, lambda a, b: "")


_TEXT = _words_of(str)
_YES = _words_of(lambda value: "yes" if value else "no")
_OUTPUT = _words_of(lambda value: "correct" if value else "WRONG")
_LIST = _words_of(lambda value: ", ".join(map(str, value)) or "none")
_TILES = _words_of(lambda value: value.title)
_COUNT = _number()
_LATENCY = Kind(words.milliseconds, _factor)
_TFLOPS = _number("TFLOP/s")
_MS = _written(words.milliseconds)
_SECONDS = _number("s")
_BYTES = _written(words.bytes_)
_KIB = _written(words.kib)
_ERROR = _written(words.error)
_WATTS = _number("W")
_MHZ = _number("MHz")
_CELSIUS = _number("°C")
_SHARE = _number("%")
_BANDWIDTH = Kind(lambda value: f"{value / 1e12:.2f} TB/s", _difference(lambda value: f"{value / 1e12:.2f} TB/s"))
_NS = _written(time_of)
_PERCENT = _written(words.percent)
_MODES = {"cold": "cold, L2 flushed", "warm": "warm, CUDA graph", "wall": "wall clock"}
_MODE = _words_of(lambda value: _MODES.get(value, str(value)))
_STOPPED = _words_of(STOP_WORDS.__getitem__)
_MJ = _number("mJ")
_SM = _words_of(lambda value: f"sm_{value}")


# Where values are found


@dataclass(frozen=True)
class Field:
    """A row to be: the path to its value within the record, and what is made of an array on the way to words."""

    group: Group
    words: str
    path: str
    kind: Kind = _TEXT
    of: Callable[[Any], Value] | None = None


def _row(entry: Field, a_in: object, b_in: object) -> Row | None:
    return _row_of(entry.group, entry.words, _found(entry, a_in), _found(entry, b_in), entry.kind)


def _row_of(group: Group, name: str, a: tuple[Any, str], b: tuple[Any, str], kind: Kind) -> Row | None:
    """The row of two values, each with the reason why it is missing."""
    (ours, our_reason), (theirs, their_reason) = a, b
    if ours is None and theirs is None:
        return None
    differs = ours != theirs
    change = kind.change(ours, theirs) if differs and ours is not None and theirs is not None else ""
    cells = (_cell(ours, our_reason, kind), _cell(theirs, their_reason, kind))
    return Row(group, name, *cells, change, differs, _bare(ours), _bare(theirs))


def _cell(value: Any, reason: str, kind: Kind) -> str:
    if value is None:
        return f"{NOTHING} ({_short(reason)})" if reason else NOTHING
    return _short(kind.text(value)) or NOTHING


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _bare(value: Any) -> Value:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(getattr(value, "title", value))


def _found(entry: Field, record: object) -> tuple[Any, str]:
    """The value at the path and, where there is none, the reason that stands in the `missing` nearest to it."""
    value, reason = record, ""
    for name in entry.path.split("."):
        if value is None:
            break
        reason = getattr(value, "missing", {}).get(name, "")
        value = getattr(value, name, None)
    return (entry.of(value) if entry.of is not None and value is not None else value), reason


def _quantile(q: float) -> Callable[[Latency], float]:
    return lambda latency: latency.quantile_ms(q)


def _rounds(latency: Latency) -> int:
    return len(np.unique(latency.round_of.numpy()))


def _highest(series: Array) -> float | None:
    return float(series.numpy().max()) if series.shape[0] else None


def _facts(schedule: Schedule) -> ScheduleFacts:
    """What needs no device: how many SMs it has is a row of its own."""
    return facts_of(Timetable.of(schedule, sm_count=1), schedule.programs_per_sm)


def _length(series: Array) -> int:
    return series.shape[0]


def _longest(curve: MemoryCurve) -> int | None:
    lengths = [max(point.seq_len_q, point.seq_len_kv) for point in curve.points]
    return lengths[-1] if lengths else None


def _noted(spans: tuple[NotedSpan, ...]) -> str:
    return ", ".join(dict.fromkeys(span.words for span in spans)) or "nothing"


def _phases(spans: tuple[Any, ...]) -> str:
    return ", ".join(dict.fromkeys(span.phase for span in spans))


_GROUPS: tuple[Group, ...] = ("Result", "Kernel", "Problem", "Compiled", "Environment", "Snapshot")
FIELDS: tuple[Field, ...] = (
    Field("Result", "output", "accuracy.passed", _OUTPUT),
    Field("Result", "median latency", "latency", _LATENCY, _quantile(0.5)),
    Field("Result", "latency, min", "latency", _MS, _quantile(0.0)),
    Field("Result", "latency, q3", "latency", _MS, _quantile(0.75)),
    Field("Result", "launches timed", "latency", _COUNT, lambda latency: latency.n),
    Field("Result", "rounds", "latency", _COUNT, _rounds),
    Field("Result", "noise", "latency", _PERCENT, lambda latency: latency.noise),
    Field("Result", "no more launches, because", "latency.stopped", _STOPPED),
    Field("Result", "launches not wholly queued in time", "latency.exposed", _COUNT),
    Field("Result", "launches whose output was looked at", "latency.outputs_checked", _COUNT),
    Field("Result", "throughput", "tflops", _TFLOPS),
    Field("Result", "median, warm", "warm", _LATENCY, _quantile(0.5)),
    Field("Result", "warm, min", "warm", _MS, _quantile(0.0)),
    Field("Result", "warm, q3", "warm", _MS, _quantile(0.75)),
    Field("Result", "warm, samples", "warm", _COUNT, lambda latency: latency.n),
    Field("Result", "warm, launches a sample", "warm.launches_per_sample", _COUNT),
    Field("Result", "warm, noise", "warm", _PERCENT, lambda latency: latency.noise),
    Field("Result", "warm, no more launches, because", "warm.stopped", _STOPPED),
    Field("Result", "median with the FP8 pre-pass", "with_prepass", _LATENCY, _quantile(0.5)),
    Field("Result", "with the FP8 pre-pass, min", "with_prepass", _MS, _quantile(0.0)),
    Field("Result", "with the FP8 pre-pass, q3", "with_prepass", _MS, _quantile(0.75)),
    Field("Result", "with the FP8 pre-pass, launches timed", "with_prepass", _COUNT, lambda latency: latency.n),
    Field("Result", "throughput with the FP8 pre-pass", "tflops_with_prepass", _TFLOPS),
    Field("Result", "how launches were timed", "latency.mode", _MODE),
    Field("Result", "times are", "latency.provenance"),
    Field("Result", "relative error", "accuracy.relative_error", _ERROR),
    Field("Result", "relative error allowed", "accuracy.allowed_relative_error", _ERROR),
    Field("Result", "allowed because", "accuracy.allowed_because"),
    Field("Result", "largest absolute error", "accuracy.max_abs_error", _ERROR),
    Field("Result", "largest error of log-sum-exp", "accuracy.lse_max_abs_error", _ERROR),
    Field("Result", "error of log-sum-exp allowed", "accuracy.allowed_lse_error", _ERROR),
    Field("Result", "relative error with FP8's own rounding", "accuracy.end_to_end_relative_error", _ERROR),
    Field("Result", "error with FP8's own rounding allowed", "accuracy.allowed_end_to_end_error", _ERROR),
    Field("Result", "elements not finite", "accuracy.non_finite", _COUNT),
    Field("Result", "gradients", "gradients.passed", _OUTPUT),
    *(
        Field("Result", f"{what} of {name}", f"gradients.{name}.{path}", kind)
        for name in NAMES
        for what, path, kind in (
            ("relative error", "relative_error", _ERROR),
            ("relative error allowed", "allowed_relative_error", _ERROR),
            ("allowed error, because,", "allowed_because", _TEXT),
            ("largest absolute error", "max_abs_error", _ERROR),
            ("error with the forward's FP8", "end_to_end_relative_error", _ERROR),
            ("elements not finite", "non_finite", _COUNT),
        )
    ),
    Field("Result", "key-value heads whose gradients were checked", "gradients.heads_checked", _COUNT),
    Field("Result", "key-value heads in all", "gradients.heads_total", _COUNT),
    Field("Result", "gradients were", "gradients.provenance"),
    Field("Result", "median of the forward in it", "parts.forward", _LATENCY, _quantile(0.5)),
    Field("Result", "median of the backward in it", "parts.backward", _LATENCY, _quantile(0.5)),
    Field("Result", "median of the backward's pre-process in it", "parts.preprocess", _LATENCY, _quantile(0.5)),
    Field("Result", "rows checked", "accuracy.rows_checked", _COUNT),
    Field("Result", "rows in all", "accuracy.rows_total", _COUNT),
    Field("Result", "output was", "accuracy.provenance"),
    Field("Result", "memory it adds", "memory.torch_added_bytes", _BYTES),
    Field("Result", "torch's allocated peak", "memory.torch_peak_allocated_bytes", _BYTES),
    Field("Result", "torch's reserved peak", "memory.torch_peak_reserved_bytes", _BYTES),
    Field("Result", "GPU memory in use before", "memory.nvml_used_before_bytes", _BYTES),
    Field("Result", "GPU memory in use, peak", "memory.nvml_used_peak_bytes", _BYTES),
    Field("Result", "GPU memory in use after", "memory.nvml_used_after_bytes", _BYTES),
    Field("Result", "memory is", "memory.provenance"),
    Field("Result", "memory of the output", "memory.out_bytes", _BYTES),
    Field("Result", "memory of the log-sum-exp", "memory.lse_bytes", _BYTES),
    Field("Result", "memory of the FP8 operands", "memory.operands_bytes", _BYTES),
    Field("Result", "memory of the gradients", "memory.gradients_bytes", _BYTES),
    Field("Result", "workspace", "memory.workspace_bytes", _BYTES),
    Field("Result", "kept", "memory.kept_bytes", _BYTES),
    Field("Result", "memory was read up to, tokens", "memory.curve", _COUNT, _longest),
    Field("Result", "energy of a launch", "energy.per_launch_mj", _MJ),
    Field("Result", "power over launches in a row", "energy.mean_w", _WATTS),
    Field("Result", "launches in a row", "energy.launches", _COUNT),
    Field("Result", "first start to last end, by stamps", "schedule", _NS, lambda schedule: _facts(schedule).span_ns),
    Field("Result", "SMs that worked", "schedule", _COUNT, lambda schedule: _facts(schedule).sms_used),
    Field("Result", "tail", "schedule", _NS, lambda schedule: _facts(schedule).tail_ns),
    Field("Result", "longest program", "schedule", _NS, lambda schedule: _facts(schedule).longest_ns),
    Field("Result", "programs launched", "schedule", _COUNT, lambda schedule: _facts(schedule).programs),
    Field("Result", "programs on an SM at most", "schedule", _COUNT, lambda schedule: _facts(schedule).most_at_once),
    Field("Result", "what stamping costs", "schedule", _PERCENT, overhead_share),
    Field("Result", "the stamps' clock moves by", "schedule.tick_ns", _NS),
    Field("Result", "first launch, untimed", "first_launch_ms", _MS),
    Field("Result", "it failed", "error.kind", _words_of(lambda kind: str(kind).replace("_", " "))),
    Field("Result", "because", "error.sentence"),
    Field("Result", "needed", "error.needs", _COUNT),
    Field("Result", "there was", "error.has", _COUNT),
    Field("Result", "in", "error.unit"),
    Field("Result", "tiles that work", "error.cure", _TILES),
    Field("Kernel", "version", "request.kernel"),
    Field("Kernel", "number format", "request.precision.dtype"),
    Field("Kernel", "FP8", "request.precision.fp8", _YES),
    Field("Kernel", "FP8 scale a", "request.precision.fp8_scale"),
    Field("Kernel", "K smoothed for FP8", "request.precision.smooth_k", _YES),
    Field("Kernel", "Q and K turned for FP8 (Hadamard)", "request.precision.hadamard", _YES),
    Field("Kernel", "BLOCK_M", "tiles.block_m", _COUNT),
    Field("Kernel", "BLOCK_N", "tiles.block_n", _COUNT),
    Field("Kernel", "warps", "tiles.num_warps", _COUNT),
    Field("Kernel", "stages", "tiles.num_stages", _COUNT),
    Field("Kernel", "loop order", "tiles.loop_order"),
    Field("Kernel", "order of query blocks", "tiles.block_order", _words_of(BLOCK_ORDER_WORDS.__getitem__)),
    Field("Kernel", "persistent programs", "tiles.num_programs", _COUNT),
    Field("Kernel", "tiles of dK and dV", "backward_tiles.dkdv", _TILES),
    Field("Kernel", "tiles of dQ", "backward_tiles.dq", _TILES),
    Field("Problem", "batch", "request.problem.batch", _COUNT),
    Field("Problem", "query heads", "request.problem.num_heads", _COUNT),
    Field("Problem", "key-value heads", "request.problem.num_kv_heads", _COUNT),
    Field("Problem", "queries", "request.problem.seq_len_q", _COUNT),
    Field("Problem", "keys", "request.problem.seq_len_kv", _COUNT),
    Field("Problem", "head_dim", "request.problem.head_dim", _COUNT),
    Field("Problem", "causal", "request.problem.causal", _YES),
    Field("Problem", "direction", "request.direction"),
    Field("Problem", "seed of the inputs", "request.seed", _COUNT),
    Field("Problem", "inputs drawn", "request.inputs"),
    Field("Problem", "own Q, K and V, SHA-256", "request.own", of=identity),
    Field("Problem", "inputs", "memory.inputs_bytes", _BYTES),
    Field("Problem", "outputs", "memory.outputs_bytes", _BYTES),
    Field("Problem", "S and P, were they written (modelled)", "memory.scores_bytes", _BYTES),
    Field("Environment", "device", "environment.device.name"),
    Field("Environment", "device is a", "environment.device.kind"),
    Field("Environment", "device id", "environment.device.id"),
    Field("Environment", "compute capability", "environment.device.capability", _SM),
    Field("Environment", "SMs", "environment.device.sm_count", _COUNT),
    Field("Environment", "device memory", "environment.device.memory_bytes", _BYTES),
    Field("Environment", "L2 cache", "environment.device.l2_bytes", _BYTES),
    Field("Environment", "shared memory a program", "environment.device.shared_memory_per_block_bytes", _KIB),
    Field("Environment", "data sheet, bf16", "environment.device.peak_bf16_tflops", _TFLOPS),
    Field("Environment", "data sheet, FP8", "environment.device.peak_fp8_tflops", _TFLOPS),
    Field("Environment", "data sheet, memory", "environment.device.peak_bandwidth_bytes_per_s", _BANDWIDTH),
    Field("Environment", "data sheet", "environment.device.peak_source"),
    Field("Environment", "its own matrix product reached", "environment.device.measured_bf16_tflops", _TFLOPS),
    Field("Environment", "its own copy reached", "environment.device.measured_bandwidth_bytes_per_s", _BANDWIDTH),
    Field("Environment", "its own FP8 product reached", "environment.device.measured_fp8_tflops", _TFLOPS),
    Field("Environment", "its L2 cache gave", "environment.device.measured_l2_bytes_per_s", _BANDWIDTH),
    Field("Environment", "ceilings measured", "environment.device.ceilings_measured_at"),
    Field("Environment", "a tile in the interpreter", "environment.device.interpreter_tile_ms", _MS),
    Field("Environment", "NVIDIA driver", "environment.driver_version"),
    Field("Environment", "CUDA", "environment.cuda_version"),
    Field("Environment", "torch", "environment.torch_version"),
    Field("Environment", "Triton", "environment.triton_version"),
    Field("Environment", "Python", "environment.python_version"),
    Field("Environment", "FlashScope's commit", "environment.commit"),
    Field("Environment", "power, highest", "timeline.power_w", _WATTS, _highest),
    Field("Environment", "power limit", "timeline.power_limit_w", _WATTS),
    Field("Environment", "SM clock, highest", "timeline.sm_clock_mhz", _MHZ, _highest),
    Field("Environment", "SM clock it can reach", "timeline.max_sm_clock_mhz", _MHZ),
    Field("Environment", "device memory in use, highest", "timeline.memory_used_bytes", _BYTES, _highest),
    Field("Environment", "temperature, highest", "timeline.temperature_c", _CELSIUS, _highest),
    Field("Environment", "memory clock, highest", "timeline.memory_clock_mhz", _MHZ, _highest),
    Field("Environment", "memory clock it can reach", "timeline.max_memory_clock_mhz", _MHZ),
    Field("Environment", "utilisation, highest", "timeline.utilisation_percent", _SHARE, _highest),
    Field("Environment", "device memory by NVML", "timeline.memory_total_bytes", _BYTES),
    Field("Environment", "device memory the driver keeps", "timeline.memory_reserved_bytes", _BYTES),
    Field("Environment", "clocks held down over the job by", "timeline.throttled", _TEXT, _noted),
    Field("Environment", "times NVML did not answer", "timeline.gaps", _COUNT, len),
    Field("Environment", "stretches of launches", "timeline.launched", _COUNT, len),
    Field("Environment", "NVML readings", "timeline.t_s", _COUNT, _length),
    Field("Environment", "phases of the job", "timeline.spans", _TEXT, _phases),
    Field("Environment", "started", "started_at"),
    Field("Environment", "the job took", "duration_s", _SECONDS),
)
REPORT: tuple[Field, ...] = (
    Field("Compiled", "compiled kernel", "kernel"),
    Field("Compiled", "compiled for", "capability", _SM),
    Field("Compiled", "compiled by Triton", "triton_version"),
    Field("Compiled", "registers a thread", "registers_per_thread", _COUNT),
    Field("Compiled", "registers a thread can have", "max_registers_per_thread", _COUNT),
    Field("Compiled", "spills", "spill_bytes", _number("bytes")),
    Field("Compiled", "shared memory", "shared_memory_bytes", _KIB),
    Field("Compiled", "shared memory there is", "shared_memory_limit_bytes", _KIB),
    Field("Compiled", "warps a program", "warps_per_program", _COUNT),
    Field("Compiled", "programs an SM", "programs_per_sm", _COUNT),
    Field("Compiled", "warps an SM", "warps_per_sm", _COUNT),
    Field("Compiled", "warps an SM can have", "max_warps_per_sm", _COUNT),
    Field("Compiled", "limited by", "limited_by"),
    Field("Compiled", "compiling took", "compile_ms", _MS),
)
ENVELOPE: tuple[Field, ...] = (
    Field("Snapshot", "title", "title"),
    Field("Snapshot", "note", "note"),
    Field("Snapshot", "author", "author"),
    Field("Snapshot", "host", "host"),
    Field("Snapshot", "tags", "tags", _LIST),
    Field("Snapshot", "created", "created_at"),
    Field("Snapshot", "schema", "schema_version", _COUNT),
    Field("Snapshot", "id", "id"),
)
LEFT_OUT: dict[str, str] = {
    "request.tiles": "what was asked for; the tiles that ran are shown, also where none were asked for",
    "request.backward_tiles": "what was asked for; the tiles that ran are shown, also where none were asked for",
    "request.device": "the device that ran it is shown, with all that is known of it",
    "request.compile_for": "the compile report says what it is for",
    "request.probes": "what was looked at is what the other rows have",
    "request.trace": "which block was watched is on the Softmax page",
    "tiles_trace": "watched tile by tile on the Softmax page, two versions in step",
    "with_prepass.provenance": "the same as the kernel's alone: one timer takes both",
    "with_prepass.mode": "the same as the kernel's alone: one timer takes both",
    "with_prepass.stopped": "the same rule as for the kernel alone",
    "with_prepass.launches_per_sample": "a cold sample is one launch",
    "with_prepass.exposed": "what weakens the time is a flag",
    "with_prepass.outputs_checked": "what weakens the time is a flag",
    "warm.provenance": "the same as the cold time's: one timer takes both",
    "warm.mode": "its row says warm",
    "warm.exposed": "what weakens the time is a flag",
    "warm.outputs_checked": "what weakens the time is a flag",
    "latency.launches_per_sample": "a cold sample is one launch",
    "memory.curve": "drawn where the result is opened; how far it reaches is shown",
    "energy.provenance": "NVML's readings are always measured",
    "energy.busy_s": "of the launches in a row, whose energy each is shown",
    "energy.window_s": "of the launches in a row, whose energy each is shown",
    "energy.energy_mj": "of the launches in a row, whose energy each is shown",
    "energy.sampled_mj": "a check of the counter, shown where the result is opened",
    "timeline.provenance": "NVML's readings are always measured",
    "compiled.provenance": "a compile report is always compiled",
    "error.fits": "drawn where the failed result is opened",
    "error.raw": "the original text is folded where the failed result is opened",
    "measurements": "the two that are compared are shown field by field",
}


def shown_paths() -> set[str]:
    """Every path into Measurement and Snapshot that has a row; an array or a record counts with all that is in it."""
    measurement = {entry.path for entry in FIELDS} | {f"compiled.{entry.path}" for entry in REPORT}
    return measurement | {"compiled.counts", "flags"} | {entry.path for entry in ENVELOPE}


# The parts that are lists


def _compiled(a: Measurement, b: Measurement) -> Iterable[Row | None]:
    """The attention kernel is the last report; what is before it are the FP8 pre-pass's kernels, a row each."""
    ours, theirs = (one.compiled[-1] if one.compiled else None for one in (a, b))
    yield from (_row(entry, ours, theirs) for entry in REPORT)
    counts = [one.counts if one is not None else {} for one in (ours, theirs)]
    for name in sorted(counts[0].keys() | counts[1].keys()):
        # A report that does not count an instruction found none of it.
        found = [
            (None if report is None else some.get(name, 0), "") for report, some in zip((ours, theirs), counts, strict=True)
        ]
        yield _row_of("Compiled", f"SASS: {name}", *found, _COUNT)
    before = [{report.kernel: report for report in one.compiled[:-1]} for one in (a, b)]
    for name in dict.fromkeys([*before[0], *before[1]]):
        yield _row_of("Compiled", f"pre-pass {name}", *((_prepass(some.get(name)), "") for some in before), _TEXT)


def _prepass(report: Any) -> str | None:
    if report is None:
        return None
    shared = words.kib(report.shared_memory_bytes)
    return f"{report.registers_per_thread} registers, {shared} shared memory, {report.spill_bytes:,} bytes spilled"


_FAMILIES: dict[str, tuple[str, ...]] = {
    "clock while it was timed": ("clock steady", "clock moved", "low clock", "clock unknown"),
    "clocks held down by": ("throttled", "power cap", "thermal", "slowed"),
    "others on the GPU": ("alone", "contended", "contention unknown", "busy", "busy unknown"),
    "GPU's lock": ("not locked",),
    "L2 cache before a launch": ("cold",),
    "against the physical peak": ("below peak", "peak unknown", "implausible"),
    "count of samples": ("too few samples",),
    "launch overhead": ("launch-bound",),
    "proof of the launches": ("unproved", "stale output", "no time", "time unaccounted", "patched timer"),
}


def _flags(a: Measurement, b: Measurement) -> Iterable[Row | None]:
    """The worker's notes: those that answer one question share a row."""
    families = {name: family for family, names in _FAMILIES.items() for name in names}
    ours, theirs = (_by_family(one, families) for one in (a, b))
    for family in dict.fromkeys([*_FAMILIES, *ours, *theirs]):
        yield _row_of("Environment", family, (ours.get(family), ""), (theirs.get(family), ""), _TEXT)


def _by_family(one: Measurement, families: dict[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for flag in one.flags:
        family = families.get(flag.name, flag.name)
        found[family] = f"{found[family]}, {flag.short}" if family in found else flag.short
    return found


def as_cells(rows: Sequence[Row]) -> list[dict[str, Value]]:
    """The rows for a CSV file: what the table says, then the bare values that can be reckoned with."""
    return [
        {
            "group": row.group,
            "field": row.field,
            "A": row.a,
            "B": row.b,
            "change": row.change,
            "differs": "yes" if row.differs else "no",
            "A value": row.a_value,
            "B value": row.b_value,
        }
        for row in rows
    ]
