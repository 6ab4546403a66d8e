from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessiond.domain.errors import SessionExistsError, StoreError, StoreFullError
from sessiond.domain.ids import SessionId, TenantId
from sessiond.store.codecs import Codec
from sessiond.store.fileio import Space
from sessiond.store.references import ReferenceScan
from sessiond.store.store import Store
from sessiond.store.usage import DiskKind, Usage
from sessiond.testing.files import FaultyOps
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
    from collections.abc import Collection, Mapping

    from sessiond.domain.ids import SegmentId
    from sessiond.domain.keys import KeyRing
    from sessiond.domain.retention import SessionKey
    from sessiond.store.collector import CollectReport
    from sessiond.store.upkeep import Released

KEY = (TENANT, SESSION)
OTHER_SESSION = SessionId("s-2")


def du(path: Path) -> int:
    """Return what ``du`` says, in bytes."""
    shown = subprocess.run(["du", "-s", "-B512", path], check=True, capture_output=True, text=True)
    return int(shown.stdout.split()[0]) * 512


def settle(path: Path) -> None:
    """Make every folder look as if it had not changed for a minute."""
    for folder in (path, *filter(Path.is_dir, path.rglob("*"))):
        info = folder.stat()
        os.utime(folder, ns=(info.st_atime_ns, info.st_mtime_ns - 60 * 10**9))


def release(store: Store, key: SessionKey) -> Released:
    return store.upkeep.release(*key, store.upkeep.session(*key).manifests)


def exclusive(usage: Usage) -> Mapping[SessionKey, int]:
    return usage.exclusive_bytes


def test_the_total_is_what_du_says(store: Store) -> None:
    write_snapshot(store, SnapshotPlan(chunks=5))
    write_snapshot(store, SnapshotPlan(tenant=TenantId("b"), chunks=2, seed=3))
    with store.new_segment(TENANT, SnapshotPlan().bytes_digest) as writer:
        position = SnapshotPlan(seed=9).positions()[0]
        writer.append(position, memoryview(bytes(5000)), Codec.RAW)
        usage = store.upkeep.usage()
        assert usage.total_bytes == du(store.root)
        assert usage.by_kind[DiskKind.TMP] >= 8192
    usage = store.upkeep.usage()
    assert usage.total_bytes == du(store.root)
    names = [store.keys.tenant_name(tenant) for tenant in (TENANT, TenantId("b"))]
    assert usage.by_tenant[names[0]] > usage.by_tenant[names[1]] > 0
    assert usage.space.free_bytes > 0


