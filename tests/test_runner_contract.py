"""What every runner does, on this machine's queue and on a Ray cluster of two nodes, with a scripted worker; then Ray alone."""

from __future__ import annotations

import contextlib
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernels.problem import AttentionProblem
from profiling.job_queue import JobQueue, JobView
from profiling.lane import Limits
from profiling.ray_job import device_given, devices_here
from profiling.ray_messages import Devices, HostDevice
from profiling.ray_process import CannotConnect, _connected
from profiling.ray_runner import RayRunner
from profiling.records import INTERPRETER, DeviceFacts, RunRequest
from profiling.runner import Runner, runner_at, runner_from
from profiling.terminal import BadInput
from tests.fake_hosts import VARIABLE, described
from tests.ray_nodes import LocalCluster, local_cluster
from tests.test_job_queue import errors, wait_until_gone

pytestmark = pytest.mark.xdist_group("ray")

PROBLEM = AttentionProblem(seq_len_q=64, seq_len_kv=64, head_dim=64, num_heads=1, num_kv_heads=1)
LIMITS = Limits(ready_s=200.0, compile_s=4.0, phase_s=4.0, job_s=600.0)
FAKE_WORKER = ("-m", "tests.fake_worker")
H200, L4 = "NVIDIA H200", "NVIDIA L4"
PATIENCE_S = 300.0


@dataclass(frozen=True)
class Ground:
    """Where runners are made. interpreters: how many jobs of the interpreter run at the same time there."""

    make: Callable[[], Runner]
    interpreters: int
    cluster: LocalCluster | None = None


@pytest.fixture(scope="module")
def marked(tmp_path_factory) -> Iterator[Path]:
    """Where gates are opened. Every process that is started from here on has a mark, and none of them is left at the end."""
    mark, gate = uuid.uuid4().hex, tmp_path_factory.mktemp("gates") / "gate"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHSCOPE_TEST", mark)
        patch.setenv("FLASHSCOPE_TEST_GATE", str(gate))
        yield gate
        assert not wait_until_gone(f"FLASHSCOPE_TEST={mark}"), "a process outlived the cluster"


@pytest.fixture(scope="module")
def ray_ground(marked) -> Iterator[Ground]:
    with local_cluster() as cluster, pytest.MonkeyPatch.context() as patch:
        cluster.add(interpreter=1)
        cluster.add({VARIABLE: f"GPU-1={H200},GPU-2={H200}"}, interpreter=1, GPU=2)
        for name, value in cluster.environment.items():
            patch.setenv(name, value)
        yield Ground(lambda: RayRunner(cluster.address, LIMITS, "tests.fake_hosts:described", FAKE_WORKER), 2, cluster)


@pytest.fixture(scope="module")
def local_ground(marked) -> Ground:
    def make() -> Runner:
        return JobQueue(described, lambda device: (sys.executable, *FAKE_WORKER, device), LIMITS)

    return Ground(make, 1)


@pytest.fixture(scope="module", params=["local", "ray"])
def ground(request) -> Ground:
    return request.getfixturevalue(f"{request.param}_ground")


@pytest.fixture(scope="module")
def on_ray(ray_ground) -> Iterator[RayRunner]:
    made = ray_ground.make()
    yield made
    made.close()


@pytest.fixture(scope="module")
def here(local_ground) -> Iterator[JobQueue]:
    made = local_ground.make()
    yield made
    made.close()


@pytest.fixture(scope="module")
def runner(ground, request) -> Runner:
    return request.getfixturevalue("on_ray" if ground.cluster else "here")


@pytest.fixture
def gate(marked) -> Callable[[int], None]:
    """gate(seed) lets the workers of the kernel `gate` that wait with this seed go on; it is closed for the others."""

    def opened(seed: int) -> None:
        Path(f"{marked}-{seed}").touch()

    return opened


def requests(*kernels: str, device: str = INTERPRETER, seed: int = 0) -> tuple[RunRequest, ...]:
    return tuple(RunRequest(kernel=kernel, problem=PROBLEM, device=device, seed=seed) for kernel in kernels)


def finished(runner: Runner, job_id: str) -> JobView:
    view = runner.wait(job_id, PATIENCE_S)
    assert view.finished, view
    return view


def wait_until(found: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not found():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.02)


def is_timing(runner: Runner, job_id: str) -> bool:
    progress = runner.view(job_id).progress
    return progress is not None and progress.phase == "latency"


def worker_of(view: JobView) -> str:
    """The fake worker's process, which it tells as its device's name."""
    return view.results[0].environment.device.name


# Every runner


