"""The store's schema made or brought up to date, once, however many processes start at the same moment."""

from __future__ import annotations

import threading
from pathlib import Path

import sqlalchemy as sa

from profiling.store import StoreProblem
from profiling.store_tables import HEAD, VERSION_TABLE

_FOLDER = Path(__file__).with_name("schema")
# Alembic keeps the environment it runs in a module's globals.
_ONE_AT_A_TIME = threading.Lock()


def is_current(connection: sa.Connection) -> bool:
    """Whether the schema is the one that this FlashScope works with."""
    return _revision(connection) == HEAD


def bring_up_to_date(connection: sa.Connection, place: str) -> None:
    """Make what is missing, within the connection's transaction, which excludes every other writer.

    Raises StoreProblem for a store by a newer FlashScope.
    """
    found = _revision(connection)
    if found == HEAD:
        return

    from alembic import command  # only when there is something to do: it takes a fifth of a second to import
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise StoreProblem(
            f"The store {place} was made by a newer FlashScope (its schema is {found[:40]!r}, the newest known here {HEAD!r}): "
            "update FlashScope, or use another store."
        )
    with _ONE_AT_A_TIME:
        command.upgrade(config, "head")


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.scalar(sa.text(f"SELECT version_num FROM {VERSION_TABLE}"))
