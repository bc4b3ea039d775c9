"""Whether two measurements may be compared at all, and what weakens it where they may. Pure.

In every sentence A is the one before and B the one after.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from profiling import words
from profiling.flags import FEWEST_SAMPLES
from profiling.launch_times import launch_times
from profiling.own_inputs import inputs_of
from profiling.records import Latency, Measurement, Severity

_SHORTEST_MS, _LONGEST_MS = 1e-6, 1e9
_SOFTWARE = {
    "driver_version": "NVIDIA drivers",
    "cuda_version": "CUDA versions",
    "torch_version": "torch versions",
    "triton_version": "Triton versions",
}


def times_of(latency: Latency | None) -> np.ndarray | None:
    """The samples, where they are what a latency holds: one row of times that a launch can take, each with its round."""
    if latency is None or len(latency.samples_ms.shape) != 1 or latency.samples_ms.shape != latency.round_of.shape:
        return None
    samples, turns = latency.samples_ms.numpy(), latency.round_of.numpy()
    usable = (
        len(samples) > 0 and turns.dtype.kind in "iu" and bool(np.all((samples >= _SHORTEST_MS) & (samples <= _LONGEST_MS)))
    )
    return samples if usable else None


# What forbids a word


def not_comparable(before: Measurement, after: Measurement) -> str:
    """Why no ratio of the two means anything; empty where one does."""
    if before == after:
        return "A and B are the same measurement."
    sides = (("A", before), ("B", after))
    for side, one in sides:
        if one.latency is None:
            return f"{side} has no time: {_why_untimed(one)}."
    kinds = [(one.latency.provenance, one.latency.mode) for _, one in sides]
    if any(provenance != "measured" for provenance, _ in kinds):
        return f"An interpreter's time says nothing of a GPU's: A was {kinds[0][0]}, B was {kinds[1][0]}."
    if kinds[0] != kinds[1]:
        return f"A was timed {kinds[0][1]}, B {kinds[1][1]}: these are two quantities."
    unlike = _unlike_problem(before, after)
    if unlike:
        return f"A and B compute different problems: {unlike}."
    bad = [(side, flag) for side, one in sides for flag in one.flags if flag.severity == "bad"]
    return f"The time of {bad[0][0]} cannot be right. {bad[0][1].sentence}" if bad else ""


def _why_untimed(one: Measurement) -> str:
    if one.error is not None:
        return f"it failed ({one.error.kind.replace('_', ' ')})"
    if "latency" in one.missing:
        return f"it was refused ({one.missing['latency'].rstrip('.')})"
    if one.wrong == "gradients":
        return "its gradients are wrong, and wrong gradients have no speed"
    return "its output is wrong, and a wrong output has no speed" if one.wrong else "it was not timed"


def _unlike_problem(before: Measurement, after: Measurement) -> str:
    """The fields that differ, with both values: 'seq_len_q is 16,384 in A and 4,096 in B'."""
    ours, theirs = (
        {**one.request.problem.model_dump(), "direction": one.request.direction, "inputs": inputs_of(one.request)}
        for one in (before, after)
    )
    unlike = [(name, ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]]
    return ", ".join(f"{name} is {_value(a)} in A and {_value(b)} in B" for name, a, b in unlike)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def another_device(before: Measurement, after: Measurement) -> str:
    """Why no word is given though a ratio is: two GPU models; empty where it is one."""
    ours, theirs = before.environment.device.name, after.environment.device.name
    return "" if ours == theirs else f"A ran on {ours}, B on {theirs}: no word is given across GPU models."


def ratio_of_medians(before: Measurement, after: Measurement) -> float:
    """All launches' medians, A's over B's."""
    return launch_times(before.latency).band.median_ms / launch_times(after.latency).band.median_ms


# What a reader looks at first


def conditions(before: Measurement, after: Measurement, interleaved: bool) -> list[tuple[Severity, str, str]]:
    """Problem, device, software, outputs and jobs: (severity, in short, in a sentence) each."""
    unlike = _unlike_problem(before, after)
    problem = ("bad", "different problems", f"{unlike}.") if unlike else ("ok", "same problem", before.request.problem.title)
    job = (
        ("ok", "interleaved in one job", "Both were timed in the same rounds, in turn.")
        if interleaved
        else ("info", "two jobs", "They share no rounds: what differed between the jobs is in the ratio.")
    )
    return [problem, _device_of(before, after), _software_of(before, after), _outputs_of(before, after), job]


