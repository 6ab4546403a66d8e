"""What a running suspend does about evicted KV: only who wants the same joins it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Go from the previous revision to this one."""
    text = sa.String(512).with_variant(sa.String(512, collation="C"), "postgresql")
    op.add_column("operations", sa.Column("on_evicted", text))


def downgrade() -> None:
    """Go back to the previous revision."""
    op.drop_column("operations", "on_evicted")
