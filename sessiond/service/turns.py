"""Tickets for turns, and what they are expected to find."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from sessiond.domain.tickets import CLOCK_SLACK_S, PROMPT_PARAM, TICKET_PARAM
from sessiond.service.continuation import Continuer
from sessiond.service.engines import ANYWHERE, Where
from sessiond.service.permits import Permit, Purpose
from sessiond.service.resume import Prospect, Resumer, Survey

if TYPE_CHECKING:
    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.continuation import Chat, Continuation
    from sessiond.domain.engines import EngineInfo
    from sessiond.domain.ids import SessionId, TenantId
    from sessiond.domain.reasons import Cause
    from sessiond.domain.session import Session
    from sessiond.service.catalogue import Catalogue
    from sessiond.service.context import Context
    from sessiond.service.snapshots import Snapshots


class TurnPlan(StrEnum):
    """What the next turn is expected to do with its context."""

    WARM = "warm"  #: the KV is believed to be in the engine
    LOAD = "load"  #: from the snapshot
    RECOMPUTE = "recompute"


@dataclass(frozen=True)
class TurnTicket:
    """What an agent that calls vLLM directly needs for one turn."""

    session: Session
    permit: Permit
    engine: EngineInfo
    model: str  #: that the turn names
    plan: TurnPlan
    causes: tuple[Cause, ...]
    generation: int  #: that the turn may load; 0: none
    continuation: Continuation | None = None  #: if one was asked for

    @property
    def kv_transfer_params(self) -> dict[str, JsonValue]:
        """The request field that carries the ticket, and vLLM's own one for the prompt."""
        params: dict[str, JsonValue] = {TICKET_PARAM: self.permit.ticket}
        if self.continuation and self.continuation.prompt is not None:
            params[PROMPT_PARAM] = list(self.continuation.prompt)
        return params


class Turns:
    """What concerns a session's next turn."""

    def __init__(self, context: Context, snapshots: Snapshots, catalogue: Catalogue) -> None:
        self._context = context
        self._continuer = Continuer(context.client, context.limits.continue_deadline_s)
        self._catalogue = catalogue
        self._resumer = Resumer(context, snapshots)

    async def ticket(
        self,
        tenant: TenantId,
        session_id: SessionId,
        chat: Chat | None = None,
        model: str = "",
        where: Where = ANYWHERE,
    ) -> TurnTicket:
        """Return a permit for one turn.

        :param model: what the turn names as its model; empty: what the session is for
        :param chat: what the turn's prompt is rendered from, to continue with the session's own
            tokens where they have the same text
        :param where: the engines that may be chosen
        :raises SessionNotFoundError: there is no such session.
        :raises UnavailableError: no engine can serve it.
        """
        survey = await self._context.blocking(self._survey, tenant, session_id)
        session = survey.session
        self._catalogue.trail.note_soon(session, survey.sight.presence)
        prospect = await self._resumer.judge(survey, model or session.model, where=where)
        manifest = prospect.manifest
        generation = manifest.generation if manifest else 0
        restorable_tokens = manifest.restorable_tokens if manifest else 0
        purpose = Purpose(
            tenant,
            session_id,
            prospect.engine,
            generation,
            restorable_tokens,
            prospect.adapter_digest,
        )
        permit = self._context.signer.turn(purpose, self._context.now())
        until_unix_s = permit.expires_unix_s + CLOCK_SLACK_S
        self._context.watchlist.add((tenant, session_id), until_unix_s)
        return TurnTicket(
            session=session,
            permit=permit,
            engine=prospect.engine,
            model=prospect.model,
            plan=plan_of(prospect),
            causes=causes_of(prospect),
            generation=generation,
            continuation=await self._continued(prospect, chat) if chat else None,
        )

    def _survey(self, tenant: TenantId, session_id: SessionId) -> Survey:
        # One way to a thread and back: each of several would cost as much as what it does.
        return self._resumer.survey(self._catalogue.get_now(tenant, session_id))

    async def _continued(self, prospect: Prospect, chat: Chat) -> Continuation:
        located = prospect.sight.located
        here = located is not None and located.engine.engine_id == prospect.engine.engine_id
        main = located.head.main if located and here else None
        known = [
            one.tokens
            for one in (main, prospect.manifest)
            if one is not None and one.adapter_digest == prospect.adapter_digest
        ]
        # After a resume, the head has the whole chunks only, and the snapshot the rest as well.
        longest_first = sorted(known, key=len, reverse=True)
        return await self._continuer.find(prospect.engine, longest_first, chat)


def plan_of(prospect: Prospect) -> TurnPlan:
    """Return what a turn on the prospect's engine is expected to do."""
    presence = prospect.sight.presence
    here = presence is not None and presence.engine_id == prospect.engine.engine_id
    same = presence is not None and presence.adapter_digest in (None, prospect.adapter_digest)
    if here and same and not prospect.hindrances:
        return TurnPlan.WARM
    return TurnPlan.LOAD if prospect.target_tokens else TurnPlan.RECOMPUTE


def causes_of(prospect: Prospect) -> tuple[Cause, ...]:
    """Return why it does not use all of the session's context."""
    # A session that was never suspended lacks nothing while its KV is in the engine.
    never = prospect.readable.manifest is None and prospect.session.snapshot is None
    warm = plan_of(prospect) is TurnPlan.WARM
    return prospect.unkept if never and warm else prospect.causes
