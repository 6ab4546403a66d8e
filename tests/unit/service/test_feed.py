from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import delete, update

from sessiond.domain.cursors import START, Cursor, cursor_of
from sessiond.domain.errors import RegistryUnavailableError, TooManyListenersError
from sessiond.domain.ids import DEFAULT_TENANT, SessionId, TenantId
from sessiond.registry.models import EventRow
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
    world: World, interest: Interest = ALL, after: Cursor | None = None
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
    async with heard(world, after=START) as batches:
        first = await anext(batches)
    assert [event.kind for event in first.events] == ["created"]
    await add(world, "a")
    async with heard(world, after=first.reached) as batches:
        assert await kinds(batches, 1) == ["a"]


async def test_more_than_one_page(world: World) -> None:
    await world.create()
    for number in range(205):
        world.registry.add_event(DEFAULT_TENANT, AGENT, f"k{number}", 1.5, {})
    async with heard(world, after=START) as batches:
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
        async with heard(world, interest, after=START) as batches:
            assert await kinds(batches, len(wanted)) == wanted


async def test_others_events_are_not_told(world: World) -> None:
    await world.services.catalogue.create(OTHER, AGENT)
    await world.create()
    async with heard(world, after=START) as batches:
        assert [event.tenant for event in (await anext(batches)).events] == [DEFAULT_TENANT]


async def test_a_heartbeat_tells_how_far_it_is(tmp_path: Path) -> None:
    async with open_world(tmp_path, limits=replace(QUICK, event_heartbeat_s=0.0)) as world:
        await world.create()
        newest = cursor_of(world.registry.newest_event(DEFAULT_TENANT))
        interest = Interest(DEFAULT_TENANT, kinds=frozenset({"none"}))
        async with heard(world, interest, after=START) as batches:
            assert await anext(batches) == Batch((), newest)


PLACES = {
    "a number that is not given yet": Cursor(10**9),
    "another event's": Cursor(1, "0" * 12),
    "another tenant's": Cursor(2),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
async def test_whoever_was_in_another_registry_is_told_and_skips_nothing(
    world: World, place: Cursor
) -> None:
    await world.create()
    await world.services.catalogue.create(OTHER, AGENT)
    nothing = Interest(DEFAULT_TENANT, kinds=frozenset({"none"}))
    async with heard(world, nothing, after=place) as batches:
        assert await anext(batches) == Batch((), START, lost=place)
    async with heard(world, after=place) as batches:
        assert (await anext(batches)).lost == place
        assert await kinds(batches, 1) == ["created"]


async def test_a_number_alone_is_a_place(world: World) -> None:
    await world.create()
    await add(world, "a")
    async with heard(world, after=Cursor(1)) as batches:
        assert await kinds(batches, 1) == ["a"]


async def test_a_registry_that_is_replaced_while_it_is_followed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where an older copy of the database is put in its place."""
    await world.create()
    for kind in "ab":
        await add(world, kind)
    away = asyncio.Event()
    loop = asyncio.get_running_loop()

    def unreachable(*_: object, **__: object) -> list[object]:
        loop.call_soon_threadsafe(away.set)
        return unavailable()

    async with heard(world, after=START) as batches:
        before = await anext(batches)
        with monkeypatch.context() as patched:
            patched.setattr(world.registry, "tenant_events", unreachable)
            waiting = asyncio.ensure_future(anext(batches))
            await away.wait()
            with world.registry._writing() as db:
                db.execute(delete(EventRow).where(EventRow.kind == "b"))
            await add(world, "c")  # it gets the number of the one that is gone
        assert (await waiting).lost == before.reached
        assert await kinds(batches, 3) == ["created", "a", "c"]


async def test_a_registry_that_is_replaced_between_two_looks(world: World) -> None:
    """Its connections come back by themselves, so nobody hears of it."""
    await world.create()
    for kind in "ab":
        await add(world, kind)
    async with heard(world, after=START) as batches:
        before = await anext(batches)
        await asyncio.to_thread(replace_newest, world, "b", "c")
        assert (await anext(batches)).lost == before.reached
        assert await kinds(batches, 3) == ["created", "a", "c"]


def replace_newest(world: World, kind: str, other: str) -> None:
    """Give the number of an event to another one, at once."""
    with world.registry._writing() as db:
        db.execute(update(EventRow).where(EventRow.kind == kind).values(kind=other))


async def test_a_tenant_has_so_many_listeners(tmp_path: Path) -> None:
    async with open_world(tmp_path, limits=replace(QUICK, event_listeners=2)) as world:
        listen = world.services.feed.listen
        first, _second = await listen(ALL, None), await listen(ALL, START)
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
            patched.setattr(world.registry, "newest_event", unavailable)
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
    async with heard(world, after=START) as batches:
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
    listeners = [await world.services.feed.listen(ALL, START) for _ in range(10)]
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
    async with heard(world, after=START) as late:
        with pytest.raises(StopAsyncIteration):
            await anext(late)


def unavailable(*_: object, **__: object) -> list[object]:
    raise RegistryUnavailableError
