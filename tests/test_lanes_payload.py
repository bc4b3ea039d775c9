"""The lanes' blob against the timetables it was made of."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.lanes import payload
from app.lanes.export import LANES_SCRIPT, page_of_lanes
from app.lanes.payload import LaneFacts, Selection, pack, slots_of
from kernels.problem import AttentionProblem, TileConfig
from profiling.schedule_record import WHOLE_HEAD
from profiling.timetable import Timetable
from tests import records_for_tests as records

PROBLEM = AttentionProblem(batch=2, num_heads=4, num_kv_heads=4, seq_len_q=2048, seq_len_kv=2048, head_dim=64, causal=True)
TILES = TileConfig(block_m=128, block_n=128, num_warps=8, num_stages=3)
FACTS = LaneFacts(title=PROBLEM.title, device="H200", num_heads=4, block_m=128, seq_len_q=2048)
COLUMNS = {
    "sm": "sm", "program": "program", "start": "start_ns", "end": "end_ns", "head": "head", "block": "block", "tiles": "tiles",
}  # fmt: skip


def stamped(tiles: TileConfig = TILES, **changes: Any) -> Timetable:
    """A measured timetable of PROBLEM on eight SMs."""
    return Timetable.of(records.schedule_of(PROBLEM, tiles, sm_count=8, **changes), 8)


def timetable(rows: list[tuple[int, int, float, float]], sm_count: int = 4) -> Timetable:
    """One of (sm, program, start, end) alone, each the block of a head of its own."""
    sm, program, start, end = (np.array(column) for column in zip(*rows, strict=True))
    count = len(rows)
    return Timetable(
        "modelled", sm_count, 0, sm.astype("i4"), program.astype("i4"), start.astype("f8"), end.astype("f8"),
        np.arange(count, dtype="i4"), np.zeros(count, "i4"), np.ones(count, "i4"),
    )  # fmt: skip


def unpacked(blob: bytes) -> tuple[dict[str, Any], list[dict[str, np.ndarray]]]:
    """The header, and each table's arrays by name, read as canvas.js reads them."""
    (length,) = struct.unpack_from("<I", blob)
    assert (4 + length) % 16 == 0
    header = json.loads(blob[4 : 4 + length])
    found = []
    for table in header["tables"]:
        for kind, offset, _ in table["arrays"].values():
            assert offset % np.dtype(kind).itemsize == 0, "a typed array must be aligned"
        found.append(
            {
                name: np.frombuffer(blob, dtype=f"<{kind}", count=count, offset=4 + length + offset)
                for name, (kind, offset, count) in table["arrays"].items()
            }
        )
    return header, found


def most_at_once(table: Timetable) -> int:
    """The most programs that one SM held at the same time, counted at every start."""
    programs = {}
    for sm, program, start, end in zip(table.sm, table.program, table.start_ns, table.end_ns, strict=True):
        first, last = programs.get((sm, program), (np.inf, -np.inf))
        programs[sm, program] = (min(first, start), max(last, end))
    held = [(sm, *times) for (sm, _), times in programs.items()]
    return max(sum(other == sm and a <= start < b for other, a, b in held) for sm, start, _ in held)


@pytest.mark.parametrize(
    "tiles",
    [TILES, TILES.model_copy(update={"num_programs": 5}), TILES.model_copy(update={"loop_order": "key"})],
    ids=["a program a block", "persistent", "key-outer"],
)
def test_the_blob_says_what_the_timetable_says(tiles: TileConfig) -> None:
    table = stamped(tiles)
    header, (found,) = unpacked(pack([("v2", table)], FACTS))
    for name, column in COLUMNS.items():
        np.testing.assert_array_equal(found[name], getattr(table, column))
    facts = header["tables"][0]
    whole = tiles.loop_order == "key"
    assert (facts["label"], facts["provenance"], facts["smCount"], facts["tickNs"]) == ("v2", "measured", 8, table.tick_ns)
    assert (facts["heads"], facts["blocks"], facts["wholeHeads"]) == (8, 1 if whole else 16, whole)
    assert facts["programs"] == len(set(table.program.tolist()))
    assert header["facts"] == {
        "title": PROBLEM.title, "numHeads": 4, "blockM": 128, "seqLenQ": 2048, "canOpen": True, "nsPerTile": None,
    }  # fmt: skip
    assert header["selection"] is None


def test_the_same_timetables_give_the_same_bytes_and_the_id_is_theirs_alone() -> None:
    table = stamped()
    blob = pack([("v2", table)], FACTS)
    assert pack([("v2", table)], FACTS) == blob
    same, _ = unpacked(pack([("v2", table)], FACTS, Selection(1, 2)))
    other, _ = unpacked(pack([("v2", stamped(heaviest=False))], FACTS))
    header, _ = unpacked(blob)
    assert same["id"] == header["id"] != other["id"]
    assert same["selection"] == {"head": 1, "block": 2}


def test_two_are_shown_each_from_its_own_first_start() -> None:
    table = stamped()
    later = replace(table, provenance="modelled", tick_ns=0, start_ns=table.start_ns + 5e6, end_ns=table.end_ns + 5e6)
    header, (first, second) = unpacked(pack([("stamped", table), ("model", later)], FACTS))
    np.testing.assert_array_equal(second["start"], first["start"])
    np.testing.assert_array_equal(second["end"], first["end"])
    assert [one["provenance"] for one in header["tables"]] == ["measured", "modelled"]


