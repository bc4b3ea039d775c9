"""The probe `schedule`: which launch's stamps are kept, what is refused, what a job makes of it, and what the record allows."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from kernels.architecture import architecture
from kernels.block_order import WHOLE_HEAD
from kernels.problem import AttentionProblem, TileConfig
from kernels.registry import VERSIONS, Version
from profiling import differences, flags, plausibility, schedule_csv, text_report, words
from profiling.cli import _parser, main
from profiling.compile_report import compile_reports, stamped_programs_per_sm
from profiling.gpu_bench import GpuBench
from profiling.interpreter_bench import InterpreterBench
from profiling.record_types import Array
from profiling.records import DeviceFacts, Job, Measurement, Result, RunRequest
from profiling.run_job import JobRun
from profiling.run_options import plan
from profiling.schedule_facts import overhead_share
from profiling.schedule_record import MOST_ENTRIES, MOST_SMS, Schedule, num_entries, require_possible
from profiling.timetable import Timetable
from tests import records_for_tests as records
from tests.fake_nvml import FakeNvml, hexadecimal
from tests.stamped_kernel import SMS, Faults

PROBLEM = AttentionProblem(num_heads=3, num_kv_heads=3, seq_len_q=120, seq_len_kv=64, head_dim=32)
TILES = TileConfig(block_m=32, block_n=32, num_warps=4, num_stages=1)


class ListedTimer:
    """Plain launches take 5 ms or what is said, stamped ones what is listed, over and over."""

    def __init__(self, stamped_ms: list[float], plain_ms: float = 5.0) -> None:
        self._stamped_ms, self._plain_ms, self._taken = stamped_ms, plain_ms, 0

    def estimate_ms(self, run) -> float:
        return self._ms(run)

    def in_turn_ms(self, runs, count, after) -> list[list[float]]:
        times: list[list[float]] = [[] for _ in runs]
        for _ in range(count):
            for index, run in enumerate(runs):
                times[index].append(self._ms(run))
                after(index)
        return times

    def _ms(self, run) -> float:
        before = Faults.launches
        run()
        if Faults.launches == before:
            return self._plain_ms
        self._taken += 1
        return self._stamped_ms[self._taken % len(self._stamped_ms)]


class GpuInMemory(GpuBench):
    """GpuBench with what needs CUDA replaced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path, timer: ListedTimer) -> None:
        FakeNvml(tmp_path, f"uuid_hex {hexadecimal(records.gpu().id.encode())}").load(monkeypatch)
        monkeypatch.setattr("profiling.gpu_lock.tempfile.gettempdir", lambda: str(tmp_path))
        monkeypatch.setattr("kernels.stamps.measure_tick_ns", lambda device: 32)
        monkeypatch.setattr("profiling.compile_report.stamped_programs_per_sm", lambda request, capability: 1)
        super().__init__(records.environment(records.gpu()), torch.device("cpu"))
        self._listed = timer

    def take_schedule(self, case, subject, say) -> None:
        self._timer = self._listed
        super().take_schedule(case, subject, say)

    def refuse_if_too_large(self, case) -> None:
        """There is no CUDA to ask how much is free."""

    def first_run(self, case, say):
        return case.forward()


@pytest.fixture
def stamped(monkeypatch, tmp_path):
    """stamped(times) runs a job with the probe on the version of tests.stamped_kernel; its measurement."""
    version = Version("stamped", "Stamped", "tests.stamped_kernel", "", has_trace=True)
    monkeypatch.setitem(VERSIONS, "stamped", version)
    for name, value in (("factor", 1.0), ("stamped_factor", 1.0), ("error", None), ("launches", 0)):
        monkeypatch.setattr(Faults, name, value)

    def run(stamped_ms: list[float], *, plain_ms: float = 5.0, **changes: object) -> Measurement:
        fields = {"kernel": "stamped", "tiles": TILES, "probes": ("schedule",), "device": records.GPU_ID, **changes}
        sent: list = []
        job = Job(job_id="job", requests=(RunRequest(problem=PROBLEM, **fields),))
        JobRun(job, GpuInMemory(monkeypatch, tmp_path, ListedTimer(stamped_ms, plain_ms)), sent.append).run()
        return next(message.measurement for message in sent if isinstance(message, Result))

    return run


# The probe


def test_the_stamps_are_those_of_the_launch_that_is_nearest_to_the_median(stamped) -> None:
    """Of the last 21 launches, of which the times are 1 to 9 ms, one of 5 ms."""
    times = [float(ms) for ms in np.random.default_rng(2).permutation(9) + 1]
    found = stamped(times).schedule
    assert found.plain_ms.shape == found.stamped_ms.shape == (189,)
    assert (found.plain_ms.numpy() == 5.0).all()
    # The kernel's own count of launches is in the first entry's length; one came before the timed ones.
    launch = int(found.end_ns.numpy()[0]) - 64 - 1
    assert 189 - 21 < launch <= 189
    assert found.stamped_ms.numpy()[launch - 1] == times[launch % 9] == 5.0


