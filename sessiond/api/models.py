"""The JSON that goes in and out, with the words that OpenAPI shows."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

from sessiond.domain.canonical import JsonValue
from sessiond.domain.cursors import cursor_of
from sessiond.domain.outcomes import Outcome
from sessiond.domain.plans import PlanPolicy
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.session import (
    NEVER_IDLE_S,
    Event,
    OnEvicted,
    Operation,
    OperationKind,
    OperationStatus,
    Presence,
    SessionState,
)
from sessiond.service.catalogue import Changes, View, ViewPage
from sessiond.service.turntrail import turn_json

_MAX_TTL_S = 31_536_000
_PINNED = (
    "Whether sweeps leave the session alone, and its snapshots are never removed by themselves."
)

IdleTimeout = Annotated[
    float | None,
    Field(
        ge=0,
        le=NEVER_IDLE_S,
        allow_inf_nan=False,
        description="Seconds without a token after which the session is suspended; null means "
        "the configured default. The longest, a year (31536000), means never: not even at a sweep "
        "window, which suspends sessions with other longer timeouts too.",
        examples=[600],
    ),
]


Ttl = Annotated[
    float | None,
    Field(
        strict=True,  # true is no second
        ge=0,
        le=_MAX_TTL_S,
        allow_inf_nan=False,
        description="Seconds without use after which the session's snapshots are removed; 0 means "
        "never, null the configured default. The session itself stays.",
        examples=[86400],
    ),
]


OnEvictedChoice = Annotated[
    OnEvicted | None,
    Field(
        description="What a suspend does about KV that was evicted from VRAM and RAM before it "
        "came. prefix: store what is still there. recompute: let the engine compute the rest "
        "again. skip: store nothing. Null means the configured default.",
    ),
]


PolicyChoice = Annotated[
    PlanPolicy | None,
    Field(
        description="How it is decided between loading the snapshot and computing its context "
        "again. auto: whichever is likely ready first. objective: whichever is most surely ready "
        "within objective_s. always_load: all that can be loaded. never_load. Null means the "
        "configured default.",
    ),
]


Objective = Annotated[
    float | None,
    Field(
        gt=0,
        le=3600,
        allow_inf_nan=False,
        description="Seconds of the policy objective; null means the configured default.",
        examples=[0.5],
    ),
]


class Strict(BaseModel):
    """A body that a client sends: unknown fields are refused, not ignored."""

    model_config = ConfigDict(extra="forbid")


class Answer(BaseModel):
    """A body that sessiond sends; fields may be added in later versions."""

    model_config = ConfigDict(from_attributes=True)


class SessionIn(Strict):
    """A session to create."""

    session_id: str | None = Field(
        default=None,
        description="1 to 64 letters, digits, '_' or '-', beginning with a letter or digit; "
        "made by sessiond if left out.",
        examples=["agent-7"],
    )
    model: str = Field(
        default="",
        max_length=512,
        description="The model that the session is for; empty means whichever engine serves.",
        examples=["smollm2-135m"],
    )
    idle_timeout_s: IdleTimeout = None
    ttl_s: Ttl = None
    pinned: bool = Field(default=False, description=_PINNED)
    on_evicted: OnEvictedChoice = None
    plan_policy: PolicyChoice = None
    objective_s: Objective = None


class SessionPatch(Strict):
    """What to change; a field that is left out stays as it is."""

    idle_timeout_s: IdleTimeout = None
    ttl_s: Ttl = None
    pinned: bool = Field(default=False, description=_PINNED)
    on_evicted: OnEvictedChoice = None
    plan_policy: PolicyChoice = None
    objective_s: Objective = None

    def changes(self) -> Changes:
        """Translate: null is a value of its own, not "left out"."""
        changes = Changes()
        if "idle_timeout_s" in self.model_fields_set:
            changes["idle_timeout_s"] = self.idle_timeout_s
        if "ttl_s" in self.model_fields_set:
            changes["ttl_s"] = self.ttl_s
        if "pinned" in self.model_fields_set:
            changes["pinned"] = self.pinned
        if "on_evicted" in self.model_fields_set:
            changes["on_evicted"] = self.on_evicted
        if "plan_policy" in self.model_fields_set:
            changes["plan_policy"] = self.plan_policy
        if "objective_s" in self.model_fields_set:
            changes["objective_s"] = self.objective_s
        return changes


class ForkIn(Strict):
    """A fork to make."""

    session_id: str | None = Field(
        default=None, description="Of the new session; made by sessiond if left out."
    )
    generation: int | None = Field(
        default=None,
        ge=1,
        le=10**18 - 1,
        description="The snapshot to fork; the newest readable one if left out.",
    )


class OriginOut(Answer):
    """Where a fork began."""

    session_id: str
    generation: int


class ListQuery(Strict):
    """Which sessions to list; a filter that is left out matches all."""

    model: str | None = None
    has_snapshot: bool | None = None
    pinned: bool | None = None
    after: str | None = Field(default=None, description="'next_after' of the page before.")
    limit: int = Field(default=50, ge=1, le=1000)


class CauseOut(Answer):
    """Why KV was not kept or not used, with the two values that differ where there are two."""

    reason: Reason = Field(description="A stable code.", examples=["weights_mismatch"])
    sentence: str
    hint: str
    detail: str = ""
    stored: Any = None
    live: Any = None


class RelativeErrorOut(Answer):
    """How far numbers are from what they were."""

    rms: float = Field(
        description="Root mean square of the differences, to that of the numbers.",
        examples=[0.026],
    )
    largest: float = Field(description="Largest difference, to the largest number.")


class LossOut(Answer):
    """That KV is stored with loss, and what was lost."""

    way: str = Field(examples=["fp8"])
    errors: dict[str, RelativeErrorOut] = Field(
        description='Of "k" and "v", or of "kv" where they cannot be told apart, as measured when '
        "it was written; empty if nothing more was lost then."
    )


class SnapshotOut(Answer):
    """One snapshot. Token counts, bytes on disk and the seconds that storing it took."""

    generation: int = Field(examples=[1])
    parent_generation: int = Field(description="0 where there is none.")
    created_unix_s: float
    tokens_total: int = Field(description="Tokens of the head.", examples=[6230])
    tokens_restorable: int = Field(description="Of them, in whole chunks.", examples=[6144])
    chunks: int = Field(examples=[48])
    raw_bytes: int = Field(description="KV bytes when decoded.", examples=[141557760])
    stored_bytes: int = Field(description="KV bytes on disk.", examples=[95551488])
    new_bytes: int = Field(description="Written by this suspend.")
    shared_bytes: int = Field(
        description="Taken over from earlier snapshots, or from the session that was forked."
    )
    seconds: float
    engine_id: str
    model: str
    lossy: LossOut | None = Field(default=None, description="Null: KV is stored as it was.")


class PresenceOut(Answer):
    """What a live engine knows of the session."""

    engine_id: str
    turns_in_flight: int
    head_tokens: int = Field(description="Tokens of the newest head; 0 without one.")
    whole_chunk_tokens: int = Field(description="Of them, what a suspend can store.")
    head_digest: str
    idle_since_unix_s: float


class TimingOut(Answer):
    """What a turn's stages took in the engine. A stage that did not take place is 0.

    They do not overlap: lookup, queue, load, waiting and prefill together are `ready_s`.
    """

    lookup_s: float = Field(description="Until it was known what can be loaded.")
    queue_s: float = Field(description="For room in the RAM tier.")
    load_s: float = Field(description="First chunk asked for, to KV in VRAM.")
    waiting_s: float = Field(description="In vLLM's own queue, and what a preemption undid.")
    prefill_s: float = Field(description="First step that computes for it, to the first token.")
    ready_s: float = Field(description="Arrival to the first token.")
    read_s: float = Field(description="Of the load: reading, added over threads.")
    decode_s: float = Field(description="Of the load: verifying and decoding, likewise.")
    read_bytes: int = Field(description="Stored bytes that were read.")
    ram_tokens: int
    disk_tokens: int
    prefill_from_token: int
    prefill_to_token: int
    others_running: float = Field(
        description="Other requests that ran while it was loaded and computed: the mean."
    )


class LastTurnOut(Answer):
    """Where the tokens of the newest turn's prompt came from. Counts of tokens.

    The first five are null for a turn that was not kept: where its tokens came from is not known.
    """

    engine_id: str
    turn_id: str = Field(description="Of the turn's ticket; empty in heads of earlier versions.")
    ended_unix_s: float
    prompt_tokens: int | None
    vram_tokens: int | None
    ram_tokens: int | None
    disk_tokens: int | None
    computed_tokens: int | None
    tokens_total: int = Field(
        description="Of the context that the prompt was compared with: the snapshot's, or an "
        "earlier turn's; 0 without one."
    )
    tokens_restorable: int = Field(description="Of the snapshot that its ticket named.")
    diverged_at_token: int | None = Field(
        description="The first token in which prompt and context differ; null if the prompt "
        "simply continues it."
    )
    causes: list[CauseOut]
    timing: TimingOut | None = Field(description="Null where it was not measured.")


class SessionOut(Answer):
    """A session and what is derived of it."""

    session_id: str = Field(examples=["agent-7"])
    tenant: str = Field(examples=["default"])
    model: str
    state: SessionState = Field(
        description="running: a turn is in flight. active: its KV is believed to be in an "
        "engine. suspended: no live engine has more of it than the newest snapshot; whether one "
        "that has ended had, a suspend or a resume tells. cold: neither."
    )
    created_unix_s: float
    updated_unix_s: float
    idle_timeout_s: float | None
    ttl_s: float | None
    pinned: bool
    on_evicted: OnEvicted | None
    plan_policy: PlanPolicy | None
    objective_s: float | None
    snapshot: SnapshotOut | None = Field(description="The newest one.")
    forked_from: OriginOut | None = Field(description="Null for a session that is no fork.")
    presence: PresenceOut | None = Field(description="Null if no live engine knows the session.")
    resumed_on: str = Field(description="The engine that the newest resume filled; else empty.")
    last_turn: LastTurnOut | None = Field(description="Null if no live engine knows of one.")
    unkept: str = Field(
        description="Code of the reason why the newest turn cannot be suspended, such as "
        "not_text; else empty."
    )
    last_outcome: Outcome | None = Field(description="Of the newest resume.")
    last_reason: str = Field(description="The first reason of the newest resume; may be empty.")

    @classmethod
    def of(cls, view: View) -> Self:
        """Translate."""
        session = view.session
        outcome = session.last_outcome
        return cls(
            session_id=session.session_id,
            tenant=session.tenant,
            model=session.model,
            state=view.state,
            created_unix_s=session.created_unix_s,
            updated_unix_s=session.updated_unix_s,
            idle_timeout_s=session.idle_timeout_s,
            ttl_s=session.ttl_s,
            pinned=session.pinned,
            on_evicted=session.on_evicted,
            plan_policy=session.plan_policy,
            objective_s=session.objective_s,
            snapshot=SnapshotOut.model_validate(session.snapshot) if session.snapshot else None,
            forked_from=(
                OriginOut.model_validate(session.forked_from) if session.forked_from else None
            ),
            presence=PresenceOut.model_validate(view.presence) if view.presence else None,
            resumed_on=session.resumed_on,
            last_turn=_last_turn(view.presence),
            unkept=view.presence.unkept if view.presence else "",
            last_outcome=Outcome(outcome) if outcome else None,
            last_reason=session.last_reason,
        )


def _last_turn(presence: Presence | None) -> LastTurnOut | None:
    turn = presence.last_turn if presence else None
    if not presence or not turn:
        return None
    return LastTurnOut.model_validate(turn_json(presence.engine_id, turn))


class SessionsOut(Answer):
    """A page of sessions, ordered by id."""

    sessions: list[SessionOut]
    next_after: str | None = Field(description="'after' of the next page; null on the last one.")

    @classmethod
    def of(cls, page: ViewPage) -> Self:
        """Translate."""
        return cls(
            sessions=[SessionOut.of(view) for view in page.views], next_after=page.next_after
        )


class SuspendOut(Answer):
    """How a suspend ended."""

    operation_id: str
    session_id: str
    snapshot: SnapshotOut
    rounds: int = Field(description="0 if the newest snapshot had everything already.")
    missing_tokens: int = Field(
        description="Of the head's whole chunks, not in the snapshot, and of those that ended with "
        "their engine (cause engine_lost_kv)."
    )
    evicted_tokens: int = Field(
        default=0,
        description="Of the head's whole chunks, those that were gone from VRAM and RAM and in "
        "no snapshot when the suspend came.",
    )
    recomputed_tokens: int = Field(
        default=0, description="Tokens that the engine computed again for this suspend."
    )
    causes: list[CauseOut]
    seconds: float


class ResumeOut(Answer):
    """How a resume ended."""

    operation_id: str
    session_id: str
    outcome: Outcome = Field(
        description="warm: the KV was still in the engine. restored. partial: a part of it. "
        "recomputed: nothing was loaded, the next turn computes its prompt; after "
        "tokenizer_mismatch or chat_template_mismatch the next turn's own tokens decide, and it "
        "may still load."
    )
    reason: str = Field(description="The first cause's code; empty without one.")
    causes: list[CauseOut]
    engine_id: str
    generation: int = Field(description="The snapshot that was looked at; 0 if none.")
    tokens_total: int
    tokens_restorable: int
    tokens_restored: int = Field(description="Proven to be in the engine, from wherever.")
    disk_tokens: int = Field(description="Of them, loaded from disk.")
    seconds: float
    queued_s: float = Field(
        default=0.0, description="Of them, until other resumes had made room in the RAM tier."
    )
    plan: dict[str, Any] | None = Field(
        default=None,
        description="Load or recompute: choice, both ways with their times and parts, margin_s, "
        "break_even_bytes_s, policy and causes. Null if there was nothing to decide.",
    )
    timing: TimingOut | None = Field(
        default=None, description="What the load took, stage by stage; null if nothing was moved."
    )
    lossy: LossOut | None = Field(
        default=None, description="Of the snapshot; null if its KV is as it was."
    )
    noted: list[CauseOut] = Field(
        default_factory=list,
        description="What else differs between snapshot and engine; it kept nothing from being "
        "used, and is no cause.",
    )


class DeleteOut(Answer):
    """How a delete ended."""

    operation_id: str
    session_id: str
    manifests: int = Field(description="Snapshots that were removed.")
    heads: int
    collected: dict[str, Any] = Field(description="What of its bytes was freed at once.")


class OperationOut(Answer):
    """A long call."""

    operation_id: str = Field(examples=["op-8f2b6c1d9e3a4b5c6d7e8f90"])
    session_id: str
    kind: OperationKind
    status: OperationStatus
    created_unix_s: float
    finished_unix_s: float | None
    result: dict[str, Any] | None = Field(
        description="The report of one that succeeded; code, message and hint of a failed one."
    )
    queue_position: int | None = Field(
        default=None,
        description="Of a resume that waits for room in the engine's RAM tier: how many go before "
        "it. Null if it does not wait, or another daemon runs it.",
    )

    @classmethod
    def of(cls, operation: Operation, queue_position: int | None = None) -> Self:
        """Translate."""
        return cls.model_validate(operation).model_copy(update={"queue_position": queue_position})


class EventOut(Answer):
    """One line of a session's audit trail."""

    event_id: int
    cursor: str = Field(
        description="Its place, to go on after: as after= and Last-Event-ID.",
        examples=["41-9f86d081884c"],
    )
    kind: str = Field(examples=["suspended"])
    at_unix_s: float
    detail: dict[str, Any]

    @classmethod
    def of(cls, event: Event) -> Self:
        """Translate."""
        return cls(
            event_id=event.event_id,
            cursor=str(cursor_of(event)),
            kind=event.kind,
            at_unix_s=event.at_unix_s,
            detail=event.detail,
        )


