"""The JSON of engines, tickets and probes."""

from typing import Any, Self

from pydantic import Field

from sessiond.api.models import Answer, CauseOut, causes_out
from sessiond.domain.engines import EngineInfo
from sessiond.service.turns import Probe, TurnPlan, TurnTicket


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


class EngineDetailOut(EngineOut):
    """A live engine with all facts that decide whether KV fits it."""

    fingerprint: dict[str, Any]

    @classmethod
    def of(cls, engine: EngineInfo) -> Self:
        """Translate."""
        shown = EngineOut.model_validate(engine).model_dump()
        return cls(**shown, fingerprint=dict(engine.fingerprint.fields))


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


class TicketEngineOut(Answer):
    """Where to send the turn."""

    engine_id: str
    url: str
    model: str


class TicketOut(Answer):
    """What to add to one vLLM request, so that it belongs to the session."""

    kv_transfer_params: dict[str, str] = Field(
        description="Goes into the request body as it is.",
        examples=[{"sessiond_ticket": "v1.eyJ…"}],
    )
    cache_salt: str = Field(description="Goes into the request body as it is.")
    engine: TicketEngineOut
    plan: TurnPlan = Field(description="What the turn is expected to do with its context.")
    causes: list[CauseOut]
    generation: int = Field(description="The snapshot that the turn may load; 0: none.")
    expires_unix_s: int

    @classmethod
    def of(cls, ticket: TurnTicket) -> Self:
        """Translate."""
        return cls(
            kv_transfer_params=ticket.kv_transfer_params,
            cache_salt=ticket.permit.cache_salt,
            engine=TicketEngineOut.model_validate(ticket.engine),
            plan=ticket.plan,
            causes=causes_out(ticket.causes),
            generation=ticket.generation,
            expires_unix_s=ticket.permit.expires_unix_s,
        )


class MismatchOut(Answer):
    """A field of the fingerprint in which the snapshot and the engine differ."""

    field: str = Field(examples=["weights_digest"])
    field_class: str = Field(description="bytes, prompt or advisory.")
    stored: Any
    live: Any


class ProbeOut(Answer):
    """What a resume would find, without doing it."""

    engine: TicketEngineOut
    plan: TurnPlan
    causes: list[CauseOut]
    mismatches: list[MismatchOut]
    generation: int
    tokens_total: int
    tokens_restorable: int
    tokens_loadable: int = Field(description="Of them, on this engine.")

    @classmethod
    def of(cls, probe: Probe) -> Self:
        """Translate."""
        return cls(
            engine=TicketEngineOut.model_validate(probe.engine),
            plan=probe.plan,
            causes=causes_out(probe.causes),
            mismatches=[
                MismatchOut(
                    field=mismatch.field,
                    field_class=mismatch.field_class.value,
                    stored=mismatch.cause.stored,
                    live=mismatch.cause.live,
                )
                for mismatch in probe.mismatches
            ],
            generation=probe.generation,
            tokens_total=probe.tokens_total,
            tokens_restorable=probe.tokens_restorable,
            tokens_loadable=probe.tokens_loadable,
        )
