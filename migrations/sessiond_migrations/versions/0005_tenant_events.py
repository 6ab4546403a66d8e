"""The events of a tenant can be followed."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Go from the previous revision to this one."""
    op.create_index("ix_events_tenant", "events", ["tenant", "event_id"])


def downgrade() -> None:
    """Go back to the previous revision."""
    op.drop_index("ix_events_tenant", "events")