@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(actions=st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
def test_a_second_look_sees_what_a_first_one_would(
    tmp_path_factory: pytest.TempPathFactory, keys: KeyRing, actions: list[tuple[int, bool]]
) -> None:
    """The caches hide nothing: whatever happens, a fresh scan finds the same."""
    store = Store.open(tmp_path_factory.mktemp("store") / "root", keys)
    for number, (which, removes) in enumerate(actions, 1):
        session = SessionId(f"s-{which}")
        generations = store.generations(TENANT, session)
        if removes and generations:
            release(store, (TENANT, session))
            store.upkeep.collect_changed()
        else:
            plan = SnapshotPlan(generation=number, session=session, chunks=1, seed=number)
            write_snapshot(store, plan)
        if number % 2:
            settle(store.root)
        fresh = Store.open(store.root, keys).upkeep.usage()
        seen = store.upkeep.usage()
        assert (seen.by_kind, seen.by_tenant) == (fresh.by_kind, fresh.by_tenant)
        assert exclusive(seen) == exclusive(fresh)
        assert seen.unreferenced == fresh.unreferenced


def test_exclusive_bytes_are_what_a_removal_frees(store: Store) -> None:
    first = write_snapshot(store, SnapshotPlan(chunks=4))
    # As a fork would: the other session's snapshot holds chunks of the first one's segment.
    forked = manifest_of_plan(SnapshotPlan(session=OTHER_SESSION, chunks=2), list(first.chunks[:2]))
    store.commit_manifest(forked)
    write_snapshot(store, SnapshotPlan(session=OTHER_SESSION, chunks=6, generation=2, seed=8))
    for key in (KEY, (TENANT, OTHER_SESSION)):
        before = store.upkeep.usage()
        released = release(store, key)
        store.upkeep.collect(released.segments)
        after = store.upkeep.usage()
        freed_bytes = before.total_bytes - after.total_bytes
        # A note, of one block, comes when frames of a segment that lives on are freed, and
        # goes with the segment.
        assert abs(exclusive(before)[key] - freed_bytes) in {0, 4096}
        assert key not in after.sessions
    assert store.upkeep.usage().by_kind[DiskKind.MANIFESTS] == 0


def test_shared_frames_belong_to_nobody_alone(store: Store) -> None:
    first = write_snapshot(store, SnapshotPlan(chunks=4))
    alone = exclusive(store.upkeep.usage())[KEY]
    store.commit_manifest(
        manifest_of_plan(SnapshotPlan(session=OTHER_SESSION, chunks=4), list(first.chunks))
    )
    shared = exclusive(store.upkeep.usage())
    assert shared[KEY] < alone / 2
    assert sum(share.size_bytes for share in store.upkeep.usage().shares) > alone


def test_an_unchanged_session_is_not_read_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_snapshot(store)
    settle(store.root)
    before = store.upkeep.usage()

    def refuse(*_: object) -> None:
        raise AssertionError("listed again")

    monkeypatch.setattr(ReferenceScan, "session", refuse)
    after = store.upkeep.usage()
    assert (after.by_kind, exclusive(after)) == (before.by_kind, exclusive(before))


def test_a_tenant_with_an_unreadable_manifest_is_held(store: Store) -> None:
    write_snapshot(store)
    (path,) = (store.root / "sessions").rglob("1.manifest")
    path.chmod(0o600)
    path.write_bytes(b"no manifest")
    usage = store.upkeep.usage()
    assert usage.held == {store.keys.tenant_name(TENANT)}
    assert usage.sessions == {}


def test_another_sessions_manifest_speaks_for_nobody(store: Store) -> None:
    """A copy in a wrong place would pass its own session's snapshots off as that place's."""
    write_snapshot(store)
    write_snapshot(store, SnapshotPlan(session=OTHER_SESSION, seed=1))
    names = [store.keys.session_name(TENANT, one) for one in (SESSION, OTHER_SESSION)]
    folders = [store.root / "sessions" / store.keys.tenant_name(TENANT) / name for name in names]
    shutil.copy(folders[0] / "1.manifest", folders[1] / "7.manifest")
    usage = store.upkeep.usage()
    found = {key: session.generations for key, session in usage.sessions.items()}
    assert found == {KEY: [1], (TENANT, OTHER_SESSION): [1, 7]}
    assert usage.sessions[TENANT, OTHER_SESSION].readable == [1]
    assert usage.held == {store.keys.tenant_name(TENANT)}


@pytest.mark.parametrize("place", ["a" * 32, f"{'a' * 32}/{'b' * 32}"])
def test_a_foreign_file_in_a_folders_place_stops_nothing(store: Store, place: str) -> None:
    write_snapshot(store)
    store.delete_session(TENANT, SESSION)
    foreign = store.root / "sessions" / place
    foreign.parent.mkdir(mode=0o700, exist_ok=True)
    foreign.write_bytes(b"x")
    assert store.upkeep.usage().sessions == {}
    assert store.collect().tenants_held == []
    assert [record.is_tombstone for record in store.list_sessions()] == [True]
    assert store.remove_tombstones(time.time() + 1) == 1
    assert foreign.read_bytes() == b"x"


def test_what_a_failing_disk_left_is_looked_at_again(tmp_path: Path, keys: KeyRing) -> None:
    ops = FaultyOps()
    store = Store.open(tmp_path / "root", keys, ops=ops)
    parent = write_snapshot(store, SnapshotPlan(chunks=2))
    shared = replace(parent, chunks=parent.chunks[:1], generation=2, parent_generation=1)
    store.commit_manifest(shared)
    store.upkeep.usage()
    store.delete_snapshot(TENANT, SESSION, 1)
    store.upkeep.usage()
    ops.fail("punch", errno.EIO)
    with pytest.raises(StoreError):
        store.upkeep.collect_changed()
    assert store.upkeep.collect_changed().frames_freed == 1


def test_only_what_has_died_is_looked_at(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        write_snapshot(store, SnapshotPlan(session=SessionId(f"s-{number}"), chunks=1))
    store.upkeep.usage()
    assert store.upkeep.collect_changed().segments_removed == 0
    released = release(store, (TENANT, SessionId("s-1")))
    assert (released.generations, len(released.segments)) == ((1,), 1)
    store.upkeep.usage()
    looked_at: list[SegmentId] = []
    collect = store.upkeep.collect

    def noted(segments: Collection[SegmentId]) -> CollectReport:
        looked_at.extend(segments)
        return collect(segments)

    monkeypatch.setattr(store.upkeep, "collect", noted)
    assert store.upkeep.collect_changed().segments_removed == 1
    assert set(looked_at) == released.segments


def test_what_has_come_in_its_place_is_not_what_was_to_go(store: Store) -> None:
    write_snapshot(store, SnapshotPlan(chunks=1))
    seen = store.upkeep.session(*KEY).manifests
    store.delete_snapshot(TENANT, SESSION, 1)
    write_snapshot(store, SnapshotPlan(chunks=1, seed=5))
    assert store.upkeep.release(*KEY, seen).generations == ()
    assert store.generations(*KEY) == [1]


def test_a_link_to_a_manifest_makes_no_other_one_of_it(store: Store, tmp_path: Path) -> None:
    write_snapshot(store, SnapshotPlan(chunks=1))
    seen = store.upkeep.session(*KEY).manifests
    (path,) = store.root.glob("**/*.manifest")
    os.link(path, tmp_path / "backup")
    assert store.upkeep.release(*KEY, seen).generations == (1,)


def test_an_unknown_session_gets_no_folder(store: Store) -> None:
    write_snapshot(store, SnapshotPlan(chunks=1))
    seen = store.upkeep.session(*KEY).manifests
    names = sorted(store.root.rglob("*"))
    assert store.upkeep.release(TENANT, OTHER_SESSION, seen).generations == ()
    assert sorted(store.root.rglob("*")) == names


def test_a_fence_keeps_snapshots(store: Store) -> None:
    write_snapshot(store, SnapshotPlan(chunks=1))
    seen = store.upkeep.session(*KEY).manifests

    def fence() -> None:
        raise SessionExistsError

    with pytest.raises(SessionExistsError):
        store.upkeep.release(*KEY, seen, fence)
    assert store.generations(*KEY) == [1]


def test_a_reader_keeps_what_is_removed_until_it_is_done(store: Store) -> None:
    plan = SnapshotPlan()
    manifest = write_snapshot(store, plan)
    (segment_id,) = manifest.segment_ids
    store.upkeep.usage()
    reader = store.open_segment(segment_id)
    assert store.upkeep.is_locked([segment_id])
    release(store, KEY)
    store.upkeep.usage()
    assert store.upkeep.collect_changed().segments_busy == 1
    assert load_snapshot(store, manifest) == expected_bytes(plan)
    reader.close()
    assert not store.upkeep.is_locked([segment_id])
    assert store.upkeep.collect_changed().segments_removed == 1  # it had not been forgotten


def test_the_last_turn_is_what_heads_tell(store: Store) -> None:
    assert store.upkeep.last_turn_unix_s(TENANT, SESSION) == 0.0
    write_snapshot(store)
    assert store.upkeep.last_turn_unix_s(TENANT, SESSION) == 0.0
    folder = next((store.root / "sessions").rglob("1.manifest")).parent / "heads"
    folder.mkdir(0o700)
    (folder / "e.head").touch()
    assert abs(store.upkeep.last_turn_unix_s(TENANT, SESSION) - time.time()) < 60


@pytest.mark.parametrize("floor_bytes", [None, 40_000])  # of 2 MB, 2 % are just that
def test_the_floor_is_kept_while_a_segment_grows(
    tmp_path: Path, keys: KeyRing, floor_bytes: int | None
) -> None:
    ops = FaultyOps()
    store = Store.open(tmp_path / "root", keys, ops=ops, floor_bytes=floor_bytes)
    plan = SnapshotPlan(chunks=3, codec=Codec.RAW)  # each takes three blocks: 12,288 bytes
    first, second, third = plan.positions()
    with store.new_segment(TENANT, plan.bytes_digest) as writer:
        writer.append(first, memoryview(plan.raw(first)), plan.codec)
        ops.pretended_space = Space(free_bytes=52_288, total_bytes=2_000_000)
        writer.append(second, memoryview(plan.raw(second)), plan.codec)
        ops.pretended_space = Space(free_bytes=52_287, total_bytes=2_000_000)
        with pytest.raises(StoreFullError):
            writer.append(third, memoryview(plan.raw(third)), plan.codec)
        writer.finish()  # what is there may be kept
    assert len(writer._entries) == 2
