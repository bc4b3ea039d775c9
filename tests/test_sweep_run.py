"""A sweep as a whole, with a worker whose times are invented: what is timed, what a fault costs, what is kept, who wins."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from profiling.job_queue import JobQueue
from profiling.lane import Limits
from profiling.sweep_ranking import ranking, rankings
from profiling.sweep_record import Sweep, SweepPlan, problems_of
from profiling.sweep_run import CELLS_A_JOB, MOST_IN_A_JOB, PAUSED, SweepRun
from profiling.sweep_runner import Sweeps, planned
from tests import fake_sweep_worker as fake
from tests import records_for_tests as records

PROBLEMS = problems_of((4096,), (True,), (128,), 16)
SMALL = {"block_m": (64, 128), "block_n": (32, 64), "num_warps": (8,), "num_stages": (2, 3, 4)}


def plan(**changes: object) -> SweepPlan:
    """Twelve cells of v2, the default and the article's pair."""
    return SweepPlan(**{"kernels": ("v2",), "problems": PROBLEMS, "devices": (records.GPU_ID,), **SMALL, **changes})


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Callable[..., JobQueue]]:
    """queue(faults) is a queue whose worker has these faults; a silence of 2 s counts as a hang."""
    opened: list[JobQueue] = []

    def make(*faults: tuple[str, str], devices: tuple = (fake.device(),)) -> JobQueue:
        (tmp_path / "faults.json").write_text(json.dumps(dict(faults)))
        limits = Limits(ready_s=60.0, compile_s=2.0, phase_s=2.0)
        opened.append(JobQueue(devices=lambda: devices, command=fake.command(tmp_path), limits=limits))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def jobs(tmp_path: Path) -> list[tuple[str, list[str]]]:
    """What the worker was given: effort and cells of each job."""
    return [tuple(json.loads(line)) for line in (tmp_path / "log").read_text().splitlines()]


class Kept(list):
    """All that a sweep handed on to be kept."""

    def __call__(self, outcomes, state) -> None:
        self.append((tuple(outcomes), state))

    @property
    def keys(self) -> list[str]:
        return [one.key for outcomes, _ in self for one in outcomes]


def swept(queue: JobQueue, asked: SweepPlan, **how: object) -> tuple[Sweep, Kept]:
    """A whole sweep, and what it handed on."""
    kept = Kept()
    sweep = planned(asked, queue.devices(), "me")
    return SweepRun(sweep, queue, kept, **how).run(), kept


def by_words(sweep: Sweep) -> dict[str, object]:
    """Outcomes by '64x32x8x2'."""
    return {fake.words_of(cell.tiles): outcome for cell, outcome in sweep.by_key.values()}


def test_every_cell_is_timed_and_the_fastest_are_timed_again_in_common_rounds(queue, tmp_path) -> None:
    found, kept = swept(queue(), plan(finalists=3))
    assert (found.state.status, found.state.phase, found.state.sentence) == ("finished", "over", "")
    assert found.counts == {"measured": len(found.cells)}
    assert found.state.done == found.state.total == len(found.cells)
    efforts = [(effort, len(cells)) for effort, cells in jobs(tmp_path)]
    screening = [count for effort, count in efforts if effort == "screening"]
    assert sum(screening) == len(found.cells)
    assert max(screening) == CELLS_A_JOB
    finals = [one for one in found.outcomes if one.final is not None]
    assert efforts[-1] == ("full", len(finals))
    assert [effort for effort, _ in efforts].count("full") == 1
    assert len({one.final.started_at for one in finals}) == 1
    assert {"default", "article"} <= {role for one in finals for role in found.by_key[one.key][0].roles}
    assert sorted(kept.keys) == sorted([one.key for one in found.outcomes] + [one.key for one in finals])
    best = ranking(found, found.plan.series[0])
    words = [fake.words_of(found.by_key[row.key][0].tiles) for row in best.tied]
    assert sorted(words) == ["128x64x8x3", "128x64x8x4"]  # equally fast, and only they
    assert best.rows[2].rank == 3
    assert all(row.is_final for row in best.tied)
    assert best.over_article.word == "FASTER"
    assert all(one.measurement.timeline is None for one in found.outcomes)
    left = [state.seconds_left for outcomes, state in kept if outcomes]
    assert left[0] > left[-1] >= 0.0, "from what the cells took, less and less"


