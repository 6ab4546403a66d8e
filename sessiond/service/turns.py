"""Tickets for turns, and the look ahead that says what one would find."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from sessiond.domain.tickets import CLOCK_SLACK_S, TICKET_PARAM
from sessiond.service.permits import Permit, Purpose
from sessiond.service.resume import Prospect, Resumer

if TYPE_CHECKING:
    from sessiond.domain.engines import EngineInfo
    from sessiond.domain.fingerprint import Mismatch
    from sessiond.domain.ids import SessionId, TenantId
    from sessiond.domain.reasons import Cause
    from sessiond.service.catalogue import Catalogue, View
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

    permit: Permit
    engine: EngineInfo
    plan: TurnPlan
    causes: tuple[Cause, ...]
    generation: int  #: that the turn may load; 0: none

    @property
    def kv_transfer_params(self) -> dict[str, str]:
        """The request field that carries the ticket."""
        return {TICKET_PARAM: self.permit.ticket}


@dataclass(frozen=True)
class Probe:
    """What a resume would find, without doing it."""

    engine: EngineInfo
    plan: TurnPlan
    causes: tuple[Cause, ...]
    mismatches: tuple[Mismatch, ...]
    generation: int
    tokens_total: int
    tokens_restorable: int
    tokens_loadable: int  #: on this engine


class Turns:
    """What concerns a session's next turn."""

    def __init__(self, context: Context, snapshots: Snapshots, catalogue: Catalogue) -> None:
        self._context = context
        self._catalogue = catalogue
        self._resumer = Resumer(context, snapshots)

    async def ticket(self, tenant: TenantId, session_id: SessionId) -> TurnTicket:
        """Return a permit for one turn.

        :raises SessionNotFoundError: there is no such session.
        :raises UnavailableError: no engine can serve it.
        """
        view = await self._catalogue.show(tenant, session_id)
        prospect = await self._resumer.look(view.session)
        manifest = prospect.manifest
        generation = manifest.generation if manifest else 0
        restorable_tokens = manifest.restorable_tokens if manifest else 0
        purpose = Purpose(tenant, session_id, prospect.engine, generation, restorable_tokens)
        permit = self._context.signer.turn(purpose, self._context.now())
        until_unix_s = permit.expires_unix_s + CLOCK_SLACK_S
        self._context.watchlist.add((tenant, session_id), until_unix_s)
        return TurnTicket(
            permit=permit,
            engine=prospect.engine,
            plan=_plan(view, prospect),
            causes=_causes(view, prospect),
            generation=generation,
        )

    async def probe(self, tenant: TenantId, session_id: SessionId) -> Probe:
        """Look at what a resume would find; changes nothing.

        :raises SessionNotFoundError: there is no such session.
        :raises UnavailableError: no engine can serve it.
        """
        view = await self._catalogue.show(tenant, session_id)
        prospect = await self._resumer.look(view.session)
        manifest = prospect.readable.manifest
        found = prospect.compatibility
        return Probe(
            engine=prospect.engine,
            plan=_plan(view, prospect),
            causes=_causes(view, prospect),
            mismatches=found.mismatches if found else (),
            generation=manifest.generation if manifest else 0,
            tokens_total=len(manifest.tokens) if manifest else 0,
            tokens_restorable=manifest.restorable_tokens if manifest else 0,
            tokens_loadable=prospect.target_tokens,
        )


def _plan(view: View, prospect: Prospect) -> TurnPlan:
    presence = view.presence
    if presence and presence.engine_id == prospect.engine.engine_id:
        return TurnPlan.WARM
    return TurnPlan.LOAD if prospect.target_tokens else TurnPlan.RECOMPUTE


def _causes(view: View, prospect: Prospect) -> tuple[Cause, ...]:
    # A session that was never suspended lacks nothing while its KV is in the engine.
    never = prospect.readable.manifest is None and view.session.snapshot is None
    warm = _plan(view, prospect) is TurnPlan.WARM
    return () if never and warm else prospect.causes
