"""KV that ended with its engine: a dead engine's head tells of it, and nothing else has it.

Heads outlive their engines: the one that tells of the conversation stays in the folder of its
session until that is deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sessiond.domain.lines import makes_needless
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tokens import common_prefix_tokens, whole_chunk_tokens
from sessiond.service.coverage import is_newer
from sessiond.service.headchoice import choose_head, of_session

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sessiond.domain.heads import Branch, Head
    from sessiond.domain.outcomes import SuspendReport
    from sessiond.domain.session import Session
    from sessiond.domain.snapshot import Manifest
    from sessiond.service.engines import Sight
    from sessiond.service.snapshots import Readable
    from sessiond.store.store import Store


@dataclass(frozen=True)
class LostKv:
    """The end of a session's conversation, which only an engine that has ended had."""

    engine_id: str
    tokens: int  #: in whole chunks; in no snapshot, and in no engine

    @property
    def cause(self) -> Cause:
        """Why they are missing."""
        return Cause(Reason.ENGINE_LOST_KV, f"{self.tokens} tokens, engine {self.engine_id}")


def lost_kv(
    session: Session, heads: Iterable[Head], sight: Sight, readable: Readable
) -> LostKv | None:
    """Return what a suspend would have stored if its engine still lived; ``None``: nothing.

    The conversation may have gone on since, from a snapshot or in another engine; then what a
    dead engine had of it is missed by nobody. Where a snapshot is gone or damaged, that may have
    had all of it, and is the cause.
    """
    if any(cause.reason is not Reason.NO_SNAPSHOT for cause in readable.causes):
        return None
    newest, alive = readable.manifest, {engine.engine_id for engine in sight.live}
    dead = (head for head in heads if head.engine_id not in alive)
    head = choose_head(of_session(session, dead))
    if head is None or head.main is None or (newest and not is_newer(head, newest)):
        return None
    here = sight.located.head.main if sight.located else None
    if here is not None and makes_needless(here, head.main):
        return None
    tokens = _missing_tokens(head.main, here, newest, _chunk_tokens(sight, newest))
    return LostKv(head.engine_id, tokens) if tokens > 0 else None


def drop_old_heads(store: Store, session: Session) -> None:
    """Remove what engines have left that ended, but for what :func:`lost_kv` goes by; blocks.

    Else each start of an engine would add a file to each session, to be read for each ticket.

    :raises StoreError: the store cannot be read.
    """
    alive = {engine.engine_id for engine in store.live_engines()}
    heads = store.read_heads(session.tenant, session.session_id)
    dead = [head for head in heads if head.engine_id not in alive]
    telling = choose_head(of_session(session, dead))
    for head in dead:
        if telling is not None and head.engine_id != telling.engine_id:
            store.remove_ended_head(session.tenant, session.session_id, head.engine_id)


def with_lost(report: SuspendReport, lost: LostKv | None) -> SuspendReport:
    """Return a suspend's report that tells of what it could not store any more, too."""
    if lost is None:
        return report
    return replace(
        report,
        missing_tokens=report.missing_tokens + lost.tokens,
        causes=(*report.causes, lost.cause),
    )


def _missing_tokens(
    main: Branch, here: Branch | None, newest: Manifest | None, chunk_tokens: int
) -> int:
    tokens = whole_chunk_tokens(main.kv_tokens, chunk_tokens)
    stored = resident = 0
    if newest is not None:
        stored = newest.restorable_up_to(min(tokens, _common_tokens(newest, main)))
    if here is not None:
        resident = min(here.kv_tokens, _common_tokens(here, main))
    return tokens - whole_chunk_tokens(min(tokens, max(stored, resident)), chunk_tokens)


def _chunk_tokens(sight: Sight, newest: Manifest | None) -> int:
    if newest is not None:
        return newest.chunk_tokens
    return sight.live[0].chunk_tokens if sight.live else 1


def _common_tokens(other: Branch | Manifest, main: Branch) -> int:
    alike = other.adapter_digest == main.adapter_digest
    return common_prefix_tokens(other.tokens, main.tokens) if alike else 0
