"""Bringing a session's row into line with what the store's files tell of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, insert, select, update

from sessiond.domain.session import Event
from sessiond.registry import trail
from sessiond.registry.models import SessionRow, SnapshotRow
from sessiond.registry.rows import (
    newest_snapshot_values,
    session_values,
    summary_json,
    to_session,
    to_summary,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy.orm import Session as Database

    from sessiond.domain.ids import SessionId, TenantId
    from sessiond.domain.session import Session
    from sessiond.domain.snapshot import SnapshotSummary

#: A tombstone that is younger may be part of a session's creation that is going on.
TOMBSTONE_AGE_S = 60.0


class Restored(StrEnum):
    """What became of one session."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    KEPT_DELETED = "kept_deleted"  #: its deletion has begun and will be finished
    DELETED = "deleted"  #: the files say that it was deleted
    NOTHING = "nothing"  #: a tombstone, and no live row


@dataclass(frozen=True)
class Witness:
    """What the files tell of one session."""

    session: Session  #: ``updated_unix_s``: when its record was written
    used_unix_s: float  #: the newest time that any of its files tells
    snapshots: tuple[SnapshotSummary, ...]  #: those whose manifests can be read
    vanished: frozenset[int]  #: generations of the registry that the store does not have any more
    is_guess: bool  #: it has no record; names and times are those of a manifest


def restore(db: Database, witness: Witness, now_unix_s: float) -> Restored:
    """Bring the session's rows into line; what is newer in the registry stays."""
    found = witness.session
    row = _locked_row(db, found.tenant, found.session_id)
    if row is None:
        db.execute(insert(SessionRow).values(**_key(found), **_fresh(witness)))
        _add_snapshots(db, found, witness.snapshots)
        return _told(db, found, Restored.CREATED, now_unix_s)
    if row.deleted_unix_s is not None and not _began_after(witness, row.deleted_unix_s):
        return Restored.KEPT_DELETED
    if row.deleted_unix_s is not None or _began_after(witness, row.created_unix_s):
        # The row is that of an earlier session of this name, from an old copy of the database.
        _clear_snapshots(db, found)
        db.execute(_update(found).values(_fresh(witness)))
        _add_snapshots(db, found, witness.snapshots)
        return _told(db, found, Restored.CHANGED, now_unix_s)
    if found.created_unix_s < row.created_unix_s and not witness.is_guess:
        return Restored.UNCHANGED  # the files were read before the name was given to a new one
    if not _merge(db, witness, to_session(row)):
        return Restored.UNCHANGED
    return _told(db, found, Restored.CHANGED, now_unix_s)


def restore_deleted(
    db: Database, tenant: TenantId, session_id: SessionId, deleted_unix_s: float, now_unix_s: float
) -> Restored:
    """Mark a session as deleted that has a tombstone, unless its name was used again since."""
    row = _locked_row(db, tenant, session_id)
    if row is None or row.deleted_unix_s is not None:
        return Restored.NOTHING
    session = to_session(row)
    if session.created_unix_s > deleted_unix_s or now_unix_s - deleted_unix_s < TOMBSTONE_AGE_S:
        return Restored.UNCHANGED
    _clear_snapshots(db, session)
    values = {"deleted_unix_s": deleted_unix_s, "resumed_on": "", **newest_snapshot_values(None)}
    db.execute(_update(session).values(values))
    return _told(db, session, Restored.DELETED, now_unix_s)


def _began_after(witness: Witness, unix_s: float) -> bool:
    return witness.session.created_unix_s > unix_s and not witness.is_guess


def _merge(db: Database, witness: Witness, known: Session) -> bool:
    """Add to the live row what it lacks; return whether anything changed."""
    snapshots = _merge_snapshots(db, witness, known.lost_generation)
    newest = max(snapshots, key=lambda summary: summary.generation, default=None)
    values: dict[str, Any] = {}
    if newest != known.snapshot:
        values |= newest_snapshot_values(newest)
        if newest and newest.generation > (known.snapshot.generation if known.snapshot else 0):
            values |= {"resumed_on": "", "lost_reason": ""}
    found = witness.session
    if found.updated_unix_s > known.updated_unix_s and not witness.is_guess:
        values |= {
            "model": found.model,
            "idle_timeout_s": found.idle_timeout_s,
            "ttl_s": found.ttl_s,
            "pinned": found.pinned,
            "on_evicted": found.on_evicted.value if found.on_evicted else None,
            "plan_policy": found.plan_policy.value if found.plan_policy else None,
            "objective_s": found.objective_s,
        }
    if witness.used_unix_s > known.updated_unix_s:
        values["updated_unix_s"] = witness.used_unix_s
    if values:
        db.execute(_update(found).values(values))
    return bool(values) or snapshots.changed


class _Snapshots(list["SnapshotSummary"]):
    """A session's snapshots, and whether their rows were changed."""

    changed = False


def _merge_snapshots(db: Database, witness: Witness, lost_generation: int) -> _Snapshots:
    found = witness.session
    query = select(SnapshotRow.summary).filter_by(**_key(found))
    known = {summary.generation: summary for summary in map(to_summary, db.scalars(query))}
    wrong = witness.vanished & known.keys()
    new = []
    for summary in witness.snapshots:
        row = known.get(summary.generation)
        if row is None and summary.generation <= lost_generation:
            continue  # retention has taken it since the files were read, or is about to
        if row is None or row.created_unix_s != summary.created_unix_s:
            new.append(summary)
            wrong |= {summary.generation} & known.keys()
    if wrong:
        rows = delete(SnapshotRow).filter_by(**_key(found))
        db.execute(rows.where(SnapshotRow.generation.in_(wrong)))
    _add_snapshots(db, found, new)
    kept = _Snapshots(known[generation] for generation in known.keys() - wrong)
    kept += new
    kept.changed = bool(wrong or new)
    return kept


def _fresh(witness: Witness) -> dict[str, Any]:
    newest = max(witness.snapshots, key=lambda summary: summary.generation, default=None)
    values = session_values(witness.session)
    return {**values, "updated_unix_s": witness.used_unix_s, **newest_snapshot_values(newest)}


def _add_snapshots(db: Database, session: Session, summaries: Iterable[SnapshotSummary]) -> None:
    rows = [
        {**_key(session), "generation": summary.generation, "summary": summary_json(summary)}
        for summary in summaries
    ]
    if rows:
        db.execute(insert(SnapshotRow), rows)


def _clear_snapshots(db: Database, session: Session) -> None:
    db.execute(delete(SnapshotRow).filter_by(**_key(session)))


def _told(db: Database, session: Session, what: Restored, now_unix_s: float) -> Restored:
    detail = {"change": what.value}
    event = Event(0, session.tenant, session.session_id, "rebuilt", now_unix_s, {**detail})
    db.flush()
    trail.add_event(db.connection(), event)
    return what


def _key(session: Session) -> dict[str, str]:
    return {"tenant": session.tenant, "session_id": session.session_id}


def _update(session: Session) -> Any:  # noqa: ANN401 - SQLAlchemy's Update is generic
    return update(SessionRow).filter_by(**_key(session))


def _locked_row(db: Database, tenant: TenantId, session_id: SessionId) -> SessionRow | None:
    return db.get(SessionRow, (tenant, session_id), with_for_update={"key_share": True})
