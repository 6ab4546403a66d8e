"""What a session's suspends do about evicted KV."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Go from the previous revision to this one."""
    text = sa.String(512).with_variant(sa.String(512, collation="C"), "postgresql")
    op.add_column("sessions", sa.Column("on_evicted", text))


def downgrade() -> None:
    """Go back to the previous revision."""
    op.drop_column("sessions", "on_evicted")
