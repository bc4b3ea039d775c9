"""The worker as a process, and the job boundary: what one request's failure does to it and to the others."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels import backward_autograd
from kernels.problem import AttentionProblem, Precision, TileConfig
from kernels.registry import VERSIONS, Refused, Version
from profiling import worker
from profiling.case import Case, Step
from profiling.compiler_process import Answer, CompilerProcess, Question
from profiling.devices import interpreter_facts
from profiling.gpu_bench import GpuBench
from profiling.interpreter_bench import InterpreterBench
from profiling.measure import ROUNDS, Batch
from profiling.records import (
    INTERPRETER,
    Accuracy,
    DeviceFacts,
    Done,
    Environment,
    Job,
    Progress,
    Ready,
    Result,
    RunRequest,
    worker_message,
)
from tests.fake_nvml import FakeNvml

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 120.0
has_triton = pytest.mark.skipif(worker._installed("triton") is None, reason="Triton is not installed here")


def request(kernel: str = "native", seq_len: int = 64, head_dim: int = 64, device: str = INTERPRETER, **fields) -> RunRequest:
    problem = AttentionProblem(num_heads=2, num_kv_heads=1, seq_len_q=seq_len, seq_len_kv=seq_len, head_dim=head_dim)
    fields.setdefault("probes", ("accuracy", "latency", "memory"))
    return RunRequest(kernel=kernel, problem=problem, device=device, **fields)


class Worker:
    """A real worker process; its lines are read by a thread so that a silent one fails the test instead of hanging it."""

    def __init__(self, device: str = INTERPRETER) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "profiling.worker", "--device", device],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line)

    def next(self):
        return worker_message.validate_json(self._lines.get(timeout=SECONDS))

    def send(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self, line: str) -> list:
        self.send(line)
        messages = [self.next()]
        while not isinstance(messages[-1], Done):
            messages.append(self.next())
        return messages

    def run(self, *requests: RunRequest) -> list:
        return self.answer(Job(job_id="job", requests=requests).model_dump_json())


@pytest.fixture(scope="module")
def living():
    one = Worker()
    one.ready = one.next()
    yield one
    one.process.stdin.close()
    assert one.process.wait(30) == 0


def results(messages: list) -> list:
    return [message.measurement for message in messages if isinstance(message, Result)]


def test_ready_comes_first_with_the_environment(living):
    assert isinstance(living.ready, Ready)
    environment = living.ready.environment
    assert environment.device.id == INTERPRETER
    assert environment.torch_version == torch.__version__
    nones = {name for name, value in environment.model_dump().items() if value is None}
    assert nones == set(environment.missing)
    if environment.triton_version is None:
        assert environment.device.missing["interpreter_tile_ms"]
    else:
        assert environment.device.interpreter_tile_ms > 0


def test_native_is_right_and_has_one_wall_time(living):
    messages = living.run(request())
    (found,) = results(messages)
    assert found.error is None
    assert found.accuracy.passed
    assert found.accuracy.provenance == "interpreted"
    assert (found.latency.mode, found.latency.n) == ("wall", 1)
    assert found.tflops is None
    assert found.first_launch_ms is None
    assert found.memory.inputs_bytes == (2 + 1 + 1) * 64 * 64 * 2
    assert [flag.short for flag in found.flags] == ["CPU interpreter: not GPU time"]
    phases = [message.phase for message in messages if isinstance(message, Progress)]
    assert phases.index("inputs") < phases.index("check") < phases.index("memory")
    assert messages[-1] == Done(job_id="job", healthy=True)


@has_triton
@pytest.mark.parametrize("kernel", ["v1", "v2", "v3"])
def test_triton_versions_are_right_in_the_interpreter(living, kernel):
    (found,) = results(living.run(request(kernel, seq_len=100)))
    assert found.error is None
    assert found.accuracy.passed
    assert found.accuracy.lse_max_abs_error < found.accuracy.allowed_lse_error
    assert found.tiles is not None


@has_triton
def test_fp8_is_checked_against_its_operands_and_its_inputs(living):
    (found,) = results(living.run(request("v3", seq_len=128, precision=Precision(fp8=True))))
    assert found.error is None
    assert found.accuracy.passed
    assert found.accuracy.relative_error < 4e-2 < found.accuracy.end_to_end_relative_error


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{bad", "Invalid JSON"),
        ("[]", "should be an object"),
        ('{"job_id": "j", "requests": []}', "at least 1 item"),
        ('{"job_id": "j", "requests": [{"kernel": "v2", "problem": {"seq_len_q": 0, "seq_len_kv": 1}}]}', "seq_len_q = 0"),
        ('{"job_id": "j", "requests": [{"kernel": "v2"}]}', "problem"),
        ("[" * 100_000, "Invalid JSON"),
        ('{"job_id": "' + "x" * 100_000 + '"}', "requests"),
    ],
)
def test_a_bad_line_gets_one_clear_message_and_the_worker_lives(living, line, said):
    progress, done = living.answer(line)
    assert "a line that is no job" in progress.text
    assert said in progress.text
    assert len(progress.text) < 600
    assert done.healthy
    assert results(living.run(request()))[0].accuracy.passed


def test_what_is_refused_says_why_and_the_rest_of_the_job_runs(living):
    unknown, no_fp8, wide, right = results(
        living.run(request("v9"), request("v2", precision=Precision(fp8=True)), request("sdpa-flash"), request("native"))
    )
    assert [one.error.kind for one in (unknown, no_fp8, wide)] == ["refused"] * 3
    assert unknown.error.sentence.startswith("kernel = v9 is not known")
    assert no_fp8.error.sentence.startswith("FP8 is not possible with v2: only v3")
    assert "not possible in the interpreter" in wide.error.sentence
    assert all(one.latency is None and one.accuracy is None for one in (unknown, no_fp8, wide))
    assert right.error is None
    assert right.accuracy.passed


def test_too_large_is_refused_before_anything_is_allocated(living):
    problem = AttentionProblem(num_heads=64, num_kv_heads=64, seq_len_q=1 << 20, seq_len_kv=1 << 20)
    (found,) = results(living.run(RunRequest(kernel="native", problem=problem)))
    assert found.error.kind == "refused"
    assert found.error.unit == "bytes"
    assert found.error.needs == 4.0 * 64 * (1 << 40)
    assert 0 < found.error.has < found.error.needs
    assert "The longest power of two that fits is" in found.error.sentence


def test_a_request_for_another_device_is_refused(living):
    (found,) = results(living.run(request(device="GPU-other")))
    assert found.error.sentence == "device = GPU-other is not possible here: this worker serves interpreter."


def test_two_requests_come_back_in_order_on_the_same_inputs(living):
    messages = living.run(request("native"), request("native", precision=Precision(dtype="fp16")))
    assert [message.index for message in messages if isinstance(message, Result)] == [0, 1]
    bf16, fp16 = results(messages)
    assert bf16.accuracy.relative_error > 4 * fp16.accuracy.relative_error > 0


def test_the_same_seed_gives_the_same_error_and_another_does_not(living):
    first, again, other = (results(living.run(request(seed=seed)))[0].accuracy.relative_error for seed in (3, 3, 4))
    assert first == again != other


def test_probes_that_launch_nothing_launch_nothing(living):
    (found,) = results(living.run(request(probes=("compile",))))
    assert found.accuracy is None
    assert found.latency is None
    assert found.error is None


@has_triton
def test_the_compile_report_comes_from_a_process_without_the_interpreter(living):
    pytest.importorskip("profiling.compile_report")
    tiles = TileConfig(block_m=64, block_n=64, num_warps=4, num_stages=2)
    (found,) = results(living.run(request("v2", tiles=tiles, compile_for=80, probes=("accuracy", "compile"))))
    assert found.accuracy.passed
    assert found.compiled, found.flags
    assert found.compiled[-1].capability == 80
    assert found.compiled[-1].registers_per_thread > 0


@has_triton
def test_tiles_that_do_not_fit_the_gpu_are_flagged_and_still_interpreted(living):
    pytest.importorskip("profiling.compile_report")
    tiles = TileConfig(block_m=16, block_n=64, num_warps=4, num_stages=4)
    wide = request("v2", head_dim=128, tiles=tiles, compile_for=86, probes=("accuracy", "compile"))
    (found,) = results(living.run(wide))
    assert found.accuracy.passed
    assert found.compiled == ()
    (flag,) = found.flags
    assert flag.short == "does not fit sm_86"
    assert "The largest BLOCK_N that fits is 32." in flag.sentence


def test_an_unknown_gpu_ends_the_worker_with_a_sentence():
    one = Worker("GPU-does-not-exist")
    assert one.process.wait(SECONDS) == 2
    assert "device = GPU-does-not-exist is not a GPU that CUDA can use here" in one.process.stderr.read()
    assert one._lines.empty()


def test_what_libraries_print_stays_off_the_protocol():
    code = (
        "import os, sys; from profiling.stdout import claim_stdout; out = claim_stdout();"
        "print('python'); os.write(1, b'a C library'); os.system('echo a child'); out.write('mine')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "mine"
    assert {"python", "a C library", "a child"} <= {
        word for word in ("python", "a C library", "a child") if word in done.stderr
    }


# In this process: the job boundary, with versions that fail.


@pytest.fixture
def run_here(monkeypatch):
    faulty = Version("faulty", "Faulty", "tests.faulty_kernel", "", has_tiles=False)
    monkeypatch.setitem(VERSIONS, "faulty", faulty)
    environment = Environment(
        device=interpreter_facts(), python_version="3", torch_version="2", triton_version=None, cuda_version=None,
        driver_version=None, commit=None,
    )  # fmt: skip
    bench = InterpreterBench(environment)

    def run(*requests: RunRequest) -> list:
        sent: list = []
        worker.serve(Job(job_id="job", requests=requests).model_dump_json(), bench, sent.append)
        return sent

    return run


def test_a_step_is_checked_and_split_and_its_time_is_no_gpu_s(living):
    (step,) = results(living.run(request(direction="both")))
    assert step.error is None
    assert step.gradients.passed
    assert (step.gradients.provenance, step.gradients.heads_checked, step.gradients.heads_total) == ("interpreted", 1, 1)
    assert step.latency.median_ms == pytest.approx(step.parts.forward.median_ms + step.parts.backward.median_ms)
    assert step.parts.preprocess is None
    assert "no pass of its own" in step.parts.missing["preprocess"]
    assert step.tflops is None
    assert step.memory.outputs_bytes == (2 * 64 * 64 * 2 + 2 * 64 * 4) + (2 + 1 + 1) * 64 * 64 * 2
    (backward,) = results(living.run(request(direction="backward")))
    assert backward.gradients.dq == step.gradients.dq, "the same seed, the same dO"
    assert (backward.parts, backward.latency.n, backward.label) == (None, 1, "native bwd")


@has_triton
def test_fp8_runs_its_forward_and_the_backward_answers_for_that_output(living):
    (found,) = results(living.run(request("v3", direction="both", precision=Precision(fp8=True))))
    assert found.error is None
    assert found.gradients.passed
    assert found.backward_tiles.dq is not None
    assert found.parts.preprocess is not None
    for _, one in found.gradients.named:
        assert one.relative_error < one.allowed_relative_error < 4e-3 < one.end_to_end_relative_error


def test_wrong_gradients_show_their_error_and_no_speed(run_here, monkeypatch):
    honest = backward_autograd.backward

    def wrong(*args):
        return replace(honest(*args), dk=honest(*args).dk * 1.1)

    monkeypatch.setattr(backward_autograd, "backward", wrong)
    for direction in ("backward", "both"):
        (found,) = results(run_here(request(direction=direction)))
        assert found.accuracy.passed
        assert [name for name, one in found.gradients.named if not one.passed] == ["dk"]
        assert (found.latency, found.parts, found.error) == (None, None, None)
        (flag,) = (flag for flag in found.flags if flag.severity == "bad")
        assert flag.sentence.startswith("The backward of native is wrong: dk is 0.1 off, and rounding explains at most 0.00")


def test_of_a_wrong_output_no_gradients_are_asked(run_here, monkeypatch):
    monkeypatch.setitem(VERSIONS, "faulty", replace(VERSIONS["faulty"], backwards=("autograd",)))
    (found,) = results(run_here(request("faulty", head_dim=16, direction="both")))
    assert not found.accuracy.passed
    assert (found.gradients, found.latency, found.error) == (None, None, None)


def test_a_backward_that_fails_is_its_own_failure(run_here, monkeypatch):
    def failing(*args):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")

    monkeypatch.setattr(backward_autograd, "backward", failing)
    first, second = results(run_here(request("v9", direction="both"), request(direction="both")))
    assert "kernel = v9 is not known" in first.error.sentence
    assert second.error.kind == "out_of_memory"
    assert second.accuracy.passed, "the forward was right"
    assert second.latency is None


@pytest.mark.parametrize(("head_dim", "said"), [(16, "off, and rounding explains at most"), (32, "NaN or infinite")])
def test_a_wrong_kernel_shows_its_error_and_no_speed(run_here, head_dim, said):
    (found,) = results(run_here(request("faulty", head_dim=head_dim)))
    assert not found.accuracy.passed
    assert found.latency is None
    assert found.error is None
    wrong = next(flag for flag in found.flags if flag.name == "wrong output")
    assert wrong.severity == "bad"
    assert said in wrong.sentence


@pytest.mark.parametrize(
    ("head_dim", "kind", "said"),
    [
        (64, "out_of_memory", "faulty ran out of memory"),
        (96, "launch", "ZeroDivisionError: a bug of the kernel"),
        (128, "refused", "needs 544 KiB of shared memory a program; this GPU has 227 KiB"),
    ],
)
def test_a_failure_is_its_own_requests_alone(run_here, head_dim, kind, said):
    messages = run_here(request("faulty", head_dim=head_dim), request("native", head_dim=head_dim))
    failed, right = results(messages)
    assert failed.error.kind == kind
    assert said in failed.error.sentence
    assert "Traceback" in failed.error.raw
    assert failed.latency is None
    assert right.error is None
    assert right.latency is not None
    assert messages[-1].healthy


def test_a_lost_context_takes_the_rest_with_it_and_asks_for_a_new_worker(run_here):
    messages = run_here(*(request(kernel, head_dim=80) for kernel in ("native", "faulty", "native")))
    before, failed, after = results(messages)
    assert before.latency is not None
    assert failed.error.kind == after.error.kind == "launch"
    assert "illegal memory access" in failed.error.sentence
    assert after.error.sentence == "native was not run: faulty broke the GPU's context before."
    assert not messages[-1].healthy


@has_triton
def test_what_was_refused_before_it_was_loaded_is_not_compiled(run_here, monkeypatch):
    """A request that needs too much memory is not one whose tiles are too wide: narrower ones would not cure it."""
    compiled: list[str] = []
    monkeypatch.setattr(InterpreterBench, "report_compiler", lambda self, case: compiled.append(case.request.kernel))
    monkeypatch.setattr(InterpreterBench, "begin_case", lambda self, case: None)
    monkeypatch.setattr("profiling.memory.free_host_bytes", lambda: 1 << 20)
    large, unknown, _native = results(
        run_here(*(request(kernel, probes=("compile",), seq_len=4096) for kernel in ("v2", "v9", "native")))
    )
    assert large.error.unit == "bytes"
    assert unknown.error.kind == "refused"
    assert compiled == []


def test_a_job_of_failures_alone_ends_well(run_here):
    messages = run_here(request("faulty", head_dim=96))
    assert messages[-1] == Done(job_id="job", healthy=True)


# The GPU's bench, as far as it goes without one: a timer and an NVML in memory.


class ListedTimer:
    """A launch takes what the run returns, in milliseconds."""

    def estimate_ms(self, run):
        return run().output

    def batch(self, run, count):
        return Batch([run().output for _ in range(count)])


class GpuInMemory(GpuBench):
    """GpuBench with what needs CUDA replaced."""

    def __init__(self, monkeypatch, tmp_path, *nvml_lines: str) -> None:
        FakeNvml(tmp_path, "count 2", *nvml_lines).load(monkeypatch)
        monkeypatch.setattr("profiling.gpu_lock.tempfile.gettempdir", lambda: str(tmp_path))
        facts = DeviceFacts(id="GPU-1", kind="gpu", name="NVIDIA H200", capability=90, peak_bf16_tflops=989.5)
        environment = Environment(
            device=facts, python_version="3", torch_version="2", triton_version="3", cuda_version="13",
            driver_version="580", commit=None,
        )  # fmt: skip
        super().__init__(environment, torch.device("cpu"))
        self._timer = ListedTimer()


def right_case(index: int, launches, fp8: bool = False) -> Case:
    case = Case(index, request(device="GPU-1", precision=Precision(fp8=fp8)))
    case.accuracy = Accuracy(
        provenance="measured", relative_error=0.0, max_abs_error=0.0, allowed_relative_error=1.0, allowed_because="",
        lse_max_abs_error=0.0, allowed_lse_error=1.0, non_finite=0, rows_checked=1, rows_total=1, passed=True,
    )  # fmt: skip
    case.forward = launches
    case.prepare_and_run = lambda inputs: lambda: Step(2 * launches())
    return case


def test_gpu_timing_fills_latencies_and_flags(monkeypatch, tmp_path):
    bench = GpuInMemory(monkeypatch, tmp_path)
    cases = [right_case(0, lambda: 20.0), right_case(1, lambda: 30.0, fp8=True)]
    said: list[tuple] = []
    bench.time(cases, lambda case: (), lambda *words: said.append(words))
    assert [case.latency.median_ms for case in cases] == [20.0, 30.0]
    assert cases[0].with_prepass is None
    assert cases[1].with_prepass.median_ms == 60.0
    assert [flag.short for flag in cases[0].flags] == [
        "alone on the GPU", "clock steady 1,980 MHz", "power cap", "L2 flushed", "launch overhead hidden",
        "below physical peak",
    ]  # fmt: skip
    assert cases[0].latency.stopped == "quiet"
    assert [words[2:] for words in said] == [(done, ROUNDS) for done in range(ROUNDS + 1)]


def test_a_case_that_fails_while_timed_leaves_the_others_their_rounds(monkeypatch, tmp_path):
    bench = GpuInMemory(monkeypatch, tmp_path)
    launches = iter([1.0] * 100)

    def runs_out() -> float:
        try:
            return next(launches)
        except StopIteration:
            raise torch.OutOfMemoryError("CUDA out of memory") from None

    cases = [right_case(0, lambda: 20.0), right_case(1, runs_out)]
    bench.time(cases, lambda case: (), lambda *words: None)
    assert cases[1].error.kind == "out_of_memory"
    assert cases[1].latency is None
    assert cases[0].error is None
    assert cases[0].latency.n == 30


def test_impossible_speed_and_another_process_are_flagged(monkeypatch, tmp_path):
    bench = GpuInMemory(monkeypatch, tmp_path, "compute_pids 1,2")
    case = right_case(0, lambda: 1e-9)
    bench.time([case], lambda case: (), lambda *words: None)
    assert {"GPU shared", "implausible"} <= {flag.short for flag in case.flags}


# The compiler's process


def test_a_compiler_that_dies_or_hangs_is_an_answer(monkeypatch):
    question = Question(request=request("v2"), capability=90)
    popen = subprocess.Popen

    def start(code):
        def run_other(command, **options):
            return popen([sys.executable, "-c", code], **options)

        monkeypatch.setattr("profiling.compiler_process.subprocess.Popen", run_other)

    compiler = CompilerProcess(limit_s=SECONDS)
    start("import sys; sys.stdin.readline(); sys.exit(3)")
    compiler.ask(question)
    assert compiler.answer().error.kind == "crashed"
    hasty = CompilerProcess(limit_s=0.5)
    start("import time; time.sleep(600)")
    hasty.ask(question)
    hasty.ask(question)
    assert hasty.answer().error.kind == "timeout"
    assert hasty.answer().error.kind == "crashed"
    start(f"import sys; sys.stdin.readline(); print({Answer().model_dump_json()!r}, flush=True); sys.stdin.readline()")
    compiler.ask(question)
    assert compiler.answer() == Answer()
    compiler.close()


# The environment


def test_commit_of_a_checkout(tmp_path):
    assert worker.commit_of(tmp_path) == (None, "this is no git checkout")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert worker.commit_of(tmp_path)[0] is None
    (tmp_path / "file").write_text("1")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "one"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert worker.commit_of(tmp_path)[0] == head
    (tmp_path / "file").write_text("2")
    assert worker.commit_of(tmp_path)[0] == f"{head}-dirty"


def test_job_ids_of_broken_lines():
    assert worker._job_id(json.dumps({"job_id": "x", "more": 1})) == "x"
    assert worker._job_id("[1]") == worker._job_id("nonsense") == "unknown"


@pytest.mark.parametrize("direction", ["backward", "both"])
def test_nothing_that_autograd_runs_is_captured(monkeypatch, tmp_path, direction):
    bench = GpuInMemory(monkeypatch, tmp_path)
    case = Case(0, request(kernel="native", device="GPU-1", direction=direction), entry=VERSIONS["native"])
    with pytest.raises(Refused, match="a graph of the backward of native is not possible"):
        bench._graph_of(case, 1)
