from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.errors import StoreCorruptError, StoreVersionError
from sessiond.domain.ids import SegmentId
from sessiond.store.checksums import short_check
from sessiond.store.format import (
    ALIGNMENT_BYTES,
    FOOTER_BYTES,
    HEADER_BYTES,
    INDEX_ENTRY_BYTES,
    IndexEntry,
    SegmentHeader,
    align_up,
    pack_header,
    pack_tail,
    unpack_footer,
    unpack_header,
    unpack_index,
)

HEX_32 = st.binary(min_size=16, max_size=16).map(bytes.hex)
HEADERS = st.builds(
    SegmentHeader,
    segment_id=HEX_32.map(SegmentId),
    tenant_name=HEX_32,
    bytes_digest=st.binary(min_size=32, max_size=32),
    key_id=st.binary(min_size=16, max_size=16),
    created_unix_ms=st.integers(0, 2**64 - 1),
)


@st.composite
def indexes(draw: st.DrawFn) -> list[IndexEntry]:
    entries, offset = [], HEADER_BYTES
    for _ in range(draw(st.integers(0, 5))):
        raw = draw(st.integers(1, 1 << 30))
        stored = draw(st.integers(1, raw))
        start = draw(st.integers(0, 2**32 - 2))
        entries.append(
            IndexEntry(
                group=draw(st.integers(0, 2**32 - 1)),
                start_token=start,
                end_token=draw(st.integers(start + 1, 2**32 - 1)),
                codec=draw(st.integers(0, 2**16 - 1)),
                offset_bytes=offset,
                stored_bytes=stored,
                raw_bytes=raw,
                checksum=draw(st.binary(min_size=16, max_size=16)),
                chain_digest=draw(st.binary(min_size=32, max_size=32)),
            )
        )
        offset += align_up(stored) + ALIGNMENT_BYTES * draw(st.integers(0, 2))
    return entries


def read_tail(tail: bytes, index_offset: int) -> list[IndexEntry]:
    footer = unpack_footer(tail[-FOOTER_BYTES:], index_offset + len(tail))
    return unpack_index(tail[: footer.index_bytes], footer)


def end_of(entries: list[IndexEntry]) -> int:
    ends = [entry.offset_bytes + align_up(entry.stored_bytes) for entry in entries]
    return max(ends, default=HEADER_BYTES)


@given(HEADERS)
def test_a_header_is_one_block_and_round_trips(header: SegmentHeader) -> None:
    data = pack_header(header)
    assert len(data) == HEADER_BYTES
    assert unpack_header(data) == header


@given(HEADERS, st.integers(0, HEADER_BYTES - 1), st.integers(1, 255))
def test_any_changed_byte_of_a_header_is_noticed(
    header: SegmentHeader, place: int, change: int
) -> None:
    data = bytearray(pack_header(header))
    data[place] ^= change
    with pytest.raises(StoreCorruptError):
        unpack_header(bytes(data))


@given(indexes())
def test_a_tail_is_whole_blocks_and_round_trips(entries: list[IndexEntry]) -> None:
    tail = pack_tail(entries, end_of(entries))
    assert len(tail) % ALIGNMENT_BYTES == 0
    assert read_tail(tail, end_of(entries)) == entries


@given(indexes(), st.data())
def test_any_changed_byte_of_index_or_footer_is_noticed(
    entries: list[IndexEntry], data: st.DataObject
) -> None:
    tail = bytearray(pack_tail(entries, end_of(entries)))
    used = [*range(len(entries) * INDEX_ENTRY_BYTES), *range(len(tail) - FOOTER_BYTES, len(tail))]
    tail[data.draw(st.sampled_from(used))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StoreCorruptError):
        read_tail(bytes(tail), end_of(entries))


@given(indexes(), st.integers(-(2**20), 2**40).filter(bool))
def test_a_footer_does_not_fit_a_file_of_another_size(
    entries: list[IndexEntry], difference: int
) -> None:
    offset = end_of(entries)
    tail = pack_tail(entries, offset)
    with pytest.raises(StoreCorruptError):
        unpack_footer(tail[-FOOTER_BYTES:], offset + len(tail) + difference)


@given(st.binary(max_size=2 * HEADER_BYTES))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(StoreCorruptError):
        unpack_header(data)
    with pytest.raises(StoreCorruptError):
        unpack_footer(data, len(data))


def header_with(field_offset: int, value: bytes) -> bytes:
    header = SegmentHeader(SegmentId("ab" * 16), "cd" * 16, bytes(32), bytes(16), 0)
    body = bytearray(pack_header(header)[:-8])
    body[field_offset : field_offset + len(value)] = value
    return bytes(body) + short_check(bytes(body))


@pytest.mark.parametrize(("offset", "value"), [(8, b"\2\0"), (12, b"\1"), (104, b"\0\2\0\0")])
def test_unknown_versions_features_and_alignments_are_named_as_such(
    offset: int, value: bytes
) -> None:
    with pytest.raises(StoreVersionError):
        unpack_header(header_with(offset, value))


@pytest.mark.parametrize(
    "change",
    [
        {"stored_bytes": 1 << 40, "raw_bytes": 1 << 40},
        {"raw_bytes": 1 << 40},
        {"stored_bytes": 0},
        {"stored_bytes": 101},
        {"offset_bytes": 4097},
        {"offset_bytes": 0},
        {"offset_bytes": 1 << 40},
        {"end_token": 0},
        {"flags": 1},
    ],
)
def test_an_index_with_right_check_and_impossible_frames_is_refused(
    change: dict[str, int],
) -> None:
    fields: dict[str, int] = {
        "group": 0, "start_token": 0, "end_token": 1, "codec": 0,
        "offset_bytes": 4096, "stored_bytes": 100, "raw_bytes": 100, "flags": 0,
    }  # fmt: skip
    entry = IndexEntry(**{**fields, **change}, checksum=bytes(16), chain_digest=bytes(32))
    with pytest.raises(StoreCorruptError):
        read_tail(pack_tail([entry], 8192), 8192)


def test_overlapping_frames_are_refused() -> None:
    def entry(offset: int) -> IndexEntry:
        return IndexEntry(0, 0, 1, 0, offset, 5000, 5000, bytes(16), bytes(32))

    with pytest.raises(StoreCorruptError):
        read_tail(pack_tail([entry(4096), entry(8192)], 16384), 16384)


def test_the_tables_of_the_format_document_are_the_packed_ones() -> None:
    header = SegmentHeader(SegmentId("11" * 16), "22" * 16, b"3" * 32, b"4" * 16, 5)
    data = pack_header(header)
    assert data[:8] == b"SDSEGMT\n"
    assert struct.unpack_from("<H", data, 8) == (1,)
    assert data[16:32] == b"\x11" * 16
    assert data[32:48] == b"\x22" * 16
    assert data[48:80] == b"3" * 32
    assert data[80:96] == b"4" * 16
    assert struct.unpack_from("<QI", data, 96) == (5, 4096)
