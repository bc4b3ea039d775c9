"""The queue against a scripted worker that hangs, dies and lies, and against the real one."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernels.problem import AttentionProblem, TileConfig
from profiling.job_queue import JobQueue, JobView
from profiling.lane import Limits
from profiling.records import INTERPRETER, DeviceFacts, RunRequest
from profiling.worker_process import ROOT, worker_command

PROBLEM = AttentionProblem(seq_len_q=64, seq_len_kv=64, head_dim=64, num_heads=1, num_kv_heads=1)
INTERPRETER_FACTS = DeviceFacts(id=INTERPRETER, kind="interpreter", name="Interpreter (CPU)")
OTHER_FACTS = DeviceFacts(id="GPU-1", kind="gpu", name="GPU one")
SECONDS = 120.0
USUAL = Limits()
QUICK = Limits(ready_s=SECONDS, compile_s=2.5, phase_s=2.0, job_s=3.5)


def fake(start: str = ""):
    return lambda device: (sys.executable, "-m", "tests.fake_worker", device, start)


@contextmanager
def marked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., JobQueue]]:
    """Makes queues; at the end they are closed, and no process that was started meanwhile is left."""
    mark = f"FLASHSCOPE_TEST={uuid.uuid4().hex}"
    monkeypatch.setenv(*mark.split("="))
    queues: list[JobQueue] = []

    def make(start: str = "", limits: Limits = USUAL, command=None) -> JobQueue:
        queues.append(JobQueue(lambda: (OTHER_FACTS, INTERPRETER_FACTS), command or fake(start), limits))
        return queues[-1]

    yield make
    for queue in queues:
        queue.close()
    assert not wait_until_gone(mark), "a process outlived the queue"


@pytest.fixture
def make_queue(monkeypatch):
    with marked(monkeypatch) as make:
        yield make


@pytest.fixture(scope="module")
def lasting_queue():
    """One queue for faults one after the other: whatever one did, the next begins with the worker that followed it."""
    with pytest.MonkeyPatch.context() as patch, marked(patch) as make:
        yield make()


def requests(*kernels: str, device: str = INTERPRETER, seed: int = 0) -> tuple[RunRequest, ...]:
    return tuple(RunRequest(kernel=kernel, problem=PROBLEM, device=device, seed=seed) for kernel in kernels)


def run(queue: JobQueue, *kernels: str, device: str = INTERPRETER) -> JobView:
    view = queue.wait(queue.submit(requests(*kernels, device=device), "me"), SECONDS)
    assert view.finished
    return view


def errors(view: JobView) -> list[str | None]:
    return [result.error.kind if result.error else None for result in view.results]


def wait_until_gone(mark: str) -> set[int]:
    """Processes other than this one that have the mark in their environment, workers' children too, after up to two minutes."""
    for _ in range(2400):
        found = {int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark.encode() in _content(path)}
        if not found - {os.getpid()}:
            break
        time.sleep(0.05)
    return found - {os.getpid()}


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def running_phase(queue: JobQueue, job_id: str, phase: str) -> None:
    for _ in range(6000):
        progress = queue.view(job_id).progress
        if progress is not None and progress.phase == phase:
            return
        time.sleep(0.01)
    raise AssertionError(f"the job never came to {phase}: {queue.view(job_id)}")


def worker_pid(queue: JobQueue) -> int:
    return int(queue.environment(INTERPRETER).device.name)


def test_a_job_is_answered_request_by_request(make_queue):
    view = run(make_queue(), "ok", "ok", "ok")
    assert (view.state, errors(view), view.position) == ("done", [None] * 3, None)
    assert [result.request for result in view.results] == list(view.requests)
    assert view.title == "ok, ok, ok · 64 tokens · head_dim 64"
    assert view.submitted_at <= view.finished_at


