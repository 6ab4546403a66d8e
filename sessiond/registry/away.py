"""Queries about sessions that are away, and about snapshots that nobody has read yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import and_, func, select, update

from sessiond.domain.ids import SessionId, TenantId
from sessiond.registry.models import AWAY, LIVE, SessionRow, SnapshotRow

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement
    from sqlalchemy.orm import Session as Database

_GIVE_UP_BATCH: Final = 500


def mark(db: Database, tenant: TenantId, session_id: SessionId, now_unix_s: float) -> None:
    """Note that the session is away since now, if it is not known to be away already."""
    here = update(SessionRow).where(_key(tenant, session_id), LIVE, ~AWAY)
    db.execute(here.values(away_unix_s=now_unix_s))


def end(db: Database, tenant: TenantId, session_id: SessionId, before_unix_s: float | None) -> bool:
    """Note that the session is away no more; return whether it was.

    :param before_unix_s: only if it has been away since before then; ``None``: in any case
    """
    this = update(SessionRow).where(_key(tenant, session_id), AWAY)
    if before_unix_s is not None:
        this = this.where(SessionRow.away_unix_s < before_unix_s)
    ended = this.values(away_unix_s=None).returning(SessionRow.session_id)
    return db.scalar(ended) is not None


def give_up(db: Database, before_unix_s: float) -> list[tuple[TenantId, str]]:
    """Stop to wait for up to 500 sessions that left before then; return tenants and models."""
    key = (SessionRow.tenant, SessionRow.session_id)
    late = select(*key, SessionRow.model).where(LIVE, AWAY, SessionRow.away_unix_s < before_unix_s)
    late = late.order_by(SessionRow.away_unix_s).limit(_GIVE_UP_BATCH)
    # Rows that somebody is changing are skipped: waiting for several could make a deadlock.
    rows = db.execute(late.with_for_update(skip_locked=True, key_share=True)).all()
    for tenant, session_id, _ in rows:
        this = _key(TenantId(tenant), SessionId(session_id))
        db.execute(update(SessionRow).where(this).values(away_unix_s=None))
    return [(TenantId(tenant), model) for tenant, _, model in rows]


def read(db: Database, tenant: TenantId, session_id: SessionId) -> int:
    """Note that the session's snapshots were loaded; return how many bytes never were before."""
    this = and_(SnapshotRow.tenant == tenant, SnapshotRow.session_id == session_id)
    unread_bytes = unread(db, this)
    if unread_bytes:
        db.execute(update(SnapshotRow).where(this).values(unread_bytes=0))
    return unread_bytes


def unread(db: Database, which: ColumnElement[bool]) -> int:
    """Return how many bytes of these snapshots were never read, of what they are the last of."""
    return int(db.scalar(select(func.sum(SnapshotRow.unread_bytes)).where(which)) or 0)


def _key(tenant: TenantId, session_id: SessionId) -> ColumnElement[bool]:
    return and_(SessionRow.tenant == tenant, SessionRow.session_id == session_id)
