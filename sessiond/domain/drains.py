"""What an engine that is about to end has of sessions: who goes first, what is left."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sessiond.domain.ids import SessionId, TenantId
from sessiond.domain.reasons import Cause

#: After so long without a turn, a session's tokens count half.
_HALF_LIFE_S = 3600.0


@dataclass(frozen=True)
class AtRisk:
    """A session with KV that would be lost with its engine."""

    tenant: TenantId
    session_id: SessionId
    tokens: int  #: whole chunks that no snapshot has; with a turn in flight, of its main branch
    used_unix_s: float  #: the last token of its last turn
    busy: bool = False  #: a turn is in flight
    generation: int = 0  #: of its newest snapshot
    kept_tokens: int = 0  #: whole chunks that this has
    cause: Cause | None = None  #: why no suspend of the session would store it

    @property
    def key(self) -> tuple[TenantId, SessionId]:
        """Names the session."""
        return self.tenant, self.session_id

    def value(self, now_unix_s: float) -> float:
        """Return what it is worth to store them: tokens, fewer the longer nobody came back.

        What is lost has to be computed again if the agent returns, and the longer it has been
        away, the less likely it returns soon.
        """
        idle_s = max(0.0, now_unix_s - self.used_unix_s)
        return float(self.tokens * 0.5 ** min(1000.0, idle_s / _HALF_LIFE_S))


def most_valuable_first(found: Iterable[AtRisk], now_unix_s: float) -> list[AtRisk]:
    """Return the order in which to store."""
    return sorted(found, key=lambda one: (-one.value(now_unix_s), one.key))


@dataclass(frozen=True)
class Saved:
    """A session whose KV was stored."""

    tenant: TenantId
    session_id: SessionId
    generation: int
    tokens: int  #: that can be restored

    @property
    def key(self) -> tuple[TenantId, SessionId]:
        """Names the session."""
        return self.tenant, self.session_id


@dataclass(frozen=True)
class Unsaved:
    """A session with KV that was not stored, or not all of it."""

    tenant: TenantId
    session_id: SessionId
    code: str  #: of an error or of a reason
    detail: str
    tokens: int  #: that would have to be computed again
    saved_tokens: int = 0  #: that the drain stored, and that can be restored


@dataclass(frozen=True)
class DrainReport:
    """How far a drain is. Each session that was at risk is in one of the lists."""

    engine_id: str
    complete: bool  #: everything was looked at, and nothing that could be stored is missing
    saved: tuple[Saved, ...]  #: wholly
    unsaved: tuple[Unsaved, ...]  #: the most valuable first
    seconds: float
    causes: tuple[Cause, ...] = ()  #: why there may be more than what was found
