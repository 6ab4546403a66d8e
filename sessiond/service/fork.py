"""Forks: a new session that goes on from another one's snapshot, with the same chunks."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from sessiond.domain.errors import (
    SessiondError,
    SessionExistsError,
    SessionNotFoundError,
    SnapshotNotFoundError,
)
from sessiond.domain.ids import SessionId, TenantId, new_session_id
from sessiond.domain.session import Event, OperationKind, Session
from sessiond.domain.snapshot import Origin
from sessiond.service.creation import after_deleted
from sessiond.service.judge import summarize
from sessiond.service.once import Once
from sessiond.service.operations import claim
from sessiond.service.ownership import Ownership, erase
from sessiond.service.records import record_of
from sessiond.store.forks import fork_snapshot

if TYPE_CHECKING:
    from sessiond.domain.session import Operation
    from sessiond.domain.snapshot import Manifest
    from sessiond.service.catalogue import Catalogue
    from sessiond.service.context import Context
    from sessiond.service.operations import Operations, Result
    from sessiond.service.snapshots import Snapshots

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ForkWish:
    """What a fork is to be."""

    session_id: SessionId | None = None  #: of the new session; ``None``: made here
    generation: int | None = None  #: of the source; ``None``: its newest readable snapshot


class Forker:
    """Makes forks. They need no engine, and the source may be at work, or go away, meanwhile."""

    def __init__(
        self,
        context: Context,
        snapshots: Snapshots,
        catalogue: Catalogue,
        operations: Operations,
    ) -> None:
        self._context = context
        self._snapshots = snapshots
        self._catalogue = catalogue
        self._operations = operations

    async def fork(
        self, tenant: TenantId, source_id: SessionId, wish: ForkWish, key: str = ""
    ) -> Operation:
        """Begin a session with a snapshot of another one; return the operation that fills it.

        :param key: a client's idempotency key: a repeated call returns the first one's operation
        :raises SessionNotFoundError: there is no such session to fork.
        :raises SnapshotNotFoundError: it has no such snapshot.
        :raises SessionExistsError: there is a session with the new one's id.
        """
        session_id = wish.session_id or new_session_id()
        wanted = claim(tenant, session_id, OperationKind.FORK)

        async def start() -> Operation:
            source = await self._catalogue.get(tenant, source_id)
            manifest = await self._source(source, wish.generation)
            new = self._new(source, manifest, session_id)
            session, reused = await self._context.blocking(self._free, new)
            fence = Ownership(self._context, tenant, wanted.operation_id)
            work = partial(self._perform, session, manifest, fence, reused=reused)
            return await self._operations.start(wanted, work, session)

        if not key:
            return await start()
        request = [OperationKind.FORK.value, source_id, wish.session_id, wish.generation]
        return await Once(self._context, tenant, key, request).operation(wanted, start)

    def _free(self, new: Session) -> tuple[Session, bool]:
        """Return a session whose id is free, and whether a deleted one had it.

        :raises SessionExistsError: the store has snapshots of one.
        """
        session, reused = after_deleted(self._context, new)
        if not reused and self._context.store.generations(session.tenant, session.session_id):
            # Found before anything is begun: what is undone would be gone with the fork.
            raise SessionExistsError(
                f"The store has snapshots of a session {session.session_id!r}; create it to take "
                "them over."
            )
        return session, reused

    async def _source(self, source: Session, generation: int | None) -> Manifest:
        if generation is not None:
            found = await self._snapshots.read(source, generation)
            if found is None:
                raise SnapshotNotFoundError(
                    f"Session {source.session_id!r} has no generation {generation}."
                )
            return found
        readable = await self._snapshots.newest_readable(source)
        if readable.manifest is None:
            raise SnapshotNotFoundError(
                f"Session {source.session_id!r} has no snapshot: suspend it, then fork it.",
                causes=readable.causes,
            )
        return readable.manifest

    def _new(self, source: Session, manifest: Manifest, session_id: SessionId) -> Session:
        now = self._context.now()
        return Session(
            tenant=source.tenant,
            session_id=session_id,
            model=source.model,
            created_unix_s=now,
            updated_unix_s=now,
            idle_timeout_s=source.idle_timeout_s,
            pinned=False,
            deleted=False,
            snapshot=None,
            resumed_on="",
            last_outcome="",
            last_reason="",
            ttl_s=source.ttl_s,
            forked_from=Origin(source.session_id, manifest.generation),
            on_evicted=source.on_evicted,
            plan_policy=source.plan_policy,
            objective_s=source.objective_s,
        )

    async def _perform(
        self, session: Session, source: Manifest, fence: Ownership, *, reused: bool
    ) -> Result:
        started_s = monotonic()
        fill = partial(self._fill, session, source, fence, reused=reused)
        try:
            manifest = await self._context.blocking(fill)
        except SessiondError as error:
            self._context.observer.ended(OperationKind.FORK, "failed", error.code, 0.0)
            await self._context.blocking(self._undo, session)
            raise
        try:
            summary = summarize(manifest, None, session.model, seconds=0.0)
            await self._snapshots.record(session, summary)
            await tell_forked(self._context, manifest)
        except SessiondError:
            # It is made all the same; whoever looks at it next records its snapshot.
            _log.exception("the fork %s is not in both trails", session.session_id)
        seconds = monotonic() - started_s
        self._context.observer.ended(OperationKind.FORK, "complete", "", seconds)
        return forked_json(manifest, seconds)

    def _fill(
        self, session: Session, source: Manifest, fence: Ownership, *, reused: bool
    ) -> Manifest:
        """Make the session's files; no step once the operation's lease is lost."""
        store = self._context.store
        tenant, session_id = session.tenant, session.session_id
        if reused:
            # Its delete may have been interrupted before there was a tombstone.
            store.delete_session(tenant, session_id, fence=fence)
        store.write_session(record_of(session), create=True, fence=fence)
        return fork_snapshot(store, source, session_id, fence)

    def _undo(self, session: Session) -> None:
        """Let nothing be left of a fork that failed, but for what others made."""
        try:
            erase(self._context, session)
        except SessiondError:
            _log.exception("a failed fork left the session %s", session.session_id)


async def tell_forked(context: Context, manifest: Manifest) -> None:
    """Write the fork into both sessions' trails, once, whoever tells of it."""
    assert manifest.forked_from is not None
    for session_id in (manifest.session, manifest.forked_from.session_id):
        at_unix_s, detail = manifest.created_unix_s, _detail(manifest)
        event = Event(0, manifest.tenant, session_id, "forked", at_unix_s, detail)
        # The registry may have been lost since the source was deleted.
        with contextlib.suppress(SessionNotFoundError):
            await context.blocking(context.registry.add_event_once, event)


def forked_json(manifest: Manifest, seconds: float) -> Result:
    """Return the report of a fork that has succeeded."""
    return {**_detail(manifest), "seconds": seconds}


def _detail(manifest: Manifest) -> Result:
    assert manifest.forked_from is not None
    return {
        "source": manifest.forked_from.session_id,
        "source_generation": manifest.forked_from.generation,
        "fork": manifest.session,
        "generation": manifest.generation,
        "tokens_total": len(manifest.tokens),
        "tokens_restorable": manifest.restorable_tokens,
        "chunks": len(manifest.chunks),
        "shared_bytes": manifest.stored_bytes,
    }