def _device_of(before: Measurement, after: Measurement) -> tuple[Severity, str, str]:
    ours, theirs = before.environment.device, after.environment.device
    said = f"A ran on {ours.name} ({ours.id[:8]}), B on {theirs.name} ({theirs.id[:8]})."
    if ours.name != theirs.name:
        return "bad", "different devices", said
    if ours.kind == "interpreter":
        return "info", "CPU interpreter", "Neither ran on a GPU."
    return ("ok", "same GPU", said) if ours.id == theirs.id else ("caution", "two GPUs of one model", said)


def _software_of(before: Measurement, after: Measurement) -> tuple[Severity, str, str]:
    unlike = [said for said in _of_environment(before, after) if said.startswith("The ")]
    if unlike:
        return "caution", "different software", " ".join(unlike)
    return "ok", "same driver, torch, Triton", "Driver, CUDA, torch and Triton have the same versions."


def _outputs_of(before: Measurement, after: Measurement) -> tuple[Severity, str, str]:
    sides = (("A", before), ("B", after))
    wrong = [side for side, one in sides if one.wrong]
    if wrong:
        return "bad", f"{' and '.join(wrong)} wrong", "A wrong output has no speed."
    unchecked = [side for side, one in sides if one.accuracy is None]
    if unchecked:
        return "info", f"{' and '.join(unchecked)} not checked", "Without a checked output there is no speed."
    return "ok", "both correct", "Both outputs were checked against float64 in the job that timed them."


# What weakens it


def cautions(before: Measurement, after: Measurement, interleaved: bool) -> tuple[str, ...]:
    """What weakens a verdict, a sentence each; a job's own measurements share their environment."""
    found = [*_of_precision(before, after), *_of_samples(before, after), *_of_flags(before, after)]
    return tuple(found if interleaved else [*_of_environment(before, after), *found])


def _of_precision(before: Measurement, after: Measurement) -> Iterable[str]:
    sides = [side for side, one in (("A", before), ("B", after)) if one.with_prepass is not None]
    if sides:
        ours, theirs = ((one.with_prepass or one.latency).median_ms for one in (before, after))
        needs = "A and B need" if len(sides) == 2 else f"{sides[0]} needs"
        ratio = words.ratio(ours / theirs)
        yield f"The verdict is on the kernels alone; {needs} an FP8 pre-pass, with which the ratio is {ratio}."


def _of_samples(before: Measurement, after: Measurement) -> Iterable[str]:
    for side, one in (("A", before), ("B", after)):
        if one.latency.n < FEWEST_SAMPLES:
            launches = "1 launch" if one.latency.n == 1 else f"{one.latency.n} launches"
            yield f"{side}: only {launches} timed; a median of fewer than {FEWEST_SAMPLES} can be far off."


def _of_flags(before: Measurement, after: Measurement) -> Iterable[str]:
    """What the worker noted as a caution; the count of samples is said already."""
    ours, theirs = (
        [flag.sentence for flag in one.flags if flag.severity == "caution" and flag.name != "too few samples"]
        for one in (before, after)
    )
    for sentence in dict.fromkeys([*ours, *theirs]):
        side = "A and B" if sentence in ours and sentence in theirs else "A" if sentence in ours else "B"
        yield f"{side}: {sentence}"


def _of_environment(before: Measurement, after: Measurement) -> Iterable[str]:
    ours, theirs = before.environment, after.environment
    if ours.device.id != theirs.device.id:
        yield f"Two GPUs of one model: A ran on {ours.device.id[:8]}, B on {theirs.device.id[:8]}."
    for name, words_of_it in _SOFTWARE.items():
        a, b = getattr(ours, name), getattr(theirs, name)
        if a != b:
            yield f"The {words_of_it} differ: {a or 'not known'} in A, {b or 'not known'} in B."
