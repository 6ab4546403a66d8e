"""What the connector keeps of one ticketed request while it lives in the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from sessiond.connector.headbook import IdHolder
from sessiond.connector.timing import Stopwatch
from sessiond.domain.divergence import Meeting
from sessiond.domain.engines import ServedAdapter
from sessiond.domain.heads import TurnSplit
from sessiond.domain.reasons import Cause
from sessiond.domain.tickets import Ticket
from sessiond.domain.tokens import TokenIds


@dataclass(frozen=True)
class ArrivingRequest:
    """What vLLM tells of a request when it arrives."""

    request_id: str
    tokens: TokenIds[int]
    kv_transfer_params: Mapping[str, Any] | None
    cache_salt: str | None
    adapter: ServedAdapter | None  #: its LoRA adapter
    plain_text: bool  #: neither images nor embeddings
    computed: Callable[[], int] = int  #: returns how many of its tokens are computed by now


@dataclass(frozen=True)
class FinishedRequest:
    """What vLLM tells of a request when it has finished."""

    request_id: str
    tokens: TokenIds[int]  #: prompt and output
    computed_tokens: int
    aborted: bool
    preemptions: int


class Phase(Enum):
    """How far a plan is."""

    OPENING = auto()  #: the mover opens the snapshot
    WAITING = auto()  #: for room in the RAM tier
    ADMITTED = auto()  #: its chunks are offered to vLLM
    CLOSED = auto()  #: nothing (more) is offered


@dataclass
class LoadState:
    """The plan of a request that may load a snapshot."""

    plan_id: int
    deadline_s: float | None  #: monotonic; ``None`` while vLLM does not wait for the plan
    phase: Phase = Phase.OPENING
    chunks: frozenset[int] = frozenset()  #: that the snapshot offers; chunks are numbers here
    wanted: list[int] | None = None  #: of them, what the prompt needs; ``None``: not known
    begin: int = 0  #: the position before which VRAM has everything, when that was found out
    admitted: frozenset[int] = frozenset()  #: of those, what may be promoted
    failed: set[int] = field(default_factory=set)
    from_disk: set[int] = field(default_factory=set)
    jobs: set[int] = field(default_factory=set)
    read_until_s: float = 0.0  #: monotonic; then no more is read; 0: as long as it takes
    snapshot: Meeting | None = None  #: with the prompt; ``None`` while it is not known
    tokens_restorable: int = 0  #: of the snapshot

    def offers(self, chunk: int) -> bool:
        """Whether this chunk may be promoted."""
        return self.phase is Phase.ADMITTED and chunk in self.admitted and chunk not in self.failed


@dataclass
class SuspendState:
    """The plan of a suspend request."""

    plan_id: int
    deadline_s: float
    opened: bool = False
    durable_chunks: frozenset[int] = frozenset()
    finished_well: bool = False
    recomputed_tokens: int = 0  #: of what it was asked for, gone, and computed again
    ending: bool = False  #: the mover was asked to commit or discard it


@dataclass
class TicketedRequest:
    """One request with a valid ticket."""

    request_id: str
    ticket: Ticket
    arrived_s: float  #: monotonic
    prompt_tokens: int
    target_tokens: int  #: whole chunks of the prompt
    watch: Stopwatch
    adapter_name: str = ""  #: of its LoRA adapter, whose digest is the ticket's
    vram_tokens: int = 0  #: of the prompt, found in VRAM at the last look
    newly_matched: bool = False  #: and blocks not yet given
    held: bool = False  #: it lacks KV; nothing is computed for it, its sender will cancel it
    settled: bool = False  #: a resume: its sender was told how much there is
    finished: bool = False
    awaited_head: int = 0  #: one that waits for heads: the number of the newest of them
    known: Meeting | None = None  #: of a turn: with what its session left here before it
    load: LoadState | None = None
    suspend: SuspendState | None = None
    split: TurnSplit = field(default_factory=TurnSplit)
    causes: list[Cause] = field(default_factory=list)

    @property
    def holder(self) -> IdHolder:
        """The session that it belongs to."""
        ticket = self.ticket
        return IdHolder((ticket.tenant, ticket.session), ticket.session_created_unix_us)
