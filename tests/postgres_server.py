"""A PostgreSQL server of the test's own: Debian's, in a folder under /tmp, on a Unix socket alone, stopped at the end."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from profiling.leash import end_with_parent

_START_S = 60
LOCKED_USER, LOCKED_PASSWORD = "locked", "hunter2"
_WHO_MAY = f"local all {LOCKED_USER} scram-sha-256\nlocal all all trust\n"


@dataclass
class PostgresServer:
    """A running server, in whose folder its socket lies."""

    programs: Path
    folder: Path
    process: subprocess.Popen | None = None

    @property
    def _options(self) -> dict:
        """PostgreSQL refuses to run as root."""
        if os.geteuid() != 0:
            return {}
        user = pwd.getpwnam("postgres")
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": ()}

    def make(self) -> None:
        """Make an empty cluster."""
        if os.geteuid() == 0:
            shutil.chown(self.folder, "postgres")
        subprocess.run(
            [self.programs / "initdb", "-D", self.folder / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"],
            check=True, capture_output=True, cwd=self.folder, **self._options,
        )  # fmt: skip
        (self.folder / "data" / "pg_hba.conf").write_text(_WHO_MAY)

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.folder / "data", "-k", self.folder, "-c", "listen_addresses=",
                 "-c", "max_connections=200"],
                stdout=log, stderr=log, cwd=self.folder, preexec_fn=end_with_parent, **self._options,
            )  # fmt: skip
        deadline = time.monotonic() + _START_S
        while True:
            try:
                self.run("SELECT 1")
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise AssertionError((self.folder / "log").read_text()) from None
                time.sleep(0.05)

    def stop(self) -> None:
        """Stop the server at once, as a crash would; its data stay."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(_START_S)

    def run(self, statement: str) -> list[tuple]:
        """What a statement gives, outside of a transaction."""
        with psycopg.connect(host=str(self.folder), user="postgres", dbname="postgres", autocommit=True) as connection:
            found = connection.execute(statement)
            return found.fetchall() if found.description else []

    def new_url(self, user: str = "postgres") -> str:
        """The URL of an empty place in the server; user may hold a password. A schema takes no second, as a database does."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        self.run(f"CREATE SCHEMA {name}")
        return f"postgresql://{user}@/postgres?host={self.folder}&options=-csearch_path%3D{name}"


def _programs() -> Path | None:
    found = [Path(path).parent for path in filter(None, [shutil.which("initdb")])]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    return next((path for path in found if (path / "initdb").exists() and (path / "postgres").exists()), None)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The server of this test run. Without PostgreSQL the test is skipped, in CI it fails."""
    programs = _programs()
    if programs is None:
        reason = "PostgreSQL is not installed: sudo apt install postgresql"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    # A socket's path has room for about a hundred letters.
    folder = Path(tempfile.mkdtemp(prefix="flashscope-pg-", dir="/tmp"))
    server = PostgresServer(programs, folder)
    try:
        server.make()
        server.start()
        server.run(f"CREATE ROLE {LOCKED_USER} LOGIN PASSWORD '{LOCKED_PASSWORD}'")
        yield server
    finally:
        if server.process is not None and server.process.poll() is None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.xdist_group("postgres"))])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'snapshots.sqlite3'}"
    return request.getfixturevalue("postgres").new_url()
