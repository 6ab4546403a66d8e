from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.errors import (
    GenerationExistsError,
    SessionNotFoundError,
    SnapshotNotFoundError,
    StoreCorruptError,
    StoreError,
    StoreInsecureError,
    StoreKeyError,
    StoreVersionError,
)
from sessiond.domain.heads import Branch, Head, TurnSplit
from sessiond.domain.ids import SessionId, TenantId
from sessiond.store.sessions import SessionRecord
from sessiond.store.store import Store
from sessiond.testing.files import flip_byte
from sessiond.testing.snapshots import (
    SESSION,
    TENANT,
    SnapshotPlan,
    a_key_ring,
    expected_bytes,
    load_snapshot,
    some_tokens,
    write_snapshot,
)
from sessiond.testing.values import an_engine

if TYPE_CHECKING:
    from sessiond.domain.keys import KeyRing

A_RECORD = SessionRecord(TENANT, SESSION, 1.0, 2.0, model="m", ttl_s=60.0, pinned=True)


def a_head(engine_id: str = "e1", **fields: int) -> Head:
    branch = Branch(some_tokens(40), "", "hash", 5.0, TurnSplit(30, 1, 2, 3))
    return Head(TENANT, SESSION, engine_id, fields.get("sequence", 1), 0, 5.0, (branch,))


def session_folder(store: Store) -> Path:
    names = store.keys.tenant_name(TENANT), store.keys.session_name(TENANT, SESSION)
    return store.root.joinpath("sessions", *names)


class TestRoot:
    def test_everything_is_private(self, store: Store) -> None:
        write_snapshot(store)
        store.write_session(A_RECORD)
        store.write_head(a_head())
        for path in [store.root, *store.root.rglob("*")]:
            expected = 0o700 if path.is_dir() else 0o600
            assert path.stat().st_mode & 0o777 == expected, path

    def test_it_can_be_opened_again_and_by_others(self, store: Store, keys: KeyRing) -> None:
        plan = SnapshotPlan()
        write_snapshot(store, plan)
        again = Store.open(store.root, keys, create=False)
        assert load_snapshot(again, again.read_manifest(TENANT, SESSION, 1)) == expected_bytes(plan)

    def test_names_on_disk_tell_nothing(self, store: Store) -> None:
        write_snapshot(store)
        assert not [path for path in store.root.rglob("*") if TENANT in path.name]

    @pytest.mark.parametrize("mode", [0o750, 0o705, 0o770])
    def test_a_root_that_others_can_reach_is_refused(
        self, store: Store, keys: KeyRing, mode: int
    ) -> None:
        store.root.chmod(mode)
        with pytest.raises(StoreInsecureError):
            Store.open(store.root, keys)

    @pytest.mark.parametrize("folder", ["tmp", "segments", "sessions", "engines", "quarantine"])
    def test_a_folder_that_others_can_reach_is_refused(
        self, store: Store, keys: KeyRing, folder: str
    ) -> None:
        (store.root / folder).chmod(0o755)
        with pytest.raises(StoreInsecureError):
            Store.open(store.root, keys)

    def test_a_linked_folder_is_refused(self, store: Store, keys: KeyRing, tmp_path: Path) -> None:
        (store.root / "segments").rename(tmp_path / "elsewhere")
        (store.root / "segments").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(StoreInsecureError):
            Store.open(store.root, keys)

    def test_a_linked_root_is_the_operators_choice(
        self, store: Store, keys: KeyRing, tmp_path: Path
    ) -> None:
        (tmp_path / "link").symlink_to(store.root)
        assert Store.open(tmp_path / "link", keys).root == store.root

    def test_an_unknown_version_is_refused(self, store: Store, keys: KeyRing) -> None:
        path = store.root / "FORMAT"
        path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
        with pytest.raises(StoreVersionError, match="version 2"):
            Store.open(store.root, keys)

    @pytest.mark.parametrize("text", ["", "{}", "1", '{"format": "other"}', "[" * 4000])
    def test_a_foreign_format_file_is_refused(self, store: Store, keys: KeyRing, text: str) -> None:
        (store.root / "FORMAT").write_text(text)
        with pytest.raises(StoreCorruptError):
            Store.open(store.root, keys)

    def test_data_without_a_format_file_is_refused(self, store: Store, keys: KeyRing) -> None:
        write_snapshot(store)
        (store.root / "FORMAT").unlink()
        with pytest.raises(StoreVersionError):
            Store.open(store.root, keys)

    def test_another_key_is_refused_before_anything_looks_empty(self, store: Store) -> None:
        with pytest.raises(StoreKeyError):
            Store.open(store.root, a_key_ring(9))

    def test_nothing_is_made_unless_asked_for(self, tmp_path: Path, keys: KeyRing) -> None:
        with pytest.raises(StoreError):
            Store.open(tmp_path / "none", keys, create=False)
        (tmp_path / "empty").mkdir(0o700)
        with pytest.raises(StoreError):
            Store.open(tmp_path / "empty", keys, create=False)
        assert list((tmp_path / "empty").iterdir()) == []

    def test_a_sweep_takes_only_what_nobody_writes(self, store: Store) -> None:
        (store.root / "tmp" / "left-behind.tmp").write_bytes(b"x" * 100)
        (store.root / "tmp" / "a-link").symlink_to("/etc/passwd")
        with store.new_segment(TENANT, bytes(32)) as writer:
            assert store.sweep_tmp() == 1
            writer.finish()
        assert Path("/etc/passwd").exists()


