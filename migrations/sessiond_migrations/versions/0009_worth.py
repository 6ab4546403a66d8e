"""Which sessions are away, and what was written and never read: what a snapshot is worth."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_AWAY = sa.text("deleted_unix_s IS NULL AND away_unix_s IS NOT NULL")


def upgrade() -> None:
    """Go from the previous revision to this one."""
    op.add_column("sessions", sa.Column("away_unix_s", sa.Double()))
    op.create_index(
        "ix_sessions_away",
        "sessions",
        ["away_unix_s"],
        postgresql_where=_AWAY,
        sqlite_where=_AWAY,
    )
    op.add_column(
        "snapshots", sa.Column("unread_bytes", sa.BigInteger(), nullable=False, server_default="0")
    )


def downgrade() -> None:
    """Go back to the previous revision."""
    op.drop_column("snapshots", "unread_bytes")
    op.drop_index("ix_sessions_away", "sessions")
    op.drop_column("sessions", "away_unix_s")
