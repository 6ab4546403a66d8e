"""The store: one root of segments, manifests, heads, sessions and engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.domain.errors import EngineNotFoundError
from sessiond.domain.ids import SegmentId, SessionId, TenantId, new_hex_id
from sessiond.store import engines
from sessiond.store.calibrations import Calibrations
from sessiond.store.catalogue import (
    FoundSession,
    list_sessions,
    scan_sessions,
    session_folders_between,
)
from sessiond.store.collector import CollectReport, collect
from sessiond.store.devicerate import read_rate
from sessiond.store.drains import Drains
from sessiond.store.engines import EngineFile
from sessiond.store.fences import Fence, no_fence
from sessiond.store.fileio import REAL_OPS, FileOps, store_errors
from sessiond.store.findings import VerifyOptions, VerifyReport
from sessiond.store.notes import BadNote, add_note, read_notes
from sessiond.store.opening import open_segment
from sessiond.store.parsed import ParsedFiles
from sessiond.store.root import open_root
from sessiond.store.scrublog import ScrubLog, claim_scrub
from sessiond.store.segments import SegmentReader
from sessiond.store.segmentwriter import SegmentWriter, new_header
from sessiond.store.sessionfiles import SessionFiles
from sessiond.store.sessionlook import SessionLook, SessionLooks
from sessiond.store.upkeep import Upkeep
from sessiond.store.verify import Verification, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from sessiond.domain.engines import EngineInfo
    from sessiond.domain.heads import Head
    from sessiond.domain.keys import KeyRing
    from sessiond.domain.snapshot import Manifest
    from sessiond.store.layout import Folder
    from sessiond.store.sessions import SessionRecord
    from sessiond.store.tree import Tree


@dataclass(frozen=True)
class DeleteReport:
    """What the deletion of a session removed."""

    manifests: int
    heads: int
    collected: CollectReport


class Store:
    """One store root. Synchronous; safe to use from several threads and processes.

    Every method may raise :class:`StoreError` where the system refuses an operation, and
    :class:`StoreFullError` where there is no room.
    """

    def __init__(self, tree: Tree, keys: KeyRing, floor_bytes: int | None = None) -> None:
        """Use :meth:`open`."""
        self._tree, self._floor_bytes = tree, floor_bytes
        self._parsed = ParsedFiles()
        self.keys = keys
        self.upkeep = Upkeep(tree, keys)
        self.drains = Drains(tree, keys)
        self.calibrations = Calibrations(tree)

    @classmethod
    def open(
        cls,
        root: Path,
        keys: KeyRing,
        *,
        create: bool = True,
        ops: FileOps = REAL_OPS,
        floor_bytes: int | None = None,
    ) -> Store:
        """Return the store at *root*.

        :param create: make what is missing.
        :param floor_bytes: what segments leave free of the file system; ``None``: 2 % of it, at
            most 1 GiB.
        :raises StoreInsecureError: others than the owner can reach it.
        :raises StoreVersionError: a version wrote it that this one cannot read.
        :raises StoreKeyError: it was made with another server key.
        """
        with store_errors("Opening the store"):
            return cls(open_root(root, keys, create=create, ops=ops), keys, floor_bytes)

    @property
    def root(self) -> Path:
        """Where the store lies."""
        return self._tree.root

    def sweep_tmp(self) -> int:
        """Remove temporary files whose writer is gone; returns how many."""
        with store_errors("Sweeping temporary files"):
            return self._tree.sweep_tmp()

    def look(self, tenant: TenantId, session: SessionId) -> SessionLook:
        """Return what a session's folder holds; its newest manifest only if that is of use."""
        with store_errors("Looking at a session"):
            return self._looks(tenant, session).everything()

    # Snapshots

    def generations(self, tenant: TenantId, session: SessionId) -> list[int]:
        """Return the session's committed generations, ascending."""
        with store_errors("Listing snapshots"):
            return self._session(tenant, session).generations()

    def read_manifest(self, tenant: TenantId, session: SessionId, generation: int) -> Manifest:
        """Return a snapshot's manifest.

        :raises SnapshotNotFoundError: there is none.
        :raises StoreCorruptError: it is damaged.
        :raises StoreKeyError: it was sealed with another key.
        """
        with store_errors("Reading a manifest"):
            return self._session(tenant, session).manifest(generation)

    def commit_manifest(self, manifest: Manifest, *, fence: Fence = no_fence) -> None:
        """Make a snapshot exist, durably; the caller holds locks on all its segments.

        :param fence: raises if nothing may be committed any more.
        :raises GenerationExistsError: another writer has committed this generation.
        :raises SessionNotFoundError: the session was deleted.
        :raises SnapshotNotFoundError: a segment of the manifest is gone.
        """
        with store_errors("Committing a manifest"):
            self._session(manifest.tenant, manifest.session).commit(manifest, fence)

    def delete_snapshot(self, tenant: TenantId, session: SessionId, generation: int) -> None:
        """Remove a snapshot, if it is there; :meth:`collect` frees its bytes."""
        with store_errors("Deleting a snapshot"):
            self._session(tenant, session).delete_manifest(generation)

    # Segments

    def new_segment(self, tenant: TenantId, bytes_digest: bytes) -> SegmentWriter:
        """Begin a segment; its chunks all have the same fingerprint digest (32 bytes)."""
        header = new_header(
            SegmentId(new_hex_id()), self.keys.tenant_name(tenant), bytes_digest, self.keys.key_id
        )
        with store_errors("Beginning a segment"):
            return SegmentWriter.create(self._tree, header, floor_bytes=self._floor_bytes)

    def open_segment(self, segment_id: SegmentId) -> SegmentReader:
        """Open a segment for reading, or for sharing its chunks; close it.

        It holds a shared lock until it is closed: the segment is not collected before.

        :raises SnapshotNotFoundError: there is no such segment (any more).
        :raises StoreCorruptError: its header, footer or index is broken.
        """
        with store_errors("Opening a segment"):
            return open_segment(self._tree, segment_id)

    def mark_bad(self, segment_id: SegmentId, offset_bytes: int, why: str) -> None:
        """Note beside the segment that the chunk at *offset_bytes* must not be used."""
        with store_errors("Noting a bad chunk"):
            add_note(self._tree, segment_id, BadNote(offset_bytes, why))

    def bad_chunks(self, segment_id: SegmentId) -> set[int]:
        """Return the offsets of the segment's chunks that must not be used.

        Who shares a chunk asks this after opening the segment: a frame that no manifest
        referenced may have been freed before.
        """
        with store_errors("Reading notes"):
            return {note.offset_bytes for note in read_notes(self._tree, segment_id)}

    def read_rate(self) -> float:
        """Return the bytes per second at which this machine reads and decodes stored KV, about.

        Writes a temporary file of 32 MiB and reads it past the page cache.
        """
        with store_errors("Measuring the store's device"):
            return read_rate(self._tree)

    # Heads

    def write_head(self, head: Head) -> None:
        """Replace what one engine tells of a session; atomic, not durable.

        :raises SessionNotFoundError: the session was deleted.
        """
        with store_errors("Writing a head"):
            self._session(TenantId(head.tenant), SessionId(head.session)).write_head(head)

    def read_heads(self, tenant: TenantId, session: SessionId) -> list[Head]:
        """Return one head for each engine that left one; unreadable ones are left out."""
        with store_errors("Reading heads"):
            return self._looks(tenant, session).heads()

    def read_head(self, tenant: TenantId, session: SessionId, engine_id: str) -> Head | None:
        """Return the head that one engine left; ``None`` if it left none that can be read."""
        with store_errors("Reading a head"):
            return self._looks(tenant, session).head(engine_id)

    def remove_ended_head(self, tenant: TenantId, session: SessionId, engine_id: str) -> bool:
        """Remove what an engine told of a session, if no file of the engine is left.

        Returns whether it was removed. An engine has a file as long as it lives.
        """
        with store_errors("Removing a head"):
            if engine_id in engines.engine_ids(self._tree):
                return False
            return self._session(tenant, session).remove_head(engine_id)

    # Sessions

    def write_session(
        self, record: SessionRecord, *, create: bool = False, fence: Fence = no_fence
    ) -> None:
        """Write a session's record, durably.

        :param create: begin a deleted session again, empty.
        :param fence: raises if it must not be written any more.
        :raises SessionNotFoundError: the session was deleted, and *create* is false.
        """
        with store_errors("Writing a session"):
            session = self._session(record.tenant, record.session)
            session.write_record(record, create=create, fence=fence)

    def read_session(self, tenant: TenantId, session: SessionId) -> SessionRecord | None:
        """Return a session's record, or its tombstone; ``None`` if there is none."""
        with store_errors("Reading a session"):
            return self._session(tenant, session).record()

    def list_sessions(self) -> Iterator[SessionRecord]:
        """Yield every session's record, tombstones included."""
        with store_errors("Listing sessions"):
            yield from list_sessions(self._tree, self.keys)

    def scan_sessions(self) -> Iterator[FoundSession]:
        """Yield what every session's folder tells, also where it cannot be read."""
        with store_errors("Listing sessions"):
            yield from scan_sessions(self._tree, self.keys)

    def delete_session(
        self, tenant: TenantId, session: SessionId, *, fence: Fence = no_fence
    ) -> DeleteReport:
        """Delete a session: its tombstone first, then manifests, heads and segments.

        Idempotent. The tombstone stays, so that nothing late revives the session.

        :param fence: raises if it must not be deleted.
        """
        with store_errors("Deleting a session"):
            removed = self._session(tenant, session).delete(fence)
            collected = collect(self._tree, self.keys, tenant=tenant, only=removed.segments)
            return DeleteReport(removed.manifests, removed.heads, collected)

    def remove_tombstones(self, deleted_before_unix_s: float) -> int:
        """Forget sessions deleted before that time; returns how many.

        No writer that knew them may live any more: take a time well before now.
        """
        with store_errors("Removing tombstones"):
            records = [record for record in self.list_sessions() if record.is_tombstone]
            return sum(
                self._session(record.tenant, record.session).remove_tombstone(deleted_before_unix_s)
                for record in records
            )

    # Engines

    def publish_engine(self, info: EngineInfo) -> EngineFile:
        """Make an engine known; it counts as live until the answer is closed."""
        return EngineFile(self._tree, self.keys, info)

    def live_engines(self) -> list[EngineInfo]:
        """Return the engines whose lock is held."""
        with store_errors("Listing engines"):
            return engines.live_engines(self._tree, self.keys, self._parsed)

    def dead_engines(self) -> list[EngineInfo]:
        """Return the engines that ended without removing their files."""
        with store_errors("Listing engines"):
            return engines.dead_engines(self._tree, self.keys)

    def engine_is_live(self, engine_id: str) -> bool:
        """Whether a process holds the engine's lock."""
        return engines.engine_is_live(self._tree, engine_id)

    def require_live(self, engine_id: str) -> None:
        """Be a fence for what an engine commits.

        :raises EngineNotFoundError: it has ended.
        """
        if not self.engine_is_live(engine_id):
            raise EngineNotFoundError("The snapshot's engine has ended.")

    def remove_dead_engines(self, *, keep_sharing: bool = False) -> list[str]:
        """Remove the files of engines that are gone; returns their ids.

        With *keep_sharing*, files that name shared memory stay: they are the only record of it.
        """
        with store_errors("Removing dead engines"):
            dead = self.dead_engines() if keep_sharing else []
            sharing = {engine.engine_id for engine in dead if engine.shared_files}
            return engines.remove_dead_engines(self._tree, sharing)

    # Upkeep

    def collect(self, tenant: TenantId | None = None) -> CollectReport:
        """Finish deletions that a crash cut, then free what no manifest references.

        :param tenant: look at this tenant's segments alone.
        """
        with store_errors("Collecting"):
            for found in scan_sessions(self._tree, self.keys, tenant):
                if found.record and found.record.is_tombstone:
                    self._session(found.record.tenant, found.record.session).delete(again=True)
            return collect(self._tree, self.keys, tenant=tenant)

    def verify(
        self,
        options: VerifyOptions | None = None,
        progress: Callable[[Verification], None] | None = None,
    ) -> VerifyReport:
        """Read what manifests promise, and say what does not hold.

        :param progress: hears of every step.
        """
        return verify(self._tree, self.keys, options or VerifyOptions(), progress)

    def verification(self, options: VerifyOptions) -> Verification:
        """Return a verification that the caller drives, step by step."""
        return Verification(self._tree, self.keys, options)

    def session_folders(self, from_name: str, to_name: str) -> list[Folder]:
        """Return folders of sessions, by the last part of their names: [from, to), in order."""
        with store_errors("Listing sessions"):
            return session_folders_between(self._tree, from_name, to_name)

    def claim_scrub(self) -> AbstractContextManager[ScrubLog | None]:
        """Return the scrub's log, locked as long as the context lasts; ``None`` if it is taken."""
        return claim_scrub(self._tree)

    def _session(self, tenant: TenantId, session: SessionId) -> SessionFiles:
        return SessionFiles(self._tree, self.keys, tenant, session, self._parsed)

    def _looks(self, tenant: TenantId, session: SessionId) -> SessionLooks:
        return SessionLooks(self._tree, self.keys, self._parsed, (tenant, session))
