"""The first schema: documents, states, what is derived from the documents, the log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make every table and index."""
    ordered = sa.String(collation="C") if op.get_bind().dialect.name == "postgresql" else sa.String()

    def snapshot_id(table: str) -> tuple[sa.Column, sa.ForeignKeyConstraint]:
        key = sa.ForeignKeyConstraint(["snapshot_id"], ["flashscope_documents.id"], name=f"fk_flashscope_{table}_snapshot_id")
        return sa.Column("snapshot_id", ordered, nullable=False), key

    def primary_key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
        return sa.PrimaryKeyConstraint(*columns, name=f"pk_flashscope_{table}")

    op.create_table(
        "flashscope_documents",
        sa.Column("id", ordered, nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.Column("file", sa.LargeBinary(), nullable=False),
        primary_key("documents", "id"),
    )
    op.create_table(
        "flashscope_states",
        *snapshot_id("states"),
        sa.Column("origin", ordered, nullable=False),
        sa.Column("saved_at", ordered, nullable=False),
        sa.Column("deleted_at", ordered),
        sa.Column("replaced_by", ordered),
        sa.Column("is_baseline", sa.Boolean(), nullable=False),
        primary_key("states", "snapshot_id"),
    )
    live, pinned = sa.text("deleted_at IS NULL"), sa.text("is_baseline")
    op.create_index(
        "ix_flashscope_states_live",
        "flashscope_states",
        ["saved_at", "snapshot_id"],
        sqlite_where=live,
        postgresql_where=live,
    )
    op.create_index(
        "ix_flashscope_states_baseline",
        "flashscope_states",
        ["is_baseline"],
        unique=True,
        sqlite_where=pinned,
        postgresql_where=pinned,
    )
    op.create_table(
        "flashscope_rows",
        *snapshot_id("rows"),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("author", ordered, nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("created_at", ordered, nullable=False),
        sa.Column("kernels", sa.Text(), nullable=False),
        sa.Column("problem_title", sa.Text(), nullable=False),
        sa.Column("precision_titles", sa.Text(), nullable=False),
        sa.Column("device_name", sa.Text(), nullable=False),
        sa.Column("device_kind", sa.Text(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("search_text", sa.Text(), nullable=False),
        primary_key("rows", "snapshot_id"),
    )
    op.create_table(
        "flashscope_tags",
        *snapshot_id("tags"),
        sa.Column("tag", ordered, nullable=False),
        primary_key("tags", "snapshot_id", "tag"),
    )
    op.create_table(
        "flashscope_measured",
        *snapshot_id("measured"),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("kernel", ordered, nullable=False),
        sa.Column("device_name", ordered, nullable=False),
        sa.Column("seq_len_q", sa.Integer(), nullable=False),
        sa.Column("seq_len_kv", sa.Integer(), nullable=False),
        sa.Column("head_dim", sa.Integer(), nullable=False),
        sa.Column("causal", sa.Boolean(), nullable=False),
        sa.Column("fp8", sa.Boolean(), nullable=False),
        primary_key("measured", "snapshot_id", "place"),
    )
    op.create_table(
        "flashscope_log",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("key", ordered, nullable=False),
        sa.Column("at", ordered, nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("what", ordered, nullable=False),
        *snapshot_id("log"),
        sa.Column("detail", sa.Text(), nullable=False),
        primary_key("log", "number"),
        sa.UniqueConstraint("key", name="uq_flashscope_log_key"),
    )
    for table, column in (
        ("rows", "author"),
        ("tags", "tag"),
        ("measured", "kernel"),
        ("measured", "device_name"),
        ("log", "snapshot_id"),
        ("log", "at"),
    ):
        op.create_index(f"ix_flashscope_{table}_{column}", f"flashscope_{table}", [column])
