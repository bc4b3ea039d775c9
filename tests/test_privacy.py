"""What tells of a person or a machine is found, and is gone from every text when it is asked to go."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from profiling import privacy
from profiling.privacy import Personal, found, personal, without_personal
from profiling.records import Flag, JobError
from profiling.snapshot import Snapshot, canonical, read
from tests.records_for_tests import GPU_ID, failed, on_gpu, recording

SECRET = "graceh"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user and a host whose names are known."""
    monkeypatch.setattr(privacy, "_own_users", lambda: frozenset({"adalove"}))
    monkeypatch.setattr(privacy, "_own_hosts", lambda: frozenset({"lab-17.example.org", "lab-17"}))


def plain(text: str) -> str:
    return without_personal(recording(note=text, kernels=("v3",))).note


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/graceh/x/y.py is bad", "…/y.py is bad"),
        ("see (/opt/lib/a.so), then /a/b.", "see (…/a.so), then …/b."),
        ('File "/Users/Grace H/my work/y.py", line 3, in f', 'File "…/y.py", line 3, in f'),
        ("'/home/graceh/a b.py'", "'…/a b.py'"),
        (r"C:\Users\Grace Hopper\x\y.py failed", "…/y.py failed"),
        (r'"D:\data\run 1\y.py"', '"…/y.py"'),
        ("C:/Users/graceh/y.py", "…/y.py"),
        (r"\\server\share\graceh\y.py", "…/y.py"),
        ("/mnt/c/Users/graceh/y.py", "…/y.py"),
        ("file:///home/graceh/y.py", "…/y.py"),
        ("~graceh/y.py and ~/z.py", "…/y.py and …/z.py"),
        ("/home/graceh", "…"),
        ("cd /home/graceh/ first", "cd … first"),
        ("LD_LIBRARY_PATH=/usr/lib:/home/graceh/lib", "LD_LIBRARY_PATH=…/lib:…/lib"),
        ("/home/graceh/a.py:12: graceh was here", "…/a.py:12: … was here"),
        ("graceh@node-3.cluster.example.com: denied", "…@…: denied"),
        ("adalove on lab-17 and LAB-17.example.org", "… on … and …"),
        ("lost gpu-3.cluster.local", "lost …"),
        ("3 TFLOP/s and/or N/A of p20 / p80, 1/2", "3 TFLOP/s and/or N/A of p20 / p80, 1/2"),
        ("https://pytorch.org/docs/x.html", "https://pytorch.org/docs/x.html"),
        ("profiling/worker.py and ./a/b and ../c/d", "profiling/worker.py and ./a/b and ../c/d"),
        ("adaloves, labs-17, a@ b", "adaloves, labs-17, a@ b"),
        ("Ω /tmp", "Ω /tmp"),
    ],
)
def test_a_text_without_what_is_personal(text: str, expected: str) -> None:
    assert plain(text) == expected
    assert plain(expected) == expected


def personal_snapshot() -> Snapshot:
    error = JobError(kind="launch", sentence="it broke", raw=f'File "/home/{SECRET}/x.py", line 1\n{SECRET}@box.lan said no')
    flag = Flag(
        name="a", severity="info", short="b", sentence=f"device = {GPU_ID} is not one that C:\\Users\\{SECRET}\\z.py sees"
    )
    snapshot = recording("A title", f"kept in /home/{SECRET}/notes", kernels=("v3",))
    return snapshot.model_copy(
        update={
            "author": "Ada L",
            "host": "box",
            "measurements": (on_gpu("v3", flags=(flag,)), failed("v3", error)),
        }
    )


def test_what_is_found_and_where() -> None:
    snapshot = personal_snapshot()
    assert set(found(snapshot)) == {
        Personal("author", "author", "Ada L"),
        Personal("host name", "host", "box"),
        Personal("path", "note", f"/home/{SECRET}/notes"),
        Personal("path", "error.raw of measurement 2", f"/home/{SECRET}/x.py"),
        Personal("path", "flags.0.sentence of measurement 1", f"C:\\Users\\{SECRET}\\z.py"),
        Personal("user name", "error.raw of measurement 2", SECRET),
        Personal("host name", "error.raw of measurement 2", "box.lan"),
        Personal("GPU UUID", "environment.device.id of measurement 1", GPU_ID),
    }
    assert sorted(personal(snapshot)) == [
        "2 host names are in it: box, box.lan.",
        "3 paths are in it: C:\\Users\\graceh\\z.py, /home/graceh/x.py, /home/graceh/notes.",
        "A user name is in it: graceh.",
        "An author is in it: Ada L.",
    ]


