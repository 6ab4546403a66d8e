"""How it is decided between loading a session's snapshot and computing it again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Go from the previous revision to this one."""
    text = sa.String(512).with_variant(sa.String(512, collation="C"), "postgresql")
    op.add_column("sessions", sa.Column("plan_policy", text))
    op.add_column("sessions", sa.Column("objective_s", sa.Double()))


def downgrade() -> None:
    """Go back to the previous revision."""
    for column in ("objective_s", "plan_policy"):
        op.drop_column("sessions", column)
