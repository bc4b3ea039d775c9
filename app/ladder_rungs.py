"""The ladder v1 → v3, one idea a rung: what is asked of the queue, what of it was measured, what is left out and why. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kernels.architecture import Architecture, architecture
from kernels.problem import AttentionProblem, Precision
from kernels.registry import Refused, default_tiles, ours_on, refuse
from profiling.records import DeviceFacts, Measurement, RunRequest
from profiling.verdict import Verdict, verdict

NEEDS_A_GPU = "the interpreter's times say nothing of a GPU's"


@dataclass(frozen=True)
class Rung:
    """One configuration, and what is new in it. request None: it cannot be measured here, for the reason in why_not."""

    name: str
    idea: str
    request: RunRequest | None = None
    why_not: str = ""


@dataclass(frozen=True)
class Step:
    """A rung that has a time. against: the verdict on it over the step before, None for the first."""

    rung: Rung
    measurement: Measurement
    against: Verdict | None

    @property
    def median_ms(self) -> float:
        """The number to quote."""
        return self.measurement.latency.median_ms


_ORDERS = (
    ("v1 key-outer", "v1", {"loop_order": "key"}, "online softmax, tile by tile; a program a head (Algorithm 1)"),
    ("v1 query-outer", "v1", {}, "a program a query tile: they fill the GPU"),
    (
        "v2, natural order", "v2", {"block_order": "natural"},
        "O normalised once, hidden tiles skipped, exp2",
    ),
    ("v2, heaviest first", "v2", {"block_order": "heaviest"}, "blocks with most tiles start first"),
    ("v3", "v3", {}, "the copy engine brings the next tiles meanwhile"),
    ("v3-hopper", "v3-hopper", {}, "a producer warp; softmax under the matrix products"),
)  # fmt: skip


def rungs(problem: AttentionProblem, dtype: str, device: DeviceFacts) -> tuple[Rung, ...]:
    """Every rung on a problem and a GPU, each with its version's default tiles there; FP8 is the last one.

    Raises ValueError for a GPU before Ampere and for the interpreter, whose times would say nothing.
    """
    if device.capability is None:
        raise ValueError(f"device = {device.id} is not possible for the ladder: {NEEDS_A_GPU}.")
    arch = architecture(device.capability)
    found = [_rung(name, idea, kernel, changes, (problem, Precision(dtype=dtype)), (device, arch))
             for name, kernel, changes, idea in _ORDERS]  # fmt: skip
    newest = "v3-hopper" if "v3-hopper" in ours_on(arch) else "v3"
    fp8 = Precision(dtype=dtype, fp8=True, fp8_scale="block" if newest == "v3-hopper" else "token")
    found.append(_rung(f"{newest} FP8", "e4m3 operands, the pre-pass not counted", newest, {}, (problem, fp8), (device, arch)))
    return tuple(found)


def _rung(
    name: str, idea: str, kernel: str, changes: dict[str, str], what: tuple[AttentionProblem, Precision],
    where: tuple[DeviceFacts, Architecture],
) -> Rung:  # fmt: skip
    (problem, precision), (device, arch) = what, where
    if changes.get("block_order") == "heaviest" and not problem.causal:
        return Rung(name, idea, why_not="without a mask all blocks are equally heavy")
    if kernel not in ours_on(arch):
        return Rung(name, idea, why_not=f"it is written in Hopper's instructions, and this is sm_{device.capability}")
    tiles = default_tiles(kernel, problem, precision, arch, changes.get("loop_order", "query"))
    tiles = tiles.model_copy(update=changes)
    try:
        refuse(kernel, problem, precision, tiles, arch)
    except Refused as error:
        return Rung(name, idea, why_not=error.sentence.rstrip("."))
    return Rung(name, idea, RunRequest(
        kernel=kernel, problem=problem, precision=precision, tiles=tiles, device=device.id, probes=("accuracy", "latency"),
    ))  # fmt: skip


def requests(found: Iterable[Rung]) -> tuple[RunRequest, ...]:
    """What is submitted as one job, in order."""
    return tuple(rung.request for rung in found if rung.request is not None)


def recorded(measurements: Sequence[Measurement]) -> tuple[tuple[Rung, Measurement | None], ...]:
    """The rungs of one job that was recorded, whatever tiles it had; those that it did not run are left out."""
    problem = measurements[0].request.problem
    return tuple(
        (Rung(name, idea, why_not="the recording does not have it"), next((one for one in measurements if _is(one, *of)), None))
        for name, *of, idea in (*((name, kernel, changes, idea) for name, kernel, changes, idea in _ORDERS),)
        if problem.causal or name != "v2, heaviest first"
    )


def _is(measurement: Measurement, kernel: str, changes: dict[str, str]) -> bool:
    """Whether a measurement is a rung's: v2's own order is the heaviest first, and without a mask there is but one order."""
    tiles, request = measurement.tiles, measurement.request
    if request.kernel != kernel or request.precision.fp8 or tiles is None or tiles.num_programs is not None:
        return False
    if "block_order" in changes:
        is_natural = tiles.block_order == "natural" or not request.problem.causal
        return is_natural == (changes["block_order"] == "natural")
    return tiles.loop_order == changes.get("loop_order", "query")


def climbed(found: Sequence[tuple[Rung, Measurement | None]]) -> tuple[tuple[Step, ...], tuple[Rung, ...]]:
    """The rungs that have a GPU's time, each judged against the one before; and those left out, each with its reason."""
    steps: list[Step] = []
    left_out: list[Rung] = []
    for rung, measurement in found:
        reason = _why_no_step(rung, measurement)
        if reason:
            left_out.append(replace(rung, why_not=reason))
            continue
        against = verdict(steps[-1].measurement, measurement, same_job=True) if steps else None
        steps.append(Step(rung, measurement, against))
    return tuple(steps), tuple(left_out)


def _why_no_step(rung: Rung, measurement: Measurement | None) -> str:
    if measurement is None:
        return rung.why_not or "it did not run"
    if measurement.error is not None:
        return measurement.error.sentence.rstrip(".")
    if measurement.accuracy is not None and not measurement.accuracy.passed:
        return "its output is wrong, and a wrong output has no speed"
    if measurement.latency is None:
        return "it was not timed"
    return "" if measurement.latency.provenance == "measured" else NEEDS_A_GPU
