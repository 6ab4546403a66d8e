"""Queries about events and idempotency keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete, insert, select
from sqlalchemy.exc import IntegrityError

from sessiond.domain.errors import ConflictError, InvalidInputError
from sessiond.registry.models import KEY_LENGTH, EventRow, IdempotencyKeyRow
from sessiond.registry.rows import event_values, to_event
from sessiond.registry.sessions import lock_row

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as Database

    from sessiond.domain.ids import SessionId, TenantId
    from sessiond.domain.session import Event

#: Who notes an event that somebody else noted too is not later than so many others.
_LOOK_BACK = 100


def add_event(db: Database, event: Event, *, once: bool = False) -> bool:
    """Add one line, whose number the database gives, to a session's audit trail; return whether.

    :param once: not if one of this kind and time is among the newest hundred
    :raises SessionNotFoundError: there never was such a session.
    """
    # The lock makes numbers appear in the order of commits, so that a reader who goes on after
    # the last number seen misses none.
    lock_row(db, event.tenant, event.session_id)
    if once and _has_event(db, event):
        return False
    values = event_values(event)
    db.execute(insert(EventRow).values(values))
    return True


def _has_event(db: Database, event: Event) -> bool:
    newest = (
        select(EventRow.kind, EventRow.at_unix_s)
        .where(EventRow.tenant == event.tenant, EventRow.session_id == event.session_id)
        .order_by(EventRow.event_id.desc())
        .limit(_LOOK_BACK)
    )
    return (event.kind, event.at_unix_s) in [tuple(row) for row in db.execute(newest)]


def list_events(
    db: Database, tenant: TenantId, session_id: SessionId, after: int, limit: int
) -> list[Event]:
    """Return up to *limit* events whose numbers come after *after*, oldest first."""
    query = select(EventRow).where(
        EventRow.tenant == tenant, EventRow.session_id == session_id, EventRow.event_id > after
    )
    rows = db.scalars(query.order_by(EventRow.event_id).limit(limit))
    return [to_event(row) for row in rows]


def remember(db: Database, wanted: IdempotencyKeyRow) -> str | None:
    """Bind the key to the operation; return the earlier operation if the key is bound already.

    :raises ConflictError: the key was used for another request.
    :raises InvalidInputError: the key is not 1 to 255 printable characters.
    """
    if not (0 < len(wanted.key) <= KEY_LENGTH and wanted.key.isprintable()):
        raise InvalidInputError(f"An idempotency key has 1 to {KEY_LENGTH} printable characters.")
    try:
        with db.begin_nested():
            db.add(wanted)
    except IntegrityError:
        return _earlier(db, wanted)
    return None


def forget(db: Database, tenant: TenantId, key: str) -> None:
    """Free *key*, for a request that was refused before its operation began."""
    db.execute(
        delete(IdempotencyKeyRow).where(
            IdempotencyKeyRow.tenant == tenant, IdempotencyKeyRow.key == key
        )
    )


def _earlier(db: Database, wanted: IdempotencyKeyRow) -> str:
    row = db.get_one(IdempotencyKeyRow, (wanted.tenant, wanted.key))
    if row.request_digest != wanted.request_digest:
        raise ConflictError("The idempotency key was used for another request.")
    return row.operation_id
