from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.errors import SnapshotNotFoundError, StoreError
from sessiond.domain.ids import SegmentId, SessionId, TenantId
from sessiond.store.sessions import SessionRecord
from sessiond.store.store import Store
from sessiond.testing.files import FaultyOps, flip_byte
from sessiond.testing.snapshots import (
    SESSION,
    TENANT,
    SnapshotPlan,
    expected_bytes,
    load_snapshot,
    manifest_of_plan,
    write_snapshot,
)

if TYPE_CHECKING:
    from pathlib import Path

    from sessiond.domain.keys import KeyRing
    from sessiond.domain.snapshot import Manifest


def segment_files(store: Store) -> set[str]:
    return {path.stem for path in (store.root / "segments").rglob("*.seg")}


def segment_path(store: Store, segment_id: SegmentId) -> Path:
    return store.root / "segments" / segment_id[:2] / f"{segment_id}.seg"


def cut_manifest(store: Store, manifest: Manifest, chunks: int) -> Manifest:
    """Let generation 2 keep only the first chunks of generation 1, and delete that."""
    kept = replace(manifest, generation=2, parent_generation=1, chunks=manifest.chunks[:chunks])
    store.commit_manifest(kept)
    store.delete_snapshot(TENANT, SESSION, 1)
    return kept


def test_what_a_manifest_references_stays(store: Store) -> None:
    plan = SnapshotPlan()
    manifest = write_snapshot(store, plan)
    report = store.collect()
    assert (report.segments_removed, report.frames_freed, report.bytes_freed) == (0, 0, 0)
    assert load_snapshot(store, manifest) == expected_bytes(plan)


def test_a_segment_goes_with_its_last_manifest(store: Store) -> None:
    plan = SnapshotPlan()
    parent = write_snapshot(store, plan)
    child_plan = replace(plan, generation=2, chunks=5)
    child = write_snapshot(store, child_plan, parent=parent)
    store.delete_snapshot(TENANT, SESSION, 1)
    assert store.collect().segments_removed == 0
    assert load_snapshot(store, child) == expected_bytes(child_plan)
    store.delete_snapshot(TENANT, SESSION, 2)
    report = store.collect()
    assert report.segments_removed == 2
    assert report.bytes_freed >= 8 * 4096
    assert segment_files(store) == set()


def test_notes_go_with_their_segment(store: Store) -> None:
    (segment_id,) = write_snapshot(store).segment_ids
    store.mark_bad(segment_id, 4096, "test")
    store.delete_snapshot(TENANT, SESSION, 1)
    store.collect()
    assert [path for path in (store.root / "segments").rglob("*") if path.is_file()] == []


def test_a_segment_that_somebody_reads_or_writes_is_busy(store: Store) -> None:
    (segment_id,) = write_snapshot(store).segment_ids
    store.delete_snapshot(TENANT, SESSION, 1)
    with store.open_segment(segment_id):
        report = store.collect()
        assert (report.segments_busy, report.segments_removed) == (1, 0)
    with store.new_segment(TENANT, bytes(32)) as writer:
        writer.finish()
        report = store.collect()
        assert (report.segments_busy, report.segments_removed) == (1, 1)
    assert store.collect().segments_removed == 1


