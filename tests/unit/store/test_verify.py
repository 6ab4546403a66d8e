from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.ids import SegmentId, SessionId, TenantId
from sessiond.store.fileio import try_lock
from sessiond.store.findings import VerifyOptions
from sessiond.store.sessions import SessionRecord
from sessiond.store.store import Store
from sessiond.testing.files import SteppedOps, flip_byte
from sessiond.testing.snapshots import (
    SESSION,
    TENANT,
    SnapshotPlan,
    a_key_ring,
    expected_bytes,
    load_snapshot,
    manifest_of_plan,
    write_snapshot,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sessiond.domain.keys import KeyRing
    from sessiond.domain.snapshot import Manifest

REPAIR = VerifyOptions(repair=True)


def segment_path(store: Store, segment_id: SegmentId) -> Path:
    return store.root / "segments" / segment_id[:2] / f"{segment_id}.seg"


def first_segment(store: Store, manifest: Manifest) -> Path:
    return segment_path(store, manifest.chunks[0].segment_id)


def manifest_path(store: Store, _: Manifest) -> Path:
    names = store.keys.tenant_name(TENANT), store.keys.session_name(TENANT, SESSION)
    return store.root.joinpath("sessions", *names) / "1.manifest"


def quarantined(store: Store) -> list[str]:
    return sorted(path.name for path in (store.root / "quarantine").iterdir())


def test_a_whole_store_is_clean(store: Store) -> None:
    parent = write_snapshot(store, SnapshotPlan(chunks=3, groups=2))
    write_snapshot(store, SnapshotPlan(generation=2, chunks=5, groups=2), parent=parent)
    write_snapshot(store, SnapshotPlan(tenant=TenantId("umbrella")))
    store.write_session(SessionRecord(TENANT, SESSION, 1.0, 1.0))
    report = store.verify()
    assert report.is_clean
    assert (report.snapshots, report.segments, report.chunks) == (3, 3, 13)
    assert report.raw_bytes == 13 * len(SnapshotPlan().raw(SnapshotPlan().positions()[0]))


def test_one_tenant_and_a_sample(store: Store) -> None:
    write_snapshot(store, SnapshotPlan(chunks=30))
    write_snapshot(store, SnapshotPlan(tenant=TenantId("umbrella")))
    report = store.verify(VerifyOptions(tenant=TENANT, sample=0.5, seed=1))
    assert (report.snapshots, report.segments) == (1, 1)
    assert report.chunks + report.chunks_skipped == 30
    assert 5 < report.chunks < 25


class Watching(SteppedOps):
    """Notes whether notes could be changed while a collection holds their segment."""

    def __init__(self) -> None:
        self.segment: Path | None = None
        self.locked: list[bool] = []

    def before(self, call: str, name: str) -> None:
        if self.segment and call in {"rename", "unlink"} and name.endswith(".bad"):
            with self.segment.open("rb") as file:
                self.locked.append(not try_lock(file.fileno(), exclusive=True))


def test_notes_are_forgotten_under_the_segments_lock(tmp_path: Path, keys: KeyRing) -> None:
    """Else the collector's note on a frame that it frees now could be lost."""
    ops = Watching()
    store = Store.open(tmp_path / "root", keys, ops=ops)
    manifest = write_snapshot(store)
    store.mark_bad(manifest.chunks[0].segment_id, manifest.chunks[0].offset_bytes, "was dark")
    ops.segment = first_segment(store, manifest)
    assert store.verify(REPAIR).notes_removed == 1
    assert ops.locked == [True]


def test_a_bad_chunk_is_found_noted_and_forgiven_when_it_reads_again(store: Store) -> None:
    manifest = write_snapshot(store)
    bad = manifest.chunks[1]
    path = segment_path(store, bad.segment_id)
    flip_byte(path, bad.offset_bytes + 9)
    (fault,) = store.verify(REPAIR).faults
    assert (fault.what, fault.offset_bytes) == ("chunk", bad.offset_bytes)
    assert fault.where == str(path.relative_to(store.root))
    assert store.bad_chunks(bad.segment_id) == {bad.offset_bytes}
    store.mark_bad(bad.segment_id, 1, "of no manifest")
    flip_byte(path, bad.offset_bytes + 9)
    report = store.verify(REPAIR)
    assert (report.is_clean, report.notes_removed) == (True, 1)
    assert store.bad_chunks(bad.segment_id) == {1}


@pytest.mark.parametrize(
    ("victim", "what", "offset"),
    [
        (manifest_path, "manifest", 0),
        (manifest_path, "manifest", 300),
        (manifest_path, "manifest", -1),
        (first_segment, "segment", 0),
        (first_segment, "segment", 50),
        (first_segment, "segment", -1),
    ],
)
def test_what_is_broken_goes_to_quarantine_only_when_asked(
    store: Store, victim: Callable[[Store, Manifest], Path], what: str, offset: int
) -> None:
    path = victim(store, write_snapshot(store))
    flip_byte(path, offset)
    data = path.read_bytes()
    (fault,) = store.verify().faults
    assert (fault.what, fault.quarantined_as) == (what, "")
    assert path.read_bytes() == data
    (fault,) = [fault for fault in store.verify(REPAIR).faults if fault.quarantined_as]
    assert not path.exists()
    moved = store.root / "quarantine" / fault.quarantined_as
    assert moved.read_bytes() == data
    note = json.loads(moved.with_name(f"{moved.name}.note").read_text())
    assert "/".join(note["from"]) == str(path.relative_to(store.root))
    assert note["why"] == fault.why


def test_a_repaired_store_collects_again(store: Store) -> None:
    manifest = write_snapshot(store)
    flip_byte(manifest_path(store, manifest), 300)
    assert store.collect().tenants_held
    store.verify(REPAIR)
    report = store.collect()
    assert (report.tenants_held, report.segments_removed) == ([], 1)


def test_a_missing_segment_is_a_fault(store: Store) -> None:
    manifest = write_snapshot(store)
    first_segment(store, manifest).unlink()
    (fault,) = store.verify(REPAIR).faults
    assert (fault.what, fault.quarantined_as) == ("segment", "")


def test_a_manifest_that_became_a_symlink_is_moved_not_followed(
    store: Store, tmp_path: Path
) -> None:
    path = manifest_path(store, write_snapshot(store))
    precious = tmp_path / "precious"
    precious.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(precious)
    (fault,) = store.verify(REPAIR).faults
    assert (store.root / "quarantine" / fault.quarantined_as).is_symlink()
    assert precious.exists()


def test_another_keys_files_are_never_moved(store: Store) -> None:
    write_snapshot(store)
    other = Store(store._tree, replace(a_key_ring(9), name_key=store.keys.name_key))
    (fault,) = other.verify(REPAIR).faults
    assert "another key" in fault.why
    assert quarantined(store) == []
    assert other.collect().tenants_held
    assert load_snapshot(store, store.read_manifest(TENANT, SESSION, 1)) == expected_bytes(
        SnapshotPlan()
    )


def test_a_damaged_session_file_is_told_and_left(store: Store) -> None:
    store.write_session(SessionRecord(TENANT, SESSION, 1.0, 1.0))
    path = manifest_path(store, write_snapshot(store)).with_name("session.json")
    flip_byte(path, 60)
    (fault,) = store.verify(REPAIR).faults
    assert fault.what == "session"
    assert path.exists()


def test_an_unreferenced_broken_segment_is_found(store: Store) -> None:
    manifest = write_snapshot(store, SnapshotPlan(session=SessionId("gone")))
    store.delete_snapshot(TENANT, SessionId("gone"), 1)
    flip_byte(first_segment(store, manifest), 3)
    (fault,) = store.verify(REPAIR).faults
    assert fault.what == "segment"
    assert len(quarantined(store)) == 2
    assert store.verify().is_clean


def test_a_snapshot_that_goes_while_it_is_verified_is_no_damage(store: Store) -> None:
    """Its frames are freed at once where another snapshot keeps the segment alive."""
    first = write_snapshot(store, SnapshotPlan(chunks=4))
    fork = SnapshotPlan(chunks=2, session=SessionId("fork"))
    store.commit_manifest(manifest_of_plan(fork, list(first.chunks[:2])))
    folder = manifest_path(store, first).parent.relative_to(store.root).parts
    run = store.verification(VerifyOptions(note_bad=True))
    steps = run.session(folder)
    next(steps)
    store.delete_snapshot(TENANT, SESSION, 1)
    assert store.collect().frames_freed == 2
    assert list(steps)
    assert (run.report.chunks, run.report.faults) == (4, [])


def test_a_manifest_and_a_record_in_the_wrong_place_are_found(store: Store) -> None:
    other = SessionId("s-2")
    for session in (SESSION, other):
        store.write_session(SessionRecord(TENANT, session, 1.0, 1.0))
        write_snapshot(store, SnapshotPlan(session=session))
    names = store.keys.tenant_name(TENANT), store.keys.session_name(TENANT, other)
    theirs = store.root.joinpath("sessions", *names)
    ours = manifest_path(store, store.read_manifest(TENANT, SESSION, 1)).parent
    for name in ("1.manifest", "session.json"):
        (ours / name).write_bytes((theirs / name).read_bytes())
    report = store.verify(REPAIR)
    assert sorted(fault.what for fault in report.faults) == ["manifest", "session"]
    assert (ours / "session.json").exists()


def test_a_chunk_of_two_sessions_is_read_once_and_told_of_both(store: Store) -> None:
    first = write_snapshot(store)
    fork = SnapshotPlan(session=SessionId("fork"), generation=2)
    write_snapshot(store, fork, parent=first)
    bad = first.chunks[0]
    flip_byte(segment_path(store, bad.segment_id), bad.offset_bytes)
    report = store.verify()
    assert report.chunks == 3
    assert {fault.owner.session for fault in report.faults} == {SESSION, "fork"}