def test_a_job_is_answered_request_by_request(runner):
    assert isinstance(runner, Runner)
    assert INTERPRETER in {device.id for device in runner.devices()}
    assert runner.devices_ready
    runner.warm(INTERPRETER)
    view = finished(runner, runner.submit(requests("ok", "ok", "ok"), "ann"))
    assert (view.state, errors(view), view.owner) == ("done", [None] * 3, "ann")
    assert [result.request for result in view.results] == list(requests("ok", "ok", "ok")) == list(view.requests)
    assert (view.position, view.jobs_ahead, view.running_title) == (None, 0, None)
    assert view.submitted_at <= view.finished_at
    assert runner.environment(INTERPRETER) == view.results[0].environment
    assert view.job_id in {one.job_id for one in runner.jobs("ann")}
    assert not runner.jobs("nobody")
    assert not runner.cancel(view.job_id)


def test_a_fault_fails_its_own_job_alone_and_what_had_arrived_is_kept(runner):
    faults = {
        "hang-check": ("timeout", "The check phase did not move on for 4 s, its limit"),
        "signal-SIGSEGV": ("crashed", "signal 11 (SIGSEGV) in the middle of the job"),
        "garbage": ("crashed", "a line that is no message"),
    }
    ids = {how: runner.submit(requests("ok", how), "me") for how in faults}
    behind = runner.submit(requests("ok", seed=7), "you")
    for how, (kind, sentence) in faults.items():
        view = finished(runner, ids[how])
        assert (view.state, errors(view)) == ("done", [None, kind])
        assert sentence in view.results[1].error.sentence
    healthy = finished(runner, behind)
    assert errors(healthy) == [None]
    assert healthy.results[0].request.seed == 7
    assert healthy.results[0].flags[0].short == behind  # answered for this job, not for another


def test_jobs_wait_in_order_and_are_cancelled_waiting_or_running(runner, ground):
    front = [runner.submit(requests("ok", "gate"), f"front {place}") for place in range(ground.interpreters)]
    waiting = [runner.submit(requests("ok", seed=place), "behind") for place in range(2)]
    for job_id in front:
        wait_until(lambda job_id=job_id: is_timing(runner, job_id), "the job in front runs")
    views = [runner.view(job_id) for job_id in (front[0], *waiting)]
    assert [view.state for view in views] == ["running", "queued", "queued"]
    assert [view.position for view in views] == [1, 2, 3]
    assert [view.jobs_ahead for view in views] == [0, 1, 2]
    assert views[1].running_owner in {f"front {place}" for place in range(ground.interpreters)}
    assert views[0].elapsed_s > 0.0 == views[1].elapsed_s
    assert runner.cancel(waiting[0])
    view = runner.view(waiting[0])
    assert (view.state, errors(view)) == ("cancelled", ["cancelled"])
    assert view.results[0].error.sentence == "Cancelled while it waited."
    for job_id in front:
        assert runner.cancel(job_id)
        view = finished(runner, job_id)
        assert (view.state, errors(view)) == ("cancelled", [None, "cancelled"])
        assert view.results[1].error.sentence == "Cancelled while it ran."
        assert not runner.cancel(job_id)
    assert errors(finished(runner, waiting[1])) == [None]


def test_what_cannot_be_is_refused_in_a_sentence(runner):
    with pytest.raises(ValueError, match=r"device = GPU-9 is not here: it can be .*interpreter\."):
        runner.submit(requests("ok", device="GPU-9"), "me")
    with pytest.raises(ValueError, match="device = GPU-9 is not here"):
        runner.warm("GPU-9")
    with pytest.raises(ValueError, match="must share problem, device"):
        runner.submit(requests("ok") + requests("ok", seed=1), "me")
    for asked in (runner.view, runner.wait, runner.cancel):
        with pytest.raises(KeyError):
            asked("no such job")


def test_closing_cancels_what_is_left(ground):
    closing = ground.make()
    ids = [closing.submit(requests("gate"), "me") for _ in range(ground.interpreters + 1)]
    wait_until(lambda: is_timing(closing, ids[0]), "the first job runs")
    closing.close()
    closing.close()
    assert [closing.view(job_id).state for job_id in ids] == ["cancelled"] * len(ids)
    with pytest.raises(ValueError, match="closed"):
        closing.submit(requests("ok"), "me")


# Ray


