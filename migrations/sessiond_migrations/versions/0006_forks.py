"""Where a session that is a fork began."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Go from the previous revision to this one."""
    text = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")
    op.add_column("sessions", sa.Column("forked_session", text))
    op.add_column("sessions", sa.Column("forked_generation", sa.BigInteger()))


def downgrade() -> None:
    """Go back to the previous revision."""
    # Code of that revision does not know the kind, and could not read these.
    op.execute("DELETE FROM operations WHERE kind = 'fork'")
    for column in ("forked_generation", "forked_session"):
        op.drop_column("sessions", column)
