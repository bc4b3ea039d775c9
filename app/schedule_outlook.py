"""What another order, grid, GPU or tile size would do to a timetable that is shown, beside what it did where it ran. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from app.schedule_choices import AS_IT_RAN, IF_DEFAULTS, changed, gpu_of, has_orders, is_same_launch, work_of
from app.schedule_shown import Shown, modelled
from kernels.block_order import chosen_order
from kernels.problem import BLOCK_ORDER_WORDS
from profiling import what_if, words
from profiling.list_scheduling import Machine
from profiling.records import RunRequest
from profiling.schedule_record import Schedule
from profiling.timetable import Timetable
from profiling.what_if import SM_COUNTS, Prediction, Work

MOST_AT_A_GLANCE = 8192
Find = Callable[[RunRequest], Shown | None]
"""The schedule of a request where it has run on the GPU in question, None where it has not."""


@dataclass(frozen=True)
class Outlook:
    """One what-if: its name, the request that it is, on which GPU; its modelled timetable; what came of it where it ran.

    prediction: with its errors, where the model stands on measured durations; None from tile counts. gpu: another GPU's name,
    None for the same.
    """

    name: str
    request: RunRequest
    gpu: str | None
    table: Timetable
    prediction: Prediction | None
    measured: Shown | None

    def gain(self, shown: Shown) -> float:
        """Modelled span ÷ the span that is shown − 1."""
        return self.table.span_ns / shown.table.span_ns - 1

    @property
    def error(self) -> float | None:
        """What the model turned out to be off by: modelled ÷ measured − 1, where it ran."""
        return self.table.span_ns / self.measured.table.span_ns - 1 if self.measured is not None else None


def outlook(shown: Shown, values: dict[str, str], find: Find) -> Outlook:
    """What the what-if fields ask for. Raises ValueError, in one sentence, for what is not possible."""
    gpu = None if values["if_gpu"] == AS_IT_RAN else gpu_of(values["if_gpu"])
    return _outlook(shown, changed(shown.request, values), gpu, _name(values, shown), find)


def usual(shown: Shown) -> dict[str, dict[str, str]]:
    """Every other order of blocks, and a persistent grid that fills the GPU: by name, the what-if fields that ask for it.

    Nothing for a version that has no such choice.
    """
    if not has_orders(shown.request.kernel):
        return {}
    asked = [{"if_order": order} for order in BLOCK_ORDER_WORDS if order != "default"]
    asked.append({"if_programs": str(shown.facts.slots)})
    every = [IF_DEFAULTS | fields for fields in asked]
    others = [values for values in every if not is_same_launch(shown.request, changed(shown.request, values))]
    return {_name(values, shown): values for values in others}


def at_a_glance(shown: Shown, find: Find) -> list[Outlook]:
    """The usual ones, modelled; nothing where there are so many pieces of work that it would take seconds."""
    if len(shown.table.sm) > MOST_AT_A_GLANCE:
        return []
    return [outlook(shown, values, find) for values in usual(shown).values()]


def is_asked(values: dict[str, str]) -> bool:
    """Whether anything is to be other than it ran."""
    return any(value != AS_IT_RAN for value in values.values())


def sentence(shown: Shown, found: Outlook) -> str:
    """The prediction in words, how far to trust it, and what came of it where it ran."""
    span, change = shown.time(found.table.span_ns), found.gain(shown)
    ran = "it took" if shown.has_times else "without the change"
    against = "as long as" if abs(change) < 0.0005 else f"{words.percent(abs(change))} {'more' if change > 0 else 'less'} than"
    said = f"would take {span}, {against} the {shown.time(shown.table.span_ns)} {ran}."
    if found.measured is not None:
        said += (
            f" Measured: {found.measured.time(found.measured.table.span_ns)}, so the prediction was off by "
            f"{words.signed_percent(found.error)}."
        )
    return said


def trust(shown: Shown, found: Outlook) -> str:
    """What a prediction stands on, and its error where that can be told."""
    if found.prediction is None:
        return "From tile counts alone: every key tile takes equally long, nothing else takes any time."
    low, high = (shown.time(span) for span in (found.prediction.low_ns, found.prediction.high_ns))
    return (
        f"By how durations scatter, {low} to {high}. Replaying the launch as it ran, the model is off by "
        f"{words.signed_percent(found.prediction.own_error_share)}. {found.prediction.because}"
    )


def rows(shown: Shown, found: list[Outlook]) -> list[dict[str, str]]:
    """What is shown and the what-ifs: modelled, against what is shown, measured where it ran, what the model was off by."""
    as_it_ran = _outlook(shown, shown.request, None, f"{AS_IT_RAN}: {_order_words(shown)}", lambda request: shown)
    listed = [
        {
            "what if": one.name,
            "modelled": shown.time(one.table.span_ns),
            "against as it ran": words.signed_percent(one.gain(shown)),
            "measured": shown.time(one.measured.table.span_ns) if one.measured is not None else "not run",
            "model is off by": words.signed_percent(one.error) if one.error is not None else "–",
        }
        for one in (as_it_ran, *found)
    ]
    balanced = shown.facts.balanced_ns
    listed.append(
        {
            "what if": "perfect balance",
            "modelled": shown.time(balanced),
            "against as it ran": words.signed_percent(balanced / shown.table.span_ns - 1),
            "measured": "not a run",
            "model is off by": "–",
        }
    )
    return listed if shown.has_times else [{name: row[name] for name in list(row)[:3]} for row in listed]


def _order_words(shown: Shown) -> str:
    tiles = shown.request.tiles
    if tiles.loop_order == "key":
        return "a head a program"
    if work_of(shown.request).is_dealt:
        return "dealt out by the kernel"
    order = BLOCK_ORDER_WORDS[chosen_order(shown.request.problem, tiles) if has_orders(shown.label) else "natural"]
    return order if tiles.num_programs is None else f"{order}, {tiles.num_programs:,} persistent programs"


def _outlook(shown: Shown, request: RunRequest, gpu: str | None, name: str, find: Find) -> Outlook:
    machine = shown.machine if gpu is None else replace(shown.machine, sm_count=SM_COUNTS[gpu])
    if shown.measurement is None:
        return Outlook(name, request, gpu, modelled(work_of(request), machine), None, None)
    prediction = _predicted(shown.measurement.schedule, work_of(shown.request), work_of(request), shown.machine, machine)
    return Outlook(name, request, gpu, prediction.table, prediction, None if gpu is not None else find(request))


@lru_cache(maxsize=16)  # a page is drawn over and over, and this takes a tenth of a second and more
def _predicted(schedule: Schedule, was: Work, now: Work, measured_on: Machine, machine: Machine) -> Prediction:
    return what_if.predict(Timetable.of(schedule, measured_on.sm_count), was, now, measured_on, machine)


def _name(values: dict[str, str], shown: Shown) -> str:
    """'Heaviest first, 132 persistent programs, on an H100 PCIe'."""
    parts = []
    if values["if_order"] != AS_IT_RAN:
        parts.append(BLOCK_ORDER_WORDS[values["if_order"]])
    if values["if_programs"] != AS_IT_RAN:
        programs = changed(shown.request, values).tiles.num_programs
        parts.append("one program a block" if programs is None else f"{programs:,} persistent programs")
    sizes = [values[name] for name in ("if_rows", "if_columns")]
    if sizes != [AS_IT_RAN, AS_IT_RAN]:
        tiles = changed(shown.request, values).tiles
        parts.append(f"tiles of {tiles.block_m} × {tiles.block_n}")
    if values["if_gpu"] != AS_IT_RAN:
        parts.append(f"on {values['if_gpu']}")
    return ", ".join(parts) or AS_IT_RAN
