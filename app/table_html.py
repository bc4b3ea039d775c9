"""The table behind a chart as HTML, for the app and the exported page. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from profiling.words import escaped


def table_of(rows: Sequence[Mapping[str, str]], label: str, explained: Mapping[str, str], kind: str = "") -> str:
    """Rows of words that scroll when they are many and can be reached by keyboard; there must be one at least.

    explained: a sentence for a column, by its name, or for a row, by its first cell: the tooltip of its head.
    """
    head = "".join(f'<th scope="col"{title_of(name, explained)}>{escaped(name)}</th>' for name in rows[0])
    body = "".join(f"<tr>{_cells(list(row.values()), explained)}</tr>" for row in rows)
    return (
        f'<div class="{f"fs-table {kind}".strip()}" tabindex="0" role="region" aria-label="{escaped(label)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cells(cells: Sequence[str], explained: Mapping[str, str]) -> str:
    first, rest = cells[:1], cells[1:]
    return "".join(f"<td{title_of(cell, explained)}>{escaped(cell)}</td>" for cell in first) + "".join(
        f"<td>{escaped(cell)}</td>" for cell in rest
    )


def title_of(name: str, explained: Mapping[str, str]) -> str:
    """The attribute of an element that has a sentence, with the space before it; else nothing."""
    return f' title="{escaped(explained[name])}"' if name in explained else ""
