"""How old ended operations and idempotency keys are: the oldest go."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

_ENDED = sa.text("finished_unix_s IS NOT NULL")


def upgrade() -> None:
    """Go from the previous revision to this one."""
    op.create_index(
        "ix_operations_ended",
        "operations",
        ["finished_unix_s"],
        postgresql_where=_ENDED,
        sqlite_where=_ENDED,
    )
    op.create_index("ix_idempotency_keys_created", "idempotency_keys", ["created_unix_s"])


def downgrade() -> None:
    """Go back to the previous revision."""
    op.drop_index("ix_idempotency_keys_created", "idempotency_keys")
    op.drop_index("ix_operations_ended", "operations")
