"""Segments: one file that holds many chunks, written once, read many times."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from sessiond.domain.errors import StoreCorruptError, StoreError
from sessiond.domain.snapshot import ChunkRecord
from sessiond.store import layout
from sessiond.store.buffers import Scratch, thread_frames
from sessiond.store.checksums import ChunkPosition, chunk_checksum
from sessiond.store.codecs import Codec, payload_bound_bytes, thread_coder
from sessiond.store.fileio import (
    DurableFile,
    FileOps,
    Publish,
    is_unsupported,
    store_error,
    store_errors,
)
from sessiond.store.format import (
    FOOTER_BYTES,
    HEADER_BYTES,
    MAX_CHUNK_BYTES,
    IndexEntry,
    SegmentHeader,
    align_up,
    pack_header,
    pack_tail,
    unpack_footer,
    unpack_header,
    unpack_index,
)
from sessiond.store.readahead import ReadAhead, RunData
from sessiond.store.reading import Frame, Run, plan_runs, read_blocks, use_direct_io

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sessiond.domain.ids import SegmentId
    from sessiond.store.tree import Tree

#: Space is reserved in steps of this: fewer, longer extents, and a full disk is noticed early.
_RESERVE_BYTES = 64 << 20


class SegmentWriter:
    """Writes one segment; invisible until :meth:`finish`.

    Several threads may append at once: each encodes in its own memory, and only the choice of
    the frame's place is serialised. Holds a shared lock on the file until :meth:`close`, so
    that no collection takes the segment before its manifest is durable.
    """

    def __init__(self, tree: Tree, file: DurableFile, tmp_fd: int, header: SegmentHeader) -> None:
        """Use :meth:`create`."""
        self.segment_id = header.segment_id
        self._tree, self._file, self._tmp_fd = tree, file, tmp_fd
        self._header = header
        self._lock = threading.Lock()
        self._entries: list[IndexEntry] = []
        self._end_bytes = 0
        self._reserved_bytes = 0

    @classmethod
    def create(cls, tree: Tree, header: SegmentHeader) -> SegmentWriter:
        """Begin a segment with this header."""
        tmp_fd = tree.open_folder(layout.TMP)
        try:
            file = DurableFile(tree.ops, tmp_fd)
        except BaseException:
            tree.ops.close(tmp_fd)
            raise
        writer = cls(tree, file, tmp_fd, header)
        try:
            writer._begin()
        except BaseException:
            writer.close()
            raise
        return writer

    @property
    def size_bytes(self) -> int:
        """The file's length up to now, without index and footer."""
        return self._end_bytes

    def append(self, position: ChunkPosition, raw: memoryview, codec: Codec) -> ChunkRecord:
        """Write one chunk and return its record.

        :param raw: the chunk's bytes, contiguous; must not change before this returns.
        :raises StoreFullError: there is no room; the segment can still be finished without
            this chunk, or aborted.
        :raises StoreError: the write failed.
        """
        source = np.frombuffer(raw, np.uint8)
        if not 0 < len(source) <= MAX_CHUNK_BYTES:
            raise StoreError(f"A chunk of {len(source)} bytes cannot be stored.")
        checksum = chunk_checksum(position, self._header.bytes_digest, source.data)
        frame = thread_frames().get(align_up(payload_bound_bytes(len(source))))
        used, stored_bytes = thread_coder().encode(codec, source, frame)
        frame_bytes = align_up(stored_bytes)
        frame[stored_bytes:frame_bytes] = 0  # nothing of earlier chunks goes to the disk
        with store_errors("Writing a chunk"):
            offset = self._place(frame_bytes)
            self._file.write(frame[:frame_bytes].data, offset)
        entry = IndexEntry(
            position.group,
            position.start_token,
            position.end_token,
            used,
            offset,
            stored_bytes,
            len(source),
            checksum,
            position.chain_digest,
        )
        with self._lock:
            self._entries.append(entry)
        return record_of(entry, self.segment_id)

    def finish(self) -> None:
        """Write index and footer and make the segment durable under its name.

        The lock is kept until :meth:`close`: commit the manifest before.

        :raises StoreError: the write failed; the segment does not exist then.
        """
        entries = sorted(self._entries, key=lambda entry: entry.offset_bytes)
        with store_errors("Finishing a segment"):
            tail = pack_tail(entries, self._end_bytes)
            self._write_block(tail, self._place(len(tail)))
            self._tree.ops.truncate(self._file.fd, self._end_bytes)
            folder = layout.segment_folder(self.segment_id)
            with self._tree.folder(folder, create=True) as folder_fd:
                name = layout.segment_file(self.segment_id)
                self._file.publish(folder_fd, name, Publish.CREATE)

    def abort(self) -> None:
        """Give the segment up; a finished one is left to the collector."""
        self.close()

    def close(self) -> None:
        """Give up the lock; an unfinished segment is removed."""
        with self._lock:
            if self._tmp_fd < 0:
                return
            self._file.close()
            self._tree.ops.close(self._tmp_fd)
            self._tmp_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        use_direct_io(self._tree.ops, self._file.fd)
        self._write_block(pack_header(self._header), self._place(HEADER_BYTES))

    def _place(self, size_bytes: int) -> int:
        """Return the offset of the next *size_bytes*, reserving room ahead."""
        with self._lock:
            offset = self._end_bytes
            if offset + size_bytes > self._reserved_bytes:
                self._reserve(max(_RESERVE_BYTES, size_bytes))
            self._end_bytes += size_bytes
            return offset

    def _reserve(self, size_bytes: int) -> None:
        try:
            self._tree.ops.allocate(self._file.fd, self._reserved_bytes, size_bytes)
        except OSError as error:
            if not is_unsupported(error):
                raise
        self._reserved_bytes += size_bytes

    def _write_block(self, data: bytes, offset: int) -> None:
        # Through aligned memory: the file may be open for direct writing.
        block = Scratch().get(len(data))
        block[:] = np.frombuffer(data, np.uint8)
        self._file.write(block.data, offset)


