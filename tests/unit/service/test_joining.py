"""Who joins a suspend that runs already: only who wants the same of it."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sessiond.domain.errors import OperationInProgressError
from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.domain.reasons import Reason
from sessiond.domain.session import OnEvicted, OperationKind, OperationStatus
from sessiond.service.suspend_plans import SuspendBy
from sessiond.testing.values import an_operation
from sessiond.testing.world import AGENT, PATIENT, World, open_world, problem, report, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sessiond.service.catalogue import Changes

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A session of six chunks, of which three are gone."""
    async with open_world(tmp_path, limits=PATIENT) as world:
        engine = world.start_engine()
        await world.create()
        await world.turn(AGENT, text(100))
        engine.evict(keep_tokens=50)
        yield world


def closed_gate(world: World) -> asyncio.Event:
    """Hold suspends in the engine until it is set."""
    (engine,) = world.started
    gate = engine.faults.gates["suspend"] = asyncio.Event()
    return gate


async def change(world: World, changes: Changes) -> None:
    await world.services.catalogue.change(DEFAULT_TENANT, AGENT, changes)


async def test_only_a_call_with_the_same_choice_joins(world: World) -> None:
    gate, suspend = closed_gate(world), world.services.lifecycle.suspend
    await change(world, {"on_evicted": OnEvicted.SKIP})
    first = await suspend(DEFAULT_TENANT, AGENT)  # as the session says
    same = await suspend(DEFAULT_TENANT, AGENT, on_evicted=OnEvicted.SKIP)
    assert same.operation_id == first.operation_id
    for key in ("", "key"):
        with pytest.raises(OperationInProgressError, match="skip"):
            await suspend(DEFAULT_TENANT, AGENT, key, OnEvicted.RECOMPUTE)
    await change(world, {"on_evicted": None})
    with pytest.raises(OperationInProgressError, match="skip"):
        await suspend(DEFAULT_TENANT, AGENT)  # the session does not say so any more
    gate.set()
    assert problem(await world.ended(first)) == "suspend_skipped"
    again = await suspend(DEFAULT_TENANT, AGENT, "key", OnEvicted.RECOMPUTE)
    assert report(await world.ended(again))["recomputed_tokens"] == 48


async def test_one_of_another_daemon_is_joined_by_its_choice_too(world: World) -> None:
    world.pass_time(10)  # since the turn: it has surely seen that
    session, now = (await world.show()).session, world.services.context.now()
    until = now + PATIENT.lease_s
    theirs = an_operation(session, created_unix_s=now, lease_until_unix_s=until)
    theirs = replace(theirs, kind=OperationKind.SUSPEND, on_evicted=OnEvicted.RECOMPUTE)
    world.registry.begin_operation(theirs)
    suspend = world.services.lifecycle.suspend
    joined = await suspend(DEFAULT_TENANT, AGENT, on_evicted=OnEvicted.RECOMPUTE)
    assert joined == theirs
    with pytest.raises(OperationInProgressError, match="recompute"):
        await suspend(DEFAULT_TENANT, AGENT)
    ended = OperationStatus.SUCCEEDED
    world.registry.finish_operation(theirs.operation_id, theirs.owner, ended, {}, now)


async def test_one_of_another_daemon_may_have_looked_before_the_newest_turn(world: World) -> None:
    session, now = (await world.show()).session, world.services.context.now()
    until = now + PATIENT.lease_s
    theirs = an_operation(session, created_unix_s=now, lease_until_unix_s=until)
    theirs = replace(theirs, kind=OperationKind.SUSPEND, on_evicted=OnEvicted.PREFIX)
    world.registry.begin_operation(theirs)
    with pytest.raises(OperationInProgressError, match="before"):
        await world.services.lifecycle.suspend(DEFAULT_TENANT, AGENT)


async def test_a_sweep_comes_back_after_a_suspend_with_another_choice(world: World) -> None:
    """It must not take that one's "nothing was stored" for its own."""
    gate, sweeper = closed_gate(world), world.services.sweeper
    await change(world, {"idle_timeout_s": 5.0})
    suspend = world.services.lifecycle.suspend
    first = await suspend(DEFAULT_TENANT, AGENT, on_evicted=OnEvicted.SKIP)
    world.pass_time(10)
    swept = await sweeper.sweep()
    assert (swept.due, swept.suspended, swept.failed) == (1, 0, 0)
    gate.set()
    assert problem(await world.ended(first)) == "suspend_skipped"
    assert (await sweeper.sweep()).suspended == 1


async def test_what_is_not_to_be_stored_keeps_no_repeat_from_joining(world: World) -> None:
    gate = closed_gate(world)
    suspend = world.services.lifecycle.suspend
    first = await suspend(DEFAULT_TENANT, AGENT)
    world.pass_time(1)
    await world.turn(AGENT, text(10, seed=7))  # a side call
    assert (await suspend(DEFAULT_TENANT, AGENT)).operation_id == first.operation_id
    gate.set()
    await world.ended(first)


async def test_who_doubts_joins_none_that_does_not(world: World) -> None:
    gate = closed_gate(world)
    suspend = world.services.lifecycle.suspend
    first = await suspend(DEFAULT_TENANT, AGENT)
    world.started[0].faults.refusals["heads"] = Reason.STORE_FULL
    with pytest.raises(OperationInProgressError, match="before"):
        await suspend(DEFAULT_TENANT, AGENT)
    gate.set()
    await world.ended(first)


async def test_one_that_asked_no_engine_is_joined_only_for_the_same_line(world: World) -> None:
    engine = world.started[0]
    await world.turn(AGENT, text(50) + text(150, seed=9))  # the other line
    (other,) = [
        branch.tokens
        for branch in engine._heads[DEFAULT_TENANT, AGENT].branches
        if branch.tokens[:50] == text(50) and len(branch.tokens) > 150
    ]
    engine.faults.late_heads = True
    await world.turn(AGENT, other + text(60, seed=4))  # it goes on, so that it leads now
    gate = closed_gate(world)
    suspend = world.services.lifecycle.suspend
    first = await suspend(DEFAULT_TENANT, AGENT, by=SuspendBy.DRAIN)
    with pytest.raises(OperationInProgressError, match="before"):
        await suspend(DEFAULT_TENANT, AGENT)
    gate.set()
    await world.ended(first)


async def test_one_that_has_just_begun_is_known_by_what_it_stores(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, began, goes_on = world.registry.begin_operation, asyncio.Event(), threading.Event()
    loop, gate = asyncio.get_running_loop(), closed_gate(world)

    def slow(*given: Any) -> None:  # noqa: ANN401 - passed on
        begin(*given)
        loop.call_soon_threadsafe(began.set)
        assert goes_on.wait(60.0)

    monkeypatch.setattr(world.registry, "begin_operation", slow)
    suspend = world.services.lifecycle.suspend
    first = asyncio.create_task(suspend(DEFAULT_TENANT, AGENT))
    await began.wait()
    monkeypatch.setattr(world.registry, "begin_operation", begin)
    second = await suspend(DEFAULT_TENANT, AGENT)
    goes_on.set()
    assert (await first).operation_id == second.operation_id
    gate.set()
    await world.ended(second)
