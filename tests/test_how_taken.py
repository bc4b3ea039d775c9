"""Every number that a result shows has its provenance, its unit, and a sentence that says how it was taken."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from app import flag_words, how_taken, look, metric
from app.figures.style import LIGHT, Chart
from app.html_parts import parts
from app.metric import Figure
from app.result_facts import charts
from app.views import run_metrics
from profiling import flags
from profiling.record_types import Array
from profiling.records import Accuracy, Energy, Flag, Latency, Measurement
from profiling.snapshot import read
from tests import records_for_tests as records

GALLERY = [Path(__file__).parents[1] / f"app/gallery/{name}.json" for name in ("01-16k-causal", "03-fp8-16k-causal")]
NUMBER = re.compile(r"(?<![A-Za-z])\d")  # not the one of FP8, L2, q3
PROVENANCES = {"measured", "interpreted", "compiled", "modelled"}


def warm(median_ms: float = 1.9) -> Latency:
    samples = median_ms * (1 + 0.002 * np.random.default_rng(5).standard_normal(100))
    return Latency(
        provenance="measured", mode="warm", samples_ms=Array.of(samples), round_of=Array.of(np.repeat(range(5), 20), "<i4"),
        launches_per_sample=12, stopped="settled",
    )  # fmt: skip


def rich(kernel: str = "v3", **changes: object) -> Measurement:
    """A measurement with everything that can be asked for."""
    cold = records.latency(2.02).model_copy(update={"stopped": "settled", "exposed": 3, "outputs_checked": 7})
    memory = records.memory(records.LONG, 65 << 20).model_copy(
        update={"out_bytes": 64 << 20, "lse_bytes": 1 << 20, "workspace_bytes": 0, "nvml_used_peak_bytes": 2 << 30}
    )
    energy = Energy(launches=600, busy_s=1.21, window_s=1.02, energy_mj=640_000.0, sampled_mj=655_000.0)
    return records.on_gpu(kernel, **{"latency": cold, "warm": warm(), "memory": memory, "energy": energy, **changes})


def not_finite() -> Accuracy:
    changes = {"relative_error": None, "max_abs_error": None, "non_finite": 12, "missing": {"relative_error": "12 are NaN"}}
    return records.accuracy(passed=False).model_copy(update=changes)


@cache
def every_kind() -> list[Measurement]:
    without = records.memory(records.LONG, None).model_copy(update={"provenance": "measured"})
    return [
        records.on_gpu(),
        records.on_gpu(fp8=True),
        records.on_gpu(passed=False),
        records.in_interpreter(),
        records.in_interpreter("native", passed=False),
        rich(),
        rich("native", missing={"warm": "the graph could not be captured"}, warm=None, memory=without),
        rich(energy=Energy(launches=5, busy_s=1.0, window_s=None, energy_mj=None, missing={"energy_mj": "no counter here"})),
        records.on_gpu(accuracy=records.accuracy(passed=False).model_copy(update={"rows_checked": 5}), latency=None),
        records.on_gpu(memory=None, latency=None, accuracy=None),
        records.with_backward(gradients=records.gradients(heads_checked=3)),
        records.with_backward("native", "backward"),
        records.with_backward(interpreted=True),
        records.with_backward(passed=False),
        records.on_gpu(accuracy=not_finite(), latency=None),
        *(one for path in GALLERY for one in read(path.read_bytes()).measurements if one.error is None),
    ]


def untold(text: str, figures: tuple[Figure, ...]) -> str:
    """What is left of a text once its numbers that are explained, and reasons why there is none, are taken out."""
    kept = "\n".join(re.sub(r"n/a: .*", "", line) for line in text.splitlines())
    for figure in sorted(figures, key=lambda one: -len(one.text)):
        kept = kept.replace(figure.text, "")
    return kept


def test_every_number_at_the_top_says_how_it_was_taken() -> None:
    for one in (one for measurement in every_kind() for one in run_metrics.metrics(measurement)):
        left = untold(f"{one.label}\n{one.value}\n{one.notes}", one.figures)
        assert not NUMBER.search(left), f"{one.label}: {left!r} has a number that how_taken does not explain"
        for figure in one.figures:
            assert figure.provenance in PROVENANCES
            assert figure.unit
            assert re.fullmatch(r"[^a-z\s].*\.", figure.sentence, re.S), figure.sentence
            assert figure.text in f"{one.value}\n{one.notes}"
        if NUMBER.search(one.value):
            assert one.figures[0].text == one.value, "the provenance beside the label is the value's"


def test_a_number_without_an_entry_cannot_be_shown() -> None:
    with pytest.raises(KeyError):
        how_taken.figure("a number nobody explained", "7", records.on_gpu(), "measured")


def test_no_entry_is_left_over() -> None:
    shown = {figure.what for one in every_kind() for it in run_metrics.metrics(one) for figure in it.figures}
    assert shown == {kind.what for kind in how_taken.KINDS.values()}


def test_the_app_and_the_exported_page_say_the_same_of_each() -> None:
    found = run_metrics.metrics(rich())
    for page in (parts.metrics(found), metric.html_of(found, look._sign)):
        for figure in (figure for one in found for figure in one.figures):
            assert figure.sentence.replace("'", "&#x27;").replace("<", "&lt;") in page
        assert page.count("fs-provenance") == len(found)
    rows = metric.table_of(found)
    assert [row["value"] for row in rows] == [figure.text for one in found for figure in one.figures]


def test_cold_and_warm_are_two_numbers_of_two_names() -> None:
    found = {one.label: one for one in run_metrics.metrics(rich())}
    assert found["Latency, L2 cold"].value == "2.02 ms"
    assert "stopped: the noise has settled" in found["Latency, L2 cold"].notes
    assert found["Latency, L2 warm"].value == "1.90 ms"
    assert "12 launches" in found["Latency, L2 warm"].figures[0].sentence
    assert "Latency, L2 warm" not in {one.label for one in run_metrics.metrics(records.on_gpu())}, "an older file has none"
    without = {one.label: one for one in run_metrics.metrics(rich(warm=None, missing={"warm": "no graph"}))}
    assert without["Latency, L2 warm"].notes == "n/a: no graph"


def test_energy_is_the_average_power_times_a_launch() -> None:
    one = next(it for it in run_metrics.metrics(rich()) if it.label == "Energy per launch")
    assert one.value == "1.27 J"  # 640 J in 1.02 s, and 1.21 s for 600 launches
    assert "627 W over 1.02 s, 600 launches" in one.notes
    assert "sampled power differs by +2.34 %" in one.notes


def test_a_caution_stands_beside_its_number_and_nowhere_else() -> None:
    capped = Flag(name="power cap", severity="caution", short="power cap", sentence="The clocks were held down.")
    well = Flag(name="alone", severity="ok", short="alone on the GPU", sentence="Nobody else.")
    odd = Flag(name="from a newer version", severity="caution", short="odd", sentence="Something.")
    one = records.on_gpu(flags=(capped, well, odd))
    beside = {it.label: [short for _, short, _ in it.flags] for it in run_metrics.metrics(one)}
    assert beside["Latency, L2 cold"] == ["power cap"]
    assert sum(map(len, beside.values())) == 1
    above = [short for _, short, _ in run_metrics.chips_above(one, "unsaved")]
    assert above[1:] == ["alone on the GPU", "odd"]
    ((_, _, sentence),) = next(it.flags for it in run_metrics.metrics(one) if it.flags)
    assert sentence.startswith("The clocks were held down. ")
    assert len(sentence) > len(capped.sentence) + 20, "what to do stands behind what was seen"


def cautions() -> set[str]:
    """The names of all flags in profiling that are cautions or worse."""
    found = set(flags.HELD_DOWN)
    for path in Path(flags.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Flag":
                said = {one.arg: one.value.value for one in node.keywords if isinstance(one.value, ast.Constant)}
                if said.get("severity") in flag_words.BESIDE and "name" in said:
                    found.add(said["name"])
    return found


def test_each_caution_has_its_place_and_something_to_do() -> None:
    of_no_number = {"no schedule", "distorted schedule", "crowded SM", "no trace", "trace does not agree", "does not fit"}
    known = cautions()
    assert len(known) > 15
    for name in known - of_no_number:
        flag = Flag(name=name, severity="caution", short=name, sentence="Seen.")
        assert flag_words.about(flag) is not None, f"{name} is beside no number: app.flag_words"
        assert flag_words.what_to_do(flag).endswith(".")
        assert flag_words.what_to_do(flag.model_copy(update={"severity": "ok"})) == ""


def test_a_time_that_its_launches_contradict_is_none_and_says_so() -> None:
    stale = Flag(name="stale output", severity="bad", short="stale output", sentence="7 of 20 outputs were not fresh.")
    one = next(it for it in run_metrics.metrics(records.on_gpu(latency=None, flags=(stale,))) if it.label == "Latency, L2 cold")
    assert (one.value, one.notes) == ("–", "contradicted by what was seen")
    assert [short for _, short, _ in one.flags] == ["stale output"]


def unexplained(chart: Chart) -> list[str]:
    """The numbers in a table for which neither their column nor their row has a sentence."""
    found = []
    for row in chart.table:
        (_, first), *rest = row.items()
        has_how = "how" in row or "reading" in row
        numbers = [name for name, cell in rest if re.search(r"\d", cell)]
        found += [name for name in numbers if not (name in chart.explained or first in chart.explained or has_how)]
    return found


@pytest.mark.parametrize(
    "measurement", [rich(), records.on_gpu("native"), records.in_interpreter()], ids=["rich", "gpu", "cpu"]
)
def test_every_number_behind_a_chart_says_how_it_was_taken(measurement: Measurement) -> None:
    found = charts([measurement, records.on_gpu("v2")] if measurement.tflops else [measurement], measurement, LIGHT)
    drawn = [one for one in (*found.first, *found.rest) if isinstance(one, Chart)]
    assert drawn
    for chart in drawn:
        assert chart.provenance in PROVENANCES
        assert chart.caption.endswith(".")
        assert unexplained(chart) == [], chart.title
