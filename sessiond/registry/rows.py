"""The only place where rows become domain objects, and these become rows."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from sessiond.domain.ids import OperationId, SessionId, TenantId
from sessiond.domain.loss import SnapshotLoss
from sessiond.domain.plans import PlanPolicy
from sessiond.domain.session import (
    Event,
    OnEvicted,
    Operation,
    OperationKind,
    OperationStatus,
    Session,
)
from sessiond.domain.snapshot import Origin, SnapshotSummary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Row

    from sessiond.domain.canonical import JsonValue
    from sessiond.registry.models import EventRow, OperationRow, SessionRow


def to_session(row: SessionRow | Row[Any]) -> Session:
    """Return the session of *row*."""
    return Session(
        tenant=TenantId(row.tenant),
        session_id=SessionId(row.session_id),
        model=row.model,
        created_unix_s=row.created_unix_s,
        updated_unix_s=row.updated_unix_s,
        idle_timeout_s=row.idle_timeout_s,
        pinned=row.pinned,
        deleted=row.deleted_unix_s is not None,
        snapshot=None if row.snapshot is None else to_summary(row.snapshot),
        resumed_on=row.resumed_on,
        last_outcome=row.last_outcome,
        last_reason=row.last_reason,
        ttl_s=row.ttl_s,
        lost_reason=row.lost_reason or "",
        lost_generation=row.lost_generation or 0,
        on_evicted=None if row.on_evicted is None else OnEvicted(row.on_evicted),
        forked_from=_origin(row),
        plan_policy=None if row.plan_policy is None else PlanPolicy(row.plan_policy),
        objective_s=row.objective_s,
        away_unix_s=row.away_unix_s,
    )


def _origin(row: SessionRow | Row[Any]) -> Origin | None:
    if row.forked_session is None:
        return None
    return Origin(SessionId(row.forked_session), row.forked_generation or 0)


def session_values(session: Session) -> dict[str, Any]:
    """Return the columns of *session*, without its key."""
    return {
        "model": session.model,
        "created_unix_s": session.created_unix_s,
        "updated_unix_s": session.updated_unix_s,
        "deleted_unix_s": session.updated_unix_s if session.deleted else None,
        "idle_timeout_s": session.idle_timeout_s,
        "pinned": session.pinned,
        **newest_snapshot_values(session.snapshot),
        "resumed_on": session.resumed_on,
        "last_outcome": session.last_outcome,
        "last_reason": session.last_reason,
        "ttl_s": session.ttl_s,
        "lost_reason": session.lost_reason or None,
        "lost_generation": session.lost_generation or None,
        "on_evicted": session.on_evicted.value if session.on_evicted else None,
        "plan_policy": session.plan_policy.value if session.plan_policy else None,
        "objective_s": session.objective_s,
        "away_unix_s": session.away_unix_s,
        "forked_session": session.forked_from.session_id if session.forked_from else None,
        "forked_generation": session.forked_from.generation if session.forked_from else None,
    }


def newest_snapshot_values(summary: SnapshotSummary | None) -> dict[str, Any]:
    """Return a session's columns about its newest snapshot."""
    if summary is None:
        return {"snapshot_generation": None, "snapshot": None}
    return {"snapshot_generation": summary.generation, "snapshot": summary_json(summary)}


def to_summary(value: Mapping[str, Any]) -> SnapshotSummary:
    """Return the summary that :func:`summary_json` wrote; fields of later versions are left out."""
    names = {field.name for field in fields(SnapshotSummary)} - {"lossy"}
    lossy = value.get("lossy")  # rows of earlier versions lack it
    return SnapshotSummary(
        **{name: value[name] for name in names},
        lossy=SnapshotLoss.from_json(lossy) if lossy else None,
    )


def summary_json(summary: SnapshotSummary) -> dict[str, JsonValue]:
    """Return the form in which a summary is stored."""
    return asdict(summary)


def to_operation(row: OperationRow) -> Operation:
    """Return the operation of *row*."""
    return Operation(
        operation_id=OperationId(row.operation_id),
        tenant=TenantId(row.tenant),
        session_id=SessionId(row.session_id),
        kind=OperationKind(row.kind),
        status=OperationStatus(row.status),
        owner=row.owner,
        lease_until_unix_s=row.lease_until_unix_s,
        created_unix_s=row.created_unix_s,
        finished_unix_s=row.finished_unix_s,
        result=row.result,
        on_evicted=None if row.on_evicted is None else OnEvicted(row.on_evicted),
    )


def operation_values(operation: Operation) -> dict[str, Any]:
    """Return the columns of *operation*."""
    return {
        "operation_id": operation.operation_id,
        "tenant": operation.tenant,
        "session_id": operation.session_id,
        "kind": operation.kind.value,
        "status": operation.status.value,
        "owner": operation.owner,
        "lease_until_unix_s": operation.lease_until_unix_s,
        "created_unix_s": operation.created_unix_s,
        "finished_unix_s": operation.finished_unix_s,
        "result": operation.result,
        "on_evicted": operation.on_evicted.value if operation.on_evicted else None,
    }


def to_event(row: EventRow) -> Event:
    """Return the event of *row*."""
    return Event(
        event_id=row.event_id,
        tenant=TenantId(row.tenant),
        session_id=SessionId(row.session_id),
        kind=row.kind,
        at_unix_s=row.at_unix_s,
        detail=row.detail,
    )


def event_values(event: Event) -> dict[str, Any]:
    """Return the columns of *event*, without its number."""
    return {
        "tenant": event.tenant,
        "session_id": event.session_id,
        "kind": event.kind,
        "at_unix_s": event.at_unix_s,
        "detail": event.detail,
    }
