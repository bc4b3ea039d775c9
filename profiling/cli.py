"""The commands of `python -m profiling`. Results go to stdout, progress and errors to stderr; neither torch nor Triton here."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from kernels.registry import version
from profiling.doctor import examine
from profiling.job_queue import JobQueue, JobView
from profiling.records import Measurement, Progress
from profiling.run_options import add_run_options, plan
from profiling.snapshot import Snapshot
from profiling.text_report import table

RIGHT, NOT_RIGHT, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
SECONDS_BETWEEN_LOOKS = 0.2


class BadInput(Exception):
    """What was asked for is not possible, in one sentence."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{message[:1].upper()}{message[1:]}.\n")


def main(arguments: list[str]) -> int:
    """Run a command and return its exit code: 0 right, 1 a wrong output or a failed job, 2 bad input."""
    options = _parser().parse_args(arguments)
    queue = JobQueue()
    try:
        return options.command(options, queue)
    except BadInput as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        queue.close()


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m profiling", description="Run attention kernels, checked and timed.", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="run | record | doctor", parser_class=_Parser)
    run = commands.add_parser("run", help="run kernels and print what was measured", allow_abbrev=False)
    add_run_options(run)
    run.add_argument(
        "--json", action="store_true", help="print the record, for several kernels a list of them, and nothing else"
    )
    run.set_defaults(command=_run)
    record = commands.add_parser("record", help="run kernels and keep what was measured in a file", allow_abbrev=False)
    add_run_options(record)
    record.add_argument("--title", required=True, help="the recording's name")
    record.add_argument("--note", default="", help="a sentence about it")
    record.add_argument("--out", required=True, type=Path, metavar="FILE", help="where to write it")
    record.set_defaults(command=_record)
    doctor = commands.add_parser("doctor", help="say what works on this machine, and how to cure the rest", allow_abbrev=False)
    doctor.set_defaults(command=_doctor)
    return parser


def _run(options: argparse.Namespace, queue: JobQueue) -> int:
    measurements = _measure(options, queue)
    if options.json:
        records = [measurement.model_dump(mode="json") for measurement in measurements]
        print(json.dumps(records if len(records) > 1 else records[0], allow_nan=False))
    else:
        print(table(measurements))
    return _verdict(measurements)


def _record(options: argparse.Namespace, queue: JobQueue) -> int:
    if not options.out.parent.is_dir():  # before minutes of measuring
        raise BadInput(f"out = {options.out} is not possible: there is no folder {options.out.parent}.")
    measurements = _measure(options, queue)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    snapshot = Snapshot(title=options.title, note=options.note, created_at=now, measurements=measurements)
    _write_whole(options.out, snapshot.document.decode())
    print(f"{options.out}: {', '.join(measurement.request.kernel for measurement in measurements)}.", file=sys.stderr)
    return _verdict(measurements)


def _doctor(_options: argparse.Namespace, queue: JobQueue) -> int:
    runs_kernels = False
    for finding in examine(queue):
        print(finding, flush=True)
        runs_kernels = runs_kernels or finding.runs_kernels
    return RIGHT if runs_kernels else NOT_RIGHT


def _measure(options: argparse.Namespace, queue: JobQueue) -> tuple[Measurement, ...]:
    """Run what the options ask for. `all` is without the peers that are not installed."""
    try:
        asked = plan(options, queue.devices())
        job_id = queue.submit(asked.requests, "command line")
    except ValueError as error:
        raise BadInput(error) from None
    for sentence in asked.left_out:
        print(f"Left out: {sentence}", file=sys.stderr)
    view = _follow(queue, job_id)
    measurements = tuple(result for result in view.results if result is not None)
    if options.kernel != "all":
        return measurements
    for missing in filter(is_missing_peer, measurements):
        print(f"Left out: {missing.error.sentence}", file=sys.stderr)
    return tuple(m for m in measurements if not is_missing_peer(m))


def is_missing_peer(measurement: Measurement) -> bool:
    """Whether this is a library that is not installed, or cannot do this problem: no failure when all were asked for."""
    return version(measurement.request.kernel).is_peer and measurement.error is not None and measurement.error.kind == "refused"


def _follow(queue: JobQueue, job_id: str) -> JobView:
    shown: Progress | None = None
    while not (view := queue.wait(job_id, SECONDS_BETWEEN_LOOKS)).finished:
        progress = view.progress
        if progress is not None and (shown is None or (progress.phase, progress.text) != (shown.phase, shown.text)):
            print(f"{view.elapsed_s:6.1f} s  {progress.phase}: {progress.text}", file=sys.stderr, flush=True)
            shown = progress
    return view


def _verdict(measurements: tuple[Measurement, ...]) -> int:
    wrong = any(m.error is not None or (m.accuracy is not None and not m.accuracy.passed) for m in measurements)
    return NOT_RIGHT if wrong else RIGHT


def _write_whole(path: Path, text: str) -> None:
    """Replace the file only once the new one is complete."""
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(text)
    beside.replace(path)
