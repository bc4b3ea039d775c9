"""Records of a backward: no number of it without right gradients, none of it in a forward; older and other ones stay apart."""

from __future__ import annotations

import csv

import pytest
from pydantic import ValidationError

from profiling import comparable, improvements, summary
from profiling.backward_record import Parts
from profiling.records import Measurement, RunRequest, rate_of
from profiling.samples_csv import samples_csv
from profiling.snapshot import Snapshot, read
from tests import records_for_tests as records


def changed(found: Measurement, **fields: object) -> Measurement:
    return Measurement(**{**{name: getattr(found, name) for name in Measurement.model_fields}, **fields})


def test_operations_are_two_and_a_half_forwards_for_a_backward_and_one_more_for_a_step() -> None:
    forward, backward, both = (
        records.on_gpu("v2"), records.with_backward("v2", "backward"), records.with_backward("v2", "both")
    )  # fmt: skip
    flops = forward.request.problem.flops
    assert (forward.request.flops, backward.request.flops, both.request.flops) == (flops, 2.5 * flops, 3.5 * flops)
    assert both.tflops == pytest.approx(3.5 * flops / both.latency.median_ms / 1e9)
    assert [one.label for one in (forward, backward, both)] == ["v2", "v2 bwd", "v2 fwd+bwd"]


def test_with_fp8_only_the_forward_of_a_step_runs_at_its_rate() -> None:
    request = records.on_gpu("v3", fp8=True).request
    rates = [rate_of(request.model_copy(update={"direction": one}), 1000.0, 2000.0) for one in ("forward", "backward", "both")]
    assert rates == [2000.0, 1000.0, pytest.approx(3.5 / (1 / 2000 + 2.5 / 1000))]
    assert rate_of(request.model_copy(update={"direction": "both"}), 1000.0, None) is None
    assert rate_of(records.on_gpu("v2").request, 1000.0, None) == 1000.0


@pytest.mark.parametrize("direction", ["backward", "both"])
def test_a_speed_without_right_gradients_is_refused(direction: str) -> None:
    found = records.with_backward("v2", direction)
    for fields in ({"gradients": None}, {"gradients": records.gradients(passed=False)}):
        with pytest.raises(ValidationError, match="without gradients that passed their check is not a result"):
            changed(found, **fields)
    wrong = records.with_backward("v2", direction, passed=False)
    assert (wrong.wrong, wrong.latency, wrong.parts) == ("gradients", None, None)
    assert not summary.is_sound(wrong)
    assert summary.summary((wrong,)) == f"{wrong.label} wrong"


def test_gradients_cannot_pass_against_their_own_numbers() -> None:
    wrong = records.gradients(passed=False)
    with pytest.raises(ValidationError, match="gradients that passed with an error that is not allowed"):
        records.gradients(**{"dk": wrong.dk})
    with pytest.raises(ValidationError, match="17 heads checked of 16 is not possible"):
        records.gradients(heads_checked=17)
    assert wrong.worst[0] == "dk"


def test_what_is_of_a_backward_is_in_no_forward() -> None:
    step = records.with_backward()
    for name in ("gradients", "parts", "backward_tiles"):
        with pytest.raises(ValidationError, match="not possible with direction = forward"):
            changed(records.on_gpu("v2"), **{name: getattr(step, name)})
    with pytest.raises(ValidationError, match="parts of a step are possible only with direction = both"):
        changed(records.with_backward("v2", "backward"), parts=step.parts)
    fields = {name: getattr(records.on_gpu("v2").request, name) for name in RunRequest.model_fields}
    with pytest.raises(ValidationError, match="tiles of a backward are not possible with direction = forward"):
        RunRequest(**{**fields, "backward_tiles": step.backward_tiles})
    for probe in ("tiles", "schedule"):
        with pytest.raises(ValidationError, match=f"direction = both is not possible with the probe {probe}: only a forward"):
            RunRequest(**{**fields, "direction": "both", "probes": (probe,)})


def test_parts_are_timed_alike() -> None:
    cold, wall = records.latency(1.0), records.latency(1.0, interpreted=True, rounds=1, a_round=1)
    with pytest.raises(ValidationError, match="parts of a step timed cold and wall are not possible"):
        Parts(forward=cold, backward=wall)
    with pytest.raises(ValidationError, match="timed warm are not possible"):
        Parts(forward=cold.model_copy(update={"mode": "warm"}))
    assert Parts(forward=cold, preprocess=cold).timed == (cold, cold)


def test_two_directions_are_two_problems() -> None:
    forward, step = records.on_gpu("v2"), records.with_backward("v2")
    said = comparable.not_comparable(forward, step)
    assert said == "A and B compute different problems: direction is forward in A and both in B."
    snapshots = [Snapshot(title="a", created_at=one.started_at, measurements=(one,)) for one in (forward, step)]
    assert improvements.pairs(*snapshots) == ()
    wrong = records.with_backward("v2", passed=False)
    assert comparable.not_comparable(step, wrong) == (
        "B has no time: its gradients are wrong, and wrong gradients have no speed."
    )


def test_a_snapshot_keeps_them_and_a_row_of_the_csv_says_which_part_it_is_of() -> None:
    step = records.with_backward()
    snapshot = Snapshot(title="a step", created_at=step.started_at, measurements=(step,))
    assert read(snapshot.document) == snapshot
    rows = list(csv.reader(samples_csv(snapshot).splitlines()[1:]))
    assert list(dict.fromkeys(row[1] for row in rows)) == [
        "v2 fwd+bwd", "v2 fwd+bwd, forward", "v2 fwd+bwd, backward", "v2 fwd+bwd, preprocess"
    ]  # fmt: skip
    assert sum(row[1] == "v2 fwd+bwd, preprocess" for row in rows) == step.parts.preprocess.n
