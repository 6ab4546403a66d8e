"""Reading everything that manifests promise, and saying what does not hold.

What is found is reported; with *repair*, what is certainly damaged is also taken out of the
way: broken manifests and segments go to quarantine, bad chunks get a note, and notes on chunks
that read well again are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sessiond.domain.errors import SnapshotNotFoundError, StoreCorruptError, StoreError
from sessiond.domain.tokens import TOKEN_BYTES, to_bytes
from sessiond.store import layout
from sessiond.store.buffers import Scratch
from sessiond.store.catalogue import segment_ids, session_folders, tenant_names
from sessiond.store.manifests import unpack_manifest
from sessiond.store.notes import forget_notes
from sessiond.store.opening import open_segment
from sessiond.store.quarantine import quarantine
from sessiond.store.sealed import MAX_SEALED_BYTES
from sessiond.store.segments import SegmentReader, WantedChunk
from sessiond.store.sessions import MAX_SESSION_FILE_BYTES, unpack_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessiond.domain.ids import SegmentId, TenantId
    from sessiond.domain.keys import KeyRing
    from sessiond.domain.snapshot import ChunkRecord, Manifest
    from sessiond.store.layout import Folder
    from sessiond.store.tree import Tree


@dataclass(frozen=True)
class Fault:
    """One thing that does not hold."""

    where: str  #: the file, below the store root
    what: str  #: ``session``, ``manifest``, ``segment`` or ``chunk``
    why: str
    offset_bytes: int | None = None  #: of a chunk
    quarantined_as: str = ""


@dataclass
class VerifyReport:
    """What a verification looked at, and found."""

    manifests: int = 0
    segments: int = 0
    chunks: int = 0
    raw_bytes: int = 0
    chunks_skipped: int = 0  #: left out by the sample
    notes_removed: int = 0
    faults: list[Fault] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether everything that was looked at holds."""
        return not self.faults


@dataclass(frozen=True)
class VerifyOptions:
    """What to verify."""

    tenant: TenantId | None = None  #: ``None``: all
    sample: float = 1.0  #: share of the chunks that are read
    repair: bool = False
    seed: int | None = None  #: of the sample


def verify(tree: Tree, keys: KeyRing, options: VerifyOptions) -> VerifyReport:
    """Verify manifests, segments and chunks.

    :raises OSError: a folder could not be read.
    """
    run = _Verification(tree, keys, options)
    names = tenant_names(tree) if options.tenant is None else [keys.tenant_name(options.tenant)]
    for name in names:
        run.tenant(name)
    if options.tenant is None:
        run.unreferenced_segments()
    return run.report


@dataclass(frozen=True)
class _Promise:
    """A chunk that a manifest promises."""

    record: ChunkRecord
    chain_digest: bytes
    bytes_digest: bytes
    folder: Folder  #: of the manifest
    name: str


