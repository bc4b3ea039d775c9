"""The command line's choice of tiles, the report's words for a trace, and what a trace that fails takes with it: nothing."""

from __future__ import annotations

import argparse

import numpy as np
import pytest

from profiling import tile_trace
from profiling.case import Case
from profiling.interpreter_bench import InterpreterBench
from profiling.records import PROBES, Job
from profiling.run_job import JobRun, _Broken
from profiling.run_options import Plan, add_run_options, plan
from profiling.text_report import table
from profiling.trace_record import TileTrace, TraceChoice
from tests import records_for_tests as records
from tests.traces_for_tests import traced


def planned(words: str) -> Plan:
    parser = argparse.ArgumentParser()
    add_run_options(parser)
    return plan(parser.parse_args(words.split()), (records.interpreter(),))


def test_the_choice_reaches_every_request():
    tiles = "--probes accuracy,tiles --trace-batch-index 2 --trace-head 1 --trace-query-block 3"
    for request in planned(f"--kernel native,v1,v2 --seq-len 256 --batch 3 --block-m 64 {tiles}").requests:
        assert request.probes == ("accuracy", "tiles")
        assert request.trace == TraceChoice(batch_index=2, head=1, query_block=3)


def test_tiles_are_not_among_the_probes_that_nobody_named():
    (request,) = planned("--kernel v2").requests
    assert request.probes == PROBES
    assert "tiles" not in PROBES


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--kernel v2 --trace-head 1", "--trace-head is not possible without --probes tiles."),
        ("--kernel v2 --probes tiles --trace-head 2", "head = 2 is not possible: it can be 0 to 1 on this problem."),
        (
            "--kernel v2 --probes tiles --trace-query-block 9",
            "query_block = 9 is not possible: it can be 0 to 1 on this problem.",
        ),
        ("--kernel native --probes tiles", "--probes tiles is not possible with native: it has no such choice."),
    ],
)
def test_what_is_not_possible_is_one_sentence(words, sentence):
    with pytest.raises(ValueError) as refused:  # noqa: PT011  the sentence is compared whole
        planned(f"{words} --block-m 128 --seq-len 256")
    assert str(refused.value) == sentence


def a_trace() -> TileTrace:
    return traced("v2").tiles_trace


def test_the_report_says_what_was_stored_and_whether_it_agrees():
    right = traced("v2")
    trace = right.tiles_trace
    tiles = trace.key_blocks.shape[0]
    words = f"v2: trace of head {trace.head}, query block {trace.query_block}: {tiles} tiles stored, "
    assert f"{words}agrees with its replay (interpreted)." in table((right,))
    wrong = trace.model_copy(update={"replay": trace.replay.model_copy(update={"passed": False}), "visited": 3 * tiles})
    words = words.replace(" tiles", f" of {3 * tiles} tiles")
    table_of_wrong = table((right.model_copy(update={"tiles_trace": wrong}),))
    assert f"{words}does NOT agree with its replay (interpreted)." in table_of_wrong


@pytest.fixture
def job() -> tuple[JobRun, Case]:
    """A job whose one case has been launched and is about to be traced."""
    request = planned("--kernel v2 --seq-len 64 --probes accuracy,tiles").requests[0]
    bench = InterpreterBench(records.environment(records.interpreter()))
    run = JobRun(Job(job_id="1", requests=(request,)), bench, lambda message: None)
    case = run._cases[0]
    case.admit(None)
    case.traced_rows = np.zeros((64, 64), np.float32)
    return run, case


def raising(error: Exception):
    def take(*_):
        raise error

    return take


def test_a_trace_that_fails_leaves_the_result(job, monkeypatch):
    run, case = job
    monkeypatch.setattr(tile_trace, "take", raising(RuntimeError("CUDA out of memory")))
    run._attempt(case, run._trace_tiles)
    assert case.error is None
    assert [flag.short for flag in case.flags] == ["no trace"]
    assert "out of memory" in case.flags[0].sentence


def test_one_that_breaks_the_gpu_s_context_is_not_passed_over(job, monkeypatch):
    run, case = job
    monkeypatch.setattr(tile_trace, "take", raising(RuntimeError("an illegal memory access was encountered")))
    with pytest.raises(_Broken):
        run._attempt(case, run._trace_tiles)
    assert case.error is not None


def test_one_that_does_not_agree_is_kept_and_said_to_be_wrong(job, monkeypatch):
    run, case = job
    trace = a_trace()
    wrong = trace.model_copy(update={"replay": trace.replay.model_copy(update={"passed": False})})
    monkeypatch.setattr(tile_trace, "take", lambda *_: wrong)
    run._attempt(case, run._trace_tiles)
    assert case.tiles_trace is wrong
    assert [(flag.name, flag.severity) for flag in case.flags] == [("trace does not agree", "bad")]


def test_a_choice_that_there_is_not_is_refused_before_anything_runs():
    request = planned("--kernel v2 --seq-len 64 --probes accuracy,tiles").requests[0]
    case = Case(0, request.model_copy(update={"trace": TraceChoice(head=7)}))
    with pytest.raises(ValueError, match=r"^head = 7 is not possible: it can be 0 to 1 on this problem.$"):
        case.admit(None)
    Case(0, request.model_copy(update={"trace": TraceChoice(head=7), "probes": PROBES})).admit(None)
