"""The command line: python -m profiling COMMAND."""

from __future__ import annotations

import os
import sys

from profiling.cli import main

OUTPUT_CLOSED = 141
"""As a shell counts a program that SIGPIPE ended: whoever read the output has gone."""

if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # a terminal without '·' gets its number, not a traceback
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = OUTPUT_CLOSED
    sys.exit(code)
