"""The roofline: which ceilings count, where runs stand, and what the record shows of the rest; then its figure."""

from __future__ import annotations

import pytest

from app.figures import roofline as drawn
from app.figures.style import DARK, LIGHT, Absent
from kernels.problem import AttentionProblem, Precision, TileConfig
from profiling.records import DeviceFacts, Flag, Measurement
from profiling.roofline import explained, roof, standing
from profiling.schedule_facts import facts_of
from profiling.text_report import table
from profiling.tile_traffic import traffic
from profiling.timetable import Timetable
from profiling.words import percent
from tests import records_for_tests as records

L2 = 50 << 20


def device(**changes: object) -> DeviceFacts:
    return records.gpu().model_copy(update={"measured_bandwidth_bytes_per_s": 4e12, "measured_bf16_tflops": 800.0} | changes)


def ran(kernel: str = "v2", tflops: float = 400.0, on: DeviceFacts | None = None, **changes: object) -> Measurement:
    """A run of so many TFLOP/s on a full (not causal) 16k problem, unless a request says otherwise."""
    one = records.on_gpu(kernel)
    problem = changes.pop("problem", AttentionProblem(seq_len_q=16384, seq_len_kv=16384, head_dim=128))
    request = one.request.model_copy(update={"problem": problem, "precision": changes.pop("precision", Precision())})
    latency = records.latency(problem.flops / tflops / 1e9)
    exact = problem.flops / latency.median_ms / 1e9
    assert exact == pytest.approx(tflops, rel=1e-3)
    told = {"request": request, "latency": latency, "flags": (), "compiled": (), "schedule": None, "with_prepass": None}
    environment = one.environment.model_copy(update={"device": on or device()})
    return one.model_copy(update=told | {"environment": environment} | changes)


def test_measured_ceilings_come_before_the_data_sheet_s():
    found = roof(device(), fp8=False)
    assert (found.operations.per_s, found.operations.source) == (800e12, "measured")
    assert (found.memory.per_s, found.memory.source) == (4e12, "measured")
    assert found.ridge == 200
    assert found.attainable_per_s(100) == 400e12
    assert found.attainable_per_s(1000) == 800e12
    sheet = roof(device(), fp8=False, source="data sheet")
    assert (sheet.operations.per_s, sheet.memory.per_s) == (989e12, 4.8e12)
    fp8 = roof(device(), fp8=True)
    assert (fp8.operations.per_s, fp8.operations.source) == (1979e12, "data sheet")
    assert roof(device(), fp8=True, source="measured") is None
    assert roof(device(measured_fp8_tflops=1400.0), fp8=True).operations.per_s == 1400e12


def test_a_run_stands_over_the_bytes_that_were_counted():
    one = ran("v2", 400.0)
    found = standing(one)
    counted = traffic("v2", one.request.problem, one.tiles, Precision(), L2, has_tma=True)
    assert found.traffic == counted
    assert found.intensity == one.request.problem.flops / counted.hbm_bytes
    assert found.asked_intensity == pytest.approx(128, rel=0.02)  # as many operations a byte as rows a tile
    assert found.bound == "matrix units"
    assert found.share == pytest.approx(0.5, rel=1e-3)


def test_native_stands_under_the_memory_s_slope_and_the_words_say_why():
    one = ran("native", 150.0, tiles=None)
    found = standing(one)
    assert found.bound == "memory"
    assert found.attainable_per_s == pytest.approx(found.intensity * 4e12)
    said = explained(one)
    assert "TFLOP/s that its memory allows (4.00 TB/s, as a copy reached on it)" in said
    # S and P: written and read, 8 GiB each; K and V of all heads the same, 64 MiB each; the cache keeps 50 MiB of each.
    once = 4 * (64 << 20)
    moved = 4 * ((8 << 30) - L2) + 4 * ((64 << 20) - L2) + once
    assert found.traffic.hbm_bytes == moved
    assert f"At least {moved / 2**30:.1f} GiB go through memory, {moved / once:.0f} times its operands and results" in said


@pytest.mark.parametrize(
    "without",
    [
        records.in_interpreter(),
        records.on_gpu().model_copy(update={"latency": None}),
        ran(on=device(measured_bf16_tflops=None, peak_bf16_tflops=None)),
        ran(on=device(measured_bandwidth_bytes_per_s=None, peak_bandwidth_bytes_per_s=None)),
        ran("v2", tiles=None),
        ran().model_copy(update={"request": ran().request.model_copy(update={"kernel": "of-another-fork"})}),
    ],
)
def test_where_something_is_not_known_there_is_no_standing(without):
    assert standing(without) is None
    assert explained(without) is None
    assert isinstance(drawn.chart([without], without.label, LIGHT), Absent)


