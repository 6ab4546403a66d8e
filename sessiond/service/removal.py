"""Taking a session's snapshots away: claimed, written down, and never under its user's feet."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.domain.errors import OperationInProgressError, SessionNotFoundError, StoreError
from sessiond.domain.reasons import Reason
from sessiond.domain.retention import RemovalCause
from sessiond.domain.session import OperationKind, OperationStatus
from sessiond.service.operations import begun, claim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.ids import SegmentId
    from sessiond.domain.retention import SessionKey
    from sessiond.domain.session import Session
    from sessiond.service.context import Context
    from sessiond.store.usage import SessionUsage

_log = logging.getLogger(__name__)

#: What the session's trail calls it; everything else is an eviction.
_EVENTS = {
    RemovalCause.EXPIRED: "snapshot_expired",
    RemovalCause.SUPERSEDED: "snapshot_pruned",
}


@dataclass(frozen=True)
class Wish:
    """Snapshots of one session that are to go."""

    key: SessionKey
    generations: tuple[int, ...]
    segments: frozenset[SegmentId]  #: that they reference
    size_bytes: int  #: that get free
    cause: RemovalCause


def wish_of(
    key: SessionKey, usage: SessionUsage, generations: Sequence[int], cause: RemovalCause
) -> Wish:
    """Return the wish to remove these generations of a session."""
    return Wish(
        key,
        tuple(generations),
        usage.segments_of(generations),
        usage.bytes_of(generations),
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
        taken = self._take_claimed(wish)
        ended, now = OperationStatus.SUCCEEDED, self._context.now()
        registry.finish_operation(operation.operation_id, operation.owner, ended, None, now)
        return taken

    def remove(
        self, session: Session, wish: Wish, *, spare_pinned: bool = False
    ) -> frozenset[SegmentId] | None:
        """Remove snapshots of a session that the caller's operation holds.

        :param spare_pinned: return ``None`` for one that is pinned: no operation keeps a pin out.
        """
        store, registry = self._context.store, self._context.registry
        whole = wish.cause is not RemovalCause.SUPERSEDED
        unread = whole and self._is_unread(session)
        # The registry first, as in every deletion. And again: whoever looked at the session in
        # between has found its manifests and recorded them.
        if not self._forget(wish, spare_pinned=spare_pinned):
            return None
        released = store.upkeep.release(*wish.key, wish.generations)
        self._forget(wish)
        detail: dict[str, JsonValue] = {
            "cause": wish.cause.value,
            "generations": list(released.generations),
            "bytes": wish.size_bytes,
            "unread": unread,
        }
        kind = _EVENTS.get(wish.cause, "snapshot_evicted")
        registry.add_event(*wish.key, kind, self._context.now(), detail)
        self._context.observer.removed(wish.cause, wish.size_bytes, unread=unread)
        return released.segments

    def _take_claimed(self, wish: Wish) -> frozenset[SegmentId] | None:
        session = self._context.registry.get_session(*wish.key)
        if not set(wish.generations).intersection(self._context.store.generations(*wish.key)):
            return None  # another daemon was quicker
        whole = wish.cause is not RemovalCause.SUPERSEDED  # which leaves the newest one
        if whole and self._context.store.upkeep.is_locked(wish.segments):
            return None
        return self.remove(session, wish, spare_pinned=whole)

    def _take_unknown(self, wish: Wish) -> frozenset[SegmentId] | None:
        """Remove snapshots of a session of which only the store knows."""
        store = self._context.store
        try:
            self._context.registry.get_session(*wish.key, include_deleted=True)
        except SessionNotFoundError:
            pass
        else:
            return None  # it is being deleted
        record = store.read_session(*wish.key)
        if (record and record.pinned) or store.upkeep.is_locked(wish.segments):
            return None
        released = store.upkeep.release(*wish.key, wish.generations)
        if not released.generations:
            return None  # another daemon was quicker
        _log.warning(
            "snapshots of a session that the registry does not know were removed: %s, %d bytes",
            wish.cause.value,
            wish.size_bytes,
        )
        self._context.observer.removed(wish.cause, wish.size_bytes, unread=True)
        return released.segments

    def _forget(self, wish: Wish, *, spare_pinned: bool = False) -> bool:
        expired = wish.cause is RemovalCause.EXPIRED
        reason = Reason.SNAPSHOT_EXPIRED if expired else Reason.SNAPSHOT_EVICTED
        return self._context.registry.forget_snapshots(
            *wish.key, wish.generations, reason.value, spare_pinned=spare_pinned
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
