"""Tickets, as the service hands them out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sessiond.domain.ids import OperationId, SessionId, TenantId, new_operation_id
from sessiond.domain.keys import KeyRing, salt_hash
from sessiond.domain.tickets import Ticket, TicketOp, causes_text, sign
from sessiond.domain.tokens import head_digest
from sessiond.engine.client import TicketedRequest

if TYPE_CHECKING:
    from sessiond.domain.engines import EngineInfo
    from sessiond.domain.heads import Branch
    from sessiond.domain.reasons import Cause

#: What a question's request computes is thrown away.
_ANY_PROMPT = (1,)


@dataclass(frozen=True)
class Permit:
    """A signed ticket and the salt that its request must carry."""

    ticket: str
    cache_salt: str
    expires_unix_s: int
    operation_id: str  #: names the turn, or what else it is for


@dataclass(frozen=True)
class Purpose:
    """Whose KV may be moved, in which engine and which generation."""

    tenant: TenantId
    session_id: SessionId
    engine: EngineInfo
    generation: int
    restorable_tokens: int = 0  #: of a generation, to be loaded; 0: all
    may_load: bool = True  #: or else the engine only compares the generation with the prompt
    adapter_digest: str = ""  #: of the one that computes; empty: none
    recomputes: bool = False  #: whether a suspend may compute KV that is gone
    load_limit_s: float = 0.0  #: for reading the generation; 0: none
    session_created_unix_us: int = 0  #: 0: not known, or of none
    causes: tuple[Cause, ...] = ()  #: of a turn: why it may use less than all of its context


class Signer:
    """Signs tickets with the store's ticket key."""

    def __init__(self, keys: KeyRing, lifetime_s: int, turn_lifetime_s: int) -> None:
        self._keys = keys
        self._lifetime_s = lifetime_s
        self._turn_lifetime_s = turn_lifetime_s

    def turn(self, purpose: Purpose, now_unix_s: float) -> Permit:
        """Return a permit for one model call of a session."""
        ticket = self._ticket(TicketOp.TURN, purpose, new_operation_id())
        return self._sign(ticket, purpose, now_unix_s, self._turn_lifetime_s)

    def suspend(self, purpose: Purpose, branch: Branch, now_unix_s: float) -> tuple[Permit, Permit]:
        """Return the permits of a suspend and of its commit."""
        ticket = replace(
            self._ticket(TicketOp.SUSPEND, purpose, new_operation_id()),
            head_digest=head_digest(branch.tokens),
            head_tokens=len(branch.tokens),
        )
        return self._pair(ticket, TicketOp.COMMIT, purpose, now_unix_s)

    def resume(self, purpose: Purpose, now_unix_s: float) -> tuple[Permit, Permit]:
        """Return the permits of a resume and of its outcome."""
        ticket = self._ticket(TicketOp.RESUME, purpose, new_operation_id())
        return self._pair(ticket, TicketOp.OUTCOME, purpose, now_unix_s)

    def question(self, op: TicketOp, purpose: Purpose, now_unix_s: float) -> TicketedRequest:
        """Return a request that moves nothing: only the connector's answer is wanted.

        :param op: attest or heads
        """
        ticket = self._ticket(op, purpose, new_operation_id())
        permit = self._sign(ticket, purpose, now_unix_s, self._lifetime_s)
        engine = purpose.engine
        return TicketedRequest(
            engine.url, engine.model, _ANY_PROMPT, permit.cache_salt, permit.ticket
        )

    def _pair(
        self, ticket: Ticket, companion: TicketOp, purpose: Purpose, now_unix_s: float
    ) -> tuple[Permit, Permit]:
        return (
            self._sign(ticket, purpose, now_unix_s, self._lifetime_s),
            self._sign(replace(ticket, op=companion), purpose, now_unix_s, self._lifetime_s),
        )

    def _ticket(self, op: TicketOp, purpose: Purpose, operation_id: OperationId) -> Ticket:
        salt = self._salt(purpose)
        return Ticket(
            op=op,
            tenant=purpose.tenant,
            session=purpose.session_id,
            engine_id=purpose.engine.engine_id,
            operation_id=operation_id,
            generation=purpose.generation,
            restorable_tokens=purpose.restorable_tokens,
            may_load=int(purpose.may_load),
            load_limit_ms=round(1000 * purpose.load_limit_s),
            salt_hash=salt_hash(salt),
            adapter_digest=purpose.adapter_digest,
            recomputes=int(purpose.recomputes),
            session_created_unix_us=purpose.session_created_unix_us,
            causes=causes_text(purpose.causes),
        )

    def _sign(self, ticket: Ticket, purpose: Purpose, now_unix_s: float, lifetime_s: int) -> Permit:
        now = int(now_unix_s)
        dated = replace(ticket, not_before_unix_s=now, expires_unix_s=now + lifetime_s)
        return Permit(
            ticket=sign(dated, self._keys.ticket_key),
            cache_salt=self._salt(purpose),
            expires_unix_s=dated.expires_unix_s,
            operation_id=dated.operation_id,
        )

    def _salt(self, purpose: Purpose) -> str:
        return self._keys.cache_salt(purpose.tenant, purpose.adapter_digest, purpose.engine.lossy)