@pytest.mark.parametrize(("plain_ms", "pairs"), [(0.02, 189), (10.0, 189), (20.0, 100), (90.0, 22), (600.0, 3), (2100.0, 3)])
def test_as_many_pairs_as_fit_in_two_seconds(stamped, plain_ms: float, pairs: int) -> None:
    assert stamped([5.0], plain_ms=plain_ms).schedule.plain_ms.shape == (pairs,)


def test_what_the_kernel_wrote_is_what_is_kept(stamped) -> None:
    measurement = stamped([5.0])
    found = measurement.schedule
    assert measurement.error is None
    assert measurement.latency is None, "it was not asked for"
    assert measurement.accuracy.passed, "no schedule without a proof"
    assert found.fits(PROBLEM, TILES)
    assert num_entries(PROBLEM, TILES) == 12
    assert found.head.numpy().tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert found.block.numpy().tolist() == [0, 1, 2, 3] * 3
    assert found.sm.numpy().tolist() == [0, 1, 2, 3] * 3
    assert found.start_ns.numpy().tolist() == [0] * 4 + [5000] * 4 + [10_000] * 4
    assert found.tick_ns == 32
    assert "schedule" in {span.phase for span in measurement.timeline.spans}
    assert not next(span for span in measurement.timeline.spans if span.phase == "schedule").sampled
    assert not {"no schedule", "distorted schedule", "crowded SM"} & {flag.name for flag in measurement.flags}


def test_a_slow_stamped_variant_is_flagged(stamped) -> None:
    (flag,) = [flag for flag in stamped([6.0]).flags if flag.name == "distorted schedule"]
    assert flag.severity == "caution"
    assert "Stamping made the launch 20 % slower" in flag.sentence


@pytest.mark.parametrize("factor", [1.1, float("nan")])
def test_stamps_of_another_result_are_not_kept(stamped, factor: float) -> None:
    Faults.stamped_factor = factor
    found = stamped([5.0])
    assert found.schedule is None
    assert found.error is None
    (flag,) = [flag for flag in found.flags if flag.name == "no schedule"]
    assert "its stamped variant's output is" in flag.sentence


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RuntimeError("a bug of the stamps"), "a bug of the stamps"),
        (torch.OutOfMemoryError("CUDA out of memory."), "ran out of memory while in phase 'schedule'"),
    ],
)
def test_a_schedule_that_fails_leaves_the_result(stamped, error: Exception, says: str) -> None:
    Faults.error = error
    found = stamped([5.0], probes=("accuracy", "schedule"))
    assert found.accuracy.passed
    assert found.error is None
    (flag,) = [flag for flag in found.flags if flag.name == "no schedule"]
    assert says in flag.sentence


def test_a_lost_context_is_an_error(stamped) -> None:
    Faults.error = RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")
    assert "broke the GPU's context" in stamped([5.0]).error.sentence


def test_a_launch_too_long_for_the_stamps(stamped) -> None:
    (flag,) = [flag for flag in stamped([5.0], plain_ms=2500.0).flags if flag.name == "no schedule"]
    assert flag.sentence == "The schedule is not there: a schedule of 2.5 s is not possible: it can have 2.15 s."


def test_more_entries_than_a_schedule_holds(stamped, monkeypatch) -> None:
    many = AttentionProblem(batch=129, num_heads=512, num_kv_heads=512, seq_len_q=1, seq_len_kv=1, head_dim=16)
    with pytest.raises(ValueError, match="a schedule of 66,048 pieces of work is not possible: it can have 65,536; larger"):
        require_possible(many, TILES)
    require_possible(many.model_copy(update={"batch": 128}), TILES)
    monkeypatch.setattr("profiling.schedule_record.MOST_ENTRIES", 11)
    (flag,) = [flag for flag in stamped([5.0]).flags if flag.name == "no schedule"]
    assert "a schedule of 12 pieces of work is not possible: it can have 11" in flag.sentence


def test_a_wrong_kernel_has_no_schedule(stamped) -> None:
    Faults.factor = 1.1
    found = stamped([5.0])
    assert not found.accuracy.passed
    assert found.schedule is None
    assert Faults.launches == 0


def test_the_interpreter_says_that_it_has_no_sms(monkeypatch, stamped) -> None:
    device = records.interpreter()
    sent: list = []
    request = RunRequest(kernel="stamped", problem=PROBLEM, tiles=TILES, probes=("schedule",))
    bench = InterpreterBench(records.environment(device))
    JobRun(Job(job_id="job", requests=(request,)), bench, sent.append).run()
    found = next(message.measurement for message in sent if isinstance(message, Result))
    assert found.schedule is None
    (flag,) = [flag for flag in found.flags if flag.name == "no schedule"]
    assert "not possible in the interpreter: only a GPU has SMs" in flag.sentence


