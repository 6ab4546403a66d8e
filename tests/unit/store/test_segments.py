from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.errors import (
    SnapshotNotFoundError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreVersionError,
)
from sessiond.domain.ids import SegmentId
from sessiond.domain.tokens import chain_digests
from sessiond.store.codecs import ByteArray, Codec, Coder
from sessiond.store.format import ALIGNMENT_BYTES
from sessiond.store.loading import WantedChunk
from sessiond.store.store import Store
from sessiond.testing.files import FaultyOps, flip_byte
from sessiond.testing.snapshots import (
    CHUNK_BYTES,
    CHUNK_TOKENS,
    TENANT,
    SnapshotPlan,
    a_plan,
    expected_bytes,
    load_snapshot,
    write_snapshot,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sessiond.domain.keys import KeyRing
    from sessiond.domain.snapshot import ChunkRecord, Manifest


def segment_path(store: Store, segment_id: SegmentId) -> Path:
    return store.root / "segments" / segment_id[:2] / f"{segment_id}.seg"


def only_segment(manifest: Manifest) -> SegmentId:
    (segment_id,) = manifest.segment_ids
    return segment_id


def wanted_of(manifest: Manifest) -> list[WantedChunk]:
    digests = chain_digests(manifest.tokens, CHUNK_TOKENS)
    return [
        WantedChunk(
            chunk,
            digests[chunk.end_token // CHUNK_TOKENS - 1],
            memoryview(bytearray(chunk.raw_bytes)),
        )
        for chunk in manifest.chunks
    ]


@pytest.mark.parametrize("codec", list(Codec))
def test_what_was_suspended_is_resumed(store: Store, codec: Codec) -> None:
    plan = a_plan(codec, chunks=5, groups=2)
    manifest = write_snapshot(store, plan)
    assert load_snapshot(store, manifest) == expected_bytes(plan)
    assert {chunk.codec for chunk in manifest.chunks} == {codec}


def test_frames_are_aligned_in_the_order_of_appending(store: Store) -> None:
    manifest = write_snapshot(store, SnapshotPlan(chunks=4))
    offsets = [chunk.offset_bytes for chunk in manifest.chunks]
    assert offsets == sorted(offsets)
    assert all(offset % ALIGNMENT_BYTES == 0 for offset in offsets)
    path = segment_path(store, only_segment(manifest))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size % ALIGNMENT_BYTES == 0


def test_the_size_tells_when_to_split(store: Store) -> None:
    plan = SnapshotPlan(codec=Codec.RAW)
    position = plan.positions()[0]
    with store.new_segment(TENANT, plan.bytes_digest) as writer:
        before = writer.size_bytes
        writer.append(position, memoryview(plan.raw(position)), Codec.RAW)
        assert writer.size_bytes - before >= CHUNK_BYTES


def test_a_segment_is_invisible_until_it_is_finished(store: Store) -> None:
    plan = SnapshotPlan()
    with store.new_segment(TENANT, plan.bytes_digest) as writer:
        with pytest.raises(SnapshotNotFoundError):
            store.open_segment(writer.segment_id)
        writer.finish()
        store.open_segment(writer.segment_id).close()
    assert list((store.root / "tmp").iterdir()) == []


def test_an_abandoned_segment_leaves_nothing(store: Store) -> None:
    plan = SnapshotPlan()
    writer = store.new_segment(TENANT, plan.bytes_digest)
    position = plan.positions()[0]
    writer.append(position, memoryview(plan.raw(position)), plan.codec)
    writer.close()
    writer.close()
    assert list((store.root / "tmp").iterdir()) == []
    assert list((store.root / "segments").rglob("*.seg")) == []


def test_several_threads_append_and_load_at_once(store: Store) -> None:
    plan = SnapshotPlan(chunks=40, chunk_bytes=64 * 1024)
    positions = plan.positions()

    with store.new_segment(TENANT, plan.bytes_digest) as writer, ThreadPoolExecutor(4) as pool:
        records = list(
            pool.map(
                lambda one: writer.append(one, memoryview(plan.raw(one)), plan.codec), positions
            )
        )
        writer.finish()
        with store.open_segment(writer.segment_id) as reader:
            wanted = [
                WantedChunk(record, position.chain_digest, memoryview(bytearray(record.raw_bytes)))
                for record, position in zip(records, positions, strict=True)
            ]
            parts = [wanted[start : start + 7] for start in range(0, 40, 7)]
            results = list(pool.map(lambda part: reader.load(part, plan.bytes_digest), parts))
    assert not any(error for part in results for error in part)
    assert [bytes(chunk.out) for chunk in wanted] == expected_bytes(plan)


@pytest.mark.parametrize("codec", list(Codec))
def test_one_flipped_byte_costs_exactly_its_chunk(store: Store, codec: Codec) -> None:
    plan = a_plan(codec, chunks=4)
    manifest = write_snapshot(store, plan)
    bad = manifest.chunks[2]
    flip_byte(segment_path(store, bad.segment_id), bad.offset_bytes + 100)
    loaded = load_snapshot(store, manifest)
    assert isinstance(loaded[2], StoreCorruptError)
    assert [*loaded[:2], loaded[3]] == [*expected_bytes(plan)[:2], expected_bytes(plan)[3]]
    assert store.bad_chunks(bad.segment_id) == {bad.offset_bytes}


def test_no_changed_byte_of_a_frame_goes_unnoticed(store: Store) -> None:
    plan = SnapshotPlan(chunks=1, chunk_bytes=600)
    manifest = write_snapshot(store, plan)
    (chunk,) = manifest.chunks
    path = segment_path(store, chunk.segment_id)
    for place in range(chunk.stored_bytes):
        flip_byte(path, chunk.offset_bytes + place)
        assert load_snapshot(store, manifest) != expected_bytes(plan)
        assert isinstance(load_snapshot(store, manifest)[0], StoreCorruptError)
        flip_byte(path, chunk.offset_bytes + place)


@pytest.mark.parametrize("place", [0, 40, -1])
@pytest.mark.parametrize("codec", [Codec.RAW, Codec.ZSTD, Codec.PLANAR_ZSTD])
def test_of_a_refused_chunk_nothing_stays(store: Store, codec: Codec, place: int) -> None:
    manifest = write_snapshot(store, SnapshotPlan(codec=codec))
    bad = manifest.chunks[0]
    offset_bytes = bad.offset_bytes + place % bad.stored_bytes
    flip_byte(segment_path(store, bad.segment_id), offset_bytes)
    wanted = wanted_of(manifest)[0]
    wanted.out[:] = b"x" * len(wanted.out)
    with store.open_segment(bad.segment_id) as reader:
        (error,) = reader.load([wanted], manifest.bytes_digest)
    assert isinstance(error, StoreCorruptError)
    assert bytes(wanted.out) in (bytes(len(wanted.out)), b"x" * len(wanted.out))


def swap_frames(path: Path, left: ChunkRecord, right: ChunkRecord) -> None:
    data = bytearray(path.read_bytes())
    size = max(left.stored_bytes, right.stored_bytes)
    a, b = left.offset_bytes, right.offset_bytes
    data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]
    path.write_bytes(data)


def test_swapped_frames_are_refused_though_each_is_whole(store: Store) -> None:
    manifest = write_snapshot(store, SnapshotPlan(codec=Codec.RAW))
    path = segment_path(store, only_segment(manifest))
    swap_frames(path, manifest.chunks[0], manifest.chunks[1])
    loaded = load_snapshot(store, manifest)
    assert isinstance(loaded[0], StoreCorruptError)
    assert isinstance(loaded[1], StoreCorruptError)
    assert isinstance(loaded[2], bytes)


def test_another_context_or_engine_is_refused_and_the_chunk_not_blamed(store: Store) -> None:
    manifest = write_snapshot(store)
    wanted = wanted_of(manifest)[0]
    with store.open_segment(only_segment(manifest)) as reader:
        foreign = replace(wanted, chain_digest=bytes(32))
        (context,) = reader.load([foreign], manifest.bytes_digest)
        (engine,) = reader.load([wanted], bytes(32))
        (place,) = reader.load(
            [replace(wanted, record=replace(wanted.record, end_token=17))], manifest.bytes_digest
        )
        (size,) = reader.load([replace(wanted, out=wanted.out[1:])], manifest.bytes_digest)
        assert reader.load([wanted], manifest.bytes_digest) == [None]
    assert all(isinstance(error, StoreError) for error in (context, engine, place, size))
    assert store.bad_chunks(only_segment(manifest)) == set()


def test_a_later_versions_codec_is_refused_and_the_chunk_not_blamed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(_: Coder, _codec: Codec, raw: ByteArray, payload: ByteArray) -> tuple[int, int]:
        payload[: len(raw)] = raw
        return 9, len(raw)

    with monkeypatch.context() as later:
        later.setattr(Coder, "encode", encode)
        manifest = write_snapshot(store)
    assert all(isinstance(one, StoreVersionError) for one in load_snapshot(store, manifest))
    assert store.bad_chunks(only_segment(manifest)) == set()


def truncate_by(count: int) -> Callable[[Path], None]:
    def harm(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-count])

    return harm


