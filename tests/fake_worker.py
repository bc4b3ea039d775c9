"""A worker that speaks the protocol and misbehaves as the kernel's name asks: `python fake_worker.py DEVICE [START]`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from profiling.records import DeviceFacts, Done, Environment, Flag, Job, Measurement, Progress, Ready, Result, RunRequest

DEVICE = sys.argv[1]
START = sys.argv[2] if len(sys.argv) > 2 else ""


def environment(device_id: str) -> Environment:
    device = DeviceFacts(id=device_id, kind="interpreter" if device_id == "interpreter" else "gpu", name=str(os.getpid()))
    interpret = os.environ.get("TRITON_INTERPRET", "unset")
    return Environment(
        device=device,
        python_version="3",
        torch_version="none",
        triton_version=interpret,
        cuda_version=None,
        driver_version=None,
        commit=None,
    )


def say(message: Ready | Progress | Result | Done) -> None:
    print(message.model_dump_json(), flush=True)


def progress(job: Job, phase: str, text: str = "", done: int = 0) -> None:
    say(Progress(job_id=job.job_id, phase=phase, text=text, done=done))


def result(job: Job, request: RunRequest, index: int, job_id: str | None = None) -> None:
    measurement = Measurement(
        request=request,
        tiles=None,
        environment=environment(DEVICE),
        started_at="2026-01-01T00:00:00+00:00",
        duration_s=0.0,
        flags=(Flag(name="job", severity="info", short=job.job_id, sentence=""),),
    )
    say(Result(job_id=job_id or job.job_id, index=index, measurement=measurement))


def leave_a_child() -> None:
    """A compiler, say: in the worker's group, holding its pipes, and not ending by itself."""
    child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, lambda *_: 0); time.sleep(600)"])
    print(f"child {child.pid}", file=sys.stderr, flush=True)


def hang(job: Job, phase: str) -> None:
    progress(job, phase, "hanging")
    time.sleep(600)


def misbehave(job: Job, index: int, how: str) -> None:
    match how.split("-"):
        case ["ok"]:
            result(job, job.requests[index], index)
        case ["slow", seconds]:
            for step in range(10):
                progress(job, "latency", "timing", step)
                time.sleep(float(seconds) / 10)
            result(job, job.requests[index], index)
        case ["gate"]:
            gate = Path(f"{os.environ['FLASHSCOPE_TEST_GATE']}-{job.requests[index].seed}")
            while not gate.exists():
                progress(job, "latency", "waiting for the test to open the gate")
                time.sleep(0.05)
            result(job, job.requests[index], index)
        case ["hang", phase]:
            hang(job, phase)
        case ["orphan", "hang"]:
            leave_a_child()
            hang(job, "compile")
        case ["orphan", "kill"]:
            leave_a_child()
            os.kill(os.getpid(), signal.SIGKILL)
        case ["signal", name]:
            os.kill(os.getpid(), getattr(signal, name))
            time.sleep(600)
        case ["exit", code]:
            print("the last words", file=sys.stderr, flush=True)
            os._exit(int(code))
        case ["garbage"]:
            print("Segmentation fault?", flush=True)
            time.sleep(600)
        case ["nan"]:
            print('{"type": "progress", "job_id": "x", "phase": "check", "text": "", "done": NaN}', flush=True)
        case ["cut"]:
            print('{"type": "progress", "job_id": "x", "ph', end="", flush=True)
            os._exit(1)
        case ["flood"]:
            for step in range(10**9):
                progress(job, "latency", "again", step)
                time.sleep(0.01)
        case ["deaf"]:
            os.close(1)
            time.sleep(600)
        case ["other", "job"]:
            result(job, job.requests[index], index, job_id="0" * 32)
        case ["other", "request"]:
            result(job, job.requests[index].model_copy(update={"kernel": "ok"}), index)
        case ["other", "index"]:
            result(job, job.requests[index], 99)
        case ["silent"]:
            pass
        case ["unhealthy"]:
            result(job, job.requests[index], index)
            say(Done(job_id=job.job_id, healthy=False))
            time.sleep(600)


def main() -> None:
    if START == "crash":
        sys.exit("no such device")
    if START == "hang":
        time.sleep(600)
    time.sleep(2.5 if START == "slow" else 0)
    say(Ready(environment=environment("GPU-other" if START == "lie" else DEVICE)))
    for line in sys.stdin:
        job = Job.model_validate_json(line)
        progress(job, "inputs", "making inputs")
        for index, request in enumerate(job.requests):
            misbehave(job, index, request.kernel)
        say(Done(job_id=job.job_id))


if __name__ == "__main__":
    main()
