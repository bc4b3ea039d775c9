"""How many programs a launch has, and how they meet the SMs. Pure; waves are modelled, from the compiled occupancy."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernels.problem import AttentionProblem, TileConfig
from profiling.records import CompileReport, Measurement


@dataclass(frozen=True)
class Programs:
    """One launch's programs, the SMs there are, and how many rounds of full occupancy they make (None if not known)."""

    count: int
    sm_count: int | None
    per_sm: int | None

    @property
    def waves(self) -> float | None:
        """Programs over the places there are for them at once."""
        return self.count / (self.sm_count * self.per_sm) if self.sm_count and self.per_sm else None

    @property
    def sentence(self) -> str:
        """'2,048 programs on 132 SMs, 1 at a time each: 15.5 waves'."""
        words = f"{self.count:,} program{'s' if self.count > 1 else ''}"
        if self.sm_count:
            words += f" on {self.sm_count} SMs"
        if self.waves is not None:
            words += f", {self.per_sm} at a time each: {self.waves:.3g} wave{'s' if self.waves > 1 else ''}"
        return words


def count(problem: AttentionProblem, tiles: TileConfig) -> int:
    """Programs of one forward launch: one a query tile and head, or one a head with Algorithm 1's key-outer loop."""
    heads = problem.batch * problem.num_heads
    return heads if tiles.loop_order == "key" else heads * math.ceil(problem.seq_len_q / tiles.block_m)


def visited_tiles(kernel: str, problem: AttentionProblem, tiles: TileConfig) -> int:
    """Tiles that one forward computes over all heads; from v2 on, those above the causal diagonal are not visited."""
    rows = math.ceil(problem.seq_len_q / tiles.block_m)
    columns = math.ceil(problem.seq_len_kv / tiles.block_n)
    if not problem.causal or kernel == "v1":
        return problem.batch * problem.num_heads * rows * columns
    offset = problem.seq_len_kv - problem.seq_len_q
    keys_seen = (min((row + 1) * tiles.block_m, problem.seq_len_q) + offset for row in range(rows))
    return problem.batch * problem.num_heads * sum(min(columns, max(0, math.ceil(keys / tiles.block_n))) for keys in keys_seen)


def main_report(measurement: Measurement) -> CompileReport | None:
    """The compile report of the attention kernel itself: of several, the one that takes most shared memory."""
    return max(measurement.compiled, key=lambda report: report.shared_memory_bytes, default=None)


def of(measurement: Measurement) -> Programs | None:
    """The programs of a measurement, or None where it has no tiles."""
    if measurement.tiles is None:
        return None
    report = main_report(measurement)
    device = measurement.environment.device
    per_sm = report.programs_per_sm if report and report.capability == device.capability else None
    return Programs(count(measurement.request.problem, measurement.tiles), device.sm_count, per_sm)


def why_slow(measurement: Measurement) -> list[str]:
    """Sentences beside the versions' chart, when a version's own design explains its time on a GPU."""
    found = of(measurement)
    if found is None or not found.sm_count or measurement.request.direction != "forward":
        return []
    return [sentence for sentence in (_starved(measurement, found), _unseen_tiles(measurement)) if sentence]


def _starved(measurement: Measurement, found: Programs) -> str | None:
    """Algorithm 1's key-outer order: a program a head, and O, m, l through memory."""
    if measurement.tiles.loop_order != "key":
        return None
    idle = max(0, found.sm_count - found.count)
    share = f"{idle} have nothing to do" if idle else "every SM has work"
    return (
        f"It starts {found.count:,} programs, one a head: of {found.sm_count} SMs {share}; "
        "and O, m and l go through memory at every key tile."
    )


def _unseen_tiles(measurement: Measurement) -> str | None:
    """Causal v1: it computes the tiles that no query sees, and masks them after."""
    problem, tiles = measurement.request.problem, measurement.tiles
    computed = visited_tiles(measurement.request.kernel, problem, tiles)
    seen = visited_tiles("v2", problem, tiles)
    if computed < 1.2 * seen:
        return None
    return (
        f"It computes all {computed:,} tiles and masks them after; {computed - seen:,} of them no query sees. "
        "v2 never visits those."
    )
