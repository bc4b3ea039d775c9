"""What databases raise, as one sentence that a person can act on and that never holds a password."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import sqlalchemy as sa

from profiling.store import StoreProblem

BUSY_S = 30.0
_SMALLEST_ROOM_BYTES = 1 << 20
_FULL = "took nothing of this, and what it held is intact. Make room and try again."
_NOT_ALLOWED = "refuses: this user may not create or change FlashScope's tables there."
_BUSY = f"is busy: others have been writing for {BUSY_S:g} s. Try again."


def sentence(error: Exception, place: str, file: Path | None, secrets: tuple[str, ...]) -> StoreProblem:
    """The problem that a database's error is. file: where an SQLite store lies; secrets: what must not be shown."""
    original = getattr(error, "orig", None) or error
    if isinstance(error, sa.exc.TimeoutError):
        said = f"is busy: no connection was free for {BUSY_S:g} s. Try again."
    else:
        said = _of_sqlite(original, file) if isinstance(original, sqlite3.Error) else _of_postgresql(original)
    for secret in secrets:
        said = said.replace(secret, "•••")
    return StoreProblem(f"The disk is full: the store {place} {said}" if said == _FULL else f"The store {place} {said}")


def _of_sqlite(error: sqlite3.Error, file: Path | None) -> str:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    # A log or an index of it that cannot grow is reported as an input or output error, and not as a full disk.
    if code == sqlite3.SQLITE_FULL or (code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and _no_room(file)):
        return _FULL
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return _BUSY
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return "cannot be written: this user needs write permission for the file and for its folder."
    if code == sqlite3.SQLITE_NOTADB:
        return "cannot be used: the file is no SQLite database. Choose another one."
    if code == sqlite3.SQLITE_CORRUPT:
        return f"is damaged ({error}): restore the file from a backup, or choose another one."
    if code == sqlite3.SQLITE_CANTOPEN:
        return "cannot be opened: it was removed, or this user may not read it or write in its folder."
    if code == sqlite3.SQLITE_ERROR and "no such table" in str(error):
        return "was replaced by another file while FlashScope ran: start FlashScope again."
    return f"cannot be used: {error}."


def _no_room(file: Path | None) -> bool:
    try:
        found = os.statvfs(file.parent)
    except (OSError, AttributeError):  # not on Windows
        return False
    return found.f_bavail * found.f_frsize < _SMALLEST_ROOM_BYTES


_OF_STATES = {
    "53100": _FULL,
    "55P03": _BUSY,
    "53300": "is busy: its server takes no more connections. Try again.",
    "42501": _NOT_ALLOWED,
    "3F000": _NOT_ALLOWED,  # no schema among those that this user may use
    "25006": "is read-only at the moment: use its primary server.",
}


def _of_postgresql(error: Exception) -> str:
    state = getattr(error, "sqlstate", None)
    if state in _OF_STATES:
        return _OF_STATES[state]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no answer"]
    # libpq names every address it tried; the server's own word, where there is one, follows "FATAL:".
    reason = next((line.rsplit("FATAL:", 1)[1].strip() for line in lines if "FATAL:" in line), lines[0])
    return f"cannot be used: {reason[:300].rstrip('.')}."
