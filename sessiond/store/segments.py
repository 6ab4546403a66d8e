"""Reading segments: one file that holds many chunks, written once, read many times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from sessiond.domain.errors import StoreCorruptError, StoreError, StoreVersionError
from sessiond.domain.snapshot import ChunkRecord
from sessiond.store.buffers import Scratch
from sessiond.store.codecs import Codec
from sessiond.store.fileio import FileOps
from sessiond.store.format import (
    FOOTER_BYTES,
    HEADER_BYTES,
    IndexEntry,
    SegmentHeader,
    align_up,
    unpack_footer,
    unpack_header,
    unpack_index,
)
from sessiond.store.loading import OpenFile, SegmentLoad, WantedChunk
from sessiond.store.reading import DEFAULT_PACE, ReadPace, read_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sessiond.domain.ids import SegmentId

#: What other numbers mean, only later versions know: such a chunk is not damaged.
_CODECS = frozenset(Codec)


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
        self._by_offset = {entry.offset_bytes: entry for entry in entries}

    def load(
        self,
        wanted: Sequence[WantedChunk],
        bytes_digest: bytes,
        pace: ReadPace = DEFAULT_PACE,
    ) -> list[StoreError | None]:
        """Read, decode and verify chunks; one result for each, in order.

        What is not ``None`` in the answer says why that chunk was not loaded; nothing of it is
        in its ``out`` then. A damaged chunk is read once more, then noted as bad.

        :param bytes_digest: of the fingerprint that the caller's engine has.
        :param pace: how much memory the calling thread may use to be fast.
        """
        load = self.begin(wanted, bytes_digest, pace)
        load.work()
        return load.results

    def begin(
        self, wanted: Sequence[WantedChunk], bytes_digest: bytes, pace: ReadPace = DEFAULT_PACE
    ) -> SegmentLoad:
        """Return a load like :meth:`load`, for several threads to work on."""
        refusals = [self._refusal(chunk, bytes_digest) for chunk in wanted]
        file = OpenFile(self._ops, self._fd, self.header, self._on_bad)
        return SegmentLoad(file, wanted, refusals, pace)

    def close(self) -> None:
        """Give up the lock; no load may be running."""
        if self._fd >= 0:
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
        if chunk.record.codec not in _CODECS:
            return StoreVersionError(f"The chunk has the unknown codec {chunk.record.codec}.")
        if chunk.out.nbytes != chunk.record.raw_bytes:
            return StoreError("The chunk has another size than its destination.")
        return None


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
