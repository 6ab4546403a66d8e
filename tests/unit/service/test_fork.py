from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.errors import (
    ConflictError,
    OperationInProgressError,
    RegistryUnavailableError,
    SessionExistsError,
    SessionNotFoundError,
    SnapshotNotFoundError,
    StoreFullError,
)
from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.domain.session import OnEvicted, OperationKind, OperationStatus, SessionState
from sessiond.domain.snapshot import Origin
from sessiond.registry import Registry, upgrade
from sessiond.service.catalogue import Wanted
from sessiond.service.fork import ForkWish
from sessiond.service.rebuild import rebuild_registry
from sessiond.service.records import record_of
from sessiond.store.forks import fork_snapshot
from sessiond.testing.files import FaultyOps
from sessiond.testing.holds import LONG_S, Hold
from sessiond.testing.values import an_operation
from sessiond.testing.world import AGENT, PATIENT, World, open_world, problem, report, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sessiond.domain.session import Operation
    from sessiond.service.catalogue import View

pytestmark = pytest.mark.anyio

FORK, OTHER = SessionId("fork"), SessionId("other")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path, limits=PATIENT) as world:
        yield world


@pytest.fixture
async def suspended(world: World) -> World:
    """A world whose agent has a snapshot of 96 tokens."""
    world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    return world


async def begin(
    world: World,
    source: SessionId = AGENT,
    name: SessionId | None = FORK,
    generation: int | None = None,
    key: str = "",
) -> Operation:
    wish = ForkWish(name, generation)
    return await world.ended(await world.services.forker.fork(DEFAULT_TENANT, source, wish, key))


async def fork(world: World, source: SessionId = AGENT, name: SessionId = FORK) -> View:
    report(await begin(world, source, name))
    return await world.show(name)


def segment_bytes(world: World) -> dict[str, int]:
    found = (world.store.root / "segments").rglob("*.seg")
    return {path.name: path.stat().st_blocks for path in found}


def kinds(world: World, session_id: SessionId) -> list[str]:
    return [event.kind for event in world.registry.list_events(DEFAULT_TENANT, session_id)]


async def restored_tokens(world: World, session_id: SessionId) -> int:
    """Restart the engine and return what a resume brings back."""
    for engine in world.started:
        world.kill_engine(engine)
    world.start_engine()
    told = report(await world.resume(session_id))
    return int(told["tokens_restored"]) if told["outcome"] == "restored" else 0


async def test_a_fork_shares_everything_and_writes_no_kv(suspended: World) -> None:
    before = segment_bytes(suspended)
    view = await fork(suspended)
    snapshot = view.session.snapshot
    assert snapshot is not None
    assert view.state is SessionState.SUSPENDED
    assert view.session.forked_from == Origin(AGENT, 1)
    assert (snapshot.generation, snapshot.tokens_restorable) == (1, 96)
    assert (snapshot.new_bytes, snapshot.shared_bytes) == (0, snapshot.stored_bytes)
    assert segment_bytes(suspended) == before
    source = suspended.store.read_manifest(DEFAULT_TENANT, AGENT, 1)
    manifest = suspended.store.read_manifest(DEFAULT_TENANT, FORK, 1)
    assert manifest.chunks == source.chunks
    assert manifest.tokens == source.tokens


async def test_both_trails_tell_of_it(suspended: World) -> None:
    await fork(suspended)
    assert kinds(suspended, AGENT)[-1] == "forked"
    assert kinds(suspended, FORK) == ["forked"]
    (event,) = suspended.registry.list_events(DEFAULT_TENANT, FORK)
    assert (event.detail["source"], event.detail["source_generation"]) == (AGENT, 1)
    assert (event.detail["fork"], event.detail["tokens_restorable"]) == (FORK, 96)


async def test_it_inherits_how_it_is_looked_after_but_no_pin(world: World) -> None:
    world.start_engine()
    await world.create(
        model="smol", idle_timeout_s=7.0, ttl_s=8.0, pinned=True, on_evicted=OnEvicted.SKIP
    )
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    forked = (await fork(world)).session
    source = (await world.show()).session
    alike = ("tenant", "model", "idle_timeout_s", "ttl_s", "on_evicted")
    assert [getattr(forked, name) for name in alike] == [getattr(source, name) for name in alike]
    assert (source.pinned, forked.pinned) == (True, False)
    record = world.store.read_session(DEFAULT_TENANT, FORK)
    assert record == record_of(replace(forked, updated_unix_s=forked.created_unix_s))