def test_a_frame_whose_note_finds_no_room_is_not_punched(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = write_snapshot(store, SnapshotPlan())
    cut_manifest(store, manifest, 2)
    monkeypatch.setattr("sessiond.store.notes.MAX_NOTES_BYTES", 1)
    report = store.collect()
    assert (report.frames_freed, report.bytes_freed) == (0, 0)
    assert store.verify().is_clean


def test_dead_frames_are_punched_and_the_others_stay(store: Store) -> None:
    plan = SnapshotPlan(chunks=6, chunk_bytes=256 * 1024)
    manifest = write_snapshot(store, plan)
    (segment_id,) = manifest.segment_ids
    path = segment_path(store, segment_id)
    before = path.stat()
    kept = cut_manifest(store, manifest, 2)
    report = store.collect()
    after = path.stat()
    assert report.frames_freed == 4
    assert report.bytes_freed == (before.st_blocks - after.st_blocks) * 512 > 0
    assert after.st_size == before.st_size
    assert load_snapshot(store, kept) == expected_bytes(plan)[:2]
    dead = {chunk.offset_bytes for chunk in manifest.chunks[2:]}
    assert store.bad_chunks(segment_id) == dead  # nobody may share them any more
    again = store.collect()
    assert (again.frames_freed, again.segments_busy) == (0, 0)


def test_a_freed_frame_is_never_served(store: Store) -> None:
    manifest = write_snapshot(store)
    cut_manifest(store, manifest, 1)
    store.collect()
    loaded = load_snapshot(store, manifest)
    assert isinstance(loaded[0], bytes)
    assert all(isinstance(error, StoreError) for error in loaded[1:])


def test_a_file_system_without_holes_loses_nothing(tmp_path: Path, keys: KeyRing) -> None:
    ops = FaultyOps()
    store = Store.open(tmp_path / "root", keys, ops=ops)
    plan = SnapshotPlan()
    manifest = write_snapshot(store, plan)
    kept = cut_manifest(store, manifest, 1)
    ops.fail("punch", errno.EOPNOTSUPP, times=9)
    assert store.collect().frames_freed == 0
    assert load_snapshot(store, kept) == expected_bytes(plan)[:1]


def test_one_tenants_collection_leaves_others_alone(store: Store) -> None:
    write_snapshot(store)
    other = SnapshotPlan(tenant=TenantId("umbrella"))
    write_snapshot(store, other)
    store.delete_snapshot(TENANT, SESSION, 1)
    store.delete_snapshot(other.tenant, SESSION, 1)
    assert store.collect(TENANT).segments_removed == 1
    assert store.collect(TENANT).segments_removed == 0
    assert store.collect().segments_removed == 1


def manifest_path(store: Store, tenant: TenantId = TENANT) -> Path:
    names = store.keys.tenant_name(tenant), store.keys.session_name(tenant, SESSION)
    return store.root.joinpath("sessions", *names) / "1.manifest"


def test_an_unreadable_manifest_holds_its_tenants_bytes(store: Store) -> None:
    """It may reference anything of its tenant: nothing there can be proved dead."""
    write_snapshot(store)
    write_snapshot(store, SnapshotPlan(session=SessionId("s-2")))
    store.delete_snapshot(TENANT, SessionId("s-2"), 1)
    other = SnapshotPlan(tenant=TenantId("umbrella"))
    write_snapshot(store, other)
    store.delete_snapshot(other.tenant, SESSION, 1)
    flip_byte(manifest_path(store), 400)
    report = store.collect()
    assert report.tenants_held == [store.keys.tenant_name(TENANT)]
    assert report.segments_removed == 1  # the other tenant's
    flip_byte(manifest_path(store), 400)
    assert store.collect().segments_removed == 1


def test_a_system_that_refuses_to_read_manifests_frees_nothing(
    tmp_path: Path, keys: KeyRing
) -> None:
    ops = FaultyOps()
    store = Store.open(tmp_path / "root", keys, ops=ops)
    plan = SnapshotPlan()
    manifest = write_snapshot(store, plan)
    store.write_session(SessionRecord(TENANT, SESSION, 1.0, 1.0))
    ops.fail("open", errno.EMFILE, name_part=".manifest")
    with pytest.raises(StoreError):
        store.collect()
    assert load_snapshot(store, manifest) == expected_bytes(plan)


def test_a_bad_sector_under_a_manifest_holds_its_tenant_alone(
    tmp_path: Path, keys: KeyRing
) -> None:
    ops = FaultyOps()
    store = Store.open(tmp_path / "root", keys, ops=ops)
    plan, other = SnapshotPlan(), SnapshotPlan(tenant=TenantId("umbrella"), seed=1)
    manifest = write_snapshot(store, plan)
    write_snapshot(store, other)
    for one in (plan, other):
        store.write_session(SessionRecord(one.tenant, one.session, 1.0, 1.0))
        dead = replace(one, generation=2, seed=5)
        write_snapshot(store, dead)
        store.delete_snapshot(dead.tenant, dead.session, 2)
    ops.fail("open", errno.EIO, name_part="1.manifest")  # the first that is looked at
    usage = store.upkeep.usage()
    assert len(usage.held) == 1
    assert store.upkeep.usage().held == set()  # read again
    ops.fail("open", errno.EIO, name_part="1.manifest")
    assert store.collect().segments_removed == 1
    assert load_snapshot(store, manifest) == expected_bytes(plan)
    assert store.collect().segments_removed == 1


def test_broken_segments_are_left_to_verification(store: Store) -> None:
    (segment_id,) = write_snapshot(store).segment_ids
    store.delete_snapshot(TENANT, SESSION, 1)
    flip_byte(segment_path(store, segment_id), 0)
    report = store.collect()
    assert (report.segments_broken, report.segments_removed) == (1, 0)
    assert segment_files(store) == {segment_id}


def test_planted_files_are_not_touched(store: Store, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"x")
    folder = store.root / "segments" / "ab"
    folder.mkdir(0o700)
    name = "ab" * 16
    (folder / f"{name}.seg").symlink_to(precious)
    os.mkfifo(folder / f"{'ab' * 15}cd.seg")
    (folder / "note.txt").write_bytes(b"")
    (store.root / "segments" / "zz").write_bytes(b"")
    store.collect()
    store.verify()
    assert precious.read_bytes() == b"x"


class TestRaces:
    """The lock protocol, forced into every order that matters."""

    def test_a_manifest_committed_while_the_collector_waits_for_its_lock(
        self, tmp_path: Path, keys: KeyRing
    ) -> None:
        """The first scan saw no manifest; the scan under the lock sees it."""
        plan = SnapshotPlan()
        committed = threading.Event()

        class CommitBeforeLock(FaultyOps):
            """Commits between the first scan and the opening of the segment."""

            def before(self, call: str, name: str) -> None:
                if call == "open" and name.endswith(".seg") and not committed.is_set():
                    committed.set()
                    other.commit_manifest(manifest)
                    writer.close()

        store = Store.open(tmp_path / "root", keys, ops=CommitBeforeLock())
        other = Store.open(tmp_path / "root", keys)
        writer = other.new_segment(TENANT, plan.bytes_digest)
        chunks = [
            writer.append(position, memoryview(plan.raw(position)), plan.codec)
            for position in plan.positions()
        ]
        writer.finish()
        manifest = manifest_of_plan(plan, chunks)
        assert store.collect().segments_removed == 0
        assert committed.is_set()
        assert load_snapshot(store, manifest) == expected_bytes(plan)

    def test_a_reader_that_waits_for_the_collector_finds_the_segment_gone(
        self, tmp_path: Path, keys: KeyRing
    ) -> None:
        opening = threading.Event()
        answers: list[object] = []

        class LetReaderIn(FaultyOps):
            def before(self, call: str, name: str) -> None:
                if call == "unlink" and name.endswith(".seg"):
                    reader.start()  # the exclusive lock is held now
                    assert opening.wait(10)

        class Announce(FaultyOps):
            def before(self, call: str, name: str) -> None:
                if call == "open" and name.endswith(".seg"):
                    opening.set()

        store = Store.open(tmp_path / "root", keys, ops=LetReaderIn())
        other = Store.open(tmp_path / "root", keys, ops=Announce())
        (segment_id,) = write_snapshot(store).segment_ids
        store.delete_snapshot(TENANT, SESSION, 1)

        def read() -> None:
            try:
                other.open_segment(segment_id).close()
            except SnapshotNotFoundError as error:
                answers.append(error)

        reader = threading.Thread(target=read)
        assert store.collect().segments_removed == 1
        reader.join(10)
        assert len(answers) == 1

    def test_two_collections_at_once(self, store: Store, keys: KeyRing) -> None:
        for number in range(20):
            session = SessionId(f"s-{number}")
            write_snapshot(store, SnapshotPlan(session=session, seed=number, chunks=1))
            store.delete_snapshot(TENANT, session, 1)
        removed: list[int] = []

        def work() -> None:
            removed.append(Store.open(store.root, keys).collect().segments_removed)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        removed.append(store.collect().segments_removed)
        assert sum(removed) == 20
        assert segment_files(store) == set()

    def test_suspends_deletes_and_collections_at_once(self, store: Store, keys: KeyRing) -> None:
        """What was committed and not deleted is whole in the end."""
        stop = threading.Event()

        def collect() -> None:
            mine = Store.open(store.root, keys)
            while not stop.is_set():
                mine.collect()

        collector = threading.Thread(target=collect)
        collector.start()
        try:
            with ThreadPoolExecutor(3) as pool:
                kept = list(pool.map(lambda one: grow(Store.open(store.root, keys), one), range(3)))
        finally:
            stop.set()
            collector.join()
        for plan, manifest in kept:
            assert load_snapshot(store, manifest) == expected_bytes(plan)
        assert store.verify().is_clean


def grow(store: Store, worker: int) -> tuple[SnapshotPlan, Manifest]:
    """Suspend a growing session again and again, each time deleting what came before."""
    plan = SnapshotPlan(session=SessionId(f"w-{worker}"), seed=worker, chunk_bytes=600, chunks=1)
    manifest = write_snapshot(store, plan)
    for generation in range(2, 13):
        plan = replace(plan, generation=generation, chunks=generation)
        parent, manifest = manifest, write_snapshot(store, plan, parent=manifest)
        store.delete_snapshot(plan.tenant, plan.session, parent.generation)
    return plan, manifest
