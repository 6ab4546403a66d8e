"""Turns as their sessions' heads tell of them, and what a request's end leaves there."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from sessiond.connector.headbook import HeadBook
from sessiond.connector.headfiles import HeadFiles
from sessiond.connector.requests import FinishedRequest, TicketedRequest
from sessiond.connector.settlements import Settlements, answer
from sessiond.connector.turns import (
    continues_snapshot,
    is_side_call,
    last_turn,
    meet_head,
    turn_facts,
    unkept_turn,
)
from sessiond.domain.heads import Branch, Head
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tickets import TicketOp
from sessiond.domain.tokens import TokenIds

_DELETED = Cause(Reason.SESSION_DELETED, "its id is another session's")


class TurnBook:
    """Keeps the heads up to date, and has the mover write each change down."""

    def __init__(
        self,
        engine_id: str,
        chunk_tokens: int,
        heads: HeadBook,
        files: HeadFiles,
        settlements: Settlements,
    ) -> None:
        self._engine_id = engine_id
        self._chunk_tokens = chunk_tokens
        self._heads = heads
        self._files = files
        self._settlements = settlements

    def head(self, request: TicketedRequest) -> Head | None:
        """Return the head of a request's session, if it is known."""
        return self._heads.get(request.holder)

    def unfit_cause(self, request: TicketedRequest) -> Cause | None:
        """Why nothing may be kept or loaded for a request that was made for a deleted session."""
        return _DELETED if self._heads.is_of_deleted(request.holder) else None

    def begin(self, request: TicketedRequest, prompt: TokenIds[int]) -> None:
        """A turn has arrived."""
        head = self._heads.get(request.holder)
        request.known = meet_head(head, prompt, request.ticket.adapter_digest)
        self._write(self._heads.begin_turn(request.holder, time.time()))

    def pass_over(self, request: TicketedRequest, cause: Cause, prompt: TokenIds[int]) -> None:
        """A turn is served and not kept: if it is one of the conversation, it must be known."""
        head = self._heads.get(request.holder)
        if not is_side_call(head, request, prompt):
            turn = unkept_turn(cause, request.ticket.operation_id, time.time())
            self._write(self._heads.pass_turn(request.holder, turn))

    def end(self, request: TicketedRequest, finished: FinishedRequest) -> dict[str, Any]:
        """A turn has ended, or a resume: note what it left, and return its answer."""
        branch, timing = _branch(request, finished), request.watch.timing(request.split)
        facts = {
            "split": asdict(request.split),
            "generation": request.ticket.generation,
            "preemptions": finished.preemptions,
            "timing": timing.as_json(),
        }
        if request.ticket.op is TicketOp.TURN:
            turn = last_turn(request, timing, time.time(), self._chunk_tokens)
            known = continues_snapshot(request)
            holder, now = request.holder, time.time()
            head = self._heads.end_turn(holder, branch, now, turn, is_known=known)
            self._write(head)
            facts.update(turn_facts(turn))
            causes = turn.causes if head is not None else (*turn.causes, _DELETED)
            return answer(self._engine_id, request.ticket.op, facts, causes)
        if branch is not None:
            self._write(self._heads.add_branch(request.holder, branch, time.time()))
        return answer(self._engine_id, request.ticket.op, facts, request.causes)

    def lose(self, request: TicketedRequest) -> None:
        """A turn is over, and nobody told how it ended."""
        self._write(self._heads.end_turn(request.holder, None, time.time()))

    def forget_kv(self) -> None:
        """The KV of all heads is gone, or nobody may use it."""
        for head in self._heads.forget_all(time.time()):
            self._files.write(head)

    def tell_again(self) -> None:
        """Have all heads written anew: nobody knows which of them are."""
        self._files.begin_again(self._heads.all())

    def begin_heads(self, request: TicketedRequest) -> None:
        """Somebody waits until the heads of all that has ended are files."""
        self._files.try_again(self._heads.newest)
        request.awaited_head = self._files.newest

    def settle_heads(self, request: TicketedRequest, hindrance: Cause | None) -> None:
        """Tell who waits for the heads, if they are files; *hindrance*: they will not be soon."""
        if hindrance is None and not self._files.are_files(request.awaited_head):
            return
        key = request.holder.key if request.ticket.session else None
        cause = hindrance or self._files.failure(key)
        causes = [cause] if cause else []
        facts = {"heads_written": not causes}
        self._settlements.settle(request.ticket.operation_id, facts, causes)

    def _write(self, head: Head | None) -> None:
        if head is not None:
            self._files.write(head)


def _branch(request: TicketedRequest, finished: FinishedRequest) -> Branch | None:
    """Return what a request left: only tokens whose KV was computed, and one more."""
    tokens = finished.tokens
    if request.ticket.op is not TicketOp.TURN:
        tokens = tokens[: request.prompt_tokens]  # what it sampled is no part of the session
    if finished.aborted:
        tokens = tokens[: finished.computed_tokens + 1]
    if len(tokens) < 2 or finished.computed_tokens == 0:
        return None
    return Branch(
        tokens=tokens,
        adapter_digest=request.ticket.adapter_digest,
        cache_salt_hash=request.ticket.salt_hash,
        updated_unix_s=time.time(),
        split=request.split,
        adapter_name=request.adapter_name,
    )
