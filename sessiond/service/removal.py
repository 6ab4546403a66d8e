"""Taking a session's snapshots away: claimed, written down, and never under its user's feet."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sessiond.domain.errors import (
    OperationInProgressError,
    SessionExistsError,
    SessionNotFoundError,
    StoreError,
)
from sessiond.domain.reasons import Reason
from sessiond.domain.retention import RemovalCause
from sessiond.domain.session import OperationKind, OperationStatus
from sessiond.service.operations import begun, claim
from sessiond.service.ownership import Ownership, Same, Unknown
from sessiond.service.returns import came_back, went

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.ids import SegmentId
    from sessiond.domain.retention import SessionKey
    from sessiond.domain.session import Session
    from sessiond.service.context import Context
    from sessiond.store.fences import Fence
    from sessiond.store.references import KnownManifest
    from sessiond.store.usage import SessionUsage

_log = logging.getLogger(__name__)

#: What the session's trail calls it; everything else is an eviction.
_EVENTS = {
    RemovalCause.EXPIRED: "snapshot_expired",
    RemovalCause.SUPERSEDED: "snapshot_pruned",
}


@dataclass(frozen=True)
class Wish:
    """Snapshots of one session that are to go: those that were seen, and none in their place."""

    key: SessionKey
    manifests: tuple[KnownManifest, ...]
    segments: frozenset[SegmentId]  #: that they reference
    size_bytes: int  #: that get free
    frame_bytes: int  #: of the chunks that only these of the session's snapshots have
    cause: RemovalCause

    @property
    def generations(self) -> list[int]:
        """Their numbers."""
        return [manifest.generation for manifest in self.manifests]


def wish_of(
    key: SessionKey, usage: SessionUsage, generations: Sequence[int], cause: RemovalCause
) -> Wish:
    """Return the wish to remove these generations of a session."""
    return Wish(
        key,
        tuple(usage.of(generations)),
        usage.segments_of(generations),
        usage.bytes_of(generations),
        usage.frame_bytes_of(generations),
        cause,
    )


class Remover:
    """Removes snapshots. Synchronous: call it from a thread that may block."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def take(self, wish: Wish) -> frozenset[SegmentId] | None:
        """Remove snapshots and return the segments to collect; ``None`` if it must not be now.

        A session that is pinned, at work or being read keeps its snapshots, and so does one
        that another daemon is at.

        :raises StoreError: the files could not be removed; what is left counts as before.
        """
        operation = begun(self._context, claim(*wish.key, OperationKind.RETENTION))
        registry = self._context.registry
        try:
            registry.begin_operation(operation)
        except OperationInProgressError:
            return None
        except SessionNotFoundError:
            return self._take_unknown(wish)
        # An error leaves the operation as a crash would: recovery finds out what is still there.
        taken = self._take_claimed(
            wish, Ownership(self._context, wish.key[0], operation.operation_id)
        )
        ended, now = OperationStatus.SUCCEEDED, self._context.now()
        registry.finish_operation(operation.operation_id, operation.owner, ended, None, now)
        return taken

    def remove(
        self,
        session: Session,
        wish: Wish,
        fence: Fence | None = None,
        *,
        spare_pinned: bool = False,
    ) -> frozenset[SegmentId] | None:
        """Remove snapshots of a session that the caller's operation holds.

        :param fence: raises once they must stay; by default if the id is another session's.
        :param spare_pinned: return ``None`` for one that is pinned: no operation keeps a pin out.
        :raises SessionNotFoundError: the session was deleted meanwhile.
        :raises SessionExistsError: and its id is another one's.
        """
        store, registry = self._context.store, self._context.registry
        whole = wish.cause is not RemovalCause.SUPERSEDED
        unread = whole and self._is_unread(session)
        # The registry first, as in every deletion. And again: whoever looked at the session in
        # between has found its manifests and recorded them.
        lost_bytes = self._forget(session, wish, spare_pinned=spare_pinned)
        if lost_bytes is None:
            return None
        fence = fence or Same(self._context, session)
        released = store.upkeep.release(*wish.key, wish.manifests, fence)
        lost_bytes += self._forget(session, wish) or 0
        detail: dict[str, JsonValue] = {
            "cause": wish.cause.value,
            "generations": list(released.generations),
            "bytes": wish.size_bytes,
            "unread": unread,
        }
        kind = _EVENTS.get(wish.cause, "snapshot_evicted")
        registry.add_event(*wish.key, kind, self._context.now(), detail)
        self._context.observer.removed(wish.cause, wish.size_bytes, unread=unread)
        self._context.observer.settled(lost_bytes, read=whole and not unread)
        if whole:
            (went if unread else came_back)(self._context, session)
        return released.segments

    def _take_claimed(self, wish: Wish, fence: Ownership) -> frozenset[SegmentId] | None:
        try:
            return self._take_held(wish, fence)
        except (OperationInProgressError, SessionNotFoundError):
            return None  # the lease was lost: somebody else has settled what was begun

    def _take_held(self, wish: Wish, fence: Ownership) -> frozenset[SegmentId] | None:
        session = self._context.registry.get_session(*wish.key)
        wish = self._still(wish)
        if not wish.manifests:
            return None  # another daemon was quicker, or others have come in their place
        whole = wish.cause is not RemovalCause.SUPERSEDED  # which leaves the newest one
        if whole and self._context.store.upkeep.is_locked(wish.segments):
            return None
        return self.remove(session, wish, fence, spare_pinned=whole)

    def _still(self, wish: Wish) -> Wish:
        """Return the wish for what is still there of it."""
        found = self._context.store.upkeep.session(*wish.key).manifests
        still = tuple(one for one in found if any(map(one.is_still, wish.manifests)))
        return replace(wish, manifests=still)

    def _take_unknown(self, wish: Wish) -> frozenset[SegmentId] | None:
        """Remove snapshots of a session of which only the store knows."""
        store, fence = self._context.store, Unknown(self._context, *wish.key)
        record = store.read_session(*wish.key)
        if (record and record.pinned) or store.upkeep.is_locked(wish.segments):
            return None
        try:
            released = store.upkeep.release(*wish.key, wish.manifests, fence)
        except SessionExistsError:
            return None  # it is being deleted, or was created meanwhile
        if not released.generations:
            return None  # another daemon was quicker
        _log.warning(
            "snapshots of a session that the registry does not know were removed: %s, %d bytes",
            wish.cause.value,
            wish.size_bytes,
        )
        self._context.observer.removed(wish.cause, wish.size_bytes, unread=True)
        return released.segments

    def _forget(self, session: Session, wish: Wish, *, spare_pinned: bool = False) -> int | None:
        """Forget them; return how many bytes went that were not known to be read."""
        expired = wish.cause is RemovalCause.EXPIRED
        reason = Reason.SNAPSHOT_EXPIRED if expired else Reason.SNAPSHOT_EVICTED
        return self._context.registry.forget_snapshots(
            *wish.key,
            wish.generations,
            reason.value,
            spare_pinned=spare_pinned,
            freed_bytes=wish.frame_bytes,
            created_unix_s=session.created_unix_s,
        )

    def _is_unread(self, session: Session) -> bool:
        """Whether neither a resume nor a turn was seen to load the newest snapshot."""
        if session.resumed_on or session.snapshot is None:
            return not session.resumed_on
        made_unix_s = session.snapshot.created_unix_s
        try:
            heads = self._context.store.read_heads(session.tenant, session.session_id)
        except StoreError:
            return True
        return not any(
            branch.split.disk_tokens and branch.updated_unix_s >= made_unix_s
            for head in heads
            for branch in head.branches
        )
