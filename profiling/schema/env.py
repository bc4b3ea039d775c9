"""Runs the revisions over the connection that profiling.store_schema hands in, within its transaction."""

from __future__ import annotations

from alembic import context

from profiling.store_tables import METADATA, VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA, version_table=VERSION_TABLE)
context.run_migrations()