def test_what_goes_wrong_in_a_cell_costs_only_that_cell(queue) -> None:
    faults = {
        "64x32x8x2": "crash", "64x64x8x2": "hang", "64x32x8x3": "wrong", "128x32x8x2": "sticky", "128x32x8x3": "refused",
    }  # fmt: skip
    found, _ = swept(queue(*faults.items()), plan(finalists=2))
    outcomes = by_words(found)
    assert found.state.status == "finished"
    assert {words: outcomes[words].status for words in faults} == {
        "64x32x8x2": "failed", "64x64x8x2": "failed", "64x32x8x3": "wrong", "128x32x8x2": "failed", "128x32x8x3": "failed",
    }  # fmt: skip
    assert all(one.status == "measured" for words, one in outcomes.items() if words not in faults)
    assert "SIGSEGV" in outcomes["64x32x8x2"].sentence
    assert outcomes["64x64x8x2"].error.kind == "timeout"
    assert outcomes["64x32x8x3"].sentence == "The output of 64x32x8x3 is wrong."
    assert outcomes["64x32x8x3"].median_ms is None
    assert "illegal memory access" in outcomes["128x32x8x2"].sentence
    assert outcomes["128x32x8x3"].sentence == "128x32x8x3 needs too much."
    ranked = {row.key for row in ranking(found, found.plan.series[0]).rows}
    assert ranked == {one.key for one in found.outcomes if one.status == "measured"}


