"""What can be searched of a snapshot, derived from its document alone."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from profiling import words
from profiling.foreign_text import cleaned
from profiling.records import Measurement
from profiling.snapshot import AnySnapshot
from profiling.summary import summary

_LONGEST = 200


@dataclass(frozen=True)
class Derived:
    """The row of the list, a row for each tag, and one for each measurement, by their columns' names."""

    row: dict[str, Any]
    tags: list[dict[str, Any]]
    measured: list[dict[str, Any]]


def derived(snapshot: AnySnapshot) -> Derived:
    """What can be searched of a snapshot."""
    tags = sorted({folded(tag) for tag in snapshot.tags})
    measured = [_measured(place, one) for place, one in enumerate(snapshot.measurements)]
    return Derived(_row(snapshot), [{"tag": tag} for tag in tags], measured)


def _row(snapshot: AnySnapshot) -> dict[str, Any]:
    measurements = snapshot.measurements
    kernels = _distinct(one.request.kernel for one in measurements)
    precisions = _distinct(one.request.precision.title for one in measurements)
    labels = _distinct(one.label for one in measurements)
    problems = _distinct(one.request.problem.title for one in measurements)
    devices = _distinct(one.environment.device.name for one in measurements)
    named = (snapshot.title, snapshot.note, snapshot.author, *snapshot.tags)
    searched = (*named, *labels, *problems, *devices, *kernels, *precisions, *_lengths(measurements))
    return {
        "title": snapshot.title,
        "note": snapshot.note,
        "author": snapshot.author,
        "tags": _packed(snapshot.tags),
        "created_at": snapshot.created_at,
        "kernels": _packed(kernels),
        "problem_title": "; ".join(problems),
        "precision_titles": _packed(precisions),
        "device_name": ", ".join(devices),
        "device_kind": measurements[0].environment.device.kind if measurements else "",
        "summary": cleaned(summary(measurements)) or "made by a newer FlashScope",
        "search_text": folded("\n".join(searched)),
    }


def _measured(place: int, measurement: Measurement) -> dict[str, Any]:
    problem = measurement.request.problem
    return {
        "place": place,
        "kernel": _short(measurement.request.kernel),
        "device_name": _short(measurement.environment.device.name),
        "seq_len_q": problem.seq_len_q,
        "seq_len_kv": problem.seq_len_kv,
        "head_dim": problem.head_dim,
        "causal": problem.causal,
        "fp8": measurement.request.precision.fp8,
    }


def folded(text: str) -> str:
    """The form in which texts are compared: letter case and the ways to write an accent make no difference."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def unpacked(texts: str) -> tuple[str, ...]:
    """The texts of a column that holds several."""
    return tuple(json.loads(texts))


def _packed(texts: Iterable[str]) -> str:
    return json.dumps(tuple(texts), ensure_ascii=False)


def _short(text: str) -> str:
    """A program's text as one line that an index can hold."""
    return cleaned(text)[:_LONGEST]


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_short(text) for text in texts))


def _lengths(measurements: tuple[Measurement, ...]) -> tuple[str, ...]:
    """The lengths as people type them: '16384' and '16k', where the problem's title says '16,384 tokens'."""
    lengths = {one.request.problem.seq_len_q for one in measurements} | {one.request.problem.seq_len_kv for one in measurements}
    return tuple(f"{length} {words.tokens(length)}" for length in sorted(lengths))
