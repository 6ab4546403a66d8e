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
from sessiond.domain.session import OnEvicted
from sessiond.domain.tokens import whole_chunk_tokens

if TYPE_CHECKING:
    from sessiond.domain.snapshot import SnapshotSummary

#: A round that failed for one of these may be repeated as it was, a few times.
_REPEATABLE = frozenset({Reason.HEAD_STALE, Reason.GENERATION_EXISTS})
_MAX_REPEATS = 3

#: With these an engine gave up waiting for its mover, which may have committed all the same.
_OUTCOME_UNKNOWN = frozenset({Reason.MOVER_FAILED, Reason.DEADLINE, Reason.ABORTED})

_ERRORS: dict[Reason, type[SessiondError]] = {
    Reason.TURN_IN_FLIGHT: TurnInFlightError,
    Reason.STORE_FULL: StoreFullError,
    Reason.STORE_FAILED: StoreError,
    Reason.DEADLINE: DeadlineExceededError,
    Reason.HEAD_UNCONFIRMED: DeadlineExceededError,
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
    recomputed_tokens: int = 0  #: that the engine computed again

    @property
    def is_unknown(self) -> bool:
        """Whether an answer that tells of no commit is no proof that there is none."""
        return any(cause.reason in _OUTCOME_UNKNOWN for cause in self.causes)


@dataclass(frozen=True)
class Progress:
    """A suspend between two rounds."""

    chunk_tokens: int
    asked_tokens: int  #: what the next round hands over, whole chunks
    kept_tokens: int  #: of the head, held by a snapshot from before this suspend
    then_tokens: int = 0  #: what is asked for when that has been done; 0: nothing more
    source_tokens: int = 0  #: of the head, in whole chunks
    rounds: int = 0
    repeats: int = 0
    best: SnapshotSummary | None = None
    new_bytes: int = 0  #: stored by all rounds together
    causes: tuple[Cause, ...] = ()
    trimmed: tuple[Cause, ...] = ()  #: why less is asked for than there was
    on_evicted: OnEvicted = OnEvicted.PREFIX
    recomputes: bool = False  #: whether the next round may compute what is gone
    available_tokens: int = 0  #: still in the engine when something was found to be gone
    evicted_tokens: int = 0  #: of the head, gone, and in no snapshot
    recomputed_tokens: int = 0
    doubts: tuple[Cause, ...] = ()  #: why an engine may have more than this is about
    done: bool = False

    @property
    def head_is_stale(self) -> bool:
        """Whether the next round needs the session's newest head."""
        return not self.done and any(c.reason is Reason.HEAD_STALE for c in self.causes)

    @property
    def lacks_what_is_stored(self) -> bool:
        """Whether the next round would compute what a snapshot has."""
        return self.recomputes and self.available_tokens < self.kept_tokens

    def outlives(self, error: SessiondError) -> bool:
        """Whether a round may still store less than the one that this error ended."""
        return self.recomputes and isinstance(error, DeadlineExceededError)


def after_round(progress: Progress, end: RoundEnd, max_rounds: int) -> Progress:
    """Return the suspend's state after one more round."""
    causes = (*progress.trimmed, *(c for c in end.causes if c not in progress.trimmed))
    found = progress.asked_tokens - end.recomputed_tokens
    counted = replace(
        progress,
        rounds=progress.rounds + 1,
        causes=causes,
        # More may have gone since the round that told of it.
        evicted_tokens=_gone(progress, found) if end.recomputed_tokens else progress.evicted_tokens,
        # What one round computed, another may find evicted once more: it is the same tokens.
        recomputed_tokens=max(progress.recomputed_tokens, end.recomputed_tokens),
    )
    stepped = _committed(counted, end.summary) if end.summary else _refused(counted, end)
    # After any other end, what comes then would end in the same way.
    goes_on = end.summary or any(cause.reason is Reason.KV_EVICTED for cause in end.causes)
    if stepped.done and stepped.then_tokens and goes_on:
        stepped = replace(stepped, asked_tokens=stepped.then_tokens, then_tokens=0, done=False)
    return replace(stepped, done=stepped.done or stepped.rounds >= max_rounds)


def unanswered(progress: Progress, summary: SnapshotSummary, causes: tuple[Cause, ...]) -> RoundEnd:
    """Return the end of a round that has committed *summary*, which no answer told of."""
    whole = summary.tokens_restorable >= progress.asked_tokens
    # Nor did any tell what it computed; but so much was missing before it.
    computed = progress.asked_tokens - progress.available_tokens if progress.recomputes else 0
    return RoundEnd(summary, () if whole else causes, recomputed_tokens=computed)


def error_of(causes: tuple[Cause, ...]) -> SessiondError:
    """Return the error that says why nothing was stored."""
    if not causes:
        return EngineRefusedError("The engine stored nothing and told no cause.")
    # Where a part was gone, it is what came then that kept the rest from being stored.
    told = tuple(sorted(causes, key=lambda cause: cause.reason is Reason.KV_EVICTED))
    return _ERRORS.get(told[0].reason, EngineRefusedError)(causes=told)


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
    if reasons & _REPEATABLE and repeats <= _MAX_REPEATS:
        return replace(progress, repeats=repeats)
    if progress.recomputes and progress.best is None:
        return _without_recompute(progress)
    return replace(progress, repeats=repeats, done=True)


def _evicted(progress: Progress, available_tokens: int) -> Progress:
    """Go on as the session's policy says."""
    left = whole_chunk_tokens(available_tokens, progress.chunk_tokens)
    stored = max(progress.kept_tokens, progress.best.tokens_restorable if progress.best else 0)
    noted = replace(progress, available_tokens=left, evicted_tokens=_gone(progress, left))
    if progress.on_evicted is OnEvicted.SKIP:
        return replace(noted, then_tokens=0, done=True)
    if progress.on_evicted is OnEvicted.RECOMPUTE and not progress.recomputes:
        return replace(noted, recomputes=True)
    return _trimmed(noted, left, stored)


def _gone(progress: Progress, left: int) -> int:
    """Return how many tokens are gone and in no snapshot, if *left* are still there."""
    best = progress.best.tokens_restorable if progress.best else 0
    gone = progress.source_tokens - max(left, progress.kept_tokens, best)
    return max(progress.evicted_tokens, gone)


def _without_recompute(progress: Progress) -> Progress:
    """Store at least what is there: computing the rest took too long, say."""
    causes = (Cause(Reason.KV_EVICTED), *progress.causes)
    prefix = replace(progress, recomputes=False, on_evicted=OnEvicted.PREFIX, causes=causes)
    stepped = _trimmed(prefix, progress.available_tokens, progress.kept_tokens)
    return replace(stepped, causes=progress.causes, trimmed=causes)


def _trimmed(progress: Progress, left: int, stored: int) -> Progress:
    """Ask for what is still there, if that is more than what is stored already."""
    worthwhile = stored < left < progress.asked_tokens
    return replace(
        progress,
        asked_tokens=left if worthwhile else progress.asked_tokens,
        trimmed=tuple(c for c in progress.causes if c.reason is Reason.KV_EVICTED),
        done=not worthwhile,
    )
