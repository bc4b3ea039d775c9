"""Hypothesis strategies for snapshots and the records in them: small, quick to make, with every odd text and absence."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

from kernels.block_order import WHOLE_HEAD
from kernels.problem import (
    BLOCK_M_SIZES,
    BLOCK_ORDERS,
    BLOCK_SIZES,
    HEAD_DIMS,
    NUM_STAGES,
    WARP_COUNTS,
    AttentionProblem,
    BackwardTiles,
    Precision,
    TileConfig,
)
from kernels.registry import VERSIONS
from profiling.backward_record import GradientAccuracy, GradientError, Parts
from profiling.record_types import Array
from profiling.records import (
    DIRECTIONS,
    INTERPRETER,
    MAX_OWN_NUMBERS,
    Accuracy,
    CompileReport,
    DeviceFacts,
    Energy,
    Environment,
    Flag,
    JobError,
    Latency,
    LaunchSpan,
    Measurement,
    Memory,
    MemoryCurve,
    MemoryPoint,
    NotedSpan,
    OwnInputs,
    PhaseSpan,
    RunRequest,
    Timeline,
)
from profiling.schedule_record import Schedule, num_entries
from profiling.snapshot import Snapshot
from tests.traces_for_tests import traced

ODD_TEXTS = (
    "", "a", "=1+1", "$x^2$ and $$", "<script>alert(1)</script>", "</script>", "<b>&amp;</b>",
    "[a](javascript:alert(1))", "emoji 😀 👩\u200d👩\u200d👧 🏴\u200d☠️", "שלום עולם", "مرحبا",
    "\u202ereversed\u202c", "e\u0301 and é", "Å\u0323", "各種の文字", "a\u200bb\ufeffc", "e\u200b\u0301",
    "\x00\x07\x1b[31mred", "'; DROP TABLE snapshots; --", "/home/ada/x/y.py",
    'File "C:\\Users\\Ada L\\y.py"', "line\nline\ttab", "back\\slash \\u0041", '"quoted"', "\u2028\u2029",
    "ǰ İ ß ﬁ", "한글 \u1112\u1161\u11ab", "\ud7ff\ue000\uffff", "%s {0} {{}}", "{'a': 1}", "\U0010ffff",
    "A" * 100,
)  # fmt: skip
_odd = st.sampled_from(ODD_TEXTS)
_any_text = st.text(st.characters(codec="utf-8"), max_size=20)
texts = st.one_of(_odd, _odd, _any_text)
visible = st.builds("{}{}".format, st.sampled_from(["v3 against v2", "x", "Ω", "😀", "2,048"]), texts)
_counts = st.one_of(st.integers(0, 2**16), st.sampled_from([0, 1, 2**31, 2**53 + 1, 2**62]))
_seeds = st.integers(0, 2**32 - 1)
_flags_of_chance = st.integers(0, 2**30)
_WATCHED = AttentionProblem(num_heads=2, num_kv_heads=2, seq_len_q=40, seq_len_kv=40, head_dim=16, causal=True)
TRACES = [
    traced("v2", _WATCHED, 16),
    traced("v3", _WATCHED, 16, fp8=True, as_bytes=True, every=2, whole_map=False),
]
_MOST_STAMPED = 600
_PARTS = ("forward", "backward", "preprocess")
_small_errors = st.sampled_from([0.0, -0.0, 5e-324, 1e-300, 1e-3, 0.1 + 0.2, 1 / 3, 1.0, 1e22, 1.7976931348623157e308])
moments = st.builds(
    "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}{}".format,
    st.integers(2000, 9000), st.integers(1, 12), st.integers(1, 28), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59),
    st.sampled_from(["+00:00", "Z", ".5+02:00", ".123456-11:30"]),
)  # fmt: skip


def _maybe(chance: int, bit: int, value: Any) -> Any:
    """The value, or None where the bit is set: one draw decides over many absences."""
    return None if chance >> bit & 1 else value


problems = st.builds(
    AttentionProblem,
    batch=st.sampled_from([1, 2, 65536]), num_heads=st.just(8), num_kv_heads=st.sampled_from([1, 4, 8]),
    seq_len_q=st.sampled_from([1, 7, 256, 16384, 1 << 22]), seq_len_kv=st.sampled_from([1, 256, 5000, 16384]),
    head_dim=st.sampled_from(HEAD_DIMS), causal=st.booleans(),
)  # fmt: skip
tiles = st.builds(
    TileConfig,
    block_m=st.sampled_from(BLOCK_M_SIZES), block_n=st.sampled_from(BLOCK_SIZES), num_warps=st.sampled_from(WARP_COUNTS),
    num_stages=st.sampled_from(NUM_STAGES), loop_order=st.sampled_from(["query", "key"]),
    block_order=st.sampled_from(BLOCK_ORDERS), num_programs=st.sampled_from([None, None, 1, 132]),
)  # fmt: skip
backwards = st.builds(BackwardTiles, dkdv=tiles, dq=st.none() | tiles)
precisions = st.builds(
    lambda dtype, fp8, fp8_scale, turned: Precision(dtype=dtype, fp8=fp8, fp8_scale=fp8_scale, hadamard=fp8 and turned),
    st.sampled_from(["bf16", "fp16"]), st.booleans(), st.sampled_from(["token", "block", "head"]), st.booleans(),
)  # fmt: skip
missing = st.dictionaries(st.sampled_from(["driver_version", "cuda_version", "nvml", "t_s"]), texts, max_size=2)


@st.composite
def devices(draw: st.DrawFn) -> DeviceFacts:
    """A GPU known or not, or the interpreter."""
    chance = draw(_flags_of_chance)
    if chance & 1:
        return DeviceFacts(
            id=INTERPRETER, kind="interpreter", name="Interpreter (CPU)", interpreter_tile_ms=_maybe(chance, 1, 2.5)
        )
    return DeviceFacts(
        id=f"GPU-{chance:08x}-0000-0000-0000-000000000000",
        kind="gpu",
        name=draw(st.sampled_from(["NVIDIA H200", "NVIDIA GeForce RTX 4090", "NVIDIA H900 <b>$"])),
        capability=_maybe(chance, 1, draw(st.sampled_from([70, 80, 90, 103, 120]))),
        sm_count=_maybe(chance, 2, 132),
        memory_bytes=_maybe(chance, 3, 150_000_000_000),
        peak_bf16_tflops=_maybe(chance, 4, 989.5),
        peak_fp8_tflops=_maybe(chance, 5, 1979.0),
        measured_bf16_tflops=_maybe(chance, 6, 790.25),
        measured_bandwidth_bytes_per_s=_maybe(chance, 7, 4e12),
        peak_source=_maybe(chance, 8, draw(texts)),
        measured_fp8_tflops=_maybe(chance, 9, 1300.5),
        measured_l2_bytes_per_s=_maybe(chance, 10, 9e12),
        ceilings_measured_at=_maybe(chance, 11, draw(moments)),
        missing=draw(missing),
    )


@st.composite
def environments(draw: st.DrawFn) -> Environment:
    """A device with versions."""
    chance = draw(_flags_of_chance)
    return Environment(
        device=draw(devices()),
        python_version="3.11.2",
        torch_version="2.13.0",
        triton_version=_maybe(chance, 0, "3.7.1"),
        cuda_version=_maybe(chance, 1, "13.0"),
        driver_version=_maybe(chance, 2, draw(texts)),
        commit=_maybe(chance, 3, "68d4500"),
        missing=draw(missing),
    )


@st.composite
def accuracies(draw: st.DrawFn, interpreted: bool, passed: bool) -> Accuracy:
    """A check that passed by its own numbers, or did not."""
    chance, allowed = draw(_flags_of_chance), draw(st.sampled_from([1e-3, 1 / 3, 1e22]))
    error = 0.5 * allowed
    return Accuracy(
        provenance="interpreted" if interpreted else "measured",
        relative_error=error if passed else _maybe(chance, 0, 3 * allowed),
        max_abs_error=_maybe(chance, 1, draw(_small_errors)),
        allowed_relative_error=allowed,
        allowed_because=draw(texts),
        lse_max_abs_error=_maybe(chance, 2, 0.0),
        allowed_lse_error=_maybe(chance, 3, 1e-3),
        non_finite=0 if passed else draw(_counts),
        rows_checked=8,
        rows_total=8 + chance % 9,
        passed=passed,
        end_to_end_relative_error=_maybe(chance, 4, error),
        allowed_end_to_end_error=_maybe(chance, 5, allowed),
        missing=draw(missing),
    )


@st.composite
def latencies(draw: st.DrawFn, interpreted: bool, warm: bool = False) -> Latency:
    """Some launches in some rounds."""
    seed = draw(_seeds)
    rng = np.random.default_rng(seed)
    n = draw(st.sampled_from([1, 2, 3, 10, 60]))
    scale = draw(st.sampled_from([1e-12, 0.01, 2.0, 5e8]))
    return Latency(
        provenance="interpreted" if interpreted else "measured",
        mode="wall" if interpreted else "warm" if warm else "cold",
        samples_ms=Array.of(scale * (1 + rng.random(n)), draw(st.sampled_from(["<f8", "<f4"]))) if scale > 1e-12
        else Array.of(np.full(n, scale)),
        round_of=Array.of(np.sort(rng.integers(0, 5, n)), draw(st.sampled_from(["<i4", "<i8"]))),
        stopped=None if interpreted else draw(st.sampled_from([None, "quiet", "settled", "time", "count"])),
        launches_per_sample=50 if warm and not interpreted else 1,
        exposed=_maybe(seed, 0, n),
        outputs_checked=_maybe(seed, 1, n // 2),
    )  # fmt: skip


@st.composite
def gradients(draw: st.DrawFn, interpreted: bool, passed: bool) -> GradientAccuracy:
    """Three gradients that passed by their own numbers, or did not."""
    chance, allowed = draw(_flags_of_chance), draw(st.sampled_from([1e-3, 1 / 3, 1e22]))

    def error(place: int) -> GradientError:
        return GradientError(
            relative_error=0.5 * allowed if passed else _maybe(chance, place, 3 * allowed),
            max_abs_error=_maybe(chance, place + 3, 0.1),
            allowed_relative_error=allowed,
            allowed_because=draw(texts),
            non_finite=0 if passed else draw(_counts),
            end_to_end_relative_error=_maybe(chance, place + 6, 2 * allowed),
        )

    return GradientAccuracy(
        provenance="interpreted" if interpreted else "measured",
        dq=error(0), dk=error(1), dv=error(2), heads_checked=3, heads_total=3 + chance % 5, passed=passed,
        missing=draw(missing),
    )  # fmt: skip


@st.composite
def step_parts(draw: st.DrawFn, interpreted: bool) -> Parts:
    """A step's parts, any of them missing."""
    chance = draw(_flags_of_chance)
    found = {name: _maybe(chance, place, draw(latencies(interpreted))) for place, name in enumerate(_PARTS)}
    return Parts(**found, missing=draw(missing))


