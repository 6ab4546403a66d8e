"""The tables. Every change here needs a migration in ``sessiond_migrations``."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Double,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    MetaData,
    and_,
    true,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sessiond.registry.dialects import AUTO_ID, only_where, text_type

ID: Final = text_type(64)
NAME: Final = text_type(512)
#: Of an idempotency key, in characters.
KEY_LENGTH: Final = 255


class Base(DeclarativeBase):
    """The registry's tables, with names for their constraints."""

    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(referred_table_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
        }
    )
    type_annotation_map: ClassVar = {
        int: BigInteger(),
        float: Double(),
        bool: Boolean(),
        str: NAME,
        bytes: LargeBinary(),
        dict[str, Any]: JSON(none_as_null=True),
    }


def _of_session() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["tenant", "session_id"], ["sessions.tenant", "sessions.session_id"]
    )


class SessionRow(Base):
    """One session; the row stays when the session is deleted, and is used again for its id."""

    __tablename__ = "sessions"

    tenant: Mapped[str] = mapped_column(ID, primary_key=True)
    session_id: Mapped[str] = mapped_column(ID, primary_key=True)
    model: Mapped[str]
    created_unix_s: Mapped[float]
    updated_unix_s: Mapped[float]
    deleted_unix_s: Mapped[float | None]
    idle_timeout_s: Mapped[float | None]
    pinned: Mapped[bool]
    snapshot_generation: Mapped[int | None]
    #: The summary of this generation, repeated from ``snapshots``: with a join, PostgreSQL may
    #: read half of that table for one page of sessions.
    snapshot: Mapped[dict[str, Any] | None]
    resumed_on: Mapped[str]
    last_outcome: Mapped[str]
    last_reason: Mapped[str]
    ttl_s: Mapped[float | None]
    lost_reason: Mapped[str | None]
    lost_generation: Mapped[int | None]
    on_evicted: Mapped[str | None]
    forked_session: Mapped[str | None] = mapped_column(ID)
    forked_generation: Mapped[int | None]
    plan_policy: Mapped[str | None]
    objective_s: Mapped[float | None]
    away_unix_s: Mapped[float | None]


class SnapshotRow(Base):
    """One committed snapshot of a session that is not deleted."""

    __tablename__ = "snapshots"
    __table_args__ = (_of_session(),)

    tenant: Mapped[str] = mapped_column(ID, primary_key=True)
    session_id: Mapped[str] = mapped_column(ID, primary_key=True)
    generation: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    summary: Mapped[dict[str, Any]]
    #: Written for it, or for ones that it superseded, and not known to have been loaded.
    unread_bytes: Mapped[int] = mapped_column(server_default="0")


class OperationRow(Base):
    """One long call; it is running as long as it is not finished."""

    __tablename__ = "operations"
    __table_args__ = (
        _of_session(),
        CheckConstraint("(status = 'running') = (finished_unix_s IS NULL)", "running"),
    )

    operation_id: Mapped[str] = mapped_column(ID, primary_key=True)
    tenant: Mapped[str] = mapped_column(ID)
    session_id: Mapped[str] = mapped_column(ID)
    kind: Mapped[str] = mapped_column(ID)
    status: Mapped[str] = mapped_column(ID)
    owner: Mapped[str]
    lease_until_unix_s: Mapped[float]
    created_unix_s: Mapped[float]
    finished_unix_s: Mapped[float | None]
    result: Mapped[dict[str, Any] | None]
    on_evicted: Mapped[str | None]


class EventRow(Base):
    """One line of a session's audit trail."""

    __tablename__ = "events"
    __table_args__ = (_of_session(),)

    event_id: Mapped[int] = mapped_column(AUTO_ID, primary_key=True)
    tenant: Mapped[str] = mapped_column(ID)
    session_id: Mapped[str] = mapped_column(ID)
    kind: Mapped[str] = mapped_column(ID)
    at_unix_s: Mapped[float]
    detail: Mapped[dict[str, Any]]


class IdempotencyKeyRow(Base):
    """The operation that a client's key stands for."""

    __tablename__ = "idempotency_keys"

    tenant: Mapped[str] = mapped_column(ID, primary_key=True)
    key: Mapped[str] = mapped_column(text_type(KEY_LENGTH), primary_key=True)
    request_digest: Mapped[bytes]
    operation_id: Mapped[str] = mapped_column(ID)
    created_unix_s: Mapped[float]


class SwitchRow(Base):
    """One thing that is set, or was learned, for every daemon of the registry, or is not."""

    __tablename__ = "switches"

    name: Mapped[str] = mapped_column(ID, primary_key=True)
    value: Mapped[dict[str, Any]]
    updated_unix_s: Mapped[float]


# Queries use these very expressions: a partial index serves only a query that repeats its
# predicate word for word. None has a parameter, which a prepared plan could not see through.
LIVE: Final = SessionRow.deleted_unix_s.is_(None)
PINNED: Final = SessionRow.pinned.is_(true())
WITH_SNAPSHOT: Final = SessionRow.snapshot_generation.is_not(None)
WITHOUT_SNAPSHOT: Final = SessionRow.snapshot_generation.is_(None)
TTL_BY_DEFAULT: Final = SessionRow.ttl_s.is_(None)
OWN_TTL: Final = SessionRow.ttl_s.is_not(None)
AWAY: Final = SessionRow.away_unix_s.is_not(None)
RUNNING: Final = OperationRow.finished_unix_s.is_(None)
ENDED: Final = OperationRow.finished_unix_s.is_not(None)

_BY_ID = (SessionRow.tenant, SessionRow.session_id)
Index("ix_sessions_live", *_BY_ID, **only_where(LIVE))
Index(
    "ix_sessions_model",
    SessionRow.tenant,
    SessionRow.model,
    SessionRow.session_id,
    **only_where(LIVE),
)
# Almost no session is pinned, so "not pinned" needs no index of its own.
Index("ix_sessions_pinned", *_BY_ID, **only_where(and_(LIVE, PINNED)))
Index("ix_sessions_with_snapshot", *_BY_ID, **only_where(and_(LIVE, WITH_SNAPSHOT)))
Index("ix_sessions_without_snapshot", *_BY_ID, **only_where(and_(LIVE, WITHOUT_SNAPSHOT)))
_USED = SessionRow.updated_unix_s
Index("ix_sessions_used", _USED, **only_where(and_(LIVE, WITH_SNAPSHOT, TTL_BY_DEFAULT)))
Index("ix_sessions_own_ttl", _USED, **only_where(and_(LIVE, WITH_SNAPSHOT, OWN_TTL)))
Index("ix_sessions_away", SessionRow.away_unix_s, **only_where(and_(LIVE, AWAY)))
# The rule "one running operation per session" is this index.
Index(
    "uq_operations_running",
    OperationRow.tenant,
    OperationRow.session_id,
    unique=True,
    **only_where(RUNNING),
)
Index("ix_operations_lease", OperationRow.lease_until_unix_s, **only_where(RUNNING))
Index("ix_operations_ended", OperationRow.finished_unix_s, **only_where(ENDED))
Index("ix_idempotency_keys_created", IdempotencyKeyRow.created_unix_s)
Index("ix_events_session", EventRow.tenant, EventRow.session_id, EventRow.event_id)
Index("ix_events_tenant", EventRow.tenant, EventRow.event_id)
