"""A snapshot is the same everywhere: document, file, page; older schemas open for ever, newer ones as far as understood."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from pydantic import ValidationError

from profiling.snapshot import (
    MAX_PAGE_BYTES,
    SCHEMA_VERSION,
    NewerSnapshot,
    NotASnapshot,
    Snapshot,
    canonical,
    embedded,
    file_name,
    file_of,
    read,
)
from tests.everything_drawn import draw_everything
from tests.mutated_files import mutated, seeds
from tests.reading_process import Answer, Reader
from tests.records_for_tests import recording
from tests.snapshot_strategies import snapshots

SAMPLES = Path(__file__).with_name("samples")
# A sample's id once its schema was released: it never changes, whatever later versions make of it.
IDS = {
    "snapshot-schema-1.json": "23d95067c28d8eefa309ccb8f5adcaba12d5d1059bd38cbe52cde4126057707a",
    "snapshot-schema-2.json": "1048f1daae96cae39f93689106307efff1f906748f09554f9df96b18228ead40",
    "snapshot-schema-3.json": "7246e2bf83ed067096d5567690c2749ed1851eb01aecb0144f8b2796330b58b9",
    "snapshot-schema-4.json": "1aae6ee553cec54154f9d9201fb98dac29cc13e2dac191390a260a301a864675",
    "snapshot-schema-5.json": "d9eaa0f1ab8238d1a6e63dfcbf057b97140fab4fabf5bd53a1bd05a2b21cd882",
}
HTML_IN_BASE64 = base64.b64encode(b"<html>").decode()
TOO_LONG_S, TOO_MUCH_MB = 2.0, 300.0


def page_with(element: str) -> bytes:
    return f"<!DOCTYPE html>\n<html><head><title>é</title></head><body><p>&lt;</p>{element}<footer></body></html>".encode()


def sample(version: int = SCHEMA_VERSION) -> dict[str, Any]:
    return json.loads((SAMPLES / f"snapshot-schema-{version}.json").read_bytes())


def said_of(data: bytes) -> str:
    with pytest.raises(NotASnapshot) as caught:
        read(data)
    return str(caught.value)


# The same everywhere


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(snapshots())
def test_a_snapshot_survives_document_file_and_page(snapshot: Snapshot) -> None:
    survives(snapshot)


@pytest.mark.long
@settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(snapshots())
def test_ten_thousand_snapshots_survive_document_file_and_page(snapshot: Snapshot) -> None:
    survives(snapshot)


def survives(snapshot: Snapshot) -> None:
    assert snapshot.id == hashlib.sha256(snapshot.document).hexdigest()
    for data in (snapshot.document, file_of(snapshot), page_with(embedded(snapshot))):
        again = read(data)
        assert again.document == snapshot.document
        assert again.id == snapshot.id
        assert again == snapshot
    assert canonical(json.loads(snapshot.document)) == snapshot.document
    pretty = json.dumps(json.loads(snapshot.document), indent=2).encode()
    assert read(pretty).id == snapshot.id


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(snapshots())
def test_a_snapshot_can_be_drawn_whatever_is_missing(snapshot: Snapshot) -> None:
    draw_everything(snapshot)


def test_the_document_is_canonical() -> None:
    value = {"b": [-0.0, 1e22, 5e-324, 1 / 3, 2**63 - 1, {}, []], "a": 'é\u2028😀\\"/', "": None, "Z": True}
    numbers = "-0.0,1e+22,5e-324,0.3333333333333333,9223372036854775807,{},[]"
    text = canonical(value)
    assert text.decode() == '{"":null,"Z":true,"a":"é\u2028😀\\\\\\"/","b":[' + numbers + "]}"
    assert canonical(json.loads(text)) == text
    for bad in (float("nan"), float("inf"), "\ud800"):
        with pytest.raises(ValueError, match=r"JSON compliant|surrogates"):
            canonical([bad])


def test_a_file_s_name_and_bytes_are_its_content_s() -> None:
    snapshot = recording(kernels=("v3",))
    assert file_of(snapshot) == file_of(read(file_of(snapshot)))
    assert file_name(snapshot) == f"{snapshot.id[:12]}.flashscope.json.gz"
    assert recording("Another title", kernels=("v3",)).id != snapshot.id


def test_words_are_cleaned_and_bounded() -> None:
    snapshot = recording(" A\u202etitle\n", "first\r\nsecond\x00", kernels=("v3",))
    assert (snapshot.title, snapshot.note) == ("Atitle", "first\nsecond")
    with pytest.raises(ValidationError, match="a title of 121 characters"):
        recording("x" * 121)


# Older and newer schemas


def test_there_is_a_sample_of_every_schema() -> None:
    assert {path.name for path in SAMPLES.glob("snapshot-*")} == set(IDS)
    assert len(IDS) == SCHEMA_VERSION


@pytest.mark.parametrize("name", IDS)
def test_every_released_schema_opens_for_ever(name: str) -> None:
    snapshot = read((SAMPLES / name).read_bytes())
    assert isinstance(snapshot, Snapshot)
    assert snapshot.id == IDS[name]
    assert draw_everything(snapshot) > 3


def test_an_older_snapshot_keeps_its_document_and_so_its_id() -> None:
    older = read((SAMPLES / "snapshot-schema-1.json").read_bytes())
    assert json.loads(older.document) == sample(1)
    assert read(older.document).id == read(file_of(older)).id == older.id
    changed = older.model_copy(update={"title": "Other words"})
    assert json.loads(changed.document)["schema_version"] == SCHEMA_VERSION
    assert changed.id != older.id


def test_schema_1_takes_its_moment_from_its_first_measurement() -> None:
    snapshot = read((SAMPLES / "snapshot-schema-1.json").read_bytes())
    assert snapshot.created_at == snapshot.measurements[0].started_at
    for measurements in ([], [{}], [3], None, {"a": 1}):
        assert "This is no snapshot" in said_of(json.dumps({**sample(1), "measurements": measurements}).encode())


def test_a_newer_snapshot_is_kept_byte_for_byte_and_shown_as_far_as_understood() -> None:
    newer = sample()
    newer.update(schema_version=7, sweeps=[[1, 2]], title=" new\u202e ", tags=["a", 3, "\u200b", "b" * 400])
    newer["measurements"][0]["environment"]["device"]["clocks"] = {"deep": [1, {"er": 2}]}
    newer["measurements"][1]["latency"]["mode"] = "graph"
    newer["measurements"].append("another kind")
    document = canonical(newer)
    for data in (document, gzip.compress(document)):
        found = read(data)
        assert isinstance(found, NewerSnapshot)
        assert found.document == document
        assert found.id == hashlib.sha256(document).hexdigest()
    assert read(page_with(embedded(found))) == found
    assert gzip.decompress(file_of(found)) == document
    assert (found.schema_version, found.title, found.tags) == (7, "new", ("a", "b" * 40))
    old = read((SAMPLES / f"snapshot-schema-{SCHEMA_VERSION}.json").read_bytes())
    assert found.measurements == (old.measurements[0], *old.measurements[2:])
    assert draw_everything(found) > 3


@pytest.mark.parametrize(
    "fields", [{}, {"title": 3, "note": [], "tags": "a", "measurements": {}, "created_at": "soon", "host": None}]
)
def test_a_newer_snapshot_may_hold_anything_else(fields: dict[str, Any]) -> None:
    found = read(json.dumps({"schema_version": SCHEMA_VERSION + 1, **fields}).encode())
    assert isinstance(found, NewerSnapshot)
    assert found == NewerSnapshot(found.document, SCHEMA_VERSION + 1, "without a title", "", "", "", (), "", ())
    assert draw_everything(found) == 0


@pytest.mark.parametrize("version", [None, 0, -1, 2.0, "2", True, [2]])
def test_without_a_version_it_is_no_snapshot(version: object) -> None:
    assert "no schema_version that is a whole number from 1" in said_of(
        json.dumps({**sample(), "schema_version": version}).encode()
    )
    assert "no schema_version" in said_of(b"[1]")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda value: value.update(colour="red"), "This is no snapshot: colour is not possible: there is no such field."),
        (lambda value: value.pop("title"), "This is no snapshot: title is missing."),
        (lambda value: value.update(measurements=[]), "measurements = [] is not possible: it should have at least 1 item"),
        (lambda value: value.update(measurements=value["measurements"][:1] * 17), "it should have at most 16 items"),
        (lambda value: value["measurements"][0].update(accuracy=None), "a latency without a passed accuracy check is not a"),
        (lambda value: value.update(note="x" * 300_000), "a note of 300,000 characters is not possible: it can be 10,000 at"),
        (lambda value: value.update(note=["x" * 300_000]), "note = ['xxx"),
        (lambda value: value.update(note=[0] * 100_000), f" values: schema {SCHEMA_VERSION} has 100,000 at most."),
    ],
)  # fmt: skip
def test_what_is_no_snapshot_is_said_in_one_short_sentence(change: Any, said: str) -> None:
    value = sample()
    change(value)
    sentence = said_of(json.dumps(value).encode())
    assert said in sentence
    assert len(sentence) < 250


def test_a_document_larger_than_the_records_allow_is_not_validated() -> None:
    value = {**sample(), "note": "x" * 20_000_000}
    said = f"bytes of JSON: schema {SCHEMA_VERSION} has 20,000,000 at most"
    assert said in said_of(gzip.compress(json.dumps(value).encode()))


# Pages


def test_a_page_holds_the_snapshot_and_nothing_in_it_can_end_the_element() -> None:
    snapshot = recording("</script><script>alert(1)</script>", kernels=("v3",))
    element = embedded(snapshot)
    assert element.count("<") == 2
    assert read(page_with(element)) == snapshot
    wrapped = element.replace("=</script>", "=\n</script>")
    wrapped = wrapped[:200] + "\r\n  " + wrapped[200:]
    assert read(b"\xef\xbb\xbf \n" + page_with(wrapped)) == snapshot
    for begin in (b"<HTML>", b"<!doctype html>", b"<!-- saved -->", b"\n<html lang=en>"):
        assert read(begin + element.encode()).id == snapshot.id


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (page_with(""), "This HTML page holds no snapshot"),
        (page_with(embedded(recording(kernels=("v3",))) * 2), "This HTML page holds more than one snapshot"),
        (page_with(embedded(recording(kernels=("v3",))))[:3000], "damaged: it is cut off, or no base64"),
        (page_with(embedded(recording(kernels=("v3",))).replace("A", "!", 1)), "damaged"),
        (page_with('<script type="application/gzip+base64" id="flashscope-snapshot">é</script>'), "damaged"),
        (page_with('<script type="application/gzip+base64" id="flashscope-snapshot"></script>'), "This file is empty"),
        (
            page_with(f'<script type="application/gzip+base64" id="flashscope-snapshot">{HTML_IN_BASE64}</script>'),
            "This is neither JSON nor gzip",
        ),
        (b"<html>" + b" " * MAX_PAGE_BYTES, "A page of 16,000,006 bytes is not possible"),
    ],
)  # fmt: skip
def test_a_page_without_a_whole_snapshot_says_so(page: bytes, said: str) -> None:
    assert said in said_of(page)


# Hostile files


def read_many(count: int, seed: int) -> tuple[dict[str, int], Answer, list[bytes]]:
    """(how many of each kind, the slowest answer with the process's peak of memory, the files that were accepted)."""
    rng, documents = random.Random(seed), seeds()
    kinds: dict[str, int] = {}
    slowest, accepted = None, []
    with Reader() as reader:
        for _ in range(count):
            data = mutated(rng, documents)
            answer = reader.read(data)
            kinds[answer.kind] = kinds.get(answer.kind, 0) + 1
            if slowest is None or answer.cpu_seconds > slowest.cpu_seconds:
                slowest = answer
            if answer.kind == "sentence":
                assert 10 < len(answer.text) < 400, answer.text
                assert answer.text.endswith("."), answer.text
                assert answer.text.isprintable(), answer.text
            else:
                accepted.append(data)
    return kinds, Answer(**{**vars(slowest), "peak_rss_mb": answer.peak_rss_mb}), accepted


def check_mutated(count: int, seed: int, drawn: int) -> None:
    kinds, slowest, accepted = read_many(count, seed)
    figures = f"{kinds}, slowest {slowest.cpu_seconds:.2f} s of CPU, peak {slowest.peak_rss_mb:.0f} MB"
    assert slowest.cpu_seconds <= TOO_LONG_S, figures
    assert slowest.peak_rss_mb <= TOO_MUCH_MB, figures
    assert set(kinds) == {"sentence", "Snapshot", "NewerSnapshot"}, figures
    different = list({read(data).id: data for data in accepted}.values())
    for data in random.Random(seed).sample(different, min(drawn, len(different))):
        snapshot = read(data)
        assert read(file_of(snapshot)).id == snapshot.id
        draw_everything(snapshot)
    print(f"{figures}; {len(different)} different ones accepted, {min(drawn, len(different))} drawn")


def test_a_mutated_file_is_a_snapshot_that_can_be_drawn_or_a_sentence() -> None:
    check_mutated(350, 20260, drawn=6)


@pytest.mark.long
def test_a_hundred_thousand_mutated_files() -> None:
    check_mutated(100_000, 7, drawn=3000)
