"""The app's command line: python -m app export FILE --out page.html. The app itself is started by ./run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from app.html_page import page_of
from profiling.snapshot import MAX_PAGE_BYTES, read
from profiling.terminal import BAD_INPUT, RIGHT, BadInput, Parser, complain
from profiling.untrusted import NotASnapshot
from profiling.whole_file import read_at_most, write_whole


def main(arguments: list[str]) -> int:
    """Run a command and return its exit code: 0 right, 2 bad input."""
    parser = Parser(prog="python -m app", description="Snapshots as pages that open without FlashScope.", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="export", parser_class=Parser)
    export = commands.add_parser("export", help="write a snapshot as one HTML file", allow_abbrev=False)
    export.add_argument("file", type=Path, metavar="FILE", help="a snapshot: JSON, gzip, or a page that was exported before")
    export.add_argument("--out", required=True, type=Path, metavar="PAGE", help="where to write it, for example page.html")
    options = parser.parse_args(arguments)
    try:
        _export(options)
    except BadInput as error:
        complain(str(error))
        return BAD_INPUT
    return RIGHT


def _export(options: argparse.Namespace) -> None:
    if options.out.is_dir():
        raise BadInput(f"out = {options.out} is not possible: it is a folder.")
    if not options.out.parent.is_dir():
        raise BadInput(f"out = {options.out} is not possible: there is no folder {options.out.parent}.")
    if options.out.exists() and options.file.exists() and options.out.samefile(options.file):
        raise BadInput(f"out = {options.out} is not possible: it is the file to read.")
    try:
        snapshot = read(read_at_most(options.file, MAX_PAGE_BYTES))
    except NotASnapshot as error:
        raise BadInput(f"{options.file}: {error}") from None
    except OSError as error:
        raise BadInput(f"file = {options.file} cannot be read: {error.strerror}.") from None
    try:
        write_whole(options.out, page_of(snapshot))
    except OSError as error:
        raise BadInput(f"out = {options.out} cannot be written: {error.strerror}.") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