@pytest.mark.parametrize("gone", [AGENT, FORK])
async def test_deleting_one_leaves_the_other_whole(suspended: World, gone: SessionId) -> None:
    await fork(suspended)
    left = FORK if gone == AGENT else AGENT
    report(await suspended.delete(gone))
    await suspended.services.retention.run(full=True)
    assert suspended.store.verify().is_clean
    assert await restored_tokens(suspended, left) == 96
    report(await suspended.delete(left))
    assert segment_bytes(suspended) == {}


@pytest.mark.parametrize("gone", [AGENT, FORK])
async def test_retention_of_one_leaves_the_other_whole(suspended: World, gone: SessionId) -> None:
    await fork(suspended)
    await suspended.services.catalogue.change(DEFAULT_TENANT, gone, {"ttl_s": 60.0})
    suspended.pass_time(3600)
    assert (await suspended.services.retention.run(full=True)).expired == 1
    assert (await suspended.show(gone)).session.snapshot is None
    assert await restored_tokens(suspended, FORK if gone == AGENT else AGENT) == 96


async def test_a_newer_snapshot_of_the_source_leaves_the_fork_whole(suspended: World) -> None:
    await fork(suspended)
    for tokens in (200, 230):  # a conversation that shares nothing with the snapshot
        await suspended.turn(AGENT, text(tokens, seed=9))
    report(await suspended.suspend())
    suspended.pass_time(3600)  # no ticket names generation 1 any more
    await suspended.services.retention.run(full=True)
    assert suspended.store.generations(DEFAULT_TENANT, AGENT) == [2]
    assert await restored_tokens(suspended, FORK) == 96


async def test_both_go_their_own_ways(suspended: World) -> None:
    await fork(suspended)
    assert await restored_tokens(suspended, FORK) == 96
    await suspended.turn(FORK, text(150))
    told = report(await suspended.suspend(FORK))["snapshot"]
    assert (told["generation"], told["parent_generation"]) == (2, 1)
    assert 0 < told["new_bytes"] < told["stored_bytes"]
    assert (await suspended.show(FORK)).session.forked_from == Origin(AGENT, 1)
    source = (await suspended.show(AGENT)).session
    assert (source.snapshot.generation if source.snapshot else 0) == 1
    report(await suspended.delete(AGENT))
    assert await restored_tokens(suspended, FORK) == 144


async def test_a_fork_can_be_forked(suspended: World) -> None:
    await fork(suspended)
    view = await fork(suspended, FORK, OTHER)
    assert view.session.forked_from == Origin(FORK, 1)
    for gone in (AGENT, FORK):
        report(await suspended.delete(gone))
    assert await restored_tokens(suspended, OTHER) == 96


async def test_shared_bytes_count_once(suspended: World) -> None:
    usage = suspended.store.upkeep.usage()
    (before,) = usage.by_tenant.values()
    alone = usage.exclusive_bytes[DEFAULT_TENANT, AGENT]
    for name in ("b", "c", "d"):
        await fork(suspended, AGENT, SessionId(name))
    usage = suspended.store.upkeep.usage()
    (after,) = usage.by_tenant.values()
    small = 4 * 4096  # a manifest, a session file and two folders
    assert after - before <= 3 * small
    assert alone > small
    assert all(size <= small for size in usage.exclusive_bytes.values())


async def test_any_generation_may_be_forked(tmp_path: Path) -> None:
    async with open_world(tmp_path, limits=replace(PATIENT, keep_generations=2)) as world:
        world.start_engine()
        await world.create()
        for tokens in (100, 200):
            await world.turn(AGENT, text(tokens))
            report(await world.suspend())
        report(await begin(world, generation=1))
        report(await begin(world, name=OTHER))
        found = [(await world.show(name)).session for name in (FORK, OTHER)]
        assert [one.forked_from for one in found] == [Origin(AGENT, 1), Origin(AGENT, 2)]
        restorable = [one.snapshot.tokens_restorable for one in found if one.snapshot]
        assert restorable == [96, 192]
        with pytest.raises(SnapshotNotFoundError, match="generation 3"):
            await begin(world, name=SessionId("no"), generation=3)


