"""A load that may take so long: what is not begun in time never passes for loaded."""

from __future__ import annotations

import math
import threading
from itertools import count

import pytest

from sessiond.domain.errors import StoreLateError
from sessiond.domain.tokens import chain_digests
from sessiond.store import loading
from sessiond.store.codecs import Codec
from sessiond.store.loading import WantedChunk
from sessiond.store.reading import ReadPace
from sessiond.store.store import Store
from sessiond.testing.snapshots import (
    CHUNK_BYTES,
    CHUNK_TOKENS,
    SnapshotPlan,
    expected_bytes,
    write_snapshot,
)

CHUNKS = 6
#: So that each run has one chunk.
ONE = 1


def load(store: Store, plan: SnapshotPlan, pace: ReadPace, threads: int = 1) -> list[object]:
    """Return the bytes of each chunk, or why it was not loaded; nothing of it is there then."""
    manifest = write_snapshot(store, plan)
    digests = chain_digests(manifest.tokens, CHUNK_TOKENS)
    wanted = [
        WantedChunk(chunk, digests[at], memoryview(bytearray(chunk.raw_bytes)))
        for at, chunk in enumerate(manifest.chunks)
    ]
    (segment_id,) = manifest.segment_ids
    with store.open_segment(segment_id) as reader:
        work = reader.begin(wanted, plan.bytes_digest, pace)
        workers = [threading.Thread(target=work.work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    for one, error in zip(wanted, work.results, strict=True):
        assert error is None or bytes(one.out) == bytes(CHUNK_BYTES)
    return [
        bytes(one.out) if error is None else error
        for one, error in zip(wanted, work.results, strict=True)
    ]


@pytest.mark.parametrize("codec", [Codec.RAW, Codec.PLANAR_ZSTD])
@pytest.mark.parametrize("ahead", [True, False])
def test_nothing_is_loaded_when_the_time_is_over(store: Store, codec: Codec, ahead: bool) -> None:  # noqa: FBT001 - a parameter of pytest
    plan = SnapshotPlan(chunks=CHUNKS, codec=codec)
    found = load(store, plan, ReadPace(ONE, ahead=ahead, until_s=0.5))
    assert all(isinstance(one, StoreLateError) for one in found)


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("threads", [1, 3])
def test_what_was_begun_in_time_is_loaded(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    ahead: bool,  # noqa: FBT001 - a parameter of pytest
    threads: int,
) -> None:
    ticks = count()
    monkeypatch.setattr(loading, "monotonic", lambda: next(ticks))
    plan = SnapshotPlan(chunks=CHUNKS, codec=Codec.PLANAR_ZSTD)
    found = load(store, plan, ReadPace(ONE, ahead=ahead, until_s=4), threads)
    assert found[:4] == expected_bytes(plan)[:4]
    assert all(isinstance(one, StoreLateError) for one in found[4:])


def test_without_a_limit_all_is_loaded(store: Store) -> None:
    plan = SnapshotPlan(chunks=CHUNKS)
    assert load(store, plan, ReadPace(ONE)) == expected_bytes(plan)
    assert ReadPace().until_s == math.inf