def overwrite(data: bytes) -> Callable[[Path], None]:
    def harm(path: Path) -> None:
        path.write_bytes(data)

    return harm


@pytest.mark.parametrize(
    "harm",
    [
        truncate_by(1),
        truncate_by(4096),
        overwrite(b""),
        overwrite(b"foreign"),
        overwrite(bytes(16384)),
        lambda path: os.truncate(path, path.stat().st_size + 4096),
        lambda path: flip_byte(path, 20),
        lambda path: flip_byte(path, -1),
        lambda path: flip_byte(path, -4096),
    ],
)
def test_a_harmed_segment_is_refused_when_it_is_opened(
    store: Store, harm: Callable[[Path], None]
) -> None:
    segment_id = only_segment(write_snapshot(store))
    harm(segment_path(store, segment_id))
    with pytest.raises(StoreCorruptError):
        store.open_segment(segment_id)


def test_a_segment_under_another_ones_name_is_refused(store: Store) -> None:
    first = only_segment(write_snapshot(store))
    second = only_segment(write_snapshot(store, SnapshotPlan(generation=2, seed=1)))
    segment_path(store, first).write_bytes(segment_path(store, second).read_bytes())
    with pytest.raises(StoreCorruptError):
        store.open_segment(first)


@pytest.mark.parametrize("text", ["", "../x", "ab" * 16, "AB" * 16, "a\0b", "ab" * 200])
def test_there_is_no_such_segment(store: Store, text: str) -> None:
    with pytest.raises(SnapshotNotFoundError):
        store.open_segment(SegmentId(text))


