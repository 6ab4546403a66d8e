"""How a resume goes on after each of its rounds: a pure rule.

A context larger than the RAM tier is restored by several requests of growing prefix. What a
round restored counts only when the connector and vLLM both say that it was used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tokens import whole_chunk_tokens

if TYPE_CHECKING:
    from sessiond.engine.answers import Answer
    from sessiond.engine.pairs import ResumeResult

#: A round that found no room may be repeated so often: each has waited long for it.
_MAX_REPEATS = 3
#: After a trimmed round made room, the whole may be asked for again.
_CAPACITY = frozenset({Reason.RAM_TIER_TOO_SMALL, Reason.RAM_TIER_BUSY})


@dataclass(frozen=True)
class Progress:
    """A resume between two rounds."""

    chunk_tokens: int
    target_tokens: int  #: all that the snapshot can restore here, whole chunks
    asked_tokens: int  #: what the next round asks for
    restored_tokens: int = 0  #: proven
    disk_tokens: int = 0
    rounds: int = 0
    repeats: int = 0
    causes: tuple[Cause, ...] = ()
    done: bool = False


def begin(target_tokens: int, chunk_tokens: int) -> Progress:
    """Return the state before the first round."""
    return Progress(
        chunk_tokens, target_tokens, asked_tokens=target_tokens, done=target_tokens <= 0
    )


def after_round(progress: Progress, result: ResumeResult, max_rounds: int) -> Progress:
    """Return the resume's state after one more round."""
    counted = replace(
        progress, rounds=progress.rounds + 1, causes=_joined(progress.causes, result.causes)
    )
    if result.moved is None:
        busy = any(cause.reason is Reason.RAM_TIER_BUSY for cause in result.causes)
        stepped = _refused(counted, result.loadable_tokens, busy=busy)
    else:
        stepped = _moved(counted, result.moved)
    return replace(stepped, done=stepped.done or stepped.rounds >= max_rounds)


def is_confirmed(answer: Answer, asked_tokens: int) -> bool:
    """Whether the connector and vLLM both say that *asked_tokens* were not computed."""
    if not answer.ok or answer.cached_tokens is None:
        return False
    return min(answer.split.cached_tokens, answer.cached_tokens) >= asked_tokens


def _refused(progress: Progress, loadable_tokens: int, *, busy: bool) -> Progress:
    left = whole_chunk_tokens(loadable_tokens, progress.chunk_tokens)
    worthwhile = progress.restored_tokens < left < progress.asked_tokens
    if busy and progress.repeats < _MAX_REPEATS:
        return replace(progress, repeats=progress.repeats + 1)
    return replace(
        progress,
        asked_tokens=left if worthwhile else progress.asked_tokens,
        done=not worthwhile,
    )


def _moved(progress: Progress, answer: Answer) -> Progress:
    if not is_confirmed(answer, progress.asked_tokens):
        return replace(
            progress,
            causes=_joined((Cause(Reason.NOT_CONFIRMED),), progress.causes),
            done=True,
        )
    whole = progress.asked_tokens >= progress.target_tokens
    retry = not whole and any(cause.reason in _CAPACITY for cause in progress.causes)
    return replace(
        progress,
        restored_tokens=progress.asked_tokens,
        disk_tokens=progress.disk_tokens + answer.split.disk_tokens,
        asked_tokens=progress.target_tokens if retry else progress.asked_tokens,
        # What made a round smaller is no cause any more once the whole is there.
        causes=() if whole else progress.causes,
        done=not retry,
    )


def _joined(known: tuple[Cause, ...], new: tuple[Cause, ...]) -> tuple[Cause, ...]:
    seen = {(cause.reason, cause.detail) for cause in known}
    return (*known, *(c for c in new if (c.reason, c.detail) not in seen))