def test_a_version_that_cannot_be_stamped_goes_without(stamped, monkeypatch) -> None:
    monkeypatch.setitem(VERSIONS, "stamped", Version("stamped", "Stamped", "tests.stamped_kernel", ""))
    found = stamped([5.0], probes=("accuracy", "schedule"))
    assert found.schedule is None
    assert found.error is None


def test_occupancy_is_of_the_stamped_variant() -> None:
    """Compiled for real: as many programs fit as the plain variant's report says, or fewer."""
    problem = AttentionProblem(num_heads=2, num_kv_heads=2, seq_len_q=256, seq_len_kv=256, head_dim=64)
    request = RunRequest(kernel="v2", problem=problem, tiles=TileConfig(block_m=64, block_n=64, num_warps=4, num_stages=2))
    fit = stamped_programs_per_sm(request, 90)
    assert 1 <= fit <= compile_reports(request, 90)[-1].programs_per_sm <= architecture(90).max_blocks_per_sm


# Flags


def test_two_programs_where_one_fits_are_flagged() -> None:
    one = records.schedule_of(programs_per_sm=2)
    assert flags.schedule_flags(one) == []
    (flag,) = flags.schedule_flags(one.model_copy(update={"programs_per_sm": 1}))
    assert (flag.severity, flag.short) == ("bad", "more programs than fit")


# The record


def changed(**fields: object) -> dict:
    return {**dict(records.schedule_of()), **fields}


