"""Whether the KV of a request may be kept, and stored KV be used for it: what it is made of."""

from __future__ import annotations

from sessiond.connector.requests import ArrivingRequest
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tickets import Ticket, TicketOp


def unfit_cause(ticket: Ticket, arriving: ArrivingRequest) -> Cause | None:
    """Return why nothing of a request may be kept or loaded; ``None`` if it may."""
    if not arriving.plain_text:
        return Cause(Reason.NOT_TEXT)
    adapter = arriving.adapter
    unproven = adapter.cause() if adapter else None
    if unproven is not None:
        return unproven
    live_digest = adapter.digest if adapter else ""
    if ticket.adapter_digest == live_digest:
        return None
    # The model of a turn is its client's choice; sessiond's own requests name the right adapter.
    is_turn = ticket.op is TicketOp.TURN
    return Cause(
        Reason.TICKET_FOR_ANOTHER_MODEL if is_turn else Reason.ADAPTER_MISMATCH,
        stored=ticket.adapter_digest or None,
        live=live_digest or None,
    )
