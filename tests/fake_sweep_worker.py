"""A GPU's worker for tests of sweeps: its times are invented from the tiles, its faults asked for in a file.

`python -m tests.fake_sweep_worker DEVICE FOLDER`. FOLDER/faults.json says what tiles do, by words such as '64x32x4x2': crash,
hang, wrong, sticky, refused, crash-once. FOLDER/log has a line a job: its effort and its cells.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from kernels.problem import TileConfig
from profiling.record_types import Array
from profiling.records import Done, Flag, Job, JobError, Latency, Measurement, Progress, Ready, Result, RunRequest
from profiling.sweep_record import key_of
from tests import records_for_tests as records

CAPABILITY = 103
"""A GPU that FlashScope has no limits of, so that nothing is compiled."""
ROUNDS, A_ROUND = 10, 8


def device(id: str = records.GPU_ID, name: str = "NVIDIA Invented") -> records.DeviceFacts:
    """The GPU that it pretends to be."""
    return records.gpu().model_copy(update={"id": id, "name": name, "capability": CAPABILITY})


def words_of(tiles: TileConfig) -> str:
    """'64x32x4x2'."""
    return f"{tiles.block_m}x{tiles.block_n}x{tiles.num_warps}x{tiles.num_stages}"


def invented_ms(request: RunRequest) -> float:
    """Best at 128 × 64, 8 warps; 3 and 4 stages are equally fast, 2 a tenth slower."""
    tiles, problem = request.tiles, request.problem
    off = abs(np.log2(tiles.block_m / 128)) + 0.7 * abs(np.log2(tiles.block_n / 64)) + 0.5 * abs(np.log2(tiles.num_warps / 8))
    work = problem.flops / 1e11
    return float(work * (1.0 + 0.2 * off) * (1.1 if tiles.num_stages < 3 else 1.0))


def latency(request: RunRequest, effort: str) -> Latency:
    """Rounds that drift together by 2 %; a launch scatters by a thousandth. A screening meets a cooler GPU."""
    rng = np.random.default_rng(int(key_of(request), 16) % 2**32)
    drift = np.repeat(1.0 + 0.02 * np.linspace(0.0, 1.0, ROUNDS), A_ROUND)
    samples = invented_ms(request) * drift * (1.0 + 0.001 * rng.standard_normal(ROUNDS * A_ROUND))
    scale = 0.97 if effort == "screening" else 1.0
    rounds = np.repeat(np.arange(ROUNDS), A_ROUND)
    return Latency(
        provenance="measured", mode="cold", samples_ms=Array.of(scale * samples), round_of=Array.of(rounds, "<i4"),
        stopped="quiet", exposed=0, outputs_checked=len(rounds),
    )  # fmt: skip


class Worker:
    """One process's worth of answers."""

    def __init__(self, device_id: str, folder: Path) -> None:
        self._environment = records.environment(device(device_id))
        self._folder = folder
        self._broken = ""

    def say(self, message: Ready | Progress | Result | Done) -> None:
        print(message.model_dump_json(), flush=True)

    def serve(self) -> None:
        self.say(Ready(environment=self._environment))
        for line in sys.stdin:
            job = Job.model_validate_json(line)
            with (self._folder / "log").open("a") as log:
                log.write(json.dumps([job.effort, [words_of(one.tiles) for one in job.requests]]) + "\n")
            self._broken, started = "", datetime.now(UTC).isoformat(timespec="microseconds")
            results = [self._measured(job, request, started) for request in job.requests]
            for index, measurement in enumerate(results):
                self.say(Result(job_id=job.job_id, index=index, measurement=measurement))
            self.say(Done(job_id=job.job_id, healthy=not self._broken))

    def _measured(self, job: Job, request: RunRequest, started: str) -> Measurement:
        self.say(Progress(job_id=job.job_id, phase="compile", text=f"compiling {request.kernel}"))
        time.sleep(float(os.environ.get("INVENTED_CELL_S", "0")))
        fault, words = self._fault(request), words_of(request.tiles)
        if self._broken:
            error = JobError(kind="launch", sentence=f"{request.kernel} was not run: {self._broken} broke the context before.")
            return self._answer(request, started, error=error)
        if fault == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if fault == "hang":
            time.sleep(600)
        if fault == "sticky":
            self._broken = words
            return self._answer(request, started, error=JobError(kind="launch", sentence=f"{words}: illegal memory access."))
        if fault == "refused":
            return self._answer(request, started, error=JobError(kind="refused", sentence=f"{words} needs too much."))
        if fault == "wrong":
            flag = Flag(name="wrong output", severity="bad", short="wrong output", sentence=f"The output of {words} is wrong.")
            return self._answer(request, started, accuracy=records.accuracy(passed=False), flags=(flag,))
        return self._answer(request, started, accuracy=records.accuracy(), latency=latency(request, job.effort))

    def _fault(self, request: RunRequest) -> str:
        file = self._folder / "faults.json"
        faults = json.loads(file.read_text()) if file.exists() else {}
        fault = faults.get(words_of(request.tiles), "")
        if fault != "crash-once":
            return fault
        mark = self._folder / f"crashed-{key_of(request)}"
        if mark.exists():
            return ""
        mark.touch()
        return "crash"

    def _answer(self, request: RunRequest, started: str, **found: object) -> Measurement:
        return Measurement(
            request=request, tiles=request.tiles, environment=self._environment, started_at=started, duration_s=0.01, **found
        )


def command(folder: Path):
    """The command line of such a worker, for JobQueue."""
    return lambda device_id: (sys.executable, "-m", "tests.fake_sweep_worker", device_id, str(folder))


if __name__ == "__main__":
    Worker(sys.argv[1], Path(sys.argv[2])).serve()
