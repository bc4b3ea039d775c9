"""The command prove: what its battery counts and calls kept, with benches that tell the truth and benches that lie."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kernels.problem import AttentionProblem, TileConfig
from kernels.registry import VERSIONS, load
from profiling import one_more_sequence, prove_command, prove_worker
from profiling.background_load import NoLoad, background_load
from profiling.case import Case
from profiling.cli import main
from profiling.cupti_timer import CuptiTimer, kernel_times_ms
from profiling.job_queue import JobQueue
from profiling.measure import Run
from profiling.prove import BY_CUPTI, KERNEL, ONE_MORE, Battery, Check
from profiling.prove_command import run_checks
from profiling.record_types import Array
from profiling.records import Flag, JobError, Latency, Measurement, RunRequest
from tests import records_for_tests as records
from tests.fake_stream import FakeStream

BUSY = Flag(
    name="contended", severity="caution", short="GPU shared", sentence="1 other process held this GPU while it was timed."
)
LIKE = records.on_gpu("v2")
ALONE = Flag(name="alone", severity="ok", short="alone on the GPU", sentence="NVML lists no other process on this GPU.")


@dataclass
class Simulated:
    """A GPU whose truth is known: a clock that drifts, launches that scatter. Its faults are what a battery must find.

    favours: by how much the second request of a job seems slower. finds: how much of added work shows in the time.
    round_scatter: what a round has of its own. tracer: CUPTI's time over ours. sees: whether it notices a load that is on.
    """

    favours: float = 0.0
    finds: float = 1.0
    round_scatter: float = 0.001
    tracer: float = 1.0
    sees: bool = True
    always_flags: bool = False
    fails_at: int | None = None
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))
    loaded: bool = False
    jobs: int = 0

    def job(self, requests: Sequence[RunRequest]) -> tuple[Measurement, ...]:
        self.jobs += 1
        shared = self.rng.normal(0, 0.01, 5)
        return tuple(self._measured(place, request, shared) for place, request in enumerate(requests))

    def _measured(self, place: int, request: RunRequest, shared: np.ndarray) -> Measurement:
        changes = {"request": request, "duration_s": float(self.jobs), "flags": self._flags()}
        if self.jobs - 1 == self.fails_at:
            failed = JobError(kind="launch", sentence="v2 could not be launched: the driver is tired.")
            return LIKE.model_copy(update={**changes, "latency": None, "error": failed})
        slower = {ONE_MORE: 1 + 0.05 * self.finds, BY_CUPTI: self.tracer}.get(request.kernel, 1.0) * (
            1 + self.favours * (place % 2)
        )
        rounds = 0.5 * slower * (1 + shared + self.rng.normal(0, self.round_scatter, 5))
        samples = np.repeat(rounds, 20) * (1 + 0.002 * np.abs(self.rng.standard_normal(100)))
        latency = Latency(
            provenance="measured",
            mode="cold",
            samples_ms=Array.of(samples),
            round_of=Array.of(np.repeat(np.arange(5), 20), "<i4"),
        )
        return LIKE.model_copy(update={**changes, "latency": latency})

    def _flags(self) -> tuple[Flag, ...]:
        return (BUSY,) if self.always_flags or (self.loaded and self.sees) else (ALONE,)

    @contextmanager
    def load(self, _device_id: str) -> Iterator[None]:
        self.loaded = True
        yield
        self.loaded = False


def judged(bench: Simulated, *names: str) -> dict[str, Check]:
    checks, interrupted = run_checks(Battery(records.gpu(), bench.job), names or prove_command.CHECKS, bench.load)
    assert not interrupted
    return {check.name: check for check in checks}


def test_a_bench_that_tells_the_truth_keeps_every_promise():
    bench = Simulated()
    found = judged(bench)
    assert list(found) == ["equal", "work", "cupti", "quiet", "load"]
    assert all(check.kept and not check.problems for check in found.values())
    assert bench.jobs == (40 + 20) / 2 + 8 + 20
    assert not bench.loaded
    assert found["equal"].found.startswith("0 of 40 (")
    assert found["work"].found.startswith("20 of 20 (20 SLOWER), +4.")
    assert found["quiet"].found == "0 of 136"
    assert [len(found[name].details) for name in ("equal", "work", "cupti", "load")] == [40, 20, 8, 20]


@pytest.mark.parametrize(
    ("lie", "broken", "said"),
    [
        ({"favours": 0.02}, {"equal", "cupti"}, "40 of 40"),
        ({"finds": 0.0}, {"work"}, "0 of 20"),
        ({"round_scatter": 0.03}, {"work"}, " of 20"),
        ({"tracer": 0.975}, {"cupti"}, "0 of 8, furthest +2."),
        ({"sees": False}, {"load"}, "0 of 20"),
        ({"always_flags": True}, {"quiet"}, "136 of 136"),
    ],
)
def test_a_bench_that_lies_is_found_out_and_only_where_it_lies(lie, broken, said):
    found = judged(Simulated(**lie))
    # Of equal pairs that scatter wildly two in a hundred get a word: of forty, more than one may.
    by_chance = {"cupti", "equal"} if "round_scatter" in lie else set()
    assert broken <= {name for name, check in found.items() if not check.kept} <= broken | by_chance
    assert any(said in found[name].found for name in broken)


def test_one_false_alarm_of_forty_is_allowed_and_two_are_not():
    class Alarming(Simulated):
        alarms = 0

        def _measured(self, place: int, request: RunRequest, shared: np.ndarray) -> Measurement:
            self.favours = 0.03 if 2 * (self.jobs - 1) + place // 2 < self.alarms else 0.0
            return super()._measured(place, request, shared)

    for Alarming.alarms, kept in ((1, True), (2, False)):
        check = judged(Alarming(), "equal")["equal"]
        assert (check.kept, check.found.split(" (")[0]) == (kept, f"{Alarming.alarms} of 40")


def test_a_job_without_an_answer_breaks_the_promise_and_says_why():
    """An error must count against the promise: 39 words and a failure are not 40 comparisons."""
    for name, jobs in (("equal", 20), ("work", 10), ("cupti", 8)):
        bench = Simulated(fails_at=3)
        found = judged(bench, name)[name]
        assert (bench.jobs, found.kept) == (jobs, False), name
        assert found.problems == ("v2 could not be launched: the driver is tired.",), name
        assert judged(Simulated(), name)[name].kept, name


def test_a_load_that_does_not_start_proves_nothing():
    @contextmanager
    def load(_device_id: str) -> Iterator[None]:
        raise NoLoad("The background load did not start: no memory is left.")
        yield

    ((check,), _) = run_checks(Battery(records.gpu(), Simulated().job), ("load",), load)
    assert (check.kept, check.found) == (False, "not tried")
    assert check.problems == ("The background load did not start: no memory is left.",)


def test_an_interrupt_keeps_what_is_finished():
    class Interrupted(Simulated):
        def job(self, requests: Sequence[RunRequest]) -> tuple[Measurement, ...]:
            if self.jobs == 25:
                raise KeyboardInterrupt
            return super().job(requests)

    bench = Interrupted()
    checks, interrupted = run_checks(Battery(records.gpu(), bench.job), prove_command.CHECKS, bench.load)
    assert interrupted
    assert [check.name for check in checks] == ["equal"]


# The command


@pytest.fixture
def proving(monkeypatch):
    """proving(bench) lets the command find one GPU and this bench behind its queue."""

    def use(bench: Simulated) -> None:
        environment = records.environment(records.gpu())
        queue = SimpleNamespace(devices=lambda: (records.gpu(), records.interpreter()), environment=lambda _id: environment)
        queue.close = lambda: None
        monkeypatch.setattr(prove_command, "JobQueue", lambda command: queue)
        monkeypatch.setattr(prove_command, "_job", lambda _queue, requests: bench.job(requests))
        monkeypatch.setattr(prove_command, "run_checks", lambda battery, names: run_checks(battery, names, bench.load))

    return use


def exit_code(*arguments: str) -> int:
    try:
        return main([*map(str, arguments)])
    except SystemExit as left:
        return left.code


def test_the_table_says_each_promise_and_whether_it_is_kept(proving, capsys):
    proving(Simulated())
    assert exit_code("prove") == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == "H200 · GPU-487a · driver 580.159 · torch 2.13.0 · Triton 3.7.1"
    assert [line.rsplit("  ", 1)[-1].strip() for line in lines[3:8]] == ["kept"] * 5
    assert lines[-1].startswith("All 5 promises are kept (measured, ")
    assert printed.err.count("\n") == 88, "a line a comparison or a run"
    proving(Simulated(sees=False))
    assert exit_code("prove", "--only", "load,equal") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("1 of 3 promises is not kept")
    assert any("background" not in line and "NOT KEPT" in line and "0 of 20" in line for line in lines)


def test_the_record_holds_every_figure(proving, capsys, tmp_path):
    proving(Simulated())
    assert exit_code("prove", "--json", "--out", tmp_path / "proved.json") == 0
    printed, written = json.loads(capsys.readouterr().out), json.loads((tmp_path / "proved.json").read_text())
    assert printed == written
    assert written["kept"] is True
    assert written["environment"]["device"]["name"] == "NVIDIA H200"
    checks = {check["name"]: check for check in written["checks"]}
    assert sum(one["word"] in ("FASTER", "SLOWER") for one in checks["equal"]["details"]) <= 1
    assert sum(one["word"] == "SLOWER" for one in checks["work"]["details"]) >= 19
    assert all(abs(one["ours_ms"] / one["cupti_ms"] - 1) <= 0.02 for one in checks["cupti"]["details"])
    assert all(one["flagged"] and BUSY.sentence in one["flags"] for one in checks["load"]["details"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--only", "speed"], "only = speed is not possible: it can be equal, work, cupti, load."),
        (["--out", "x.txt"], "out = x.txt is not possible: its name ends in .json."),
        (["--device", "GPU-9"], "device = GPU-9 is not possible: it can be GPU-487a"),
    ],
)
def test_what_cannot_be_proved_is_one_sentence(options, said, proving, capsys):
    proving(Simulated())
    assert exit_code("prove", *options) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert printed.err.startswith(said)


def test_without_a_gpu_there_is_nothing_to_prove(monkeypatch, capsys):
    no_gpu = records.interpreter().model_copy(update={"missing": {"gpu": "no NVIDIA driver was found"}})
    queue = SimpleNamespace(devices=lambda: (no_gpu,), close=lambda: None)
    monkeypatch.setattr(prove_command, "JobQueue", lambda command: queue)
    assert exit_code("prove") == 2
    assert capsys.readouterr().err == "prove needs a GPU (no NVIDIA driver was found).\n"


# What the worker has beside the versions


def test_one_sequence_more_is_computed_and_only_what_was_asked_is_returned(monkeypatch):
    asked: list[tuple] = []

    def forward(operands, problem, tiles, launch, with_lse=True):
        asked.append((problem.batch, operands.q.shape[0], operands.k.shape[0]))
        return SimpleNamespace(out=operands.q * 2, lse=operands.q[..., 0])

    monkeypatch.setattr(one_more_sequence.flash_v2, "forward", forward)
    problem = AttentionProblem(batch=20, num_heads=1, num_kv_heads=1, seq_len_q=4, seq_len_kv=4, head_dim=16)
    q, k, v = (torch.randn(20, 1, 4, 16) for _ in range(3))
    operands = one_more_sequence.prepare(q, k, v, None, None)
    output = one_more_sequence.forward(operands, problem, None, None)
    assert asked == [(21, 21, 21)]
    assert torch.equal(output.out, q * 2)
    assert output.lse.shape == (20, 1, 4)
    assert torch.equal(operands.v[20], v[0])


@pytest.mark.long
def test_the_worker_s_two_versions_are_right_in_a_job_like_any_other():
    """In the interpreter, where CUPTI has nothing to time; the job, the check and the answer are the product's."""
    pytest.importorskip("triton")
    problem = AttentionProblem(batch=2, num_heads=1, num_kv_heads=1, seq_len_q=32, seq_len_kv=32, head_dim=16)
    tiles = TileConfig(block_m=16, block_n=16, num_warps=1, num_stages=1)
    requests = [
        RunRequest(kernel=kernel, problem=problem, tiles=tiles, probes=("accuracy",)) for kernel in (KERNEL, ONE_MORE, BY_CUPTI)
    ]
    queue = JobQueue(devices=lambda: (records.interpreter(),), command=prove_command._worker_command)
    try:
        found = queue.wait(queue.submit(requests, "test"), 300).results
    finally:
        queue.close()
    assert [(one.error, one.accuracy.passed) for one in found] == [(None, True)] * 3
    assert not {ONE_MORE, BY_CUPTI} & set(VERSIONS), "they are the proving worker's alone"