async def test_a_session_without_a_snapshot_is_not_forked(world: World) -> None:
    world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    with pytest.raises(SnapshotNotFoundError, match="suspend it"):
        await begin(world)
    with pytest.raises(SessionNotFoundError):
        await world.show(FORK)


async def test_who_is_not_there_is_not_forked(suspended: World) -> None:
    with pytest.raises(SessionNotFoundError):
        await begin(suspended, OTHER)
    report(await suspended.delete(AGENT))
    with pytest.raises(SessionNotFoundError):
        await begin(suspended)


async def test_an_id_that_is_taken_is_refused(suspended: World) -> None:
    with pytest.raises(SessionExistsError):
        await begin(suspended, name=AGENT)
    await fork(suspended)
    with pytest.raises(SessionExistsError):
        await begin(suspended)
    assert await restored_tokens(suspended, FORK) == 96


async def test_snapshots_that_the_registry_lacks_are_not_replaced(suspended: World) -> None:
    source = suspended.store.read_manifest(DEFAULT_TENANT, AGENT, 1)
    fork_snapshot(suspended.store, source, FORK)
    with pytest.raises(SessionExistsError, match="take them over"):
        await begin(suspended)
    assert (await suspended.create(FORK)).session.session_id == FORK
    assert await restored_tokens(suspended, FORK) == 96


async def test_the_id_of_a_deleted_session_begins_anew(suspended: World) -> None:
    await suspended.create(FORK)
    await suspended.turn(FORK, text(300, seed=5))
    report(await suspended.suspend(FORK))
    report(await suspended.delete(FORK))
    await fork(suspended)
    assert suspended.store.generations(DEFAULT_TENANT, FORK) == [1]
    assert await restored_tokens(suspended, FORK) == 96


async def test_a_repeated_call_makes_one_fork(suspended: World) -> None:
    first = await begin(suspended, name=None, key="k")
    again = await begin(suspended, name=None, key="k")
    assert again.operation_id == first.operation_id
    assert again.session_id == first.session_id
    page = await suspended.services.catalogue.page(DEFAULT_TENANT, Wanted(), None, 10)
    assert len(page.views) == 2
    with pytest.raises(ConflictError):
        await begin(suspended, name=OTHER, key="k")


async def test_a_key_is_free_again_after_a_refusal(world: World) -> None:
    world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    with pytest.raises(SnapshotNotFoundError):
        await begin(world, key="k")
    report(await world.suspend())
    report(await begin(world, key="k"))


async def test_the_source_may_be_at_work(suspended: World) -> None:
    (engine,) = suspended.started
    await suspended.turn(AGENT, text(200))
    engine.faults.gates["suspend"] = asyncio.Event()
    running = await suspended.services.lifecycle.suspend(DEFAULT_TENANT, AGENT)
    view = await fork(suspended)
    assert view.session.forked_from == Origin(AGENT, 1)
    engine.faults.gates["suspend"].set()
    told = report(await suspended.ended(running))
    assert told["snapshot"]["tokens_restorable"] == 192
    assert await restored_tokens(suspended, FORK) == 96


async def test_a_source_that_goes_away_meanwhile_fails_the_fork_and_leaves_nothing(
    suspended: World,
) -> None:
    source = suspended.store.read_manifest(DEFAULT_TENANT, AGENT, 1)
    report(await suspended.delete(AGENT))
    with pytest.raises(SnapshotNotFoundError):
        fork_snapshot(suspended.store, source, FORK)
    assert suspended.store.generations(DEFAULT_TENANT, FORK) == []


async def test_a_fork_that_fails_leaves_nothing_and_may_be_repeated(tmp_path: Path) -> None:
    ops = FaultyOps()
    async with open_world(tmp_path, limits=PATIENT, ops=ops) as world:
        world.start_engine()
        await world.create()
        await world.turn(AGENT, text(100))
        report(await world.suspend())
        ops.fail("link", errno.EIO, name_part="manifest")
        assert problem(await begin(world)) == "store_error"
        with pytest.raises(SessionNotFoundError):
            await world.show(FORK)
        await fork(world)
        assert await restored_tokens(world, FORK) == 96


async def test_what_fails_after_the_commit_is_no_failure_of_the_fork(
    suspended: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: object) -> None:
        raise RegistryUnavailableError

    with monkeypatch.context() as patched:
        patched.setattr(suspended.registry, "record_snapshot", down)
        report(await begin(suspended))
    snapshot = (await suspended.show(FORK)).session.snapshot
    assert (snapshot.tokens_restorable if snapshot else 0) == 96


