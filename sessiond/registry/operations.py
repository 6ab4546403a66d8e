"""Queries about operations and their leases.

An operation is *running* until it is finished; a partial unique index allows one of these per
session. Its lease is *expired* from ``lease_until_unix_s`` on: then anybody may fail it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import ColumnElement, Update, and_, delete, insert, select, update

from sessiond.domain.errors import OperationInProgressError, OperationNotFoundError
from sessiond.domain.session import OperationKind, OperationStatus
from sessiond.registry.models import ENDED, RUNNING, OperationRow
from sessiond.registry.rows import operation_values, to_operation
from sessiond.registry.sessions import is_of, lock_row, not_found

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as Database

    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.ids import OperationId, SessionId, TenantId
    from sessiond.domain.session import Operation

#: The result of an operation whose daemon went away.
LEASE_EXPIRED: Final[dict[str, JsonValue]] = {
    "code": "lease_expired",
    "message": "The operation's daemon stopped before the operation was finished.",
    "retryable": True,
}

_EXPIRE_BATCH: Final = 500


def begin(db: Database, operation: Operation, planned_unix_s: float | None) -> None:
    """Add a running operation; one with an expired lease in its place is failed first.

    Two that begin at once meet at the unique index. A deleted session takes only a delete, so
    that an interrupted one can be repeated. So does one whose fork has not been settled: there
    may be no snapshot in it.

    :param planned_unix_s: only for the session created then
    :raises SessionNotFoundError: there is no such session, or it is deleted.
    :raises OperationInProgressError: an expired fork is not settled yet.
    """
    tenant, session_id = operation.tenant, operation.session_id
    deleted = lock_row(db, tenant, session_id)
    if deleted and operation.kind is not OperationKind.DELETE:
        raise not_found(session_id)
    if not is_of(db, tenant, session_id, planned_unix_s):
        raise not_found(session_id)
    expired = and_(_of_session(tenant, session_id), _expired(operation.created_unix_s))
    failed = db.scalars(_fail(expired, operation.created_unix_s).returning(OperationRow.kind))
    if OperationKind.FORK in failed.all() and operation.kind is not OperationKind.DELETE:
        raise OperationInProgressError  # and nothing was failed
    db.execute(insert(OperationRow).values(operation_values(operation)))


def renew(
    db: Database, operation_id: OperationId, owner: str, until_unix_s: float, now_unix_s: float
) -> bool:
    """Extend the lease; return ``False`` if it is expired or lost."""
    held = and_(_held_by(operation_id, owner), ~_expired(now_unix_s))
    statement = update(OperationRow).where(held).values(lease_until_unix_s=until_unix_s)
    return _changed_one(db, statement)


def finish(
    db: Database,
    operation_id: OperationId,
    owner: str,
    ending: dict[str, Any],
) -> bool:
    """Set what :func:`ending` returned on the operation; return ``False`` if it is lost.

    A lease that expired unnoticed is no loss: the operation's work is done, and nobody else
    has begun.
    """
    held = _held_by(operation_id, owner)
    return _changed_one(db, update(OperationRow).where(held).values(ending))


def correct(db: Database, operation_id: OperationId, ending: dict[str, Any]) -> None:
    """Set what :func:`ending` returned on an operation that has failed."""
    failed = OperationRow.status == OperationStatus.FAILED.value
    which = and_(OperationRow.operation_id == operation_id, failed)
    db.execute(update(OperationRow).where(which).values(ending))


def ending(
    status: OperationStatus, result: dict[str, JsonValue] | None, now_unix_s: float
) -> dict[str, Any]:
    """Return the columns that end an operation."""
    return {"status": status.value, "finished_unix_s": now_unix_s, "result": result}


def get(db: Database, tenant: TenantId, operation_id: OperationId) -> Operation:
    """Return one operation.

    :raises OperationNotFoundError: the tenant has none with this id.
    """
    row = db.get(OperationRow, operation_id)
    if row is None or row.tenant != tenant:
        raise OperationNotFoundError(f"There is no operation {operation_id!r}.")
    return to_operation(row)


def running(
    db: Database, tenant: TenantId, session_id: SessionId, now_unix_s: float
) -> Operation | None:
    """Return the operation that holds the session."""
    held = and_(_of_session(tenant, session_id), RUNNING, ~_expired(now_unix_s))
    row = db.scalar(select(OperationRow).where(held))
    return None if row is None else to_operation(row)


def end_earlier(db: Database, tenant: TenantId, session_id: SessionId, now_unix_s: float) -> None:
    """Fail what a deleted session's operation left behind, before its id is used again.

    Whoever froze in the middle of it finds out that it is not his any more.

    :raises OperationInProgressError: one still holds the session.
    """
    db.execute(_fail(and_(_of_session(tenant, session_id), _expired(now_unix_s)), now_unix_s))
    if running(db, tenant, session_id, now_unix_s):
        raise OperationInProgressError


def remove(db: Database, before_unix_s: float) -> int:
    """Remove operations that had ended before then; return how many."""
    ended = delete(OperationRow).where(ENDED, OperationRow.finished_unix_s < before_unix_s)
    return len(db.scalars(ended.returning(OperationRow.operation_id)).all())


def expire(db: Database, now_unix_s: float) -> list[Operation]:
    """Fail up to 500 operations whose lease is expired, and return them as they are now."""
    query = select(OperationRow.operation_id).where(RUNNING, _expired(now_unix_s))
    query = query.order_by(OperationRow.lease_until_unix_s).limit(_EXPIRE_BATCH)
    # Rows that somebody is changing are skipped: waiting for several could make a deadlock.
    ids = db.scalars(query.with_for_update(skip_locked=True)).all()
    failed = _fail(OperationRow.operation_id.in_(ids), now_unix_s).returning(OperationRow)
    return [to_operation(row) for row in db.scalars(failed)]


def _of_session(tenant: TenantId, session_id: SessionId) -> ColumnElement[bool]:
    return and_(OperationRow.tenant == tenant, OperationRow.session_id == session_id)


def _held_by(operation_id: OperationId, owner: str) -> ColumnElement[bool]:
    return and_(OperationRow.operation_id == operation_id, OperationRow.owner == owner, RUNNING)


def _expired(now_unix_s: float) -> ColumnElement[bool]:
    return OperationRow.lease_until_unix_s <= now_unix_s


def _fail(which: ColumnElement[bool], now_unix_s: float) -> Update:
    values = ending(OperationStatus.FAILED, LEASE_EXPIRED, now_unix_s)
    return update(OperationRow).where(which, RUNNING).values(values)


def _changed_one(db: Database, statement: Update) -> bool:
    return db.scalar(statement.returning(OperationRow.operation_id)) is not None
