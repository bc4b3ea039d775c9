"""One FlashScope process at a time times on a GPU: a lock file a GPU, for the whole host."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


class LockBusy(Exception):
    """Another process kept the GPU's lock for too long; the text is a sentence for a person."""


def lock_path(uuid: str) -> Path:
    """The lock file of a GPU."""
    return Path(tempfile.gettempdir()) / f"flashscope-{uuid}.lock"


@contextmanager
def gpu_lock(uuid: str, waiting: Callable[[], None] = lambda: None, timeout_s: float = 240.0) -> Iterator[str | None]:
    """Hold the host-wide lock of a GPU: only one FlashScope process times on it. Yields None, or why there is no lock.

    waiting() is called every 5 s while another process has it. Raises LockBusy after timeout_s.
    """
    lock = FileLock(lock_path(uuid), mode=0o666)
    try:
        _acquire(lock, waiting, timeout_s)
    except OSError as error:
        if isinstance(error, Timeout):
            raise LockBusy(f"Another FlashScope process has kept this GPU's lock for {timeout_s:g} s.") from None
        yield f"the lock file {lock.lock_file} cannot be used: {error.strerror}"
        return
    try:
        yield None
    finally:
        lock.release()


def _acquire(lock: FileLock, waiting: Callable[[], None], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        left = deadline - time.monotonic()
        try:
            lock.acquire(timeout=max(0.0, min(5.0, left)))
            return
        except Timeout:
            if left <= 5.0:
                raise
            waiting()
