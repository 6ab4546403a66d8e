"""Each kind of leak is planted once, and found."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from sessiond.app.bench.soak import leftover
from sessiond.app.bench.soak.procs import Holding, Limits, grown, holding, settled
from sessiond.store.store import Store
from sessiond.testing.files import flip_byte
from sessiond.testing.mover_rig import an_engine, make_hello
from sessiond.testing.snapshots import SESSION, TENANT, SnapshotPlan, a_key_ring, write_snapshot

LIMITS = Limits(descriptors=3, threads=2, memory_bytes=32 << 20)
BEFORE = Holding({"socket": 10, "pipe": 2}, threads=8, memory_bytes=100 << 20)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", a_key_ring())


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (replace(BEFORE, descriptors={"socket": 13, "pipe": 5, "/a": 3}), []),
        (replace(BEFORE, threads=10, memory_bytes=132 << 20), []),
        (replace(BEFORE, descriptors={"socket": 14}), ["14 descriptors of socket, 10 before"]),
        (replace(BEFORE, descriptors={"/a": 4}), ["4 descriptors of /a, 0 before"]),
        (replace(BEFORE, threads=11), ["11 threads, 8 before"]),
        (replace(BEFORE, memory_bytes=133 << 20), ["133 MiB of memory, 100 before"]),
    ],
)
def test_what_grew_beyond_its_limit_is_named(now: Holding, words: list[str]) -> None:
    assert grown("daemon", BEFORE, now, LIMITS) == [f"daemon: {one}" for one in words]


def test_descriptors_threads_and_memory_of_a_process_are_seen(tmp_path: Path) -> None:
    before = holding(os.getpid())
    opened = [(tmp_path / "open").open("wb") for _ in range(4)]
    over = threading.Event()
    threads = [threading.Thread(target=over.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    kept = bytearray(os.urandom(40 << 20))
    try:
        found = grown("me", before, holding(os.getpid()), LIMITS)
    finally:
        over.set()
        for file in opened:
            file.close()
        for thread in threads:
            thread.join()
    assert len(found) == 3
    assert found[0] == f"me: 4 descriptors of {tmp_path / 'open'}, 0 before"
    assert "threads" in found[1]
    assert "MiB" in found[2]
    assert len(kept) == 40 << 20


def test_what_goes_away_by_itself_is_no_leak() -> None:
    looks = iter([replace(BEFORE, threads=20), replace(BEFORE, threads=20), BEFORE])
    found = settled(lambda: next(looks), lambda now: not grown("x", BEFORE, now, LIMITS), 20.0)
    assert found is BEFORE


def test_a_store_with_nothing_but_its_sessions_is_clean(store: Store) -> None:
    write_snapshot(store)
    assert list(leftover.in_store(store, {SESSION})) == []
    assert leftover.damaged(store) == []


def test_a_segment_that_is_held_and_needed_by_nobody_is_found(store: Store) -> None:
    manifest = write_snapshot(store)
    (segment_id,) = manifest.segment_ids
    with store.open_segment(segment_id):  # so that no collection can take it
        store.delete_snapshot(TENANT, SESSION, 1)
        found = list(leftover.in_store(store, {SESSION}))
    assert found == [f"segment {segment_id} is referenced by no manifest"]


def test_other_leftovers_of_a_store_are_found(store: Store, tmp_path: Path) -> None:
    (store.root / "tmp" / "half.tmp").write_bytes(b"half")
    (store.root / "quarantine" / "bad.seg").write_bytes(b"bad")
    engine = store.publish_engine(an_engine(make_hello(tmp_path)))
    try:
        found = list(leftover.in_store(store, set()))
    finally:
        engine.close()
    assert [" ".join(one.split()[:2]) for one in found] == [
        "file half.tmp",
        "file bad.seg",
        "file of",
    ]


def test_a_damaged_byte_is_told_with_its_session(store: Store) -> None:
    (segment_id,) = write_snapshot(store, SnapshotPlan()).segment_ids
    flip_byte(store.root / "segments" / segment_id[:2] / f"{segment_id}.seg", 4096 + 100)
    (found,) = leftover.damaged(store)
    assert found.startswith(f"{SESSION}: chunk ")


def test_temporary_files_are_found_and_compiled_code_is_kept(tmp_path: Path) -> None:
    (tmp_path / "torchinductor_someone").mkdir()
    assert leftover.in_folder(tmp_path) == []
    (tmp_path / "sessiond-engine-01234567").mkdir()
    assert leftover.in_folder(tmp_path) == ["temporary sessiond-engine-01234567"]
