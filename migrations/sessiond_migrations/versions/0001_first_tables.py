"""Sessions, snapshots, operations, events and idempotency keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from sqlalchemy.types import TypeEngine

revision = "0001"
down_revision = None

_AUTO_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Go from the previous revision to this one."""
    _create_sessions()
    _create_snapshots()
    _create_operations()
    _create_events()
    _create_idempotency_keys()


def downgrade() -> None:
    """Go back to the previous revision."""
    for table in ("idempotency_keys", "events", "operations", "snapshots", "sessions"):
        op.drop_table(table)


def _create_sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("tenant", _text(64), nullable=False),
        sa.Column("session_id", _text(64), nullable=False),
        sa.Column("model", _text(512), nullable=False),
        sa.Column("created_unix_s", sa.Double(), nullable=False),
        sa.Column("updated_unix_s", sa.Double(), nullable=False),
        sa.Column("deleted_unix_s", sa.Double()),
        sa.Column("idle_timeout_s", sa.Double()),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("snapshot_generation", sa.BigInteger()),
        sa.Column("snapshot", sa.JSON()),
        sa.Column("resumed_on", _text(512), nullable=False),
        sa.Column("last_outcome", _text(512), nullable=False),
        sa.Column("last_reason", _text(512), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "session_id", name="pk_sessions"),
    )
    live = "deleted_unix_s IS NULL"
    _index("ix_sessions_live", "sessions", ["tenant", "session_id"], live)
    _index("ix_sessions_model", "sessions", ["tenant", "model", "session_id"], live)
    op.create_index(
        "ix_sessions_pinned",
        "sessions",
        ["tenant", "session_id"],
        sqlite_where=sa.text(f"{live} AND pinned IS 1"),
        postgresql_where=sa.text(f"{live} AND pinned IS true"),
    )
    for name, test in (("with", "IS NOT NULL"), ("without", "IS NULL")):
        predicate = f"{live} AND snapshot_generation {test}"
        _index(f"ix_sessions_{name}_snapshot", "sessions", ["tenant", "session_id"], predicate)


def _create_snapshots() -> None:
    op.create_table(
        "snapshots",
        sa.Column("tenant", _text(64), nullable=False),
        sa.Column("session_id", _text(64), nullable=False),
        sa.Column("generation", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("summary", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "session_id", "generation", name="pk_snapshots"),
        _of_session("fk_snapshots_sessions"),
    )


def _create_operations() -> None:
    op.create_table(
        "operations",
        sa.Column("operation_id", _text(64), nullable=False),
        sa.Column("tenant", _text(64), nullable=False),
        sa.Column("session_id", _text(64), nullable=False),
        sa.Column("kind", _text(64), nullable=False),
        sa.Column("status", _text(64), nullable=False),
        sa.Column("owner", _text(512), nullable=False),
        sa.Column("lease_until_unix_s", sa.Double(), nullable=False),
        sa.Column("created_unix_s", sa.Double(), nullable=False),
        sa.Column("finished_unix_s", sa.Double()),
        sa.Column("result", sa.JSON()),
        sa.PrimaryKeyConstraint("operation_id", name="pk_operations"),
        _of_session("fk_operations_sessions"),
        sa.CheckConstraint(
            "(status = 'running') = (finished_unix_s IS NULL)",
            name=op.f("ck_operations_running"),
        ),
    )
    running = "finished_unix_s IS NULL"
    columns = ["tenant", "session_id"]
    _index("uq_operations_running", "operations", columns, running, unique=True)
    _index("ix_operations_lease", "operations", ["lease_until_unix_s"], running)


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("event_id", _AUTO_ID, nullable=False),
        sa.Column("tenant", _text(64), nullable=False),
        sa.Column("session_id", _text(64), nullable=False),
        sa.Column("kind", _text(64), nullable=False),
        sa.Column("at_unix_s", sa.Double(), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("event_id", name="pk_events"),
        _of_session("fk_events_sessions"),
    )
    op.create_index("ix_events_session", "events", ["tenant", "session_id", "event_id"])


def _create_idempotency_keys() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant", _text(64), nullable=False),
        sa.Column("key", _text(255), nullable=False),
        sa.Column("request_digest", sa.LargeBinary(), nullable=False),
        sa.Column("operation_id", _text(64), nullable=False),
        sa.Column("created_unix_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key", name="pk_idempotency_keys"),
    )


def _text(length: int) -> TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _of_session(name: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["tenant", "session_id"], ["sessions.tenant", "sessions.session_id"], name=name
    )


def _index(
    name: str, table: str, columns: list[str], predicate: str, *, unique: bool = False
) -> None:
    where = sa.text(predicate)
    op.create_index(name, table, columns, unique=unique, sqlite_where=where, postgresql_where=where)
