"""Segment files as bytes: pure packing and unpacking, as FORMAT.md tables it.

Nothing here reads a file. Every count and length that comes from bytes is compared with the
real size of what holds it before it is used.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise

from sessiond.domain.errors import StoreCorruptError, StoreVersionError
from sessiond.domain.ids import SegmentId
from sessiond.store.checksums import DIGEST_BYTES, long_check, short_check

SEGMENT_VERSION = 1
#: Frames, index and footer begin and end at multiples of this (O_DIRECT needs it).
ALIGNMENT_BYTES = 4096
HEADER_BYTES = ALIGNMENT_BYTES
INDEX_ENTRY_BYTES = 96
FOOTER_BYTES = 64
#: The header's last bytes check the others.
_CHECK_BYTES = 8
#: No chunk is larger, raw or stored: what claims to be is damaged.
MAX_CHUNK_BYTES = 1 << 30

_HEADER_MAGIC = b"SDSEGMT\n"
_FOOTER_MAGIC = b"SDSEGEND"
_HEADER = struct.Struct("<8sHHI16s16s32s16sQI")
_ENTRY = struct.Struct("<IIIHHQQQ16s32s8x")
_FOOTER = struct.Struct("<8sHHIQQQ16s")
assert _ENTRY.size == INDEX_ENTRY_BYTES
assert _FOOTER.size + _CHECK_BYTES == FOOTER_BYTES


@dataclass(frozen=True)
class SegmentHeader:
    """What a segment says of itself."""

    segment_id: SegmentId
    tenant_name: str  #: the tenant's folder name, 32 hex digits
    bytes_digest: bytes  #: of the fingerprint's bytes class: 32 bytes
    key_id: bytes  #: 16 bytes
    created_unix_ms: int
    flags: int = 0  #: bit 0: frames are encrypted (never set in version 1)


@dataclass(frozen=True)
class IndexEntry:
    """One chunk of a segment."""

    group: int
    start_token: int
    end_token: int
    codec: int
    offset_bytes: int
    stored_bytes: int
    raw_bytes: int
    checksum: bytes  #: 16 bytes
    chain_digest: bytes  #: 32 bytes
    flags: int = 0  #: bit 0: the frame is encrypted (never set in version 1)


@dataclass(frozen=True)
class Footer:
    """Where a segment's index lies."""

    entries: int
    index_offset_bytes: int
    file_bytes: int
    index_check: bytes  #: 16 bytes

    @property
    def index_bytes(self) -> int:
        """The length of the index, without padding."""
        return self.entries * INDEX_ENTRY_BYTES


