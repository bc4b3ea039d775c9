"""Differences: no field of the records is forgotten, values are what the records hold, hostile ones break nothing."""

from __future__ import annotations

import typing
from types import NoneType, UnionType

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from kernels.problem import TileConfig
from profiling.differences import ENVELOPE, FIELDS, LEFT_OUT, NOTHING, REPORT, Row, as_cells, differences, shown_paths
from profiling.record_types import Array
from profiling.records import CompileReport, Flag, Latency, Measurement
from profiling.snapshot import Snapshot
from tests import records_for_tests as records


def leaves(model: type[BaseModel], start: str = "") -> set[str]:
    """The paths to everything in a record that is no record itself; an array is one thing."""
    found: set[str] = set()
    for name, field in model.model_fields.items():
        inner = record_in(field.annotation)
        found |= {f"{start}{name}"} if inner is None else leaves(inner, f"{start}{name}.")
    return found


def record_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return None if annotation is Array else annotation
    if typing.get_origin(annotation) in (typing.Union, UnionType, tuple, typing.Annotated):
        parts = [part for part in typing.get_args(annotation) if part not in (NoneType, Ellipsis)]
        return next((found for part in parts if (found := record_in(part)) is not None), None)
    return None


def covered(path: str, by: set[str]) -> bool:
    return any(path == one or path.startswith(f"{one}.") for one in by)


def test_every_field_of_the_records_is_shown_or_left_out_for_a_reason() -> None:
    every = leaves(Measurement) | {path for path in leaves(Snapshot) if not path.startswith("measurements.")} | {"measurements"}
    assert {"request.problem.seq_len_q", "environment.device.l2_bytes", "compiled.spill_bytes", "title"} <= every, (
        "the walk works"
    )
    known = shown_paths() | set(LEFT_OUT)
    forgotten = {path for path in every if not path.endswith("missing") and not covered(path, known)}
    assert not forgotten, "give each a row in FIELDS, REPORT or ENVELOPE, or a reason in LEFT_OUT"


def test_nothing_is_shown_that_no_record_has() -> None:
    every = leaves(Measurement) | leaves(Snapshot) | {"id", "measurements", "tflops", "tflops_with_prepass"}
    every |= {"energy.per_launch_mj", "energy.mean_w"}
    known = {*LEFT_OUT, *(entry.path for entry in FIELDS), *(f"compiled.{entry.path}" for entry in REPORT)}
    known |= {entry.path for entry in ENVELOPE}
    stale = {path for path in known if not any(one == path or one.startswith(f"{path}.") for one in every)}
    assert not stale


def test_no_two_rows_have_one_name() -> None:
    for fields in (FIELDS, REPORT, ENVELOPE):
        names = [entry.words for entry in fields]
        assert len(names) == len(set(names))


def rows(a: Measurement, b: Measurement) -> dict[str, Row]:
    return {row.field: row for row in differences(a, b).rows}


def test_equal_measurements_differ_in_nothing() -> None:
    found = differences(records.on_gpu(), records.on_gpu())
    assert found.differing == ()
    assert len(found.equal) > 60
    assert all(row.a == row.b and not row.change for row in found.equal)


def test_values_and_changes_are_those_of_the_records() -> None:
    before, after = (
        records.on_gpu("v2"),
        records.on_gpu("v3", tiles=TileConfig(block_m=64, block_n=128, num_warps=4, num_stages=2)),
    )
    found = rows(before, after)
    assert (found["version"].a, found["version"].b, found["version"].change) == ("v2", "v3", "")
    assert (found["warps"].a, found["warps"].b, found["warps"].change) == ("8", "4", "−4")
    assert found["stages"].change == "−1"
    assert found["BLOCK_N"].differs is False
    median = found["median latency"]
    assert (median.a_value, median.b_value) == (before.latency.median_ms, after.latency.median_ms)
    assert median.change == f"{after.latency.median_ms / before.latency.median_ms:.3f}× the time"
    assert found["throughput"].change == f"+{after.tflops - before.tflops:.1f} TFLOP/s"
    assert found["launches timed"].a == "300"
    assert found["rounds"].a == "5"


