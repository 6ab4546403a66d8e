"""Whether segments hold what manifests promise of them."""

from __future__ import annotations

import contextlib
import hashlib
import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sessiond.domain.errors import SnapshotNotFoundError, StoreCorruptError, StoreError
from sessiond.domain.tokens import TOKEN_BYTES, to_bytes
from sessiond.store import layout
from sessiond.store.buffers import Scratch
from sessiond.store.fileio import store_errors
from sessiond.store.findings import Owner, VerifyOptions, VerifyReport, fault_of
from sessiond.store.loading import WantedChunk
from sessiond.store.notes import forget_notes
from sessiond.store.opening import open_segment
from sessiond.store.repairs import set_aside
from sessiond.store.segments import SegmentReader

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from sessiond.domain.ids import SegmentId
    from sessiond.domain.snapshot import ChunkRecord, Manifest
    from sessiond.store.layout import Folder
    from sessiond.store.tree import Tree

#: What tells a chunk from every other one of its segment: offset, and a checksum of all it is.
_Key = tuple[int, bytes]


@dataclass
class Promise:
    """A chunk that some manifests of one session promise."""

    record: ChunkRecord
    chain_digest: bytes
    bytes_digest: bytes
    generations: list[int] = field(default_factory=list)

    @property
    def key(self) -> _Key:
        """Equal for equal promises."""
        return self.record.offset_bytes, self.record.checksum


class Promises:
    """What the manifests of one session promise, each chunk once."""

    def __init__(self, folder: Folder, owner: Owner) -> None:
        self.folder, self.owner = folder, owner
        self.by_segment: dict[SegmentId, dict[_Key, Promise]] = {}

    def add(self, manifest: Manifest) -> None:
        """Add a manifest's chunks."""
        digests = _chain_digests(manifest)
        for chunk in manifest.chunks:
            promise = Promise(chunk, digests[chunk.end_token], manifest.bytes_digest)
            by_key = self.by_segment.setdefault(chunk.segment_id, {})
            by_key.setdefault(promise.key, promise).generations.append(manifest.generation)

    def owned(self, promises: list[Promise]) -> Owner:
        """Return whose these are, with the generations that need them."""
        numbers = {number for promise in promises for number in promise.generations}
        return replace(self.owner, generations=tuple(sorted(numbers)))


class SegmentCheck:
    """Reads segments and reports what does not hold."""

    def __init__(self, tree: Tree, options: VerifyOptions, report: VerifyReport) -> None:
        self._tree, self._options, self._report = tree, options, report
        self._random = random.Random(options.seed)  # noqa: S311 - a sample, not a secret
        self._sound: set[SegmentId] = set()
        #: Chunks that were read, and what was wrong with them.
        self._read: dict[SegmentId, dict[_Key, StoreError | None]] = {}
        self._out = Scratch()
        self.promised: set[SegmentId] = set()

    def next_tenant(self) -> None:
        """Forget which chunks were read: tenants share none."""
        self._read.clear()

    def promises(self, promises: Promises) -> Generator[int, None, None]:
        """Verify what one session's manifests promise; yields the bytes read by each step."""
        for segment_id, by_key in promises.by_segment.items():
            self.promised.add(segment_id)
            yield from self._segment(segment_id, list(by_key.values()), promises)

    def unreferenced(self, segment_id: SegmentId) -> None:
        """Verify header and index of a segment that no manifest promises."""
        self._report.unreferenced_segments += 1
        with contextlib.suppress(SnapshotNotFoundError), self._opened(segment_id, Owner()):
            pass

    def _segment(
        self, segment_id: SegmentId, wanted: list[Promise], promises: Promises
    ) -> Generator[int, None, None]:
        chosen = [one for one in wanted if self._random.random() < self._options.sample]
        self._report.chunks_skipped += len(wanted) - len(chosen)
        good: set[int] = set()
        try:
            with self._opened(segment_id, promises.owned(wanted)) as reader:
                for promise in chosen if reader else ():
                    assert reader is not None
                    read_bytes, error = self._chunk(reader, promise)
                    if error is None:
                        good.add(promise.record.offset_bytes)
                    else:
                        self._bad(promise, error, promises)
                    yield read_bytes
                if self._options.repair and good:
                    # Still locked: a note of the collector's must not be lost.
                    removed = forget_notes(self._tree, segment_id, good)
                    self._report.notes_removed += removed
        except SnapshotNotFoundError as error:
            owner = promises.owned(wanted)
            if self._are_kept(promises.folder, owner):
                self._report.add(fault_of(_where(segment_id), "segment", error, owner=owner))

    @contextlib.contextmanager
    def _opened(self, segment_id: SegmentId, owner: Owner) -> Iterator[SegmentReader | None]:
        """Open a segment; yields ``None`` for a damaged one, and reports it.

        :raises SnapshotNotFoundError: there is none.
        """
        try:
            reader = self._open(segment_id)
        except StoreError as error:
            self._broken(segment_id, error, owner)
            yield None
            return
        if segment_id not in self._sound:
            self._sound.add(segment_id)
            self._report.segments += 1
        with reader:
            yield reader

    def _open(self, segment_id: SegmentId) -> SegmentReader:
        with store_errors("Opening a segment"):
            return open_segment(self._tree, segment_id, note_bad=self._options.notes_bad)

    def _chunk(self, reader: SegmentReader, promise: Promise) -> tuple[int, StoreError | None]:
        """Return how many bytes were read, and what is wrong with the chunk."""
        known = self._read.setdefault(reader.segment_id, {})
        if promise.key in known:  # through another session
            return 0, known[promise.key]
        record = promise.record
        out = self._out.get(record.raw_bytes).data
        wanted = WantedChunk(record, promise.chain_digest, out)
        (known[promise.key],) = reader.load([wanted], promise.bytes_digest)
        self._report.chunks += 1
        self._report.raw_bytes += record.raw_bytes
        self._report.stored_bytes += record.stored_bytes
        return record.stored_bytes, known[promise.key]

    def _bad(self, promise: Promise, error: StoreError, promises: Promises) -> None:
        owner, where = promises.owned([promise]), _where(promise.record.segment_id)
        if self._are_kept(promises.folder, owner):
            offset = promise.record.offset_bytes
            self._report.add(fault_of(where, "chunk", error, owner=owner, offset_bytes=offset))

    def _broken(self, segment_id: SegmentId, error: StoreError, owner: Owner) -> None:
        def read_again() -> None:
            with contextlib.suppress(SnapshotNotFoundError):
                self._open(segment_id).close()

        moved, where = "", _where(segment_id)
        # Only what is damaged for certain: not another version's, nor what the system refuses.
        if self._options.repair and isinstance(error, StoreCorruptError):
            moved = set_aside(self._tree, where[:-1], where[-1], read_again)
        fault = fault_of(where, "segment", error, owner=owner, quarantined_as=moved)
        self._report.add(fault)

    def _are_kept(self, folder: Folder, owner: Owner) -> bool:
        """Whether a snapshot needs it still: one that was deleted takes its bytes with it."""
        names = map(layout.manifest_file, owner.generations)
        return any(self._tree.exists(folder, name) for name in names)


def _where(segment_id: SegmentId) -> tuple[str, ...]:
    return (*layout.segment_folder(segment_id), layout.segment_file(segment_id))


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
