"""The registry from the files alone, compared with the one that was lost."""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessiond.domain.errors import SessionNotFoundError
from sessiond.domain.ids import DEFAULT_TENANT, SessionId, TenantId
from sessiond.domain.keys import KeyRing
from sessiond.registry import Registry, Restored, Witness
from sessiond.service.rebuild import RebuildReport, rebuild_registry
from sessiond.service.records import record_of
from sessiond.store.store import Store
from sessiond.testing.files import Crash, flip_byte
from sessiond.testing.snapshots import SnapshotPlan, write_snapshot
from sessiond.testing.values import NOW_UNIX_S, a_session, a_summary
from sessiond.testing.world import AGENT, World, open_world, text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sessiond.domain.session import Session
    from sessiond.domain.snapshot import SnapshotSummary

KEPT, PINNED, GONE = AGENT, SessionId("pinned"), SessionId("gone")
OTHER = TenantId("umbrella")
GUESSED = SessionId("guessed")


async def _fill(world: World) -> None:
    """Live through what a registry knows: pins, timeouts, snapshots, a deletion."""
    world.start_engine()
    await world.create(model="smol", idle_timeout_s=60.0)
    for length in (100, 200):
        await world.turn(AGENT, text(length))
        await world.suspend()
    await world.create(PINNED, pinned=True)
    world.registry.update_session(DEFAULT_TENANT, PINNED, ttl_s=7.5, updated_unix_s=NOW_UNIX_S)
    world.store.write_session(record_of(world.registry.get_session(DEFAULT_TENANT, PINNED)))
    await world.create(GONE)
    await world.turn(GONE, text(100, seed=3))
    await world.suspend(GONE)
    await world.delete(GONE)
    await world.services.catalogue.create(OTHER, AGENT)


@dataclass(frozen=True)
class Lived:
    """What a world left: its store and its registry."""

    store: Store
    registry: Registry


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")

    async def live() -> None:
        async with open_world(folder) as world:
            await _fill(world)

    asyncio.run(live())
    return folder


@pytest.fixture
def world(template: Path, tmp_path: Path) -> Iterator[Lived]:
    folder = tmp_path / "world"
    shutil.copytree(template, folder)
    registry = Registry.open(f"sqlite:///{folder / 'registry.db'}")
    yield Lived(Store.open(folder / "store", KeyRing.from_server_key(bytes(range(32)))), registry)
    registry.close()


def known(
    registry: Registry,
) -> dict[tuple[TenantId, SessionId], tuple[Session, list[SnapshotSummary]]]:
    """Return what the files must bring back of everything that is not deleted."""
    found = {}
    for tenant in (DEFAULT_TENANT, OTHER):
        for session in registry.list_sessions(tenant).sessions:
            snapshots = registry.list_snapshots(tenant, session.session_id)
            # What only a registry knows: how long things took, and whose return is waited for.
            timeless = [replace(one, seconds=0.0) for one in snapshots]
            newest = timeless[-1] if timeless else None
            plain = replace(session, snapshot=newest, updated_unix_s=0.0, away_unix_s=None)
            found[tenant, session.session_id] = (plain, timeless)
    return found


def test_an_empty_registry_gets_everything_back(world: Lived, registry: Registry) -> None:
    report = rebuild_registry(world.store, registry)
    assert known(registry) == known(world.registry)
    assert len(registry.list_snapshots(DEFAULT_TENANT, KEPT)) == 2
    assert registry.get_session(DEFAULT_TENANT, PINNED).ttl_s == 7.5
    assert report == RebuildReport(created=3, left_out=1, snapshots=2)
    with pytest.raises(SessionNotFoundError):
        registry.get_session(DEFAULT_TENANT, GONE)
    head_unix_s = max(h.updated_unix_s for h in world.store.read_heads(DEFAULT_TENANT, KEPT))
    assert registry.get_session(DEFAULT_TENANT, KEPT).updated_unix_s >= head_unix_s
    assert [e.kind for e in registry.list_events(DEFAULT_TENANT, KEPT)] == ["rebuilt"]


def test_once_more_changes_nothing(world: Lived, registry: Registry) -> None:
    rebuild_registry(world.store, registry)
    before = known(registry)
    used = registry.get_session(DEFAULT_TENANT, KEPT).updated_unix_s
    assert rebuild_registry(world.store, registry).unchanged == 3
    assert known(registry) == before
    assert registry.get_session(DEFAULT_TENANT, KEPT).updated_unix_s == used
    assert len(registry.list_events(DEFAULT_TENANT, KEPT)) == 1


