"""How long a job times: by the whole rule, or briefly, as the first look at many configurations does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from profiling.case import Case
from profiling.measure import ROUNDS, Batch, Run, time_rounds
from profiling.records import Job, RunRequest
from profiling.run_job import JobRun
from profiling.stop_rule import StopRule
from profiling.timed_cases import TimedCases
from tests import records_for_tests as records

REQUEST = RunRequest(kernel="v2", problem=records.TINY, tiles=records.TILES)


@dataclass
class Clock:
    """A device whose launches scatter by a given share, beside a clock that its launches move."""

    launch_ms: float
    scatter: float
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(1)

    def estimate_ms(self, run: Run) -> float:
        return self.launch_ms

    def batch(self, run: Run, count: int) -> Batch:
        samples = self.launch_ms * (1 + self.scatter * self._rng.standard_normal(count))
        self.now_s += float(samples.sum()) / 1000.0
        return Batch(list(samples))


@pytest.mark.parametrize("effort", ["full", "screening"])
def test_a_job_s_effort_reaches_its_cases_and_their_rule(effort: str) -> None:
    job = Job(job_id="1", requests=(REQUEST, REQUEST), effort=effort)
    assert Job.model_validate_json(job.model_dump_json()) == job
    assert {case.effort for case in JobRun(job, None, lambda message: None)._cases} == {effort}
    timed = TimedCases([Case(0, REQUEST, effort)], lambda case: None, None, None, [])
    assert timed._rule(2) == (StopRule.for_screening() if effort == "screening" else StopRule.for_job(2))


def test_a_job_is_timed_fully_unless_it_says_otherwise() -> None:
    assert Job.model_validate_json('{"job_id": "1", "requests": [' + REQUEST.model_dump_json() + "]}").effort == "full"


@pytest.mark.parametrize(
    ("launch_ms", "scatter", "least_s", "most_s"),
    [(0.25, 0.001, 0.1, 0.12), (0.25, 0.05, 0.1, 0.45), (40.0, 0.05, 0.4, 0.85), (500.0, 0.05, 2.5, 3.6)],
)
def test_a_screening_is_brief_and_has_rounds_enough_for_a_verdict(launch_ms, scatter, least_s, most_s) -> None:
    clock = Clock(launch_ms, scatter)
    (found,) = time_rounds([Run(lambda: None)], clock, rule=StopRule.for_screening(), clock=lambda: clock.now_s)
    assert least_s <= sum(found.samples_ms) / 1000.0 <= most_s
    assert found.stopped is not None
    assert len(set(found.round_of)) >= min(ROUNDS, len(found.samples_ms)) >= 5
