"""What a result shows, in which order and in which words: for the app's pages and the exported page alike. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app import flag_words, programs
from app.compare_html import headline, interval
from app.figures import compiled, launches, memory, roofline, step, timeline, versions
from app.figures.style import Absent, Chart, Palette
from kernels.registry import VERSIONS
from profiling import direction, words
from profiling.improvements import labels
from profiling.own_inputs import inputs_of
from profiling.records import Measurement, RunRequest
from profiling.roofline import explained as roofline_words
from profiling.verdict import Verdict, verdict, warm_verdict

MOST_VERDICTS = 4
"""More than these make a list, which Compare has."""


def title(requests: Sequence[RunRequest]) -> str:
    """What ran: 'FlashAttention v3 · 16,384 tokens · head_dim 128 · causal · bf16', or how many versions did."""
    first = requests[0]
    alike = len({request.kernel for request in requests}) == 1
    what = version_title(first.kernel) if alike else f"{len(requests)} versions"
    what += f" with {len(requests)} settings" if alike and len(requests) > 1 else ""
    formats = dict.fromkeys(request.precision.title for request in requests)
    drawn = "" if first.inputs == "normal" else f" · {inputs_of(first)} inputs"
    timed = "".join(f" · {part}" for part in direction.title_part(first))
    return f"{what}{timed} · {first.problem.title} · {' and '.join(formats)}{drawn}"


def version_title(kernel: str) -> str:
    """A version's name for people."""
    return VERSIONS[kernel].title if kernel in VERSIONS else kernel


@dataclass(frozen=True)
class Charts:
    """A result's charts. first: versions and launches side by side, empty where versions have no chart but a table."""

    first: tuple[Chart | Absent, ...]
    rest: tuple[Chart, ...]
    absent: tuple[Absent, ...]


def charts(measurements: Sequence[Measurement], focus: Measurement, palette: Palette) -> Charts:
    """First versions and launches, as there are; then the other charts; then what is absent, and why."""
    name = next(name for name, one in zip(versions.names_of(measurements), measurements, strict=True) if one is focus)
    beside = versions.chart(measurements, name, palette)
    every = launches.chart(focus, palette)
    others = [one for one in measurements if one is not focus and one.error is None]
    split = step.chart([one for one in measurements if one.error is None], focus, palette)
    rest = [
        *([] if split is None else [split]),
        roofline.chart([one for one in measurements if one.error is None], focus.label, palette),
        memory.chart(focus, palette, others),
        timeline.chart(focus, palette),
        compiled.chart(focus, palette),
    ]
    first = (beside, every) if isinstance(beside, Chart) else ()
    if not first:
        rest.insert(0, every)
    missed = rest if len(measurements) > 1 else [beside, *rest]
    return Charts(
        first,
        tuple(chart for chart in rest if isinstance(chart, Chart)),
        tuple(chart for chart in missed if isinstance(chart, Absent)),
    )


def sentences(measurements: Sequence[Measurement], focus: Measurement) -> list[tuple[str, str]]:
    """What explains times, as (bold beginning, rest): where the focus stands below its GPU's ceilings, why others are slow."""
    stands = roofline_words(focus) if focus.error is None else None
    found = [(f"Where {focus.label} stands:", stands)] if stands is not None else []
    split = step.headline(focus)
    found += [("Of this training step", f"{split}.")] if split is not None else []
    found += [("", sentence) for sentence in direction.sentences(focus)]
    slow = [
        (f"Why is {one.label} slow?", f"{reason} Counted from its tiles.")
        for one in measurements
        for reason in programs.why_slow(one)
    ]
    return found + slow


def verdicts(measurements: Sequence[Measurement]) -> Iterator[tuple[str, str]]:
    """Where a job ran one version with several settings: each against the first, as (bold beginning, rest)."""
    if len(measurements) < 2 or len({(one.request.kernel, one.request.precision) for one in measurements}) > 1:
        return
    first, *others = measurements
    if len(others) > MOST_VERDICTS:
        return
    names = labels(measurements)
    for name, one in zip(names[1:], others, strict=True):
        yield _judged(f"{name} (B) against {names[0]} (A)", verdict(first, one, same_job=True))
        warm = warm_verdict(first, one, same_job=True)
        if warm is not None and warm.word is not None:
            yield _judged("With the L2 cache warm", warm)


def _judged(whom: str, found: Verdict) -> tuple[str, str]:
    return f"{whom}: {headline(found)}.", ". ".join(filter(None, (interval(found), found.sentence)))


def versions_provenance(measurements: Sequence[Measurement]) -> str:
    """How the versions' table was taken where they have no chart."""
    return "measured" if measurements[0].environment.device.kind == "gpu" else "interpreted"


def facts(measurement: Measurement) -> list[dict[str, str]]:
    """About a run: where and with what it was made, what error was allowed, and every flag's sentence."""
    environment, accuracy = measurement.environment, measurement.accuracy
    found = {
        "tiles": measurement.tiles.title if measurement.tiles else "none to choose",
        "timed": direction.EXPLAINED[measurement.request.direction],
        "inputs": inputs_of(measurement.request),
        "device": environment.device.name,
        "peak rates from": environment.device.peak_source or "not known for this model",
        "torch": environment.torch_version,
        "Triton": environment.triton_version or environment.missing.get("triton_version", "not installed"),
        "driver": environment.driver_version or environment.missing.get("driver_version", "not read"),
        "commit": environment.commit or environment.missing.get("commit", "not read"),
        "started": measurement.started_at,
        "took": words.seconds(measurement.duration_s),
        "allowed error": accuracy.allowed_because if accuracy else "not checked",
    }
    if measurement.request.direction == "forward":
        del found["timed"]
    if measurement.backward_tiles is not None:
        found["tiles of the backward"] = measurement.backward_tiles.title
    if measurement.gradients is not None:
        found |= {f"allowed error of {name}": one.allowed_because for name, one in measurement.gradients.named}
    if measurement.first_launch_ms is not None:
        found["first launch, untimed"] = words.milliseconds(measurement.first_launch_ms)
    flags = [(flag.short, flag_words.sentence(flag)) for flag in measurement.flags]
    return [{"what": name, "value": value} for name, value in [*found.items(), *flags]]
