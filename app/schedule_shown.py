"""A timetable as it is shown, with what it is of; and its numbers in words. Pure: the app and the exported page share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from app.lanes.payload import LaneFacts
from app.schedule_choices import work_of
from app.views.run_metrics import Origin
from profiling import schedule_facts, what_if, words
from profiling.list_scheduling import Machine
from profiling.records import DeviceFacts, Measurement, RunRequest
from profiling.schedule_facts import ScheduleFacts
from profiling.schedule_record import MOST_SMS, WHOLE_HEAD, Schedule
from profiling.timetable import Timetable
from profiling.what_if import Work

MOST_ROWS = 500
NS_PER_TILE = 1000.0
"""What a key tile counts where there are no times: any number would do, as times are then told in tiles."""

Metric = tuple[str, str, str, str]


@dataclass(frozen=True)
class Shown:
    """label: 'v2'. device: the GPU's short name. measurement: whose schedule it is; None: modelled from tile counts.

    reference: by which the app finds the job that the measurement belongs to; origin: where the measurement comes from.
    """

    label: str
    request: RunRequest
    device: str
    machine: Machine
    measurement: Measurement | None = None
    reference: str = ""
    origin: Origin = "file"

    @staticmethod
    def of(measurement: Measurement, origin: Origin = "file", reference: str = "") -> Shown:
        """What a measurement stamped; its request names the tiles that it had."""
        schedule, device = measurement.schedule, measurement.environment.device
        seen, told = int(schedule.sm.numpy().max()) + 1, device.sm_count or 0
        return Shown(
            measurement.label,
            measurement.request.model_copy(update={"tiles": measurement.tiles}),
            device.short_name,
            Machine(max(seen, told if told <= MOST_SMS else 0), schedule.programs_per_sm),  # a file can claim any number
            measurement,
            reference,
            origin,
        )

    @staticmethod
    def modelled(label: str, request: RunRequest, device: DeviceFacts, programs_per_sm: int) -> Shown:
        """What tile counts alone make of a request on a GPU. Raises ValueError, in one sentence, for what cannot be."""
        # Who deals its blocks out has one program an SM, whatever would fit.
        machine = Machine(device.sm_count, 1 if work_of(request).is_dealt else programs_per_sm)
        return Shown(label, request, device.name.removeprefix("NVIDIA "), machine)

    @property
    def table(self) -> Timetable:
        """Who ran where and when."""
        if self.measurement is not None:
            return _measured(self.measurement.schedule, self.machine.sm_count)
        return modelled(work_of(self.request), self.machine)

    @property
    def facts(self) -> ScheduleFacts:
        """Its numbers."""
        if self.measurement is not None:
            return _measured_facts(self.measurement.schedule, self.machine)
        return _modelled_facts(work_of(self.request), self.machine)

    @property
    def has_times(self) -> bool:
        """Whether its times are times; from tile counts alone they are tiles."""
        return self.measurement is not None

    @property
    def name(self) -> str:
        """How the lanes name it: 'v2 · 128 × 128, 8 warps, 3 stages, natural order'."""
        return f"{self.label} · {self.request.tiles.title}"

    def time(self, ns: float) -> str:
        """A time of its own in words: '259 µs', or '17 tiles'."""
        if self.has_times:
            return schedule_facts.time_of(ns)
        tiles = ns / NS_PER_TILE
        return f"{words.three_digits(tiles)} tile{'' if round(tiles, 2) == 1 else 's'}"

    def lane_facts(self, can_open: bool) -> LaneFacts:
        """What the lanes' labels say."""
        problem = self.request.problem
        return LaneFacts(
            title=problem.title,
            device=self.device,
            num_heads=problem.num_heads,
            block_m=self.request.tiles.block_m,
            seq_len_q=problem.seq_len_q,
            can_open=can_open,
            ns_per_tile=None if self.has_times else NS_PER_TILE,
        )


# Pages are drawn over and over, and these take some tens of milliseconds.
_cached = lru_cache(maxsize=16)


@_cached
def _measured(schedule: Schedule, sm_count: int) -> Timetable:
    return Timetable.of(schedule, sm_count)


@_cached
def modelled(work: Work, machine: Machine) -> Timetable:
    """A timetable from tile counts alone, NS_PER_TILE each."""
    return what_if.from_tile_counts(work, machine, NS_PER_TILE)


@_cached
def _measured_facts(schedule: Schedule, machine: Machine) -> ScheduleFacts:
    return schedule_facts.facts_of(_measured(schedule, machine.sm_count), machine.programs_per_sm)


@_cached
def _modelled_facts(work: Work, machine: Machine) -> ScheduleFacts:
    return schedule_facts.facts_of(modelled(work, machine), machine.programs_per_sm)


def metrics(shown: Shown) -> list[Metric]:
    """The numbers that matter, as (label, value, notes by line, kind)."""
    facts = shown.facts
    numbers = [
        ("First start to last end", shown.time(facts.span_ns), f"perfect balance {shown.time(facts.balanced_ns)}, "
         f"this is {words.ratio(facts.over_balanced)}", ""),
        ("SMs that worked", f"{facts.sms_used} of {facts.sm_count}", _residency(facts), ""),
        ("Waves", words.three_digits(facts.waves), f"{facts.programs:,} program{'s' if facts.programs > 1 else ''} over "
         f"{facts.slots:,} places", ""),
        ("SMs busy", words.percent(facts.busy_share), _idle(facts), ""),
        ("Tail", shown.time(facts.tail_ns), f"{words.percent(_share(facts.tail_ns, facts.span_ns))} of the span, from the "
         "first SM out of work", ""),
        ("Longest program", shown.time(facts.longest_ns), f"busiest SM {words.ratio(facts.imbalance)} the mean", ""),
    ]  # fmt: skip
    return numbers + _warpgroups(shown) + _clockwork(shown)


