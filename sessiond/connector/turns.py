"""What a turn met, and how it went: for its answer and for the session's head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sessiond.connector.requests import TicketedRequest
from sessiond.connector.settlements import without_repeats
from sessiond.domain.divergence import Meeting, closest, meet
from sessiond.domain.heads import Branch, Head, LastTurn, TurnSplit, may_be_main
from sessiond.domain.outcomes import Outcome
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tickets import Ticket
from sessiond.domain.timing import TurnTiming
from sessiond.domain.tokens import TokenIds
from sessiond.domain.turnoutcome import outcome_of_turn


def meet_head(head: Head | None, prompt: TokenIds[int], adapter_digest: str = "") -> Meeting | None:
    """Compare a prompt with the branch of its adapter that it has the most in common with."""
    branches = head.branches if head else ()
    alike = (one for one in branches if one.adapter_digest == adapter_digest)
    return closest(meet(prompt, one.tokens) for one in alike)


def is_side_call(head: Head | None, request: TicketedRequest, prompt: TokenIds[int]) -> bool:
    """Whether a turn that is not kept would not have been one of the conversation itself.

    Judged as if it were kept, not by how the prompt begins: some models put images first.
    """
    ticket, nothing = request.ticket, TurnSplit(len(prompt), 0)
    branch = Branch(prompt, ticket.adapter_digest, ticket.salt_hash, 0.0, nothing)
    return head is not None and not may_be_main(head, branch)


def continues_snapshot(request: TicketedRequest) -> bool:
    """Whether a turn goes on from the snapshot that its ticket names, as far as is known."""
    snapshot = request.load.snapshot if request.load else None
    return snapshot is not None and snapshot.goes_on


def last_turn(
    request: TicketedRequest, timing: TurnTiming, now_unix_s: float, chunk_tokens: int
) -> LastTurn:
    """Return how a turn that ends now went."""
    load = request.load
    snapshot = load.snapshot if load else None
    met = closest(one for one in (request.known, snapshot) if one is not None)
    diverged_at_token = met.diverged_at_token if met else None
    causes = without_repeats(request.causes)
    if diverged_at_token is not None:
        causes.append(Cause(Reason.DIVERGED, detail=f"at token {diverged_at_token}"))
    turn = LastTurn(
        ended_unix_s=now_unix_s,
        split=request.split,
        tokens_total=met.tokens_total if met else 0,
        tokens_restorable=load.tokens_restorable if load else 0,
        diverged_at_token=diverged_at_token,
        causes=tuple(causes),
        turn_id=request.ticket.operation_id,
        timing=timing,
    )
    return explained(turn, request.ticket, chunk_tokens)


def explained(turn: LastTurn, ticket: Ticket, chunk_tokens: int) -> LastTurn:
    """Return a turn with what its ticket's sender knew, if it did not use all of its context."""
    if outcome_of_turn(turn, chunk_tokens).outcome in (Outcome.WARM, Outcome.RESTORED):
        return turn
    return replace(turn, causes=tuple(without_repeats((*turn.causes, *ticket.known_causes))))


def unkept_turn(cause: Cause, turn_id: str, now_unix_s: float) -> LastTurn:
    """Return what is told of a turn that is served and not kept."""
    # It ends without us, so nobody tells where its tokens came from.
    return LastTurn(ended_unix_s=now_unix_s, split=None, causes=(cause,), turn_id=turn_id)


def turn_facts(turn: LastTurn) -> dict[str, Any]:
    """Return what a turn's answer tells beside its split."""
    return {
        "tokens_total": turn.tokens_total,
        "tokens_restorable": turn.tokens_restorable,
        "diverged_at_token": turn.diverged_at_token,
        "ended_unix_s": turn.ended_unix_s,
    }
