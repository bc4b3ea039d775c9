"""What only a real PostgreSQL server can do to a store: go away, be full, refuse, be busy; each said in a sentence."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path

import psycopg
import pytest

from profiling import store_database
from profiling.store import Query, Store, StoreProblem
from tests.postgres_server import PostgresServer
from tests.varied_snapshots import varied

pytestmark = pytest.mark.xdist_group("postgres")


def options(url: str, more: str) -> str:
    """The URL with one more option of the server's."""
    return f"{url}%20-c{more.replace('=', '%3D')}"


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg", "postgresql+psycopg2"])
def test_every_way_to_write_the_scheme_is_understood(postgres: PostgresServer, scheme):
    store = Store(postgres.new_url().replace("postgresql://", f"{scheme}://"))
    assert store.get(store.save(varied(1), "Ada")).snapshot == varied(1)
    assert store.place == f"postgresql://postgres@{postgres.folder}/postgres"
    store.close()


def test_a_server_that_goes_away_and_comes_back(postgres: PostgresServer):
    store = Store(postgres.new_url())
    id = store.save(varied(1), "Ada")
    postgres.stop()
    try:
        for use in (lambda: store.get(id), lambda: store.save(varied(2), "Ada"), lambda: store.search(Query())):
            with pytest.raises(StoreProblem, match=r"^The store postgresql://.* cannot be used: "):
                use()
        with pytest.raises(StoreProblem, match="cannot be used: "):
            Store(f"postgresql://postgres@/postgres?host={postgres.folder}")
    finally:
        postgres.start()
    assert store.get(id).snapshot == varied(1)
    store.save(varied(2), "Ada")
    assert store.search(Query()).total == 2
    store.close()


def test_a_connection_that_is_cut_in_mid_transaction(postgres: PostgresServer):
    store = Store(postgres.new_url())
    database = store._contents._database

    def be_cut_off() -> None:
        with database.writing() as connection:
            (pid,) = connection.exec_driver_sql("SELECT pg_backend_pid()").one()
            postgres.run(f"SELECT pg_terminate_backend({pid})")
            connection.exec_driver_sql("SELECT 1")

    with pytest.raises(StoreProblem, match="cannot be used"):
        be_cut_off()
    assert store.save(varied(1), "Ada") == varied(1).id
    store.close()


def test_a_user_who_may_not_make_tables(postgres: PostgresServer):
    postgres.run("DROP ROLE IF EXISTS guest")
    postgres.run("CREATE ROLE guest LOGIN")
    for url in (postgres.new_url("guest"), f"postgresql://guest@/postgres?host={postgres.folder}"):
        with pytest.raises(StoreProblem, match="may not create or change FlashScope's tables"):
            Store(url)


def test_a_server_that_only_reads(postgres: PostgresServer):
    url = postgres.new_url()
    store = Store(url)
    id = store.save(varied(1), "Ada")
    store.close()
    reading = Store(options(url, "default_transaction_read_only=on"))
    assert reading.get(id).snapshot == varied(1)
    with pytest.raises(StoreProblem, match="is read-only at the moment"):
        reading.save(varied(2), "Ada")
    reading.close()


def test_others_who_write_for_too_long(postgres: PostgresServer, monkeypatch):
    store = Store(postgres.new_url())
    monkeypatch.setattr(store_database, "BUSY_S", 0.2)
    with psycopg.connect(host=str(postgres.folder), user="postgres", dbname="postgres") as other:
        other.execute(f"SELECT pg_advisory_xact_lock({store_database._WRITERS_LOCK})")
        with pytest.raises(StoreProblem, match="is busy: others have been writing"):
            store.save(varied(1), "Ada")
        assert store.search(Query()).total == 0  # reading waits for no one
    assert store.save(varied(1), "Ada") == varied(1).id
    store.close()


def test_many_threads_that_open_a_store_at_once(postgres: PostgresServer):
    url, problems = postgres.new_url(), []

    def open_one() -> None:
        try:
            Store(url).close()
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=open_one) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_a_server_whose_disk_is_full(postgres: PostgresServer, tmp_path: Path):
    disk = Path(f"{postgres.folder}-disk")
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode != 0:
        disk.rmdir()
        pytest.skip(f"this user may not mount a small disk: {mounted.stderr.strip()}")
    try:
        shutil.chown(disk, "postgres")
        postgres.run(f"CREATE TABLESPACE small LOCATION '{disk}'")
        url = postgres.new_url()
        store, saved = Store(options(url, "default_tablespace=small")), []

        def save(numbers: range) -> None:
            for number in numbers:
                saved.append(store.save(varied(number), "Ada"))

        with pytest.raises(StoreProblem, match=r"^The disk is full: the store .* what it held is intact"):
            save(range(2000))
        assert saved
        for number, id in enumerate(saved):
            assert store.get(id).snapshot == varied(number)
        subprocess.run(["mount", "-o", "remount,size=60m", disk], check=True)
        save(range(2000, 2010))
        assert {row.id for row in store.search(Query(), limit=5000).rows} == set(saved)
        store.close()
        postgres.run(f"DROP SCHEMA {url.rsplit('%3D', 1)[1]} CASCADE")
        postgres.run("DROP TABLESPACE small")
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
        disk.rmdir()