@pytest.fixture
def faulty(tmp_path: Path, keys: KeyRing) -> tuple[Store, FaultyOps]:
    ops = FaultyOps()
    return Store.open(tmp_path / "faulty", keys, ops=ops), ops


def test_a_read_that_fails_once_is_repeated(faulty: tuple[Store, FaultyOps]) -> None:
    store, ops = faulty
    plan = SnapshotPlan(chunks=4)
    manifest = write_snapshot(store, plan)
    wanted = wanted_of(manifest)
    with store.open_segment(only_segment(manifest)) as reader:
        ops.fail("pread", errno.EIO)
        assert reader.load(wanted, manifest.bytes_digest) == [None] * 4
    assert [bytes(one.out) for one in wanted] == expected_bytes(plan)


def test_a_read_that_fails_twice_costs_only_its_chunk_and_blames_nobody(
    faulty: tuple[Store, FaultyOps],
) -> None:
    store, ops = faulty
    manifest = write_snapshot(store, SnapshotPlan(chunks=4))
    segment_id = only_segment(manifest)
    with store.open_segment(segment_id) as reader:
        ops.fail("pread", errno.EIO, times=2)  # the run, then its first chunk
        results = reader.load(wanted_of(manifest), manifest.bytes_digest)
    assert type(results[0]) is StoreError
    assert results[1:] == [None] * 3
    assert store.bad_chunks(segment_id) == set()