def test_nothing_personal_is_left_and_the_gpu_s_uuid_is() -> None:
    snapshot = without_personal(personal_snapshot())
    assert (snapshot.author, snapshot.host) == ("", "")
    assert personal(snapshot) == ()
    assert {one.kind for one in found(snapshot)} == {"GPU UUID"}
    assert f"device = {GPU_ID} is not one that …/z.py sees" in snapshot.measurements[0].flags[0].sentence
    for trace in (SECRET, "box", "Ada L", "/home", "Users"):
        assert trace.encode() not in snapshot.document, trace
    assert without_personal(snapshot).id == snapshot.id


def test_numbers_and_arrays_are_untouched() -> None:
    before = personal_snapshot()
    after = without_personal(before)
    for one, other in zip(before.measurements, after.measurements, strict=True):
        assert one.latency == other.latency
        assert one.timeline == other.timeline
        assert one.request == other.request
        assert one.environment == other.environment
    clean = recording(kernels=("v3", "v2"))
    assert without_personal(clean).id == clean.id


def texts_of(value: Any, path: tuple[Any, ...] = ()) -> Any:
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from texts_of(inner, (*path, key))


def test_every_text_that_may_hold_a_path_is_cleaned() -> None:
    """Put a path into each text of a snapshot in turn: the record refuses it, or it is gone, but for what names a thing."""
    document = personal_snapshot().document
    names = {"kernel", "device", "id"}
    cleaned = 0
    for path in texts_of(json.loads(document)):
        value = json.loads(document)
        inner = value
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = "/srv/secretly/x.py"
        try:
            changed = read(canonical(value))
        except ValueError:
            continue
        after = without_personal(changed).document
        assert (b"secretly" in after) == (path[-1] in names), path
        cleaned += b"secretly" not in after
    assert cleaned > 20


@pytest.mark.parametrize("name", ["note", "error", "v3", "cold", "measured", "data", "seed", "AAA"])
def test_a_user_named_like_a_field_or_a_value_breaks_nothing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(privacy, "_own_users", lambda: frozenset({name}))
    before = personal_snapshot()
    after = without_personal(before)
    assert after.measurements[0].latency == before.measurements[0].latency
    assert after.measurements[0].request == before.measurements[0].request


def test_a_newer_snapshot_is_looked_through_too() -> None:
    value = {**json.loads(personal_snapshot().document), "schema_version": 9, "sweep": {"log": "/home/graceh/log.txt"}}
    kinds = {(one.kind, one.text) for one in found(read(canonical(value)))}
    assert {("path", "/home/graceh/log.txt"), ("author", "Ada L"), ("GPU UUID", GPU_ID)} <= kinds


def test_a_newer_snapshot_of_any_shape_is_looked_through() -> None:
    odd = {"schema_version": 9, "measurements": {"a": {"b": "/home/graceh/x"}}, "1": "/home/graceh/y", "²": ["/home/graceh/z"]}
    assert {one.text for one in found(read(canonical(odd))) if one.kind == "path"} == {f"/home/graceh/{name}" for name in "xyz"}


@pytest.mark.parametrize(
    "text",
    [
        "/" * 9000, "/a" * 5000, '"' + "/" * 9000, "a@b" + "-" * 9000, "a@" * 5000, "C:\\" + "a " * 4900, "~a" * 5000,
        "x.local" * 1400, "\\\\a" + "\\b " * 3000, "a-" * 4900 + ".x", "'/a/ " * 2000,
    ],
)  # fmt: skip
def test_no_text_takes_long(text: str) -> None:
    begin = time.process_time()
    plain(text)
    assert time.process_time() - begin < 0.5
