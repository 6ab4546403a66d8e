"""Queries of retention: which snapshots have outlived their time, and that they are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import and_, delete, select, update

from sessiond.domain.ids import SessionId, TenantId
from sessiond.registry.away import unread
from sessiond.registry.models import (
    LIVE,
    OWN_TTL,
    PINNED,
    TTL_BY_DEFAULT,
    WITH_SNAPSHOT,
    SessionRow,
    SnapshotRow,
)
from sessiond.registry.rows import newest_snapshot_values, to_summary
from sessiond.registry.sessions import find_by_keys, lock_row, not_found

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy.orm import Session as Database

    from sessiond.domain.session import Session


def forget_snapshots(  # noqa: PLR0913 - names, what goes, and why
    db: Database,
    tenant: TenantId,
    session_id: SessionId,
    generations: Collection[int],
    lost_reason: str,
    *,
    spare_pinned: bool,
    freed_bytes: int | None,
    created_unix_s: float | None,
) -> int | None:
    """Remove snapshots; where none is left, remember why.

    Returns how many bytes are lost that were never read. ``None``: nothing was done.

    :param freed_bytes: that only these snapshots have, where others are left; the rest of what
        was not read is the newest one's then. ``None``: not known, as much as that was.
    :param created_unix_s: only of the session created then.
    :raises SessionNotFoundError: there is no such session, or it is deleted.
    """
    if lock_row(db, tenant, session_id):
        raise not_found(session_id)
    row = db.get_one(SessionRow, (tenant, session_id))
    if created_unix_s is not None and row.created_unix_s != created_unix_s:
        raise not_found(session_id)
    if spare_pinned and row.pinned:
        return None
    here = and_(SnapshotRow.tenant == tenant, SnapshotRow.session_id == session_id)
    going = and_(here, SnapshotRow.generation.in_(generations))
    lost_bytes = unread(db, going)
    db.execute(delete(SnapshotRow).where(going))
    newest = db.scalar(
        select(SnapshotRow).where(here).order_by(SnapshotRow.generation.desc()).limit(1)
    )
    summary = None if newest is None else to_summary(newest.summary)
    if newest is not None and freed_bytes is not None and lost_bytes > freed_bytes:
        newest.unread_bytes += lost_bytes - freed_bytes
        lost_bytes = freed_bytes
    values = newest_snapshot_values(summary)
    if summary is None:
        highest = max(row.lost_generation or 0, *generations)
        values |= {"lost_reason": lost_reason, "lost_generation": highest}
    this = and_(SessionRow.tenant == tenant, SessionRow.session_id == session_id)
    db.execute(update(SessionRow).where(this).values(values))
    return lost_bytes


def by_keys(db: Database, ids: Sequence[tuple[TenantId, SessionId]]) -> list[Session]:
    """Return those of *ids* that exist and are not deleted."""
    return find_by_keys(db, select(SessionRow).where(LIVE), ids)


def unused(
    db: Database, now_unix_s: float, default_ttl_s: float
) -> list[tuple[TenantId, SessionId]]:
    """Return the sessions with snapshots whose registry row is older than their TTL.

    :param default_ttl_s: of sessions without one of their own; 0: never.
    """
    key = select(SessionRow.tenant, SessionRow.session_id).where(LIVE, WITH_SNAPSHOT, ~PINNED)
    age_s = now_unix_s - SessionRow.updated_unix_s
    # Every TTL leads to the past: that condition is what makes the index useful.
    past = SessionRow.updated_unix_s < now_unix_s
    own = key.where(OWN_TTL, past, SessionRow.ttl_s > 0, age_s >= SessionRow.ttl_s)
    rows = list(db.execute(own))
    if default_ttl_s > 0:
        limit = SessionRow.updated_unix_s <= now_unix_s - default_ttl_s
        rows += db.execute(key.where(TTL_BY_DEFAULT, limit))
    return [(TenantId(tenant), SessionId(session_id)) for tenant, session_id in rows]
