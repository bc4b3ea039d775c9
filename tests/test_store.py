"""The store against oracles: what was put in, a list filtered in Python, a log written by hand; SQLite and PostgreSQL alike."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import os
import random
import sqlite3
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from profiling import file_systems, store_database
from profiling.snapshot import SCHEMA_VERSION, NewerSnapshot, Snapshot, canonical, file_of, read
from profiling.store import Change, Listed, Query, Store, StoreProblem
from profiling.store_tables import HEAD, METADATA, VERSION_TABLE
from profiling.summary import summary
from tests.postgres_server import LOCKED_PASSWORD, LOCKED_USER, PostgresServer
from tests.records_for_tests import failed, in_interpreter, on_gpu, recording
from tests.varied_snapshots import AUTHORS, HEAD_DIMS, LENGTHS, TAGS, varied

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    made = Store(store_url)
    yield made
    made.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "snapshots.sqlite3"


def newer(**changes: object) -> NewerSnapshot:
    """A snapshot of a schema to come, written with spaces that canonical JSON would not have."""
    value = json.loads(varied(1).document) | {"schema_version": 99, "weather": "fair", **changes}
    found = read(json.dumps(value, indent=1).encode())
    assert isinstance(found, NewerSnapshot)
    return found


def whats(changes: tuple[Change, ...]) -> list[str]:
    return [f"{change.who} {change.what}" for change in changes]


def tampered(store: Store, statement: str, **values: object) -> None:
    """Change the database behind the store's back."""
    with store._contents._database._engine.begin() as connection:
        connection.execute(sa.text(statement), values)


