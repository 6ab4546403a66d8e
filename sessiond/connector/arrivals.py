"""From the ticket on an arriving request to what is kept of it."""

from __future__ import annotations

import time

from sessiond.connector.limits import Limits
from sessiond.connector.requests import ArrivingRequest, TicketedRequest
from sessiond.connector.timing import Steps, Stopwatch
from sessiond.domain.errors import TicketForgedError
from sessiond.domain.keys import salt_hash
from sessiond.domain.tickets import Ticket, verify
from sessiond.domain.tokens import whole_chunk_tokens


class Desk:
    """Verifies tickets for one engine."""

    def __init__(self, engine_id: str, ticket_key: bytes, limits: Limits, steps: Steps) -> None:
        self._engine_id = engine_id
        self._ticket_key = ticket_key
        self._limits = limits
        self._steps = steps

    def verified(self, text: str, arriving: ArrivingRequest) -> Ticket:
        """Return the ticket.

        :raises TicketError: it is not valid for this request here and now.
        """
        ticket = verify(text, self._ticket_key, time.time())
        if ticket.engine_id != self._engine_id:
            raise TicketForgedError("The ticket is for another engine.")
        if ticket.salt_hash != salt_hash(arriving.cache_salt or ""):
            raise TicketForgedError("The request's cache_salt is not the ticket's.")
        return ticket

    def ticketed(self, ticket: Ticket, arriving: ArrivingRequest) -> TicketedRequest:
        """Return what is kept of a request; its stopwatch runs."""
        prompt_tokens = len(arriving.tokens)
        computable = max(0, prompt_tokens - 1)
        return TicketedRequest(
            request_id=arriving.request_id,
            ticket=ticket,
            arrived_s=time.monotonic(),
            prompt_tokens=prompt_tokens,
            target_tokens=whole_chunk_tokens(computable, self._limits.chunk_tokens),
            watch=Stopwatch(self._steps.mark, prompt_tokens, arriving.computed),
            adapter_name=arriving.adapter.name if arriving.adapter else "",
        )
