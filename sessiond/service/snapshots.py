"""The snapshots of a session, read from the store: the manifests are the truth."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from sessiond.domain.errors import (
    SnapshotNotFoundError,
    StoreCorruptError,
    StoreError,
    StoreKeyError,
    StoreVersionError,
)
from sessiond.domain.reasons import Cause, Reason
from sessiond.service import writes
from sessiond.service.judge import summarize

if TYPE_CHECKING:
    from collections.abc import Callable

    from sessiond.domain.session import Session
    from sessiond.domain.snapshot import Manifest, SnapshotSummary
    from sessiond.service.context import Context
    from sessiond.store.sessionlook import SessionLook

_REASONS: dict[type[Exception], Reason] = {
    SnapshotNotFoundError: Reason.SNAPSHOT_MISSING,
    StoreCorruptError: Reason.SNAPSHOT_CORRUPT,
    StoreKeyError: Reason.SNAPSHOT_KEY_MISMATCH,
    StoreVersionError: Reason.FORMAT_MISMATCH,
    StoreError: Reason.STORE_FAILED,
}

_KNOWN_REASONS: Final = frozenset(Reason)


@dataclass(frozen=True)
class Readable:
    """The newest snapshot that can be read, and why newer ones cannot."""

    manifest: Manifest | None
    causes: tuple[Cause, ...]


class Snapshots:
    """Reads manifests and keeps the registry's list of them true."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def newest_readable(self, session: Session) -> Readable:
        """Return the newest manifest that is whole; damaged ones are passed over and named."""
        return await self._context.blocking(self.newest_readable_now, session)

    def newest_manifest(self, session: Session) -> Manifest | None:
        """Return the manifest of :meth:`newest_readable`, in the caller's thread."""
        return self.newest_readable_now(session).manifest

    async def read(self, session: Session, generation: int) -> Manifest | None:
        """Return one manifest; ``None`` if it was never committed.

        :raises StoreError: it is there and cannot be read.
        """
        try:
            return await self._context.blocking(
                self._context.store.read_manifest,
                session.tenant,
                session.session_id,
                generation,
            )
        except SnapshotNotFoundError:
            return None

    async def next_generation(self, session: Session) -> int:
        """Return a number that no snapshot of the session has or had."""
        stored = await self._context.blocking(
            self._context.store.generations, session.tenant, session.session_id
        )
        known = session.snapshot.generation if session.snapshot else 0
        return max(known, session.lost_generation, *stored) + 1

    async def record(self, session: Session, summary: SnapshotSummary) -> None:
        """Tell the registry of a committed snapshot."""
        await self._context.blocking(writes.record, self._context, session, summary)

    async def reconcile(self, session: Session) -> int:
        """Record what was committed while nobody listened; return how many snapshots."""
        return await self._context.blocking(self.reconcile_now, session)

    def newest_readable_now(self, session: Session, look: SessionLook | None = None) -> Readable:
        """Return the same as :meth:`newest_readable`, in the caller's thread.

        :param look: what the session's folder held, looked at since *session* was read
        """
        store = self._context.store
        look = look or store.look(session.tenant, session.session_id)
        if look.generations and look.newest is None:
            # A newer one may have been committed, and have taken its place, while we looked.
            look = store.look(session.tenant, session.session_id)
        generations = look.generations
        found: list[Cause] = []
        newest_known = session.snapshot.generation if session.snapshot else 0
        if newest_known > max(generations, default=0):
            found.append(Cause(Reason.SNAPSHOT_MISSING, detail=f"generation {newest_known}"))
        if look.newest is not None:
            return Readable(look.newest, tuple(found))
        for generation in reversed(generations):
            try:
                manifest = store.read_manifest(session.tenant, session.session_id, generation)
            except (StoreError, SnapshotNotFoundError) as error:
                found.append(Cause(_reason(error), detail=f"generation {generation}"))
            else:
                return Readable(manifest, tuple(found))
        return Readable(None, tuple(found) or (_why_none(session),))

    def older_that_fits(
        self, session: Session, generation: int, fits: Callable[[Manifest], bool]
    ) -> Manifest | None:
        """Return the newest snapshot before *generation* that *fits*, in the caller's thread.

        What cannot be read is passed over.
        """
        store, key = self._context.store, (session.tenant, session.session_id)
        for number in reversed(store.generations(*key)):
            if number >= generation:
                continue
            with suppress(StoreError, SnapshotNotFoundError):
                manifest = store.read_manifest(*key, number)
                if fits(manifest):
                    return manifest
        return None

    def reconcile_now(self, session: Session, look: SessionLook | None = None) -> int:
        """Do the same as :meth:`reconcile`, in the caller's thread."""
        store, registry = self._context.store, self._context.registry
        key = session.tenant, session.session_id
        generations = look.generations if look else tuple(store.generations(*key))
        newest = session.snapshot.generation if session.snapshot else 0
        if generations in ((), (newest,)):
            return 0  # the usual case, without another question to the registry
        known = {summary.generation for summary in registry.list_snapshots(*key)}
        recorded = 0
        parent: Manifest | None = None
        for generation in generations:
            if generation in known:
                continue
            try:
                manifest = store.read_manifest(*key, generation)
                parent = self._parent(manifest)
            except (StoreError, SnapshotNotFoundError):
                continue  # a resume names it; here only what can be read is recorded
            summary = summarize(manifest, parent, session.model, seconds=0.0)
            # A removal may have begun since: it must not be recorded after the end of that.
            is_there = partial(self._is_there, manifest)
            recorded += writes.record(self._context, session, summary, is_there)
        return recorded

    def _is_there(self, manifest: Manifest) -> bool:
        found = self._context.store.generations(manifest.tenant, manifest.session)
        return manifest.generation in found

    def _parent(self, manifest: Manifest) -> Manifest | None:
        if not manifest.parent_generation:
            return None
        try:
            return self._context.store.read_manifest(
                manifest.tenant, manifest.session, manifest.parent_generation
            )
        except (StoreError, SnapshotNotFoundError):
            return None


def _why_none(session: Session) -> Cause:
    lost = session.lost_reason
    return Cause(Reason(lost)) if lost in _KNOWN_REASONS else Cause(Reason.NO_SNAPSHOT)


def _reason(error: Exception) -> Reason:
    return next(reason for kind, reason in _REASONS.items() if isinstance(error, kind))
