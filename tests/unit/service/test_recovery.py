from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.engines import SharedFile
from sessiond.domain.errors import SessionNotFoundError
from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.domain.session import OperationKind, SessionState
from sessiond.testing.values import an_operation
from sessiond.testing.world import AGENT, World, report, text

if TYPE_CHECKING:
    from sessiond.domain.session import Operation

pytestmark = pytest.mark.anyio


async def abandoned(world: World, kind: OperationKind) -> Operation:
    """Begin an operation as a daemon does that dies at once."""
    session = world.registry.get_session(DEFAULT_TENANT, AGENT)
    now = world.services.context.now()
    operation = an_operation(session, kind=kind, created_unix_s=now, lease_until_unix_s=now + 1)
    world.registry.begin_operation(operation)
    world.pass_time(2)
    return operation


async def test_a_committed_suspend_is_found_in_the_store(world: World) -> None:
    world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    manifest = world.store.read_manifest(DEFAULT_TENANT, AGENT, 1)
    await abandoned(world, OperationKind.SUSPEND)
    world.store.commit_manifest(replace(manifest, generation=2, parent_generation=1))
    assert await world.services.recovery.recover() == 1
    assert [s.generation for s in world.registry.list_snapshots(DEFAULT_TENANT, AGENT)] == [1, 2]
    event = world.registry.list_events(DEFAULT_TENANT, AGENT)[-1]
    assert event.kind == "recovered"
    assert event.detail["snapshots_found"] == 1
    assert await world.services.recovery.recover() == 0


async def test_an_uncommitted_suspend_leaves_the_session_active(world: World) -> None:
    world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    await abandoned(world, OperationKind.SUSPEND)
    assert await world.services.recovery.recover() == 1
    assert (await world.show()).state is SessionState.ACTIVE
    assert report(await world.suspend())["snapshot"]["generation"] == 1


async def test_an_interrupted_delete_is_finished(world: World) -> None:
    world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    await abandoned(world, OperationKind.DELETE)
    assert await world.services.recovery.recover() == 1
    with pytest.raises(SessionNotFoundError):
        await world.show()
    assert world.store.generations(DEFAULT_TENANT, AGENT) == []
    assert list(world.store.root.rglob("*.seg")) == []


async def test_an_old_delete_does_not_hit_a_new_session(world: World) -> None:
    await world.create()
    await abandoned(world, OperationKind.DELETE)
    world.registry.mark_deleted(DEFAULT_TENANT, AGENT, world.services.context.now())
    await world.create()
    await world.services.recovery.recover()
    assert (await world.show()).state is SessionState.COLD


async def test_a_running_operation_is_left_alone(world: World) -> None:
    await world.create()
    session = world.registry.get_session(DEFAULT_TENANT, AGENT)
    now = world.services.context.now()
    world.registry.begin_operation(
        an_operation(session, created_unix_s=now, lease_until_unix_s=now + 60)
    )
    assert await world.services.recovery.recover() == 0


async def test_what_dead_engines_left_is_removed(world: World) -> None:
    engine = world.start_engine()
    world.kill_engine(engine)
    await world.services.recovery.tidy()
    assert list((world.store.root / "engines").iterdir()) == []


async def test_the_record_of_shared_memory_is_left_to_the_next_engine(world: World) -> None:
    engine = world.start_engine()
    engine.update(shared_files=(SharedFile("x", 7),))
    folder = world.store.root / "engines"
    left = {path.name: path.read_bytes() for path in folder.iterdir()}
    world.kill_engine(engine)
    for name, data in left.items():
        (folder / name).write_bytes(data)
    await world.services.recovery.tidy()
    assert [dead.engine_id for dead in world.store.dead_engines()] == [engine.info.engine_id]
