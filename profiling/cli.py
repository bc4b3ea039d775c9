"""The commands of `python -m profiling`. Results go to stdout, progress and errors to stderr; neither torch nor Triton here.

The database is imported only by a command that touches the store.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from profiling.bench_command import add_bench_command
from profiling.compare_report import within_one_job
from profiling.compile_command import add_compile_command
from profiling.doctor import examine
from profiling.feasibility_command import add_feasible_command
from profiling.job_queue import JobQueue, JobView
from profiling.keeping import Keeping, add_keeping_options
from profiling.prove_command import add_prove_command
from profiling.records import Measurement, Progress
from profiling.run_options import add_run_options, plan
from profiling.runner import Runner, add_cluster_option, runner_from
from profiling.snapshot_commands import add_snapshot_commands
from profiling.store import StoreProblem
from profiling.summary import is_missing_peer, is_sound
from profiling.sweep_command import add_sweep_command
from profiling.terminal import BAD_INPUT, INTERRUPTED, NOT_RIGHT, RIGHT, BadInput, Parser, complain
from profiling.text_report import line, table

SECONDS_BETWEEN_LOOKS = 0.2
EXIT_CODES = (
    "Exit codes: 0 right; 1 a wrong output, a time that cannot be right, a failed job, or slower than allowed; 2 bad input; "
    "130 interrupted."
)


def main(arguments: list[str]) -> int:
    """Run a command and return its exit code, one of those in EXIT_CODES. Raises SystemExit for --help and a bad option."""
    parser, commands = _parser()
    if not arguments:
        parser.print_help(sys.stderr)
        return BAD_INPUT
    try:
        if arguments[0] not in (*commands, "-h", "--help"):
            raise BadInput(f"command = {arguments[0]} is not known: it can be {', '.join(commands)}.")
        options = parser.parse_args(arguments)
        return options.command(options)
    except (BadInput, StoreProblem) as error:
        complain(str(error))
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> tuple[argparse.ArgumentParser, tuple[str, ...]]:
    """The parser, and the names of its commands."""
    parser = Parser(
        prog="python -m profiling",
        description="Run attention kernels, checked and timed; keep, share and compare what was measured.",
        epilog=EXIT_CODES,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser, title="commands")
    run = commands.add_parser(
        "run", help="run kernels and print what was measured", description="Run kernels, checked and timed.", allow_abbrev=False
    )
    add_run_options(run)
    add_cluster_option(run)
    add_keeping_options(run)
    run.add_argument(
        "--json",
        action="store_true",
        help="print the record, for several kernels a list of them, and nothing else; with --save or --out an object: id, "
        "link, out and measurements",
    )
    run.set_defaults(command=_run)
    add_bench_command(commands)
    add_compile_command(commands)
    add_snapshot_commands(commands)
    add_prove_command(commands)
    add_feasible_command(commands)
    add_sweep_command(commands)
    doctor = commands.add_parser("doctor", help="say what works on this machine, and how to cure the rest", allow_abbrev=False)
    doctor.set_defaults(command=_doctor)
    return parser, tuple(commands.choices)


@contextmanager
def _queue() -> Iterator[JobQueue]:
    queue = JobQueue()
    try:
        yield queue
    finally:
        queue.close()


def _run(options: argparse.Namespace) -> int:
    with Keeping.asked_for(options) as keeping:  # what is not possible is said before minutes of measuring
        with runner_from(options) as queue:
            measurements = _measure(options, queue)
        if not options.json:
            print(table(measurements), "", *map(line, measurements), sep="\n", flush=True)
            if verdicts := within_one_job(measurements):
                print("", *verdicts, sep="\n", flush=True)
        kept = keeping.keep(measurements)
    if options.json:
        records = [measurement.model_dump(mode="json") for measurement in measurements]
        single = records if len(records) > 1 else records[0]
        print(json.dumps({**kept.facts, "measurements": records} if kept.facts else single, allow_nan=False))
    for sentence in kept.sentences:
        print(sentence, file=sys.stderr if options.json else sys.stdout)
    for problem in kept.problems:
        complain(problem)
    return BAD_INPUT if kept.problems else _exit_code(measurements)


def _doctor(_options: argparse.Namespace) -> int:
    runs_kernels = False
    with _queue() as queue:
        for finding in examine(queue):
            print(finding, flush=True)
            runs_kernels = runs_kernels or finding.runs_kernels
    return RIGHT if runs_kernels else NOT_RIGHT


def _measure(options: argparse.Namespace, queue: Runner) -> tuple[Measurement, ...]:
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


def _follow(queue: Runner, job_id: str) -> JobView:
    shown: Progress | None = None
    while not (view := queue.wait(job_id, SECONDS_BETWEEN_LOOKS)).finished:
        progress = view.progress
        if progress is not None and (shown is None or (progress.phase, progress.text) != (shown.phase, shown.text)):
            where = f"  {view.host}" if view.host else ""
            print(f"{view.elapsed_s:6.1f} s{where}  {progress.phase}: {progress.text}", file=sys.stderr, flush=True)
            shown = progress
    return view


def _exit_code(measurements: tuple[Measurement, ...]) -> int:
    return RIGHT if all(is_sound(measurement) for measurement in measurements) else NOT_RIGHT
