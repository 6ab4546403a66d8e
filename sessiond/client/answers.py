"""What the daemon answers. Fields mean what `/docs` of the daemon tells; REFERENCE.md has codes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Cause:
    """Why KV was not kept or not used."""

    reason: str  #: a stable code
    sentence: str
    hint: str
    detail: str = ""
    stored: Any = None
    live: Any = None


@dataclass(frozen=True)
class Snapshot:
    """One snapshot of a session's KV."""

    generation: int
    parent_generation: int
    created_unix_s: float
    tokens_total: int
    tokens_restorable: int
    chunks: int
    raw_bytes: int
    stored_bytes: int
    new_bytes: int
    shared_bytes: int
    seconds: float
    engine_id: str
    model: str
    lossy: dict[str, Any] | None = None  #: the way, and the errors of K and V


@dataclass(frozen=True)
class Presence:
    """What a live engine knows of a session."""

    engine_id: str
    turns_in_flight: int
    head_tokens: int
    whole_chunk_tokens: int
    head_digest: str
    idle_since_unix_s: float


@dataclass(frozen=True)
class Timing:
    """What a turn's stages took in the engine; the first five together are ``ready_s``."""

    lookup_s: float
    queue_s: float
    load_s: float
    waiting_s: float
    prefill_s: float
    ready_s: float
    read_s: float
    decode_s: float
    read_bytes: int
    ram_tokens: int
    disk_tokens: int
    prefill_from_token: int
    prefill_to_token: int
    others_running: float


@dataclass(frozen=True)
class LastTurn:
    """Where the tokens of the newest turn's prompt came from; ``None``: not known."""

    engine_id: str
    ended_unix_s: float
    prompt_tokens: int | None
    vram_tokens: int | None
    ram_tokens: int | None
    disk_tokens: int | None
    computed_tokens: int | None
    tokens_total: int
    tokens_restorable: int
    diverged_at_token: int | None
    causes: tuple[Cause, ...]
    turn_id: str = ""
    timing: Timing | None = None


@dataclass(frozen=True)
class Origin:
    """Where a fork began."""

    session_id: str
    generation: int


@dataclass(frozen=True)
class Session:
    """A session and what is derived of it."""

    session_id: str
    tenant: str
    model: str
    state: str  #: running, active, suspended or cold
    created_unix_s: float
    updated_unix_s: float
    idle_timeout_s: float | None
    ttl_s: float | None
    pinned: bool
    snapshot: Snapshot | None
    presence: Presence | None
    resumed_on: str
    last_turn: LastTurn | None
    unkept: str
    last_outcome: str | None
    last_reason: str
    on_evicted: str | None = None
    forked_from: Origin | None = None
    plan_policy: str | None = None
    objective_s: float | None = None


@dataclass(frozen=True)
class SuspendReport:
    """How a suspend ended."""

    operation_id: str
    session_id: str
    snapshot: Snapshot
    rounds: int
    missing_tokens: int
    causes: tuple[Cause, ...]
    seconds: float
    evicted_tokens: int = 0
    recomputed_tokens: int = 0


@dataclass(frozen=True)
class ResumeReport:
    """How a resume ended."""

    operation_id: str
    session_id: str
    outcome: str  #: warm, restored, partial or recomputed
    reason: str
    causes: tuple[Cause, ...]
    engine_id: str
    generation: int
    tokens_total: int
    tokens_restorable: int
    tokens_restored: int
    disk_tokens: int
    seconds: float
    queued_s: float = 0.0
    plan: dict[str, Any] | None = None  #: load or recompute, with both times
    timing: Timing | None = None
    lossy: dict[str, Any] | None = None  #: of the snapshot
    noted: tuple[Cause, ...] = ()  #: what differs, and kept nothing from being used


@dataclass(frozen=True)
class DeleteReport:
    """How a delete ended."""

    operation_id: str
    session_id: str
    manifests: int
    heads: int
    collected: dict[str, Any]


@dataclass(frozen=True)
class Operation:
    """A long call."""

    operation_id: str
    session_id: str
    kind: str
    status: str  #: running, succeeded or failed
    created_unix_s: float
    finished_unix_s: float | None
    result: dict[str, Any] | None
    queue_position: int | None = None

    @property
    def has_ended(self) -> bool:
        """Whether there is nothing to wait for."""
        return self.status != "running"


@dataclass(frozen=True)
class Event:
    """One line of a session's audit trail.

    :ivar cursor: its place, to go on after
    :ivar kind: ``events_reset``, of no session: the registry does not know the event to go on
        after, and tells all that it has
    :ivar session_id: empty where only one session was asked for
    """

    event_id: int
    cursor: str
    kind: str
    at_unix_s: float
    detail: dict[str, Any]
    session_id: str = ""


@dataclass(frozen=True)
class TicketEngine:
    """Where to send a turn."""

    engine_id: str
    url: str
    model: str


@dataclass(frozen=True)
class Continuation:
    """Whether a session's own tokens can stand for the messages."""

    faithful: bool
    head_tokens: int
    rendered_tokens: int
    common_tokens: int
    gained_tokens: int
    cause: Cause | None


@dataclass(frozen=True)
class Ticket:
    """What to add to one request to vLLM, so that it is a turn of the session."""

    kv_transfer_params: dict[str, Any] = field(repr=False)
    cache_salt: str = field(repr=False)
    engine: TicketEngine
    plan: str
    causes: tuple[Cause, ...]
    generation: int
    expires_unix_s: int
    continuation: Continuation | None
    decision: dict[str, Any] | None = None  #: load or recompute, with both times


@dataclass(frozen=True)
class Mismatch:
    """A field of the fingerprint in which snapshot and engine differ."""

    field: str
    field_class: str
    reason: str
    sentence: str
    hint: str
    stored: Any
    live: Any
    detail: str = ""  #: the field, and the keys inside it that differ, with both values


@dataclass(frozen=True)
class Probe:
    """What a resume would find."""

    engine: TicketEngine
    would_resume: bool
    plan: str
    causes: tuple[Cause, ...]
    mismatches: tuple[Mismatch, ...]
    generation: int
    tokens_total: int
    tokens_restorable: int
    tokens_loadable: int
    resumes_ahead: int = 0
    decision: dict[str, Any] | None = None  #: load or recompute, if it was now
    decision_table: tuple[tuple[str, str], ...] = ()  #: the same for people


@dataclass(frozen=True)
class SessionPage:
    """A part of a list of sessions."""

    sessions: tuple[Session, ...]
    next_after: str | None


@dataclass(frozen=True)
class Snapshots:
    """A session's snapshots, oldest first."""

    snapshots: tuple[Snapshot, ...]


@dataclass(frozen=True)
class Events:
    """A part of an audit trail, oldest first."""

    events: tuple[Event, ...]