@st.composite
def memories(draw: st.DrawFn, interpreted: bool) -> Memory:
    """Sizes, the measured ones there or not."""
    chance, size = draw(_flags_of_chance), draw(_counts)
    return Memory(
        provenance="interpreted" if interpreted else "measured",
        inputs_bytes=size,
        outputs_bytes=draw(_counts),
        scores_bytes=draw(_counts),
        torch_added_bytes=_maybe(chance, 0, size),
        torch_peak_allocated_bytes=_maybe(chance, 1, size),
        torch_peak_reserved_bytes=_maybe(chance, 2, 0),
        nvml_used_before_bytes=_maybe(chance, 3, 1),
        nvml_used_peak_bytes=_maybe(chance, 4, size),
        nvml_used_after_bytes=_maybe(chance, 5, 1),
        out_bytes=_maybe(chance, 6, size),
        lse_bytes=_maybe(chance, 7, 0),
        gradients_bytes=_maybe(chance, 12, size),
        workspace_bytes=_maybe(chance, 8, 1),
        kept_bytes=_maybe(chance, 9, 0),
        curve=_maybe(chance, 10, _curve(chance % 4, size, draw(texts))),
        missing=draw(missing),
    )


def _curve(points: int, size: int, ended_by: str) -> MemoryCurve:
    lengths = [2**place for place in range(10, 10 + points)]
    found = tuple(MemoryPoint(seq_len_q=length, seq_len_kv=length // 2, added_bytes=size) for length in lengths)
    return MemoryCurve(points=found, ended_by=ended_by)


@st.composite
def energies(draw: st.DrawFn) -> Energy:
    """Millijoules with the time they were taken in, or neither."""
    chance = draw(_flags_of_chance)
    return Energy(
        launches=1 + chance % 5000,
        busy_s=draw(st.sampled_from([1e-9, 1.5, 1e6])),
        window_s=_maybe(chance, 0, 1.25),
        energy_mj=_maybe(chance, 0, draw(st.sampled_from([1e-3, 812_345.5, 1e15]))),
        sampled_mj=_maybe(chance, 1, 800_000.0),
        missing=draw(missing),
    )


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Readings, none at all, or one; series there or not."""
    chance, n = draw(_flags_of_chance), draw(st.sampled_from([0, 1, 2, 30]))
    rng = np.random.default_rng(chance)
    end_s = draw(st.sampled_from([0.0, 0.5, 8.0, 300.0, 1e6]))
    cuts = sorted((rng.random(4) * end_s).tolist())
    return Timeline(
        spans=tuple(
            PhaseSpan(phase=phase, start_s=start, end_s=end, sampled=phase != "latency")
            for phase, start, end in zip(("compile", "latency", "observe"), cuts, cuts[1:], strict=False)
        )[: chance % 4],
        t_s=Array.of(np.sort(rng.random(n)) * end_s, "<f4" if chance & 64 else "<f8"),
        power_w=_maybe(chance, 0, Array.of(rng.random(n) * 700, "<f4")),
        sm_clock_mhz=_maybe(chance, 1, Array.of(np.zeros(n), "<f4")),
        memory_used_bytes=_maybe(chance, 2, Array.of(rng.integers(0, 2**40, n), "<i8")),
        temperature_c=_maybe(chance, 3, Array.of(rng.random(n) * 90 - 5, "<f4")),
        power_limit_w=_maybe(chance, 4, 700.0),
        max_sm_clock_mhz=_maybe(chance, 5, 1980.0),
        memory_clock_mhz=_maybe(chance, 7, Array.of(rng.random(n) * 3201, "<f4")),
        utilisation_percent=_maybe(chance, 8, Array.of(rng.integers(0, 101, n), "<f4")),
        max_memory_clock_mhz=_maybe(chance, 9, 3201.0),
        memory_reserved_bytes=_maybe(chance, 10, 2**29),
        memory_total_bytes=_maybe(chance, 11, 2**37),
        throttled=_maybe(chance, 12, _noted(cuts, draw(texts))),
        gaps=_noted(cuts, draw(texts)) if chance >> 13 & 1 else (),
        launched=tuple(
            LaunchSpan(label=draw(texts), phase="latency", start_s=start, end_s=end, launches=_maybe(chance, 14, 7))
            for start, end in pairwise(cuts)
        )[: chance % 3],
        missing=draw(missing),
    )


def _noted(cuts: list[float], words: str) -> tuple[NotedSpan, ...]:
    return tuple(NotedSpan(words=words, start_s=start, end_s=end) for start, end in zip(cuts[::2], cuts[1::2], strict=False))


reports = st.builds(
    CompileReport,
    kernel=texts, capability=st.sampled_from([80, 90, 103]), triton_version=st.just("3.7.1"),
    compile_ms=st.sampled_from([0.0, 3400.5, 1e9]), registers_per_thread=_counts,
    max_registers_per_thread=st.sampled_from([1, 255]), spill_bytes=_counts, shared_memory_bytes=_counts,
    shared_memory_limit_bytes=st.just(227 << 10), warps_per_program=st.just(8), programs_per_sm=st.sampled_from([0, 1, 2]),
    warps_per_sm=_counts, max_warps_per_sm=st.just(64),
    limited_by=st.sampled_from(["registers", "shared memory", "warps", "blocks", "does not fit"]),
    counts=st.dictionaries(texts, _counts, max_size=2),
)  # fmt: skip
flags = st.builds(
    Flag, name=texts, severity=st.sampled_from(["ok", "info", "caution", "bad"]), short=texts, sentence=texts
)  # fmt: skip
errors = st.builds(
    JobError,
    kind=st.sampled_from(["refused", "compile", "launch", "out_of_memory", "timeout", "crashed", "cancelled"]), sentence=texts,
    needs=st.sampled_from([None, 0.0, 557056.0, 1e22]), has=st.sampled_from([None, 0.0, 232448.0]),
    unit=st.sampled_from(["", "bytes", "sm", "<b>"]), cure=st.none() | tiles,
    fits=st.lists(st.tuples(tiles, _counts), max_size=3).map(tuple), raw=texts,
)  # fmt: skip


def _stamped(problem: AttentionProblem, chosen: TileConfig, seed: int) -> Schedule | None:
    """Stamps without any order: programs on any SM at any time, some of no length; None where there would be many."""
    entries = num_entries(problem, chosen)
    if entries > _MOST_STAMPED:
        return None
    rng = np.random.default_rng(seed)
    whole = chosen.loop_order == "key"
    blocks = entries // (problem.batch * problem.num_heads)
    start = rng.integers(0, 1000, entries)
    columns = {
        "sm": rng.integers(0, 200, entries), "program": rng.integers(0, entries, entries), "start_ns": start,
        "end_ns": start + rng.integers(0, 50, entries), "head": np.arange(entries) // blocks,
        "block": np.full(entries, WHOLE_HEAD) if whole else np.arange(entries) % blocks, "tiles": rng.integers(0, 9, entries),
    }  # fmt: skip
    if seed & 1:
        # Two consumers, of which the first starts first and the second ends last, and a producer.
        groups = np.stack([start, columns["end_ns"], start // 2], axis=1), np.stack([start, columns["end_ns"], start], axis=1)
        columns["group_start_ns"], columns["group_end_ns"] = groups
    return Schedule(
        tick_ns=int(rng.choice([1, 32, 1_000_000])), programs_per_sm=int(rng.integers(1, 4)),
        plain_ms=Array.of(1e-12 + rng.random(3)), stamped_ms=Array.of(1e9 * (1 - rng.random(3) / 2)),
        **{name: Array.of(values, "<i4") for name, values in columns.items()},
    )  # fmt: skip


def _own(problem: AttentionProblem, seed: int) -> OwnInputs | None:
    """Somebody's Q, K and V, where the problem is as small as these must be."""
    query = (problem.batch, problem.num_heads, problem.seq_len_q, problem.head_dim)
    key = (problem.batch, problem.num_kv_heads, problem.seq_len_kv, problem.head_dim)
    if max(math.prod(query), math.prod(key)) > MAX_OWN_NUMBERS:
        return None
    rng = np.random.default_rng(seed)
    return OwnInputs(
        **{name: Array.of(rng.normal(size=shape), "<f4") for name, shape in zip("qkv", (query, key, key), strict=True)}
    )


@st.composite
def measurements(draw: st.DrawFn, environment: Environment, problem: AttentionProblem) -> Measurement:
    """A result with any part of it missing, or an error."""
    chance, interpreted = draw(_flags_of_chance), environment.device.kind == "interpreter"
    chosen, passed = _maybe(chance, 0, draw(tiles)), not chance & 2
    checked = passed or bool(chance & 4)
    is_timed = checked and passed and not chance & 8
    watched = draw(st.sampled_from(TRACES)) if chance & 1024 else None
    if watched is not None:
        problem, chosen = watched.request.problem, watched.tiles
    own = _own(problem, chance) if chance & 2048 else None
    direction = "forward" if watched is not None else draw(st.sampled_from(["forward", "forward", *DIRECTIONS]))
    is_step = direction == "both" and is_timed
    backward_tiles = None if direction == "forward" else _maybe(chance, 14, draw(backwards))
    stamped = draw(st.booleans()) and checked and passed and not interpreted and direction == "forward"
    return Measurement(
        request=RunRequest(
            kernel=draw(st.sampled_from([*VERSIONS, "v4 <b>"])),
            problem=problem,
            precision=draw(precisions),
            tiles=_maybe(chance, 3, chosen),
            direction=direction,
            backward_tiles=backward_tiles,
            device=environment.device.id,
            compile_for=_maybe(chance, 4, 90),
            inputs="own" if own is not None else draw(st.sampled_from(["normal", "ramp"])),
            own=own,
            seed=draw(st.sampled_from([0, 1, -(2**63), 2**63 - 1])),
        ),
        tiles=chosen,
        backward_tiles=backward_tiles,
        environment=environment,
        started_at=draw(moments),
        duration_s=draw(st.sampled_from([0.0, -0.0, 0.1 + 0.2, 8, 1e6])),
        first_launch_ms=_maybe(chance, 5, 1 / 3),
        accuracy=draw(accuracies(interpreted, passed)) if checked else None,
        gradients=draw(gradients(interpreted, passed)) if checked and direction != "forward" else None,
        latency=draw(latencies(interpreted)) if is_timed else None,
        parts=draw(step_parts(interpreted)) if is_step and chance & 32768 else None,
        with_prepass=draw(latencies(interpreted)) if is_timed and chance & 64 else None,
        warm=draw(latencies(interpreted, warm=True)) if is_timed and chance & 4096 and not interpreted else None,
        memory=draw(memories(interpreted)) if chance & 128 else None,
        timeline=None if interpreted or chance & 256 else draw(timelines()),
        compiled=tuple(draw(st.lists(reports, max_size=2))),
        tiles_trace=watched.tiles_trace if watched is not None else None,
        schedule=_stamped(problem, chosen, chance) if stamped and chosen is not None else None,
        energy=draw(energies()) if checked and passed and chance & 8192 and not interpreted else None,
        flags=tuple(draw(st.lists(flags, max_size=3))),
        error=draw(errors) if chance & 512 else None,
        missing=draw(missing),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """A snapshot of one to four measurements of one problem on one device."""
    environment, problem = draw(environments()), draw(problems)
    return Snapshot(
        title=draw(visible),
        note=draw(texts),
        author=draw(st.one_of(st.just(""), texts)),
        host=draw(st.one_of(st.just(""), texts)),
        tags=tuple(draw(st.lists(visible.map(lambda text: text[:30]), max_size=3))),
        created_at=draw(moments),
        measurements=tuple(draw(measurements(environment, problem)) for _ in range(draw(st.integers(1, 4)))),
    )
