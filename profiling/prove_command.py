"""The command prove: does this machine's measuring tell the truth? The battery of profiling.prove, on the GPU at hand."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from profiling import words
from profiling.background_load import NoLoad, background_load
from profiling.job_queue import JobQueue
from profiling.keeping import check_file, write
from profiling.prove import LOADED_RUNS, Battery, Check
from profiling.records import DeviceFacts, Environment, Measurement, RunRequest
from profiling.run_options import gpu_of
from profiling.terminal import INTERRUPTED, NOT_RIGHT, RIGHT, BadInput, columns, complain, shown

CHECKS = ("equal", "work", "cupti", "load")
RECORD_VERSION = 1
_SECONDS_BETWEEN_LOOKS = 0.5


def add_prove_command(commands: argparse._SubParsersAction) -> None:
    """Give a parser the command of this module."""
    parser = commands.add_parser(
        "prove",
        help="put this machine's measuring to the test: does it tell the truth?",
        description="Put this machine's measuring to the test, by jobs as users start them: equal kernels are not told apart, "
        "5 % more work is found, a run beside a background load is flagged, the time is CUPTI's kernel time.",
        allow_abbrev=False,
    )
    parser.epilog = "Takes minutes, and wants the GPU for itself. Exit code 0: every promise is kept; 1: one is not."
    parser.add_argument("--device", help="a GPU's UUID or its beginning (the first GPU)")
    parser.add_argument("--only", metavar="CHECKS", help=f"only these, with commas: {', '.join(CHECKS)}")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the record of every figure: .json")
    parser.add_argument("--json", action="store_true", help="print that record, and nothing else")
    parser.set_defaults(command=prove)


def prove(options: argparse.Namespace) -> int:
    """Run the command and return its exit code. Raises BadInput."""
    names = _asked(options.only)
    if options.out is not None:
        check_file(options.out, (".json",))
    begun, created_at = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    with _queue() as queue:
        try:
            device = gpu_of(options.device, queue.devices(), "prove")
        except ValueError as error:
            raise BadInput(error) from None
        checks, interrupted = run_checks(Battery(device, lambda requests: _job(queue, requests), complain), names)
        environment = queue.environment(device.id)
    seconds = time.monotonic() - begun
    record = as_json(checks, environment, created_at, seconds)
    print(json.dumps(record, allow_nan=False) if options.json else report(checks, device, environment, seconds), flush=True)
    if options.out is not None:
        write(options.out, json.dumps(record, indent=1, allow_nan=False).encode())
        print(f"Written: {options.out}", file=sys.stderr if options.json else sys.stdout)
    if interrupted:
        return INTERRUPTED
    return RIGHT if checks and all(check.kept for check in checks) else NOT_RIGHT


def _asked(only: str | None) -> tuple[str, ...]:
    names = CHECKS if only is None else tuple(dict.fromkeys(name.strip() for name in only.split(",")))
    for name in names:
        if name not in CHECKS:
            raise BadInput(f"only = {shown(name)} is not possible: it can be {', '.join(CHECKS)}.")
    return names


def _worker_command(device_id: str) -> Sequence[str]:
    return (sys.executable, "-m", "profiling.prove_worker", "--device", device_id)


@contextmanager
def _queue() -> Iterator[JobQueue]:
    queue = JobQueue(command=_worker_command)
    try:
        yield queue
    finally:
        queue.close()


def _job(queue: JobQueue, requests: Sequence[RunRequest]) -> tuple[Measurement, ...]:
    job_id = queue.submit(requests, "prove")
    while not (view := queue.wait(job_id, _SECONDS_BETWEEN_LOOKS)).finished:
        pass
    return tuple(result for result in view.results if result is not None)


def run_checks(
    battery: Battery, names: Sequence[str], load: Callable[[str], Any] = background_load
) -> tuple[tuple[Check, ...], bool]:
    """The checks that are asked for, in order, and whether Ctrl-C ended them; what was finished before it is there.

    The quiet runs of the others are judged as soon as there are any. load: keeps the device of an id busy, as a context.
    """
    checks: list[Check] = []
    in_order = {"equal": battery.equal_kernels, "work": battery.more_work, "cupti": battery.against_cupti}
    try:
        for name, check in in_order.items():
            if name in names:
                checks.append(check())
        if battery.quiet:
            checks.append(battery.quiet_runs())
        if "load" in names:
            checks.append(_beside_load(battery, load))
    except KeyboardInterrupt:
        return tuple(checks), True
    return tuple(checks), False


def _beside_load(battery: Battery, load: Callable[[str], Any]) -> Check:
    try:
        with load(battery.device.id):
            return battery.beside_load()
    except NoLoad as problem:
        return Check(
            name="load",
            promise="a run beside another program's load is flagged",
            bar=f"{LOADED_RUNS} of {LOADED_RUNS} flagged",
            kept=False,
            found="not tried",
            details=(),
            problems=(str(problem),),
        )


def report(checks: Sequence[Check], device: DeviceFacts, environment: Environment | None, seconds: float) -> str:
    """The checks for people: where, a line a promise, what went wrong, and the sum."""
    where = [device.short_name]
    if environment is not None:
        where += [f"driver {environment.driver_version or 'not known'}", f"torch {environment.torch_version}"]
        where += [f"Triton {environment.triton_version}"] if environment.triton_version is not None else []
    rows = [["promise", "must be", "found", ""]]
    rows += [[check.promise, check.bar, check.found, "kept" if check.kept else "NOT KEPT"] for check in checks]
    problems = [f"{check.name}: {shown(sentence)}" for check in checks for sentence in check.problems]
    broken = sum(not check.kept for check in checks)
    outcome = (
        "Nothing was finished."
        if not checks
        else f"All {len(checks)} promises are kept"
        if not broken
        else f"{broken} of {len(checks)} promises {'is' if broken == 1 else 'are'} not kept"
    )
    end = outcome if not checks else f"{outcome} (measured, {words.seconds(seconds)})."
    return "\n".join([" · ".join(map(shown, where)), "", *columns(rows), *(["", *problems] if problems else []), "", end])


def as_json(checks: Sequence[Check], environment: Environment | None, created_at: str, seconds: float) -> dict[str, Any]:
    """Every figure as plain values."""
    return {
        "record": "flashscope prove",
        "version": RECORD_VERSION,
        "created_at": created_at,
        "seconds": round(seconds, 1),
        "environment": None if environment is None else environment.model_dump(mode="json"),
        "kept": bool(checks) and all(check.kept for check in checks),
        "checks": [check.as_json() for check in checks],
    }