class _Verification:
    """One run."""

    def __init__(self, tree: Tree, keys: KeyRing, options: VerifyOptions) -> None:
        self._tree, self._keys, self._options = tree, keys, options
        self._random = random.Random(options.seed)  # noqa: S311 - a sample, not a secret
        self._promised: set[SegmentId] = set()
        self._out = Scratch()
        self.report = VerifyReport()

    def tenant(self, tenant_name: str) -> None:
        """Verify a tenant's sessions, then each chunk that they promise, once."""
        promises: dict[SegmentId, dict[ChunkRecord, _Promise]] = defaultdict(dict)
        for folder in session_folders(self._tree, tenant_name):
            self._session_file(folder)
            for promise in self._promises(folder):
                promises[promise.record.segment_id][promise.record] = promise
        for segment_id, by_record in promises.items():
            self._promised.add(segment_id)
            self._promised_segment(segment_id, list(by_record.values()))

    def unreferenced_segments(self) -> None:
        """Verify header and index of the segments that no manifest promises."""
        for segment_id in segment_ids(self._tree):
            if segment_id not in self._promised:
                with contextlib.suppress(SnapshotNotFoundError), self._opened(segment_id):
                    pass

    def _session_file(self, folder: Folder) -> None:
        try:
            data = self._tree.read(folder, layout.SESSION_FILE, MAX_SESSION_FILE_BYTES)
            unpack_session(data, self._keys)
        except FileNotFoundError:
            pass
        except StoreError as error:
            # Never moved away: it may be a tombstone, and only a new record may replace it.
            where = _where(folder, layout.SESSION_FILE)
            self.report.faults.append(Fault(where, "session", error.message))

    def _promises(self, folder: Folder) -> Iterator[_Promise]:
        for name in self._tree.names(folder):
            if layout.generation_of(name) is None:
                continue
            try:
                data = self._tree.read(folder, name, MAX_SEALED_BYTES)
                manifest = unpack_manifest(data, self._keys)
            except FileNotFoundError:
                continue  # deleted meanwhile
            except StoreError as error:
                self._damaged("manifest", folder, name, error)
                continue
            self.report.manifests += 1
            digests = _chain_digests(manifest)
            for chunk in manifest.chunks:
                digest = digests[chunk.end_token]
                yield _Promise(chunk, digest, manifest.bytes_digest, folder, name)

    def _promised_segment(self, segment_id: SegmentId, promises: list[_Promise]) -> None:
        chosen = [one for one in promises if self._random.random() < self._options.sample]
        self.report.chunks_skipped += len(promises) - len(chosen)
        try:
            with self._opened(segment_id) as reader:
                if reader is None:
                    return
                good = [one.record for one in chosen if self._chunk(reader, one)]
        except SnapshotNotFoundError:
            self._missing(segment_id, promises)
            return
        if self._options.repair:
            offsets = {record.offset_bytes for record in good}
            self.report.notes_removed += forget_notes(self._tree, segment_id, offsets)

    def _missing(self, segment_id: SegmentId, promises: list[_Promise]) -> None:
        # A snapshot that was deleted meanwhile takes its segments with it.
        if any(self._tree.exists(promise.folder, promise.name) for promise in promises):
            where = _where(layout.segment_folder(segment_id), layout.segment_file(segment_id))
            self.report.faults.append(Fault(where, "segment", "It does not exist."))

    @contextlib.contextmanager
    def _opened(self, segment_id: SegmentId) -> Iterator[SegmentReader | None]:
        """Open a segment; yields ``None`` for a damaged one, and reports it."""
        try:
            reader = open_segment(self._tree, segment_id)
        except StoreError as error:
            folder = layout.segment_folder(segment_id)
            self._damaged("segment", folder, layout.segment_file(segment_id), error)
            yield None
            return
        self.report.segments += 1
        with reader:
            yield reader

    def _chunk(self, reader: SegmentReader, promise: _Promise) -> bool:
        record = promise.record
        out = self._out.get(record.raw_bytes).data
        wanted = WantedChunk(record, promise.chain_digest, out)
        (error,) = reader.load([wanted], promise.bytes_digest)
        self.report.chunks += 1
        self.report.raw_bytes += record.raw_bytes
        if error is None:
            return True
        folder = layout.segment_folder(record.segment_id)
        where = _where(folder, layout.segment_file(record.segment_id))
        self.report.faults.append(Fault(where, "chunk", error.message, record.offset_bytes))
        return False

    def _damaged(self, what: str, folder: Folder, name: str, error: StoreError) -> None:
        moved = ""
        # Only what is damaged for certain: not another key's, not another version's file.
        if self._options.repair and isinstance(error, StoreCorruptError):
            with contextlib.suppress(FileNotFoundError):
                moved = quarantine(self._tree, folder, name, error.message)
        where = _where(folder, name)
        self.report.faults.append(Fault(where, what, error.message, quarantined_as=moved))


def _chain_digests(manifest: Manifest) -> dict[int, bytes]:
    """Return the SHA-256 of the tokens up to each chunk's end."""
    data = memoryview(to_bytes(manifest.tokens))
    running, done = hashlib.sha256(), 0
    digests = {}
    for end in sorted({chunk.end_token for chunk in manifest.chunks}):
        running.update(data[done * TOKEN_BYTES : end * TOKEN_BYTES])
        digests[end] = running.copy().digest()
        done = end
    return digests


def _where(folder: Folder, name: str) -> str:
    return "/".join((*folder, name))