@dataclass(frozen=True)
class WantedChunk:
    """One chunk to load."""

    record: ChunkRecord
    chain_digest: bytes  #: of the tokens that the caller wants the chunk for
    out: memoryview  #: writable, contiguous, ``record.raw_bytes`` long


class SegmentReader:
    """An open segment; holds a shared lock, so that it cannot be collected, until closed.

    Several threads may call :meth:`load` at once.
    """

    def __init__(self, ops: FileOps, fd: int, on_bad: Callable[[int, str], None]) -> None:
        """Read header, footer and index; owns *fd* only when this returns.

        :param on_bad: is told the offset of each damaged chunk, and why.
        :raises StoreCorruptError: header, footer or index is broken.
        :raises StoreVersionError: a version wrote it that this one cannot read.
        """
        self._ops, self._fd, self._on_bad = ops, fd, on_bad
        self.header, entries = read_contents(ops, fd)
        self.segment_id = self.header.segment_id
        self.entries = tuple(entries)
        self._ahead = ReadAhead(ops, fd)
        self._by_offset = {entry.offset_bytes: entry for entry in entries}

    def load(self, wanted: Sequence[WantedChunk], bytes_digest: bytes) -> list[StoreError | None]:
        """Read, verify, decode and copy chunks; one result for each, in order.

        What is not ``None`` in the answer says why that chunk was not loaded; its ``out`` was
        not touched then. A damaged chunk is read once more, then noted as bad.

        :param bytes_digest: of the fingerprint that the caller's engine has.
        """
        results = [self._refusal(chunk, bytes_digest) for chunk in wanted]
        frames = [
            Frame(place, chunk.record.offset_bytes, chunk.record.stored_bytes)
            for place, chunk in enumerate(wanted)
            if results[place] is None
        ]
        # Handing reads to another thread pays only where there is work to overlap them with.
        ahead = any(wanted[frame.place].record.codec != Codec.RAW for frame in frames)
        with contextlib.closing(self._ahead.read(plan_runs(frames), ahead=ahead)) as runs:
            for run, data in runs:
                self._load_run(run, data, wanted, results)
        return results

    def close(self) -> None:
        """Give up the lock; no load may be running."""
        if self._fd >= 0:
            self._ahead.close()
            self._ops.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refusal(self, chunk: WantedChunk, bytes_digest: bytes) -> StoreError | None:
        """Return why the chunk is not what the caller takes it for; its bytes may be fine."""
        entry = self._by_offset.get(chunk.record.offset_bytes)
        if entry is None or record_of(entry, self.segment_id) != chunk.record:
            return StoreCorruptError("The segment has no such chunk.")
        if entry.chain_digest != chunk.chain_digest:
            return StoreCorruptError("The chunk belongs to another context.")
        if self.header.bytes_digest != bytes_digest:
            return StoreCorruptError("The chunk was made by another engine.")
        if chunk.out.nbytes != chunk.record.raw_bytes:
            return StoreError("The chunk has another size than its destination.")
        return None

    def _load_run(
        self,
        run: Run,
        data: RunData,
        wanted: Sequence[WantedChunk],
        results: list[StoreError | None],
    ) -> None:
        for frame in run.frames:
            chunk = wanted[frame.place]
            if isinstance(data, Exception):  # one bad block must not cost its neighbours
                results[frame.place] = self._load_again(frame, chunk)
                continue
            start = frame.offset_bytes - run.offset_bytes
            try:
                self._deliver(chunk, data[start : start + frame.stored_bytes])
            except StoreCorruptError:
                results[frame.place] = self._load_again(frame, chunk)

    def _load_again(self, frame: Frame, chunk: WantedChunk) -> StoreError | None:
        try:
            # A buffer of its own: the two others are being read into and worked on.
            size_bytes = align_up(frame.stored_bytes)
            buffer = thread_frames(2)
            data = read_blocks(self._ops, self._fd, buffer, frame.offset_bytes, size_bytes)
            self._deliver(chunk, data[: frame.stored_bytes])
        except OSError as error:
            return store_error("Reading a chunk", error)
        except StoreCorruptError as error:
            self._on_bad(frame.offset_bytes, error.message)
            return error
        return None

    def _deliver(self, chunk: WantedChunk, payload: npt.NDArray[np.uint8]) -> None:
        """Decode and verify; only then copy."""
        record = chunk.record
        raw = thread_coder().decode(record.codec, payload, record.raw_bytes)
        position = ChunkPosition(
            record.group, record.start_token, record.end_token, chunk.chain_digest
        )
        found = chunk_checksum(position, self.header.bytes_digest, raw.data)
        if found != record.checksum:
            raise StoreCorruptError("A chunk's checksum is wrong.")
        np.copyto(np.frombuffer(chunk.out, np.uint8), raw)


