"""A stdout that only the protocol writes to: what libraries and compilers print goes to stderr."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def claim_stdout() -> TextIO:
    """The process's stdout, for the caller alone; file descriptor 1 and sys.stdout become stderr from now on."""
    sys.stdout.flush()
    mine = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return os.fdopen(mine, "w", encoding="utf-8", buffering=1)
