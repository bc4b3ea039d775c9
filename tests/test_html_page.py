"""The exported page holds all of a snapshot, shows foreign text as letters, and its policy lets nothing in or out."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from app import result_facts
from app.__main__ import main
from app.figures.style import DARK, LIGHT, Absent, Palette
from app.html_page import page_of
from app.views import run_metrics
from profiling.records import Measurement
from profiling.samples_csv import samples_csv
from profiling.snapshot import AnySnapshot, NewerSnapshot, Snapshot, canonical, file_of, read
from tests import records_for_tests as records
from tests.hostile_text import PAYLOADS, hostile_snapshot, renamed

GALLERY = sorted((Path(__file__).parents[1] / "app/gallery").glob("*.json"))


class Parsed(HTMLParser):
    """A page as a browser's parser sees it: every element with its attributes, its visible text, its scripts."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: dict[str, str] = {}
        self._script: str | None = None
        self._silent = 0
        self.feed(page.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._silent += tag in ("script", "style")
        if tag == "script":
            self._script = dict(attrs).get("id") or f"script {len(self.scripts)}"
            self.scripts[self._script] = ""

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in ("script", "style")
        self._script = None if tag == "script" else self._script

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts[self._script] += data
        elif not self._silent:
            self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"the page has a comment: {data[:60]}")

    def outline(self) -> list[tuple[str, list[str]]]:
        """Elements and the names of their attributes, which no text may change."""
        return [(tag, list(attributes)) for tag, attributes in self.elements]

    def text(self) -> str:
        return "".join(self.texts)

    def packed(self, id: str) -> bytes:
        return gzip.decompress(base64.b64decode(self.scripts[id]))

    def links(self) -> dict[str, str]:
        """The files behind the page's links, by name."""
        found = [attributes for tag, attributes in self.elements if tag == "a"]
        return {one["download"]: base64.b64decode(one["href"].split(",", 1)[1]).decode("utf-8-sig") for one in found}

    def policy(self) -> dict[str, list[str]]:
        content = next(one["content"] for _, one in self.elements if one.get("http-equiv") == "Content-Security-Policy")
        return {part.split()[0]: part.split()[1:] for part in content.split(";")}


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    return Snapshot(
        title="Made-up recording",
        note="Two lines:\nfor tests.",
        author="Ada",
        host="a-host",
        tags=("h200", "causal"),
        created_at="2026-11-29T13:10:00+02:00",
        measurements=(*(records.on_gpu(kernel) for kernel in ("native", "v1", "v3", "fa3")), records.failed("v2")),
    )


@pytest.fixture(scope="module")
def page(snapshot: Snapshot) -> Parsed:
    return Parsed(page_of(snapshot))


def newer(**changes: object) -> AnySnapshot:
    fields = {"schema_version": 99, "title": "From later", "created_at": "some day", "measurements": [], "new": 1, **changes}
    return read(canonical(fields))


def ran_in(found: AnySnapshot) -> list[Measurement]:
    return [one for one in found.measurements if one.error is None]


def test_it_says_what_the_app_says(page: Parsed, snapshot: Snapshot) -> None:
    text = page.text()
    title = result_facts.title([one.request for one in snapshot.measurements])
    assert title in text
    for words in ("Made-up recording", "Two lines:\nfor tests.", "by Ada", "on a-host", "h200", "causal"):
        assert words in text
    assert "Saved with FlashScope on 29 Nov 2026, 11:10 UTC; not measured here" in text
    for one in ran_in(snapshot):
        said = [short for _, short, _ in run_metrics.chips(one, "file")]
        said += [word for it in run_metrics.metrics(one) for word in (it.label, it.value, *it.notes.splitlines())]
        said += [figure.sentence for it in run_metrics.metrics(one) for figure in it.figures]
        said += [cell for row in result_facts.facts(one) for cell in row.values()]
        assert [word for word in said if word not in text] == []
    failed = snapshot.measurements[-1].error
    assert failed.sentence in text
    assert failed.raw in text


def test_every_chart_of_every_version_is_there_with_its_words_and_its_table(page: Parsed, snapshot: Snapshot) -> None:
    text = page.text()
    for one in ran_in(snapshot):
        found = result_facts.charts(snapshot.measurements, one, LIGHT)
        for chart in (*found.first, *found.rest, *found.absent):
            assert chart.title in text
            if isinstance(chart, Absent):
                assert chart.reason in text
                continue
            assert chart.caption in text
            assert all(cell in text for row in chart.table for cell in row.values())
            assert any(attributes.get("aria-label") == chart.alt for _, attributes in page.elements)


def figures_of(found: AnySnapshot, palette: Palette) -> list[Any]:
    charts = [result_facts.charts(found.measurements, one, palette) for one in ran_in(found)]
    drawn = [chart for one in charts for chart in (*one.first, *one.rest) if not isinstance(chart, Absent)]
    return [json.loads(chart.figure.to_json()) for chart in drawn]


