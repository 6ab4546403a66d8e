"""How a suspend goes on after each of its rounds: a pure rule.

vLLM offers all chunks at once and stores none that do not fit the RAM tier, so a suspend is
repeated until nothing is missing or nothing moves. Each round that stored something has
committed a snapshot of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sessiond.domain.errors import (
    AdapterUnprovenError,
    DeadlineExceededError,
    EngineRefusedError,
    GenerationExistsError,
    IdentityPendingError,
    NothingToSuspendError,
    NotTextError,
    SessiondError,
    SessionNotFoundError,
    StoreError,
    StoreFullError,
    TierOffError,
    TurnInFlightError,
)
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tokens import whole_chunk_tokens

if TYPE_CHECKING:
    from sessiond.domain.snapshot import SnapshotSummary

#: A round that failed for one of these may be repeated as it was, a few times.
_REPEATABLE = frozenset({Reason.HEAD_STALE, Reason.GENERATION_EXISTS})
_MAX_REPEATS = 3

_ERRORS: dict[Reason, type[SessiondError]] = {
    Reason.TURN_IN_FLIGHT: TurnInFlightError,
    Reason.STORE_FULL: StoreFullError,
    Reason.STORE_FAILED: StoreError,
    Reason.DEADLINE: DeadlineExceededError,
    Reason.KV_EVICTED: NothingToSuspendError,
    Reason.GENERATION_EXISTS: GenerationExistsError,
    Reason.SESSION_DELETED: SessionNotFoundError,
    Reason.NOT_TEXT: NotTextError,
    Reason.ADAPTER_UNPROVEN: AdapterUnprovenError,
    Reason.ADAPTER_MISMATCH: NothingToSuspendError,
    Reason.TICKET_FOR_ANOTHER_MODEL: NothingToSuspendError,
    Reason.TIER_OFF: TierOffError,
    Reason.IDENTITY_PENDING: IdentityPendingError,
    Reason.IDENTITY_UNKNOWN: TierOffError,
}


@dataclass(frozen=True)
class RoundEnd:
    """What one round brought."""

    summary: SnapshotSummary | None  #: the snapshot that it committed
    causes: tuple[Cause, ...]
    available_tokens: int = 0  #: still in the engine, where that was told


@dataclass(frozen=True)
class Progress:
    """A suspend between two rounds."""

    chunk_tokens: int
    asked_tokens: int  #: what the next round hands over, whole chunks
    kept_tokens: int  #: of the head, held by a snapshot from before this suspend
    then_tokens: int = 0  #: what is asked for when that has been done; 0: nothing more
    rounds: int = 0
    repeats: int = 0
    best: SnapshotSummary | None = None
    new_bytes: int = 0  #: stored by all rounds together
    causes: tuple[Cause, ...] = ()
    trimmed: tuple[Cause, ...] = ()  #: why less is asked for than there was
    done: bool = False

    @property
    def head_is_stale(self) -> bool:
        """Whether the next round needs the session's newest head."""
        return not self.done and any(c.reason is Reason.HEAD_STALE for c in self.causes)


def after_round(progress: Progress, end: RoundEnd, max_rounds: int) -> Progress:
    """Return the suspend's state after one more round."""
    causes = (*progress.trimmed, *(c for c in end.causes if c not in progress.trimmed))
    counted = replace(progress, rounds=progress.rounds + 1, causes=causes)
    stepped = _committed(counted, end.summary) if end.summary else _refused(counted, end)
    # After any other end, what comes then would end in the same way.
    goes_on = end.summary or any(cause.reason is Reason.KV_EVICTED for cause in end.causes)
    if stepped.done and stepped.then_tokens and goes_on:
        stepped = replace(stepped, asked_tokens=stepped.then_tokens, then_tokens=0, done=False)
    return replace(stepped, done=stepped.done or stepped.rounds >= max_rounds)


def error_of(causes: tuple[Cause, ...]) -> SessiondError:
    """Return the error that says why nothing was stored."""
    if not causes:
        return EngineRefusedError("The engine stored nothing and told no cause.")
    return _ERRORS.get(causes[0].reason, EngineRefusedError)(causes=causes)


def tier_error(off: Cause) -> SessiondError:
    """Return the error of an engine that keeps nothing: whatever it is, no repeat helps."""
    pending = off.reason is Reason.IDENTITY_PENDING
    return IdentityPendingError(causes=(off,)) if pending else TierOffError(causes=(off,))


def _committed(progress: Progress, summary: SnapshotSummary) -> Progress:
    best = progress.best
    grew = best is None or _extent(summary) > _extent(best)
    return replace(
        progress,
        best=summary if grew else progress.best,
        new_bytes=progress.new_bytes + summary.new_bytes,
        repeats=0,
        done=not grew or summary.tokens_restorable >= progress.asked_tokens,
    )


def _extent(summary: SnapshotSummary) -> tuple[int, int]:
    # With windows, what comes before the newest one restores nothing by itself.
    return summary.tokens_restorable, summary.chunks


def _refused(progress: Progress, end: RoundEnd) -> Progress:
    reasons = {cause.reason for cause in end.causes}
    if Reason.KV_EVICTED in reasons:
        return _evicted(progress, end.available_tokens)
    repeats = progress.repeats + 1
    repeatable = bool(reasons & _REPEATABLE) and repeats <= _MAX_REPEATS
    return replace(progress, repeats=repeats, done=not repeatable)


def _evicted(progress: Progress, available_tokens: int) -> Progress:
    """Ask for what is still there, if that is more than what is stored already."""
    left = whole_chunk_tokens(available_tokens, progress.chunk_tokens)
    stored = max(progress.kept_tokens, progress.best.tokens_restorable if progress.best else 0)
    worthwhile = stored < left < progress.asked_tokens
    return replace(
        progress,
        asked_tokens=left if worthwhile else progress.asked_tokens,
        trimmed=tuple(c for c in progress.causes if c.reason is Reason.KV_EVICTED),
        done=not worthwhile,
    )