def test_samples_are_summarised_by_quantiles() -> None:
    latency = Latency(
        provenance="measured",
        mode="cold",
        samples_ms=Array.of([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        round_of=Array.of([0, 0, 1, 1, 2, 2], "<i4"),
    )
    found = rows(records.on_gpu(latency=latency), records.on_gpu())
    assert [found[name].a_value for name in ("median latency", "latency, min", "latency, q3", "launches timed", "rounds")] == [
        3.5,
        1.0,
        4.75,
        6,
        3,
    ]


def test_what_is_missing_has_its_reason_and_no_change() -> None:
    found = rows(records.on_gpu(), records.in_interpreter())
    assert found["NVIDIA driver"].b == f"{NOTHING} (there is no GPU here)"
    assert found["memory it adds"].b == f"{NOTHING} (the interpreter allocates on the CPU)"
    assert found["memory it adds"].change == ""
    assert found["throughput"].b == NOTHING


def test_what_neither_has_is_no_row() -> None:
    found = rows(records.on_gpu("v2"), records.on_gpu("v3"))
    assert "it failed" not in found
    assert "median with the FP8 pre-pass" not in found
    assert "median with the FP8 pre-pass" in rows(records.on_gpu("v2"), records.on_gpu("v3", fp8=True))


def test_a_failed_run_says_what_it_needed() -> None:
    found = rows(records.on_gpu(), records.failed())
    assert found["it failed"].b == "compile"
    assert (found["needed"].b, found["in"].b) == ("557,056", "bytes")
    assert found["tiles that work"].b == records.TILES.title


def report(kernel: str, **changes: object) -> CompileReport:
    return records.report().model_copy(update={"kernel": kernel, **changes})


def test_the_attention_kernels_reports_meet_and_the_pre_pass_has_rows_of_its_own() -> None:
    before = records.on_gpu("v2", compiled=(report("flash_v2", counts={"HGMMA": 32, "exp2": 8}),))
    after = records.on_gpu(
        "v3",
        fp8=True,
        compiled=(report("quantize_rows", spill_bytes=4), report("flash_v3", registers_per_thread=150, counts={"HGMMA": 24})),
    )
    found = rows(before, after)
    assert (found["registers a thread"].a, found["registers a thread"].b, found["registers a thread"].change) == (
        "168",
        "150",
        "−18",
    )
    assert (found["SASS: HGMMA"].a, found["SASS: HGMMA"].b) == ("32", "24")
    assert (found["SASS: exp2"].b, found["SASS: exp2"].change) == ("0", "−8")
    assert found["pre-pass quantize_rows"].a == NOTHING
    assert "4 bytes spilled" in found["pre-pass quantize_rows"].b
    assert rows(records.on_gpu("native"), before)["registers a thread"].a == NOTHING


def flag(name: str, short: str) -> Flag:
    return Flag(name=name, severity="info", short=short, sentence=f"{short}.")


def test_flags_that_answer_one_question_share_a_row() -> None:
    found = rows(
        records.on_gpu(flags=(flag("clock steady", "clock steady 1,965 MHz"), flag("new one", "never seen"))),
        records.on_gpu(flags=(flag("clock moved", "clock 1,710 to 1,965 MHz"),)),
    )
    assert (found["clock while it was timed"].a, found["clock while it was timed"].b) == (
        "clock steady 1,965 MHz",
        "clock 1,710 to 1,965 MHz",
    )
    assert (found["new one"].a, found["new one"].b) == ("never seen", NOTHING)


def test_the_envelopes_are_compared_where_they_are_given() -> None:
    first = records.recording(kernels=("v2",))
    second = records.recording(title="Another", kernels=("v2",))
    (a,), (b,) = first.measurements, second.measurements
    found = differences(a, b, first, second)
    assert {row.field for row in found.differing} == {"title", "id"}
    assert not any(row.group == "Snapshot" for row in differences(a, b).rows)


def test_groups_come_in_their_order() -> None:
    first = records.recording(kernels=("v2", "v3"))
    groups = [row.group for row in differences(*first.measurements, first, first).rows]
    assert list(dict.fromkeys(groups)) == ["Result", "Kernel", "Problem", "Compiled", "Environment", "Snapshot"]
    assert groups == sorted(groups, key=list(dict.fromkeys(groups)).index)


def test_cells_for_a_file_have_the_bare_values_too() -> None:
    row = as_cells(differences(records.on_gpu("v2"), records.on_gpu("v3")).rows)[1]
    assert (row["field"], row["differs"]) == ("median latency", "yes")
    assert row["A"].endswith("ms")
    assert row["A value"] == records.on_gpu("v2").latency.median_ms


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-3, 1e6), st.floats(0, 1e308), st.integers(0, 2**63 - 1), st.text(max_size=500))
def test_no_number_or_text_of_a_file_breaks_the_table(rate: float, error: float, whole: int, text: str) -> None:
    one = records.on_gpu()
    value = one.model_dump()
    value["environment"]["device"] |= {"peak_bf16_tflops": rate, "memory_bytes": whole, "peak_source": text}
    value["memory"] |= {"torch_added_bytes": whole, "missing": {"nvml_used_peak_bytes": text}}
    value["accuracy"] |= {"lse_max_abs_error": error, "allowed_lse_error": error, "allowed_because": text}
    value |= {"first_launch_ms": rate, "duration_s": rate}
    strange = Measurement.model_validate(value)
    for found in (differences(one, strange), differences(strange, one), differences(strange, strange)):
        assert all(row.a and row.b and len(row.a) < 800 for row in found.rows)
