"""Sweeps and their cells: each finished cell is a row, kept as soon as it is known."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the two tables."""
    ordered = sa.String(collation="C") if op.get_bind().dialect.name == "postgresql" else sa.String()
    op.create_table(
        "flashscope_sweeps",
        sa.Column("id", ordered, nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("device_name", sa.Text(), nullable=False),
        sa.Column("created_at", ordered, nullable=False),
        sa.Column("changed_at", ordered, nullable=False),
        sa.Column("status", ordered, nullable=False),
        sa.Column("done", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("holder", ordered),
        sa.Column("seen_at", ordered, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_flashscope_sweeps"),
    )
    op.create_table(
        "flashscope_sweep_cells",
        sa.Column("sweep_id", ordered, nullable=False),
        sa.Column("key", ordered, nullable=False),
        sa.Column("status", ordered, nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["sweep_id"], ["flashscope_sweeps.id"], name="fk_flashscope_sweep_cells_sweep_id"),
        sa.PrimaryKeyConstraint("sweep_id", "key", name="pk_flashscope_sweep_cells"),
    )
    op.create_index("ix_flashscope_sweeps_created_at", "flashscope_sweeps", ["created_at"])
