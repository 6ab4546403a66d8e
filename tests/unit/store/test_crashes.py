"""The crash table of FORMAT.md: every step of every operation, with and without power.

One test for each row. An operation is done once to count its steps; then it is done again from
the same beginning for each of them, and the process "dies" before that step. What a new process
finds must be the state before the operation or the one after it, and a sweep and a collection
must leave no file that belongs to neither.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.engines import EngineInfo
from sessiond.domain.heads import Branch, Head, TurnSplit
from sessiond.domain.ids import EngineId, SessionId
from sessiond.domain.snapshot import Origin
from sessiond.store.findings import VerifyOptions
from sessiond.store.forks import fork_snapshot
from sessiond.store.sessions import SessionRecord
from sessiond.store.store import Store
from sessiond.testing.files import Crash, CrashingOps, count_steps, flip_byte
from sessiond.testing.snapshots import (
    SESSION,
    TENANT,
    SnapshotPlan,
    a_fingerprint,
    expected_bytes,
    load_snapshot,
    some_tokens,
    write_snapshot,
)

if TYPE_CHECKING:
    from pathlib import Path

    from sessiond.domain.keys import KeyRing
    from sessiond.domain.snapshot import Manifest
    from sessiond.store.fileio import FileOps

PLAN = SnapshotPlan(chunks=2, chunk_bytes=600)
GROWN = replace(PLAN, generation=2, chunks=3)
RECORD = SessionRecord(TENANT, SESSION, 1.0, 1.0, model="old")
NEW_RECORD = replace(RECORD, model="new")

FORK = SessionId("fork")

Action = Callable[[Store], object]


class SegmentIds:
    """Ids that differ, in one folder for what is prepared and in another for what is tried.

    Random ones share a folder now and then, and an operation that need not make it has fewer steps.
    """

    def __init__(self) -> None:
        self.folder = "aa"
        self._numbers = itertools.count()

    def __call__(self) -> str:
        return f"{self.folder}{next(self._numbers):030x}"


SEGMENT_IDS = SegmentIds()


@pytest.fixture(autouse=True)
def same_steps_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessiond.store.store.new_hex_id", SEGMENT_IDS)
    SEGMENT_IDS.folder = "aa"


@dataclass(frozen=True)
class State:
    """What a new process finds."""

    record: str  #: the record's model, ``deleted`` or ``none``
    snapshots: tuple[tuple[int, bool], ...]  #: generation, and whether all its bytes are right
    head_sequences: tuple[int, ...]


def state_of(store: Store) -> State:
    record = store.read_session(TENANT, SESSION)
    snapshots = []
    for generation in store.generations(TENANT, SESSION):
        manifest = store.read_manifest(TENANT, SESSION, generation)
        plan = PLAN if generation == 1 else GROWN
        right = load_snapshot(store, manifest) == expected_bytes(plan)[: len(manifest.chunks)]
        snapshots.append((generation, right))
    heads = store.read_heads(TENANT, SESSION)
    model = "none" if record is None else "deleted" if record.is_tombstone else record.model
    return State(model, tuple(snapshots), tuple(head.sequence for head in heads))


class Trial:
    """One operation on copies of one store."""

    def __init__(self, folder: Path, keys: KeyRing, prepare: Action, action: Action) -> None:
        self.folder, self.keys, self.action = folder, keys, action
        self.base = folder / "base"
        prepare(Store.open(self.base, keys))
        SEGMENT_IDS.folder = "bb"
        self.before = state_of(self.copy("before"))
        after = self.copy("after")
        self.steps = count_steps(lambda ops: action(self.open("after", ops)))
        self.after = state_of(after)

    def copy(self, name: str) -> Store:
        shutil.copytree(self.base, self.folder / name, symlinks=True)
        return Store.open(self.folder / name, self.keys)

    def open(self, name: str, ops: FileOps) -> Store:
        return Store.open(self.folder / name, self.keys, ops=ops)

    def crashes(self, *, power_failure: bool) -> Iterator[Store]:
        """Yield the store as a new process finds it, for a crash before each step."""
        assert self.steps > 0
        for step in range(self.steps):
            name = f"{'power' if power_failure else 'kill'}-{step}"
            store = self.copy(name)
            with pytest.raises(Crash):
                self.action(self.open(name, CrashingOps(step, power_failure=power_failure)))
            yield store

    def check(self) -> None:
        """The old state or the new one, for every step, with and without power."""
        for power_failure in (False, True):
            for store in self.crashes(power_failure=power_failure):
                assert state_of(store) in {self.before, self.after}
                require_tidy(store)


def require_tidy(store: Store) -> None:
    """After a sweep and a collection, every file has a reason to be there."""
    found = state_of(store)
    store.sweep_tmp()
    store.remove_dead_engines()
    store.collect()
    assert store.verify().is_clean
    assert state_of(store) == found
    assert list((store.root / "tmp").iterdir()) == []
    assert list((store.root / "engines").iterdir()) == []
    referenced = {
        segment_id
        for generation in store.generations(TENANT, SESSION)
        for segment_id in store.read_manifest(TENANT, SESSION, generation).segment_ids
    }
    assert {path.stem for path in (store.root / "segments").rglob("*.seg")} == referenced
    for path in store.root.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0


def nothing(store: Store) -> None:
    del store


def suspended(store: Store) -> Manifest:
    store.write_session(RECORD)
    store.write_head(a_head(1))
    return write_snapshot(store, PLAN)


def grown(store: Store) -> Manifest:
    parent = suspended(store)
    return write_snapshot(store, GROWN, parent=parent)


def a_head(sequence: int) -> Head:
    branch = Branch(some_tokens(40), "", "", 1.0, TurnSplit())
    return Head(TENANT, SESSION, "e1", sequence, 0, 1.0, (branch,))


def test_first_suspend(tmp_path: Path, keys: KeyRing) -> None:
    trial = Trial(tmp_path, keys, nothing, lambda store: write_snapshot(store, PLAN))
    assert trial.after == State("none", ((1, True),), ())
    trial.check()


def test_suspend_of_a_grown_session(tmp_path: Path, keys: KeyRing) -> None:
    def suspend_again(store: Store) -> None:
        write_snapshot(store, GROWN, parent=store.read_manifest(TENANT, SESSION, 1))

    trial = Trial(tmp_path, keys, suspended, suspend_again)
    assert trial.after.snapshots == ((1, True), (2, True))
    trial.check()


def test_fork(tmp_path: Path, keys: KeyRing) -> None:
    """The source stays as it is; the fork is a session without a snapshot until it is whole."""
    record = SessionRecord(TENANT, FORK, 1.0, 1.0, forked_from=Origin(SESSION, 1))

    def fork(store: Store) -> None:
        store.write_session(record, create=True)
        fork_snapshot(store, store.read_manifest(TENANT, SESSION, 1), FORK)

    trial = Trial(tmp_path, keys, suspended, fork)
    assert trial.before == trial.after
    found = set()
    for power_failure in (False, True):
        for store in trial.crashes(power_failure=power_failure):
            assert state_of(store) == trial.before
            generations = store.generations(TENANT, FORK)
            found.add((store.read_session(TENANT, FORK) is not None, len(generations)))
            store.delete_session(TENANT, SESSION)
            store.sweep_tmp()
            store.collect()
            assert store.verify().is_clean
            for generation in generations:
                forked = store.read_manifest(TENANT, FORK, generation)
                assert load_snapshot(store, forked) == expected_bytes(PLAN)
    assert found == {(False, 0), (True, 0), (True, 1)}


def test_write_of_a_session_record(tmp_path: Path, keys: KeyRing) -> None:
    trial = Trial(tmp_path, keys, suspended, lambda store: store.write_session(NEW_RECORD))
    assert (trial.before.record, trial.after.record) == ("old", "new")
    trial.check()


def test_write_of_a_head(tmp_path: Path, keys: KeyRing) -> None:
    """A head is a hint: a power failure may cost it, and nothing else."""
    trial = Trial(tmp_path, keys, suspended, lambda store: store.write_head(a_head(2)))
    lost = replace(trial.after, head_sequences=())
    for power_failure in (False, True):
        for store in trial.crashes(power_failure=power_failure):
            assert state_of(store) in {trial.before, trial.after, lost}
            require_tidy(store)


def test_deletion_of_a_snapshot(tmp_path: Path, keys: KeyRing) -> None:
    trial = Trial(tmp_path, keys, grown, lambda store: store.delete_snapshot(TENANT, SESSION, 1))
    assert trial.after.snapshots == ((2, True),)
    trial.check()


def test_deletion_of_a_session(tmp_path: Path, keys: KeyRing) -> None:
    """Once the tombstone is there the session is gone; a collection ends what was cut."""
    trial = Trial(tmp_path, keys, grown, lambda store: store.delete_session(TENANT, SESSION))
    assert trial.after == State("deleted", (), ())
    for power_failure in (False, True):
        for store in trial.crashes(power_failure=power_failure):
            found = state_of(store)
            if found.record == "deleted":
                store.collect()
                assert state_of(store) == trial.after
            else:
                assert found == trial.before
            require_tidy(store)


def test_creation_of_a_session_that_was_deleted(tmp_path: Path, keys: KeyRing) -> None:
    def deleted(store: Store) -> None:
        suspended(store)
        store.delete_session(TENANT, SESSION)

    def create(store: Store) -> None:
        store.write_session(NEW_RECORD, create=True)

    trial = Trial(tmp_path, keys, deleted, create)
    assert trial.after == State("new", (), ())
    trial.check()


def test_creation_over_a_deletion_that_was_cut(tmp_path: Path, keys: KeyRing) -> None:
    """The old snapshots never show under the new session."""

    def cut(store: Store) -> None:
        grown(store)
        # The tombstone is one durable write, of six steps; then the first manifest goes.
        with pytest.raises(Crash):
            Store.open(store.root, keys, ops=CrashingOps(6)).delete_session(TENANT, SESSION)

    trial = Trial(tmp_path, keys, cut, lambda store: store.write_session(NEW_RECORD, create=True))
    assert trial.before.record == "deleted"
    assert trial.before.snapshots
    for power_failure in (False, True):
        for store in trial.crashes(power_failure=power_failure):
            found = state_of(store)
            assert found.record == "deleted" or found == trial.after
            store.collect()
            require_tidy(store)


def test_collection_of_a_dead_segment(tmp_path: Path, keys: KeyRing) -> None:
    def with_dead_segment(store: Store) -> None:
        (manifest) = grown(store)
        store.mark_bad(manifest.chunks[0].segment_id, 4096, "test")
        store.delete_snapshot(TENANT, SESSION, 2)

    trial = Trial(tmp_path, keys, with_dead_segment, lambda store: store.collect())
    assert trial.before == trial.after
    trial.check()


def test_collection_of_dead_frames(tmp_path: Path, keys: KeyRing) -> None:
    def with_dead_frames(store: Store) -> None:
        manifest = suspended(store)
        store.commit_manifest(
            replace(manifest, generation=2, parent_generation=1, chunks=manifest.chunks[:1])
        )
        store.delete_snapshot(TENANT, SESSION, 1)

    trial = Trial(tmp_path, keys, with_dead_frames, lambda store: store.collect())
    assert trial.before == trial.after == State("old", ((2, True),), (1,))
    trial.check()
    for name in ("kill", "power"):  # a freed frame is known as such, whenever the crash came
        for folder in tmp_path.glob(f"{name}-*"):
            store = Store.open(folder, keys)
            (chunk,) = store.read_manifest(TENANT, SESSION, 2).chunks
            assert len(store.bad_chunks(chunk.segment_id)) == 1


def test_quarantine_of_a_broken_segment(tmp_path: Path, keys: KeyRing) -> None:
    def with_broken_segment(store: Store) -> None:
        manifest = write_snapshot(store, PLAN)
        store.delete_snapshot(TENANT, SESSION, 1)
        (path,) = (store.root / "segments").rglob(f"{manifest.chunks[0].segment_id}.seg")
        flip_byte(path, 0)

    repair = VerifyOptions(repair=True)
    trial = Trial(tmp_path, keys, with_broken_segment, lambda store: store.verify(repair))
    for power_failure in (False, True):
        for store in trial.crashes(power_failure=power_failure):
            in_place = len(list((store.root / "segments").rglob("*.seg")))
            moved = len(list((store.root / "quarantine").glob("*.seg")))
            assert in_place + moved == 1
            store.verify(repair)
            require_tidy(store)
            assert len(list((store.root / "quarantine").glob("*.seg"))) == 1
            (held,) = (store.root / "quarantine").glob("*.seg")
            assert held.with_name(f"{held.name}.note").read_bytes()


def test_start_and_end_of_an_engine(tmp_path: Path, keys: KeyRing) -> None:
    info = EngineInfo(EngineId("e"), "", "m", 1, 1.0, 1.0, a_fingerprint(), 1, 1, 1, 1, "0.32.0")

    def live_and_end(store: Store) -> None:
        with store.publish_engine(info) as file:
            file.update(replace(info, heartbeat_unix_s=2.0))

    trial = Trial(tmp_path, keys, nothing, live_and_end)
    for power_failure in (False, True):
        for store in trial.crashes(power_failure=power_failure):
            assert store.live_engines() == []
            require_tidy(store)


def test_making_of_the_root(tmp_path: Path, keys: KeyRing) -> None:
    steps = count_steps(lambda ops: Store.open(tmp_path / "counted", keys, ops=ops))
    for step in range(steps):
        for power_failure in (False, True):
            root = tmp_path / f"{step}-{power_failure}"
            with pytest.raises(Crash):
                Store.open(root, keys, ops=CrashingOps(step, power_failure=power_failure))
            store = Store.open(root, keys)
            write_snapshot(store, PLAN)
            require_tidy(store)
