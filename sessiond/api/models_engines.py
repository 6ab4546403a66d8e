"""The JSON of engines."""

from collections.abc import Iterable
from typing import Any, Self

from pydantic import Field

from sessiond.api.models import Answer, CauseOut, Strict
from sessiond.domain.architectures import KV_KINDS, Support, kinds_of
from sessiond.domain.engines import EngineInfo
from sessiond.domain.samples import Tier
from sessiond.domain.slowpath import SlowPath, Stage
from sessiond.service.attest import Attestation


class AdapterOut(Answer):
    """A LoRA adapter that an engine serves."""

    name: str = Field(description="That requests give as their model.")
    digest: str = Field(description="Of its content; empty while that is not proven.")
    unproven: str = Field(description="Why not; empty while it is proven.")


class KvKindOut(Answer):
    """A kind of KV group."""

    kind: str = Field(
        description="vLLM's class, and in brackets what is unusual about it.",
        examples=["FullAttentionSpec"],
    )
    what: str
    support: Support = Field(
        description="golden: proved on the real engine. refused: such an engine does not start."
    )
    sentence: str


class SlowPathOut(Answer):
    """A restore path whose loads take longer than computing would."""

    tier: Tier
    cause: Stage = Field(
        description="Where most of the time goes: waiting for room (queue), lookup, disk, decode, "
        "or copying into the engine (bus)."
    )
    sentence: str
    hint: str
    shares: dict[Stage, float] = Field(description="Of the time, by stage.")
    restores: int = Field(description="Loads that were looked at, the newest ones.")
    load_s: float = Field(description="That they took together.")
    recompute_s: float = Field(description="That computing the same tokens would have taken.")
    since_unix_s: float = Field(description="When it was noticed.")


class EngineOut(Answer):
    """A live engine."""

    engine_id: str
    url: str
    model: str
    vllm_version: str
    started_unix_s: float
    heartbeat_unix_s: float
    chunk_tokens: int
    chunk_bytes: int
    ram_tier_chunks: int
    max_model_tokens: int
    tier_off: str = Field(description="Why the snapshot tier is off; empty while it is on.")
    tier_off_reason: str = Field(description="The code of that; empty while it is on.")
    attestable: bool = Field(description="Whether an operator may turn it on: see attest.")
    resets: int = Field(description="How often the engine's caches were reset.")
    keeps_replies: bool = Field(
        description="Whether KV of replies can be kept, not of prompts alone; false with sliding "
        "windows, unless vLLM's --prefix-cache-retention-interval is set."
    )
    launch: str = Field(
        description="Names the 'sessiond engine' that started it; empty for one started in another "
        "way."
    )
    draining: bool = Field(
        description="Whether it gets new turns and resumes only if no other engine can serve them."
    )
    adapters: list[AdapterOut]
    kv_kinds: list[KvKindOut] = Field(description="The kinds of its KV groups.")
    slow_paths: list[SlowPathOut] = Field(
        description="Tiers whose loads into it have taken longer than computing, and why."
    )

    @classmethod
    def of(cls, engine: EngineInfo, slow_paths: Iterable[SlowPath] = ()) -> Self:
        """Translate."""
        return cls(**_shown(engine, slow_paths))


class EngineDetailOut(EngineOut):
    """A live engine with all facts that decide whether KV fits it."""

    fingerprint: dict[str, Any]
    kv_support: list[KvKindOut] = Field(description="Every kind that sessiond knows.")

    @classmethod
    def of(cls, engine: EngineInfo, slow_paths: Iterable[SlowPath] = ()) -> Self:
        """Translate."""
        facts = dict(engine.fingerprint.fields)
        return cls(**_shown(engine, slow_paths), fingerprint=facts, kv_support=kv_support())


class AttestOut(Answer):
    """An engine whose snapshot tier is on, on an operator's word."""

    engine_id: str
    was_off: str = Field(description="Why the tier was off; empty if it was on already.")
    seconds: float

    @classmethod
    def of(cls, attestation: Attestation) -> Self:
        """Translate."""
        return cls(
            engine_id=attestation.engine.engine_id,
            was_off=attestation.was_off,
            seconds=attestation.seconds,
        )


class DrainIn(Strict):
    """How long a drain may take."""

    deadline_s: float = Field(
        default=30.0, ge=0, le=3600, allow_inf_nan=False, description="Seconds."
    )


class SavedOut(Answer):
    """A session whose KV a drain stored, all of it."""

    tenant: str
    session_id: str
    generation: int
    tokens: int = Field(description="That can be restored.")


class UnsavedOut(Answer):
    """A session with KV that a drain did not store, or not all of it."""

    tenant: str
    session_id: str
    code: str = Field(
        description="Why: the code of an error or of a reason. deadline_exceeded: it was not its "
        "turn yet, or was still being stored.",
        examples=["turn_in_flight"],
    )
    detail: str
    tokens: int = Field(description="That would have to be computed again.")
    saved_tokens: int = Field(description="That the drain stored, and that can be restored.")


class DrainOut(Answer):
    """How far a drain came."""

    engine_id: str
    complete: bool = Field(description="Whether all that the engine has is stored.")
    saved: list[SavedOut]
    unsaved: list[UnsavedOut] = Field(description="The most valuable first.")
    seconds: float
    causes: list[CauseOut] = Field(
        description="Why the engine may have more than what was found, if it may."
    )


class UndrainOut(Answer):
    """An engine that serves as any other."""

    engine_id: str
    was_draining: bool


class StrangerOut(Answer):
    """A configured server that answers HTTP and does not load sessiond's connector."""

    url: str
    code: str = Field(examples=["engine_without_connector"])
    detail: str
    hint: str


class EnginesOut(Answer):
    """The engines of this node, the newest first."""

    engines: list[EngineOut]
    strangers: list[StrangerOut]
    kv_support: list[KvKindOut] = Field(description="Every kind that sessiond knows.")


def kv_support() -> list[KvKindOut]:
    """Return the table of all kinds of KV groups."""
    return [KvKindOut.model_validate(known) for known in KV_KINDS]


def _shown(engine: EngineInfo, slow_paths: Iterable[SlowPath]) -> dict[str, Any]:
    kinds = [KvKindOut.model_validate(known) for known in kinds_of(engine.fingerprint)]
    slow = [SlowPathOut.model_validate(one.as_json()) for one in slow_paths]
    named = EngineOut.model_fields.keys() - {"kv_kinds", "slow_paths"}
    told = {name: getattr(engine, name) for name in named}
    return {**told, "kv_kinds": kinds, "slow_paths": slow}
