"""A snapshot's GPU times in the layout of NVIDIA nvbench's JSON (file version 1.0.0), for nvbench-compare to read. Pure.

Layout: nvbench/json_printer.cu; the summaries: nvbench/detail/measure_cold.cu and measure_hot.cu, with seconds as strings and
quartiles by rank (nvbench/detail/statistics.cuh). What was not measured is left out: times on the CPU, and the SM clock of each
launch. Without that clock nvbench-compare-robust shows its intervals and says SAME, but keeps to AMBG where it would say FAST
or SLOW; nvbench-compare-legacy, which judges by mean and spread, says both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from profiling.comparable import times_of
from profiling.foreign_text import cleaned
from profiling.records import Latency, Measurement
from profiling.snapshot import AnySnapshot

FILE_VERSION = (1, 0, 0)
BENCHMARK = "attention forward"
_FEWEST_FOR_NOISE = 5
_DEVICE = 0


def nvbench_json(snapshot: AnySnapshot, labels: dict[str, Measurement]) -> dict[str, Any]:
    """The file's value: a benchmark a version, named by `labels`; with an FP8 pre-pass one more for both together.

    Each has one state, whose axes are the problem: the tool compares benchmarks of one name, and wants the same states there.

    Raises ValueError when there is no GPU time in the snapshot, or it holds several devices.
    """
    timed = [one for one in labels.values() if one.latency is not None and one.latency.provenance == "measured"]
    if not timed:
        raise ValueError("nvbench's format holds GPU times, and this snapshot has none.")
    if len({one.environment.device.id for one in labels.values()}) > 1:
        raise ValueError("nvbench's format holds one device's states here, and this snapshot has several devices.")
    major, minor, patch = FILE_VERSION
    version = {"major": major, "minor": minor, "patch": patch, "string": f"{major}.{minor}.{patch}"}
    return {
        "meta": {"argv": ["flashscope", snapshot.id], "version": {"json": version}},
        "devices": [_device(timed[0])],
        "benchmarks": [{**bench, "index": index} for index, bench in enumerate(_benchmarks(labels))],
    }


def _device(measurement: Measurement) -> dict[str, Any]:
    """What tells GPU models apart, and no more: the tool refuses two files whose devices differ in any field."""
    device = measurement.environment.device
    found = {"id": _DEVICE, "name": cleaned(device.name)}
    if device.capability is not None:
        found["sm_version"] = found["ptx_version"] = device.capability * 10
    return found | ({"number_of_sms": device.sm_count} if device.sm_count is not None else {})


def _benchmarks(labels: dict[str, Measurement]) -> Iterator[dict[str, Any]]:
    for label, one in labels.items():
        yield _benchmark(label, one, one.latency, one.warm)
        if one.with_prepass is not None:
            yield _benchmark(f"{label} with pre-pass", one, one.with_prepass)


def _benchmark(label: str, measurement: Measurement, latency: Latency | None, warm: Latency | None = None) -> dict[str, Any]:
    values = [_named(*one) for one in measurement.request.problem.model_dump().items()]
    values.append(_named("dtype", measurement.request.precision.dtype))
    return {
        "name": f"{BENCHMARK}, {label}",
        "devices": [_DEVICE],
        "axes": [_axis(one) for one in values],
        "states": [_state(values, latency, warm)],
    }


def _state(values: list[dict[str, str]], latency: Latency | None, warm: Latency | None) -> dict[str, Any]:
    state = {
        "name": " ".join([f"Device={_DEVICE}", *(f"{one['name']}={one['value']}" for one in values)]),
        "device": _DEVICE,
        "type_config_index": 0,
        "axis_values": values,
    }
    samples = None if latency is None or latency.provenance != "measured" else times_of(latency)
    if samples is None:
        return {**state, "summaries": None, "is_skipped": True, "skip_reason": "It has no GPU time that was proved right."}
    return {**state, "summaries": [*_summaries(samples / 1000.0), *_batch(warm)], "is_skipped": False}


def _named(name: str, value: object) -> dict[str, str]:
    if isinstance(value, bool) or not isinstance(value, int):
        return {"name": name, "type": "string", "value": {True: "yes", False: "no"}.get(value, value)}
    return {"name": name, "type": "int64", "value": str(value)}


def _axis(one: dict[str, str]) -> dict[str, Any]:
    value = int(one["value"]) if one["type"] == "int64" else one["value"]
    values = [{"input_string": one["value"], "description": "", "value": value}]
    return {"name": one["name"], "type": one["type"], "flags": "", "values": values}


def _summaries(samples_s: np.ndarray) -> list[dict[str, Any]]:
    found = [_summary("nv/cold/sample_size", "Samples", "sample_size", len(samples_s))]
    mean = float(samples_s.mean())
    q1, median, q3 = (_by_rank(samples_s, percent) for percent in (25, 50, 75))
    gpu = {
        "min": ("Min GPU Time", float(samples_s.min())),
        "max": ("Max GPU Time", float(samples_s.max())),
        "mean": ("GPU Time", mean),
        "q1": ("Q1 GPU Time", q1),
        "median": ("Median GPU Time", median),
        "q3": ("Q3 GPU Time", q3),
        "iqr/absolute": ("IQR", q3 - q1),
    }
    if len(samples_s) >= _FEWEST_FOR_NOISE:
        gpu["stdev/absolute"] = ("Noise", float(samples_s.std(ddof=1)))
    found += [_summary(f"nv/cold/time/gpu/{tag}", name, "duration", value) for tag, (name, value) in gpu.items()]
    if len(samples_s) >= _FEWEST_FOR_NOISE:
        shares = {"stdev/relative": ("Noise", gpu["stdev/absolute"][1] / mean), "iqr/relative": ("Rel IQR", (q3 - q1) / median)}
        found += [_summary(f"nv/cold/time/gpu/{tag}", name, "percentage", value) for tag, (name, value) in shares.items()]
    return found


def _batch(warm: Latency | None) -> list[dict[str, Any]]:
    """The warm time as nvbench's batch: launches in a row without a flush, of which it keeps the mean alone."""
    samples = times_of(warm)
    if samples is None:
        return []
    launches = len(samples) * warm.launches_per_sample
    return [
        _summary("nv/batch/sample_size", "Samples", "sample_size", launches),
        _summary("nv/batch/time/gpu/mean", "Batch GPU", "duration", float(samples.mean()) / 1000.0),
    ]


def _by_rank(samples_s: np.ndarray, percent: int) -> float:
    """nvbench's percentile: the sample at the rank percent / 100 · (n − 1), halves rounded away from zero."""
    return float(np.sort(samples_s)[int(percent / 100 * (len(samples_s) - 1) + 0.5)])


def _summary(tag: str, name: str, hint: str, value: float | int) -> dict[str, Any]:
    kind = "int64" if isinstance(value, int) else "float64"
    return {"tag": tag, "name": name, "hint": hint, "data": [{"name": "value", "type": kind, "value": repr(value)}]}