def in_dark(value: Any, colors: dict[str, str], name: str = "") -> Any:
    """What the page's script does in a dark browser."""
    if isinstance(value, list):
        return [in_dark(one, colors, name) for one in value]
    if isinstance(value, dict):
        return {key: in_dark(one, colors, key) for key, one in value.items()}
    return colors.get(value, value) if isinstance(value, str) and name.lower().endswith("color") else value


def test_the_figures_are_the_apps_in_both_themes(snapshot: Snapshot) -> None:
    interpreted = Snapshot(title="i", created_at=snapshot.created_at, measurements=(records.in_interpreter(),))
    real = read(GALLERY[0].read_bytes())
    for one in (snapshot, interpreted, real):
        data = json.loads(Parsed(page_of(one)).packed("figures"))
        light, dark = figures_of(one, LIGHT), figures_of(one, DARK)
        assert light
        assert data["figures"][: len(light)] == light
        assert [in_dark(figure, data["dark"]) for figure in light] == dark


def test_every_sample_can_be_taken_out(page: Parsed, snapshot: Snapshot) -> None:
    start = snapshot.id[:12]
    assert page.links()[f"{start}-launches.csv"] == samples_csv(snapshot)
    rows = [row.split(",") for row in page.links()[f"{start}-nvml.csv"].splitlines()]
    readings = ["power_w", "sm_clock_mhz", "memory_used_bytes", "temperature_c", "memory_clock_mhz", "utilisation_percent"]
    assert rows[0] == ["version", "t_s", *readings]
    v1 = [row for row in rows if row[0] == "v1"]
    timeline = snapshot.measurements[1].timeline
    assert [float(row[2]) for row in v1] == timeline.power_w.numpy().tolist()
    assert {row[5] for row in v1} == {""}


@pytest.mark.parametrize("path", GALLERY[::4], ids=lambda path: path.stem)
def test_the_snapshot_in_the_page_is_the_same_snapshot(path: Path) -> None:
    found = read(path.read_bytes())
    page = page_of(found)
    assert Parsed(page).packed("flashscope-snapshot") == found.document
    assert read(page).id == found.id


def test_the_same_snapshot_gives_the_same_bytes_in_another_process(snapshot: Snapshot, tmp_path: Path) -> None:
    file, out = tmp_path / "s.json.gz", tmp_path / "page.html"
    file.write_bytes(file_of(snapshot))
    command = [sys.executable, "-m", "app", "export", str(file), "--out", str(out)]
    environment = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    subprocess.run(command, check=True, cwd=Path(__file__).parents[1], env=environment, timeout=300)
    assert out.read_bytes() == page_of(snapshot)


def test_the_policy_lets_nothing_in_and_nothing_out(page: Parsed) -> None:
    policy = page.policy()
    assert policy.pop("default-src") == ["'none'"]
    assert policy.pop("style-src") == ["'unsafe-inline'"]
    assert policy.pop("img-src") == policy.pop("font-src") == ["data:"]
    assert policy.pop("base-uri") == policy.pop("form-action") == ["'none'"]
    allowed = policy.pop("script-src")
    assert policy == {}
    running = [script for id, script in page.scripts.items() if id.startswith("script ")]
    assert len(running) == 1
    for script in (*running, page.packed("plotly").decode()):
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in allowed
    assert len(allowed) == 2


def test_the_policy_comes_before_anything_it_must_hold(page: Parsed) -> None:
    tags = [tag for tag, _ in page.elements]
    place = next(place for place, (_, one) in enumerate(page.elements) if "http-equiv" in one)
    assert set(tags[:place]) == {"html", "head", "meta"}


def test_nothing_is_referred_to_outside_the_page(page: Parsed) -> None:
    for tag, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes), tag
        for name in ("href", "src", "srcset", "action", "poster", "data", "background", "ping"):
            assert (attributes.get(name) or "data:").startswith("data:"), (tag, name)
        assert "url(" not in (attributes.get("style") or "")
    style = "".join(re.findall(r"<style>(.*?)</style>", page_of(records.recording()).decode(), re.S))
    assert set(re.findall(r"url\(\"?([a-z]+:)", style)) <= {"data:"}
    assert "@import" not in style


def page_with(text: str, title: str) -> Parsed:
    """A small page with the text in every place: what is drawn is the browser test's."""
    measurements = (renamed(records.in_interpreter(), text), renamed(records.failed(), text))
    found = Snapshot(
        title=title, note=text, author=title, host=title, tags=("tag",), created_at="2026-11-29T13:10:00+00:00",
        measurements=measurements,
    )  # fmt: skip
    return Parsed(page_of(found))