@pytest.mark.parametrize("selection", [Selection(8, 0), Selection(0, 16), Selection(0, WHOLE_HEAD)])
def test_what_no_table_holds_is_not_selected(selection: Selection) -> None:
    header, _ = unpacked(pack([("v2", stamped())], FACTS, selection))
    assert header["selection"] is None


@pytest.mark.parametrize("programs_per_sm", [1, 2, 3])
def test_programs_that_share_an_sm_get_places_beside_each_other(programs_per_sm: int) -> None:
    table = stamped(programs_per_sm=programs_per_sm)
    _, (found,) = unpacked(pack([("v2", table)], FACTS))
    assert found["slot"].max() + 1 == most_at_once(table) == programs_per_sm


def test_a_persistent_program_keeps_its_place() -> None:
    table = timetable([(0, 0, 0, 10), (0, 1, 0, 10), (0, 1, 10, 20), (0, 0, 10, 30), (1, 2, 0, 5), (0, 3, 20, 25)])
    assert slots_of(table).tolist() == [1, 0, 0, 1, 0, 0]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=40)
)
def test_places_never_overlap_and_are_as_few_as_can_be(drawn: list[tuple[int, int, int, int]]) -> None:
    table = timetable([(sm, program * 3 + sm, start, start + lasts) for sm, program, start, lasts in drawn])
    slots = slots_of(table)
    spans: dict[tuple[int, int, int], tuple[float, float]] = {}
    for sm, slot, program, start, end in zip(table.sm, slots, table.program, table.start_ns, table.end_ns, strict=True):
        first, last = spans.get((sm, slot, program), (np.inf, -np.inf))
        spans[sm, slot, program] = (min(first, start), max(last, end))
    for (sm, slot, program), (start, end) in spans.items():
        for (other_sm, other_slot, other), (begins, ends) in spans.items():
            if (sm, slot) == (other_sm, other_slot) and program != other:
                assert end <= begins or ends <= start
    assert slots.max() + 1 == most_at_once(table)


def test_twenty_thousand_entries_fit_in_a_megabyte() -> None:
    count = 20_000
    rng = np.random.default_rng(3)
    table = replace(
        timetable([(0, 0, 0, 1)] * count, sm_count=132),
        sm=rng.integers(0, 132, count).astype("i4"),
        program=np.arange(count, dtype="i4"),
        start_ns=np.arange(count) * 100.0,
        end_ns=np.arange(count) * 100.0 + 50,
    )
    assert len(pack([("v2", table)], FACTS)) < 1_000_000


BAD = [
    ({"sm": np.array([0, 9], "i4")}, "names SM 9: of 4 the last is 3"),
    ({"sm": np.array([0, -1], "i4")}, "sm = -1 cannot be shown"),
    ({"block": np.array([0, -2], "i4")}, "block = -2 cannot be shown"),
    ({"end_ns": np.array([10.0, 4.0])}, "ends before it starts"),
    ({"start_ns": np.array([0.0, np.nan])}, "start_ns = nan cannot be shown"),
    ({"tiles": np.array([1], "i4")}, r"tiles has the shape \(1,\) beside 2 entries"),
    ({"sm_count": 100_000}, "has 100,000 SMs: 1 to 1,024 can be shown"),
    ({"start_ns": np.zeros(2), "end_ns": np.zeros(2)}, "spans 0 ns"),
    ({"head": np.array([0, 100_000_000], "i4")}, "100,000,001 heads × query blocks"),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD, ids=[sentence for _, sentence in BAD])
def test_what_cannot_be_shown_is_said_in_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    table = timetable([(0, 0, 0, 10), (1, 1, 5, 20)])
    pack([("v2", table)], FACTS)
    with pytest.raises(ValueError, match=f"^v2.*{sentence}"):
        pack([("v2", replace(table, **changes))], FACTS)


def test_none_three_too_many_entries_or_too_many_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one = ("v2", timetable([(0, number, 0, 10) for number in range(65)]))
    for tables in ([], [one] * 3):
        with pytest.raises(ValueError, match=f"^{len(tables)} timetables cannot be shown at once"):
            pack(tables, FACTS)
    with pytest.raises(ValueError, match=r"^v2 has 65 programs on one SM at once: 64 can be shown"):
        pack([one], FACTS)
    monkeypatch.setattr(payload, "MOST_ENTRIES", 64)
    with pytest.raises(ValueError, match=r"^v2 has 65 entries: 1 to 64 can be shown"):
        pack([one], FACTS)


def test_the_page_is_the_same_every_time_and_offers_nothing_that_only_the_app_can_do() -> None:
    table = stamped()
    page = page_of_lanes([("v2 <b>", table), ("model", replace(table, provenance="modelled"))], FACTS, Selection(1, 2))
    assert page == page_of_lanes([("v2 <b>", table), ("model", replace(table, provenance="modelled"))], FACTS, Selection(1, 2))
    text = page.decode()
    assert "v2 &lt;b&gt;" in text
    assert "v2 <b>" not in text.replace(LANES_SCRIPT, "")
    assert "v2 &lt;b&gt;: every bar was stamped by the kernel itself" in text
    assert "model: modelled, nobody measured it." in text