def test_a_worker_serves_many_jobs_and_only_the_interpreter_interprets(make_queue, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    queue = make_queue()
    first, second = run(queue, "ok"), run(queue, "ok")
    on_gpu = run(queue, "ok", device="GPU-1")
    pids = {view.results[0].environment.device.name for view in (first, second)}
    assert len(pids) == 1
    assert first.results[0].environment.triton_version == "1"
    assert on_gpu.results[0].environment.triton_version == "unset"


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("hang-check", "The check phase did not move on for 2 s, its limit"),
        ("hang-compile", "The compile phase did not move on for 2.5 s, its limit"),
        ("flood", "The job took more than 3.5 s, its limit; it was stopped in the latency phase."),
    ],
)
def test_a_hang_fails_its_own_job_and_the_next_one_runs(make_queue, how, sentence):
    fails_its_own_job(make_queue(limits=QUICK), how, "timeout", sentence)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("deaf", "signal 9"),
        ("signal-SIGKILL", "signal 9 (SIGKILL) in the middle of the job"),
        ("signal-SIGSEGV", "signal 11 (SIGSEGV)"),
        ("signal-SIGABRT", "signal 6 (SIGABRT)"),
        ("exit-3", "exit code 3"),
        ("exit-0", "exit code 0"),
        ("cut", "exit code 1"),
        ("garbage", "a line that is no message"),
        ("nan", "a line that is no message"),
        ("other-job", "a job that it was not given"),
        ("other-request", "a request that it was not given"),
        ("other-index", "a request that it was not given (number 99)"),
        ("silent", "without a result"),
    ],
)
def test_a_fault_fails_its_own_job_and_the_next_one_runs(lasting_queue, how, sentence):
    fails_its_own_job(lasting_queue, how, "crashed", sentence)


def fails_its_own_job(queue: JobQueue, how: str, kind: str, sentence: str) -> None:
    faulty = queue.submit(requests("ok", how), "me")
    behind = queue.submit(requests("ok"), "you")
    view, following = queue.wait(faulty, SECONDS), queue.wait(behind, SECONDS)
    assert (view.state, errors(view)) == ("done", [None, kind])  # what had arrived is kept
    assert sentence in view.results[1].error.sentence
    assert errors(following) == [None]
    assert following.results[0].flags[0].short == behind


def test_the_last_words_of_a_dead_worker_are_kept(make_queue):
    assert run(make_queue(), "exit-3").results[0].error.raw == "the last words"


@pytest.mark.parametrize("how", ["orphan-hang", "orphan-kill"])
def test_what_a_worker_had_started_dies_with_it(make_queue, how):
    view = run(make_queue(limits=QUICK), how)
    child = int(re.search(r"child (\d+)", view.results[0].error.raw)[1])
    for _ in range(1000):
        if not alive(child):
            break
        time.sleep(0.02)
    assert not alive(child)


@pytest.mark.parametrize(
    ("start", "kind", "sentence"),
    [
        ("hang", "timeout", "not ready within 1 s"),
        ("crash", "crashed", "exit code 1 before it was ready"),
        ("lie", "crashed", "The worker runs on GPU-other, not on interpreter"),
    ],
)
def test_a_worker_that_never_gets_ready_fails_the_job(make_queue, start, kind, sentence):
    queue = make_queue(start, Limits(ready_s=1.0 if start == "hang" else SECONDS))
    view = run(queue, "ok")
    assert errors(view) == [kind]
    assert sentence in view.results[0].error.sentence
    environment = view.results[0].environment
    assert environment.device == INTERPRETER_FACTS
    assert "driver_version" in environment.missing
    assert queue.environment(INTERPRETER) is None


def test_a_command_that_does_not_exist_fails_the_job(make_queue):
    view = run(make_queue(command=lambda device: ("/no/such/python",)), "ok")
    assert "could not be started" in view.results[0].error.sentence


def test_start_up_is_not_job_time(make_queue):
    view = run(make_queue("slow", Limits(ready_s=SECONDS, compile_s=1.8, phase_s=1.8, job_s=1.9)), "ok")
    assert errors(view) == [None]


def test_an_unhealthy_worker_is_replaced_without_failing_its_job(make_queue):
    queue = make_queue()
    first, second = run(queue, "unhealthy"), run(queue, "ok")
    assert errors(first) == errors(second) == [None]
    assert first.results[0].environment.device.name != second.results[0].environment.device.name


def test_first_come_first_served_and_everyone_sees_who_is_in_front(make_queue):
    queue = make_queue()
    jobs = (("ann", "slow-2"), ("bob", "slow-0.2"), ("cem", "slow-0.2"))
    ids = [queue.submit(requests(how), owner) for owner, how in jobs]
    running_phase(queue, ids[0], "latency")
    front, second, third = (queue.view(job_id) for job_id in ids)
    assert [view.state for view in (front, second, third)] == ["running", "queued", "queued"]
    assert [view.position for view in (front, second, third)] == [1, 2, 3]
    assert [view.jobs_ahead for view in (front, second, third)] == [0, 1, 2]
    assert (third.running_owner, third.running_title) == ("ann", front.title)
    assert third.estimated_wait_s is None  # nothing of the kind was measured yet
    assert front.elapsed_s > 0.0 == second.elapsed_s
    views = [queue.wait(job_id, SECONDS) for job_id in ids]
    assert sorted(view.finished_at for view in views) == [view.finished_at for view in views]
    assert [view.job_id for view in queue.jobs("bob")] == [ids[1]]
    assert [view.job_id for view in queue.jobs()] == ids