def abandoned(world: World) -> None:
    """Begin a fork as a daemon does that dies at once."""
    source = world.registry.get_session(DEFAULT_TENANT, AGENT)
    now = world.services.context.now()
    new = replace(
        source,
        session_id=FORK,
        created_unix_s=now,
        updated_unix_s=now,
        snapshot=None,
        forked_from=Origin(AGENT, 1),
    )
    begun = an_operation(
        new, kind=OperationKind.FORK, created_unix_s=now, lease_until_unix_s=now + 1
    )
    world.registry.begin_operation(begun, new)
    world.store.write_session(record_of(new), create=True)


async def test_recovery_removes_a_fork_that_was_not_committed(suspended: World) -> None:
    abandoned(suspended)
    suspended.pass_time(2)
    assert await suspended.services.recovery.recover() == 1
    with pytest.raises(SessionNotFoundError):
        await suspended.show(FORK)
    await fork(suspended)  # the name is free again


async def test_recovery_keeps_a_fork_that_was_committed(suspended: World) -> None:
    abandoned(suspended)
    source = suspended.store.read_manifest(DEFAULT_TENANT, AGENT, 1)
    fork_snapshot(suspended.store, source, FORK)
    suspended.pass_time(2)
    assert await suspended.services.recovery.recover() == 1
    assert (await suspended.show(FORK)).state is SessionState.SUSPENDED
    assert kinds(suspended, AGENT)[-1] == "forked"
    assert kinds(suspended, FORK) == ["forked", "recovered"]
    assert await restored_tokens(suspended, FORK) == 96


async def test_recovery_keeps_a_fork_whose_snapshot_cannot_be_read_for_now(
    suspended: World,
) -> None:
    abandoned(suspended)
    source = suspended.store.read_manifest(DEFAULT_TENANT, AGENT, 1)
    before = set(suspended.store.root.rglob("*.manifest"))
    fork_snapshot(suspended.store, source, FORK)
    (path,) = set(suspended.store.root.rglob("*.manifest")) - before
    whole = path.read_bytes()
    path.write_bytes(b"")
    suspended.pass_time(2)
    recover = suspended.services.recovery.recover
    assert (await recover(), await recover()) == (1, 0)
    assert suspended.store.generations(DEFAULT_TENANT, FORK) == [1]
    path.write_bytes(whole)
    assert await recover() == 0
    assert (await suspended.show(FORK)).state is SessionState.SUSPENDED
    assert kinds(suspended, AGENT)[-1] == "forked"
    assert kinds(suspended, FORK) == ["recovered", "forked"]
    assert await restored_tokens(suspended, FORK) == 96


async def held_fork(world: World, hold: Hold) -> Operation:
    """Begin a fork and wait until it is held."""
    operation = await world.services.forker.fork(DEFAULT_TENANT, AGENT, ForkWish(FORK))
    await hold.arrived()
    return operation


async def until_idle(world: World) -> None:
    async with asyncio.timeout(LONG_S):
        while world.services.operations.is_busy:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("step", ["write_session", "commit_manifest"])