def _residency(facts: ScheduleFacts) -> str:
    at_once = "1 program fits on one" if facts.programs_per_sm == 1 else f"{facts.programs_per_sm} programs fit on one"
    return at_once if facts.provenance == "modelled" else f"{at_once}, {facts.most_at_once} at once seen"


def _idle(facts: ScheduleFacts) -> str:
    """Where the rest went, the largest first, what rounds to nothing left out."""
    names = {"unused": "never used", "start": "before the first", "between": "between programs", "tail": "tail"}
    shares = sorted(((getattr(facts.idle, name), said) for name, said in names.items()), reverse=True)
    told = [f"{said} {words.percent(share)}" for share, said in shares if share >= 0.0005]
    return f"idle: {', '.join(told)}" if told else "of all SMs, the whole time"


def _warpgroups(shown: Shown) -> list[Metric]:
    """How a program's warpgroups keep step, where they stamp for themselves."""
    found = schedule_facts.warpgroups_of(shown.measurement.schedule) if shown.measurement is not None else None
    if found is None:
        return []
    notes = f"{found.consumers} end a block, in the median\nproducer done {shown.time(found.ahead_ns)} before"
    return [("Warpgroups apart", shown.time(found.apart_ns), notes, "")]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _clockwork(shown: Shown) -> list[Metric]:
    """What stamping cost and how coarse the clock is; nothing where nothing was stamped."""
    if shown.measurement is None:
        return []
    schedule = shown.measurement.schedule
    share = schedule_facts.overhead_share(schedule)
    plain, stamped = (float(np.median(one.numpy())) for one in (schedule.plain_ms, schedule.stamped_ms))
    is_distorted = schedule_facts.is_distorted(schedule)
    notes = f"{words.milliseconds(stamped)} against {words.milliseconds(plain)}"
    return [
        ("Stamping costs", words.percent(share), notes + ("\ndistorted: do not rely on it" if is_distorted else ""),
         "refused" if is_distorted else ""),
        ("Clock step", f"± {schedule.tick_ns:,} ns", "the error of every start and end", ""),
    ]  # fmt: skip


def caption(shown: Shown) -> str:
    """How it was taken."""
    if shown.measurement is None:
        how = "programs go in their order to whoever has room."
        if work_of(shown.request).is_dealt:
            how = "the kernel deals its blocks out beforehand, one program an SM."
        return (
            f"From tile counts alone, {shown.machine.sm_count} SMs as on {shown.device} with room for "
            f"{shown.machine.programs_per_sm} at once: every key tile takes equally long, nothing else takes any time, and "
            f"{how} Times are in key tiles."
        )
    who = "every program wrote down its SM, and the GPU’s clock before its first load and after its last store"
    if shown.measurement.schedule.group_start_ns is not None:
        who = (
            "every warpgroup wrote down its SM, and the GPU’s clock when it began a block and after it stored its part; "
            "a block begins with its first warpgroup, or where the program’s block before ends, and ends with its last"
        )
    return (
        f"One launch of {shown.label} on {shown.device}, {shown.request.tiles.title}: {who}. The clock moves in steps of "
        f"{shown.table.tick_ns:,} ns. No launch that is timed is stamped."
    )


def rows(shown: Shown, most: int = MOST_ROWS) -> list[dict[str, str]]:
    """The pieces of work in order of their start, `most` at most: the table behind the lanes."""
    table = shown.table
    order = np.lexsort((table.program, table.start_ns))[:most]
    return [
        {
            "head": f"{table.head[i]}",
            "query block": "all" if table.block[i] == WHOLE_HEAD else f"{table.block[i]}",
            "program": f"{table.program[i]:,}",
            "SM": f"{table.sm[i]}",
            "start": shown.time(table.start_ns[i]),
            "end": shown.time(table.end_ns[i]),
            "took": shown.time(table.end_ns[i] - table.start_ns[i]),
            "key tiles": f"{table.tiles[i]:,}",
            **_stays_of_groups(shown, table, i),
        }
        for i in order
    ]


def _stays_of_groups(shown: Shown, table: Timetable, entry: int) -> dict[str, str]:
    """From when to when each warpgroup was at an entry, where they stamp for themselves."""
    if table.group_start_ns is None or table.group_end_ns is None:
        return {}
    starts, ends = table.group_start_ns[entry], table.group_end_ns[entry]
    names = [*(f"warpgroup {place}" for place in range(len(starts) - 1)), "producer"]
    return {name: f"{shown.time(start)} – {shown.time(end)}" for name, start, end in zip(names, starts, ends, strict=True)}


def title(shown: Shown) -> str:
    """The version and the result in words: 'v1 key-outer: 16 of 132 SMs worked: …'."""
    said = schedule_facts.sentences(shown.facts, shown.time)[0].removesuffix(".")
    return f"{shown.label}: {said[0].lower()}{said[1:]}"


def with_schedule(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Those that say where their programs ran."""
    return [one for one in measurements if one.schedule is not None]