@dataclass
class Event:
    """A device event as torch.profiler has it."""

    name: str
    start: float
    microseconds: float
    kind: str = "CUDA"

    @property
    def device_type(self) -> SimpleNamespace:
        return SimpleNamespace(name=self.kind)

    @property
    def time_range(self) -> SimpleNamespace:
        return SimpleNamespace(start=self.start, elapsed_us=lambda: self.microseconds)


FILL = "void at::native::vectorized_elementwise_kernel<16, at::native::FillFunctor<unsigned char>, ...>"


def recorded(launches: int) -> list[Event]:
    """What CUPTI records of launches: the stream held, then a flush, the launch and a look at its output each."""
    events = [Event("at::cuda::spin_kernel(long)", 0, 30_000)]
    for place in range(launches):
        start = 40_000 + 1000 * place
        events.append(Event("flash_v2_forward", start, 5, kind="CPU"))
        events += [Event(FILL, start, 120), Event("flash_v2_forward", start + 200, 80 + place), Event("reduce", start + 300, 9)]
    return events


def test_only_the_marked_runs_have_cupti_s_times():
    """By the timer's own way: events say 0.25 ms of either, CUPTI's record of the second says something else."""
    stream = FakeStream()
    plain, marked = (Run(lambda: stream.launch(0.25)) for _ in range(2))
    opened: list[str] = []

    @contextmanager
    def recording() -> Iterator[SimpleNamespace]:
        opened.append("recording")
        yield SimpleNamespace(events=lambda: recorded(3))

    timer = CuptiTimer(stream, lambda run: run is marked, recording)
    assert timer.batch(plain, 3).samples_ms == pytest.approx([0.25] * 3)
    assert not opened
    assert timer.batch(marked, 3).samples_ms == pytest.approx([0.080, 0.081, 0.082])
    assert timer.batch(marked, 3).ledgers[0].launches_ms == pytest.approx((0.25,) * 3)