def record_of(entry: IndexEntry, segment_id: SegmentId) -> ChunkRecord:
    """Return the record with which a manifest refers to an index entry."""
    return ChunkRecord(
        entry.group,
        entry.start_token,
        entry.end_token,
        segment_id,
        entry.offset_bytes,
        entry.stored_bytes,
        entry.raw_bytes,
        int(entry.codec),
        entry.checksum,
    )


def read_contents(ops: FileOps, fd: int) -> tuple[SegmentHeader, list[IndexEntry]]:
    """Return an open segment's header and index.

    :raises StoreCorruptError: one of them, or the footer, is broken.
    :raises StoreVersionError: a version wrote it that this one cannot read.
    :raises OSError: the system could not read.
    """
    file_bytes = ops.size_bytes(fd)
    if file_bytes < HEADER_BYTES + FOOTER_BYTES or file_bytes != align_up(file_bytes):
        raise StoreCorruptError("The segment was cut or grown.")
    scratch = Scratch()
    header = unpack_header(read_blocks(ops, fd, scratch, 0, HEADER_BYTES).tobytes())
    last = read_blocks(ops, fd, scratch, file_bytes - HEADER_BYTES, HEADER_BYTES)
    footer = unpack_footer(last[-FOOTER_BYTES:].tobytes(), file_bytes)
    index_blocks = file_bytes - footer.index_offset_bytes
    tail = read_blocks(ops, fd, scratch, footer.index_offset_bytes, index_blocks)
    return header, unpack_index(tail[: footer.index_bytes].tobytes(), footer)


def new_header(
    segment_id: SegmentId, tenant_name: str, bytes_digest: bytes, key_id: bytes
) -> SegmentHeader:
    """Return the header of a segment that is begun now."""
    return SegmentHeader(
        segment_id, tenant_name, bytes_digest, key_id, created_unix_ms=time.time_ns() // 10**6
    )