def test_what_cannot_run_on_the_gpu_is_known_before_anything_is_launched(queue, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    hopper = fake.device().model_copy(update={"capability": 90})
    tiny = {"block_m": (16,), "block_n": (16, 512), "num_warps": (8,), "num_stages": (6,), "finalists": 1}
    found, _ = swept(queue(devices=(hopper,)), plan(problems=problems_of((256,), (False,), (64,), 1), **tiny))
    outcomes = by_words(found)
    large = outcomes["16x512x8x6"]
    assert (large.status, large.reason, large.provenance) == ("infeasible", "shared memory", "compiled")
    assert large.needs_bytes > large.has_bytes
    launched = {words for _, cells in jobs(tmp_path) for words in cells}
    assert launched == {words for words, one in outcomes.items() if one.status == "measured"}
    assert "16x512x8x6" not in launched
    assert all(one.report is not None for one in outcomes.values() if one.status == "measured")
    assert found.state.done == found.state.total == len(found.cells)


def test_a_worker_that_is_killed_is_not_the_cell_s_fault(queue) -> None:
    found, _ = swept(queue(("128x64x8x3", "crash-once"), ("64x32x8x2", "crash-once")), plan(finalists=2))
    assert found.counts == {"measured": len(found.cells)}


def test_a_worker_that_cannot_be_started_pauses_the_sweep_and_blames_no_cell(tmp_path) -> None:
    queue = JobQueue(devices=lambda: (fake.device(),), command=lambda device: ("false",))
    try:
        found, _ = swept(queue, plan())
    finally:
        queue.close()
    assert found.state.status == "paused"
    assert "the worker cannot be started" in found.state.sentence
    assert found.counts == {"pending": len(found.cells)}


def test_a_paused_sweep_goes_on_where_it_was_and_comes_to_the_same(queue, tmp_path) -> None:
    whole, _ = swept(queue(), plan(finalists=3))
    kept = Kept()
    opened, sweep = queue(), None
    sweep = planned(plan(finalists=3), opened.devices(), "me")
    first = SweepRun(sweep, opened, lambda outcomes, state: (kept(outcomes, state), outcomes and first.pause()), cells_a_job=2)
    half = first.run()
    assert half.state.status == "paused"
    assert half.state.sentence == PAUSED
    assert 0 < half.counts["measured"] < len(half.cells)
    (tmp_path / "log").unlink()
    rest = SweepRun(half, opened, kept).run()
    again = [words for effort, cells in jobs(tmp_path) if effort == "screening" for words in cells]
    assert len(again) == half.counts["pending"]
    assert rest.state.elapsed_s > half.state.elapsed_s
    assert [(one.key, one.median_ms) for one in rest.outcomes] == [(one.key, one.median_ms) for one in whole.outcomes]
    tied = [{row.key for row in ranking(one, one.plan.series[0]).tied} for one in (rest, whole)]
    assert tied[0] == tied[1]


def test_cancelling_ends_it_at_once_and_keeps_what_is_finished(queue, monkeypatch) -> None:
    monkeypatch.setenv("INVENTED_CELL_S", "0.3")
    kept = Kept()
    opened = queue()
    sweep = planned(plan(), opened.devices(), "me")
    run = SweepRun(sweep, opened, lambda outcomes, state: (kept(outcomes, state), outcomes and run.cancel()), cells_a_job=1)
    found = run.run()
    assert (found.state.status, found.state.phase) == ("cancelled", "over")
    assert 1 <= found.counts["measured"] <= 2
    assert all(view.finished for view in opened.jobs())


def test_somebody_else_s_cancel_pauses_it(queue, monkeypatch) -> None:
    monkeypatch.setenv("INVENTED_CELL_S", "0.5")
    opened = queue()
    sweep = planned(plan(), opened.devices(), "me")
    run = SweepRun(sweep, opened, lambda outcomes, state: [opened.cancel(view.job_id) for view in opened.jobs("me")], None, 1)
    found = run.run()
    assert found.state.status == "paused"
    assert "was cancelled" in found.state.sentence


def test_what_cannot_be_kept_is_not_shown_and_pauses_the_sweep(queue) -> None:
    from profiling.store import StoreProblem

    def keep(outcomes, state) -> None:
        if outcomes:
            raise StoreProblem("The disk is full: the store x took nothing of this, and what it held is intact.")

    opened = queue()
    sweep = planned(plan(), opened.devices(), "me")
    found = SweepRun(sweep, opened, keep).run()
    assert (found.state.status, found.counts) == ("paused", {"pending": len(found.cells)})
    assert found.state.sentence.startswith("The disk is full")


def test_a_job_that_the_queue_forgot_is_run_again(queue, monkeypatch) -> None:
    opened, forgotten = queue(), []
    view = opened.view

    def forgetful(job_id: str):
        if not forgotten:
            forgotten.append(job_id)
        if job_id in forgotten:
            raise KeyError(job_id)
        return view(job_id)

    monkeypatch.setattr(opened, "view", forgetful)
    found, _ = swept(opened, plan(finalists=0))
    assert found.counts == {"measured": len(found.cells)}
    assert len(forgotten) == 1


def test_a_sweep_s_jobs_do_not_push_out_what_others_look_at(queue, monkeypatch) -> None:
    monkeypatch.setattr("profiling.job_queue.REMEMBERED_FINISHED_JOBS", 2)
    monkeypatch.setattr("profiling.job_queue.REMEMBERED_SCREENINGS", 3)
    opened = queue()
    request = planned(plan(), opened.devices(), "me").cells[0].request
    mine = opened.submit([request], "Ada")
    opened.wait(mine)
    for _ in range(5):
        opened.wait(opened.submit([request], "a sweep", "screening"))
    opened.submit([request], "a sweep", "screening")
    assert opened.view(mine).results[0].latency is not None
    assert len([one for one in opened.jobs("a sweep") if one.finished]) == 3


def test_a_search_times_its_budget_and_finds_the_best(queue, tmp_path) -> None:
    wide = {"block_m": (32, 64, 128, 256), "block_n": (32, 64, 128), "num_warps": (4, 8), "num_stages": (2, 3, 4)}
    found, _ = swept(queue(), plan(**wide, budget=30, finalists=3))
    counts = found.counts
    in_grid = [outcome for cell, outcome in found.by_key.values() if "grid" in cell.roles]
    # the default is in the grid, and given to it beside what it asks for
    assert 30 <= sum(one.status == "measured" for one in in_grid) <= 31
    assert counts["untried"] == len(found.cells) - counts["measured"]
    assert found.state.done == found.state.total == len(found.cells)
    best = ranking(found, found.plan.series[0]).best
    assert fake.words_of(found.by_key[best.key][0].tiles) in ("128x64x8x3", "128x64x8x4")


def test_two_gpus_of_one_model_share_the_cells_and_two_models_are_refused(queue) -> None:
    other = fake.device("GPU-11110000-0000-0000-0000-000000000000")
    both = (records.GPU_ID, other.id)
    found, _ = swept(queue(devices=(fake.device(), other)), plan(devices=both, finalists=2), cells_a_job=2)
    assert {one.measurement.environment.device.id for one in found.outcomes} == set(both)
    assert len({one.final.environment.device.id for one in found.outcomes if one.final}) == 1
    unlike = fake.device(other.id, "NVIDIA Otherwise")
    with pytest.raises(ValueError, match=r"several models \(NVIDIA Invented, NVIDIA Otherwise\)"):
        planned(plan(devices=both), (fake.device(), unlike), "me")
    with pytest.raises(ValueError, match="device = GPU-0 is not here"):
        planned(plan(devices=("GPU-0",)), (fake.device(),), "me")


def test_a_device_that_is_slower_gets_fewer_cells_and_no_other_waits_for_it(tmp_path) -> None:
    slow, fast = fake.device("GPU-11110000-0000-0000-0000-000000000000"), fake.device()
    usual = fake.command(tmp_path)
    opened = JobQueue(
        devices=lambda: (slow, fast),
        command=lambda id: (*(("env", "INVENTED_CELL_S=2") if id == slow.id else ()), *usual(id)),
    )
    with contextlib.closing(opened):
        found, _ = swept(opened, plan(devices=(slow.id, fast.id), finalists=0), cells_a_job=1)
    by_device = Counter(one.measurement.environment.device.id for one in found.outcomes)
    assert sum(by_device.values()) == len(found.cells) >= 12
    assert 1 <= by_device[slow.id] <= 3, "two were under way there, and a third when the first had ended"


def test_a_grid_s_jobs_are_larger_on_a_cluster_and_every_device_has_its_share(queue, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("profiling.sweep_run.RayRunner", JobQueue)
    wide = {"block_m": (32, 64, 128), "finalists": 0}
    both = (fake.device(), fake.device("GPU-11110000-0000-0000-0000-000000000000"))

    def sizes(**asked: object) -> list[int]:
        (tmp_path / "log").unlink(missing_ok=True)
        swept(queue(devices=both), plan(**wide, **asked))
        return sorted(len(cells) for _, cells in jobs(tmp_path))

    one = sizes()
    assert (one[-1], len(one)) == (MOST_IN_A_JOB, math.ceil(sum(one) / MOST_IN_A_JOB))
    two = sizes(devices=tuple(device.id for device in both))
    assert sum(two) == sum(one) < 2 * MOST_IN_A_JOB
    assert two == [sum(two) // 2, math.ceil(sum(two) / 2)]
    assert sizes(budget=12)[-1] <= CELLS_A_JOB


def test_several_versions_meet_the_same_rounds(queue, tmp_path) -> None:
    found, _ = swept(queue(), plan(kernels=("v2", "v3"), finalists=3))
    assert len(rankings(found)) == 2
    assert [effort for effort, _ in jobs(tmp_path)].count("full") == 1
    assert len({one.final.started_at for one in found.outcomes if one.final}) == 1


def test_one_server_s_sweeps_are_seen_paused_resumed_and_found_again(queue, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("INVENTED_CELL_S", "0.1")
    url = str(tmp_path / "store.sqlite3")
    sweeps = Sweeps(queue(), url)
    sweep_id = sweeps.start(plan(finalists=2), "Ada")
    until(lambda: sweeps.view(sweep_id).counts.get("measured"))
    assert sweeps.listed()[0].status == "running"
    sweeps.pause(sweep_id)
    until(lambda: sweeps.view(sweep_id).state.status == "paused")
    half = sweeps.view(sweep_id)
    sweeps.close()
    later = Sweeps(queue(), url)
    assert [(one.sweep_id, one.status, one.owner) for one in later.listed()] == [(sweep_id, "paused", "Ada")]
    assert later.view(sweep_id).outcomes == half.outcomes
    later.resume(sweep_id)
    until(lambda: later.view(sweep_id).state.is_over)
    assert later.view(sweep_id).state.status == "finished"
    assert later.view(sweep_id).counts == {"measured": len(half.cells)}
    with pytest.raises(KeyError):
        later.view("0" * 12)
    later.close()
    again = Sweeps(queue(), url)
    assert again.view(sweep_id).counts == {"measured": len(half.cells)}
    again.close()


def until(true: Callable[[], object], at_most_s: float = 60.0) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + at_most_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