async def test_a_fork_whose_lease_was_lost_makes_nothing_any_more(
    suspended: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    hold = Hold(suspended.store, monkeypatch, step)
    operation = await held_fork(suspended, hold)
    suspended.pass_time(2 * PATIENT.lease_s)
    assert await suspended.services.recovery.recover() == 1
    await hold.go_on()
    await until_idle(suspended)
    assert problem(await suspended.ended(operation)) == "lease_expired"
    with pytest.raises(SessionNotFoundError):
        await suspended.show(FORK)
    record = suspended.store.read_session(DEFAULT_TENANT, FORK)
    assert record is not None
    assert record.is_tombstone
    assert suspended.store.generations(DEFAULT_TENANT, FORK) == []
    await fork(suspended)  # the name is free again


async def test_a_fork_that_was_made_though_its_lease_was_lost_has_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_world(tmp_path, limits=replace(PATIENT, lease_s=0.3)) as world:
        world.start_engine()
        await world.create()
        await world.turn(AGENT, text(100))
        report(await world.suspend())
        hold = Hold(world.store, monkeypatch, "commit_manifest")
        operation = await held_fork(world, hold)
        world.pass_time(60)
        await until_idle(world)  # its daemon has given it up; its thread goes on
        await hold.go_on()
        running = await world.services.operations.get(DEFAULT_TENANT, operation.operation_id)
        assert running.status is OperationStatus.RUNNING  # nobody knows yet
        assert await world.services.recovery.recover() == 1
        told = report(await world.services.operations.get(DEFAULT_TENANT, operation.operation_id))
        assert (told["fork"], told["tokens_restorable"]) == (FORK, 96)
        assert kinds(world, AGENT)[-1] == "forked"
        assert await restored_tokens(world, FORK) == 96


async def test_a_fork_that_fails_late_undoes_nothing_of_others(
    suspended: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = Hold(suspended.store, monkeypatch, "commit_manifest")
    await held_fork(suspended, hold)
    suspended.pass_time(2 * PATIENT.lease_s)
    assert await suspended.services.recovery.recover() == 1
    await suspended.create(FORK)  # of the same name
    hold.error = StoreFullError()
    await hold.go_on()
    await until_idle(suspended)
    assert (await suspended.show(FORK)).session.forked_from is None
    record = suspended.store.read_session(DEFAULT_TENANT, FORK)
    assert record is not None
    assert not record.is_tombstone


async def test_recovery_leaves_the_next_session_of_the_name_alone(suspended: World) -> None:
    abandoned(suspended)
    suspended.pass_time(2)
    registry, now = suspended.registry, suspended.services.context.now
    (expired,) = registry.expire_operations(now())
    report(await suspended.delete(FORK))  # before it is settled
    await suspended.create(FORK)
    await suspended.services.recovery._settle(expired)
    assert (await suspended.show(FORK)).session.forked_from is None


async def test_nothing_but_a_delete_begins_before_an_abandoned_fork_is_settled(
    suspended: World,
) -> None:
    abandoned(suspended)
    await suspended.turn(FORK, text(100))
    suspended.pass_time(2)
    with pytest.raises(OperationInProgressError):
        await suspended.suspend(FORK)
    assert await suspended.services.recovery.recover() == 1  # as before
    with pytest.raises(SessionNotFoundError):
        await suspended.show(FORK)
    abandoned(suspended)
    suspended.pass_time(2)
    report(await suspended.delete(FORK))
    await fork(suspended)


async def test_the_files_alone_tell_of_a_fork(suspended: World, tmp_path: Path) -> None:
    session = (await fork(suspended)).session
    report(await suspended.delete(AGENT))
    url = f"sqlite:///{tmp_path / 'new.db'}"
    upgrade(url)
    registry = Registry.open(url)
    try:
        rebuild_registry(suspended.store, registry)
        found = registry.get_session(DEFAULT_TENANT, FORK)
    finally:
        registry.close()
    assert found.forked_from == session.forked_from
    assert found.snapshot is not None
    assert found.snapshot.new_bytes == 0


async def test_the_operation_tells_what_was_shared(suspended: World) -> None:
    operation = await begin(suspended)
    assert (operation.kind, operation.status) == (OperationKind.FORK, OperationStatus.SUCCEEDED)
    told = report(operation)
    assert (told["source"], told["fork"], told["tokens_restorable"]) == (AGENT, FORK, 96)


async def test_a_quota_takes_both_of_a_source_and_its_fork_or_neither(world: World) -> None:
    """Half of two that share everything frees nothing."""
    world.start_engine()
    await world.create()
    await world.turn(AGENT, text(300))
    report(await world.suspend())
    await fork(world)
    await world.create(OTHER)
    await world.turn(OTHER, text(300, seed=9))
    (used_bytes,) = world.store.upkeep.usage().by_tenant.values()
    # The suspend asks for 173,264 bytes; the two have 80,000 together, and almost none alone.
    limits = replace(world.services.context.limits, quota_tenant_bytes=used_bytes + 110_000)
    object.__setattr__(world.services.context, "limits", limits)
    report(await world.suspend(OTHER))
    has_snapshot = {
        name: bool((await world.show(name)).session.snapshot) for name in (AGENT, FORK, OTHER)
    }
    assert has_snapshot == {AGENT: False, FORK: False, OTHER: True}
    lost = (await world.show(FORK)).session.lost_reason
    assert lost == "snapshot_evicted"