def align_up(size_bytes: int) -> int:
    """Return *size_bytes* rounded up to whole blocks of 4 KiB."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def pack_header(header: SegmentHeader) -> bytes:
    """Return the first 4 KiB of a segment."""
    body = _HEADER.pack(
        _HEADER_MAGIC,
        SEGMENT_VERSION,
        0,
        header.flags,
        bytes.fromhex(header.segment_id),
        bytes.fromhex(header.tenant_name),
        header.bytes_digest,
        header.key_id,
        header.created_unix_ms,
        ALIGNMENT_BYTES,
    ).ljust(HEADER_BYTES - _CHECK_BYTES, b"\0")
    return body + short_check(body)


def unpack_header(data: bytes | memoryview) -> SegmentHeader:
    """Read the first 4 KiB of a segment.

    :raises StoreCorruptError: they are damaged, or those of another file.
    :raises StoreVersionError: a version wrote them that this one cannot read.
    """
    body = _checked(data, HEADER_BYTES, _HEADER_MAGIC, "header")
    _, version, _, flags, segment, tenant, digest, key_id, created, alignment = _HEADER.unpack_from(
        body
    )
    _require_version(version, flags)
    if alignment != ALIGNMENT_BYTES:
        raise StoreVersionError(f"The segment's frames are aligned to {alignment} bytes.")
    return SegmentHeader(SegmentId(segment.hex()), tenant.hex(), digest, key_id, created, flags)


def pack_tail(entries: list[IndexEntry], index_offset_bytes: int) -> bytes:
    """Return what follows the frames: index, padding and footer, in whole blocks."""
    index = b"".join(_pack_entry(entry) for entry in entries)
    tail_bytes = align_up(len(index) + FOOTER_BYTES)
    body = _FOOTER.pack(
        _FOOTER_MAGIC,
        SEGMENT_VERSION,
        0,
        len(entries),
        index_offset_bytes,
        len(index),
        index_offset_bytes + tail_bytes,
        long_check(index),
    )
    return index.ljust(tail_bytes - FOOTER_BYTES, b"\0") + body + short_check(body)


def unpack_footer(data: bytes | memoryview, file_bytes: int) -> Footer:
    """Read a segment's last 64 bytes.

    :param file_bytes: the file's real size; nothing in the footer may point beyond it.
    :raises StoreCorruptError: the footer is damaged, or the file was cut or grown.
    :raises StoreVersionError: a version wrote it that this one cannot read.
    """
    body = _checked(data, FOOTER_BYTES, _FOOTER_MAGIC, "footer")
    _, version, _, entries, offset, index_bytes, written_bytes, check = _FOOTER.unpack_from(body)
    _require_version(version, 0)
    footer = Footer(entries, offset, written_bytes, check)
    whole = (
        written_bytes == file_bytes
        and index_bytes == footer.index_bytes
        and offset % ALIGNMENT_BYTES == 0
        and offset >= HEADER_BYTES
        and offset + align_up(index_bytes + FOOTER_BYTES) == file_bytes
    )
    if not whole:
        raise StoreCorruptError("The segment's footer does not fit its file.")
    return footer


def unpack_index(data: bytes | memoryview, footer: Footer) -> list[IndexEntry]:
    """Read a segment's index.

    :raises StoreCorruptError: it is damaged, or describes frames that cannot be.
    """
    if len(data) != footer.index_bytes or long_check(data) != footer.index_check:
        raise StoreCorruptError("The segment's index is damaged.")
    entries = [_unpack_entry(fields) for fields in _ENTRY.iter_unpack(data)]
    _require_sane(entries, footer.index_offset_bytes)
    return entries


def _pack_entry(entry: IndexEntry) -> bytes:
    return _ENTRY.pack(
        entry.group,
        entry.start_token,
        entry.end_token,
        entry.codec,
        entry.flags,
        entry.offset_bytes,
        entry.stored_bytes,
        entry.raw_bytes,
        entry.checksum,
        entry.chain_digest,
    )


def _unpack_entry(
    fields: tuple[int, int, int, int, int, int, int, int, bytes, bytes],
) -> IndexEntry:
    group, start, end, codec, flags, offset, stored, raw, checksum, chain = fields
    return IndexEntry(group, start, end, codec, offset, stored, raw, checksum, chain, flags)


def _require_sane(entries: list[IndexEntry], frames_end: int) -> None:
    """The index has no frame outside the file, none over another, and none of absurd size."""
    for entry in entries:
        sane = (
            entry.start_token < entry.end_token
            and entry.offset_bytes % ALIGNMENT_BYTES == 0
            and entry.offset_bytes >= HEADER_BYTES
            and 0 < entry.stored_bytes <= entry.raw_bytes <= MAX_CHUNK_BYTES
            and entry.offset_bytes + entry.stored_bytes <= frames_end
            and entry.flags == 0
        )
        if not sane:
            raise StoreCorruptError("The segment's index describes an impossible frame.")
    for before, after in pairwise(entries):
        if before.offset_bytes + align_up(before.stored_bytes) > after.offset_bytes:
            raise StoreCorruptError("The segment's index describes overlapping frames.")


def _checked(data: bytes | memoryview, size_bytes: int, magic: bytes, what: str) -> memoryview:
    view = memoryview(data)
    body, check = view[: size_bytes - _CHECK_BYTES], view[size_bytes - _CHECK_BYTES :]
    if len(view) != size_bytes or view[: len(magic)] != magic or check != short_check(body):
        raise StoreCorruptError(f"The segment's {what} is damaged.")
    return body


def _require_version(version: int, flags: int) -> None:
    if version != SEGMENT_VERSION:
        raise StoreVersionError(f"The segment has version {version}; this is {SEGMENT_VERSION}.")
    if flags:
        raise StoreVersionError("The segment uses features that this version does not know.")


__all__ = [
    "ALIGNMENT_BYTES",
    "DIGEST_BYTES",
    "FOOTER_BYTES",
    "HEADER_BYTES",
    "INDEX_ENTRY_BYTES",
    "MAX_CHUNK_BYTES",
    "SEGMENT_VERSION",
    "Footer",
    "IndexEntry",
    "SegmentHeader",
    "align_up",
    "pack_header",
    "pack_tail",
    "unpack_footer",
    "unpack_header",
    "unpack_index",
]
