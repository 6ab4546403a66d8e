"""Makes sure that heads tell of every turn whose answer was given, before they are trusted.

An engine's mover writes a head a moment after its turn has ended. Whoever has the turn's answer
may ask in that moment; so the engine is asked to say when all that it owes is written.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.domain.errors import TurnInFlightError, UnavailableError
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tickets import TicketOp
from sessiond.service.headwatch import HeadWatch, has_turn
from sessiond.service.permits import Purpose

if TYPE_CHECKING:
    from sessiond.domain.engines import EngineInfo
    from sessiond.domain.ids import SessionId, TenantId
    from sessiond.domain.session import Session
    from sessiond.service.context import Context
    from sessiond.service.engines import Located, Sight


@dataclass(frozen=True)
class Settled:
    """A session's newest head."""

    located: Located | None
    doubt: Cause | None = None  #: why there may be a newer turn than it tells of


class Settler:
    """Asks engines, and waits for turns that are just ending."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._heads = HeadWatch(context)

    async def look(self, session: Session, *, asks: bool = True) -> Settled:
        """Return the newest head of a session that has no turn in flight.

        :param asks: whether engines that may have a newer one are asked first. Those are the one
            that wrote it, and all that tickets were given for which are still valid; a ticket of
            another daemon, or of before this one's start, is not known.
        :raises TurnInFlightError: a turn is running, and still is after half a second.
        """
        sight = await self._context.blocking(self._context.engines.see, session)
        doubt = None
        if asks:
            doubts = await asyncio.gather(
                *(self._doubt(session, engine) for engine in self._asked(session, sight))
            )
            doubt = next(filter(None, doubts), None)
            sight = await self._context.blocking(self._context.engines.see, session)
        return Settled(await self._ended(session, sight.located), doubt)

    async def settle(
        self, tenant: TenantId, session_id: SessionId, engine: EngineInfo
    ) -> Cause | None:
        """Wait until an engine's heads tell of all that has ended there; else say why not.

        :param session_id: of the one whose head must be there; empty: all must
        """
        purpose = Purpose(tenant, session_id, engine, generation=0)
        request = self._context.signer.question(TicketOp.HEADS, purpose, self._context.now())
        try:
            answer = await self._context.client.send(request, self._context.limits.heads_settle_s)
        except UnavailableError as error:
            return Cause(Reason.HEAD_UNCONFIRMED, error.message.rstrip("."))
        if answer.flag("heads_written"):
            return None
        return next(iter(answer.causes), Cause(Reason.HEAD_UNCONFIRMED))

    async def _doubt(self, session: Session, engine: EngineInfo) -> Cause | None:
        doubt = await self.settle(session.tenant, session.session_id, engine)
        if doubt is not None and doubt.reason is Reason.HEAD_UNCONFIRMED:
            return engine.tier_cause or doubt  # it may be asleep
        return doubt

    def _asked(self, session: Session, sight: Sight) -> list[EngineInfo]:
        key = session.tenant, session.session_id
        tickets = self._context.watchlist.tickets(key, self._context.now(), session.created_unix_s)
        names = {ticket.engine_id for ticket in tickets}
        if sight.located is not None:
            names.add(sight.located.engine.engine_id)
        return [one for one in sight.live if one.engine_id in names]

    async def _ended(self, session: Session, located: Located | None) -> Located | None:
        """Wait for a turn in flight: its client may have stopped it a moment ago."""
        if located is None or not has_turn(located.head):
            return located
        key = session.tenant, session.session_id
        with suppress(TimeoutError):
            async with asyncio.timeout(self._context.limits.turn_settle_s):
                await self._heads.wait(
                    key, located.engine.engine_id, lambda head: not has_turn(head)
                )
        located = await self._context.engines.locate(session)
        if located is not None and has_turn(located.head):
            raise TurnInFlightError(causes=(Cause(Reason.TURN_IN_FLIGHT),))
        return located
