"""A TTL for each session, and what retention took from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from sqlalchemy.types import TypeEngine

revision = "0002"
down_revision = "0001"

_INDEXES = {"ix_sessions_used": "IS NULL", "ix_sessions_own_ttl": "IS NOT NULL"}


def upgrade() -> None:
    """Go from the previous revision to this one."""
    for column in (
        sa.Column("ttl_s", sa.Double()),
        sa.Column("lost_reason", _text(512)),
        sa.Column("lost_generation", sa.BigInteger()),
    ):
        op.add_column("sessions", column)
    for name, test in _INDEXES.items():
        where = sa.text(
            f"deleted_unix_s IS NULL AND snapshot_generation IS NOT NULL AND ttl_s {test}"
        )
        op.create_index(
            name, "sessions", ["updated_unix_s"], sqlite_where=where, postgresql_where=where
        )


def downgrade() -> None:
    """Go back to the previous revision."""
    # Code of that revision does not know the kind, and could not read these.
    op.execute("DELETE FROM operations WHERE kind = 'retention'")
    for name in _INDEXES:
        op.drop_index(name, "sessions")
    for column in ("lost_generation", "lost_reason", "ttl_s"):
        op.drop_column("sessions", column)


def _text(length: int) -> TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")