def test_the_living_registry_is_right_already(world: Lived) -> None:
    before = [world.registry.get_session(DEFAULT_TENANT, one) for one in (KEPT, PINNED)]
    report = rebuild_registry(world.store, world.registry)
    assert (report.created, report.deleted) == (0, 0)
    after = [world.registry.get_session(DEFAULT_TENANT, one) for one in (KEPT, PINNED)]
    assert [replace(one, updated_unix_s=0) for one in after] == [
        replace(one, updated_unix_s=0) for one in before
    ]


def test_a_dry_run_writes_nothing(world: Lived, registry: Registry) -> None:
    assert rebuild_registry(world.store, registry, dry_run=True).created == 3
    assert known(registry) == {}


def test_an_old_copy_of_the_database_is_brought_up_to_date(
    world: Lived, registry: Registry
) -> None:
    """Another pin, a deletion, a lost and a new snapshot, a name that was used again."""
    record = world.store.read_session(DEFAULT_TENANT, KEPT)
    assert record is not None
    old = replace(
        a_session(KEPT, created_unix_s=record.created_unix_s, updated_unix_s=1.0, pinned=True),
        snapshot=a_summary(7),
    )
    registry.create_session(old)
    registry.create_session(a_session(GONE, created_unix_s=5.0))
    registry.create_session(a_session(PINNED, created_unix_s=5.0, snapshot=a_summary(1)))
    world.store.delete_snapshot(DEFAULT_TENANT, KEPT, 1)
    before_the_tombstone_counts = rebuild_registry(world.store, registry)
    assert (before_the_tombstone_counts.changed, before_the_tombstone_counts.deleted) == (2, 0)
    found = registry.get_session(DEFAULT_TENANT, KEPT)
    assert (found.pinned, found.model, found.idle_timeout_s) == (False, "smol", 60.0)
    assert found.snapshot
    assert [s.generation for s in registry.list_snapshots(DEFAULT_TENANT, KEPT)] == [2]
    assert registry.get_session(DEFAULT_TENANT, PINNED).snapshot is None
    assert registry.list_snapshots(DEFAULT_TENANT, PINNED) == []


def test_a_tombstone_deletes_once_nobody_can_be_creating(registry: Registry) -> None:
    registry.create_session(a_session(GONE, created_unix_s=5.0, snapshot=a_summary(1)))

    def restore(deleted_unix_s: float, now_unix_s: float) -> Restored:
        return registry.restore_deleted(DEFAULT_TENANT, GONE, deleted_unix_s, now_unix_s)

    assert restore(4.0, 1000.0) is Restored.UNCHANGED  # of an earlier session
    assert restore(6.0, 7.0) is Restored.UNCHANGED
    assert restore(6.0, 1000.0) is Restored.DELETED
    assert restore(6.0, 1000.0) is Restored.NOTHING
    with pytest.raises(SessionNotFoundError):
        registry.get_session(DEFAULT_TENANT, GONE)
    assert registry.list_snapshots(DEFAULT_TENANT, GONE) == []


def test_a_deletion_that_has_begun_is_not_undone(world: Lived, registry: Registry) -> None:
    rebuild_registry(world.store, registry)
    registry.mark_deleted(DEFAULT_TENANT, KEPT, time.time())
    assert rebuild_registry(world.store, registry).left_out == 2
    with pytest.raises(SessionNotFoundError):
        registry.get_session(DEFAULT_TENANT, KEPT)


def test_a_session_without_a_record_is_told_by_its_manifests(
    world: Lived, registry: Registry
) -> None:
    write_snapshot(world.store, SnapshotPlan(session=GUESSED, tenant=OTHER))
    assert rebuild_registry(world.store, registry).created == 4
    assert registry.get_session(OTHER, GUESSED).snapshot is not None


def test_what_retention_takes_meanwhile_does_not_come_back(registry: Registry) -> None:
    session, summary = a_session(), a_summary()
    registry.create_session(session)
    registry.record_snapshot(session.tenant, session.session_id, summary)
    witness = Witness(session, 0.0, (summary,), frozenset(), is_guess=False)  # read from files
    registry.forget_snapshots(session.tenant, session.session_id, [1], "snapshot_evicted")
    registry.restore_session(witness, NOW_UNIX_S)
    found = registry.get_session(session.tenant, session.session_id)
    assert (found.snapshot, found.lost_reason) == (None, "snapshot_evicted")


