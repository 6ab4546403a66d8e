"""All decisions about ticketed requests, without vLLM: what to hold, load, store and answer.

The connector, the tier and the manager translate vLLM's calls into calls of the
:class:`Coordinator` and decide nothing. It runs on the scheduler's thread and never blocks.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from typing import Any

from sessiond.connector.arrivals import Desk
from sessiond.connector.attest import RESET
from sessiond.connector.awaited import Awaited, StartMover
from sessiond.connector.fitness import unfit_cause
from sessiond.connector.guard import guarded
from sessiond.connector.headbook import HeadBook
from sessiond.connector.headfiles import HeadFiles
from sessiond.connector.limits import Limits
from sessiond.connector.loads import Loads
from sessiond.connector.mover import protocol
from sessiond.connector.moverwatch import MAX_DEATHS, JobDone, MoverWatch
from sessiond.connector.requests import ArrivingRequest, FinishedRequest, Phase, TicketedRequest
from sessiond.connector.settlements import Settlements, answer
from sessiond.connector.splits import confirmed, split_of
from sessiond.connector.suspends import Suspends, branch_to_suspend
from sessiond.connector.tierswitch import TierSwitch
from sessiond.connector.timing import Steps
from sessiond.connector.turnbook import TurnBook
from sessiond.domain.errors import TicketError
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tickets import TICKET_PARAM, TicketOp
from sessiond.domain.tokens import TokenIds

#: A new request waits at most this long for an engine that has nothing else to do.
_REST_S = 0.002
#: While the fingerprint is being taken, or a mover is being started, on the same cores.
_LONG_REST_S = 0.02
_WAITING_OPS = (TicketOp.COMMIT, TicketOp.OUTCOME, TicketOp.ATTEST, TicketOp.HEADS)


class Coordinator:
    """The state of all ticketed requests of one engine.

    :ivar limits: sizes and deadlines
    :ivar tier: whether anything may be moved
    :ivar steps: has to be told of each of the engine's steps
    """

    def __init__(
        self,
        engine_id: str,
        ticket_key: bytes,
        limits: Limits,
        heads: HeadBook,
        start_mover: StartMover | Awaited,
    ) -> None:
        self._engine_id = engine_id
        self.limits = limits
        awaited = start_mover if isinstance(start_mover, Awaited) else None
        start = None if isinstance(start_mover, Awaited) else start_mover
        self._mover = MoverWatch(
            start, limits.job_deadline_s, self._mover_died, self._mover_replaced
        )
        self._settlements = Settlements()
        self.tier = TierSwitch(self._mover, self._settlements, awaited)
        self.steps = Steps()
        self._desk = Desk(engine_id, ticket_key, limits, self.steps)
        self._head_files = HeadFiles(self._mover)
        self._turns = TurnBook(
            engine_id, limits.chunk_tokens, heads, self._head_files, self._settlements
        )
        self._loads = Loads(limits, self._mover)
        self._suspends = Suspends(limits, self._mover, self._settlements)
        self._requests: dict[str, TicketedRequest] = {}
        self._rejected: dict[str, Cause] = {}
        self._plan_ids = itertools.count(1)

    # A request arrives

    def arrive(self, arriving: ArrivingRequest) -> None:
        """Take notice of a request; one without a ticket is none of our business."""
        text = (arriving.kv_transfer_params or {}).get(TICKET_PARAM)
        if text is None:
            return
        self.poll()  # a mover that died while nobody asked anything is replaced first
        self._sweep()
        try:
            ticket = self._desk.verified(str(text), arriving)
        except TicketError as error:
            self._rejected[arriving.request_id] = Cause(Reason.TICKET_INVALID, error.message)
            return
        request = self._desk.ticketed(ticket, arriving)
        unfit = unfit_cause(ticket, arriving) or self._turns.unfit_cause(request)
        if unfit is not None and ticket.op not in _WAITING_OPS:
            self._pass(request, unfit, arriving.tokens)
            return
        self._requests[request.request_id] = request
        if ticket.op is TicketOp.TURN:
            self._turns.begin(request, arriving.tokens)
        if ticket.op is TicketOp.SUSPEND:
            self._begin_suspend(request, arriving)
        elif ticket.op is TicketOp.HEADS:
            self._turns.begin_heads(request)
        elif ticket.op not in _WAITING_OPS:
            self._begin_load(request, arriving)

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
            self._turns.pass_over(request, cause, tokens)

    def _begin_load(self, request: TicketedRequest, arriving: ArrivingRequest) -> None:
        self.steps.watch(request.request_id, request.watch)
        hindrance = self.tier.hindrance
        if hindrance is not None:
            request.causes.append(hindrance)
        elif request.ticket.generation:
            self._loads.open(request, next(self._plan_ids), arriving.tokens)

    def _begin_suspend(self, request: TicketedRequest, arriving: ArrivingRequest) -> None:
        hindrance = self.tier.hindrance
        if hindrance is not None:
            self._suspends.refuse(request, hindrance)
            return
        head = self._turns.head(request)
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
            self.tier.attest(request)
        elif request.ticket.op is TicketOp.HEADS:
            self._turns.settle_heads(request, self.tier.lasting_hindrance)
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
        return time.monotonic() > request.arrived_s + self.limits.hold_deadline_s

    def _settle_resume(
        self, request: TicketedRequest, tokens: int, causes: Sequence[Cause] = ()
    ) -> None:
        request.settled = True
        timing = request.watch.timing(request.split)
        facts = {"loadable_tokens": tokens, "timing": timing.as_json()}
        self._settlements.settle(request.ticket.operation_id, facts, [*request.causes, *causes])

    def scheduled(
        self, request_id: str, external_tokens: int, counted_tokens: int | None = None
    ) -> None:
        """Note that vLLM gave the request its blocks; *external_tokens* come from RAM or disk.

        :param counted_tokens: that vLLM itself counts as not computed; ``None`` after a preemption
        """
        request = self._requests.get(request_id)
        if request is None or not request.newly_matched:
            return  # vLLM schedules it once more when an asynchronous load is over
        request.newly_matched = False
        self._loads.scheduled(request, external_tokens)
        request.split = split_of(request, external_tokens, self.limits)
        if counted_tokens is not None and counted_tokens < request.split.cached_tokens:
            # A restore counts only when the engine's own count confirms it.
            request.split = confirmed(request.split, counted_tokens)
            request.causes.append(Cause(Reason.NOT_CONFIRMED))

    # Chunks move

    def offers(self, request_id: str, chunk: int) -> bool:
        """Whether a chunk can come from disk for this request."""
        request = self._requests.get(request_id)
        if request is None or self.tier.off is not None:
            return False
        return self._loads.offers(request, chunk)

    def keeps_promoted(self, request_id: str) -> bool:
        """Whether promoted chunks of the request must stay in RAM until they are copied."""
        request = self._requests.get(request_id)
        if request is None or request.load is None or request.finished:
            return False
        return request.load.phase is not Phase.CLOSED and request.ticket.may_load == 1

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
        return self._mover.has_work or self.tier.awaited is not None

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
            return self._settlements.answer(self._engine_id, request.ticket)
        if request.suspend is not None:
            request.suspend.finished_well = not finished.aborted
        if request.ticket.op is TicketOp.SUSPEND:
            return answer(self._engine_id, request.ticket.op, {}, request.causes)
        return self._finish_turn(request, finished)

    def _finish_turn(self, request: TicketedRequest, finished: FinishedRequest) -> dict[str, Any]:
        self.poll()  # while a turn is warm, nobody waits for what the mover has found for it
        self.steps.finished(request.request_id, finished.computed_tokens)
        ended = self._turns.end(request, finished)
        if request.ticket.op is TicketOp.RESUME and finished.aborted and not request.settled:
            self._settle_resume(request, 0, [Cause(Reason.ABORTED)])
        return ended

    def submits_over(self, request_id: str) -> None:
        """No more chunks of this request will come; the last call for it."""
        self._rejected.pop(request_id, None)
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        if request.ticket.op is TicketOp.TURN and not request.finished:
            self._turns.lose(request)
        self.steps.forget(request_id)
        self._loads.close(request)
        self._suspends.submits_over(request, may_commit=self.tier.off is None)

    def _sweep(self) -> None:
        """Let go of requests whose end we were told of in part: an override of ours failed."""
        oldest_s = time.monotonic() - 2 * self.limits.hold_deadline_s
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
        hopeless = self.tier.look()
        if hopeless is not None:
            self.turn_off(hopeless)
        for message in self._mover.poll():
            if not self._handled(message):
                self._give_up(message)
        self.tier.settle(works=self._head_files.are_told_again)

    @guarded(False)  # noqa: FBT003 - the value returned instead of raising
    def _handled(self, message: protocol.Message) -> bool:
        # Guarded one by one: an answer that cannot be handled must not cost the ones after it.
        match message:
            case protocol.HeadWritten():
                self._head_files.written(message)
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

    def _mover_died(self) -> None:
        self._loads.lose()
        self._suspends.lose()
        if self._mover.deaths >= MAX_DEATHS:
            self.turn_off(Cause(Reason.MOVER_FAILED, f"{self._mover.deaths} times"))

    def _mover_replaced(self) -> None:
        # What the dead one was told last may not have become a file: a turn that has ended
        # would count as running for ever.
        self._turns.tell_again()

    def rest(self) -> None:
        """After a step that scheduled nothing: wait a moment instead of asking again at once.

        Otherwise the polling engine takes the cores that the mover needs.
        """
        if self.tier.awaited is not None:
            self.tier.awaited.wait(_LONG_REST_S)
            return
        if self._mover.is_expected and not self._mover.is_ready:
            self._mover.wait(_LONG_REST_S)
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
        self.tier.attestor.note_reset(emptied=emptied)
        self.turn_off(RESET)

    def turn_off(self, cause: Cause) -> None:
        """Weights or caches may have changed: nothing is loaded, nothing begun is committed."""
        self.tier.turn_off(cause)
        for request in self._requests.values():
            self._loads.close(request, cause)
        self._suspends.discard(cause)
        self._turns.forget_kv()