class TestSnapshots:
    def test_generations_ascend_as_numbers(self, store: Store) -> None:
        for generation in (10, 9, 2):
            write_snapshot(store, SnapshotPlan(generation=generation))
        assert store.generations(TENANT, SESSION) == [2, 9, 10]
        assert store.generations(TENANT, SessionId("other")) == []

    def test_foreign_names_are_no_generations(self, store: Store) -> None:
        write_snapshot(store)
        for name in ("01.manifest", "0.manifest", "-1.manifest", "1.manifest.bak", "x.manifest",
                     "1" * 30 + ".manifest"):  # fmt: skip
            (session_folder(store) / name).write_bytes(b"")
        assert store.generations(TENANT, SESSION) == [1]

    def test_a_generation_is_committed_once(self, store: Store) -> None:
        manifest = write_snapshot(store)
        with pytest.raises(GenerationExistsError):
            store.commit_manifest(replace(manifest, engine_id="late"))
        assert store.read_manifest(TENANT, SESSION, 1) == manifest

    def test_a_manifest_needs_its_segments(self, store: Store) -> None:
        manifest = write_snapshot(store)
        (segment_id,) = manifest.segment_ids
        (store.root / "segments" / segment_id[:2] / f"{segment_id}.seg").unlink()
        with pytest.raises(SnapshotNotFoundError):
            store.commit_manifest(replace(manifest, generation=2))
        assert store.generations(TENANT, SESSION) == [1]

    def test_a_missing_generation(self, store: Store) -> None:
        with pytest.raises(SnapshotNotFoundError):
            store.read_manifest(TENANT, SESSION, 1)

    def test_a_manifest_of_another_snapshot_is_refused(self, store: Store) -> None:
        write_snapshot(store)
        folder = session_folder(store)
        (folder / "2.manifest").write_bytes((folder / "1.manifest").read_bytes())
        with pytest.raises(StoreCorruptError):
            store.read_manifest(TENANT, SESSION, 2)

    def test_a_manifest_of_another_session_is_refused(self, store: Store) -> None:
        write_snapshot(store)
        write_snapshot(store, SnapshotPlan(session=SessionId("s-2"), generation=2))
        foreign = store.root / "sessions" / store.keys.tenant_name(TENANT)
        foreign /= store.keys.session_name(TENANT, SessionId("s-2"))
        (session_folder(store) / "2.manifest").write_bytes((foreign / "2.manifest").read_bytes())
        with pytest.raises(StoreCorruptError):
            store.read_manifest(TENANT, SESSION, 2)

    def test_deleting_is_idempotent(self, store: Store) -> None:
        write_snapshot(store)
        store.delete_snapshot(TENANT, SESSION, 1)
        store.delete_snapshot(TENANT, SESSION, 1)
        assert store.generations(TENANT, SESSION) == []


