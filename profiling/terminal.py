"""What the commands share: exit codes, bad input said in one sentence, columns, and foreign text that a terminal can bear."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from profiling.foreign_text import cleaned

RIGHT, NOT_RIGHT, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


class BadInput(Exception):
    """What was asked for is not possible, in one sentence."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{message[:1].upper()}{message[1:]}.\n")


def shown(text: str, most: int = 1000) -> str:
    """Foreign text for one line of a terminal: escape sequences and line breaks are gone, what is too long is cut."""
    found = cleaned(text)
    return found if len(found) <= most else f"{found[: most - 1]}…"


def columns(rows: Sequence[Sequence[str]], right: frozenset[int] = frozenset()) -> list[str]:
    """The rows as lines with aligned columns; those in `right` are aligned to the right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def complain(sentence: str) -> None:
    """Say something beside the result."""
    print(sentence, file=sys.stderr, flush=True)
