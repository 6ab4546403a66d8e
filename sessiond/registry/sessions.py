"""Queries about sessions and their snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypedDict

from sqlalchemy import ColumnElement, and_, delete, insert, select, update

from sessiond.domain.errors import InvalidInputError, SessionNotFoundError
from sessiond.registry import away
from sessiond.registry.models import (
    LIVE,
    PINNED,
    WITH_SNAPSHOT,
    WITHOUT_SNAPSHOT,
    SessionRow,
    SnapshotRow,
)
from sessiond.registry.rows import (
    newest_snapshot_values,
    session_values,
    summary_json,
    to_session,
    to_summary,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Select
    from sqlalchemy.orm import Session as Database

    from sessiond.domain.ids import SessionId, TenantId
    from sessiond.domain.plans import PlanPolicy
    from sessiond.domain.session import OnEvicted, Session
    from sessiond.domain.snapshot import SnapshotSummary

#: Sessions that one page may hold.
MAX_PAGE: Final = 1000
_SWEEP_BATCH: Final = 200


@dataclass(frozen=True)
class Page:
    """A part of a list of sessions, ordered by id."""

    sessions: tuple[Session, ...]
    next_after: str | None  #: ``after`` of the next page; ``None`` on the last one


@dataclass(frozen=True)
class SessionFilter:
    """Which sessions to list; ``None`` means all."""

    model: str | None = None
    has_snapshot: bool | None = None
    pinned: bool | None = None


class SessionChanges(TypedDict, total=False):
    """The fields of a session that can be changed."""

    model: str
    idle_timeout_s: float | None
    ttl_s: float | None
    pinned: bool
    on_evicted: OnEvicted | None
    plan_policy: PlanPolicy | None
    objective_s: float | None
    away_unix_s: float | None
    resumed_on: str
    last_outcome: str
    last_reason: str
    updated_unix_s: float  #: now, if not given


def create(db: Database, session: Session) -> bool:
    """Add *session*; return whether it took the place of a deleted one.

    Two that try at once meet at the primary key.
    """
    key = {"tenant": session.tenant, "session_id": session.session_id}
    values = session_values(session)
    again = update(SessionRow).filter_by(**key).where(~LIVE).values(values)
    revived = db.scalar(again.returning(SessionRow.session_id)) is not None
    if not revived:
        db.execute(insert(SessionRow).values(**key, **values))
    if session.snapshot:
        _add_snapshot(db, session.tenant, session.session_id, session.snapshot)
    return revived


def get(db: Database, tenant: TenantId, session_id: SessionId, *, include_deleted: bool) -> Session:
    """Return one session.

    :raises SessionNotFoundError: there is none, or it is deleted and these are not asked for.
    """
    row = db.get(SessionRow, (tenant, session_id))
    if row is None or (row.deleted_unix_s is not None and not include_deleted):
        raise not_found(session_id)
    return to_session(row)


def list_page(
    db: Database, tenant: TenantId, wanted: SessionFilter, after: str | None, limit: int
) -> Page:
    """Return up to *limit* live sessions whose ids come after *after*.

    :raises InvalidInputError: *limit* is not between 1 and :data:`MAX_PAGE`.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInputError(f"The limit must be between 1 and {MAX_PAGE}.")
    query = select(SessionRow).where(SessionRow.tenant == tenant, LIVE, *_conditions(wanted))
    if after is not None:
        query = query.where(SessionRow.session_id > after)
    # One more than asked for tells whether there is a next page.
    found = db.scalars(query.order_by(SessionRow.session_id).limit(limit + 1)).all()
    page = tuple(map(to_session, found[:limit]))
    return Page(page, page[-1].session_id if len(found) > limit else None)


def change(
    db: Database,
    tenant: TenantId,
    session_id: SessionId,
    changes: Mapping[str, Any],
    created_unix_s: float | None,
) -> Session:
    """Set the given columns and return the session.

    :param created_unix_s: only of the session created then
    :raises SessionNotFoundError: there is no such session, or it is deleted.
    """
    # A driver may store the name of an enum's member, or refuse it.
    plain = {k: v.value if isinstance(v, Enum) else v for k, v in changes.items()}
    _update_live(db, tenant, session_id, plain, created_unix_s)
    return get(db, tenant, session_id, include_deleted=False)


def record_snapshot(  # noqa: PLR0913, PLR0917 - names, what comes, and whether it still may
    db: Database,
    tenant: TenantId,
    session_id: SessionId,
    summary: SnapshotSummary,
    now_unix_s: float,
    created_unix_s: float | None,
    is_there: Callable[[], bool] | None,
) -> bool:
    """Add one snapshot, the session's newest if its generation says so; a known one stays.

    Returns whether it was new.

    :param created_unix_s: only to the session created then
    :param is_there: whether the store still has it, asked while the session is locked
    :raises SessionNotFoundError: there is no such session, or it is deleted.
    """
    # With the session locked, nobody else adds the same generation.
    if lock_row(db, tenant, session_id):
        raise not_found(session_id)
    if not is_of(db, tenant, session_id, created_unix_s):
        return False
    # Who takes a snapshot away says so here before and after that: now is before the second time,
    # or it is gone already.
    if is_there is not None and not is_there():
        return False
    _update_live(db, tenant, session_id, {"updated_unix_s": now_unix_s})
    if db.get(SnapshotRow, (tenant, session_id, summary.generation)):
        return False
    _add_snapshot(db, tenant, session_id, summary)
    newest = SessionRow.snapshot_generation
    is_newer = WITHOUT_SNAPSHOT | (newest < summary.generation)
    db.execute(
        update(SessionRow)
        .where(_key(tenant, session_id), is_newer)
        # A suspend is the newest operation now, so no resume is.
        .values(resumed_on="", lost_reason=None, **newest_snapshot_values(summary))
    )
    return True


