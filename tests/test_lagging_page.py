"""A trace whose m lags, on the Softmax page and in the player: an H200's, from the gallery, and the model's in NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from app import state
from app.figures import ledger
from app.figures.style import LIGHT
from app.player import choices
from app.player.payload import is_last_first, pack
from kernels.problem import Precision
from profiling.rescale_ledger import rescale_ledger
from tests import records_for_tests as records
from tests.fake_queue import FakeQueue
from tests.lagging_attention import measured
from tests.test_player_payload import unpacked
from tests.test_softmax_page import FIRST, header_of, shown, softmax_page


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> FakeQueue:
    found = FakeQueue((records.interpreter(),))
    monkeypatch.setattr(state, "job_queue", lambda: found)
    monkeypatch.setattr(state, "first_traces", lambda: FIRST)
    return found


def test_the_blob_says_how_far_m_may_lag_and_each_tile_s_own_maxima() -> None:
    measurement = measured()
    trace = measurement.tiles_trace
    header, (found,) = unpacked(pack([measurement]))
    facts = header["traces"][0]
    assert (facts["lagLog2"], facts["lastFirst"]) == (8.0, True)
    np.testing.assert_array_equal(found["rowMax"].reshape(trace.m.shape), trace.row_max.numpy())
    np.testing.assert_array_equal(found["multiplied"].reshape(trace.m.shape), trace.multiplied.numpy())
    m, row_max = trace.m.numpy(), trace.row_max.numpy()
    seen = np.isfinite(row_max) & np.isfinite(m)
    assert facts["limits"]["weight"] == pytest.approx(math.exp((row_max[seen] - m[seen]).max()), rel=1e-6)
    assert 1 < facts["limits"]["weight"] <= 256 * 1.001
    assert facts["range"]["m"][1] == pytest.approx(max(m[np.isfinite(m)].max(), row_max[seen].max()))
    (plain,) = unpacked(pack(FIRST[:1]))[0]["traces"]
    assert (plain["lagLog2"], plain["lastFirst"], plain["limits"]["weight"]) == (0.0, False, 1.0)
    assert not is_last_first(FIRST[0].tiles_trace)


def test_v3_hopper_is_refused_here_and_its_recordings_are_offered(queue: FakeQueue) -> None:
    page = softmax_page(version="v3-hopper")
    assert "v3-hopper is not possible in the interpreter: it is written in Hopper&#x27;s own instructions." in shown(page)
    recorded = page.selectbox(key=state.RECORDED_TRACE_KEY)
    (name,) = [option for option in recorded.options if option.startswith("v3-hopper")]
    recorded.select(name).run()
    assert not page.exception
    header = header_of(page)
    assert [trace["label"] for trace in header["traces"]] == ["v3-hopper"]
    assert header["traces"][0]["provenance"] == "measured"
    said = shown(page)
    assert "agrees with its NumPy replay" in said
    assert "whose m may lag by up to 2^8" in said
    assert "though a larger score came" in said
    assert queue.submitted == []


def test_the_recorded_trace_steps_beside_one_that_goes_the_other_way(queue: FakeQueue) -> None:
    (hopper, v2) = [one for one in state.recorded_traces() if one.request.problem.seq_len_q == 1024]
    fields = choices.asking_for(hopper)
    page = softmax_page(**{name: str(value).lower() for name, value in {**fields, "beside": "v2"}.items()})
    assert [trace["lastFirst"] for trace in header_of(page)["traces"]] == [True, False]
    assert (hopper.label, v2.label) == ("v3-hopper", "v2")


def test_a_trace_in_tiles_that_the_page_has_not_cannot_be_asked_for() -> None:
    one = measured()
    assert choices.asking_for(one) is not None
    tiles = one.tiles.model_copy(update={"block_m": 192, "num_warps": 12})
    assert (
        choices.asking_for(one.model_copy(update={"tiles": tiles, "request": one.request.model_copy(update={"tiles": tiles})}))
        is None
    )
    assert choices.asking_for(one.model_copy(update={"tiles_trace": None})) is None


def test_the_chart_has_moved_and_kept_rows() -> None:
    trace = measured().tiles_trace
    found = rescale_ledger(trace, "v3-hopper", Precision())
    chart = ledger.chart(found, trace, LIGHT)
    moved, kept, lazy = chart.figure.data
    assert list(moved.y) == found.rescaled_rows.tolist()
    assert list(kept.y) == found.lagging.kept_rows.tolist()
    assert list(kept.base) == found.rescaled_rows.tolist()
    assert list(lazy.y) == found.lazy.rescaled_rows.tolist()
    told = [row["kept though a larger score came"] for row in chart.table]
    assert told == [str(count) for count in found.lagging.kept_rows]
    assert "no row of their warp was more than 2^8 above" in chart.caption
