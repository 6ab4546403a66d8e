"""Which engine a call goes to, and with which ticket."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from sessiond.domain import responseids
from sessiond.domain.errors import (
    NoEngineError,
    NotFoundError,
    ResponseLostError,
    SessionExistsError,
    SessionNotFoundError,
)
from sessiond.domain.gateway import chat_of
from sessiond.domain.reasons import Cause, Reason
from sessiond.service.calls import Passage
from sessiond.service.engines import ANYWHERE, Where

if TYPE_CHECKING:
    from sessiond.domain.continuation import Chat
    from sessiond.domain.engines import EngineInfo
    from sessiond.domain.ids import SessionId, TenantId
    from sessiond.service.calls import Call
    from sessiond.service.catalogue import Catalogue
    from sessiond.service.context import Context
    from sessiond.service.turns import Turns, TurnTicket

_log = logging.getLogger(__name__)

_MAX_SERVED: Final = 10_000


class Router:
    """Finds the way of each call."""

    def __init__(self, context: Context, catalogue: Catalogue, turns: Turns) -> None:
        self._context = context
        self._catalogue = catalogue
        self._turns = turns
        self._served: set[str] = set()  # models that turns have named with success

    async def where(self, call: Call) -> Where:
        """Return the engines that may take the call.

        :raises ResponseLostError: the one that had its ``previous_response_id`` is gone.
        :raises NotFoundError: that is another tenant's.
        """
        named = call.previous_response_id
        if not responseids.has_form(named):
            return ANYWHERE  # none, or not given by us: the engine says that it does not know it
        return Where(only=await self.engine_of(call.tenant, named))

    async def engine_of(self, tenant: TenantId, response_id: str) -> str:
        """Return the id of the engine that has a response of the tenant.

        :raises ResponseLostError: that engine is gone.
        :raises NotFoundError: it is no response of the tenant.
        """
        if not responseids.is_owned(self._context.store.keys, tenant, response_id):
            raise NotFoundError("There is no such response.")
        live = [one.engine_id for one in await self._context.engines.live()]
        engine_id = responseids.engine_of(response_id, live)
        if engine_id is None:
            raise ResponseLostError
        return engine_id

    async def passage(self, call: Call, where: Where) -> Passage:
        """Return the way of a call; a session that is new, or was deleted, is made.

        :raises OperationInProgressError: its session is being deleted.
        :raises UnavailableError: no engine can take it.
        """
        try:
            if call.session_id is None:
                return Passage(await self._choose(call.model, where))
            passage = await self._turn(call, call.session_id, where)
        except NoEngineError:
            engine = await self._any(call, where)
            if engine is None:
                raise
            return Passage(engine)  # it says itself that it does not know the model
        if len(self._served) < _MAX_SERVED:
            self._served.add(call.model)
        return passage

    async def _turn(self, call: Call, session_id: SessionId, where: Where) -> Passage:
        chat = chat_of(call.body) if call.continues else None
        unfit = Cause(Reason.NOT_FAITHFUL, chat) if isinstance(chat, str) else None
        fit = None if isinstance(chat, str) else chat
        try:
            ticket = await self._ticket(call, session_id, fit, where)
        except SessionNotFoundError:
            await self._create(call, session_id, where)
            ticket = await self._ticket(call, session_id, fit, where)
        return Passage(ticket.engine, ticket, unfit)

    async def _ticket(
        self, call: Call, session_id: SessionId, chat: Chat | None, where: Where
    ) -> TurnTicket:
        ticket = await self._turns.ticket(call.tenant, session_id, chat, call.model, where)
        # It goes through us, and what it restores is counted until its first token.
        self._context.restores.expect((call.tenant, session_id), None)
        return ticket

    async def _create(self, call: Call, session_id: SessionId, where: Where) -> None:
        await self._choose(call.model, where)  # a turn that nobody serves makes no session
        try:
            await self._catalogue.create(call.tenant, session_id, call.model)
        except SessionExistsError:
            _log.debug("two first turns of one session came at once")

    async def _choose(self, model: str, where: Where) -> EngineInfo:
        live = [one for one in await self._context.engines.live() if where.allows(one)]
        return await self._context.engines.choose(model, live=live)

    async def _any(self, call: Call, where: Where) -> EngineInfo | None:
        """Return some engine if the call's model was never heard of; one may just be gone."""
        if not call.model or call.model in self._served or await self._is_promised(call):
            return None
        live = await self._context.engines.live()
        able = [one for one in live if where.allows(one) and one.url]
        return min(able, key=lambda one: one.draining, default=None)

    async def _is_promised(self, call: Call) -> bool:
        """Whether the call's session was made for its model."""
        if call.session_id is None:
            return False
        get = self._context.registry.get_session
        try:
            session = await self._context.blocking(get, call.tenant, call.session_id)
        except SessionNotFoundError:
            return False
        return session.model == call.model