def test_the_worker_marks_the_runs_of_one_version():
    problem = AttentionProblem(seq_len_q=16, seq_len_kv=16)
    ours, theirs = (Case(0, RunRequest(kernel=kernel, problem=problem)) for kernel in (KERNEL, BY_CUPTI))
    assert [prove_worker._is_by_cupti(Run(one.forward)) for one in (ours, theirs)] == [False, True]
    assert not prove_worker._is_by_cupti(Run(lambda: theirs.forward()))
    as_it_was = {**VERSIONS}
    try:
        prove_worker.add_versions()
        assert load(ONE_MORE) is one_more_sequence
        assert load(BY_CUPTI).__name__ == "kernels.flash_v2"
    finally:
        VERSIONS.clear()
        VERSIONS.update(as_it_was)


def test_a_launch_is_its_kernel_and_nothing_around_it():
    assert kernel_times_ms(reversed(recorded(3)), 3) == pytest.approx([0.080, 0.081, 0.082])


@pytest.mark.parametrize(("events", "said"), [([], "0 of 3"), (recorded(2), "2 of 3"), (recorded(4), "4 of 3")])
def test_launches_that_cupti_did_not_record_are_no_times(events, said):
    with pytest.raises(RuntimeError, match=f"CUPTI recorded {said} launches"):
        kernel_times_ms(events, 3)


def test_a_load_that_ends_at_once_is_said_with_its_last_words():
    command = (sys.executable, "-c", "import sys; print('first', file=sys.stderr); sys.exit('the GPU is on strike')")
    with pytest.raises(NoLoad, match="did not start: the GPU is on strike"), background_load("GPU-1", command):
        pass


def test_a_load_lasts_as_long_as_its_context():
    code = "import sys; print('running', flush=True); sys.stdin.read(); print('ended', file=sys.stderr)"
    with background_load("GPU-1", (sys.executable, "-c", code)):
        pass
