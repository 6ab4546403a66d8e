"""All decisions about ticketed requests, without vLLM: what to hold, load, store and answer.

The connector, the tier and the manager translate vLLM's calls into calls of the
:class:`Coordinator` and decide nothing. It runs on the scheduler's thread and never blocks.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from sessiond.connector.attest import RESET, Attestor, TierState
from sessiond.connector.awaited import Awaited, StartMover
from sessiond.connector.fitness import unfit_cause
from sessiond.connector.guard import guarded
from sessiond.connector.headbook import HeadBook
from sessiond.connector.limits import Limits
from sessiond.connector.loads import Loads
from sessiond.connector.mover import protocol
from sessiond.connector.mover.heads import message_of
from sessiond.connector.moverwatch import MAX_DEATHS, JobDone, MoverWatch
from sessiond.connector.requests import ArrivingRequest, FinishedRequest, Phase, TicketedRequest
from sessiond.connector.settlements import Settlements, answer
from sessiond.connector.suspends import Suspends, branch_to_suspend
from sessiond.connector.turns import (
    is_side_call,
    last_turn,
    meet_head,
    turn_facts,
    unkept_turn,
)
from sessiond.domain.errors import TicketError, TicketForgedError
from sessiond.domain.heads import Branch, Head, TurnSplit
from sessiond.domain.keys import salt_hash
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tickets import TICKET_PARAM, Ticket, TicketOp, verify
from sessiond.domain.tokens import TokenIds, whole_chunk_tokens

logger = logging.getLogger("vllm.sessiond.coordinator")

#: A new request waits at most this long for an engine that has nothing else to do.
_REST_S = 0.002
#: While the fingerprint is being taken, which may last minutes on the same cores.
_LONG_REST_S = 0.02
_WAITING_OPS = (TicketOp.COMMIT, TicketOp.OUTCOME, TicketOp.ATTEST)


class Coordinator:
    """The state of all ticketed requests of one engine."""

    def __init__(
        self,
        engine_id: str,
        ticket_key: bytes,
        limits: Limits,
        heads: HeadBook,
        start_mover: StartMover | Awaited,
    ) -> None:
        self._engine_id = engine_id
        self._ticket_key = ticket_key
        self._limits = limits
        self._heads = heads
        self._awaited = start_mover if isinstance(start_mover, Awaited) else None
        self._unsettled: Cause | None = None
        start = None if isinstance(start_mover, Awaited) else start_mover
        self._mover = MoverWatch(
            start, limits.job_deadline_s, self._mover_died, self._mover_replaced
        )
        self._settlements = Settlements()
        self._loads = Loads(limits, self._mover)
        self._suspends = Suspends(limits, self._mover, self._settlements)
        self._requests: dict[str, TicketedRequest] = {}
        self._rejected: dict[str, Cause] = {}
        self._plan_ids = itertools.count(1)
        self._head_ids = itertools.count(1)
        self.attestor = Attestor()
        self.on_tier_change: Callable[[TierState], None] | None = None
        self.tier_off: Cause | None = None

    # A request arrives

    def arrive(self, arriving: ArrivingRequest) -> None:
        """Take notice of a request; one without a ticket is none of our business."""
        text = (arriving.kv_transfer_params or {}).get(TICKET_PARAM)
        if text is None:
            return
        self.poll()  # a mover that died while nobody asked anything is replaced first
        self._sweep()
        try:
            ticket = self._verified(str(text), arriving)
        except TicketError as error:
            self._rejected[arriving.request_id] = Cause(Reason.TICKET_INVALID, error.message)
            return
        request = self._ticketed(ticket, arriving)
        unfit = unfit_cause(ticket, arriving)
        if unfit is not None and ticket.op not in _WAITING_OPS:
            self._pass(request, unfit, arriving.tokens)
            return
        self._requests[request.request_id] = request
        if ticket.op is TicketOp.TURN:
            head = self._heads.get(request.session_key)
            request.known = meet_head(head, arriving.tokens, ticket.adapter_digest)
            self._publish(self._heads.begin_turn(request.session_key, time.time()))
        if ticket.op is TicketOp.SUSPEND:
            self._begin_suspend(request, arriving)
        elif ticket.op not in _WAITING_OPS:
            self._begin_load(request, arriving)

    def _verified(self, text: str, arriving: ArrivingRequest) -> Ticket:
        ticket = verify(text, self._ticket_key, time.time())
        if ticket.engine_id != self._engine_id:
            raise TicketForgedError("The ticket is for another engine.")
        if ticket.salt_hash != salt_hash(arriving.cache_salt or ""):
            raise TicketForgedError("The request's cache_salt is not the ticket's.")
        return ticket

    def _ticketed(self, ticket: Ticket, arriving: ArrivingRequest) -> TicketedRequest:
        computable = max(0, len(arriving.tokens) - 1)
        return TicketedRequest(
            request_id=arriving.request_id,
            ticket=ticket,
            arrived_s=time.monotonic(),
            prompt_tokens=len(arriving.tokens),
            target_tokens=whole_chunk_tokens(computable, self._limits.chunk_tokens),
            adapter_name=arriving.adapter.name if arriving.adapter else "",
        )

    def _pass(self, request: TicketedRequest, cause: Cause, tokens: TokenIds[int]) -> None:
        """Keep and load nothing for a request; a turn is served as if it had no ticket."""
        if request.ticket.op is TicketOp.SUSPEND:
            self._requests[request.request_id] = request
            self._suspends.refuse(request, cause)
        elif request.ticket.op is TicketOp.RESUME:
            self._requests[request.request_id] = request
            request.held = True
            self._settle_resume(request, 0, [cause])
        else:
            self._rejected[request.request_id] = cause
            self._note_unkept(request, cause, tokens)

    def _note_unkept(self, request: TicketedRequest, cause: Cause, tokens: TokenIds[int]) -> None:
        """Note a turn of the conversation that is served and not kept: its session must know."""
        head = self._heads.get(request.session_key)
        if not is_side_call(head, request, tokens):
            turn = unkept_turn(cause, request.ticket.operation_id, time.time())
            self._publish(self._heads.pass_turn(request.session_key, turn))

    def _hindrance(self) -> Cause | None:
        """Return why nothing can be moved now."""
        return self.tier_off or self._moverless()

    def _moverless(self) -> Cause | None:
        """Return why there is no mover."""
        if self._mover.is_usable:
            return None
        return self._awaited.pending if self._awaited else Cause(Reason.MOVER_FAILED)

    def _begin_load(self, request: TicketedRequest, arriving: ArrivingRequest) -> None:
        hindrance = self._hindrance()
        if hindrance is not None:
            request.causes.append(hindrance)
        elif request.ticket.generation:
            self._loads.open(request, next(self._plan_ids), arriving.tokens)

    def _begin_suspend(self, request: TicketedRequest, arriving: ArrivingRequest) -> None:
        hindrance = self._hindrance()
        if hindrance is not None:
            self._suspends.refuse(request, hindrance)
            return
        head = self._heads.get(request.session_key)
        branch = branch_to_suspend(head, request, arriving.tokens)
        if isinstance(branch, Cause):
            self._suspends.refuse(request, branch)
        else:
            self._suspends.open(request, next(self._plan_ids), branch)

    # May vLLM schedule it now?

    def is_suspend(self, request_id: str) -> bool:
        """Whether the request hands its KV over."""
        request = self._requests.get(request_id)
        return request is not None and request.suspend is not None

    def may_match(self, request_id: str, vram_tokens: int) -> bool:
        """Whether vLLM may look for the request's KV now; otherwise it is held."""
        request = self._requests.get(request_id)
        if request is None:
            return True
        self.poll()
        now_s = time.monotonic()
        if self._is_overdue(request):
            return True
        if request.ticket.op is TicketOp.ATTEST:
            self._attest(request)
        if request.ticket.op in _WAITING_OPS:
            return request.ticket.operation_id in self._settlements
        if request.held:
            return False
        if request.ticket.op is TicketOp.SUSPEND:
            return self._suspends.is_ready(request, now_s)
        return self._loads.is_ready(request, vram_tokens, now_s)

    def matched(self, request_id: str, vram_tokens: int, external_tokens: int) -> bool:
        """Whether a request may go on with what vLLM found. A suspend or resume that lacks KV
        may not, unless its ticket lets it compute: nothing is computed for it, its sender learns
        from the settlement how much is there, cancels it and may ask for less.
        """
        request = self._requests.get(request_id)
        if request is None:
            return True
        request.vram_tokens, request.newly_matched = vram_tokens, True
        available = vram_tokens + external_tokens
        lacking = available < request.target_tokens
        if request.ticket.op is TicketOp.RESUME and lacking and not request.settled:
            # One that lacks nothing tells the rest itself: its companion would cost a forward
            # pass, and is cancelled instead.
            self._settle_resume(request, available)
            request.held = True
        elif request.ticket.op is TicketOp.SUSPEND and lacking:
            if self._suspends.recomputes(request, request.target_tokens - available):
                return True
            facts = {"committed": False, "available_tokens": available}
            causes = [*request.causes, Cause(Reason.KV_EVICTED)]
            self._settlements.settle(request.ticket.operation_id, facts, causes)
            request.held = True
        return not request.held or self._is_overdue(request)

    def _is_overdue(self, request: TicketedRequest) -> bool:
        # Whoever should have cancelled it forgot it: better served late than never.
        return time.monotonic() > request.arrived_s + self._limits.hold_deadline_s

    def _settle_resume(
        self, request: TicketedRequest, tokens: int, causes: Sequence[Cause] = ()
    ) -> None:
        request.settled = True
        self._settlements.settle(
            request.ticket.operation_id, {"loadable_tokens": tokens}, [*request.causes, *causes]
        )

    def scheduled(self, request_id: str, external_tokens: int) -> None:
        """Note that vLLM gave the request its blocks; *external_tokens* come from RAM or disk."""
        request = self._requests.get(request_id)
        if request is None or not request.newly_matched:
            return  # vLLM schedules it once more when an asynchronous load is over
        request.newly_matched = False
        self._loads.scheduled(request, external_tokens)
        disk_tokens = self._disk_tokens(request, external_tokens)
        request.split = TurnSplit(
            prompt_tokens=request.prompt_tokens,
            vram_tokens=request.vram_tokens,
            ram_tokens=external_tokens - disk_tokens,
            disk_tokens=disk_tokens,
        )

    def _disk_tokens(self, request: TicketedRequest, external_tokens: int) -> int:
        """Return how many of the tokens beyond VRAM's came from disk.

        VRAM may end inside a chunk: its blocks are smaller than chunks on most platforms.
        """
        size = self._limits.chunk_tokens
        begin, end = request.vram_tokens, request.vram_tokens + external_tokens
        loaded = request.load.from_disk if request.load else frozenset[int]()
        chunks = {self._limits.groups.position(number) for number in loaded}
        return sum(
            max(0, min((chunk + 1) * size, end) - max(chunk * size, begin)) for chunk in chunks
        )

    # Chunks move

    def offers(self, request_id: str, chunk: int) -> bool:
        """Whether a chunk can come from disk for this request."""
        request = self._requests.get(request_id)
        if request is None or self.tier_off is not None:
            return False
        return self._loads.offers(request, chunk)

    def keeps_promoted(self, request_id: str) -> bool:
        """Whether promoted chunks of the request must stay in RAM until they are copied."""
        request = self._requests.get(request_id)
        if request is None or request.load is None or request.finished:
            return False
        return request.load.phase is not Phase.CLOSED

    def load(self, job_id: int, request_id: str, items: Iterable[tuple[int, int]]) -> None:
        """Read chunks from disk: pairs of (chunk number, slot)."""
        request = self._requests.get(request_id)
        if request is None:
            self._mover.report(JobDone(job_id, frozenset(), all_good=False))
        else:
            self._loads.start(request, job_id, [list(item) for item in items])

    def storable(self, request_id: str, chunks: Sequence[int]) -> frozenset[int]:
        """Return those of a suspend's chunks that are worth handing over."""
        request = self._requests.get(request_id)
        return frozenset() if request is None else self._suspends.storable(request, chunks)

    def store(self, job_id: int, request_id: str, items: Iterable[tuple[int, int]]) -> None:
        """Write chunks: pairs of (chunk number, slot). Without a suspend, a no-op."""
        request = self._requests.get(request_id)
        if request is None or request.suspend is None:
            self._mover.report(JobDone(job_id, frozenset(), all_good=True))
        else:
            self._suspends.start(request, job_id, [list(item) for item in items])

    @property
    def limits(self) -> Limits:
        """Sizes and deadlines."""
        return self._limits

    def in_vram(self, request_id: str) -> None:
        """The request's chunks were copied from RAM to VRAM."""
        request = self._requests.get(request_id)
        if request is not None:
            self._loads.in_vram(request)

    def take_done(self) -> list[JobDone]:
        """Return the jobs that ended since the last call."""
        self.poll()
        return self._mover.take_done()

    def has_work(self) -> bool:
        """Whether the engine must keep stepping for us."""
        return self._mover.has_work or self._awaited is not None

    # A request ends

    def finish(self, finished: FinishedRequest) -> dict[str, Any] | None:
        """Take notice of a request's end and return what its answer carries from us."""
        rejected = self._rejected.pop(finished.request_id, None)
        if rejected is not None:
            return answer(self._engine_id, "", {}, [rejected], ok=False)
        request = self._requests.get(finished.request_id)
        if request is None:
            return None
        request.finished = True
        if request.ticket.op in _WAITING_OPS:
            return self._settled_answer(request)
        if request.suspend is not None:
            request.suspend.finished_well = not finished.aborted
        if request.ticket.op is TicketOp.SUSPEND:
            return answer(self._engine_id, request.ticket.op, {}, request.causes)
        return self._finish_turn(request, finished)

    def _finish_turn(self, request: TicketedRequest, finished: FinishedRequest) -> dict[str, Any]:
        self.poll()  # while a turn is warm, nobody waits for what the mover has found for it
        branch = _branch(request, finished)
        facts = {
            "split": asdict(request.split),
            "generation": request.ticket.generation,
            "preemptions": finished.preemptions,
        }
        if request.ticket.op is TicketOp.TURN:
            turn = last_turn(request, time.time())
            self._publish(self._heads.end_turn(request.session_key, branch, time.time(), turn))
            facts.update(turn_facts(turn))
            return answer(self._engine_id, request.ticket.op, facts, turn.causes)
        if branch is not None:
            self._publish(self._heads.add_branch(request.session_key, branch, time.time()))
        if request.ticket.op is TicketOp.RESUME and finished.aborted and not request.settled:
            self._settle_resume(request, 0, [Cause(Reason.ABORTED)])
        return answer(self._engine_id, request.ticket.op, facts, request.causes)

    def _settled_answer(self, request: TicketedRequest) -> dict[str, Any]:
        settlement = self._settlements.take(request.ticket.operation_id)
        if settlement is None:
            nothing = {"committed": False, "available_tokens": 0, "loadable_tokens": 0}
            late = [Cause(Reason.DEADLINE, "nothing settled")]
            return answer(self._engine_id, request.ticket.op, nothing, late, ok=False)
        return answer(self._engine_id, request.ticket.op, settlement.facts, settlement.causes)

    def submits_over(self, request_id: str) -> None:
        """No more chunks of this request will come; the last call for it."""
        self._rejected.pop(request_id, None)
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        if request.ticket.op is TicketOp.TURN and not request.finished:
            self._publish(self._heads.end_turn(request.session_key, None, time.time()))
        self._loads.close(request)
        self._suspends.submits_over(request, may_commit=self.tier_off is None)

    def _sweep(self) -> None:
        """Let go of requests whose end we were told of in part: an override of ours failed."""
        oldest_s = time.monotonic() - 2 * self._limits.hold_deadline_s
        over = [
            request.request_id
            for request in self._requests.values()
            if request.finished and request.arrived_s < oldest_s
        ]
        for request_id in over:
            self.submits_over(request_id)

    # The mover, and the end

    def poll(self) -> None:
        """Handle the mover's answers, its hanging and its death."""
        if self._awaited is not None:
            self._meet(self._awaited.look())
        for message in self._mover.poll():
            if not self._handled(message):
                self._give_up(message)
        if self._unsettled is not None and not self._mover.awaits_answer:
            self._unsettled = None  # heads of before are files now: nobody misses them
            self._tell_tier()

    @guarded(False)  # noqa: FBT003 - the value returned instead of raising
    def _handled(self, message: protocol.Message) -> bool:
        # Guarded one by one: an answer that cannot be handled must not cost the ones after it.
        match message:
            case protocol.LoadOpened():
                self._loads.opened(message)
            case protocol.LoadDone():
                self._loads.done(message)
            case protocol.SuspendOpened():
                self._suspends.opened(message)
            case protocol.StoreDone():
                self._suspends.stored(message)
            case protocol.SuspendFinished():
                self._suspends.finished(message)
        return True

    @guarded(None)
    def _give_up(self, message: protocol.Message) -> None:
        # A job whose end nobody is told of would keep its slots for ever.
        if isinstance(message, protocol.LoadDone | protocol.StoreDone):
            self._loads.forget(message.job_id)
            if self._mover.end(message.job_id) is not None:
                self._mover.report(JobDone(message.job_id, frozenset(), all_good=False))

    def _meet(self, awaited: StartMover | Cause | None) -> None:
        """The engine's fingerprint is known, or why it will not be."""
        if awaited is None or self._awaited is None:
            return
        self._unsettled, self._awaited = self._awaited.pending, None
        if isinstance(awaited, Cause):
            self.tier_off = awaited  # whatever it was off for: no attestation helps any more
            self._unsettled = None
            self.turn_off(awaited)
        else:
            self._mover.start(awaited)

    def _mover_died(self) -> None:
        self._loads.lose()
        self._suspends.lose()
        if self._mover.deaths >= MAX_DEATHS:
            self.turn_off(Cause(Reason.MOVER_FAILED, f"{self._mover.deaths} times"))

    def _mover_replaced(self) -> None:
        # What the dead one was told last may not have become a file: a turn that has ended
        # would count as running for ever.
        for head in self._heads.all():
            self._publish(head)

    def rest(self) -> None:
        """After a step that scheduled nothing: wait a moment instead of asking again at once.

        Otherwise the polling engine takes the cores that the mover needs.
        """
        if self._awaited is not None:
            self._awaited.wait(_LONG_REST_S)
            return
        waiting = any(
            request.held or request.ticket.op in _WAITING_OPS for request in self._requests.values()
        )
        if waiting or self._mover.awaits_answer:
            self._mover.wait(_REST_S)

    def drain(self) -> None:
        """Block until no job is left and no commit can happen; their deadlines bound it."""
        while self._mover.has_jobs or self._suspends.are_ending:
            self.poll()
            time.sleep(0.001)

    def end_jobs(self) -> None:
        """End every job, and the mover with them: for when they cannot be waited for."""
        self._mover.end_jobs()

    def close(self) -> None:
        """End the mover."""
        self._mover.close()

    def caches_reset(self, *, emptied: bool) -> None:
        """The engine's caches are reset, so its weights may have changed."""
        self.attestor.note_reset(emptied=emptied)
        self.turn_off(RESET)

    def turn_off(self, cause: Cause) -> None:
        """Weights or caches may have changed: nothing is loaded, nothing begun is committed."""
        if self.tier_off is None:
            logger.warning("sessiond: the snapshot tier is off: %s", cause)
        self.tier_off = self.tier_off or cause  # first of all: what follows might fail
        self._tell_tier()
        for request in self._requests.values():
            self._loads.close(request, cause)
        self._suspends.discard(cause)
        for head in self._heads.forget_all(time.time()):
            self._publish(head)

    def _attest(self, request: TicketedRequest) -> None:
        if request.ticket.operation_id in self._settlements:
            return
        causes = self.attestor.judge(request, self._moverless() or self.tier_off)
        if causes is None:
            return
        if not causes and self.tier_off is not None:
            logger.warning("sessiond: the snapshot tier is on again: an operator attests")
            self.tier_off = None
            self._tell_tier()
        facts = {"tier_on": self.tier_off is None}
        self._settlements.settle(request.ticket.operation_id, facts, causes)

    def _tell_tier(self) -> None:
        if self.on_tier_change is not None:
            pending = self._awaited.pending if self._awaited else self._unsettled
            self.on_tier_change(self.attestor.state(self.tier_off or pending))

    def _publish(self, head: Head) -> None:
        self._mover.ask(message_of(head, next(self._head_ids)))


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
