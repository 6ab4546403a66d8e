"""Tickets for turns, and what they are expected to find."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from time import monotonic
from typing import TYPE_CHECKING, Final

from sessiond.domain.reasons import Reason
from sessiond.domain.tickets import CLOCK_SLACK_S, PROMPT_PARAM, TICKET_PARAM
from sessiond.service.continuation import Continuer
from sessiond.service.engines import ANYWHERE, Where
from sessiond.service.headwatch import tells_of
from sessiond.service.permits import Permit, Purpose
from sessiond.service.resume import Prospect, Resumer, Survey
from sessiond.service.settling import Settler
from sessiond.service.warmplans import WarmPlans
from sessiond.service.watch import GivenTicket

if TYPE_CHECKING:
    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.continuation import Chat, Continuation
    from sessiond.domain.engines import EngineInfo
    from sessiond.domain.ids import SessionId, TenantId
    from sessiond.domain.plans import Plan
    from sessiond.domain.reasons import Cause
    from sessiond.domain.session import Session
    from sessiond.service.catalogue import Catalogue
    from sessiond.service.context import Context
    from sessiond.service.plans import Decision, Planner
    from sessiond.service.snapshots import Snapshots


#: An engine that did not tell of its turns is not asked again so soon for each next ticket.
_SILENT_S: Final = 10.0


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
    decided: Plan | None = None  #: load or recompute; ``None``: there was nothing to decide

    @property
    def kv_transfer_params(self) -> dict[str, JsonValue]:
        """The request field that carries the ticket, and vLLM's own one for the prompt."""
        params: dict[str, JsonValue] = {TICKET_PARAM: self.permit.ticket}
        if self.continuation and self.continuation.prompt is not None:
            params[PROMPT_PARAM] = list(self.continuation.prompt)
        return params


class Turns:
    """What concerns a session's next turn."""

    def __init__(
        self, context: Context, snapshots: Snapshots, catalogue: Catalogue, planner: Planner
    ) -> None:
        self._context = context
        self._planner = planner
        self._warm_plans = WarmPlans(context, planner)
        self._continuer = Continuer(context.client, context.limits.continue_deadline_s)
        self._catalogue = catalogue
        self._resumer = Resumer(context, snapshots)
        self._settler = Settler(context)
        self._silent_until_s: dict[str, float] = {}  # the engine that has not told, asked last

    async def ticket(
        self,
        tenant: TenantId,
        session_id: SessionId,
        chat: Chat | None = None,
        model: str = "",
        where: Where = ANYWHERE,
    ) -> TurnTicket:
        """Return a permit for one turn. If it is to load, it is expected to come without us.

        :param model: what the turn names as its model; empty: what the session is for
        :param chat: what the turn's prompt is rendered from, to continue with the session's own
            tokens where they have the same text
        :param where: the engines that may be chosen
        :raises SessionNotFoundError: there is no such session.
        :raises UnavailableError: no engine can serve it.
        """
        survey = await self._context.blocking(self._survey, tenant, session_id)
        if await self._has_settled(survey, where, continues=chat is not None):
            survey = await self._context.blocking(self._survey, tenant, session_id)
        session = survey.session
        self._catalogue.trail.note_soon(session, survey.sight.presence)
        prospect = await self._resumer.judge(survey, model or session.model, where=where)
        with self._context.on_the_way.to(prospect.engine.engine_id):
            return await self._ticket(prospect, chat)

    async def _ticket(self, prospect: Prospect, chat: Chat | None) -> TurnTicket:
        session = prospect.session
        decision = await self._warm_plans.decide(prospect)
        causes = causes_of(prospect, decision)
        purpose = _purpose(prospect, decision, causes)
        permit = self._context.signer.turn(purpose, self._context.now())
        self._planner.begin(permit.operation_id, prospect, decision)
        until_unix_s = permit.expires_unix_s + CLOCK_SLACK_S
        key, plan = (session.tenant, session.session_id), plan_of(prospect, decision)
        computed = decision.plan if plan is TurnPlan.RECOMPUTE else None
        self._planner.computes(permit.operation_id, prospect, computed)
        given = GivenTicket(
            prospect.engine.engine_id, permit.operation_id, self._context.now(), until_unix_s
        )
        self._context.watchlist.expect_turn(key, given)
        self._context.restores.expect(key, given if plan is TurnPlan.LOAD else None)
        return TurnTicket(
            session=session,
            permit=permit,
            engine=prospect.engine,
            model=prospect.model,
            plan=plan,
            causes=causes,
            generation=purpose.generation if purpose.may_load else 0,
            decided=decision.plan,
            continuation=await self._continued(prospect, chat) if chat else None,
        )

    def _survey(self, tenant: TenantId, session_id: SessionId) -> Survey:
        # One way to a thread and back: each of several would cost as much as what it does.
        return self._resumer.survey(*self._catalogue.look_now(tenant, session_id))

    async def _has_settled(self, survey: Survey, where: Where, *, continues: bool) -> bool:
        """Whether there is more to see, now that an engine has told of the newest ticket's turn.

        It is asked if that may change where the next turn goes, or what it continues.
        """
        session, presence = survey.session, survey.sight.presence
        key, now_unix_s = (session.tenant, session.session_id), self._context.now()
        given = self._context.watchlist.tickets(key, now_unix_s, session.created_unix_s)
        if not given or tells_of(presence, given[-1].turn_id):
            return False
        name = given[-1].engine_id
        if presence is not None and presence.engine_id == name and not continues:
            return False
        allowed = (one for one in survey.sight.live if where.allows(one))
        engine = next((one for one in allowed if one.engine_id == name), None)
        if engine is None or (self._silent_until_s.get(name, 0.0) > monotonic() and not continues):
            return False
        doubt = await self._settler.settle(*key, engine)
        if doubt is not None:
            self._silent_until_s = {name: monotonic() + _SILENT_S}
        return doubt is None

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