class TestHeads:
    def test_one_head_for_each_engine_and_the_newest_of_it(self, store: Store) -> None:
        store.write_head(a_head("e1"))
        store.write_head(a_head("e1", sequence=2))
        store.write_head(a_head("e2"))
        found = store.read_heads(TENANT, SESSION)
        assert [(head.engine_id, head.sequence) for head in found] == [("e1", 2), ("e2", 1)]
        assert found[0] == a_head("e1", sequence=2)

    def test_unreadable_and_foreign_heads_are_left_out(self, store: Store) -> None:
        store.write_head(a_head("e1"))
        store.write_head(a_head("e2"))
        folder = session_folder(store) / "heads"
        flip_byte(folder / "e1.head", 200)
        (folder / "e3.head").write_bytes((folder / "e2.head").read_bytes())
        (folder / "e4.head").write_bytes(b"")
        (folder / "e5.head").symlink_to(folder / "e2.head")
        os.mkfifo(folder / "e6.head")
        assert store.read_heads(TENANT, SESSION) == [a_head("e2")]

    def test_it_goes_only_where_no_file_of_its_engine_is_left(self, store: Store) -> None:
        info = an_engine()
        store.write_head(a_head(info.engine_id))
        gone = TENANT, SESSION, info.engine_id
        with store.publish_engine(info):
            assert not store.remove_ended_head(*gone)
        lock = store.root / "engines" / f"{info.engine_id}.lock"
        lock.touch()  # as SIGKILL leaves it
        assert not store.remove_ended_head(*gone)
        assert store.remove_dead_engines() == [info.engine_id]
        assert store.read_head(*gone) == a_head(info.engine_id)
        assert store.remove_ended_head(*gone)
        assert not store.remove_ended_head(*gone)
        assert store.read_heads(TENANT, SESSION) == []

    def test_no_session_no_heads(self, store: Store) -> None:
        assert store.read_heads(TENANT, SESSION) == []


class TestSessions:
    def test_a_record_is_replaced(self, store: Store) -> None:
        assert store.read_session(TENANT, SESSION) is None
        store.write_session(A_RECORD)
        store.write_session(replace(A_RECORD, pinned=False))
        assert store.read_session(TENANT, SESSION) == replace(A_RECORD, pinned=False)

    def test_every_session_is_listed(self, store: Store) -> None:
        other = SessionRecord(TenantId("umbrella"), SESSION, 1.0, 1.0)
        store.write_session(A_RECORD)
        store.write_session(other)
        found = sorted(store.list_sessions(), key=lambda record: record.tenant)
        assert found == [A_RECORD, other]

    def test_a_session_without_a_record_is_told_from_its_newest_manifest(
        self, store: Store
    ) -> None:
        write_snapshot(store)
        newest = write_snapshot(store, SnapshotPlan(generation=2, seed=1))
        (found,) = store.list_sessions()
        assert (found.tenant, found.session) == (TENANT, SESSION)
        assert found.created_unix_s == newest.created_unix_s

    def test_a_damaged_record_is_not_listed(self, store: Store) -> None:
        write_snapshot(store)
        store.write_session(A_RECORD)
        flip_byte(session_folder(store) / "session.json", 100)
        assert list(store.list_sessions()) == []

    def test_a_record_in_anothers_place_is_refused(self, store: Store) -> None:
        store.write_session(A_RECORD)
        store.write_session(replace(A_RECORD, session=SessionId("s-2")))
        folder = session_folder(store)
        name = store.keys.session_name(TENANT, SessionId("s-2"))
        other = folder.parent / name / "session.json"
        (folder / "session.json").write_bytes(other.read_bytes())
        with pytest.raises(StoreCorruptError):
            store.read_session(TENANT, SESSION)
        assert [record.session for record in store.list_sessions()] == ["s-2"]


