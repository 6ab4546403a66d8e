"""Looking at a whole store, again and again.

Cheap when little has changed: manifests never change, so each is read once, and a session whose
folders have not changed is not listed again.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.domain.errors import StoreError
from sessiond.store import layout
from sessiond.store.catalogue import tenant_names
from sessiond.store.references import KnownManifest, ReferenceScan
from sessiond.store.room import space_of
from sessiond.store.segments import read_contents
from sessiond.store.tree import BLOCK_BYTES, list_names
from sessiond.store.usage import DiskKind, Tally, Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sessiond.domain.ids import SegmentId
    from sessiond.store.layout import Folder
    from sessiond.store.tree import Tree

#: Names may come and go within one tick of the file system's clock: so long after a change, a
#: folder's time is trusted to tell of the next one.
_SETTLED_NS = 2 * 10**9
_KINDS = {layout.TMP: DiskKind.TMP, layout.QUARANTINE: DiskKind.QUARANTINE}
_ELSEWHERE = (layout.TMP, layout.QUARANTINE, layout.ENGINES, layout.ROOT)


@dataclass(frozen=True)
class _Session:
    """A session's folders when they were listed."""

    identity: tuple[int, ...]  #: of both folders; empty if the next look must list them again
    sizes: Mapping[DiskKind, int]  #: without manifests
    manifests: tuple[KnownManifest, ...]


class UsageScan:
    """What is known of one store; used by one thread at a time."""

    def __init__(self, tree: Tree, references: ReferenceScan) -> None:
        self._tree, self._references = tree, references
        self._sessions: dict[Folder, _Session] = {}
        self._owners: dict[SegmentId, str] = {}  #: of segments that no manifest names

    def scan(self) -> Usage:
        """Return what is there now.

        :raises OSError: a folder or file could not be read.
        """
        tally = Tally()
        self._add_sessions(tally)
        self._add_segments(tally)
        for folder in _ELSEWHERE:
            for _, size_bytes in self._sizes(folder):
                tally.add(_KINDS.get(folder, DiskKind.OTHER), size_bytes)
        return tally.usage(space_of(self._tree))

    def _add_sessions(self, tally: Tally) -> None:
        seen: dict[Folder, _Session] = {}
        self._add_folder_itself(tally, layout.SESSIONS, "")
        for tenant_name in tenant_names(self._tree):
            with contextlib.suppress(NotADirectoryError):  # a foreign file in a tenant's place
                self._add_tenant(tally, tenant_name, seen)
        self._sessions = seen
        self._references.forget_others(seen.keys())

    def _add_tenant(self, tally: Tally, tenant_name: str, seen: dict[Folder, _Session]) -> None:
        folder = layout.tenant_folder(tenant_name)
        self._add_folder_itself(tally, folder, tenant_name)
        with self._tree.folder(folder) as tenant_fd:
            for name in filter(layout.is_folder_name, list_names(tenant_fd)):
                session = layout.session_folder(tenant_name, name)
                seen[session] = self._session(session, tenant_fd)
                for kind, size_bytes in seen[session].sizes.items():
                    tally.add(kind, size_bytes, tenant_name)
                tally.add_session(tenant_name, seen[session].manifests)

    def _session(self, folder: Folder, tenant_fd: int) -> _Session:
        # Before the listing: what changes meanwhile is found by the next look.
        identity = _identity(folder[-1], tenant_fd)
        known = self._sessions.get(folder)
        if known is not None and identity and known.identity == identity:
            return known
        sizes: Counter[DiskKind] = Counter()
        for name, size_bytes in self._sizes(folder):
            if not layout.generation_of(name):
                sizes[DiskKind.SESSIONS] += size_bytes
        heads = self._sizes(layout.heads_folder(folder))
        sizes[DiskKind.HEADS] += sum(size_bytes for _, size_bytes in heads)
        manifests = tuple(self._references.session(folder))
        if not all(manifest.facts for manifest in manifests):
            identity = ()
        return _Session(identity, sizes, manifests)

    def _add_segments(self, tally: Tally) -> None:
        owners: dict[SegmentId, str] = {}
        tally.add(DiskKind.SEGMENTS, sum(size for _, size in self._sizes(layout.SEGMENTS)))
        for part in self._tree.names(layout.SEGMENTS):
            for name, size_bytes in self._sizes((*layout.SEGMENTS, part)):
                segment_id = layout.segment_of(name)
                if segment_id is None:
                    tally.add(DiskKind.SEGMENTS, size_bytes)  # notes, and the folder itself
                    continue
                if not tally.is_referenced(segment_id):
                    owners[segment_id] = self._owners.get(segment_id) or self._owner(segment_id)
                tally.add_segment(segment_id, size_bytes, owners.get(segment_id, ""))
        self._owners = owners

    def _owner(self, segment_id: SegmentId) -> str:
        """Return the tenant's folder name that a segment's header tells; empty if it cannot."""
        ops = self._tree.ops
        try:
            with self._tree.folder(layout.segment_folder(segment_id)) as folder_fd:
                flags = os.O_RDONLY | os.O_NONBLOCK
                fd = ops.open(layout.segment_file(segment_id), flags, dir_fd=folder_fd)
                try:
                    return read_contents(ops, fd)[0].tenant_name
                finally:
                    ops.close(fd)
        except (OSError, StoreError):
            return ""

    def _add_folder_itself(self, tally: Tally, folder: Folder, tenant_name: str) -> None:
        with self._tree.folder(folder) as fd:
            tally.add(DiskKind.SESSIONS, os.fstat(fd).st_blocks * BLOCK_BYTES, tenant_name)

    def _sizes(self, folder: Folder) -> Iterator[tuple[str, int]]:
        """Yield the files of a folder, and the folder itself, with their bytes."""
        try:
            with self._tree.folder(folder) as fd:
                yield "", os.fstat(fd).st_blocks * BLOCK_BYTES
                for name in list_names(fd):
                    info = _stat(name, fd)
                    if info and not stat.S_ISDIR(info.st_mode):
                        yield name, info.st_blocks * BLOCK_BYTES
        except (FileNotFoundError, NotADirectoryError):
            return


def _identity(session_name: str, tenant_fd: int) -> tuple[int, ...]:
    """Return what changes when a session's names do; nothing if that cannot be trusted yet."""
    found: tuple[int, ...] = ()
    for name in (session_name, "/".join(layout.heads_folder((session_name,)))):
        info = _stat(name, tenant_fd)
        if info is None:
            found += (0, 0)  # a session without heads has no folder for them
        elif time.time_ns() - info.st_mtime_ns < _SETTLED_NS:
            return ()
        else:
            found += (info.st_ino, info.st_mtime_ns)
    return found


def _stat(name: str, folder_fd: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
