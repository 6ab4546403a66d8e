from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from sessiond.domain.errors import (
    ConflictError,
    OperationInProgressError,
    OperationNotFoundError,
    StoreFullError,
    TurnInFlightError,
)
from sessiond.domain.ids import DEFAULT_TENANT, OperationId, SessionId, TenantId
from sessiond.domain.session import OperationKind, OperationStatus
from sessiond.service.operations import Result, claim
from sessiond.testing.values import an_operation
from sessiond.testing.world import AGENT, QUICK, World, open_world, problem, report, text

if TYPE_CHECKING:
    from pathlib import Path

    from sessiond.domain.session import Operation

pytestmark = pytest.mark.anyio


class Work:
    """Work that ends when it is told to."""

    def __init__(self) -> None:
        self.begun = 0
        self.go_on = asyncio.Event()
        self.cancelled = False

    async def __call__(self) -> Result:
        self.begun += 1
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return {"done": True}


async def start(world: World, work: Work, kind: OperationKind = OperationKind.SUSPEND) -> Operation:
    return await world.services.operations.start(claim(DEFAULT_TENANT, AGENT, kind), work)


async def test_it_runs_on_while_nobody_waits(world: World) -> None:
    await world.create()
    work = Work()
    operation = await start(world, work)
    operation = await world.services.operations.wait(operation, 0.01)
    assert operation.status is OperationStatus.RUNNING
    work.go_on.set()
    assert report(await world.ended(operation)) == {"done": True}


async def test_the_same_call_joins_the_running_one(world: World) -> None:
    await world.create()
    work, other = Work(), Work()
    first = await start(world, work)
    second = await start(world, other)
    assert second.operation_id == first.operation_id
    work.go_on.set()
    assert report(await world.ended(second)) == {"done": True}
    assert (work.begun, other.begun) == (1, 0)


async def test_another_call_is_refused(world: World) -> None:
    await world.create()
    work = Work()
    await start(world, work)
    with pytest.raises(OperationInProgressError):
        await start(world, Work(), OperationKind.RESUME)
    work.go_on.set()


@pytest.mark.parametrize("kind", [OperationKind.SUSPEND, OperationKind.RESUME])
async def test_what_ends_while_it_is_looked_at_is_not_in_the_way(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: OperationKind
) -> None:
    await world.create()
    work, loop = Work(), asyncio.get_running_loop()
    first, begin = await start(world, work), world.registry.begin_operation

    def late(*given: Any) -> None:  # noqa: ANN401 - passed on
        try:
            begin(*given)
        except OperationInProgressError:
            loop.call_soon_threadsafe(work.go_on.set)
            asyncio.run_coroutine_threadsafe(world.ended(first), loop).result(60.0)
            raise

    monkeypatch.setattr(world.registry, "begin_operation", late)
    other = Work()
    other.go_on.set()
    second = await start(world, other, kind)
    assert second.operation_id != first.operation_id
    assert report(await world.ended(second)) == {"done": True}


async def test_one_that_another_daemon_runs_is_watched(world: World) -> None:
    view = await world.create()
    now = world.services.context.now()
    theirs = an_operation(view.session, created_unix_s=now, lease_until_unix_s=now + 60)
    world.registry.begin_operation(theirs)
    joined = await start(world, Work())
    assert joined.operation_id == theirs.operation_id
    waiting = asyncio.create_task(world.ended(joined))
    await asyncio.sleep(0.02)
    world.registry.finish_operation(
        theirs.operation_id, "a", OperationStatus.SUCCEEDED, {"theirs": 1}, now
    )
    assert report(await waiting) == {"theirs": 1}


async def test_the_lease_is_kept_while_it_runs(tmp_path: Path) -> None:
    async with open_world(tmp_path, limits=replace(QUICK, lease_s=3.0)) as world:
        await world.create()
        work = Work()
        operation = await start(world, work)
        now_held = operation
        async with asyncio.timeout(20.0):
            while now_held.lease_until_unix_s <= operation.lease_until_unix_s:
                await asyncio.sleep(0.01)
                now_held = await world.services.operations.get(
                    DEFAULT_TENANT, operation.operation_id
                )
        work.go_on.set()
        await world.ended(operation)


async def test_a_lost_lease_ends_the_work(tmp_path: Path) -> None:
    async with open_world(tmp_path, limits=replace(QUICK, lease_s=3.0)) as world:
        await world.create()
        work = Work()
        operation = await start(world, work)
        world.registry.expire_operations(operation.lease_until_unix_s + 1)
        assert problem(await world.ended(operation)) == "lease_expired"
        assert work.cancelled


async def test_an_error_is_its_result(world: World) -> None:
    await world.create()

    async def fails() -> Result:
        raise StoreFullError

    wanted = claim(DEFAULT_TENANT, AGENT, OperationKind.SUSPEND)
    operation = await world.ended(await world.services.operations.start(wanted, fails))
    assert problem(operation) == "store_full"
    assert operation.result is not None
    assert operation.result["retryable"] is True