def altered(name: str, place: int, value: int) -> Array:
    values = getattr(records.schedule_of(), name).numpy().copy()
    values[place] = value
    return Array.of(values, "<i4")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"sm": altered("sm", 3, -1)}, "sm = -1 is not possible"),
        ({"sm": altered("sm", 3, MOST_SMS)}, "sm = 1,024 is not possible in a schedule: it can be 0 to 1,023"),
        ({"block": altered("block", 3, -2)}, "block = -2"),
        ({"end_ns": altered("end_ns", 0, -5)}, "end_ns = -5"),
        ({"start_ns": altered("start_ns", 0, 2**31 - 1)}, "ends before it starts"),
        ({"tiles": Array.of([1, 2], "<i4")}, "beside 2,048 entries"),
        ({"tiles": Array.of(np.ones(2048))}, "<f8 is not possible"),
        ({"plain_ms": Array.of([])}, "not possible"),
        ({"stamped_ms": Array.of([0.0])}, "not possible"),
        ({"stamped_ms": Array.of([1.0, 1.0])}, "20 plain launches are not possible beside 2 stamped ones"),
        ({"programs_per_sm": 0}, "programs_per_sm"),
        ({"programs_per_sm": 65}, "programs_per_sm"),
        ({"tick_ns": 0}, "tick_ns"),
        (
            {name: Array.of([], "<i4") for name in ("sm", "program", "start_ns", "end_ns", "head", "block", "tiles")},
            "0 entries",
        ),
        ({"sm": Array.of(np.zeros(MOST_ENTRIES + 1), "<i4")}, "65,537 entries"),
    ],
)
def test_what_no_gpu_can_have_written_is_refused(fields: dict, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Schedule(**changed(**fields))


def test_a_schedule_of_another_problem_or_without_a_proof_is_no_result() -> None:
    schedule = records.schedule_of()
    assert records.on_gpu("v2", schedule=schedule).schedule is schedule
    with pytest.raises(ValidationError, match="does not fit the problem"):
        records.on_gpu("v2", tiles=records.TILES.model_copy(update={"block_m": 64}), schedule=schedule)
    with pytest.raises(ValidationError, match="without a passed accuracy"):
        records.on_gpu("v2", passed=False, schedule=schedule)
    interpreted = records.in_interpreter("v2")
    of_it = records.schedule_of(records.TINY, interpreted.tiles)
    with pytest.raises(ValidationError, match="a schedule on a device of kind interpreter"):
        records.in_interpreter("v2", schedule=of_it)


def test_a_file_that_claims_endless_heads_is_turned_down_by_counting() -> None:
    huge = AttentionProblem(batch=65536, num_heads=1024, num_kv_heads=1024, seq_len_q=1 << 22, seq_len_kv=1 << 22)
    assert not records.schedule_of().fits(huge, records.TILES)


def test_a_device_with_endless_sms_has_no_more_lanes_than_there_can_be() -> None:
    assert Timetable.of(records.schedule_of(), 1 << 60).sm_count == MOST_SMS


def test_entries_in_another_order_do_not_fit() -> None:
    mixed = Schedule(**changed(head=Array.of(records.schedule_of().head.numpy()[::-1], "<i4")))
    assert not mixed.fits(records.LONG, records.TILES)


# What is made of it


def test_the_facts_in_the_terminal() -> None:
    text = text_report.table((records.on_gpu("v2", schedule=records.schedule_of()), records.on_gpu("sdpa-cudnn")))
    lines = {line.split("  ")[0]: line for line in text.splitlines()}
    assert "132 of 132" in lines["SMs used"]
    assert "measured, one stamped launch" in lines["SMs used"]
    assert "15.5" in lines["waves"]
    assert words.signed_percent(overhead_share(records.schedule_of())) in lines["stamping costs"]
    assert "v2: All 132 SMs worked" in text
    assert "SMs used" not in text_report.table((records.on_gpu("v2"),))


def test_two_schedules_are_compared() -> None:
    key = TileConfig(block_m=64, block_n=32, num_warps=8, num_stages=1, loop_order="key")
    before = records.on_gpu("v1", tiles=key, schedule=records.schedule_of(records.LONG, key))
    after = records.on_gpu("v2", schedule=records.schedule_of())
    rows = {row.field: row for row in differences.differences(before, after).rows}
    assert (rows["SMs that worked"].a, rows["SMs that worked"].b) == ("16", "132")
    assert rows["programs launched"].change == "+2,032"


def test_an_impossible_plain_launch_is_found_in_a_file() -> None:
    fast = records.schedule_of().model_copy(update={"plain_ms": Array.of(np.full(20, 1e-3))})
    names = {flag.name for flag in plausibility.suspicions(records.on_gpu("v2", schedule=fast))}
    assert "implausible" in names
    honest = plausibility.suspicions(records.on_gpu("v2", schedule=records.schedule_of()))
    assert "implausible" not in {flag.name for flag in honest}


def test_csv_holds_every_entry() -> None:
    key = TileConfig(block_m=64, block_n=32, num_warps=8, num_stages=1, loop_order="key")
    outer = records.on_gpu("v1", tiles=key, schedule=records.schedule_of(records.LONG, key))
    snapshot = records.recording().model_copy(update={"measurements": (records.on_gpu("v3"), outer)})
    rows = list(csv.DictReader(io.StringIO(schedule_csv.schedule_csv(snapshot))))
    assert len(rows) == 16
    assert {row["version"] for row in rows} == {"v1 key-outer"}
    assert {row["block"] for row in rows} == {str(WHOLE_HEAD)}
    for name in ("sm", "program", "start_ns", "end_ns", "head", "tiles"):
        assert [int(row[name]) for row in rows] == getattr(outer.schedule, name).numpy().tolist()


def test_sms_of_the_stamped_kernel_are_all_used(stamped) -> None:
    assert set(stamped([5.0]).schedule.sm.numpy().tolist()) == set(range(SMS))


# The command line


def planned(line: str, device: DeviceFacts):
    return plan(_parser()[0].parse_args(["run", "--probes", "accuracy,schedule", *line.split()]), (device,))


def test_run_asks_for_a_schedule() -> None:
    (request,) = planned("--kernel v2 --seq-len 16384 --block-order zigzag", records.gpu()).requests
    assert request.probes == ("accuracy", "schedule")
    assert request.tiles.block_order == "zigzag"


@pytest.mark.parametrize(
    ("line", "device", "says"),
    [
        ("--kernel v2", records.interpreter(), "--probes schedule is not possible in the interpreter: only a GPU has SMs"),
        ("--kernel native", records.gpu(), "--probes schedule is not possible with native"),
        ("--kernel v2 --batch 600 --seq-len 8192", records.gpu(), "pieces of work is not possible: it can have 65,536"),
    ],
)
def test_run_refuses_a_schedule_that_there_cannot_be(line: str, device: DeviceFacts, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        planned(line, device)


def test_export_writes_the_stamps(tmp_path, capsys) -> None:
    stamped = records.recording().model_copy(update={"measurements": (records.on_gpu("v2", schedule=records.schedule_of()),)})
    plain = records.recording(kernels=("v2",))
    for name, snapshot in (("stamped", stamped), ("plain", plain)):
        (tmp_path / f"{name}.json").write_bytes(snapshot.document)

    def export(name: str, out: str) -> tuple[int, str]:
        code = main(["export", str(tmp_path / f"{name}.json"), "--schedule", "--out", str(tmp_path / out)])
        return code, capsys.readouterr().err

    assert export("stamped", "x.csv")[0] == 0
    assert (tmp_path / "x.csv").read_text() == schedule_csv.schedule_csv(stamped)
    assert export("plain", "y.csv") == (2, f"snapshot {plain.id[:12]} has no schedule: run --probes schedule takes one.\n")
    assert export("stamped", "x.json")[0] == 2
    assert not (tmp_path / "y.csv").exists()