def plan_of(prospect: Prospect, decision: Decision) -> TurnPlan:
    """Return what a turn on the prospect's engine is expected to do."""
    presence = prospect.sight.presence
    here = presence is not None and presence.engine_id == prospect.engine.engine_id
    same = presence is not None and presence.adapter_digest in (None, prospect.adapter_digest)
    if here and same and not prospect.hindrances:
        return TurnPlan.WARM
    loads = prospect.target_tokens and decision.may_load
    return TurnPlan.LOAD if loads else TurnPlan.RECOMPUTE


def causes_of(prospect: Prospect, decision: Decision) -> tuple[Cause, ...]:
    """Return why it does not use all of the session's context."""
    # A session that was never suspended lacks nothing while its KV is in the engine.
    never = prospect.readable.manifest is None and prospect.session.snapshot is None
    warm = plan_of(prospect, decision) is TurnPlan.WARM
    if never and warm:
        return prospect.unkept
    planned = decision.plan.causes if decision.plan and not warm else ()
    return (*planned, *prospect.causes, *prospect.lost_causes)


def _purpose(prospect: Prospect, decision: Decision, causes: tuple[Cause, ...]) -> Purpose:
    """Return what a turn's ticket permits."""
    session, manifest = prospect.session, prospect.manifest
    generation = restorable_tokens = 0
    if manifest is not None:
        # Also of what is computed again, the engine has to know whether it is the whole context.
        generation = manifest.generation
        whole = decision.is_whole or decision.is_left_to_engine or not decision.may_load
        restorable_tokens = manifest.restorable_tokens if whole else decision.load_tokens
    return Purpose(
        session.tenant,
        session.session_id,
        prospect.engine,
        generation,
        restorable_tokens,
        decision.may_load,
        adapter_digest=prospect.adapter_digest,
        load_limit_s=decision.limit_s,
        session_created_unix_us=session.created_unix_us,
        # Without any, a turn lacks nothing: what else it may compute is new, or told of as lost.
        causes=tuple(one for one in causes if one.reason is not Reason.NO_SNAPSHOT),
    )
