"""Segments and the chunks in them."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator

import numpy as np

from sessiond.domain.ids import SegmentId
from sessiond.store import format as segment_format
from sessiond.store.checksums import long_check, short_check
from sessiond.store.codecs import Codec, Coder, payload_bound_bytes
from sessiond.store.fileio import REAL_OPS
from sessiond.store.segments import read_contents, record_of
from sessiond.testing.fuzz.base import KEYS, Target, by_mode, refused
from sessiond.testing.snapshots import bf16_bytes

#: No chunk that a fuzzer has decoded is larger; a claim beyond it is refused by index entries.
_MAX_RAW_BYTES = 8 << 20


def _whole_segment(data: bytes) -> None:
    with refused(), _file_of(data) as fd:
        read_contents(REAL_OPS, fd)


def _header(data: bytes) -> None:
    body = data[: segment_format.HEADER_BYTES - 8].ljust(segment_format.HEADER_BYTES - 8, b"\0")
    with refused():
        segment_format.unpack_header(body + short_check(body))


def _tail(data: bytes) -> None:
    """Index and footer with right checks; the first eight bytes are the index's offset."""
    (offset,) = struct.unpack("<Q", data[:8].ljust(8, b"\0"))
    index = data[8 : 8 + (len(data) - 8) // 96 * 96] if len(data) > 8 else b""
    entries = len(index) // segment_format.INDEX_ENTRY_BYTES
    file_bytes = (offset + segment_format.align_up(len(index) + 64)) % (1 << 64)
    body = struct.pack(
        "<8sHHIQQQ16s",
        b"SDSEGEND",
        1,
        0,
        entries,
        offset,
        len(index),
        file_bytes,
        long_check(index),
    )
    with refused():
        footer = segment_format.unpack_footer(body + short_check(body), file_bytes)
        for entry in segment_format.unpack_index(index, footer):
            record_of(entry, SegmentId("0" * 32))


def _segment_seeds() -> list[bytes]:
    header = segment_format.pack_header(
        segment_format.SegmentHeader(SegmentId("5" * 32), "7" * 32, bytes(32), KEYS.key_id, 1)
    )
    entries = [
        segment_format.IndexEntry(
            0, 16 * n, 16 * n + 16, n, 4096 * (n + 1), 9, 10, b"c" * 16, b"d" * 32
        )
        for n in range(3)
    ]
    tail = segment_format.pack_tail(entries, 4096 * 4)
    index = tail[: 3 * segment_format.INDEX_ENTRY_BYTES]
    whole = header + bytes(4096 * 3) + tail
    return [b"\0" + whole, b"\1" + header, b"\2" + struct.pack("<Q", 4096 * 4) + index]


@contextlib.contextmanager
def _file_of(data: bytes) -> Iterator[int]:
    fd = os.memfd_create("fuzz")
    try:
        os.write(fd, data)
        yield fd
    finally:
        os.close(fd)


def _decode(data: bytes) -> None:
    """A codec and a raw length, which an index entry has claimed; the rest is the payload."""
    if len(data) < 6:
        return
    codec, raw_bytes = struct.unpack("<BI", data[:5])
    # An index entry with a longer payload than raw bytes is refused before.
    payload = np.frombuffer(data[5:], np.uint8)
    claimed = max(raw_bytes % _MAX_RAW_BYTES, len(payload))
    with refused():
        decoded = Coder().decode(codec % (len(Codec) + 1), payload, claimed)
        if len(decoded) != claimed:
            raise AssertionError("A decoded chunk has another length than was asked for.")


def _chunk_seeds() -> list[bytes]:
    raw = np.frombuffer(bf16_bytes(1, 6000), np.uint8)
    seeds = []
    for codec in Codec:
        payload = np.empty(payload_bound_bytes(len(raw)), np.uint8)
        used, stored = Coder().encode(codec, raw, payload)
        seeds.append(struct.pack("<BI", used, len(raw)) + payload[:stored].tobytes())
    return seeds


SEGMENTS = Target(by_mode(_whole_segment, _header, _tail), _segment_seeds)
CHUNKS = Target(_decode, _chunk_seeds)
