"""Files that are there whole or not at all, and files of strangers read within a limit."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Replace the file once the new one is complete and on the disk; what stood there stays intact when that fails.

    Raises OSError, and then leaves nothing beside it.
    """
    beside = path.with_name(f".{uuid.uuid4().hex}.part")
    try:
        with open(beside, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def read_at_most(path: Path, most: int) -> bytes:
    """The file's bytes, one more than `most` where it has more, so that a reader with a limit can refuse it. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(most + 1)