def test_a_gpu_has_one_job_at_a_time_each_with_a_fresh_worker_and_the_result_names_it(on_ray, gate):
    assert [device.id for device in on_ray.devices()] == ["GPU-1", "GPU-2", INTERPRETER]
    ids = [on_ray.submit(requests("gate", device="GPU-1", seed=seed), "me") for seed in (11, 11, 12)]
    wait_until(lambda: all(is_timing(on_ray, job_id) for job_id in ids[:2]), "both GPUs are busy")
    views = [on_ray.view(job_id) for job_id in ids]
    assert {view.device for view in views[:2]} == {"GPU-1", "GPU-2"}
    assert (views[2].state, views[2].jobs_ahead) == ("queued", 1)
    gate(11)
    gate(12)
    views = [finished(on_ray, job_id) for job_id in ids]
    for view in views:
        (result,) = view.results
        assert errors(view) == [None]
        assert result.request.device == result.environment.device.id == view.device
        assert result.environment.triton_version == "unset"  # only the interpreter interprets
        assert view.host
        assert view.host not in result.model_dump_json()  # whose machine it was is nobody's business
    assert len({worker_of(view) for view in views}) == 3


def test_a_host_lost_in_mid_sweep_costs_only_what_ran_there_and_that_is_run_again(on_ray, ray_ground, gate):
    before = finished(on_ray, on_ray.submit(requests("ok", seed=20), "sweep"))
    lost = ray_ground.cluster.add({VARIABLE: f"GPU-3={L4}"}, interpreter=1, GPU=1)
    wait_until(lambda: "GPU-3" in {device.id for device in on_ray.devices()}, "the third node is there")
    on_l4 = [on_ray.submit(requests("gate", device="GPU-3", seed=22), "sweep") for _ in range(2)]
    cells = [on_ray.submit(requests("gate", seed=21), "sweep") for _ in range(4)]
    wait_until(lambda: all(is_timing(on_ray, job_id) for job_id in (on_l4[0], *cells[:3])), "all three nodes are busy")
    ray_ground.cluster.kill(lost)
    wait_until(lambda: on_ray.view(on_l4[0]).finished, "the loss is noticed")
    # It waits, as the other nodes are busy. Until then its worker, whom nobody took away, might still answer.
    wait_until(lambda: any(on_ray.view(job_id).state == "queued" for job_id in cells[:3]), "what ran there waits again")
    gate(21)
    after = [finished(on_ray, job_id) for job_id in cells]
    assert on_ray.view(before.job_id) == before
    assert [errors(view) for view in after] == [[None]] * 4
    again = [flag for view in after for flag in view.results[0].flags if flag.name == "run again"]
    assert [flag.short for flag in again] == ["run again once"]
    assert "The host that ran it was lost; nothing of that run was kept" in again[0].sentence
    for job_id in on_l4:  # no other model takes its place
        (result,) = finished(on_ray, job_id).results
        assert result.error.kind == "crashed"
        assert "No NVIDIA L4 is left in the cluster." in result.error.sentence
        assert result.request.device == "GPU-3"
    assert [device.id for device in on_ray.devices()] == ["GPU-1", "GPU-2", INTERPRETER]


@pytest.mark.long
def test_the_command_line_runs_the_real_interpreter_on_a_cluster(ray_ground):
    from tests.test_cli import call

    done = call("run", "--kernel", "v2", "--seq-len", "64", "--probes", "accuracy", "--json",
                "--cluster", ray_ground.cluster.address)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"passed": true' in done.stdout


@pytest.mark.long
def test_who_has_not_the_token_is_not_let_in(ray_ground, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex)
    with contextlib.closing(ray_ground.make()) as runner:
        (device,) = runner.devices()
    assert device.id == INTERPRETER
    assert "does not take this machine's token" in device.missing["gpu"]


@pytest.mark.long
def test_a_host_where_ray_asks_for_no_token_is_not_used(marked, monkeypatch):
    with local_cluster(RAY_AUTH_MODE="disabled") as cluster:
        cluster.add(interpreter=1)
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)
        with contextlib.closing(RayRunner(cluster.address, LIMITS, "tests.fake_hosts:described", FAKE_WORKER)) as runner:
            (device,) = runner.devices()
    assert device.id == INTERPRETER
    assert "is left out: Ray was started there without RAY_AUTH_MODE=token" in device.missing["gpu"]


@pytest.mark.long
def test_when_the_whole_cluster_goes_its_jobs_say_so_and_nothing_else_ends(marked, monkeypatch):
    with contextlib.ExitStack() as later:
        with local_cluster() as cluster:
            cluster.add(interpreter=1)
            for name, value in cluster.environment.items():
                monkeypatch.setenv(name, value)
            runner = later.enter_context(
                contextlib.closing(RayRunner(cluster.address, LIMITS, "tests.fake_hosts:described", FAKE_WORKER))
            )
            ids = [runner.submit(requests("ok", "gate"), "me") for _ in range(2)]
            wait_until(lambda: is_timing(runner, ids[0]), "the first job runs")
        views = [finished(runner, job_id) for job_id in ids]
        assert [view.state for view in views] == ["done", "done"]
        for view in views:
            assert errors(view)[1] == "crashed"
            assert "luster" in view.results[1].error.sentence, view.results[1].error
        wait_until(lambda: runner.problem is not None, "the loss of the cluster")
        (device,) = runner.devices()
        assert device.missing["gpu"] == runner.problem


