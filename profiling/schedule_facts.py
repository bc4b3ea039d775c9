"""What a timetable says: how many SMs worked, how evenly, and where the rest of their time went. Pure: numpy.

Everything is reckoned from the entries alone, so that it holds for stamps and for a model alike; the timetable's provenance
goes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kernels.block_order import WHOLE_HEAD
from profiling.schedule_record import Schedule
from profiling.timetable import Timetable
from profiling.words import milliseconds, percent, three_digits

MOST_OVERHEAD_SHARE = 0.10
_WORTH_TELLING = 0.01
_LEAST_IN_US_NS = 999.5


@dataclass(frozen=True)
class IdleShares:
    """Where SM time without any program went, as shares of sm_count × span; together they are 1 − busy_share.

    unused: SMs that no program ever came to. start: before an SM's first program. between: between two programs of an SM.
    tail: after an SM's last one.
    """

    unused: float
    start: float
    between: float
    tail: float


@dataclass(frozen=True)
class ScheduleFacts:
    """The numbers that matter of one timetable.

    programs: launched ones; entries: pieces of work (query blocks of heads), more than programs in a persistent grid.
    slots: sm_count × programs_per_sm, the programs that fit on the device at once. most_at_once: the most programs seen on
    one SM at the same time. waves: programs ÷ slots. busy_share: of sm_count × span_ns an SM held at least one program.
    imbalance: busy time of the busiest SM ÷ the mean of all. first_idle_ns: when the first of the SMs that worked was out
    of work for good; tail_ns from there to the end. longest_ns: the longest program. balanced_ns: what perfect balance would
    have given: all entries' time ÷ slots, or the longest entry where that is longer.
    """

    provenance: Literal["measured", "modelled"]
    sm_count: int
    sms_used: int
    programs: int
    entries: int
    whole_heads: bool
    programs_per_sm: int
    slots: int
    most_at_once: int
    waves: float
    span_ns: float
    tick_ns: int
    busy_share: float
    idle: IdleShares
    imbalance: float
    first_idle_ns: float
    tail_ns: float
    longest_ns: float
    balanced_ns: float

    @property
    def over_balanced(self) -> float:
        """span ÷ balanced: 1 is perfect."""
        return self.span_ns / self.balanced_ns if self.balanced_ns else 1.0


@dataclass(frozen=True)
class Utilisation:
    """How busy the device was over time: edges_ns (n + 1,); busy_sms (n,), mean number of SMs with a program between two
    edges; programs (n,), mean number of programs on all of them."""

    edges_ns: np.ndarray
    busy_sms: np.ndarray
    programs: np.ndarray


@dataclass(frozen=True)
class Groups:
    """Entries by head or by query block: keys (n,) the head or block; per key its entries, tiles, the sum, mean and longest of
    its durations, first start and last end, all in ns. ns_per_tile: sum ÷ tiles, NaN where it has none."""

    keys: np.ndarray
    entries: np.ndarray
    tiles: np.ndarray
    total_ns: np.ndarray
    mean_ns: np.ndarray
    longest_ns: np.ndarray
    first_start_ns: np.ndarray
    last_end_ns: np.ndarray
    ns_per_tile: np.ndarray


@dataclass(frozen=True)
class Warpgroups:
    """How the warpgroups of a program keep step at a block, where they stamp for themselves; medians over the blocks, in ns.

    consumers: those that compute. apart_ns: from when the first of them is done to when the last is. ahead_ns: from when the
    producer has asked for the block's last tile to when the block is done.
    """

    consumers: int
    apart_ns: float
    ahead_ns: float


def warpgroups_of(schedule: Schedule) -> Warpgroups | None:
    """None where a program stamps as a whole."""
    if schedule.group_end_ns is None:
        return None
    ends = schedule.group_end_ns.numpy().astype(np.float64)
    consumers, done = ends[:, :-1], ends[:, :-1].max(axis=1)
    return Warpgroups(consumers.shape[1], float(np.median(done - consumers.min(axis=1))), float(np.median(done - ends[:, -1])))


def facts_of(table: Timetable, programs_per_sm: int) -> ScheduleFacts:
    """The numbers of a timetable; programs_per_sm: how many fit on an SM at once."""
    stays, busy_ns = table.stays, busy(table)
    start_ns, end_ns = float(table.start_ns.min()), float(table.end_ns.max())
    used = np.unique(stays.sm)
    first_ns, last_ns = np.full(table.sm_count, end_ns), np.full(table.sm_count, start_ns)
    np.minimum.at(first_ns, stays.sm, stays.start_ns)
    np.maximum.at(last_ns, stays.sm, stays.end_ns)
    slots, stay_ns = table.sm_count * programs_per_sm, stays.end_ns - stays.start_ns
    whole_ns = max(table.sm_count * (end_ns - start_ns), 1e-9)
    return ScheduleFacts(
        provenance=table.provenance, sm_count=table.sm_count, sms_used=used.size, programs=np.unique(stays.program).size,
        entries=table.sm.size, whole_heads=bool((table.block == WHOLE_HEAD).all()), programs_per_sm=programs_per_sm,
        slots=slots, most_at_once=int(residency(table).max()), waves=np.unique(stays.program).size / slots,
        span_ns=end_ns - start_ns, tick_ns=table.tick_ns, busy_share=float(busy_ns.sum()) / whole_ns,
        idle=IdleShares(
            unused=(table.sm_count - used.size) * (end_ns - start_ns) / whole_ns,
            start=float((first_ns[used] - start_ns).sum()) / whole_ns,
            between=float((last_ns - first_ns - busy_ns)[used].sum()) / whole_ns,
            tail=float((end_ns - last_ns[used]).sum()) / whole_ns,
        ),
        imbalance=float(busy_ns.max() / busy_ns.mean()) if busy_ns.any() else 1.0,
        first_idle_ns=float(last_ns[used].min()) - start_ns, tail_ns=end_ns - float(last_ns[used].min()),
        longest_ns=float(stay_ns.max()),
        balanced_ns=max(float(table.duration_ns.sum()) / slots, float(table.duration_ns.max())),
    )  # fmt: skip


def residency(table: Timetable) -> np.ndarray:
    """(sm_count,) the most programs that were on each SM at once."""
    levels = table.stays.levels
    most = np.zeros(table.sm_count, np.int64)
    np.maximum.at(most, levels.sm, levels.programs)
    # A program of no length holds its SM all the same.
    np.maximum.at(most, table.sm, 1)
    return most


def busy(table: Timetable) -> np.ndarray:
    """(sm_count,) how long each SM held at least one program, in ns."""
    levels = table.stays.levels
    return np.bincount(levels.sm, levels.for_ns * (levels.programs > 0), table.sm_count)


def utilisation(table: Timetable, bins: int = 400) -> Utilisation:
    """Busy SMs and resident programs in `bins` equal stretches of the span."""
    levels = table.stays.levels
    edges_ns = np.linspace(table.start_ns.min(), table.end_ns.max(), bins + 1)
    until_ns = levels.at_ns + levels.for_ns
    widths = np.maximum(np.diff(edges_ns), 1e-9)
    busy_sms, programs = (
        np.diff(_accumulated(levels.at_ns, until_ns, weights, edges_ns)) / widths
        for weights in ((levels.programs > 0).astype(np.float64), levels.programs.astype(np.float64))
    )
    return Utilisation(edges_ns, busy_sms, programs)


def _accumulated(from_ns: np.ndarray, until_ns: np.ndarray, weights: np.ndarray, at_ns: np.ndarray) -> np.ndarray:
    """At each moment, the weighted time that has passed within the stretches from_ns to until_ns, all added up."""
    return _past(from_ns, weights, at_ns) - _past(until_ns, weights, at_ns)


def _past(from_ns: np.ndarray, weights: np.ndarray, at_ns: np.ndarray) -> np.ndarray:
    order = np.argsort(from_ns, kind="stable")
    begun, moments = (np.concatenate([[0.0], np.cumsum(of[order])]) for of in (weights, weights * from_ns))
    count = np.searchsorted(from_ns[order], at_ns, side="right")
    return begun[count] * at_ns - moments[count]


def by_head(table: Timetable) -> Groups:
    """What each batch · head took."""
    return _grouped(table, table.head)


def by_block(table: Timetable) -> Groups:
    """What each query block took, all heads together; WHOLE_HEAD where a program is a whole head."""
    return _grouped(table, table.block)


def _grouped(table: Timetable, of: np.ndarray) -> Groups:
    keys, group = np.unique(of, return_inverse=True)
    first_ns, last_ns, longest_ns = np.full(keys.size, np.inf), np.full(keys.size, -np.inf), np.zeros(keys.size)
    np.minimum.at(first_ns, group, table.start_ns)
    np.maximum.at(last_ns, group, table.end_ns)
    np.maximum.at(longest_ns, group, table.duration_ns)
    entries, tiles = np.bincount(group), np.bincount(group, table.tiles)
    total_ns = np.bincount(group, table.duration_ns)
    return Groups(
        keys, entries, tiles.astype(np.int64), total_ns, total_ns / entries, longest_ns, first_ns, last_ns,
        np.where(tiles > 0, total_ns / np.maximum(tiles, 1), np.nan),
    )  # fmt: skip


def overhead_share(schedule: Schedule) -> float:
    """What stamping costs: the median of stamped ÷ plain launch over the pairs − 1; it may be negative, by noise."""
    return float(np.median(schedule.stamped_ms.numpy() / schedule.plain_ms.numpy())) - 1


def is_distorted(schedule: Schedule) -> bool:
    """Whether stamping took so long that what the stamps show is not what the kernel does without them."""
    return overhead_share(schedule) > MOST_OVERHEAD_SHARE


# In words


def time_of(ns: float) -> str:
    """A stretch of a timetable: '2.12 ms', '131 µs', '224 ns'."""
    return f"{three_digits(ns)} ns" if abs(ns) < _LEAST_IN_US_NS else milliseconds(ns / 1e6)


def sentences(facts: ScheduleFacts, time: Callable[[float], str] = time_of) -> tuple[str, ...]:
    """The facts in plain words, the most telling one first: that one can be a page's title.

    time writes a duration given in ns; another one than time_of where a model counts in tiles.
    """
    losses = sorted(_losses(facts, time), reverse=True)
    told = [sentence for share, sentence in losses if share >= _WORTH_TELLING]
    return (*told, _busy(facts), _balance(facts, time))


def _losses(facts: ScheduleFacts, time: Callable[[float], str]) -> Iterator[tuple[float, str]]:
    """(share of the device's time, what took it)."""
    idle, every = facts.idle, facts.sm_count
    if facts.sms_used < every:
        if facts.programs >= every:
            why = f"{facts.programs:,} programs did not reach the rest"
        else:
            what = "one a head, with all its query blocks" if facts.whole_heads else "fewer than SMs"
            why = f"there {_are(facts.programs, 'program')}, {what}"
        yield idle.unused, f"{facts.sms_used} of {every} SMs worked: {why}."
    tail = f"The first SM was out of work {time(facts.tail_ns)} before the end"
    yield idle.tail, f"{tail}: the tail took {percent(idle.tail)} of the SMs' time."
    yield idle.start, f"SMs waited for their first program {percent(idle.start)} of the time."
    yield idle.between, f"SMs stood empty between two programs {percent(idle.between)} of the time."


def _busy(facts: ScheduleFacts) -> str:
    if facts.sms_used == facts.sm_count:
        return f"All {facts.sm_count} SMs worked, {percent(facts.busy_share)} of the time."
    used = f"{facts.sms_used} of {facts.sm_count} SMs worked"
    return f"{used}; over all of them, an SM was busy {percent(facts.busy_share)} of the time."


def _balance(facts: ScheduleFacts, time: Callable[[float], str]) -> str:
    more = percent(facts.over_balanced - 1)
    return f"Perfect balance would have taken {time(facts.balanced_ns)}; this took {time(facts.span_ns)}, {more} more."


def _are(count: int, what: str) -> str:
    return f"was 1 {what}" if count == 1 else f"were {count:,} {what}s"