def test_the_wait_is_estimated_from_jobs_of_the_same_kind(make_queue):
    queue = make_queue()
    took_s = run(queue, "slow-0.5").elapsed_s
    ids = [queue.submit(requests("slow-0.5"), "me") for _ in range(4)]
    # Three are in front, of which the first runs already; the one that was measured waited for the worker to start, too.
    assert 0.4 < queue.view(ids[3]).estimated_wait_s <= 3 * took_s
    assert queue.view(queue.submit(requests("ok"), "me")).estimated_wait_s <= 4 * took_s
    assert queue.view(queue.submit(requests("ok"), "me")).estimated_wait_s is None  # behind a kind never measured


def test_a_queued_job_is_cancelled_without_disturbing_the_running_one(make_queue):
    queue = make_queue()
    running, queued = queue.submit(requests("slow-1"), "me"), queue.submit(requests("ok"), "me")
    assert queue.cancel(queued)
    assert (queue.view(queued).state, errors(queue.view(queued))) == ("cancelled", ["cancelled"])
    assert errors(queue.wait(running, SECONDS)) == [None]
    assert not queue.cancel(running)


def test_a_running_job_is_cancelled_by_killing_its_worker(make_queue):
    queue = make_queue()
    job_id = queue.submit(requests("ok", "hang-check"), "me")
    behind = queue.submit(requests("ok"), "me")
    running_phase(queue, job_id, "check")
    pid = worker_pid(queue)
    assert queue.cancel(job_id)
    view = queue.wait(job_id, SECONDS)
    assert (view.state, errors(view)) == ("cancelled", [None, "cancelled"])
    assert not alive(pid)
    assert errors(queue.wait(behind, SECONDS)) == [None]


def test_devices_run_in_parallel(make_queue):
    queue = make_queue()
    hanging = queue.submit(requests("hang-check"), "me")
    assert errors(run(queue, "ok", device="GPU-1")) == [None]
    assert queue.view(hanging).state == "running"


def test_a_warm_worker_is_ready_before_its_first_job(make_queue):
    queue = make_queue()
    queue.warm(INTERPRETER)
    for _ in range(6000):
        if queue.environment(INTERPRETER):
            break
        time.sleep(0.01)
    pid = worker_pid(queue)
    assert run(queue, "ok").results[0].environment.device.name == str(pid)


def test_a_worker_killed_while_idle_is_not_noticed_by_anyone(make_queue):
    queue = make_queue()
    run(queue, "ok")
    os.kill(worker_pid(queue), signal.SIGKILL)
    time.sleep(0.5)
    assert errors(run(queue, "ok")) == [None]


def test_bad_requests_are_refused_in_a_sentence(make_queue):
    queue = make_queue()
    with pytest.raises(ValueError, match="device = GPU-9 is not here: it can be GPU-1, interpreter"):
        queue.submit(requests("ok", device="GPU-9"), "me")
    with pytest.raises(ValueError, match="must share problem, device, seed, inputs and direction"):
        queue.submit(requests("ok") + requests("ok", seed=1), "me")
    with pytest.raises(ValueError, match="requests"):
        queue.submit((), "me")
    with pytest.raises(KeyError):
        queue.view("no such job")


def test_devices_are_found_in_the_background():
    found = threading.Event()
    queue = JobQueue(lambda: (found.wait(SECONDS) and INTERPRETER_FACTS,), fake())
    assert not queue.devices_ready
    found.set()
    assert queue.devices() == (INTERPRETER_FACTS,)
    assert queue.devices_ready
    queue.close()


def test_closing_cancels_what_is_left_and_leaves_no_process(make_queue):
    queue = make_queue()
    ids = [queue.submit(requests(kernel), "me") for kernel in ("orphan-hang", "ok")]
    running_phase(queue, ids[0], "compile")
    pid = worker_pid(queue)
    queue.close()
    queue.close()
    assert [queue.view(job_id).state for job_id in ids] == ["cancelled", "cancelled"]
    assert not alive(pid)
    with pytest.raises(ValueError, match="closed"):
        queue.submit(requests("ok"), "me")