def test_what_cannot_be_read_is_named(world: Lived, registry: Registry) -> None:
    folder = _folder(world.store, KEPT)
    flip_byte(folder / "1.manifest", -1)
    flip_byte(_folder(world.store, PINNED) / "session.json", 70)
    report = rebuild_registry(world.store, registry)
    assert {one.where.rpartition("/")[2] for one in report.unreadable} == {
        "1.manifest",
        "session.json",
    }
    assert {one.code for one in report.unreadable} == {"snapshot_corrupt"}
    assert (DEFAULT_TENANT, KEPT) in {(one.tenant, one.session) for one in report.unreadable}
    assert [s.generation for s in registry.list_snapshots(DEFAULT_TENANT, KEPT)] == [2]
    with pytest.raises(SessionNotFoundError):  # it may have been a tombstone
        registry.get_session(DEFAULT_TENANT, PINNED)


def test_a_rebuild_that_is_cut_anywhere_can_be_repeated(
    world: Lived, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(3):
        with monkeypatch.context() as patched:
            _cut_before(step, patched)
            with pytest.raises(Crash):
                rebuild_registry(world.store, registry)
        assert len(known(registry)) == step
    rebuild_registry(world.store, registry)
    assert known(registry) == known(world.registry)


def _cut_before(step: int, patched: pytest.MonkeyPatch) -> None:
    """Let a rebuild die before its transaction number *step*."""
    restore, done = Registry.restore_session, [0]

    def cut(self: Registry, witness: Witness, now: float, *, dry_run: bool = False) -> Restored:
        if done[0] == step:
            raise Crash
        done[0] += 1
        return restore(self, witness, now, dry_run=dry_run)

    patched.setattr(Registry, "restore_session", cut)


def _folder(store: Store, session_id: SessionId) -> Path:
    names = (
        store.keys.tenant_name(DEFAULT_TENANT),
        store.keys.session_name(DEFAULT_TENANT, session_id),
    )
    return store.root.joinpath("sessions", *names)


_TIMES = st.floats(1, 100)
_GENERATIONS = st.frozensets(st.integers(1, 3))


@dataclass(frozen=True)
class Case:
    """What the registry and the files tell of one session; times are (created, updated)."""

    row: tuple[float, float]
    found: tuple[float, float]
    deleted_unix_s: float | None
    rows: frozenset[int]
    on_disk: frozenset[int]
    is_guess: bool


_CASES = st.builds(
    Case,
    st.tuples(_TIMES, _TIMES),
    st.tuples(_TIMES, _TIMES),
    st.none() | _TIMES,
    _GENERATIONS,
    _GENERATIONS,
    st.booleans(),
)


@settings(max_examples=30, deadline=None)
@given(case=_CASES)
def test_any_row_ends_where_a_second_rebuild_changes_nothing(case: Case, shared: Registry) -> None:
    session_id = a_session().session_id
    created, updated = case.row
    shared.create_session(a_session(session_id, created_unix_s=created, updated_unix_s=updated))
    for generation in sorted(case.rows):
        shared.record_snapshot(DEFAULT_TENANT, session_id, a_summary(generation))
    if case.deleted_unix_s is not None:
        shared.mark_deleted(DEFAULT_TENANT, session_id, case.deleted_unix_s)
    created, updated = case.found
    witness = Witness(
        session=a_session(session_id, created_unix_s=created, updated_unix_s=updated),
        used_unix_s=max(case.found),
        snapshots=tuple(a_summary(generation) for generation in sorted(case.on_disk)),
        vanished=case.rows - case.on_disk,
        is_guess=case.is_guess,
    )
    first = shared.restore_session(witness, 200.0)
    assert shared.restore_session(witness, 200.0) in {Restored.UNCHANGED, Restored.KEPT_DELETED}
    session = shared.get_session(DEFAULT_TENANT, session_id, include_deleted=True)
    there = {one.generation for one in shared.list_snapshots(DEFAULT_TENANT, session_id)}
    assert session.deleted == (first is Restored.KEPT_DELETED)
    assert (session.snapshot.generation if session.snapshot else 0) == max(there, default=0)
    if first is Restored.CHANGED:
        assert there == case.on_disk


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Iterator[Registry]:
    path = tmp_path_factory.mktemp("shared") / "registry.db"
    path.write_bytes(sqlite_template.read_bytes())
    registry = Registry.open(f"sqlite:///{path}")
    yield registry
    registry.close()
