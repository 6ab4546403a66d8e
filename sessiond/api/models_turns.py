"""The JSON of tickets and probes."""

from typing import Any, Self

from pydantic import Field

from sessiond.api.models import Answer, CauseOut, Strict, causes_out
from sessiond.domain.continuation import Chat, Continuation
from sessiond.domain.fingerprint import FieldClass, Mismatch
from sessiond.domain.plantable import plan_table
from sessiond.domain.reasons import EXPLANATIONS, Reason
from sessiond.service.probe import Probe
from sessiond.service.turns import TurnPlan, TurnTicket


class TicketEngineOut(Answer):
    """Where to send the turn."""

    engine_id: str
    url: str
    model: str = Field(description="Goes into the request body as it is.")


class ChatIn(Strict):
    """What the turn's chat completion will have, so that its prompt can be rendered."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(
        default=None,
        description="With whatever else changes the prompt, such as documents, reasoning_effort.",
    )

    def chat(self) -> Chat:
        """Translate."""
        return Chat(self.messages, self.tools, self.chat_template_kwargs)


class TicketIn(Strict):
    """What the ticket is for."""

    model: str = Field(
        default="",
        max_length=512,
        description="What the turn names as its model, such as a LoRA adapter of a sub-agent; "
        "by default the session's own.",
    )
    continues: ChatIn | None = Field(
        default=None,
        alias="continue",
        description="For a chat completion (vLLM takes such a prompt nowhere else): ask for a "
        "prompt that begins with the exact tokens of the session, where "
        "those have the same text as the messages: replies and reasoning often become other "
        "tokens when they are rendered anew, and their KV is computed again.",
    )


class ContinuationOut(Answer):
    """Whether the session's own tokens can stand for the messages."""

    faithful: bool = Field(
        description="Whether the turn continues the session token for token: by the "
        "prompt_token_ids in kv_transfer_params, or, without them, because the messages become "
        "these tokens anyhow."
    )
    head_tokens: int = Field(description="That the session has.")
    rendered_tokens: int = Field(description="That the messages become.")
    common_tokens: int = Field(description="At the beginning of both.")
    gained_tokens: int = Field(description="Of the head, that only prompt_token_ids continue.")
    cause: CauseOut | None = Field(description="Why the ordinary way is taken; null if faithful.")

    @classmethod
    def of(cls, found: Continuation) -> Self:
        """Translate."""
        return cls(
            faithful=found.cause is None,
            head_tokens=found.head_tokens,
            rendered_tokens=found.rendered_tokens,
            common_tokens=found.common_tokens,
            gained_tokens=found.gained_tokens,
            cause=causes_out((found.cause,))[0] if found.cause else None,
        )


class TicketOut(Answer):
    """What to add to one vLLM request, so that it belongs to the session."""

    kv_transfer_params: dict[str, Any] = Field(
        description="Goes into the request body as it is.",
        examples=[{"sessiond_ticket": "v1.eyJ…"}],
    )
    cache_salt: str = Field(description="Goes into the request body as it is.")
    engine: TicketEngineOut
    plan: TurnPlan = Field(description="What the turn is expected to do with its context.")
    causes: list[CauseOut]
    generation: int = Field(description="The snapshot that the turn may load; 0: none.")
    decision: dict[str, Any] | None = Field(
        default=None,
        description="Load or recompute, with both times; null if there was nothing to decide.",
    )
    expires_unix_s: int
    continuation: ContinuationOut | None = Field(description="Null if none was asked for.")

    @classmethod
    def of(cls, ticket: TurnTicket) -> Self:
        """Translate."""
        return cls(
            kv_transfer_params=ticket.kv_transfer_params,
            cache_salt=ticket.permit.cache_salt,
            engine=TicketEngineOut(
                engine_id=ticket.engine.engine_id, url=ticket.engine.url, model=ticket.model
            ),
            plan=ticket.plan,
            causes=causes_out(ticket.causes),
            generation=ticket.generation,
            decision=dict(ticket.decided.as_json()) if ticket.decided else None,
            expires_unix_s=ticket.permit.expires_unix_s,
            continuation=ContinuationOut.of(ticket.continuation) if ticket.continuation else None,
        )


class MismatchOut(Answer):
    """A field of the fingerprint in which the snapshot and the engine differ."""

    field: str = Field(examples=["weights_digest"])
    field_class: FieldClass = Field(
        description="bytes: never loaded. prompt: only the next turn's own tokens decide. "
        "advisory: loaded all the same."
    )
    reason: Reason = Field(examples=["weights_mismatch"])
    sentence: str
    hint: str
    detail: str = Field(
        description="The field, and the keys inside it that differ, with both values; of many keys "
        "the first three.",
        examples=["model_config_digest: config.hidden_size stored 2048, live 4096"],
    )
    stored: Any
    live: Any

    @classmethod
    def of(cls, mismatch: Mismatch) -> Self:
        """Translate."""
        cause = mismatch.cause
        return cls(
            field=mismatch.field,
            field_class=mismatch.field_class,
            reason=cause.reason,
            sentence=EXPLANATIONS[cause.reason].sentence,
            hint=EXPLANATIONS[cause.reason].hint,
            detail=cause.detail,
            stored=cause.stored,
            live=cause.live,
        )


class ProbeOut(Answer):
    """What a resume would find, without doing it."""

    engine: TicketEngineOut
    would_resume: bool = Field(
        description="Whether a resume would leave the session's KV in the engine."
    )
    plan: TurnPlan = Field(description="What the next turn is expected to do with its context.")
    causes: list[CauseOut]
    mismatches: list[MismatchOut]
    generation: int
    tokens_total: int
    tokens_restorable: int
    tokens_loadable: int = Field(description="Of them, on this engine.")
    resumes_ahead: int = Field(
        description="Resumes that run in this engine or wait for room in its RAM tier."
    )
    decision: dict[str, Any] | None = Field(
        default=None,
        description="Load or recompute, if it was now: choice, both ways with their times and "
        "parts, margin_s, break_even_bytes_s, policy, causes. Null if there is nothing to decide.",
    )
    decision_table: list[tuple[str, str]] = Field(
        default=[], description="The same in words and numbers, for people: name and text."
    )

    @classmethod
    def of(cls, probe: Probe) -> Self:
        """Translate."""
        return cls(
            engine=TicketEngineOut(
                engine_id=probe.engine.engine_id, url=probe.engine.url, model=probe.model
            ),
            would_resume=probe.would_resume,
            plan=probe.plan,
            causes=causes_out(probe.causes),
            mismatches=[MismatchOut.of(mismatch) for mismatch in probe.mismatches],
            generation=probe.generation,
            tokens_total=probe.tokens_total,
            tokens_restorable=probe.tokens_restorable,
            tokens_loadable=probe.tokens_loadable,
            resumes_ahead=probe.resumes_ahead,
            decision=dict(probe.decided.as_json()) if probe.decided else None,
            decision_table=plan_table(probe.decided) if probe.decided else [],
        )
