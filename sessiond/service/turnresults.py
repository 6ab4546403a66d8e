"""What became of turns that went through the gateway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Final

from sessiond.domain.errors import InvalidInputError, SessiondError
from sessiond.domain.gateway import PARAMS_FIELD, answered_body
from sessiond.domain.heads import LastTurn
from sessiond.domain.jsonbody import parse_body
from sessiond.domain.tickets import ANSWER_PARAM
from sessiond.domain.turnoutcome import TurnOutcome, outcome_of_turn
from sessiond.engine.answers import read_answer
from sessiond.service.bodies import by_size
from sessiond.service.headwatch import HeadWatch, tells_of
from sessiond.service.reports import problem_of
from sessiond.service.turntrail import Told

if TYPE_CHECKING:
    from sessiond.domain.heads import Head
    from sessiond.service.calls import Passage
    from sessiond.service.catalogue import Catalogue
    from sessiond.service.context import Context

_log = logging.getLogger(__name__)

#: A look at a file that takes so long will not come back: nobody waits for a drive that hangs.
_HANGS_S: Final = 5.0


class TurnResults:
    """Tells only what is proven to be of the turn."""

    def __init__(self, context: Context, catalogue: Catalogue) -> None:
        self._context = context
        self._catalogue = catalogue
        self._heads = HeadWatch(context)

    async def recorded(self, passage: Passage) -> TurnOutcome:
        """Return what became of a turn that has ended, as the engine's record tells.

        A record has the newest turn alone: of two that end at once, one stays unknown. The
        session's trail gets the turn, too.
        """
        ticket = passage.ticket
        if ticket is None:
            return TurnOutcome()
        settle_s, ended_unix_s = self._context.limits.turn_settle_s, self._context.now()
        turn_id = ticket.permit.operation_id
        until_s = monotonic() + settle_s

        def is_enough(head: Head | None) -> bool:
            now_s = monotonic()
            known = now_s - passage.begun_s >= settle_s
            late = now_s >= until_s
            return late or tells_of(head, turn_id) or _is_over(head, ended_unix_s, known=known)

        key = ticket.session.tenant, ticket.session.session_id
        try:
            async with asyncio.timeout(settle_s + _HANGS_S):
                head = await self._heads.wait(key, ticket.engine.engine_id, is_enough)
        except TimeoutError:
            return TurnOutcome()
        if head is None or head.last_turn is None or not tells_of(head, turn_id):
            return TurnOutcome()
        self._catalogue.trail.note_soon(ticket.session, head)
        return outcome_of_turn(head.last_turn, passage.engine.chunk_tokens)

    async def answered(self, passage: Passage, data: bytes) -> tuple[bytes, TurnOutcome | None]:
        """Return an answer as it would be without a ticket, and what it tells of its turn.

        The session's trail gets the turn, too. Other calls go on while a large one is read.
        ``None``: nothing is told, as after a stop string, or it is none of the answers we know.
        """
        data, params = await by_size(self._context.blocking, len(data), _opened, data)
        return data, self._told(passage, params) if params is not None else None

    def _told(self, passage: Passage, params: Mapping[str, object]) -> TurnOutcome:
        turn, ticket = _turn_of(params), passage.ticket
        if turn.ended_unix_s and ticket is not None:
            named = replace(turn, turn_id=ticket.permit.operation_id)
            self._catalogue.trail.note_soon(ticket.session, Told(passage.engine.engine_id, named))
        return outcome_of_turn(turn, passage.engine.chunk_tokens)

    async def broken(self, passage: Passage, error: SessiondError) -> None:
        """Leave a trace of a turn whose engine was lost."""
        engine_id, ticket = passage.engine.engine_id, passage.ticket
        _log.warning("engine %s was lost while it answered", engine_id)
        if ticket is None:
            return
        session, now = ticket.session, self._context.now()
        turn_id = ticket.permit.operation_id
        detail = {"engine_id": engine_id, "turn_id": turn_id, **problem_of(error)}
        add = self._context.registry.add_event
        try:
            await self._context.blocking(
                add, session.tenant, session.session_id, "turn_broken", now, detail
            )
        except SessiondError as unwritten:
            _log.warning("a broken turn left no trace in the registry: %s", unwritten.message)


def _opened(data: bytes) -> tuple[bytes, Mapping[str, object] | None]:
    """Return an answer without what its ``kv_transfer_params`` tell us, and all of these."""
    try:
        body = parse_body(data)
    except InvalidInputError:
        return data, None
    params = body.get(PARAMS_FIELD)
    if not isinstance(params, Mapping) or not isinstance(params.get(ANSWER_PARAM), Mapping):
        return data, None
    return answered_body(body), params


def _turn_of(params: Mapping[str, object]) -> LastTurn:
    answer = read_answer({"kv_transfer_params": params})
    ended_unix_s = answer.fields.get("ended_unix_s")
    return LastTurn(
        ended_unix_s=ended_unix_s if isinstance(ended_unix_s, float) else 0.0,
        split=answer.split if "split" in answer.fields else None,
        tokens_total=_count(answer.fields.get("tokens_total")) or 0,
        tokens_restorable=_count(answer.fields.get("tokens_restorable")) or 0,
        diverged_at_token=_count(answer.fields.get("diverged_at_token")),
        causes=answer.causes,
        timing=answer.timing,
    )


def _is_over(head: Head | None, ended_unix_s: float, *, known: bool) -> bool:
    """Whether a head that does not tell of a turn never will.

    :param ended_unix_s: when the turn's answer had ended
    :param known: whether a head tells of the turn's beginning, if any ever does
    """
    if head is None or not head.turns_in_flight:
        return known
    return head.last_turn is not None and head.last_turn.ended_unix_s > ended_unix_s


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
