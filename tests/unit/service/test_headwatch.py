"""Heads that are waited for: one thread looks for all, and no store can keep who waits."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from sessiond.domain.errors import StoreError
from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.service import turnresults
from sessiond.service.calls import Passage
from sessiond.service.headwatch import HeadWatch
from sessiond.service.turnresults import TurnResults
from sessiond.testing.world import AGENT, World, text

if TYPE_CHECKING:
    from sessiond.domain.heads import Head
    from sessiond.domain.turnoutcome import TurnOutcome
    from sessiond.service.turns import TurnTicket
    from sessiond.store.store import Store

pytestmark = pytest.mark.anyio

_PATIENCE_S = 60.0


def ended(head: Head | None) -> bool:
    return head is not None and head.last_turn is not None


class Held:
    """A store whose heads nobody can read until it is let go, as with a drive that hangs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._free = threading.Event()
        self.looks = 0

    def read_head(self, *place: object) -> Head | None:
        self.looks += 1
        assert self._free.wait(_PATIENCE_S)
        return self._store.read_head(*place)  # type: ignore[arg-type]

    def let_go(self) -> None:
        self._free.set()


def watch_of(world: World, **parts: object) -> HeadWatch:
    return HeadWatch(replace(world.services.context, **parts))  # type: ignore[arg-type]


async def sessions_with_turns(world: World, count: int) -> list[SessionId]:
    world.start_engine()
    sessions = [SessionId(f"agent-{number}") for number in range(count)]
    for session_id in sessions:
        await world.create(session_id)
        await world.turn(session_id, text(100))
    return sessions


async def test_one_way_to_a_thread_serves_all_who_wait(world: World) -> None:
    sessions = await sessions_with_turns(world, 8)
    engine_id = world.started[0].info.engine_id
    ways = Mock(wraps=world.services.context.blocking)
    watch = watch_of(world, blocking=ways)

    async with asyncio.timeout(_PATIENCE_S), asyncio.TaskGroup() as group:
        waits = [
            group.create_task(watch.wait((DEFAULT_TENANT, one), engine_id, ended))
            for one in sessions
        ]
    heads = [wait.result() for wait in waits]
    assert [head and head.session for head in heads] == sessions
    assert ways.call_count == 1


async def test_a_head_that_comes_late_is_seen(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    looks = 0

    def told(head: Head | None) -> bool:
        nonlocal looks
        looks += 1
        return ended(head)

    watch = watch_of(world)
    key = DEFAULT_TENANT, AGENT
    waiting = asyncio.create_task(watch.wait(key, engine.info.engine_id, told))
    while looks < 6:  # the thread has given up its stay meanwhile
        await asyncio.sleep(0.005)
    assert not waiting.done()
    await world.turn(AGENT, text(100))
    async with asyncio.timeout(_PATIENCE_S):
        assert ended(await waiting)


async def test_who_comes_while_it_looks_is_served_too(world: World) -> None:
    first, second = await sessions_with_turns(world, 2)
    engine_id = world.started[0].info.engine_id
    held = Held(world.store)
    watch = watch_of(world, store=held)
    waits = [asyncio.create_task(watch.wait((DEFAULT_TENANT, first), engine_id, ended))]
    while not held.looks:
        await asyncio.sleep(0.001)
    waits.append(asyncio.create_task(watch.wait((DEFAULT_TENANT, second), engine_id, ended)))
    await asyncio.sleep(0)
    held.let_go()
    async with asyncio.timeout(_PATIENCE_S):
        assert all(map(ended, await asyncio.gather(*waits)))
    # And after all of them have gone, it begins again.
    async with asyncio.timeout(_PATIENCE_S):
        assert ended(await watch.wait((DEFAULT_TENANT, first), engine_id, ended))


async def outcome_of(world: World, ticket: TurnTicket, store: object) -> TurnOutcome:
    limits = replace(world.services.context.limits, turn_settle_s=0.05)
    context = replace(world.services.context, store=store, limits=limits)  # type: ignore[arg-type]
    results = TurnResults(context, world.services.catalogue)
    async with asyncio.timeout(_PATIENCE_S):
        return await results.recorded(Passage(ticket.engine, ticket))


@pytest.mark.usefixtures("engine")
async def test_nobody_waits_for_a_drive_that_hangs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turnresults, "_HANGS_S", 0.01)
    ticket = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    held = Held(world.store)
    try:
        found = await outcome_of(world, ticket, held)
    finally:
        held.let_go()
    assert found.outcome is None


@pytest.mark.usefixtures("engine")
async def test_a_store_that_cannot_be_read_leaves_the_outcome_unknown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer itself is whole, and its client has it: no error takes its end away."""
    monkeypatch.setattr(turnresults, "_HANGS_S", _PATIENCE_S)
    ticket = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    broken = Mock(read_head=Mock(side_effect=StoreError("The drive is gone.")))
    found = await outcome_of(world, ticket, broken)
    assert found.outcome is None
    assert broken.read_head.called
