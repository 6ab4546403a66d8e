from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.errors import (
    GenerationExistsError,
    SessionNotFoundError,
    SnapshotNotFoundError,
    StoreError,
)
from sessiond.domain.fingerprint import Fingerprint
from sessiond.domain.ids import SessionId
from sessiond.domain.snapshot import Origin
from sessiond.store.fences import Fence
from sessiond.store.forks import fork_snapshot
from sessiond.store.store import Store
from sessiond.testing.files import FaultyOps, flip_byte
from sessiond.testing.snapshots import (
    CHUNK_TOKENS,
    SESSION,
    TENANT,
    SnapshotPlan,
    a_fingerprint,
    expected_bytes,
    load_snapshot,
    write_snapshot,
)

if TYPE_CHECKING:
    from pathlib import Path

    from sessiond.domain.keys import KeyRing
    from sessiond.domain.snapshot import Manifest

FORK = SessionId("fork")
PLAN = SnapshotPlan(chunks=4, chunk_bytes=600)


def segment_path_bytes(store: Store) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in store.root.rglob("*.seg")}


def test_a_fork_is_the_same_snapshot_of_another_session(store: Store) -> None:
    source = write_snapshot(store, replace(PLAN, generation=7))
    before = segment_path_bytes(store)
    forked = fork_snapshot(store, source, FORK)
    assert forked == store.read_manifest(TENANT, FORK, 1)
    same = replace(
        source, session=FORK, generation=1, created_unix_s=forked.created_unix_s,
        forked_from=Origin(SESSION, 7),
    )  # fmt: skip
    assert forked == same
    assert segment_path_bytes(store) == before
    assert load_snapshot(store, forked) == expected_bytes(PLAN)


def test_nothing_collects_what_a_fork_is_about_to_share(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is deleted, and its bytes are collected, right before the fork's commit."""
    source = write_snapshot(store, PLAN)
    commit = store.commit_manifest

    def deleted_meanwhile(manifest: Manifest, *, fence: Fence) -> None:
        report = store.delete_session(TENANT, SESSION)
        assert (report.collected.segments_removed, report.collected.segments_busy) == (0, 1)
        commit(manifest, fence=fence)

    monkeypatch.setattr(store, "commit_manifest", deleted_meanwhile)
    forked = fork_snapshot(store, source, FORK)
    store.collect()
    assert load_snapshot(store, forked) == expected_bytes(PLAN)
    assert store.verify().is_clean


def test_a_source_whose_bytes_are_gone_is_refused(store: Store) -> None:
    source = write_snapshot(store, PLAN)
    store.delete_session(TENANT, SESSION)
    with pytest.raises(SnapshotNotFoundError):
        fork_snapshot(store, source, FORK)
    assert store.generations(TENANT, FORK) == []


@pytest.mark.parametrize(("bad", "kept"), [(3, 3), (2, 2), (1, 1)])
def test_a_bad_chunk_ends_what_is_shared(store: Store, bad: int, kept: int) -> None:
    source = write_snapshot(store, PLAN)
    chunk = source.chunks[bad]
    store.mark_bad(chunk.segment_id, chunk.offset_bytes, "test")
    forked = fork_snapshot(store, source, FORK)
    assert forked.chunks == source.chunks[:kept]
    assert forked.restorable_tokens == kept * CHUNK_TOKENS
    assert forked.tokens == source.tokens


def test_a_snapshot_without_its_first_chunk_is_refused(store: Store) -> None:
    source = write_snapshot(store, PLAN)
    store.mark_bad(source.chunks[0].segment_id, source.chunks[0].offset_bytes, "test")
    with pytest.raises(SnapshotNotFoundError):
        fork_snapshot(store, source, FORK)


def test_a_broken_segment_ends_what_is_shared(store: Store) -> None:
    first = write_snapshot(store, replace(PLAN, chunks=2))
    source = write_snapshot(store, replace(PLAN, generation=2), parent=first)
    assert len(source.segment_ids) == 2
    (path,) = store.root.rglob(f"{source.chunks[-1].segment_id}.seg")
    flip_byte(path, 0)
    forked = fork_snapshot(store, source, FORK)
    assert forked.chunks == source.chunks[:2]


def test_what_only_fails_now_costs_the_fork_no_chunks(tmp_path: Path, keys: KeyRing) -> None:
    ops = FaultyOps()
    store = Store.open(tmp_path / "root", keys, ops=ops)
    source = write_snapshot(store, PLAN)
    ops.fail("open", errno.EMFILE, name_part=".seg")
    with pytest.raises(StoreError):
        fork_snapshot(store, source, FORK)
    assert store.generations(TENANT, FORK) == []
    assert fork_snapshot(store, source, FORK).chunks == source.chunks


def test_with_windows_what_a_resume_needs_stays(store: Store) -> None:
    """A window's chunk that is bad takes nothing else with it."""
    groups = [{"window_tokens": 0}, {"window_tokens": CHUNK_TOKENS}]
    fields = {**a_fingerprint().fields, "kv_groups": groups}
    plan = replace(PLAN, groups=2, fingerprint=Fingerprint(fields))
    source = write_snapshot(store, plan)
    assert source.groups.windowed
    (bad,) = (c for c in source.chunks if (c.group, c.start_token) == (1, CHUNK_TOKENS))
    store.mark_bad(bad.segment_id, bad.offset_bytes, "test")
    forked = fork_snapshot(store, source, FORK)
    assert set(source.chunks) - set(forked.chunks) == {bad}
    assert forked.restorable_tokens == source.restorable_tokens == 4 * CHUNK_TOKENS


def test_a_session_with_a_snapshot_takes_no_fork(store: Store) -> None:
    source = write_snapshot(store, PLAN)
    fork_snapshot(store, source, FORK)
    with pytest.raises(GenerationExistsError):
        fork_snapshot(store, source, FORK)


def test_a_deleted_session_takes_no_fork(store: Store) -> None:
    source = write_snapshot(store, PLAN)
    store.delete_session(TENANT, FORK)
    with pytest.raises(SessionNotFoundError):
        fork_snapshot(store, source, FORK)
