"""Loads: from the ticket that names a generation to KV in VRAM."""

from __future__ import annotations

import time

from sessiond.connector.admission import Admission
from sessiond.connector.limits import Limits
from sessiond.connector.mover import protocol
from sessiond.connector.moverwatch import JobDone, MoverWatch
from sessiond.connector.requests import LoadState, Phase, TicketedRequest
from sessiond.connector.timing import Stage
from sessiond.domain.divergence import Meeting
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tokens import TokenIds, to_bytes


class Loads:
    """The plans of all requests that may load.

    A plan is opened by the mover, waits for room in the RAM tier, offers its chunks to vLLM and
    is closed when its request ends, or fails.
    """

    def __init__(self, limits: Limits, mover: MoverWatch) -> None:
        self._limits = limits
        self._mover = mover
        self._admission = Admission(limits.ram_chunks)
        self._open: dict[int, TicketedRequest] = {}
        self._loading: dict[int, TicketedRequest] = {}  # by job id
        self._moved_s = 0.0  # monotonic; when the line for the RAM tier last moved on

    def open(self, request: TicketedRequest, plan_id: int, tokens: TokenIds[int]) -> None:
        """Ask the mover for the chunks of the ticket's generation that *tokens* may use."""
        ticket = request.ticket
        deadline_s = request.arrived_s + self._limits.plan_deadline_s
        request.load = LoadState(plan_id, deadline_s)
        self._open[plan_id] = request
        if request.ticket.may_load:  # or else nobody waits for it
            request.watch.enter(Stage.LOOKUP)
        self._mover.ask(
            protocol.OpenLoad(
                plan_id=plan_id,
                tenant=ticket.tenant,
                session=ticket.session,
                generation=ticket.generation,
                adapter_digest=ticket.adapter_digest,
                payload=to_bytes(tokens),
            )
        )

    def opened(self, message: protocol.LoadOpened) -> None:
        """The mover has opened a plan."""
        request = self._open.get(message.plan_id)
        if request is None or request.load is None:
            return
        request.causes.extend(Cause.from_json(cause) for cause in message.causes)
        request.load.chunks = frozenset(message.chunks)
        request.load.tokens_restorable = message.tokens_restorable
        if message.tokens_total:
            request.load.snapshot = Meeting(
                message.tokens_total, request.prompt_tokens, message.common_tokens
            )
        request.load.phase = Phase.WAITING
        request.watch.leave(Stage.LOOKUP)

    def is_ready(self, request: TicketedRequest, vram_tokens: int, now_s: float) -> bool:
        """Whether vLLM may look up the request's chunks now."""
        load = request.load
        if load is None or load.phase is Phase.CLOSED or not request.ticket.may_load:
            return True
        if vram_tokens >= _useful_tokens(request):
            return True  # nothing on disk is worth waiting for
        if load.jobs:
            return False  # a scan of all chunks could only find that they are on their way
        if load.deadline_s is None:  # it was preempted, and begins to wait again
            load.deadline_s = now_s + self._limits.plan_deadline_s
            load.read_until_s = 0.0
        if now_s > self._latest_s(request, load, load.deadline_s):
            waited = load.phase is Phase.WAITING
            late = Cause(Reason.DEADLINE, load.phase.name.lower())
            self.close(request, Cause(Reason.RAM_TIER_BUSY) if waited else late)
            return True
        if load.phase is Phase.WAITING:
            self._try_admit(request, load, vram_tokens, now_s)
        return load.phase is Phase.ADMITTED

    def _latest_s(self, request: TicketedRequest, load: LoadState, deadline_s: float) -> float:
        """Return until when a plan may go on.

        One that waits for room may wait longer while others before it come and go: that is no
        fault of the disk. It still has to leave time to read before the request is overdue.
        """
        if load.phase is not Phase.WAITING:
            return deadline_s
        patience_s = self._limits.plan_deadline_s
        latest_s = request.arrived_s + self._limits.hold_deadline_s - patience_s
        return max(deadline_s, min(self._moved_s + patience_s, latest_s))

    def offers(self, request: TicketedRequest, chunk: int) -> bool:
        """Whether this chunk may be read from disk for the request."""
        load = request.load
        if load is None or load.deadline_s is None or not load.offers(chunk):
            return False
        latest_s = min(load.deadline_s, load.read_until_s or load.deadline_s)
        in_time = time.monotonic() <= latest_s
        late = Cause(Reason.DEADLINE)  # as the mover tells of what it does not begin
        if not in_time and late not in request.causes:
            request.causes.append(late)
        return in_time

    def scheduled(self, request: TicketedRequest, external_tokens: int) -> None:
        """Note that vLLM gave the request its blocks and copies *external_tokens* into them."""
        if request.load is not None:
            request.load.deadline_s = None
        request.watch.placed(external_tokens)
        if external_tokens == 0:
            self.in_vram(request)

    def start(self, request: TicketedRequest, job_id: int, items: list[list[int]]) -> None:
        """Read chunks into slots: pairs of (chunk number, slot)."""
        load = request.load
        chunks = frozenset(chunk for chunk, _ in items)
        if load is None or not self._can_read(load, chunks):
            self._mover.report(JobDone(job_id, frozenset(), all_good=False))
            return
        load.jobs.add(job_id)
        request.watch.enter(Stage.LOAD)
        self._loading[job_id] = request
        self._mover.begin(job_id, chunks)
        self._mover.ask(protocol.Load(job_id, load.plan_id, items, load.read_until_s))

    def done(self, message: protocol.LoadDone) -> None:
        """The mover has read, and verified, what it could."""
        causes = [Cause.from_json(cause) for cause in message.causes]
        failed = frozenset(message.failed)
        chunks = self._mover.end(message.job_id)
        if chunks is None:
            return
        good = chunks - failed
        request = self._loading.pop(message.job_id, None)
        if request is not None and request.load is not None:
            self._over(request, request.load, message.job_id)
            request.watch.read(message.read_bytes, message.read_s, message.decode_s)
            self._fail(request, request.load, failed)
            request.load.from_disk |= good
            request.causes.extend(causes)
        self._mover.report(
            JobDone(message.job_id, good, not failed, message.seconds, message.read_bytes)
        )

    def forget(self, job_id: int) -> None:
        """Wait no more for a job."""
        request = self._loading.pop(job_id, None)
        if request is not None and request.load is not None:
            self._over(request, request.load, job_id)

    def in_vram(self, request: TicketedRequest) -> None:
        """The request's chunks were copied: its share of the RAM tier is free again."""
        request.watch.leave(Stage.LOAD)
        self._release(request)
        load = request.load
        if load is not None and load.phase is Phase.ADMITTED:
            # If it is preempted, vLLM asks again, and it has to be admitted again.
            load.phase = Phase.WAITING

    def close(self, request: TicketedRequest, cause: Cause | None = None) -> None:
        """Offer nothing more; *cause* says why if the request is not over."""
        load = request.load
        self._release(request)
        if load is None or load.phase is Phase.CLOSED:
            return
        load.phase = Phase.CLOSED
        request.watch.leave(Stage.LOOKUP, Stage.QUEUE)
        if cause is not None:
            request.causes.append(cause)
        if self._open.pop(load.plan_id, None) is not None:
            self._mover.tell(protocol.ClosePlan(load.plan_id))

    def lose(self) -> None:
        """The mover has died: no open plan gets an answer any more."""
        for request in list(self._open.values()):
            self.close(request, Cause(Reason.MOVER_FAILED))
        for job_id, request in self._loading.items():
            if request.load is not None:
                self._over(request, request.load, job_id)
        self._loading.clear()

    def _over(self, request: TicketedRequest, load: LoadState, job_id: int) -> None:
        load.jobs.discard(job_id)
        if not load.jobs:
            request.watch.reads_over()

    def _release(self, request: TicketedRequest) -> None:
        if self._admission.release(request.request_id):
            self._moved_s = time.monotonic()

    def _can_read(self, load: LoadState, chunks: frozenset[int]) -> bool:
        there = bool(chunks) and chunks <= load.chunks
        return there and load.plan_id in self._open and self._mover.is_usable

    def _fail(self, request: TicketedRequest, load: LoadState, chunks: frozenset[int]) -> None:
        load.failed |= chunks
        if chunks and self._limits.groups.windowed and load.phase is Phase.ADMITTED:
            # What leads to a gap is still of use without windows; with them, only another end.
            load.phase, load.wanted = Phase.WAITING, None
            self._release(request)

    def _try_admit(
        self, request: TicketedRequest, load: LoadState, vram_tokens: int, now_s: float
    ) -> None:
        begin = self._limits.chunks_in(vram_tokens)
        if load.wanted is None or load.begin != begin:
            load.wanted, load.begin = self._wanted(request, load, begin), begin
        granted = self._admission.try_admit(request.request_id, len(load.wanted))
        if granted is None:
            request.watch.enter(Stage.QUEUE)
            return
        request.watch.leave(Stage.QUEUE)
        load.phase = Phase.ADMITTED
        load.deadline_s = now_s + self._limits.plan_deadline_s  # to read, however long it waited
        self._moved_s = now_s
        limit_s = request.ticket.load_limit_ms / 1000
        if limit_s and not load.read_until_s:  # of all that is read, whatever fails meanwhile
            load.read_until_s = now_s + limit_s
        load.admitted = frozenset(load.wanted[:granted])
        if granted < len(load.wanted):
            request.causes.append(Cause(Reason.RAM_TIER_TOO_SMALL))
            if self._limits.groups.windowed:
                load.admitted = frozenset()  # windows end where contexts do: no part is of use

    def _wanted(self, request: TicketedRequest, load: LoadState, begin: int) -> list[int]:
        """Return the chunks to load so that the prompt's longest context is there, in order."""
        groups, limit = self._limits.groups, self._limits.chunks_in(_useful_tokens(request))
        # What VRAM has need not lie on disk as well.
        there = load.chunks.union(groups.all_before(begin))
        return groups.needed(groups.reach(there - load.failed, limit), begin)


def _useful_tokens(request: TicketedRequest) -> int:
    """Return how many tokens of the prompt the snapshot can have, as far as is known."""
    restorable_tokens = request.ticket.restorable_tokens
    return min(request.target_tokens, restorable_tokens or request.target_tokens)
