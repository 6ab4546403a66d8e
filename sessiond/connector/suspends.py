"""Suspends: from the request that hands KV over to the committed manifest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sessiond.connector.limits import Limits
from sessiond.connector.mover import protocol
from sessiond.connector.moverwatch import JobDone, MoverWatch
from sessiond.connector.requests import SuspendState, TicketedRequest
from sessiond.connector.settlements import Settlements
from sessiond.domain.heads import Branch, Head
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tokens import TokenIds, head_digest, to_bytes


class Suspends:
    """The plans of all suspend requests."""

    def __init__(self, limits: Limits, mover: MoverWatch, settlements: Settlements) -> None:
        self._limits = limits
        self._mover = mover
        self._settlements = settlements
        self._open: dict[int, TicketedRequest] = {}

    def open(self, request: TicketedRequest, plan_id: int, branch: Branch) -> None:
        """Ask the mover how much of the branch is durable already."""
        ticket = request.ticket
        deadline_s = request.arrived_s + self._limits.plan_deadline_s
        request.suspend = SuspendState(plan_id, deadline_s)
        self._open[plan_id] = request
        self._mover.ask(
            protocol.OpenSuspend(
                plan_id=plan_id,
                tenant=ticket.tenant,
                session=ticket.session,
                generation=ticket.generation,
                adapter_digest=branch.adapter_digest,
                payload=to_bytes(branch.tokens),
            )
        )

    def refuse(self, request: TicketedRequest, cause: Cause) -> None:
        """Hold the request and tell who waits for it; nothing is stored."""
        request.held = True
        self._settlements.settle_lost(request.ticket.operation_id, [*request.causes, cause])

    def opened(self, message: protocol.SuspendOpened) -> None:
        """The mover has opened a plan, or says why it cannot."""
        request = self._open.get(message.plan_id)
        if request is None or request.suspend is None:
            return
        if message.causes:
            self.refuse(request, Cause.from_json(message.causes[0]))
            return
        request.suspend.opened = True
        request.suspend.durable_chunks = frozenset(message.durable_chunks)

    def is_ready(self, request: TicketedRequest, now_s: float) -> bool:
        """Whether vLLM may look for the request's KV now."""
        suspend = request.suspend
        if suspend is None or suspend.opened:
            return True
        if now_s > suspend.deadline_s:
            self.refuse(request, Cause(Reason.DEADLINE, "opening the suspend"))
        return False

    def recomputes(self, request: TicketedRequest, lacking_tokens: int) -> bool:
        """Whether a request that lacks so many tokens' KV may compute it again."""
        suspend = request.suspend
        if suspend is None or request.held or not request.ticket.recomputes:
            return False
        # A preempted one is looked up once more, and may lack more.
        suspend.recomputed_tokens = max(suspend.recomputed_tokens, lacking_tokens)
        return True

    def storable(self, request: TicketedRequest, chunks: Sequence[int]) -> frozenset[int]:
        """Return those chunks that are not durable and, the first ones, fit the RAM tier."""
        suspend = request.suspend
        if suspend is None or not self._can_write(request, suspend):
            return frozenset()
        asked = self._limits.chunks_of(request.target_tokens)
        missing = sorted(chunk for chunk in set(chunks) - suspend.durable_chunks if chunk in asked)
        return frozenset(missing[: self._limits.ram_chunks])

    def start(self, request: TicketedRequest, job_id: int, items: list[list[int]]) -> None:
        """Write chunks from slots: pairs of (chunk number, slot)."""
        suspend = request.suspend
        if suspend is None or not self._can_write(request, suspend):
            self._mover.report(JobDone(job_id, frozenset(), all_good=False))
            return
        # vLLM offers the chunk of the one sampled token too, if it completes one.
        asked = self._limits.chunks_of(request.target_tokens)
        kept = sorted(item for item in items if item[0] in asked)
        self._mover.begin(job_id, frozenset(chunk for chunk, _ in kept))
        self._mover.ask(protocol.Store(job_id, suspend.plan_id, kept))

    def stored(self, message: protocol.StoreDone) -> None:
        """The mover needs the slots of a job no more."""
        chunks = self._mover.end(message.job_id)
        if chunks is not None:
            good = frozenset[int]() if message.causes else chunks
            self._mover.report(JobDone(message.job_id, good, not message.causes))

    def submits_over(self, request: TicketedRequest, *, may_commit: bool) -> None:
        """No more chunks will come: commit, or discard everything."""
        suspend = request.suspend
        if suspend is None or not self._is_open(suspend):
            return
        commit = may_commit and suspend.finished_well and suspend.opened and not request.held
        if not commit:
            aborted = [Cause(Reason.ABORTED)] if may_commit else []  # else a cause says why
            self._settlements.settle_lost(request.ticket.operation_id, [*request.causes, *aborted])
        suspend.ending = suspend.opened  # of one that was never opened nothing can be committed
        self._mover.ask(protocol.FinishSuspend(suspend.plan_id, commit))

    def finished(self, message: protocol.SuspendFinished) -> None:
        """The mover has committed, or not."""
        request = self._open.pop(message.plan_id, None)
        if request is None:
            return
        causes = [Cause.from_json(cause) for cause in message.causes]
        facts: dict[str, Any] = {
            "committed": message.snapshot is not None,
            "available_tokens": request.target_tokens,
            "recomputed_tokens": request.suspend.recomputed_tokens if request.suspend else 0,
            **(message.snapshot or {}),
        }
        operation_id = request.ticket.operation_id
        self._settlements.settle(operation_id, facts, [*request.causes, *causes])

    def discard(self, cause: Cause) -> None:
        """Let nothing be committed that was begun; what was committed already stays."""
        for plan_id, request in self._open.items():
            request.causes.append(cause)
            if request.suspend is not None and request.suspend.ending:
                # The mover tells how it ended: it may be too late for it to discard.
                self._mover.tell(protocol.DiscardSuspend(plan_id))
            else:
                self.refuse(request, cause)

    @property
    def are_ending(self) -> bool:
        """Whether the mover still has to tell how some suspend ended."""
        return any(r.suspend is not None and r.suspend.ending for r in self._open.values())

    def lose(self) -> None:
        """The mover has died: what it had begun is lost."""
        for request in self._open.values():
            self.refuse(request, Cause(Reason.MOVER_FAILED))
        self._open.clear()

    def _can_write(self, request: TicketedRequest, suspend: SuspendState) -> bool:
        return suspend.opened and not request.held and self._is_open(suspend)

    def _is_open(self, suspend: SuspendState) -> bool:
        return suspend.plan_id in self._open and self._mover.is_usable


def branch_to_suspend(
    head: Head | None, request: TicketedRequest, prompt: TokenIds[int]
) -> Branch | Cause:
    """Return the branch that the ticket means, or why it cannot be suspended now."""
    if head is not None and head.turns_in_flight:
        return Cause(Reason.TURN_IN_FLIGHT)
    unkept = head.unkept_cause if head else None
    if unkept is not None:
        return unkept
    ticket = request.ticket
    for branch in head.branches if head else ():
        same = (
            len(branch.tokens) == ticket.head_tokens
            and head_digest(branch.tokens) == ticket.head_digest
            and branch.tokens[: len(prompt)] == prompt
            # Two branches may have the same tokens, and KV of another adapter or salt.
            and branch.adapter_digest == ticket.adapter_digest
            and branch.cache_salt_hash == ticket.salt_hash
        )
        if same:
            return branch
    return Cause(Reason.HEAD_STALE)
