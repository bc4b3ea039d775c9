"""The probe `schedule`: the stamped variant of a version beside the plain one, and the record of who ran where and when."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from kernels.kernel import AttentionOutput
from kernels.registry import stamping_lanes
from profiling.measure import Run, Timer
from profiling.record_types import Array
from profiling.schedule_record import Schedule, require_possible
from profiling.tile_trace import Subject

if TYPE_CHECKING:
    from kernels.stamps import StampBuffers, Stamps

# Pairs of launches, one plain and one stamped: as many as fit in the budget; the last ones keep their stamps.
_FEWEST_PAIRS, _MOST_PAIRS, _PAIRS_AT_ONCE = 3, 189, 21
_BUDGET_MS = 2000.0
_LONGEST_NS = np.iinfo(np.int32).max
_ENTRY = ("sm", "program", "start_ns", "end_ns", "head", "block", "tiles")
_GROUPS = ("group_start_ns", "group_end_ns")


def take(subject: Subject, timer: Timer, allowed_relative_error: float, capability: int) -> Schedule:
    """Time the plain and the stamped variant in turn, and keep the stamps of the launch that is nearest to the median.

    Raises ValueError, in one sentence, for what a schedule cannot hold; RuntimeError where the stamped output is further
    from the plain one than allowed_relative_error, so that its stamps would tell of another kernel.
    """
    # Both import Triton, which the process of native and the peers may do without.
    from kernels.stamps import StampBuffers, measure_tick_ns
    from profiling.compile_report import stamped_programs_per_sm

    problem, tiles, device = subject.request.problem, subject.tiles, subject.operands.q.device
    require_possible(problem, tiles)
    buffers = StampBuffers.on(device, problem, tiles, stamping_lanes(subject.request.kernel, tiles))

    def plain() -> AttentionOutput:
        return subject.kernel.forward(subject.operands, problem, tiles, subject.launch)

    def stamped() -> AttentionOutput:
        return subject.kernel.forward(subject.operands, problem, tiles, subject.launch, stamps=buffers)

    _require_same_output(plain(), stamped(), allowed_relative_error)
    plain_ms, stamped_ms, stamps = _in_turn(plain, stamped, buffers, timer)
    names = _ENTRY if stamps.group_start_ns is None else (*_ENTRY, *_GROUPS)
    entries = {name: Array.of(getattr(stamps, name), "<i4") for name in names}
    return Schedule(
        tick_ns=measure_tick_ns(device), **entries, plain_ms=Array.of(plain_ms), stamped_ms=Array.of(stamped_ms),
        programs_per_sm=stamped_programs_per_sm(subject.request.model_copy(update={"tiles": tiles}), capability),
    )  # fmt: skip


def _require_same_output(plain: AttentionOutput, stamped: AttentionOutput, allowed_relative_error: float) -> None:
    if torch.equal(plain.out, stamped.out):
        return
    error = float((stamped.out.float() - plain.out.float()).norm() / plain.out.float().norm())
    # The comparison is turned round so that NaN is refused too.
    if not error <= allowed_relative_error:
        raise RuntimeError(f"its stamped variant's output is {error:.2g} off, and {allowed_relative_error:.2g} is allowed")


def _in_turn(plain: Run, stamped: Run, buffers: StampBuffers, timer: Timer) -> tuple[list[float], list[float], Stamps]:
    """(ms of the plain launches, ms of the stamped ones, stamps): pair by pair, so that a clock that drifts meets both alike.

    The stamps are of the launch whose time is nearest to the median, of the last _PAIRS_AT_ONCE.
    """
    estimate_ms = timer.estimate_ms(plain)
    if estimate_ms * 1e6 > _LONGEST_NS:
        raise ValueError(f"a schedule of {estimate_ms / 1000:.3g} s is not possible: it can have {_LONGEST_NS / 1e9:.3g} s.")
    left = int(np.clip(_BUDGET_MS / max(estimate_ms, 1e-6), _FEWEST_PAIRS, _MOST_PAIRS))
    times: tuple[list[float], list[float]] = ([], [])
    while left:
        count = min(left, _PAIRS_AT_ONCE)
        left -= count
        kept: list[torch.Tensor] = []

        def keep(index: int, kept: list[torch.Tensor] = kept, is_last: bool = not left) -> None:
            if index == 1 and is_last:
                kept.append(buffers.stamps.clone())

        for of_run, found in zip(times, timer.in_turn_ms((plain, stamped), count, keep), strict=True):
            of_run += found
    plain_ms, stamped_ms = times
    distance = np.abs(np.array(stamped_ms[-len(kept) :]) - np.median(stamped_ms))
    return plain_ms, stamped_ms, replace(buffers, stamps=kept[int(distance.argmin())]).read()
