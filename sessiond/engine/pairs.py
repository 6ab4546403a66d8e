"""A request that moves KV and its held companion, which tells how that went.

Both are sent at once. The connector holds the companion until the move has settled, and holds
the moving request, computing nothing, where the move cannot be what was asked for: then the
companion's answer says what would be possible, and the moving request has to be cancelled.
A resume that went well says so itself; its companion is cancelled.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from sessiond.domain.reasons import Cause
    from sessiond.engine.answers import Answer
    from sessiond.engine.client import EngineClient, TicketedRequest


@dataclass(frozen=True)
class Pair:
    """Two requests of one operation id."""

    moving: TicketedRequest  #: op ``suspend`` or ``resume``
    companion: TicketedRequest  #: op ``commit`` or ``outcome``
    deadline_s: float


@dataclass(frozen=True)
class CommitResult:
    """How a suspend round ended."""

    committed: bool
    available_tokens: int  #: still in the engine; less than asked for after an eviction
    causes: tuple[Cause, ...]
    answer: Answer


@dataclass(frozen=True)
class ResumeResult:
    """How a resume round ended."""

    loadable_tokens: int  #: what this engine could have had without computing
    causes: tuple[Cause, ...]
    moved: Answer | None  #: the resume's own answer; ``None`` if it had to be cancelled


async def suspend_round(client: EngineClient, pair: Pair) -> CommitResult:
    """Hand KV to the store once and wait until that is durable or given up.

    :raises UnavailableError: as :meth:`EngineClient.send`; what was committed is then unknown.
    """
    moved, told = await _run(client, pair, lambda answer: answer.flag("committed"))
    last = told or moved
    assert last is not None
    return CommitResult(
        committed=told is not None and told.flag("committed"),
        available_tokens=told.number("available_tokens") if told and told.ok else 0,
        causes=last.causes,
        answer=last,
    )


async def resume_round(client: EngineClient, pair: Pair) -> ResumeResult:
    """Bring KV into the engine once and wait until that has settled.

    :raises UnavailableError: as :meth:`EngineClient.send`.
    """
    asked = len(pair.moving.prompt) - 1

    def accepted(answer: Answer) -> bool:
        return answer.ok and answer.number("loadable_tokens") >= asked

    moved, told = await _run(client, pair, accepted, moved_is_enough=True)
    went_well = moved is not None and moved.ok
    causes = (*(told.causes if told else ()), *(moved.causes if moved else ()))
    return ResumeResult(
        loadable_tokens=asked if went_well else _loadable_tokens(told),
        causes=tuple({(cause.reason, cause.detail): cause for cause in causes}.values()),
        moved=moved if went_well else None,
    )


def _loadable_tokens(told: Answer | None) -> int:
    return told.number("loadable_tokens") if told and told.ok else 0


async def _run(
    client: EngineClient,
    pair: Pair,
    accepted: Callable[[Answer], bool],
    *,
    moved_is_enough: bool = False,
) -> tuple[Answer | None, Answer | None]:
    """Return both answers; the first is ``None`` if cancelled, the second if never awaited."""
    moving = _start(client.send(pair.moving, pair.deadline_s))
    companion = _start(client.send(pair.companion, pair.deadline_s))
    try:
        await asyncio.wait((moving, companion), return_when=asyncio.FIRST_COMPLETED)
        if moving.done() and not companion.done():
            answer = moving.result()
            # Refused before anything moved, it has a companion that nobody answers.
            if moved_is_enough or not answer.ok:
                return answer, None
        told = await companion
        if not accepted(told):
            return None, told
        return await moving, told
    finally:
        for task in (moving, companion):
            task.cancel()
        await asyncio.gather(moving, companion, return_exceptions=True)


def _start(call: Coroutine[Any, Any, Answer]) -> asyncio.Task[Answer]:
    return asyncio.create_task(call)
