"""What keeps a store's disk in order: measuring, taking snapshots away, freeing their bytes."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.store import layout
from sessiond.store.collector import CollectReport, collect
from sessiond.store.fences import Fence, no_fence
from sessiond.store.fileio import Space, store_errors, try_lock
from sessiond.store.references import ReferenceScan
from sessiond.store.room import space_of
from sessiond.store.sessionfiles import SessionFiles
from sessiond.store.tree import list_names
from sessiond.store.usage import SessionUsage
from sessiond.store.usage_scan import UsageScan

if TYPE_CHECKING:
    from collections.abc import Collection

    from sessiond.domain.ids import SegmentId, SessionId, TenantId
    from sessiond.domain.keys import KeyRing
    from sessiond.domain.retention import SessionKey
    from sessiond.store.layout import Folder
    from sessiond.store.references import KnownManifest
    from sessiond.store.tree import Tree
    from sessiond.store.usage import Usage


@dataclass(frozen=True)
class Released:
    """Snapshots that are gone; their bytes are freed by a collection of these segments."""

    generations: tuple[int, ...]
    segments: frozenset[SegmentId]


class Upkeep:
    """Remembers what it saw of one store, so that looking again is cheap.

    Safe to use from several threads. Every method may raise :class:`StoreError`.
    """

    def __init__(self, tree: Tree, keys: KeyRing) -> None:
        self._tree, self._keys = tree, keys
        self._lock = threading.Lock()
        self._references = ReferenceScan(tree, keys)
        self._scan = UsageScan(tree, self._references)
        self._sessions: dict[SessionKey, SessionUsage] = {}
        self._suspected: set[SegmentId] = set()

    def space(self) -> Space:
        """Return the room of the store's file system."""
        with store_errors("Asking for free space"):
            return space_of(self._tree)

    def usage(self) -> Usage:
        """Measure what is on the disk, and whose it is."""
        with store_errors("Measuring the store"), self._lock:
            usage = self._scan.scan()
            self._suspect(usage)
            return usage

    def session(self, tenant: TenantId, session: SessionId) -> SessionUsage:
        """Return one session's manifests, as they are now."""
        with store_errors("Looking at snapshots"):
            found = self._references.session(self._folder(tenant, session))
            return SessionUsage(self._keys.tenant_name(tenant), tuple(found))

    def release(
        self,
        tenant: TenantId,
        session: SessionId,
        manifests: Collection[KnownManifest],
        fence: Fence = no_fence,
    ) -> Released:
        """Remove snapshots that were seen; readers that have them open are not disturbed.

        What has come into their place since stays: it may be another session's of the same id.

        :param fence: raises if nothing may be removed any more.
        """
        files = SessionFiles(self._tree, self._keys, tenant, session)
        gone: list[KnownManifest] = []
        with (
            store_errors("Removing snapshots"),
            contextlib.suppress(FileNotFoundError),  # the whole session is gone
            files.locked(exclusive=True, create=False),
        ):
            fence()
            for one in self._references.session(self._folder(tenant, session)):
                if any(map(one.is_still, manifests)):
                    files.delete_manifest(one.generation)
                    gone.append(one)
        # What could not be read went all the same; a collection finds its segments.
        segments = {segment_id for one in gone if one.facts for segment_id in one.facts.frames}
        return Released(tuple(one.generation for one in gone), frozenset(segments))

    def collect(self, segments: Collection[SegmentId]) -> CollectReport:
        """Free what is dead of these segments."""
        with store_errors("Collecting"):
            return collect(self._tree, self._keys, only=segments, scan=self._references)

    def collect_changed(self) -> CollectReport:
        """Free what has died since the last call, as far as :meth:`usage` has seen it since."""
        with self._lock:
            suspected, self._suspected = self._suspected, set()
        if not suspected:
            return CollectReport()
        done = False
        try:
            report = self.collect(suspected)
            done = not report.segments_busy and not report.tenants_held
            return report
        finally:
            if not done:
                with self._lock:
                    self._suspected |= suspected

    def is_locked(self, segments: Collection[SegmentId]) -> bool:
        """Whether somebody reads or writes one of the segments."""
        with store_errors("Looking at locks"):
            return any(self._is_locked(segment_id) for segment_id in segments)

    def last_turn_unix_s(self, tenant: TenantId, session: SessionId) -> float:
        """Return when an engine last wrote the session's head; 0 if none did."""
        with store_errors("Looking at heads"):
            folder = layout.heads_folder(self._folder(tenant, session))
            newest = 0.0
            with contextlib.suppress(FileNotFoundError), self._tree.folder(folder) as fd:
                for name in list_names(fd):
                    with contextlib.suppress(FileNotFoundError):
                        info = os.stat(name, dir_fd=fd, follow_symlinks=False)
                        newest = max(newest, info.st_mtime)
            return newest

    def _folder(self, tenant: TenantId, session: SessionId) -> Folder:
        keys = self._keys
        return layout.session_folder(keys.tenant_name(tenant), keys.session_name(tenant, session))

    def _suspect(self, usage: Usage) -> None:
        """Remember the segments that lost a manifest, or have none."""
        for key, earlier in self._sessions.items():
            now = usage.sessions.get(key)
            if now is not None and now.manifests == earlier.manifests:
                continue
            left = set(now.generations) if now else set()
            for manifest in earlier.manifests:
                if manifest.facts and manifest.generation not in left:
                    self._suspected |= manifest.facts.frames.keys()
        self._suspected |= usage.unreferenced
        self._sessions = dict(usage.sessions)

    def _is_locked(self, segment_id: SegmentId) -> bool:
        ops, name = self._tree.ops, layout.segment_file(segment_id)
        try:
            with self._tree.folder(layout.segment_folder(segment_id)) as folder_fd:
                fd = ops.open(name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=folder_fd)
        except OSError:
            return False  # gone, or no file of ours
        try:
            return not try_lock(fd, exclusive=True)
        finally:
            ops.close(fd)