async def test_a_bug_ends_it_too(world: World) -> None:
    await world.create()

    async def fails() -> Result:
        raise ZeroDivisionError("/secret/path")

    wanted = claim(DEFAULT_TENANT, AGENT, OperationKind.SUSPEND)
    operation = await world.ended(await world.services.operations.start(wanted, fails))
    assert problem(operation) == "internal_error"
    assert "secret" not in str(operation.result)


async def test_what_is_late_at_the_end_is_left_to_recovery(world: World) -> None:
    await world.create()
    work = Work()
    operation = await start(world, work)
    await asyncio.sleep(0)
    await world.services.operations.drain(0.01)
    assert work.cancelled
    left = await world.services.operations.get(DEFAULT_TENANT, operation.operation_id)
    assert left.status is OperationStatus.RUNNING


async def test_another_tenant_sees_nothing(world: World) -> None:
    await world.create()
    work = Work()
    operation = await start(world, work)
    with pytest.raises(OperationNotFoundError):
        await world.services.operations.get(TenantId("other"), operation.operation_id)
    with pytest.raises(OperationNotFoundError):
        await world.services.operations.get(DEFAULT_TENANT, OperationId("op-0"))
    work.go_on.set()


async def test_two_resumes_at_once_restore_once(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    world.kill_engine(engine)
    engine = world.start_engine()
    gate = engine.faults.gates["resume"] = asyncio.Event()
    resume = world.services.lifecycle.resume
    first = await resume(DEFAULT_TENANT, AGENT)
    second = await resume(DEFAULT_TENANT, AGENT)
    assert first.operation_id == second.operation_id
    gate.set()
    assert report(await world.ended(second))["outcome"] == "restored"
    assert [seen.op for seen in engine.seen] == ["resume", "outcome"]


async def test_a_key_makes_a_call_repeatable(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    suspend = world.services.lifecycle.suspend
    first = await world.ended(await suspend(DEFAULT_TENANT, AGENT, "k1"))
    await world.turn(AGENT, text(200))
    assert await suspend(DEFAULT_TENANT, AGENT, "k1") == first
    third = await world.ended(await suspend(DEFAULT_TENANT, AGENT, "k2"))
    assert report(third)["snapshot"]["generation"] == 2
    with pytest.raises(ConflictError):
        await world.services.lifecycle.resume(DEFAULT_TENANT, AGENT, "k1")
    assert sum(seen.op == "suspend" for seen in engine.seen) == 2


async def test_a_refused_call_does_not_use_its_key_up(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    engine.begin_turn(DEFAULT_TENANT, AGENT)
    suspend = world.services.lifecycle.suspend
    with pytest.raises(TurnInFlightError):
        await suspend(DEFAULT_TENANT, AGENT, "k1")
    engine.end_turn(DEFAULT_TENANT, AGENT)
    report(await world.ended(await suspend(DEFAULT_TENANT, AGENT, "k1")))


async def test_a_key_whose_daemon_died_before_it_began_is_free_after_a_lease(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    suspend = world.services.lifecycle.suspend
    with monkeypatch.context() as dying:
        # As SIGKILL between the two: neither the operation nor the end of the key is written.
        dying.setattr(world.registry, "begin_operation", Mock(side_effect=MemoryError))
        dying.setattr(world.registry, "forget", Mock())
        with pytest.raises(MemoryError):
            await suspend(DEFAULT_TENANT, AGENT, "k1")
    with pytest.raises(OperationInProgressError):
        await suspend(DEFAULT_TENANT, AGENT, "k1")
    world.pass_time(world.services.context.limits.lease_s + 1)
    first = await world.ended(await suspend(DEFAULT_TENANT, AGENT, "k1"))
    assert report(first)["snapshot"]["generation"] == 1
    assert await suspend(DEFAULT_TENANT, AGENT, "k1") == first


async def test_what_ended_long_ago_is_forgotten(world: World) -> None:
    await world.create()
    work, get = Work(), world.services.operations.get
    work.go_on.set()
    ended = await world.ended(await start(world, work))
    age_s = world.services.context.limits.operations_age_s
    for passed_s in (0.0, age_s - 10):
        world.pass_time(passed_s)
        await world.services.retention.run(full=True)
        assert await get(DEFAULT_TENANT, ended.operation_id) == ended
    world.pass_time(20)
    await world.services.retention.run(full=True)
    with pytest.raises(OperationNotFoundError):
        await get(DEFAULT_TENANT, ended.operation_id)


async def test_a_key_follows_the_operation_that_was_joined(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    engine.faults.hangs |= {"suspend", "commit"}
    suspend = world.services.lifecycle.suspend
    first = await suspend(DEFAULT_TENANT, AGENT)
    joined = await suspend(DEFAULT_TENANT, AGENT, "k1")
    again = await suspend(DEFAULT_TENANT, AGENT, "k1")
    assert joined.operation_id == again.operation_id == first.operation_id
    await world.ended(first)


async def test_sessions_do_not_share_operations(world: World) -> None:
    await world.create()
    other = SessionId("other")
    await world.create(other)
    work = Work()
    await start(world, work)
    wanted = claim(DEFAULT_TENANT, other, OperationKind.RESUME)
    operation = await world.services.operations.start(wanted, work)
    work.go_on.set()
    report(await world.ended(operation))
    assert work.begun == 2