def test_hostile_text_is_letters() -> None:
    """Whatever the text, the page has the same elements with the same attributes, and the letters are there."""
    plain = page_with("plain", "plain")
    for payload in PAYLOADS:
        found = read(hostile_snapshot(payload, (payload,)).document)
        text = found.measurements[0].accuracy.allowed_because
        parsed = page_with(text, found.title)
        assert parsed.outline() == plain.outline(), payload
        assert parsed.policy() == plain.policy()
        letters = parsed.text().replace("\r\n", "\n")
        assert text in letters
        assert found.title in letters
        assert found.note in letters


def test_no_cell_of_a_file_is_a_formula() -> None:
    for start in ("=1+1", "+1", "-1", "@x"):
        found = Snapshot(title="x", created_at="2026-11-29T13:10:00+00:00", measurements=(renamed(records.on_gpu(), start),))
        for text in Parsed(page_of(found)).links().values():
            assert f"'{start}" in text
            assert not re.search(rf"(^|,){re.escape(start)}", text, re.M)


def test_a_newer_snapshot_shows_what_is_understood() -> None:
    nothing = newer()
    assert isinstance(nothing, NewerSnapshot)
    text = Parsed(page_of(nothing)).text()
    assert "Made by a newer FlashScope. Its schema is 99." in text
    assert "no measurement" in text
    assert "Saved with FlashScope; not measured here" in text
    measured = records.on_gpu().model_dump(mode="json") | {"what_is_new": {"x": 1}}
    one = newer(measurements=[measured, "not understood"], note=7, created_at=None)
    parsed = Parsed(page_of(one))
    assert "1 measurement" in parsed.text()
    assert "correct" in parsed.text()
    assert len(json.loads(parsed.packed("figures"))["figures"]) == 5
    assert read(page_of(one)).id == one.id


def test_a_snapshot_of_failures_alone_says_them(snapshot: Snapshot) -> None:
    failed = Snapshot(title="x", created_at=snapshot.created_at, measurements=(records.failed(), records.failed("v2")))
    parsed = Parsed(page_of(failed))
    assert parsed.text().count("did not run.") == 2
    assert not any(attributes.get("type") == "radio" for _, attributes in parsed.elements)


def test_versions_of_one_name_each_have_their_details(snapshot: Snapshot) -> None:
    same = Snapshot(title="x", created_at=snapshot.created_at, measurements=(records.on_gpu(),) * 3)
    parsed = Parsed(page_of(same))
    choices = [attributes["value"] for _, attributes in parsed.elements if attributes.get("type") == "radio"]
    sections = [attributes for tag, attributes in parsed.elements if tag == "section"]
    assert choices == [one["data-version"] for one in sections] == ["0", "1", "2"]
    assert ["hidden" in one for one in sections] == [True, True, False]


def test_the_last_of_ours_is_shown_first_and_every_version_of_ours_counts() -> None:
    v3, fa3 = records.on_gpu("v3"), records.on_gpu("fa3")
    ran = (v3, v3.model_copy(update={"request": v3.request.model_copy(update={"kernel": "v3-hopper"})}), fa3)
    parsed = Parsed(page_of(Snapshot(title="x", created_at=records.recording().created_at, measurements=ran)))
    chosen = [attributes["value"] for _, attributes in parsed.elements if "checked" in attributes]
    assert chosen == ["1"]


def test_the_command_writes_the_page_and_nothing_else(snapshot: Snapshot, tmp_path: Path) -> None:
    file, out = tmp_path / "any name", tmp_path / "page.html"
    file.write_bytes(snapshot.document)
    assert main(["export", str(file), "--out", str(out)]) == 0
    assert out.read_bytes() == page_of(snapshot)
    again = tmp_path / "again.html"
    assert main(["export", str(out), "--out", str(again)]) == 0
    assert again.read_bytes() == out.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.html", "any name", "page.html"]


def test_the_command_says_what_is_wrong(snapshot: Snapshot, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad, kept = tmp_path / "good", tmp_path / "bad", tmp_path / "kept.html"
    good.write_bytes(snapshot.document)
    bad.write_text("no snapshot")
    kept.write_text("before")
    for file, out, said in (
        (tmp_path / "none", kept, "none cannot be read: No such file or directory."),
        (tmp_path, kept, "cannot be read: Is a directory."),
        (bad, kept, "bad: This is not JSON"),
        (good, tmp_path / "no/page.html", f"there is no folder {tmp_path}/no."),
        (good, tmp_path, "is not possible: it is a folder."),
        (good, good, "it is the file to read."),
    ):
        assert main(["export", str(file), "--out", str(out)]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert said in told.err
        assert told.err.count("\n") == 1
    assert kept.read_text() == "before"
    assert good.read_bytes() == snapshot.document
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "good", "kept.html"]
