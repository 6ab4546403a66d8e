"""Queries about events and idempotency keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import and_, bindparam, delete, insert, select, tuple_, update
from sqlalchemy.exc import IntegrityError

from sessiond.domain.errors import EventsResetError, InvalidInputError, KeyReusedError
from sessiond.registry.dialects import commit_in_turn
from sessiond.registry.models import (
    KEY_LENGTH,
    EventRow,
    IdempotencyKeyRow,
    OperationRow,
    SessionRow,
)
from sessiond.registry.rows import event_values, to_event
from sessiond.registry.sessions import not_found

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session as Database

    from sessiond.domain.cursors import Cursor
    from sessiond.domain.ids import SessionId, TenantId
    from sessiond.domain.session import Event

#: Who notes an event that somebody else noted too is not later than so many others.
_LOOK_BACK = 100
#: The largest number that a database can give.
_MAX_ID: Final = 2**63 - 1


# Each turn adds an event, so these are made once.
_KEY: Final[dict[str, Any]] = {"tenant": bindparam("tenant"), "session_id": bindparam("session_id")}
_LOCK: Final = (
    select(SessionRow.created_unix_s)
    .filter_by(**_KEY)
    # "No key" leaves others free to add rows that refer to this one.
    .with_for_update(key_share=True)
)
_NEWEST: Final = (
    select(EventRow.kind, EventRow.at_unix_s)
    .filter_by(**_KEY)
    .order_by(EventRow.event_id.desc())
    .limit(_LOOK_BACK)
    .subquery()
)
_SAME: Final = select(_NEWEST.c.kind).where(
    _NEWEST.c.kind == bindparam("kind"), _NEWEST.c.at_unix_s == bindparam("at_unix_s")
)
_BOUND_TO: Final = IdempotencyKeyRow.operation_id
_ADD: Final = insert(EventRow.__table__)  # type: ignore[arg-type]


def add_event(
    db: Connection, event: Event, *, once: bool = False, created_unix_s: float | None = None
) -> bool:
    """Add one line, whose number the database gives, to a session's audit trail; return whether.

    :param created_unix_s: only of the session created then: its id may be another one's since
    :param once: not if one of this kind and time is among the newest hundred
    :raises SessionNotFoundError: there never was such a session.
    """
    values = event_values(event)
    key = {name: values[name] for name in _KEY}
    found = db.execute(_LOCK, key).one_or_none()
    if found is None:
        raise not_found(event.session_id)
    if created_unix_s not in (None, found.created_unix_s):
        return False
    what = {"kind": event.kind, "at_unix_s": event.at_unix_s}
    if once and db.execute(_SAME, {**key, **what}).first():
        return False
    # Numbers of a tenant appear in their order, so that a reader who goes on after the last
    # number seen misses none. Little may happen between this and the commit: others wait.
    commit_in_turn(db, event.tenant)
    db.execute(_ADD, values)
    return True


def list_events(
    db: Database, tenant: TenantId, session_id: SessionId, after: int, limit: int
) -> list[Event]:
    """Return up to *limit* events whose numbers come after *after*, oldest first."""
    query = select(EventRow).where(
        EventRow.tenant == tenant, EventRow.session_id == session_id, EventRow.event_id > after
    )
    rows = db.scalars(query.order_by(EventRow.event_id).limit(limit))
    return [to_event(row) for row in rows]


def tenant_events(
    db: Database, tenant: TenantId, session_id: SessionId | None, after: Cursor, limit: int
) -> list[Event]:
    """Return up to *limit* events of a tenant, or of one of its sessions, oldest first.

    :raises EventsResetError: the event of *after*, as it was seen, is not in this database.
    """
    # Every time: connections find a database that was replaced by themselves, and tell nobody.
    if after.number and not after.is_of(find_event(db, tenant, after.number)):
        raise EventsResetError
    if session_id is not None:
        return list_events(db, tenant, session_id, after.number, limit)
    query = select(EventRow).where(EventRow.tenant == tenant, EventRow.event_id > after.number)
    return [to_event(row) for row in db.scalars(query.order_by(EventRow.event_id).limit(limit))]


def find_event(db: Database, tenant: TenantId, number: int) -> Event | None:
    """Return the tenant's event that has this number."""
    row = db.get(EventRow, number)
    return to_event(row) if row is not None and row.tenant == tenant else None


def newest_event(db: Database, tenant: TenantId) -> Event | None:
    """Return the tenant's newest event."""
    place = tuple_(EventRow.tenant, EventRow.event_id)
    # Of equal tenants, PostgreSQL may read all tenants' events backwards until one is found.
    query = select(EventRow.tenant, EventRow.event_id).where(place <= (tenant, _MAX_ID))
    last = query.order_by(EventRow.tenant.desc(), EventRow.event_id.desc()).limit(1)
    found = db.execute(last).one_or_none()
    return find_event(db, tenant, found.event_id) if found and found.tenant == tenant else None


def remember(
    db: Database, wanted: IdempotencyKeyRow, lost_before_unix_s: float = 0.0
) -> str | None:
    """Bind the key to the operation; return the earlier operation if the key is bound already.

    :param lost_before_unix_s: what a key was bound to before then, and is not there, will not come:
        its daemon died before it began
    :raises KeyReusedError: the key was used for another request.
    :raises InvalidInputError: the key is not 1 to 255 printable characters.
    """
    if not (0 < len(wanted.key) <= KEY_LENGTH and wanted.key.isprintable()):
        raise InvalidInputError(f"An idempotency key has 1 to {KEY_LENGTH} printable characters.")
    try:
        with db.begin_nested():
            db.add(wanted)
    except IntegrityError:
        return _earlier(db, wanted, lost_before_unix_s)
    return None


def forget(db: Database, tenant: TenantId, key: str) -> None:
    """Free *key*, for a request that was refused before its operation began."""
    db.execute(
        delete(IdempotencyKeyRow).where(
            IdempotencyKeyRow.tenant == tenant, IdempotencyKeyRow.key == key
        )
    )


def remove_keys(db: Database, before_unix_s: float) -> None:
    """Free all keys that were bound before then."""
    db.execute(delete(IdempotencyKeyRow).where(IdempotencyKeyRow.created_unix_s < before_unix_s))


def _earlier(db: Database, wanted: IdempotencyKeyRow, lost_before_unix_s: float) -> str | None:
    row = db.get_one(IdempotencyKeyRow, (wanted.tenant, wanted.key))
    if row.request_digest != wanted.request_digest:
        raise KeyReusedError
    if row.created_unix_s >= lost_before_unix_s or _is_made(db, row):
        return row.operation_id
    lost = and_(
        IdempotencyKeyRow.tenant == row.tenant,
        IdempotencyKeyRow.key == row.key,
        IdempotencyKeyRow.operation_id == row.operation_id,
    )
    bound = {"operation_id": wanted.operation_id, "created_unix_s": wanted.created_unix_s}
    taken = db.scalar(update(IdempotencyKeyRow).where(lost).values(bound).returning(_BOUND_TO))
    if taken is not None:
        return None
    db.expire(row)  # somebody else was faster
    return row.operation_id


def _is_made(db: Database, row: IdempotencyKeyRow) -> bool:
    """Whether what a key stands for is there: an operation, or a session that was created."""
    made = db.get(OperationRow, row.operation_id)
    return made is not None or db.get(SessionRow, (row.tenant, row.operation_id)) is not None