class TestDeletion:
    def test_nothing_is_left_but_the_name(self, store: Store) -> None:
        store.write_session(A_RECORD)
        write_snapshot(store)
        write_snapshot(store, SnapshotPlan(generation=2, seed=1))
        store.write_head(a_head())
        report = store.delete_session(TENANT, SESSION)
        assert (report.manifests, report.heads) == (2, 1)
        assert report.collected.segments_removed == 2
        assert report.collected.bytes_freed > 0
        left = [path.name for path in store.root.rglob("*") if path.is_file()]
        assert sorted(left) == ["FORMAT", "session.json"]
        mark = store.read_session(TENANT, SESSION)
        assert mark is not None
        assert mark.is_tombstone
        assert (mark.model, mark.pinned, mark.policy) == ("", False, {})

    def test_it_is_idempotent_and_keeps_the_first_time(self, store: Store) -> None:
        store.delete_session(TENANT, SESSION)
        first = store.read_session(TENANT, SESSION)
        report = store.delete_session(TENANT, SESSION)
        assert (report.manifests, report.heads) == (0, 0)
        assert store.read_session(TENANT, SESSION) == first

    def test_nothing_late_revives_it(self, store: Store) -> None:
        manifest = write_snapshot(store)
        store.delete_session(TENANT, SESSION)
        with pytest.raises(SessionNotFoundError):
            store.commit_manifest(replace(manifest, generation=7))
        with pytest.raises(SessionNotFoundError):
            store.write_head(a_head())
        with pytest.raises(SessionNotFoundError):
            store.write_session(A_RECORD)
        assert store.generations(TENANT, SESSION) == []
        assert store.read_heads(TENANT, SESSION) == []

    def test_others_lose_nothing(self, store: Store) -> None:
        other = SnapshotPlan(session=SessionId("s-2"), seed=3)
        kept = write_snapshot(store, other)
        write_snapshot(store)
        store.delete_session(TENANT, SESSION)
        assert load_snapshot(store, kept) == expected_bytes(other)

    def test_a_chunk_shared_with_another_session_survives(self, store: Store) -> None:
        plan = SnapshotPlan()
        parent = write_snapshot(store, plan)
        fork = replace(parent, session=SessionId("fork"))
        store.commit_manifest(fork)
        store.delete_session(TENANT, SESSION)
        assert load_snapshot(store, fork) == expected_bytes(plan)

    def test_it_can_be_created_again_empty(self, store: Store) -> None:
        write_snapshot(store)
        store.delete_session(TENANT, SESSION)
        store.write_session(A_RECORD, create=True)
        assert store.read_session(TENANT, SESSION) == A_RECORD
        assert store.generations(TENANT, SESSION) == []
        write_snapshot(store)
        assert store.generations(TENANT, SESSION) == [1]

    def test_a_damaged_record_may_have_been_a_tombstone(self, store: Store) -> None:
        write_snapshot(store)
        store.write_session(A_RECORD)
        flip_byte(session_folder(store) / "session.json", 100)
        with pytest.raises(StoreCorruptError):
            write_snapshot(store, SnapshotPlan(generation=2))
        store.write_session(A_RECORD, create=True)
        assert store.generations(TENANT, SESSION) == []

    def test_an_unreadable_manifest_is_deleted_like_any_other(self, store: Store) -> None:
        write_snapshot(store)
        flip_byte(session_folder(store) / "1.manifest", 300)
        assert store.delete_session(TENANT, SESSION).manifests == 1
        assert store.collect().segments_removed == 1

    def test_deleting_a_session_with_a_damaged_record_leaves_a_tombstone(
        self, store: Store
    ) -> None:
        store.write_session(A_RECORD)
        flip_byte(session_folder(store) / "session.json", 10)
        store.delete_session(TENANT, SESSION)
        mark = store.read_session(TENANT, SESSION)
        assert mark is not None
        assert mark.is_tombstone
        assert store.verify().is_clean

    def test_old_tombstones_are_forgotten(self, store: Store) -> None:
        store.write_session(replace(A_RECORD, session=SessionId("alive")))
        write_snapshot(store)
        store.delete_session(TENANT, SESSION)
        mark = store.read_session(TENANT, SESSION)
        assert mark is not None
        assert mark.deleted_unix_s is not None
        assert store.remove_tombstones(mark.deleted_unix_s) == 0
        assert store.remove_tombstones(mark.deleted_unix_s + 1) == 1
        assert not session_folder(store).exists()
        assert [record.session for record in store.list_sessions()] == ["alive"]