class TestKeeping:
    def test_what_is_kept_comes_back_byte_for_byte(self, store):
        for number in range(20):
            snapshot = varied(number)
            id = store.save(snapshot, "Ada", "imported" if number % 2 else "here")
            assert id == hashlib.sha256(snapshot.document).hexdigest()
            kept = store.get(id)
            assert kept.snapshot == snapshot
            assert kept.snapshot.document == snapshot.document
            assert (kept.id, kept.origin) == (id, "imported" if number % 2 else "here")
            assert (kept.deleted_at, kept.replaced_by, kept.is_baseline) == (None, None, False)
            assert abs(datetime.now(UTC) - datetime.fromisoformat(kept.saved_at)) < timedelta(minutes=1)

    def test_saving_again_changes_nothing(self, store):
        id = store.save(varied(1), "Ada")
        before = store.get(id)
        assert store.save(varied(1), "Grace", "imported") == id
        assert store.get(id) == before
        assert whats(store.changes()) == ["Ada saved"]
        assert store.search(Query()).total == 1

    def test_it_is_there_for_another_store_and_after_closing(self, store, store_url):
        id = store.save(varied(1), "Ada")
        other = Store(store_url)
        assert other.get(id).snapshot == varied(1)
        store.close()
        other.close()
        assert store.get(id).snapshot == varied(1)

    def test_a_newer_schema_is_kept_byte_for_byte_and_what_is_understood_is_found(self, store):
        snapshot = newer(title="Von morgen")
        id = store.save(snapshot, "Ada", "imported")
        kept = store.get(id).snapshot
        assert isinstance(kept, NewerSnapshot)
        assert kept.document == snapshot.document
        assert kept.document != canonical(json.loads(kept.document))
        assert [row.id for row in store.search(Query(text="MORGEN")).rows] == [id]
        with pytest.raises(StoreProblem, match=r"made by a newer FlashScope .* read-only"):
            store.edit(id, "Ada", title="x", note="", tags=())

    def test_a_newer_schema_that_is_hardly_understood(self, store):
        odd = newer(schema_version=2**62, title="", tags=["x" * 9000, "\x00", 7, *map(str, range(500))], measurements=[7])
        id = store.save(odd, "Ada", "imported")
        assert store.get(id).snapshot.document == odd.document
        (row,) = store.search(Query()).rows
        assert (row.summary, row.kernels, row.problem_title) == ("made by a newer FlashScope", (), "")
        assert row.tags == odd.tags
        assert len(odd.tags) < 30

    def test_foreign_texts_of_every_kind_can_be_listed(self, store):
        base = on_gpu("v3")
        value = json.loads(base.model_dump_json())
        value["environment"]["device"]["name"] = "a\n\tb\U0001f600" + "é" * 400
        value["request"]["kernel"] = "k\n'; DROP TABLE flashscope_rows; -- %"
        title = "\u2028 x \ufeff%s {0}"
        snapshot = Snapshot.model_validate_json(
            json.dumps(
                {
                    "schema_version": SCHEMA_VERSION,
                    "title": title,
                    "created_at": "2026-11-29T13:10:00+00:00",
                    "measurements": [value],
                }
            )
        )
        id = store.save(snapshot, "\x00Ada\u202e\ud800")
        (row,) = store.search(Query()).rows
        assert row.device_name == ("a  b\U0001f600" + "é" * 400)[:200]
        assert row.kernels == ("k '; DROP TABLE flashscope_rows; -- %",)
        assert store.search(Query(device_name=row.device_name, kernel=row.kernels[0])).total == 1
        assert store.get(id).snapshot == snapshot
        assert store.changes()[0].who == "Ada"

    def test_what_could_not_be_opened_again_is_not_kept(self, store):
        wrong = varied(1).model_copy(update={"created_at": "yesterday"})
        with pytest.raises(StoreProblem, match=r"could not be opened again: .*yesterday"):
            store.save(wrong, "Ada")
        surrogate = varied(1).model_copy(update={"note": "\ud800"})
        with pytest.raises(StoreProblem, match="cannot be kept"):
            store.save(surrogate, "Ada")
        assert store.search(Query()).total == 0

    def test_a_damaged_document_is_said_to_be_damaged(self, store):
        id, other = store.save(varied(1), "Ada"), store.save(varied(2), "Ada")
        changed = varied(1).model_copy(update={"title": "forged"})
        for damage in (file_of(changed), file_of(varied(1))[:-9], b"", b"\x1f\x8b"):
            tampered(store, "UPDATE flashscope_documents SET file = :file WHERE id = :id", file=damage, id=id)
            with pytest.raises(StoreProblem, match=f"document of snapshot {id[:12]} is damaged"):
                store.get(id)
        assert store.get(other).snapshot == varied(2)
        assert store.save(varied(1), "Grace") == id  # whoever still has it can bring it back
        assert store.get(id).snapshot == varied(1)
        assert store.changes(id)[0].detail == "the stored document was damaged"

    def test_many_threads_use_one_store(self, store):
        problems: list[Exception] = []

        def work(first: int) -> None:
            try:
                for number in range(first, first + 5):
                    store.save(varied(number), f"thread {first}")
                    store.search(Query(text="nightly"))
                    store.pin_baseline(varied(number).id, "someone")
            except Exception as error:
                problems.append(error)

        threads = [threading.Thread(target=work, args=(5 * n,)) for n in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        assert {row.id for row in store.search(Query(), limit=100).rows} == {varied(n).id for n in range(60)}
        assert sum(row.is_baseline for row in store.search(Query(), limit=100).rows) == 1

    def test_a_process_that_is_forked_off_has_connections_of_its_own(self, store):
        first = store.save(varied(1), "Ada")
        child = os.fork()
        if child == 0:
            try:
                assert store.get(first).snapshot == varied(1)
                store.save(varied(2), "child")
                os._exit(0)
            finally:
                os._exit(1)
        store.save(varied(3), "Ada")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        store.save(varied(4), "Ada")
        assert {row.id for row in store.search(Query()).rows} == {varied(number).id for number in range(1, 5)}


class TestPrefix:
    def test_eight_digits_are_enough_and_seven_are_not(self, store):
        id = store.save(varied(1), "Ada")
        assert store.get(id[:8]).id == store.get(f" {id[:20].upper()} ").id == store.get(id.upper()).id == id
        assert store.get(id[:7]) is None

    @pytest.mark.parametrize(
        "text", ["", "job-1234", "zzzzzzzz", "%" * 8, "12345678'--", "0" * 65, "ffff\x00fff", "\ud800" * 8]
    )
    def test_what_is_no_start_of_an_id_finds_nothing(self, store, text):
        store.save(varied(1), "Ada")
        assert store.get(text) is None

    def test_two_that_start_alike_ask_for_more_digits(self, store):
        id = store.save(varied(1), "Ada")
        twin = id[:9] + ("1" if id[9] == "0" else "0") + id[10:]
        tampered(store, "INSERT INTO flashscope_documents VALUES (:id, 2, :file)", id=twin, file=b"")
        with pytest.raises(StoreProblem, match=f"starts with {id[:8]}: give more"):
            store.get(id[:8])
        assert store.get(id[:10]).id == id
        assert store.get("0" * 64) is None


class TestChanging:
    def test_edit_makes_a_new_document_and_points_to_it(self, store):
        old = store.save(varied(3), "Ada", "imported")
        new = store.edit(old, "Grace", title="  Neu\u202e ", note="one\ntwo", tags=("B", "a"))
        kept, before = store.get(new), store.get(old)
        assert (kept.snapshot.title, kept.snapshot.note, kept.snapshot.tags) == ("Neu", "one\ntwo", ("a", "b"))
        for name in ("measurements", "created_at", "author", "host"):
            assert getattr(kept.snapshot, name) == getattr(varied(3), name)
        assert (kept.origin, kept.deleted_at, kept.replaced_by) == ("imported", None, None)
        assert before.snapshot == varied(3)
        assert before.replaced_by == new
        assert before.deleted_at is not None
        assert [row.id for row in store.search(Query()).rows] == [new]
        assert whats(store.changes(old)) == ["Grace edited", "Ada imported"]
        assert store.changes(old)[0].detail == f"title, note, tags; now {new[:12]}"
        assert store.changes(new)[0].detail == f"edited from {old[:12]}"

    def test_edit_to_the_same_words_changes_nothing(self, store):
        id = store.save(varied(3), "Ada")
        same = varied(3)
        assert store.edit(id, "Grace", title=f" {same.title} ", note=same.note, tags=same.tags[::-1]) == id
        assert len(store.changes()) == 1
        assert store.get(id).deleted_at is None

    def test_edit_there_and_back(self, store):
        first = store.save(varied(3), "Ada")
        second = store.edit(first, "Ada", title="other", note="", tags=())
        words = {"title": varied(3).title, "note": varied(3).note, "tags": varied(3).tags}
        assert store.edit(second, "Ada", **words) == first
        assert (store.get(first).deleted_at, store.get(first).replaced_by) == (None, None)
        assert store.get(second).replaced_by == first
        assert [row.id for row in store.search(Query()).rows] == [first]

    def test_of_two_who_edit_at_once_the_second_is_told(self, store):
        id = store.save(varied(3), "Ada")
        store.edit(id, "Ada", title="Ada's", note="", tags=())
        with pytest.raises(StoreProblem, match="edited by someone else meanwhile"):
            store.edit(id, "Grace", title="Grace's", note="", tags=())
        store.restore(id, "Grace")
        store.delete(id, "Grace")
        with pytest.raises(StoreProblem, match="is deleted: restore it"):
            store.edit(id, "Grace", title="Grace's", note="", tags=())

    def test_words_that_are_not_possible_are_named(self, store):
        id = store.save(varied(3), "Ada")
        for words, sentence in (
            ({"title": "\u200b"}, "a title without a visible character"),
            ({"title": "x" * 121}, "a title of 121 characters"),
            ({"note": "x" * 10_001}, "a note of 10,001 characters"),
            ({"tags": tuple(map(str, range(21)))}, "21 tags are not possible"),
            ({"tags": ("x" * 41,)}, "a tag of 41 characters"),
        ):
            with pytest.raises(StoreProblem, match=sentence):
                store.edit(id, "Ada", **({"title": "x", "note": "", "tags": ()} | words))
        assert store.get(id).deleted_at is None

    def test_delete_and_restore(self, store):
        id = store.save(varied(1), "Ada")
        store.delete(id, "Grace")
        store.delete(id, "Grace")
        assert store.get(id).deleted_at is not None
        assert store.search(Query()).total == 0
        assert [row.id for row in store.search(Query(deleted=True)).rows] == [id]
        store.restore(id, "Ada")
        store.restore(id, "Ada")
        assert store.get(id).deleted_at is None
        store.delete(id, "Grace")
        assert store.save(varied(1), "Łukasz") == id
        assert store.get(id).deleted_at is None
        expected = ["Łukasz restored", "Grace deleted", "Ada restored", "Grace deleted", "Ada saved"]
        assert whats(store.changes(id)) == whats(store.changes()) == expected

    def test_the_baseline(self, store):
        one, two = store.save(varied(1), "Ada"), store.save(varied(2), "Ada")
        assert store.baseline() is None
        store.pin_baseline(one, "Ada")
        store.pin_baseline(one, "Ada")
        assert store.baseline() == one
        assert store.get(one).is_baseline
        store.pin_baseline(two, "Grace")
        assert store.baseline() == two
        assert [row.is_baseline for row in store.search(Query()).rows] == [True, False]
        store.delete(two, "Ada")
        assert store.baseline() is None
        with pytest.raises(StoreProblem, match="is deleted: restore it before pinning"):
            store.pin_baseline(two, "Ada")
        store.pin_baseline(one, "Ada")
        new = store.edit(one, "Ada", title="renamed", note="", tags=())
        assert store.baseline() == new
        store.pin_baseline(None, "Ada")
        store.pin_baseline(None, "Ada")
        assert store.baseline() is None
        assert whats(store.changes(one)) == [
            "Ada no longer the baseline", "Ada edited", "Ada made the baseline",
            "Grace no longer the baseline", "Ada made the baseline", "Ada saved",
        ]  # fmt: skip
        assert whats(store.changes(two)) == [
            "Ada deleted",
            "Ada no longer the baseline",
            "Grace made the baseline",
            "Ada saved",
        ]
        assert whats(store.changes(new)) == ["Ada no longer the baseline", "Ada made the baseline", "Ada saved"]

    def test_what_is_not_there_cannot_be_changed(self, store):
        for id in ("0" * 64, "nothing", "\x00", "\ud800"):
            for change in (store.delete, store.restore, store.pin_baseline):
                with pytest.raises(StoreProblem, match="There is no snapshot"):
                    change(id, "Ada")
            with pytest.raises(StoreProblem, match="There is no snapshot"):
                store.edit(id, "Ada", title="x", note="", tags=())
            assert store.changes(id) == store.changes() == ()


def normal(text: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def expected_row(snapshot: Snapshot, found: Listed) -> Listed:
    """What the list must say of a snapshot, from the snapshot itself."""
    measurements = snapshot.measurements
    return replace(
        found,
        id=snapshot.id,
        title=snapshot.title,
        note=snapshot.note,
        author=snapshot.author,
        tags=snapshot.tags,
        created_at=snapshot.created_at,
        kernels=tuple(one.request.kernel for one in measurements),
        problem_title=measurements[0].request.problem.title,
        precision_titles=tuple(dict.fromkeys(one.request.precision.title for one in measurements)),
        device_name=measurements[0].environment.device.name,
        device_kind=measurements[0].environment.device.kind,
        summary=summary(measurements),
    )


@functools.cache
def searched_text(number: int) -> str:
    """All the texts that a search looks into, of varied(number)."""
    snapshot = varied(number)
    texts = [snapshot.title, snapshot.note, snapshot.author, *snapshot.tags]
    for one in snapshot.measurements:
        texts += [one.label, one.request.problem.title, one.environment.device.name]
    return normal("\n".join(texts))


def fits(snapshot: Snapshot, number: int, query: Query) -> bool:
    """Whether a snapshot fits a query, by reading all of it."""

    def one_fits(one) -> bool:
        problem = one.request.problem
        return (
            query.kernel in ("", one.request.kernel)
            and query.device_name in ("", one.environment.device.name)
            and query.seq_len in (None, problem.seq_len_q, problem.seq_len_kv)
            and query.head_dim in (None, problem.head_dim)
            and query.causal in (None, problem.causal)
            and query.fp8 in (None, one.request.precision.fp8)
        )

    return (
        all(word in searched_text(number) for word in normal(query.text).split())
        and any(one_fits(one) for one in snapshot.measurements)
        and normal(query.tag) in ("", *snapshot.tags)
        and query.author in ("", snapshot.author)
    )


def some_query(rng: random.Random) -> Query:
    def sometimes(values):
        return rng.choice(values) if rng.random() < 0.25 else None

    texts = (
        "GRÖSSE", "größe der", "Strasse", "STRASSE île", "100%", "_", "a_b", "%", "50 %", "αθηνα", "fit", "second LINE",
        "İstanbul", "ﬁt", "nai\u0308ve", "v3 fp8", "nvidia h200", "16,384", "causal", "nothing-like-it", "ada", "\\", "'",
    )  # fmt: skip
    return Query(
        text=sometimes(texts) or "",
        kernel=sometimes(("native", "v1", "v2", "v3", "fa3")) or "",
        device_name=sometimes(("NVIDIA H200", "NVIDIA L4", "Interpreter (CPU)")) or "",
        tag=sometimes(TAGS) or "",
        author=sometimes(AUTHORS[1:]) or "",
        seq_len=sometimes((*LENGTHS, 7)),
        head_dim=sometimes(HEAD_DIMS),
        causal=sometimes((True, False)),
        fp8=sometimes((True, False)),
    )


class TestSearching:
    def test_it_finds_what_reading_everything_finds(self, store):
        snapshots = [varied(number) for number in range(60)]
        for snapshot in snapshots:
            store.save(snapshot, "Ada")
        rng, hits = random.Random(9), 0
        ids = [snapshot.id for snapshot in snapshots]
        for _ in range(100):
            query = some_query(rng)
            expected = [n for n in reversed(range(60)) if fits(snapshots[n], n, query)]
            found = store.search(query, limit=200)
            assert [row.id for row in found.rows] == [ids[n] for n in expected], query
            assert found.total == len(expected)
            hits += bool(0 < len(expected) < 60)
        every = store.search(Query(), limit=200).rows
        assert list(every) == [expected_row(one, row) for one, row in zip(reversed(snapshots), every, strict=True)]
        assert hits > 30

    def test_pages_add_up_to_the_whole(self, store):
        for number in range(23):
            store.save(varied(number), "Ada")
        whole = store.search(Query(), limit=100).rows
        assert [row.id for row in whole] == [varied(number).id for number in reversed(range(23))]
        pages = [store.search(Query(), limit=5, offset=offset) for offset in range(0, 25, 5)]
        assert tuple(row for page in pages for row in page.rows) == whole
        assert {page.total for page in pages} == {23}
        assert store.search(Query(), limit=5, offset=100).rows == ()
        assert store.search(Query(), limit=-1, offset=-1).rows == ()

    def test_days_are_inclusive(self, store):
        ids = [store.save(varied(number), "Ada") for number in range(4)]
        moments = ("2026-11-01T23:59:59.999999+00:00", "2026-11-02T00:00:00.000000+00:00",
                   "2026-11-02T23:59:59.999999+00:00", "2026-11-03T00:00:00.000000+00:00")  # fmt: skip
        for id, moment in zip(ids, moments, strict=True):
            tampered(store, "UPDATE flashscope_states SET saved_at = :at WHERE snapshot_id = :id", at=moment, id=id)

        def found(**days: str) -> list[int]:
            return sorted(ids.index(row.id) for row in store.search(Query(**days)).rows)

        assert found(saved_from="2026-11-02") == [1, 2, 3]
        assert found(saved_until="2026-11-02") == [0, 1, 2]
        assert found(saved_from="2026-11-02", saved_until="2026-11-02") == [1, 2]
        assert found(saved_until="9999-12-31") == [0, 1, 2, 3]
        for name in ("saved_from", "saved_until"):
            with pytest.raises(StoreProblem, match=f"{name} = '2026-13-01' is not a date"):
                found(**{name: "2026-13-01"})

    def test_lengths_are_found_as_people_type_them(self, store):
        store.save(recording(), "Ada")
        for text in ("16384", "16k", "16,384", "cudnn", "sdpa-cudnn", "bf16"):
            assert store.search(Query(text=text)).total == 1, text

    def test_a_query_that_nothing_can_fit(self, store):
        store.save(varied(1), "Ada")
        for query in (
            Query(seq_len=10**30),
            Query(head_dim=-1),
            Query(kernel="a\ud800"),
            Query(author="b\ud800"),
            Query(tag="c"),
        ):
            assert store.search(query).total == 0
        with pytest.raises(StoreProblem, match="51 words is not possible: it can be 50"):
            store.search(Query(text=" ".join(f"w{n}" for n in range(51))))
        assert store.search(Query(text="x" * 100_000)).total == 0

    def test_choices_are_those_of_what_is_not_deleted(self, store):
        assert store.choices().kernels == ()
        snapshots = [varied(number) for number in range(40)]
        for snapshot in snapshots:
            store.save(snapshot, "Ada")
        deleted = store.save(recording(kernels=("fa3",)), "Ada")
        store.delete(deleted, "Ada")
        measured = [one for snapshot in snapshots for one in snapshot.measurements]
        choices = store.choices()
        assert choices.kernels == tuple(sorted({one.request.kernel for one in measured}))
        assert choices.device_names == tuple(sorted({one.environment.device.name for one in measured}))
        assert choices.tags == tuple(sorted({tag for snapshot in snapshots for tag in snapshot.tags}))
        assert set(choices.authors) == {snapshot.author for snapshot in snapshots} - {""}
        assert choices.seq_lens == tuple(sorted({one.request.problem.seq_len_q for one in measured}))

    def test_choices_are_in_one_order_however_they_were_saved(self, store):
        for number, author in enumerate(("ada", "Bob", "Ada", "ADA", "bob", "Zoë", "zoe")):
            store.save(varied(number).model_copy(update={"author": author}), "someone")
        assert store.choices().authors == ("ADA", "Ada", "ada", "Bob", "bob", "zoe", "Zoë")

    def test_rows_are_built_again_from_the_documents(self, store):
        ids = [store.save(varied(number), "Ada") for number in range(8)]
        whole, choices = store.search(Query()).rows, store.choices()
        tampered(store, "UPDATE flashscope_rows SET title = 'gone', search_text = ''")
        tampered(store, "DELETE FROM flashscope_tags")
        tampered(store, "DELETE FROM flashscope_measured")
        tampered(store, "UPDATE flashscope_documents SET file = :file WHERE id = :id", file=b"damaged", id=ids[0])
        assert store.search(Query()).rows != whole
        assert store.rebuild_rows() == 7
        assert store.search(Query()).rows[:7] == whole[:7]
        tampered(store, "UPDATE flashscope_documents SET file = :file WHERE id = :id", file=file_of(varied(0)), id=ids[0])
        assert store.rebuild_rows() == 8
        assert (store.search(Query()).rows, store.choices()) == (whole, choices)


class TestSummary:
    def test_one_line_says_what_came_out(self):
        median = {name: on_gpu(name).latency.median_ms for name in ("v2", "v3")}
        v2, v3 = (f"{name} {on_gpu(name).request.problem.flops / median[name] / 1e9:.0f}" for name in ("v2", "v3"))
        assert summary((on_gpu("v2"), on_gpu("v3"))) == f"{v2} · {v3} TFLOP/s"
        assert summary((on_gpu("v2"), on_gpu("v1", passed=False), failed())) == f"{v2} TFLOP/s · v1 wrong · v3 did not compile"
        assert summary((in_interpreter("v1"), in_interpreter("v2"))) == "interpreted, correct"
        assert summary((in_interpreter("v1"), in_interpreter("v2", passed=False))) == "interpreted, v1 correct · v2 wrong"
        assert summary((on_gpu("v1", latency=None), on_gpu("v2", latency=None))) == "correct"
        assert summary((on_gpu("v1", latency=None, accuracy=None),)) == "compiled"
        assert summary((on_gpu("v1", latency=None, accuracy=None, compiled=()),)) == "v1 not checked"
        assert summary(()) == ""


class TestPlace:
    def test_the_environment_or_the_user_s_data_folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
        monkeypatch.delenv(store_database.VARIABLE, raising=False)
        assert Store().place == str(tmp_path / "data/flashscope/snapshots.sqlite3")
        for value in (str(tmp_path / "a b?#%.sqlite3"), f"sqlite:///{tmp_path / 'url.sqlite3'}"):
            monkeypatch.setenv(store_database.VARIABLE, value)
            store = Store()
            assert store.place == value.removeprefix("sqlite:///")
            assert store.get(store.save(varied(1), "Ada")).snapshot == varied(1)
            assert Path(store.place).is_file()

    @pytest.mark.parametrize(
        ("url", "sentence"),
        [
            (
                "mysql://me:hunter2@host/db",
                "A store at mysql:// is not possible: it can be a path, sqlite:///path or postgresql://",
            ),
            ("postgresql://me:hunter2@host:many/db", "address cannot be read"),
            ("://hunter2", "address cannot be read"),
            ("sqlite://", "in memory"),
            ("sqlite:///:memory:", "in memory"),
            ("postgresql://me:hunter2@127.0.0.1:1/db", "127.0.0.1:1/db cannot be used: .*refused"),
            ("postgresql://me@127.0.0.1:1/db?password=hunter2", "127.0.0.1:1/db cannot be used: .*refused"),
            ("postgresql://me:hunter2@127.0.0.1:1/db?sslmode=hunter2", "cannot be used: .*sslmode"),
            ("postgresql://me:hunter2@127.0.0.1:1/db?nonsense=1", "cannot be used: .*nonsense"),
        ],
    )
    def test_an_address_that_is_not_possible_is_said_without_its_password(self, url, sentence):
        with pytest.raises(StoreProblem, match=sentence) as problem:
            Store(url)
        assert "hunter2" not in str(problem.value)
        assert problem.value.__context__ is None or problem.value.__suppress_context__

    def test_a_password_is_in_no_text_of_a_store(self, postgres: PostgresServer):
        store = Store(postgres.new_url("postgres:hunter2"))
        assert "hunter2" not in repr(store) + str(store) + store.place

    def test_a_folder_that_cannot_be_made_or_written(self, tmp_path):
        (tmp_path / "file").write_text("")
        for path in (tmp_path / "file/snapshots.sqlite3", Path("/proc/flashscope/snapshots.sqlite3")):
            with pytest.raises(StoreProblem, match=r"cannot be written \(.*\): set FLASHSCOPE_STORE"):
                Store(str(path))
        with pytest.raises(StoreProblem, match="cannot be"):
            Store(str(tmp_path))

    def test_permissions_of_an_ordinary_user(self, tmp_path):
        """A child that is no administrator: no right for the folder, for the file, for the folder of the file."""
        locked, read_only = tmp_path / "locked", tmp_path / "read_only"
        for folder in (locked, read_only):
            folder.mkdir()
        Store(str(read_only / "a.sqlite3")).close()
        os.chmod(read_only / "a.sqlite3", 0o444)
        os.chmod(locked, 0o555)
        os.chmod(read_only, 0o555)
        for folder in (tmp_path, *tmp_path.parents[:2]):
            os.chmod(folder, 0o755)
        script = """
import os, sys
from profiling.store import Store, StoreProblem
import profiling.store_contents
if os.geteuid() == 0: os.setgid(65534), os.setuid(65534)
for path in sys.argv[1:]:
    try: Store(path)
    except StoreProblem as error: print(error)
    else: print("opened")
"""
        paths = [str(locked / "a.sqlite3"), str(locked / "more/a.sqlite3"), str(read_only / "a.sqlite3")]
        child = subprocess.run([sys.executable, "-c", script, *paths], cwd=ROOT, capture_output=True, text=True, timeout=300)
        os.chmod(locked, 0o755)
        os.chmod(read_only, 0o755)
        lines = child.stdout.splitlines()
        assert len(lines) == 3, child.stderr
        assert all("cannot be written (permission denied)" in line for line in lines), lines

    def test_a_file_that_is_no_store(self, file):
        file.write_text("This is a text. " * 100)
        with pytest.raises(StoreProblem, match="is no SQLite database"):
            Store(str(file))
        assert file.read_text() == "This is a text. " * 100
        file.unlink()
        with sqlite3.connect(file) as connection:
            connection.execute("CREATE TABLE places (x)")
        before = file.read_bytes()
        with pytest.raises(StoreProblem, match="a database of something else"):
            Store(str(file))
        assert file.read_bytes() == before

    def test_a_store_by_a_newer_flashscope(self, store, store_url):
        id = store.save(varied(1), "Ada")
        tampered(store, f"UPDATE {VERSION_TABLE} SET version_num = '0042'")
        with pytest.raises(StoreProblem, match=r"made by a newer FlashScope .*'0042'.* update FlashScope"):
            Store(store_url)
        tampered(store, f"UPDATE {VERSION_TABLE} SET version_num = :head", head=HEAD)
        assert Store(store_url).get(id).snapshot == varied(1)

    def test_a_file_that_is_removed_or_replaced_meanwhile(self, file):
        store = Store(str(file))
        store.save(varied(1), "Ada")
        for name in (file, Path(f"{file}-wal"), Path(f"{file}-shm")):
            name.unlink(missing_ok=True)
        with pytest.raises(StoreProblem, match="cannot be opened: it was removed"):
            store.save(varied(2), "Ada")
        assert not file.exists()
        file.touch()
        with pytest.raises(StoreProblem, match="was replaced by another file"):
            store.save(varied(2), "Ada")

    def test_damage_in_the_file_is_said(self, file):
        store = Store(str(file))
        for number in range(30):
            store.save(varied(number), "Ada")
        store.close()
        content = bytearray(file.read_bytes())
        content[4096 * 2 :] = b"\xff" * (len(content) - 4096 * 2)
        file.write_bytes(content)
        with pytest.raises(StoreProblem, match="is damaged"):
            Store(str(file)).search(Query())


MOUNTS = """
21 1 254:0 / / rw,relatime - ext4 /dev/vda rw
22 21 0:20 / /home rw,relatime shared:1 - nfs4 server:/home rw
23 22 254:1 / /home/ada/local rw,relatime shared:2 master:1 - xfs /dev/vdb rw
24 21 0:21 / /mnt/my\\040share rw - cifs //server/share rw
25 21 0:22 / /data rw - ext4 /dev/vdc rw
26 21 0:23 / /data rw - lustre mgs:/fs rw
27 21 0:24 / /remote rw - fuse.sshfs ada@host: rw
28 21 0:25 / /c rw - 9p drvfs rw
29 21 0:26 / /homes rw - btrfs /dev/vdd rw
"""


class TestNetworkFileSystem:
    @pytest.mark.parametrize(
        ("path", "kind"),
        [
            ("/var/x.sqlite3", "ext4"),
            ("/home/ada/x.sqlite3", "nfs4"),
            ("/home/ada/local/x.sqlite3", "xfs"),
            ("/homes/x.sqlite3", "btrfs"),
            ("/mnt/my share/x.sqlite3", "cifs"),
            ("/data/deep/er/x.sqlite3", "lustre"),
            ("/remote/x", "fuse.sshfs"),
            ("/c/x", "9p"),
        ],
    )
    def test_the_mount_that_a_path_lies_on(self, path, kind):
        assert file_systems.file_system(Path(path), MOUNTS) == kind

    def test_a_table_of_nonsense(self):
        assert file_systems.file_system(Path("/x"), "a\n - \n1 2 3 4\n\n - - -") is None

    @pytest.mark.parametrize("kind", ["nfs", "cifs", "smb3", "lustre", "gpfs", "fuse.sshfs", "9p"])
    def test_a_store_there_is_refused_before_anything_is_written(self, tmp_path, monkeypatch, kind):
        table = tmp_path / "mountinfo"
        table.write_text(f"21 1 254:0 / / rw - ext4 /dev/vda rw\n22 21 0:20 / {tmp_path}/net rw - {kind} server:/x rw\n")
        monkeypatch.setattr(file_systems, "MOUNTS", table)
        path = tmp_path / "net/deep/snapshots.sqlite3"
        with pytest.raises(StoreProblem, match=rf"network file system \({kind}\).*postgresql://"):
            Store(str(path))
        assert not path.parent.exists()
        link = tmp_path / "link"
        (tmp_path / "net").mkdir()
        link.symlink_to(tmp_path / "net")
        with pytest.raises(StoreProblem, match="network file system"):
            Store(str(link / "snapshots.sqlite3"))
        Store(str(tmp_path / "local.sqlite3")).close()

    def test_this_machine_s_own_table_is_understood(self, tmp_path):
        expected = subprocess.run(
            ["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=True
        ).stdout.strip()
        found = file_systems.file_system(tmp_path.resolve(), file_systems.MOUNTS.read_text())
        assert found is not None
        assert {"ext2/ext3": "ext4", "overlayfs": "overlay"}.get(expected, expected) == found


def full_disk_story(store: Store, make_room) -> None:
    """Save until the disk is full; what was acknowledged is there, and once there is room the store works on."""
    saved: list[int] = []

    def save(numbers: range) -> None:
        for number in numbers:
            store.save(varied(number), "Ada")
            saved.append(number)

    with pytest.raises(StoreProblem, match=r"^The disk is full: the store .* what it held is intact"):
        save(range(2000))
    assert saved
    for start in (3000, 4000, 5000):
        with pytest.raises(StoreProblem, match=r"^The disk is full"):
            save(range(start, start + 100))
    for number in saved:
        assert store.get(varied(number).id).snapshot == varied(number)
    assert store.search(Query()).total == len(saved)
    make_room()
    store.save(varied(9999), "Ada")
    assert store.search(Query()).total == len(saved) + 1
    assert store.get(varied(9999).id).snapshot == varied(9999)


class TestFullDisk:
    def test_sqlite_may_not_grow(self, file):
        store = Store(str(file))
        engine = store._contents._database._engine
        pages = 200

        @sa.event.listens_for(engine, "checkout")
        def _limit(connection, _record, _proxy):
            connection.execute(f"PRAGMA max_page_count = {pages}")

        def make_room() -> None:
            nonlocal pages
            pages = 100_000

        full_disk_story(store, make_room)
        store.close()
        with sqlite3.connect(file) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]

    def test_a_small_disk_that_is_really_full(self, tmp_path):
        disk = tmp_path / "disk"
        disk.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", disk], capture_output=True, text=True)
        if mounted.returncode != 0:
            pytest.skip(f"this user may not mount a small disk: {mounted.stderr.strip()}")
        try:
            store = Store(str(disk / "snapshots.sqlite3"))
            full_disk_story(store, lambda: subprocess.run(["mount", "-o", "remount,size=60m", disk], check=True))
            store.close()
            with sqlite3.connect(disk / "snapshots.sqlite3") as connection:
                assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            connection.close()
        finally:
            subprocess.run(["umount", "-l", disk], check=True)


class TestSchema:
    def test_the_revisions_make_the_tables_that_are_used(self, store):
        with store._contents._database._engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
            assert compare_metadata(context, METADATA) == []
            assert context.get_current_revision() == HEAD
            named = set(sa.inspect(connection).get_table_names())
            indexes = {index["name"] for name in named for index in sa.inspect(connection).get_indexes(name)}
        assert named == {*METADATA.tables, VERSION_TABLE}
        wanted = {index.name for table in METADATA.tables.values() for index in table.indexes}
        assert wanted <= indexes

    def test_head_is_the_newest_revision(self):
        script = ScriptDirectory(str(ROOT / "profiling/schema"))
        assert script.get_heads() == [HEAD]

    def test_sqlite_is_as_durable_as_it_can_be(self, file):
        store = Store(str(file))
        with store._contents._database.writing() as connection:
            pragmas = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            assert [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in pragmas] == ["wal", 2, 1, 30_000]
            other = sqlite3.connect(file, timeout=0)
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")  # the lock is there before the first statement
            other.close()

    def test_another_who_writes_is_waited_for_and_not_for_ever(self, file, monkeypatch):
        store, other = Store(str(file)), sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(store_database, "BUSY_S", 0.2)
        with pytest.raises(StoreProblem, match="is busy: others have been writing"):
            store.save(varied(1), "Ada")
        assert store.search(Query()).total == 0  # reading waits for no one
        monkeypatch.setattr(store_database, "BUSY_S", 30.0)
        release = threading.Timer(0.3, other.execute, ("COMMIT",))
        release.start()
        store.save(varied(1), "Ada")
        release.join()
        other.close()
        assert store.search(Query()).total == 1

    def test_opening_needs_neither_the_working_folder_nor_an_ini(self, file, tmp_path):
        script = "import sys; from profiling.store import Store; print(Store(sys.argv[1]).place)"
        child = subprocess.run(
            [sys.executable, "-c", script, file], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert (child.stdout, child.stderr) == (f"{file}\n", "")

    def test_importing_the_store_imports_no_database(self):
        script = "import profiling.store, sys; print({'sqlalchemy', 'alembic', 'psycopg'} & set(sys.modules))"
        child = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert child.stdout == "set()\n"

    def test_an_open_store_has_not_imported_alembic(self, file):
        Store(str(file)).close()
        script = "import sys; from profiling.store import Store; Store(sys.argv[1]); print('alembic' in sys.modules)"
        child = subprocess.run([sys.executable, "-c", script, file], cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert child.stdout == "False\n"


class TestMigration:
    def filled(self, url: str) -> Store:
        """A store with every kind of state and change."""
        store = Store(url)
        ids = [store.save(varied(number), "Ada", "imported" if number % 3 == 0 else "here") for number in range(40)]
        store.save(newer(title="newer"), "Ada", "imported")
        store.delete(ids[1], "Grace")
        store.restore(ids[1], "Grace")
        store.delete(ids[2], "Grace")
        edited = store.edit(ids[3], "Łukasz", title="edited", note="", tags=())
        store.pin_baseline(ids[4], "Ada")
        store.pin_baseline(edited, "Ada")
        return store

    def whole(self, store: Store) -> tuple:
        """Everything a store says, but the lines about migrations."""
        rows = (*store.search(Query(), limit=1000).rows, *store.search(Query(deleted=True), limit=1000).rows)
        kept = {row.id: store.get(row.id) for row in rows}
        log = [change for change in store.changes(limit=10_000) if change.what != "migrated"]
        return rows, kept, log, store.baseline(), store.choices()

    @pytest.fixture
    def other_url(self, store_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
        """An empty store of the other kind."""
        if store_url.startswith("sqlite"):
            return request.getfixturevalue("postgres").new_url()
        return f"sqlite:///{tmp_path / 'other.sqlite3'}"

    @pytest.mark.xdist_group("postgres")
    def test_everything_arrives_and_the_source_is_untouched(self, store_url, other_url):
        source = self.filled(store_url)
        before = self.whole(source)
        migrated = source.migrate_to(other_url, "Ada")
        assert (migrated.copied, migrated.already_there, migrated.verified) == (42, 0, 42)
        target = Store(other_url)
        assert self.whole(target) == self.whole(source) == before
        assert {change.snapshot_id for change in target.changes(limit=1000) if change.what == "migrated"} == set(before[1])
        again = source.migrate_to(other_url, "Ada")
        assert (again.copied, again.already_there, again.verified) == (0, 42, 42)
        assert self.whole(target) == before

    @pytest.mark.xdist_group("postgres")
    def test_of_what_both_have_the_last_change_counts(self, store_url, other_url):
        source = self.filled(store_url)
        source.migrate_to(other_url, "Ada")
        target = Store(other_url)
        source.delete(varied(10).id, "Ada")
        target.delete(varied(11).id, "Grace")
        target.delete(varied(12).id, "Grace")
        source.delete(varied(12).id, "Ada")
        source.restore(varied(12).id, "Ada")
        source.pin_baseline(varied(13).id, "Ada")
        added = target.save(varied(500), "Grace")
        source.migrate_to(other_url, "Ada")
        assert target.get(varied(10).id).deleted_at == source.get(varied(10).id).deleted_at
        assert target.get(varied(11).id).deleted_at is not None
        assert target.get(varied(12).id).deleted_at is None
        assert target.baseline() == varied(13).id
        assert target.get(added).snapshot == varied(500)
        assert source.get(added) is None
        target.pin_baseline(None, "Grace")
        source.migrate_to(other_url, "Ada")
        assert target.baseline() is None

    def test_to_itself_is_refused(self, store, store_url):
        with pytest.raises(StoreProblem, match="is this store itself"):
            store.migrate_to(store_url, "Ada")

    def test_what_is_damaged_here_is_named_and_the_rest_arrives(self, store, tmp_path):
        ids = [store.save(varied(number), "Ada") for number in range(40)]
        tampered(store, "UPDATE flashscope_documents SET file = :file WHERE id = :id", file=b"damaged", id=ids[7])
        with pytest.raises(StoreProblem, match=rf"1 snapshot \({ids[7][:12]}\) of 40 .*damaged here before"):
            store.migrate_to(str(tmp_path / "target.sqlite3"), "Ada")
        target = Store(str(tmp_path / "target.sqlite3"))
        for number in set(range(40)) - {7}:
            assert target.get(ids[number]).snapshot == varied(number)

    @pytest.mark.parametrize(
        "damage",
        [
            "UPDATE flashscope_documents SET file = x'00' WHERE id = :id",
            "UPDATE flashscope_states SET replaced_by = 'x' WHERE snapshot_id = :id",
            "DELETE FROM flashscope_rows WHERE snapshot_id = :id",
            "UPDATE flashscope_log SET who = 'Mallory' WHERE snapshot_id = :id AND what = 'saved'",
            "DELETE FROM flashscope_log WHERE snapshot_id = :id AND what = 'saved'",
        ],
    )
    def test_what_differs_in_the_target_is_found(self, file, tmp_path, monkeypatch, damage):
        """The copy is tampered with after it was made, before it is proved."""
        from profiling import store_migration

        store, target = Store(str(file)), tmp_path / "target.sqlite3"
        ids = [store.save(varied(number), "Ada") for number in range(3)]
        copy_baseline = store_migration._copy_baseline

        def and_damage(there: sa.Connection) -> None:
            copy_baseline(there)
            there.execute(sa.text(damage), {"id": ids[1]})

        monkeypatch.setattr(store_migration, "_copy_baseline", and_damage)
        with pytest.raises(StoreProblem, match=rf"1 snapshot \({ids[1][:12]}\) of 3 are not .* as they should be\. All others"):
            store.migrate_to(str(target), "Ada")


def test_documents_are_stored_as_the_file_that_is_shared(store):
    id = store.save(varied(1), "Ada")
    with store._contents._database.reading() as connection:
        file = connection.scalar(sa.text("SELECT file FROM flashscope_documents WHERE id = :id"), {"id": id})
    assert bytes(file) == file_of(varied(1))
    assert gzip.decompress(file) == varied(1).document


def test_a_login_that_is_refused_is_said(postgres: PostgresServer):
    with pytest.raises(StoreProblem, match='password authentication failed for user "locked"') as problem:
        Store(postgres.new_url(f"{LOCKED_USER}:{LOCKED_PASSWORD}x"))
    assert LOCKED_PASSWORD not in str(problem.value)
