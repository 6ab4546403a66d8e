from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.errors import RegistryUnavailableError, TooManyListenersError
from sessiond.domain.ids import DEFAULT_TENANT, SessionId, TenantId
from sessiond.service.feed import Batch, Interest
from sessiond.testing.world import AGENT, QUICK, World, open_world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio
ALL = Interest(DEFAULT_TENANT)
OTHER = TenantId("other")


@asynccontextmanager
async def heard(
    world: World, interest: Interest = ALL, after: int | None = None
) -> AsyncIterator[AsyncIterator[Batch]]:
    listener = await world.services.feed.listen(interest, after)
    try:
        yield aiter(listener.batches())
    finally:
        listener.close()


async def add(world: World, kind: str, session_id: SessionId = AGENT) -> None:
    await asyncio.to_thread(world.registry.add_event, DEFAULT_TENANT, session_id, kind, 1.5, {})


async def kinds(batches: AsyncIterator[Batch], count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        found += [event.kind for event in (await anext(batches)).events]
    return found


async def test_what_happens_is_told(world: World) -> None:
    await world.create()
    async with heard(world) as batches:
        await add(world, "a")
        assert await kinds(batches, 1) == ["a"]
        await add(world, "b")
        await add(world, "c")
        assert await kinds(batches, 2) == ["b", "c"]


async def test_whoever_comes_back_goes_on_where_it_was(world: World) -> None:
    await world.create()
    async with heard(world, after=0) as batches:
        first = await anext(batches)
    assert [event.kind for event in first.events] == ["created"]
    await add(world, "a")
    async with heard(world, after=first.reached_id) as batches:
        assert await kinds(batches, 1) == ["a"]


async def test_more_than_one_page(world: World) -> None:
    await world.create()
    for number in range(205):
        world.registry.add_event(DEFAULT_TENANT, AGENT, f"k{number}", 1.5, {})
    async with heard(world, after=0) as batches:
        assert await kinds(batches, 206) == ["created", *(f"k{number}" for number in range(205))]


async def test_filters(world: World) -> None:
    other = SessionId("other")
    await world.create()
    await world.create(other)
    for kind in ("a", "b"):
        for session_id in (AGENT, other):
            await add(world, kind, session_id)
    cases = [
        (Interest(DEFAULT_TENANT), ["created", "created", "a", "a", "b", "b"]),
        (Interest(DEFAULT_TENANT, other), ["created", "a", "b"]),
        (Interest(DEFAULT_TENANT, kinds=frozenset({"a", "x"})), ["a", "a"]),
        (Interest(DEFAULT_TENANT, other, frozenset({"b"})), ["b"]),
    ]
    for interest, wanted in cases:
        async with heard(world, interest, after=0) as batches:
            assert await kinds(batches, len(wanted)) == wanted


async def test_others_events_are_not_told(world: World) -> None:
    await world.services.catalogue.create(OTHER, AGENT)
    await world.create()
    async with heard(world, after=0) as batches:
        assert [event.tenant for event in (await anext(batches)).events] == [DEFAULT_TENANT]


async def test_a_heartbeat_tells_how_far_it_is(tmp_path: Path) -> None:
    async with open_world(tmp_path, limits=replace(QUICK, event_heartbeat_s=0.0)) as world:
        await world.create()
        newest_id = world.registry.newest_event_id(DEFAULT_TENANT)
        interest = Interest(DEFAULT_TENANT, kinds=frozenset({"none"}))
        async with heard(world, interest, after=0) as batches:
            assert await anext(batches) == Batch((), newest_id)


async def test_an_id_of_a_lost_registry_skips_nothing(world: World) -> None:
    await world.create()
    async with heard(world, after=10**9) as batches:
        assert await kinds(batches, 1) == ["created"]


async def test_a_tenant_has_so_many_listeners(tmp_path: Path) -> None:
    async with open_world(tmp_path, limits=replace(QUICK, event_listeners=2)) as world:
        listen = world.services.feed.listen
        first, _second = await listen(ALL, None), await listen(ALL, 0)
        with pytest.raises(TooManyListenersError):
            await listen(ALL, None)
        await listen(Interest(OTHER), None)
        first.close()
        first.close()
        await listen(ALL, None)
        with pytest.raises(TooManyListenersError):
            await listen(ALL, None)


async def test_a_failed_look_gives_the_place_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_world(tmp_path, limits=replace(QUICK, event_listeners=1)) as world:
        with monkeypatch.context() as patched:
            patched.setattr(world.registry, "newest_event_id", unavailable)
            with pytest.raises(RegistryUnavailableError):
                await world.services.feed.listen(ALL, None)
        await world.services.feed.listen(ALL, None)


async def test_a_registry_that_is_away_for_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.create()
    tried = asyncio.Event()

    def away(*_: object, **__: object) -> list[object]:
        loop.call_soon_threadsafe(tried.set)
        return unavailable()

    loop = asyncio.get_running_loop()
    async with heard(world, after=0) as batches:
        with monkeypatch.context() as patched:
            patched.setattr(world.registry, "tenant_events", away)
            waiting = asyncio.ensure_future(anext(batches))
            await tried.wait()
        assert [event.kind for event in (await waiting).events] == ["created"]


async def test_listeners_leave_threads_to_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, and however long the registry keeps them waiting."""
    reading, gate, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()

    def held(*_: object, **__: object) -> list[object]:
        loop.call_soon_threadsafe(reading.set)
        gate.wait(60)
        return []

    monkeypatch.setattr(world.registry, "tenant_events", held)
    listeners = [await world.services.feed.listen(ALL, 0) for _ in range(10)]
    waiting = [asyncio.ensure_future(anext(aiter(one.batches()))) for one in listeners]
    await reading.wait()  # now all of them have asked
    try:
        await asyncio.wait_for(world.services.context.blocking(lambda: None), 20)
    finally:
        gate.set()
        world.services.feed.close()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_all_listeners_end_with_the_feed(world: World) -> None:
    async with heard(world) as early:
        waiting = asyncio.ensure_future(anext(early))
        world.services.feed.close()
        with pytest.raises(StopAsyncIteration):
            await waiting
    async with heard(world, after=0) as late:
        with pytest.raises(StopAsyncIteration):
            await anext(late)


def unavailable(*_: object, **__: object) -> list[object]:
    raise RegistryUnavailableError