def list_snapshots(db: Database, tenant: TenantId, session_id: SessionId) -> list[SnapshotSummary]:
    """Return the session's snapshots, oldest first; none for an unknown session."""
    query = select(SnapshotRow.summary).where(_snapshots_of(tenant, session_id))
    return [to_summary(value) for value in db.scalars(query.order_by(SnapshotRow.generation))]


def mark_deleted(
    db: Database,
    tenant: TenantId,
    session_id: SessionId,
    now_unix_s: float,
    created_unix_s: float | None = None,
) -> int:
    """Mark the session as deleted and forget its snapshots; repeating it changes nothing.

    Returns how many bytes of them were never read.

    :param created_unix_s: only the one created then
    :raises SessionNotFoundError: there never was such a session.
    """
    already = lock_row(db, tenant, session_id)
    if already or not is_of(db, tenant, session_id, created_unix_s):
        return 0
    values = {
        "deleted_unix_s": now_unix_s,
        "updated_unix_s": now_unix_s,
        "resumed_on": "",
        **newest_snapshot_values(None),
    }
    db.execute(update(SessionRow).where(_key(tenant, session_id), LIVE).values(values))
    unread_bytes = away.unread(db, _snapshots_of(tenant, session_id))
    db.execute(delete(SnapshotRow).where(_snapshots_of(tenant, session_id)))
    return unread_bytes


def lock_row(db: Database, tenant: TenantId, session_id: SessionId) -> bool:
    """Lock the session's row until the transaction ends; return whether it is deleted.

    :raises SessionNotFoundError: there never was such a session.
    """
    query = select(SessionRow.deleted_unix_s).where(_key(tenant, session_id))
    # "No key" leaves others free to add rows that refer to this one.
    found = db.execute(query.with_for_update(key_share=True)).one_or_none()
    if found is None:
        raise not_found(session_id)
    return found.deleted_unix_s is not None


def is_of(
    db: Database, tenant: TenantId, session_id: SessionId, created_unix_s: float | None
) -> bool:
    """Whether a row, which is locked, is of the session created then; ``None``: of any."""
    if created_unix_s is None:
        return True
    is_meant = SessionRow.created_unix_s == created_unix_s
    wanted = select(SessionRow.tenant).where(_key(tenant, session_id), is_meant)
    return db.scalar(wanted) is not None


def for_sweep(db: Database, ids: Sequence[tuple[TenantId, SessionId]]) -> list[Session]:
    """Return those of *ids* that exist, are not deleted and not pinned."""
    return find_by_keys(db, select(SessionRow).where(LIVE, ~PINNED), ids)


def find_by_keys(
    db: Database,
    query: Select[SessionRow],
    ids: Sequence[tuple[TenantId, SessionId]],
) -> list[Session]:
    """Return those of *ids* that *query* would find."""
    by_tenant: dict[TenantId, list[SessionId]] = {}
    for tenant, session_id in ids:
        by_tenant.setdefault(tenant, []).append(session_id)
    found: list[Session] = []
    for tenant, wanted in by_tenant.items():
        for start in range(0, len(wanted), _SWEEP_BATCH):
            batch = wanted[start : start + _SWEEP_BATCH]
            # Pairs in one list would be shorter, but SQLite finds no index for these.
            here = query.where(SessionRow.tenant == tenant, SessionRow.session_id.in_(batch))
            found += map(to_session, db.scalars(here))
    return found


def not_found(session_id: SessionId) -> SessionNotFoundError:
    """Return the error for an id that names no session."""
    return SessionNotFoundError(f"There is no session {session_id!r}.")


def _key(tenant: TenantId, session_id: SessionId) -> ColumnElement[bool]:
    return and_(SessionRow.tenant == tenant, SessionRow.session_id == session_id)


def _snapshots_of(tenant: TenantId, session_id: SessionId) -> ColumnElement[bool]:
    return and_(SnapshotRow.tenant == tenant, SnapshotRow.session_id == session_id)


def _conditions(wanted: SessionFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if wanted.model is not None:
        conditions.append(SessionRow.model == wanted.model)
    if wanted.has_snapshot is not None:
        conditions.append(WITH_SNAPSHOT if wanted.has_snapshot else WITHOUT_SNAPSHOT)
    if wanted.pinned is not None:
        conditions.append(PINNED if wanted.pinned else ~PINNED)
    return conditions


def _update_live(
    db: Database,
    tenant: TenantId,
    session_id: SessionId,
    values: Mapping[str, Any],
    created_unix_s: float | None = None,
) -> None:
    meant = [] if created_unix_s is None else [SessionRow.created_unix_s == created_unix_s]
    statement = update(SessionRow).where(_key(tenant, session_id), LIVE, *meant).values(values)
    if db.scalar(statement.returning(SessionRow.session_id)) is None:
        raise not_found(session_id)


def _add_snapshot(
    db: Database, tenant: TenantId, session_id: SessionId, summary: SnapshotSummary
) -> None:
    row = SnapshotRow(
        tenant=tenant,
        session_id=session_id,
        generation=summary.generation,
        summary=summary_json(summary),
        unread_bytes=summary.new_bytes,
    )
    db.add(row)
    db.flush()