# Without a cluster


def test_without_a_cluster_the_interpreter_here_is_left_and_says_why(marked):
    runner = RayRunner("127.0.0.1:1", LIMITS)
    (device,) = runner.devices()
    problem = runner.problem
    job_id = runner.submit(requests("v2"), "me")
    assert runner.cancel(job_id)
    assert finished(runner, job_id).state == "cancelled"
    assert [view.job_id for view in runner.jobs("me")] == [job_id]
    runner.close()
    assert device.id == INTERPRETER
    assert device.missing["gpu"] == problem
    assert "cluster = 127.0.0.1:1 cannot be reached: " in problem


def test_a_command_is_not_run_elsewhere_when_its_cluster_cannot_be_had(marked):
    class Options:
        cluster = "no-port"

    with pytest.raises(BadInput, match="cluster = no-port cannot be reached"), runner_from(Options):
        pytest.fail("there is no such cluster")


def test_the_variable_names_a_cluster_and_without_one_the_queue_is_here(marked, monkeypatch):
    monkeypatch.delenv("FLASHSCOPE_CLUSTER", raising=False)
    here = runner_at()
    here.close()
    assert isinstance(here, JobQueue)
    monkeypatch.setenv("FLASHSCOPE_CLUSTER", "127.0.0.1:1")
    there = runner_at()
    there.close()
    assert isinstance(there, RayRunner)
    assert there.address == "127.0.0.1:1"


def test_without_ray_a_sentence_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(CannotConnect, match=r"Ray is not installed: .*pip install -r requirements-cluster\.txt"):
        _connected("auto")


def gpu(uuid: str, name: str = H200) -> DeviceFacts:
    return DeviceFacts(id=uuid, kind="gpu", name=name, capability=90)


def offered(found: tuple[DeviceFacts, ...], gpus: int, visible: str | None = None, interpreters: int = 0) -> Devices:
    return devices_here((*found, described()[-1]), "host", "node", {"GPU": gpus, "interpreter": interpreters}, visible)


@pytest.mark.parametrize(
    ("gpus", "visible", "ids"),
    [
        (3, None, ["GPU-1", "GPU-2", "GPU-3"]),
        (2, None, ["GPU-1", "GPU-2"]),
        (0, None, []),
        (1, "2", ["GPU-3"]),
        (2, "2,0", ["GPU-1", "GPU-3"]),
        (1, "GPU-2", ["GPU-2"]),
    ],
)
def test_a_node_offers_the_gpus_that_ray_gives_out_there(gpus, visible, ids):
    found = tuple(gpu(f"GPU-{number}") for number in (1, 2, 3))
    assert [one.device.id for one in offered(found, gpus, visible).devices] == ids


def test_a_node_with_several_models_is_left_out_with_a_sentence_and_keeps_its_interpreter():
    devices = offered((gpu("GPU-1"), gpu("GPU-2", L4)), 2, interpreters=4)
    assert [(one.device.id, one.at_once) for one in devices.devices] == [(INTERPRETER, 4)]
    assert devices.left_out[0].startswith(f"The GPUs of host are left out: they are of several models ({H200}, {L4})")
    assert len(offered((gpu("GPU-1"), gpu("GPU-2", L4)), 1, "1").devices) == 1


def test_which_gpu_was_given_is_told_by_number_or_uuid_and_a_stranger_is_refused():
    here = offered((gpu("GPU-1"), gpu("GPU-2")), 2).devices
    candidates = (*(one.model_copy(update={"node_id": "elsewhere"}) for one in here), *here)
    assert device_given(candidates, "node", "1") == here[1]
    assert device_given(candidates, "node", "GPU-1") == here[0]
    with pytest.raises(ValueError, match="Ray gave the GPU 2, which is none of GPU-1, GPU-2"):
        device_given(candidates, "node", "2")


def test_devices_of_one_model_alone_may_stand_in_for_each_other():
    def model(device: DeviceFacts) -> tuple[object, ...]:
        return HostDevice(host="host", node_id="node", device=device).model

    assert model(gpu("GPU-1")) == model(gpu("GPU-2"))
    assert model(gpu("GPU-1")) != model(gpu("GPU-1", L4))
    assert model(gpu("GPU-1")) != model(gpu("GPU-1").model_copy(update={"memory_bytes": 1 << 30}))