def test_old_jobs_are_forgotten_and_unfinished_ones_are_not(make_queue, monkeypatch):
    monkeypatch.setattr("profiling.job_queue.REMEMBERED_FINISHED_JOBS", 3)
    queue = make_queue()
    waiting = queue.submit(requests("hang-check", device="GPU-1"), "me")
    ids = [run(queue, "ok").job_id for _ in range(6)]
    queue.submit(requests("ok"), "me")
    assert {waiting, *ids[-3:]} <= {view.job_id for view in queue.jobs()}
    assert len(queue.jobs()) == 5


def real_workers() -> list[int]:
    """Living workers of this process."""
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if b"profiling.worker" in _content(path) and f"PPid:\t{os.getpid()}\n".encode() in _content(path.with_name("status"))
    ]


def test_the_real_worker_killed_in_the_middle_of_a_job_is_replaced(make_queue):
    queue = make_queue(command=worker_command)
    longer = PROBLEM.model_copy(update={"seq_len_q": 2048, "seq_len_kv": 2048})
    tiles = TileConfig(block_m=64, block_n=64, num_warps=4, num_stages=1)
    request = RunRequest(kernel="v2", problem=longer, tiles=tiles, probes=("accuracy",))
    killed = queue.submit((request,), "me")
    behind = queue.submit((request.model_copy(update={"problem": PROBLEM}),), "me")
    while (progress := queue.wait(killed, 0.1).progress) is None or progress.phase == "starting":
        pass
    (worker,) = real_workers()
    os.kill(worker, signal.SIGKILL)
    view, following = queue.wait(killed, SECONDS), queue.wait(behind, 2 * SECONDS)
    assert errors(view) == ["crashed"]
    assert "signal 9 (SIGKILL) in the middle of the job" in view.results[0].error.sentence
    assert errors(following) == [None]
    assert following.results[0].accuracy.passed
    assert following.results[0].environment == queue.environment(INTERPRETER)


SERVER = """
import sys
from profiling.job_queue import JobQueue
from profiling.records import RunRequest
queue = JobQueue()
job_id = queue.submit((RunRequest.model_validate_json(sys.argv[1]),), "me")
while (progress := queue.wait(job_id, 0.1).progress) is None or progress.phase == "starting":
    pass
print("running", flush=True)
queue.wait(job_id)
"""


def test_the_real_worker_ends_with_the_process_that_started_it(make_queue):
    """A server that is killed can tell no one: its worker must notice by itself, also in the middle of a job."""
    longer = PROBLEM.model_copy(update={"seq_len_q": 4096, "seq_len_kv": 4096})
    request = RunRequest(kernel="v2", problem=longer, tiles=TileConfig(block_m=64, block_n=64, num_warps=4, num_stages=1))
    server = subprocess.Popen([sys.executable, "-c", SERVER, request.model_dump_json()], cwd=ROOT, stdout=subprocess.PIPE)
    assert server.stdout.readline() == b"running\n"
    server.kill()
    server.wait()
    server.stdout.close()  # the fixture looks for what is left


@pytest.mark.long
def test_a_hundred_faults_in_random_order_lose_no_other_job(make_queue):
    """Hangs, crashes, nonsense, kills from outside and cancels; every healthy job is answered, by its own result."""
    chance = random.Random(7)
    queue = make_queue(limits=QUICK)
    faults = ("hang-check", "orphan-hang", "orphan-kill", "signal-SIGKILL", "signal-SIGSEGV", "exit-3", "garbage", "cut",
              "other-job", "other-request", "unhealthy", "slow-5", "killed from outside", "cancelled")  # fmt: skip
    for round_index in range(120):
        how = faults[round_index] if round_index < len(faults) else chance.choice(faults)
        outside = how in ("killed from outside", "cancelled")
        faulty = queue.submit(requests("ok", "hang-check" if outside else how, seed=round_index), "faulty")
        healthy = queue.submit(requests("ok", "ok", seed=round_index), "healthy")
        if outside:
            running_phase(queue, faulty, "check")
            os.kill(worker_pid(queue), signal.SIGKILL) if how != "cancelled" else queue.cancel(faulty)
        view, following = queue.wait(faulty, 60), queue.wait(healthy, 60)
        assert view.finished, how
        assert (errors(view)[1] is None) == (how == "unhealthy"), how
        assert errors(following) == [None, None], how
        for answered in (view, following):
            assert all(result.request.seed == round_index for result in answered.results)
            assert {flag.short for result in answered.results for flag in result.flags} <= {answered.job_id}
