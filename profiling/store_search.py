"""The list: what fits a query, newest first, without opening a document; and what there is to filter by."""

from __future__ import annotations

from datetime import date

import sqlalchemy as sa

from profiling.foreign_text import cleaned
from profiling.store import Choices, Found, Listed, Query, StoreProblem
from profiling.store_rows import folded, unpacked
from profiling.store_tables import LARGEST_INTEGER, measured, rows, states, tags

MOST_WORDS = 50
_LISTED = sa.select(
    rows.c.snapshot_id,
    rows.c.title,
    rows.c.note,
    rows.c.author,
    rows.c.tags,
    rows.c.created_at,
    states.c.saved_at,
    states.c.origin,
    rows.c.kernels,
    rows.c.problem_title,
    rows.c.precision_titles,
    rows.c.device_name,
    rows.c.device_kind,
    rows.c.summary,
    states.c.is_baseline,
    states.c.deleted_at,
).join_from(states, rows, states.c.snapshot_id == rows.c.snapshot_id)


def found(connection: sa.Connection, query: Query, limit: int, offset: int) -> Found:
    """A page of what fits. Raises StoreProblem for a date that is none, and for too many words."""
    conditions = _conditions(query, connection.dialect.name)
    newest_first = (states.c.saved_at.desc(), states.c.snapshot_id.desc())
    page = _LISTED.where(*conditions).order_by(*newest_first).limit(max(0, limit)).offset(max(0, offset))
    count = sa.select(sa.func.count()).select_from(states).where(*conditions)
    if query.text.strip() or query.author:
        count = count.join(rows, rows.c.snapshot_id == states.c.snapshot_id)
    return Found(tuple(_listed(one) for one in connection.execute(page)), connection.scalar(count))


def choices(connection: sa.Connection) -> Choices:
    """The distinct values among the snapshots that are not deleted."""

    # Few are deleted: to leave them out is quicker than to look up every other.
    deleted = sa.select(states.c.snapshot_id).where(states.c.deleted_at.is_not(None))

    def distinct(*columns: sa.Column) -> list[sa.Row]:
        of = columns[0].table.c.snapshot_id
        return connection.execute(sa.select(*columns).distinct().where(of.not_in(deleted))).all()

    # One pass for all of a table's columns: there are few different measurements among many.
    found = distinct(measured.c.kernel, measured.c.device_name, measured.c.seq_len_q, measured.c.seq_len_kv)
    authors = [one.author for one in distinct(rows.c.author)]
    return Choices(
        kernels=tuple(sorted({one.kernel for one in found})),
        device_names=tuple(sorted({one.device_name for one in found})),
        tags=tuple(sorted(one.tag for one in distinct(tags.c.tag))),
        authors=tuple(sorted(filter(None, authors), key=lambda author: (folded(author), author))),
        seq_lens=tuple(sorted({length for one in found for length in (one.seq_len_q, one.seq_len_kv)})),
    )


def _conditions(query: Query, dialect: str) -> list[sa.ColumnElement[bool]]:
    conditions = [states.c.deleted_at.is_not(None) if query.deleted else states.c.deleted_at.is_(None)]
    # A search for a piece of text as it is: no sign in it has a meaning, as % and _ have in LIKE.
    place = sa.func.strpos if dialect == "postgresql" else sa.func.instr
    conditions += [place(rows.c.search_text, word) > 0 for word in _words(query.text)]
    if query.author:
        conditions.append(rows.c.author == cleaned(query.author))
    if query.tag:
        tagged = sa.select(tags.c.snapshot_id).where(tags.c.tag == folded(cleaned(query.tag)))
        conditions.append(states.c.snapshot_id.in_(tagged))
    if query.saved_from:
        conditions.append(states.c.saved_at >= _day("saved_from", query.saved_from).isoformat())
    if query.saved_until:
        # Every moment of the day is written with a T and an hour, which come before this.
        conditions.append(states.c.saved_at < f"{_day('saved_until', query.saved_until).isoformat()}U")
    of_one = _of_one_measurement(query)
    if of_one:
        conditions.append(states.c.snapshot_id.in_(sa.select(measured.c.snapshot_id).where(*of_one)))
    return conditions


def _of_one_measurement(query: Query) -> list[sa.ColumnElement[bool]]:
    """What one and the same measurement of a snapshot must fit."""
    wanted = {
        measured.c.kernel: cleaned(query.kernel) or None,
        measured.c.device_name: cleaned(query.device_name) or None,
        measured.c.head_dim: _storable(query.head_dim),
        measured.c.causal: query.causal,
        measured.c.fp8: query.fp8,
    }
    conditions = [column == value for column, value in wanted.items() if value is not None]
    length = _storable(query.seq_len)
    if length is not None:
        conditions.append(sa.or_(measured.c.seq_len_q == length, measured.c.seq_len_kv == length))
    return conditions


def _storable(number: int | None) -> int | None:
    """The number, or one that nothing has for a number that no column can hold."""
    return number if number is None or 0 <= number <= LARGEST_INTEGER else -1


def _words(text: str) -> list[str]:
    words = list(dict.fromkeys(folded(cleaned(text)).split()))
    if len(words) > MOST_WORDS:
        raise StoreProblem(f"A search for {len(words):,} words is not possible: it can be {MOST_WORDS} at most.")
    return words


def _day(name: str, text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise StoreProblem(f"{name} = {text[:40]!r} is not a date: it is written as 2026-11-29.") from None


def _listed(one: sa.Row) -> Listed:
    id, title, note, author, tag_texts, created, saved, origin, kernels, problem, precisions, *rest = one
    return Listed(
        id, title, note, author, unpacked(tag_texts), created, saved, origin,
        unpacked(kernels), problem, unpacked(precisions), *rest,
    )  # fmt: skip
