"""Sessions, their derived states, and the operations on them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sessiond.domain.canonical import JsonValue
from sessiond.domain.heads import LastTurn
from sessiond.domain.ids import OperationId, SessionId, TenantId
from sessiond.domain.plans import PlanPolicy
from sessiond.domain.snapshot import Origin, SnapshotSummary

#: A year: the longest idle timeout that a session may have of its own. It means never.
NEVER_IDLE_S: Final = 31_536_000.0


class OnEvicted(StrEnum):
    """What a suspend does about KV that was evicted from VRAM and RAM before it came."""

    PREFIX = "prefix"  #: store what is still there
    RECOMPUTE = "recompute"  #: let the engine compute the rest again, and store all of it
    SKIP = "skip"  #: store nothing


@dataclass(frozen=True)
class Session:
    """One agent conversation, named by its tenant."""

    tenant: TenantId
    session_id: SessionId
    model: str  #: the model that it is for; empty means whichever engine serves
    created_unix_s: float
    updated_unix_s: float
    idle_timeout_s: float | None  #: ``None``: the configured default
    pinned: bool
    deleted: bool
    snapshot: SnapshotSummary | None  #: the newest one
    resumed_on: str  #: the engine that the newest operation, a resume, filled; else empty
    last_outcome: str  #: of the newest resume; empty before the first
    last_reason: str
    ttl_s: float | None = None  #: unused for so long, snapshots go; ``None``: default; 0: never
    #: Why it has no snapshot any more, a code of ``domain.reasons.Reason``; or empty.
    lost_reason: str = ""
    lost_generation: int = 0  #: the newest one that retention removed
    forked_from: Origin | None = None
    on_evicted: OnEvicted | None = None  #: ``None``: the configured default
    plan_policy: PlanPolicy | None = None  #: likewise
    objective_s: float | None = None  #: of the policy ``objective``, likewise
    #: When it was suspended, or refused to be, if it is not known to have come back since.
    away_unix_s: float | None = None

    @property
    def created_unix_us(self) -> int:
        """Tells it from others that had its id before, in tickets and heads."""
        return round(1_000_000 * self.created_unix_s)


class SessionState(StrEnum):
    """Derived, never stored."""

    RUNNING = "running"  #: a turn is in flight
    ACTIVE = "active"  #: KV is believed to be in a live engine
    #: No live engine has more of it than the newest snapshot; one that has ended may have had.
    SUSPENDED = "suspended"
    COLD = "cold"  #: neither
    DELETED = "deleted"


@dataclass(frozen=True)
class Presence:
    """What the newest head of a live engine says of a session."""

    engine_id: str
    turns_in_flight: int
    head_tokens: int  #: of the newest head; 0 without one
    whole_chunk_tokens: int  #: of them, in whole chunks
    head_digest: str
    idle_since_unix_s: float
    stored_tokens: int = 0  #: of the whole chunks, those that the newest snapshot has
    adapter_digest: str | None = None  #: of the LoRA adapter that computed it; ``None``: unknown
    last_turn: LastTurn | None = None
    unkept: str = ""  #: code of the reason why the newest turn cannot be suspended; else empty


def derive_state(session: Session, presence: Presence | None) -> SessionState:
    """Return the session's state; *presence* is ``None`` if no live engine knows it."""
    if session.deleted:
        return SessionState.DELETED
    if presence is None:
        return SessionState.SUSPENDED if session.snapshot else SessionState.COLD
    if presence.turns_in_flight:
        return SessionState.RUNNING
    if presence.unkept or session.resumed_on == presence.engine_id:
        return SessionState.ACTIVE
    if session.snapshot and presence.stored_tokens >= presence.whole_chunk_tokens:
        return SessionState.SUSPENDED
    return SessionState.ACTIVE


class OperationKind(StrEnum):
    """The long calls."""

    SUSPEND = "suspend"
    RESUME = "resume"
    DELETE = "delete"
    RETENTION = "retention"  #: removes snapshots; short
    FORK = "fork"  #: fills a new session; short


class OperationStatus(StrEnum):
    """How far an operation is."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True)
class Operation:
    """A long call, held by one daemon through a lease."""

    operation_id: OperationId
    tenant: TenantId
    session_id: SessionId
    kind: OperationKind
    status: OperationStatus
    owner: str
    lease_until_unix_s: float
    created_unix_s: float
    finished_unix_s: float | None
    result: dict[str, JsonValue] | None  #: the report, or the problem of a failed one
    on_evicted: OnEvicted | None = None  #: what a suspend does about evicted KV


@dataclass(frozen=True)
class Event:
    """One line of a session's audit trail."""

    event_id: int
    tenant: TenantId
    session_id: SessionId
    kind: str
    at_unix_s: float
    detail: dict[str, JsonValue]
