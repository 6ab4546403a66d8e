"""Writing segments: one file that holds many chunks, written once."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from sessiond.domain.errors import StoreError
from sessiond.store import layout
from sessiond.store.buffers import Scratch, thread_frames
from sessiond.store.checksums import ChunkPosition, chunk_checksum
from sessiond.store.codecs import LOSSY, Codec, payload_bound_bytes, thread_coder
from sessiond.store.fileio import DurableFile, Publish, store_errors
from sessiond.store.format import (
    MAX_CHUNK_BYTES,
    IndexEntry,
    SegmentHeader,
    align_up,
    pack_header,
    pack_tail,
)
from sessiond.store.lossmeter import LossMeter
from sessiond.store.reading import use_direct_io
from sessiond.store.room import require_room
from sessiond.store.segments import record_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sessiond.domain.ids import SegmentId
    from sessiond.domain.loss import ChunkLoss
    from sessiond.domain.snapshot import ChunkRecord
    from sessiond.store.tree import Tree


class SegmentWriter:
    """Writes one segment; invisible until :meth:`finish`.

    Several threads may append at once: each encodes in its own memory while another one writes.
    Frames are written one after the other at the file's end, without reserving room: writing
    into reserved room, or several frames at once, costs a tenth of the device's rate. Holds a
    shared lock on the file until :meth:`close`, so that no collection takes the segment before
    its manifest is durable.
    """

    def __init__(
        self,
        tree: Tree,
        file: DurableFile,
        tmp_fd: int,
        header: SegmentHeader,
        floor: int | None,
    ) -> None:
        """Use :meth:`create`."""
        self.segment_id = header.segment_id
        self._tree, self._file, self._tmp_fd = tree, file, tmp_fd
        self._header, self._floor = header, floor
        self._lock = threading.Lock()
        self._entries: list[IndexEntry] = []
        self._end_bytes = 0

    @classmethod
    def create(
        cls, tree: Tree, header: SegmentHeader, *, floor_bytes: int | None = None
    ) -> SegmentWriter:
        """Begin a segment with this header.

        :param floor_bytes: what writing leaves free of the file system; ``None``: the default.
        """
        tmp_fd = tree.open_folder(layout.TMP)
        try:
            file = DurableFile(tree.ops, tmp_fd)
        except BaseException:
            tree.ops.close(tmp_fd)
            raise
        writer = cls(tree, file, tmp_fd, header, floor_bytes)
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

    def append(
        self,
        position: ChunkPosition,
        raw: memoryview,
        codec: Codec,
        before_write: Callable[[], None] | None = None,
        *,
        half_bytes: int = 0,
    ) -> ChunkRecord:
        """Write one chunk and return its record.

        :param raw: the chunk's bytes, contiguous; must not change before this returns.
        :param before_write: called when it is encoded; may wait, for the chunks before it.
        :param half_bytes: how K and V alternate (see :class:`LossMeter`), for a lossy codec.
        :raises StoreFullError: there is no room; the segment can still be finished without
            this chunk.
        :raises StoreError: the write failed.
        """
        source = np.frombuffer(raw, np.uint8)
        if not 0 < len(source) <= MAX_CHUNK_BYTES:
            raise StoreError(f"A chunk of {len(source)} bytes cannot be stored.")
        frame = thread_frames().get(align_up(payload_bound_bytes(len(source))))
        used, stored_bytes = thread_coder().encode(codec, source, frame)
        checksum, loss = self._proof(position, source, used, frame[:stored_bytes], half_bytes)
        frame_bytes = align_up(stored_bytes)
        frame[stored_bytes:frame_bytes] = 0  # nothing of earlier chunks goes to the disk
        entry = IndexEntry(
            position.group,
            position.start_token,
            position.end_token,
            used,
            0,
            stored_bytes,
            len(source),
            checksum,
            position.chain_digest,
        )
        if before_write is not None:
            before_write()
        record = record_of(self._write_frame(entry, frame[:frame_bytes]), self.segment_id)
        return replace(record, loss=loss)

    def finish(self) -> None:
        """Write index and footer and make the segment durable under its name.

        The lock is kept until :meth:`close`: commit the manifest before.

        :raises StoreError: the write failed; the segment does not exist then.
        """
        with store_errors("Finishing a segment"), self._lock:
            tail = pack_tail(self._entries, self._end_bytes)
            self._write_block(tail)
            self._tree.ops.truncate(self._file.fd, self._end_bytes)  # what failed may lie behind
            folder = layout.segment_folder(self.segment_id)
            with self._tree.folder(folder, create=True) as folder_fd:
                name = layout.segment_file(self.segment_id)
                self._file.publish(folder_fd, name, Publish.CREATE)

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
        self._write_block(pack_header(self._header))

    def _proof(
        self,
        position: ChunkPosition,
        source: npt.NDArray[np.uint8],
        codec: Codec,
        payload: npt.NDArray[np.uint8],
        half_bytes: int,
    ) -> tuple[bytes, ChunkLoss]:
        """Return the checksum of the bytes that will be decoded, and what they lack."""
        digest = self._header.bytes_digest
        if codec not in LOSSY:
            return chunk_checksum(position, digest, [source]), ()
        meter = LossMeter(LOSSY[codec], source, half_bytes)
        decoded = thread_coder().decode(codec, payload, len(source))
        return chunk_checksum(position, digest, meter.watch(decoded.pieces())), meter.loss

    def _write_frame(self, entry: IndexEntry, frame: npt.NDArray[np.uint8]) -> IndexEntry:
        """Write a frame at the end; a failure leaves the end where it was."""
        with store_errors("Writing a chunk"), self._lock:
            require_room(self._tree.ops, self._file.fd, len(frame), self._floor)
            placed = replace(entry, offset_bytes=self._end_bytes)
            self._file.write(frame.data, self._end_bytes)
            self._end_bytes += len(frame)
            self._entries.append(placed)
            return placed

    def _write_block(self, data: bytes) -> None:
        # Through aligned memory: the file may be open for direct writing.
        block = Scratch().get(len(data))
        block[:] = np.frombuffer(data, np.uint8)
        self._file.write(block.data, self._end_bytes)
        self._end_bytes += len(data)


def new_header(
    segment_id: SegmentId, tenant_name: str, bytes_digest: bytes, key_id: bytes
) -> SegmentHeader:
    """Return the header of a segment that is begun now."""
    return SegmentHeader(
        segment_id, tenant_name, bytes_digest, key_id, created_unix_ms=time.time_ns() // 10**6
    )
