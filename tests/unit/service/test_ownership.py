"""Who stalls in the middle of a change does not make it over a session that has the id since."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sessiond.domain.errors import SessionExistsError, SessionNotFoundError
from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.domain.retention import RemovalCause
from sessiond.domain.session import OperationKind, OperationStatus
from sessiond.domain.tickets import CLOCK_SLACK_S
from sessiond.service.operations import Result, claim
from sessiond.service.removal import Remover, wish_of
from sessiond.testing.holds import Hold
from sessiond.testing.world import AGENT, PATIENT, World, open_world, report, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

TTL_S = 1000.0


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path, limits=replace(PATIENT, ttl_s=TTL_S)) as world:
        world.start_engine()
        yield world


async def stored(world: World) -> None:
    """Create a session that has a snapshot."""
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())


async def assert_whole(world: World) -> None:
    """Find the session as it was created, with its snapshot."""
    session = (await world.show()).session
    record = world.store.read_session(DEFAULT_TENANT, AGENT)
    assert record is not None
    assert not record.is_tombstone
    assert record.created_unix_s == session.created_unix_s
    assert world.store.generations(DEFAULT_TENANT, AGENT) == [1]


@pytest.mark.parametrize("settled", [True, False])
async def test_a_delete_that_froze_spares_the_next_session(
    world: World, monkeypatch: pytest.MonkeyPatch, *, settled: bool
) -> None:
    await stored(world)
    hold = Hold(world.store, monkeypatch, "delete_session")
    operation = await world.services.lifecycle.delete(DEFAULT_TENANT, AGENT)
    await hold.arrived()
    world.pass_time(2 * PATIENT.lease_s)
    if settled:
        assert await world.services.recovery.recover() == 1
    await stored(world)  # of the same id
    await hold.go_on()
    assert (await world.ended(operation)).status is OperationStatus.FAILED
    await assert_whole(world)


@pytest.mark.parametrize("step", ["delete_session", "write_session"])
async def test_a_creation_that_froze_spares_the_next_session(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    await world.create()
    report(await world.delete())
    hold = Hold(world.store, monkeypatch, step)
    frozen = asyncio.create_task(world.create())
    await hold.arrived()
    report(await world.delete())
    await stored(world)
    await hold.go_on()
    with pytest.raises(SessionExistsError):
        await frozen
    await assert_whole(world)


async def test_a_change_that_froze_is_none_of_the_next_session(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.create()
    hold = Hold(world.store, monkeypatch, "write_session")
    change = world.services.catalogue.change(DEFAULT_TENANT, AGENT, {"pinned": True})
    frozen = asyncio.create_task(change)
    await hold.arrived()
    report(await world.delete())
    with pytest.raises(SessionNotFoundError):
        await world.show()
    await stored(world)
    await hold.go_on()
    with pytest.raises(SessionExistsError):
        await frozen
    await assert_whole(world)


async def kinds(world: World) -> list[str]:
    """Return what the session's trail tells."""
    events = await world.services.catalogue.events(DEFAULT_TENANT, AGENT, 0, 100)
    return [event.kind for event in events]


async def replaced(world: World) -> list[str]:
    """Let the session's id be another one's; return what its trail tells then."""
    report(await world.delete())
    await stored(world)
    return await kinds(world)


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("step", ["session", "is_locked", "forget_snapshots", "release"])
async def test_an_expiry_that_froze_spares_the_next_session(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str, *, settled: bool
) -> None:
    await stored(world)
    world.pass_time(2 * TTL_S)
    part = world.registry if step == "forget_snapshots" else world.store.upkeep
    hold = Hold(part, monkeypatch, step)
    frozen = asyncio.create_task(world.services.retention.run())
    await hold.arrived()
    world.pass_time(2 * PATIENT.lease_s)
    if settled:
        assert await world.services.recovery.recover() == 1
    trail = await replaced(world)
    await hold.go_on()
    assert (await frozen).expired == 0
    assert world.registry.get_session(DEFAULT_TENANT, AGENT).snapshot  # before anybody looks
    await assert_whole(world)
    assert await kinds(world) == trail


