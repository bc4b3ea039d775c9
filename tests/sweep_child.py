"""A process that runs a sweep, to be killed: `python -m tests.sweep_child URL FOLDER gpu|gpu-wide|interpreter [ID]`.

It prints the sweep's id, then, when the sweep has ended, how. gpu is the worker of tests.fake_sweep_worker; gpu-wide has three
times the cells.
"""

from __future__ import annotations

import sys
from pathlib import Path

from profiling.job_queue import JobQueue
from profiling.records import INTERPRETER
from profiling.sweep_record import SweepPlan, problems_of
from profiling.sweep_run import SweepRun
from profiling.sweep_runner import planned
from profiling.sweep_store import SweepStore
from tests import fake_sweep_worker as fake
from tests import records_for_tests as records


def plan_of(kind: str) -> SweepPlan:
    """Some dozens of cells: on a GPU of some problems, in the interpreter of tiny ones."""
    if kind.startswith("gpu"):
        more = {"block_orders": ("natural", "heaviest", "zigzag")} if kind == "gpu-wide" else {}
        return SweepPlan(
            kernels=("v2",), problems=problems_of((4096, 16384), (False, True), (128,), 16), devices=(records.GPU_ID,),
            block_m=(64, 128), block_n=(32, 64), num_warps=(8,), num_stages=(2, 3, 4), finalists=2, **more,
        )  # fmt: skip
    return SweepPlan(
        kernels=("v2",), problems=problems_of((32, 64), (False, True), (16,), 1), devices=(INTERPRETER,),
        block_m=(16, 32, 64), block_n=(16, 32), num_warps=(4,), num_stages=(2, 3),
    )  # fmt: skip


def queue_of(kind: str, folder: Path) -> JobQueue:
    """The queue of its device."""
    if kind.startswith("gpu"):
        return JobQueue(devices=lambda: (fake.device(),), command=fake.command(folder))
    return JobQueue(devices=lambda: (records.interpreter(),))


def main(url: str, folder: str, kind: str, sweep_id: str = "") -> None:
    """Run a new sweep, or go on with one."""
    store, queue = SweepStore(url), queue_of(kind, Path(folder))
    if sweep_id:
        sweep = store.take(sweep_id)
    else:
        sweep = planned(plan_of(kind), queue.devices(), "me")
        store.create(sweep)
    print(sweep.sweep_id, flush=True)
    found = SweepRun(sweep, queue, lambda outcomes, state: store.put(sweep.sweep_id, outcomes, state)).run()
    print(found.state.status, found.state.sentence, flush=True)
    queue.close()
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
