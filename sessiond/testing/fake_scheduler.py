"""Plays vLLM's scheduler for a coordinator, with a scripted mover or a real one."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from sessiond.connector.coordinator import Coordinator
from sessiond.connector.headbook import HeadBook
from sessiond.connector.limits import Limits
from sessiond.connector.mover import protocol
from sessiond.connector.requests import ArrivingRequest, FinishedRequest
from sessiond.domain.engines import ServedAdapter
from sessiond.domain.keys import salt_hash
from sessiond.domain.tickets import TICKET_PARAM, Ticket, TicketOp, sign
from sessiond.domain.tokens import TokenIds, head_digest, token_ids
from sessiond.testing.fake_mover import FakeMovers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sessiond.connector.awaited import Awaited, StartMover
    from sessiond.connector.moverwatch import JobDone
    from sessiond.testing.fake_mover import FakeMover

ENGINE_ID = "e" * 32
TICKET_KEY = b"k" * 32
SALT = "salt"
CHUNK_TOKENS = 4
RAM_CHUNKS = 8
LIMITS = Limits(
    chunk_tokens=CHUNK_TOKENS,
    ram_chunks=RAM_CHUNKS,
    plan_deadline_s=30.0,
    job_deadline_s=60.0,
    hold_deadline_s=110.0,
)


class Clock(Protocol):
    """What a scheduler needs of the module ``time``."""

    def time(self) -> float:
        """Return Unix time."""

    def sleep(self, seconds: float, /) -> None:
        """Let time pass."""


def tokens_of(chunks: int, extra: int = 1, first: int = 0) -> TokenIds[int]:
    """Return so many whole chunks of tokens and some more."""
    return token_ids(range(first, first + chunks * CHUNK_TOKENS + extra))


@dataclass
class FakeScheduler:
    """One engine without vLLM. Chunks are named by their numbers."""

    clock: Clock
    movers: FakeMovers = field(default_factory=FakeMovers)
    limits: Limits = LIMITS
    start_mover: StartMover | Awaited | None = None  #: a real one, instead of a scripted one

    def __post_init__(self) -> None:
        heads = HeadBook(ENGINE_ID, limit_tokens=10_000)
        start = self.start_mover or self.movers.start
        self.coordinator = Coordinator(ENGINE_ID, TICKET_KEY, self.limits, heads, start)
        self._tokens: dict[str, TokenIds[int]] = {}
        self._numbers = itertools.count(1)
        self._computed: dict[str, int] = {}
        self._steps: deque[Mapping[str, int]] = deque()  # whose outputs have not come

    @property
    def mover(self) -> FakeMover:
        """The scripted mover that was started last."""
        return self.movers.newest

    # Requests

    def ticket(self, op: TicketOp = TicketOp.TURN, **fields: Any) -> Ticket:  # noqa: ANN401
        """Return a valid ticket, with the given fields."""
        now_s = int(self.clock.time())
        ticket = Ticket(
            op=op,
            tenant="acme",
            session="s-1",
            engine_id=ENGINE_ID,
            operation_id="op-1",
            generation=0,
            salt_hash=salt_hash(SALT),
            not_before_unix_s=now_s,
            expires_unix_s=now_s + 300,
        )
        return replace(ticket, **fields)

    def arrive(
        self,
        ticket: Ticket | str | None,
        tokens: TokenIds[int],
        *,
        cache_salt: str | None = SALT,
        adapter: ServedAdapter | None = None,
        plain_text: bool = True,
    ) -> str:
        """Let a request arrive; returns its id."""
        request_id = f"r{next(self._numbers)}"
        text = sign(ticket, TICKET_KEY) if isinstance(ticket, Ticket) else ticket
        self._tokens[request_id] = tokens
        self.coordinator.arrive(
            ArrivingRequest(
                request_id=request_id,
                tokens=tokens,
                kv_transfer_params=None if text is None else {TICKET_PARAM: text},
                cache_salt=cache_salt,
                adapter=adapter,
                plain_text=plain_text,
                computed=lambda: self._computed.get(request_id, 0),
            )
        )
        return request_id

    def may_match(self, request_id: str, vram_tokens: int = 0) -> bool:
        """Ask whether it may be looked up."""
        return self.coordinator.may_match(request_id, vram_tokens)

    def match(
        self,
        request_id: str,
        vram_tokens: int = 0,
        external_tokens: int = 0,
        uncounted_tokens: int = 0,
    ) -> bool:
        """Say what was found; if it may go on, give it its blocks.

        :param uncounted_tokens: that vLLM does not count as cached all the same
        """
        if not self.coordinator.matched(request_id, vram_tokens, external_tokens):
            return False
        counted_tokens = vram_tokens + external_tokens - uncounted_tokens
        self.coordinator.scheduled(request_id, external_tokens, counted_tokens)
        self._computed[request_id] = vram_tokens + external_tokens
        return True

    def step(self, **tokens: int) -> None:
        """Schedule a step that computes so many tokens for each of these requests."""
        self._steps.append(tokens)
        self.coordinator.steps.began(tokens)

    def output(self, *, finishes: str = "") -> dict[str, Any]:
        """Let the output of the oldest step come; returns the answer of the one that *finishes*."""
        for request_id, tokens in self._steps.popleft().items():
            self._computed[request_id] = self._computed.get(request_id, 0) + tokens
        ended = self.finish(finishes) if finishes else {}
        self.coordinator.steps.ended()
        return ended

    def finish(
        self,
        request_id: str,
        output: Iterable[int] = (9,),
        *,
        aborted: bool = False,
        computed_tokens: int | None = None,
    ) -> dict[str, Any]:
        """End a request, and let no more chunks come; returns our part of its answer."""
        tokens = self._tokens[request_id] + token_ids(output)
        computed = len(tokens) - 1 if computed_tokens is None else computed_tokens
        answered = self.coordinator.finish(
            FinishedRequest(request_id, tokens, computed, aborted, preemptions=0)
        )
        self.coordinator.submits_over(request_id)
        return {} if answered is None else dict(answered["sessiond"])

    def abort(self, request_id: str) -> dict[str, Any]:
        """End a request for which nothing was computed."""
        return self.finish(request_id, (), aborted=True, computed_tokens=0)

    # Whole stories

    def take_turn(self, tokens: TokenIds[int], **fields: Any) -> dict[str, Any]:  # noqa: ANN401
        """Let a turn without a snapshot pass; *tokens* become its head."""
        request_id = self.arrive(self.ticket(**fields), tokens[:-1])
        self.may_match(request_id)
        self.match(request_id)
        return self.finish(request_id, tokens[-1:])

    def begin_suspend(self, head: TokenIds[int], chunks: int, **fields: Any) -> str:  # noqa: ANN401
        """Let the suspend request of a head arrive."""
        given = {"generation": 1, "head_tokens": len(head), "head_digest": head_digest(head)}
        ticket = self.ticket(TicketOp.SUSPEND, **{**given, **fields})
        return self.arrive(ticket, head[: chunks * CHUNK_TOKENS + 1])

    def commit(self, **fields: Any) -> str:  # noqa: ANN401 - any field
        """Let the commit request of a suspend arrive."""
        return self.arrive(self.ticket(TicketOp.COMMIT, **fields), tokens_of(0))

    def outcome(self, **fields: Any) -> str:  # noqa: ANN401 - any field
        """Let the outcome request of a resume arrive."""
        return self.arrive(self.ticket(TicketOp.OUTCOME, **fields), tokens_of(0))

    # Chunks

    def load(self, job_id: int, request_id: str, chunks: Iterable[int]) -> None:
        """Promote chunks into slots of the same numbers."""
        self.coordinator.load(job_id, request_id, [(chunk, chunk) for chunk in chunks])

    def store(self, job_id: int, request_id: str, chunks: Iterable[int]) -> None:
        """Hand chunks over, from slots of the same numbers."""
        self.coordinator.store(job_id, request_id, [(chunk, chunk) for chunk in chunks])

    def offered(self, request_id: str, chunks: Iterable[int]) -> list[int]:
        """Return those of the chunks that could come from disk."""
        return [chunk for chunk in chunks if self.coordinator.offers(request_id, chunk)]

    def storable(self, request_id: str, chunks: Iterable[int]) -> list[int]:
        """Return those of the chunks that are worth handing over."""
        return sorted(self.coordinator.storable(request_id, list(chunks)))

    def done(self) -> list[JobDone]:
        """Return the jobs that ended."""
        return self.coordinator.take_done()

    def published(self, session: str = "s-1") -> protocol.WriteHead:
        """Return what the newest mover was told last of a session's head."""
        told = self.mover.told(protocol.WriteHead)
        return [message for message in told if message.session == session][-1]
