"""What the store keeps of a session, and the session that it tells of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessiond.domain.plans import PlanPolicy
from sessiond.domain.session import OnEvicted, Session
from sessiond.store.sessions import SessionRecord

if TYPE_CHECKING:
    from sessiond.domain.canonical import JsonValue


def record_of(session: Session) -> SessionRecord:
    """Return what the store keeps of a session, so that the registry can be rebuilt."""
    return SessionRecord(
        tenant=session.tenant,
        session=session.session_id,
        created_unix_s=session.created_unix_s,
        updated_unix_s=session.updated_unix_s,
        model=session.model,
        idle_timeout_s=session.idle_timeout_s,
        ttl_s=session.ttl_s,
        pinned=session.pinned,
        policy=_policy(session),
        forked_from=session.forked_from,
    )


def session_of(record: SessionRecord) -> Session:
    """Return the session that a store's record tells of; the reverse of :func:`record_of`."""
    return Session(
        tenant=record.tenant,
        session_id=record.session,
        model=record.model,
        created_unix_s=record.created_unix_s,
        updated_unix_s=record.updated_unix_s,
        idle_timeout_s=record.idle_timeout_s,
        pinned=record.pinned,
        deleted=record.is_tombstone,
        snapshot=None,
        resumed_on="",
        last_outcome="",
        last_reason="",
        ttl_s=record.ttl_s,
        on_evicted=_on_evicted(record),
        plan_policy=_plan_policy(record),
        objective_s=_objective_s(record),
        forked_from=record.forked_from,
    )


def _policy(session: Session) -> dict[str, JsonValue]:
    """Return the choices of its own that a session has."""
    choices: dict[str, JsonValue] = {
        "on_evicted": session.on_evicted.value if session.on_evicted else None,
        "plan_policy": session.plan_policy.value if session.plan_policy else None,
        "objective_s": session.objective_s,
    }
    return {name: choice for name, choice in choices.items() if choice is not None}


def _plan_policy(record: SessionRecord) -> PlanPolicy | None:
    told = record.policy.get("plan_policy")
    return PlanPolicy(told) if told in set(PlanPolicy) else None


def _objective_s(record: SessionRecord) -> float | None:
    told = record.policy.get("objective_s")
    if not isinstance(told, int | float) or isinstance(told, bool):
        return None
    return float(told) if told > 0 else None


def _on_evicted(record: SessionRecord) -> OnEvicted | None:
    told = record.policy.get("on_evicted")
    return OnEvicted(told) if told in set(OnEvicted) else None  # a later version may know more
