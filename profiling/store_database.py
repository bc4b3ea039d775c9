"""One database of a store: where it is, its connections, its two kinds of transaction, its errors as StoreProblem."""

from __future__ import annotations

import os
import random
import sqlite3
import urllib.parse
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import platformdirs
import sqlalchemy as sa

from profiling import store_schema
from profiling.file_systems import network_file_system
from profiling.store import StoreProblem
from profiling.store_problems import BUSY_S, sentence
from profiling.store_tables import VERSION_TABLE

VARIABLE = "FLASHSCOPE_STORE"
_CONNECT_TIMEOUT_S = 5
_BETWEEN_LOOKS_S = 0.001, 0.02
_WRITERS_LOCK = 0x666C617368  # 'flash': PostgreSQL's advisory locks are numbers
_POSSIBLE = "it can be a path, sqlite:///path or postgresql://user@host/database"


class Database:
    """A database with the store's schema. Raises StoreProblem for whatever is wrong with it."""

    def __init__(self, url: str = "") -> None:
        self.url = _url(url)
        self.file = _file(self.url)
        self.address = self.file or self.url
        self.place = str(self.file) if self.file else _place(self.url)
        self._engine = _sqlite(self.file) if self.file else _postgresql(self.url)
        _engines.add(self._engine)
        if self.file:
            self._reader = self._engine
            self._writer = self._engine.execution_options(writes=True)
        else:
            self._reader = self._engine.execution_options(isolation_level="REPEATABLE READ")
            self._writer = self._engine
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        if self.file:
            with self._speaking():
                _make_file(self.file)
        with self.reading() as connection:
            current = store_schema.is_current(connection)
        if not current:
            with self.writing() as connection:
                store_schema.bring_up_to_date(connection, self.place)

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A transaction that sees one state of the store from beginning to end, and changes nothing."""
        with self._speaking(), self._reader.begin() as connection:
            if not self.file:
                connection.execute(sa.text("SET TRANSACTION READ ONLY"))
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A transaction that excludes all other writers; durable once it is left without an error."""
        with self._speaking(), self._writer.begin() as connection:
            if not self.file:
                connection.execute(sa.text(f"SET LOCAL lock_timeout = {int(BUSY_S * 1000)}"))
                connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({_WRITERS_LOCK})"))
            yield connection

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        try:
            yield
        except (sa.exc.SQLAlchemyError, sqlite3.Error) as error:
            raise sentence(error, self.place, self.file, _secrets(self.url)) from None

    def close(self) -> None:
        """Let the connections go."""
        self._engine.dispose()


def _url(text: str) -> sa.URL:
    """The address in a text, or in the environment, or the file in the user's data folder."""
    text = text or os.environ.get(VARIABLE, "")
    if not text:
        file = platformdirs.user_data_path("flashscope", appauthor=False) / "snapshots.sqlite3"
        return sa.URL.create("sqlite", database=str(file))
    if "://" not in text:
        return sa.URL.create("sqlite", database=text)
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise StoreProblem(f"The store's address cannot be read: {_POSSIBLE}.") from None
    kind = url.get_backend_name()
    if kind in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if kind != "sqlite":
        raise StoreProblem(f"A store at {kind}:// is not possible: {_POSSIBLE}.")
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise StoreProblem("A store in memory, or without the path of its file, is not possible: write sqlite:///path.")
    return url


def _file(url: sa.URL) -> Path | None:
    return Path(os.path.abspath(Path(url.database).expanduser())) if url.get_backend_name() == "sqlite" else None


def _place(url: sa.URL) -> str:
    """The address without a password and without options, which may hold one."""
    user = f"{url.username}@" if url.username else ""
    hosts = url.query.get("host", "")
    host = url.host or (hosts if isinstance(hosts, str) else ",".join(hosts))
    return f"postgresql://{user}{host}{f':{url.port}' if url.port else ''}/{url.database or ''}"


def _secrets(url: sa.URL) -> tuple[str, ...]:
    options = url.query.get("password", ())
    return tuple(filter(None, (url.password, *((options,) if isinstance(options, str) else options))))


def _make_file(file: Path) -> None:
    kind = network_file_system(file)
    if kind is not None:
        raise StoreProblem(
            f"The store {file} is on a network file system ({kind}), where SQLite loses data: set {VARIABLE} to a path on a "
            "local disk, or to postgresql://user@host/database for a team."
        )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o666))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StoreProblem(
            f"The store {file} cannot be written ({reason}): set {VARIABLE} to a path in a folder that this user may write."
        ) from None
    _make_wal(file)


def _make_wal(file: Path) -> None:
    """Put the file into write-ahead mode, which it keeps."""
    connection = _connect(file)
    try:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and VERSION_TABLE not in tables:
            raise StoreProblem(f"The file {file} is a database of something else: choose another file for the store.")
        _patiently(connection, "PRAGMA journal_mode = WAL")
    finally:
        connection.close()


def _patiently(connection: sqlite3.Connection, statement: str) -> None:
    """Run a statement that has to wait for others.

    SQLite itself does not wait for some, and for the rest it looks more and more seldom whether its turn has come: of many
    writers one might wait for ever.
    """
    deadline = monotonic() + BUSY_S
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                connection.execute(statement)
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or monotonic() > deadline:
                    raise
            sleep(random.uniform(*_BETWEEN_LOOKS_S))
    finally:
        connection.execute(f"PRAGMA busy_timeout = {int(1000 * BUSY_S)}")


def _connect(file: Path) -> sqlite3.Connection:
    """A connection to a file that is there: one that was removed is not made anew without anyone noticing."""
    address = f"file:{urllib.parse.quote(str(file))}?mode=rw"
    # Transactions are begun by the event below: sqlite3 itself begins them too late, and only before some statements.
    return sqlite3.connect(address, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)


def _sqlite(file: Path) -> sa.Engine:
    engine = sa.create_engine("sqlite://", creator=lambda: _connect(file), poolclass=sa.QueuePool, pool_timeout=BUSY_S)

    @sa.event.listens_for(engine, "connect")
    def _set(connection: sqlite3.Connection, record: object) -> None:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        record.info["file"] = _identity(file)

    @sa.event.listens_for(engine, "checkout")
    def _check(_connection: object, record: object, _proxy: object) -> None:
        # Writes to a file that was removed or replaced would be acknowledged and lost.
        if record.info["file"] != _identity(file):
            raise sa.exc.DisconnectionError

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        if connection.get_execution_options().get("writes"):
            _patiently(connection.connection.dbapi_connection, "BEGIN IMMEDIATE")
        else:
            connection.exec_driver_sql("BEGIN")

    return engine


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _postgresql(url: sa.URL) -> sa.Engine:
    return sa.create_engine(
        url,
        pool_pre_ping=True,  # the server may have been started again
        pool_timeout=BUSY_S,
        connect_args={"connect_timeout": _CONNECT_TIMEOUT_S, "application_name": "flashscope"},
    )


_engines: weakref.WeakSet[sa.Engine] = weakref.WeakSet()
_of_the_parent: list[object] = []


def _forget_the_parent_s_connections() -> None:
    for engine in list(_engines):
        _of_the_parent.append(engine.pool)  # closing one here would end it for the parent too
        engine.dispose(close=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_the_parent_s_connections)
