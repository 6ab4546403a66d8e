"""Switches that every daemon of the registry obeys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from sqlalchemy.types import TypeEngine

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Go from the previous revision to this one."""
    op.create_table(
        "switches",
        sa.Column("name", _text(64), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.Column("updated_unix_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_switches"),
    )


def downgrade() -> None:
    """Go back to the previous revision."""
    op.drop_table("switches")


def _text(length: int) -> TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")
