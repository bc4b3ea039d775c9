"""The worker: one device, jobs as JSON lines on stdin, messages as JSON lines on stdout (`--device interpreter` or a UUID).

The first line is Ready. A line that is no job is answered with one sentence and Done. Ends with its input; exit code 2
and a sentence on stderr when the device cannot be had.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from profiling.leash import end_with_parent
from profiling.record_types import first_sentence
from profiling.records import INTERPRETER, DeviceFacts, Done, Environment, Job, Progress, Ready
from profiling.stdout import claim_stdout

if TYPE_CHECKING:
    from profiling.bench import Bench
    from profiling.run_job import Message

ROOT = Path(__file__).resolve().parent.parent
_LONGEST_SENTENCE = 500


def main(arguments: list[str] | None = None, bench_of: Callable[[str], Bench] | None = None) -> int:
    """Serve until the end of the input; bench_of makes the bench of a device, make_bench unless another is given."""
    end_with_parent()
    faulthandler.enable()  # NVML and CUDA may crash within: the last words then say where
    parser = argparse.ArgumentParser(prog="python -m profiling.worker", description=__doc__.splitlines()[0])
    parser.add_argument("--device", required=True, help="'interpreter', or the UUID of a GPU as nvidia-smi -L prints it")
    device_id = parser.parse_args(arguments).device
    out = claim_stdout()
    if device_id == INTERPRETER:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported: it looks only then

    def send(message: Message | Ready) -> None:
        out.write(message.model_dump_json() + "\n")
        out.flush()

    try:
        bench = (bench_of or make_bench)(device_id)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    send(Ready(environment=bench.environment))
    for line in sys.stdin:
        if line.strip():
            serve(line, bench, send)
    return 0


def serve(line: str, bench: Bench, send: Callable[[Message], None]) -> None:
    """One line of input: a job, or a sentence about why it is none."""
    from profiling.run_job import JobRun

    try:
        job = Job.model_validate_json(line)
    except ValidationError as error:
        job_id = _job_id(line)
        text = f"The worker was sent a line that is no job: {_sentence(error)}"
        send(Progress(job_id=job_id, phase="starting", text=text))
        send(Done(job_id=job_id))
        return
    JobRun(job, bench, send).run()


def _sentence(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    sentence = first_sentence(error) if problem["loc"] else f"{problem['msg']}."
    return sentence if len(sentence) <= _LONGEST_SENTENCE else f"{sentence[:_LONGEST_SENTENCE]} …"


def _job_id(line: str) -> str:
    try:
        return str(json.loads(line)["job_id"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return "unknown"


def make_bench(device_id: str) -> Bench:
    """The bench of a device, its environment taken. Raises ValueError when CUDA has no such GPU, or none as new."""
    from profiling.devices import cuda_device_of, device_facts

    if device_id == INTERPRETER:
        from profiling.interpreter_bench import InterpreterBench

        return InterpreterBench(environment_of(device_facts(device_id), driver=None, no_driver="the interpreter uses no GPU"))
    import torch

    from profiling.gpu_bench import GpuBench
    from profiling.gpu_lock import gpu_lock
    from profiling.nvml import Nvml

    device = cuda_device_of(device_id)
    torch.cuda.set_device(device)
    with Nvml.open(device_id) as nvml:
        with gpu_lock(device_id):
            utilisation = nvml.utilisation_percent()
            facts = device_facts(device_id)
        driver = nvml.driver_version()
        environment = environment_of(facts, driver, nvml.missing.get("driver_version", ""))
    return GpuBench(environment, device, utilisation)


def environment_of(facts: DeviceFacts, driver: str | None, no_driver: str) -> Environment:
    """Versions of everything that a number depends on; missing says why one is None."""
    import torch

    commit, no_commit = commit_of(ROOT)
    values = {
        "triton_version": _installed("triton"),
        "cuda_version": torch.version.cuda,
        "driver_version": driver,
        "commit": commit,
    }
    reasons = {
        "triton_version": "Triton is not installed",
        "cuda_version": "this torch is built without CUDA",
        "driver_version": no_driver,
        "commit": no_commit,
    }
    return Environment(
        device=facts,
        python_version=platform.python_version(),
        torch_version=torch.__version__,
        missing={name: reasons[name] for name, value in values.items() if value is None},
        **values,
    )


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit_of(root: Path) -> tuple[str | None, str]:
    """(the commit of a checkout, with '-dirty' when files differ from it, ''), or (None, the reason)."""
    if not (root / ".git").exists():
        return None, "this is no git checkout"
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None, "git could not name the commit"
    return done.stdout.strip() or None, "git could not name the commit"


if __name__ == "__main__":
    sys.exit(main())