def test_nothing_in_the_record_means_that_the_record_does_not_show_it():
    assert explained(ran("v2", 400.0)) == (
        "50.0 % of what this GPU can do: 400 of the 800 TFLOP/s that a large matrix product reached on it. "
        "The record does not show where the rest goes."
    )


def test_what_stands_at_its_ceiling_needs_no_explaining():
    assert explained(ran("v2", 792.0)).endswith("that a large matrix product reached on it.")
    assert explained(ran("v2", 880.0)) == (
        "880 TFLOP/s, more than the 800 TFLOP/s that a large matrix product reached on it: for this run that is no ceiling. "
        "By the data sheet it is 89.0 % of 989."
    )


def test_masked_products_are_counted_and_explain_what_they_can():
    causal = AttentionProblem(seq_len_q=16384, seq_len_kv=16384, head_dim=128, causal=True)
    said = explained(ran("v1", 398.0, problem=causal))
    assert "The rest goes to: 50.0 % of its products, which are on masked keys or padding (counted from its tiles)." in said
    assert "the record does not show" not in said
    said = explained(ran("v1", 200.0, problem=causal))
    assert said.endswith("Where what is left goes, the record does not show.")


def test_idle_sms_come_from_the_stamps_or_from_a_grid_that_is_too_small():
    tiles = TileConfig(block_m=64, block_n=64, num_warps=8, num_stages=1, loop_order="key")
    assert "116 of 132 SMs, which its 16 programs leave idle" in explained(ran("v1", 4.0, tiles=tiles))
    problem = AttentionProblem(seq_len_q=16384, seq_len_kv=16384, head_dim=128)
    stamps = records.schedule_of(problem, sm_count=132)
    facts = facts_of(Timetable.of(stamps, 200), 1)
    said = explained(ran(on=device(sm_count=200), schedule=stamps))
    assert f"{percent(1 - facts.busy_share)} of the SMs' time without a program, most of it SMs never used (stamped)" in said
    assert facts.idle.unused == pytest.approx(68 / 200)
    slowed = records.schedule_of(problem, sm_count=132, overhead_share=0.2)
    assert "stamped" not in explained(ran(on=device(sm_count=200), schedule=slowed))


def test_spills_few_warps_and_disturbances_are_named_only_where_they_were_recorded():
    said = explained(ran(compiled=(records.report(spill_bytes=64), records.report(80, spill_bytes=99))))
    assert "64 bytes a thread that do not fit in its registers (compiled)" in said
    assert "99 bytes" not in said
    few = explained(ran(compiled=(records.report().model_copy(update={"warps_per_sm": 4}),)))
    assert "only 4 warps fit on an SM, by its shared memory" in few
    cap = Flag(name="throttled", severity="caution", short="power cap", sentence="The clocks were held down: power cap.")
    well = Flag(name="alone", severity="ok", short="alone on the GPU", sentence="NVML lists no other process.")
    assert "(power cap), as they may have been for the ceiling" in explained(ran(flags=(cap, well)))
    assert "alone" not in explained(ran(flags=(cap, well)))


def test_the_command_line_s_table_has_the_share():
    row = next(line for line in table((ran("v2", 400.0), ran("v3", 600.0))).splitlines() if "share of the roof" in line)
    assert "50.0 %" in row
    assert "75.0 %" in row


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_the_figure_has_every_run_under_its_roofs(palette):
    runs = [ran("native", 150.0, tiles=None), ran("v2", 400.0), ran("fa3", 600.0, tiles=None)]
    chart = drawn.chart(runs, "v2", palette)
    markers = [trace for trace in chart.figure.data if trace.mode == "markers"]
    filled = {round(one.y[0]): one for one in markers if one.marker.color != palette.background}
    hollow = {round(one.y[0]) for one in markers if one.marker.color == palette.background}
    assert set(filled) == {150, 400, 600}
    assert hollow == {400}  # native's calls ask for what goes through memory, the peer's tiles are not known
    assert filled[400].x[0] == pytest.approx(standing(runs[1]).intensity)
    solid, dashed = chart.figure.data[:2]
    assert (solid.line.dash, max(solid.y)) == ("solid", 800)
    assert (dashed.line.dash, max(dashed.y)) == ("dash", 989)
    assert [row["limit"] for row in chart.table] == ["memory", "matrix units", "matrix units"]
    assert set(chart.explained) <= set(chart.table[0])
    assert "copy" in chart.caption


def test_fp8_runs_have_fp8_s_roof():
    fp8 = ran("v3", 700.0, precision=Precision(fp8=True))
    chart = drawn.chart([ran("v2", 400.0), fp8], "v3 FP8", LIGHT)
    tops = [max(trace.y) for trace in chart.figure.data if trace.mode == "lines" and trace.line.dash in ("solid", "dash")]
    assert tops == [800, 989, 1979]
    assert standing(fp8).share == pytest.approx(700 / 1979, rel=1e-3)
