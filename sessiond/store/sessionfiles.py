"""The files of one session: its record, its manifests and its heads.

The session's folder is the lock: who adds something holds it shared, who deletes or revives
holds it exclusively. So nothing is ever added to a session after its tombstone is written.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.domain.errors import (
    GenerationExistsError,
    SessionNotFoundError,
    SnapshotNotFoundError,
    StoreCorruptError,
    StoreError,
)
from sessiond.store import layout
from sessiond.store.catalogue import read_manifest
from sessiond.store.fences import Fence, no_fence
from sessiond.store.fileio import Publish, lock_exclusive, lock_shared
from sessiond.store.heads import pack_head
from sessiond.store.manifests import pack_manifest
from sessiond.store.parsed import ParsedFiles
from sessiond.store.sessions import (
    MAX_SESSION_FILE_BYTES,
    SessionRecord,
    pack_session,
    tombstone,
    unpack_session,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessiond.domain.heads import Head
    from sessiond.domain.ids import SegmentId, SessionId, TenantId
    from sessiond.domain.keys import KeyRing
    from sessiond.domain.snapshot import Manifest
    from sessiond.store.layout import Folder
    from sessiond.store.tree import Tree


@dataclass(frozen=True)
class Removed:
    """What the deletion of a session removed, and which segments it may have freed."""

    manifests: int
    heads: int
    segments: frozenset[SegmentId]


class SessionFiles:
    """Reads and writes one session's folder."""

    def __init__(
        self,
        tree: Tree,
        keys: KeyRing,
        tenant: TenantId,
        session: SessionId,
        parsed: ParsedFiles | None = None,
    ) -> None:
        """Name the files.

        :param parsed: of the store; without it, manifests are read from the disk
        """
        self._tree, self._keys = tree, keys
        self._parsed = ParsedFiles(0) if parsed is None else parsed
        self._tenant, self._session = tenant, session
        self._folder: Folder = layout.session_folder(
            keys.tenant_name(tenant), keys.session_name(tenant, session)
        )

    def record(self) -> SessionRecord | None:
        """Return the session's record or tombstone; ``None`` if there is none."""
        try:
            data = self._tree.read(self._folder, layout.SESSION_FILE, MAX_SESSION_FILE_BYTES)
        except FileNotFoundError:
            return None
        record = unpack_session(data, self._keys)
        if (record.tenant, record.session) != (self._tenant, self._session):
            raise StoreCorruptError("The session's file is that of another session.")
        return record

    def write_record(self, record: SessionRecord, *, create: bool, fence: Fence) -> None:
        """Write the record; *create* revives a deleted session, empty."""
        with self.locked(exclusive=True):
            fence()
            if not create:
                self._require_not_deleted()
            elif self._is_deleted(if_damaged=True):  # nothing may come back
                self._remove_contents()  # what a crash of the deletion may have left
            self._write_record(record)

    def generations(self) -> list[int]:
        """Return the committed generations, ascending."""
        numbers = map(layout.generation_of, self._tree.names(self._folder))
        return sorted(number for number in numbers if number is not None)

    def manifest(self, generation: int) -> Manifest:
        """Return one generation's manifest."""
        try:
            return read_manifest(self._tree, self._keys, self._folder, generation, self._parsed)
        except FileNotFoundError as error:
            raise SnapshotNotFoundError(f"There is no generation {generation}.") from error

    def commit(self, manifest: Manifest, fence: Fence) -> None:
        """Create the manifest's file: the commit of the snapshot.

        :param fence: asked right before the file gets its name. Never after it: what has its
            name may have been read.
        """
        data = pack_manifest(manifest, self._keys)
        with self.locked(exclusive=False):
            self._require_not_deleted()
            self._require_segments(manifest)
            name = layout.manifest_file(manifest.generation)
            try:
                self._tree.write(self._folder, name, data, Publish.CREATE, fence)
            except FileExistsError as error:
                raise GenerationExistsError from error

    def delete_manifest(self, generation: int) -> None:
        """Remove one generation's manifest, if it is there."""
        self._tree.unlink(self._folder, layout.manifest_file(generation))

    def write_head(self, head: Head) -> None:
        """Replace the head that the head's engine keeps."""
        data = pack_head(head, self._keys)
        with self.locked(exclusive=False):
            self._require_not_deleted()
            # Not synced: after a power failure no engine has the KV that it tells of.
            folder = layout.heads_folder(self._folder)
            name = layout.head_file(head.engine_id)
            self._tree.write(folder, name, data, Publish.HINT)

    def remove_head(self, engine_id: str) -> bool:
        """Remove the head that an engine kept; returns whether it was there."""
        folder = layout.heads_folder(self._folder)
        return self._tree.unlink(folder, layout.head_file(engine_id), sync=False)

    def delete(self, fence: Fence = no_fence, *, again: bool = False) -> Removed:
        """Write the tombstone, then remove manifests and heads.

        :param again: only finish what an earlier deletion has begun
        """
        with self.locked(exclusive=True):
            fence()
            if not self._is_deleted(if_damaged=False):
                if again:
                    return Removed(0, 0, frozenset())  # the session was begun again since
                self._write_record(tombstone(self._tenant, self._session, time.time()))
            return self._remove_contents()

    def remove_tombstone(self, deleted_before_unix_s: float) -> bool:
        """Remove the whole folder if it is an old tombstone; returns whether it was."""
        with self.locked(exclusive=True):
            record = self.record()
            deleted = record.deleted_unix_s if record else None
            if deleted is None or deleted >= deleted_before_unix_s:
                return False
            self._remove_contents()
            self._tree.remove_folder(layout.heads_folder(self._folder))
            self._tree.unlink(self._folder, layout.SESSION_FILE, sync=False)
            self._tree.remove_folder(self._folder)
            return True

    @contextlib.contextmanager
    def locked(self, *, exclusive: bool, create: bool = True) -> Iterator[None]:
        """Hold the session's lock, without which its files are not to be changed.

        :raises FileNotFoundError: the session has no folder, and *create* is false.
        """
        fd = -1
        while fd < 0:
            fd = self._tree.open_folder(self._folder, create=create)
            (lock_exclusive if exclusive else lock_shared)(fd)
            if os.fstat(fd).st_nlink == 0:  # an old tombstone was removed meanwhile
                self._tree.ops.close(fd)
                fd = -1
        try:
            yield
        finally:
            self._tree.ops.close(fd)

    def _is_deleted(self, *, if_damaged: bool) -> bool:
        """Whether there is a tombstone; *if_damaged* for a file that may have been one."""
        try:
            record = self.record()
        except StoreCorruptError:
            return if_damaged
        return record is not None and record.is_tombstone

    def _require_not_deleted(self) -> None:
        record = self.record()
        if record is not None and record.is_tombstone:
            raise SessionNotFoundError("The session was deleted.")

    def _require_segments(self, manifest: Manifest) -> None:
        for segment_id in manifest.segment_ids:
            name = layout.segment_file(segment_id)
            if not self._tree.exists(layout.segment_folder(segment_id), name):
                raise SnapshotNotFoundError("A segment of the manifest does not exist.")

    def _write_record(self, record: SessionRecord) -> None:
        data = pack_session(record, self._keys)
        self._tree.write(self._folder, layout.SESSION_FILE, data, Publish.REPLACE)

    def _remove_contents(self) -> Removed:
        """Remove manifests and heads; the lock is held and the tombstone written."""
        segments: set[SegmentId] = set()
        generations = self.generations()
        for generation in generations:
            # What cannot be read is removed all the same; the collector finds its segments.
            with contextlib.suppress(StoreError, SnapshotNotFoundError):
                segments |= self.manifest(generation).segment_ids
            self.delete_manifest(generation)
        folder = layout.heads_folder(self._folder)
        heads = sum(self._tree.unlink(folder, name) for name in self._tree.names(folder))
        return Removed(len(generations), heads, frozenset(segments))