async def test_an_expiry_that_is_late_spares_the_next_session(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It chose the session, but had not begun with it: it holds the next one when it does."""
    await stored(world)
    world.pass_time(2 * TTL_S)
    hold = Hold(world.registry, monkeypatch, "begin_operation")
    late = asyncio.create_task(world.services.retention.run())
    await hold.arrived()
    trail = await replaced(world)
    await hold.go_on()
    assert (await late).expired == 0
    await assert_whole(world)
    assert await kinds(world) == trail


async def test_a_suspend_that_froze_prunes_nothing_of_the_next_session(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stored(world)
    await world.turn(AGENT, text(150))
    world.pass_time(world.services.context.limits.turn_ticket_s + 2 * CLOCK_SLACK_S)
    hold = Hold(world.store.upkeep, monkeypatch, "release")
    await world.services.lifecycle.suspend(DEFAULT_TENANT, AGENT)
    await hold.arrived()
    world.pass_time(2 * PATIENT.lease_s)
    await replaced(world)
    await hold.go_on()
    await assert_whole(world)
    assert "snapshot_pruned" not in await kinds(world)


async def test_a_reader_beside_an_expiry_records_nothing_that_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stored(world)
    await world.turn(AGENT, text(150))
    report(await world.suspend())  # with two generations, a reader asks which ones are known
    world.pass_time(2 * TTL_S)
    removal = Hold(world.store.upkeep, monkeypatch, "release")
    expiry = asyncio.create_task(world.services.retention.run())
    await removal.arrived()
    record = Hold(world.registry, monkeypatch, "record_snapshot")
    reader = asyncio.create_task(world.show())
    await record.arrived()
    await removal.go_on()
    assert (await expiry).expired == 1
    await record.go_on()
    await reader
    session = world.registry.get_session(DEFAULT_TENANT, AGENT)
    assert session.snapshot is None
    assert session.lost_reason == "snapshot_expired"


async def test_a_reader_of_a_deleted_session_records_nothing_of_it_for_the_next_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stored(world)
    manifest = world.store.read_manifest(DEFAULT_TENANT, AGENT, 1)
    world.store.commit_manifest(replace(manifest, generation=2, parent_generation=1))
    record = Hold(world.registry, monkeypatch, "record_snapshot")
    reader = asyncio.create_task(world.show())
    await record.arrived()
    report(await world.delete())
    await stored(world)
    await record.go_on()
    await reader
    await assert_whole(world)
    snapshots = world.registry.list_snapshots(DEFAULT_TENANT, AGENT)
    assert [snapshot.generation for snapshot in snapshots] == [1]


@pytest.mark.parametrize("kind", [OperationKind.SUSPEND, OperationKind.RESUME])
async def test_what_was_planned_for_a_deleted_session_does_not_begin_for_the_next_one(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: OperationKind
) -> None:
    await stored(world)
    lifecycle = world.services.lifecycle
    call = lifecycle.suspend if kind is OperationKind.SUSPEND else lifecycle.resume
    hold = Hold(world.registry, monkeypatch, "begin_operation")
    late = asyncio.create_task(call(DEFAULT_TENANT, AGENT))
    await hold.arrived()
    report(await world.delete())
    await world.create()
    await hold.go_on()
    with pytest.raises(SessionNotFoundError):
        await late
    session = (await world.show()).session
    assert (session.snapshot, session.last_outcome) == (None, "")
    assert world.store.generations(DEFAULT_TENANT, AGENT) == []


async def test_an_eviction_spares_what_a_creation_has_taken_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stored(world)
    with world.registry._engine.begin() as connection:  # a registry that lost the session
        for table in ("events", "operations", "snapshots", "sessions"):
            connection.exec_driver_sql(f"DELETE FROM {table}")
    key = (DEFAULT_TENANT, AGENT)
    wish = wish_of(key, world.store.upkeep.session(*key), [1], RemovalCause.QUOTA_TOTAL)
    hold = Hold(world.store.upkeep, monkeypatch, "release")
    remover = Remover(world.services.context)
    frozen = asyncio.create_task(asyncio.to_thread(remover.take, wish))
    await hold.arrived()
    await world.create()
    await hold.go_on()
    assert await frozen is None
    await assert_whole(world)


async def test_who_gives_up_a_start_leaves_no_operation_that_nobody_drives(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stored(world)
    done = asyncio.Event()

    async def work() -> Result:
        done.set()
        return {}

    begun, real = asyncio.Event(), world.registry.begin_operation
    loop = asyncio.get_running_loop()

    def begin(*arguments: Any) -> None:  # noqa: ANN401 - passed on
        real(*arguments)
        loop.call_soon_threadsafe(begun.set)

    monkeypatch.setattr(world.registry, "begin_operation", begin)
    wanted = claim(DEFAULT_TENANT, AGENT, OperationKind.SUSPEND)
    caller = asyncio.create_task(world.services.operations.start(wanted, work))
    await begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await asyncio.wait_for(done.wait(), 60)