def test_short_reads_and_writes_are_completed(faulty: tuple[Store, FaultyOps]) -> None:
    store, ops = faulty
    plan = SnapshotPlan(chunks=4, chunk_bytes=64 * 1024)
    ops.shorten(writes=6)
    manifest = write_snapshot(store, plan)
    ops.shorten(reads=6)
    assert load_snapshot(store, manifest) == expected_bytes(plan)


def test_a_full_disk_fails_the_chunk_and_the_rest_can_be_finished(
    faulty: tuple[Store, FaultyOps],
) -> None:
    store, ops = faulty
    plan = SnapshotPlan(chunks=2)
    first, second = plan.positions()
    with store.new_segment(TENANT, plan.bytes_digest) as writer:
        ops.fail("pwrite", errno.ENOSPC)
        with pytest.raises(StoreFullError):
            writer.append(first, memoryview(plan.raw(first)), plan.codec)
        record = writer.append(second, memoryview(plan.raw(second)), plan.codec)
        writer.finish()
    out = bytearray(record.raw_bytes)
    with store.open_segment(record.segment_id) as reader:
        assert len(reader.entries) == 1
        wanted = WantedChunk(record, second.chain_digest, memoryview(out))
        assert reader.load([wanted], plan.bytes_digest) == [None]
    assert bytes(out) == plan.raw(second)


@pytest.mark.parametrize(
    ("call", "error_number", "expected"),
    [
        ("create", errno.ENOSPC, StoreFullError),
        ("pwrite", errno.ENOSPC, StoreFullError),
        ("pwrite", errno.EDQUOT, StoreFullError),
        ("sync", errno.EIO, StoreError),
        ("link", errno.EIO, StoreError),
        ("pwrite", errno.EIO, StoreError),
    ],
)
def test_a_failing_disk_leaves_no_file(
    faulty: tuple[Store, FaultyOps], call: str, error_number: int, expected: type[StoreError]
) -> None:
    store, ops = faulty
    ops.fail(call, error_number)
    with pytest.raises(expected):
        write_snapshot(store)
    assert [path for path in (store.root / "segments").rglob("*") if path.is_file()] == []
    assert list((store.root / "tmp").iterdir()) == []
    write_snapshot(store)  # and the store works on


def test_an_empty_chunk_is_refused(store: Store) -> None:
    plan = SnapshotPlan()
    with (
        store.new_segment(TENANT, plan.bytes_digest) as writer,
        pytest.raises(StoreError, match="0 bytes"),
    ):
        writer.append(plan.positions()[0], memoryview(b""), Codec.RAW)


def test_threads_do_not_leak_buffers_into_the_file(store: Store) -> None:
    """A frame's padding is zero, whatever its thread wrote before."""
    long, short = SnapshotPlan(chunk_bytes=9000, codec=Codec.RAW), SnapshotPlan(chunk_bytes=100)
    records: list[ChunkRecord] = []

    def work() -> None:
        with store.new_segment(TENANT, long.bytes_digest) as writer:
            for plan in (long, short):
                position = plan.positions()[0]
                records.append(writer.append(position, memoryview(plan.raw(position)), Codec.RAW))
            writer.finish()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    last = records[-1]
    data = segment_path(store, last.segment_id).read_bytes()
    padding = data[last.offset_bytes + last.stored_bytes : last.offset_bytes + ALIGNMENT_BYTES]
    assert padding == bytes(len(padding))
