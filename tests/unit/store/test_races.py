"""Calls that meet: each pair is forced together, many times or at its worst moment."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from sessiond.domain.errors import (
    GenerationExistsError,
    SessionNotFoundError,
    SnapshotNotFoundError,
)
from sessiond.domain.keys import KeyRing
from sessiond.domain.snapshot import Manifest
from sessiond.domain.tokens import chain_digests
from sessiond.store.loading import WantedChunk
from sessiond.store.sessions import SessionRecord
from sessiond.store.store import Store
from sessiond.testing.files import FaultyOps
from sessiond.testing.snapshots import (
    CHUNK_TOKENS,
    SESSION,
    TENANT,
    SnapshotPlan,
    expected_bytes,
    load_snapshot,
    write_snapshot,
)

PLAN = SnapshotPlan(chunk_bytes=600)


def suspend_unless_refused(store: Store, plan: SnapshotPlan) -> Manifest | None:
    try:
        return write_snapshot(store, plan)
    except (SessionNotFoundError, GenerationExistsError):
        return None


def test_one_of_several_writers_commits_a_generation(store: Store, keys: KeyRing) -> None:
    for generation in range(1, 6):
        plans = [
            replace(PLAN, generation=generation, seed=seed, chunks=seed + 1) for seed in range(4)
        ]
        with ThreadPoolExecutor(4) as pool:
            results = list(
                pool.map(
                    lambda plan: suspend_unless_refused(Store.open(store.root, keys), plan), plans
                )
            )
        winners = [(plan, result) for plan, result in zip(plans, results, strict=True) if result]
        ((plan, manifest),) = winners
        assert store.read_manifest(TENANT, SESSION, generation) == manifest
        assert load_snapshot(store, manifest) == expected_bytes(plan)
    assert store.collect().segments_removed == 15  # what the losers wrote


def test_a_deletion_beats_every_suspend_that_it_meets(store: Store, keys: KeyRing) -> None:
    for _ in range(15):
        store.write_session(SessionRecord(TENANT, SESSION, 1.0, 1.0), create=True)
        write_snapshot(store, PLAN)
        with ThreadPoolExecutor(2) as pool:
            late = pool.submit(
                suspend_unless_refused, Store.open(store.root, keys), replace(PLAN, generation=2)
            )
            pool.submit(Store.open(store.root, keys).delete_session, TENANT, SESSION).result()
            late.result()
        assert store.generations(TENANT, SESSION) == []
    store.collect()
    assert list((store.root / "segments").rglob("*.seg")) == []


def test_a_deletion_that_comes_between_the_check_and_the_commit_waits(
    tmp_path: Path, keys: KeyRing
) -> None:
    """The worst moment: the session was found alive, its manifest is about to be linked."""
    pool = ThreadPoolExecutor(1)

    class DeleteBeforeLink(FaultyOps):
        def before(self, call: str, name: str) -> None:
            if call == "link" and name.endswith(".manifest"):
                deletions.append(pool.submit(other.delete_session, TENANT, SESSION))

    with pool:
        store = Store.open(tmp_path / "root", keys, ops=DeleteBeforeLink())
        other = Store.open(tmp_path / "root", keys)
        deletions: list[object] = []
        write_snapshot(store, PLAN)
    assert len(deletions) == 1
    assert store.generations(TENANT, SESSION) == []
    record = store.read_session(TENANT, SESSION)
    assert record is not None
    assert record.is_tombstone


def test_a_resume_that_meets_a_deletion_gets_all_its_bytes(store: Store) -> None:
    manifest = write_snapshot(store, PLAN)
    (segment_id,) = manifest.segment_ids
    digests = chain_digests(manifest.tokens, CHUNK_TOKENS)
    wanted = [
        WantedChunk(chunk, digest, memoryview(bytearray(chunk.raw_bytes)))
        for chunk, digest in zip(manifest.chunks, digests, strict=True)
    ]
    with store.open_segment(segment_id) as reader:
        report = store.delete_session(TENANT, SESSION)
        assert report.collected.segments_busy == 1
        assert reader.load(wanted, manifest.bytes_digest) == [None] * len(wanted)
    assert [bytes(chunk.out) for chunk in wanted] == expected_bytes(PLAN)
    assert store.collect().segments_removed == 1
    with pytest.raises(SnapshotNotFoundError):
        store.open_segment(segment_id)


CHILD = """
import sys
from pathlib import Path
from sessiond.store.store import Store
from sessiond.testing.snapshots import SnapshotPlan, a_key_ring
store = Store.open(Path(sys.argv[1]), a_key_ring())
plan = SnapshotPlan()
writer = store.new_segment(plan.tenant, plan.bytes_digest)
position = plan.positions()[0]
writer.append(position, memoryview(plan.raw(position)), plan.codec)
print("ready", flush=True)
sys.stdin.read()
"""


def test_the_file_of_a_killed_writer_is_swept_and_a_living_ones_is_not(store: Store) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(store.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert store.sweep_tmp() == 0
        child.kill()
        child.wait()
    assert store.sweep_tmp() == 1
    assert list((store.root / "tmp").iterdir()) == []
