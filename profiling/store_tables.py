"""The store's tables, as profiling/schema makes them. SQLAlchemy Core alone.

documents never change; states hold what can; rows, tags and measured are derived from the documents and can be made again;
the log is only added to. A sweep's document is its plan and its cells; what came of a cell is a row of its own. The names
carry a prefix, so that a team can put them into a database that it has.
"""

from __future__ import annotations

from sqlalchemy import Boolean, Column, ForeignKey, Index, Integer, LargeBinary, MetaData, String, Table, Text

HEAD = "0002"
"""The newest revision in profiling/schema/versions."""
VERSION_TABLE = "flashscope_version"
LARGEST_INTEGER = 2**31 - 1

# Order and prefixes are those of the bytes, in every locale of the server.
Ordered = String().with_variant(String(collation="C"), "postgresql")

METADATA = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
    }
)


def _snapshot_id(**more: bool) -> Column:
    return Column("snapshot_id", Ordered, ForeignKey("flashscope_documents.id"), nullable=False, **more)


documents = Table(
    "flashscope_documents",
    METADATA,
    Column("id", Ordered, primary_key=True),
    Column("schema_version", Integer, nullable=False),
    Column("file", LargeBinary, nullable=False),
)

states = Table(
    "flashscope_states",
    METADATA,
    _snapshot_id(primary_key=True),
    Column("origin", Ordered, nullable=False),
    Column("saved_at", Ordered, nullable=False),
    Column("deleted_at", Ordered),
    Column("replaced_by", Ordered),
    Column("is_baseline", Boolean, nullable=False),
)
_LIVE = states.c.deleted_at.is_(None)
Index("ix_flashscope_states_live", states.c.saved_at, states.c.snapshot_id, sqlite_where=_LIVE, postgresql_where=_LIVE)
_PINNED = states.c.is_baseline
Index("ix_flashscope_states_baseline", _PINNED, unique=True, sqlite_where=_PINNED, postgresql_where=_PINNED)

rows = Table(
    "flashscope_rows",
    METADATA,
    _snapshot_id(primary_key=True),
    Column("title", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("author", Ordered, nullable=False),
    Column("tags", Text, nullable=False),
    Column("created_at", Ordered, nullable=False),
    Column("kernels", Text, nullable=False),
    Column("problem_title", Text, nullable=False),
    Column("precision_titles", Text, nullable=False),
    Column("device_name", Text, nullable=False),
    Column("device_kind", Text, nullable=False),
    Column("summary", Text, nullable=False),
    Column("search_text", Text, nullable=False),
    Index(None, "author"),
)

tags = Table(
    "flashscope_tags",
    METADATA,
    _snapshot_id(primary_key=True),
    Column("tag", Ordered, primary_key=True),
    Index(None, "tag"),
)

measured = Table(
    "flashscope_measured",
    METADATA,
    _snapshot_id(primary_key=True),
    Column("place", Integer, primary_key=True),
    Column("kernel", Ordered, nullable=False),
    Column("device_name", Ordered, nullable=False),
    Column("seq_len_q", Integer, nullable=False),
    Column("seq_len_kv", Integer, nullable=False),
    Column("head_dim", Integer, nullable=False),
    Column("causal", Boolean, nullable=False),
    Column("fp8", Boolean, nullable=False),
    Index(None, "kernel"),
    Index(None, "device_name"),
)

log = Table(
    "flashscope_log",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("key", Ordered, nullable=False, unique=True),
    Column("at", Ordered, nullable=False),
    Column("who", Text, nullable=False),
    Column("what", Ordered, nullable=False),
    _snapshot_id(),
    Column("detail", Text, nullable=False),
    Index(None, "snapshot_id"),
    Index(None, "at"),
)

sweeps = Table(
    "flashscope_sweeps",
    METADATA,
    Column("id", Ordered, primary_key=True),
    Column("title", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("device_name", Text, nullable=False),
    Column("created_at", Ordered, nullable=False),
    Column("changed_at", Ordered, nullable=False),
    Column("status", Ordered, nullable=False),
    Column("done", Integer, nullable=False),
    Column("total", Integer, nullable=False),
    Column("holder", Ordered),
    Column("seen_at", Ordered, nullable=False),
    Column("state", Text, nullable=False),
    Column("document", LargeBinary, nullable=False),
    Index(None, "created_at"),
)

sweep_cells = Table(
    "flashscope_sweep_cells",
    METADATA,
    Column("sweep_id", Ordered, ForeignKey("flashscope_sweeps.id"), primary_key=True),
    Column("key", Ordered, primary_key=True),
    Column("status", Ordered, nullable=False),
    Column("document", LargeBinary, nullable=False),
)

DERIVED = (rows, tags, measured)