class EventsOut(Answer):
    """A part of a session's audit trail, oldest first."""

    events: list[EventOut]

    @classmethod
    def of(cls, events: list[Event]) -> Self:
        """Translate."""
        return cls(events=[EventOut.of(event) for event in events])


class SnapshotsOut(Answer):
    """A session's snapshots, oldest first."""

    snapshots: list[SnapshotOut]


class PurgeIn(Strict):
    """Which sessions to delete; a filter that is left out matches all."""

    model: str | None = None
    has_snapshot: bool | None = None
    pinned: bool | None = Field(
        default=None, description="Pinned sessions are deleted only if this is true."
    )
    dry_run: bool = Field(default=True, description="Only say what would be deleted.")


class PurgeOut(Answer):
    """What a purge deleted, or would delete."""

    dry_run: bool
    matched: int
    deleted: int
    failed: int
    session_ids: list[str]


def causes_out(causes: tuple[Cause, ...]) -> list[CauseOut]:
    """Translate causes."""
    return [CauseOut.model_validate(cause.as_json()) for cause in causes]


def report_out(operation: Operation) -> dict[str, JsonValue]:
    """Return the report of an operation that succeeded, with its ids."""
    return {
        "operation_id": operation.operation_id,
        "session_id": operation.session_id,
        **(operation.result or {}),
    }
